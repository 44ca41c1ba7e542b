"""Which files of a folder are matrices, and what tells them apart."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from embeddb.matrix_files import matrix_files, matrix_names, read_pattern
from indexer.calibration.choice import Candidates
from indexer.campaign.run import planned_matrices
from indexer.library import Library, contents

BANNER = "%%MatrixMarket matrix {} {} general\n"


def coordinate(path: Path, m: int, n: int, nnz: int) -> Path:
    """`nnz` entries, the first of each row from row 1 on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    entries = "".join(f"{k % m + 1} {k % n + 1} 1\n" for k in range(nnz))
    text = BANNER.format("coordinate", "integer") + f"{m} {n} {nnz}\n" + entries
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def dense(path: Path, m: int, n: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(BANNER.format("array", "real") + f"{m} {n}\n" + "1.5\n" * (m * n))


def archive(folder: Path, name: str, n: int, ending: str = ".mtx") -> None:
    """What `tar xf NAME.tar.gz` of SuiteSparse leaves."""
    inside = folder / name
    coordinate(inside / f"{name}{ending}", n, n, n)
    dense(inside / f"{name}_b.mtx", n, 1)
    dense(inside / f"{name}_coord.mtx", n, 3)
    coordinate(inside / f"{name}_x.mtx", n, 1, 2)
    coordinate(inside / f"{name}_Zeros.mtx", n, n, 2)
    (inside / f"{name}_nodename.txt").write_text("".join(f"node{i}\n" for i in range(n)))
    (inside / f"{name}_kind.txt").write_text("".join(f"{i} {i % 3}\n" for i in range(n)))
    (inside / "labels.txt").write_text("".join(f"{i} {i % 2}\n" for i in range(n)))


def test_only_the_matrix_of_an_archive_is_one(tmp_path: Path) -> None:
    for name, n in (("plate0", 4), ("plate_1", 7), ("G2", 5)):
        archive(tmp_path, name, n, ".mtx.gz" if n == 7 else ".mtx")
    notes: list[str] = []
    files = matrix_files(tmp_path, note=notes.append)
    assert [f.name for f in files] == ["G2.mtx", "plate0.mtx", "plate_1.mtx.gz"]
    assert len(notes) == 1 and "18 files" in notes[0] and str(tmp_path) in notes[0]
    assert len(Library(tmp_path)) == 3


def test_archives_in_one_folder(tmp_path: Path) -> None:
    """Without folders of their own, columns and text go along; matrices do not."""
    coordinate(tmp_path / "G2.mtx", 5, 5, 5)
    coordinate(tmp_path / "G2_circuit.mtx", 9, 9, 9)
    coordinate(tmp_path / "G2_tall.mtx", 9, 3, 9)
    coordinate(tmp_path / "G2_b.mtx", 5, 1, 3)
    dense(tmp_path / "G2_coord.mtx", 5, 2)
    dense(tmp_path / "other.mtx", 5, 2)
    (tmp_path / "G2_kind.txt").write_text("0 1\n1 0\n")
    (tmp_path / "soc-x.txt").write_text("0 1\n1 0\n")
    files = [f.name for f in matrix_files(tmp_path)]
    assert files == ["G2.mtx", "G2_circuit.mtx", "G2_tall.mtx", "other.mtx", "soc-x.txt"]


def test_graphs_of_every_ending_are_listed(tmp_path: Path) -> None:
    body = {
        "a.graph": "2 1\n2\n1\n", "b.hgr": "1 2\n1 2\n", "c.gr": "p sp 2 1\na 1 2 3\n",
        "out.d": "% bip unweighted\n1 1\n", "README.d": "1 2\n", "meta.d": "name: d\n",
        "out.log": "started\n", "out.times": "1 2\n3 4\n",
    }  # fmt: skip
    for name, text in body.items():
        (tmp_path / name).write_text(text)
    files = matrix_files(tmp_path)
    assert [f.name for f in files] == ["a.graph", "b.hgr", "c.gr", "out.d"]
    assert list(matrix_names(files, tmp_path).values()) == ["a", "b", "c", "out.d"]


SAMPLES = {"s1": (6, 4, 5), "s2": (6, 5, 6), "s3": (6, 3, 3)}


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    """Three samples of one experiment, as a sequencer's software leaves them."""
    for name, size in SAMPLES.items():
        coordinate(tmp_path / name / "filtered" / "matrix.mtx.gz", *size)
        (tmp_path / name / "filtered" / "barcodes.tsv.gz").write_bytes(gzip.compress(b"ACGT-1\n"))
    return tmp_path


def test_files_of_one_name_are_named_and_grouped_by_their_folders(samples: Path) -> None:
    coordinate(samples / "alone" / "single.mtx", 4, 4, 4)
    planned = planned_matrices(samples)
    names = ["single", *(f"{name}/filtered/matrix" for name in SAMPLES)]
    assert [(m.name, m.group) for m in planned] == [(name, name) for name in names]
    families = planned_matrices(samples, groups={"matrix": "cells", "s2/filtered/matrix": "other"})
    assert [m.group for m in families] == ["single", "cells", "other", "cells"]
    assert sorted(p.name for p in Candidates(samples, 100)) == sorted(names)


def test_a_log_that_gives_sizes_or_folders_finds_each_of_one_name(samples: Path) -> None:
    library = Library(samples)
    for name, (m, n, nnz) in SAMPLES.items():
        want = f"{name}/filtered/matrix"
        for given in ("matrix", "matrix.mtx.gz", want, f"{name}/filtered/matrix.mtx"):
            found = library.find(given, m=m, n=n, nnz=nnz)
            assert found is not None and (found.name, found.group) == (want, want)
        found = library.find(f"{name}/matrix.mtx.gz")
        assert found is not None and found.name == want
    library.problems.clear()
    assert library.find("matrix") is None and "which differ" in library.problems[0]


def test_copies_of_one_matrix_in_two_folders_keep_their_name(tmp_path: Path) -> None:
    for folder in "ab":
        coordinate(tmp_path / folder / "x.mtx", 4, 4, 4)
    found = Library(tmp_path).find("x")
    assert found == read_pattern(tmp_path / "a" / "x.mtx")
    assert found is not None and (found.name, found.group) == ("x", "x")


def test_one_file_of_many_of_a_name_is_named_by_its_folder(tmp_path: Path) -> None:
    one, other = (coordinate(tmp_path / f"s{i}" / "matrix.mtx.gz", 4, 4, i) for i in (1, 2))
    alone = coordinate(tmp_path / "s3" / "alone.mtx", 4, 4, 4)
    names = matrix_names([one, other, alone], tmp_path)
    assert [names[file] for file in (one, other, alone)] == ["s1/matrix", "s2/matrix", "alone"]
    for file, name in names.items():
        (held,) = contents(str(file))
        assert held.name == held.group == name
