"""Two towers: matrices and configurations in one vector space, trained on run times.

score(x, c) = b(c) + u(x) . v(c): u is one network of the 48 statistics for all platforms and
operations of a database; v and b are a network per platform and kernel with a linear layer per
platform instance and operation. The loss is listwise over the configurations of a matrix. Five
more trainings, each without a fold of the groups, give the figures with families held out, and the
vectors by which neighbours are evaluated (`embeddb.featurizers.tower`).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from embeddb.core.config import Op
from embeddb.core.errors import UsageError
from embeddb.core.files import model_file
from embeddb.core.records import WorkloadInfo
from embeddb.core.reports import Progress
from embeddb.cost_model.model import space_digest
from embeddb.cost_model.towers import config_inputs, unit_key
from embeddb.featurizers.tower import LAYERS, standardised
from embeddb.index.held_out import split_groups
from embeddb.index.lookup import Lookup
from embeddb.learning.samples import Samples, from_evidence
from indexer.training.cost_model.losses import listwise
from indexer.training.folder import checkpoint_of, folder_of, forget, origin_card
from indexer.training.trainer import Job, Settings, fit, run_name

#: Width of the vectors and of the hidden layers.
WIDTH, HIDDEN = 16, 96
_FOLDS = 5
#: Matrices in a batch, all of one platform instance and operation.
_BATCH = 32
#: Least epochs, least steps in all, and most epochs.
_EPOCHS, _LEAST_STEPS, _MOST_EPOCHS = 24, 1200, 300
_LR, _LAST_LR = 3e-3, 1e-4
#: Weight of the listwise loss beside smooth L1, which is linear beyond `_BETA`.
_LISTWISE, _BETA = 0.1, 0.3
#: Score of a configuration that a matrix of the batch did not run, excluded from its softmax.
_NOT_RUN = -1e4
#: Fewest groups for cross-validation.
_LEAST_GROUPS = 5

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """Runs of one operation on one platform instance: `samples`, their `targets` float64[x], and
    `inputs` float32[c,i] of its configurations; `trunk` is the index of its network of these."""

    op: Op
    samples: Samples
    targets: Floats
    inputs: Tensor
    trunk: int

    @property
    def key(self) -> str:
        return unit_key(self.samples.platform.id, self.op)

    def batch(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], Tensor]:
        """Positions int64[u] of the configurations that any of the rows int64[b] ran, and their
        targets float32[b,u] (-inf: not run)."""
        parts = [self.samples.part(int(row)) for row in rows]
        columns = [self.samples.column[part] for part in parts]
        union, place = np.unique(np.concatenate(columns), return_inverse=True)
        gains = np.full((len(rows), len(union)), -np.inf, dtype=np.float32)
        owner = np.repeat(np.arange(len(rows)), [len(c) for c in columns])
        gains[owner, place] = np.concatenate([self.targets[part] for part in parts])
        return union.astype(np.int64), torch.from_numpy(gains)


@dataclass(frozen=True, slots=True, eq=False)
class TowerData:
    """Training data of towers: the `units` of a database, and the statistics float32[p,48] of its
    matrices with their ids and groups; `trunks` are (platform name, kernel)."""

    units: tuple[Unit, ...]
    trunks: tuple[tuple[str, str], ...]
    ids: tuple[str, ...]
    stats: NDArray[np.float32]
    groups: NDArray[np.str_]
    stats_version: str

    @property
    def runs(self) -> int:
        return sum(len(unit.samples.gain) for unit in self.units)


def tower_data(db: Lookup, *, progress: Progress, platform: str = "") -> TowerData:
    """Every operation on matrices in a database, on each platform instance that has runs, or only
    on those whose ids begin with `platform`.

    Raises: UsageError if there is too little to learn from.
    """
    kin = platform.partition("@")[0]
    scopes = [(op, scope) for op, scope in db.scopes(kin) if op.workload.embedded]
    units: list[Unit] = []
    trunks: dict[tuple[str, str], int] = {}
    for at, (op, scope) in enumerate(scopes):
        progress("read runs", at, len(scopes))
        for samples in _samples(db, op, scope, platform):
            trunk = trunks.setdefault((samples.platform.name, op.name), len(trunks))
            inputs = torch.from_numpy(config_inputs(samples.platform, op, samples.configs))
            units.append(Unit(op, samples, samples.targets, inputs, trunk))
    if not units:
        raise UsageError(
            f"{db.store.place}: no runs of several configurations of matrices with statistics",
            hint="`embeddb index` with --matrices gives matrices their statistics",
        )
    by_id = {
        row.pattern_id: (vector, row.group)
        for unit in units
        for row, vector in zip(unit.samples.rows, unit.samples.vectors, strict=True)
    }
    ids = tuple(sorted(by_id))
    groups = np.array([by_id[i][1] for i in ids], dtype=np.str_)
    if np.unique(groups).size < _LEAST_GROUPS:
        raise UsageError(
            f"{db.store.place}: runs of {np.unique(groups).size} groups of matrices with "
            f"statistics, {_LEAST_GROUPS} are needed",
            hint="measure matrices of more families: `embeddb campaign plan` chooses",
        )
    stats = np.array([by_id[i][0] for i in ids], dtype=np.float32)
    version = units[0].samples.featurizer_version
    return TowerData(tuple(units), tuple(trunks), ids, stats, groups, version)


def _samples(db: Lookup, op: Op, scope: str, platform: str) -> Iterator[Samples]:
    """Samples of each platform instance of a scope that has enough runs to learn from, and an id
    that begins with `platform`."""
    evidence, readable = db.evidence(op, scope)
    stats = ("stats", db.featurizer_version("stats"))
    vectors = readable.get("stats", {})
    if evidence.winners or not vectors:
        return
    ids = {row.platform for row in evidence.rows if row.platform.startswith(platform)}
    for platform_id in sorted(ids):
        own, where = evidence.of_platform(platform_id).pruned(), db.platform(platform_id)
        infos = {row.pattern_id: WorkloadInfo(id=row.pattern_id) for row in own.rows}
        samples = from_evidence(own, vectors, infos, where, op, featurizer=stats)
        with suppress(UsageError):  # one matrix, or a handful of runs
            samples.check()
            yield samples


class TwoTowers(nn.Module):
    """`matrix`, one `trunk` per platform and kernel, one `head` per platform instance and
    operation; the last number of a head is the configuration's bias."""

    def __init__(self, data: TowerData, rows: NDArray[np.bool_]) -> None:
        """Standardised by the matrices `rows` bool[p]."""
        super().__init__()
        d = data.stats.shape[1]
        self.matrix = _network(d, WIDTH)
        inputs = {unit.trunk: unit.inputs.shape[1] for unit in data.units}
        self.trunks = nn.ModuleList(_network(inputs[at], 0) for at in range(len(data.trunks)))
        self.heads = nn.ModuleList(nn.Linear(HIDDEN, WIDTH + 1) for _ in data.units)
        stats = data.stats[rows].astype(np.float64)
        scale = stats.std(axis=0)
        center, scale = stats.mean(axis=0), np.where(scale > 1e-9, scale, 1.0)
        self.center, self.scale = center.astype(np.float32), scale.astype(np.float32)
        self.rows = {pattern_id: at for at, pattern_id in enumerate(data.ids)}
        self.x = torch.from_numpy(standardised(data.stats, self.center, self.scale))

    def vectors(self, ids: Sequence[str]) -> Tensor:
        """float32[b,r] of matrices."""
        out: Tensor = self.matrix(self.x[[self.rows[i] for i in ids]])
        return out

    def score(self, at: int, unit: Unit, ids: Sequence[str], columns: Any = slice(None)) -> Tensor:
        """float32[b,c] of matrices and configurations of the unit at that index."""
        v = self.heads[at](self.trunks[unit.trunk](unit.inputs[columns]))
        out: Tensor = self.vectors(ids) @ v[:, :WIDTH].T / math.sqrt(WIDTH) + v[:, WIDTH]
        return out


