"""`plot map|curve|spy|winners|training|speedups`: charts as .svg or .png files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from embeddb.core.config import Config, Op
from embeddb.core.errors import InputError, NothingFound, UsageError
from embeddb.core.kinds import kind_of
from embeddb.core.wording import duration, many_of, one_of, plural
from embeddb.ui.cli.arguments import (
    eval_rows,
    only_op_option,
    op_option,
    open_database,
    platform_option,
)
from embeddb.ui.cli.output import Progress, emit, json_option, say
from embeddb.ui.plot_data import (
    figures,
    is_simulated,
    kinds_by,
    measured_on,
    nothing_of,
    short_names,
    simulated_mark,
)

if TYPE_CHECKING:
    from embeddb.index.projection import Projection

F = TypeVar("F", bound=Callable[..., Any])


def _target(_: click.Context, __: click.Parameter, value: str) -> Path:
    """The output path, checked before minutes are spent on drawing."""
    from embeddb.ui.draw import check_target

    out = Path(value)
    check_target(out)
    return out


def out_option(command: F) -> F:
    """The -o of every chart; arrives as the path `out`."""
    help_text = "The .svg or .png file to write."
    add = click.option("-o", "out", required=True, metavar="FILE", callback=_target, help=help_text)
    return add(command)


def finish(svg: str, out: Path, document: Mapping[str, Any], as_json: bool) -> None:
    """Write the chart and print its path."""
    from embeddb.ui.draw import write

    write(svg, out)
    if as_json:
        emit({"file": str(out), **document})
        return
    say(f"{out}: {document['title']}")


@click.command("map")
@click.argument("db")
@platform_option
@op_option
@click.option(
    "--color",
    default="winner",
    show_default=True,
    type=click.Choice(["winner", "group", "platform"]),
    help="Meaning of a dot's shape and colour.",
)
@out_option
@json_option
def map_verb(db: str, platform: str, op: str, color: str, out: Path, as_json: bool) -> None:
    """Draw the measured patterns of DB on a map: near patterns are neighbours in queries.

    Distances are those of the neighbour search, projected onto a plane. The eight most frequent
    winners (fastest configurations), groups or platforms have distinct marks.

    \b
    Example:
      embeddb plot map starter --platform cpu --op spmm:128 -o map.svg
      embeddb plot map runs.db --platform spade --op spmm:128 --color group -o groups.png
    """
    from embeddb.ui.draw import Dot, dots

    with open_database(db, readonly=True) as opened, Progress() as progress:
        where, what = opened.platform(platform), Op.parse(op)
        progress("map", 0)
        projection = opened.atlas(what, where)
        if projection is None or not projection.ids:
            if not what.workload.embedded:
                raise NothingFound("programs have no embedding to draw: each is tuned on its own")
            raise nothing_of(opened, f"{what} on {where.id}")
        kinds = kinds_by(opened, projection, color)
    points = [
        Dot(x, y, kind, _hover(projection, at))
        for at, (x, y, kind) in enumerate(zip(projection.x, projection.y, kinds, strict=True))
    ]
    simulated = simulated_mark(where)
    title = f"{plural(len(points), 'pattern')} by {color}: {what} on {projection.scope}{simulated}"
    svg = dots(points, title=title, width=900, height=560)
    document = {
        "title": title,
        "patterns": len(points),
        "kinds": dict(Counter(kinds).most_common()),
        "featurizer": projection.featurizer,
        "simulated": where.simulated,
    }
    finish(svg, out, document, as_json)


def _hover(projection: Projection, at: int) -> str:
    best = projection.winners[at]
    lines = [projection.names[at] or projection.ids[at], projection.groups[at]]
    lines.append(f"best: {Config.from_json(best)}" if best else "nothing ran")
    return "\n".join(line for line in lines if line)


@click.command("curve")
@click.argument("db")
@click.argument("matrix")
@platform_option
@op_option
@out_option
@json_option
def curve_verb(db: str, matrix: str, platform: str, op: str, out: Path, as_json: bool) -> None:
    """Draw the sorted times of all configurations measured on MATRIX, over the best one.

    MATRIX is a file, or the name or id of a pattern in DB; a nest is named. The default is marked.
    The steeper the curve, the more the choice matters.

    \b
    Example:
      embeddb plot curve starter raefsky3 --platform cpu --op spmm:128 -o curve.svg
    """
    from embeddb.index.scopes import scope_of, scope_partitions
    from embeddb.ui.draw import curves

    with open_database(db, readonly=True) as opened:
        where, what = opened.platform(platform), Op.parse(op)
        pattern = opened.find(matrix, kind=what.kind)
        measured = [
            line
            for partition in scope_partitions(opened.store, what, scope_of(where))
            if (line := measured_on(opened, partition, pattern.id)) is not None
        ]
        name = pattern.name or pattern.id
        if not measured:
            raise nothing_of(opened, f"{what} on {where.id} for {name}")
    lines, facts = [line for line, _ in measured], [fact for _, fact in measured]
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


@click.command("spy")
@click.argument("place")
@click.argument("matrix", required=False)
@out_option
@json_option
def spy_verb(place: str, matrix: str | None, out: Path, as_json: bool) -> None:
    """Draw the non-zeros of a matrix file PLACE, or of MATRIX in the database PLACE.

    32 x 32 cells, shaded by density on a log scale.

    \b
    Example:
      embeddb plot spy A.mtx -o spy.svg
      embeddb plot spy starter raefsky3 -o spy.png
    """
    from embeddb.core.pattern import Pattern
    from embeddb.core.thumbnail import thumbnail
    from embeddb.matrix_files import read_pattern
    from embeddb.ui.draw import spy

    if matrix is None:
        pattern: Any = read_pattern(place)
    else:
        with open_database(place, readonly=True) as opened:
            pattern = opened.find(matrix)
            if not isinstance(pattern, Pattern) and not pattern.thumbnail:
                pattern = opened.store.structure(pattern.id) or pattern
    if not kind_of(pattern.kind).sparse:
        raise UsageError(
            f"{pattern.name or pattern.id} is a {one_of(pattern.kind)}: it has no non-zeros to draw"
        )
    picture = thumbnail(pattern) if isinstance(pattern, Pattern) else pattern.thumbnail
    name = pattern.name or pattern.id
    if not picture:
        raise NothingFound(f"{name}: its structure is not stored", hint="give the matrix file")
    m, n = pattern.shape if isinstance(pattern, Pattern) else (pattern.m, pattern.n)
    title = f"{name}: {m:,} × {n:,}, {pattern.nnz:,} non-zeros"
    svg = spy(picture, title=title, width=384)
    document = {"title": title, "pattern": pattern.id, "m": m, "n": n, "nnz": pattern.nnz}
    finish(svg, out, document, as_json)


#: Configurations drawn.
_MOST_WINNERS = 20


@click.command("winners")
@click.argument("db")
@click.option("--platform", default="", help="Only this platform.")
@only_op_option
@out_option
@json_option
def winners_verb(db: str, platform: str, op: str, out: Path, as_json: bool) -> None:
    """Draw how often each configuration is the fastest, over all measured patterns.

    Of equal times the configuration that sorts first wins.

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
    of = extent.words(*(each.kind for each, _ in scopes))
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
    text = ", ".join(f"{op} on {scope}" for op, scope in scopes[:most])
    return text + (f" and {len(scopes) - most} more" if scopes[most:] else "")


