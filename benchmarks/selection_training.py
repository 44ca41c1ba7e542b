"""Buying inside training, replayed on complete grids: which strategy teaches a cost model most.

    python benchmarks/selection_training.py CPU_DATABASE INSTANCE SPADE_DATABASE FOLDER \\
        > benchmarks/results/selection_training.json

SPADE_DATABASE has every configuration of each op on every matrix (`spade_runs.py`; its times come
from a timing model, no hardware). By seed, two parts of five of its families are held out; nothing
of them is learned from on either platform. A network of COGNATE's settings with tiles, on the plain
statistics, is trained on 100 matrices x 100 runs of INSTANCE, a CPU in CPU_DATABASE, and then
fine-tuned on what each strategy buys of the other families.

A strategy is named as for `campaign plan`, or with another number of matrices (`random:10`). With
`+model` its rewards are those of the very network that is being fine-tuned, warm from round to
round; with `+additive` those of the ridge regression. Clusters are those of the autoencoder. The
final network goes on from the CPU's on all that was bought, alike for every strategy; `warm` is the
one that buying has left behind. A strategy that ends in `/trees` teaches boosted trees in the
network's place, which know nothing of the CPU. `--whole MATRICES` has COGNATE whole in the place of
the network on statistics, smaller in everything, as `whole_models.py` has it with `--sites 32
--epochs 50 --from 50 --most 100000`. For each strategy the result has the mean difference of log
shares of the optimum to random matrices, as many as it bought of, and two standard errors of it:
over seeds, and over the held-out families.

FOLDER gets the CPU's networks, and by op and seed a file with a line for every run; those it has
are not made again. So `--op` and `--seed` may be spread over processes; the result is of all files.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from machine import about
from numpy.typing import NDArray
from whole_models import small

from embeddb.core.config import Config, Op
from embeddb.cost_model.model import CostModel
from embeddb.database import Database
from indexer.campaign.budget.sampler import Pool, Sampler, Told
from indexer.campaign.budget.samplers import clusters_of, strategy
from indexer.campaign.budget.teaching import (
    Ground,
    InTraining,
    Known,
    Pupil,
    StatisticsPupil,
    WholePupil,
)
from indexer.training.cost_model.encoder import Encoder, StructureReader, Structures
from indexer.training.cost_model.samples import Samples, samples_of
from indexer.training.cost_model.settings import forest, paper, preset
from indexer.training.cost_model.train import train
from indexer.training.cost_model.whole import Whole, load_whole, train_whole
from tuners.evaluation.bench import Bench, split_groups

_PARTS, _HELD_PARTS = 5, 2
_FIRST = (1, 5)
_FIGURES = tuple(f"{name}@{k}" for k in _FIRST for name in ("of_optimum", "speedup"))
_SOURCE = (100, 100)
#: COGNATE's, but that five matrices share a batch and the rate is higher: as many steps are enough.
_SETTINGS = paper(
    parts=("featurizer", "mapper", "tiles", "latent"),
    batch=5,
    lr=5e-4,
    epochs=40,
    few_epochs=30,
    patience=10,
)
_WHOLE = preset("cognate", sites=32, epochs=50, few_epochs=50)
_WHOLE_SOURCE = (50, 100)
#: Non-zeros of the CPU's matrices that teach it.
_MOST = 100_000
_TREES = "/trees"
#: Epochs of a round.
_EPOCHS = 4
_STRATEGIES = (
    *("zero-shot", "random:5", "random:10", "random:20", "random:25", "binned:5", "kmeans:25"),
    *("ea10+model", "ea25+model", "mab25+model", "ea10+additive", "ea25+additive"),
    *("mab25+additive", "random:5/trees", "random:10/trees", "random:25/trees"),
    *("kmeans:25/trees", "ea10+additive/trees", "ea25+additive/trees"),
)


@dataclass(frozen=True, eq=False)
class Trees:
    """Boosted trees in the place of a pupil; they begin anew each time."""

    ground: Ground
    seed: int
    model: CostModel | None = None

    def taught(self, told: Sequence[Told], progress: None) -> Trees:
        return replace(self, model=train(self.ground.samples(told), forest(seed=self.seed)))

    def score(self, matrix: int, configs: Sequence[Config]) -> NDArray[np.float64] | None:
        info, vector = self.ground.known(matrix)
        assert self.model is not None
        platform, op = self.ground.platform, self.ground.op
        return self.model.score(vector, platform, op, configs, info.sizes)[0]


class Board:
    """One op and seed: complete grids, the rows held out and those to buy from, the CPU's model."""

    def __init__(self, bench: Bench, seed: int, clustered: str) -> None:
        self.op, self.seed = bench.op, seed
        self.platform = next(iter(bench.platforms.values()))
        self.evidence = bench.evidence.take(bench.counted)
        self.infos = [bench.infos[row.pattern_id] for row in self.evidence.rows]
        self.seconds = np.stack([self.evidence.times(i) for i in range(len(self.infos))])
        self.place = {config: at for at, config in enumerate(self.evidence.configs)}
        held = split_groups(self.evidence.groups, _PARTS, seed) < _HELD_PARTS
        self.test, self.rows = np.flatnonzero(held), np.flatnonzero(~held)
        self.clustered = np.stack([bench.vectors[clustered][self.infos[i].id] for i in self.rows])
        self.statistics = bench.vectors["stats"]
        self.first: Any = None
        self.trees: Trees | None = None

    def begin(self, start: CostModel | Whole, structures: Structures) -> None:
        """From the CPU's model, on statistics or whole."""
        order = [self.infos[row] for row in [*self.rows, *self.test]]  # the pool, then held out
        if isinstance(start, Whole):
            none = np.zeros(0, dtype=np.float32)
            known = [Known(info, none) for info in order]
            of = start.encoder.name, start.encoder.version
            ground = Ground(self.platform, self.op, known.__getitem__, of)
            settings = replace(_WHOLE, seed=self.seed)
            self.first = WholePupil.begin(ground, settings, start, structures)
        else:
            known = [Known(info, self.statistics[info.id]) for info in order]
            of = tuple(start.card["featurizer"].values())
            ground = Ground(self.platform, self.op, known.__getitem__, of)
            settings = replace(_SETTINGS, seed=self.seed)
            self.first = StatisticsPupil.begin(ground, settings, start)
            self.trees = Trees(ground, self.seed)
        self.in_rounds = replace(self.first, settings=replace(settings, few_epochs=_EPOCHS))

    def buy(self, name: str, budget: int) -> tuple[Sampler, InTraining | None]:
        """A strategy's buyer when the budget is used, and the model that gave its rewards."""
        known, _, judge = name.removesuffix(_TREES).partition("+")
        known, _, most = known.partition(":")
        chosen = strategy(known)
        count = int(most) if most else chosen.most
        clusters = clusters_of(self.clustered, chosen.clusters(count), self.seed)
        pool = Pool(np.array([self.infos[i].sizes for i in self.rows]), clusters, self._configs)
        buyer = Sampler(chosen.policy(count), pool, budget, self.seed)
        inside = InTraining(self.in_rounds) if judge == "model" else None
        if inside is not None:
            buyer.reward = inside
        while points := buyer.ask(budget):
            found = [self.seconds[self.rows[p.matrix], self.place[p.config]] for p in points]
            buyer.tell(list(zip(points, found, strict=True)))
        return buyer, inside

    def _configs(self, at: int) -> Sequence[Config]:
        """Those of a matrix, the default first, the others in an order of their own."""
        row = int(self.rows[at])
        order = np.random.default_rng([self.seed, row]).permutation(len(self.evidence.configs))
        ran = [i for i in order if not np.isnan(self.seconds[row, i])]
        default = self.place[self.platform.default(self.op, self.infos[row].sizes)]
        return [self.evidence.configs[i] for i in dict.fromkeys([default, *ran])]

    def judged(self, pupil: Pupil | Trees) -> dict[str, list[float]]:
        """By figure, of each held-out matrix: the share of the optimum and the gain over the
        default of the best of the first k; what fails is followed by the default."""
        found: dict[str, list[float]] = {name: [] for name in _FIGURES}
        for at, row in enumerate(self.test, len(self.rows)):
            ran = np.flatnonzero(~np.isnan(self.seconds[row]))
            scores = pupil.score(at, [self.evidence.configs[i] for i in ran])
            assert scores is not None
            default_s, seconds = float(self.evidence.default_s[row]), self.seconds[row, ran]
            tried = np.where(np.isfinite(seconds), seconds, default_s)
            tried = tried[np.argsort(-scores, kind="stable")]
            for k in _FIRST:
                best = tried[:k].min()
                found[f"of_optimum@{k}"].append(float(seconds.min() / best))
                found[f"speedup@{k}"].append(float(default_s / best))
        return found

    def made(self, name: str, budget: int) -> dict[str, Any]:
        """One line: a strategy's samples bought, the network taught, and judged."""
        groups = {"families": [str(self.evidence.groups[row]) for row in self.test]}
        if name == "zero-shot":
            none = {"matrices": 0, "samples": 0, "rounds": 0, "cpu_s": 0.0}
            return {**none, **groups, **self.judged(self.first)}
        began, more = time.process_time(), dict[str, Any]()
        buyer, inside = self.buy(name, budget)
        rounds = told_of(buyer)
        if inside is not None:
            warm = self.judged(inside.after(rounds))
            more = {f"warm_{figure}": values for figure, values in warm.items()}
            more["rewards"] = [float(np.mean([r for _, r in one.rewards])) for one in buyer.rounds]
        bought_s = time.process_time() - began
        told = [one for r in rounds for one in r]
        final = (self.trees if name.endswith(_TREES) else self.first).taught(told, None)
        return {
            "matrices": len({one.matrix for one in told}),
            "samples": buyer.spent,
            "rounds": len(rounds),
            "cpu_s": time.process_time() - began,
            "bought_cpu_s": bought_s,
            **groups,
            **more,
            **self.judged(final),
        }


