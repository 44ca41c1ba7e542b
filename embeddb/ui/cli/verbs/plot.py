"""`plot map|curve|spy|winners|training`: drawings as files, .svg or .png."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from embeddb.core.config import Config, Op
from embeddb.core.errors import NothingFound
from embeddb.ui.cli.arguments import known_pattern, open_database
from embeddb.ui.cli.output import Progress, duration, emit, json_option, plural, say
from embeddb.ui.plot_data import (
    figures,
    is_simulated,
    kinds_by,
    measured_on,
    nothing_of,
    partitions_of,
    short_names,
    simulated_mark,
    wins,
)

if TYPE_CHECKING:
    from embeddb.index.projection import Projection

__all__ = ["plot_verb"]

F = TypeVar("F", bound=Callable[..., Any])

#: Configurations drawn.
_MOST_WINNERS = 20
#: Where a figure of a training belongs by the end of its name; all else is a loss.
_ORDERS = ("opa", "tau")
_NOT_DRAWN = {"epoch", "seconds", "epochs_left"}


def _target(_: click.Context, __: click.Parameter, value: str) -> Path:
    """Before minutes are spent on a drawing that cannot be written."""
    from embeddb.ui.draw import check_target

    out = Path(value)
    check_target(out)
    return out


def _out_option(command: F) -> F:
    help_text = "The .svg or .png to write."
    add = click.option("-o", "out", required=True, metavar="FILE", callback=_target, help=help_text)
    return add(command)


@click.group("plot")
def plot_verb() -> None:
    """Draw what a database knows, as .svg (light and dark) or .png (needs the extra `plot`).

    \b
    Example:
      embeddb plot map starter --platform cpu --op spmm:128 -o map.svg
      embeddb plot curve starter raefsky3 --platform cpu --op spmm:128 -o curve.svg
      embeddb plot spy A.mtx -o spy.png
    """


def _finish(svg: str, out: Path, document: Mapping[str, Any], as_json: bool) -> None:
    from embeddb.ui.draw import write

    write(svg, out)
    if as_json:
        emit({"file": str(out), **document})
        return
    say(f"{out}: {document['title']}")


# -- map -------------------------------------------------------------------------------------------


@plot_verb.command("map")
@click.argument("db")
@click.option("--platform", required=True, help="Name, name@instance or TOML file.")
@click.option("--op", required=True, help="KERNEL:WIDTH, as spmm:64 or spmv.")
@click.option(
    "--color",
    default="winner",
    show_default=True,
    type=click.Choice(["winner", "group", "platform"]),
    help="What shape and colour of a dot say.",
)
@_out_option
@json_option
def map_verb(db: str, platform: str, op: str, color: str, out: Path, as_json: bool) -> None:
    """Draw the measured patterns of DB on a map: what is near each other answers for each other.

    Distances are those by which neighbours are found, as far as a plane can show them. The eight
    most frequent winners (fastest configurations), groups or platforms are told apart.

    \b
    Example:
      embeddb plot map starter --platform cpu --op spmm:128 -o map.svg
      embeddb plot map runs.db --platform spade --op spmm:128 --color group -o groups.png
    """
    from embeddb.ui.draw import Dot, dots

    with open_database(db, readonly=True) as opened, Progress() as progress:
        where, what = opened.platform(platform), Op.parse(op)
        progress("map", 0)
        atlas = opened.atlas(what, where)
        if atlas is None or not atlas.ids:
            raise nothing_of(opened, f"{what} on {where.id}")
        kinds = kinds_by(opened, atlas, color)
    points = [
        Dot(x, y, kind, _hover(atlas, at))
        for at, (x, y, kind) in enumerate(zip(atlas.x, atlas.y, kinds, strict=True))
    ]
    simulated = simulated_mark(where)
    title = f"{plural(len(points), 'pattern')} by {color}: {what} on {atlas.scope}{simulated}"
    svg = dots(points, title=title, width=900, height=560)
    document = {
        "title": title,
        "patterns": len(points),
        "kinds": dict(Counter(kinds).most_common()),
        "featurizer": atlas.featurizer,
        "simulated": where.simulated,
    }
    _finish(svg, out, document, as_json)


def _hover(atlas: Projection, at: int) -> str:
    best = atlas.winners[at]
    lines = [atlas.names[at] or atlas.ids[at], atlas.groups[at]]
    lines.append(f"best: {Config.from_json(best)}" if best else "nothing ran")
    return "\n".join(line for line in lines if line)


# -- curve -----------------------------------------------------------------------------------------


@plot_verb.command("curve")
@click.argument("db")
@click.argument("matrix")
@click.option("--platform", required=True, help="Name, name@instance or TOML file.")
@click.option("--op", required=True, help="KERNEL:WIDTH, as spmm:64 or spmv.")
@_out_option
@json_option
def curve_verb(db: str, matrix: str, platform: str, op: str, out: Path, as_json: bool) -> None:
    """Draw the sorted times of all that was measured on MATRIX, over the best; default marked.

    MATRIX is a file, or name or id of a pattern in DB. A steep curve says that the choice matters.

    \b
    Example:
      embeddb plot curve starter raefsky3 --platform cpu --op spmm:128 -o curve.svg
    """
    from embeddb.index.scopes import scope_of
    from embeddb.ui.draw import curves

    with open_database(db, readonly=True) as opened:
        where, what = opened.platform(platform), Op.parse(op)
        pattern = known_pattern(opened, matrix)
        found = [
            line
            for partition in partitions_of(opened, what, scope_of(where))
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
    _finish(svg, out, document, as_json)
    if not as_json:
        for fact in facts:
            best, default = duration(fact["best_s"]), duration(fact["default_s"])
            ran = f"{fact['ran']:,} of {plural(fact['configs'], 'configuration')} ran"
            say(f"  {fact['platform']}: {ran}; best {best}, default {default}")


# -- spy -------------------------------------------------------------------------------------------


@plot_verb.command("spy")
@click.argument("place")
@click.argument("matrix", required=False)
@_out_option
@json_option
def spy_verb(place: str, matrix: str | None, out: Path, as_json: bool) -> None:
    """Draw where the non-zeros lie: of a matrix file PLACE, or of MATRIX in the database PLACE.

    32 x 32 cells, the stronger the denser, on a log scale.

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
        found: Any = read_pattern(place)
    else:
        with open_database(place, readonly=True) as opened:
            found = known_pattern(opened, matrix)
            if not isinstance(found, Pattern) and not found.thumbnail:
                found = opened.store.structure(found.id) or found
    picture = thumbnail(found) if isinstance(found, Pattern) else found.thumbnail
    name = found.name or found.id
    if not picture:
        raise NothingFound(f"{name}: its structure was never seen", hint="give the matrix file")
    m, n = found.shape if isinstance(found, Pattern) else (found.m, found.n)
    title = f"{name}: {m:,} × {n:,}, {found.nnz:,} non-zeros"
    svg = spy(picture, title=title, width=384)
    document = {"title": title, "pattern": found.id, "m": m, "n": n, "nnz": found.nnz}
    _finish(svg, out, document, as_json)


