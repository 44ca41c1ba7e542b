"""Evidence as arrays against the same thing spelt out with dictionaries."""

from __future__ import annotations

import dataclasses
import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embeddb.core.config import Config, Op
from embeddb.core.records import Measurement, Run
from embeddb.core.timing import summarise_runs
from embeddb.index.run_matrix import FAILED_GAIN, WINNER_GAIN, MatrixRow, RunMatrix, join

OP = Op("spmm", 32)
CONFIGS = [Config({"a": i}) for i in range(4)]
DEFAULT = CONFIGS[1]
SECONDS = st.sampled_from([1e-3, 2e-3, 5e-3, 0.1, 3.0])

MEASUREMENTS = st.one_of(
    st.builds(
        Measurement,
        times_s=st.lists(SECONDS, min_size=1, max_size=3).map(tuple),
        conversion_s=st.none() | st.sampled_from([0.0, 0.5, 2.0]),
    ),
    st.builds(Measurement, status=st.sampled_from(["timeout", "wrong", "oom"])),
    st.sampled_from(
        [
            Measurement(),  # ok, they say, but without a time
            Measurement(times_s=(0.0,)),
            Measurement(times_s=(math.nan,)),
            Measurement(times_s=(math.inf,)),
            Measurement(times_s=(-1.0,)),
            Measurement("crash", times_s=(1.0,)),
        ]
    ),
)
PLACES = st.tuples(st.sampled_from(["p0", "p1", "p2"]), st.sampled_from(["cpu@a", "cpu@b"]))
RUNS = st.lists(
    st.builds(
        lambda place, config, measurement: Run(place[0], OP, place[1], config, measurement),
        PLACES,
        st.sampled_from(CONFIGS),
        MEASUREMENTS,
    ),
    max_size=25,
)


def build(runs: list[Run]) -> RunMatrix:
    held: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        held.setdefault((run.pattern_id, run.platform), []).append(run)
    return join(
        OP,
        [
            (MatrixRow(*place, f"g-{place[0]}"), DEFAULT, summarise_runs(of))
            for place, of in held.items()
        ],
    )


def slow_seconds(runs: list[Run], place: tuple[str, str], config: Config) -> float:
    """nan if it was never run there, inf if it never worked or a result was wrong, else the median
    of medians."""
    here = [r for r in runs if (r.pattern_id, r.platform) == place and r.config == config]
    good = [
        statistics.median(r.measurement.times_s)
        for r in here
        if r.measurement.status == "ok" and r.measurement.times_s
    ]
    good = [s for s in good if math.isfinite(s) and s > 0]
    if good and all(r.measurement.status != "wrong" for r in here):
        return statistics.median(good)
    return math.inf if here else math.nan


def slow_conversion(runs: list[Run], place: tuple[str, str], config: Config) -> float:
    known = [
        r.measurement.conversion_s
        for r in runs
        if (r.pattern_id, r.platform) == place
        and r.config == config
        and 0 < r.measurement.seconds < math.inf
        and r.measurement.conversion_s is not None
    ]
    timed = math.isfinite(slow_seconds(runs, place, config))
    return statistics.median(known) if known and timed else 0.0


def slow_gain(runs: list[Run], place: tuple[str, str], config: Config, calls: float) -> float:
    """Over the default; over the geometric mean where the default never worked."""

    def cost(config: Config) -> float:
        return slow_seconds(runs, place, config) + slow_conversion(runs, place, config) / calls

    if not math.isfinite(cost(config)):
        return math.nan if math.isnan(cost(config)) else FAILED_GAIN
    base = slow_seconds(runs, place, DEFAULT)
    if not math.isfinite(base):
        base = statistics.geometric_mean([c for c in map(cost, CONFIGS) if math.isfinite(c)])
    return math.log(base / cost(config))


def places(evidence: RunMatrix) -> list[tuple[str, str]]:
    return [(row.pattern_id, row.platform) for row in evidence.rows]


