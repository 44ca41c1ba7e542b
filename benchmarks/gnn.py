"""Inference of graph networks end to end: the default schedule of every aggregation against the
answer's, scipy and torch beside it.

    python benchmarks/gnn.py answers DATABASE MATRICES answers.json [--graph cora ...]
    OMP_WAIT_POLICY=passive chrt -r 1 python benchmarks/gnn.py time answers.json MATRICES \
        [--rounds 7] > benchmarks/results/gnn.json

The first asks and compiles, the second times alone.

GraphSAGE has three layers, relu(H W + mean(H of neighbours) V), 128 features everywhere; GCN two,
A (H W) with A the normalised matrix with self-loops, 128 features in, 128 hidden, 32 out. Weights
and features are random: time does not depend on them. Products with weights are torch's for all,
into memory that is there; only the aggregation differs, which is SpMM on two threads: kernels of
the platform `cpu` called in this process by the default configuration, by the first answer, and by
that of the first five which is fastest on the graph (and its default, timed by themselves before);
torch's CSR product, and scipy's, which has one thread. Bringing the matrix into a format is told
apart.

Answers are by neighbours' votes in DATABASE, the starter, without the runs of any family of the
graphs asked about. Every result is compared with torch's: the largest difference, over the largest
value. Rounds are interleaved, in another order each; the times are medians.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from held_out import HeldOut
from machine import about

from embeddb.core.config import Config, Op
from embeddb.core.pattern import Pattern
from embeddb.database import Database
from embeddb.kernels import build as cpu_build
from embeddb.kernels import codegen
from embeddb.kernels.forms import PADDING, Converter, Form, Refusal, aligned
from embeddb.kernels.tasks import (
    Plan,
    problem_of,
    scratch_values,
    strip_of,
    timed,
    timed_function,
)
from embeddb.matrix_files import read_pattern
from embeddb.platforms.platform import load_platform, platform_here, runner_for
from embeddb.ranking.fallback import answer
from embeddb.ranking.query import Query

THREADS = 2
WIDTH, OUT = 128, 32
MOST_BYTES = 4 << 30
GRAPHS = (
    *("cora", "pubmed", "yelp_user_user", "blogcatalog", "facebook_combined", "as20graph"),
    *("ca-AstroPh", "cit-HepPh", "email-Enron", "musae_facebook", "gatne_amazon", "deezer_RO"),
    *("dblp_prone", "p2p-Gnutella31"),
)
Aggregate = Callable[[torch.Tensor], torch.Tensor]


class Kernel:
    """SpMM of a matrix in one configuration, from memory of (n + 64) rows into its own."""

    def __init__(self, csr: Form, config: Config, width: int, formats: Converter) -> None:
        op = Op("spmm", width)
        variant, launch = codegen.plan(config, op, vector_bytes=cpu_build.vector_bytes())
        built = cpu_build.build(codegen.source(variant))
        if built.error:
            raise RuntimeError(f"{config}: {built.error}")
        begun = time.perf_counter()
        form = formats.convert(csr, launch.form, max_bytes=MOST_BYTES)
        self.prepared_s = time.perf_counter() - begun
        if isinstance(form, Refusal):
            raise RuntimeError(f"{config}: {form.reason}")
        threads = 1 if launch.threads == "one" else THREADS
        self.strip = strip_of(
            form, strip=launch.strip, rows=launch.form.rows, tasks=threads * launch.pieces
        )
        how = {"strip": self.strip, "width": width, "threads": threads}
        self.work = aligned((scratch_values(launch.scratch, form, **how),), np.float32)
        self.d = aligned((csr.shape[0] + PADDING, width), np.float32)
        self.result = torch.from_numpy(self.d[: csr.shape[0]])
        self.form, self.width = form, width
        schedule = codegen.SCHEDULES[launch.schedule]
        self.plan = Plan(threads, schedule, launch.chunk, 0, 1, 1, 0.0)
        self.run = timed_function(str(built.path))

    def __call__(self, h: torch.Tensor) -> torch.Tensor:
        operands = (h.numpy(), None, self.d, self.work)
        problem = problem_of(self.form, self.width, self.strip, operands)
        timed(self.run, problem, self.plan)
        return self.result


class Network:
    """Layers over any aggregation. `h` are buffers float32[n+64,WIDTH], the last rows zero."""

    def __init__(self, name: str, rows: int) -> None:
        self.name, self.rows = name, rows
        made = torch.Generator().manual_seed(0)
        widths = [OUT if name == "gcn" and at == 1 else WIDTH for at in range(3)]
        scale = WIDTH**-0.5
        self.weights = [
            [torch.randn(WIDTH, w, generator=made) * scale for _ in range(2)] for w in widths
        ]
        self.x = self._buffer(WIDTH)
        self.x[:rows] = torch.randn(rows, WIDTH, generator=made)
        self.h = [self._buffer(WIDTH) for _ in range(2)]
        self.narrow = self._buffer(OUT)

    def _buffer(self, width: int) -> torch.Tensor:
        return torch.from_numpy(aligned((self.rows + PADDING, width), np.float32))

    def __call__(self, aggregates: dict[int, Aggregate]) -> torch.Tensor:
        return self._gcn(aggregates) if self.name == "gcn" else self._sage(aggregates[WIDTH])

    def _sage(self, aggregate: Aggregate) -> torch.Tensor:
        h = self.x
        for at, (own, near) in enumerate(self.weights):
            mean, out = aggregate(h), self.h[at % 2]
            torch.mm(h[: self.rows], own, out=out[: self.rows])
            out[: self.rows].addmm_(mean, near).relu_()
            h = out
        return h[: self.rows]

    def _gcn(self, aggregates: dict[int, Aggregate]) -> torch.Tensor:
        torch.mm(self.x[: self.rows], self.weights[0][0], out=self.h[0][: self.rows])
        hidden = aggregates[WIDTH](self.h[0]).relu()
        torch.mm(hidden, self.weights[1][0], out=self.narrow[: self.rows])
        return aggregates[OUT](self.narrow)


def matrix_of(name: str, pattern: Pattern) -> tuple[Pattern, Any]:
    """The pattern that is aggregated over, and scipy's matrix with its values."""
    import scipy.sparse as sp

    a = sp.csr_array(pattern.to_scipy(np.float32))
    a.data[:] = 1.0
    if name == "gcn":
        a = sp.csr_array(a + sp.eye_array(a.shape[0], dtype=np.float32))
        a.data[:] = 1.0
    degree = np.maximum(np.diff(a.indptr), 1).astype(np.float32)
    rows = np.repeat(np.arange(a.shape[0]), np.diff(a.indptr))
    a.sort_indices()
    a.data = 1.0 / degree[rows]
    if name == "gcn":
        a.data = (degree[rows] * degree[a.indices]) ** -0.5
    a.data = a.data.astype(np.float32)
    made = Pattern.from_csr(a.shape, a.indptr, a.indices, name=f"{pattern.name}/{name}")
    return made, a