# -- winners ---------------------------------------------------------------------------------------


@plot_verb.command("winners")
@click.argument("db")
@click.option("--platform", default="", help="Only this platform.")
@click.option("--op", default="", help="Only this operation.")
@_out_option
@json_option
def winners_verb(db: str, platform: str, op: str, out: Path, as_json: bool) -> None:
    """Draw how often each configuration is the fastest, over all patterns it was measured on.

    Equal times go to the configuration first in order of its text.

    \b
    Example:
      embeddb plot winners starter --platform cpu --op spmm:128 -o winners.svg
    """
    from embeddb.ui.draw import Bar, bars

    with open_database(db, readonly=True) as opened, Progress() as progress:
        wanted = Op.parse(op) if op else None
        scopes = [
            (o, scope)
            for o, scope in opened.scopes()
            if platform in ("", scope, scope.partition("@")[0]) and wanted in (None, o)
        ]
        counts = wins(opened, scopes, progress)
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
    title = f"{plural(len(counts), 'configuration')} won on {plural(total, 'pattern')}: "
    title += _named(scopes)
    title += " (simulated)" if simulated else ""
    svg = bars(rows, title=title, unit=" %", width=760)
    document = {
        "title": title,
        "patterns": total,
        "configs": len(counts),
        "winners": [{"config": dict(c), "wins": n} for c, n in first],
        "simulated": simulated,
    }
    _finish(svg, out, document, as_json)


def _named(scopes: Sequence[tuple[Op, str]], most: int = 3) -> str:
    said = ", ".join(f"{op} on {scope}" for op, scope in scopes[:most])
    return said + (f" and {len(scopes) - most} more" if scopes[most:] else "")


# -- training --------------------------------------------------------------------------------------


@plot_verb.command("training")
@click.argument("curve")
@_out_option
@json_option
def training_verb(curve: str, out: Path, as_json: bool) -> None:
    """Draw CURVE, the curve.jsonl of a training, also of one that still runs.

    Losses (with PRL, the pairwise ranking loss) above, how well pairs are ordered (OPA, Kendall's
    tau) below; the epoch with the smallest validation loss is marked.

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
    drawn = [figures(epochs, held) for held in (losses, orders)]
    panels = [
        curves(
            lines,
            title=f"{label} by epoch",
            x_label="epoch",
            y_label=label,
            log_y=label == "loss" and all(y > 0 for line in lines for y in line.y),
            height=280,
            key=label,
        )
        for label, lines in zip(("loss", "order of pairs"), drawn, strict=True)
        if lines
    ]
    title = f"training: {plural(len(epochs), 'epoch')}"
    svg = stack(panels or [curves([], title=title, x_label="", y_label="")], title=title)
    _finish(svg, out, {"title": title, "figures": [*losses, *orders]}, as_json)