@given(RUNS, st.sampled_from([math.inf, 1.0, 100.0]), st.randoms(use_true_random=False))
def test_the_arrays_say_what_the_runs_say(runs: list[Run], calls: float, random: object) -> None:
    evidence = build(runs)
    assert places(evidence) == sorted({(r.pattern_id, r.platform) for r in runs})
    assert list(evidence.configs) == sorted({r.config for r in runs}, key=lambda c: c.json)
    gains = evidence.gains(calls=calls)
    assert gains.shape == (len(evidence.rows), len(evidence.configs))
    for row, place in enumerate(places(evidence)):
        want = [slow_seconds(runs, place, c) for c in evidence.configs]
        np.testing.assert_allclose(evidence.times(row), want)
        want = [slow_gain(runs, place, c, calls) for c in evidence.configs]
        np.testing.assert_allclose(gains[row], want, rtol=1e-12, atol=1e-12)
        default = slow_seconds(runs, place, DEFAULT)
        want_default = default if math.isfinite(default) else math.nan
        np.testing.assert_equal(evidence.default_s[row], want_default)
        assert evidence.knows_default[row] == math.isfinite(default)
    shuffled = list(runs)
    random.shuffle(shuffled)  # type: ignore[attr-defined]  # hypothesis gives a random.Random
    assert_same(build(shuffled), evidence)


@given(RUNS)
def test_rows_and_their_winners(runs: list[Run]) -> None:
    evidence = build(runs)
    for at, place in enumerate(places(evidence)):
        row = evidence.row(at)
        ran = [evidence.configs[c] for c in row.column]
        assert set(ran) == {r.config for r in runs if (r.pattern_id, r.platform) == place}
        np.testing.assert_allclose(row.seconds, [slow_seconds(runs, place, c) for c in ran])
        np.testing.assert_allclose(row.conversion, [slow_conversion(runs, place, c) for c in ran])
        np.testing.assert_array_equal(row.spread, evidence.spread[evidence.part(at)])
        ok = [at for at, s in enumerate(row.seconds) if math.isfinite(s)]
        fastest = min(ok, key=lambda at: row.seconds[at], default=None)
        assert row.fastest == fastest
        winner = evidence.winner(at)
        assert winner == (None if fastest is None else row.column[fastest])


def assert_same(found: RunMatrix, wanted: RunMatrix) -> None:
    assert found.rows == wanted.rows
    assert found.configs == wanted.configs
    for name in ("indptr", "column", "seconds", "conversion", "spread", "default_s"):
        got, want = getattr(found, name), getattr(wanted, name)
        assert got.dtype == want.dtype, name
        np.testing.assert_array_equal(got, want, err_msg=name)


@given(RUNS, st.data())
def test_taking_rows(runs: list[Run], data: st.DataObject) -> None:
    evidence = build(runs)
    count = len(evidence.rows)
    rows = st.lists(st.integers(0, max(count - 1, 0)), unique=True, max_size=count)
    keep = np.array(data.draw(rows) if count else [], dtype=np.int64)
    taken = evidence.take(keep)
    assert taken.rows == tuple(evidence.rows[i] for i in keep)
    assert taken.configs == evidence.configs
    assert list(taken.groups) == [f"g-{evidence.rows[i].pattern_id}" for i in keep]
    np.testing.assert_array_equal(taken.gains(), evidence.gains()[keep])
    np.testing.assert_array_equal(taken.gains(), evidence.gains(keep))
    np.testing.assert_array_equal(taken.default_s, evidence.default_s[keep])
    assert taken.indptr[-1] == len(taken.column) == len(taken.seconds)


