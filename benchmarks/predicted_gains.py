"""Gains over the default by a model of few samples, beside the true ones of held-out families.

    predicted_gains.py DB PLATFORM OUT.json [--op OP ...] [--draws 2 5]

DB holds many runs of the platform. As in buying.py two fifths of the families are held out in each
draw, and a strategy buys samples of the others. For every held-out matrix the best of what ran
there by the learned model is compared with the default: `bias`, the mean of the true log gain less
the predicted one, `rms` of these differences, and `covered`, the share of gains within the 80 %
interval.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from buying import Market
from few_samples import drawn
from machine import about

from embeddb.core.config import Op
from embeddb.cost_model.model import CostModel
from embeddb.database import Database
from embeddb.learning.few_samples import process_card
from embeddb.learning.process import learn
from embeddb.learning.samples import Samples, samples_of

CELLS = [("random", 100), ("random", 500), ("improvement", 100), ("improvement", 250),
         ("improvement", 500), ("improvement", 1000)]  # fmt: skip
#: Standard normal quantile of 90 %.
Z80 = 1.2815515655446004


def errors(model: CostModel, whole: Samples, held: list[int]) -> list[tuple[float, bool]]:
    """True less predicted log gain of each held-out matrix's first choice, and if it is covered."""
    found = []
    for row in held:
        ran, gain = whole.ran(row), whole.gain[whole.part(row)]
        default = whole.platform.default(whole.ops[0], whole.rows[row].sizes)
        score, spread = model.score(whole.problem(row), ran)
        first = int(score.argmax())
        if default not in ran or ran[first] == default:
            continue
        at = ran.index(default)
        error = float((gain[first] - gain[at]) - (score[first] - score[at]))
        found.append((error, abs(error) <= Z80 * math.hypot(spread[first], spread[at])))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("db")
    parser.add_argument("platform")
    parser.add_argument("out", type=Path)
    parser.add_argument("--op", nargs="+", default=["spmm:128", "spmm:32", "spmv", "sddmm:128"])
    parser.add_argument("--draws", type=int, nargs=2, default=(2, 5))
    asked = parser.parse_args()
    done: dict[str, Any] = {"machine": about()}
    with Database.open(asked.db, readonly=True) as db:
        for op in asked.op:
            whole = samples_of(db.index, db.index.platform(asked.platform), [Op.parse(op)])
            for name, budget in CELLS:
                seen: list[tuple[float, bool]] = []
                for draw in range(*asked.draws):
                    market = Market(drawn(whole, 0, draw), draw)
                    few = market.bought(name, budget)
                    model = learn(few, process_card(few), seed=draw)
                    seen += errors(model, whole, market.draw.held)
                error, covered = np.array(seen).T
                done[f"{op}, {budget} samples, {name}"] = {
                    "matrices": len(seen),
                    "bias": round(float(error.mean()), 3),
                    "rms": round(float(np.sqrt((error**2).mean())), 3),
                    "covered": round(float(covered.mean()), 3),
                }
                asked.out.write_text(json.dumps(done, indent=1) + "\n")
                print(op, budget, name, done[f"{op}, {budget} samples, {name}"], flush=True)


if __name__ == "__main__":
    main()
