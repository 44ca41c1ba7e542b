"""Transfer of schedules between loop nests, judged by running them here (Table 2 of "Performance
Embeddings"): the database of `embeddb nest measure`, one application after the other left out.

    python benchmarks/nests.py DB [--rounds 3] [--all] > benchmarks/results/nests.json
    python benchmarks/nests.py DB --size small --size large --method "nest-stats, raw" ...

For every nest of the paper's twelve applications (`--all`: of all programs), each method proposes k
schedules from what ran on other programs. All proposals, the nest as it stands and the ten fastest
that a search found are then run in the same interleaved rounds; "search" is the best of those ten
there, so that it is not judged by one that was lucky on its day. Methods differ in how neighbours
are found (statistics of the nest, the learned embedding, by chance) and in how a neighbour's
schedule is carried over (slot by slot, matching by four features of a loop made by hand, by all
features of the graph, by learned vectors of nodes).
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from machine import about
from nest_matchers import learned_vectors, loop_vectors, slot_copy, step_by_step
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.errors import EmbeddbError
from embeddb.core.timing import TimingSummary, summarise_runs
from embeddb.database import Database, open_database
from embeddb.nests.check import Legality
from embeddb.nests.matching.transfer import (
    Matcher,
    NodeVectors,
    at_once,
    raw_vectors,
    transfer,
)
from embeddb.nests.nest import Nest
from embeddb.nests.recipe import recipe_of
from embeddb.nests.schedule import Schedule
from embeddb.platforms.platform import Platform, default_of, load_platform, space_of, this_machine
from indexer.programs import SIZES, applications
from indexer.runners.base import RunOptions

OP = Op("nest")
KS = (1, 5, 10)
#: Within so much of the best found counts as found.
CLOSE = 0.05


@dataclass(frozen=True, slots=True)
class Known:
    """A measured nest: what ran on it, its default there, and the fastest ten, fastest first."""

    nest: Nest
    timings: dict[Config, TimingSummary]
    default: Config
    fastest: tuple[Config, ...]

    @property
    def best(self) -> Config:
        return self.fastest[0]

    @property
    def gain(self) -> float:
        return self.timings[self.default].seconds / self.timings[self.best].seconds


def known_nests(db: Database, here: Platform) -> list[Known]:
    found = []
    for info in db.store.patterns():
        nest = db.store.nest(info.id) if info.kind == "nest" else None
        timings = summarise_runs(db.store.runs(here.id, OP, info.id)) if nest else {}
        ran = {c: t for c, t in timings.items() if math.isfinite(t.seconds)}
        default = default_of(here, OP, nest) if nest else None
        if nest is not None and default in ran:
            fastest = sorted(ran, key=lambda c: ran[c].seconds)[: max(KS)]
            found.append(Known(nest, ran, default, tuple(fastest)))
    return sorted(found, key=lambda known: (known.nest.group, known.nest.name))


# -- neighbours ------------------------------------------------------------------------------------

#: From a nest's place among the known to the others', nearest first.
Nearest = Callable[[int], Sequence[int]]


def by_vectors(vectors: NDArray[np.float64]) -> Nearest:
    """Standardised l2."""
    spread = vectors.std(axis=0)
    scaled = (vectors - vectors.mean(axis=0)) / np.where(spread > 1e-9, spread, 1.0)
    return lambda at: np.argsort(np.square(scaled - scaled[at]).sum(axis=1), kind="stable").tolist()


def by_chance(count: int, seed: int) -> Nearest:
    return lambda at: np.random.default_rng([seed, at]).permutation(count).tolist()


def finders(db: Database, known: Sequence[Known]) -> dict[str, Nearest]:
    found: dict[str, Nearest] = {}
    for name in ("nest-stats", "nest-embedding"):
        try:
            plug = db.index.featurizers().named(name)
            rows = [plug.embed(one.nest) for one in known]
        except EmbeddbError as error:
            print(f"{name}: {error}", file=sys.stderr)
            continue
        found[name] = by_vectors(np.stack(rows).astype(np.float64))
    return found


# -- carrying over ---------------------------------------------------------------------------------

Carry = Callable[[Known, Nest, Legality], Schedule | None]


def matching(vectors: NodeVectors, way: Callable[..., Matcher] = step_by_step) -> Carry:
    kept = lru_cache(maxsize=512)(vectors)

    def carry(source: Known, target: Nest, rules: Legality) -> Schedule | None:
        steps = recipe_of(source.nest, Schedule.of(source.best, source.nest.depth), whole=True)
        matcher = way(source.nest, target, kept)
        found = transfer(steps, source.nest, target=target, legal=rules.reason, matcher=matcher)
        return found.schedule

    return carry


def slots(source: Known, target: Nest, rules: Legality) -> Schedule | None:
    if source.nest.depth != target.depth:
        return None
    schedule = Schedule.of(source.best, source.nest.depth)
    return slot_copy(schedule, source.nest, target=target, legal=rules.reason).schedule


def carriers(db: Database) -> dict[str, Carry]:
    found: dict[str, Carry] = {
        "slots": slots,
        "by hand": matching(loop_vectors),
        "by hand at once": matching(loop_vectors, at_once),
        "raw": matching(raw_vectors),
    }
    plug = db.index.featurizers().get("nest-embedding")
    return found if plug is None else {**found, "learned": matching(learned_vectors(plug.network))}


# -- proposals -------------------------------------------------------------------------------------


def proposals(
    at: int, known: Sequence[Known], nearest: Nearest, carry: Carry, space: Any, most: int
) -> list[Config]:
    """What the nearest nests of other programs become here, one of each, legal and distinct."""
    target = known[at].nest
    rules = Legality(target)
    found: list[Config] = []
    for other in nearest(at):
        if known[other].nest.group == target.group or len(found) == most:
            continue
        made = carry(known[other], target, rules)
        config = None if made is None else space.canonical(made.config)
        if config is not None and space.reason(config) is None and config not in found:
            found.append(config)
    return found


def static_best(at: int, known: Sequence[Known], space: Any, most: int) -> list[Config]:
    """Greedily the schedules that gain most on the other programs' nests of the same depth, of
    those that a third of them ran: the best fixed choice."""
    target = known[at].nest
    others = [k for k in known if k.nest.group != target.group and k.nest.depth == target.depth]
    counts: dict[Config, int] = {}
    for one in others:
        for config in one.timings:
            counts[config] = counts.get(config, 0) + 1
    legal = [c for c, n in counts.items() if 3 * n >= len(others) and space.reason(c) is None]
    held = [1.0] * len(others)
    found: list[Config] = []

    def worth(config: Config) -> float:
        return sum(math.log(max(h, _gain(o, config))) for h, o in zip(held, others, strict=True))

    while len(found) < most and legal:
        best = max(legal, key=worth)
        found.append(best)
        legal.remove(best)
        held = [max(h, _gain(o, best)) for h, o in zip(held, others, strict=True)]
    return found


def _gain(known: Known, config: Config) -> float:
    timing = known.timings.get(config)
    return 1.0 if timing is None else known.timings[known.default].seconds / timing.seconds


#: Which ways of carrying over are tried with which neighbours.
TRIED = {
    "nest-stats": ("slots", "by hand", "by hand at once", "raw", "learned"),
    "nest-embedding": ("slots", "by hand at once", "learned"),
    "chance": ("slots", "by hand at once"),
}


def methods(
    db: Database, known: Sequence[Known], seed: int
) -> Iterator[tuple[str, Callable[[int, Any, int], list[Config]]]]:
    carry = carriers(db)
    for finder, nearest in {**finders(db, known), "chance": by_chance(len(known), seed)}.items():
        for how in (name for name in TRIED[finder] if name in carry):
            yield (
                f"{finder}, {how}",
                lambda at, space, most, n=nearest, c=carry[how]: proposals(
                    at, known, n, c, space, most
                ),
            )
    yield "static best", lambda at, space, most: static_best(at, known, space, most)


# -- judging ---------------------------------------------------------------------------------------


def judged(
    at: int, known: Sequence[Known], asked: dict[str, list[Config]], runner: Any, rounds: int
) -> dict[str, Any]:
    """Seconds of everything proposed for a nest, run here together."""
    one = known[at]
    ran: dict[Config, list[float]] = {}
    configs = list(
        dict.fromkeys([one.default, *one.fastest, *(c for a in asked.values() for c in a)])
    )
    for number in range(rounds):
        order = np.random.default_rng([at, number]).permutation(len(configs))
        for config, m in runner.run(
            one.nest, OP, [configs[i] for i in order], options=RunOptions(repeats=3)
        ):
            ran.setdefault(config, []).append(m.seconds)
    seconds = {config: statistics.median(times) for config, times in ran.items()}
    base = seconds[one.default]
    best = min(base, *(seconds[config] for config in one.fastest))
    rows = {
        method: {str(k): base / min((seconds[c] for c in told[:k]), default=base) for k in KS}
        for method, told in asked.items()
    }
    return {
        "nest": one.nest.name,
        "program": one.nest.group,
        "depth": one.nest.depth,
        "default_s": base,
        "search": base / best,
        "searched": len(one.timings),
        "gain": rows,
    }


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """By method and k: geometric mean gain where the default is measured too ("guarded"), the part
    of the search's log gain that is, the share within 5 % of the search, and without the guard."""
    found: dict[str, Any] = {}
    ideal = [math.log(row["search"]) for row in rows]
    for method in rows[0]["gain"]:
        told = {}
        for k in map(str, KS):
            plain = [math.log(row["gain"][method][k]) for row in rows]
            held = [max(gain, 0.0) for gain in plain]
            close = [g >= i + math.log(1 - CLOSE) for g, i in zip(held, ideal, strict=True)]
            told[k] = {
                "gain": math.exp(statistics.mean(held)),
                "of_search": sum(held) / max(sum(ideal), 1e-9),
                "standard_error": statistics.stdev(held) / math.sqrt(len(held)),
                "within_5": sum(close) / len(close),
                "unguarded_gain": math.exp(statistics.mean(plain)),
                "worst": math.exp(min(plain)),
                "slower_by_2": sum(gain < math.log(0.98) for gain in plain) / len(plain),
            }
        found[method] = told
    return found


