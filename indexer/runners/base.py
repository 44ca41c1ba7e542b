"""What every runner offers, and how much measuring it may do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from embeddb.core.config import Config, Op
from embeddb.core.errors import UsageError
from embeddb.core.records import Measurement

if TYPE_CHECKING:
    from embeddb.platforms.platform import Platform

#: In the context of a run that a tuning paid for: the seconds that compiling and timing took.
HARDWARE_S = "hardware_s"


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The effort one measurement may cost.

    After a warm-up a configuration is repeated at least `repeats` times, then until `min_time_s`
    seconds of kernel time are spent, but never more than `max_repeats` times. `timeout_s` bounds
    everything one configuration does except compiling it and loading the matrix. `threads` 0 means
    every CPU this process may use. `max_bytes` bounds the matrix, its converted forms and the dense
    operands together (not what other libraries allocate). Random values come from `seed`; `check`
    compares each result with scipy's.

    Raises: UsageError for an effort that cannot be spent.
    """

    repeats: int = 5
    max_repeats: int = 25
    min_time_s: float = 0.005
    timeout_s: float = 10.0
    threads: int = 0
    max_bytes: int = 4 << 30
    seed: int = 0
    check: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.repeats <= self.max_repeats:
            raise UsageError(f"repeats must be 1..{self.max_repeats}, not {self.repeats}")
        if not self.timeout_s > 0:
            raise UsageError(f"the timeout must be positive, not {self.timeout_s} s")
        if not 0 <= self.threads <= 1024:
            raise UsageError(f"threads must be 0..1024, not {self.threads}")


class Runner(Protocol):
    """Measures configurations of one platform on the machine it runs on.

    Requirements: `run` yields exactly one measurement per configuration, in the order given, as
    soon as it is known. Whatever a configuration does (does not build, crashes, hangs, computes
    wrong numbers, needs too much memory) is the status of its measurement; only an operation the
    runner does not know, or a machine it cannot run on, raises. That is so in the middle of a run
    too: no space left, a process that somebody killed or that cannot start say nothing of a
    configuration, and nothing is yielded for it (`embeddb.kernels.machine_failures`). Closing the
    iterator early leaves no process behind that still works on it.

    The protocols below are for runners that can tell more of their machine; each is kept by having
    its method.
    """

    name: str

    def available(self) -> str | None:
        """None if it can run here, else one line that says why not and what to install."""

    def platform(self, *, threads: int = 0) -> Platform:
        """The platform with this machine's environment as its instance."""

    def run(
        self, pattern: Any, op: Op, configs: Sequence[Config], *, options: RunOptions
    ) -> Iterator[tuple[Config, Measurement]]:
        """Of a `Pattern`, or of a `Nest` where the operation runs on nests.

        Raises: UsageError for an operation the runner lacks, RunnerUnavailable."""


@runtime_checkable
class KnowsFacts(Protocol):
    """Can measure what its machine is able to do."""

    def facts(self, *, threads: int = 0) -> dict[str, str]:
        """These facts by name. They are kept, and `platform` tells them in the environment from
        then on, beside what the instance is named by. Called before something is run, never for a
        plain question."""


@runtime_checkable
class TellsState(Protocol):
    """Can tell what its machine does now (`embeddb.core.machine_state`)."""

    def state(self, *, threads: int = 0) -> dict[str, float]:
        """Positive figures by name, the same names each time, in milliseconds; empty where nothing
        can be told. Raises nothing. Called before and after the runs of one matrix."""


@runtime_checkable
class ForPlatform(Protocol):
    """Serves more than one platform; the others are made without arguments."""

    @classmethod
    def for_platform(cls, platform: Platform) -> Runner:
        """The runner of one of them."""
