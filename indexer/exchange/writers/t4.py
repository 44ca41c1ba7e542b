"""FAIR T4 results (schema 1.0.0), the exchange format of Kernel Tuner and other autotuners."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, TextIO

import msgspec

from embeddb.core.records import PatternInfo, Run

__all__ = ["write_t4"]

_INVALIDITY = {
    "ok": "correct",
    "invalid": "constraints",
    "build": "compile",
    "crash": "runtime",
    "oom": "runtime",
    "timeout": "timeout",
    "wrong": "correctness",
}


def write_t4(out: TextIO, runs: Iterable[Run], patterns: Iterable[PatternInfo]) -> None:
    """Times in milliseconds, as Kernel Tuner writes them. The schema knows one problem per file;
    which matrix, op and platform a result belongs to is added to it as the object `embeddb`."""
    known = {info.id: info for info in patterns}
    encode = msgspec.json.Encoder().encode
    head = {"schema_version": "1.0.0", "metadata": {"timeunit": "milliseconds"}}
    out.write(encode(head).decode()[:-1] + ',"results":[')
    for place, run in enumerate(runs):
        info = known.get(run.pattern_id) or PatternInfo(id=run.pattern_id)
        out.write(("," if place else "") + "\n" + encode(_result(run, info)).decode())
    out.write("\n]}\n")


def _result(run: Run, info: PatternInfo) -> dict[str, Any]:
    found = run.measurement
    times: dict[str, Any] = {"runtimes": [time * 1e3 for time in found.times_s]}
    if found.compile_s is not None:
        times["compilation_time"] = found.compile_s * 1e3
    result: dict[str, Any] = {
        "configuration": dict(run.config),
        "objectives": ["time"],
        "times": times,
        "invalidity": _INVALIDITY[found.status],
        "correctness": 0 if found.status == "wrong" else 1,
        "measurements": [],
        "embeddb": {
            "matrix": info.name or info.id,
            "pattern": run.pattern_id,
            "group": info.group,
            "m": info.m,
            "n": info.n,
            "nnz": info.nnz,
            "op": str(run.op),
            "platform": run.platform,
            "campaign": run.campaign,
        },
    }
    if found.ok:
        measured = {"name": "time", "value": found.seconds * 1e3, "unit": "ms"}
        result["measurements"] = [measured]
    if found.when:
        result["timestamp"] = datetime.fromtimestamp(found.when, UTC).isoformat()
    return result
