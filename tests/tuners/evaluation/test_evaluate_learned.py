"""Learned rankers under the judge: what they may see, how they join the vote, and the ceiling."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from builders import (
    CONFIGS,
    OP,
    VARIANTS,
    by_chance,
    by_law,
    fill,
    patterns,
    runs_of,
    tiny,
)
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.errors import MissingDependency, NothingFound, UsageError
from embeddb.core.records import Measurement, Run, WorkloadInfo
from embeddb.core.row_lengths import RowLengths
from embeddb.cost_model import Problem
from embeddb.database import Database
from embeddb.index.run_matrix import RunMatrix
from embeddb.platforms.platform import Platform
from embeddb.ranking.rankers.neighbour_vote import scores
from embeddb.ui.cli.verbs.eval import _named
from indexer.embed import embed
from tuners.evaluation.bench import Bench, measured_again
from tuners.evaluation.evaluate import EvalOptions, evaluate
from tuners.evaluation.figures import EvalRow, Fit
from tuners.evaluation.learned import WEIGHTS, Seen, best_weight, held_out, seen_by

Floats = NDArray[np.float64]


class ByLength:
    """Knows the law of `builders.by_law`, or its opposite; a matrix's sizes tell it all."""

    def __init__(self, sign: float = 1.0) -> None:
        self.sign = sign

    def score(self, problem: Problem, configs: Sequence[Config]) -> tuple[Floats, Floats]:
        assert problem.vector.ndim == 1 and problem.vector.size > 4
        rows, _, nonzeros = problem.sizes
        best = int(np.argmin([abs(nonzeros / rows - k) for k in (2, 6, 14, 30)]))
        gain = [-math.log(1.5) * abs(VARIANTS.index(c["variant"]) - best) for c in configs]
        return self.sign * np.array(gain), np.zeros(len(configs))


def always(scorer: Any) -> Fit:
    return lambda *_: scorer


def _by_method(rows: list[EvalRow]) -> dict[str, EvalRow]:
    return {row.method: row for row in rows}


@pytest.fixture(scope="module")
def lawful() -> Database:
    return fill(Database.in_memory(), tiny())


@pytest.fixture(scope="module")
def chance() -> Database:
    return fill(Database.in_memory(), tiny(), times=by_chance(5, 0.4))


def test_each_ranker_has_two_rows_before_the_oracle(lawful: Database) -> None:
    rows = evaluate(lawful.index, EvalOptions(seeds=(0,)), rankers={"law": always(ByLength())})
    names = ["embeddb", "process", "law", "law+transfer", "oracle"]
    assert [r.method for r in rows][-5:] == names
    table = _by_method(rows)
    for name in ("law", "law+transfer"):
        figures = table[name].figures
        assert table[name].matrices == 20
        assert figures["of_optimum@1"] == pytest.approx(1.0)
    assert table["law"].figures["opa"] == 1.0 and table["law"].figures["tau"] > 0.9


def test_a_wrong_ranker_is_bad_alone_and_harmless_beside_the_vote(lawful: Database) -> None:
    table = _by_method(
        evaluate(lawful.index, EvalOptions(seeds=(0,)), rankers={"wrong": always(ByLength(-1.0))})
    )
    assert table["wrong"].figures["of_optimum@1"] < 0.6
    assert table["wrong"].figures["opa"] == 0.0
    ours = table["embeddb"].figures["of_optimum@1"]
    assert table["wrong+transfer"].figures["of_optimum@1"] == pytest.approx(ours)


def test_rankers_do_not_change_the_other_rows(lawful: Database) -> None:
    alone = _by_method(evaluate(lawful.index, EvalOptions(seeds=(1,))))
    beside = _by_method(
        evaluate(lawful.index, EvalOptions(seeds=(1,)), rankers={"law": always(ByLength())})
    )
    assert alone == {name: row for name, row in beside.items() if name in alone}


