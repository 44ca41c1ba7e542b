"""`tune`: which configuration a matrix should run, what a program should fuse, or which tiles its
kernels should run, found by trying."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from embeddb.core.config import Op
from embeddb.core.errors import NothingFound, UsageError
from embeddb.core.pattern import Pattern
from embeddb.core.records import PatternInfo
from embeddb.database import Database
from embeddb.platforms.of_subject import Content
from embeddb.tensors.computation import Computation
from embeddb.ui.cli.arguments import is_file, known_subjects, open_database, runner_here
from embeddb.ui.cli.numbers import Number
from embeddb.ui.cli.output import Progress, emit, json_option, note
from embeddb.ui.cli.tune_text.fusion import fusion_document, show_fusion
from embeddb.ui.cli.tune_text.matrix import matrix_document, show_matrix
from embeddb.ui.cli.tune_text.tiles import show_tiles, tiles_document

__all__ = ["tune_verb"]

_PLATFORMS = {"fusion": "xla-cpu", "tile": "tile-cpu"}
#: From what is tuned, where, and what was asked to a document; told at once, unless it is JSON.
_Tunes = Callable[[Database, list[Any], Any, dict[str, Any], Progress, bool], dict[str, Any]]
#: Where operations on matrices run.
_MATRICES = "cpu"
#: What is tuned by each operation, the first where a file may be either.
_KINDS = {"fusion": ("program",), "tile": ("kernel", "program")}
#: The operation whose model is asked.
_MODELS = {"fusion": "fused", "tile": "tile"}


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
    help="Who ranks.  [default: as a query is answered; of tiles analytical on tile-cpu]",
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
    tuned: _Tunes = _TUNED.get(op.kernel, _matrix)
    with open_database(db) as opened, Progress() as progress:
        platform = opened.platform(asked["platform"] or _PLATFORMS.get(op.kernel, _MATRICES))
        if op.kernel not in platform.kernels or (op.kernel not in _TUNED and op.kind != "matrix"):
            hint = "an operation of the platform on matrices, as spmm:128, fusion or tile"
            raise UsageError(f"{platform.name} tunes no {op}", hint=hint)
        subjects = _subjects(opened, name, op)
        try:
            document = tuned(opened, subjects, platform, asked, progress, as_json)
        except KeyboardInterrupt:
            note("stopped; the same command goes on")
            raise
    if as_json:
        emit(document)


def _matrix(
    db: Database,
    subjects: list[Any],
    platform: Any,
    asked: dict[str, Any],
    progress: Progress,
    as_json: bool,
) -> dict[str, Any]:
    from tuners.matrices.job import MatrixTuneRequest, MatrixTuning

    budgets = {name: asked[name] for name in ("model_s", "hardware_s", "rounds", "seed")}
    request = MatrixTuneRequest(by=asked["by"] or "", **budgets)
    runner, here = runner_here(platform, 0)
    op = Op.parse(asked["op"])
    done, ranked = MatrixTuning(db, runner, here, request, progress).run(subjects[0], op)
    if not as_json:
        show_matrix(done, ranked, op, here.id, request)
    return matrix_document(done, ranked, op, here.id, request)


def _fusion(
    db: Database,
    subjects: list[Computation],
    platform: Any,
    asked: dict[str, Any],
    progress: Progress,
    as_json: bool,
) -> dict[str, Any]:
    from tuners.fusion.job import FusionTuning, TuneRequest

    if len(subjects) != 1:
        raise UsageError(
            f"{len(subjects)} programs, and one is tuned", hint="import them, and give a name"
        )
    request = TuneRequest(
        **{name: asked[name] for name in ("start", "model_s", "hardware_s", "rounds", "seed")}
    )
    runner, here = runner_here(platform, 1)
    model = _model(db, here, asked) if asked["model_s"] else None
    job = FusionTuning(db, runner, here, request, model=model, progress=progress)
    done = job.run(subjects[0])
    if not as_json:
        show_fusion(done, request)
    return fusion_document(done, request)


def _tiles(
    db: Database,
    subjects: list[Computation],
    platform: Any,
    asked: dict[str, Any],
    progress: Progress,
    as_json: bool,
) -> dict[str, Any]:
    from indexer.programs.tensors.cutting import pieces_of
    from tuners.tiles.job import TileTuneRequest, TileTuning

    times: dict[str, int] = {}
    kernels: dict[str, Computation] = {}
    for subject in subjects:
        pieces = (
            [piece.kernel for piece in pieces_of(subject)]
            if subject.kind == "program"
            else [subject]
        )
        for kernel in pieces:
            kernels.setdefault(kernel.id, kernel)
            times[kernel.id] = times.get(kernel.id, 0) + 1
    by = asked["by"] or ""
    request = TileTuneRequest(
        by=by, count=asked["count"], rounds=asked["rounds"], seed=asked["seed"]
    )
    runner, here = runner_here(platform, 1)
    if by == "analytical" and here.name != _PLATFORMS["tile"]:
        raise UsageError(f"the analytical model knows no {here.name}", hint="choose another --by")
    learned = by == "model" or (not by and here.name != _PLATFORMS["tile"])
    model = _model(db, here, asked) if learned else None
    job = TileTuning(db, runner, here, request, model, progress)
    tuned, skipped = job.run(list(kernels.values()))
    if not as_json:
        show_tiles(tuned, skipped, times)
    return tiles_document(tuned, skipped, times, here.id)


#: Of what is no operation on matrices.
_TUNED: dict[str, _Tunes] = {"fusion": _fusion, "tile": _tiles}


def _model(db: Database, here: Any, asked: dict[str, Any]) -> Any:
    """The learned model that is asked; None, with a note, where there is none to be used."""
    task = _MODELS[asked["op"]]
    model, reason = db.graph_model(here, Op(task))
    if model is None:
        without = "hardware alone" if task == "fused" else "neighbours choose"
        why = reason or f"no model of {task} kernels: `embeddb train kernels` makes one"
        note(f"{why}; {without}")
    return model


def _subjects(db: Database, text: str, op: Op) -> list[Any]:
    """Raises: UsageError for a subject of another kind; as `known_subjects` for what is not there;
    NothingFound for one known by name only."""
    if op.kernel not in _KINDS:
        return [_whole(db, text, one, Pattern) for one in known_subjects(db, text, op)]
    kinds = _KINDS[op.kernel]
    if is_file(text) and op.kernel == "tile":
        from indexer.frontends.hlo.files import read_tensors

        return list(read_tensors(text).tensors)
    known = {info.kind for info in db.store.find(text)}
    kind = next((kind for kind in kinds if kind in known), kinds[0])
    if known and kind not in known and not is_file(text):
        what = f"{text} is a {min(known)}, and --op {op} tunes a {' or a '.join(kinds)}"
        raise UsageError(what, hint="`embeddb kernel import` reads programs and kernels")
    tuned = Op("tile" if kind == "kernel" else "fusion")
    return [_whole(db, text, one, Computation) for one in known_subjects(db, text, tuned)]


def _whole(db: Database, text: str, one: Content | PatternInfo, kind: type[Content]) -> Content:
    """With its structure. Raises: NothingFound for one known by name only."""
    made = db.store.subject(one.id) if isinstance(one, PatternInfo) else one
    if not isinstance(made, kind):
        raise NothingFound(f"{text} is only known by name", hint="give its file")
    return made