def told_of(query: Query) -> dict[str, Any]:
    """The default, and the first five."""
    told = answer(query, 5, rng=np.random.default_rng(0))
    return {
        "link": told.source,
        "default": dict(query.default),
        "first": [candidate.config for candidate in told.candidates],
    }


def kernels_of(
    csr: Form, default: Config, first: Sequence[Config], width: int, formats: Converter
) -> dict[Config, Kernel]:
    found = {}
    for config in dict.fromkeys([default, *first]):
        try:
            found[config] = Kernel(csr, config, width, formats)
        except RuntimeError as error:  # what needs too much room is no candidate
            sys.stderr.write(f"{error}\n")
    return found


def fastest(kernels: dict[Config, Kernel], h: torch.Tensor, rounds: int) -> Config:
    """By medians of interleaved calls."""
    took: dict[Config, list[float]] = {config: [] for config in kernels}
    for number in range(rounds + 1):
        for config in np.random.default_rng(number).permutation(np.array([*kernels], dtype=object)):
            begun = time.perf_counter()
            kernels[config](h)
            if number:
                took[config].append(time.perf_counter() - begun)
    return min(took, key=lambda config: statistics.median(took[config]))


def judged(
    name: str, pattern: Pattern, answers: dict[str, Any], formats: Converter, rounds: int
) -> Any:
    asked, matrix = matrix_of(name, pattern)
    network = Network(name, asked.shape[0])
    values = aligned((asked.nnz,), np.float32)
    values[:] = matrix.data
    csr = Form(asked.shape, asked.indptr.astype(np.int64), asked.indices, values)
    methods: dict[str, dict[int, Any]] = {m: {} for m in ("default", "answer", "best of five")}
    configs: dict[str, dict[str, str]] = {m: {} for m in methods}
    for width in (WIDTH, OUT) if name == "gcn" else (WIDTH,):
        told = answers[f"{pattern.name}/{name}/{width}"]
        default, first = Config(told["default"]), [Config(one) for one in told["first"]]
        kernels = kernels_of(csr, default, first, width, formats)
        h = network.x if width == WIDTH else network.narrow
        able = [config for config in first if config in kernels]
        chosen = {"default": default, "answer": able[0], "best of five": fastest(kernels, h, 5)}
        for method, config in chosen.items():
            methods[method][width] = kernels[config]
            configs[method][f"spmm:{width}"] = str(config)
    n = asked.shape[0]
    torch_a = torch.sparse_csr_tensor(
        torch.from_numpy(matrix.indptr.astype(np.int64)),
        torch.from_numpy(matrix.indices.astype(np.int64)),
        torch.from_numpy(matrix.data),
        size=matrix.shape,
    )
    widths = (WIDTH, OUT)
    methods["torch"] = dict.fromkeys(widths, lambda h: torch_a @ h[:n])
    methods["scipy"] = dict.fromkeys(
        widths, lambda h: torch.from_numpy(np.asarray(matrix @ h[:n].numpy()))
    )
    truth = network(methods["torch"]).clone()
    error = {
        method: float((network(how) - truth).abs().max() / truth.abs().max())
        for method, how in methods.items()
    }
    times, dense = rounds_of(network, methods, rounds)
    return {
        "graph": pattern.name,
        "network": name,
        "nodes": n,
        "nonzeros": asked.nnz,
        "ms": {m: round(1e3 * statistics.median(t), 4) for m, t in times.items()},
        "dense_ms": round(1e3 * statistics.median(dense), 4),
        "rounds_ms": {m: [round(1e3 * s, 4) for s in t] for m, t in times.items()},
        "prepare_ms": {
            m: round(1e3 * sum(k.prepared_s for k in methods[m].values()), 3) for m in configs
        },
        "configs": configs,
        "error": error,
    }


