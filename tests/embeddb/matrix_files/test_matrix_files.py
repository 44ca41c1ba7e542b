"""Matrix files of every format: the same matrix gives the same id; bad files one clear error."""

from __future__ import annotations

import bz2
import gzip
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from matrix_writers import cards, write_array, write_edges, write_hb, write_smtx, write_waco
from scipy.io import hb_write, mmwrite, savemat

from embeddb.core.errors import MatrixError
from embeddb.core.pattern import Pattern
from embeddb.matrix_files import matrix_files, read_pattern, sniff

ROUND_TRIP = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@st.composite
def matrices(draw: st.DrawFn, *, square: bool = False) -> Any:
    """A csr_array with values of any kind, explicit zeros among them."""
    m = draw(st.integers(1 if square else 0, 12))
    n = m if square else draw(st.integers(0, 12))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    mask = rng.random((m, n)) < draw(st.sampled_from([0.0, 0.1, 0.5, 1.0]))
    rows, cols = np.nonzero(mask)
    values = rng.integers(-2, 3, rows.size).astype(draw(st.sampled_from(["f8", "i8", "c16"])))
    return sp.csr_array((values, (rows, cols)), shape=(m, n))


def ident(matrix: Any) -> str:
    return Pattern.from_csr(matrix.shape, matrix.indptr, matrix.indices).id


@ROUND_TRIP
@given(matrices())
def test_round_trip_through_general_formats(tmp_path: Path, matrix: Any) -> None:
    want = ident(matrix)
    ones = sp.csr_array((np.ones(matrix.nnz), matrix.indices, matrix.indptr), shape=matrix.shape)
    # scipy's own guess of a symmetry drops explicit zeros above the diagonal
    mmwrite(tmp_path / "a.mtx", matrix, symmetry="general")
    mmwrite(tmp_path / "p.mtx", ones, field="pattern", symmetry="general")
    (tmp_path / "z.mtx.gz").write_bytes(gzip.compress((tmp_path / "a.mtx").read_bytes()))
    for layout in ("csr", "csc", "coo"):
        sp.save_npz(tmp_path / f"{layout}.npz", matrix.asformat(layout), compressed=layout != "coo")
    write_smtx(tmp_path / "a.smtx", matrix)
    write_waco(tmp_path / "a.csr", matrix)
    for kind in ("RUA", "CRA", "IUA", "PRA"):
        write_hb(tmp_path / f"{kind}.rb", matrix, kind=kind)
        write_hb(tmp_path / f"a.{kind.lower()}", matrix, kind=kind, rhs=kind == "RUA")
    savemat(tmp_path / "a.mat", {"A": sp.csc_matrix(matrix), "b": 3.0}, do_compression=True)
    savemat(tmp_path / "s.mat", {"Problem": {"A": sp.csc_matrix(matrix), "title": "t"}})
    paths = matrix_files(tmp_path)
    assert len(paths) == 18
    assert {p.name: read_pattern(p).id for p in paths} == {p.name: want for p in paths}


@ROUND_TRIP
@given(matrices())
def test_filled_formats_read_zeros_as_padding(tmp_path: Path, matrix: Any) -> None:
    matrix.data[:] = 1
    want = ident(matrix)
    write_array(tmp_path / "dense.mtx", matrix.toarray())
    if min(matrix.shape):
        sp.save_npz(tmp_path / "dia.npz", matrix.todia())
        blocks = tuple(2 if size % 2 == 0 else 1 for size in matrix.shape)
        sp.save_npz(tmp_path / "bsr.npz", matrix.tobsr(blocksize=blocks))
    for path in matrix_files(tmp_path):
        assert read_pattern(path).id == want, path.name
        path.unlink()