def told_of(buyer: Sampler) -> list[list[Told]]:
    """What was told, round by round."""
    return [
        [
            Told(s.matrix, Config(c), o if isinstance(o, float) else math.inf)
            for s in r.shares
            for c, o in zip(s.configs, s.outcomes, strict=True)
        ]
        for r in buyer.rounds
    ]


def board(asked: argparse.Namespace, op: Op, seed: int) -> Board:
    """The board of an op and seed; the CPU's model is trained once."""
    with Database.open(asked.spade, readonly=True) as db:
        bench = Bench(db.index, op, db.platform("spade").id, complete=True)
    groups = bench.evidence.take(bench.counted).groups
    held = set(groups[split_groups(groups, _PARTS, seed) < _HELD_PARTS].tolist())
    file = asked.folder / f"{network_of(asked)}cpu-{op.kernel}-{seed}.safetensors"
    place, structures = Board(bench, seed, asked.clusters), Structures({})
    with Database.open(asked.cpu, readonly=True) as db:
        found = db.platform(asked.instance)
        if asked.whole is None:
            if not file.exists():
                known = apart(samples_of(db.index, found, [op]), held)
                train(known.limited(*_SOURCE, seed), replace(_SETTINGS, seed=seed)).save(file)
            place.begin(CostModel.load(file), structures)
            return place
        encoder = Encoder.drawn(replace(_WHOLE, seed=seed))
        read = StructureReader(db.index, encoder, asked.whole, structures=structures)
        if not file.exists():
            known = apart(samples_of(db.index, found, [op], read=small(db, read, _MOST)), held)
            taught(known.limited(*_WHOLE_SOURCE, seed), encoder, structures, seed, file)
    with Database.open(asked.spade, readonly=True) as db:
        StructureReader(db.index, encoder, asked.whole, structures=structures)(
            [info.id for info in place.infos]
        )
    place.begin(load_whole(file), structures)
    return place


