"""Nothing that goes out through `safe_write` follows a link."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from embeddb.core.files.safe_write import (
    OwnFolder,
    drop_torn_line,
    open_own,
    own_size,
    whole_file,
    write_new,
)


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file of the user, outside every folder that is written to."""
    (tmp_path / "home").mkdir()
    file = tmp_path / "home" / "thesis.tex"
    file.write_text("years of work")
    return file


@pytest.mark.parametrize("mode", ["rb", "ab", "a+b", "r+b", "wb"])
@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_link_is_refused_and_left_alone(
    tmp_path: Path, victim: Path, mode: str, link: Callable[[Path, Path], None]
) -> None:
    link(victim, tmp_path / "lock")
    if link is os.link and mode == "rb":
        with open_own(tmp_path / "lock", mode) as file:
            assert file.read() == b"years of work"
    else:
        with pytest.raises(OSError, match="a link where a file of ours would be"):
            open_own(tmp_path / "lock", mode)
    assert victim.read_text() == "years of work"


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for mode in ("rb", "ab", "r+b", "wb"):
        with pytest.raises(OSError):  # ENXIO without a reader
            open_own(tmp_path / "pipe", mode)


def test_modes_do_what_they_say(tmp_path: Path) -> None:
    for mode, held in (("wb", b"ab"), ("ab", b"abab"), ("wb", b"ab")):
        with open_own(tmp_path / "f", mode) as file:
            file.write(b"ab")
        assert (tmp_path / "f").read_bytes() == held


def test_a_torn_line_is_dropped(tmp_path: Path) -> None:
    for before, after in ((b"", b"x\n"), (b"a\nb", b"a\nx\n"), (b"a\n", b"a\nx\n"), (b"b", b"x\n")):
        (tmp_path / "f").write_bytes(before)
        with open_own(tmp_path / "f", "a+b") as file:
            drop_torn_line(file)
            file.write(b"x\n")
        assert (tmp_path / "f").read_bytes() == after


def test_sizes_of_what_another_library_opens(tmp_path: Path, victim: Path) -> None:
    assert own_size(victim) == 13 and own_size(tmp_path / "none") is None
    os.link(victim, tmp_path / "hard")
    assert own_size(victim, hard=True) == 13
    (tmp_path / "link").symlink_to(victim)
    for path in (victim, tmp_path / "link", tmp_path):
        with pytest.raises(OSError, match=r"a link|not a regular file"):
            own_size(path)


def test_errors_name_the_whole_path(tmp_path: Path) -> None:
    def full() -> OSError:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    folder = OwnFolder(tmp_path)
    with pytest.raises(OSError, match="directory") as missing, folder.open("none", "rb"):
        pass
    with pytest.raises(OSError, match="space") as appended, folder.open("one", "ab"):
        raise full()
    with pytest.raises(OSError, match="space") as whole, whole_file(tmp_path / "two"):
        raise full()
    names = [e.value.filename for e in (missing, appended, whole)]
    assert names == [str(tmp_path / name) for name in ("none", "one", "two")]


@pytest.mark.parametrize(
    "name",
    ["\u8a18" * 82 + ".html", "a" * 255, os.fsdecode(b"\xff" * 255)],
    ids=["of three bytes each", "letters", "no text"],
)
def test_a_name_of_the_most_bytes_is_written(tmp_path: Path, name: str) -> None:
    with whole_file(tmp_path / name) as out:
        out.write(b"1")
    assert write_new(OwnFolder(tmp_path, "below"), name, b"2")
    assert (tmp_path / name).read_bytes() == b"1"
    assert (tmp_path / "below" / name).read_bytes() == b"2"


def test_a_whole_file_takes_the_place_of_a_link(tmp_path: Path, victim: Path) -> None:
    (tmp_path / "out").symlink_to(victim)
    with whole_file(tmp_path / "out") as out:
        out.write(b"new")
    assert victim.read_text() == "years of work"
    assert (tmp_path / "out").read_bytes() == b"new" and not (tmp_path / "out").is_symlink()


def test_a_file_that_is_not_finished_never_was(tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(b"old")
    with pytest.raises(ZeroDivisionError), whole_file(tmp_path / "out") as out:
        out.write(b"new")
        raise ZeroDivisionError
    assert [f.name for f in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out").read_bytes() == b"old"


def test_a_folder_that_is_a_link_holds_nothing_of_ours(tmp_path: Path, victim: Path) -> None:
    (tmp_path / "db").mkdir()
    (tmp_path / "db" / "index").symlink_to(victim.parent)
    folder = OwnFolder(tmp_path / "db", "index")
    assert folder.files() == []
    for act in (
        lambda: folder.write("a", b""),
        lambda: folder.remove("thesis.tex"),
        lambda: folder.read("thesis.tex", 99),
        folder.make,
    ):
        with pytest.raises(OSError, match="a link or file where a folder of ours would be"):
            act()
    assert [f.name for f in victim.parent.iterdir()] == ["thesis.tex"]


def test_a_folder_keeps_reads_lists_and_removes(tmp_path: Path, victim: Path) -> None:
    folder = OwnFolder(tmp_path, "a", "b")
    folder.write("one", b"1")
    folder.write("one", b"2")
    (tmp_path / "a" / "b" / "link").symlink_to(victim)
    assert folder.files() == ["one"] and folder.read("one", 1) == b"2"
    with pytest.raises(OSError, match="larger than 0 bytes"):
        folder.read("one", 0)
    with pytest.raises(OSError, match="a link"):
        folder.read("link", 99)
    folder.remove("link")
    folder.remove("one")
    folder.remove("one")
    assert victim.exists() and list(folder.path.iterdir()) == []


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc/passwd", "a\0"])
def test_names_are_plain(tmp_path: Path, name: str) -> None:
    with pytest.raises(OSError, match="not a plain file name"):
        OwnFolder(tmp_path).write(name, b"")
    with pytest.raises(OSError, match="not a plain file name"):
        OwnFolder(tmp_path, name)


def test_the_root_is_the_users_word(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "data").symlink_to(tmp_path / "real")
    OwnFolder(tmp_path / "data", "index").write("one", b"1")
    assert (tmp_path / "real" / "index" / "one").read_bytes() == b"1"
