"""`plot map|curve|spy|winners|training|speedups`: charts as .svg or .png files."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import click
import msgspec

from embeddb.core.config import Config, Op
from embeddb.core.errors import InputError, NothingFound, UsageError
from embeddb.core.kinds import kind_of
from embeddb.core.pattern import Pattern
from embeddb.core.records import WorkloadInfo
from embeddb.core.timing import summarise_runs
from embeddb.core.wording import duration, many_of, one_of, plural
from embeddb.index.scopes import scope_of, scope_partitions
from embeddb.platforms.platform import default_of
from embeddb.store.versions import at_latest
from embeddb.ui import draw
from embeddb.ui.cli import option
from embeddb.ui.cli.arguments import eval_rows, open_database
from embeddb.ui.cli.output import Progress, emit, say

if TYPE_CHECKING:
    from embeddb.database import Database
    from embeddb.index.projection import Projection
    from embeddb.store import RunTable


def _target(_: click.Context, __: click.Parameter, value: str) -> Path:
    """The output path, checked before minutes are spent on drawing."""
    draw.check_target(out := Path(value))
    return out


#: The path `out` of every chart.
_out_option = click.option(
    "-o",
    "out",
    required=True,
    metavar="FILE",
    callback=_target,
    help="The .svg or .png file to write.",
)


def _finish(svg: str, out: Path, document: Mapping[str, Any], as_json: bool) -> None:
    draw.write(svg, out)
    if as_json:
        emit({"file": str(out), **document})
    else:
        say(f"{out}: {document['title']}")


def _simulated(simulated: bool) -> str:
    """End of a title."""
    return " (simulated)" if simulated else ""


@option.verb("map")
@click.argument("db")
@option.platform
@option.op
@option.choice(
    "--color", among=["winner", "group", "platform"], help="Meaning of a dot's shape and colour."
)
@_out_option
def map_verb(db: str, platform: str, op: str, color: str, out: Path, as_json: bool) -> None:
    """Draw the measured patterns of DB on a map: near patterns are neighbours in queries.

    Distances are those of the neighbour search, projected onto a plane. The eight most frequent
    winners (fastest configurations), groups or platforms have distinct marks.

    \b
    Example:
      embeddb plot map starter --platform cpu --op spmm:128 -o map.svg
      embeddb plot map runs.db --platform spade --op spmm:128 --color group -o groups.png
    """
    with open_database(db) as opened, Progress() as progress:  # what it prepares is kept
        where, what = opened.platform(platform), Op.parse(op)
        progress("map", 0)
        projection = opened.atlas(what, where)
        if projection is None or not projection.ids:
            if not what.workload.embedded:
                raise NothingFound("programs have no embedding to draw: each is tuned on its own")
            raise opened.index.nothing_of(f"no runs of {what} on {where.id}")
        kinds = _kinds_by(opened, projection, color)
    points = []
    for at, (x, y, kind) in enumerate(zip(projection.x, projection.y, kinds, strict=True)):
        best = projection.winners[at]
        won = f"best: {Config.from_json(best)}" if best else "nothing ran"
        lines = (projection.names[at] or projection.ids[at], projection.groups[at], won)
        points.append(draw.Dot(x, y, kind, "\n".join(filter(None, lines))))
    title = f"{plural(len(points), 'pattern')} by {color}: {what} on {projection.scope}"
    title += _simulated(where.simulated)
    svg = draw.dots(points, title=title, width=900, height=560)
    document = {
        "title": title,
        "patterns": len(points),
        "kinds": dict(Counter(kinds).most_common()),
        "featurizer": projection.featurizer,
        "simulated": where.simulated,
    }
    _finish(svg, out, document, as_json)


@option.verb("curve")
@click.argument("db")
@click.argument("matrix")
@option.platform
@option.op
@_out_option
def curve_verb(db: str, matrix: str, platform: str, op: str, out: Path, as_json: bool) -> None:
    """Draw the sorted times of all configurations measured on MATRIX, over the best one.

    MATRIX is a file, or the name or id of a pattern in DB; a nest is named. The default is marked.
    The steeper the curve, the more the choice matters.

    \b
    Example:
      embeddb plot curve starter Chem97Zt --platform cpu --op spmm:128 -o curve.svg
    """
    with open_database(db, readonly=True) as opened:
        where, what = opened.platform(platform), Op.parse(op)
        pattern = opened.find(matrix, kind=what.kind)
        measured = [
            line
            for partition in scope_partitions(opened.store, what, scope_of(where))
            if (line := _measured_on(opened, partition, pattern.id)) is not None
        ]
        name = pattern.name or pattern.id
        if not measured:
            raise opened.index.nothing_of(f"no runs of {what} on {where.id} for {name}")
    lines, facts = [line for line, _ in measured], [fact for _, fact in measured]
    if len(lines) == 1:
        lines = [lines[0]._replace(name="")]
    title = f"{name}: {what} on {where.id}{_simulated(where.simulated)}"
    svg = draw.curves(
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
            unit = fact["time_unit"]
            best, default = (duration(fact[key], unit) for key in ("best_s", "default_s"))
            ran = f"{fact['ran']:,} of {plural(fact['configs'], 'configuration')} ran"
            say(f"  {fact['platform']}: {ran}; best {best}, default {default}")


@option.verb("spy")
@click.argument("place")
@click.argument("matrix", required=False)
@_out_option
def spy_verb(place: str, matrix: str | None, out: Path, as_json: bool) -> None:
    """Draw the non-zeros of a matrix file PLACE, or of MATRIX in the database PLACE.

    32 x 32 cells, shaded by density on a log scale.

    \b
    Example:
      embeddb plot spy A.mtx -o spy.svg
      embeddb plot spy starter Chem97Zt -o spy.png
    """
    from embeddb.core.thumbnail import thumbnail
    from embeddb.matrix_files import read_pattern

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
    svg = draw.spy(picture, title=title, width=384)
    document = {"title": title, "pattern": pattern.id, "m": m, "n": n, "nnz": pattern.nnz}
    _finish(svg, out, document, as_json)


#: Configurations drawn, and scopes named in their title.
_MOST_WINNERS, _MOST_SCOPES = 20, 3


@option.verb("winners")
@click.argument("db")
@option.text("--platform", help="Only this platform.")
@option.only_op
@_out_option
def winners_verb(db: str, platform: str, op: str, out: Path, as_json: bool) -> None:
    """Draw how often each configuration is the fastest, over all measured patterns.

    Of equal times the configuration that sorts first wins.

    \b
    Example:
      embeddb plot winners starter --platform cpu --op spmm:128 -o winners.svg
    """
    from embeddb.index.config_counts import wins

    with open_database(db, readonly=True) as opened, Progress() as progress:
        opened.store.refuse_damage()
        scopes = opened.index.scopes(platform, Op.parse(op) if op else None)
        counts, extent = wins(opened.store, scopes, progress)
        total = sum(counts.values())
        if not total:
            what = " on ".join(x for x in (op, platform) if x) or "anything"
            raise opened.index.nothing_of(f"nothing to draw of {what}", platform)
        simulated = any(opened.platform(scope).simulated for _, scope in scopes)
    first = counts.most_common(_MOST_WINNERS)
    first.sort(key=lambda pair: (-pair[1], pair[0].json))
    names = short_names(config for config, _ in first)
    rows = [
        draw.Bar(names[c], 100 * n / total, note=f"{n:,}", marked=not at)
        for at, (c, n) in enumerate(first)
    ]
    of = extent.words(*(each.kind for each, _ in scopes))
    named = ", ".join(f"{each} on {scope}" for each, scope in scopes[:_MOST_SCOPES])
    named += f" and {len(scopes) - _MOST_SCOPES} more" if scopes[_MOST_SCOPES:] else ""
    title = f"{plural(len(counts), 'configuration')} won on {of}: {named}{_simulated(simulated)}"
    svg = draw.bars(rows, title=title, unit=" %", width=760)
    document = {
        "title": title,
        "patterns": extent.patterns,
        "machines": extent.machines,
        "races": total,
        "configs": len(counts),
        "winners": [{"config": dict(c), "wins": n} for c, n in first],
        "simulated": simulated,
    }
    _finish(svg, out, document, as_json)


#: Name endings of figures that measure the order of pairs; all others are losses.
_ORDERS = ("opa", "tau")
_NOT_DRAWN = {"epoch", "seconds", "epochs_left"}


@option.verb("training")
@click.argument("curve")
@_out_option
def training_verb(curve: str, out: Path, as_json: bool) -> None:
    """Draw CURVE, the curve.jsonl of a finished or running training.

    Losses (PRL is the pairwise ranking loss) above, accuracy of pair order (OPA, Kendall's tau)
    below; the epoch with the smallest validation loss is marked.

    \b
    Example:
      embeddb plot training scnn.training/curve.jsonl -o curve.svg
    """
    from indexer.training.folder import read_curve

    epochs = read_curve(Path(curve))
    names = dict.fromkeys(n for line in epochs for n in line if n not in _NOT_DRAWN)
    orders = [name for name in names if name.endswith(_ORDERS)]
    losses = [name for name in names if name not in orders]
    drawn = [figures(epochs, names_of_panel) for names_of_panel in (losses, orders)]
    panels = [
        draw.curves(
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
    svg = draw.stack(panels or [draw.curves([], title=title, x_label="", y_label="")], title=title)
    _finish(svg, out, {"title": title, "figures": [*losses, *orders]}, as_json)


#: Largest number of panels.
_MOST_PANELS = 12


class _Row(msgspec.Struct, frozen=True):
    """The fields of a row of `embeddb eval --json` that are drawn."""

    platform: str
    op: str
    method: str
    speedups: list[float]
    simulated: bool = False


@option.verb("speedups")
@click.argument("eval_file", metavar="EVAL", type=click.Path(dir_okay=False))
@option.text("--platform", help="Only this platform or instance of EVAL.")
@option.text("--op", help="Only this op of EVAL: KERNEL:WIDTH, such as spmm:64 or spmv.")
@option.several("--method", "methods", help="Only this method; repeatable.")
@_out_option
def speedups_verb(
    eval_file: str, platform: str, op: str, methods: tuple[str, ...], out: Path, as_json: bool
) -> None:
    """Draw the speed-up over the default by matrix, sorted, with one line for each method.

    EVAL is the output of `embeddb eval DB --json > eval.json`; each platform and op is a panel.

    \b
    Example:
      embeddb plot speedups eval.json --method embeddb --method oracle -o speedups.svg
    """
    drawable = [r for r in eval_rows(eval_file, _Row) if r.speedups and r.method != "default"]
    rows = [
        row
        for row in drawable
        if (not platform or row.platform == platform)
        and (not op or row.op == op)
        and (not methods or row.method in methods)
    ]
    panels: dict[tuple[str, str], list[_Row]] = {}
    for row in rows:
        panels.setdefault((row.op, row.platform), []).append(row)
    if drawable and not rows:
        there = (sorted({getattr(r, f) for r in drawable}) for f in ("platform", "op", "method"))
        hint = "there are " + "; ".join(
            f"{option} {', '.join(names)}"
            for option, names in zip(("--platform", "--op", "--method"), there, strict=True)
        )
        raise InputError("nothing of that platform, op and method", where=eval_file, hint=hint)
    if not 1 <= len(panels) <= _MOST_PANELS:
        raise InputError(
            f"{len(panels)} platforms and ops to draw, not 1 to {_MOST_PANELS}",
            where=eval_file,
            hint="choose with --platform, --op and --method",
        )
    title = f"speed-up over the default{_simulated(any(row.simulated for row in rows))}"
    svg = draw.stack(
        [_panel(*named, panel_rows) for named, panel_rows in panels.items()], title=title
    )
    documents: list[dict[str, Any]] = [
        {
            "platform": row.platform,
            "op": row.op,
            "method": row.method,
            "matrices": len(row.speedups),
            "median": median(row.speedups),
            "largest": max(row.speedups),
            "simulated": row.simulated,
        }
        for row in rows
    ]
    _finish(svg, out, {"title": title, "rows": documents}, as_json)
    if not as_json:
        for one in documents:
            gains = f"{one['median']:.2f}x median, {one['largest']:.2f}x largest"
            say(f"  {one['op']} on {one['platform']}, {one['method']}: {gains}")


def _panel(op: str, platform: str, rows: list[_Row]) -> str:
    count = max(len(row.speedups) for row in rows)
    lines = [
        draw.Line(
            row.method, list(range(1, len(row.speedups) + 1)), sorted(row.speedups, reverse=True)
        )
        for row in rows
    ]
    return draw.curves(
        lines,
        title=f"{op} on {platform}",
        x_label=f"{op} on {platform}: {count:,} {many_of(Op.parse(op).kind)}, largest first",
        y_label="speed-up over the default",
        log_y=True,
        key=f"{op} {platform}",
    )


# -- data ------------------------------------------------------------------------------------------


def _measured_on(
    db: Database, partition: RunTable, pattern_id: str
) -> tuple[draw.Line, dict[str, Any]] | None:
    """The curve of one pattern on one platform, and its figures; None without runs."""
    op, stored = partition.op, db.store.platform(partition.platform)
    runs = db.store.runs(partition.platform, op, pattern_id)
    curve = summarise_runs(runs, db.store.usual_at(partition.platform))
    if not curve or stored is None:
        return None
    [where] = at_latest(db.store, [stored])
    info = db.store.pattern(pattern_id) or WorkloadInfo(id=pattern_id)
    default = default_of(where, op, db.store.workload_or_info(info))
    timed = [(c.seconds, config) for config, c in curve.items() if math.isfinite(c.seconds)]
    ran = sorted(timed, key=lambda pair: (pair[0], pair[1].json))
    marks = {"best": 0} if ran else {}
    order = [config for _, config in ran]
    if default in order:
        marks["default"] = order.index(default)
    ratios = [seconds / ran[0][0] for seconds, _ in ran]
    fact = {
        "platform": partition.platform,
        "configs": len(curve),
        "ran": len(ran),
        "failed": dict(Counter(c.status for c in curve.values() if c.status != "ok")),
        "best": dict(order[0]) if order else None,
        "best_s": ran[0][0] if ran else None,
        "default_s": ran[marks["default"]][0] if "default" in marks else None,
        "time_unit": where.time_unit,
    }
    return draw.Line(where.display_name, range(1, len(ran) + 1), ratios, marks), fact


def _kinds_by(db: Database, projection: Projection, color: str) -> list[str]:
    """Kind of each dot on the map, one for each pattern."""
    if color == "group":
        return [group or "(no group)" for group in projection.groups]
    if color == "winner":
        configs = [Config.from_json(text) if text else None for text in projection.winners]
        names = short_names({c for c in configs if c is not None})
        return [names[c] if c is not None else "(nothing ran)" for c in configs]
    at: dict[str, set[str]] = {}
    for partition in scope_partitions(db.store, Op.parse(projection.op), projection.scope):
        for pattern_id in db.store.members(partition):
            at.setdefault(pattern_id, set()).add(partition.platform)
    return [" and ".join(sorted(at.get(i, {"(none)"}))) for i in projection.ids]


def short_names(configs: Iterable[Config]) -> dict[Config, str]:
    """Configurations as text, without parameters that have the same value in all of them."""
    ordered = sorted(configs, key=lambda c: c.json)
    names = {name for config in ordered for name in config}
    same = {name for name in names if len({str(config.get(name)) for config in ordered}) == 1}
    if len(ordered) < 2:
        same = set()
    return {c: str(Config({k: v for k, v in c.items() if k not in same})) for c in ordered}


def figures(epochs: Sequence[Mapping[str, float]], names: Iterable[str]) -> list[draw.Line]:
    """The named figures of a training over its epochs; the smallest `valid_loss` is marked."""
    lines = []
    for name in names:
        points = [(line["epoch"], line[name]) for line in epochs if name in line]
        x, y = [pair[0] for pair in points], [pair[1] for pair in points]
        marks = {"best": y.index(min(y))} if name == "valid_loss" else {}
        lines.append(draw.Line(name.replace("_", " "), x, y, marks))
    return lines


@click.group(
    "plot",
    commands=[map_verb, curve_verb, spy_verb, winners_verb, training_verb, speedups_verb],
)
def plot_verb() -> None:
    """Draw charts of a database, as .svg (light and dark) or .png (needs the extra `plot`).

    \b
    Example:
      embeddb plot map starter --platform cpu --op spmm:128 -o map.svg
      embeddb plot curve starter Chem97Zt --platform cpu --op spmm:128 -o curve.svg
      embeddb plot spy A.mtx -o spy.png
    """
