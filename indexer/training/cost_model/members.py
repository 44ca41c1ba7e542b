"""One member of a cost model: its network, its batches, its training."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from embeddb.core.reports import Progress
from embeddb.cost_model.network_numpy import FORMS
from indexer.training.cost_model.encoder import Reading, WholeNetwork
from indexer.training.cost_model.losses import figures, loss_of, mean_figures
from indexer.training.cost_model.tables import Tables
from indexer.training.cost_model.trees import FittedMember
from indexer.training.trainer import Job, Settings, fit

if TYPE_CHECKING:
    from indexer.training.cost_model.settings import CostSettings

#: Fewest batches of an epoch: few samples would otherwise mean few steps.
_LEAST_STEPS = 16

Floats = NDArray[np.float64]


class _Averaged(nn.Module):
    """A network and the running mean of its weights, which is evaluated and saved: it acts like a
    falling learning rate, and does not depend on the length of the training."""

    def __init__(self, net: nn.Module, mean: nn.Module, average: float) -> None:
        super().__init__()
        self.net = net
        self.add_module("kept", mean.requires_grad_(False))  # its name in checkpoints
        mean.load_state_dict(net.state_dict())
        self.average = average
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    @property
    def mean(self) -> nn.Module:
        return self.get_submodule("kept")

    @torch.no_grad()
    def follow(self) -> None:
        """Update the mean, which is over few steps at first to forget the initial weights."""
        steps = self.get_buffer("steps")
        steps += 1
        share = 1 - min(self.average, float(steps) / (float(steps) + 9))
        for mean, own in zip(self.mean.parameters(), self.net.parameters(), strict=True):
            mean.lerp_(own, share if self.average else 1.0)


@dataclass(eq=False)
class Member:
    """Training data and settings of a member; its batches, loss and figures for `trainer.Job`.

    `prior` float64[x] of every entry, `unseen` bool[r] the rows it does not learn from, `run` the
    name of the whole training. With `stops` these rows end it early, which makes their figures
    slightly optimistic, more so with few rows. With `reading` its network has a sparse one in
    front, trained with it."""

    tables: Tables
    prior: Floats
    settings: CostSettings
    unseen: NDArray[np.bool_]
    index: int
    run: str
    stops: bool = True
    reading: Reading | None = None

    def __post_init__(self) -> None:
        s, self.samples = self.settings, self.tables.samples
        self.seed = s.seed * 1000 + self.index
        self.early = self.stops and bool(self.unseen.any())
        self.rows = np.flatnonzero(~self.unseen)
        self.nests, self.latents = (torch.from_numpy(a) for a in self.tables.seen)
        self.x = torch.from_numpy(self.tables.x)
        # Matrices with fewer configurations repeat some.
        self.width = int(min(s.configs, max(2, np.diff(self.samples.indptr)[self.rows].max())))
        each = -(-len(self.rows) // s.batch)
        self.passes = max(s.passes, -(-_LEAST_STEPS // each))
        self.steps = each * self.passes
        # Differences within the noise of one configuration's runs are no order.
        self.noise = float(np.log1p(self.samples.noise))
        # End to end, as the papers train, no gain is cut.
        self.gain = self.samples.targets if self.reading is None else self.samples.gain

    def fit(
        self, first: Mapping[str, NDArray[Any]] | None, folder: Path, progress: Progress
    ) -> FittedMember:
        """Train the network, from the weights `first` if there are any."""
        s, early = self.settings, self.early
        d, e = self.x.shape[1] - 1, self.latents.shape[1]
        form, options = FORMS[s.predictor], asdict(s)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            head = form.network(d, e, options, s.dropout)
            if first is not None:
                head.load_state_dict({n: torch.from_numpy(a.copy()) for n, a in first.items()})
            net, mean = head, form.network(d, e, options)  # the mean weights are without dropout
            if self.reading is not None:
                own = self.reading.encoder
                net, mean = WholeNetwork(own.network(), net), WholeNetwork(own.network(), mean)
            self.module = _Averaged(net, mean, s.average)
        settings = Settings(
            epochs=s.epochs if early else s.few_epochs,
            lr=s.lr,
            patience=s.patience if early else s.few_epochs,
            watch="valid_loss" if early else "epochs_left",
            seed=self.seed,
            run=json.dumps([self.run, self.index]),
        )
        job = Job(self.steps, self.batches, self.loss, self.validate, self.module.follow)
        fitted = fit(self.module, job, settings=settings, folder=folder, progress=progress)
        with torch.no_grad():
            scores = {int(i): self.scores(int(i)) for i in np.flatnonzero(self.unseen)}
        weights = {name: a.numpy().copy() for name, a in self.module.mean.state_dict().items()}
        return FittedMember(weights, scores, dict(fitted.figures), fitted.epochs)

    def batches(self, epoch: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Rows int64[b] and entries int64[b,k]."""
        rng = np.random.default_rng([self.seed, epoch])
        batch = self.settings.batch
        for _ in range(self.passes):
            order = rng.permutation(self.rows)
            for start in range(0, len(order), batch):
                rows = order[start : start + batch]
                yield rows, np.stack([self._drawn(int(i), rng) for i in rows])

    def _drawn(self, row: int, rng: np.random.Generator) -> NDArray[np.int64]:
        start, stop = self.samples.indptr[row], self.samples.indptr[row + 1]
        count = int(stop - start)
        drawn = rng.permutation(count)[: self.width]
        if len(drawn) < self.width:
            drawn = np.concatenate([drawn, rng.integers(0, count, self.width - len(drawn))])
        entries: NDArray[np.int64] = start + drawn
        return entries

    def loss(self, batch: tuple[NDArray[np.int64], NDArray[np.int64]]) -> Tensor:
        rows, entries = batch
        x = self._read(self.module.net, rows)
        if self.settings.noise:
            jitter = self.settings.noise * torch.randn(x.shape)
            jitter[:, -1] = 0
            x = x + jitter
        used, index = np.unique(self.tables.at[entries], return_inverse=True)
        scores = self.module.net(
            x, self.nests[used], self.latents[used], torch.from_numpy(index.reshape(entries.shape))
        )
        scores = scores + torch.from_numpy(self.prior[entries]).to(scores)
        gains = torch.from_numpy(self.gain[entries]).to(scores)
        return self._loss(scores, gains)

    def _loss(self, scores: Tensor, gains: Tensor) -> Tensor:
        s = self.settings
        return loss_of(s.loss, scores, gains, noise=self.noise, every_pair=s.every_pair)

    def _read(self, net: nn.Module, rows: NDArray[np.int64]) -> Tensor:
        """float32[b,d+1] of the matrices, by the sparse network if there is one."""
        if self.reading is None:
            return self.x[rows]
        assert isinstance(net, WholeNetwork)
        ids = [self.samples.rows[int(row)].pattern_id for row in rows]
        return torch.cat([self.reading.seen(net.encoder, ids), self.x[rows, -1:]], 1)

    def scores(self, row: int) -> Floats:
        """float64[k] of all entries of a row, by the mean weights."""
        part = self.samples.part(row)
        used, index = np.unique(self.tables.at[part], return_inverse=True)
        scores = self.module.mean(
            self._read(self.module.mean, np.array([row])),
            self.nests[used],
            self.latents[used],
            torch.from_numpy(index.reshape(1, -1)),
        )
        out: Floats = scores[0].numpy().astype(np.float64) + self.prior[part]
        return out

    def validate(self) -> dict[str, float]:
        """Loss, PRL, OPA and tau on the unseen rows. Without rows that end it early, only the
        number of epochs left, which makes the last epoch the best."""
        if not self.early:
            steps = int(self.module.get_buffer("steps"))
            return {"epochs_left": self.settings.few_epochs - steps / self.steps}
        losses, each = [], []
        for i in np.flatnonzero(self.unseen):
            scores, gains = self.scores(int(i)), self.gain[self.samples.part(int(i))]
            pair = (torch.from_numpy(scores)[None], torch.from_numpy(gains)[None])
            losses.append(float(self._loss(*pair)))
            if (own := figures(scores, gains, self.noise)) is not None:
                each.append(own)
        return {"valid_loss": float(np.mean(losses)), **mean_figures(each or [(0.0, 0.0, 0.0)])}