@ROUND_TRIP
@given(matrices(square=True), st.sampled_from(["symmetric", "skew-symmetric", "hermitian"]))
def test_symmetric_storage_is_expanded(tmp_path: Path, half: Any, symmetry: str) -> None:
    half.data = half.data.astype("c16")
    half.data[:] = 1 + 1j
    lower = sp.csr_array(sp.tril(half, -1 if symmetry == "skew-symmetric" else 0))
    full = sp.csr_array((abs(lower) + abs(lower).T).tocsr())
    coo = lower.tocoo()
    for field, value in (("complex", " 1 -2"), ("real", " 7"), ("integer", " 7"), ("pattern", "")):
        lines = [f"%%MatrixMarket matrix coordinate {field} {symmetry}", "% c", ""]
        lines += [f"{lower.shape[0]} {lower.shape[1]} {lower.nnz}"]
        lines += [f"{r + 1} {c + 1}{value}" for r, c in zip(coo.row, coo.col, strict=True)]
        (tmp_path / f"{field}.mtx").write_text("\n".join(lines))
    letter = {"symmetric": "S", "skew-symmetric": "Z", "hermitian": "H"}[symmetry]
    for value_type in "RCPI":
        write_hb(tmp_path / f"{value_type}.rb", lower, kind=f"{value_type}{letter}A")
    for path in matrix_files(tmp_path):
        assert read_pattern(path).id == ident(full), path.name


@ROUND_TRIP
@given(matrices(square=True), st.sampled_from([0, 1]), st.sampled_from([",", " ", "\t"]))
def test_edge_lists(tmp_path: Path, matrix: Any, first: int, sep: str) -> None:
    matrix = sp.csr_array(abs(matrix) + sp.eye_array(matrix.shape[0]))  # every vertex occurs
    write_edges(tmp_path / "e.txt", matrix, first=first, mark="%" if first else "#", sep=sep)
    (tmp_path / "z.edges.gz").write_bytes(gzip.compress((tmp_path / "e.txt").read_bytes()))
    for path in matrix_files(tmp_path):
        assert read_pattern(path).id == ident(matrix)


def test_edge_ids_are_kept_or_numbered(tmp_path: Path) -> None:
    path = tmp_path / "e.el"
    path.write_text("0 5 0.5 1999\n5 2 nan 2001\n")
    assert read_pattern(path).shape == (6, 6)
    path.write_text("90000000000 7\n7 500000\n\n# end\n500000 500000\n")
    assert read_pattern(path) == Pattern.from_coo((3, 3), [2, 0, 1], [0, 1, 1])
    path.write_text("# nothing\n")
    assert read_pattern(path).shape == (0, 0)


def test_duplicates_explicit_zeros_and_odd_values(tmp_path: Path) -> None:
    path = tmp_path / "a.mtx"
    body = "1 1 nan\n1 1 0\n2 3 -inf\n2 1 1e999\n2 2 0\n"
    path.write_text("%%matrixmarket MATRIX coordinate Real General\r\n%\n\n2 3 5\n" + body)
    want = Pattern.from_coo((2, 3), [0, 1, 1, 1], [0, 0, 1, 2])
    assert read_pattern(path) == want
    path.write_text(
        "%%MatrixMarket matrix coordinate integer general\n2 3 4\n"
        "1 1 99999999999999999999999\n2 1 -1\n2 2 0\n2 3 1\n"
    )
    assert read_pattern(path) == want
    path.write_text("%%MatrixMarket matrix array real skew-symmetric\n3 3\n1\n0\n-2.5\n")
    assert read_pattern(path) == Pattern.from_coo((3, 3), [0, 1, 1, 2], [1, 0, 2, 1])


def test_blanks_comments_and_both_triangles_are_read(tmp_path: Path) -> None:
    path, want = tmp_path / "a.mtx", Pattern.from_coo((3, 3), [0, 1, 2], [1, 0, 2])
    head = "%%MatrixMarket matrix coordinate {} symmetric\n% c\n3 3 3\n"
    path.write_text(head.format("real") + "2 1 1 \t \r\n\n  \n1 2 +1 % 4 5\n3 3 1D0%c\n\n")
    assert read_pattern(path) == want
    path.write_text(head.format("pattern") + " 2  1\n\t1\t2\n3 3 ")
    assert read_pattern(path) == want


