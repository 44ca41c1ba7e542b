"""Bad matrix files: one error each, naming the file, the line where there is one, and why."""

from __future__ import annotations

import gzip
import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.io import savemat

from embeddb.core.errors import MatrixError
from embeddb.core.pattern import Pattern
from embeddb.matrix_files import read_pattern

MM = "%%MatrixMarket matrix coordinate real general\n"
ARRAY = "%%MatrixMarket matrix array real general\n"
HB = f"{'t':<80}\n"


def hb(counts: str, sizes: str, formats: str = "(2I3)           (2I3)", body: str = "") -> str:
    return f"{HB}{counts}\n{sizes}\n{formats}\n{body}"


BAD_TEXT = [
    ("a.mtx", "", 1, "banner"),
    ("a.mtx", "%%MatrixMarket matrix coordinate real\n1 1 0\n", 1, "banner"),
    ("a.mtx", "%%MatrixMarket vector coordinate real general\n1 0\n", 1, "vector"),
    ("a.mtx", "%%MatrixMarket matrix coordinate quaternion general\n1 1 0\n", 1, "quaternion"),
    ("a.mtx", "%%MatrixMarket matrix array pattern general\n1 1\n", 1, "pattern"),
    ("a.mtx", "%%MatrixMarket matrix coordinate real symmetric\n1 2 0\n", 2, "symmetric"),
    ("a.mtx", MM, 2, "expected 3"),
    ("a.mtx", MM + "2 2\n1 1 1\n", 2, "expected 3"),
    ("a.mtx", MM + "% c\n2 2 nan\n", 3, "nan"),
    ("a.mtx", MM + "2 2 1.5\n", 2, "1.5"),
    ("a.mtx", MM + "-2 2 1\n1 1 1\n", 2, "negative"),
    ("a.mtx", MM + "2 2 -1\n1 1 1\n", 2, "negative"),
    ("a.mtx", MM + "3000000000 2 1\n1 1 1\n", 2, "2\\^31-1"),
    ("a.mtx", MM + "2147483647 1 0\n", 2, "times the size"),
    ("a.mtx", MM + "9 9 100000000000\n1 1 1\n", 2, "limit"),
    ("a.mtx", MM + "9 9 2000000000\n1 1 1\n", 2, "cannot hold"),
    ("a.mtx", MM + "9 9 99999999999999999999999\n1 1 1\n", 2, "limit"),
    ("a.mtx", MM + "2 2 2\n1 1 1\n", None, "Truncated"),
    ("a.mtx", MM + "2 2 1\n1 1 1\n2 2 2\n", 4, "Too many"),
    ("a.mtx", MM + "% a\n2 2 2\n1 1 1\n2 2", 5, "floating"),
    ("a.mtx", MM + "2 2 1\n0 1 1\n", 3, "Row"),
    ("a.mtx", MM + "2 2 1\n1 3 1\n", 3, "Column"),
    ("a.mtx", MM + "2 2 1\n-1 1 1\n", 3, "Row"),
    ("a.mtx", MM + "2 2 1\nnan 1 1\n", 3, "integer"),
    ("a.mtx", MM + "2 2 1\n4294967297 1 1\n", 3, "range"),
    ("a.mtx", MM + "%" + "x" * (2**20 - 1) + " 1 1 0\n2 2 1\n1 1 1\n", 2, "more than 1048576"),
    ("a.mtx", ARRAY + "2 2\n1\n2\n3\n", None, "truncated"),
    ("a.mtx", ARRAY + "0 2\n1\n", 3, "more than"),
    ("a.mtx", ARRAY + "1 1\n1 2\n", 3, "per line"),
    ("a.mtx", ARRAY + "1 1\nx\n", 3, "not a number"),
    ("a.mtx", ARRAY + "1 2\n1\n2\n3\n", 5, "more than"),
    ("a.mtx", ARRAY + "100000 1000000\n1\n", 2, "GiB|limit"),
    ("a.smtx", "", 1, "three"),
    ("a.smtx", "2, 2\n0 1 2\n0 1\n", 1, "three"),
    ("a.smtx", "2, -2, 2\n0 1 2\n0 1\n", 1, "negative"),
    ("a.smtx", "2, 2, 100000000000\n0 1 2\n0 1\n", 1, "limit"),
    ("a.smtx", "2, 2, 1000000\n0 1 2\n0 1\n", 1, "cannot hold"),
    ("a.smtx", "2, 2, 2\n0 1\n0 1\n", 2, "3 row offsets"),
    ("a.smtx", "2, 2, 2\n0 3 2\n0 1\n", 2, "ascend"),
    ("a.smtx", "2, 2, 2\n0 1 2\n0\n", 3, "2 column"),
    ("a.smtx", "2, 2, 2\n0 1 2\n0 nan\n", 3, "whole"),
    ("a.smtx", "2, 2, 2\n0 1 2\n0 99999999999999999999\n", 3, "outside"),
    ("a.smtx", "2, 2, 2\n0 1 2\n0 1\n5\n", 4, "more than"),
    ("a.el", "0 1\n# c\n\n2 x\n", 4, "whole"),
    ("a.el", "0 1\n2\n", 2, "whole"),
    ("a.el", "0 1\nnan 1\n", 2, "whole"),
    ("a.el", "# c\n0 1\n1 -2\n", 3, "negative"),
    ("a.el", "0 99999999999999999999\n", 1, "whole"),
    ("a.el", "# Nodes: 3 Edges: 3\n0 1\n1 2\n", None, "states 3 edges"),
    ("a.el", "# Nodes: 3 Edges: 1,003\n0 1\n1 2\n", None, "states 1003 edges"),
    ("a.hb", "one line", None, "too short"),
    ("a.hb", hb("4 1 1", "RUA 1 1 1 0"), 2, "list"),
    ("a.hb", hb("4 1 -1 0 0", "RUA 1 1 1 0"), 2, "negative"),
    ("a.hb", hb("2 1 1 0 0", "RUE 1 1 1 1"), 3, "elemental"),
    ("a.hb", hb("2 1 1 0 0", "XUA 1 1 1 0"), 3, "XUA"),
    ("a.hb", hb("2 1 1 0 0", "RUA 1 1 nan 0"), 3, "list"),
    ("a.hb", hb("2 1 1 0 0", "RUA 1 1 100000000000 0"), 3, "limit"),
    ("a.hb", hb("2 1 1 0 0", "RUA 1 1 1000000 0"), 3, "cannot hold"),
    ("a.hb", hb("2 1 1 0 0", "RUA 1 1000000 1 0"), 3, "cannot hold"),
    ("a.hb", hb("2 1 1 0 0", "PSA 1 2 1 0"), 3, "PSA"),
    ("a.hb", hb("2 1 1 0 0", "PUA 1 1 1 0", "(2F3.0)         (2I3)"), 4, "Fortran"),
    ("a.hb", hb("3 0 1 0 0", "PUA 1 1 1 0"), 2, "take 1 lines"),
    ("a.hb", hb("3 2 1 0 0", "PUA 1 1 1 0", body="  1  2\n  1\n  1\n"), 6, "more than"),
    ("a.hb", hb("2 1 1 0 0", "PUA 1 1 1 0", "(2(I3)          (2I3)"), 4, "Fortran"),
    ("a.hb", hb("2 1 1 0 0", "PUA 1 1 1 0", "(2I3))          (2I3)"), 4, "Fortran"),
    ("a.hb", hb("2 1 1 0 0", "PUA 1 1 1 0", "(9999(9999I1))  (2I3)"), 4, "Fortran"),
    ("a.hb", hb("2 1 1 0 0", "PUA 1 1 1 0", "(2X)            (2I3)"), 4, "Fortran"),
    ("a.hb", hb("2 1 1 0 0", "PUA 1 1 1 0", "(I3/I3)         (2I3)"), 4, "Fortran"),
    ("a.hb", hb("2 1 1 0 0", "PUA 1 1 1 0", body="  1  2\n"), None, "truncated"),
    ("a.hb", hb("2 1 1 1 0", "RUA 1 1 1 0", body="  1  2\n  1\n"), None, "truncated"),
    ("a.hb", hb("2 1 1 0 0", "PUA 1 1 1 0", body="  1  2\n  1\n  1\n"), 7, "more lines than"),
    ("a.hb", hb("2 1 1 0 0", "PUA 1 1 1 0", body="  1  2\n  1  1\n"), 6, "more than"),
    ("a.hb", hb("2 1 1 0 0", "PUA 1 1 1 0", body="  1  3\n  1\n"), None, "ascend"),
    ("a.hb", hb("2 1 1 0 0", "PUA 1 1 1 0", body="  1  2\n  2\n"), 6, "outside"),
    ("a.hb", hb("2 1 1 0 0", "PUA 1 1 1 0", body="  1  2\nnan\n"), 6, "nan"),
    ("a.hb", hb("2 1 1 0 0", "PUA 1 1 1 0", body="  1  2\n -1\n"), 6, "-1"),
]


