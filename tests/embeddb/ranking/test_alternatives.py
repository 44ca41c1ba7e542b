"""What is found out about an answer: simpler methods, what to measure next, what changes it."""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from builders import (
    CONFIGS,
    OP,
    VARIANTS,
    band,
    by_chance,
    by_law,
    fill,
    patterns,
    runs_of,
    tiny,
    winner,
)
from queries import changed

from embeddb.core.config import Config, Op
from embeddb.core.pattern import Pattern
from embeddb.core.records import Measurement, Run, WorkloadInfo
from embeddb.database import Database
from embeddb.explain.deep import counterfactuals, deepening, partial_dependence, without_cell
from embeddb.index.run_matrix import coded
from embeddb.platforms.platform import parse_platform
from embeddb.ranking.alternatives import expected_improvement, insight, nearest_run, renewed
from embeddb.ranking.build import build_query, with_evidence
from embeddb.ranking.confidence import confidence_of
from embeddb.ranking.fallback import answer
from embeddb.ranking.query import Neighbour
from embeddb.ranking.rankers.base import posterior_of
from embeddb.ranking.rankers.choose import Rankers
from embeddb.ranking.rankers.neighbour_vote import NeighbourVote
from embeddb.ranking.rankers.order import REACH, error_correlation
from embeddb.ranking.recommendation import Recommendation
from indexer.embed import embed
from tuners.ranking import TransferTuner

A, B, C, D = CONFIGS
NEW = band(137, 14, name="new", group="new")


@pytest.fixture
def db() -> Database:
    return fill(Database.in_memory(), tiny())


def stubs() -> Database:
    """The same law over patterns of which only the sizes are known: few features, all telling."""
    db = Database.in_memory()
    db.store.put_platform(tiny())
    for p in patterns(6):
        m, n = p.shape
        info = WorkloadInfo(id=p.id, m=m, n=n, nnz=p.nnz, name=p.name, group=p.group)
        db.store.append(runs_of(p, tiny()), patterns=[info])
    embed(db.index)
    return db


def _said(made: Recommendation) -> dict[str, dict[str, object]]:
    return {s.method: s.config for s in made.insight.simpler}


# -- what simpler methods would have said ------------------------------------------------------


def test_simpler_methods_by_the_same_evidence(db: Database) -> None:
    made = db.query(NEW, platform="tiny", op=OP)
    assert list(_said(made)) == ["default", "static-best", "nearest", "transfer"]
    gains = {str(c.config): c.expected_gain for c in made.candidates}
    for simpler in made.insight.simpler:
        assert simpler.expected_gain == pytest.approx(gains[str(simpler.config)])
        assert simpler.same == (simpler.config == made.candidates[0].config)
    assert _said(made)["default"] == dict(A) and made.insight.simpler[0].expected_gain == 1.0
    assert _said(made)["transfer"] == made.candidates[0].config


def test_the_nearest_alone_says_what_was_best_there(db: Database) -> None:
    made = db.query(NEW, platform="tiny", op=OP)
    nearest = min(made.neighbours, key=lambda n: n.distance)
    (there,) = [p for p in patterns() if p.id == nearest.pattern_id]
    assert _said(made)["nearest"] == {"variant": VARIANTS[winner(there)]}


def test_the_nearest_says_what_it_ran_whatever_the_others_say_of_it(db: Database) -> None:
    """The fault: gains pooled over machines made the default of the nearest, a matrix that ran
    1.77x, its best."""
    query = build_query(db.index, NEW, tiny(), OP)
    nearest = next(p for p in patterns() if p.id == query.vote.neighbours[0].pattern_id)
    pooled = np.where(np.isfinite(query.vote.gains), -1.0, np.nan)
    pooled[:, query.vote.configs.index(A)] = 0.0
    query = changed(query, gains=pooled)
    found = answer(query, 5)
    simpler = {s.method: s for s in insight(found, nearest=nearest_run(db.index, query)).simpler}
    assert simpler["nearest"].config == {"variant": VARIANTS[winner(nearest)]}
    there = by_law(nearest, 0) / by_law(nearest, winner(nearest))
    assert there > 1.0 and simpler["nearest"].gain_there == pytest.approx(there)
    assert all(s.gain_there is None for s in simpler.values() if s.method != "nearest")