def test_files_scipy_writes_as_harwell_boeing(tmp_path: Path) -> None:
    matrix = sp.csr_array(sp.random_array((30, 40), density=0.2, rng=np.random.default_rng(3)))
    hb_write(tmp_path / "a.rua", sp.csc_array(matrix))
    assert read_pattern(tmp_path / "a.rua").id == Pattern.from_coo((30, 40), *matrix.nonzero()).id


def test_names_groups_and_explicit_format(tmp_path: Path) -> None:
    path = tmp_path / "web.graph.mtx.gz"
    path.write_bytes(gzip.compress(b"%%MatrixMarket matrix coordinate pattern general\n1 1 0\n"))
    found = read_pattern(path)
    assert (found.name, found.group) == ("web.graph", "web.graph")
    assert read_pattern(path, name="x").group == "x"
    assert read_pattern(path, name="x", group="g").group == "g"
    plain = tmp_path / "no suffix"
    plain.write_bytes(gzip.decompress(path.read_bytes()))
    assert (sniff(plain), read_pattern(plain, format="mtx")) == ("mtx", found)
    for bad in ("mtx2", "npz"):
        with pytest.raises(MatrixError):
            read_pattern(plain, format=bad)


def test_sniff_by_content(tmp_path: Path) -> None:
    matrix = sp.csr_array(np.eye(3))
    write_smtx(tmp_path / "smtx", matrix)
    write_waco(tmp_path / "csr", matrix)
    write_hb(tmp_path / "hb", matrix)
    write_edges(tmp_path / "edges", matrix)
    mmwrite(tmp_path / "m.mtx", matrix)
    (tmp_path / "m.mtx").rename(tmp_path / "mtx")
    sp.save_npz(tmp_path / "n.npz", matrix)
    (tmp_path / "n.npz").rename(tmp_path / "npz")
    savemat(tmp_path / "m.mat", {"A": sp.csc_matrix(matrix)})
    (tmp_path / "m.mat").rename(tmp_path / "mat")
    for path in tmp_path.iterdir():
        assert sniff(path) == path.name
        renamed = path.rename(tmp_path / f"{path.name}.txt")
        assert sniff(renamed) == path.name
        assert read_pattern(renamed).id == ident(matrix)
    (tmp_path / "README.txt").write_text("# About\nThese are 3 matrices.\n")
    (tmp_path / "empty.txt").write_bytes(b"")
    (tmp_path / ".hidden.mtx").write_text("")
    assert {p.stem for p in matrix_files(tmp_path)} == {
        "csr",
        "edges",
        "hb",
        "mat",
        "mtx",
        "npz",
        "smtx",
    }
    for name in ("README.txt", "empty.txt", "absent", ""):
        with pytest.raises(MatrixError):
            sniff(tmp_path / name)
    with pytest.raises(MatrixError, match="not a folder"):
        matrix_files(tmp_path / "README.txt")


def test_fixed_width_columns_without_spaces(tmp_path: Path) -> None:
    """(16I5) and (10I8) with numbers that touch, as old collections print them."""
    n, path = 12345, tmp_path / "a.pra"
    idx = np.arange(12300, 12345) + 1
    pointers, indices = cards([1, 46], 16, 5), cards(idx, 16, 5)
    assert " " not in indices[0]
    counts = (
        f"{len(pointers) + len(indices):14d}{len(pointers):14d}{len(indices):14d}{0:14d}{0:14d}"
    )
    head = [counts, f"{'PRA':<14}{n:14d}{1:14d}{45:14d}{0:14d}", f"{'(16I5)':<16}{'(16I5)':<16}"]
    path.write_text("\n".join([f"{'t':<80}", *head, *pointers, *indices]) + "\r\n")
    want = Pattern.from_coo((n, 1), idx - 1, np.zeros(45, int))
    assert read_pattern(path) == want
    path.write_text(
        path.read_text()
        .replace("(16I5)          ", "(10I8)          ", 1)
        .replace(pointers[0], cards([1, 46], 10, 8)[0])
    )
    assert read_pattern(path) == want


