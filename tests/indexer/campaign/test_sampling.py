"""Which samples to buy: the two equations, budgets kept, and campaigns that grow by results."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np
import pytest
import scipy.sparse as sp
from campaign_board import OPTIONS, LawRunner, board, matrices, read
from command_line import run_verb
from hypothesis import given, settings
from hypothesis import strategies as st

from embeddb.core.config import Config, Op
from embeddb.core.errors import InputError, UsageError
from embeddb.core.records import Measurement
from embeddb.cost_model.gaussian import Inputs
from embeddb.database import Database
from embeddb.platforms.platform import Platform
from indexer.campaign.budget.designs import binned
from indexer.campaign.budget.growing_plan import (
    BudgetRequest,
    bought,
    buy_more,
    first_plan,
    takes_up,
)
from indexer.campaign.budget.sampler import (
    Point,
    Pool,
    Round,
    Sample,
    Sampler,
    Share,
    additive,
    ordered_pairs,
    round_rewards,
)
from indexer.campaign.budget.samplers import (
    STRATEGIES,
    Bandit,
    Exploration,
    clusters_of,
    strategy,
)
from indexer.campaign.folder import Campaign
from indexer.campaign.plan import write_plan
from indexer.campaign.run import CampaignJob

MANY = 80
#: Budgets of strategies that learn a model in each round, and of all others.
BUDGETS = {"improvement": 130}
BUDGET = 500
Law = Callable[[Point], float]


def law(point: Point) -> float:
    """Seconds that mostly follow from x, and on a few matrices the other way round."""
    x, y = int(str(point.config["x"])), int(str(point.config["y"]))
    sign = -1 if point.matrix % 7 == 0 else 1
    return math.exp(sign * x / 10 + y / 100)


def failing(broken: set[int]) -> Law:
    return lambda point: math.inf if point.matrix in broken else law(point)


@cache
def grid(count: int, seed: int) -> list[Config]:
    every = [Config({"x": x, "y": y}) for x in range(20) for y in range(20)]
    order = np.random.default_rng(seed).permutation(len(every))
    return [every[at] for at in order[:count]]


def pool(count: int = MANY, *, configs: int = 400, clusters: int = 5) -> Pool:
    rng = np.random.default_rng(0)
    sizes = rng.integers(1000, 200_000, (count, 3))
    blobs = 100 * (np.arange(count) % 5)[:, None] + rng.normal(size=(count, 2))
    made = clusters_of(blobs.astype(np.float32), clusters, 0)
    return Pool(sizes, made, lambda at: grid(configs, at), inputs)


def inputs(at: int, configs: Sequence[Config]) -> Inputs:
    """Both parameters, and the number of the matrix by which `law` turns round."""
    columns = np.array([[int(str(c["x"])), int(str(c["y"]))] for c in configs], dtype=np.float64)
    return Inputs(columns, np.full((len(configs), 1), at % 7), np.zeros((len(configs), 0)))


def buyer(name: str, among: Pool, budget: int = 500, seed: int = 0, **more: Any) -> Sampler:
    return Sampler(strategy(name).policy, among, budget, seed, **more)


def pool_for(name: str, count: int = MANY, **more: Any) -> Pool:
    return pool(count, clusters=STRATEGIES[name].clusters, **more)


def exhaust(one: Sampler, by: Law = law) -> list[Point]:
    found = []
    while points := one.buy():
        found += points
        one.tell([Sample(*p, by(p)) for p in points])
    return found


# -- every strategy ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_budget_is_spent_to_the_last_sample_and_none_twice(name: str) -> None:
    budget = BUDGETS.get(name, BUDGET)
    points = exhaust(buyer(name, pool_for(name), budget))
    assert len(points) == len(set(points)) == budget
    used = Counter(p.matrix for p in points)
    assert len(used) <= getattr(STRATEGIES[name].policy, "most", 1_000_000)
    firsts = {p.matrix: p.config for p in reversed(points)}
    assert all(config == grid(400, at)[0] for at, config in firsts.items())  # the default
    assert points == exhaust(buyer(name, pool_for(name), budget))
    # With clusters given, nothing else of these two is chance.
    other = exhaust(buyer(name, pool_for(name), budget, seed=1))
    assert (points == other) == (name in ("kmeans", "mab25"))


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_goes_on_from_its_state(name: str) -> None:
    among, budget = pool_for(name), BUDGETS.get(name, BUDGET)
    whole = buyer(name, among, budget)
    exhaust(whole)
    one = buyer(name, among, budget)
    while one.buy() or one.waiting():
        # A stop after every few points.
        one.tell([Sample(*p, law(p)) for p in list(one.waiting())[:60]])
        state = msgspec.json.decode(msgspec.json.encode(one.rounds), type=list[Round])
        one = buyer(name, among, budget, rounds=state)
    assert one.rounds == whole.rounds


def test_a_strategy_goes_on_from_its_state_where_matrices_are_used_up() -> None:
    among = pool(12, configs=7)
    whole = buyer("ea10", among, 60)
    exhaust(whole)
    one = buyer("ea10", among, 60)
    while points := one.buy():
        one.tell([Sample(*p, law(p)) for p in points])
        one = buyer("ea10", among, 60, rounds=one.rounds)
    assert one.rounds == whole.rounds and one.spent == 60


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(list(STRATEGIES)),
    budget=st.integers(10, 120),
    count=st.integers(1, 12),
    configs=st.integers(1, 15),
    broken=st.sets(st.integers(0, 11)),
)
def test_no_budget_is_exceeded_whatever_fails(
    name: str, budget: int, count: int, configs: int, broken: set[int]
) -> None:
    one = buyer(name, pool_for(name, count, configs=configs), budget)
    asked: list[Point] = []
    try:
        asked = exhaust(one, failing(broken))
    except InputError as e:
        assert "failed" in str(e)
        asked = [
            Point(s.matrix, Config(c)) for r in one.rounds for s in r.shares for c in s.configs
        ]
        assert all(p.matrix in broken for p in asked)
    assert len(set(asked)) == len(asked) == one.spent <= budget


def test_a_failing_matrix_is_given_up() -> None:
    one = buyer("ea10", pool())
    first = one.buy()
    fails = failing({first[0].matrix})
    one.tell([Sample(*p, fails(p)) for p in first])
    exhaust(one, fails)
    used = Counter(s.matrix for r in one.rounds for s in r.shares for _ in s.configs)
    # Its place went to another matrix.
    assert used[first[0].matrix] == 10 and one.spent == 500 and len(used) == 11


def test_all_failed_says_so() -> None:
    one = buyer("mab25", pool())
    one.tell([Sample(*p, math.inf) for p in one.buy()])
    with pytest.raises(InputError, match="all 125 samples so far failed"):
        one.buy()


@pytest.mark.parametrize("name", ["ea25", "mab25", "binned", "kmeans"])
def test_a_budget_too_small_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="less than the 2"):
        buyer(name, pool(), 1)
    for budget in (2, 5, 7):
        assert len(exhaust(buyer(name, pool(), budget))) == budget
    with pytest.raises(UsageError, match="no matrix"):
        buyer(name, Pool(np.zeros((0, 3), np.int64), [], lambda at: []), 500)


def test_what_may_not_be_told() -> None:
    one = buyer("ea10", pool())
    first, *others = one.buy()
    for told in (
        [Sample(*first, 1.0), Sample(*first, 1.0)],
        [Sample(0, Config({"x": 99, "y": 0}), 1.0)],
        [Sample(*first, 0.0)],
        [Sample(*first, math.nan)],
    ):
        with pytest.raises(UsageError):
            one.tell(told)
    one.tell([Sample(*first, 1.0)])
    with pytest.raises(UsageError, match="has an outcome"):
        one.tell([Sample(*first, 1.0)])
    assert list(one.waiting()) == others and one.buy() == [], "outcomes are missing"


@pytest.mark.parametrize(
    ("share", "said"),
    [
        (Share(99, [{"x": 1}], [1.0]), "not in the pool"),
        (Share(0, [{"x": 1}], []), "too many or too few"),
        (Share(0, [{"x": 1}, {"x": 1}], [1.0, None]), "twice"),
        (Share(0, [{"x": at} for at in range(501)], [1.0] * 501), "budget"),
        (Share(0, [{"x": 1}], [-1.0]), "time"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(share: Share, said: str) -> None:
    with pytest.raises(InputError, match=said):
        buyer("ea10", pool(), rounds=[Round([share])])


# -- the equations -----------------------------------------------------------------------------


def test_equation_3_and_4() -> None:
    policy = Exploration(10, alpha=0.7, eta=0.3)
    p = policy.probabilities(np.array([0.2, 0.9, 0.5]), np.array([False, False, True]))
    raw = [math.exp(0.7 * 0.8 + 0.3 * 0.2), math.exp(0.7 * 0.1 + 0.3 * 0.9), math.exp(0.7)]
    assert np.allclose(p, np.array(raw) / sum(raw)) and p[0] > p[1]
    shares = [Share(0, [{"x": 1}], [1.0]), Share(1, [{"x": 1}], [1.0])]
    s = policy.scores([Round(shares, [(0, 1.0)])], 3)
    # Ordered well; drawn and not to be judged: as it was; not drawn: reward 0.
    assert np.allclose(s, [0.7 * 0.5 + 0.3, 0.5, 0.7 * 0.5])


def test_equation_5() -> None:
    shares = [Share(0, [{"x": 1}] * 5, [1.0] * 5), Share(1, [{"x": 1}] * 5, [1.0] * 5)]
    bound = Bandit().bounds([Round(shares, [(0, 0.9), (1, 0.2)])], np.array([5, 5, 0]))
    explore = math.sqrt(2 * math.log(10) / 5)
    assert np.allclose(bound, [0.1 + explore, 0.8 + explore, np.inf])


def test_the_first_rounds_are_the_papers() -> None:
    among = pool()
    for name, matrices_, each in (("ea10", 5, 10), ("ea25", 5, 10), ("mab25", 25, 5)):
        used = Counter(p.matrix for p in buyer(name, among).buy())
        assert len(used) == matrices_ and set(used.values()) == {each}
        per_cluster = [len(set(members) & used.keys()) for members in among.clusters]
        assert per_cluster == [matrices_ // 5] * 5


@pytest.mark.parametrize("name", ["ea10", "ea25"])
def test_exploration_fills_up_within_quotas_and_caps(name: str) -> None:
    among, most = pool(), STRATEGIES[name].policy.most
    used = Counter(p.matrix for p in exhaust(buyer(name, among)))
    assert len(used) == most and max(used.values()) <= 2 * 500 / most
    assert all(len(set(members) & used.keys()) <= most / 5 for members in among.clusters)


def test_the_bandit_buys_more_where_the_order_is_not_foretold() -> None:
    among = pool()
    used = Counter(p.matrix for p in exhaust(buyer("mab25", among)))
    odd = [count for at, count in used.items() if at % 7 == 0]
    even = [count for at, count in used.items() if at % 7]
    assert odd and np.mean(odd) > 1.3 * np.mean(even)


def test_rewards_are_held_out() -> None:
    configs = grid(10, 0)
    samples = [Sample(at, c, law(Point(at, c))) for at in range(1, 10) for c in configs]
    rewards = dict(round_rewards([], samples))
    assert rewards[1] > 0.9 and rewards[7] < 0.2
    with patch("indexer.campaign.budget.sampler.additive", wraps=additive) as learned:
        round_rewards(samples[:20], samples[20:])
    assert [len(call.args[0]) for call in learned.call_args_list] == [50, 60]
    failed = [Sample(5, c, math.inf) for c in configs]
    assert 5 not in dict(round_rewards(samples, failed))
    assert ordered_pairs(np.array([1.0, 1.0]), np.array([1.0, 2.0])) == 0.5
    assert ordered_pairs(np.array([2.0, 1.0]), np.array([1.0, math.inf])) == 1.0
    assert ordered_pairs(np.array([2.0, 1.0]), np.array([1.0, 1.0])) is None


# -- base lines --------------------------------------------------------------------------------


def test_cognates_choice_is_balanced_over_rows_and_spread_over_sparsity() -> None:
    rng = np.random.default_rng(1)
    rows = np.repeat([100, 10_000, 40_000, 100_000, 500_000], [60, 20, 10, 5, 5])
    nnz = (rows**1.0 * 10 ** rng.uniform(0, 3, 100)).astype(np.int64)
    among = Pool(np.stack([rows, rows, nnz], axis=1), [], lambda at: [])
    chosen = binned(among, 10, rng)
    assert sorted(rows[chosen]) == sorted([100, 10_000, 40_000, 100_000, 500_000] * 2)
    spread = [np.ptp(np.log(nnz / rows**2.0)[binned(among, 5, rng)]) for _ in range(50)]
    chance = [
        np.ptp(
            np.log(nnz / rows**2.0)[[int(rng.choice(np.flatnonzero(rows == r))) for r in set(rows)]]
        )
        for _ in range(50)
    ]
    assert np.mean(spread) > np.mean(chance)


def test_fewer_matrices_than_clusters() -> None:
    assert [len(c) for c in clusters_of(np.ones((3, 2), np.float32), 5, 0)] == [3]
    for name in STRATEGIES:
        assert len(exhaust(buyer(name, pool_for(name, 3), 60))) == 60


# -- expected improvement ----------------------------------------------------------------------


def test_improvement_buys_what_may_be_fastest() -> None:
    def mean_rank(points: Sequence[Point]) -> float:
        """`law` is fastest at x = 0, and at x = 19 where it is turned round."""
        x = [int(str(p.config["x"])) for p in points]
        return float(
            np.mean([x if p.matrix % 7 else 19 - x for x, p in zip(x, points, strict=True)])
        )

    among = pool()
    points = exhaust(buyer("improvement", among, 130))
    first = {p.matrix: p.config for p in reversed(points)}
    chosen = [p for p in points[50:] if p.config != first[p.matrix]]
    assert mean_rank(chosen) < 0.7 * mean_rank(exhaust(buyer("spread", among, 130)))
    counts = Counter(p.matrix for p in points)
    assert len(counts) > 12 and min(counts.values()) > 1


def test_improvement_goes_on_where_there_is_nothing_to_compare() -> None:
    for count, configs, budget in ((1, 2, 2), (4, 1, 4), (2, 7, 14), (1, 1, 5)):
        points = exhaust(buyer("improvement", pool(count, configs=configs), budget))
        assert len(points) == min(budget, count * configs)


# -- campaigns ---------------------------------------------------------------------------------


def wish(name: str = "ea10", budget: int = 40, **more: Any) -> BudgetRequest:
    return BudgetRequest(platform=board(), op=Op("spmm", 32), strategy=name, budget=budget, **more)


def halves(count: int) -> tuple[str, list[list[int]]]:
    return "stats 1", [[0, 1, 2], [3, 4]][:count]


class Failing(LawRunner):
    def _measured(self, *_: Any) -> Measurement:
        return Measurement("crash")


def job(folder: Path, db: Database, runner: LawRunner) -> CampaignJob:
    return CampaignJob(Campaign(folder), db.index, runner, OPTIONS, read)


def spend(folder: Path, db: Database, runner: LawRunner) -> Campaign:
    """Measure and buy until the budget is used, as `campaign run` does."""
    campaign: Campaign | None = Campaign(folder)
    while campaign is not None:
        job(folder, db, runner).run()
        campaign = buy_more(Campaign(folder))
    return Campaign(folder)


def test_a_campaign_grows_until_the_budget_is_used(tmp_path: Path) -> None:
    runner = LawRunner()
    plan = first_plan(wish(), matrices(), halves)
    campaign = Campaign.create(tmp_path / "camp", plan)
    assert campaign.progress().points == 20 and plan.left_out() == []
    assert buy_more(campaign) is None  # nothing is measured yet
    with Database.create(tmp_path / "runs.db") as db:
        done = spend(tmp_path / "camp", db, runner)
        assert len(runner.asked) == len(set(runner.asked)) == 40
        assert db.store.count_runs() == 40
        assert done.id == plan.id and done.plan != plan and takes_up(done.plan, wish(), matrices())
        assert not takes_up(done.plan, wish(budget=41), matrices())
        assert all(done.is_stored(db.index, task) for task in done.tasks())
    found = bought(done)
    assert found is not None
    assert (found.planned, found.measured, found.budget, found.rounds) == (40, 40, 40, 2)
    assert (
        bought(Campaign.create(tmp_path / "x", msgspec.structs.replace(plan, buying=msgspec.UNSET)))
        is None
    )


def test_a_stopped_campaign_buys_what_an_unstopped_one_does(tmp_path: Path) -> None:
    for name in ("whole", "stopped"):
        Campaign.create(tmp_path / name, first_plan(wish("mab25", 60), matrices(), halves))
    with Database.create(tmp_path / "a.db") as db:
        whole = spend(tmp_path / "whole", db, LawRunner())
    with Database.create(tmp_path / "b.db") as db:
        runner = LawRunner(stop=7)
        for _ in range(20):
            try:
                stopped = spend(tmp_path / "stopped", db, runner)
                break
            except KeyboardInterrupt:
                runner.left = 7
    assert stopped.plan == whole.plan and len(set(runner.asked)) == len(runner.asked) == 60


def test_failures_end_it_in_one_line(tmp_path: Path) -> None:
    Campaign.create(tmp_path / "camp", first_plan(wish(), matrices(), halves))
    with Database.create(tmp_path / "a.db") as db, pytest.raises(InputError, match="all 20"):
        spend(tmp_path / "camp", db, Failing())


def test_results_that_are_there_twice_count_once(tmp_path: Path) -> None:
    campaign = Campaign.create(tmp_path / "camp", first_plan(wish(), matrices(), halves))
    with Database.create(tmp_path / "a.db") as db:
        job(tmp_path / "camp", db, LawRunner()).run()
        for file in (tmp_path / "camp" / "results").iterdir():
            file.write_bytes(2 * file.read_bytes())
        assert spend(tmp_path / "camp", db, LawRunner()).progress().measured == 40
        assert db.store.count_runs() == 40
    assert campaign.progress().measured == 20


@pytest.mark.parametrize(
    "change",
    [
        {"pool": 99},
        {"clusters": [[77]]},
        {"clusters": [[]]},
        {"budget": 10**9},
        {"seed": -1},
        {"pool": 4},
    ],
)
def test_a_foreign_plan_that_does_not_fit(tmp_path: Path, change: dict[str, Any]) -> None:
    campaign = Campaign.create(tmp_path / "camp", first_plan(wish(), matrices(), halves))
    with Database.create(tmp_path / "a.db") as db:
        job(tmp_path / "camp", db, LawRunner()).run()
    buying = msgspec.structs.replace(campaign.plan.buying, **change)  # type: ignore[arg-type]
    plan = msgspec.structs.replace(campaign.plan, buying=buying)
    (tmp_path / "camp" / "plan.json").write_bytes(write_plan(plan))
    with pytest.raises(InputError, match=r"does not fit|has bought"):
        buy_more(Campaign(tmp_path / "camp"))


# -- command line ------------------------------------------------------------------------------


def _run(*args: str) -> int:
    return run_verb(["campaign", *args])


@pytest.fixture
def asked(tmp_path: Path) -> list[str]:
    Database.create(tmp_path / "runs.db").close()
    folder = tmp_path / "matrices"
    folder.mkdir()
    for at, size in enumerate((20, 40, 80, 160)):
        sp.save_npz(folder / f"m{at}.npz", sp.random(size, size, 0.1, format="csr", rng=at))
    places = [str(tmp_path / "runs.db"), str(tmp_path / "camp")]
    return [*places, "--platform", "spade", "--op", "spmm:32", "--matrices", str(folder)]


def _said(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


class Anything(LawRunner):
    """Takes any configuration of SPADE."""

    def _measured(self, pattern: Any, op: Op, config: Config, number: int) -> Measurement:
        return Measurement(times_s=(1e-6 * (1 + len(config.json) + hash(config.json) % 7),))


@pytest.fixture
def anything(monkeypatch: pytest.MonkeyPatch) -> None:
    def here(platform: Platform, threads: int) -> tuple[Any, Platform]:
        runner = Anything(platform)
        return runner, runner.platform()

    monkeypatch.setattr("embeddb.ui.cli.verbs.campaign_run.runner_here", here)


@pytest.mark.usefixtures("anything")
def test_plan_run_status_and_plan_again(
    asked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    plan = ["plan", *asked, "--strategy", "ea10", "--budget", "75"]
    assert _run(*plan, "--json") == 0
    first = _said(capsys)
    assert first["strategy"] == {
        "name": "ea10",
        "budget": 75,
        "planned": 40,
        "measured": 0,
        "matrices": 4,
        "rounds": 1,
        "clusters": 4,
    }
    assert first["points"] == 40 and first["matrices"] == 4
    assert _run(*plan) == 0
    said = capsys.readouterr().out
    assert "ea10: 0 of a budget of 75 samples spent, 40 planned" in said and "run it:" in said
    assert _run("run", *asked[:2], "--json") == 0
    assert _said(capsys)["strategy"]["measured"] == 75
    assert _run("status", *asked[:2]) == 0
    assert "75 of a budget of 75 samples spent" in capsys.readouterr().out
    assert _run(*plan, "--json") == 0
    again = _said(capsys)
    assert again["campaign"] == first["campaign"] and again["points"] == 75
    assert _run(*plan[:-1], "80") == 1
    assert "another campaign is there" in capsys.readouterr().err


@pytest.mark.usefixtures("anything")
def test_a_budget_alone_buys_by_expected_improvement(
    asked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    plan = ["plan", *asked, "--budget", "80"]
    assert _run(*plan, "--json") == 0
    first = _said(capsys)
    assert first["strategy"]["name"] == "improvement" and first["strategy"]["planned"] == 20
    assert not (Path(asked[1]) / "pool.json").exists()
    assert _run("run", *asked[:2], "--json") == 0
    assert _said(capsys)["strategy"]["measured"] == 80
    vectors = json.loads((Path(asked[1]) / "pool.json").read_text())
    assert len(vectors) == 4 and {len(one[1]) for one in vectors} == {48}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--budget", "10", "--top", "3"], "--top and --strategy"),
        (["--strategy", "ea11"], "one of: improvement, ea10"),
        (["--strategy", "ea10", "--budget", "1"], "at least 2"),
        (["--strategy", "ea10", "--configs", "9", "--rounds", "3"], "--configs, --rounds and"),
        (["--strategy", "ea10", "--op", "spmm:64"], "one --op"),
        (["--strategy", "ea10", "--max-nnz", "1"], "no matrix"),
        (["--strategy", "ea10", "--max-work", "40"], "no matrix"),
    ],
)
def test_what_a_strategy_cannot_do(
    asked: list[str], options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run("plan", *asked, *options) == 2
    err = [line for line in capsys.readouterr().err.splitlines() if "warning" not in line]
    assert said in " ".join(err) and len(err) <= 1 and not Path(asked[1]).exists()


def test_the_names_on_the_command_line_are_the_strategies() -> None:
    from embeddb.ui.cli.verbs import campaign as plan

    assert tuple(STRATEGIES) == plan.STRATEGIES
