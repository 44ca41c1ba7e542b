"""The results of a runner, checked: a fault of a plug-in is reported with its name. On a simulated
platform, results that are known already."""

from __future__ import annotations

import errno
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing, nullcontext
from typing import Any

from embeddb.core.config import Config, Op
from embeddb.core.errors import EmbeddbError, PluginError
from embeddb.core.plugins import raised, ships
from embeddb.core.records import STATUSES, Measurement, Run
from embeddb.core.workload import Workload

#: Errors of a full disk, which end a command, not a campaign's task alone.
_FULL = (errno.ENOSPC, errno.EDQUOT)
#: Failures that may depend on the machine, also where a simulator runs.
_BY_CHANCE = ("crash", "timeout")
_ALLOWED = f"one of {', '.join(STATUSES)} is due"
_HINT = (
    "its contract is a test class, embeddb.testing.runners.RunnerContract: docs/howto/new-runner.md"
)


def checked_run(
    runner: Any, workload: Workload, op: Op, configs: Sequence[Config], *, options: Any
) -> Generator[tuple[Config, Measurement], None, None]:
    """The result of each configuration, in order, as `indexer.runners.base.Runner.run`.

    Raises: as that method; PluginError if a plug-in raises anything unexpected, an OSError too
    unless the disk is full, and if a runner does not return one result for each configuration.
    """

    def fault(what: str) -> PluginError:
        name = getattr(runner, "name", type(runner).__name__)
        return PluginError(f"runner {name}, on {workload.name or workload.id}: {what}", hint=_HINT)

    try:
        results = iter(runner.run(workload, op, configs, options=options))
        with closing(results) if hasattr(results, "close") else nullcontext():
            for count, config in enumerate(configs):
                result = next(results, None)
                if result is None:
                    raise fault(f"it returned {count} results for {len(configs)} configurations")
                ran, measurement = result
                if ran != config:
                    raise fault(f"it returned a result of {ran} where one of {config} was due")
                if not isinstance(measurement, Measurement):
                    what = type(measurement).__name__
                    raise fault(f"it returned a {what} for {config}, not a Measurement")
                if measurement.status not in STATUSES:
                    raise fault(f"the status of {config} is {measurement.status!r:.40}: {_ALLOWED}")
                yield config, measurement
            if next(results, None) is not None:
                raise fault(f"it returned more than {len(configs)} results")
    except (EmbeddbError, MemoryError):
        raise
    except Exception as e:
        if ships(runner) or (isinstance(e, OSError) and e.errno in _FULL):
            raise
        raise fault(f"run raised {raised(e)}") from e


def exact_runs(runs: Iterable[Run]) -> dict[Config, Run]:
    """The last of each configuration's runs on one instance of a simulated platform, where another
    run would end the same way: crashes and timeouts are left out."""
    settled = (run for run in runs if run.measurement.status not in _BY_CHANCE)
    return {run.config: run for run in sorted(settled, key=lambda run: run.measurement.when)}
