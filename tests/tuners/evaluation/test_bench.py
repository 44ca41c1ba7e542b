"""The harness: nothing held out is seen, baselines are honest, and the guard holds."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from builders import (
    CONFIGS,
    DEFAULT,
    OP,
    VARIANTS,
    band,
    by_chance,
    by_law,
    fill,
    patterns,
    runs_of,
    tiny,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from embeddb.core.config import Config, Op
from embeddb.core.errors import NothingFound
from embeddb.core.pattern import Pattern
from embeddb.core.records import Measurement, Run
from embeddb.core.timing import TimingSummary
from embeddb.database import Database
from embeddb.index.held_out import split_groups
from embeddb.index.lookup import Lookup
from embeddb.index.run_matrix import MatrixRow, join
from embeddb.ranking.fallback import answer
from indexer.embed import embed
from tuners.evaluation import evaluate as harness
from tuners.evaluation.bench import Bench, counted_rows
from tuners.evaluation.evaluate import EvalOptions, evaluate
from tuners.evaluation.figures import EvalRow, Truth, judge

METHODS = ["default", "random", "static-best", "static-top-k", "knn-stats", "embeddb", "oracle"]


def _by_method(rows: list[EvalRow]) -> dict[str, EvalRow]:
    return {row.method: row for row in rows}


@pytest.fixture(scope="module")
def lawful() -> Database:
    return fill(Database.in_memory(), tiny())


@pytest.fixture(scope="module")
def table(lawful: Database) -> dict[str, EvalRow]:
    return _by_method(evaluate(lawful.index))


def test_every_method_is_in_the_table(table: dict[str, EvalRow]) -> None:
    # There is enough to learn from, which eight matrices are not (`test_scopes_and_progress`).
    assert list(table) == [*METHODS[:-1], "process", "oracle"]
    assert {row.matrices for row in table.values()} == {20}
    assert {(row.platform, row.op) for row in table.values()} == {("tiny", "spmm:32")}


def test_the_law_is_found_and_the_bounds_hold(table: dict[str, EvalRow]) -> None:
    assert table["embeddb"].figures["of_optimum@1"] == pytest.approx(1.0)
    assert table["embeddb"].figures["slower_than_default"] == 0.0
    assert table["oracle"].figures["of_optimum@1"] == 1.0
    assert table["default"].figures["speedup@1"] == 1.0
    # a, b, c or d is best on a quarter each: the default is 0 to 3 factors of 1.5 away
    assert table["oracle"].figures["speedup@1"] == pytest.approx(1.5**1.5)
    assert table["default"].figures["of_optimum@1"] == pytest.approx(1.5**-1.5)
    assert table["embeddb"].figures["tau"] > 0.9
    for row in table.values():
        assert row.figures["of_optimum@1"] <= row.figures["of_optimum@5"] + 1e-12
        assert row.figures["illegal"] == 0


def test_random_draws_are_the_mean_of_all_orders(table: dict[str, EvalRow]) -> None:
    """All four configurations are within five draws; one draw is 1.5 steps off on average."""
    assert table["random"].figures["of_optimum@5"] == 1.0
    steps = np.mean([abs(i - j) for i in range(4) for j in range(4)])
    assert table["random"].figures["of_optimum@1"] == pytest.approx(1.5**-steps, rel=0.1)


def test_seeds_change_the_folds_only() -> None:
    db = fill(Database.in_memory(), tiny(), times=by_chance(3, 0.4))
    one, again = (
        evaluate(db.index, EvalOptions(seeds=(1,))),
        evaluate(db.index, EvalOptions(seeds=(1,))),
    )
    assert one == again
    both = _by_method(evaluate(db.index, EvalOptions(seeds=(1, 2))))
    assert both["oracle"].spread == 0.0 and both["static-best"].matrices == 20
    assert _by_method(one)["oracle"].figures == both["oracle"].figures


def test_static_best_and_plain_neighbours_against_brute_force() -> None:
    times = by_chance(11, 0.5)
    among = patterns()
    db = fill(Database.in_memory(), tiny(), among, times=times)
    log_t = {p.id: np.log([times(p, v) for v in range(4)]) for p in among}
    gain = {i: t[0] - t for i, t in log_t.items()}
    ids = sorted(gain)
    groups = np.array([next(p.group for p in among if p.id == i) for i in ids])
    vectors = db.store.vectors.get("stats", db.index.featurizer_version("stats"), ids)
    lost: dict[str, list[float]] = {"static-best": [], "knn-stats": []}
    for seed in (0, 1):
        fold = split_groups(groups, 5, seed)
        for at, i in enumerate(ids):
            known = [ids[j] for j in range(len(ids)) if fold[j] != fold[at]]
            average = np.mean([gain[j] for j in known], axis=0)
            raw = np.array([vectors[j] for j in known], dtype=float)
            scale = raw.std(axis=0)
            scale[scale <= 1e-9] = 1.0
            far = np.linalg.norm((raw - vectors[i]) / scale, axis=1)
            near = np.mean([gain[known[n]] for n in np.argsort(far, kind="stable")[:7]], axis=0)
            for name, vote in (("static-best", average), ("knn-stats", near)):
                lost[name].append(log_t[i].min() - log_t[i][vote.argmax()])
    table = _by_method(evaluate(db.index, EvalOptions(seeds=(0, 1))))
    for name, values in lost.items():
        per_seed = [np.exp(np.mean(values[:20])), np.exp(np.mean(values[20:]))]
        assert table[name].figures["of_optimum@1"] == pytest.approx(np.mean(per_seed), rel=1e-4)


def test_complete_keeps_the_matrices_that_tried_everything() -> None:
    """Some matrices tried a and b only: by default each is judged among what it ran."""
    among = patterns(9)
    whole, part = [p for p in among if p.group < "g4"], [p for p in among if p.group >= "g4"]
    db = fill(Database.in_memory(), tiny(), whole, indexed=False)
    for pattern in part:
        db.index.record(runs_of(pattern, tiny(), variants=(0, 1)), pattern, tiny())
    embed(db.index)
    every, complete = (
        _by_method(evaluate(db.index)),
        _by_method(evaluate(db.index, EvalOptions(complete=True))),
    )
    assert (every["oracle"].matrices, complete["oracle"].matrices) == (36, 16)
    assert complete["oracle"].figures["speedup@1"] == pytest.approx(1.5**1.5)
    steps = (16 * 1.5 + 20 * 0.75) / 36
    assert every["oracle"].figures["speedup@1"] == pytest.approx(1.5**steps)
    assert (every["embeddb"].configs, complete["embeddb"].configs) == (2, 4)


def test_a_matrix_is_asked_over_everything_legal() -> None:
    """Of a matrix that ran two of four configurations, the answer may name the other two: then the
    next candidate that ran there counts."""
    among = patterns(9)
    whole, part = [p for p in among if p.group < "g4"], [p for p in among if p.group >= "g4"]
    db = fill(Database.in_memory(), tiny(), whole, indexed=False)
    for pattern in part:
        db.index.record(runs_of(pattern, tiny(), variants=(0, 1)), pattern, tiny())
    embed(db.index)
    bench, skipped = Bench(db.index, OP, "tiny"), 0
    for train, test in bench.folds(3, 0):
        among_ran = dict(bench.queries_of(train, test))
        for row, question in bench.questions_of(train, test):
            truth = bench.truth(row)
            assert set(question.vote.configs) == set(CONFIGS)
            assert set(among_ran[row].vote.configs) == set(truth.times)
            candidates = answer(question, len(CONFIGS)).candidates
            ranked = [Config(candidate.config) for candidate in candidates]
            assert harness.judgeable_candidates(question, truth) == [
                c for c in ranked if c in truth.times
            ]
            skipped += ranked[0] not in truth.times
    assert skipped


# -- what counts, and how it is split ----------------------------------------------------------


def _row(
    name: str, ok: str, failed: str = ""
) -> tuple[MatrixRow, Config, dict[Config, TimingSummary]]:
    curve = {
        CONFIGS[VARIANTS.index(v)]: TimingSummary(
            1.0 if v in ok else math.inf, 0.0, 0.0, 1, "ok" if v in ok else "crash"
        )
        for v in ok + failed
    }
    return MatrixRow(name, "tiny", name), DEFAULT, curve


@pytest.mark.parametrize(
    ("ok", "failed", "counts"),
    [
        ("abcd", "", True),
        ("ab", "", True),
        ("abc", "d", True),
        ("ab", "cd", True),  # a choice that fails costs the default's time
        ("a", "", False),  # nothing to choose
        ("bcd", "", False),  # no default
        ("bcd", "a", False),  # the default failed
        ("", "abcd", False),
    ],
)
def test_a_matrix_counts_when_its_default_and_another_configuration_ran(
    ok: str, failed: str, counts: bool
) -> None:
    rows = [_row("0", "abcd"), _row("1", ok, failed), _row("2", "ab")]
    assert counted_rows(join(OP, rows)).tolist() == ([0, 1, 2] if counts else [0, 2])
    assert counted_rows(join(OP, rows[1:2])).tolist() == ([0] if counts else [])


def test_no_rows_count_in_no_evidence() -> None:
    assert counted_rows(join(OP, [])).tolist() == []


@given(
    st.lists(st.sampled_from("abcdefghij"), min_size=1, max_size=60),
    st.integers(1, 6),
    st.integers(0, 99),
)
def test_groups_stay_whole(names: list[str], folds: int, seed: int) -> None:
    groups = np.array(names)
    fold = split_groups(groups, folds, seed)
    assert fold.min() >= 0 and fold.max() < folds
    for name in set(names):
        assert len(set(fold[groups == name])) == 1
    used = min(folds, len(set(names)))
    assert len(set(fold)) == used
    sizes = np.bincount(fold, minlength=folds)
    assert sizes.max() - sizes[sizes > 0].min() <= max(names.count(n) for n in names)
    assert np.array_equal(fold, split_groups(groups, folds, seed))


def _poisoned(pattern: Pattern, variant: int) -> float:
    """The law, but in group g2 all is the other way round and a thousand times slower."""
    return by_law(pattern, 3 - variant) * 1e3 if pattern.group == "g2" else by_law(pattern, variant)


def _proposals(db: Database, monkeypatch: pytest.MonkeyPatch, group: str) -> dict[Any, list[Any]]:
    """What each method proposes for the rows of one group, by seed, fold and row."""
    seen: dict[Any, list[Any]] = {}
    now: list[Any] = []

    class Watched(harness.Bench):
        def truth(self, row: int) -> Truth:
            now[:] = [self.evidence.rows[row]]
            return super().truth(row)

    def watching(truth: Truth, proposals: list[Config], *, illegal: int = 0) -> Any:
        if now[0].group == group:
            seen.setdefault(now[0].pattern_id, []).append([str(c) for c in proposals])
        return judge(truth, proposals, illegal=illegal)

    monkeypatch.setattr(harness, "Bench", Watched)
    monkeypatch.setattr(harness, "judge", watching)
    evaluate(db.index)
    for found in seen.values():
        per_seed = len(found) // 3
        del found[per_seed - 1 :: per_seed]  # the oracle may look
    return seen


def test_a_held_out_group_never_influences_its_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    clean = _proposals(fill(Database.in_memory(), tiny()), monkeypatch, "g2")
    dirty = _proposals(fill(Database.in_memory(), tiny(), times=_poisoned), monkeypatch, "g2")
    # Six rows, of which the answers are judged twice, and 19 more draws.
    assert len(clean) == 4 and all(len(p) == 3 * (7 + 19) for p in clean.values())
    assert clean == dirty


def test_the_poison_does_reach_the_other_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the test above would prove nothing."""
    clean = _proposals(fill(Database.in_memory(), tiny()), monkeypatch, "g1")
    dirty = _proposals(fill(Database.in_memory(), tiny(), times=_poisoned), monkeypatch, "g1")
    assert clean != dirty


