"""Generated C against numpy, and numpy against a plain walk over all points."""

from __future__ import annotations

import math
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nest_forms import NESTS, at, ix, nest, rd

from embeddb.core.config import Op
from embeddb.core.errors import NestError
from embeddb.kernels.build import compiler
from embeddb.kernels.nests.generate import c_function
from embeddb.nests.check import NestJudge, canonical_schedule
from embeddb.nests.examples import nest_of
from embeddb.nests.nest import Nest
from embeddb.nests.parts import (
    Access,
    Array,
    Call,
    Const,
    Expr,
    Index,
    Loop,
    LoopIndex,
    Read,
    Statement,
)
from embeddb.nests.schedule import INNER, Schedule
from embeddb.platforms.platform import load_platform
from indexer.runners.harness.worker import Libraries
from indexer.runners.nest_code import job as nest_job
from indexer.runners.nest_code.fill import filled
from indexer.runners.nest_code.in_place import c_program
from indexer.runners.nest_code.job import NestJob
from indexer.runners.nest_code.reference import checked_nest, evaluate, free_loops

needs_gcc = pytest.mark.skipif(compiler() is None, reason="needs gcc")


def random_schedules(made: Nest, count: int, seed: int) -> list[Schedule]:
    space = load_platform("nest-cpu").space(Op("nest"), made.sizes).judged(NestJudge(made))
    configs = space.sample(count, rng=np.random.default_rng(seed))
    return [Schedule.of(config, made.depth) for config in configs]


