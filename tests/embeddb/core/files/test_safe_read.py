from __future__ import annotations

import os
from pathlib import Path

import pytest

from embeddb.core.errors import EmbeddbError, MatrixError, ReaderError, StoreCorrupt, UsageError
from embeddb.core.files.safe_read import open_regular, read_bounded, reason_of, refusing


def test_a_pipe_nobody_writes_to_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="a named pipe, not a file"):
        open_regular(tmp_path / "pipe")


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/full"])
def test_a_device_is_refused(path: str) -> None:
    with pytest.raises(OSError, match="a device, not a file"):
        open_regular(path)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="a folder, not a file"):
        open_regular(tmp_path)


def test_a_file_is_read_to_its_bound(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    assert read_bounded(tmp_path / "a", 5) == b"12345"
    with pytest.raises(OSError, match="larger than 4 bytes"):
        read_bounded(tmp_path / "a", 4)


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (IndexError("out of range"), "f: out of range (IndexError)"),
        (RecursionError("maximum"), "f: nested too deeply"),
        (MemoryError(), "f: does not fit into memory"),
        (FileNotFoundError(2, "No such file or directory"), "f: No such file or directory"),
        (ValueError("two\nlines"), "f: two lines (ValueError)"),
        (KeyError(), "f: KeyError"),
        (MatrixError("no matrix", where="other", line=3), "f:3: no matrix"),
    ],
)
def test_any_failure_is_one_error_of_one_line(raised: Exception, said: str) -> None:
    with pytest.raises(ReaderError) as caught, refusing(ReaderError, where="f"):
        raise raised
    assert str(caught.value) == said


def test_errors_that_are_not_about_the_input_pass() -> None:
    with pytest.raises(UsageError, match="no such op"), refusing(ReaderError, where="f"):
        raise UsageError("no such op")


def test_an_error_without_a_place_names_it() -> None:
    with pytest.raises(StoreCorrupt, match=r"^note x: y \(TypeError\)$"):  # noqa: SIM117
        with refusing(StoreCorrupt, where="note x", hint="rebuild it"):
            raise TypeError("y")


def test_a_message_is_one_line() -> None:
    assert str(EmbeddbError("a\n  b\r\nc\x85d\u2028e")) == "a b c d e"


def test_what_an_error_says_is_short() -> None:
    assert len(reason_of(ValueError("x" * 10_000))) < 400
