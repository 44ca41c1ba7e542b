"""Seconds per request of the page with 50 clients at once, and the server's memory.

    python benchmarks/serve_load.py DATABASE > benchmarks/results/serve_load.json

The server is a process of its own on loopback; each client asks one thing after the other, drawn
from a mix. `POST /ask` sends matrices of which each is sent about three times.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from machine import about

CLIENTS = 50
SECONDS = 20.0
#: Shares of the mix.
MIX = {"/": 0.3, "/answers/ID": 0.3, "/map.json": 0.2, "POST /ask": 0.2}
ASK = {"platform": "cpu", "op": "spmm:64"}


def matrix(seed: int) -> bytes:
    """A random 2,000 x 2,000 pattern of 10,000 entries as Matrix Market text."""
    rng = np.random.default_rng(seed)
    rows, cols = rng.integers(1, 2001, (2, 10_000))
    lines = "\n".join(f"{r} {c}" for r, c in zip(rows, cols, strict=True))
    head = "%%MatrixMarket matrix coordinate pattern general\n2000 2000 10000\n"
    return (head + lines + "\n").encode()


def memory_mb(pid: int) -> dict[str, float]:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    fields = {"now": "VmRSS", "peak": "VmHWM"}
    return {k: int(re.findall(rf"{v}:\s+(\d+)", status)[0]) / 1024 for k, v in fields.items()}


async def client(
    url: str, seed: int, until: float, answers: list[str], seen: dict[str, list[tuple[int, float]]]
) -> None:
    rng = np.random.default_rng(seed)
    async with httpx.AsyncClient(base_url=url, timeout=120) as http:
        while time.perf_counter() < until:
            what = str(rng.choice(list(MIX), p=list(MIX.values())))
            body = matrix(int(rng.integers(100))) if what == "POST /ask" else b""
            address = f"/answers/{rng.choice(answers)}" if what == "/answers/ID" else what
            started = time.perf_counter()
            if body:
                reply = await http.post("/ask", params={**ASK, "name": "A.mtx"}, content=body)
                if reply.status_code == 201:
                    answers.append(reply.json()["id"])
            else:
                reply = await http.get(address)
            seen.setdefault(what, []).append((reply.status_code, time.perf_counter() - started))


async def load(url: str) -> dict[str, list[tuple[int, float]]]:
    answers: list[str] = []
    async with httpx.AsyncClient(base_url=url, timeout=120) as http:
        for seed in range(1000, 1003):
            reply = await http.post("/ask", params={**ASK, "name": "A.mtx"}, content=matrix(seed))
            answers.append(reply.json()["id"])
        for address in ("/", "/map.json"):
            (await http.get(address)).raise_for_status()
    seen: dict[str, list[tuple[int, float]]] = {}
    until = time.perf_counter() + SECONDS
    await asyncio.gather(*(client(url, s, until, answers, seen) for s in range(CLIENTS)))
    return seen


def summary(rows: list[tuple[int, float]]) -> dict[str, Any]:
    seconds = np.array([s for _, s in rows])
    statuses = {str(c): sum(code == c for code, _ in rows) for c in sorted({c for c, _ in rows})}
    at = {name: float(np.quantile(seconds, q)) for name, q in (("p50", 0.5), ("p99", 0.99))}
    return {"requests": len(rows), "statuses": statuses, **at, "max": float(seconds.max())}


def server(database: str) -> Iterator[tuple[str, int]]:
    command = [sys.executable, "-m", "embeddb.ui.cli.main", "serve", database, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = re.search(r"http://\S+?/", process.stdout.readline())
        assert found is not None
        yield found[0], process.pid
        process.terminate()


def main(database: str) -> None:
    for url, pid in server(database):
        before = memory_mb(pid)["now"]
        seen = asyncio.run(load(url))
        memory = {"before": before, **memory_mb(pid)}
    total = sum(len(rows) for rows in seen.values())
    result = {
        "about": about(),
        "clients": CLIENTS,
        "seconds": SECONDS,
        "requests_per_second": total / SECONDS,
        "memory_mb": memory,
        "by_address": {what: summary(seen[what]) for what in MIX},
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main(sys.argv[1])
