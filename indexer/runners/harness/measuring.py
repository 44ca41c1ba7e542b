"""Variants of a workload, compiled, checked and timed in alternating rounds."""

from __future__ import annotations

import math
import os
import shutil
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from embeddb.core.config import Config
from embeddb.core.errors import RunnerUnavailable
from embeddb.core.records import Measurement
from indexer.runners.base import RunOptions
from indexer.runners.harness.building import Built
from indexer.runners.harness.worker_process import Closing, WorkerProcess

if TYPE_CHECKING:
    from embeddb.platforms.space.space import ConfigSpace

#: Limit of a call: so many times the default's, plus this, since threads have to be woken.
SLOWEST, SLOWEST_BESIDE_S = 10.0, 0.25
#: A variant this many times slower than the default and this long is called once: no candidate.
SLOW, SLOW_S = 4.0, 0.02
#: Least time limit for creating arrays and expected values.
_LOAD_S = 60.0
_LOADS = 6.0
_CHECK_S = 60.0
#: Least rate in bytes per second at which arrays are restored before a call.
_RESTORED = 2e8
#: Most calls averaged.
_MOST_CALLS = 256

V = TypeVar("V", bound=Hashable)


class Measured(ABC, Generic[V]):
    """A workload whose variants are measured. `called` is a word for it; `parts` are sent to the
    worker; `tolerance` is the allowed error relative to the rounded magnitudes; a call shorter than
    `least_s` is repeated several times in a row; `restored_bytes` are restored before each."""

    called: str
    parts: Sequence[Any]
    tolerance: float
    least_s = 0.0
    restored_bytes = 0

    @abstractmethod
    def bytes_needed(self, *, check: bool) -> int:
        """Upper bound of the worker's memory in bytes."""

    def reference(self, folder: Path) -> str:
        """The shared object of the reference; empty if the worker has its own."""
        return ""

    @abstractmethod
    def build(self, variants: Sequence[V], folder: Path) -> dict[V, Built]:
        """Compile variants. Raises: RunnerUnavailable if the machine could not compile."""


@dataclass
class _Turn:
    """The measurement of one variant in progress."""

    built: Built
    times_s: list[float] = field(default_factory=list)
    status: str = ""
    error: str = ""

    def end(self, status: str, error: str = "") -> None:
        self.status, self.error = status, error