def _network(inputs: int, out: int) -> nn.Sequential:
    """Two hidden layers, and one of `out` numbers unless it is 0."""
    layers: dict[str, nn.Module] = {
        "first": nn.Linear(inputs, HIDDEN),
        "relu": nn.ReLU(),
        "second": nn.Linear(HIDDEN, HIDDEN),
        "relu2": nn.ReLU(),
    }
    if out:
        layers[LAYERS[-1]] = nn.Linear(HIDDEN, out)
    return nn.Sequential(OrderedDict(layers))


def train_towers(data: TowerData, out: Path, *, seed: int, progress: Progress) -> dict[str, Any]:
    """Train on all groups and without each fold, write `out`; returns its card with `version`.

    Resumes an unfinished training of `out`. Raises: ModelError as `fit` and `save` do.
    """
    fold_of = split_groups(data.groups, _FOLDS, seed)
    folds = [sorted(set(data.groups[fold_of == at].tolist())) for at in range(_FOLDS)]
    tensors: dict[str, Tensor | NDArray[Any]] = {}
    judged: dict[str, list[dict[str, float]]] = {}
    for at in range(1 + _FOLDS):
        rows = fold_of != at - 1
        towers = fitted_towers(data, rows, (at, 1 + _FOLDS), out, seed=seed, progress=progress)
        for key, figures in judge(towers, data, ~rows):
            judged.setdefault(key, []).append(figures)
        tensors |= {f"matrix.{at}.{n}": t for n, t in towers.matrix.state_dict().items()}
        tensors |= {f"matrix.{at}.center": towers.center, f"matrix.{at}.scale": towers.scale}
        if at == 0:
            parts = {"trunks": towers.trunks, "heads": towers.heads}
            for part, module in parts.items():
                tensors |= {f"{part}.{n}": t for n, t in module.state_dict().items()}
    card = _card(data, folds, judged, seed)
    version = model_file.save(out, tensors, card)
    for at in range(1 + _FOLDS):
        forget(folder_of(out) / str(at))
    return {**card, "version": version}


