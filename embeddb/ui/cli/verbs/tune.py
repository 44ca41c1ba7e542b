"""`tune`: search by measurement for the configuration of a matrix, the fusion plan of a program,
or the tiles of its kernels."""

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
from embeddb.ui.cli.arguments import Number, number_option, open_database, resolve_workloads
from embeddb.ui.cli.output import Progress, emit, json_option, note
from embeddb.ui.cli.tune_text import (
    fusion_document,
    matrix_document,
    show_fusion,
    show_matrix,
    show_tiles,
    tiles_document,
)
from embeddb.ui.cli.workload_text import refuse_if_nothing_ran
from indexer.resolve import is_file

_PLATFORMS = {"fusion": "xla-cpu", "tile": "tile-cpu"}
#: Default platform of operations on matrices.
_MATRICES = "cpu"
#: Kinds of workload tuned by each operation; the first is taken if a file may be either.
_KINDS = {"fusion": ("program",), "tile": ("kernel", "program")}
#: The JSON document of a result, and the function that prints it.
_Shown = tuple[dict[str, Any], Callable[[], None]]


@click.command("tune")
@click.argument("db")
@click.argument("name")
@click.option("--op", "op", required=True, help="KERNEL:WIDTH, such as spmm:128; fusion or tile.")
@click.option(
    "--platform", default="", help="[default: cpu; xla-cpu for fusion, tile-cpu for tile]"
)
@click.option("--model-seconds", "model_s", default=60.0, show_default=True, type=Number(0))
@click.option("--hardware-seconds", "hardware_s", default=60.0, show_default=True, type=Number(0))
@click.option(
    "--start", default="default", show_default=True, type=click.Choice(["default", "random"])
)
@number_option("-k", "--k", "count", default=10, least=1, most=1000)
@click.option(
    "--by",
    type=click.Choice(["analytical", "model", "neighbours"]),
    help="Ranking method.  [default: same as `query`; for tiles see docs/howto/tensor-kernels.md]",
)
@number_option("--rounds", default=3, least=0, most=100)
@number_option("--seed", default=0, least=0, most=2**63 - 1)
@json_option
def tune_verb(db: str, name: str, as_json: bool, **options: Any) -> None:
    """Search for the fastest configuration of NAME on this machine by measuring candidates.

    NAME is a matrix in DB or a file: configurations run in the order of a ranking method (--by) for
    --hardware-seconds, compile time included. If a model cannot predict all of them at once, it is
    searched for --model-seconds; with 0, simulated annealing uses measured seconds.

    With --op fusion NAME is a tensor program: simulated annealing searches fusion plans for
    --model-seconds by the predicted seconds of the fused kernels, then the best plans run in that
    order for --hardware-seconds. Without a model, or with --model-seconds 0, annealing uses
    measured seconds. --start is the compiler's plan or a random one. With --op tile, the top -k
    tiles of the analytical model, the trained model or neighbours (--by) run, for a kernel or for
    each kernel that a program is cut into.

    The winner is re-measured against the default in --rounds. All runs are stored in DB: after
    Ctrl-C the same command continues, and with larger budgets it goes further.

    \b
    Example:
      embeddb tune runs.db A.mtx --op spmm:128 --hardware-seconds 60
      embeddb tune tensors.db unet.small --op fusion --model-seconds 300 --hardware-seconds 60
      embeddb tune tensors.db unet.small --op fusion --model-seconds 0 --start random
      embeddb tune tensors.db unet.small --op tile -k 10
    """
    op = Op.parse(options["op"])
    with open_database(db) as opened, Progress() as progress:
        platform = opened.platform(options["platform"] or _PLATFORMS.get(op.name, _MATRICES))
        if op.name not in platform.kernels or (op.name not in _TUNED and op.kind != "matrix"):
            hint = "an operation of the platform on matrices, as spmm:128, fusion or tile"
            raise UsageError(f"{platform.name} tunes no {op}", hint=hint)
        subjects = _subjects(opened, name, op)
        how = {"platform": platform, "progress": progress, "note": note}
        try:
            document, show = _TUNED.get(op.name, _matrix)(opened, subjects, options, how)
        except KeyboardInterrupt:
            note("stopped; the same command continues")
            raise
    if as_json:
        emit(document)
    else:
        show()
    if op.name == "tile":
        refuse_if_nothing_ran(len(document["kernels"]), document["skipped"])


def _matrix(db: Database, subjects: list[Any], options: dict[str, Any], how: Any) -> _Shown:
    from tuners.tune_matrix import MatrixTuneRequest

    budgets = {name: options[name] for name in ("model_s", "hardware_s", "rounds", "seed")}
    request = MatrixTuneRequest(by=options["by"] or "", **budgets)
    tuned = db.tune(subjects[0], request, op=options["op"], **how)
    return matrix_document(tuned, request), lambda: show_matrix(tuned, request)


def _fusion(db: Database, subjects: list[Any], options: dict[str, Any], how: Any) -> _Shown:
    from tuners.tune_fusion import TuneRequest

    if len(subjects) != 1:
        raise UsageError(
            f"{len(subjects)} programs, but only one can be tuned", hint="import them and name one"
        )
    request = TuneRequest(
        **{name: options[name] for name in ("start", "model_s", "hardware_s", "rounds", "seed")}
    )
    done = db.tune(subjects[0], request, **how)
    return fusion_document(done, request), lambda: show_fusion(done, request)


def _tiles(db: Database, subjects: list[Any], options: dict[str, Any], how: Any) -> _Shown:
    from tuners.tune_tiles import TileTuneRequest

    own = {name: options[name] for name in ("count", "rounds", "seed")}
    done = db.tune(subjects, TileTuneRequest(by=options["by"] or "", **own), **how)
    return tiles_document(done), lambda: show_tiles(done)


#: Tuning function of operations on other workloads than matrices.
_TUNED = {"fusion": _fusion, "tile": _tiles}


def _subjects(db: Database, text: str, op: Op) -> list[Any]:
    """The workloads to tune. Raises: UsageError for one of another kind; as `resolve_workloads` for
    a missing one; NothingFound for one stored by name only."""
    if op.name not in _KINDS:
        return [_whole(db, text, one, Pattern) for one in resolve_workloads(db, text, op)]
    kinds = _KINDS[op.name]
    if is_file(text) and op.name == "tile":
        from indexer.frontends.hlo.files import read_tensors

        return list(read_tensors(text).tensors)
    stored = {info.kind for info in db.store.find(text)}
    kind = next((kind for kind in kinds if kind in stored), kinds[0])
    if stored and kind not in stored and not is_file(text):
        what = f"{text} is a {min(stored)}, and --op {op} tunes a {' or a '.join(kinds)}"
        raise UsageError(what, hint="`embeddb kernel import` reads programs and kernels")
    tuned = Op("tile" if kind == "kernel" else "fusion")
    return [_whole(db, text, one, TensorGraph) for one in resolve_workloads(db, text, tuned)]


def _whole(db: Database, text: str, one: Workload | WorkloadInfo, kind: type[Workload]) -> Workload:
    """A workload with its structure. Raises: NothingFound for one stored by name only."""
    workload = db.store.workload(one.id) if isinstance(one, WorkloadInfo) else one
    if not isinstance(workload, kind):
        raise NothingFound(f"{text} is only known by name", hint="give its file")
    return workload
