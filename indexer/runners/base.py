"""The runner protocol, and the effort of a measurement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from embeddb.core.config import Config, Op
from embeddb.core.errors import UsageError
from embeddb.core.records import Measurement

if TYPE_CHECKING:
    from embeddb.platforms.platform import Platform

#: Limit on memory where `RunOptions.max_bytes` states none and the runner has none of its own.
_MAX_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Limits on the effort of one measurement.

    After a warm-up a configuration is repeated at least `repeats` times, then until `min_time_s`
    seconds of kernel time are spent, but never more than `max_repeats` times. `timeout_s` is the
    time limit of one configuration, without compilation and loading of the matrix. `threads` 0
    means every CPU available to this process. `max_bytes` bounds the matrix, its converted forms
    and the dense operands together (not what other libraries allocate), None by the runner's own
    limit: most of a GPU's memory, 4 GiB elsewhere. Random values come from `seed`; `check` compares
    each result with scipy's.

    Raises: UsageError for an effort that cannot be spent.
    """

    repeats: int = 5
    max_repeats: int = 25
    min_time_s: float = 0.005
    timeout_s: float = 10.0
    threads: int = 0
    max_bytes: int | None = None
    seed: int = 0
    check: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.repeats <= self.max_repeats:
            raise UsageError(f"repeats must be 1..{self.max_repeats}, not {self.repeats}")
        if not self.timeout_s > 0:
            raise UsageError(f"the timeout must be positive, not {self.timeout_s} s")
        if not 0 <= self.threads <= 1024:
            raise UsageError(f"threads must be 0..1024, not {self.threads}")

    @property
    def limit_bytes(self) -> int:
        """`max_bytes`, or the limit where there is none."""
        return _MAX_BYTES if self.max_bytes is None else self.max_bytes

    @property
    def effort(self) -> dict[str, float]:
        """Bounds on the repeats, by name, as workers take them."""
        names = ("repeats", "max_repeats", "min_time_s")
        return {name: getattr(self, name) for name in names}


class Runner(Protocol):
    """Measure configurations of one platform on the machine it runs on.

    Requirements: `run` yields exactly one measurement per configuration, in order, as soon as it is
    complete. A failure of a configuration (it does not build, crashes, hangs, computes wrong
    numbers, needs too much memory) is the status of its measurement; only an unsupported operation
    or an unsuitable machine raises, also in the middle of a run: a full disk, a killed process or
    one that cannot start are not failures of a configuration, and nothing is yielded for it
    (`embeddb.kernels.machine_failures`). Closing the iterator early leaves no process behind that
    still works on it.

    The protocols below are optional; a runner follows one by having its method.
    """

    name: str

    def available(self) -> str | None:
        """None if it can run here, else one line with the reason and what to install."""

    def platform(self, *, threads: int = 0) -> Platform:
        """The platform with this machine's environment as its instance."""

    def run(
        self, pattern: Any, op: Op, configs: Sequence[Config], *, options: RunOptions
    ) -> Iterator[tuple[Config, Measurement]]:
        """Measure on a `Pattern`, or on a `Nest` if the operation runs on nests.

        Raises: UsageError for an unsupported operation, RunnerUnavailable.
        """


@runtime_checkable
class MeasuresFacts(Protocol):
    """Measure the capabilities of the machine."""

    def facts(self, *, threads: int = 0) -> dict[str, str]:
        """Facts by name. They are stored, and from then on are part of `platform`'s environment,
        beside the identifying facts. Called before a run, never for a query."""


@runtime_checkable
class ReportsState(Protocol):
    """Report the current state of the machine (`embeddb.core.timing`)."""

    def state(self, *, threads: int = 0) -> dict[str, float]:
        """Positive figures by name, the same names each time, in milliseconds; empty if there are
        none. Raises nothing. Called before and after the runs of one matrix."""


@runtime_checkable
class ForPlatform(Protocol):
    """A runner for more than one platform; others are constructed without arguments."""

    @classmethod
    def for_platform(cls, platform: Platform) -> Runner:
        """The runner of a platform."""