def unfinished(out: Path) -> bool:
    """True if a training of `out` was interrupted."""
    return any(checkpoint_of(folder_of(out) / str(at)).exists() for at in range(1 + _FOLDS))


def fitted_towers(
    data: TowerData,
    rows: NDArray[np.bool_],
    step: tuple[int, int],
    out: Path,
    *,
    seed: int,
    progress: Progress,
) -> TwoTowers:
    """Towers trained on the matrices `rows` bool[p]; `step` is the index of this training and the
    number of all."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        towers = TwoTowers(data, rows)
    learned = {data.ids[at] for at in np.flatnonzero(rows)}
    steps = sum(len(_parts(unit, learned)) for unit in data.units)
    epochs = min(max(_EPOCHS, math.ceil(_LEAST_STEPS / max(steps, 1))), _MOST_EPOCHS)

    def drawn(epoch: int) -> Iterator[tuple[int, NDArray[np.int64]]]:
        rng = np.random.default_rng([seed, epoch])
        shuffled = [
            (at, part) for at, unit in enumerate(data.units) for part in _parts(unit, learned, rng)
        ]
        yield from (shuffled[place] for place in rng.permutation(len(shuffled)))

    def loss(batch: tuple[int, NDArray[np.int64]]) -> Tensor:
        at, part = batch
        unit = data.units[at]
        columns, gains = unit.batch(part)
        ids = [unit.samples.rows[row].pattern_id for row in part]
        return tower_loss(towers.score(at, unit, ids, columns), gains)

    job = Job(steps=steps, batches=drawn, loss=loss, validate=dict)
    settings = Settings(
        epochs=epochs,
        lr=_LR,
        patience=epochs,
        watch="",
        seed=seed,
        run=run_name([u.samples.hash for u in data.units], sorted(learned), WIDTH, HIDDEN),
        decay=(_LAST_LR / _LR) ** (1 / epochs),
    )
    fit(
        towers,
        job,
        settings=settings,
        folder=folder_of(out) / str(step[0]),
        progress=lambda _, at, total: progress(f"train {step[0] + 1} of {step[1]}", at, total),
    )
    return towers


def tower_loss(scores: Tensor, gains: Tensor) -> Tensor:
    """Loss of scores float32[b,u] for log gains float32[b,u] (-inf: not run): listwise, for the
    order near the top, plus smooth L1 of the gains less their mean, for the scale elsewhere."""
    ran = torch.isfinite(gains)
    order = listwise(scores.masked_fill(~ran, _NOT_RUN), gains)
    level = gains.masked_fill(~ran, 0.0).sum(1, keepdim=True) / ran.sum(1, keepdim=True)
    off = functional.smooth_l1_loss(scores[ran], (gains - level)[ran], beta=_BETA)
    return _LISTWISE * order + off


def _parts(
    unit: Unit, learned: set[str], rng: np.random.Generator | None = None
) -> list[NDArray[np.int64]]:
    """The unit's rows of the matrices `learned` in batches, shuffled by the generator if given."""
    rows = np.array(
        [at for at, row in enumerate(unit.samples.rows) if row.pattern_id in learned],
        dtype=np.int64,
    )
    if rng is not None:
        rows = rng.permutation(rows)
    return [rows[at : at + _BATCH] for at in range(0, len(rows), _BATCH)]