def test_one_matrix_on_two_instances_is_held_out_with_both() -> None:
    """A portable platform's other machine must not whisper the answer."""
    db = Database.in_memory()
    among = patterns()
    for instance in ("one", "two"):
        fill(db, tiny("pair", portable=True).at(instance), among, times=by_chance(5, 0.5))
    alone = fill(Database.in_memory(), tiny("pair"), among, times=by_chance(5, 0.5))
    rows = evaluate(db.index)
    assert {row.platform for row in rows} == {"pair@one", "pair@two"}  # an answer is for one
    both, one = _by_method(rows), _by_method(evaluate(alone.index))
    assert both["embeddb"].matrices == 20
    assert both["embeddb"].figures["of_optimum@1"] < 0.95  # chance cannot be foretold
    assert both["static-best"].figures["of_optimum@1"] == pytest.approx(
        one["static-best"].figures["of_optimum@1"], rel=0.05
    )


def test_the_runs_of_a_scope_are_read_once_for_all_its_machines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    db, read = Database.in_memory(), []
    for instance in ("one", "two", "three"):
        fill(db, tiny("pair", portable=True).at(instance))
    evidence = Lookup.evidence
    monkeypatch.setattr(Lookup, "evidence", lambda *args: read.append(args) or evidence(*args))
    rows = evaluate(db.index, EvalOptions(seeds=(0,)))
    assert {row.platform for row in rows} == {"pair@one", "pair@two", "pair@three"}
    assert len(read) == 1


