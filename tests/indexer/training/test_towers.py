"""Two towers: what they learn, the file, the vectors, and the command."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from builders import CONFIGS, OP, band, fill, patterns, tiny, winner  # noqa: E402
from command_line import run_verb  # noqa: E402

from embeddb.core.errors import ModelError, UsageError  # noqa: E402
from embeddb.core.files import model_file  # noqa: E402
from embeddb.cost_model import towers  # noqa: E402
from embeddb.cost_model.towers import ConfigTowers  # noqa: E402
from embeddb.database import Database  # noqa: E402
from embeddb.featurizers.base import CrossFitted, Joint  # noqa: E402
from embeddb.featurizers.tower import Tower, learned_part  # noqa: E402
from embeddb.platforms.space import parts as space_parts  # noqa: E402
from embeddb.ranking.build import build_query  # noqa: E402
from embeddb.ranking.prediction import retrieved  # noqa: E402
from embeddb.store.models import ModelEntry, facts_of  # noqa: E402
from embeddb.testing.featurizers import FeaturizerContract  # noqa: E402
from indexer.embed import embed  # noqa: E402
from indexer.training import towers as training  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
GROUPS = 6


def _no_progress(task: str, done: int, total: int = 0) -> None:
    del task, done, total


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("towers") / "db"
    with Database.create(place) as db:
        fill(db, tiny(), patterns(GROUPS))
    return place


@pytest.fixture(scope="module")
def trained(folder: Path) -> tuple[Path, dict[str, Any]]:
    file = folder.parent / "towers.safetensors"
    with Database.open(folder, readonly=True) as db, pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "_LEAST_STEPS", 120)
        data = training.tower_data(db.index, progress=_no_progress)
        return file, training.train_towers(data, file, seed=0, progress=_no_progress)


def test_they_rank_matrices_of_families_that_they_never_saw(
    trained: tuple[Path, dict[str, Any]],
) -> None:
    file, card = trained
    (unit,) = card["units"]
    assert unit["op"] == str(OP) and unit["matrices"] == 4 * GROUPS and card["runs"] == 16 * GROUPS
    assert unit["held_out"]["of_optimum@1"] > 0.95 and unit["held_out"]["recall@10"] == 1.0
    assert sorted(group for fold in card["folds"] for group in fold) == [
        f"g{at}" for at in range(GROUPS)
    ]
    assert not list(file.parent.glob("*.training/*/checkpoint*"))


def test_configurations_are_found_by_the_inner_product(
    trained: tuple[Path, dict[str, Any]],
) -> None:
    file, _ = trained
    plug, towers = Tower(file), ConfigTowers.load(file)
    own = towers.of(tiny(), OP)
    assert own is not None
    for pattern in patterns(2, first=GROUPS + 1):
        learned = learned_part(plug.embed(pattern))
        score = own.vectors(CONFIGS) @ np.append(learned, 1.0)
        assert int(score.argmax()) == winner(pattern)
        assert own.best(learned, tiny().space(OP), 1) == [CONFIGS[winner(pattern)]]


def test_a_space_too_large_to_list_is_walked(
    trained: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drawing until all of it is there takes 100 draws for each of 2^18 configurations."""
    file, _ = trained
    pattern = patterns(1, first=GROUPS + 1)[0]
    learned = learned_part(Tower(file).embed(pattern))
    monkeypatch.setattr(space_parts, "PART_LIMIT", 0)
    monkeypatch.setattr(space_parts, "FEW", 0)
    monkeypatch.setattr(space_parts.Part, "draw", None)
    own = ConfigTowers.load(file).of(tiny(), OP)
    assert own is not None and own.platform.space(OP).size() is None
    assert own.best(learned, tiny().space(OP), 1) == [CONFIGS[winner(pattern)]]


