"""Plan and progress of a campaign as text."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from embeddb.core.wording import duration, plural, share
from embeddb.ui.cli.output import say, table

if TYPE_CHECKING:
    from indexer.campaign.agreement import Agreement
    from indexer.campaign.nodes.submissions import Spread

#: Reasons of failures that are shown.
_REASONS = 3
#: Matrices named in the text; `--json` has all.
_NAMED = 10


def command_line(verb: str, db: str, folder: str, platform: str) -> str:
    """`embeddb campaign VERB DB DIR`, with the platform's file where one was named."""
    option = ["--platform", platform] if platform else []
    return shlex.join(["embeddb", "campaign", verb, db, folder, *option])


def show_plan(document: dict[str, Any], command: str) -> None:
    """The document of `campaign plan`, and the command that runs it."""
    if document["strategy"]:
        show_spending(document["strategy"])
        _show_cost(document)
        say(f"run it: {command}")
        return
    what = ", ".join(
        f"{op} with {plural(count, 'configuration')}" for op, count in document["configs"].items()
    )
    say(
        f"{plural(document['points'], 'measurement')} planned: {what}, on "
        f"{plural(document['matrices'], 'matrix', 'matrices')}, in "
        f"{plural(document['rounds'], 'round')}"
    )
    if document["grid"]["op"]:
        grid = plural(len(document["grid"]["matrices"]), "matrix", "matrices")
        say(f"every configuration of {document['grid']['op']} on {grid}")
    if document["left_out"]:
        say(f"{plural(len(document['left_out']), 'pair')} of matrix and op left out by --max-work")
    _show_cost(document)
    say(f"run it: {command}")


def _show_cost(document: dict[str, Any]) -> None:
    """Estimated duration of a plan, from the samples in the database."""
    if document["estimated_seconds"] is None:
        say("duration not known yet: `campaign status` estimates it after some samples")
    else:
        each, whole = document["seconds_per_sample"], document["estimated_seconds"]
        say(f"about {duration(whole)}, at {duration(each)} a sample so far, one at a time")
    if document["cost_note"]:
        say(f"note: {document['cost_note']}")


def show_progress(document: dict[str, Any]) -> None:
    """The document of `campaign status`."""
    show_spending(document["strategy"])
    measured, points = document["measured"], document["points"]
    percent = 100 * measured // points if points else 100
    more = f", {document['under_way']:,} more in tasks under way" if document["under_way"] else ""
    say(f"{measured:,} of {plural(points, 'measurement')} ({percent} %){more}")
    each, left = document["seconds_per_sample"], points - measured
    if each is not None:
        rest = f"; {left:,} left, about {duration(each * left)} one at a time" if left else ""
        say(f"{duration(each)} a sample{rest}")
    if document["cost_note"]:
        say(f"note: {document['cost_note']}")
    stored = document["tasks_stored"]
    say(f"{stored:,} of {plural(document['tasks'], 'task')} stored in the database")
    show_spread(document["nodes"])
    for status, count in sorted(document["statuses"].items(), key=lambda s: -s[1]):
        say(f"  {count:,} {status}")
    for failure in document["failures"][:_REASONS]:
        if failure["error"]:
            say(f"  {failure['points']:,} {failure['status']}: {failure['error']}")
    if document["other_state"]:
        say(f"{plural(document['other_state'], 'task')} measured in another state of the machine")
    show_agreement(document["agreement"])


def show_spread(nodes: Spread) -> None:
    """Tasks by state and host, if nodes work on the campaign."""
    if not nodes.waiting and not any(one.host for one in nodes.hosts) and nodes.waiting is not None:
        return
    waiting = "an unknown number" if nodes.waiting is None else f"{nodes.waiting:,}"
    say(f"tasks: {nodes.done:,} done, {nodes.running:,} running, {waiting} waiting")
    if nodes.points_given_up:
        say(f"{plural(nodes.points_given_up, 'point')} given up: every attempt ended the process")
    rows = [
        (one.host, one.instance, one.done, one.running, one.stopped, one.given_up)
        for one in nodes.hosts
    ]
    if rows:
        table(("host", "instance", "done", "running", "stopped", "given up"), rows, indent="  ")


def show_spending(document: dict[str, Any] | None) -> None:
    """Samples that a strategy spent, if the campaign has one."""
    if document is not None:
        say(
            f"{document['name']}: {document['measured']:,} of a budget of "
            f"{plural(document['budget'], 'sample')} spent, {document['planned']:,} planned, on "
            f"{plural(document['matrices'], 'matrix', 'matrices')} in "
            f"{plural(document['rounds'], 'round')}"
        )


def show_agreement(agreements: Sequence[Agreement]) -> None:
    """Agreement between rounds: medians, the 5th percentile in brackets, and outlier matrices."""
    compared = [a for a in agreements if a.matrices]
    if compared:
        rows = [
            (
                *(a.op, a.matrices, _figures(a.spearman, a.spearman_p5)),
                *(_figures(a.kendall, a.kendall_p5), f"{100 * a.difference:.1f} %"),
                *(share(a.near_ties / a.pairs), len(a.settled), len(a.disagreeing)),
            )
            for a in compared
        ]
        say("rounds compared (median over matrices, 5th percentile in brackets)")
        head = ("op", "matrices", "Spearman", "Kendall", "difference", "near-ties", "settled")
        table((*head, "disagree"), rows, indent="  ")
    for a in agreements:
        if a.disagreeing:
            names = ", ".join(a.disagreeing[:_NAMED])
            more = f" and {len(a.disagreeing) - _NAMED} more" if a.disagreeing[_NAMED:] else ""
            say(f"  {a.op}: the rounds disagree on {names}{more}")
        if a.too_few:
            say(
                f"  {a.op}: rounds not compared on {plural(a.too_few, 'matrix', 'matrices')}: "
                "fewer than 10 configurations were ok in two of them"
            )


def _figures(middle: float, low: float) -> str:
    return f"{middle:.3f} ({low:.3f})" if math.isfinite(middle) else ""
