"""Training: the loop, its checkpoints and its curves."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embeddb.core.errors import InputError, ModelError
from embeddb.core.files import model_file

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

from indexer.training.folder import checkpoint_of, curve_of, forget, read_curve  # noqa: E402
from indexer.training.trainer import Fitted, Job, Settings, fit  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.usefixtures("one_thread")


def quiet(what: str, done: int, total: int) -> None:
    pass


class Toy:
    """A small network with dropout and batch statistics: its state is more than its weights."""

    def __init__(self, *, stop_at: int = -1, bad_at: int = -1, losses: list[float] | None = None):
        torch.manual_seed(3)
        self.module = nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 1)
        )
        self.x = torch.randn(32, 4)
        self.y = self.x[:, :1] * 2 - self.x[:, 1:2]
        self.seen = 0
        self.stop_at, self.bad_at, self.losses = stop_at, bad_at, losses

    def job(self) -> Job:
        return Job(steps=4, batches=self.batches, loss=self.loss, validate=self.validate)

    def batches(self, epoch: int) -> Iterator[Tensor]:
        order = torch.from_numpy(np.random.default_rng(epoch).permutation(32))
        yield from order.split(8)

    def loss(self, batch: Tensor) -> Tensor:
        self.seen += 1
        if self.seen == self.stop_at:
            raise KeyboardInterrupt
        scale = float("nan") if self.seen == self.bad_at else 1.0
        return scale * nn.functional.mse_loss(self.module(self.x[batch]), self.y[batch])

    def validate(self) -> dict[str, float]:
        if self.losses is not None:
            return {"valid_loss": self.losses.pop(0)}
        return {"valid_loss": nn.functional.mse_loss(self.module(self.x), self.y).item()}

    def fit(self, folder: Path, **settings: Any) -> Fitted:
        settings = {"epochs": 6, "lr": 0.01, **settings}
        return fit(
            self.module, self.job(), settings=Settings(**settings), folder=folder, progress=quiet
        )


def weights(module: nn.Module) -> dict[str, bytes]:
    return {name: value.numpy().tobytes() for name, value in module.state_dict().items()}


def figures(folder: Path) -> list[dict[str, float]]:
    """The curve without what the clock says."""
    lines = read_curve(curve_of(folder))
    return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]


@pytest.mark.parametrize("stop_at", [1, 2, 5, 9, 16, 23])
def test_stopped_and_resumed_is_the_same_to_the_bit(tmp_path: Path, stop_at: int) -> None:
    whole = Toy()
    wanted = whole.fit(tmp_path / "whole")
    stopped = Toy(stop_at=stop_at)
    with pytest.raises(KeyboardInterrupt):
        stopped.fit(tmp_path / "cut")
    assert checkpoint_of(tmp_path / "cut").exists() == (stop_at > 4)
    torch.manual_seed(99)  # another process has another global state
    again = Toy()
    for value in again.module.state_dict().values():
        value.zero_()
    if stop_at <= 4:
        again = Toy()
    assert again.fit(tmp_path / "cut") == wanted
    assert weights(again.module) == weights(whole.module)
    assert figures(tmp_path / "cut") == figures(tmp_path / "whole")
    assert not list((tmp_path / "cut").glob("*.tmp"))


def test_stopped_again_and_again(tmp_path: Path) -> None:
    whole = Toy()
    whole.fit(tmp_path / "whole")
    for stop_at in (7, 6, 5, 8):
        with pytest.raises(KeyboardInterrupt):
            Toy(stop_at=stop_at).fit(tmp_path / "cut")
    last = Toy()
    last.fit(tmp_path / "cut")
    assert weights(last.module) == weights(whole.module)
    assert [line["epoch"] for line in figures(tmp_path / "cut")] == [1, 2, 3, 4, 5, 6]


_KILLED = """
import sys, time
from pathlib import Path
sys.path.insert(0, {tests!r})
import torch
from test_training import Toy
torch.set_num_threads(1)
toy = Toy()
loss = toy.loss
def slow(batch):
    time.sleep(0.01)
    return loss(batch)
