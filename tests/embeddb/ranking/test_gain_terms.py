"""The terms of a predicted gain add up to it, whoever ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest
from builders import OP, band, fill, patterns, tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from queries import random_evidence, sampled_queries

from embeddb.core.config import Config
from embeddb.database import Database
from embeddb.explain.why import computed, corrected
from embeddb.ranking.fallback import RankedCandidates
from embeddb.ranking.gain_terms import with_gain_terms
from embeddb.ranking.query import Query
from embeddb.ranking.rankers.base import Ranker
from embeddb.ranking.rankers.choose import Rankers
from embeddb.ranking.rankers.cost_model import CostModelRanker
from embeddb.ranking.rankers.joint import JointRanker
from embeddb.ranking.rankers.neighbour_vote import NeighbourVote
from embeddb.ranking.recommendation import Candidate, GainTerm
from embeddb.ui.cli.explain_text import show_explanation
from embeddb.ui.report import explanation_html

SEEDS = st.integers(0, 2**32 - 1)
HERE, THERE = tiny(portable=True).at("here", {}), tiny(portable=True).at("there", {"cpu": "other"})


def termed(query: Query, kind: type[Ranker]) -> Iterator[tuple[Ranker, Candidate]]:
    """A ranker's candidates, each as if it were the first."""
    rankers = Rankers(query)
    ranker = rankers.__dict__["chosen"] = kind(query)
    for one in ranker.candidates():
        found = RankedCandidates(rankers, ranker.source, ranker.name, [one])
        yield ranker, with_gain_terms(found).candidates[0]


def total(terms: list[GainTerm], *names: str) -> float:
    return sum(t.log_gain for t in terms if not names or t.term in names)


@settings(max_examples=25, deadline=None)
@given(seed=SEEDS)
def test_terms_add_up_to_the_expected_gain(seed: int) -> None:
    for query in sampled_queries().values():
        random = random_evidence(query, np.random.default_rng(seed))
        for kind in (NeighbourVote, CostModelRanker, JointRanker):
            for _, one in termed(random, kind):
                gain = one.expected_gain
                if gain is None or Config(one.config) == random.default:
                    assert not one.terms
                else:
                    assert math.isclose(total(one.terms), math.log(gain), abs_tol=1e-8)


@settings(max_examples=25, deadline=None)
@given(seed=SEEDS)
def test_only_the_mean_error_is_beside_the_vote(seed: int) -> None:
    for query in sampled_queries().values():
        random = random_evidence(query, np.random.default_rng(seed))
        configs = random.vote.configs
        for ranker, one in termed(random, NeighbourVote):
            if not one.terms:
                continue
            at, base = configs.index(Config(one.config)), configs.index(random.default)
            voted = float(ranker.score[at] - ranker.score[base])
            error = total(one.terms, "mean held-out error")
            assert math.isclose(total(one.terms) - error, voted, abs_tol=1e-9)


@settings(max_examples=25, deadline=None)
@given(seed=SEEDS)
def test_a_model_has_no_rest(seed: int) -> None:
    for query in sampled_queries().values():
        random = random_evidence(query, np.random.default_rng(seed))
        for _, one in termed(random, CostModelRanker):
            assert {t.term for t in one.terms} <= {"cost model"}
        for _, one in termed(random, JointRanker):
            voted = one.voters > 0
            known = Config(one.config) in random.prediction.configs
            if voted and known and random.default in random.prediction.configs:
                assert abs(total(one.terms, "rest")) < 1e-9


@pytest.fixture(scope="module")
def db() -> Database:
    """Both machines ran two groups; what another ran is corrected for this one."""
    found = fill(Database.in_memory(), HERE, patterns(2))
    return fill(found, THERE, patterns(6, first=2))


def test_an_explanation_shows_them(db: Database, capsys: pytest.CaptureFixture[str]) -> None:
    made = db.query(band(137, 14, name="new", group="new"), platform=HERE, op=OP)
    e = db.explain(made.id)
    first = e.recommendation.first
    assert first is not None and first.terms and e.document()["computed"] == computed(first)
    shares = [n.share for n in e.neighbours]
    assert all(0.0 <= share <= 1.0 for share in shares) and sum(shares) <= 1.0 + 1e-9
    show_explanation(e)
    text = capsys.readouterr().out
    assert f"as {computed(first)}" in " ".join(text.split())
    assert computed(first) in explanation_html(e)


def test_corrected_gains_are_told_from_measured_ones(db: Database) -> None:
    made = db.query(band(137, 14, name="new", group="new"), platform=HERE, op=OP)
    e = db.explain(made.id)
    same = [msgspec.structs.replace(n, voted=n.answer_gain) for n in e.neighbours]
    assert not corrected(msgspec.structs.replace(e, neighbours=same))
    moved = [msgspec.structs.replace(n, voted=2.0, answer_gain=1.5) for n in e.neighbours]
    other = msgspec.structs.replace(e, neighbours=moved)
    assert corrected(other) and "corrected for this machine" in explanation_html(other)