def rounds_of(
    network: Network, methods: dict[str, dict[int, Any]], rounds: int
) -> tuple[dict[str, list[float]], list[float]]:
    """Seconds of whole inferences by method, and of one that aggregates nothing."""
    still = dict.fromkeys((WIDTH, OUT), lambda h: h[: network.rows])
    asked = {**methods, "": still}
    times: dict[str, list[float]] = {method: [] for method in asked}
    for number in range(rounds):
        for method in np.random.default_rng(number).permutation([*asked]):
            network(asked[method])
            begun = time.perf_counter()
            network(asked[method])
            times[method].append(time.perf_counter() - begun)
    return times, times.pop("")


def means(rows: Sequence[Any]) -> dict[str, Any]:
    """Geometric means of the default's time over others', whole and without the dense products."""
    found: dict[str, Any] = {}
    for name in dict.fromkeys(row["network"] for row in rows):
        own = [row for row in rows if row["network"] == name]
        found[name] = {
            method: {
                "whole": _mean([r["ms"]["default"] / r["ms"][method] for r in own]),
                "min": round(min(r["ms"]["default"] / r["ms"][method] for r in own), 3),
                "max": round(max(r["ms"]["default"] / r["ms"][method] for r in own), 3),
                "slower": sum(r["ms"][method] > r["ms"]["default"] for r in own),
            }
            for method in own[0]["ms"]
        }
        found[name]["dense_share_of_default"] = _mean(
            [r["dense_ms"] / r["ms"]["default"] for r in own]
        )
    return found


