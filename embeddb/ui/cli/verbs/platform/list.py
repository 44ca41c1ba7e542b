"""`platform list`: which platforms there are."""

from __future__ import annotations

from typing import Any

import click

from embeddb.platforms.platform import Platform, builtin_platforms, load_platform
from embeddb.ui.cli.arguments import open_database
from embeddb.ui.cli.output import emit, json_option, table

__all__ = ["head", "kind", "list_verb"]


@click.command("list")
@click.option("--db", default="", help="Those of a database instead of the built-in ones.")
@json_option
def list_verb(db: str, as_json: bool) -> None:
    """Built-in platforms, or those of a database.

    \b
    Example:
      embeddb platform list --db runs.db
    """
    if db:
        with open_database(db, readonly=True) as opened:
            found = [opened.platform(name) for name in opened.store.platforms()]
    else:
        found = [load_platform(name) for name in builtin_platforms()]
    if as_json:
        emit([head(platform) for platform in found])
        return
    rows = [(p.id, " ".join(p.ops), "yes" if p.runner else "no", kind(p), p.what) for p in found]
    table(("platform", "operations", "runs here", "times", "what it is"), rows)


def kind(platform: Platform) -> str:
    """Of its times."""
    return "simulated" if platform.simulated else "real"


def head(platform: Platform) -> dict[str, Any]:
    """What every list of platforms says of one."""
    return {
        "id": platform.id,
        "name": platform.name,
        "instance": platform.instance,
        "version": platform.version,
        "title": platform.title,
        "ops": list(platform.ops),
        "simulated": platform.simulated,
        "portable": platform.portable,
        "runner": platform.runner,
        "cost_per_sample": platform.cost_per_sample,
    }