PLATE = Pattern.from_coo((4, 4), [0, 0, 0, 1, 1, 1, 2, 2, 3, 3], [0, 1, 2, 0, 1, 3, 0, 2, 1, 3])


@pytest.mark.parametrize(
    ("form", "pointers", "indices"),
    [
        ("(10I8)", "{:8}" * 5, "{:8}" * 7),
        ("(1X,8I9)", " " + "{:9}" * 5, " " + "{:9}" * 7),
        ("(7(I8))", "{:8}" * 5, "{:8}" * 7),
        ("(0p,10i8)", "{:8}" * 5, "{:8}" * 7),
        ("(1P10I8)", "{:8}" * 5, "{:8}" * 7),
        ("(4(1X,I3,X))", " {:3} " * 4 + "\n {:3} ", " {:3} " * 4 + "\n" + " {:3} " * 3),
        ("(2(I3,I4),I2)", "{:3}{:4}{:3}{:4}{:2}", "{:3}{:4}{:3}{:4}{:2}\n{:3}{:4}"),
        # A format that is used up starts again at its last group.
        ("(1X,3(I3,X))", " {:3} {:3} {:3}\n{:3} {:3}", " {:3} {:3} {:3}\n{:3} {:3} {:3}\n{:3}"),
        ("(I2, 2(2(I3)))", "{:2}" + "{:3}" * 4, "{:2}" + "{:3}" * 4 + "\n" + "{:3}" * 2),
        ("( 5 I 8 . 2 )", "{:8}" * 5, "{:8}" * 5 + "\n" + "{:8}" * 2),
        ("(5I8)", "{:8}" * 5 + "\n", "{:8}" * 5 + "\n" + "{:8}" * 2 + "\n   "),
    ],
)  # fmt: skip
def test_formats_of_harwell_boeing(tmp_path: Path, form: str, pointers: str, indices: str) -> None:
    """Blanks, groups and scale factors; and lines more than needed, if they are blank."""
    sections = pointers.format(1, 4, 6, 7, 8), indices.format(1, 2, 3, 2, 4, 3, 4)
    counts = [section.count("\n") + 1 for section in sections]
    head = [
        f"{'Plate':<72}PLATE4", "".join(f"{c:14d}" for c in (sum(counts) + 1, *counts, 1, 0)),
        f"{'RSA':<14}{4:14d}{4:14d}{7:14d}{0:14d}", f"{form:<16}{form:<16}{'(7E10.2)':<20}",
    ]  # fmt: skip
    for name in ("a.rsa", "a.dat"):
        path = tmp_path / name
        path.write_text("\n".join([*head, *sections, "  2.00E+00" * 7]) + "\n")
        assert read_pattern(path) == PLATE


@pytest.mark.parametrize("field", ["real", "double", "float", "integer"])
def test_values_with_a_plus_and_other_spellings(tmp_path: Path, field: str) -> None:
    """None of them changes the structure, wherever the reader's buffer ends."""
    path, want = tmp_path / "a.mtx", Pattern.from_coo((3, 3), range(3), range(3))
    for body in (
        "1 1 +1.5\n2 2 +.5e+01\n3 3 -0\n", "1 1 +7\r\n2 2\t+8\r\n3 3 +9\r\n",
        "1 1 +inf\n2 2 +NaN\n3 3 -.03\n", "1 1 1.D0\n2 2 +2.5d-01\n3 3 1.\n",
        "+1 +1 1\n2 +2 1\n3 3 1\n",
    ):  # fmt: skip
        for at in (0, *range(900, 1000)):
            comment = "%" * at + "\n"
            text = f"%%MatrixMarket matrix coordinate {field} general\n3 3 3\n" + body
            path.write_bytes((text if not at else text.replace("\n", "\n" + comment, 1)).encode())
            assert read_pattern(path) == want
    path.write_text("%%MatrixMarket matrix coordinate complex general\n3 3 3\n1 1 1D0 -2.5d-1\n"
                    "2 2 +3.D0 +0\n3 3 0 1d+2\n")  # fmt: skip
    assert read_pattern(path) == want
    path.write_text("%%MatrixMarket matrix coordinate real general\n2 2 1\n1 1 +-5\n")
    with pytest.raises(MatrixError) as caught:
        read_pattern(path)
    assert caught.value.line == 3


