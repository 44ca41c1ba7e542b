"""`db withdraw`: runs taken back, and brought back."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from embeddb.core.config import Op
from embeddb.core.errors import NothingFound, UsageError
from embeddb.core.records import STATUSES
from embeddb.core.wording import plural
from embeddb.store.withdrawn import RunSelection
from embeddb.ui.cli.arguments import open_database
from embeddb.ui.cli.output import emit, json_option, note, say, table

__all__ = ["withdraw_verb"]

_WHICH = "name --platform, --op, --status, --campaign, --since, --source"


@click.command("withdraw")
@click.argument("db")
@click.option("--platform", default="", help="Of this platform (a bare name: all instances).")
@click.option("--op", default="", help="Of this operation.")
@click.option("--status", default="", metavar="STATUS,...", help="That ended like that.")
@click.option("--campaign", default="", help="Stored by it: an id, measure, calibrate or query.")
@click.option("--since", default="", metavar="TIME", help="Made since then: 2026-05-01T14:00.")
@click.option("--source", default="", metavar="NAME", help="That this source pushed.")
@click.option("--undo", is_flag=True, help="Have withdrawn runs count again.")
@click.option("--yes", is_flag=True, help="Do it; without, only say what would be done.")
@json_option
def withdraw_verb(db: str, as_json: bool, undo: bool, yes: bool, **asked: str) -> None:
    """Have runs of DB count no longer: in no answer, no evidence, no figure and no export.

    Nothing is erased; --undo brings back all, or those selected. Without --yes it only says which
    runs would be meant.

    \b
    Example:
      embeddb db withdraw runs.db --status build,crash --since 2026-05-01
      embeddb db withdraw runs.db --status build,crash --since 2026-05-01 --yes
      embeddb db withdraw team.db --source ann@cluster7 --yes
      embeddb db withdraw runs.db --undo --yes
    """
    selection = _selection(asked)
    if selection.all and not undo:
        raise UsageError("which runs?", hint=_WHICH)
    with open_database(db, readonly=not yes) as opened:
        held = opened.store.withdrawn
        if not yes:
            chosen = held.chosen(selection, back=undo)
        else:
            chosen = held.restore(selection) if undo else held.withdraw(selection)
        left = held.count()
    if not chosen:
        raise NothingFound("no withdrawn run is like that" if undo else "no run is like that")
    document: dict[str, Any] = {
        "database": db,
        "undo": undo,
        "changed": yes,
        "runs": sum(kind.runs for kind in chosen),
        "selected": [kind._asdict() for kind in chosen],
        "withdrawn": left,
    }
    if as_json:
        emit(document)
    else:
        _show(document)


def _show(document: dict[str, Any]) -> None:
    rows = [(k["platform"], k["op"], k["status"], k["runs"]) for k in document["selected"]]
    table(("platform", "op", "status", "runs"), rows)
    runs, undo = plural(document["runs"], "run"), document["undo"]
    if document["changed"]:
        say(f"{runs} {'brought back' if undo else 'withdrawn'}, {document['withdrawn']:,} are now")
    else:
        say(f"{runs} would be {'brought back' if undo else 'withdrawn'}")
        note("nothing was changed: add --yes to do it")


def _selection(asked: dict[str, str]) -> RunSelection:
    return RunSelection(
        platform=asked["platform"],
        op=Op.parse(asked["op"]) if asked["op"] else None,
        statuses=_statuses(asked["status"]),
        campaign=asked["campaign"],
        since=_moment(asked["since"]),
        source=asked["source"],
    )


def _statuses(text: str) -> frozenset[str]:
    named = frozenset(word.strip() for word in text.split(",") if word.strip())
    if unknown := sorted(named.difference(STATUSES)):
        hint = f"one or more of {', '.join(STATUSES)}"
        raise UsageError(f"--status: there is no {unknown[0]!r}", hint=hint)
    return named


def _moment(text: str) -> float:
    """Seconds since 1970 of a date or time, which is local unless it says otherwise; 0 for none."""
    try:
        return max(datetime.fromisoformat(text).timestamp(), 1e-9) if text else 0.0
    except (ValueError, OverflowError, OSError):
        hint = "write it as 2026-05-01 or 2026-05-01T14:00"
        raise UsageError(f"--since: {text!r} is no time", hint=hint) from None
