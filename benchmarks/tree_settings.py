"""Share of the optimum by boosted trees with the product's settings and with the other ones.

    tree_settings.py DB PLATFORM OUT.json [--op OP ...] [--draws 3]

PLATFORM is an instance (in each draw of `few_samples.py` two fifths of the families are held out,
trees learn from 2,000 and from all samples of the others) or a portable one such as `cpu` (each
machine is left out in turn, with half of the families, on which it is asked). `one machine` and
`every machine` are the settings of `indexer.training.cost_model.trees`, the former in two members
and the latter in five, or one where machines are left out.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from few_samples import drawn
from machine import about
from machines import forest

from embeddb.core.config import Op
from embeddb.cost_model.encoders.inputs import TreeTable
from embeddb.database import Database
from embeddb.index.held_out import split_groups
from embeddb.learning import boosting
from embeddb.learning.comparison import judge
from embeddb.learning.samples import Samples, samples_of, samples_of_machines
from embeddb.platforms.machines import same_machine
from indexer.training.cost_model import trees
from indexer.training.cost_model.machines import mean_facts
from indexer.training.cost_model.train import tree_card

#: Settings by name, with the members of a model of one machine.
HOW = {"one machine": (boosting.ONE_MACHINE, 2), "every machine": (boosting.EVERY_MACHINE, 5)}
_PER_ROW = 60

Split = tuple[str, Samples, np.ndarray]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("db")
    parser.add_argument("platform")
    parser.add_argument("out", type=Path)
    parser.add_argument("--op", nargs="+", default=["spmm:128", "spmv", "sddmm:128"])
    parser.add_argument("--draws", type=int, default=3)
    asked = parser.parse_args()
    done = json.loads(asked.out.read_text()) if asked.out.is_file() else {}
    done["machine"] = about()
    with Database.open(asked.db, readonly=True) as db:
        platform = db.index.platform(asked.platform)
        for op in map(Op.parse, asked.op):
            if platform.instance:
                whole = samples_of(db.index, platform, [op])
                splits = in_draws(whole, asked.draws)
            else:
                whole = samples_of_machines(db.index, platform, [op]).thinned(_PER_ROW, 0)
                splits = machines_out(whole)
            for name, train, held in splits:
                cell = f"{asked.platform} {op}, {name}"
                done.setdefault(cell, []).append(
                    figures(whole, train, held, bool(platform.instance))
                )
                print(cell, done[cell][-1], flush=True)
                asked.out.write_text(json.dumps(done, indent=1) + "\n")


def in_draws(whole: Samples, draws: int) -> Iterator[Split]:
    """The training samples of each draw, and the rows that are held out."""
    for seed in range(draws):
        for name, count in (("2,000 samples", 2000), ("all samples", 0)):
            draw = drawn(whole, count, seed)
            yield name, draw.samples, np.array(draw.held)


def machines_out(whole: Samples) -> Iterator[Split]:
    """The runs without a machine, with all its builds, and without half of the families."""
    machine = np.array([one.id for one in whole.machines])
    facts = {one.id: one.environment for one in whole.machines}
    half = split_groups(whole.groups, 2, 0)
    for one in np.unique(machine):
        same = np.array([same_machine(other, one, facts) for other in machine])
        for part in (0, 1):
            train = whole.take(np.flatnonzero(~same & (half != part)))
            yield f"without {one}", train, np.flatnonzero((machine == one) & (half == part))


def figures(whole: Samples, train: Samples, held: np.ndarray, own: bool) -> dict[str, Any]:
    """Shares of the optimum at 1 and at 5 by settings."""
    card = tree_card(train, forest(), facts=() if own else mean_facts(train))
    columns = TreeTable.from_card(card)
    known, rest = trees.tables(train, columns, None), whole.take(held)
    asked, table = trees.tables(rest, columns, None), np.concatenate(known)
    shares: dict[str, Any] = {"samples": len(table), "held out": len(held)}
    for name, (how, members) in HOW.items():
        grown = [
            boosting.boosted(table, boosting.levelled(train), {**how, "seed": seed})
            for seed in range(members if own else 1)
        ]
        scores = {r: np.mean([t.predict(x) for t in grown], axis=0) for r, x in enumerate(asked)}
        judged = judge(rest, scores).figures()
        shares[name] = [round(judged[f"of_optimum@{n}"], 4) for n in (1, 5)]
    return shares


if __name__ == "__main__":
    main()
