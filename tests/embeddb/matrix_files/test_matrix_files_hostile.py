"""What strangers may call a matrix: at most one MatrixError, in bounded time and memory."""

from __future__ import annotations

import gzip
import io
import os
import struct
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from embeddb.core.errors import MatrixError
from embeddb.core.pattern import Pattern
from embeddb.matrix_files import matrix_files, read_pattern, sniff
from indexer.library import Library

MM = b"%%MatrixMarket matrix coordinate pattern general\n"
ARRAY = b"%%MatrixMarket matrix array real general\n"
ONE = MM + b"2 2 1\n1 1\n"
HEADER = b"MATLAB 5.0".ljust(124) + b"\x00\x01IM"


def unclosed(path: Path, header: bytes = b"{'descr': '<i4', 'shape': (2,") -> Path:
    """An archive with a member whose header does not end."""
    sp.save_npz(path, sp.eye(2, format="csr"))
    with zipfile.ZipFile(path) as archive:
        held = {name: archive.read(name) for name in archive.namelist()}
    padded = header.ljust(118)
    held["shape.npy"] = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(padded)) + padded
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in held.items():
            archive.writestr(name, data)
    return path


def element(kind: int, data: bytes) -> bytes:
    return struct.pack("<II", kind, len(data)) + data + b"\0" * (-len(data) % 8)


def struct_with(width: bytes, names: bytes, fields: bytes = b"") -> bytes:
    """A MATLAB file of one struct."""
    head = element(6, struct.pack("<II", 2, 0)) + element(5, struct.pack("<ii", 1, 1))
    return HEADER + element(
        14, head + element(1, b"p") + element(5, width) + element(1, names) + fields
    )


def test_an_unclosed_array_header_is_one_line(tmp_path: Path) -> None:
    for header in (b"{'descr': '<i4', 'shape': (2,", b"{'descr': '<i4', 3: 4}", b"('" * 40):
        with pytest.raises(MatrixError, match=r"^\S*a\.npz: [^\n]*$"):
            read_pattern(unclosed(tmp_path / "a.npz", header))


@pytest.mark.parametrize(
    "data",
    [
        struct_with(b"", b"abcd"),  # no width
        struct_with(struct.pack("<i", 1), b"a" * 2000, element(14, b"") * 2000),
        HEADER + element(14, element(6, struct.pack("<II", 2, 0)) + element(1, b"\x7f" * 10**6)),
        HEADER + element(14, b"") * 140_000,
    ],
)
def test_structs_that_are_none(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.mat").write_bytes(data)
    began = time.process_time()
    with pytest.raises(MatrixError, match=r"a\.mat"):
        read_pattern(tmp_path / "a.mat")
    assert time.process_time() - began < 3


def test_whatever_a_reader_raises_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: object) -> Pattern:
        raise KeyError("two\nlines")

    monkeypatch.setattr("embeddb.matrix_files.smtx.read", fails)
    (tmp_path / "a.smtx").touch()
    with pytest.raises(MatrixError, match=r"a\.smtx: .*two.*lines.*\(KeyError\)$"):
        read_pattern(tmp_path / "a.smtx")


def test_pipes_and_devices_are_refused_at_once(tmp_path: Path) -> None:
    for name in ("a.mtx", "a.npz", "a.txt", "a.edges"):
        os.mkfifo(tmp_path / name)
        with pytest.raises(MatrixError, match="a named pipe, not a file"):
            read_pattern(tmp_path / name)
    with pytest.raises(MatrixError, match="a named pipe, not a file"):
        sniff(tmp_path / "a.txt")
    (tmp_path / "z.mtx").symlink_to("/dev/zero")
    with pytest.raises(MatrixError, match="a device, not a file"):
        read_pattern(tmp_path / "z.mtx")
    (tmp_path / "folder.mtx").mkdir()
    with pytest.raises(MatrixError, match="a folder, not a file"):
        read_pattern(tmp_path / "folder.mtx")
    (tmp_path / "loop").symlink_to(".")
    (tmp_path / "b.mtx").write_bytes(ONE)
    assert matrix_files(tmp_path) == [tmp_path / "b.mtx"]


def test_a_library_goes_on_after_a_bad_file(tmp_path: Path) -> None:
    unclosed(tmp_path / "bad.npz")
    (tmp_path / "good.mtx").write_bytes(ONE)
    library = Library(tmp_path)
    assert library.find("bad") is None and library.find("good") is not None
    assert len(library.problems) == 1 and "bad.npz" in library.problems[0]


