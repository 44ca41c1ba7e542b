"""What `tiles.py` and `fused.py` share: rows of results that a second call goes on from, learned
models that are trained once, and what rows say together."""

from __future__ import annotations

import hashlib
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from embeddb.tensors.encoding.predictor import KernelNetwork
from indexer.training.tensors.figures import summary
from indexer.training.tensors.fitting import KernelTraining
from indexer.training.tensors.samples import KernelSample
from indexer.training.tensors.train import KernelData, train_kernels

#: Figures by program.
ByProgram = dict[str, dict[str, float]]


class Rows:
    """Results by key, a line each in a file that is only appended to. After `minutes` nothing new
    is begun."""

    def __init__(self, path: Path, minutes: float) -> None:
        self.path, self._until = path, time.monotonic() + 60 * minutes
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        whole = text[: text.rfind("\n") + 1]  # a line that was cut off is made again
        if whole != text:
            path.write_text(whole, encoding="utf-8")
        rows = map(json.loads, whole.splitlines())
        self._known: dict[str, Any] = {_named(row["key"]): row["value"] for row in rows}
        self.left: list[Mapping[str, Any]] = []

    def of(self, key: Mapping[str, Any], make: Callable[[], Any]) -> Any:
        """What is known of it, or is made now; None where the time is over."""
        name = _named(key)
        if name not in self._known:
            if time.monotonic() > self._until:
                self.left.append(key)
                return None
            self._known[name] = make()
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": key, "value": self._known[name]}) + "\n")
        return self._known[name]

    def file(self, key: Mapping[str, Any]) -> Path:
        """A place for a model of this key, beside the rows."""
        digest = hashlib.blake2b(_named(key).encode(), digest_size=8).hexdigest()
        folder = self.path.with_suffix(".models")
        folder.mkdir(exist_ok=True)
        return folder / f"{digest}.safetensors"


def _named(key: Mapping[str, Any]) -> str:
    return json.dumps(key, sort_keys=True)


def trained(
    samples: Sequence[KernelSample], how: KernelTraining, file: Path
) -> tuple[KernelNetwork, dict[str, Any]]:
    """The network as queries read it, and what is told of its training. One that was interrupted is
    gone on with, and its seconds are then those of the last part."""
    began, busy = time.monotonic(), time.process_time()
    card = train_kernels(KernelData(samples), how, file, progress=lambda *_: None)
    told = {
        "train_s": round(time.monotonic() - began, 1),
        "train_cpu_s": round(time.process_time() - busy, 1),
        "samples": card["samples"],
        "epochs": card["epochs"],
        "best_epoch": card["best_epoch"],
        "parameters": card["parameters"],
    }
    return KernelNetwork.load(file), told


def over_seeds(rows: Sequence[ByProgram]) -> dict[str, float]:
    """Means over seeds of means and medians over programs, and the standard error of the former:
    that of all programs of all seeds."""
    each = [summary(row) for row in rows]
    names = sorted(set[str]().union(*each))
    found = {name: statistics.mean([s[name] for s in each if name in s]) for name in names}
    for name in [name for name in names if not name.endswith("_median")]:
        values = [figures[name] for row in rows for figures in row.values() if name in figures]
        found[f"{name}_error"] = _error(values)
    return found


def ahead(ours: Sequence[ByProgram], others: Sequence[ByProgram], name: str) -> dict[str, float]:
    """By how much a figure of ours is above others', program by program of every seed: mean and
    standard error."""
    pairs = [
        (row[program][name], other[program][name])
        for row, other in zip(ours, others, strict=True)
        for program in row.keys() & other.keys()
        if name in row[program] and name in other[program]
    ]
    apart = [one - other for one, other in pairs]
    return {"mean": statistics.mean(apart), "error": _error(apart), "pairs": len(apart)}


def _error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