def test_only_methods_that_are_possible() -> None:
    empty = Database.in_memory()
    empty.store.put_platform(tiny())
    made = empty.query(NEW, platform="tiny", op=OP)
    assert list(_said(made)) == ["default"] and made.insight.next == []
    assert made.insight.simpler[0].same


def test_on_a_measured_pattern_only_what_was_measured_has_a_gain(db: Database) -> None:
    known = band(201, 14, name="own", group="own")
    db.index.record(runs_of(known, tiny(), variants=(0, 1)), known, tiny())
    made = db.query(known, platform="tiny", op=OP)
    assert made.link == "measured" and made.candidates[0].config == dict(B)
    gain = {s.method: s.expected_gain for s in made.insight.simpler}
    assert gain["default"] == 1.0 and gain["transfer"] is None  # c, which never ran here


# -- what to measure next ----------------------------------------------------------------------


@pytest.mark.parametrize(("better", "spread"), [(0.0, 0.3), (-0.2, 0.1), (0.5, 0.2), (-3.0, 0.1)])
def test_the_closed_form_is_the_integral(better: float, spread: float) -> None:
    x = np.linspace(better - 10 * spread, better + 10 * spread, 400_001)
    density = np.exp(-0.5 * ((x - better) / spread) ** 2) / (spread * math.sqrt(2 * math.pi))
    by_sum = float(np.trapezoid(np.maximum(x, 0) * density, x))
    above = float(np.trapezoid((x > 0) * density, x))
    (found,), (chance,) = expected_improvement(np.array([better]), np.array([spread]))
    assert found == pytest.approx(by_sum, abs=1e-9)
    assert chance == pytest.approx(above, abs=1e-5)


def test_what_is_sure_improves_by_what_it_is_better() -> None:
    better, spread = np.array([0.2, -0.2, 0.1]), np.array([0.0, 0.0, np.nan])
    found, chance = expected_improvement(better, spread)
    assert chance[:2].tolist() == [1.0, 0.0]
    assert found[:2].tolist() == [0.2, 0.0] and math.isnan(found[2])


def test_next_is_not_yet_measured_and_ordered_by_worth() -> None:
    db = fill(Database.in_memory(), tiny(), times=by_chance(3))
    made = db.query(NEW, platform="tiny", op=OP)
    told = made.insight.next
    assert told, "where times are noise, something is always worth a measurement"
    assert [n.worth for n in told] == sorted((n.worth for n in told), reverse=True)
    assert all(n.config not in (made.candidates[0].config, made.default) for n in told)
    for n in told:
        assert 0.0 < n.chance <= 1.0 and n.worth <= n.faster_by
        assert math.log1p(n.worth) == pytest.approx(n.chance * math.log1p(n.faster_by))


def test_the_worth_of_a_run_is_what_the_neighbours_saw_it_gain(db: Database) -> None:
    """By hand: of two neighbours and an average that counts as one, d was faster than a on one."""
    query = changed(
        build_query(db.index, NEW, tiny(), OP),
        configs=(A, D),
        gains=np.log([[1.0, 1.5], [1.0, 0.5]]),
        levels=np.zeros(2),
        weights=np.array([3.0, 1.0]),
        prior=np.array([0.0, -0.1]),
        mean=np.zeros(2),
        shrink=1.0,
        trust=np.zeros((0, 0)),
        neighbours=(),
    )
    held = NeighbourVote(query).posterior(A)
    assert held.better[1] == pytest.approx(3.0 / 5.0 * math.log(1.5))
    assert held.chance[1] == pytest.approx(3.0 / 5.0)


