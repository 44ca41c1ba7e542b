"""`tune`: what a program should fuse, or which tiles its kernels should run, found by trying."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from embeddb.core.config import Op
from embeddb.core.errors import NothingFound, UsageError
from embeddb.core.records import PatternInfo
from embeddb.database import Database
from embeddb.platforms.platform import Platform
from embeddb.tensors.computation import Computation
from embeddb.ui.cli.arguments import known_subjects, open_database
from embeddb.ui.cli.numbers import Number
from embeddb.ui.cli.output import Progress, emit, json_option, note
from embeddb.ui.cli.tune_text import (
    fusion_document,
    show_fusion,
    show_tiles,
    tiles_document,
)
from indexer.subjects import is_file

__all__ = ["tune_verb"]

_PLATFORMS = {"fusion": "xla-cpu", "tile": "tile-cpu"}
#: What is tuned by each operation, the first where a file may be either.
_KINDS = {"fusion": ("program",), "tile": ("kernel", "program")}
#: The document of what was found, and what shows it to people.
_Shown = tuple[dict[str, Any], Callable[[], None]]


@click.command("tune")
@click.argument("db")
@click.argument("name")
@click.option("--op", "op", required=True, type=click.Choice([*_PLATFORMS]))
@click.option("--platform", default="", help="xla-cpu for fusion, tile-cpu for tile.")
@click.option("--model-seconds", "model_s", default=60.0, show_default=True, type=Number(0))
@click.option("--hardware-seconds", "hardware_s", default=60.0, show_default=True, type=Number(0))
@click.option(
    "--start", default="default", show_default=True, type=click.Choice(["default", "random"])
)
@click.option("-k", "--k", "count", default=10, show_default=True, type=click.IntRange(1, 1000))
@click.option(
    "--by",
    type=click.Choice(["analytical", "model", "neighbours"]),
    help="Who ranks tiles.  [default: analytical on tile-cpu, else a model, else neighbours]",
)
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(0, 100))
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0, 2**63 - 1))
@json_option
def tune_verb(db: str, name: str, as_json: bool, **asked: Any) -> None:
    """Find what the tensor program NAME, of DB or a file, should fuse, on this machine.

    With --op fusion, cuts are annealed for --model-seconds on what the model of fused kernels
    predicts, then the best run in its order for --hardware-seconds. Without a model, or with
    --model-seconds 0, annealing goes by measured seconds. --start is the compiler's cut or one by
    chance. With --op tile, the -k tiles that the analytical model, the learned one or neighbours
    (--by) like best run, of one kernel or of each that a program is cut into.

    What won is run again beside the default in --rounds. All runs are kept in DB: after Ctrl-C the
    same command goes on, and with larger budgets it goes further.

    \b
    Example:
      embeddb tune tensors.db unet.small --op fusion --model-seconds 300 --hardware-seconds 60
      embeddb tune tensors.db unet.small --op fusion --model-seconds 0 --start random
      embeddb tune tensors.db unet.small --op tile -k 10
    """
    op = Op(asked["op"])
    with open_database(db) as opened:
        subjects = _subjects(opened, name, op)
        platform = opened.platform(asked["platform"] or _PLATFORMS[op.kernel])
        if op.kernel not in platform.kernels:
            raise UsageError(f"{platform.name} has no {op}", hint="see `embeddb platform show`")
        try:
            document, show = _TUNED[op.kernel](opened, subjects, platform, asked)
        except KeyboardInterrupt:
            note("stopped; the same command goes on")
            raise
    if as_json:
        emit(document)
    else:
        show()


def _fusion(
    db: Database, subjects: list[Computation], platform: Platform, asked: dict[str, Any]
) -> _Shown:
    from tuners.fusion.job import TuneRequest

    if len(subjects) != 1:
        raise UsageError(
            f"{len(subjects)} programs, and one is tuned", hint="import them, and give a name"
        )
    request = TuneRequest(
        **{name: asked[name] for name in ("start", "model_s", "hardware_s", "rounds", "seed")}
    )
    with Progress() as progress:
        done = db.tune(subjects[0], request, platform=platform, progress=progress, note=note)
    return fusion_document(done, request), lambda: show_fusion(done, request)


def _tiles(
    db: Database, subjects: list[Computation], platform: Platform, asked: dict[str, Any]
) -> _Shown:
    from tuners.tiles.job import TileTuneRequest

    own = {name: asked[name] for name in ("count", "rounds", "seed")}
    request = TileTuneRequest(by=asked["by"] or "", **own)
    with Progress() as progress:
        done = db.tune(subjects, request, platform=platform, progress=progress, note=note)
    return tiles_document(done), lambda: show_tiles(done)


_TUNED = {"fusion": _fusion, "tile": _tiles}


def _subjects(db: Database, text: str, op: Op) -> list[Computation]:
    """Raises: UsageError for a subject of another kind; as `known_subjects` for what is not there;
    NothingFound for one known by name only."""
    kinds = _KINDS[op.kernel]
    if is_file(text) and op.kernel == "tile":
        from indexer.frontends.hlo.files import read_tensors

        return list(read_tensors(text).tensors)
    known = {info.kind for info in db.store.find(text)}
    kind = next((kind for kind in kinds if kind in known), kinds[0])
    if known and kind not in known and not is_file(text):
        what = f"{text} is a {min(known)}, and --op {op} tunes a {' or a '.join(kinds)}"
        raise UsageError(what, hint="`embeddb kernel import` reads programs and kernels")
    found: list[Computation] = []
    for one in known_subjects(db, text, Op("tile" if kind == "kernel" else "fusion")):
        made = db.store.tensor(one.id) if isinstance(one, PatternInfo) else one
        if not isinstance(made, Computation):
            raise NothingFound(f"{text} is only known by name", hint="give its file")
        found.append(made)
    return found
