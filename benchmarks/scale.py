"""A database of 10^6 to 10^7 runs: how fast it fills, what an index of it takes, how it answers.

    python benchmarks/scale.py MATRICES FOLDER [--runs 1000000 3000000 10000000]
        [--vectors 10000 100000 1000000] [--logs 250000 1000000]
        [--out benchmarks/results/scale.json]

The runs are made up: nobody has so many. Patterns get the features of a real matrix of MATRICES,
each moved by a tenth of what it varies by; a configuration's gain is a smooth function of them with
noise of 5 %. Everything else is as it is in use: every figure is of a process of its own, asked for
real matrices of MATRICES that the database does not know. `own_mb` is the peak of a process's own
memory, `peak_mb` with pages of the data file that it looked at. `logs` are the same runs read by
`embeddb index` from CSV files of so many rows, `lists` the index over that many vectors alone.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
from machine import about
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.records import Measurement, Run, WorkloadInfo
from embeddb.database import Database
from embeddb.index.inverted_lists import InvertedLists
from embeddb.matrix_files import read_pattern
from embeddb.platforms.platform import default_of, load_platform, space_of

OP, PLATFORM = Op("spmm", 64), "cpu@5ca1e000"
CONFIGS, EACH, BATCH, GROUP = 200, 100, 20_000, 8
SIZES: dict[str, int] = {"m": 20_000, "n": 20_000, "nnz": 400_000}
#: Real matrices that are asked about, and answers that are explained.
ASKED, EXPLAINED, COLD = 60, 10, 7


class Made:
    """Patterns and their times, all of them a function of the seed."""

    def __init__(self, files: list[Path], seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        platform = load_platform("cpu").at(PLATFORM.partition("@")[2], {"cpu": "made up"})
        self.platform = platform
        with Database.in_memory() as db:
            plug = db.index.featurizers().named("stats")
            self.version = plug.version
            self.real = np.array([plug.embed(read_pattern(file)) for file in files])
        any_one = WorkloadInfo(id="0" * 32, **SIZES)
        default = default_of(platform, OP, any_one)
        drawn = space_of(platform, OP, any_one).sample(CONFIGS, rng=self.rng)
        self.configs = sorted({*drawn[1:], default}, key=lambda c: c.json)
        self.default = self.configs.index(default)
        scale = self.real.std(axis=0) + 1e-9
        self.scale, self.center = scale, self.real.mean(axis=0)
        hidden = 12
        self.into = self.rng.normal(size=(self.real.shape[1], hidden)) / np.sqrt(len(scale))
        self.out = self.rng.normal(size=(hidden, len(self.configs))) * 0.25
        self.usual = self.rng.normal(size=len(self.configs)) * 0.2

    def gains(self, vectors: NDArray[np.float32]) -> NDArray[np.float64]:
        """float64[n,c] log gains over the default, without noise."""
        z = np.clip((vectors - self.center) / self.scale, -4, 4)
        found: NDArray[np.float64] = np.tanh(z @ self.into * 2.0) @ self.out + self.usual
        return found - found[:, [self.default]]

    def patterns(self, count: int) -> Iterator[tuple[list[str], NDArray[np.float32]]]:
        at = 0
        while at < count:
            n = min(1000, count - at)
            base = self.real[self.rng.integers(len(self.real), size=n)]
            moved = base + self.rng.normal(size=base.shape) * self.scale * 0.1
            ids = [
                hashlib.blake2b(b"%d" % i, digest_size=16).hexdigest() for i in range(at, at + n)
            ]
            yield ids, moved.astype(np.float32)
            at += n


def fill(folder: Path, made: Made, runs: int) -> dict[str, float]:
    """A database of so many runs; seconds of the store's own work."""
    spent, told = 0.0, 0
    with Database.create(folder) as db:
        db.store.put_platform(made.platform)
        for ids, vectors in made.patterns(runs // EACH):
            batch = list(_runs(made, ids, vectors))
            infos = [
                WorkloadInfo(
                    id=i,
                    stub=True,
                    name=f"made{told + n}",
                    group=f"g{(told + n) // GROUP}",
                    **SIZES,
                )
                for n, i in enumerate(ids)
            ]
            told += len(ids)
            started = time.perf_counter()
            db.store.put_patterns(infos)
            for at in range(0, len(batch), BATCH):
                db.store.append(batch[at : at + BATCH])
            db.store.vectors.put("stats", made.version, dict(zip(ids, vectors, strict=True)))
            spent += time.perf_counter() - started
    return {"seconds": spent, "runs_per_s": runs / spent}


def _runs(made: Made, ids: list[str], vectors: NDArray[np.float32]) -> Iterator[Run]:
    rng = made.rng
    gains = made.gains(vectors)
    gains = gains + rng.normal(size=gains.shape) * 0.05
    base = np.exp(rng.normal(size=len(ids)) - 7)
    for i, pattern_id in enumerate(ids):
        others = rng.choice(len(made.configs) - 1, size=EACH - 1, replace=False)
        others[others >= made.default] += 1
        for c in (made.default, *others.tolist()):
            seconds = float(base[i] * np.exp(-gains[i, c]))
            measured = Measurement(times_s=(seconds,), when=1.8e9 + c, conversion_s=seconds * 3)
            yield Run(pattern_id, OP, PLATFORM, made.configs[c], measured)


def apart(*command: str) -> dict[str, Any]:
    """Wall seconds of a process, its peaks of memory in MB (of its own and with pages of files),
    and what it printed."""
    peaks = {"own_mb": 0.0, "peak_mb": 0.0}
    # As a user runs it: with compiled bytecode kept between runs.
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    with TemporaryFile() as out:
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE, env=env)
        while process.poll() is None:
            _note(peaks, process.pid)
            time.sleep(0.01)
        seconds = time.perf_counter() - started
        out.seek(0)
        said = out.read()
    if process.returncode:
        assert process.stderr is not None
        raise SystemExit(f"{command}: {process.stderr.read().decode()[-2000:]}")
    return {"seconds": seconds, **peaks, "out": said}


