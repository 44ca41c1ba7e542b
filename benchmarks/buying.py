"""Share of the optimum by which samples of a platform are bought.

    buying.py DB PLATFORM OUT.json [--op OP ...] [--draws 2 7] [--budgets 100 ...] [--only NAME ...]

DB holds many runs of the platform. In each draw two fifths of the families are held out, and each
strategy of `campaign plan` buys runs of the other matrices. The product's process learns from them
and orders for the held-out matrices, as `query` does, the configurations that ran there (`whole`);
`judged` is the share of the best sample of a matrix, groups left out, and `expected`, of
improvement with up to 1,000 samples, that of the best of all configurations that ran, as `embeddb
adopt` reports it. `draws` is no strategy of the product: equal shares, half of them configurations
that are the best in a draw from the process's posterior.

Started again it goes on with what is missing, and stops after --seconds. Seconds are CPU seconds of
buying, and of learning and judging.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from few_samples import Draw, drawn, shares, tried
from machine import about

from embeddb.core.config import Config, Op
from embeddb.cost_model.encoders.inputs import ConfigColumns
from embeddb.cost_model.gaussian import GaussianProcess, Inputs
from embeddb.cost_model.model import CostModel
from embeddb.database import Database
from embeddb.learning.expected import Candidates, expected
from embeddb.learning.few_samples import process_card
from embeddb.learning.process import learn
from embeddb.learning.process import process_of as learned_process
from embeddb.learning.samples import Samples, samples_of
from indexer.adopt import learned_choices
from indexer.campaign.budget.designs import binned
from indexer.campaign.budget.improvement import Improvement, compared, process_of
from indexer.campaign.budget.sampler import Allocation, BudgetState, Pool, Sample, Sampler
from indexer.campaign.budget.samplers import STRATEGIES, Strategy, clusters_of

BUDGETS = (50, 100, 250, 500, 1000, 2000)
#: Samples from which the expected share takes minutes.
_MOST = 1000


@dataclass(frozen=True)
class Draws:
    """Equal shares for matrices that get `each`: half at random, half by draws of the posterior."""

    each: int = 20
    judged = False

    def allocate(self, ledger: BudgetState, rng: np.random.Generator) -> Allocation:
        spent = int(ledger.counts.sum())
        if not spent:
            return Improvement().allocate(ledger, rng)
        pool, counts = ledger.pool, ledger.counts.copy()
        process = process_of(pool, compared(ledger), rng)
        total = spent + min(max(50, spent // 2), 500, ledger.left)
        used = np.flatnonzero(counts).tolist()
        order = [*used, *(at for at in binned(pool, len(counts), rng) if not counts[at])]
        order = [at for at in order if at not in ledger.closed][: max(10, total // self.each)]
        bought = {(s.matrix, Config(c)) for r in ledger.rounds for s in r.shares for c in s.configs}
        more = dict.fromkeys(order, 0)
        for _ in range(total - spent):
            least = min(order, key=lambda at: counts[at])
            counts[least], more[least] = counts[least] + 1, more[least] + 1
        chosen = {}
        for at, count in more.items():
            able = [c for c in pool.configs(at) if (at, c) not in bought]
            chance, rest = able[: count // 2], able[count // 2 :]
            best = by_draws(process, pool.inputs(at, rest), count - count // 2, rng)
            chosen[at] = [*chance, *(rest[i] for i in best)]
        return [(at, configs) for at, configs in chosen.items() if configs]


def by_draws(
    process: GaussianProcess, at: Inputs, count: int, rng: np.random.Generator
) -> list[int]:
    """The best of each of as many draws from the posterior, each once."""
    mean = process.on(at).gain
    covariance = process.covariances(at, np.full(len(mean), -1), at)[0]
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    chosen: list[int] = []
    for _ in range(min(count, len(mean))):
        draw = mean + root @ rng.normal(size=len(mean))
        draw[chosen] = -np.inf
        chosen.append(int(draw.argmax()))
    return chosen


PLANS = {**STRATEGIES, "draws": Strategy(Draws())}


@dataclass(frozen=True, eq=False)
class Market:
    """The runs of a draw that can be bought, and the rows of the matrices that are held out."""

    draw: Draw
    seed: int

    def pool(self, clusters: int) -> Pool:
        samples = self.draw.samples
        sizes = np.array([row.sizes for row in samples.rows], dtype=np.int64)

        @cache
        def configs(row: int) -> list[Config]:
            """The default, then the others that ran, at random."""
            ran, rng = samples.ran(row), np.random.default_rng([self.seed, row])
            default = samples.platform.default(samples.ops[0], samples.rows[row].sizes)
            order = [ran[at] for at in rng.permutation(len(ran))]
            return sorted(order, key=lambda config: config != default)

        def inputs(row: int, some: Sequence[Config]) -> Inputs:
            problem = samples.problem(row)
            return ConfigColumns(problem.platform, problem.op, some).on(problem)

        return Pool(sizes, clusters_of(samples.vectors, clusters, self.seed), configs, inputs)

    def bought(self, name: str, budget: int) -> Samples:
        """The samples that a strategy buys. Those that are alone on their matrix teach nothing."""
        chosen, samples, runs = PLANS[name], self.draw.samples, []
        buyer = Sampler(chosen.policy, self.pool(chosen.clusters), budget, self.seed)
        place = cache(lambda row: {config: at for at, config in enumerate(samples.ran(row))})
        while points := buyer.buy():
            new = [(p.matrix, int(samples.indptr[p.matrix]) + place(p.matrix)[p.config])
                   for p in points]  # fmt: skip
            seconds = [math.exp(-samples.gain[at]) for _, at in new]
            buyer.tell([Sample(*p, s) for p, s in zip(points, seconds, strict=True)])
            runs += new
        assert len(set(runs)) == len(runs) <= budget
        by_row = {r: [at for _, at in g] for r, g in groupby(sorted(runs), lambda run: run[0])}
        entries = {row: own for row, own in by_row.items() if len(own) > 1}
        pick = np.concatenate(list(entries.values()))
        ends = np.cumsum([0, *map(len, entries.values())]).astype(np.int64)
        few = samples.take(list(entries))
        return replace(few, indptr=ends, column=samples.column[pick], gain=samples.gain[pick])


def cell(market: Market, name: str, budget: int) -> dict[str, Any]:
    """Shares of the optimum at 1 and at 5, matrices, and seconds."""
    started = time.process_time()
    few = market.bought(name, budget)
    learning = time.process_time()
    model = learn(few, process_card(few), seed=market.seed)
    ready = time.process_time()
    judged = model.card["held_out"][str(few.ops[0])]["rank"]
    expects = name == "improvement" and budget <= _MOST
    return {
        "samples": len(few.gain),
        "matrices": len(few.rows),
        "buying_s": round(learning - started, 2),
        "learning_s": round(ready - learning, 2),
        "judged": [round(judged[f"of_optimum@{n}"], 4) for n in (1, 5)],
        **({"expected": expected_shares(model, few)} if expects else {}),
        **shares(market.draw, tried(model, market.draw.whole), as_set=True),
    }


def expected_shares(model: CostModel, few: Samples) -> list[float]:
    """Expected shares of the optimum at 1 and at 5."""
    process, among = learned_process(model, few.ops[0]), Candidates.of(few)
    (figures,) = expected(process, few, among, [learned_choices(process, few, among)])
    return [round(figures.figures()[f"of_optimum@{n}"], 4) for n in (1, 5)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("db")
    parser.add_argument("platform")
    parser.add_argument("out", type=Path)
    parser.add_argument("--op", nargs="+", default=["spmm:128", "spmv", "sddmm:128"])
    parser.add_argument(
        "--draws", type=int, nargs=2, default=(2, 7), help="The first, and the end."
    )
    parser.add_argument("--budgets", type=int, nargs="+", default=list(BUDGETS))
    parser.add_argument("--only", nargs="+", default=list(PLANS))
    parser.add_argument("--seconds", type=float, default=math.inf)
    asked = parser.parse_args()
    end = time.monotonic() + asked.seconds
    done = json.loads(asked.out.read_text()) if asked.out.is_file() else {}
    done["machine"] = about()
    with Database.open(asked.db, readonly=True) as db:
        for op in asked.op:
            whole = samples_of(db.index, db.index.platform(asked.platform), [Op.parse(op)])
            for draw in range(*asked.draws):
                market = Market(drawn(whole, 0, draw), draw)
                for name in asked.only:
                    for budget in asked.budgets:
                        cells = done.setdefault(f"{op}, {budget} samples", {}).setdefault(name, {})
                        if str(draw) in cells or time.monotonic() > end:
                            continue
                        cells[str(draw)] = cell(market, name, budget)
                        asked.out.write_text(json.dumps(done, indent=1) + "\n")
                        print(op, draw, name, budget, cells[str(draw)], flush=True)


if __name__ == "__main__":
    main()
