"""Loop nests on this machine's processors: generated C, compiled by gcc, timed in a child."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from embeddb.core.config import Config, Op
from embeddb.core.errors import UsageError
from embeddb.core.records import Measurement
from embeddb.kernels.build import threads_used
from embeddb.kernels.nests.generate import GENERATION, flags
from embeddb.nests.check import canonical_schedule, check
from embeddb.nests.schedule import Schedule
from indexer.runners.base import RunOptions
from indexer.runners.harness.local import LocalRunner
from indexer.runners.harness.measuring import Measuring
from indexer.runners.nest_code.job import MeasuredNest

if TYPE_CHECKING:
    from embeddb.nests.nest import Nest

#: Configurations compiled at a time, before any of them is timed.
_AT_ONCE = 32


class NestRunner(LocalRunner):
    """Measure schedules of loop nests on this machine's processors.

    Each is compiled with others into one file, run once and checked, then timed in rounds in which
    the others of that file's take turns; arrays that are read and written are restored before each
    call, outside of the timed part. A call that takes more than ten times the default's time (and
    a quarter of a second) is ended: a status `timeout`. From four times on it is not repeated.
    """

    name = "nest"
    worker, platform_name = "indexer.runners.nest_code.job", "nest-cpu"

    def _identity(self) -> dict[str, str]:
        return {
            "flags": " ".join(flags()),
            "kernels": str(GENERATION),
            "wait_policy": "passive",
            "proc_bind": "false",
        }

    def run(
        self, nest: Nest, op: Op, configs: Sequence[Config], *, options: RunOptions
    ) -> Iterator[tuple[Config, Measurement]]:
        """Measure schedules. Raises: UsageError for another operation than `nest`; NestError for a
        nest that could leave an array, or whose matrices are missing: nothing is compiled;
        RunnerUnavailable, also for failures of the machine in the middle of it."""
        if op.name != "nest":
            raise UsageError(f"the nest runner has no {op}", hint="its operation is `nest`")
        self.require_available()
        nest = check(nest)
        nest.require_matrices()
        self.next_subject()
        threads = threads_used(options.threads)
        with Measuring(
            MeasuredNest(nest), self.session, threads=threads, options=options
        ) as measuring:
            yield from measuring.configurations(
                configs,
                space=self.space(op, nest),
                variant=lambda config: Schedule.of(config, nest.depth),
                default=canonical_schedule(nest),
                at_once=_AT_ONCE,
            )


PLUGIN = NestRunner
