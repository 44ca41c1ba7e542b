"""`eval`: cross-validation of the answers on stored runs, with whole groups held out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import click

from embeddb.core.config import Op
from embeddb.core.errors import UsageError
from embeddb.core.wording import factor, many_of, share
from embeddb.ui.cli import option
from embeddb.ui.cli.arguments import open_database, threads
from embeddb.ui.cli.output import Progress, emit, figure, note, say, table

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from embeddb.database import Database
    from tuners.evaluation.across import AcrossRow
    from tuners.evaluation.figures import EvalRow, Fit


@option.verb("eval")
@click.argument("db")
@option.text("--platform", help="Only this platform.")
@option.only_op
@option.featurizer
@option.number("--seeds", default=3, least=1, most=1000)
@option.flag("--learned", help="Also train and evaluate cost models; slow.")
@option.several("--tuner", "tuners", help="Also evaluate this tuner; repeatable.")
@option.flag("--across", help="Hold out whole machines instead.")
def eval_verb(db: str, platform: str, op: str, seeds: int, as_json: bool, **options: Any) -> None:
    """Evaluate the answers of DB against measurements, beside the baselines.

    Groups of matrices (or nests) are held out whole, in 5 folds; nothing is measured. Speed-up is
    over the default, `of optimum` is the share of the best measured, both geometric means over
    matrices; a failed choice costs the time of the default. Each matrix is queried over all legal
    configurations as by `embeddb query`; of the candidates, those that ran on the matrix count, in
    their order. Where a choice among what ran there alone is better or worse, `ran@1` and `@5` show
    it; the first line has the number of these configurations.

    `embeddb` is the neighbours' vote; `process` is the model that `query` learns by itself where
    none was trained, and ranks by where it is clearly better (seconds in every fold).

    With --learned, a cost model, and boosted trees (for tiles and fusion
    the models of `train kernels`, as `kernel-trees` and `kernel-sums`), are trained in every fold:
    twice, so that the weight of a model against the neighbours' vote (rows `+transfer`) is chosen
    on training groups. With 3 seeds these are 30 trainings per op, platform and model; the time
    left is shown after the first, and `--op` and `--seeds 1` shorten it.

    `measured-again` chooses by one round and evaluates by the other, on the matrices on which most
    configurations ran in two (their number is shown if fewer): what measurement noise allows.

    With --tuner, any tuner plug-in (docs/howto/new-tuner.md) is evaluated: on each held-out matrix
    it proposes one configuration after another and receives the recorded time; shown is its share
    of the optimum after 1, 2, 5 and 10 of them.

    With --across, each machine (instance of a portable platform) is held out whole, with the
    matrices of a fold; then 0, 1, 2, 5, 10, 20, 50 of its other matrices are added. This evaluates
    the neighbours' vote on a machine with no or few measurements, without the cost model that
    queries join with it where there is one, beside its own runs alone and the other machines alone,
    and the calibration of predicted gains and intervals.

    \b
    Example:
      embeddb eval runs.db --platform cpu --op spmm:128
      embeddb eval runs.db --op spmm:128 --learned --seeds 1
      embeddb eval starter --op spmm:128 --across --seeds 1
      embeddb eval runs.db --op spmm:128 --tuner mine --tuner random
      embeddb eval starter --platform cpu --op spmm:128 --featurizer scnn
    """
    from tuners.evaluation.bench import measured_scopes

    across = options["across"]
    for other in ("learned", "tuners") if across else ():
        if options[other]:
            raise UsageError(f"--across does not go with --{other.removesuffix('s')}")
    if op and not across and not Op.parse(op).traits.tunable:
        hint = "`embeddb train kernels DB --task fused` evaluates predictions of their seconds"
        raise UsageError("fused kernels have no configurations to choose from", hint=hint)
    with open_database(db, readonly=True) as opened, Progress() as progress:
        opened.store.refuse_damage()
        if options["featurizer"]:
            opened = opened.by_featurizer(options["featurizer"])
        wanted = Op.parse(op) if op else None
        name, _, instance = platform.partition("@") if across else (platform, "", "")
        scopes, tried = measured_scopes(opened.index, name, wanted), tuple(range(seeds))
        rows: Sequence[AcrossRow | EvalRow]
        if across:
            from tuners.evaluation.across import evaluate_across

            only = [platform] if instance else ()
            rows = evaluate_across(
                opened.index, scopes=scopes, instances=only, seeds=tried, progress=progress
            )
        else:
            rows = _held_out(opened, scopes, tried, options, progress)
    documents = [row.document() for row in rows]
    if as_json:
        emit(documents)
        return
    show, place = (_show_across, "instance") if across else (_show, "platform")
    for (what, where), of_scope in groupby(documents, key=lambda d: (d["op"], d[place])):
        show(what, where, list(of_scope))


def _show_across(what: str, instance: str, rows: list[dict[str, Any]]) -> None:
    many = many_of(Op.parse(what).kind)
    say(f"{what}, {instance} left out: {rows[0]['matrices']} {many}")
    head = ("method", "own matrices", "of optimum@1", "@5", "gain", "predicted")
    table(
        (*head, "in interval", "slower"),
        [
            (
                row["method"],
                "-" if row["local"] < 0 else row["local"],
                figure(row["of_optimum@1"]),
                figure(row["of_optimum@5"]),
                factor(row["got"]),
                factor(row["promised"]),
                share(row["covered"]),
                share(row["slower"]),
            )
            for row in rows
        ],
        indent="  ",
    )
    say()


def _held_out(
    db: Database,
    scopes: Sequence[tuple[Op, str]],
    seeds: Sequence[int],
    options: Mapping[str, Any],
    progress: Progress,
) -> Sequence[EvalRow]:
    from tuners.evaluation.evaluate import EvalOptions, evaluate
    from tuners.evaluation.learned_rankers import learned_rankers

    learned = options["learned"]
    rankers = learned_rankers() | _tile_rankers(db, scopes) if learned else {}
    # Networks this small gain nothing from a second thread, and lose much where a core is busy.
    with threads(1 if learned else 0):
        rows = evaluate(
            db.index,
            EvalOptions(seeds=seeds, tuners=options["tuners"]),
            scopes=scopes,
            progress=progress,
            rankers=rankers,
            note=note,
        )
    judged = {(r.op, name) for r in rows for name in (r.platform, r.platform.partition("@")[0])}
    for left in [(str(o), s) for o, s in scopes if (str(o), s) not in judged]:
        many = many_of(Op.parse(left[0]).kind)
        note(f"{left[0]} on {left[1]}: not evaluated: too few {many} with a measured default")
    return rows


def _tile_rankers(db: Database, scopes: Sequence[tuple[Op, str]]) -> dict[str, Fit]:
    """Rankers trained on tiles of kernels, if there are any."""
    from tuners.evaluation.learned_rankers import kernel_rankers

    tile_scopes = [(op, scope) for op, scope in scopes if op.name == "tile"]
    if not tile_scopes:
        return {}
    vectors: dict[str, NDArray[np.float32]] = {}
    for op, scope in tile_scopes:
        for own in list(db.index.evidence(op, scope)[1].values())[:1]:
            vectors |= own
    return kernel_rankers(db.store.tensor, vectors)


def _show(what: str, where: str, rows: list[dict[str, Any]]) -> None:
    simulated = ", simulated" if rows[0].get("simulated") else ""
    many = many_of(Op.parse(what).kind)
    among = f", each query among {rows[0]['configs_per_matrix']:,} configurations (median)"
    say(
        f"{what} on {where}: {rows[0]['matrices']} {many}"
        f"{among if rows[0]['configs_per_matrix'] else ''}{simulated}"
    )
    head = ("method", "speed-up@1", "@5", "most", "of optimum@1", "@5", "regret p95", "slower")
    ran = any("of_optimum_ran@1" in row for row in rows)
    among_ran = ("of_optimum@1", "of_optimum@5") if ran else ()
    head = (*head[:6], *(("ran@1", "@5") if ran else ()), *head[6:])
    # Time that a program of tensor kernels loses if each runs the first choice.
    lost = "program_ape" in rows[0]
    table(
        (*head, "ordered pairs", "spread", *(("lost time",) if lost else ())),
        [
            (
                _named(row, rows[0]["matrices"], many),
                factor(row["speedup@1"]),
                factor(row["speedup@5"]),
                factor(row["speedup_max@1"]),
                figure(row["of_optimum@1"]),
                figure(row["of_optimum@5"]),
                *(figure(row.get(k.replace("@", "_ran@"), row[k])) for k in among_ran),
                figure(row["regret_p95@1"]),
                share(row["slower_than_default"]),
                share(row["opa"]),
                figure(row["spread"]),
                *((share(row["program_ape"] / 100),) if lost else ()),
            )
            for row in rows
        ],
        indent="  ",
    )
    if stepped := [row for row in rows if "of_optimum@2" in row]:
        from tuners.evaluation.bench import STEPS

        say("  share of the optimum after this many measurements:")
        shares = [[figure(row[f"of_optimum@{k}"]) for k in STEPS] for row in stepped]
        lines = [(row["method"], *own) for row, own in zip(stepped, shares, strict=True)]
        table(("tuner", *map(str, STEPS)), lines, indent="  ")
    say()


def _named(row: Mapping[str, Any], matrices: int, many: str) -> str:
    """The method, with the number of its matrices if it has figures of fewer than the others."""
    fewer = row["matrices"] < matrices
    return f"{row['method']} ({row['matrices']} {many})" if fewer else str(row["method"])
