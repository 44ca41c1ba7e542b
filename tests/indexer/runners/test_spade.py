"""SPADE's timing model: tiles, caches and bounds against references, and the runner around them."""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from command_line import run_verb
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("numba")

from embeddb.core.config import Config, Op
from embeddb.core.errors import MissingDependency, PlatformError
from embeddb.core.pattern import Pattern
from embeddb.core.sizes import Sizes
from embeddb.database import Database
from embeddb.platforms.check import check_platform
from embeddb.platforms.platform import Platform, load_platform, parse_platform, runner_for
from embeddb.testing.runners import RunnerContract
from indexer.runners import spade
from indexer.runners.base import RunOptions
from indexer.runners.spade import Estimate, Hardware, Model
from indexer.runners.spade_tiles import Tiling, _touch, similar_first, tiling_of

SPADE = load_platform("spade")
HARDWARE = Hardware.from_traits(SPADE.traits)
SPMM, SDDMM = Op("spmm", 128), Op("sddmm", 128)
QUICK = RunOptions()
PLAIN = Config(
    {"row_panels": 4, "column_panels": 1024, "split": 256, "barrier": 0, "bypass": 0, "reorder": 0}
)


class TestSpmm(RunnerContract):
    @pytest.fixture
    def runner(self) -> Any:
        return runner_for(SPADE)

    @pytest.fixture
    def options(self) -> RunOptions:
        return QUICK

    @pytest.fixture
    def configs(self) -> list[Config]:
        default = SPADE.default(self.op)
        return [default, default.replace(barrier=1, bypass=1, reorder=1, row_panels=4)]


class TestSddmm(TestSpmm):
    op = Op("sddmm", 8)


def scattered(m: int, n: int, nnz: int, seed: int = 0) -> Pattern:
    rng = np.random.default_rng(seed)
    return Pattern.from_coo((m, n), rng.integers(0, m, nnz), rng.integers(0, n, nnz))


def banded(m: int) -> Pattern:
    return _pattern(sp.diags([1.0] * 7, list(range(-3, 4)), shape=(m, m)))


def _pattern(matrix: Any) -> Pattern:
    found = sp.csr_array(matrix)
    return Pattern.from_csr(found.shape, found.indptr, found.indices)


def timed(pattern: Pattern, op: Op = SPMM, hw: Hardware = HARDWARE, **changes: Any) -> Estimate:
    return Model(hw, pattern, op).estimate(PLAIN.replace(**changes))


# -- tiles ---------------------------------------------------------------------------------------


