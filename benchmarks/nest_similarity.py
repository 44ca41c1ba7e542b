"""Whether nests that an embedding puts side by side perform alike: Table 1 of "Performance
Embeddings", on nests that `embeddb nest count` has counted.

    embeddb train nests TRAINING.db -o both-0.safetensors --inputs both --seed 0
    python benchmarks/nest_similarity.py TESTS.db TRAINING.db --networks *.safetensors > table.json

For every nest and metric: deviation over mean among the nest and its three nearest of other
programs (or families of synthetic nests), `neighbourhoods`. A network's card says
what it reads (`--inputs` both, static or dynamic) and its seed; nests that it may have learned from
are asked about only where their family was held out of its training, by every method of that seed.

Metrics: bytes a second over three boundaries (from memory, between L2 and L3, between L1 and L2),
and the locality Q/D at each. The paper's is that of memory; in modelled caches that are warm, D is
0 there for all that fits the last cache, and Q/D is 1 where D is below Q. So Q/D is told at all
boundaries, Q being the least traffic of a memory of the size before it. Figures are over `all`
nests and over those that `move` anything over the boundary: four nests that move nothing vary by
nothing, whatever put them together.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from first_iterations import first_iterations
from locality import data_locality
from machine import about
from neighbourhoods import (
    NEIGHBOURS,
    chosen_by_chance,
    clustered_error,
    local_variation,
    nearest_others,
)
from numpy.typing import NDArray

from embeddb.core.errors import EmbeddbError, NothingFound, UsageError
from embeddb.database import open_database
from embeddb.featurizers.nest_stats import NestStats
from embeddb.nests.counters import SOURCES
from embeddb.nests.encoding.forward import NestNetwork
from indexer.nest_runs import Counted, counted, counting_platforms
from indexer.runners.nest_counters.caches import PLAIN
from indexer.training.nests.samples import (
    NestSample,
    content_of,
    counters_of,
    held_out,
    sample_of,
)
from indexer.training.nests.targets import TARGETS, value_of

#: By boundary: the bytes that pass it, the counter of those that are written, and the key of the
#: size of the memory before it.
BOUNDARIES = {
    "memory": ("memory_bytes", "memory_writes", "l3_bytes"),
    "l3": ("l3_bytes", "l2_writebacks", "l2_bytes"),
    "l2": ("l2_bytes", "l1_modified_evictions", "l1_bytes"),
}
OURS = "ours"
DRAWS = 20
#: By what a network reads, the names of its rows: with the counters it learned from, without.
ROWS = {
    "both": (OURS, "ours, counters hidden"),
    "static": (None, "static only"),
    "dynamic": ("dynamic only", None),
}

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Nests:
    """Counted nests. `metrics` float64[n] by name, `moving` bool[n] by name."""

    counted: Sequence[Counted]
    samples: Sequence[NestSample]
    groups: NDArray[np.str_]
    fast_bytes: Mapping[str, int]
    metrics: Mapping[str, Floats]
    moving: Mapping[str, NDArray[np.bool_]]


def read(path: Path, platform: str, source: str) -> Nests:
    """Raises: UsageError or NothingFound for no instance, or several, that counted by `source`."""
    with open_database(path, readonly=True) as db:
        places = [p for p in counting_platforms(db.store) if platform in ("", p)]
        if len(places) != 1:
            raise UsageError(f"{path.name}: counted on {places or 'no machine'}", hint="--platform")
        found = [c for c in counted(db.store, places[0]) if c.counters.source == source]
        told = db.store.platform(places[0])
    if not found or told is None:
        raise NothingFound(f"{path.name}: no nest has counters of {source}", hint="--source")
    fast = fast_bytes(told.environment)
    samples = [sample_of(c.nest, c.counters, c.seconds) for c in found]
    metrics, moving = measured(found, samples, fast)
    groups = np.array([c.nest.group for c in found])
    return Nests(found, samples, groups, fast, metrics, moving)


def fast_bytes(environment: Mapping[str, str]) -> dict[str, int]:
    """By boundary, the bytes that one thread has before it: L1 and L2, and its part of L3."""
    plain = {
        f"l{level}_bytes": cache.sets * cache.ways * PLAIN.line_bytes
        for level, cache in ((1, PLAIN.l1), (2, PLAIN.l2), (3, PLAIN.l3))
    }
    threads = int(environment.get("threads", 1))
    sizes = {key: int(environment.get(key, size)) for key, size in plain.items()}
    sizes["l3_bytes"] //= threads
    return {name: sizes[key] for name, (*_, key) in BOUNDARIES.items()}


def measured(
    nests: Sequence[Counted], samples: Sequence[NestSample], fast: Mapping[str, int]
) -> tuple[dict[str, Floats], dict[str, NDArray[np.bool_]]]:
    """`Nests.metrics` and `Nests.moving`."""
    metrics: dict[str, Floats] = {}
    for name in BOUNDARIES:
        target = f"{name}_bandwidth"
        column = [value_of(target, float(s.targets[TARGETS.index(target)])) for s in samples]
        metrics[target] = np.array(column)
    moving = {target: values > 0 for target, values in metrics.items()}
    for name, (moved, written, _) in BOUNDARIES.items():
        # Where writes are not counted there is no locality: Q is of both ways.
        told = [getattr(c.counters, moved) + 0 * c.counters.of(written) for c in nests]
        shares = [data_locality(c.nest, d, fast[name]) for c, d in zip(nests, told, strict=True)]
        metrics[f"{name}_locality"] = np.array(shares)
        moving[f"{name}_locality"] = moving[f"{name}_bandwidth"]
    return metrics, moving


# -- ways to find neighbours -----------------------------------------------------------------------

Vectors = NDArray[np.float32]


def plain_vectors(nests: Nests) -> dict[str, Vectors]:
    """What nothing was learned for, float32[n,d] by method."""
    counters = counters_of(nests.samples)
    there = ~np.isnan(counters).any(axis=0)
    logs = np.log2(1 + counters[:, there])
    stats = NestStats()
    plain = np.stack([stats.embed(c.nest) for c in nests.counted])
    reuse = np.stack([first_iterations(c.nest) for c in nests.counted])
    return {
        "raw counters": logs,
        "plain statistics": plain,
        "counters and statistics": np.concatenate([logs, plain], axis=1),
        "reuse distance": reuse,
    }


def learned_vectors(networks: Sequence[NestNetwork], nests: Nests) -> Iterator[tuple[str, Vectors]]:
    """float32[n,128] by method of the networks of one seed."""
    for network in networks:
        counted_row, plain_row = ROWS[str(network.spec["inputs"])]
        pairs = [(s.graph, s.counters) for s in nests.samples]
        if counted_row is not None:
            yield counted_row, np.stack([network.embedding(graph, held) for graph, held in pairs])
        if plain_row is not None:
            yield plain_row, np.stack([network.embedding(graph) for graph, _ in pairs])


def unseen(nests: Nests, card: Mapping[str, Any]) -> NDArray[np.int64]:
    """The places of nests that a network of that card did not learn from."""
    own = content_of(nests.samples) == card["data"]
    learned = [s for s in nests.samples if own or s.group.startswith("synthetic/")]
    if not learned:
        return np.arange(len(nests.samples))
    out_of = held_out(learned, card["seed"])
    known = {s.group for s in learned} - out_of
    return np.flatnonzero(~np.isin(nests.groups, sorted(known)))


# -- figures ---------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Judged:
    """One seed: the nests asked about, int64[q], and by method and metric their float64[q]."""

    asked: NDArray[np.int64]
    variation: Mapping[str, Mapping[str, Floats]]


def judge(nests: Nests, networks: Sequence[NestNetwork], plain: Mapping[str, Vectors]) -> Judged:
    """All methods on what no network of one seed has learned from."""
    asked = np.arange(len(nests.samples))
    for network in networks:
        asked = np.intersect1d(asked, unseen(nests, network.card))
    found = {}
    for method, vectors in {**plain, **dict(learned_vectors(networks, nests))}.items():
        near = nearest_others(vectors, nests.groups, asked)
        found[method] = {m: local_variation(v, asked, near) for m, v in nests.metrics.items()}
    found["the metric itself"] = {
        metric: local_variation(values, asked, nearest_others(column, nests.groups, asked))
        for metric, values in nests.metrics.items()
        for column in [np.log2(1 + values[:, None]).astype(np.float32)]
    }
    draws = [
        chosen_by_chance(nests.groups, asked, np.random.default_rng(seed)) for seed in range(DRAWS)
    ]
    found["random"] = {
        metric: np.mean([local_variation(values, asked, near) for near in draws], axis=0)
        for metric, values in nests.metrics.items()
    }
    return Judged(asked, found)


def rows(nests: Nests, seeds: Sequence[Judged]) -> list[dict[str, Any]]:
    """A row by method, over the seeds that have it."""
    methods = dict.fromkeys(method for judged in seeds for method in judged.variation)
    found = []
    for method in methods:
        having = [judged for judged in seeds if method in judged.variation]
        row: dict[str, Any] = {"method": method, "seeds": len(having)}
        for part in ("all", "move"):
            row[part] = {
                metric: figures(nests, having, method, metric, part) for metric in nests.metrics
            }
        found.append(row)
    return found


def figures(
    nests: Nests, seeds: Sequence[Judged], method: str, metric: str, part: str
) -> dict[str, float]:
    """Mean over nests and seeds; `spread` is the largest less the smallest mean of a seed;
    `standard_error` that of one seed, programs drawn anew; `above_ours` the mean difference to
    `OURS` on the same nests, with the standard error of that."""
    means, errors, above, above_errors = [], [], [], []
    for judged in seeds:
        values, ours = (
            judged.variation.get(name, {}).get(metric, np.full(len(judged.asked), np.nan))
            for name in (method, OURS)
        )
        kept = ~np.isnan(values)
        if part == "move":
            kept &= nests.moving[metric][judged.asked]
        groups = nests.groups[judged.asked][kept]
        if len(groups):
            means.append(float(values[kept].mean()))
            errors.append(clustered_error(values[kept], groups))
            above.append(float((values - ours)[kept].mean()))
            above_errors.append(clustered_error((values - ours)[kept], groups))
    if not means:
        return {}
    told = {
        "mean": statistics.mean(means),
        "spread": max(means) - min(means),
        "standard_error": statistics.mean(errors),
        "above_ours": statistics.mean(above),
        "above_ours_error": statistics.mean(above_errors),
    }
    return {key: round(value, 4) for key, value in told.items() if not np.isnan(value)}


def by_seed(files: Sequence[Path]) -> dict[int, list[NestNetwork]]:
    """Raises: UsageError for two networks of one seed that read the same."""
    found: dict[int, list[NestNetwork]] = defaultdict(list)
    for file in files:
        network = NestNetwork.load(file)
        reads = [one.spec["inputs"] for one in found[network.card["seed"]]]
        if network.spec["inputs"] in reads:
            raise UsageError(f"{file.name}: another network has its seed and inputs")
        found[network.card["seed"]].append(network)
    return dict(sorted(found.items()))


def table_of(nests: Nests, networks: Mapping[int, Sequence[NestNetwork]]) -> dict[str, Any]:
    """The figures of one database. Raises: UsageError for counters of another source than a
    network's."""
    source = nests.counted[0].counters.source
    for network in (one for several in networks.values() for one in several):
        if network.card["source"] != source:
            raise UsageError(f"counters of {source}, a network of {network.card['source']}")
    plain = plain_vectors(nests)
    seeds = [judge(nests, several, plain) for several in networks.values() or [()]]
    return {
        "nests": len(nests.samples),
        "groups": len(set(nests.groups.tolist())),
        "asked": [len(judged.asked) for judged in seeds],
        "source": source,
        "counters": dict(Counter(c.counters.about for c in nests.counted)),
        "fast_bytes": dict(nests.fast_bytes),
        "moving": {m: round(float(there.mean()), 4) for m, there in nests.moving.items()},
        "at_best": {
            m: round(float((values == 1).mean()), 4)
            for m, values in nests.metrics.items()
            if m.endswith("_locality")
        },
        "rows": rows(nests, seeds),
    }