def test_a_ranker_learns_from_training_groups_alone() -> None:
    db = fill(Database.in_memory(), tiny())
    groups = {p.id: p.group for p in patterns()}
    learned_from: list[set[str]] = []
    asked: list[tuple[set[str], str]] = []
    lengths = {(p.shape[0], p.nnz): p.group for p in patterns()}

    def fit(
        evidence: RunMatrix,
        vectors: Mapping[str, Mapping[str, NDArray[np.float32]]],
        infos: Mapping[str, WorkloadInfo],
        platform: Platform,
        op: Op,
        row_lengths: Mapping[str, RowLengths | None],
    ) -> Any:
        ids = {row.pattern_id for row in evidence.rows}
        assert set(infos) == ids and set(vectors) == {"stats"} and set(vectors["stats"]) == ids
        assert set(row_lengths) == ids and None not in row_lengths.values()
        assert platform.id == "tiny" and op == OP
        seen = {groups[i] for i in ids}
        learned_from.append(seen)

        class Watching(ByLength):
            def score(self, problem: Problem, configs: Sequence[Config]) -> tuple[Floats, Floats]:
                m, _, nnz = problem.sizes
                asked.append((seen, lengths[m, nnz]))
                return super().score(problem, configs)

        return Watching()

    evaluate(db.index, EvalOptions(seeds=(0,)), rankers={"watched": fit})
    assert len(learned_from) == 10 and all(1 <= len(seen) < 5 for seen in learned_from)
    assert len(asked) >= 20 and all(group not in seen for seen, group in asked)


def test_uncommon_configurations_are_there_to_learn_from() -> None:
    """d was tried on two groups of five: a ranker knows it, and it is judged where it ran."""
    db = Database.in_memory()
    among = patterns()
    fill(db, tiny(), among[:8], indexed=False)
    for pattern in among[8:]:
        db.index.record(runs_of(pattern, tiny(), variants=(0, 1, 2)), pattern, tiny())
    embed(db.index)
    known: list[int] = []

    def fit(evidence: RunMatrix, *_: Any) -> Any:
        known.append(len(evidence.configs))
        return ByLength()

    evaluate(db.index, EvalOptions(seeds=(0,)), rankers={"law": fit})
    bench = Bench(db.index, OP, "tiny")
    assert max(known) == 4 and len(bench.evidence.configs) == 4
    asked = {len(query.vote.configs) for _, query in bench.queries(5, 0)}
    assert asked == {3, 4}


def _refusing(error: Exception) -> Callable[..., Any]:
    def fit(*_: Any) -> Any:
        raise error

    return fit


def test_a_ranker_that_cannot_learn_has_no_row_and_it_is_said(lawful: Database) -> None:
    said: list[str] = []
    fits = {"poor": _refusing(UsageError("7 runs too few")), "law": always(ByLength())}
    table = _by_method(
        evaluate(lawful.index, EvalOptions(seeds=(0, 1)), rankers=fits, note=said.append)
    )
    assert "poor" not in table and "poor+transfer" not in table and "law" in table
    assert said == ["spmm:32 on tiny: poor is not judged: 7 runs too few"]


def test_a_missing_package_is_not_passed_over(lawful: Database) -> None:
    with pytest.raises(MissingDependency):
        evaluate(lawful.index, rankers={"absent": _refusing(MissingDependency("no torch"))})


def test_progress_counts_the_trainings_too(lawful: Database) -> None:
    reported: list[tuple[int, int]] = []
    evaluate(
        lawful.index,
        EvalOptions(seeds=(0,)),
        rankers={"law": always(ByLength())},
        progress=lambda _, done, of: reported.append((done, of)),
    )
    # Five folds: the answers, and two steps for `law` and for the process each.
    assert reported == [(at, 25) for at in range(1, 26)]


# -- joining -----------------------------------------------------------------------------------


def _seen(db: Database, sign: float) -> list[Seen]:
    bench = Bench(db.index, OP, "tiny")
    seen = []
    for row, query in bench.queries(5, 0):
        truth = bench.truth(row)
        times = np.array([truth.times[c] for c in query.vote.configs])
        asked = replace(
            query,
            prediction=replace(
                query.prediction,
                configs=query.vote.configs,
                gain=-sign * np.log(times),
                spread=np.zeros(len(times)),
            ),
        )
        seen.append(Seen(asked, truth))
    return seen


def test_the_better_of_the_two_gets_the_weight(chance: Database) -> None:
    assert best_weight(_seen(chance, 1.0)) >= 0.5
    assert best_weight(_seen(chance, -1.0)) == 0.0
    first = _seen(chance, 1.0)[0]
    assert np.array_equal(first.score(0.0), scores(first.query)[0])
    assert np.allclose(np.diff(first.score(1.0)), np.diff(first.query.prediction.gain))
    assert best_weight([]) in WEIGHTS


def test_the_width_of_intervals_holds_four_of_five_gains(chance: Database) -> None:
    """Each promise is 0.2 too high, with a spread of 0.1 each for configuration and default."""
    seen = []
    for one in _seen(chance, 1.0):
        query = one.query
        gain = query.prediction.gain.copy()
        gain[query.vote.configs.index(query.default)] -= 0.2
        spread = np.full(len(gain), 0.1)
        asked = replace(query, prediction=replace(query.prediction, gain=gain, spread=spread))
        seen.append(Seen(asked, one.truth))
    width = held_out([seen], weight=1.0)["transfer+rank"]["width"]
    assert width == pytest.approx(0.2 / math.hypot(0.1, 0.1) / 1.2815515655446004)