def apart(samples: Samples, held: set[str]) -> Samples:
    return samples.take([i for i, row in enumerate(samples.rows) if row.group not in held])


def taught(
    samples: Samples, encoder: Encoder, structures: Structures, seed: int, file: Path
) -> None:
    """The CPU's model whole, into a file."""
    made = train_whole(samples, replace(_WHOLE, seed=seed), encoder, structures)
    made.save_encoder(file)
    made.model.save(file)


def runs(asked: argparse.Namespace, op: Op, seed: int) -> None:
    """Add a line for every run of an op and seed that is not there yet, budget by budget."""
    file = asked.folder / f"{network_of(asked)}runs-{op.kernel}-{seed}.jsonl"
    have = {(line["budget"], line["strategy"]) for line in lines_of(file)}
    wanted = [(budget, name) for budget in asked.budget for name in asked.strategies]
    missing = [pair for pair in wanted if pair not in have]
    if not missing:
        return
    place = board(asked, op, seed)
    with file.open("a", encoding="utf-8") as out:
        for budget, name in missing:
            line = {"op": str(op), "budget": budget, "strategy": name, "seed": seed}
            line |= place.made(name, budget)
            # The line break comes first: the last line may have been cut off by a stop.
            out.write("\n" + json.dumps(line))
            out.flush()
            told = [f"{geomean(line[f]):.3f}" for f in _FIGURES[::2]]
            print(op, seed, budget, name, *told, f"{line['cpu_s']:.1f} s", file=sys.stderr)


def network_of(asked: argparse.Namespace) -> str:
    """What the names of its files begin with."""
    return "whole-" if asked.whole else ""