def show(name: str, table: Mapping[str, Any], say: Callable[[str], None]) -> None:
    metrics = list(table["moving"])
    for part in ("all", "move"):
        say(f"{name}, {part}: {table['nests']} nests of {table['groups']} groups")
        say(" " * 26 + " ".join(f"{metric[:16]:>16}" for metric in metrics))
        for row in table["rows"]:
            cells = (row[part][metric] for metric in metrics)
            told = (f"{c['mean']:.3f} ±{c['spread']:.3f}" if c else "-" for c in cells)
            say(f"{row['method']:26}" + " ".join(f"{cell:>16}" for cell in told))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dbs", type=Path, nargs="+", metavar="DB")
    parser.add_argument("--networks", type=Path, nargs="*", default=[], metavar="FILE")
    parser.add_argument("--platform", default="", help="the instance whose counts are taken")
    parser.add_argument("--source", default="model", choices=SOURCES)
    asked = parser.parse_args()
    try:
        networks = by_seed(asked.networks)
        tables = {}
        for path in asked.dbs:
            tables[path.stem] = table_of(read(path, asked.platform, asked.source), networks)
            show(path.stem, tables[path.stem], lambda line: print(line, file=sys.stderr))
    except EmbeddbError as error:
        sys.exit(str(error))
    cards = [
        {"inputs": n.spec["inputs"], "seed": seed, "data": n.card["data"]}
        for seed, several in networks.items()
        for n in several
    ]
    document = {"about": about(), "neighbours": NEIGHBOURS, "networks": cards, "sets": tables}
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
