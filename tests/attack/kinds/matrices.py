"""Matrix files of every format, plain and gzipped, and the features of what was read."""

from __future__ import annotations

import gzip
import io
import random
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from attack.case import Case
from attack.mutate import mutated, mutated_gzip

_SUFFIXES = (
    ".txt", "", ".mtx", ".hb", ".smtx", ".csr", ".npz", ".mat", ".edges", ".rua", ".gz", ".graph",
    ".hgr", ".gr",
)  # fmt: skip


def seeds() -> list[Case]:
    return list(_seeds())


@cache
def _seeds() -> tuple[Case, ...]:
    with tempfile.TemporaryDirectory() as name:
        made = [case for at, m in enumerate(_small()) for case in _written(Path(name), at, m)]
    made += _known() + _graphs()
    return (*made, *(Case(c.how + ".gz", gzip.compress(c.data, mtime=0)) for c in made[::5]))


def _small() -> list[Any]:
    import scipy.sparse as sp

    found = [
        sp.random(12, 9, 0.3, random_state=1, format="csr"),
        sp.random(40, 40, 0.08, random_state=2, format="csr"),
        sp.csr_matrix((5, 7)),
        sp.eye(6, format="csr"),
        sp.random(1, 30, 0.5, random_state=3, format="csr"),
    ]
    for matrix in found:
        matrix.data[:] = 1.5
    return found


def _written(folder: Path, at: int, matrix: Any) -> Iterator[Case]:
    import matrix_writers as write
    import scipy.io
    import scipy.sparse as sp

    def by(suffix: str, writer: Callable[..., Any], *args: Any, **options: Any) -> Case:
        path = folder / f"a{suffix}"
        writer(path, *args, **options)
        return Case(suffix, path.read_bytes())

    for field in ("real", "integer", "pattern", "complex"):
        yield by(".mtx", scipy.io.mmwrite, matrix.tocoo(), field=field, symmetry="general")
    if matrix.shape[0] == matrix.shape[1]:
        both = (matrix + matrix.T).tocoo()
        for symmetry in ("symmetric", "hermitian"):
            yield by(".mtx", scipy.io.mmwrite, both, symmetry=symmetry)
    for layout in ("csr", "csc", "coo", "bsr", "dia"):
        yield by(".npz", sp.save_npz, matrix.asformat(layout), compressed=at % 2 == 0)
    if matrix.nnz:
        for suffix, code in ((".hb", "RUA"), (".rb", "RUA"), (".rb", "PUA"), (".hb", "CUA")):
            yield by(suffix, write.write_hb, matrix, kind=code, rhs=suffix == ".hb")
    yield by(".smtx", write.write_smtx, matrix)
    yield by(".csr", write.write_waco, matrix)
    yield by(".mtx", write.write_array, matrix.toarray())
    for sep, suffix in (("\t", ".edges"), (" ", ".txt"), (",", ".edges")):
        yield by(suffix, write.write_edges, matrix, sep=sep)
    for packed in (True, False):
        body = {"Problem": {"A": matrix.tocsc(), "name": "x"}} if packed else {"A": matrix.tocsc()}
        yield by(".mat", scipy.io.savemat, body, do_compression=packed)
    yield by(".mat", scipy.io.savemat, {"A": matrix.tocsc()}, format="4")


def _known() -> list[Case]:
    """What an attack found: an array header that is not closed, rows without end, text bombs."""
    wide = b"%%MatrixMarket matrix coordinate pattern general\n33554000 2 2\n1 1\n33554000 2\n"
    tall = b"%%MatrixMarket matrix coordinate pattern general\n2147483647 2 1\n1 1\n"
    comments = b"%%MatrixMarket matrix coordinate pattern general\n" + b"%\n" * 100_000
    header = b"{'descr': '<i8', 'fortran_order': False, 'shape': ((2,), }\n"
    return [
        Case(".mtx", wide),
        Case(".mtx", tall),
        Case(".mtx", comments),
        Case(".npz", _open_header(header)),
        Case(".npz", _open_header(b"{'descr': ('<i8', [('\n")),
        Case(".mat", _struct_without_width()),
        Case(".txt", b"1 2\n" * 50 + b"1" * 5000 + b" 2\n"),
    ]


