"""A runner that replays recorded runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from embeddb.core.config import Config, Op
from embeddb.core.errors import UsageError
from embeddb.core.pattern import Pattern
from embeddb.core.records import Measurement, WorkloadInfo
from indexer.runners.base import RunOptions

if TYPE_CHECKING:
    from embeddb.platforms.platform import Platform


class ReplayRunner:
    """Answer from `lookup(pattern_id, op, config)`; used by `embeddb eval --tuner` to compare
    tuners. A configuration without a recorded run gets the status `invalid` and no times: a tuner
    that proposes it has wasted the step."""

    name = "replay"

    def __init__(
        self,
        lookup: Callable[[str, Op, Config], Measurement | None],
        *,
        platform: Platform | None = None,
    ) -> None:
        self._lookup = lookup
        self._platform = platform

    def available(self) -> str | None:
        return None

    def platform(self, *, threads: int = 0) -> Platform:
        """The platform whose runs are replayed. Raises: UsageError if there is none."""
        if self._platform is None:
            raise UsageError("this replay was set up without a platform")
        return self._platform

    def run(
        self,
        pattern: Pattern | WorkloadInfo,
        op: Op,
        configs: Sequence[Config],
        *,
        options: RunOptions,
    ) -> Iterator[tuple[Config, Measurement]]:
        """The recorded measurements on a pattern, whose structure is not needed."""
        for config in configs:
            measurement = self._lookup(pattern.id, op, config)
            if measurement is None:
                error = f"no recorded run of {config} on {pattern.name or pattern.id}"
                measurement = Measurement(status="invalid", source="imported", error=error)
            yield config, measurement