toy.loss = slow
toy.fit(Path(sys.argv[1]), epochs=40, patience=40)
"""


@pytest.mark.slow
def test_killed_and_resumed_is_the_same_to_the_bit(tmp_path: Path) -> None:
    whole = Toy()
    whole.fit(tmp_path / "whole", epochs=40, patience=40)
    cut = tmp_path / "cut"
    script = _KILLED.format(tests=str(Path(__file__).parent))
    for kill in range(3):
        process = subprocess.Popen([sys.executable, "-c", script, str(cut)], cwd=ROOT)
        target, limit = 6 * (kill + 1), time.monotonic() + 60
        while process.poll() is None and time.monotonic() < limit:
            if curve_of(cut).exists() and len(read_curve(curve_of(cut))) >= target:
                break
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    last = Toy()
    last.fit(cut, epochs=40, patience=40)
    assert weights(last.module) == weights(whole.module)
    assert figures(cut) == figures(tmp_path / "whole")


def test_a_kill_between_curve_and_checkpoint_leaves_no_line_twice(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        Toy(stop_at=9).fit(tmp_path)
    with curve_of(tmp_path).open("a") as out:
        out.write('{"epoch": 3, "train_loss": 7.0, "valid_loss": 7.0, "seconds": 0}\n')
    Toy().fit(tmp_path)
    lines = figures(tmp_path)
    assert [line["epoch"] for line in lines] == [1, 2, 3, 4, 5, 6] and lines[2]["valid_loss"] < 7


def test_a_torn_curve_does_not_stop_a_training(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        Toy(stop_at=9).fit(tmp_path)
    curve_of(tmp_path).write_text('{"epoch": 1, "train')
    assert Toy().fit(tmp_path).epochs == 6
    assert [line["epoch"] for line in figures(tmp_path)] == [3, 4, 5, 6]


def test_the_best_weights_are_kept_and_patience_ends_it(tmp_path: Path) -> None:
    losses = [5.0, 4.0, 3.0, 3.5, 3.0, 3.2, 1.0]
    at_best: dict[str, bytes] = {}

    class Watched(Toy):
        def validate(self) -> dict[str, float]:
            assert not self.module.training and not torch.is_grad_enabled()
            found = super().validate()
            if len(losses) == 4:
                at_best.update(weights(self.module))
            return found

    toy = Watched(losses=losses)
    found = toy.fit(tmp_path, epochs=50, patience=3)
    assert (found.epochs, found.best_epoch, found.stopped_early) == (6, 3, True)
    assert found.figures == {"valid_loss": 3.0}
    assert weights(toy.module) == at_best and not toy.module.training
    # Asked again, a finished training is finished.
    again = Toy(losses=[])
    assert again.fit(tmp_path, epochs=50, patience=3) == found
    assert weights(again.module) == at_best and again.seen == 0


def test_more_epochs_go_on_where_fewer_ended(tmp_path: Path) -> None:
    whole = Toy()
    whole.fit(tmp_path / "whole", epochs=6)
    Toy().fit(tmp_path / "parts", epochs=2)
    parts = Toy()
    parts.fit(tmp_path / "parts", epochs=6)
    assert weights(parts.module) == weights(whole.module)


def test_the_global_random_state_is_left_alone(tmp_path: Path) -> None:
    toy = Toy()
    before = torch.get_rng_state()
    toy.fit(tmp_path, epochs=1)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_seed_counts(tmp_path: Path) -> None:
    first, second = Toy(), Toy()
    first.fit(tmp_path / "a", seed=1)
    second.fit(tmp_path / "b", seed=2)
    assert weights(first.module) != weights(second.module)


def test_progress_counts_batches_and_goes_on_when_resumed(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    with pytest.raises(KeyboardInterrupt):
        Toy(stop_at=6).fit(tmp_path, epochs=2)
    toy = Toy()
    settings = Settings(epochs=2, lr=0.01)
    fit(
        toy.module,
        toy.job(),
        settings=settings,
        folder=tmp_path,
        progress=lambda *seen: told.append(seen),
    )
    assert told == [("train", done, 8) for done in (5, 6, 7, 8)]


def test_a_loss_that_is_not_finite_stops_and_the_epoch_before_is_kept(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="loss is nan in epoch 3") as failed:
        Toy(bad_at=10).fit(tmp_path)
    assert "--lr" in failed.value.hint
    assert len(figures(tmp_path)) == 2
    with pytest.raises(ModelError, match="valid_loss is inf in epoch 1"):
        Toy(losses=[float("inf")]).fit(tmp_path / "other")
    assert not checkpoint_of(tmp_path / "other").exists()


def test_a_checkpoint_of_another_training_is_not_gone_on_with(tmp_path: Path) -> None:
    Toy().fit(tmp_path, epochs=2, run="a")
    for other in ({"run": "b"}, {"run": "a", "lr": 0.02}, {"run": "a", "seed": 5}):
        with pytest.raises(ModelError, match="other data, another network or other settings"):
            Toy().fit(tmp_path, **other)
    forget(tmp_path)
    assert Toy().fit(tmp_path, epochs=1, run="b").epochs == 1


@pytest.mark.parametrize(
    "harm",
    ["cut", "shape", "missing", "card", "moments", "rng", "more", "step", "steps", "best", "huge"],
)
def test_a_damaged_checkpoint_is_one_line(tmp_path: Path, harm: str) -> None:
    Toy().fit(tmp_path, epochs=2)
    file = checkpoint_of(tmp_path)
    if harm == "cut":
        file.write_bytes(file.read_bytes()[:-40])
    else:
        tensors, card = model_file.load(file, kind="checkpoint")
        if harm == "shape":
            tensors["best/0.weight"] = torch.zeros(3, 3)
        elif harm == "missing":
            del tensors["weights/0.weight"]
        elif harm == "moments":
            tensors["exp_avg/0.weight"] = torch.zeros(1)
        elif harm == "rng":
            tensors["rng"] = torch.zeros(3, dtype=torch.uint8)
        elif harm == "more":
            tensors["best/9.weight"] = torch.zeros(1)
        elif harm == "step":
            tensors["step/0.weight"] = torch.tensor(-1.0)
        elif harm == "steps":
            tensors["step/0.weight"] = torch.ones(5)
        elif harm == "best":
            card["best"] = []
        elif harm == "huge":
            card["best"] = {"valid_loss": 10**400}
        else:
            card["best_epoch"] = 9
        model_file.save(file, tensors, card)
    with pytest.raises(ModelError) as failed:
        Toy().fit(tmp_path, epochs=4)
    assert "\n" not in str(failed.value) and str(file) in str(failed.value)


# -- curves ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no lines"),
        ("not json\n", ":1: not a line"),
        ('{"epoch": 1, "a": 2}\n{"epoch": 2, "a": NaN}\n', ":2: not a line"),
        ('{"epoch": 1, "a": "x"}\n', ":1: not a line"),
        ('{"a": 1}\n', ":1: a line without its epoch"),
        ('{"epoch": 1, "a": ' + "9" * 400 + "}\n", ":1: not a line"),
        ("[" * 100_000, ":1: not a line"),
    ],
)
def test_what_is_no_curve_is_refused(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "curve.jsonl"
    file.write_text(text)
    with pytest.raises(InputError, match=said):
        read_curve(file)


def test_a_training_goes_through_no_link(tmp_path: Path) -> None:
    """A folder beside a model that somebody else packed."""
    home, folder = tmp_path / "home", tmp_path / "net.training"
    home.mkdir()
    (home / "checkpoint.safetensors").write_bytes(b"mine")
    folder.symlink_to(home)
    with pytest.raises(ModelError, match="a link or file where a folder of ours would be"):
        Toy().fit(folder)
    with pytest.raises(OSError, match="a link or file where a folder of ours would be"):
        forget(folder)
    forget(tmp_path / "none")
    assert [file.read_bytes() for file in home.iterdir()] == [b"mine"]