class Measuring(Closing, Generic[V]):
    """Measure variants by requests to a worker, with compiled files and expected values in a folder
    that `close` removes. A variant that was compiled and found correct is neither compiled nor
    checked again."""

    def __init__(
        self,
        of: Measured[V],
        session: WorkerProcess,
        *,
        threads: int,
        options: RunOptions,
    ) -> None:
        self.of, self.folder = of, Path(mkdtemp(prefix=f"embeddb-{of.called}-"))
        # Also if it is not closed, and at exit.
        self._remove = weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        self._session, self._threads, self._options = session, threads, options
        self._generation = -1
        self._refused: dict[str, Any] | None = None
        self._reference = ""
        self._base_s = math.inf
        self._built: dict[V, Built] = {}
        self._right: set[V] = set()
        self.begun = False
        self.tolerance = of.tolerance if options.check else None

    def close(self) -> None:
        """Remove what was compiled."""
        self._remove()

    def begin(self, default: V) -> None:
        """Load the workload and time its default, which sets the time limit of all others.

        Raises: RunnerUnavailable.
        """
        self.begun = True
        need = self.of.bytes_needed(check=self._options.check)
        if need > self._options.limit_bytes:
            reason = f"the arrays need {need} bytes of {self._options.limit_bytes}"
            self._refused = {"status": "oom", "error": reason}
            return
        if self._options.check:
            self._reference = self.of.reference(self.folder)
        (built_default,) = self._build([default]).values()
        if built_default.status != "ok":
            return
        for first in (True, False):
            reply = self._call(built_default, self._options.timeout_s, first=first)
            if reply["status"] == "ok":
                self._base_s = min(reply["seconds"], self._base_s)

    @property
    def limit_s(self) -> float:
        """Time limit of one call in seconds."""
        return min(self._options.timeout_s, SLOWEST * self._base_s + SLOWEST_BESIDE_S)

    def configurations(
        self,
        configs: Sequence[Config],
        *,
        space: ConfigSpace,
        variant: Callable[[Config], V],
        default: V,
        at_once: int,
    ) -> Iterator[tuple[Config, Measurement]]:
        """Measure configurations, compiled `at_once` at a time; illegal ones are `invalid`, and
        only legal ones are compiled.

        Raises: RunnerUnavailable.
        """
        for at in range(0, len(configs), at_once):
            part = configs[at : at + at_once]
            reasons = {config: space.reason(config) for config in part}
            variants = {c: variant(c) for c in part if reasons[c] is None}
            if variants and not self.begun:
                self.begin(default)
            measured = self.measure(list(dict.fromkeys(variants.values())))
            for config in part:
                if (reason := reasons[config]) is not None:
                    yield config, Measurement("invalid", error=reason, when=time.time())
                else:
                    yield config, measured[variants[config]]

    def measure(self, variants: Sequence[V]) -> dict[V, Measurement]:
        """Measure variants, all of which are legal. Raises: RunnerUnavailable."""
        if self._refused is not None:
            refused = Measurement(**self._refused, when=time.time())
            return dict.fromkeys(variants, refused)
        turns = {variant: _Turn(one) for variant, one in self._build(variants).items()}
        for variant, turn in turns.items():
            if turn.built.status != "ok":
                turn.end(turn.built.status, turn.built.error)
            else:
                self._first(turn, check=self._options.check and variant not in self._right)
                if turn.status in ("", "ok"):
                    self._right.add(variant)
        while waiting := [turn for turn in turns.values() if not turn.status]:
            for turn in waiting:
                self._again(turn)
        return {variant: self._measurement(turn) for variant, turn in turns.items()}

    def _build(self, variants: Sequence[V]) -> dict[V, Built]:
        fresh = [v for v in variants if v not in self._built]
        if fresh:
            self._built |= self.of.build(fresh, self.folder)
        return {v: self._built[v] for v in variants}

    def _first(self, turn: _Turn, *, check: bool) -> None:
        """The checked run; it warms the caches for the others and does not count, unless it is so
        slow that it is the only one."""
        reply = self._call(turn.built, self.limit_s, first=True)
        if reply["status"] == "ok" and check:
            seconds = reply["seconds"]
            reply = {**self._request({"do": "check"}, _CHECK_S), "seconds": seconds}
        if reply["status"] != "ok":
            turn.end(reply["status"], reply["error"])
        elif reply["seconds"] > max(SLOW * self._base_s, SLOW_S):
            turn.times_s.append(reply["seconds"])
            turn.end("ok")

    def _again(self, turn: _Turn) -> None:
        reply = self._call(turn.built, self.limit_s, first=False)
        if reply["status"] != "ok":
            turn.end(reply["status"], reply["error"])
            return
        turn.times_s.append(reply["seconds"])
        done, spent, options = len(turn.times_s), sum(turn.times_s), self._options
        enough = done >= options.repeats and spent >= options.min_time_s
        if enough or done >= options.max_repeats or spent + turn.times_s[-1] > options.timeout_s:
            turn.end("ok")

    # -- the worker --------------------------------------------------------------------------------

    def _call(self, built: Built, limit_s: float, *, first: bool) -> dict[str, Any]:
        # As many in a row as a short call needs.
        row = math.ceil(self.of.least_s / max(self._base_s, 1e-9))
        times = 1 if first else min(max(row, 1), _MOST_CALLS)
        message = {
            "do": "call",
            "library": str(built.library),
            "which": built.which,
            "threads": self._threads,
            "first": first,
            "times": times,
        }
        return self._request(message, times * limit_s + self.of.restored_bytes / _RESTORED)

    def _request(self, message: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """The worker's reply, after loading the workload there if needed."""
        if self._refused is not None:
            return self._refused
        if self._generation != self._session.ensure():
            reply = self._load()
            if reply["status"] != "ok":
                self._refused = reply
                return reply
            self._generation = self._session.generation
        return self._session.request(message, timeout_s=timeout_s)

    def _load(self) -> dict[str, Any]:
        message = {
            "do": "load",
            "seed": self._options.seed,
            "check": self._options.check,
            "folder": str(self.folder),
            "reference": self._reference,
        }
        limit_s = max(_LOAD_S, _LOADS * self._options.timeout_s)
        reply = self._session.request(message, self.of.parts, timeout_s=limit_s)
        if reply["status"] == "timeout":
            reply["error"] = (
                f"the default order of the {self.of.called} takes more than {limit_s:g} s"
            )
        if reply["status"] == "crash":  # no schedule has run yet
            raise RunnerUnavailable(f"the worker cannot take a {self.of.called}: {reply['error']}")
        return reply

    # -- measurements ------------------------------------------------------------------------------

    def _measurement(self, turn: _Turn) -> Measurement:
        context: dict[str, float | str] = {
            "cache": "warm",
            "load1": round(os.getloadavg()[0], 2),
            "threads": self._threads,
            "limit_s": round(self.limit_s, 6),
        }
        return Measurement(
            status=turn.status,
            times_s=tuple(turn.times_s) if turn.status == "ok" else (),
            compile_s=turn.built.compile_s or None,
            tolerance=self.tolerance,
            when=time.time(),
            error=turn.error,
            context=context,
        )