def lines_of(file: Path) -> list[dict[str, Any]]:
    """Whole lines of a file; one that was cut off is made again."""
    found = []
    for text in filter(None, file.read_text().splitlines() if file.exists() else []):
        try:
            found.append(json.loads(text))
        except ValueError:
            print(f"{file.name}: a torn line is left out", file=sys.stderr)
    return found


def geomean(values: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(values))))


def summary(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row per op, budget and strategy: means over seeds, the range, and what is gained on random
    matrices, as many."""
    rows = []
    for op, budget, name in dict.fromkeys((x["op"], x["budget"], x["strategy"]) for x in lines):
        peers = [x for x in lines if (x["op"], x["budget"]) == (op, budget)]
        mine = [x for x in peers if x["strategy"] == name]
        row: dict[str, Any] = {"op": op, "budget": budget, "strategy": name, "seeds": len(mine)}
        for count in ("matrices", "samples", "rounds", "bought_cpu_s", "cpu_s"):
            row[count] = float(np.mean([x.get(count, 0.0) for x in mine]))
        for figure in (*_FIGURES, *(f"warm_{f}" for f in _FIGURES)):
            each = [geomean(x[figure]) for x in mine if figure in x]
            if each:
                row[figure] = {"mean": float(np.mean(each)), "min": min(each), "max": max(each)}
        row["over_random"] = {f: over_random(peers, mine, f) for f in _FIGURES[::2]}
        rows.append(row)
    return rows


def over_random(
    peers: Sequence[dict[str, Any]], mine: Sequence[dict[str, Any]], figure: str
) -> dict[str, Any]:
    """Of a strategy's lines: the mean difference of log figures to random matrices, as near in
    number as there are, of the same seed."""
    seeds, families = [], dict[str, list[float]]()
    names = []
    for one in mine:
        drawn = [
            x
            for x in peers
            if x["seed"] == one["seed"]
            and x["strategy"].startswith("random")
            and not x["strategy"].endswith(_TREES)
        ]
        itself = one["strategy"] in [x["strategy"] for x in drawn]
        if not drawn or itself or not one["matrices"]:
            continue
        other = min(drawn, key=lambda x: abs(x["matrices"] - one["matrices"]))
        gain = np.log(one[figure]) - np.log(other[figure])
        names.append(other["strategy"])
        seeds.append(float(gain.mean()))
        for family, value in zip(one["families"], gain, strict=True):
            families.setdefault(family, []).append(float(value))
    if not seeds:
        return {}
    by_family = np.array([np.mean(values) for values in families.values()])
    return {
        "to": names,
        "mean": float(np.mean(seeds)),
        "error_seeds": error_of(np.array(seeds)),
        "error_families": error_of(by_family),
    }


def error_of(values: NDArray[np.float64]) -> float | None:
    """The standard error of a mean; None of one value."""
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else None


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("cpu", type=Path)
    parser.add_argument("instance")
    parser.add_argument("spade", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--op", nargs="+", default=["spmm:128", "sddmm:128"])
    parser.add_argument("--budget", nargs="+", type=int, default=[500, 100, 250])
    parser.add_argument("--strategies", nargs="+")
    parser.add_argument("--clusters", default="scnn", help="the featurizer that clusters")
    parser.add_argument("--seed", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--whole", type=Path, metavar="MATRICES", help="COGNATE whole")
    asked = parser.parse_args()
    if asked.strategies is None:
        able = (name for name in _STRATEGIES if not (asked.whole and name.endswith(_TREES)))
        asked.strategies = list(able)
    elif asked.whole and any(name.endswith(_TREES) for name in asked.strategies):
        parser.error(f"trees read statistics: with --whole, --strategies have no {_TREES}")
    asked.folder.mkdir(parents=True, exist_ok=True)
    for seed in asked.seed:
        for op in asked.op:
            runs(asked, Op.parse(op), seed)
    files = sorted(asked.folder.glob(f"{network_of(asked)}runs-*.jsonl"))
    lines = [line for file in files for line in lines_of(file)]
    own, source = (_WHOLE, _WHOLE_SOURCE) if asked.whole else (_SETTINGS, _SOURCE)
    settings = {"whole": asked.whole is not None, "source": source}
    settings |= {"epochs": own.few_epochs, "epochs_a_round": _EPOCHS}
    found = {"about": about(), "source_of_times": "timing model", **settings}
    print(json.dumps({**found, "rows": summary(lines)}, indent=1))


if __name__ == "__main__":
    main()
