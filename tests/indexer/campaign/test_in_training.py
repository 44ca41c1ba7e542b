"""Buying inside training: a model judges each round before it learns from it, and goes on."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from campaign_board import AMONG, OPTIONS, LawRunner, board, matrices, read
from command_line import run_verb

from embeddb.core.config import Config, Op
from embeddb.core.errors import InputError, UsageError
from embeddb.core.pattern import Pattern
from embeddb.core.records import Measurement, PatternInfo
from embeddb.database import Database
from embeddb.featurizers.stats import Stats
from embeddb.platforms.platform import Platform
from indexer.campaign.budget.growing_plan import BudgetRequest, bought, first_plan, takes_up
from indexer.campaign.budget.sampler import Told
from indexer.campaign.folder import Campaign
from indexer.campaign.plan import Buying
from indexer.campaign.plan_file import write_plan
from indexer.campaign.run import CampaignJob, run_campaign

torch = pytest.importorskip("torch")

from embeddb.cost_model.model import CostModel  # noqa: E402
from embeddb.featurizers.network.reduction import reduce, seen_through  # noqa: E402
from indexer.campaign.budget.teaching import (  # noqa: E402  # noqa: E402
    Ground,
    InTraining,
    Known,
    Pupil,
    StatisticsPupil,
    WholePupil,
    lessons,
    put_start,
)
from indexer.training.cost_model.encoder import Encoder, Structures  # noqa: E402
from indexer.training.cost_model.settings import CostSettings, paper, preset  # noqa: E402

OP, STATS = Op("spmm", 32), Stats()
BRIEF = paper(epochs=1, few_epochs=1, patience=1, passes=1, lr=1e-3)
EVERY = [Config({"tile": t, "unroll": u}) for t in (1, 2, 4, 8) for u in (1, 2, 4, 8)]
pytestmark = pytest.mark.usefixtures("one_thread")


def seconds(matrix: int, config: Config) -> float:
    tile, unroll = int(str(config["tile"])), int(str(config["unroll"]))
    return math.inf if (matrix, tile) == (1, 8) else 1e-6 * (tile + unroll / 10)


def told(*matrices: int, part: slice = slice(None)) -> list[Told]:
    return [Told(m, c, seconds(m, c)) for m in matrices for c in EVERY[part]]


def ground() -> Ground:
    known = [Known(PatternInfo.of(p), STATS.embed(p)) for p in AMONG]
    return Ground(board(), OP, known.__getitem__, ("stats", str(STATS.version)))


def from_nothing(settings: CostSettings = BRIEF) -> StatisticsPupil:
    return StatisticsPupil.begin(ground(), settings, None)


def whole_pupil() -> WholePupil:
    settings = preset(
        "cognate",
        encoder="waco",
        latent="pca",
        epochs=1,
        few_epochs=1,
        patience=1,
        passes=1,
        sites=8,
    )
    encoder = Encoder.drawn(settings)
    channels = int(encoder.spec["in_channels"])
    seen = {p.id: seen_through(reduce(p, encoder.reduction), channels) for p in AMONG}
    return WholePupil.begin(ground(), settings, encoder, Structures(seen))


def weights(pupil: Pupil) -> dict[str, Any]:
    model = getattr(pupil, "model", None)
    assert isinstance(model, CostModel)
    return model.tensors


def same(one: Pupil, other: Pupil) -> bool:
    return all(np.array_equal(a, weights(other)[name]) for name, a in weights(one).items())


# -- the models --------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [from_nothing, whole_pupil])
def test_a_model_goes_on_with_its_weights(first: Any) -> None:
    begun = first()
    assert begun.score(0, EVERY) is None
    once = begun.taught(told(0, 1, 2), None)
    twice = once.taught(told(0, 1, 2, 3), None)
    anew = begun.taught(told(0, 1, 2, 3), None)
    name = "member.0.matrix.0.weight"
    moved = np.abs(weights(once)[name] - weights(twice)[name])
    assert moved.max() > 0 and not same(twice, anew)
    assert once.score(4, EVERY).shape == (16,)


def test_too_little_teaches_nothing() -> None:
    begun = from_nothing()
    assert begun.taught(told(0, part=slice(5)), None) is begun


def test_rounds_do_not_count_twice_in_the_prior() -> None:
    """A model with a prior starts each round from the weights alone."""
    own = replace(BRIEF, residual=True)
    once = from_nothing(own).taught(told(0, 1, 2), None)
    start = once._start()
    assert start is not None and not start.tensors[f"prior.{OP}.nest"].any()
    assert not len(start.tensors[f"prior.{OP}.ids"])
    source = CostModel(once.model.card, once.model.tensors)  # type: ignore[union-attr]
    tuned = StatisticsPupil.begin(ground(), own, source).taught(told(0, 1, 2, 3), None)
    start = tuned._start()
    assert start is not None
    assert np.array_equal(start.tensors[f"prior.{OP}.rest"], source.tensors[f"prior.{OP}.rest"])
    assert np.array_equal(
        start.tensors["member.0.matrix.0.weight"], weights(tuned)["member.0.matrix.0.weight"]
    )


# -- rewards -----------------------------------------------------------------------------------


class Recorder:
    """A pupil that knows how many samples it was taught, and orders by the true seconds."""

    def __init__(self, log: list[Any], taught: int = 0) -> None:
        self.log, self.known = log, taught

    def score(self, matrix: int, configs: Sequence[Config]) -> Any:
        self.log.append(("asked", self.known, matrix))
        return np.array([-seconds(matrix, c) for c in configs]) if self.known else None

    def taught(self, told: Sequence[Told], progress: Any) -> Recorder:
        self.log.append(("taught", len(told)))
        return Recorder(self.log, len(told))

    def save(self, file: Path, about: dict[str, Any]) -> None: ...

    def load(self, file: Path) -> tuple[Recorder, dict[str, Any]]:
        raise AssertionError


def test_a_round_is_judged_before_it_is_learned_from() -> None:
    log: list[Any] = []
    inside = InTraining(Recorder(log))
    rounds = [told(0, 2), told(0, 3), told(4)]
    assert inside(rounds[:1]) == []  # it knows nothing yet
    assert inside(rounds[:2]) == [(0, 1.0), (3, 1.0)] and inside(rounds) == [(4, 1.0)]
    assert [entry for entry in log if entry[0] == "taught"] == [("taught", 32), ("taught", 64)]
    assert ("asked", 32, 3) in log and ("asked", 64, 3) not in log
    inside.after(rounds)
    assert log[-1] == ("taught", 80)


def test_what_is_kept_only_saves_time(tmp_path: Path) -> None:
    rounds = [told(0, 1, 2), told(3), told(4)]
    file = tmp_path / "model.safetensors"
    whole = InTraining(from_nothing()).after(rounds)
    InTraining(from_nothing(), file).after(rounds[:2])
    gone_on = InTraining(from_nothing(), file)
    assert same(gone_on.after(rounds), whole)
    other = [told(0, 1, 2), told(2), told(4)]  # a file of other rounds
    assert same(
        InTraining(from_nothing(), file).after(other), InTraining(from_nothing()).after(other)
    )
    file.write_bytes(b"nothing")
    assert same(InTraining(from_nothing(), file).after(rounds), whole)


def test_a_whole_model_is_kept_too(tmp_path: Path) -> None:
    rounds = [told(0, 1, 2), told(3)]
    file = tmp_path / "model.safetensors"
    whole = InTraining(whole_pupil()).after(rounds)
    InTraining(whole_pupil(), file).after(rounds[:1])
    found = InTraining(whole_pupil(), file).after(rounds).score(4, EVERY)
    np.testing.assert_allclose(found, whole.score(4, EVERY), atol=1e-5)  # type: ignore[arg-type]


# -- campaigns ---------------------------------------------------------------------------------


def wish(budget: int = 65, start: CostModel | None = None) -> BudgetRequest:
    return BudgetRequest(
        platform=board(), op=OP, strategy="mab25", budget=budget, teaching=lessons(BRIEF, start)
    )


def halves(count: int) -> tuple[str, list[list[int]]]:
    return "stats 1", [[0, 1, 2], [3, 4]][:count]


def rounds_of(campaign: Campaign) -> Any:
    assert isinstance(campaign.plan.buying, Buying)
    return campaign.plan.buying.rounds


def run(folder: Path, runner: LawRunner) -> Campaign:
    place = folder.with_suffix(".db")
    make = Database.open if place.exists() else Database.create
    with make(place) as db:
        return run_campaign(CampaignJob(Campaign(folder), db.index, runner, OPTIONS, read))[0]


def test_a_stopped_campaign_teaches_the_same(tmp_path: Path) -> None:
    for name in ("whole", "stopped"):
        Campaign.create(tmp_path / name, first_plan(wish(), matrices(), halves))
    whole = run(tmp_path / "whole", LawRunner())
    spent = bought(whole)
    assert spent is not None and spent.measured == 65 and spent.rounds == 3
    assert (tmp_path / "whole" / "model.safetensors").exists()
    runner = LawRunner(stop=40)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "stopped", runner)
    runner.left = -1
    assert rounds_of(run(tmp_path / "stopped", runner)) == rounds_of(whole)
    assert takes_up(whole.plan, wish(), matrices()) and not takes_up(
        whole.plan, replace(wish(), teaching=msgspec.UNSET), matrices()
    )


def test_a_model_to_start_from_lies_in_the_folder(tmp_path: Path) -> None:
    made = from_nothing().taught(told(0, 1, 2), None)
    assert isinstance(made.model, CostModel)
    made.model.save(tmp_path / "cpu.safetensors")
    start = CostModel.load(tmp_path / "cpu.safetensors")
    plan = first_plan(wish(30, start), matrices(), halves)
    Campaign.create(tmp_path / "camp", plan)
    with pytest.raises(InputError, match="is gone"):
        run(tmp_path / "camp", LawRunner())
    put_start(tmp_path / "camp", start)
    done = run(tmp_path / "camp", LawRunner())
    assert dict(rounds_of(done)[0].rewards)  # the source orders the first round already


def test_settings_of_a_foreign_plan(tmp_path: Path) -> None:
    campaign = Campaign.create(tmp_path / "camp", first_plan(wish(), matrices(), halves))
    buying = campaign.plan.buying
    assert isinstance(buying, Buying) and not isinstance(buying.teaching, msgspec.UnsetType)
    odd = msgspec.structs.replace(buying.teaching, settings={"color": "red"})
    plan = msgspec.structs.replace(
        campaign.plan, buying=msgspec.structs.replace(buying, teaching=odd)
    )
    (tmp_path / "camp" / "plan.json").write_bytes(write_plan(plan))
    with pytest.raises(InputError, match="not the settings"):
        run(tmp_path / "camp", LawRunner())


def test_trees_do_not_learn_by_rounds() -> None:
    with pytest.raises(UsageError, match="round by round"):
        lessons(CostSettings(predictor="trees"), None)


# -- command line ------------------------------------------------------------------------------


class Anything(LawRunner):
    """Takes any configuration of SPADE."""

    def _measured(self, pattern: Pattern, op: Op, config: Config, number: int) -> Measurement:
        return Measurement(times_s=(1e-6 * (1 + int(config.id[:4], 16) % 97),))


@pytest.fixture
def asked(tmp_path: Path) -> list[str]:
    import scipy.sparse as sp

    Database.create(tmp_path / "runs.db").close()
    (tmp_path / "matrices").mkdir()
    for at, size in enumerate((20, 40, 80, 160)):
        made = sp.random(size, size, 0.1, format="csr", rng=at)
        sp.save_npz(tmp_path / "matrices" / f"m{at}.npz", made)
    where = ["--platform", "spade", "--op", "spmm:32", "--matrices", str(tmp_path / "matrices")]
    return ["train", "costmodel", str(tmp_path / "runs.db"), *where]


@pytest.mark.parametrize("kind", [[], ["--preset", "cognate", "--sites", "8"]])
def test_a_model_is_trained_on_what_it_buys(
    kind: list[str],
    asked: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def here(platform: Platform, threads: int) -> tuple[Any, Platform]:
        runner = Anything(platform)
        return runner, runner.platform()

    monkeypatch.setattr("embeddb.ui.cli.verbs.train_costmodel.runner_here", here)
    brief = [*kind, "--epochs", "1", "--members", "1", "--predictor", "mlp", "--no-judge"]
    buys = ["--strategy", "mab25", "--budget", "45", "-o", str(tmp_path / "own.safetensors")]
    assert run_verb([*asked, *brief, *buys, "--json"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["samples"] == 45 and "45 runs bought by mab25" in err
    folder = tmp_path / "own.buying"
    campaign = Campaign(folder)
    assert len(rounds_of(campaign)) > 1 and (folder / "model.safetensors").exists()
    assert run_verb([*asked, *brief, *buys[:3], "50", *buys[4:]]) == 1
    assert "another campaign is there" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--budget", "10"], "--budget is of a --strategy"),
        (["--strategy", "ea10", "--matrices", ""], "add --matrices"),
        (["--strategy", "ea10", "--op", "spmm:64"], "one --op"),
        (["--strategy", "ea10", "--samples", "100"], "do not go together"),
        (["--strategy", "ea11"], "one of: ea10"),
    ],
)
def test_what_a_strategy_cannot_do(
    asked: list[str], options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_verb([*asked, *options]) == 2
    assert said in " ".join(capsys.readouterr().err.split())