def _mean(ratios: Sequence[float]) -> float:
    return round(statistics.geometric_mean(ratios), 4)


def ask(asked: Any) -> None:
    """Answers to a file, and all that they name compiled."""
    listed, runner = manifest(asked.matrices), runner_for(load_platform("cpu"))
    found: dict[str, Any] = {}
    with Database.open(asked.database, readonly=True) as db:
        here = platform_here(runner, threads=THREADS)
        families = {listed[name]["family"] for name in asked.graph}
        known = HeldOut(db, here, families, [Op("spmm", width) for width in (WIDTH, OUT)])
        for name in asked.graph:
            for network in ("sage", "gcn"):
                pattern, _ = matrix_of(network, read(asked.matrices, listed, name))
                for width in (WIDTH, OUT) if network == "gcn" else (WIDTH,):
                    told = told_of(known.query(pattern, Op("spmm", width)))
                    found[f"{name}/{network}/{width}"] = told
        found["platform"] = here.id
    asked.answers.write_text(json.dumps(found), encoding="utf-8")
    for key, told in found.items():
        if key != "platform":
            configs = [Config(told["default"]), *map(Config, told["first"])]
            runner.prepare(Op("spmm", int(key.split("/")[-1])), configs)


def timed_all(asked: Any) -> None:
    torch.set_num_threads(THREADS)
    torch.set_grad_enabled(False)
    listed = manifest(asked.matrices)
    answers = json.loads(asked.answers.read_text(encoding="utf-8"))
    formats = Converter(str(cpu_build.build(_conversions()).path))
    rows = []
    for name in dict.fromkeys(key.split("/")[0] for key in answers if key != "platform"):
        pattern = read(asked.matrices, listed, name)
        for network in ("sage", "gcn"):
            rows.append(judged(network, pattern, answers, formats, asked.rounds))
            sys.stderr.write(f"{json.dumps(rows[-1]['ms'])} {name} {network}\n")
    head = {"machine": about(), "platform": answers["platform"], "threads": THREADS}
    print(json.dumps({**head, "geometric_mean": means(rows), "rows": rows}, indent=1))


def manifest(folder: Path) -> dict[str, dict[str, str]]:
    with (folder / "MANIFEST.csv").open(newline="", encoding="utf-8") as lines:
        return {row["name"]: row for row in csv.DictReader(lines)}


def read(folder: Path, listed: dict[str, dict[str, str]], name: str) -> Pattern:
    return read_pattern(folder / listed[name]["file"], name=name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    verbs = parser.add_subparsers(required=True)
    first = verbs.add_parser("answers")
    first.add_argument("database", type=Path)
    first.add_argument("matrices", type=Path)
    first.add_argument("answers", type=Path)
    first.add_argument("--graph", action="append", default=[])
    first.set_defaults(do=ask)
    then = verbs.add_parser("time")
    then.add_argument("answers", type=Path)
    then.add_argument("matrices", type=Path)
    then.add_argument("--rounds", type=int, default=7)
    then.set_defaults(do=timed_all)
    asked = parser.parse_args()
    if asked.do is ask:
        asked.graph = asked.graph or [*GRAPHS]
    asked.do(asked)


def _conversions() -> str:
    return files("embeddb.kernels").joinpath("formats.c.in").read_text(encoding="utf-8")


if __name__ == "__main__":
    main()
