"""Requests a second of `embeddb serve`, by workers and by where the database is.

    python benchmarks/serving.py [--seconds 8] [--rounds 3] [--out benchmarks/results/serving.json]

The starter as a folder, and a copy of it on the tests' own PostgreSQL server on loopback; with one
worker and with two, which take turns. A client process of eight threads asks, each on a connection
that it keeps, on the same machine: what it takes is missing to the servers. Asked are `same` (one
page again and again, which is kept), `pages` (as many pages as there are matrices, more than are
kept) and `questions` (each about another matrix: computed).
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from machine import about

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "fixtures"))

from postgres_server import running_server

from embeddb import open as open_database
from embeddb.store.team.copy import copy_database
from indexer.embed import embed

INSTANCE, OP, THREADS = "cpu@70882216", "spmm:128", 8
KINDS = ("same", "pages", "questions")


@contextmanager
def serving(place: str, workers: int) -> Iterator[int]:
    """The port of a server that has answered already."""
    words = [sys.executable, "-m", "embeddb.ui.cli.main", "serve", place, "--port", "0"]
    with subprocess.Popen(
        [*words, "--workers", str(workers)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        found = re.search(r":(\d+)/", process.stdout.readline())
        assert found is not None
        try:
            yield int(found[1])
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def addresses(ids: list[str]) -> dict[str, list[str]]:
    asked = f"platform={quote(INSTANCE)}&op={quote(OP)}"
    return {
        "same": ["/index.json"],
        "pages": [f"/patterns/{one}" for one in ids],
        "questions": [f"/ask.json?pattern={one}&{asked}" for one in ids],
    }


def load(port: int, asked: list[str], seconds: float, first: int) -> tuple[list[float], int]:
    """Seconds of each reply that came in time, and how many were told to come back."""
    took: list[float] = []
    turned = [0]
    lock, position = threading.Lock(), iter(range(first, 10_000_000))
    end = time.perf_counter() + seconds

    def ask() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        while True:
            with lock:
                at = next(position)
            begun = time.perf_counter()
            if begun > end:
                break
            connection.request("GET", asked[at % len(asked)])
            reply = connection.getresponse()
            reply.read()
            now = time.perf_counter()
            with lock:
                if reply.status == 503:
                    turned[0] += 1
                elif now <= end:
                    assert reply.status == 200, reply.status
                    took.append(now - begun)
        connection.close()

    threads = [threading.Thread(target=ask) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return took, turned[0]


def measured(place: str, workers: int, ids: list[str], seconds: float) -> dict[str, Any]:
    """One round of every kind on a new server."""
    found: dict[str, Any] = {}
    with serving(place, workers) as port:
        for kind, asked in addresses(ids).items():
            warm = 0 if kind == "same" else 4 * workers  # indexes and first pages are made
            load(port, asked, 3.0 if kind == "questions" else 1.0, len(asked) - warm)
            begun = os.getloadavg()[0]
            took, turned = load(port, asked, seconds, 0)
            found[kind] = {
                "per_s": len(took) / seconds,
                "median_ms": 1000 * statistics.median(took),
                "slow_ms": 1000 * statistics.quantiles(took, n=20)[-1],
                "load": begun,
                "turned_away": turned,
            }
    return found


def summed(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for kind in KINDS:
        rows = [one[kind] for one in rounds]
        told[kind] = {
            "per_s": round(statistics.median(r["per_s"] for r in rows), 1),
            "spread": [round(f(r["per_s"] for r in rows), 1) for f in (min, max)],
            "median_ms": round(statistics.median(r["median_ms"] for r in rows), 2),
            "slowest_twentieth_ms": round(statistics.median(r["slow_ms"] for r in rows), 1),
            "load": [round(r["load"], 1) for r in rows],
            "turned_away": sum(r["turned_away"] for r in rows),
        }
    return told


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--seconds", type=float, default=8.0)
    asked.add_argument("--rounds", type=int, default=3)
    asked.add_argument("--out", type=Path, default=Path("benchmarks/results/serving.json"))
    given = asked.parse_args()
    with running_server() as server:
        url = server.url("starter")
        with open_database("starter") as db:
            copy_database(db.store, url)
            embed(db.index)  # indexes are made, and saved
            ids = [i.id for i in db.store.patterns() if i.kind == "matrix" and not i.stub]
        with open_database(url) as db:
            embed(db.index)
        cases = [(name, place, n) for name, place in (("folder", "starter"), ("postgres", url))
                 for n in (1, 2)]  # fmt: skip
        rounds: dict[str, list[dict[str, Any]]] = {}
        for number in range(given.rounds):
            for name, place, workers in cases if number % 2 else reversed(cases):
                key = f"{name}, {workers} workers" if workers > 1 else f"{name}, 1 worker"
                rounds.setdefault(key, []).append(measured(place, workers, ids, given.seconds))
                last = {kind: round(v["per_s"], 1) for kind, v in rounds[key][-1].items()}
                print(number, key, last, flush=True)
    figures = {
        "machine": about(),
        "threads": THREADS,
        "matrices": len(ids),
        "seconds": given.seconds,
        "cases": {key: summed(rounds[key]) for key in sorted(rounds)},
    }
    given.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