@given(RUNS, RUNS)
def test_merging_newer_rows(older: list[Run], newer: list[Run]) -> None:
    """`newer` holds everything known of its rows, under whatever group they have now."""
    renewed = {(r.pattern_id, r.platform) for r in newer}
    fresh = build(newer)
    fresh_rows = tuple(row._replace(group="moved") for row in fresh.rows)
    fresh = dataclasses.replace(fresh, rows=fresh_rows)
    merged = build(older).merged(fresh)
    kept = [r for r in older if (r.pattern_id, r.platform) not in renewed]
    want = build(kept + newer)
    assert places(merged) == places(want)
    assert {r.group for r in merged.rows if r[:2] in renewed} <= {"moved"}
    columns = [merged.configs.index(c) for c in want.configs]
    np.testing.assert_array_equal(merged.gains()[:, columns], want.gains())
    rest = np.delete(merged.gains(), columns, axis=1)
    assert np.isnan(rest).all()


@given(RUNS)
def test_pruning_keeps_what_is_used(runs: list[Run]) -> None:
    evidence = build(runs)
    rows = np.arange(len(evidence.rows) // 2, dtype=np.int64)
    pruned = evidence.take(rows).pruned()
    used = ~np.isnan(evidence.gains(rows)).all(axis=0) if rows.size else []
    assert list(pruned.configs) == [c for c, u in zip(evidence.configs, used, strict=False) if u]
    if rows.size:
        np.testing.assert_array_equal(pruned.gains(), evidence.gains(rows)[:, used])


@given(RUNS, st.sampled_from([0.0, 0.4, 0.5, 1.0]))
def test_without_what_few_rows_tried(runs: list[Run], share: float) -> None:
    evidence = build(runs)
    tried = ~np.isnan(evidence.gains())
    most = tried.any(axis=0) & (tried.sum(axis=0) >= share * len(evidence.rows))
    pairs = zip(evidence.configs, most, strict=True)
    common = evidence.without([config for config, tried_often in pairs if not tried_often])
    assert common.rows == evidence.rows
    assert list(common.configs) == [c for c, m in zip(evidence.configs, most, strict=True) if m]
    for row in range(len(evidence.rows)):
        np.testing.assert_array_equal(common.times(row), evidence.times(row)[most])
    np.testing.assert_array_equal(common.default_s, evidence.default_s)


def test_where_only_winners_were_recorded() -> None:
    ok, bad = Measurement(times_s=(2.0,)), Measurement("timeout")
    runs = [Run("p", OP, "cpu", CONFIGS[0], ok), Run("q", OP, "cpu", CONFIGS[1], ok)]
    runs += [Run("q", OP, "cpu", CONFIGS[2], bad)]
    held = [
        (MatrixRow(p, "cpu", p), DEFAULT, summarise_runs(r for r in runs if r.pattern_id == p))
        for p in ("p", "q")
    ]
    evidence = join(OP, held, winners=True)
    won, none = WINNER_GAIN, 0.0
    np.testing.assert_allclose(evidence.gains(), [[won, none, none], [none, won, FAILED_GAIN]])
    assert not evidence.knows_default.any()
    assert evidence.take(np.array([1])).winners
    assert evidence.merged(evidence).winners


def test_noise_is_that_of_repeated_runs() -> None:
    def runs(config: Config, *seconds: float) -> list[Run]:
        return [Run("p", OP, "cpu", config, Measurement(times_s=(s,))) for s in seconds]

    once = build(runs(CONFIGS[0], 1.0))
    assert once.noise == 0.0
    twice = build([*runs(CONFIGS[0], 1.0, 1.2), *runs(CONFIGS[1], 1.0), *runs(CONFIGS[2], 2, 2)])
    assert twice.noise == pytest.approx(0.1 / 1.1)


def test_nothing_at_all() -> None:
    nothing = build([])
    assert nothing.gains().shape == (0, 0)
    assert nothing.noise == 0.0
    assert nothing.take(np.zeros(0, dtype=np.int64)).rows == ()
    some = build([Run("p", OP, "cpu", DEFAULT, Measurement(times_s=(1.0,)))])
    assert_same(nothing.merged(some), some)
    assert_same(some.merged(nothing), some)
