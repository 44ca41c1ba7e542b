"""How neighbours vote: every fitted number against a slow and obvious reference."""

from __future__ import annotations

import math

import numpy as np
import pytest
from fit_policies import fit_policy
from hypothesis import given, settings
from hypothesis import strategies as st

from embeddb.index import held_out, trial
from embeddb.index.features import Features
from embeddb.index.vote import (
    VoteSettings,
    effects,
    greedy_cover,
    mean_gain,
    plain_metric,
    votes,
    weigh,
)
from embeddb.index.vote_fit import chosen_key


def _data(
    seed: int, *, groups: int = 6, each: int = 4, d: int = 3, c: int = 5, holes: float = 0.2
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features that foretell gains, some configurations not run, groups of equal size."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(groups * each, d))
    gains = x @ rng.normal(size=(d, c)) * 0.5 + 0.1 * rng.normal(size=(len(x), c))
    gains[rng.random(gains.shape) < holes] = np.nan
    gains[:, :2] = np.where(np.isnan(gains[:, :2]), 0.0, gains[:, :2])
    names = np.repeat([f"g{i}" for i in range(groups)], each)
    return x.astype(np.float32), gains, names


# -- the parts ---------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6))
def test_effects_is_the_additive_fit(seed: int) -> None:
    _, gains, _ = _data(seed)
    level, prior = effects(gains)
    want_level, want_prior = np.zeros(len(gains)), np.zeros(gains.shape[1])
    for _ in range(8):
        for r, row in enumerate(gains):
            ran = [c for c in range(len(row)) if not math.isnan(row[c])]
            want_level[r] = sum(row[c] - want_prior[c] for c in ran) / max(len(ran), 1)
        for c, column in enumerate(gains.T):
            ran = [r for r in range(len(column)) if not math.isnan(column[r])]
            want_prior[c] = sum(column[r] - want_level[r] for r in ran) / (len(ran) + 1)
    assert level == pytest.approx(want_level)
    assert prior == pytest.approx(want_prior)


def test_effects_keep_a_lucky_row_from_lifting_what_ran_on_it() -> None:
    """Configuration 1 ran only where everything gains much; it is no better than 0 there."""
    gains = np.array([[0.1, np.nan, 0.0]] * 5 + [[2.1, 2.0, 2.0]] * 2)
    _, prior = effects(gains)
    assert prior[0] > prior[1]


def test_the_best_on_average_is_neither_what_ran_everywhere_nor_what_ran_once() -> None:
    """The default is 100 times slower than what half of the rows ran each; one row was lucky."""
    gains = np.full((12, 5), np.nan)
    gains[:, 0], gains[:, 1] = 0.0, 0.1
    gains[::2, 2], gains[1::2, 3] = np.log(100.0), np.log(90.0)
    gains[3, 4] = np.log(110.0)
    gains[:, 1:] += np.random.default_rng(0).normal(0.0, 0.2, size=(12, 4))
    mean = mean_gain(gains)
    assert np.argsort(-mean).tolist()[:2] == [2, 3] and mean[0] == 0.0
    others = mean_gain(gains, lambda values: np.delete(values, 3, axis=0).sum(axis=0))
    assert others[4] < others[1]  # nothing ran there but on row 3


def test_mean_and_cover_by_hand() -> None:
    gains = np.log(np.array([[1, 4, 2, np.nan], [1, 0.5, 2, 3], [1, 0.5, 2, np.nan]]))
    assert np.exp(mean_gain(gains[:, :3])) == pytest.approx([1, 1, 2])
    # 2 serves all; then 1 adds log(2)/3, and 3 adds log(1.5)/3.
    assert greedy_cover(gains).tolist() == [2, 1, 3, 0]
    assert greedy_cover(gains, most=2).tolist() == [2, 1]
    assert greedy_cover(np.zeros((0, 3))).tolist() == []


def test_a_hopeless_schedule_votes_as_a_slow_one() -> None:
    clipped = votes(np.array([-50.0, -0.1, np.nan, 2.0]))
    assert clipped[0] == clipped[~np.isnan(clipped)].min() > -5.0
    assert clipped[[1, 3]].tolist() == [-0.1, 2.0] and math.isnan(clipped[2])


def test_weights_fall_with_distance() -> None:
    got = VoteSettings(3, 1.0).weights(np.array([0.0, 1.0, 2.0]))
    assert got == pytest.approx([1 / 0.1, 1 / 0.6, 1 / 1.1])
    assert VoteSettings(3, 1.0).weights(np.zeros(0)).size == 0
    assert weigh(np.array([[0.0, 0.0]])) == pytest.approx(np.array([[10.0, 10.0]]))
    assert weigh(np.array([[1.0, np.inf]])).tolist() == [[1 / 1.1, 0.0]]
    assert weigh(np.array([[np.inf, np.inf]])).tolist() == [[0.0, 0.0]]


def test_the_learned_metric_is_a_distance_along_the_foretold_gains() -> None:
    x, gains, _ = _data(3, holes=0.0)
    gains *= 0.2  # far from the limit beyond which gains count as it
    z = plain_metric(x).standardised(x)
    centred = gains - gains.mean(axis=1, keepdims=True)
    stretch = trial._learned(z, centred)
    y = centred - centred.mean(axis=0)
    w = np.linalg.solve(z.T @ z + 0.1 * len(z) * np.eye(3), z.T @ y)
    share = trial._STRETCH**2 * 3 / float(((z @ w) ** 2).sum() / len(z))
    for i, j in [(0, 1), (5, 17), (20, 3)]:
        gap = z[i] - z[j]
        want = gap @ gap + share * float(((gap @ w) ** 2).sum())
        assert float((((gap) @ stretch) ** 2).sum()) == pytest.approx(want)


def test_a_constant_feature_says_nothing() -> None:
    x = np.array([[1, 5], [2, 5], [3, 5]], dtype=np.float32)
    assert np.isfinite(plain_metric(x).apply(x)).all()
    assert plain_metric(x).apply(x)[:, 1].tolist() == [0, 0, 0]


@pytest.mark.parametrize("shrink", [0.0, 2.0, math.inf])
def test_a_policy_round_trips(shrink: float) -> None:
    made = VoteSettings(5, shrink, 0.25, math.nan, 12)
    again = VoteSettings.from_json(made.to_json())
    assert repr(again) == repr(made)
    assert again.describe()["of_optimum_held_out"] == pytest.approx(math.exp(-0.25))


# -- the fit -----------------------------------------------------------------------------------


def _slow_losses(
    x: np.ndarray, gains: np.ndarray, names: np.ndarray, *, learned: bool
) -> tuple[dict[tuple[int, float], list[float]], list[float]]:
    """Each row asked with its whole group held out, one plain step after the other."""
    g = votes(gains)
    level, _ = effects(g)
    z = plain_metric(x).standardised(x)
    number = {name: i for i, name in enumerate(sorted(set(names)))}
    folds = min(5, len(number))
    rows = range(len(x))
    most = min(max(min(40, len(x) // 3), 3), len(x))
    table: dict[tuple[int, float], list[float]] = {}
    nearest = []
    for r in rows:
        seen = z
        if learned:
            rest = [i for i in rows if number[names[i]] % folds != number[names[r]] % folds]
            seen = z @ trial._learned(z[rest], (g - level[:, None])[rest])
        others = [i for i in rows if names[i] != names[r]]
        ranked = sorted(others, key=lambda i: (math.dist(seen[i], seen[r]), i))
        nearest.append(math.dist(seen[ranked[0]], seen[r]))
        prior = np.zeros(g.shape[1])
        for c in range(g.shape[1]):
            ran = [i for i in others if not math.isnan(g[i, c])]
            prior[c] = sum(g[i, c] - level[i] for i in ran) / (len(ran) + 1)
        mine = [c for c in range(g.shape[1]) if not math.isnan(g[r, c])]
        for k in sorted({min(k, most) for k in (3, 5, 8, 12, 20, 40)}):
            chosen = ranked[:k]
            far = max(math.dist(seen[i], seen[r]) for i in chosen)
            weight = {i: 1 / (math.dist(seen[i], seen[r]) / far + 0.1) for i in chosen}
            for shrink in (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, math.inf):
                score = {}
                for c in mine:
                    score[c] = prior[c]
                    if math.isinf(shrink):
                        continue
                    ran = [i for i in chosen if not math.isnan(g[i, c])]
                    share = max(shrink, 1e-6)
                    total = sum(weight[i] * (g[i, c] - level[i]) for i in ran) + share * prior[c]
                    score[c] = total / (sum(weight[i] for i in ran) + share)
                best = max(mine, key=lambda c: score[c])
                loss = max(g[r, c] for c in mine) - g[r, best]
                table.setdefault((k, shrink), []).append(loss)
    return table, sorted(nearest)


@pytest.mark.parametrize("seed", range(4))
def test_the_fit_against_the_slow_reference(seed: int) -> None:
    x, gains, names = _data(seed)
    order = np.random.default_rng(seed).permutation(len(x))  # groups need not lie together
    x, gains, names = x[order], gains[order], names[order]
    metric, found, far, _ = fit_policy(x, gains, names)
    losses = trial.Trial.of(Features.plain(x), gains, names).losses
    slow = {learned: _slow_losses(x, gains, names, learned=learned) for learned in (False, True)}
    means = {
        (*at, learned): float(np.mean(losses))
        for learned, (table, _) in slow.items()
        for at, losses in table.items()
    }
    learned = not np.array_equal(metric.stretch, np.eye(3))
    assert found.fitted_on == len(x)
    assert far == pytest.approx(slow[learned][1], rel=1e-6)
    assert losses.mean() == pytest.approx(means[found.k, found.shrink, learned])
    if math.isfinite(found.shrink):
        assert losses.mean() == pytest.approx(min(means.values()))
        assert losses.mean() < means[found.k, math.inf, learned]


def test_features_that_foretell_are_believed() -> None:
    for seed in range(3):
        _, found, *_ = fit_policy(*_data(seed, groups=10))
        assert math.isfinite(found.shrink)
        assert found.loss < 0.6 * found.static_loss


def test_the_guard_needs_more_than_a_standard_error() -> None:
    """Neighbours that help one group of many and hurt none by chance are not believed."""
    table = {
        (3, 0.0, False): np.array([0.0] * 2 + [0.31] * 18),
        (3, math.inf, False): np.array([0.3] * 20),
    }
    keys, group = list(table), np.repeat(np.arange(10), 2)
    assert chosen_key(keys, np.array([*table.values()]), group) == (3, math.inf, False)
    table[3, 0.0, False] = np.array([0.2] * 20)
    assert chosen_key(keys, np.array([*table.values()]), group) == (3, 0.0, False)


def test_where_the_best_fixed_choice_is_better_on_held_out_rows_it_answers() -> None:
    """Also where it is not so by a standard error, as where the vote fails in one group."""
    x, gains, names = _data(0, groups=10)
    voting = trial.Trial.of(Features.plain(x), gains, names)
    judged = voting.validation
    assert math.isfinite(voting.fitted(judged).policy.shrink)
    hopeless = np.where(judged.group == "g3", -7.0, judged.static)
    policy = voting.fitted(judged._replace(measured=hopeless)).policy
    assert math.isinf(policy.shrink)
    choices = held_out.first_choices(
        voting.near[voting.key[2]], voting.part, voting.group, k=policy.k, shrink=math.inf
    )
    assert policy.loss == pytest.approx(choices.lost(policy.guard).mean())
    np.testing.assert_array_equal(choices.measured, choices.static)
    # By half of the groups it answers, too, not the vote that it replaced.
    lost = []
    for side in (0, 1):
        half = np.where((voting.group % 2 == side)[:, None], voting.part.gains, np.nan)
        few = voting.near[voting.key[2]].among(voting.group % 2 == side)
        rest = voting.part._replace(gains=half)
        one = held_out.first_choices(few, rest, voting.group, k=policy.k, shrink=math.inf)
        lost.append(one.counted().lost(policy.guard))
    assert policy.half_loss == pytest.approx(np.concatenate(lost).mean())


def _asked(
    x: np.ndarray, gains: np.ndarray, names: np.ndarray, folds: int = 5
) -> tuple[float, float]:
    """Mean loss of the vote and of the static best with groups held out from everything."""
    number = np.unique(names, return_inverse=True)[1]
    ours, static = [], []
    for fold in range(folds):
        train = number % folds != fold
        metric, found, *_ = fit_policy(x[train], gains[train], names[train])
        level, prior = effects(votes(gains[train]))
        centred = votes(gains[train]) - level[:, None]
        known, asked = metric.apply(x[train]), metric.apply(x[~train])
        for query, truth in zip(asked, gains[~train], strict=True):
            d = np.sqrt(((known - query) ** 2).sum(axis=1).astype(float))
            near = np.argsort(d, kind="stable")[: found.k]
            voters = found.weights(d[near])
            score = held_out.shrunk(voters @ centred[near], voters.sum(), prior, found.shrink)
            ours.append(truth.max() - truth[score.argmax()])
            static.append(truth.max() - truth[prior.argmax()])
    return float(np.mean(ours)), float(np.mean(static))


@pytest.mark.slow
@pytest.mark.parametrize("d", [5, 30])
def test_features_that_say_nothing_do_no_harm(d: int) -> None:
    """As many features as it takes to foretell anything in hindsight, and none that is true: not
    worse than the static best by more than 1 % on average."""
    loss = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        family = np.repeat(np.arange(20), 3)
        latent = rng.normal(size=(20, 3))[family] + 0.5 * rng.normal(size=(60, 3))
        gains = 0.2 * rng.normal(size=30) + 0.08 * latent @ rng.normal(size=(3, 30))
        x = rng.normal(size=(60, d)).astype(np.float32)
        loss.append(_asked(x, gains, np.array([f"g{i:02}" for i in family])))
    ours, static = np.mean(loss, axis=0)
    assert static > 0.03  # there is something to lose
    assert ours < static + 0.01


def test_what_is_said_of_held_out_groups_is_honest() -> None:
    """With more features than patterns a metric judged on the rows it was fitted to would seem to
    foretell pure noise."""
    said, static = [], []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        gains = rng.normal(0, 0.3, size=(24, 20))
        x = rng.normal(size=(24, 40)).astype(np.float32)
        _, found, *_ = fit_policy(x, gains, np.array([f"g{i // 2:02}" for i in range(24)]))
        said.append(found.loss)
        static.append(found.static_loss)
    assert np.mean(said) > 0.7 * np.mean(static)


def test_rows_with_a_single_run_teach_nothing() -> None:
    x, gains, names = _data(0)
    extra = np.full((2, gains.shape[1]), np.nan)
    extra[:, 1] = [5.0, -5.0]
    _, alone, *_ = fit_policy(x, gains, names)
    _, found, *_ = fit_policy(
        np.vstack([x, np.full((2, 3), x.mean(axis=0))]).astype(np.float32),
        np.vstack([gains, extra]),
        np.append(names, ["g0", "zz"]),
    )
    assert found.fitted_on == alone.fitted_on == len(x)


@pytest.mark.parametrize("rows", [0, 1, 2, 6])
def test_too_little_to_judge_is_an_unproven_vote(rows: int) -> None:
    x, gains, _ = _data(0)
    names = np.array(["one"] * rows, dtype=np.str_)
    metric, found, far, *_ = fit_policy(x[:rows], gains[:rows], names)
    assert found.fitted_on == 0 and math.isnan(found.loss) and not far.size
    assert np.isfinite(metric.apply(x)).all()


def test_two_groups_of_one_row_each() -> None:
    x, gains, _ = _data(0)
    _, found, far, *_ = fit_policy(x[:2], gains[:2], np.array(["a", "b"]))
    assert found.fitted_on == 2 and far.size == 2 and math.isfinite(found.loss)


def test_large_evidence_is_thinned_and_blocks_do_not_matter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, gains, names = _data(5, groups=8, each=6)
    whole = fit_policy(x, gains, names)
    monkeypatch.setattr(held_out, "_BLOCK", 1)
    again = fit_policy(x, gains, names)
    assert repr(whole[1]) == repr(again[1]) and np.array_equal(whole[2], again[2])
    monkeypatch.setattr(trial, "_MOST_FITTED", 20)
    assert fit_policy(x, gains, names)[1].fitted_on == 20
