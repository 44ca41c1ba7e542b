"""`db sources`: who pushed what into a database."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import click

from embeddb.store.sources import Source
from embeddb.ui.cli.arguments import open_database
from embeddb.ui.cli.output import emit, json_option, say, table

__all__ = ["sources_verb"]


@click.command("sources")
@click.argument("db")
@json_option
def sources_verb(db: str, as_json: bool) -> None:
    """Who pushed runs into DB: from which machines, when, how many, and how many are withdrawn.

    \b
    Example:
      embeddb db sources postgresql://db.example.org/team
    """
    with open_database(db, readonly=True) as opened:
        entries = opened.store.sources.entries()
        withdrawn = opened.store.sources.withdrawn() if entries else {}
        place = opened.store.place
    told = [_told(source, withdrawn) for source in entries]
    if as_json:
        emit({"database": place, "sources": told})
    elif not told:
        say(f"{db}: nobody pushed anything; `embeddb db push` does")
    else:
        head = ("source", "runs", "withdrawn", "known already", "pushes", "last", "from")
        table(head, [_row(one) for one in told])


def _told(source: Source, withdrawn: Mapping[int, int]) -> dict[str, Any]:
    pushes = sorted(source.pushes, key=lambda push: push.when)
    return {
        "source": source.name,
        "runs": sum(push.added for push in pushes),
        "withdrawn": withdrawn.get(source.number, 0),
        "duplicates": sum(push.duplicates for push in pushes),
        "against": sum(push.against for push in pushes),
        "platforms": sorted({name for push in pushes for name in push.platforms}),
        "pushes": [
            {"when": p.when, "user": p.user, "host": p.host, "added": p.added} for p in pushes
        ],
    }


def _row(told: Mapping[str, Any]) -> tuple[object, ...]:
    pushes = told["pushes"]
    last = time.strftime("%Y-%m-%d %H:%M", time.localtime(pushes[-1]["when"]))
    places = ", ".join(sorted({f"{push['user']}@{push['host']}" for push in pushes}))
    counts = (told["runs"], told["withdrawn"], told["duplicates"], len(pushes))
    return (told["source"], *counts, last, places)
