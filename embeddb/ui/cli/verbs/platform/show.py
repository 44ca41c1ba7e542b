"""`platform show`: what can be run where, and on which machines."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from embeddb.core.errors import RunnerUnavailable
from embeddb.core.wording import clean
from embeddb.platforms.machines import described
from embeddb.platforms.platform import Platform, load_platform, runner_for
from embeddb.platforms.space.space import Param
from embeddb.ui.cli.arguments import open_database
from embeddb.ui.cli.output import emit, json_option, say, table
from embeddb.ui.cli.verbs.platform.list import head, kind

if TYPE_CHECKING:
    from embeddb.database import Database

__all__ = ["show_verb"]

#: Values of a parameter shown in the table for people.
_SHOWN_VALUES = 8


@click.command("show")
@click.argument("platform")
@click.option("--db", default="", help="Look it up in this database.")
@json_option
def show_verb(platform: str, db: str, as_json: bool) -> None:
    """Parameters, values, defaults and mapping of a PLATFORM: a name, or a TOML file; and what is
    known of its machines: of this one, or of those in a database.

    \b
    Example:
      embeddb platform show cpu
      embeddb platform show cpu --db runs.db
    """
    if db:
        with open_database(db, readonly=True) as opened:
            found = opened.platform(platform)
            instances = _stored_instances(opened, found)
    else:
        found = load_platform(platform)
        instances = _local_instance(found)
    kernels = [_kernel(found, kernel) for kernel in found.ops]
    if as_json:
        facts = {"traits": dict(found.traits), "environment": dict(found.environment)}
        machines = {p.id: dict(p.environment) for p in instances}
        body = {"digest": found.digest, **facts, "instances": machines, "kernels": kernels}
        emit({**head(found), **body, "meaning": dict(found.meaning)})
        return
    _show_head(found)
    for instance in instances:
        say(f"{instance.id}:" if db else f"this machine is {instance.id}:")
        _show_facts(instance)
    for kernel in kernels:
        _show_kernel(kernel)
    if found.meaning:
        say()
        table(("value", "means"), sorted(found.meaning.items()), indent="  ")


def _stored_instances(db: Database, platform: Platform) -> list[Platform]:
    if platform.instance:
        return []
    stored = (db.store.sound_platform(i) for i in db.store.platforms())
    return [p for p in stored if p is not None and p.name == platform.name and p.instance]


def _local_instance(platform: Platform) -> list[Platform]:
    """This machine, where the runner tells facts of it; nothing is measured or started for it."""
    if platform.instance or not platform.runner:
        return []
    with suppress(RunnerUnavailable):
        runner = runner_for(platform)
        return [runner.platform()] if hasattr(runner, "facts") else []
    return []


def _show_facts(platform: Platform) -> None:
    for words, value in described(platform.environment):
        say(f"  {words}: {value}")


def _kernel(platform: Platform, kernel: str) -> dict[str, Any]:
    part = platform.kernel(kernel)
    space = part.space
    return {
        "kernel": kernel,
        "parameters": [_param(param) for param in space.params],
        "constraints": list(space.constraints),
        "varying": None if part.varying is None else list(part.varying),
        "default": dict(part.default),
        "size": None if space.shaped_by else space.size(),
        "shaped_by": list(space.shaped_by),
        "homogeneous": list(part.homogeneous),
        "heterogeneous": list(part.heterogeneous),
    }


def _param(param: Param) -> dict[str, Any]:
    return {
        "name": param.name,
        "type": param.kind,
        "values": list(param.values),
        "when": param.when,
        "aliases": dict(param.aliases),
        "open": param.open,
    }


def _show_head(p: Platform) -> None:
    say(f"{p.id}: {p.title} (version {p.version})")
    runner = f"measured by the runner `{p.runner}`" if p.runner else "no runner: its runs are read"
    shared = "other instances count as evidence" if p.portable else "each instance for itself"
    say(f"{kind(p)} times; {runner}; {shared}; cost per sample {p.cost_per_sample:g}")
    for name, value in p.traits.items():
        say(f"  {name} = {value}")
    _show_facts(p)


def _show_kernel(kernel: dict[str, Any]) -> None:
    size = "over a million" if kernel["size"] is None else f"{kernel['size']:,}"
    told = f"{size} legal configurations"
    if kernel["shaped_by"]:
        by = ", ".join(kernel["shaped_by"])
        told = f"which configurations are legal depends on {by} and sizes"
    say()
    say(f"{kernel['kernel']}: {told}")
    rows = []
    for param in kernel["parameters"]:
        name = param["name"]
        role = [w for w in ("homogeneous", "heterogeneous") if name in kernel[w]]
        part = {"homogeneous": "loop nest", "heterogeneous": "own"}
        values = [clean(v) for v in param["values"]]
        more = f" ... ({len(values)})" if len(values) > _SHOWN_VALUES else ""
        more += " and new ones" if param["open"] else ""
        rows.append(
            (
                name,
                param["type"],
                kernel["default"].get(name),
                " + ".join(part[w] for w in role),
                param["when"],
                " ".join(values[:_SHOWN_VALUES]) + more,
            )
        )
    table(("parameter", "type", "default", "part of", "only when", "values"), rows, indent="  ")
    for constraint in kernel["constraints"]:
        say(f"  must hold: {constraint}")
    for condition in kernel["varying"] or ():
        say(f"  sums in varying order: {condition}")
