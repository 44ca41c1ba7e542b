"""The results of a runner, checked: a fault of a plug-in is reported with its name. On a simulated
platform, results that are known already."""

from __future__ import annotations

import errno
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing, nullcontext
from typing import Any

from embeddb.core.config import Config, Op
from embeddb.core.errors import EmbeddbError, PluginError
from embeddb.core.plugins import FAULTS, raised, ships
from embeddb.core.records import Measurement, Run, storable
from embeddb.core.workload import Workload

#: Errors of a full disk, which end a command, not a campaign's task alone.
_FULL = (errno.ENOSPC, errno.EDQUOT)
#: Failures that may depend on the machine, also where a simulator runs.
_BY_CHANCE = ("crash", "timeout")
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

    own = ships(runner)
    try:
        results = iter(runner.run(workload, op, configs, options=options))
        with closing(results) if hasattr(results, "close") else nullcontext():
            for count, config in enumerate(configs):
                result = next(results, None)
                if result is None:
                    raise fault(f"it returned {count} results for {len(configs)} configurations")
                if not isinstance(result, tuple) or len(result) != 2:
                    what = type(result).__name__
                    raise fault(f"it returned a {what}, not a configuration and its measurement")
                if result[0] != config:
                    raise fault(
                        f"it returned a result of {result[0]} where one of {config} was due"
                    )
                yield config, result[1] if own else _storable(result[1], config, fault)
            if next(results, None) is not None:
                raise fault(f"it returned more than {len(configs)} results")
    except (EmbeddbError, MemoryError):
        raise
    except FAULTS as e:
        if own or (isinstance(e, OSError) and e.errno in _FULL):
            raise
        raise fault(f"run raised {raised(e)}") from e


def _storable(
    measurement: object, config: Config, fault: Callable[[str], PluginError]
) -> Measurement:
    try:
        return storable(measurement)
    except Exception as e:
        raise fault(f"the result of {config} cannot be stored: {e}") from e


def exact_runs(runs: Iterable[Run]) -> dict[Config, Run]:
    """The last of each configuration's runs on one instance of a simulated platform, where another
    run would end the same way: crashes and timeouts are left out."""
    settled = (run for run in runs if run.measurement.status not in _BY_CHANCE)
    return {run.config: run for run in sorted(settled, key=lambda run: run.measurement.when)}
