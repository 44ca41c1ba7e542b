"""The instrumented build against counts by hand, and against the same caches in Python."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
from counted_nests import (
    copy,
    flat,
    histogram,
    masked,
    matmul,
    relaxed,
    spmv,
    stencil,
    triangle,
    upto,
    wedge,
)
from counter_trace import Touch, Trace

from embeddb.core.errors import NothingFound
from embeddb.kernels.nests.expressions import type_of
from embeddb.nests.check import canonical_schedule
from embeddb.nests.counters import CounterVector
from embeddb.nests.nest import Nest
from embeddb.nests.nest_text import check
from embeddb.nests.parts import Access, Array, Call, Const, LoopIndex, Statement
from indexer.runners.counters import nest as nest_model
from indexer.runners.counters.nest import deciding_values, model_counts, outer_turns, share_of
from indexer.runners.counters.source import (
    PLAIN,
    Caches,
    Level,
    Pass,
    caches_here,
    deciding,
    dtype_of,
    work_of,
)

pytestmark = pytest.mark.gcc

TINY = Caches(Level(2, 2), Level(4, 3), Level(9, 2))


class Memory:
    """The model in Python: three levels of sets of lines, least recently used first."""

    def __init__(self, caches: Caches) -> None:
        self.levels = (caches.l1, caches.l2, caches.l3)
        self.held = [[OrderedDict[int, bool]() for _ in range(c.sets)] for c in self.levels]
        self.lines = [0, 0, 0]
        self.changed = [0, 0, 0]

    def touch(self, line: int, store: bool, level: int = 0) -> None:
        """A store below the first level is a line that was written back: it is not fetched."""
        if level == len(self.levels):
            return
        ways = self.held[level][line % self.levels[level].sets]
        missing = line not in ways
        ways[line] = ways.pop(line, False) or store
        if missing and len(ways) > self.levels[level].ways:
            old, changed = ways.popitem(last=False)
            if changed:
                self.changed[level] += 1
                self.touch(old, True, level + 1)
        if missing and not (store and level):
            self.lines[level] += 1
            self.touch(line, False, level + 1)


def expected(nest: Nest, caches: Caches, threads: int) -> dict[str, list[int]]:
    """By counter, what each thread counts in its second run."""
    values = deciding_values(nest)
    turns = outer_turns(nest, values)
    found: dict[str, list[int]] = {}
    for thread in range(threads):
        parts = [turns // threads + (t < turns % threads) for t in range(threads)]
        first = sum(parts[:thread])
        trace, memory = Trace(nest, values), Memory(caches.sliced(threads))
        before, loads, stores = [0] * 6, 0, 0
        flops = 0
        for _ in range(2):
            before = [*memory.lines, *memory.changed]
            touched = list(trace.touches(first, first + parts[thread]))
            for touch in touched:
                memory.touch(touch.address // caches.line_bytes, touch.store)
            stores = sum(touch.store for touch in touched)
            loads = len(touched) - stores
            flops = trace.operations["f32"] + trace.operations["f64"] - flops
        now = [*memory.lines, *memory.changed]
        row = [loads, stores, flops, *(n - b for n, b in zip(now, before, strict=True))]
        names = ["loads", "stores", "flops", "l1_lines_in", "l2_lines_in", "memory_reads"]
        names += ["l1_modified_evictions", "l2_writebacks", "memory_writes"]
        for name, value in zip(names, row, strict=True):
            found.setdefault(name, []).append(value)
    return found


def sums(vector: CounterVector, names: Iterable[str]) -> list[float]:
    return [vector.of(name) for name in names]


NESTS: list[tuple[str, Callable[[], Nest]]] = [
    ("matmul", lambda: matmul(13)),
    ("copy", lambda: copy(300)),
    ("gather", lambda: copy(300, "permutation")),
    ("mask", lambda: masked(500, 0.3)),
    ("stencil", lambda: stencil(21)),
    ("triangle", lambda: triangle(23)),
    ("spmv", lambda: spmv(40, 300)),
    ("histogram", lambda: histogram(400, 50)),
    ("relaxed", lambda: relaxed(200)),
]


@pytest.mark.parametrize(("name", "made"), NESTS)
def test_as_the_same_caches_in_python(name: str, made: Callable[[], Nest]) -> None:
    nest = made()
    vector = model_counts(nest, threads=3, caches=TINY)
    told = expected(nest, TINY, 3)
    flops = told.pop("flops")
    assert vector.of("f32_scalar") + vector.of("f64_scalar") == sum(flops)
    assert {n: vector.of(n) for n in told} == {n: sum(row) for n, row in told.items()}
    assert [vector.of(n, "max") for n in told] == [max(row) for row in told.values()]
    deviations = [vector.of(n, "std") for n in told]
    assert deviations == pytest.approx([np.std(row) for row in told.values()], rel=1e-5)


def test_a_product_of_matrices_by_hand() -> None:
    vector = model_counts(matmul(8), threads=1, caches=TINY)
    # A and B each turn, C once for each of its elements, before and behind the innermost loop.
    told = {"f32_scalar": 2 * 8**3, "loads": 2 * 8**3 + 8**2, "stores": 8**2, "f64_scalar": 0}
    assert {n: vector.of(n) for n in told} == told
    assert vector.of("branches") == 8**3 + 8**2 + 8
    # Each end of a loop is foretold wrongly once, and the first turns of the first run are over.
    assert vector.of("mispredictions") == 8**2 + 8
    turns = 8**3 + 8**2 + 8
    assert vector.of("instructions") == 4 * 8**3 + 2 * 8**2 + 3 * turns
    assert np.isnan(vector.of("f32_256")) and vector.source == "model"


def test_a_copy_streams() -> None:
    n = 4096
    vector = model_counts(copy(n), threads=1, caches=TINY)
    lines = n * 8 // 64
    assert sums(vector, ("l1_lines_in", "l2_lines_in", "memory_reads")) == [2 * lines] * 3
    assert sums(vector, ("l1_modified_evictions", "l2_writebacks", "memory_writes")) == [lines] * 3
    warm = model_counts(copy(n), threads=1, caches=PLAIN)
    assert warm.of("l2_lines_in") == 0 and warm.of("l1_lines_in") == 2 * lines


def test_a_mask_is_foretold_where_it_is_always_the_same() -> None:
    never, half = (
        model_counts(masked(2000, share), threads=1, caches=PLAIN) for share in (0.0, 0.5)
    )
    assert never.of("stores") == 0 and never.of("f32_scalar") == 0
    assert never.of("branches") == 2 * 2000 and never.of("mispredictions") == 0
    assert 0.4 < half.of("mispredictions") / 2000 < 0.6


def test_a_quotient_of_integers_is_real_as_in_the_generated_code() -> None:
    half = Call("/", (LoopIndex(0), Const(2)))
    assert dtype_of(half, ()) == type_of(half, ()) == "f64"
    assert dtype_of(Call("+", (half, Const(1))), ()) == "f64"


def test_threads_that_get_less_count_less() -> None:
    vector = model_counts(triangle(100), threads=2, caches=PLAIN)
    assert vector.of("f64_scalar", "min") == 50 * 51 / 2
    assert vector.of("f64_scalar", "max") == 100 * 101 / 2 - 50 * 51 / 2
    alone = model_counts(triangle(100), threads=2, caches=PLAIN, parallel=False)
    assert alone.of("f64_scalar", "min") == 0 and alone.of("f64_scalar") == 100 * 101 / 2


def test_what_decides() -> None:
    assert deciding(matmul(4)) == frozenset() and deciding(spmv(4, 9)) == {2, 4}
    assert deciding(masked(4, 0.5)) == {1} and deciding(relaxed(4)) == {0}
    assert canonical_schedule(relaxed(4)).parallel == "none"


def test_what_is_in_a_register_is_not_loaded_again() -> None:
    work = work_of(stencil(9))
    assert [(len(s.loads), s.computed["f32"]) for s in work.steps] == [(5, 4)]
    square = masked(9, 0.5)  # x is read by the condition, and again by the value
    assert [(len(s.before), len(s.loads)) for s in work_of(square).steps] == [(1, 1)]
    assert work_of(matmul(9)).accesses((9, 9, 9)) == 2 * 9**3 + 2 * 9**2


@pytest.mark.parametrize(
    ("nest", "most"),
    [(matmul(64), 100_000), (matmul(64), 10_000), (triangle(400), 20_000), (stencil(300), 20_000)],
    ids=["three places", "inside of a turn", "triangle", "stencil"],
)
def test_a_sample_is_near_the_whole(nest: Nest, most: int) -> None:
    caches = Caches(Level(16, 4), Level(64, 8), Level(128, 16))
    whole, part = (model_counts(nest, threads=2, caches=caches, most=m) for m in (10_000_000, most))
    assert "sampled" in part.about and "sampled" not in whole.about
    for name in ("loads", "branches", "instructions", "l1_lines_in"):
        for statistic in ("sum", "max"):
            assert part.of(name, statistic) == pytest.approx(whole.of(name, statistic), rel=0.25)


@pytest.mark.parametrize("most", [20_000, 100_000, 300_000])
def test_a_sample_of_turns_with_different_work_is_as_large_as_the_whole(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    nest = wedge(120)
    whole, part = (model_counts(nest, threads=1, caches=TINY, most=m) for m in (10_000_000, most))
    exact = sum((120 - apart) * apart for apart in range(120))
    assert whole.of("f64_scalar") == 2 * exact and "sampled" in part.about
    assert part.of("f64_scalar") == pytest.approx(2 * exact, rel=1e-9)
    assert part.of("loads") == pytest.approx(whole.of("loads"), rel=0.01)
    if most > 20_000:  # less than a turn is no sample of what each turn stores
        assert part.of("stores") == pytest.approx(whole.of("stores"), rel=0.05)
    # Too many to enumerate.
    monkeypatch.setattr("embeddb.nests.nest._MOST_ENUMERATED", 4000)
    part = model_counts(nest, threads=1, caches=TINY, most=most)
    assert part.of("f64_scalar") == pytest.approx(2 * exact, rel=0.01)


def test_a_nest_without_accesses_ends() -> None:
    body = (Statement(Access(0, (flat(0),)), "+=", Const(1)),)
    nest = check(Nest((upto(1 << 20), upto(1 << 24)), (Array("f64", (1,)),), body))
    vector = model_counts(nest, threads=2, caches=TINY, most=10_000)
    assert vector.of("f64_scalar") == pytest.approx(float(1 << 44), rel=0.01)


def test_what_stands_for_the_turns_of_a_thread() -> None:
    assert share_of(5, 5, 10, 100).passes == ()
    whole = share_of(0, 10, 10, 100)
    assert [(p.kind, p.first, p.last) for p in whole.passes] == [("WARM", 0, 10), ("COUNT", 0, 10)]
    three = share_of(100, 200, 10, 90)
    assert [(p.kind, p.first, p.last) for p in three.passes] == [
        ("WARM", 194, 197),
        ("COUNT", 197, 200),
        ("COUNT", 100, 103),  # the first turns follow the last ones, in a run after another
        ("WARM", 145, 148),
        ("COUNT", 148, 151),
    ]
    assert three.sampled and not whole.sampled
    one = share_of(0, 3, 40, 50)
    assert [(p.kind, p.first, p.last) for p in one.passes] == [("WARM", 0, 1), ("COUNT", 1, 2)]
    assert share_of(0, 3, 400, 50).passes == (Pass("INSIDE", 1, 3, 50),)


def test_a_walk_in_order() -> None:
    touched = list(Trace(copy(3), {}).touches(0, 3))
    # x is read, then y is written; they lie on pages of their own.
    assert touched[:2] == [Touch(2 * 4096, False), Touch(4096, True)]
    assert [t.address - touched[1].address for t in touched if t.store] == [0, 8, 16]


def test_caches_of_this_machine(tmp_path: Path) -> None:
    told = {"type": "Data", "level": "1", "number_of_sets": "64", "ways_of_associativity": "12",
            "coherency_line_size": "64"}  # fmt: skip
    for index, more in enumerate(({}, {"type": "Instruction"}, {"level": "2"})):
        folder = tmp_path / f"index{index}"
        folder.mkdir()
        for name, text in {**told, **more}.items():
            (folder / name).write_text(text + "\n")
    found = caches_here(tmp_path)
    assert (found.l1, found.l2, found.l3) == (Level(64, 12), Level(64, 12), Level(1, 1))
    assert caches_here(tmp_path / "none") == PLAIN
    assert PLAIN.sliced(4).l3 == Level(8192, 16) and PLAIN.last_bytes == 32 << 20


def test_arrays_too_large_to_be_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nest_model, "MOST_BYTES", 100)
    with pytest.raises(NothingFound, match="more than 100 bytes"):
        model_counts(copy(300, "permutation"), threads=1, caches=TINY)