def test_where_neighbours_have_no_weight_it_says_so(db: Database) -> None:
    query = build_query(db.index, NEW, tiny(), OP)
    for shrink, origin in ((1.0, "3 neighbours"), (math.inf, "platform average")):
        doubted = math.isinf(shrink)
        ranker = NeighbourVote(changed(query, shrink=shrink))
        assert next(iter(ranker.candidates())).origin == origin
        _, doubts = confidence_of(ranker, "neighbours", A)
        assert any("neighbours have no weight here" in line for line in doubts) is doubted


def test_next_leaves_out_what_was_measured_on_the_pattern() -> None:
    db = fill(Database.in_memory(), tiny(), times=by_chance(5, scale=0.4))
    own = patterns()[2]
    assert db.query(own, platform="tiny", op=OP).insight.next == []  # all four ran there
    fresh = band(333, 14, name="fresh", group="fresh")
    db.index.record(runs_of(fresh, tiny(), variants=(0, 3)), fresh, tiny())
    made = db.query(fresh, platform="tiny", op=OP)
    assert made.link == "measured"
    assert all(n.config in (dict(B), dict(C)) for n in made.insight.next)


def test_beliefs_are_moved_to_what_was_measured(db: Database) -> None:
    """On this pattern everything gains twice what the neighbours say, but for a constant error."""
    fresh = band(333, 14, name="fresh", group="fresh")
    query = build_query(db.index, fresh, tiny(), OP)
    plain = posterior_of(Rankers(query).chosen, "neighbours", C)
    truth = dict(zip(plain.configs, plain.mean, strict=True))
    runs = [
        Run(fresh.id, OP, "tiny", c, Measurement(times_s=(math.exp(-truth[c] - lift),)))
        for c, lift in ((A, 0.0), (B, 0.7), (C, 0.7))
    ]
    db.index.record(runs, fresh, tiny())
    held = posterior_of(Rankers(build_query(db.index, fresh, tiny(), OP)).chosen, "measured", C)
    mean, measured = dict(zip(held.configs, held.mean, strict=True)), held.measured
    assert mean[B] == pytest.approx(truth[B] + 0.7) and mean[C] == pytest.approx(truth[C] + 0.7)
    assert mean[D] == pytest.approx(truth[D] + 0.7)  # by the median of what was off
    at = held.configs.index(D)
    assert held.spread[at] == pytest.approx(math.sqrt(0.7**2 / 2)) and not measured[at]
    assert held.spread[held.configs.index(B)] == 0.0


@pytest.mark.parametrize("ran", [(0, 1), (0,)])  # the default alone is no anchor
def test_a_configuration_that_failed_here_is_never_next(db: Database, ran: tuple[int, ...]) -> None:
    fresh = band(333, 14, name="fresh", group="fresh")
    failed = Run(fresh.id, OP, "tiny", C, Measurement(status="crash"))
    db.index.record([*runs_of(fresh, tiny(), variants=ran), failed], fresh, tiny())
    made = db.query(fresh, platform="tiny", op=OP)
    assert all(n.config != dict(C) for n in made.insight.next)
    assert all(s.expected_gain is None for s in made.insight.simpler if s.config == dict(C))


def test_records_of_winners_only_promise_no_gain() -> None:
    db = Database.in_memory()
    platform = parse_platform(tiny().text + "\n[traits]\nwinners_only = 1\n")
    for pattern in patterns(6):
        best = winner(pattern)
        measured = Measurement(times_s=(by_law(pattern, best),))
        run = Run(pattern.id, OP, platform.id, CONFIGS[best], measured)
        db.index.record([run], pattern, platform)
    embed(db.index)
    made = db.query(NEW, platform="tiny", op=OP, why=True)
    assert made.insight.next == [] and made.insight.effects == []
    assert [s.expected_gain for s in made.insight.simpler] == [None] * 4


# -- what would change the answer --------------------------------------------------------------