#: Name endings of figures that measure the order of pairs; all others are losses.
_ORDERS = ("opa", "tau")
_NOT_DRAWN = {"epoch", "seconds", "epochs_left"}


@click.command("training")
@click.argument("curve")
@out_option
@json_option
def training_verb(curve: str, out: Path, as_json: bool) -> None:
    """Draw CURVE, the curve.jsonl of a finished or running training.

    Losses (PRL is the pairwise ranking loss) above, accuracy of pair order (OPA, Kendall's tau)
    below; the epoch with the smallest validation loss is marked.

    \b
    Example:
      embeddb plot training scnn.training/curve.jsonl -o curve.svg
    """
    from embeddb.ui.draw import curves, stack
    from indexer.training.curves import read_curve

    epochs = read_curve(Path(curve))
    names = dict.fromkeys(n for line in epochs for n in line if n not in _NOT_DRAWN)
    orders = [name for name in names if name.endswith(_ORDERS)]
    losses = [name for name in names if name not in orders]
    drawn = [figures(epochs, names_of_panel) for names_of_panel in (losses, orders)]
    panels = [
        curves(
            lines,
            title=f"{label} by epoch",
            x_label="epoch",
            y_label=label,
            log_y=label == "loss" and all(y > 0 for line in lines for y in line.y),
            size=(640, 280),
            key=label,
        )
        for label, lines in zip(("loss", "order of pairs"), drawn, strict=True)
        if lines
    ]
    title = f"training: {plural(len(epochs), 'epoch')}"
    svg = stack(panels or [curves([], title=title, x_label="", y_label="")], title=title)
    finish(svg, out, {"title": title, "figures": [*losses, *orders]}, as_json)


#: Largest number of panels.
_MOST_PANELS = 12


class _Row(msgspec.Struct, frozen=True):
    """The fields of a row of `embeddb eval --json` that are drawn."""

    platform: str
    op: str
    method: str
    speedups: list[float]
    simulated: bool = False


@click.command("speedups")
@click.argument("eval_file", metavar="EVAL", type=click.Path(dir_okay=False))
@click.option("--platform", default="", help="Only this platform or instance of EVAL.")
@click.option(
    "--op", default="", help="Only this op of EVAL: KERNEL:WIDTH, such as spmm:64 or spmv."
)
@click.option("--method", "methods", multiple=True, help="Only this method; repeatable.")
@out_option
@json_option
def speedups_verb(
    eval_file: str, platform: str, op: str, methods: tuple[str, ...], out: Path, as_json: bool
) -> None:
    """Draw the speed-up over the default by matrix, sorted, with one line for each method.

    EVAL is the output of `embeddb eval DB --json > eval.json`; each platform and op is a panel.

    \b
    Example:
      embeddb plot speedups eval.json --method embeddb --method oracle -o speedups.svg
    """
    from embeddb.ui.draw import stack

    rows = [
        row
        for row in eval_rows(eval_file, _Row)
        if row.speedups
        and (not platform or row.platform == platform)
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
    svg = stack([_panel(*named, panel_rows) for named, panel_rows in panels.items()], title=title)
    documents = [_figures(row) for row in rows]
    finish(svg, out, {"title": title, "rows": documents}, as_json)
    if not as_json:
        for figures in documents:
            text = f"{figures['method']}: {figures['median']:.2f}x median, "
            say(
                f"  {figures['op']} on {figures['platform']}, {text}"
                f"{figures['largest']:.2f}x largest"
            )


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
        y_label="speed-up over the default",
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


@click.group(
    "plot",
    commands=[map_verb, curve_verb, spy_verb, winners_verb, training_verb, speedups_verb],
)
def plot_verb() -> None:
    """Draw charts of a database, as .svg (light and dark) or .png (needs the extra `plot`).

    \b
    Example:
      embeddb plot map starter --platform cpu --op spmm:128 -o map.svg
      embeddb plot curve starter raefsky3 --platform cpu --op spmm:128 -o curve.svg
      embeddb plot spy A.mtx -o spy.png
    """
