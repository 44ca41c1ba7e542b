"""`plot winners`: how often each configuration is the fastest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from embeddb.core.config import Op
from embeddb.core.wording import plural
from embeddb.ui.cli.arguments import open_database
from embeddb.ui.cli.drawing import finish, out_option
from embeddb.ui.cli.output import Progress, json_option
from embeddb.ui.plot_data import is_simulated, nothing_of, short_names

__all__ = ["winners_verb"]

#: Configurations drawn.
_MOST_WINNERS = 20


@click.command("winners")
@click.argument("db")
@click.option("--platform", default="", help="Only this platform.")
@click.option("--op", default="", help="Only this operation.")
@out_option
@json_option
def winners_verb(db: str, platform: str, op: str, out: Path, as_json: bool) -> None:
    """Draw how often each configuration is the fastest, over all patterns it was measured on.

    Equal times go to the configuration first in order of its text.

    \b
    Example:
      embeddb plot winners starter --platform cpu --op spmm:128 -o winners.svg
    """
    from embeddb.index.winners import wins
    from embeddb.ui.draw import Bar, bars

    with open_database(db, readonly=True) as opened, Progress() as progress:
        scopes = opened.index.scopes(platform, Op.parse(op) if op else None)
        counts, extent = wins(opened.store, scopes, progress)
        total = sum(counts.values())
        if not total:
            raise nothing_of(opened, " on ".join(x for x in (op, platform) if x) or "anything")
        simulated = any(is_simulated(opened, scope) for _, scope in scopes)
    first = counts.most_common(_MOST_WINNERS)
    first.sort(key=lambda pair: (-pair[1], pair[0].json))
    names = short_names(config for config, _ in first)
    rows = [
        Bar(names[c], 100 * n / total, note=f"{n:,}", marked=not at)
        for at, (c, n) in enumerate(first)
    ]
    of = extent.words(*(asked.kind for asked, _ in scopes))
    title = f"{plural(len(counts), 'configuration')} won on {of}: "
    title += _named(scopes)
    title += " (simulated)" if simulated else ""
    svg = bars(rows, title=title, unit=" %", width=760)
    document = {
        "title": title,
        "patterns": extent.patterns,
        "machines": extent.machines,
        "races": total,
        "configs": len(counts),
        "winners": [{"config": dict(c), "wins": n} for c, n in first],
        "simulated": simulated,
    }
    finish(svg, out, document, as_json)


def _named(scopes: Sequence[tuple[Op, str]], most: int = 3) -> str:
    said = ", ".join(f"{op} on {scope}" for op, scope in scopes[:most])
    return said + (f" and {len(scopes) - most} more" if scopes[most:] else "")
