"""Expected shares of the optimum where few configurations ran on a matrix."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from costmodel_samples import infos, samples, vectors

from embeddb.core.config import Op
from embeddb.core.sizes import Sizes
from embeddb.core.timing import TimingSummary
from embeddb.cost_model.encoders.own_parameters import Layout
from embeddb.cost_model.gaussian import GaussianProcess
from embeddb.index.run_matrix import MatrixRow, join
from embeddb.learning.comparison import judge
from embeddb.learning.expected import (
    Candidates,
    by_mean,
    error_in_replays,
    expected,
    learning_curve,
)
from embeddb.learning.left_out import inputs_of, left_out, measured
from embeddb.learning.samples import Samples, from_evidence
from embeddb.platforms.platform import load_platform

OP, MATRICES, CONFIGS = Op("spmm", 32), 40, 60


def every_pair() -> Samples:
    """Every matrix ran every configuration; what suits a matrix depends on its vector."""
    platform, known, raw = load_platform("spade"), infos(MATRICES), vectors(MATRICES)
    smallest = known["p000"].sizes
    default = platform.default(OP, smallest)
    drawn = platform.space(OP, smallest).sample(CONFIGS, rng=np.random.default_rng(0))
    configs = list(dict.fromkeys([default, *drawn]))
    own, noise, rows = Layout(platform.kernel(OP)).raw(configs), np.random.default_rng(1), []
    for at, pattern_id in enumerate(known):
        logs = own[:, :4] @ raw[pattern_id][:4] + 0.02 * noise.normal(size=len(configs))
        curve = {
            config: TimingSummary(float(np.exp(log)), 0.02, 0.0, 1, "ok")
            for config, log in zip(configs, logs, strict=True)
        }
        rows.append((MatrixRow(pattern_id, platform.id, f"g{at}"), default, curve))
    return from_evidence(join(OP, rows), raw, known, platform, OP, featurizer=("stats", "1"))


def learned(of: Samples) -> GaussianProcess:
    return GaussianProcess.fit(measured(of, range(len(of.rows)), 0))


def those_that_ran(samples: Samples) -> Candidates:
    """The candidates without those of the space that did not run."""
    among = Candidates.of(samples)
    count = len(among.columns)
    return among._replace(configs=among.configs[:count], legal=among.legal[:, :count])


def test_it_is_nearer_to_the_truth_than_the_share_of_the_best_sample() -> None:
    whole = every_pair()
    few = whole.limited(MATRICES, 4, 0)
    process, among = learned(few), those_that_ran(few)
    choices = by_mean(process, few, among, range(len(few.rows)))
    (found,) = expected(process, few, among, [choices])
    shares = left_out(process, few, range(len(few.rows)))
    shown = judge(few, {row: gain for row, (gain, _) in shares.items()})
    at_1, at_5 = [], []
    for row, info in enumerate(few.rows):
        at = next(i for i, one in enumerate(whole.rows) if one.pattern_id == info.pattern_id)
        gain = dict(zip(whole.ran(at), whole.gain[whole.part(at)], strict=True))
        got = [gain[among.configs[place]] for place in choices[row]]
        at_1.append(got[0] - max(gain.values()))
        at_5.append(max(got) - max(gain.values()))
    for true, estimated, of_samples in ((at_1, found.at_1, shown.at_1),
                                        (at_5, found.at_5, shown.at_5)):  # fmt: skip
        share, own, best_sample = (np.exp(np.mean(lost)) for lost in (true, estimated, of_samples))
        assert best_sample > share + 0.02
        assert abs(own - share) < 0.5 * (best_sample - share)


def test_better_choices_are_expected_to_be_better() -> None:
    own = samples(matrices=12, configs=20)
    process, among = learned(own), Candidates.of(own)
    mean = {row: process.on(inputs_of(own, row, among.configs)).gain for row in range(12)}
    best = {row: among.best(row, scores) for row, scores in mean.items()}
    worst = {row: among.best(row, -scores) for row, scores in mean.items()}
    good, bad = expected(process, own, among, [best, worst])
    assert (good.at_1 <= good.at_5).all() and (good.at_5 <= 0).all()
    assert good.at_1.mean() > bad.at_1.mean() and good.gain.mean() > bad.gain.mean()
    assert all(len(set(chosen.tolist())) == 5 for chosen in best.values())


def test_what_is_illegal_for_a_matrix_is_not_chosen_and_no_optimum() -> None:
    own = samples("cpu", matrices=8, configs=20)
    small = own.rows[1]._replace(sizes=Sizes(8, 8, 20))
    own = replace(own, rows=(own.rows[0], small, *own.rows[2:]))
    process, among = learned(own), Candidates.of(own)
    space = own.platform.space(OP, small.sizes)
    assert among.legal[1].tolist() == [space.reason(c) is None for c in among.configs]
    assert not among.legal[1].all() and among.legal[0].any()
    wanted = -1.0 * among.legal[1]  # what is illegal has the highest scores
    assert among.legal[1][among.best(1, wanted)].all()
    legal = among.legal.copy()
    legal[1] = np.arange(len(among.configs)) == 3
    (found,) = expected(process, own, among._replace(legal=legal), [{1: np.array([3])}])
    assert found.at_1.tolist() == [0.0]


def test_candidates_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embeddb.learning.expected._MOST_CANDIDATES", 7)
    monkeypatch.setattr("embeddb.learning.expected._FEWEST_CANDIDATES", 7)
    own = samples(matrices=4, configs=20)
    among = Candidates.of(own)
    assert int(own.column[own.gain.argmax()]) in among.columns
    assert len(among.configs) == 7 == len(among.columns) and among.legal.shape == (4, 7)
    assert [own.configs[at] for at in among.columns] == list(among.configs)


def test_where_few_ran_others_of_the_space_are_candidates() -> None:
    own = samples("cpu", matrices=8, configs=4)
    among, ran = Candidates.of(own), len(own.configs)
    assert ran < 128
    assert list(among.configs[:ran]) == [own.configs[at] for at in among.columns]
    assert len(among.configs) == 128 == len(set(among.configs))
    assert among.legal[:, ran:].any(axis=0).all()  # each for a matrix of some size
    assert list(Candidates.of(own).configs) == list(among.configs)  # the same every time
    scores = among.scores(np.arange(float(ran)))
    assert scores[:ran].tolist() == among.columns.tolist()
    best = among.best(0, scores)  # of those that ran: the others have no scores
    assert (best < ran).all() and len(best) == 5


def test_a_few_that_ran_promise_less_than_their_own_best() -> None:
    own = samples(matrices=12, configs=8)
    process = learned(own)
    few, filled = (
        expected(process, own, one, [by_mean(process, own, one, range(12))])[0]
        for one in (those_that_ran(own), Candidates.of(own))
    )
    assert filled.at_1.mean() < few.at_1.mean()


def test_the_curve_ends_with_all_samples() -> None:
    own = samples(matrices=12, configs=20)
    process, among = learned(own), Candidates.of(own)
    for matrices in (True, False):
        curve = learning_curve(process, own, among, matrices=matrices)
        assert [p.samples for p in curve] == [len(own.gain) * q // 4 for q in (1, 2, 4)]
        assert all(p.lost.shape == (12,) and (p.lost <= 0).all() for p in curve)
        (whole,) = expected(process, own, among, [by_mean(process, own, among, range(12))])
        assert np.allclose(curve[-1].lost, whole.at_1)


def test_errors_in_replays_are_those_of_the_page() -> None:
    page = (Path(__file__).parents[3] / "docs/results/few-samples.md").read_text()
    rows = re.findall(r"^\| (\d+) \| 20 \|.*\| ([\d.]+) \| [\d.]+ \|$", page, re.MULTILINE)
    assert len(rows) == 5
    for count, points in rows:
        assert error_in_replays(int(count)) == (int(count), float(points))
    assert error_in_replays(40)[0] == 50 and error_in_replays(249)[0] == 100