def _note(peaks: dict[str, float], process: int) -> None:
    with suppress(OSError):
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
        kb = {
            name: int(rest.split()[0])
            for name, _, rest in (x.partition(":") for x in lines)
            if name in ("RssAnon", "VmHWM")
        }
        peaks["own_mb"] = max(peaks["own_mb"], kb.get("RssAnon", 0) / 1024)
        peaks["peak_mb"] = max(peaks["peak_mb"], kb.get("VmHWM", 0) / 1024)


def verb(*words: str) -> dict[str, Any]:
    return apart(sys.executable, "-m", "embeddb", *words)


def warm(folder: str, files: list[str]) -> None:
    """Printed: open, query and explain seconds inside one process, and how good the answers are."""
    made = Made([Path(f) for f in files])
    patterns = [read_pattern(Path(f)) for f in files[:ASKED]]
    truth = np.exp(made.gains(made.real[:ASKED]))
    place = {c: at for at, c in enumerate(made.configs)}
    started = time.perf_counter()
    with Database.open(folder) as db:
        opened = time.perf_counter() - started
        took, shares, explained = [], [], []
        for at, pattern in enumerate(patterns):
            started = time.perf_counter()
            answer = db.query(pattern, platform=PLATFORM, op=str(OP))
            took.append(time.perf_counter() - started)
            best = Config(answer.best)
            shares.append(float(truth[at, place[best]] / truth[at].max()))
            if at < EXPLAINED:
                started = time.perf_counter()
                db.explain(answer.id)
                explained.append(time.perf_counter() - started)
    print(
        json.dumps(
            {
                "open_s": opened,
                "first_s": took[0],
                "query_p50_s": statistics.median(took[1:]),
                "query_p99_s": float(np.quantile(took[1:], 0.99)),
                "explain_p50_s": statistics.median(explained),
                "of_optimum": float(np.exp(np.log(shares).mean())),
                "static_best": float(
                    np.exp(np.log(truth / truth.max(axis=1, keepdims=True)).mean(axis=0).max())
                ),
            }
        )
    )