def _graphs() -> list[Case]:
    """Every header of graphs and edge lists."""
    return [
        Case(
            ".graph", b"% c\n5 4 011 2\n8 9 2 7 3 1\n8 9 1 7 3 9\n8 9 1 1 2 9 5 2\n8 9\n8 9 3 2\n"
        ),
        Case(".graph", b"5 4\n2 3\n1 3\n1 2 5\n\n3\n"),
        Case(".hgr", b"4 7 11\n2 1 2\n3 1 7 5 6\n8 5 6 4\n7 2 3 4\n5\n1\n8\n7\n3\n9\n3\n"),
        Case(".gr", b"c c\np sp 4 5\na 1 2 7\na 2 1 7\na 2 3 4\na 3 4 1\na 4 1 9\n"),
        Case(".txt", b"% bip posweighted\n% 3 4 3\n1 1 5 1081\n1 2 3 1082\n4 3 5 1086\n"),
        Case(".edges", b"% sym unweighted\n% 3 5 5\n1 2\n2 3\n3 1\n"),
        Case(".txt", b"# Nodes: 9 Edges: 3\n# FromNodeId ToNodeId\n0\t1\n2\t1\n5\t0\n"),
        Case(".csv", b"source;target;weight\n0;1;0,5\n1;2;2,5\n2;0;3\n"),
        Case(".edges", b'0 1 {}\n1 2 {"weight": 3}\n2 0 {"a": "b"}\n'),
    ]


def _open_header(header: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        head = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header
        archive.writestr("shape.npy", head + struct.pack("<qq", 2, 2))
        archive.writestr("format.npy", head)
    return out.getvalue()


def _struct_without_width() -> bytes:
    """A level 5 file whose struct says its field names have no width: an empty element there."""

    def element(kind: int, body: bytes) -> bytes:
        return struct.pack("<II", kind, len(body)) + body + b"\0" * (-len(body) % 8)

    flags = element(6, struct.pack("<II", 2, 0))
    body = flags + element(5, struct.pack("<ii", 1, 1)) + element(1, b"Problem") + element(5, b"")
    head = b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack("<HH", 0x0100, 0x4D49)
    return head + element(14, body)


def mutate(rng: random.Random, case: Case, seeds: Sequence[Case]) -> Case:
    others = [one.data for one in rng.sample(seeds, 2)]
    how, data = case.how, case.data
    if how.endswith(".gz"):
        data = mutated_gzip(rng, data, others)
    elif how == ".npz" and rng.random() < 0.75:
        data = _archive(rng, data, others)
    elif how == ".mat" and rng.random() < 0.6:
        data = _elements(rng, data, others)
    else:
        data = mutated(rng, data, others)
    return Case(rng.choice(_SUFFIXES) if rng.random() < 0.08 else how, data)


def _archive(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """A sound archive with one bad member."""
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
        members = {name: archive.read(name) for name in archive.namelist()}
    except (zipfile.BadZipFile, OSError, zlib.error, ValueError):
        return mutated(rng, data, others)
    chosen = rng.choice(sorted(members))
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as made:
        for name, body in members.items():
            if name != chosen:
                made.writestr(name, body)
            elif rng.random() < 0.9:
                made.writestr(name, _member(rng, body, others))
    return out.getvalue()


def _member(rng: random.Random, body: bytes, others: Sequence[bytes]) -> bytes:
    if rng.random() < 0.5:
        return mutated(rng, body, others)
    length = int.from_bytes(body[8:10], "little")
    header = mutated(rng, body[10 : 10 + length], others)[:60_000]
    return body[:8] + struct.pack("<H", len(header)) + header + body[10 + length :]


def _elements(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """A level 5 file whose elements are changed inside, and packed again."""
    if data[:4] != b"MATL":
        return mutated(rng, data, others)
    out, at = bytearray(data[:128]), 128
    while at + 8 <= len(data):
        kind, size = struct.unpack("<II", data[at : at + 8])
        body = data[at + 8 : at + 8 + size]
        if kind == 15:
            with_zlib = zlib.decompress(body)
            body = zlib.compress(mutated(rng, with_zlib, others), 1)
            size = len(body) if rng.random() < 0.9 else rng.randrange(2**32)
        elif rng.random() < 0.5:
            body = mutated(rng, body, others)
        out += struct.pack("<II", kind, size) + body
        at += 8 + struct.unpack("<I", data[at + 4 : at + 8])[0]
    return bytes(out)


def prepare(scratch: Path) -> Any:
    from embeddb.featurizers import Featurizers
    from embeddb.matrix_files import read_pattern

    return read_pattern, Featurizers()


def feed(case: Case, scratch: Path, state: Any) -> None:
    read_pattern, featurizers = state
    path = scratch / f"a{case.how}"
    path.write_bytes(case.data)
    try:
        found = read_pattern(path)
    finally:
        path.unlink()
    check(found)
    # All features are those of a query; most inputs are small, and a large one is the point.
    vector = featurizers.named("stats").embed(found)
    assert np.isfinite(vector).all(), "a feature is not finite"


def check(pattern: Any) -> None:
    """What every reader promises of a pattern."""
    m, n = pattern.shape
    assert len(pattern.indptr) == m + 1, "row pointers and rows disagree"
    assert pattern.nnz == len(pattern.indices) == int(pattern.indptr[-1])
    assert pattern.indptr[0] == 0
    if pattern.nnz:
        assert bool((np.diff(pattern.indptr) >= 0).all()), "rows run backwards"
        assert 0 <= int(pattern.indices.min()) <= int(pattern.indices.max()) < n