@given(
    st.integers(0, 30),
    st.integers(0, 30),
    st.integers(1, 9),
    st.integers(1, 40),
    st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_tiles_are_the_pattern_cut_up(m: int, n: int, high: int, wide: int, seed: int) -> None:
    pattern = scattered(m, n, 3 * min(m, n), seed)
    order = np.random.default_rng(seed).permutation(m).astype(np.int64)
    tiling = tiling_of(pattern, order, high, wide)
    seen: list[tuple[int, int]] = []
    entries: list[tuple[int, int]] = []
    for t in range(tiling.tiles.size - 1):
        places = set()
        for s in range(tiling.tiles[t], tiling.tiles[t + 1]):
            for p in range(tiling.start[s], tiling.start[s] + tiling.length[s]):
                entries.append((int(order[tiling.row[s]]), int(pattern.indices[p])))
                places.add((int(tiling.row[s]) // high, int(pattern.indices[p]) // wide))
        (place,) = places
        seen.append(place)
    rows = np.repeat(np.arange(m), np.diff(pattern.indptr)).tolist()
    assert sorted(entries) == list(zip(rows, pattern.indices.tolist(), strict=True))
    assert seen == sorted(set(seen))
    assert _groups(tiling.panels, [panel for panel, _ in seen])
    by_column = [seen[t][::-1] for t in tiling.columnwise]
    assert by_column == sorted(by_column)
    assert _groups(tiling.phases, [column for column, _ in by_column])


def _groups(cuts: Any, keys: list[int]) -> bool:
    """Whether the cuts lie exactly where the sorted keys change, and at both ends."""
    if not keys:
        return bool(cuts.tolist() == [0])
    changes = [i for i in range(1, len(keys)) if keys[i] != keys[i - 1]]
    return bool(cuts.tolist() == [0, *changes, len(keys)])


def test_similar_rows_come_together() -> None:
    rng = np.random.default_rng(0)
    band = banded(600).to_scipy()
    shuffled = _pattern(sp.csr_array(band)[rng.permutation(600)])
    order = similar_first(shuffled)
    assert sorted(order) == list(range(600))
    assert np.array_equal(order, similar_first(shuffled))
    assert _distinct(tiling_of(shuffled, order, 32, 600), shuffled) < 0.3 * _distinct(
        tiling_of(shuffled, np.arange(shuffled.shape[0]), 32, 600), shuffled
    )
    wide = scattered(5, 900, 40)
    assert sorted(similar_first(wide)) == list(range(5))


def _distinct(tiling: Tiling, pattern: Pattern) -> int:
    """Distinct columns of all tiles."""
    found = 0
    for t in range(tiling.tiles.size - 1):
        parts = range(tiling.tiles[t], tiling.tiles[t + 1])
        spans = [pattern.indices[tiling.start[s] :][: tiling.length[s]] for s in parts]
        found += np.unique(np.concatenate(spans)).size
    return found


# -- caches and bounds ---------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 1)), max_size=60), st.integers(1, 5))
def test_a_set_is_lru(trace: list[tuple[int, int]], ways: int) -> None:
    tags = np.full(ways + 2, -1, dtype=np.int64)
    kept: OrderedDict[int, int] = OrderedDict()
    for unit, dirty in trace:
        out = -1
        expected = unit in kept
        kept[unit] = kept.pop(unit, 0) | dirty
        if len(kept) > ways:
            old, was = kept.popitem(last=False)
            out = 2 * old + was
        assert _touch(tags, 1, ways, unit, dirty) == (expected, out)
    assert tags[0] == tags[-1] == -1


def lone(**changes: float) -> Hardware:
    """One element with caches that hold everything, or as changed."""
    whole: dict[str, float] = {"processing_elements": 1, "private_cache_kib": 65536}
    return replace(HARDWARE, **{**whole, **changes})


def moved(estimate: Estimate, pattern: Pattern, entry_bytes: float = 12) -> float:
    """Slices of 512 bytes from and to memory, given what an entry streams."""
    stream = pattern.nnz * entry_bytes
    return (estimate.memory_s * HARDWARE.memory_gb_s * 1e9 - stream) / 512


def test_memory_moves_what_it_must_and_no_more() -> None:
    pattern = scattered(300, 200, 2000)
    rows, columns = int((np.diff(pattern.indptr) > 0).sum()), np.unique(pattern.indices).size
    for wide in (1024, 64):
        one = timed(pattern, hw=lone(), column_panels=wide)
        assert moved(one, pattern) == pytest.approx(columns + rows)
    # SDDMM reads both operands, and streams a value out beside each one in.
    both = timed(pattern, SDDMM, lone())
    assert moved(both, pattern, 16) == pytest.approx(columns + rows)
    # Past the caches, a row of D is read on all visits but the first, and written on all of them.
    visits = len({(r, c // 64) for r, c in zip(*pattern.to_scipy().nonzero(), strict=True)})
    past = timed(pattern, hw=lone(), column_panels=64, bypass=1)
    assert moved(past, pattern) == pytest.approx(columns + 2 * visits - rows)
    past = timed(pattern, SDDMM, lone(), column_panels=64, bypass=1)
    assert moved(past, pattern, 16) == pytest.approx(columns + visits)


def test_the_cost_of_one_entry_by_hand() -> None:
    one = Pattern.from_coo((1, 1), [0], [0])
    hw = lone()
    # Vectors: 8 for the entry, 16 to load and store D; 8 lines wait for memory, 8 find room.
    waits = 8 * 0.8 / hw.outstanding_lines * (hw.memory_latency_ns + hw.shared_latency_ns)
    cycles = hw.dispatch_cycles + hw.tile_start_cycles + max(8 + 16, waits)
    assert timed(one, hw=hw).elements_s == pytest.approx(cycles / 0.8e9)
    assert timed(one, hw=hw).seconds == pytest.approx((cycles + hw.launch_cycles) / 0.8e9)
    with_barrier = (cycles + hw.launch_cycles + hw.barrier_cycles) / 0.8e9
    assert timed(one, hw=hw, barrier=1).seconds == pytest.approx(with_barrier)
    # Four passes of 32 columns do the same work in four tiles.
    assert timed(one, hw=hw, split=32).memory_s > timed(one, hw=hw).memory_s
    empty = Pattern.from_coo((3, 4), [], [])
    assert timed(empty).seconds == pytest.approx(hw.launch_cycles / 0.8e9)


def test_panels_limit_how_many_elements_work() -> None:
    pattern = banded(2048)
    many = replace(HARDWARE, processing_elements=64)
    whole = timed(pattern, row_panels=2048)
    assert whole.elements_s == timed(pattern, hw=many, row_panels=2048).elements_s
    # 8 panels of 256 rows work at once, 64 of 32 take two turns.
    ratio = whole.elements_s / timed(pattern, row_panels=256).elements_s
    assert 6 < ratio <= 8
    fine = (
        timed(pattern, row_panels=32).elements_s / timed(pattern, hw=many, row_panels=32).elements_s
    )
    assert 1.3 < fine < 2


def test_a_panel_that_fits_is_fetched_once() -> None:
    """Column panels are for matrices whose B is larger than the shared cache."""
    pattern = scattered(512, 8192, 60_000)
    small = replace(HARDWARE, shared_cache_kib=1024, private_cache_kib=2)
    whole = timed(pattern, hw=small, column_panels=8192)
    tiled = timed(pattern, hw=small, column_panels=1024, barrier=1)
    assert moved(whole, pattern) > 3 * moved(tiled, pattern)
    assert moved(tiled, pattern) < 2 * (512 + 8192)
    # Narrower slices, larger share of B: 4 passes, and still less traffic for B.
    split = timed(pattern, hw=small, column_panels=8192, split=32)
    assert split.memory_s < whole.memory_s


def test_reordering_helps_what_was_shuffled_and_not_what_was_in_order() -> None:
    band = banded(4096)
    mixed = _pattern(sp.csr_array(band.to_scipy())[np.random.default_rng(0).permutation(4096)])
    tiny = replace(HARDWARE, shared_cache_kib=256)
    gain = timed(mixed, hw=tiny).seconds / timed(mixed, hw=tiny, reorder=1).seconds
    assert gain > 1.5
    assert timed(band, hw=tiny).seconds <= 1.01 * timed(band, hw=tiny, reorder=1).seconds


def test_splits_wider_than_the_operand_are_one() -> None:
    pattern = scattered(100, 100, 900)
    assert timed(pattern, Op("spmm", 32), split=32) == timed(pattern, Op("spmm", 32), split=256)
    # 48 columns in splits of 32 are one pass of 32 and one of 16.
    parts = [timed(pattern, Op("spmm", width)).memory_s for width in (32, 16)]
    assert timed(pattern, Op("spmm", 48), split=32).memory_s == pytest.approx(sum(parts))


def test_no_configuration_wins_everywhere() -> None:
    dense_rows = sp.random(64, 2000, 0.05, random_state=0)
    winners = {
        _best(pattern)
        for pattern in (banded(800), scattered(1200, 1200, 6000), _pattern(dense_rows))
    }
    assert len(winners) == 3


def _best(pattern: Pattern) -> Config:
    space, model = SPADE.space(SPMM, pattern.sizes), Model(HARDWARE, pattern, SPMM)
    return min(space.enumerate(), key=lambda c: model.estimate(space.numeric(c)).seconds)


# -- the runner ----------------------------------------------------------------------------------


def test_times_say_where_they_come_from_and_are_the_same_again() -> None:
    pattern, runner = banded(300), runner_for(SPADE)
    configs = SPADE.space(SPMM, Sizes(m=300, n=300)).sample(6, rng=np.random.default_rng(0))
    first = dict(runner.run(pattern, SPMM, configs, options=QUICK))
    second = dict(
        runner_for(SPADE).run(pattern, SPMM, configs[::-1], options=RunOptions(repeats=9))
    )
    for config in configs:
        assert first[config].source == "simulator" and len(first[config].times_s) == 1
        assert first[config].context["made_by"] == "timing model"
        assert first[config].times_s == second[config].times_s


def described(**changes: str) -> Platform:
    """The platform file with lines of traits replaced; an empty line removes one."""
    lines = SPADE.text.splitlines()
    for name, value in changes.items():
        (at,) = [i for i, line in enumerate(lines) if line.startswith(f"{name} = ")]
        lines[at] = f"{name} = {value}" if value else ""
    return parse_platform("\n".join(lines))


def test_other_assumptions_are_another_instance() -> None:
    here = runner_for(SPADE).platform()
    assert check_platform(SPADE) == [] and SPADE.simulated
    assert here.id.startswith("spade@") and here.digest == SPADE.digest
    assert here.environment["timing model"] == "1"
    assert runner_for(described(title='"x"')).platform(threads=7).id == here.id
    assert runner_for(described(memory_gb_s="102.4")).platform().id != here.id


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"memory_gb_s": ""}, "needs the trait memory_gb_s"),
        ({"memory_gb_s": '"fast"'}, "needs the trait memory_gb_s"),
        ({"clock_ghz": "0"}, "clock_ghz must be larger than 0"),
        ({"clock_ghz": "inf"}, "clock_ghz must be larger than 0"),
        ({"processing_elements": "2.5"}, "processing_elements must be a whole number"),
        ({"shared_cache_kib": "1e12"}, "caches of more than"),
    ],
)
def test_what_is_no_machine(changes: dict[str, str], said: str) -> None:
    platform = described(**changes)
    with pytest.raises(MissingDependency, match=said) as caught:
        runner_for(platform)
    assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(PlatformError, match=said):
        Hardware.from_traits(platform.traits)


def test_without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spade, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match="needs numba: install the extra `dynamics`"):
        runner_for(SPADE)


def test_what_cannot_be_timed_is_a_status() -> None:
    pattern = banded(50)
    small = RunOptions(max_bytes=100)
    default = SPADE.default(SPMM, Sizes(m=50, n=50))
    ((_, found),) = runner_for(SPADE).run(pattern, SPMM, [default], options=small)
    assert found.status == "oom" and found.source == "simulator" and "of 100" in found.error
    text = SPADE.text.replace('\nreorder = { type = "bool" }', "").replace("\nreorder = 0", "")
    told = re.sub(r'^"?reorder(=\d")? = ".*"\n', "", text, flags=re.M)
    other = parse_platform(told.replace(', "reorder"]', "]"))
    config = Config({k: v for k, v in default.items() if k != "reorder"})
    ((_, found),) = runner_for(other).run(pattern, SPMM, [config], options=QUICK)
    assert found.status == "invalid" and "needs the parameter 'reorder'" in found.error


def test_measured_and_asked_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db, camp, folder = str(tmp_path / "db"), str(tmp_path / "camp"), tmp_path / "m"
    folder.mkdir()
    for at in range(2):
        sp.save_npz(folder / f"m{at}.npz", sp.random(60, 60, 0.1, random_state=at, format="csr"))

    def call(*words: str) -> Any:
        ended = run_verb(words)
        said = capsys.readouterr()
        assert ended == 0, said.err
        return said

    asked = ("--platform", "spade", "--op", "spmm:64")
    call("init", db)
    said = call("measure", db, str(folder / "m0.npz"), *asked, "--configs", "20", "--json")
    (document,) = json.loads(said.out)
    assert "simulated" in said.err
    assert len(document["configs"]) == 21 and document["platform"].startswith("spade@")
    plan = ("--matrices", str(folder), "--rounds", "1", "--configs", "10")
    call("campaign", "plan", db, camp, *asked, *plan, "--grid", "1", "--grid-op", "spmm:64")
    call("campaign", "run", db, camp)
    with Database.open(db) as opened:
        runs = list(opened.store.runs(document["platform"], Op("spmm", 64)))
    tried = [{r.config for r in runs if r.pattern_id == p} for p in {r.pattern_id for r in runs}]
    assert len(tried) == 2 and max(map(len, tried)) == 256
    assert all(run.measurement.source == "simulator" for run in runs)
    query = call("query", db, str(folder / "m0.npz"), *asked, "--json")
    assert json.loads(query.out)["link"] == "measured"
