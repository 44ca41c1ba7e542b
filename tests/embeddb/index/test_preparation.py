"""What preparing costs: predicted by itself, in the model's ranking, and when it has paid off."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from builders import OP
from queries import changed

from embeddb.core.config import Config, Op
from embeddb.core.records import Measurement, Run
from embeddb.core.timing import TimingSummary
from embeddb.index.conversion import PreparationCost, PreparationTable
from embeddb.index.run_matrix import MatrixRow, RunMatrix, join
from embeddb.ranking.break_even import break_even, measured_break_even, with_break_even
from embeddb.ranking.prediction import over_default, predict_by
from embeddb.ranking.query import Query
from embeddb.ranking.rankers.choose import ranker_of
from embeddb.ranking.rankers.cost_model import CostModelRanker
from embeddb.ranking.rankers.joint import JointRanker
from embeddb.ranking.rankers.neighbour_vote import NeighbourVote
from embeddb.ranking.recommendation import Candidate, Recommendation
from embeddb.testing.tuners import sample_queries
from tuners.ranking import RankTuner

#: Preparing format f takes this many calls of the default; threads and tile change nothing.
RATIO = {"csr": 0.0, "bcsr": 8.0, "sell": 2.0}
CONFIGS = [
    Config({"format": f, "threads": t, "tile": k})
    for f in RATIO
    for t in ("one", "all")
    for k in (8, 16)
]
DEFAULT = CONFIGS[0]


def evidence(patterns: int = 12, *, machines: Sequence[str] = ("x@1",)) -> RunMatrix:
    """Patterns are 1, 2, ... times as dear to prepare; every second machine takes twice as long,
    and not every pattern ran everything."""
    rng = np.random.default_rng(1)
    rows = []
    for at in range(patterns):
        for place, machine in enumerate(machines):
            curve = {}
            for config in CONFIGS:
                if config == DEFAULT or rng.random() < 0.7:
                    seconds = float(1e-3 * rng.uniform(0.5, 2.0))
                    curve[config] = [seconds, RATIO[str(config["format"])] * (1 + at % 2)]
            base = curve[DEFAULT][0]
            held = {
                c: TimingSummary(
                    s, 0.0, ratio * base * (1 + place) * rng.uniform(0.97, 1.03), 1, "ok"
                )
                for c, (s, ratio) in curve.items()
            }
            rows.append((MatrixRow(f"p{at:02}", machine, f"g{at}"), DEFAULT, held))
    return join(OP, rows)


def ids(patterns: int = 12) -> list[str]:
    return [f"p{at:02}" for at in range(patterns)]


def table(known: RunMatrix) -> PreparationTable:
    found = PreparationTable.of(known, ids())
    assert found is not None
    return found


def test_the_parameters_that_matter_are_found() -> None:
    assert table(evidence()).names == ("format",)


@pytest.mark.parametrize("rows, factor", [([0, 2, 4], 1.0), ([1, 3], 2.0)])
def test_neighbours_vote_and_what_is_free_is_exactly_0(rows: list[int], factor: float) -> None:
    cost = table(evidence()).cost(np.array(rows), np.ones(len(rows)), "x@1", OP)
    assert cost is not None
    told = dict(zip(CONFIGS, cost.of(CONFIGS), strict=True))
    for config, ratio in told.items():
        assert ratio == pytest.approx(factor * RATIO[str(config["format"])], rel=0.05)
    assert told[DEFAULT] == 0.0
    new = Config({"format": "ell", "threads": "one", "tile": 8})
    assert cost.of([new])[0] == max(told.values())


def test_machines_and_widths_are_taken_for_what_they_are() -> None:
    found = table(evidence(machines=("x@1", "x@2")))
    even, weights = np.arange(0, 12, 2), np.ones(6)
    sell = [Config({"format": "sell", "threads": "one", "tile": 8})]
    first, second = (found.cost(even, weights, f"x@{n}", OP) for n in (1, 2))
    assert first is not None
    assert second is not None
    assert first.of(sell)[0] == pytest.approx(2.0, rel=0.05)
    assert second.of(sell)[0] == pytest.approx(4.0, rel=0.05)
    wide = found.cost(even, weights, "x@9", Op(OP.name, 2 * OP.width))
    assert wide is not None
    # Between the two machines, and a call takes twice as long.
    assert wide.of(sell)[0] == pytest.approx(math.sqrt(8.0) / 2, rel=0.05)


def test_without_neighbours_all_patterns_count_and_without_runs_none() -> None:
    cost = table(evidence()).cost(np.zeros(0, dtype=np.int64), np.zeros(0), "x@1", OP)
    assert cost is not None
    assert cost.of([CONFIGS[-1]])[0] == pytest.approx(math.sqrt(2.0) * 2.0, rel=0.05)
    known = evidence()
    free = replace(known, conversion=np.zeros_like(known.conversion))
    assert PreparationTable.of(free, ids()) is None
    unknown = replace(known, default_s=np.full_like(known.default_s, np.nan))
    assert PreparationTable.of(unknown, ids()) is None


# -- in the model's ranking --------------------------------------------------------------------


def asked(calls: float, ratio: float = 10.0) -> Query:
    """Mode b is e times as fast as the default, and `ratio` of its calls are its preparation."""
    query = sample_queries()["neighbours"]
    name, one = next(iter(query.default.items()))
    other = next(c[name] for c in query.vote.configs if c[name] != one)
    cost = PreparationCost((name,), {(one,): -math.inf, (other,): math.log(ratio)}, 0.2)
    return replace(
        query,
        calls=calls,
        vote=replace(query.vote, preparation=cost),
    )


def test_the_price_is_shared_out_over_the_calls() -> None:
    query = asked(100.0, ratio=10.0)
    name, one = next(iter(query.default.items()))
    dear = next(c for c in query.vote.configs if c[name] != one)
    gain, spread = over_default(
        query, [query.default, dear], np.array([0.0, 0.0, 1.0]), np.array([0.0, 0.1, 0.1])
    )
    assert gain[0] == 0.0
    assert gain[1] == pytest.approx(-math.log(math.exp(-1.0) + 10.0 / 100.0))
    part = math.exp(-1.0) / (math.exp(-1.0) + 0.1)
    assert spread[1] == pytest.approx(math.hypot(part * 0.1, (1 - part) * 0.2))
    endless = replace(query, calls=math.inf)
    gains = np.array([0.0, 1.0])
    assert over_default(endless, [dear], gains, np.ones(2))[0].tolist() == [1.0]


def test_a_model_ranks_with_calls_by_what_the_evidence_has_of_preparation() -> None:
    vector = np.zeros(3, dtype=np.float32)
    for calls, prepared in ((1.0, False), (1e6, True)):
        query = asked(calls)
        name, one = next(iter(query.default.items()))

        class Fast:
            def score(self, _problem: Any, configs: Any) -> Any:
                gain = np.array([float(c[name] != one) for c in configs])  # noqa: B023
                return gain - gain.mean(), np.full(len(gain), 0.1)

        told = changed(
            predict_by(query, Fast(), vector),
            judged={"transfer": 0.8, "rank": 0.95, "transfer+rank": 0.9},
        )
        assert ranker_of(told) is JointRanker
        assert ranker_of(changed(told, neighbours=())) is CostModelRanker
        unrecorded = changed(told, preparation=None)
        assert ranker_of(unrecorded) is JointRanker
        nothing = replace(unrecorded.vote, configs=(), neighbours=())
        assert ranker_of(replace(unrecorded, vote=nothing)) is NeighbourVote
        first = RankTuner(told, rng=np.random.default_rng(0)).ask(1)[0]
        assert (first.config[name] != one) == prepared


# -- when it has paid off ----------------------------------------------------------------------


def test_break_even() -> None:
    assert break_even(6.0, 0.5) == 12.0
    assert break_even(0.0, 0.5) == 0.0
    assert break_even(6.0, 0.0) is None
    assert break_even(6.0, -1.0) is None
    assert break_even(-1.0, 1.0) == 0.0


def candidate(config: Config, gain: float | None) -> Candidate:
    return Candidate(config=dict(config), score=0.0, origin="test", expected_gain=gain)


def told(query: Query, config: Config, gain: float | None) -> float | None:
    return with_break_even(query, [candidate(config, gain)])[0].break_even_calls


def test_by_what_is_promised() -> None:
    query = asked(math.inf, ratio=10.0)
    name, one = next(iter(query.default.items()))
    dear = next(c for c in query.vote.configs if c[name] != one)
    free = next(c for c in query.vote.configs if c[name] == one and c != query.default)
    assert told(query, dear, 2.0) == pytest.approx(10.0 / 0.5)
    assert told(query, free, 2.0) == 0.0
    assert told(query, dear, 0.9) is None
    assert told(query, dear, None) is None
    assert told(query, query.default, 1.0) is None
    assert told(replace(query, vote=replace(query.vote, preparation=None)), dear, 2.0) is None
    # The same promise with the preparation in it: 1 / (1/2 + 10/100).
    assert told(replace(query, calls=100.0), dear, 1 / 0.6) == pytest.approx(20.0)


def test_by_what_was_measured_on_the_pattern() -> None:
    query = asked(math.inf)
    name, one = next(iter(query.default.items()))
    dear = next(c for c in query.vote.configs if c[name] != one)
    own = {
        query.default: TimingSummary(4.0, 0.0, 1.0, 1, "ok"),
        dear: TimingSummary(2.0, 0.0, 7.0, 1, "ok"),
    }
    assert told(replace(query, own=replace(query.own, timings=own)), dear, 1.1) == 3.0
    slower = {**own, dear: TimingSummary(5.0, 0.0, 7.0, 1, "ok")}
    measured = [Candidate(config=dict(dear), score=0.0, origin="measured here", seconds=5.0)]
    assert (
        with_break_even(replace(query, own=replace(query.own, timings=slower)), measured)[
            0
        ].break_even_calls
        is None
    )


def test_after_the_answer_was_measured() -> None:
    made = recommendation()
    first, second = (Config(c.config) for c in made.candidates)

    def run(config: Config, seconds: float, conversion_s: float | None) -> Run:
        measured = Measurement(times_s=(seconds,), conversion_s=conversion_s)
        return Run("0" * 32, OP, "x@1", config, measured, "test")

    runs = [run(DEFAULT, 4.0, 0.0), run(first, 2.0, 7.0), run(second, 3.0, None)]
    done = measured_break_even(made, runs)
    assert [c.break_even_calls for c in done.candidates] == [3.5, None]
    assert measured_break_even(made, runs[1:]).candidates[0].break_even_calls is None


def recommendation() -> Recommendation:
    return Recommendation(
        id="r0", pattern_id="0" * 32, pattern_name="", platform="x@1", op=str(OP),
        link="neighbours", tuner="transfer", default=dict(DEFAULT),
        candidates=[candidate(CONFIGS[5], 2.0), candidate(CONFIGS[9], 1.5)],
        neighbours=[], confidence="high", warnings=[], rejected={}, features={},
        evidence_op=str(OP), featurizer="", featurizer_version="", generation=0, seed=0,
        calls=None, simulated=False, noise=0.0, created=0.0,
    )  # fmt: skip


# -- as it is shown ----------------------------------------------------------------------------


def test_it_is_shown_where_candidates_are() -> None:
    from embeddb.explain.explain import explain
    from embeddb.explain.explanation import paid_off
    from embeddb.store import memory_store
    from embeddb.ui.cli.explain_text import show_explanation
    from embeddb.ui.notebook import recommendation_html
    from embeddb.ui.report import explanation_html

    assert [paid_off(c) for c in (None, 0.0, 22.1, 1e6)] == ["-", "at once", "23", "1,000,000"]
    plain = recommendation()
    some = [replace_calls(c, n) for c, n in zip(plain.candidates, (22.1, None), strict=True)]
    made = msgspec.structs.replace(plain, candidates=some)
    store = memory_store()
    assert "pays off after" in explanation_html(explain(made, store))
    assert "pays off after" not in explanation_html(explain(plain, store))
    assert "<td>23</td>" in recommendation_html(made)
    out = io.StringIO()
    with redirect_stdout(out):
        show_explanation(explain(made, store))
    assert "after 23 calls" in out.getvalue()


def test_answers_of_older_versions_stay_readable() -> None:
    body = msgspec.to_builtins(recommendation())
    for one in body["candidates"]:
        del one["break_even_calls"]
    del body["reproducible"]
    old = msgspec.convert(body, Recommendation)
    assert [c.break_even_calls for c in old.candidates] == [None, None]
    assert not old.reproducible


def replace_calls(made: Candidate, calls: float | None) -> Candidate:
    return msgspec.structs.replace(made, break_even_calls=calls)