@pytest.mark.parametrize(("name", "text", "line", "reason"), BAD_TEXT)
def test_bad_text_names_file_line_and_reason(
    tmp_path: Path, name: str, text: str, line: int | None, reason: str
) -> None:
    path = tmp_path / name
    path.write_text(text)
    packed = tmp_path / (name + ".gz")
    packed.write_bytes(gzip.compress(text.encode()))
    with pytest.raises(MatrixError, match=reason) as caught:
        read_pattern(path)
    place = f"{path}:{line}: " if line is not None else f"{path}: "
    assert str(caught.value).startswith(place)
    assert caught.value.line == line
    with pytest.raises(MatrixError):
        read_pattern(packed)


@pytest.mark.parametrize("end", ["1.5x-9", "1.5 7", "1.5\0x\n", "\0"])
def test_line_ends_that_crash_the_compiled_reader(tmp_path: Path, end: str) -> None:
    """scipy's reader ends the process when a line has no end, or a NUL byte before it."""
    path = tmp_path / "a.mtx"
    path.write_text(MM + "2 2 2\n1 1 1\n2 2 " + end)
    if end == "\0":
        with pytest.raises(MatrixError, match=rf"{path}:4: .*floating"):
            read_pattern(path)
    else:
        assert read_pattern(path).nnz == 2


