"""`dynamics`: predicted hardware counters of a kernel on a matrix."""

from __future__ import annotations

import math
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from embeddb.core.config import Config, Op
from embeddb.core.errors import EmbeddbError, UsageError
from embeddb.core.pattern import Pattern
from embeddb.core.wording import size
from embeddb.core.workload import matrices_only
from embeddb.platforms.platform import load_platform
from embeddb.ui.cli import option
from embeddb.ui.cli.arguments import open_database, whole
from embeddb.ui.cli.output import emit, note, say, table

if TYPE_CHECKING:
    from embeddb.dynamics import Cache, Dynamics

_WARM = "values of {} are those of a call with warm caches, simulated ones those of a cold call"


@option.verb()
@click.argument("matrix")
@option.text("--db", help="Database that has MATRIX, if it is no file.")
@option.text("--platform", default="cpu", help="A platform with a loop nest.")
@option.op
@option.text("--config", metavar="A=1,B=2", help="Configuration instead of the default.")
@option.threads
@option.flag("--cachegrind", help="Also simulate the compiled kernel (valgrind).")
@option.flag("--perf", help="Also read the processor's counters (perf).")
def dynamics_verb(matrix: str, as_json: bool, **options: Any) -> None:
    """Dynamic features of one op on MATRIX: traffic, reuse of dense rows, balance of threads.

    MATRIX is a file, or with --db a name or id of a pattern whose structure DB has. Each value has
    its source: model, simulated, cachegrind or perf.

    \b
    Example:
      embeddb dynamics A.mtx --op spmm:128
      embeddb dynamics m1 --db runs.db --op spmv --threads 4 --cachegrind --json
    """
    from embeddb.dynamics import caches_of, execution_of, profile

    op, platform = Op.parse(options["op"]), load_platform(options["platform"])
    matrices_only([op], "this verb")
    pattern = _pattern(matrix, options["db"])
    if options["config"]:
        space = platform.space(op, pattern.sizes)
        config = space.canonical(Config.parse(options["config"]))
        space.check(config)
    else:
        config = platform.default(op, pattern.sizes)
    threads = options["threads"] or len(os.sched_getaffinity(0))
    how, notes = execution_of(platform, op, config, pattern=pattern, threads=threads)
    runs_here = platform.runner in ("cpu", "command") and not platform.simulated
    caches = caches_of(platform.traits, here=runs_here)
    dynamics = profile(pattern, op, how, caches=caches).merged({}, {}, notes)
    for tool in ("cachegrind", "perf"):
        if options[tool]:
            dynamics = _counted(dynamics, tool, (pattern, op, config), caches, threads)
    head = {
        "pattern_id": pattern.id,
        "name": pattern.name,
        "platform": platform.id,
        "op": str(op),
        "config": dict(config),
        "threads": how.threads,
    }
    if as_json:
        emit({**head, **_document(dynamics, caches)})
    else:
        _show(head, dynamics, caches)


def _pattern(text: str, db: str) -> Pattern:
    if not db:
        from embeddb.matrix_files import read_pattern

        return read_pattern(text)
    with open_database(db, readonly=True) as opened:
        return whole(opened, opened.find(text, kind="matrix"), Pattern)


def _counted(
    dynamics: Dynamics,
    tool: str,
    what: tuple[Pattern, Op, Config],
    caches: tuple[Cache, ...],
    threads: int,
) -> Dynamics:
    """Dynamics with the counters of a tool; if the tool fails, with a remark instead."""
    from indexer.runners.counters import sparse

    note(f"running the kernel under {tool}")
    try:
        if tool == "cachegrind":
            counted = sparse.cachegrind(*what, caches=caches)
        else:
            counted = sparse.perf(*what, threads=threads)
    except UsageError:
        raise
    except EmbeddbError as error:
        return dynamics.merged({}, {}, (f"{tool}: {error}",))
    return dynamics.merged(counted.counters, counted.missing, (_WARM.format(tool),))


def _document(dynamics: Dynamics, caches: tuple[Cache, ...]) -> dict[str, Any]:
    """`over_threads` are statistics of each counter that was simulated thread by thread."""
    from embeddb.dynamics import TABLE_5
    from embeddb.nests.counters import STATISTICS

    over_threads = {
        event: dict(zip(STATISTICS, row, strict=True))
        for event, row in zip(TABLE_5, dynamics.over_threads().table.tolist(), strict=True)
        if not math.isnan(row[0])
    }
    return {
        "caches": [asdict(cache) for cache in caches],
        "counters": {name: asdict(c) for name, c in dynamics.counters.items()},
        "missing": dict(dynamics.missing),
        "quantities": {name: asdict(c) for name, c in dynamics.quantities.items()},
        "reuse": asdict(dynamics.reuse),
        "vector": dynamics.vector().tolist(),
        "mask": dynamics.mask().tolist(),
        "over_threads": over_threads,
        "notes": list(dynamics.notes),
    }


def _show(head: dict[str, Any], dynamics: Dynamics, caches: tuple[Cache, ...]) -> None:
    say(f"{head['name']}: {head['op']} on {head['platform']}, {head['threads']} threads")
    say("caches: " + ", ".join(f"L{c.level} {size(c.size_bytes)}" for c in caches))
    rows = [
        (f"{c.value:{',.0f' if c.value == int(c.value) else '.4g'}}", c.unit, c.source, name)
        for group in (dynamics.quantities, dynamics.counters)
        for name, c in group.items()
    ]
    table(("value", "unit", "source", "name"), rows)
    say(f"reuse of dense rows, in units of {dynamics.reuse.unit_bytes} bytes:")
    bins = [("first", dynamics.reuse.cold)]
    bins += [(f"< {1 << b}", count) for b, count in enumerate(dynamics.reuse.counts)]
    table(("distance", "accesses"), bins, indent="  ")
    for name, reason in dynamics.missing.items():
        say(f"no {name}: {reason}")
    for remark in dynamics.notes:
        say(remark)