def test_more_are_searched_where_the_nearest_are_illegal(
    trained: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, _ = trained
    pattern = patterns(1, first=GROUPS + 1)[0]
    learned = learned_part(Tower(file).embed(pattern))
    own, first = ConfigTowers.load(file).of(tiny(), OP), CONFIGS[winner(pattern)]
    assert own is not None
    monkeypatch.setattr(towers, "_SPARE", 1)
    space = tiny().space(OP).without([f"variant == '{first['variant']}'"], "illegal here")
    (second,) = own.best(learned, space, 1)
    every = own.best(learned, space, 100)
    assert every[0] == second != first and {*every} == {*CONFIGS} - {first}


def test_what_is_learned_is_cut_and_what_is_judged_is_not(folder: Path) -> None:
    with Database.open(folder, readonly=True) as db:
        (unit,) = training.tower_data(db.index, progress=_no_progress).units
    slow = unit.samples.gain.copy()
    slow[0] = slow[unit.samples.part(0)].max() - 20.0
    samples = replace(unit.samples, gain=slow)
    unit = replace(unit, samples=samples, targets=samples.targets)
    part = samples.part(0)
    configs, targets = unit.batch(np.array([0]))
    assert samples.column[part].tolist()[0] == configs[int(targets[0].argmin())]
    assert float(targets.max() - targets.min()) == pytest.approx(6.0)
    figures = training.figures_of(-slow[part], slow[part], unit.targets[part])
    assert figures["lost@1"] == pytest.approx(20.0)


def test_numpy_computes_what_was_trained(
    folder: Path, trained: tuple[Path, dict[str, Any]]
) -> None:
    file, _ = trained
    tensors = model_file.load(file, kind="towers")[0]
    with Database.open(folder, readonly=True) as db:
        data = training.tower_data(db.index, progress=_no_progress)
        net = training.TwoTowers(data, np.ones(len(data.ids), dtype=np.bool_))
        own = {n.removeprefix("matrix.0."): t for n, t in tensors.items() if "matrix.0." in n}
        net.matrix.load_state_dict({n: t for n, t in own.items() if n not in ("center", "scale")})
        vector = Tower(file).join([data.stats[0]])
        learned = learned_part(vector)
        assert np.array_equal(vector[: -learned.size], data.stats[0])
    with torch.no_grad():
        assert np.allclose(net.vectors(data.ids[:1])[0].numpy(), learned, atol=1e-5)


class TestContract(FeaturizerContract):
    @pytest.fixture(autouse=True)
    def weights(self, trained: tuple[Path, dict[str, Any]]) -> None:
        self.file = trained[0]

    def make(self) -> Tower:
        return Tower(self.file)


def test_each_group_has_a_network_that_did_not_see_it(
    trained: tuple[Path, dict[str, Any]],
) -> None:
    plug = Tower(trained[0])
    assert isinstance(plug, CrossFitted) and isinstance(plug, Joint)
    assert plug.learned_from == {f"g{at}" for at in range(GROUPS)} == plug.folds.keys()
    stats = np.array([plug.parts[0].embed(p) for p in patterns(1)])
    by_fold = plug.fold_vectors(stats)
    assert by_fold.shape == (1 + max(plug.folds.values()), 4, plug.dim)


def test_weights_are_adopted_and_find_the_neighbours(
    tmp_path: Path, trained: tuple[Path, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    with Database.create(tmp_path / "db") as db:
        fill(db, tiny(), patterns(GROUPS))
    capsys.readouterr()
    assert run_verb(["embed", str(tmp_path / "db"), "--weights", str(trained[0]), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["vectors"]["tower"] == 4 * GROUPS and not document["problems"]
    assert [one["featurizer"] for one in document["partitions"]] == ["tower"]
    with Database.open(tmp_path / "db") as db:
        made = db.query(band(500, 14), platform="tiny", op=OP, why=True)
        assert made.featurizer == "tower" and made.candidates[0].config == {"variant": "c"}
        statistics = db.index.featurizers().named("stats")
        assert made.features_by == ("stats", statistics.version)
        assert tuple(made.features) == statistics.names
        moved = [
            move.feature
            for length in (4, 8, 16)
            for move in db.query(band(500, length), platform="tiny", op=OP, why=True).insight.moves
        ]
        assert moved and {*moved} <= {*made.features}
        shown = db.explain(made.id)
        assert shown.differences and {d.feature for d in shown.differences} <= {*made.features}


def test_a_large_space_retrieves_by_the_learned_part(
    tmp_path: Path, trained: tuple[Path, dict[str, Any]]
) -> None:
    with Database.create(tmp_path / "db") as db:
        fill(db, tiny(), patterns(GROUPS))
        db.index.use_weights(trained[0])
        for pattern in patterns(1, first=GROUPS + 1):
            query = build_query(db.index, pattern, tiny(), OP)
            assert retrieved(db.index, query, pattern)[0] == CONFIGS[winner(pattern)]


def test_its_card_gives_facts(trained: tuple[Path, dict[str, Any]]) -> None:
    card = {k: v for k, v in trained[1].items() if k != "version"}
    facts = facts_of(ModelEntry(trained[1]["version"], card))
    counts = f"{16 * GROUPS} runs of {4 * GROUPS} matrices in {GROUPS} groups"
    assert facts.training_summary == f"{OP} on tiny: {counts}"
    (unit,) = card["units"]
    assert facts.held_out == {str(OP): {"towers": unit["held_out"]["of_optimum@1"]}}
    two = {**card, "units": [unit, {**unit, "platform": "other"}, "no unit"]}
    held_out = facts_of(ModelEntry(trained[1]["version"], two)).held_out
    assert set(held_out) == {f"{OP} on tiny", f"{OP} on other"}


def test_no_cost_model_learns_of_its_vectors(
    tmp_path: Path, trained: tuple[Path, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    """They were learned from the runs that would judge the model."""
    with fill(Database.create(tmp_path / "db"), tiny(), patterns(GROUPS)) as db:
        db.index.use_weights(str(trained[0]))
        embed(db.index)
    asked = ["--platform", "tiny", "--op", str(OP), "--featurizer", "tower"]
    capsys.readouterr()
    assert run_verb(["train", "costmodel", str(tmp_path / "db"), *asked]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "tower were learned from runs" in line and "--featurizer stats" in line


def test_damaged_weights_are_refused(tmp_path: Path, trained: tuple[Path, dict[str, Any]]) -> None:
    tensors, card = model_file.load(trained[0], kind="towers")
    changes = (
        {"width": 0},
        {"hidden": 7},
        {"folds": [[], [], [], [], [], []]},
        {"featurizer": {"name": "stats", "version": "0"}},
    )
    for change in changes:
        file = tmp_path / "bad.safetensors"
        model_file.save(file, tensors, {**card, **change})
        with pytest.raises(ModelError):
            Tower(file)


def test_too_few_groups_are_told(tmp_path: Path) -> None:
    with Database.create(tmp_path / "db") as db:
        fill(db, tiny(), patterns(4))
        with pytest.raises(UsageError, match="5 are needed"):
            training.tower_data(db.index, progress=_no_progress)


def test_the_command_trains_and_puts_to_use(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(training, "_LEAST_STEPS", 30)
    monkeypatch.setattr(training, "_EPOCHS", 5)
    capsys.readouterr()
    assert run_verb(["train", "towers", str(folder), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert Path(document["file"]) == folder / "models" / "towers.safetensors"
    assert document["indexes"][0]["featurizer"] in ("tower", "stats")
    assert run_verb(["train", "towers", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "recall@10" in shown and "neighbours by" in shown
