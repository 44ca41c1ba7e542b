"""The featurizer's training: the dataset, the autoencoder, the command."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from command_line import run_verb

from embeddb.core.errors import InputError
from embeddb.core.files import model_file
from embeddb.featurizers.network.reduction import Reduction
from indexer.training.featurizer import dataset
from indexer.training.featurizer.dataset import Dataset, Recipe, read_dataset

torch = pytest.importorskip("torch")

from embeddb.featurizers.network.networks import build  # noqa: E402
from indexer.training.featurizer import pretrain as pretraining  # noqa: E402
from indexer.training.folder import checkpoint_of, curve_of, read_curve  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]
SMALL = Reduction(size=16)
pytestmark = pytest.mark.usefixtures("one_thread")


def quiet(what: str, done: int, total: int) -> None:
    pass


# -- the dataset -------------------------------------------------------------------------------


def write_matrices(folder: Path, families: int = 10, *, each: int = 2) -> str:
    """Bands and random patterns of a few sizes, two to a family; the manifest's path."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(5)
    lines = ["name,family"]
    for family in range(families):
        for member in range(each):
            size = 40 + 16 * family + member
            name = f"f{family}m{member}"
            if family % 2:
                found = sp.random(size, size, density=0.05, random_state=rng, format="csr")
            else:
                found = sp.diags([1.0] * 3, [-1, 0, 1 + family], shape=(size, size), format="csr")
            sp.save_npz(folder / f"{name}.npz", sp.csr_matrix(found))
            lines.append(f"{name},family{family}")
    manifest = folder / "MANIFEST.csv"
    manifest.write_text("\n".join(lines) + "\n")
    return str(manifest)


def read(folder: Path, *, families: int = 10, **recipe: Any) -> Dataset:
    groups = {f"f{f}m{m}": f"family{f}" for f in range(families) for m in range(2)}
    return read_dataset(folder, Recipe(SMALL, **recipe), groups=groups, progress=quiet)


def test_groups_are_split_whole_and_copies_stay_with_their_source(tmp_path: Path) -> None:
    write_matrices(tmp_path)
    splits = set()
    for seed in range(4):
        data = read(tmp_path, copies=3, seed=seed)
        train, valid = ({s.group for s in part} for part in (data.train, data.valid))
        assert not train & valid and len(train | valid) == data.groups == 10
        assert len(valid) == 2 and data.patterns == 20
        assert not {s.source for s in data.train} & {s.source for s in data.valid}
        assert len(data.train) + len(data.valid) > 60
        splits.add(frozenset(valid))
    assert len(splits) > 1


def test_the_same_seed_reads_the_same_and_a_file_more_changes_no_other(tmp_path: Path) -> None:
    write_matrices(tmp_path)
    first, again, other = read(tmp_path), read(tmp_path), read(tmp_path, seed=1)
    assert first.hash == again.hash == other.hash and len(first.hash) == 16

    def content(data: Dataset) -> dict[str, list[bytes]]:
        found: dict[str, list[bytes]] = {}
        for s in (*data.train, *data.valid):
            found.setdefault(s.source, []).append(s.input.coords.tobytes() + s.density.tobytes())
        return found

    assert content(first) == content(again) != content(other)
    sp.save_npz(tmp_path / "aaa.npz", sp.csr_matrix(np.eye(9)))
    more = read(tmp_path)
    assert more.hash != first.hash
    assert content(first).items() <= content(more).items()


def test_files_that_cannot_be_used_become_problems(tmp_path: Path) -> None:
    write_matrices(tmp_path)
    (tmp_path / "broken.mtx").write_text("%%MatrixMarket matrix coordinate real general\n9 9")
    (tmp_path / "zz.npz").write_bytes((tmp_path / "f0m0.npz").read_bytes())
    data = read(tmp_path, copies=0)
    assert data.patterns == len(data.train) + len(data.valid) == 20
    assert len(data.problems) == 2
    assert "broken.mtx" in data.problems[0] and "same structure as f0m0" in data.problems[1]


