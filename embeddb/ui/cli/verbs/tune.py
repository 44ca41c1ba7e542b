"""`tune`: search by measurement for the configuration of a matrix, the fusion plan of a program,
or the tiles of its kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from embeddb.core.config import Config, Op
from embeddb.core.errors import TensorError, UsageError
from embeddb.core.pattern import Pattern
from embeddb.core.wording import duration, factor, is_known, plural
from embeddb.database import Database
from embeddb.tensors.edges import edges_of
from embeddb.tensors.tensor_graph import TensorGraph
from embeddb.ui.cli import option, output
from embeddb.ui.cli.arguments import open_database, refuse_readonly, resolve_workloads, whole
from embeddb.ui.cli.output import Progress, note, note_some, say, table
from embeddb.ui.cli.workload_text import (
    MOST_NOTES,
    NO_PLAN_FOR_XLA,
    note_without_tiles,
    refuse_if_nothing_ran,
)
from indexer.resolve import is_source

if TYPE_CHECKING:
    from tuners.fusion_cuts import FusionTuned
    from tuners.search import Tuned


_PLATFORMS = {"fusion": "xla-cpu", "tile": "tile-cpu"}
#: Default platform of operations on matrices.
_MATRICES = "cpu"
#: Kinds of workload tuned by each operation; the first is taken if a file may be either.
_KINDS = {"fusion": ("program",), "tile": ("kernel", "program")}
#: The JSON document of a result, and the function that prints it as text.
_Shown = tuple[dict[str, Any], Callable[[dict[str, Any]], None]]


@option.verb("tune")
@click.argument("db")
@click.argument("name")
@click.option("--op", "op", required=True, help="KERNEL:WIDTH, such as spmm:128; fusion or tile.")
@option.text("--platform", help="[default: cpu; xla-cpu for fusion, tile-cpu for tile]")
@option.decimal("--model-seconds", "model_s", within=option.Number(0), default=60.0)
@option.decimal("--hardware-seconds", "hardware_s", within=option.Number(0), default=60.0)
@option.choice("--start", among=["default", "random"])
@option.number("-k", "--k", "count", default=10, least=1, most=1000)
@click.option(
    "--by",
    type=click.Choice(["analytical", "model", "neighbours"]),
    help="Ranking method.  [default: same as `query`; for tiles see docs/howto/tensor-kernels.md]",
)
@option.number("--rounds", default=3, least=0, most=100)
@option.number("--seed", default=0, least=0, most=2**63 - 1)
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
        if options["hardware_s"]:
            refuse_readonly(opened)
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
    output.result(document, show, as_json)
    if op.name == "tile":
        kernels, skipped = document["kernels"], document["skipped"]
        if not kernels and not skipped:
            hint = "operations with several results, as a reduce of two arrays, have no tiles"
            raise TensorError(f"{name} cuts into no kernel", hint=hint)
        errors = {one["name"]: one["error"] for one in kernels if one["error"]}
        refuse_if_nothing_ran(len(kernels) - len(errors), {**skipped, **errors})


def _matrix(db: Database, subjects: list[Any], options: dict[str, Any], how: Any) -> _Shown:
    from tuners.tune_matrix import MatrixTuneRequest

    budgets = {name: options[name] for name in ("model_s", "hardware_s", "rounds", "seed")}
    request = MatrixTuneRequest(by=options["by"] or "", **budgets)
    result = db.tune(subjects[0], request, op=options["op"], **how)
    done = result.tuned
    fastest = sorted(done.finalists, key=done.again_s)
    m, n, nnz = done.subject.sizes
    document = {
        "matrix": {"id": done.subject.id, "name": done.subject.name, "m": m, "n": n, "nnz": nnz},
        "platform": result.platform,
        "op": str(result.op),
        "time_unit": result.time_unit,
        "by": done.by,
        "model": done.model or None,
        "seed": request.seed,
        "model_seconds": {"asked": request.model_s, "spent": done.model_s},
        "hardware_seconds": {"asked": request.hardware_s, "spent": done.hardware_s},
        "rounds_seconds": done.rounds_s,
        "ranked": done.ranked,
        "first": [dict(config) for config in result.ranking.configs[:_MOST_RANKED]],
        "tried": len(done.tried),
        "fresh": done.fresh,
        "failed": {str(config): error for config, error in done.failed.items()},
        "rows": [
            {
                "what": "default" if config == done.default else "fastest",
                "config": dict(config),
                "seconds": _finite(done.tried.get(config)),
                "rounds_s": done.rounds.get(config, []),
                "median_s": _finite(done.again_s(config)),
            }
            for config in dict.fromkeys([done.default, *fastest])
        ],
        "default": dict(done.default),
        "default_s": _finite(done.again_s(done.default)),
        "best": dict(done.best),
        "best_s": _finite(done.again_s(done.best)),
        "gain": done.gain,
        "warning": done.warning,
    }
    return document, partial(_show_matrix, done)


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
    document = {
        "program": {
            "id": done.program.id,
            "name": done.program.name,
            "operations": len(done.program.operations),
            "edges": len(edges_of(done.program).pairs),
        },
        "platform": done.platform,
        "op": "fusion",
        "start": request.start,
        "seed": request.seed,
        "model": done.model or None,
        "model_seconds": {"asked": request.model_s, "spent": done.model_s},
        "hardware_seconds": {"asked": request.hardware_s, "spent": done.hardware_s},
        "reference_seconds": done.reference_s,
        "again": [one.cut.text for one in done.again],
        "rounds_seconds": done.rounds_s,
        "predicted": {"cuts": done.predicted_cuts, "kernels": done.predicted_kernels},
        "tried": len(done.tried),
        "fresh": done.fresh,
        "kernels": done.kernels,
        "failed": {one.cut.text: one.error for one in done.failed},
        "rows": _rows(done),
        "gain": done.gain,
    }
    return document, partial(_show_fusion, done)


def _tiles(db: Database, subjects: list[Any], options: dict[str, Any], how: Any) -> _Shown:
    from tuners.tune_tiles import TileTuneRequest

    own = {name: options[name] for name in ("count", "rounds", "seed")}
    done = db.tune(subjects, TileTuneRequest(by=options["by"] or "", **own), **how)
    kernels: list[dict[str, Any]] = [
        {
            "id": one.subject.id,
            "name": one.subject.name,
            "times": done.times[one.subject.id],
            "by": one.by,
            "ranked": one.ranked,
            "tried": len(one.tried),
            "default": dict(one.default),
            "default_s": _finite(one.again_s(one.default)),
            "best": dict(one.best),
            "best_s": _finite(one.again_s(one.best)),
            "gain": one.gain,
            "error": _error(one),
        }
        for one in done.kernels
    ]
    # Kernels as they are in the program, for which both times are known.
    both = [one for one in kernels if None not in (one["default_s"], one["best_s"])]
    default_s, best_s = (sum(o["times"] * o[n] for o in both) for n in ("default_s", "best_s"))
    document = {
        "platform": done.platform,
        "op": "tile",
        "kernels": kernels,
        "fresh": sum(one.fresh for one in done.kernels),
        "skipped": dict(done.skipped),
        "default_s": default_s,
        "best_s": best_s,
        "gain": default_s / best_s if best_s else None,
    }
    return document, _show_tiles


#: Tuning function of operations on other workloads than matrices.
_TUNED = {"fusion": _fusion, "tile": _tiles}


def _subjects(db: Database, text: str, op: Op) -> list[Any]:
    """The workloads to tune. Raises: UsageError for one of another kind; as `resolve_workloads` for
    a missing one; NothingFound for one stored by name only."""
    if op.name not in _KINDS:
        return [whole(db, one, Pattern) for one in resolve_workloads(db, text, op)]
    kinds = _KINDS[op.name]
    if is_source(db.index, text) and op.name == "tile":
        from indexer.frontends.hlo.files import read_tensors

        return list(read_tensors(text).tensors)
    stored = {info.kind for info in db.store.find(text)}
    kind = next((kind for kind in kinds if kind in stored), kinds[0])
    if stored and kind not in stored and not is_source(db.index, text):
        what = f"{text} is a {min(stored)}, and --op {op} tunes a {' or a '.join(kinds)}"
        raise UsageError(what, hint="`embeddb kernel import` reads programs and kernels")
    tuned = Op("tile" if kind == "kernel" else "fusion")
    return [whole(db, one, TensorGraph) for one in resolve_workloads(db, text, tuned)]


# -- results as text -------------------------------------------------------------------------------


#: Configurations of the ranking that are shown.
_MOST_RANKED = 10


def _show_matrix(done: Tuned, document: Mapping[str, Any]) -> None:
    m, n, nnz = done.subject.sizes
    what = f"{document['op']} on {document['platform']}"
    say(f"{done.subject.name}: {m:,} x {n:,}, {nnz:,} nonzeros; {what}")
    model = f", in {done.model_s:.0f} s" if done.model_s else ""
    many = f"{done.by} ({plural(done.ranked, 'configuration')}{model})"
    say(f"ranked by: {many if done.ranked else 'nothing; measured seconds direct the search'}")
    budget_s, unit = document["hardware_seconds"]["asked"], document["time_unit"]
    if not budget_s:
        first = enumerate(document["first"], 1)
        table(["rank", "configuration"], [[str(n), str(Config(c))] for n, c in first])
        return
    failed = f", {plural(len(done.failed), 'failure')}" if done.failed else ""
    say(
        f"hardware: {plural(len(done.tried), 'configuration')} in {done.hardware_s:.1f} of "
        f"{budget_s:g} s{failed}; {plural(done.fresh, 'run')} now"
    )
    say()
    rows = []
    for row in document["rows"]:
        times = [duration(row[name], unit) for name in ("seconds", "median_s")]
        base, again = document["default_s"], row["median_s"]
        gain = factor(base / again if base and again else None)
        times = times[:1] if done.exact else times
        rows.append([row["what"], *times, gain, str(Config(row["config"]))])
    table(["", "measured", *([] if done.exact else ["rounds"]), "gain", "configuration"], rows)
    say()
    say(_matrix_verdict(done))
    if done.warning:
        say(f"warning: {done.warning}")


def _matrix_verdict(done: Tuned) -> str:
    gain = done.gain
    if gain is None:
        return "no gain known: the default, or every candidate, did not run"
    if done.best == done.default:
        return "nothing is faster than the default"
    if done.exact:
        return f"{factor(gain)} over the default: simulated, so nothing was repeated"
    counted = plural(min(map(len, done.rounds.values()), default=0), "round")
    sure = "" if done.apart else "; its rounds and the default's overlap, so it may be chance"
    return f"{factor(gain)} over the default in {counted}{sure}"


def _finite(seconds: float | None) -> float | None:
    return seconds if is_known(seconds) else None


def _error(one: Tuned) -> str:
    """Reason why no tile of a kernel ran; empty if one did."""
    if math.isfinite(one.again_s(one.best)):
        return ""
    return next(filter(None, one.failed.values()), "") or "no tile ran"


def _show_tiles(document: Mapping[str, Any]) -> None:
    kernels = document["kernels"]
    rows = [
        [
            one["name"],
            one["by"],
            f"{one['tried']} of {one['ranked']}",
            duration(one["default_s"]),
            duration(one["best_s"]),
            factor(one["gain"]),
            str(Config(one["best"])),
        ]
        for one in kernels
    ]
    if rows:
        head = ["kernel", "chosen by", "tried", "untiled", "best", "gain", "configuration"]
        table(head, rows)
    note_without_tiles(document["skipped"])
    failed = [f"{one['name']}: nothing ran: {one['error']}" for one in kernels if one["error"]]
    if len(failed) < len(kernels):  # else the command fails with them
        note_some(failed, MOST_NOTES, "and {:,} more: --json has them all")
    default_s, best_s = document["default_s"], document["best_s"]
    if len(kernels) > 1 and best_s:
        say()
        both = f"{duration(default_s)} untiled, {duration(best_s)} tuned"
        say(f"all: {both}, {factor(document['gain'])}")


#: Smallest predicted gain of a plan that did not run: held-out programs below it were more often
#: slower than the default than faster (docs/results/index.md).
_MIN_GAIN = 1.2


def _show_fusion(done: FusionTuned, document: Mapping[str, Any]) -> None:
    program = document["program"]
    say(
        f"{program['name']}: {plural(program['operations'], 'operation')}, "
        f"{plural(program['edges'], 'edge')}; fusion on {done.platform}"
    )
    if done.model:
        say(
            f"model {done.model[:8]}: {plural(done.predicted_cuts, 'cut')} priced in "
            f"{done.model_s:.0f} of {document['model_seconds']['asked']:g} s"
        )
    failed = f", {plural(len(done.failed), 'failure')}" if done.failed else ""
    say(
        f"hardware: {plural(len(done.tried), 'cut')} in {done.hardware_s:.1f} of "
        f"{document['hardware_seconds']['asked']:g} s{failed}; {plural(done.fresh, 'cut')}, "
        f"{plural(done.kernels, 'kernel')} measured now"
    )
    if len(done.again) > 1:
        plans = plural(len(done.again), "plan")
        say(f"the fastest single timing did not repeat: {plans} were measured again")
    rerun = f"{done.rounds_s:.1f} s for running again and the rounds"
    say(f"beside: {done.reference_s:.1f} s for the defaults, {rerun}")
    say()
    head = ["", "predicted", "measured", "rounds", "in a row", "gain", "kernels", "cut"]
    rows, names = [], ("predicted_s", "seconds", "median_s", "in_a_row_s")
    for row in document["rows"]:
        times = [duration(row[name]) for name in names]
        kernels = "-" if row["kernels"] is None else str(row["kernels"])
        rows.append([row["what"], *times, factor(row["gain"]), kernels, row["cut"]])
    table(head, rows)
    for one in done.failed[:MOST_NOTES]:
        note(f"failed: {one.error}")
    say()
    say(_verdict(done))
    say(NO_PLAN_FOR_XLA)


def _verdict(done: FusionTuned) -> str:
    best, gain = done.best, done.gain
    if best is None:
        return f"nothing ran: the best plan is a prediction{_predicted_gain(done)}"
    if gain is None:
        return "not measured again: the gain of a single timing is biased"
    default = "XLA's own choice" if done.default == done.defaults[0] else "the compiler's cut"
    if best.cut == done.default.cut:
        return f"nothing is faster than {default}"
    counted = plural(min(map(len, done.rounds.values())), "round")
    if gain <= 1:
        return f"no gain: {factor(gain)} over {default} in {counted}"
    faster = f"{factor(gain)} faster than {default} in {counted.replace(' ', ' alternating ', 1)}"
    least = min(done.in_a_row_s(one.cut) for one in done.defaults)
    own = done.in_a_row_s(best.cut)
    if math.isfinite(own) and own >= least:
        slower = f"{100 * (own / least - 1):.0f} % slower when called back to back"
        return f"{faster}, {slower}: treat as no gain"
    slowest = max(one.seconds for one in done.rounds[best.cut])
    apart = slowest < min(one.seconds for one in done.rounds[done.default.cut])
    return faster if apart else f"{faster}; its rounds and the default's overlap: may be chance"


def _predicted_gain(done: FusionTuned) -> str:
    """Predicted gain of the best plan that did not run, and whether to use it."""
    defaults = [one.predicted_s for one in done.defaults if one.predicted_s is not None]
    first = done.best_predicted
    if not defaults or first is None or not first.predicted_s:
        return ""
    gain = min(defaults) / first.predicted_s
    advice = "" if gain >= _MIN_GAIN else f", below {factor(_MIN_GAIN)}: keep the default"
    return f"; predicted gain {factor(gain)}{advice}"


def _rows(done: FusionTuned) -> list[dict[str, Any]]:
    from tuners.search import speedup

    pairs = list(zip(("whole (XLA's own)", "compiler's cut"), done.defaults, strict=False))
    best = (("best predicted", done.best_predicted), ("best measured", done.best))
    default, rows = done.again_s(done.default.cut), []
    for what, one in pairs + [(what, one) for what, one in best if one is not None]:
        again = done.again_s(one.cut)
        rows.append(
            {
                "what": what,
                "cut": one.cut.text,
                "predicted_s": _finite(one.predicted_s),
                "seconds": _finite(one.seconds),
                "rounds_s": [timing.seconds for timing in done.rounds.get(one.cut, ())],
                "median_s": _finite(again),
                "in_a_row_s": _finite(done.in_a_row_s(one.cut)),
                "gain": speedup(default, again),
                "kernels": one.kernels or None,
                "error": one.error or None,
            }
        )
    return rows
