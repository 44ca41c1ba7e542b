"""Nests that hold a matrix, compiled and run: on its rows and columns, and never without them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builders import band

from embeddb.core.config import Op
from embeddb.core.errors import NestError
from embeddb.core.pattern import Pattern
from embeddb.kernels.build import compiler
from embeddb.nests.check import canonical_schedule
from embeddb.nests.nest import Nest
from embeddb.nests.schedule import Schedule
from indexer.programs import nests_of
from indexer.runners.base import RunOptions
from indexer.runners.counters.nest import model_counts
from indexer.runners.counters.source import PLAIN
from indexer.runners.nest import NestRunner
from indexer.runners.nest_code import job as nest_job
from indexer.runners.nest_code.fill import contents, filled
from indexer.runners.nest_code.in_place import c_program
from indexer.runners.nest_code.job import Libraries, NestJob, parts_of, received

needs_gcc = pytest.mark.skipif(compiler() is None, reason="needs gcc")
pytestmark = [pytest.mark.gcc, needs_gcc]

#: The first thread's half of the rows has 30 of 34 entries.
MATRIX = Pattern.from_csr(
    (4, 40), [0, 20, 30, 32, 34], [*range(20), *range(10, 20), 3, 39, 0, 38], name="uneven"
)
WIDTH = 8


@pytest.fixture(scope="module")
def spmm() -> Nest:
    return nests_of("spmm", {"K": WIDTH}, matrix=MATRIX)[0]


def test_it_arrives_whole(spmm: Nest) -> None:
    payload = b"".join(bytes(memoryview(part).cast("B")) for part in parts_of(spmm))
    there = received(payload)
    assert there == spmm and there.matrices == spmm.matrices
    plain = nests_of("spmm", "small")[0]
    assert received(b"".join(parts_of(plain))) == plain


def test_arrays_are_the_matrix(spmm: Nest) -> None:
    col, row = (spmm.array_names.index(name) for name in ("col", "row"))
    assert contents(spmm, row).tolist() == MATRIX.indptr.tolist()
    assert contents(spmm, col).dtype == np.int32
    assert contents(spmm, col).tolist() == MATRIX.indices.tolist()
    assert np.array_equal(contents(spmm, 1), filled(spmm.arrays[1], 1))
    with pytest.raises(NestError, match="which is not here"):
        contents(replace(spmm, matrices=()), col)


def test_the_product_is_that_of_the_matrix(spmm: Nest, tmp_path: Path) -> None:
    job = NestJob(spmm, seed=3)
    libraries = Libraries()
    job.expect(tmp_path, "", libraries)
    dynamic = replace(canonical_schedule(spmm), policy="dynamic", chunk=8)
    (built,) = nest_job.MeasuredNest(spmm).build([dynamic], tmp_path).values()
    libraries.call(str(built.library), built.which, job.arrays, 2)
    assert job.wrong() == ""
    held = dict(zip(spmm.array_names, job.arrays, strict=True))
    sparse = MATRIX.to_scipy(np.float64)
    sparse.data[:] = held["a"]
    product = sparse @ held["B"].reshape(40, WIDTH).astype(np.float64)
    assert np.allclose(held["C"].reshape(4, WIDTH), product, rtol=1e-5)


def test_schedules_of_it_are_measured_and_checked(spmm: Nest) -> None:
    plain = canonical_schedule(spmm).config
    illegal = Schedule((2, 1, 0), (0, 0, 0), "second").config
    options = RunOptions(repeats=1, max_repeats=1, threads=2)
    with NestRunner() as runner:
        found = [
            m.status for _, m in runner.run(spmm, Op("nest"), [plain, illegal], options=options)
        ]
        assert found == ["ok", "invalid"]
        alone = replace(spmm, matrices=())
        with pytest.raises(NestError, match="which is not here"):
            list(runner.run(alone, Op("nest"), [plain], options=options))


def test_the_model_counts_the_work_of_each_thread(spmm: Nest) -> None:
    found = model_counts(spmm, threads=2, caches=PLAIN)
    assert found.of("f32_scalar", "sum") == 2 * MATRIX.nnz * WIDTH
    assert found.of("f32_scalar", "max") == 2 * 30 * WIDTH
    even = nests_of("spmm", {"K": WIDTH}, matrix=band(20, 3, name="even"))[0]
    alone = replace(even, matrices=())
    with pytest.raises(NestError, match="which is not here"):
        model_counts(alone, threads=2, caches=PLAIN)


def test_written_as_c_it_has_numbers_like_the_matrix(spmm: Nest) -> None:
    """A file that compiles alone cannot hold the matrix: it says so, and takes similar rows."""
    text = c_program(spmm, canonical_schedule(spmm))
    assert f"rows like those of matrix {MATRIX.id}" in text
    assert "34" in text and f"% {MATRIX.shape[1]}" in text