# -- odd stores --------------------------------------------------------------------------------


def test_nothing_to_judge() -> None:
    with pytest.raises(NothingFound, match="two or more groups"):
        evaluate(Database.in_memory().index)
    one = [replace(p, group="same") for p in patterns()]
    with pytest.raises(NothingFound):
        evaluate(fill(Database.in_memory(), tiny(), one).index)


def test_failures_and_gaps_do_not_stop_it() -> None:
    db = fill(Database.in_memory(), tiny(), patterns(3))
    extra = band(90, 5, name="odd", group="odd")
    from embeddb.core.records import WorkloadInfo
    from indexer.embed import embed

    db.store.put_structure(extra, WorkloadInfo.whole(extra))
    db.store.append(
        Run(extra.id, OP, "tiny", config, Measurement(status=status, times_s=times))
        for config, status, times in [
            (CONFIGS[0], "crash", ()),
            (CONFIGS[1], "timeout", ()),
            (CONFIGS[2], "ok", (1e-3,)),
        ]
    )
    embed(db.index)
    table = _by_method(evaluate(db.index))
    assert table["embeddb"].matrices == 12  # the odd one has no default
    assert math.isfinite(table["embeddb"].figures["of_optimum@1"])


def test_simulated_is_said() -> None:
    db = fill(Database.in_memory(), tiny("sim", simulated=True), patterns(2))
    assert all(row.document()["simulated"] for row in evaluate(db.index, EvalOptions(seeds=(0,))))


