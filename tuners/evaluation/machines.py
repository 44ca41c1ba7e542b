"""A model of every machine beside the neighbours' vote, on machines that neither has seen."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from embeddb.core.errors import NothingFound
from embeddb.core.reports import Progress
from embeddb.index.lookup import Lookup
from embeddb.platforms.platform import Platform
from indexer.training.cost_model.machines import LeftOut
from tuners.evaluation.bench import Bench
from tuners.evaluation.learned import Seen, held_out, seen_by

#: How far such a model counts against the vote. The best weight differs by operation and machine,
#: by less than noise (docs/results/machines.md).
WEIGHT = 0.5
#: Questions on a machine at most: one that ran many more matrices would outweigh the others.
_MOST_ASKED = 60


def judge_machines(
    db: Lookup, platform: Platform, parts: Sequence[LeftOut], progress: Progress
) -> dict[str, dict[str, dict[str, float]]]:
    """The card's `held_out` of a model of every machine, by op: shares of the optimum of the vote,
    the model and both joined, each without the runs of the machine that asks and without the
    groups of the judged matrices; an op that one machine ran alone is left out."""
    ops = parts[0].model.ops if parts else ()
    figures = {}
    for at, op in enumerate(ops):
        bench = Bench(db, op, platform.name)
        by_machine: dict[frozenset[str], list[Seen]] = {}
        for done, part in enumerate(parts):
            progress(f"judge {op}", done + at * len(parts), len(ops) * len(parts))
            rows = [(row.platform in part.machines, row.group in part.groups)
                    for row in bench.evidence.rows]  # fmt: skip
            there, group = np.array(rows, dtype=np.bool_).reshape(-1, 2).T
            train = np.flatnonzero(~there & ~group)
            test = bench.counted[(there & group)[bench.counted]]
            most = _MOST_ASKED // sum(other.machines == part.machines for other in parts)
            test = np.sort(np.random.default_rng(done).permutation(test)[:most])
            if train.size and test.size:
                seen = seen_by(bench, part.model, train, test)
                by_machine.setdefault(part.machines, []).extend(seen)
        if by_machine:
            figures[str(op)] = _figures(list(by_machine.values()))
    return figures


def _figures(by_machine: Sequence[Sequence[Seen]]) -> dict[str, dict[str, float]]:
    try:
        return held_out(by_machine, weight=WEIGHT)
    except NothingFound:
        return {}