def test_a_name_that_is_no_text_is_escaped(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/a\xff.mtx"))
    path.write_bytes(ONE)
    assert read_pattern(path).name == r"a\xff"
    assert Library(tmp_path).find(r"a\xff") is not None
    path.write_bytes(b"")
    with pytest.raises(MatrixError, match=r"a\\xff\.mtx:1: "):
        read_pattern(path)


SLOW = {
    "a.mtx.gz": gzip.compress(MM + b"%\n" * 5_000_000 + b"9 9 1\n1 1\n", 1),
    "b.mtx.gz": gzip.compress(MM + b"9 9 1\n1 1 " + b"1" * 5_000_000, 1),
    "c.mtx.gz": gzip.compress(ARRAY + b"900 900\n" + b"0 " * 2_000_000, 1),
    "d.mtx.gz": gzip.compress(ONE) + b"\0" * 5_000_000 + b"x",
    "a.edges": b"#" * 65_000 + b"\n1 x\n",
    "b.edges": b"#\n" * 2_000_000 + b"1 x\n",
    "a.hb": b"t\n1 1 1 0\nPUA 9 9 9 0\n(1I1)           (1I1)\n" + b"\n" * 5_000_000 + b"x",
}


@pytest.mark.parametrize("name", SLOW)
def test_small_files_do_not_take_long(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(SLOW[name])
    began = time.process_time()
    with pytest.raises(MatrixError, match=name):
        read_pattern(tmp_path / name)
    assert time.process_time() - began < 10


def test_members_of_a_packed_file_follow_each_other(tmp_path: Path) -> None:
    path = tmp_path / "a.mtx.gz"
    path.write_bytes(b"".join(gzip.compress(ONE[at : at + 7]) for at in range(0, len(ONE), 7)))
    assert read_pattern(path).nnz == 1
    path.write_bytes(path.read_bytes() + gzip.compress(b"") * 1000 + b"\0" * 100_000)
    assert read_pattern(path).nnz == 1
    path.write_bytes(path.read_bytes() + gzip.compress(b"x" * 9)[:-3])
    with pytest.raises(MatrixError, match="truncated"):
        read_pattern(path)


def archive(**members: object) -> bytes:
    out = io.BytesIO()
    np.savez_compressed(out, **members)  # type: ignore[arg-type]  # numpy's stub wants one type
    return out.getvalue()


def bytes_(count: int) -> np.ndarray:
    return np.zeros(count, np.int8)


LARGE = {
    "wide.mtx": MM + b"33554000 2147483647 2\n1 1\n3 2147483647\n",
    "entries.mtx.gz": gzip.compress(MM + b"9 9 15000000\n" + b"1 1\n" * 10**6 * 15, 1),
    "rows.npz": archive(
        format=b"csr", shape=(31_000_000, 9), indptr=bytes_(31_000_001), indices=bytes_(0),
        data=bytes_(0),
    ),
    "columns.npz": archive(
        format=b"csc", shape=(9, 50_000_000), indptr=bytes_(50_000_001), indices=bytes_(0),
        data=bytes_(0),
    ),
    "blocks.npz": archive(
        format=b"bsr", shape=(5000, 5000), indptr=np.array([0, 1]), indices=bytes_(1),
        data=np.ones((1, 5000, 5000), np.int8),
    ),
    "header.npz": archive(format=np.array(b"csr".ljust(5_000_000))),
    "a.edges.gz": gzip.compress(b"1 1\n" * 10_000_000, 1),
    "a.smtx.gz": gzip.compress(b"9, 9, 20000000\n" + b"0 " * 20_000_010, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", LARGE)
def test_what_a_file_asks_for_is_in_proportion_to_it(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(LARGE[name])
    with pytest.raises(MatrixError, match=r"times the size|too large"):
        read_pattern(tmp_path / name)


@pytest.mark.slow
def test_many_empty_rows_take_little_more_than_their_pointers(tmp_path: Path) -> None:
    """Read, described and drawn: 300 MB over the start for what a file of any size may have."""
    (tmp_path / "a.mtx").write_bytes(MM + b"13000000 2147483647 2\n1 1\n3 2147483647\n")
    code = """
import sys
from embeddb.core.thumbnail import thumbnail
from embeddb.featurizers.sizes import Given
from embeddb.featurizers.stats import Stats
from embeddb.matrix_files import read_pattern
def peak():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
def all_of(path):
    pattern = read_pattern(path)
    return Stats().embed(pattern), Given().embed(pattern), thumbnail(pattern)
all_of(sys.argv[1])
before = peak()
all_of(sys.argv[2])
print((peak() - before) // 1024)
"""
    (tmp_path / "one.mtx").write_bytes(ONE)
    paths = [str(tmp_path / name) for name in ("one.mtx", "a.mtx")]
    done = subprocess.run(
        [sys.executable, "-c", code, *paths], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 300