def _by_fold(db: Database, scorer: Any) -> list[list[Seen]]:
    bench = Bench(db.index, OP, "tiny")
    return [seen_by(bench, scorer, *rows) for rows in bench.folds(5, 0)]


def test_held_out_figures_of_a_card(lawful: Database) -> None:
    found = held_out(_by_fold(lawful, ByLength(-1.0)))
    assert set(found) == {"transfer", "rank", "transfer+rank"}
    assert found["transfer"]["of_optimum@1"] == pytest.approx(1.0)
    assert found["rank"]["of_optimum@1"] < 0.6
    assert found["transfer+rank"] == {
        "of_optimum@1": pytest.approx(1.0),
        "of_optimum@5": pytest.approx(1.0),
        "groups": 5.0,
        "weight": 0.0,
        "width": 1.0,  # fewer than ten errors
    }


def test_nothing_to_hold_out() -> None:
    with pytest.raises(NothingFound, match="nothing to judge the model by"):
        held_out([[], []])


# -- the ceiling -------------------------------------------------------------------------------


def _rounds(times: Sequence[Any], variants: Sequence[int] = (0, 1, 2, 3)) -> Database:
    """One round of runs for each function of times; later rounds on some variants only."""
    db = fill(Database.in_memory(), tiny(), times=times[0], indexed=False)
    for at, later in enumerate(times[1:], 1):
        db.store.append(
            Run(p.id, OP, "tiny", CONFIGS[v], Measurement(times_s=(later(p, v),), when=float(at)))
            for p in patterns()
            for v in variants
        )
    embed(db.index)
    return db


def test_the_ceiling_chooses_by_one_round_and_is_judged_by_the_other() -> None:
    one, two, three = by_chance(1, 0.3), by_chance(2, 0.3), by_chance(3, 0.3)
    db = _rounds((one, two, three))
    lost = []
    for p in patterns():
        first, last = (np.array([t(p, v) for v in range(4)]) for t in (one, three))
        lost.append(math.log(last.min() / last[first.argmin()]))
    row = _by_method(evaluate(db.index, EvalOptions(seeds=(0,))))["measured-again"]
    assert row.matrices == 20
    assert row.figures["of_optimum@1"] == pytest.approx(math.exp(np.mean(lost)))
    assert row.figures["of_optimum@5"] == pytest.approx(1.0)
    assert row.figures["opa"] < 0.8


def test_a_ceiling_of_fewer_matrices_says_of_how_many() -> None:
    rows = [{"method": "embeddb", "matrices": 20}, {"method": "measured-again", "matrices": 6}]
    names = [_named(row, 20, "matrices") for row in rows]
    assert names == ["embeddb", "measured-again (6 matrices)"]


def test_logs_of_two_days_are_two_rounds_by_their_names() -> None:
    """Their runs have no time of day: a slow day must not be mixed into a fast one."""
    db = Database.in_memory()
    db.store.put_platform(tiny())
    db.store.put_structures([(p, WorkloadInfo.whole(p)) for p in patterns()])
    for day, factor in (("csv:log.csv", 1.0), ("csv:day2/log.csv", 10.0)):
        db.store.append(
            Run(p.id, OP, "tiny", c, Measurement(times_s=(factor * by_law(p, at),)), day)
            for p in patterns()
            for at, c in enumerate(CONFIGS)
        )
    embed(db.index)
    row = _by_method(evaluate(db.index, EvalOptions(seeds=(0,))))["measured-again"]
    assert row.matrices == 20 and row.figures["of_optimum@1"] == pytest.approx(1.0)


def test_one_round_and_a_few_settled_winners_are_no_ceiling(lawful: Database) -> None:
    for db in (lawful, _rounds((by_chance(1), by_chance(2)), variants=(0, 1))):
        bench = Bench(db.index, OP, "tiny")
        assert measured_again(db.store, OP, bench.evidence, bench.counted, bench.default) == {}
        assert "measured-again" not in _by_method(evaluate(db.index, EvalOptions(seeds=(0,))))


def test_a_default_measured_once_has_no_ceiling() -> None:
    db = _rounds((by_chance(1), by_chance(2)), variants=(1, 2, 3))
    bench = Bench(db.index, OP, "tiny")
    assert measured_again(db.store, OP, bench.evidence, bench.counted, bench.default) == {}
