"""`tune`: which configuration a matrix, what a program should fuse, or which tiles its kernels
should run, found by trying."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from embeddb.core.config import Op
from embeddb.core.errors import NothingFound, UsageError
from embeddb.core.pattern import Pattern
from embeddb.core.records import WorkloadInfo
from embeddb.core.workload import Workload
from embeddb.database import Database
from embeddb.tensors.tensor_graph import TensorGraph
from embeddb.ui.cli.arguments import Number, known_subjects, open_database
from embeddb.ui.cli.kernel_text import refuse_if_nothing_ran
from embeddb.ui.cli.output import Progress, emit, json_option, note
from embeddb.ui.cli.tune_text import (
    fusion_document,
    matrix_document,
    show_fusion,
    show_matrix,
    show_tiles,
    tiles_document,
)
from indexer.resolve import is_file

_PLATFORMS = {"fusion": "xla-cpu", "tile": "tile-cpu"}
#: Where operations on matrices run.
_MATRICES = "cpu"
#: What is tuned by each operation, the first where a file may be either.
_KINDS = {"fusion": ("program",), "tile": ("kernel", "program")}
#: The document of what was found, and what shows it to people.
_Shown = tuple[dict[str, Any], Callable[[], None]]


@click.command("tune")
@click.argument("db")
@click.argument("name")
@click.option("--op", "op", required=True, help="KERNEL:WIDTH, as spmm:128; fusion or tile.")
@click.option("--platform", default="", help="Else cpu; xla-cpu for fusion, tile-cpu for tile.")
@click.option("--model-seconds", "model_s", default=60.0, show_default=True, type=Number(0))
@click.option("--hardware-seconds", "hardware_s", default=60.0, show_default=True, type=Number(0))
@click.option(
    "--start", default="default", show_default=True, type=click.Choice(["default", "random"])
)
@click.option("-k", "--k", "count", default=10, show_default=True, type=click.IntRange(1, 1000))
@click.option(
    "--by",
    type=click.Choice(["analytical", "model", "neighbours"]),
    help="Who ranks.  [default: as a query is answered; of tiles: docs/howto/tensor-kernels.md]",
)
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(0, 100))
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0, 2**63 - 1))
@json_option
def tune_verb(db: str, name: str, as_json: bool, **asked: Any) -> None:
    """Find the configuration of NAME that is fastest on this machine, by running some.

    NAME is a matrix, of DB or a file: configurations run in the order of who ranks (--by) for
    --hardware-seconds, compiling counted. A model that cannot be asked about all of them at once is
    searched for --model-seconds; with 0, annealing goes by measured seconds.

    With --op fusion it is a tensor program, of which cuts are annealed for --model-seconds on what
    the model of fused kernels predicts, then the best run in its order for --hardware-seconds.
    Without a model, or with --model-seconds 0, annealing goes by measured seconds. --start is the
    compiler's cut or one by chance. With --op tile, the -k tiles that the analytical model, the
    learned one or neighbours (--by) like best run, of a kernel or each that a program is cut into.

    What won is run again beside the default in --rounds. All runs are kept in DB: after Ctrl-C the
    same command goes on, and with larger budgets it goes further.

    \b
    Example:
      embeddb tune runs.db A.mtx --op spmm:128 --hardware-seconds 60
      embeddb tune tensors.db unet.small --op fusion --model-seconds 300 --hardware-seconds 60
      embeddb tune tensors.db unet.small --op fusion --model-seconds 0 --start random
      embeddb tune tensors.db unet.small --op tile -k 10
    """
    op = Op.parse(asked["op"])
    with open_database(db) as opened, Progress() as progress:
        platform = opened.platform(asked["platform"] or _PLATFORMS.get(op.name, _MATRICES))
        if op.name not in platform.kernels or (op.name not in _TUNED and op.kind != "matrix"):
            hint = "an operation of the platform on matrices, as spmm:128, fusion or tile"
            raise UsageError(f"{platform.name} tunes no {op}", hint=hint)
        subjects = _subjects(opened, name, op)
        how = {"platform": platform, "progress": progress, "note": note}
        try:
            document, show = _TUNED.get(op.name, _matrix)(opened, subjects, asked, how)
        except KeyboardInterrupt:
            note("stopped; the same command goes on")
            raise
    if as_json:
        emit(document)
    else:
        show()
    if op.name == "tile":
        refuse_if_nothing_ran(len(document["kernels"]), document["skipped"])


def _matrix(db: Database, subjects: list[Any], asked: dict[str, Any], how: Any) -> _Shown:
    from tuners.tune_matrix import MatrixTuneRequest

    budgets = {name: asked[name] for name in ("model_s", "hardware_s", "rounds", "seed")}
    request = MatrixTuneRequest(by=asked["by"] or "", **budgets)
    found = db.tune(subjects[0], request, op=asked["op"], **how)
    return matrix_document(found, request), lambda: show_matrix(found, request)


def _fusion(db: Database, subjects: list[Any], asked: dict[str, Any], how: Any) -> _Shown:
    from tuners.tune_fusion import TuneRequest

    if len(subjects) != 1:
        raise UsageError(
            f"{len(subjects)} programs, and one is tuned", hint="import them, and give a name"
        )
    request = TuneRequest(
        **{name: asked[name] for name in ("start", "model_s", "hardware_s", "rounds", "seed")}
    )
    done = db.tune(subjects[0], request, **how)
    return fusion_document(done, request), lambda: show_fusion(done, request)


def _tiles(db: Database, subjects: list[Any], asked: dict[str, Any], how: Any) -> _Shown:
    from tuners.tune_tiles import TileTuneRequest

    own = {name: asked[name] for name in ("count", "rounds", "seed")}
    done = db.tune(subjects, TileTuneRequest(by=asked["by"] or "", **own), **how)
    return tiles_document(done), lambda: show_tiles(done)


#: Of what is no operation on matrices.
_TUNED = {"fusion": _fusion, "tile": _tiles}


def _subjects(db: Database, text: str, op: Op) -> list[Any]:
    """Raises: UsageError for a subject of another kind; as `known_subjects` for what is not there;
    NothingFound for one known by name only."""
    if op.name not in _KINDS:
        return [_whole(db, text, one, Pattern) for one in known_subjects(db, text, op)]
    kinds = _KINDS[op.name]
    if is_file(text) and op.name == "tile":
        from indexer.frontends.hlo.files import read_tensors

        return list(read_tensors(text).tensors)
    known = {info.kind for info in db.store.find(text)}
    kind = next((kind for kind in kinds if kind in known), kinds[0])
    if known and kind not in known and not is_file(text):
        what = f"{text} is a {min(known)}, and --op {op} tunes a {' or a '.join(kinds)}"
        raise UsageError(what, hint="`embeddb kernel import` reads programs and kernels")
    tuned = Op("tile" if kind == "kernel" else "fusion")
    return [_whole(db, text, one, TensorGraph) for one in known_subjects(db, text, tuned)]


def _whole(db: Database, text: str, one: Workload | WorkloadInfo, kind: type[Workload]) -> Workload:
    """With its structure. Raises: NothingFound for one known by name only."""
    made = db.store.workload(one.id) if isinstance(one, WorkloadInfo) else one
    if not isinstance(made, kind):
        raise NothingFound(f"{text} is only known by name", hint="give its file")
    return made
