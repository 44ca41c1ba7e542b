"""`plot map`: the measured patterns, near each other where they are alike."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from embeddb.core.config import Config, Op
from embeddb.core.errors import NothingFound
from embeddb.core.wording import plural
from embeddb.ui.cli.arguments import op_option, open_database, platform_option
from embeddb.ui.cli.drawing import finish, out_option
from embeddb.ui.cli.output import Progress, json_option
from embeddb.ui.plot_data import kinds_by, nothing_of, simulated_mark

if TYPE_CHECKING:
    from embeddb.index.projection import Projection

__all__ = ["map_verb"]


@click.command("map")
@click.argument("db")
@platform_option
@op_option
@click.option(
    "--color",
    default="winner",
    show_default=True,
    type=click.Choice(["winner", "group", "platform"]),
    help="What shape and colour of a dot say.",
)
@out_option
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
            if not what.workload.embedded:
                raise NothingFound("programs have no places on a map: each is tuned by itself")
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
    finish(svg, out, document, as_json)


def _hover(atlas: Projection, at: int) -> str:
    best = atlas.winners[at]
    lines = [atlas.names[at] or atlas.ids[at], atlas.groups[at]]
    lines.append(f"best: {Config.from_json(best)}" if best else "nothing ran")
    return "\n".join(line for line in lines if line)
