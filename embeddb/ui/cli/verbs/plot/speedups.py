"""`plot speedups`: what each method gains on each matrix that it had not seen."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import click
import msgspec

from embeddb.core.config import Op
from embeddb.core.errors import InputError
from embeddb.core.wording import many_of
from embeddb.ui.cli.drawing import finish, out_option
from embeddb.ui.cli.output import json_option, say

__all__ = ["speedups_verb"]

#: An output of `embeddb eval --json` is far smaller.
_MOST_BYTES = 64 << 20
#: Panels below each other.
_MOST_PANELS = 12


class _Row(msgspec.Struct, frozen=True):
    """What is drawn of a row of `embeddb eval --json`."""

    platform: str
    op: str
    method: str
    speedups: list[float]
    simulated: bool = False


@click.command("speedups")
@click.argument("eval_file", metavar="EVAL", type=click.Path(dir_okay=False))
@click.option("--platform", default="", help="Only this platform or instance of EVAL.")
@click.option("--op", default="", help="Only this op of EVAL: KERNEL:WIDTH, as spmm:64 or spmv.")
@click.option("--method", "methods", multiple=True, help="Only this method; again for more.")
@out_option
@json_option
def speedups_verb(
    eval_file: str, platform: str, op: str, methods: tuple[str, ...], out: Path, as_json: bool
) -> None:
    """Draw the speed-up over the default on each matrix, largest first, a line for each method.

    EVAL is what `embeddb eval DB --json > eval.json` wrote; each platform and op of it is a panel.

    \b
    Example:
      embeddb plot speedups eval.json --method embeddb --method oracle -o speedups.svg
    """
    from embeddb.ui.draw import stack

    rows = [
        row
        for row in _rows(eval_file)
        if (not platform or row.platform == platform)
        and (not op or row.op == op)
        and (not methods or row.method in methods)
        and row.method != "default"
    ]
    panels: dict[tuple[str, str], list[_Row]] = {}
    for row in rows:
        panels.setdefault((row.op, row.platform), []).append(row)
    if not 1 <= len(panels) <= _MOST_PANELS:
        raise InputError(
            f"{len(panels)} platforms and ops to draw, not 1 to {_MOST_PANELS}",
            where=eval_file,
            hint="choose with --platform, --op and --method",
        )
    simulated = " (simulated)" if any(row.simulated for row in rows) else ""
    title = f"speed-up over the default{simulated}"
    svg = stack([_panel(*named, held) for named, held in panels.items()], title=title)
    found = [_figures(row) for row in rows]
    finish(svg, out, {"title": title, "rows": found}, as_json)
    if not as_json:
        for figures in found:
            told = f"{figures['method']}: {figures['median']:.2f}x in the middle, "
            say(f"  {figures['op']} on {figures['platform']}, {told}{figures['largest']:.2f}x most")


def _rows(file: str) -> list[_Row]:
    """Raises: InputError for a file that is not what `eval --json` writes."""
    path = Path(file)
    if not path.is_file():
        raise InputError("no such file", where=file, hint="embeddb eval DB --json > eval.json")
    if path.stat().st_size > _MOST_BYTES:
        raise InputError("too large for the output of `embeddb eval --json`", where=file)
    try:
        rows = msgspec.json.decode(path.read_bytes(), type=list[_Row])
    except msgspec.MsgspecError as e:
        raise InputError(
            f"not the output of `embeddb eval --json`: {e}",
            where=file,
            hint="embeddb eval DB --json > eval.json",
        ) from None
    return [row for row in rows if row.speedups]


def _panel(op: str, platform: str, rows: list[_Row]) -> str:
    from embeddb.ui.draw import Line, curves

    count = max(len(row.speedups) for row in rows)
    lines = [
        Line(row.method, list(range(1, len(row.speedups) + 1)), sorted(row.speedups, reverse=True))
        for row in rows
    ]
    return curves(
        lines,
        title=f"{op} on {platform}",
        x_label=f"{op} on {platform}: {count:,} {many_of(Op.parse(op).kind)}, largest first",
        y_label="default / first answer",
        log_y=True,
        key=f"{op} {platform}",
    )


def _figures(row: _Row) -> dict[str, str | float | int]:
    return {
        "platform": row.platform,
        "op": row.op,
        "method": row.method,
        "matrices": len(row.speedups),
        "median": median(row.speedups),
        "largest": max(row.speedups),
        "simulated": row.simulated,
    }