def test_empty_patterns_are_samples_without_copies(tmp_path: Path) -> None:
    write_matrices(tmp_path)
    sp.save_npz(tmp_path / "nothing.npz", sp.csr_matrix((30, 20)))
    data = read(tmp_path, copies=2)
    (empty,) = (s for s in (*data.train, *data.valid) if s.group == "nothing")
    assert empty.input.coords.shape == (0, 2) and not empty.density.any()


def test_too_few_groups_is_one_line_that_counts_them(tmp_path: Path) -> None:
    write_matrices(tmp_path, families=5)
    with pytest.raises(InputError, match="5 groups of matrices are too few") as few:
        read(tmp_path)
    assert "at least 8" in str(few.value)


def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_matrices(tmp_path)
    monkeypatch.setattr(dataset, "_MOST_BYTES", 50_000)
    with pytest.raises(InputError, match="samples need more than") as much:
        read(tmp_path)
    assert "--copies" in much.value.hint


# -- the autoencoder ---------------------------------------------------------------------------


def model_of(data: Dataset, *, name: str = "waco") -> Any:
    encoder = build({"name": name, "dim": 16, "in_channels": 3})
    shapes = torch.stack([torch.from_numpy(s.input.shape) for s in data.train])
    pictures = torch.stack([torch.from_numpy(s.density) for s in data.train])
    return pretraining.Autoencoder(encoder, 16, shapes=shapes, pictures=pictures)


def test_the_loss_is_the_sum_of_two_mean_squared_errors(tmp_path: Path) -> None:
    write_matrices(tmp_path)
    data = read(tmp_path, copies=0)
    model = model_of(data)
    job = pretraining.job_of(model, (data.train, data.valid), size=3, seed=0)
    (batch, *others) = job.batches(1)
    assert len(batch.samples) == 3 and job.steps == 1 + len(others) == 6
    tensor, shapes = pretraining.collate([s.input for s in batch.samples])
    shape, density = model(tensor, shapes)
    assert shape.shape == (3, 3) and density.shape == (3, 32, 32)
    wanted = np.stack([s.density for s in batch.samples])
    loss = ((shape - shapes) ** 2).mean() + ((density - torch.from_numpy(wanted)) ** 2).mean()
    torch.testing.assert_close(job.loss(batch), loss)
    # The validation weighs samples, not batches: 4 samples are batches of 3 and 1.
    with torch.no_grad():
        figures = job.validate()
        each = [job.loss(pretraining.Batch([sample])).item() for sample in data.valid]
    assert len(data.valid) == 4
    assert figures["valid_loss"] == pytest.approx(np.mean(each), rel=1e-5)
    assert figures["valid_loss"] == figures["valid_shape"] + figures["valid_density"]


def test_the_mean_is_what_a_network_must_beat(tmp_path: Path) -> None:
    write_matrices(tmp_path)
    data = read(tmp_path, copies=0)
    found = pretraining.mean_errors(data.train, data.valid)
    taught = np.mean([s.input.shape for s in data.train], axis=0)
    wanted = np.mean([((s.input.shape - taught) ** 2).mean() for s in data.valid])
    assert found["valid_shape"] == pytest.approx(wanted, rel=1e-5)
    assert found["valid_loss"] == found["valid_shape"] + found["valid_density"]
    itself = pretraining.mean_errors(data.train[:1], data.train[:1])
    assert set(itself.values()) == {0.0}


def test_each_epoch_reads_every_sample_once_in_an_order_of_its_own(tmp_path: Path) -> None:
    write_matrices(tmp_path)
    data = read(tmp_path, copies=1)
    model = model_of(data)

    def order(seed: int, epoch: int) -> list[tuple[str, ...]]:
        sides = (data.train, data.valid)
        job = pretraining.job_of(model, sides, size=4, seed=seed)
        made = list(job.batches(epoch))
        assert sorted(map(id, chain.from_iterable(b.samples for b in made))) == sorted(
            map(id, data.train)
        )
        return [tuple(s.source for s in b.samples) for b in made]

    assert order(0, 1) == order(0, 1) != order(0, 2)
    assert sorted(order(0, 1)) == sorted(order(0, 2)) != sorted(order(1, 1))


