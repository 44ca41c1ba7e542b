"""A worker process with one matrix, and the facts of a machine stored between processes."""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from embeddb.kernels.build import cache_folder
from indexer.runners.harness.worker_process import WorkerProcess

Reply = dict[str, Any]


class MatrixSession:
    """Requests about one matrix at a time, loaded in the worker first if it is not there. A matrix
    that was refused is not sent again until `next_run`."""

    def __init__(self, session: WorkerProcess) -> None:
        self.session = session
        self._loaded: tuple[int, Hashable] | None = None
        self._refused: tuple[Hashable, Reply] | None = None

    def next_run(self) -> None:
        """Forget a refusal."""
        self._refused = None

    def request(
        self, key: Hashable, load: Callable[[], Reply], message: Reply, *, timeout_s: float
    ) -> Reply:
        """The reply to `message` about the matrix that `load` brings, or that of `load` if it is
        not ok. Raises: RunnerUnavailable as `WorkerProcess.request`, and what `load` does."""
        if self._loaded != (self.session.ensure(), key):
            if self._refused is not None and self._refused[0] == key:
                return self._refused[1]
            self._loaded = None
            reply = load()
            if reply["status"] != "ok":
                self._refused = key, reply
                return reply
            self._loaded = self.session.generation, key
        return self.session.request(message, timeout_s=timeout_s)


def stored_facts(identity: Mapping[str, str], probe: str) -> dict[str, str]:
    """Stored facts of an environment by a probe; empty if there are none, or their file is damaged.
    `probe` is its source or version: another one measures other things under the same names."""
    try:
        stored = json.loads(_file(identity, probe).read_bytes())
        figures = {str(k): float(v) for k, v in stored["figures"].items()}
        whole = stored["sum"] == _sum(figures)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    return _texts(figures) if whole else {}


def store_facts(
    identity: Mapping[str, str], probe: str, figures: Mapping[str, float]
) -> dict[str, str]:
    """Store measured figures, and return them as facts. If they cannot be written they are measured
    again later."""
    path = _file(identity, probe)
    body = json.dumps({"figures": dict(figures), "sum": _sum(figures)}).encode()
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(".tmp", ".facts-", path.parent)
        try:
            with os.fdopen(handle, "wb") as out:
                out.write(body)
            Path(name).replace(path)
        finally:
            Path(name).unlink(missing_ok=True)
    return _texts(figures)


def _texts(figures: Mapping[str, float]) -> dict[str, str]:
    return {k: f"{v:g}" for k, v in figures.items() if 0 < v < math.inf}


def _file(identity: Mapping[str, str], probe: str) -> Path:
    parts = [*(f"{k}={identity[k]}" for k in sorted(identity)), probe]
    key = hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()
    return cache_folder() / f"{key}.facts"


def _sum(figures: Mapping[str, float]) -> str:
    text = json.dumps(dict(sorted(figures.items())))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