def _size(known: Known) -> str:
    """As its name ends; `medium` for a nest of no size."""
    return next((size for size in SIZES if known.nest.name.endswith(f"_{size}")), "medium")


def _sized(rows: Sequence[dict[str, Any]], size: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["nest"].endswith(f"_{size}")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("db", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--only", default="", help="names of nests begin with this")
    parser.add_argument("--size", action="append", help="names of nests end with this")
    parser.add_argument("--method", action="append", help="this way alone")
    asked = parser.parse_args()
    runner, here = this_machine(load_platform("nest-cpu"))
    with open_database(asked.db, readonly=True) as db:
        known = known_nests(db, here)
        wanted = set(applications())
        ways = dict(methods(db, known, asked.seed))
        ways = {name: way for name, way in ways.items() if name in (asked.method or ways)}
        rows = []
        for at, one in enumerate(known):
            if not asked.all and one.nest.group not in wanted:
                continue
            if not one.nest.name.startswith(asked.only) or _size(one) not in (asked.size or SIZES):
                continue
            space = space_of(here, OP, one.nest)
            told = {name: way(at, space, max(KS)) for name, way in ways.items()}
            rows.append(judged(at, known, told, runner, asked.rounds))
            print(json.dumps({k: rows[-1][k] for k in ("nest", "search")}), file=sys.stderr)
    document = {
        "machine": about(),
        "nests": len(rows),
        "known": len(known),
        "summary": summary(rows),
        "sizes": {size: summary(held) for size in SIZES if (held := _sized(rows, size))},
        "rows": rows,
    }
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
