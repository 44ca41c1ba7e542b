"""Stand-in for SPADE: simulated runs by a timing model, marked as such."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from typing import TYPE_CHECKING

from embeddb.core.config import Config, Op
from embeddb.core.errors import PlatformError, RunnerUnavailable
from embeddb.core.pattern import Pattern
from embeddb.core.records import Measurement
from indexer.runners.base import RunOptions
from indexer.runners.spade_model.model import KEEP_BYTES, VERSION, Estimate, Hardware, Model

if TYPE_CHECKING:
    from embeddb.platforms.platform import Platform

#: Parameters that the model needs.
_NEEDED = ("row_panels", "column_panels", "split", "barrier", "bypass", "reorder")
#: An upper bound of what timing one configuration takes per non-zero, and per row and column.
_ENTRY_BYTES, _SIDE_BYTES = 120, 60


class SpadeRunner:
    """Time configurations with `spade_model`; nothing is executed and no result is computed. A
    platform file with `runner = "spade"`, SPADE's parameters and the traits of `Hardware` is timed
    by its traits. The model is deterministic: there is one time regardless of the requested
    repeats, and neither threads nor the time limit apply."""

    name = "spade"

    def __init__(self, platform: Platform | None = None) -> None:
        self._platform = platform

    @classmethod
    def for_platform(cls, platform: Platform) -> SpadeRunner:
        return cls(platform)

    def available(self) -> str | None:
        if find_spec("numba") is None:
            return "the timing model of SPADE needs numba: install the extra `dynamics`"
        try:
            Hardware.from_traits(self._described().traits)
        except PlatformError as error:
            return f"platform {self._described().id}: {error}"
        return None

    def platform(self, *, threads: int = 0) -> Platform:
        """The platform; its instance is the digest of the model's version and of every trait it
        uses, so that times under other assumptions are of another instance.

        Raises: RunnerUnavailable.
        """
        platform, hardware = self._ready()
        facts = {name: f"{value:g}" for name, value in asdict(hardware).items()}
        return platform.at("", {"timing model": VERSION, **facts})

    def run(
        self, pattern: Pattern, op: Op, configs: Sequence[Config], *, options: RunOptions
    ) -> Iterator[tuple[Config, Measurement]]:
        """Raises: UsageError for an operation the platform lacks, RunnerUnavailable."""
        platform, hardware = self._ready()
        space = platform.space(op, pattern.sizes)
        m, n = pattern.shape
        need = pattern.nnz * _ENTRY_BYTES + (m + n) * _SIDE_BYTES
        room = max(0, min(KEEP_BYTES, options.max_bytes - need))
        model = Model(hardware, pattern, op, keep_bytes=room)
        for config in configs:
            reason = space.reason(config)
            lacking = [name for name in _NEEDED if name not in config]
            if reason is None and lacking:
                reason = f"the timing model needs the parameter {lacking[0]!r}"
            if reason is not None:
                yield config, _failed("invalid", reason)
            elif need > options.max_bytes:
                reason = f"the model may need {need} bytes of {options.max_bytes}"
                yield config, _failed("oom", reason)
            else:
                yield config, _modelled(model.estimate(space.numeric(config)))

    def _described(self) -> Platform:
        if self._platform is None:
            from embeddb.platforms.platform import load_platform

            self._platform = load_platform("spade")
        return self._platform

    def _ready(self) -> tuple[Platform, Hardware]:
        reason = self.available()
        if reason is not None:
            raise RunnerUnavailable(reason)
        return self._described(), Hardware.from_traits(self._described().traits)


def _modelled(estimate: Estimate) -> Measurement:
    context: dict[str, float | str] = {
        "made_by": "timing model",
        "bound": estimate.bound,
        "elements_s": estimate.elements_s,
        "memory_s": estimate.memory_s,
        "shared_s": estimate.shared_s,
    }
    return Measurement("ok", (estimate.seconds,), "simulator", when=time.time(), context=context)


def _failed(status: str, reason: str) -> Measurement:
    context: dict[str, float | str] = {"made_by": "timing model"}
    return Measurement(status, source="simulator", error=reason, when=time.time(), context=context)


PLUGIN = SpadeRunner