def statuses(made: Nest, schedules: list[Schedule], folder: Path, threads: int = 2) -> list[str]:
    """What is wrong with each, in this process."""
    libraries, job = Libraries(), NestJob(made, 0)
    job.expect(folder, "", libraries)
    found = []
    for built in nest_job.MeasuredNest(made).build(schedules, folder).values():
        assert built.status == "ok", built.error
        job.restore(all=True)
        libraries.call(str(built.library), built.which, job.arrays, threads)
        found.append(job.wrong())
    return found


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half the optimisation, a fourth of the time."""
    monkeypatch.setattr(nest_job, "FLAGS", ("-O1", "-ffast-math"))


@pytest.mark.gcc
@needs_gcc
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", NESTS)
def test_legal_schedules_compute_the_nest(name: str, tmp_path: Path) -> None:
    made = NESTS[name]
    schedules = [canonical_schedule(made), *random_schedules(made, 5, seed=len(name))]
    assert not any(statuses(made, schedules, tmp_path))


@pytest.mark.slow
@pytest.mark.gcc
@needs_gcc
@pytest.mark.parametrize("name", NESTS)
def test_many_legal_schedules_compute_the_nest(name: str, tmp_path: Path) -> None:
    assert not any(statuses(NESTS[name], random_schedules(NESTS[name], 48, seed=7), tmp_path))


@pytest.mark.gcc
@needs_gcc
def test_a_copy_within_one_array_is_not_left_out_by_the_compiler(tmp_path: Path) -> None:
    loops = [[[0], [7], 1], [[1, 1], [8], 1]]
    transposed = [0, [0, 0, 1], [0, 1]], ["read", 0, [0, 1], [0, 0, 1]]
    made = nest_of(loops, [["f64", [8, 8]]], [["=", *transposed, None]])
    tiled = [Schedule((0, 1), (0, 4), "outer", inner=inner) for inner in INNER[:3]]
    assert not any(statuses(made, tiled, tmp_path))


@pytest.mark.gcc
@needs_gcc
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", ["stencil", "triangle", "spmm", "functions", "whole_numbers"])
def test_the_compiled_reference_is_that_of_numpy(name: str, tmp_path: Path) -> None:
    made = NESTS[name]
    job = NestJob(made, 3)
    compiled = nest_job.build_reference(checked_nest(made).nest, tmp_path)
    by_gcc = {a: found for a, *found in job.computed(str(compiled), Libraries())}
    for a, expected, off in job.computed("", Libraries()):
        assert np.allclose(by_gcc[a][0], expected, rtol=1e-12, atol=0)
        assert np.allclose(by_gcc[a][1], off, rtol=1e-9, atol=0) and (off >= 0).all()


# -- numpy against a walk --------------------------------------------------------------------------

_PLAIN: dict[str, Callable[..., float]] = {
    "+": lambda x, y: x + y,
    "-": lambda x, y: x - y,
    "*": lambda x, y: x * y,
    "/": lambda x, y: x / y,
    "min": min,
    "max": max,
    "<": lambda x, y: float(x < y),
    "<=": lambda x, y: float(x <= y),
    "==": lambda x, y: float(x == y),
    "!=": lambda x, y: float(x != y),
    "neg": lambda x: -x,
    "abs": abs,
    "sqrt": math.sqrt,
    "exp": math.exp,
    "log": math.log,
    "tanh": math.tanh,
    "select": lambda c, x, y: x if c else y,
}
_COMBINED: dict[str, Callable[[float, float], float]] = {
    "=": lambda _, y: y,
    "+=": lambda x, y: x + y,
    "*=": lambda x, y: x * y,
    "min=": min,
    "max=": max,
}


class Walk:
    """One point after the other, as the nest is read."""

    def __init__(self, made: Nest) -> None:
        self.nest = made
        self.held: list[list[Any]] = [
            [v.item() for v in filled(array, number)] for number, array in enumerate(made.arrays)
        ]
        self._loop(0, [])

    def _loop(self, loop: int, point: list[int]) -> None:
        if loop == self.nest.depth:
            for s in self.nest.body:
                if s.where is None or self.value(s.where, point):
                    place = self.place(s.target, point)
                    held = self.held[s.target.array]
                    value = self.value(s.value, point)
                    if self.nest.arrays[s.target.array].dtype in ("i32", "i64"):
                        value = math.trunc(value)
                    held[place] = _COMBINED[s.combine](held[place], value)
            return
        told = self.nest.loops[loop]
        for index in range(self.index(told.lower, point), self.index(told.upper, point), told.step):
            self._loop(loop + 1, [*point, index])

    def index(self, index: Index, point: list[int]) -> int:
        found = index.affine.constant
        found += sum(c * i for c, i in zip(index.affine.coefs, point, strict=False))
        return found if index.of is None else found + self.held_at(index.of, point)

    def place(self, access: Access, point: list[int]) -> int:
        strides = self.nest.arrays[access.array].strides
        return sum(self.index(i, point) * s for i, s in zip(access.at, strides, strict=True))

    def held_at(self, access: Access, point: list[int]) -> Any:
        return self.held[access.array][self.place(access, point)]

    def value(self, expression: Expr, point: list[int]) -> float:
        match expression:
            case Const(value):
                return value
            case LoopIndex(loop):
                return point[loop]
            case Read(access):
                return float(self.held_at(access, point))
            case Call(name, args):
                return _PLAIN[name](*(self.value(a, point) for a in args))


@pytest.mark.parametrize("name", NESTS)
def test_numpy_does_what_the_text_says(name: str) -> None:
    made = NESTS[name]
    arrays = {a: filled(array, a) for a, array in enumerate(made.arrays)}
    before = {a: held.copy() for a, held in arrays.items()}
    found = evaluate(made, arrays)
    walked = Walk(made).held
    for a, values in found.items():
        assert np.allclose(values, walked[a], rtol=1e-12, atol=1e-300)
    assert all(np.array_equal(before[a], arrays[a]) for a in arrays)


def test_the_last_of_several_assignments_stays() -> None:
    body = [Statement(at(0, ix(0, 1)), "=", rd(1, ix(0, 1), ix(0, 0, 1)))]
    made = nest(
        [Loop(ix(), ix(6)), Loop(ix(), ix(7))], [Array("f64", (6,)), Array("f64", (6, 7))], body
    )
    arrays = {a: filled(array, a) for a, array in enumerate(made.arrays)}
    assert np.array_equal(evaluate(made, arrays)[0], arrays[1].reshape(6, 7)[:, -1])


@pytest.mark.parametrize(
    ("name", "free"),
    [
        ("matmul", {0, 1, 2}),
        ("gauss_seidel", set()),
        ("scan", {0}),
        ("histogram", {0, 1}),
        ("triangle", {0, 1, 2}),
    ],
)
def test_loops_that_run_as_vectors(name: str, free: set[int]) -> None:
    assert free_loops(NESTS[name]) == free


# -- the text --------------------------------------------------------------------------------------


def test_the_text_of_a_tiled_product() -> None:
    made = replace(NESTS["matmul"], loop_names=("i", "j", "k"), array_names=("C", "A", "B"))
    told = c_function(made, Schedule((0, 2, 1), (8, 0, 0), "outer", "dynamic", 4, "simd"), "mm")
    assert "#pragma omp parallel for schedule(dynamic, 4)\n" in told
    assert "for (int64_t i_block = 0; i_block < 21; i_block += 8) {" in told
    assert "for (int64_t i = i_block; i < min_i64(i_block + 8, 21); i++) {" in told
    assert "#pragma omp simd\n" in told
    assert "C[19 * i + j] += A[23 * i + k] * B[19 * k + j];" in told


def test_a_sum_in_a_variable_and_private_copies() -> None:
    summed = c_function(NESTS["matmul"], Schedule((0, 1, 2), (0, 0, 0), inner="simd"), "mm")
    assert "#pragma omp simd reduction(+ : sum_0)" in summed
    private = c_function(NESTS["column_sums"], Schedule((0, 1), (0, 0), "outer"), "sums")
    assert "schedule(static) reduction(+ : a0[:40])" in private


def test_packing_that_has_nothing_to_copy_says_so() -> None:
    told = c_function(NESTS["matmul"], Schedule((0, 1, 2), (0, 0, 0), pack="read2"), "mm")
    assert "/* pack read2: no loop over a2 has blocks */" in told
    told = c_function(NESTS["matmul"], Schedule((0, 2, 1), (0, 16, 0), pack="read2"), "mm")
    assert "packed[368] __attribute__((aligned(64)))" in told


def test_names_that_c_does_not_allow() -> None:
    made = replace(
        NESTS["matmul"], loop_names=("for", "int64_t", "_x"), array_names=("NAN", "exp", "C")
    )
    told = c_function(made, Schedule((0, 1, 2), (0, 0, 0)), "mm")
    assert "for (int64_t for_1 = 0; for_1 < 21; for_1++) {" in told
    assert "float *restrict NAN_, const float *restrict exp_1, const float *restrict C" in told
    assert "int64_t int64_t_ = 0" in told and "int64_t v_x = 0" in told


def test_a_loop_outside_of_its_bounds_has_no_code() -> None:
    with pytest.raises(NestError, match="cannot stand outside of i1"):
        c_function(NESTS["triangle"], Schedule((1, 0, 2), (0, 0, 0)), "t")
    with pytest.raises(NestError, match="bounds out of an array have no blocks"):
        c_function(NESTS["spmm"], Schedule((0, 1, 2), (0, 4, 0)), "t")


@pytest.mark.gcc
@needs_gcc
@pytest.mark.parametrize("name", ["spmm", "gather", "histogram", "functions"])
def test_an_emitted_program_runs_alone(name: str, tmp_path: Path) -> None:
    made = NESTS[name]
    source, program = tmp_path / "schedule.c", tmp_path / "schedule"
    source.write_text(c_program(made, canonical_schedule(made)))
    found = compiler()
    assert found is not None
    flags = ["-O1", "-march=native", "-fopenmp", "-Wall", "-Werror", "-Wno-unused-function"]
    subprocess.run([found[0], *flags, source, "-lm", "-o", program], check=True)
    done = subprocess.run([program], check=True, capture_output=True, text=True)
    *sums, taken = done.stdout.splitlines()
    assert float(taken.removesuffix(" s")) > 0
    assert int(re.search(r"median of (\d+) calls", done.stderr)[1]) >= 5  # type: ignore[index]
    expected = evaluate(made, {a: filled(array, a) for a, array in enumerate(made.arrays)})
    for line, values in zip(sums, expected.values(), strict=True):
        assert float(line.split("=")[1]) == pytest.approx(values.sum(), rel=1e-6)


def test_one_line_of_an_emitted_program_is_the_nest() -> None:
    told = c_program(NESTS["matmul"], Schedule((2, 0, 1), (0, 0, 0)))
    assert "a0[19 * i1 + i2] += a1[23 * i1 + i3] * a2[19 * i3 + i2];\n\n   Schedule:" in told
    assert 'order_3=["3","1","2"]' in told


# -- what arrays hold ------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "seed"), [("f32", 0), ("f32", 5), ("f64", 0)])
def test_uniform_numbers_are_inside(dtype: str, seed: int) -> None:
    made = filled(Array(dtype, (100, 100)), 2, seed)
    assert made.min() > 0 and made.max() < 1 and abs(made.mean() - 0.5) < 0.02
    assert np.unique(made).size > 9900
    assert not np.array_equal(made, filled(Array(dtype, (100, 100)), 3, seed))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 64, 1000])
def test_permutations_hold_each_number_once(count: int) -> None:
    made = filled(Array("i32", (count,), "permutation"), 1)
    assert sorted(made) == list(range(count))


@pytest.mark.parametrize(("uneven", "low", "high"), [("0", 0, 0.1), ("1", 0.8, 1.4), ("3", 6, 12)])
def test_rows_are_as_uneven_as_told(uneven: str, low: float, high: float) -> None:
    made = filled(Array("i64", (2001,), f"offsets:20000:{uneven}"), 0)
    rows = np.diff(made)
    assert made[0] == 0 and made[-1] == 20000 and rows.min() >= 0
    assert low <= rows.var() / rows.mean() <= high
