"""Seconds of one query by stage, store open, on a pattern of a million non-zeros and on loop nests.

    python benchmarks/query_latency.py DATABASE > benchmarks/results/query_latency.json
    python benchmarks/query_latency.py DATABASE --only nests
    python benchmarks/query_latency.py DATABASE --only whole > benchmarks/results/whole_query.json
    python benchmarks/query_latency.py starter --only first > FILE
    python benchmarks/query_latency.py DATABASE --only model > FILE
    python benchmarks/query_latency.py DATABASE --only learned > FILE

DATABASE holds CPU SpMM runs and runs of nests (the starter database). The pattern is a scale-free
graph made here, read from a compressed .npz each time. Reading and answering are interleaved. The
nests are those of our own programs at sizes that nobody measured, each asked once; `query` is the
whole call, `depth_D` that of nests of so many loops, `embed` and `network` one vector of each. With
`whole` DATABASE holds a model that was trained whole (`train costmodel --preset`): `embed` is its
network on the pattern of a million, `score` its ranking of 500 configurations. `first` asks the
shipped starter as commands of a new user: the first question of all, then the first one about each
operation, at a width that was never measured, and one that was asked before. `model` asks an open
database about random matrices, with the models of every CPU and without, in turn; `learned` one of
few samples, whose models queries learn themselves.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from machine import about, spread

import indexer.programs
from embeddb.core.config import Op
from embeddb.core.errors import NestError
from embeddb.cost_model import Problem
from embeddb.database import Database
from embeddb.matrix_files import read_pattern
from embeddb.nests.nest import Nest
from embeddb.platforms.platform import default_of, space_of
from embeddb.store.model_files import model_entries
from indexer.programs import nests_of, program_names, sizes_of

ROUNDS = 15
CLI_ROUNDS = 25
IMPORTS = "import numpy, scipy.sparse, lmdb, faiss"
PROGRAM = Path(indexer.programs.__file__).parent / "algebra" / "syrk.c"


def million(path: Path) -> None:
    """A 200,000 x 200,000 pattern with about 1.0 M non-zeros and a heavy tail."""
    rng = np.random.default_rng(0)
    n, draws = 200_000, 1_020_000
    rows = (n * rng.random(draws) ** 2).astype(np.int32)
    cols = (n * rng.random(draws) ** 3).astype(np.int32)
    matrix = sp.coo_array((np.ones(draws, np.int8), (rows, cols)), shape=(n, n)).tocsr()
    matrix.sum_duplicates()
    sp.save_npz(path, matrix)


def in_process(database: Path, file: Path) -> dict[str, list[float]]:
    seen: dict[str, list[float]] = {}
    with Database.open(database) as db:
        for at in range(ROUNDS + 2):
            started = time.perf_counter()
            pattern = read_pattern(file)
            read = time.perf_counter() - started
            made = db.query(pattern, platform="cpu", op="spmm:128")
            explained = time.perf_counter()
            db.explain(made.id)
            stages = {"read": read, **made.stages_s}
            stages["explain"] = time.perf_counter() - explained
            stages["search+transfer+explain"] = (
                stages["search"] + stages["transfer"] + stages["explain"]
            )
            stages["features/read"] = stages["features"] / read
            for stage, value in stages.items() if at >= 2 else ():
                seen.setdefault(stage, []).append(value)
    return seen


def timed(command: list[str], **more: str) -> float:
    """Seconds of a command as a user runs it: with compiled bytecode kept between runs."""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | more
    started = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=env)
    return time.perf_counter() - started


def cold(database: Path, file: Path) -> dict[str, list[float]]:
    """The whole command against importing its four libraries."""
    query = [sys.executable, "-m", "embeddb.ui.cli.main", "query", str(database), str(file)]
    query += ["--platform", "cpu", "--op", "spmm:128", "--json"]
    seen: dict[str, list[float]] = {"imports_s": [], "query_s": [], "help_s": [], "ratio": []}
    timed(query)
    for _ in range(CLI_ROUNDS):
        seen["imports_s"].append(timed([sys.executable, "-c", IMPORTS]))
        seen["query_s"].append(timed(query))
        seen["help_s"].append(timed([sys.executable, "-m", "embeddb.ui.cli.main", "--help"]))
        seen["ratio"].append(seen["query_s"][-1] / seen["imports_s"][-1])
    return seen


def asked_nests(beyond: int) -> Iterator[Nest]:
    """Those of our own programs, every macro so much larger than its medium size."""
    for program in program_names():
        sizes = {name: size + beyond for name, size in sizes_of(program)["medium"].items()}
        with suppress(NestError):  # sizes that must divide one another
            yield from nests_of(program, sizes)


def nests_in_process(database: Path) -> dict[str, list[float]]:
    seen: dict[str, list[float]] = {}
    with Database.open(database) as db:
        for nest in asked_nests(beyond=1):
            db.query(nest, platform="nest-cpu", op="nest")
        for nest in asked_nests(beyond=2):
            started = time.perf_counter()
            made = db.query(nest, platform="nest-cpu", op="nest")
            answered = time.perf_counter()
            db.explain(made.id)
            explained = time.perf_counter()
            stages = {
                "query": answered - started,
                f"depth_{nest.depth}": answered - started,
                "explain": explained - answered,
                **made.stages_s,
            }
            for stage, plug in (("embed", "nest-graph"), ("network", "nest-embedding")):
                started = time.perf_counter()
                db.index.featurizers().named(plug).embed(replace(nest))
                stages[stage] = time.perf_counter() - started
            for stage, value in stages.items():
                seen.setdefault(stage, []).append(value)
    return dict(sorted(seen.items()))


def nests_cold(database: Path) -> dict[str, list[float]]:
    """The whole command on a program of one nest."""
    query = [sys.executable, "-m", "embeddb.ui.cli.main", "query", str(database), str(PROGRAM)]
    query += ["--platform", "nest-cpu", "--op", "nest", "--json"]
    timed(query)
    return {"query_s": [timed(query) for _ in range(CLI_ROUNDS)]}


def first_questions(file: Path) -> dict[str, list[float]]:
    """Commands one after the other in an empty home, three times."""
    asked = ("spmm:32", "spmm:128", "spmm:100", "spmv", "sddmm:128", "spmv")
    seen: dict[str, list[float]] = {}
    for _ in range(3):
        with tempfile.TemporaryDirectory() as home:
            env = {"EMBEDDB_HOME": f"{home}/data", "XDG_CACHE_HOME": f"{home}/cache"}
            for at, op in enumerate(asked):
                what = "first of all" if not at else "again" if op in asked[:at] else "first"
                query = [sys.executable, "-m", "embeddb.ui.cli.main", "query", "starter", str(file)]
                took = timed([*query, "--platform", "cpu", "--op", op, "--json"], **env)
                seen.setdefault(f"{op}, {what}", []).append(took)
    return seen


def random_matrices() -> list[Any]:
    rng = np.random.default_rng(0)
    sizes = np.geomspace(1_000, 100_000, 20).astype(int).tolist()
    return [sp.random_array((n, n), density=8 / n, rng=rng, format="csr") for n in sizes]


def with_learned_models(database: Path) -> dict[str, list[float]]:
    """Seconds of answers about each partition; the first, which learns, is left out."""
    first, *matrices = random_matrices()
    seen: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(database, Path(folder) / "db")
        with Database.open(Path(folder) / "db") as db:
            for one in db.store.partitions():
                where = {"platform": one.platform, "op": str(one.op)}
                link = db.query(first, **where).link
                for matrix in matrices:
                    started = time.perf_counter()
                    db.query(matrix, **where)
                    took = time.perf_counter() - started
                    seen.setdefault(f"{one.op} on {one.platform} by {link}", []).append(took)
    return seen


def with_and_without_model(database: Path) -> dict[str, list[float]]:
    """Seconds of answers in three rounds, the first of each database and operation left out."""
    matrices = random_matrices()
    seen: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("vote and model", "vote"):
            shutil.copytree(database, Path(folder) / name)
        for file in (Path(folder) / "vote" / "models").glob("costmodel-cpu-*"):
            file.unlink()
        for _ in range(3):
            for name in ("vote and model", "vote"):
                with Database.open(Path(folder) / name) as db:
                    for op in ("spmm:32", "spmm:128", "spmv"):
                        for at, matrix in enumerate(matrices):
                            started = time.perf_counter()
                            db.query(matrix, platform="cpu", op=op)
                            if at:
                                took = time.perf_counter() - started
                                seen.setdefault(f"{op}, {name}", []).append(took)
    return seen


def whole_model(database: Path, file: Path) -> dict[str, list[float]]:
    """What a model that embeds patterns itself adds to a question."""
    pattern, rng = read_pattern(file), np.random.default_rng(0)
    seen: dict[str, list[float]] = {"embed": [], "score": []}
    with Database.open(database) as db:
        cards = (entry.card for entry in model_entries(db.store))
        card = next(c for c in cards if c.get("featurizer", {}).get("name", "").startswith("scnn@"))
        platform, op = db.platform(card["platform"]["id"]), Op.parse(card["ops"][0])
        model, plug = (
            db.index.cost_model(platform, op),
            db.index.featurizers().named(card["featurizer"]["name"]),
        )
        assert model is not None
        configs = [default_of(platform, op, pattern)]
        configs += space_of(platform, op, pattern).sample(500, rng=rng)
        for at in range(ROUNDS + 2):
            started = time.perf_counter()
            vector = plug.embed(pattern)
            embedded = time.perf_counter()
            model.score(Problem(vector, platform, op, pattern.sizes), tuple(configs))
            if at >= 2:
                seen["embed"].append(embedded - started)
                seen["score"].append(time.perf_counter() - embedded)
    return seen


def main(database: Path, only: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file, small = Path(folder) / "million.npz", Path(folder) / "small.npz"
        million(file)
        sp.save_npz(small, sp.random_array((500, 500), density=0.01, rng=np.random.default_rng(0)))
        if only == "first":
            print(
                json.dumps({"about": about(), "first": spreads(first_questions(small))}, indent=1)
            )
            return
        if only in ("model", "learned"):
            measure = with_and_without_model if only == "model" else with_learned_models
            seen = spreads(measure(database))
            print(json.dumps({"about": about(), "open": seen}, indent=1))
            return
        copy = Path(folder) / "db"
        shutil.copytree(database, copy)
        with Database.open(copy) as db:
            runs = db.store.count_runs()
        result: dict[str, Any] = {"about": about(), "runs": runs}
        if only == "whole":
            result["whole"] = spreads(whole_model(copy, file))
        if only in ("", "matrices"):
            result["stages"] = spreads(in_process(copy, file))
            result["cli"] = spreads(cold(copy, small))
        if only in ("", "nests"):
            result["nests"] = {
                "stages": spreads(nests_in_process(copy)),
                "cli": spreads(nests_cold(copy)),
            }
    print(json.dumps(result, indent=1))


def spreads(seen: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    return {stage: spread(values) for stage, values in seen.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("database", type=Path)
    parser.add_argument(
        "--only",
        choices=["matrices", "nests", "whole", "first", "model", "learned"],
        default="",
    )
    told = parser.parse_args()
    main(told.database, told.only)