def test_effects_are_the_best_and_the_median_with_a_value(db: Database) -> None:
    query = build_query(db.index, NEW, tiny(), OP)
    held = posterior_of(Rankers(query).chosen, "neighbours", C)
    configs = tuple(Config({"x": x, "y": y} if y else {"x": x}) for x in "ab" for y in (0, 1, 2))
    gains = np.log([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    told = partial_dependence(replace(held, configs=configs, mean=gains))
    found = {(e.parameter, e.value): (e.configs, e.best_gain, e.median_gain) for e in told}
    assert found == {
        ("x", "b"): (3, pytest.approx(6.0), pytest.approx(5.0)),
        ("x", "a"): (3, pytest.approx(3.0), pytest.approx(2.0)),
        ("y", "2"): (2, pytest.approx(6.0), pytest.approx(4.5)),
        ("y", "1"): (2, pytest.approx(5.0), pytest.approx(3.5)),
        ("y", "(not used)"): (2, pytest.approx(4.0), pytest.approx(2.5)),
    }
    assert [e.value for e in told] == ["b", "a", "2", "1", "(not used)"]


def test_a_move_is_a_query_that_answers_something_else() -> None:
    db = stubs()
    asked = WorkloadInfo(id="e" * 32, m=137, n=137, nnz=137 * 14, name="new", group="new")
    made = db.query(asked, platform="tiny", op=OP, why=True)
    moves = made.insight.moves
    assert {m.feature for m in moves} >= {"row_mean", "log_nnz"}
    away = [abs(m.deviations) for m in moves]
    assert away == sorted(away) and max(away) <= 3.0 and len(moves) <= 8
    partition = db.index.partition(OP, tiny())
    assert partition is not None
    names = list(made.features)
    for move in moves:
        at = names.index(move.feature)
        query = build_query(db.index, asked, tiny(), OP)
        vector = query.vote.vector.copy()
        assert move.start == pytest.approx(vector[at])
        vector[at] = move.end
        again = with_evidence(query, partition, vector)
        (first,) = TransferTuner(again, rng=np.random.default_rng(0)).ask(1)
        assert first.config == move.winner != made.candidates[0].config
        assert move.end in partition.vectors[:, at]


def test_a_move_leads_away_from_the_answer() -> None:
    db = stubs()
    asked = WorkloadInfo(id="e" * 32, m=137, n=137, nnz=137 * 14, name="new", group="new")
    ranker = Rankers(build_query(db.index, asked, tiny(), OP)).chosen
    best = ranker.configs[int(np.argmax(ranker.score))]
    to = [Config(m.winner) for m in counterfactuals(ranker, db.index, asked, best)]
    assert to and best not in to
    # An answer need not be the best score: what leads back to it does not change it.
    assert to[0] not in [m.winner for m in counterfactuals(ranker, db.index, asked, to[0])]


def test_without_a_cell() -> None:
    rng = np.random.default_rng(2)
    dense = rng.random((37, 53)) < 0.2
    dense[5] = dense[:, 7] = False
    pattern = Pattern.from_coo(dense.shape, *np.nonzero(dense))
    for row, column in [(0, 0), (3, 5), (7, 7)]:
        left = without_cell(pattern, row, column, side=8)
        wanted = dense.copy()
        wanted[37 * row // 8 : 37 * (row + 1) // 8, 53 * column // 8 : 53 * (column + 1) // 8] = (
            False
        )
        assert (left.to_scipy().toarray() > 0).tolist() == wanted.tolist()


def test_attention_is_where_the_nonzeros_are(db: Database) -> None:
    m = 160
    rows, cols = np.repeat(np.arange(m // 2), 6), np.tile(np.arange(6) * 9, m // 2)
    corner = Pattern.from_coo((m, m), rows, cols, name="corner", group="corner")
    about = db.query(corner, platform="tiny", op=OP, why=True).insight
    assert about.attention_side == 8 and len(about.attention) == 64
    cells = np.array(about.attention).reshape(8, 8)
    assert (cells[:4, :3] > 0).all() and not cells[4:].any() and not cells[:, 3:].any()


def test_attention_needs_the_structure() -> None:
    asked = WorkloadInfo(id="e" * 32, m=137, n=137, nnz=137 * 14, name="new", group="new")
    about = stubs().query(asked, platform="tiny", op=OP, why=True).insight
    assert about.deep and (about.attention_side, about.attention) == (0, [])


def test_looking_deeper_says_how_far_it_is(db: Database) -> None:
    seen: list[tuple[str, int, int]] = []
    made = db.query(NEW, platform="tiny", op=OP)
    assert not made.insight.deep
    deepen = deepening(db.index, NEW, progress=lambda *told: seen.append(told))
    done = renewed(db.index, made, NEW, tiny(), deepen=deepen)
    assert done.insight.deep and done.candidates == made.candidates
    assert db.recommendation(made.id) == done
    assert all(at < total for _, at, total in seen) and len({what for what, _, _ in seen}) == 2


def test_deep_asked_at_once_is_deep_asked_later(db: Database) -> None:
    at_once = db.query(NEW, platform="tiny", op=OP, why=True)
    made = db.query(NEW, platform="tiny", op=OP)
    later = renewed(db.index, made, NEW, tiny(), deepen=deepening(db.index, NEW))
    assert later.insight == at_once.insight


def test_insight_travels_with_the_stored_answer(db: Database) -> None:
    made = db.query(NEW, platform="tiny", op=OP, why=True)
    assert msgspec.json.decode(msgspec.json.encode(made), type=Recommendation) == made
    assert db.explain(made.id).recommendation.insight == made.insight
    assert made.pattern is not None and len(made.pattern.thumbnail) == 1024
    assert "thumbnail" not in made.document()["pattern"]


def test_at_another_width_what_ran_there_counts_and_is_still_to_be_measured(db: Database) -> None:
    own = build_query(
        db.index, patterns()[2], tiny(), OP
    ).own.timings  # a, b, c, d at another width
    query = changed(
        build_query(db.index, NEW, tiny(), OP), other_width=own, other_op=Op("spmm", 64)
    )
    found = answer(query, 5)
    assert found.source == "other-width" and found.candidates[0].config == dict(C)
    held = posterior_of(Rankers(query).chosen, "other-width", C)
    there = {config: own[A].seconds / curve.seconds for config, curve in own.items()}
    assert dict(zip(held.configs, np.exp(held.mean), strict=True)) == pytest.approx(there)
    assert not held.measured.any()
    gains = {s.method: s.expected_gain for s in insight(found).simpler}
    assert gains["transfer"] == pytest.approx(there[C])


def test_with_a_cost_model_next_is_by_its_own_spread() -> None:
    """Worked out by hand: d is 0.1 slower than c on average, both known to within 0.3 and 0.4, and
    they differ in their only parameter, so that their errors hardly correlate."""
    empty = Database.in_memory()
    empty.store.put_platform(tiny())
    query = changed(
        build_query(empty.index, NEW, tiny(), OP),
        predicted_configs=CONFIGS,
        gain=np.array([0.0, 0.5, 1.0, 0.9]),
        spread=np.array([0.0, 0.0, 0.3, 0.4]),
        judged={"rank": 0.95},
    )
    found = answer(query, 5)
    assert (found.source, found.candidates[0].config) == ("model", dict(C))
    about = insight(found)
    assert {s.method: s.expected_gain for s in about.simpler} == {
        "default": 1.0,
        "rank": pytest.approx(math.exp(1.0)),
    }
    (best, *_) = about.next
    apart = math.sqrt(0.3**2 + 0.4**2 - 2 * math.exp(-1 / 0.4) * 0.3 * 0.4)
    z = -0.1 / apart
    density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    by_hand = -0.1 * 0.5 * math.erfc(-z / math.sqrt(2)) + apart * density
    assert best.config == dict(D) and best.worth == pytest.approx(math.expm1(by_hand))
    assert best.chance == pytest.approx(0.5 * math.erfc(-z / math.sqrt(2)))
    assert math.log1p(best.faster_by) == pytest.approx(by_hand / best.chance)


def test_a_close_variant_of_the_answer_is_worth_less_than_another_choice() -> None:
    """Errors on two configurations that are nearly the same are nearly the same error."""
    configs = tuple(
        Config({"format": f, "order": f"o{o}", "tile": t, "threads": 4})
        for f, o, t in [("csr", 0, 8), ("csr", 0, 16), ("bcsr", 1, 16)]
    )
    empty = Database.in_memory()
    empty.store.put_platform(tiny())
    query = changed(
        build_query(empty.index, NEW, tiny(), OP),
        predicted_configs=configs,
        gain=np.array([1.0, 0.9, 0.9]),
        spread=np.array([0.3, 0.3, 0.3]),
        judged={"rank": 0.95},
    )
    about = insight(answer(query, 5))
    assert [n.config for n in about.next] == [dict(configs[2]), dict(configs[1])]
    assert about.next[1].worth < 0.75 * about.next[0].worth


def test_errors_correlate_by_the_share_of_parameters_that_differ() -> None:
    configs = (*CONFIGS, Config({"variant": "a", "x": 1}), Config({"x": 2}))
    codes = coded(configs)
    for at, one in enumerate(configs):
        differ = [sum(one.get(n) != other.get(n) for n in ("variant", "x")) for other in configs]
        expected = [math.exp(-count / 2 / REACH) for count in differ]
        assert error_correlation(codes, at) == pytest.approx(expected)


def test_with_few_calls_preparation_counts_in_what_is_compared(db: Database) -> None:
    fresh = band(333, 14, name="fresh", group="fresh")
    runs = [
        Run(fresh.id, OP, "tiny", c, Measurement(times_s=(s,), conversion_s=p))
        for c, s, p in ((A, 4.0, 0.0), (B, 2.0, 0.0), (C, 1.0, 60.0))
    ]
    db.index.record(runs, fresh, tiny())
    made = db.query(fresh, platform="tiny", op=OP, calls=10)
    assert made.candidates[0].config == dict(B) and made.insight.answer_gain == pytest.approx(2.0)
    gains = {str(s.config): s.expected_gain for s in made.insight.simpler}
    assert gains[str(dict(C))] == pytest.approx(4.0 / 7.0)  # 1 s and a tenth of 60 s
    assert db.explain(made.id).recommendation.calls == 10


def test_one_lucky_neighbour_does_not_promise_much() -> None:
    """Nine neighbours gain nothing by d and one gains a factor of e squared: 0.2 in the logarithm
    on average, and what the platform's average counts as, by hand."""
    empty = Database.in_memory()
    empty.store.put_platform(tiny())
    gains = np.zeros((10, 4))
    gains[:, 2], gains[:, 3], gains[0, 3] = 1.0, 0.9, 3.0
    query = changed(
        build_query(empty.index, NEW, tiny(), OP),
        configs=CONFIGS,
        gains=gains,
        levels=np.zeros(10),
        weights=np.ones(10),
        prior=np.array([0.0, 0.0, 1.0, 0.9]),
        mean=np.array([0.0, 0.0, 1.0, 0.9]),
        shrink=2.0,
        neighbours=tuple(Neighbour(f"{i:032x}", "tiny", "", f"g{i}", 1.0, 0.5) for i in range(10)),
    )
    held = posterior_of(Rankers(query).chosen, "neighbours", C)
    assert held.better == pytest.approx([0.0, 0.0, 0.0, 2.0 / 12.0])

    # No neighbour ran the last one: the platform's average alone says nothing of a chance.
    gains[:, 3] = np.nan
    held = posterior_of(Rankers(changed(query, gains=gains)).chosen, "neighbours", C)
    assert np.isnan(held.better[3]) and np.isnan(held.chance[3])
    assert np.isfinite(held.better[:3]).all()