def npz(path: Path, **changes: Any) -> Path:
    arrays: dict[str, Any] = {
        "format": b"csr", "shape": (2, 2), "indptr": np.array([0, 1, 2]),
        "indices": np.array([0, 1]), "data": np.ones(2),
    }  # fmt: skip
    arrays.update(changes)
    np.savez_compressed(path, **{k: v for k, v in arrays.items() if v is not None})
    return path


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"format": b"lil"}, "lil"),
        ({"format": None}, "no 'format'"),
        ({"shape": (2, 2, 2)}, "shape"),
        ({"shape": (2.0, np.nan)}, "shape"),
        ({"shape": (-2, 2)}, "negative"),
        ({"shape": (2**31, 2)}, "2\\^31-1"),
        ({"shape": (2**31 - 1, 2)}, "times the size"),
        ({"shape": (3, 2)}, "should have 4"),
        ({"indptr": np.array([0, 2, 1])}, "ascend"),
        ({"indptr": np.array([0.0, np.nan, 2])}, "vector of whole"),
        ({"indices": np.array([0, 2])}, "outside"),
        ({"indices": np.array([0, -1])}, "outside"),
        ({"indices": np.array([0, 1, 1])}, "shape"),
        ({"indices": np.array([0, None])}, "not numbers"),
        ({"data": np.ones(3)}, "shape"),
        ({"format": b"bsr", "data": np.ones((2, 3, 1))}, "tile"),
        ({"format": b"bsr"}, "three dimensions"),
        ({"format": b"dia"}, "two dimensions"),
        ({"format": b"coo", "row": np.array([0, 1]), "col": np.array([0, 9])}, "outside"),
    ],
)
def test_bad_npz(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    path = npz(tmp_path / "a.npz", **changes)
    with pytest.raises(MatrixError, match=reason) as caught:
        read_pattern(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_npz_header_lies_and_bombs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embeddb.matrix_files.source._MEMORY", (2**20, 32))
    path = npz(tmp_path / "a.npz")
    whole = path.read_bytes()
    for cut in (0, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(MatrixError, match=r"a\.npz"):
            read_pattern(path)
    flipped = bytearray(whole)
    flipped[whole.index(b"indices.npy") + 40] ^= 0xFF
    path.write_bytes(flipped)
    with pytest.raises(MatrixError):
        read_pattern(path)
    header = io.BytesIO()
    shape = {"descr": "<i4", "fortran_order": False, "shape": (10**11,)}
    np.lib.format.write_array_header_1_0(header, shape)
    for body, reason in ((b"", "limit of"), (b"\0" * 400, "limit of")):
        npz(path, indices=None)
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr("indices.npy", header.getvalue() + body)
        with pytest.raises(MatrixError, match=reason):
            read_pattern(path)
    zeros = np.zeros(2**22, np.int8)
    npz(path, indices=zeros, data=np.zeros(1, np.int8))
    with pytest.raises(MatrixError, match="4194304 entries"):
        read_pattern(path)
    npz(path, format=b"dia", data=zeros.reshape(1, -1), offsets=np.zeros(1, int), shape=(9, 9))
    with pytest.raises(MatrixError, match="times the size"):
        read_pattern(path)


def test_gz_is_bounded_and_truncation_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for bound in ("HELD", "STREAMED"):
        monkeypatch.setattr(f"embeddb.matrix_files.source.{bound}", (2**20, 200))
    path = tmp_path / "a.mtx.gz"
    text = (MM + "2 2 1\n1 1 1\n").encode()
    path.write_bytes(gzip.compress(text)[:-6])
    with pytest.raises(MatrixError, match=r"a\.mtx\.gz"):
        read_pattern(path)
    block = gzip.compress(b"\n" * 2**18)  # members may simply follow each other
    path.write_bytes(gzip.compress(text) + block * 17)
    with pytest.raises(MatrixError, match="unpacked file"):
        read_pattern(path)
    path = path.rename(tmp_path / "b.el.gz")
    with pytest.raises(MatrixError, match="unpacked file"):
        read_pattern(path)


def test_waco_sizes(tmp_path: Path) -> None:
    path = tmp_path / "a.csr"
    for numbers in ([1, 1], [-1, 1, 0, 0], [1, 1, 2**31 - 1, 0, 1, 0], [1, 1, 1, 0, 1, 0, 0],
                    [1, 1, 1, 0, 1], [1, 1, 1, 0, 1, 1], [1, 1, 1, 1, 1, 0]):  # fmt: skip
        path.write_bytes(np.array(numbers, "<i4").tobytes())
        with pytest.raises(MatrixError, match=r"a\.csr"):
            read_pattern(path)


def test_mat_files(tmp_path: Path) -> None:
    path, eye = tmp_path / "a.mat", sp.csc_matrix(np.eye(3))
    other = sp.csc_matrix(np.ones((3, 3)))
    savemat(path, {"A": eye, "B": other})
    with pytest.raises(MatrixError, match=r"has: \['A', 'B'\]"):
        read_pattern(path)
    savemat(path, {"x": np.ones(3), "c": {"text": "abc"}})
    with pytest.raises(MatrixError, match=r"has: \[\]"):
        read_pattern(path)
    zeros = sp.csc_matrix((np.ones(2), ([0, 2], [1, 0])), shape=(3, 3))
    savemat(path, {"Problem": {"A": eye, "Zeros": zeros, "b": other, "aux": {"G": other}}})
    want = Pattern.from_coo((3, 3), [0, 1, 2, 0, 2], [0, 1, 2, 1, 0])
    assert read_pattern(path) == want
    savemat(path, {"A": eye}, do_compression=True)
    whole = path.read_bytes()
    for damaged in (whole[:60], whole[:150], whole[:-4], b"MATLAB 7.3" + whole[10:], whole[:126]):
        path.write_bytes(damaged)
        with pytest.raises(MatrixError, match=r"a\.mat"):
            read_pattern(path)


def test_mat_every_flipped_byte_is_a_pattern_or_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.mat"
    savemat(path, {"A": sp.csc_matrix(np.eye(3))})
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        try:
            read_pattern(path)
        except MatrixError as error:
            assert "a.mat" in str(error)


def test_max_nnz_counts_the_expanded_matrix(tmp_path: Path) -> None:
    path = tmp_path / "a.mtx"
    path.write_text("%%MatrixMarket matrix coordinate pattern symmetric\n2 2 1\n2 1\n")
    assert read_pattern(path, max_nnz=2).nnz == 2
    with pytest.raises(MatrixError, match="limit of 1"):
        read_pattern(path, max_nnz=1)
