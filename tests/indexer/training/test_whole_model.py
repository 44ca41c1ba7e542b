"""The papers' models whole: a sparse network that learns run times with the rest of the model."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import run_verb

from embeddb.core.config import Op
from embeddb.core.errors import ModelError, NothingFound, UsageError
from embeddb.core.pattern import Pattern
from embeddb.core.sizes import Sizes
from embeddb.cost_model import Problem
from embeddb.database import Database
from embeddb.platforms.platform import load_platform

torch = pytest.importorskip("torch")

from builders import fill, patterns, tiny, winner  # noqa: E402

from embeddb.cost_model.model import CostModel  # noqa: E402
from embeddb.cost_model.network_torch import CostNetwork, Shape  # noqa: E402
from embeddb.featurizers import learned_from  # noqa: E402
from embeddb.featurizers.scnn import SHIPPED, Scnn, StatsScnn  # noqa: E402
from embeddb.learning.samples import Samples, samples_of  # noqa: E402
from indexer.embed import embed  # noqa: E402
from indexer.training.cost_model.encoder import (  # noqa: E402
    Encoder,
    Reading,
    StructureReader,
    WholeNetwork,
    one_scale,
)
from indexer.training.cost_model.losses import loss_of  # noqa: E402
from indexer.training.cost_model.settings import CostSettings, preset  # noqa: E402
from indexer.training.cost_model.train import retarget, train  # noqa: E402
from indexer.training.cost_model.whole import (  # noqa: E402
    Whole,
    begun_from,
    encoder_file,
    load_whole,
    train_whole,
)
from tuners.evaluation.bench import Bench  # noqa: E402
from tuners.evaluation.evaluate import evaluate  # noqa: E402

OP = Op.parse("spmm:32")
pytestmark = pytest.mark.usefixtures("one_thread")


def brief(name: str = "cognate", **changes: Any) -> CostSettings:
    """A preset that trains in a second or two, with a smaller sparse network."""
    short = {
        "encoder": "waco",
        "latent": "pca",
        "epochs": 2,
        "few_epochs": 2,
        "patience": 2,
        "sites": 8,
        "passes": 1,
    }
    return preset(name, **{**short, **changes})


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("filled") / "runs.db"
    with Database.create(folder) as db:
        fill(db, tiny(), patterns(4))
    return folder


def read(folder: Path, encoder: Encoder) -> tuple[Samples, StructureReader]:
    with Database.open(folder, readonly=True) as db:
        reader = StructureReader(db.index, encoder)
        return samples_of(db.index, db.platform("tiny"), [OP], read=reader), reader


@pytest.fixture(scope="module")
def trained(filled: Path) -> tuple[Whole, Samples, StructureReader]:
    settings = brief()
    encoder = Encoder.drawn(settings)
    samples, reader = read(filled, encoder)
    return train_whole(samples, settings, encoder, reader.structures), samples, reader


# -- settings ----------------------------------------------------------------------------------


def test_the_preset_is_the_papers_table() -> None:
    """Table 3: Adam 1e-4, 100 epochs, batches of 32, margin ranking loss."""
    found = preset("cognate")
    assert (found.lr, found.epochs, found.configs, found.loss) == (1e-4, 100, 32, "margin")
    assert (found.members, found.batch, found.residual, found.bilinear) == (1, 1, False, False)
    assert found.every_pair and found.plain
    assert (found.encoder, found.latent, found.parts) == (
        "cognate",
        "ae",
        ("featurizer", "mapper", "latent"),
    )


def test_with_tiles_nothing_but_parts_and_rate_differs() -> None:
    ours, published = preset("cognate-tiles"), preset("cognate")
    assert set(ours.parts) - set(published.parts) == {"tiles"} and ours.lr == 1e-3
    assert replace(ours, parts=published.parts, lr=published.lr) == published


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"encoder": "resnet"}, "no encoder 'resnet'"),
        ({"members": 3}, "one network that sees it"),
        ({"parts": ("mapper",)}, "one network that sees it"),
    ],
)
def test_what_does_not_fit_together_is_refused(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        preset("cognate", **changes)
    with pytest.raises(UsageError, match="no preset"):
        preset("cognat")


def test_every_pair_counts_once() -> None:
    rng = np.random.default_rng(0)
    told, gains = (torch.from_numpy(rng.normal(size=(2, 9))) for _ in range(2))
    pairs = [(b, i, j) for b in range(2) for i in range(9) for j in range(i)]
    wanted = [
        max(0.0, 1 - float((told[b, i] - told[b, j]) * torch.sign(gains[b, i] - gains[b, j])))
        for b, i, j in pairs
    ]
    found = loss_of("margin", told, gains, noise=10.0, every_pair=True)
    assert float(found) == pytest.approx(np.mean(wanted))


# -- training ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cognate", "waco"])
def test_run_times_reach_the_first_convolution(filled: Path, name: str) -> None:
    encoder = Encoder.drawn(replace(brief(), encoder=name))
    assert encoder.spec["shape"] is (name == "waco")
    samples, reader = read(filled, encoder)
    ids = [row.pattern_id for row in samples.rows[:2]]
    scale = one_scale(encoder.vectors(reader.structures, ids))
    reading = Reading(encoder, reader.structures, scale)
    head = CostNetwork(Shape(128, 4, bilinear=False))
    net = WholeNetwork(encoder.network(), head)
    x = torch.cat([reading.seen(net.encoder, ids), torch.zeros(2, 1)], 1)
    told = net(x, torch.randn(3, 65), torch.randn(3, 4), torch.tensor([[0, 1], [2, 0]]))
    gains = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    loss_of("margin", told, gains, noise=0.0, every_pair=True).backward()
    first = net.encoder.convolutions[0].weight
    assert first.grad is not None and float(first.grad.abs().max()) > 0
    # And every layer behind it.
    for at, layer in enumerate(net.encoder.convolutions):
        assert float(layer.weight.grad.abs().max()) > 0, at


def test_training_moves_the_sparse_network(
    trained: tuple[Whole, Samples, StructureReader],
) -> None:
    whole, _, reader = trained
    for name, before in reader.encoder.weights.items():
        if before.ndim == 3:
            assert not torch.equal(before, whole.encoder.weights[name]), name


def test_it_learns_what_only_the_structure_tells(filled: Path) -> None:
    """Which variant is fastest depends on the length of rows, which no number here says."""
    settings = brief(epochs=8, few_epochs=8, patience=8, lr=1e-3)
    encoder = Encoder.drawn(settings)
    samples, reader = read(filled, encoder)
    made = train_whole(samples, settings, encoder, reader.structures)
    vectors, best = made.encoder.vectors_of(reader.structures, samples), 0
    for at, row in enumerate(samples.rows):
        part = samples.part(at)
        configs = [samples.configs[c] for c in samples.column[part]]
        gain, _ = made.model.score(
            Problem(vectors[row.pattern_id], samples.platform, row.op, row.sizes), configs
        )
        best += int(gain.argmax() == samples.gain[part].argmax())
    # One in four by chance.
    assert best >= len(samples.rows) / 2, f"{best} of {len(samples.rows)}"


def test_an_autoencoder_is_trained_on(filled: Path, tmp_path: Path) -> None:
    file, other = tmp_path / "scnn.safetensors", replace(brief(seed=5), encoder="waco")
    version = Encoder.drawn(other).save(file, {"settings": {"method": "autoencoder"}})
    encoder, start = begun_from(file, brief())
    assert start is None and encoder.reduction == Encoder.drawn(brief()).reduction
    samples, reader = read(filled, encoder)
    made = train_whole(samples, brief(epochs=1, few_epochs=1, lr=1e-9), encoder, reader.structures)
    for name, weight in Encoder.drawn(other).weights.items():
        torch.testing.assert_close(made.encoder.weights[name], weight, atol=1e-5, rtol=0)
    assert made.model.card["parent"] == version
    assert made.encoder.learned_from == {"g0", "g1", "g2", "g3"}


def test_trained_twice_it_is_the_same(
    filled: Path, trained: tuple[Whole, Samples, StructureReader]
) -> None:
    whole, samples, reader = trained
    again = train_whole(samples, brief(), Encoder.drawn(brief()), reader.structures)
    assert whole.model.tensors.keys() == again.model.tensors.keys()
    for name, array in whole.model.tensors.items():
        np.testing.assert_array_equal(array, again.model.tensors[name])


def test_vectors_need_an_encoder_and_an_encoder_structures(filled: Path) -> None:
    samples, reader = read(filled, Encoder.drawn(brief()))
    with pytest.raises(UsageError, match="learns from structures"):
        train(samples, brief())
    with pytest.raises(UsageError, match="nothing in these settings"):
        train_whole(samples, CostSettings(), reader.encoder, reader.structures)


def test_gains_are_not_cut(filled: Path) -> None:
    samples, reader = read(filled, Encoder.drawn(brief()))
    swapped, ends = samples.gain.copy(), samples.indptr[1:]
    swapped[ends - 1], swapped[ends - 2] = -9.0, -20.0
    other = swapped.copy()
    other[ends - 1], other[ends - 2] = -20.0, -9.0
    assert np.array_equal(*(replace(samples, gain=g).targets for g in (swapped, other)))
    weights = [
        train_whole(replace(samples, gain=g), brief(), reader.encoder, reader.structures).model
        for g in (swapped, other)
    ]
    one, two = ([m.tensors[n] for n in sorted(m.tensors)] for m in weights)
    assert any(not np.array_equal(a, b) for a, b in zip(one, two, strict=True))


# -- files -------------------------------------------------------------------------------------


def saved(whole: Whole, file: Path) -> Path:
    whole.save_encoder(file)
    whole.model.save(file)
    return file


def test_two_files_give_the_same_answers(
    trained: tuple[Whole, Samples, StructureReader], tmp_path: Path
) -> None:
    whole, samples, reader = trained
    file = saved(whole, tmp_path / "costmodel-tiny-spmm.safetensors")
    assert encoder_file(file).name == "scnn@tiny-spmm.safetensors"
    read_again = load_whole(file)
    assert read_again.model.card["featurizer"]["name"] == "scnn@tiny-spmm"
    row = samples.rows[0]
    ours = whole.encoder.vectors_of(reader.structures, samples)[row.pattern_id]
    plug = Scnn(encoder_file(file), name="scnn@tiny-spmm")
    assert plug.version == read_again.encoder.version
    pattern = next(p for p in patterns(4) if p.id == row.pattern_id)
    np.testing.assert_allclose(plug.embed(pattern), ours, rtol=1e-6)
    configs = list(samples.configs)
    told = [
        m.score(Problem(ours, samples.platform, row.op, row.sizes), configs)[0]
        for m in (whole.model, read_again.model)
    ]
    np.testing.assert_array_equal(*told)


def test_fine_tuning_goes_on_and_zero_shot_asks_elsewhere(
    trained: tuple[Whole, Samples, StructureReader], tmp_path: Path
) -> None:
    _, samples, reader = trained
    start = load_whole(saved(trained[0], tmp_path / "a.safetensors"))
    still = brief(lr=1e-30)
    fine = train_whole(samples, still, start.encoder, reader.structures, start=start.model)
    for name, before in start.encoder.weights.items():
        torch.testing.assert_close(fine.encoder.weights[name], before)
    assert fine.model.card["parent"] == start.model.version
    spade = load_platform("spade")
    there = retarget(start.model, spade, (OP,))
    configs = list(spade.space(OP, Sizes(9, 9, 9)).enumerate())
    vector = np.zeros(128, dtype=np.float32)
    gain, _ = there.score(Problem(vector, spade, OP, Sizes(9, 9, 9)), configs)
    assert np.isfinite(gain).all() and np.ptp(gain) > 0


def test_files_that_do_not_fit_are_refused(
    trained: tuple[Whole, Samples, StructureReader], tmp_path: Path
) -> None:
    file = saved(trained[0], tmp_path / "a.safetensors")
    encoder = encoder_file(file)
    data = encoder.read_bytes()
    encoder.write_bytes(data[:-7])
    with pytest.raises(ModelError):
        load_whole(file)
    replace(trained[0].encoder, reduction=trained[0].encoder.reduction).save(encoder, {"x": 1})
    with pytest.raises(ModelError, match="of another version"):
        load_whole(file)
    encoder.unlink()
    with pytest.raises(ModelError):
        load_whole(file)
    with pytest.raises(UsageError, match="is named after it"):
        encoder_file(tmp_path / "my model.safetensors")


def test_an_encoder_names_the_groups_whose_run_times_it_learned(
    trained: tuple[Whole, Samples, StructureReader], tmp_path: Path
) -> None:
    whole, samples, reader = trained
    file = encoder_file(saved(whole, tmp_path / "a.safetensors"))
    assert learned_from(Scnn(file)) == {"g0", "g1", "g2", "g3"}
    assert learned_from(StatsScnn(file)) == learned_from(Scnn(file))
    reader.encoder.save(tmp_path / "drawn.safetensors", {"settings": {"method": "autoencoder"}})
    assert not learned_from(Scnn(tmp_path / "drawn.safetensors"))
    start = load_whole(tmp_path / "a.safetensors")
    here = samples.take(np.flatnonzero(samples.groups != "g0"))
    tuned = train_whole(here, brief(), start.encoder, reader.structures, start=start.model)
    assert tuned.encoder.learned_from == {"g0", "g1", "g2", "g3"}  # of its start, too


def test_an_encoder_that_does_not_name_them_is_not_installed(
    trained: tuple[Whole, Samples, StructureReader], tmp_path: Path
) -> None:
    """One of an earlier version: held-out answers by it would be of matrices that it knows."""
    file = tmp_path / "scnn@old.safetensors"
    replace(trained[0].encoder, learned_from=None).save(file, {"settings": {"method": "run times"}})
    with pytest.raises(ModelError, match="groups that its card does not name"):
        Scnn(file)
    plug = Scnn(file, name="scnn@old")  # its cost model reads it
    assert learned_from(plug)
    assert Encoder.load(file).learned_from is None


def test_answers_are_not_judged_by_an_encoder_that_knows_them(
    filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, file = shutil.copytree(filled, tmp_path / "runs.db"), tmp_path / "new.safetensors"
    groups = frozenset(f"g{at}" for at in range(4))
    drawn = Encoder.drawn(brief())

    def knows(plug: Scnn, pattern: Pattern) -> np.ndarray:
        return np.eye(plug.dim, dtype=np.float32)[winner(pattern)]

    monkeypatch.setattr(Scnn, "embed", knows)
    with Database.open(folder) as db:
        for learned in (frozenset[str](), groups):
            replace(drawn, learned_from=learned).save(file, {})
            db.index.use_weights(file)
            (partition,) = embed(db.index, again=True).partitions
            bench = Bench(db.index, OP, "tiny")
            assert ("scnn" in bench.vectors) == (not learned)
            assert len(bench.counted) == 16 and not bench.biased
        assert partition["featurizer"] == "stats"
        bench = Bench(db.by_featurizer("scnn").index, OP, "tiny")
        assert not bench.ready and bench.biased == groups
        said = list[str]()
        with pytest.raises(NothingFound):
            evaluate(db.by_featurizer("scnn").index, note=said.append)
        assert any("4 groups not judged" in line for line in said)


# -- the command -------------------------------------------------------------------------------


def test_the_command_trains_judges_and_answers(
    filled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(filled, tmp_path / "runs.db")
    words = ["train", "costmodel", str(folder), "--platform", "tiny", "--op", "spmm:32"]
    words += ["--preset", "cognate", "--epochs", "2", "--sites", "8"]
    assert run_verb([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["featurizer"]["name"] == "scnn@tiny-spmm"
    assert (told["settings"]["epochs"], told["settings"]["lr"]) == (2, 1e-4)
    assert set(told["held_out"]["spmm:32"]) == {"transfer", "rank", "transfer+rank"}
    models = folder / "models"
    assert (models / "scnn@tiny-spmm.safetensors").is_file()
    with Database.open(folder, readonly=True) as db:
        # Found by its name, and no candidate for the index: it has seen all run times.
        assert "scnn@tiny-spmm" in db.index.featurizers()
        assert "scnn@tiny-spmm" not in list(db.index.featurizers())
        asked = next(p for p in patterns(5) if p.group == "g4")
        answer = db.query(asked, platform="tiny", op="spmm:32")
        assert answer.candidates
        model, why = db.index.usable_model(db.platform("tiny"), OP)
        assert why == "" and isinstance(model, CostModel) and model.plain
        assert {e.file for e in db.store.models.entries()} >= {
            "scnn@tiny-spmm.safetensors",
            "costmodel-tiny-spmm.safetensors",
        }


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--preset", "cognat"), "no preset"),
        (("--preset", "cognate", "--predictor", "trees"), "a preset's predictor"),
        (("--preset", "cognate", "-o", "a b.safetensors"), "named after it"),
        (("--preset", "cognate", "--from", "none.safetensors"), "no such file"),
        (("--preset", "cognate", "--from", str(SHIPPED)), "its network is waco, not cognate"),
    ],
)
def test_the_command_refuses_a_preset_in_one_line(
    filled: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], told: str
) -> None:
    base = ["train", "costmodel", str(filled), "--platform", "tiny", "--op", "spmm:32"]
    assert run_verb([*base, *words]) != 0
    err = capsys.readouterr().err
    assert told in err
    assert "Traceback" not in err