def test_a_byte_order_mark_is_no_part_of_a_text(tmp_path: Path) -> None:
    matrix = sp.csr_array(np.eye(3))
    mmwrite(tmp_path / "m.mtx", matrix)
    write_smtx(tmp_path / "s.smtx", matrix)
    write_hb(tmp_path / "h.hb", matrix)
    write_edges(tmp_path / "e.edges", matrix)
    for path in matrix_files(tmp_path):
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
        assert read_pattern(path).id == ident(matrix)
        assert read_pattern(path.rename(tmp_path / f"{path.stem}.txt")).id == ident(matrix)


def test_room_at_the_end_of_compressed_arrays_is_no_entry(tmp_path: Path) -> None:
    """scipy keeps entries beyond the last pointer until `prune`."""
    matrix = sp.csr_array(np.eye(3))
    arrays = {"indices": [0, 1, 2, 0, 2], "indptr": [0, 1, 2, 3], "data": [1.0] * 5}
    np.savez(tmp_path / "csr.npz", format=b"csr", shape=(3, 3), **arrays)
    np.savez(tmp_path / "csc.npz", format="csc", shape=(3, 3), **arrays)
    graph = {f"adj_{name}": value for name, value in arrays.items()}
    np.savez(tmp_path / "cora.npz", **graph, adj_shape=(3, 3), labels=[1, 2, 3])
    for path in matrix_files(tmp_path):
        assert read_pattern(path).id == ident(matrix)


@pytest.mark.parametrize("name", ["a.npy", "a.mtx.bz2", "a.tar.gz"])
def test_files_that_are_not_read_say_what_to_do(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "a.npy":
        np.save(path, np.eye(3))
    elif name == "a.mtx.bz2":
        path.write_bytes(bz2.compress(b"%%MatrixMarket matrix coordinate pattern general\n1 1 0\n"))
    else:
        (tmp_path / "a.mtx").write_text("%%MatrixMarket matrix coordinate pattern general\n1 1 0\n")
        with tarfile.open(path, "w:gz") as archive:
            archive.add(tmp_path / "a.mtx", "a/a.mtx")
    with pytest.raises(MatrixError) as caught:
        read_pattern(path)
    assert caught.value.where == str(path) and caught.value.hint


def test_a_file_of_no_known_format_says_what_names_one(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a,b\n1,2\n")
    with pytest.raises(MatrixError, match="no edge") as caught:
        read_pattern(tmp_path / "a.txt")
    assert "edges" in caught.value.hint and "the ending of a file" in caught.value.hint


def test_real_files_agree_with_their_twins(shared: Path) -> None:
    """All genuine Matrix Market files and WACO dumps; twins of the same name have the same id."""
    matrices_folder, agreed = shared / "matrices", []
    paths = matrix_files(matrices_folder / "mtx_genuine")
    assert len(paths) == 26
    for path in [*paths, *matrix_files(shared / "runs" / "waco" / "dataset")]:
        pattern, twin = read_pattern(path), matrices_folder / f"{path.stem}.npz"
        if twin.is_file():
            assert read_pattern(twin) == pattern
            agreed.append(path.stem)
    assert len(agreed) == 26
    assert {"c-46", "bcsstk38", "stokes64s", "cavity24", "dwg961b", "young1c"} <= set(agreed)


@pytest.mark.slow
def test_all_real_npz_match_the_manifest(shared: Path) -> None:
    lines = (shared / "matrices" / "MANIFEST.csv").read_text().splitlines()[1:]
    rows = [line.split(",") for line in lines]
    sizes = {
        row[1]: (int(row[3]), int(row[4]), int(row[5])) for row in rows if row[1][-4:] == ".npz"
    }
    assert len(sizes) == 275
    for name, size in sizes.items():
        pattern = read_pattern(shared / "matrices" / name)
        assert (*pattern.shape, pattern.nnz) == size