def measured(folder: Path, files: list[Path], say: Callable[[str], None]) -> dict[str, Any]:
    """What a database of that size does, each in a process of its own."""
    place, first = str(folder), str(files[0])
    row: dict[str, Any] = {"bytes": (folder / "data.mdb").stat().st_size}
    for name, words in {
        "index": ("embed", place),
        "stat": ("db", "stat", place),
        "cold": ("query", place, first, "--platform", PLATFORM, "--op", str(OP)),
        "report": ("report", place, "--html", f"{folder}.html"),
    }.items():
        times = [verb(*words) for _ in range(COLD if name == "cold" else 1)]
        row[f"{name}_s"] = statistics.median(t["seconds"] for t in times)
        row |= {f"{name}_{k}": max(t[k] for t in times) for k in ("own_mb", "peak_mb")}
        say(f"{name} {row[f'{name}_s']:.2f} s, {row[f'{name}_own_mb']:.0f} MB")
    row["index_bytes"] = sum(file.stat().st_size for file in (folder / "index").iterdir())
    told = apart(sys.executable, __file__, "--warm", place, *map(str, files))
    row |= {**json.loads(told["out"]), "own_mb": told["own_mb"], "peak_mb": told["peak_mb"]}
    return row


def from_log(folder: Path, made: Made, rows: int) -> dict[str, Any]:
    """A CSV file of so many runs, read as a user would."""
    names = sorted({name for config in made.configs for name in config})
    with (log := folder / f"scale-{rows}.csv").open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["matrix", *SIZES, "op", *names, "time_s"])
        for ids, vectors in made.patterns(rows // EACH):
            for run in _runs(made, ids, vectors):
                values = [run.config.get(name, "") for name in names]
                seconds = run.measurement.times_s[0]
                out.writerow([run.pattern_id[:12], *SIZES.values(), str(OP), *values, seconds])
    place = folder / f"scale-{rows}-log.db"
    told = verb("index", str(place), str(log), "--platform", PLATFORM)
    shutil.rmtree(place)
    log.unlink()
    return {"rows": rows, **{k: told[k] for k in ("seconds", "own_mb", "peak_mb")}}


def lists_of(made: Made, count: int) -> dict[str, Any]:
    """Lists of so many vectors alone: a database of a hundred times as many runs on paper."""
    parts = list(made.patterns(count))
    ids = [i for some, _ in parts for i in some]
    vectors = np.concatenate([(v - made.center) / made.scale for _, v in parts]).astype(np.float32)
    del parts
    started = time.perf_counter()
    lists = InvertedLists.build(ids, vectors)
    seconds, took = time.perf_counter() - started, []
    for query in vectors[:: count // 300] + 0.05:
        started = time.perf_counter()
        lists.nearest(query, 28)
        took.append(time.perf_counter() - started)
    return {
        "vectors": count,
        "build_s": seconds,
        "lists": len(lists.centres),
        "read": lists.recall.lists,
        "recall": lists.recall.share,
        "nearest_p50_s": statistics.median(took),
        "bytes": len(lists.head()) + len(lists.body()),
    }


def main() -> None:
    if sys.argv[1:2] == ["--warm"]:
        return warm(sys.argv[2], sys.argv[3:])
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("matrices", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", type=int, nargs="*", default=[10**6, 3 * 10**6, 10**7])
    parser.add_argument("--vectors", type=int, nargs="*", default=[10**4, 10**5, 10**6])
    parser.add_argument("--logs", type=int, nargs="*", default=[250_000, 10**6])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/scale.json"))
    asked = parser.parse_args()
    files = sorted(asked.matrices.rglob("*.npz"))
    files = sorted(files, key=lambda f: f.stat().st_size)[: ASKED * 2]
    told: dict[str, Any] = {"about": about(), "lists": [], "logs": [], "rows": []}
    for count in asked.vectors:
        told["lists"].append(lists_of(Made(files), count))
        print(told["lists"][-1], file=sys.stderr)
    for rows in asked.logs:
        told["logs"].append(from_log(asked.folder, Made(files), rows))
        print(told["logs"][-1], file=sys.stderr)
    asked.out.write_text(json.dumps(told, indent=1) + "\n")
    for runs in asked.runs:
        folder = asked.folder / f"scale-{runs}.db"
        made = Made(files)
        row: dict[str, Any] = {"runs": runs, "patterns": runs // EACH}
        row["fill"] = fill(folder, made, runs)
        print(runs, row["fill"], file=sys.stderr)
        row |= measured(folder, files, lambda line: print(" ", line, file=sys.stderr))
        told["rows"].append(row)
        asked.out.write_text(json.dumps(told, indent=1) + "\n")
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