def judge(
    towers: TwoTowers, data: TowerData, rows: NDArray[np.bool_]
) -> Iterator[tuple[str, dict[str, float]]]:
    """The key of a unit and the figures of each of its matrices that are among `rows` bool[p]:
    `lost@1`, `lost@5` (log of the chosen time over the best), `in@10`, `in@50` (1 if the best is
    among so many retrieved) and `error` (variance of the error of a gain), all over the
    configurations that the matrix ran."""
    ids = {data.ids[at] for at in np.flatnonzero(rows)}
    for at, unit in enumerate(data.units):
        for place, row in enumerate(unit.samples.rows):
            if row.pattern_id not in ids:
                continue
            part = unit.samples.part(place)
            with torch.no_grad():
                score = towers.score(at, unit, [row.pattern_id], unit.samples.column[part])[0]
            yield unit.key, figures_of(score.numpy(), unit.samples.gain[part], unit.targets[part])


def _card(
    data: TowerData,
    folds: Sequence[Sequence[str]],
    judged: Mapping[str, Sequence[Mapping[str, float]]],
    seed: int,
) -> dict[str, Any]:
    return {
        "kind": "towers",
        "width": WIDTH,
        "hidden": HIDDEN,
        "featurizer": {"name": "stats", "version": data.stats_version},
        "folds": folds,
        "trunks": [list(trunk) for trunk in data.trunks],
        "units": [_unit_card(unit, judged.get(unit.key, ())) for unit in data.units],
        "matrices": len(data.ids),
        "runs": data.runs,
        "settings": {"lr": _LR, "batch": _BATCH, "folds": _FOLDS},
        **origin_card(seed),
    }


def _unit_card(unit: Unit, judged: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Training data of a unit, and its figures with families held out (geometric mean of the share
    of the optimum, recall of the best)."""
    platform = unit.samples.platform
    mean = {name: float(np.mean([one[name] for one in judged])) for name in judged[0]}
    return {
        "op": str(unit.op),
        "platform": platform.id,
        "space": space_digest(platform, unit.op),
        "trunk": unit.trunk,
        "matrices": len(unit.samples.rows),
        "runs": len(unit.samples.gain),
        "held_out": {
            "of_optimum@1": round(math.exp(-mean["lost@1"]), 4),
            "of_optimum@5": round(math.exp(-mean["lost@5"]), 4),
            "recall@10": round(mean["in@10"], 4),
            "recall@50": round(mean["in@50"], 4),
        },
        "error": round(math.sqrt(mean["error"]), 4),
    }


def figures_of(score: NDArray[Any], gain: Floats, target: Floats) -> dict[str, float]:
    """Figures of one matrix, from scores float[c], measured log gains float64[c] and what was
    learned of them float64[c]."""
    order = np.argsort(-score, kind="stable")
    best = float(gain.max())
    ranked = gain[order]
    rank = int(np.argmax(order == int(gain.argmax())))
    return {
        "lost@1": best - float(ranked[0]),
        "lost@5": best - float(ranked[:5].max()),
        "in@10": float(rank < 10),
        "in@50": float(rank < 50),
        "error": float(np.var(score - target)),
    }