def test_scopes_and_progress() -> None:
    db = fill(Database.in_memory(), tiny(), patterns(2))
    fill(db, tiny(), patterns(2), op=Op("spmm", 64))
    seen: list[tuple[str, int, int]] = []
    rows = evaluate(
        db.index,
        EvalOptions(seeds=(0,)),
        scopes=[(Op("spmm", 64), "tiny")],
        progress=lambda *a: seen.append(a),
    )
    assert {row.op for row in rows} == {"spmm:64"}
    assert len(evaluate(db.index, EvalOptions(seeds=(0,)))) == 2 * len(METHODS)
    assert seen and all(done <= total for _, done, total in seen)


@pytest.mark.slow
def test_chance_is_not_taken_for_a_law() -> None:
    """Times that have nothing to do with the structure: the answer is not worse than the static
    best by more than 1 % on average."""
    ours, static = [], []
    for seed in range(8):
        db = fill(Database.in_memory(), tiny(), patterns(12), times=by_chance(seed))
        table = _by_method(evaluate(db.index, EvalOptions(seeds=(0, 1))))
        ours.append(math.log(table["embeddb"].figures["of_optimum@1"]))
        static.append(math.log(table["static-best"].figures["of_optimum@1"]))
    assert np.mean(static) < -0.02  # there is something to lose
    assert np.mean(ours) > np.mean(static) - 0.01


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 10**6))
def test_any_times_give_a_sane_table(seed: int) -> None:
    db = fill(Database.in_memory(), tiny(), patterns(3), times=by_chance(seed, 2.0))
    table = _by_method(evaluate(db.index, EvalOptions(seeds=(0,))))
    best = table["oracle"].figures["speedup@1"]
    for row in table.values():
        assert 0 < row.figures["of_optimum@1"] <= 1.0 + 1e-12
        assert row.figures["speedup@5"] <= best * (1 + 1e-12)
        assert row.figures["speedup@1"] / row.figures["of_optimum@1"] == pytest.approx(best)
    assert table["embeddb"].figures["of_optimum@5"] == pytest.approx(1.0)