def test_kept_maps_are_bounded_and_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_matrices(tmp_path)
    data = read(tmp_path, copies=0)
    sites = [len(s.input.coords) for s in data.train]
    some = pretraining.batches_of(data.train, 1, room=sum(sites[:5]))
    assert [b.keep for b in some] == [True] * 5 + [False] * (len(sites) - 5)
    losses = []
    for room in (0, 10**9):
        monkeypatch.setattr(pretraining, "_KEPT_SITES", room)
        torch.manual_seed(0)
        model = model_of(data)
        job = pretraining.job_of(model, (data.train, data.valid), size=4, seed=0)
        for epoch in (1, 2):
            batches = list(job.batches(epoch))
            losses.append([job.loss(batch).item() for batch in batches])
            assert all((batch.cached is not None) == bool(room) for batch in batches)
    assert losses[:2] == losses[2:]


@pytest.mark.parametrize("name", ["cognate", "waco"])
def test_every_weight_is_taught(tmp_path: Path, name: str) -> None:
    write_matrices(tmp_path, each=1)
    data = read(tmp_path, copies=0)
    model = model_of(data, name=name)
    job = pretraining.job_of(model, (data.train, data.valid), size=8, seed=0)
    job.loss(next(iter(job.batches(1)))).backward()
    flat = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert not flat


# -- the command -------------------------------------------------------------------------------

QUICK = ["--network", "waco", "--size", "16", "--copies", "1", "--threads", "1"]


def command(folder: Path, *words: str) -> list[str]:
    manifest = str(folder / "m" / "MANIFEST.csv")
    out = str(folder / "net.safetensors")
    head = ["train", "featurizer", str(folder / "m"), "-o", out, "--manifest", manifest]
    return [*head, *QUICK, *words]


