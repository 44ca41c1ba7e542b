"""`plot curve`: the sorted times of all that was measured on a matrix."""

from __future__ import annotations

from pathlib import Path

import click

from embeddb.core.config import Op
from embeddb.core.wording import duration, plural
from embeddb.ui.cli.arguments import open_database
from embeddb.ui.cli.drawing import finish, out_option
from embeddb.ui.cli.output import json_option, say
from embeddb.ui.plot_data import measured_on, nothing_of, simulated_mark

__all__ = ["curve_verb"]


@click.command("curve")
@click.argument("db")
@click.argument("matrix")
@click.option("--platform", required=True, help="Name, name@instance or TOML file.")
@click.option("--op", required=True, help="KERNEL:WIDTH, as spmm:64 or spmv.")
@out_option
@json_option
def curve_verb(db: str, matrix: str, platform: str, op: str, out: Path, as_json: bool) -> None:
    """Draw the sorted times of all that was measured on MATRIX, over the best; default marked.

    MATRIX is a file, or name or id of a pattern in DB; a nest is named. A steep curve says that the
    choice matters.

    \b
    Example:
      embeddb plot curve starter raefsky3 --platform cpu --op spmm:128 -o curve.svg
    """
    from embeddb.index.scopes import scope_of, scope_partitions
    from embeddb.ui.draw import curves

    with open_database(db, readonly=True) as opened:
        where, what = opened.platform(platform), Op.parse(op)
        pattern = opened.find(matrix, kind=what.kind)
        found = [
            line
            for partition in scope_partitions(opened.store, what, scope_of(where))
            if (line := measured_on(opened, partition, pattern.id)) is not None
        ]
        name = pattern.name or pattern.id
        if not found:
            raise nothing_of(opened, f"{what} on {where.id} for {name}")
    lines, facts = [line for line, _ in found], [fact for _, fact in found]
    if len(lines) == 1:
        lines = [lines[0]._replace(name="")]
    title = f"{name}: {what} on {where.id}{simulated_mark(where)}"
    svg = curves(
        lines,
        title=title,
        x_label="configurations, fastest first",
        y_label="time / best",
        log_y=True,
    )
    document = {"title": title, "simulated": where.simulated, "platforms": facts}
    finish(svg, out, document, as_json)
    if not as_json:
        for fact in facts:
            best, default = duration(fact["best_s"]), duration(fact["default_s"])
            ran = f"{fact['ran']:,} of {plural(fact['configs'], 'configuration')} ran"
            say(f"  {fact['platform']}: {ran}; best {best}, default {default}")