def test_a_featurizer_is_trained_and_its_card_says_how(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_matrices(tmp_path / "m")
    assert run_verb(command(tmp_path, "--epochs", "4", "--json")) == 0
    document = json.loads(capsys.readouterr().out)
    out = tmp_path / "net.safetensors"
    tensors, card = model_file.load(out, kind="featurizer")
    assert document["version"] == model_file.version_of(out)
    assert {**card, "file": str(out)}.items() <= document.items()
    assert card["patterns"] == 20 and card["groups"] == 10 and card["settings"]["copies"] == 1
    assert card["network"]["name"] == "waco" and card["reduction"]["size"] == 16
    assert card["seed"] == 0 and card["code"] and card["created"] and len(card["data"]) == 16
    lines = read_curve(Path(document["curve"]))
    best = min(lines, key=lambda line: line["valid_loss"])
    assert len(lines) == card["epochs"] == 4 and best["epoch"] == card["best_epoch"]
    assert card["metrics"]["valid_loss"] == pytest.approx(best["valid_loss"], abs=1e-6)
    assert lines[-1]["train_loss"] < lines[0]["train_loss"]
    model_file.fill(build(card["network"]), tensors)
    assert not checkpoint_of(tmp_path / "net.training").exists()
    # The same command makes the same weights; the date alone differs.
    assert run_verb(command(tmp_path, "--epochs", "4")) == 0
    said = capsys.readouterr().out
    again, _ = model_file.load(out, kind="featurizer")
    assert all(torch.equal(tensors[name], again[name]) for name in tensors)
    assert model_file.version_of(out) in said and "valid loss" in said
    svg = str(tmp_path / "c.svg")
    assert run_verb(["plot", "training", document["curve"], "-o", svg, "--json"]) == 0
    drawn = json.loads(capsys.readouterr().out)
    assert drawn["file"] == svg and "valid_density" in drawn["figures"]


def test_ctrl_c_says_how_to_go_on_and_that_command_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_matrices(tmp_path / "m")
    whole = command(tmp_path, "--epochs", "4")
    assert run_verb(whole) == 0
    wanted, _ = model_file.load(tmp_path / "net.safetensors", kind="featurizer")
    (tmp_path / "net.safetensors").unlink()
    capsys.readouterr()
    seen: list[int] = []
    plain = model_file.save

    def stopping(*args: Any) -> str:
        seen.append(1)
        if len(seen) == 3:
            raise KeyboardInterrupt
        return plain(*args)

    with monkeypatch.context() as patch:
        patch.setattr(model_file, "save", stopping)
        assert run_verb(whole) == 130
    said = capsys.readouterr().err
    again = said.partition("continue with: embeddb ")[2].splitlines()[0]
    assert again.endswith("--resume")
    # Without --resume the half-trained network is not thrown away.
    assert run_verb(whole) == 2
    assert "--resume" in capsys.readouterr().err
    assert run_verb(command(tmp_path, "--epochs", "4", "--resume", "--copies", "2")) == 1
    assert "other settings" in capsys.readouterr().err
    assert run_verb(shlex.split(again)) == 0
    found, _ = model_file.load(tmp_path / "net.safetensors", kind="featurizer")
    assert all(torch.equal(wanted[name], found[name]) for name in wanted)
    assert len(read_curve(tmp_path / "net.training" / "curve.jsonl")) == 4


@pytest.mark.slow
def test_a_killed_command_goes_on(tmp_path: Path) -> None:
    write_matrices(tmp_path / "m")
    words = command(tmp_path, "--epochs", "12", "--patience", "12")
    assert run_verb(words) == 0
    wanted, _ = model_file.load(tmp_path / "net.safetensors", kind="featurizer")
    (tmp_path / "net.safetensors").unlink()
    curve_of(tmp_path / "net.training").unlink()
    for kind in (signal.SIGKILL, signal.SIGINT):
        resume = ["--resume"] if kind is signal.SIGINT else []
        process = subprocess.Popen(
            [sys.executable, "-m", "embeddb.ui.cli.main", *words, *resume],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        file, limit = curve_of(tmp_path / "net.training"), time.monotonic() + 60
        lines = 3 if kind is signal.SIGKILL else 6
        while time.monotonic() < limit and process.poll() is None:
            if file.exists() and len(read_curve(file)) >= lines:
                break
            time.sleep(0.002)
        process.send_signal(kind)
        _, said = process.communicate()
    assert process.returncode == 130 and "continue with:" in said
    assert run_verb([*words, "--resume"]) == 0
    found, _ = model_file.load(tmp_path / "net.safetensors", kind="featurizer")
    assert all(torch.equal(wanted[name], found[name]) for name in wanted)


def test_what_cannot_be_trained_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_matrices(tmp_path / "m", families=3)
    cases = [
        (command(tmp_path), 1, "3 groups"),
        (["train", "featurizer", str(tmp_path / "none"), "-o", "x"], 1, "not a folder"),
        (["train", "featurizer", str(tmp_path / "m"), "-o", str(tmp_path / "no" / "x")], 2, "no"),
        (["train", "featurizer", str(tmp_path / "m"), "-o", str(tmp_path)], 2, "a folder, not"),
        (["train", "featurizer", str(tmp_path / "m"), "-o", "/"], 2, "a folder, not"),
        (["train", "featurizer", str(tmp_path / "m"), "-o", ""], 2, "a folder, not"),
        ([*command(tmp_path), "--lr", "nan"], 2, "'nan' is not a number"),
    ]
    for words, code, said in cases:
        assert run_verb(words) == code
        error = capsys.readouterr().err.splitlines()[-1]
        assert error.startswith("embeddb: ") and said in error
    monkeypatch.delitem(sys.modules, "indexer.training.featurizer.pretrain")
    monkeypatch.setitem(sys.modules, "torch", None)
    assert run_verb(command(tmp_path)) == 1
    assert "learn" in capsys.readouterr().err
