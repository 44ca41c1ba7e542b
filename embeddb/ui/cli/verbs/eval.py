"""`eval`: how good the answers are, by replaying runs with whole groups held out."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from itertools import groupby
from typing import TYPE_CHECKING, Any

import click

from embeddb.core.config import Op
from embeddb.core.errors import MissingDependency, NothingFound, UsageError
from embeddb.ui.cli.arguments import open_database
from embeddb.ui.cli.output import Progress, emit, factor, json_option, note, say, share, table
from embeddb.ui.cli.verbs.train.session import threads

if TYPE_CHECKING:
    from embeddb.core.records import PatternInfo
    from embeddb.cost_model.model import CostModel
    from embeddb.database import Database
    from embeddb.index.run_matrix import RunMatrix
    from embeddb.platforms.platform import Platform
    from indexer.training.cost_model.samples import Samples
    from tuners.evaluation.bench import Vectors
    from tuners.evaluation.learned import Fit

__all__ = ["eval_verb", "learned_rankers"]


@click.command("eval")
@click.argument("db")
@click.option("--platform", default="", help="Only this platform.")
@click.option("--op", default="", help="Only this operation.")
@click.option("--seeds", default=3, show_default=True, type=click.IntRange(1, 1000))
@click.option("--complete", is_flag=True, help="Only matrices that ran nearly every configuration.")
@click.option("--learned", is_flag=True, help="Also train and judge cost models; takes long.")
@click.option("--across", is_flag=True, help="Leave whole machines out instead.")
@json_option
def eval_verb(db: str, platform: str, op: str, seeds: int, as_json: bool, **asked: bool) -> None:
    """Judge the answers of DB against what was measured, beside the baselines.

    Groups of matrices are held out whole, in 5 folds; nothing is measured. speed-up is over the
    default, `of optimum` is the share of the best measured. Configurations that fewer than 80 % of
    the matrices tried are left out; with --complete, matrices that did not try nearly all are.

    With --learned, a cost model, and boosted trees where lightgbm is installed, learn anew in every
    fold: twice, so that the weight of a model against the neighbours' vote (rows `+transfer`) is
    chosen on training groups. That is 30 trainings per op, platform and model with 3 seeds; the
    time left is shown after the first, and `--op` and `--seeds 1` shorten it.

    `measured-again` is where most configurations ran in two rounds: chosen by one, judged by the
    other, which is as good as any choice can be told to be.

    With --across, each machine (instance of a portable platform) is left out whole, with the
    matrices of a fold, and then 0, 1, 2, 5, 10, 20, 50 of its other matrices are given back: how
    good an answer is on a machine that was never, or hardly, measured, beside what its own runs
    alone and the other machines alone would say; and what promised gains and intervals were worth.

    \b
    Example:
      embeddb eval runs.db --platform cpu --op spmm:128
      embeddb eval runs.db --op spmm:128 --learned --seeds 1
      embeddb eval starter --op spmm:128 --across --seeds 1
    """
    if asked["across"]:
        _across(db, platform, op, seeds, as_json, asked)
        return
    _held_out(db, platform, op, seeds, as_json, asked)


def _across(
    db: str, platform: str, op: str, seeds: int, as_json: bool, asked: Mapping[str, bool]
) -> None:
    from tuners.evaluation.across import evaluate_across

    if asked["learned"] or asked["complete"]:
        raise UsageError("--across goes with neither --learned nor --complete")
    with open_database(db, readonly=True) as opened, Progress() as progress:
        name, _, instance = platform.partition("@")
        rows = evaluate_across(
            opened,
            scopes=_scopes(opened, name, op),
            instances=[platform] if instance else (),
            seeds=tuple(range(seeds)),
            progress=progress,
        )
    documents = [row.document() for row in rows]
    if as_json:
        emit(documents)
        return
    for (what, left_out), held in groupby(documents, key=lambda d: (d["op"], d["instance"])):
        _show_across(what, left_out, list(held))


def _show_across(what: str, instance: str, rows: list[dict[str, Any]]) -> None:
    say(f"{what}, {instance} left out: {rows[0]['matrices']} matrices")
    head = ("method", "own matrices", "of optimum@1", "@5", "gain", "promised")
    table(
        (*head, "in interval", "slower"),
        [
            (
                row["method"],
                "-" if row["local"] < 0 else row["local"],
                _figure(row["of_optimum@1"]),
                _figure(row["of_optimum@5"]),
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
    db: str, platform: str, op: str, seeds: int, as_json: bool, asked: Mapping[str, bool]
) -> None:
    from tuners.evaluation.bench import evaluate

    learned, complete = asked["learned"], asked["complete"]
    rankers = learned_rankers() if learned else {}
    # Networks this small gain nothing from a second thread, and lose much where a core is busy.
    count = 1 if learned else 0
    with open_database(db, readonly=True) as opened, Progress() as progress, threads(count):
        scopes = _scopes(opened, platform, op)
        rows = evaluate(
            opened,
            scopes=scopes,
            seeds=tuple(range(seeds)),
            complete=complete,
            progress=progress,
            rankers=rankers,
            note=note,
        )
    documents = [row.document() for row in rows]
    judged = {(row.op, where) for row in rows for where in (row.platform, _bare(row.platform))}
    for left in [(str(o), s) for o, s in scopes if (str(o), s) not in judged]:
        note(f"{left[0]} on {left[1]}: not judged: too few matrices with a measured default")
    if as_json:
        emit(documents)
        return
    for (where, what), held in groupby(documents, key=lambda d: (d["platform"], d["op"])):
        _show(where, what, list(held))


def _bare(platform: str) -> str:
    """Without its instance."""
    return platform.partition("@")[0]


def _scopes(db: Database, platform: str, op: str) -> list[tuple[Op, str]]:
    """What is asked for, of what there is. Raises: NothingFound if that is nothing."""
    found = [
        (o, scope)
        for o, scope in db.scopes()
        if platform in ("", scope, scope.partition("@")[0]) and (not op or o == Op.parse(op))
    ]
    if not found:
        have = ", ".join(f"{o} on {s}" for o, s in db.scopes()[:8])
        hint = f"there are: {have}" if have else "the database is empty: `embeddb index`"
        raise NothingFound("no runs to judge by", hint=hint)
    return found


def learned_rankers() -> dict[str, Fit]:
    """What `--learned` judges: those whose packages are installed.

    Raises: MissingDependency without torch.
    """
    if find_spec("torch") is None:
        raise MissingDependency(
            "--learned trains a cost model, which needs torch",
            hint="install the extra `learn`: pip install '.[learn]'",
        )
    from indexer.training.cost_model.trees import available

    found: dict[str, Fit] = {"costmodel": _network}
    if available():
        found["boosted"] = _trees
    else:
        note("boosted trees are not judged: install the extra `learn` again, for lightgbm")
    return found


def _network(
    evidence: RunMatrix, vectors: Vectors, infos: Mapping[str, PatternInfo], where: Platform, op: Op
) -> CostModel:
    """The default recipe on the first featurizer's vectors."""
    from indexer.training.cost_model.train import CostSettings, train

    return train(_samples(evidence, vectors, infos, where, op), CostSettings())


def _trees(
    evidence: RunMatrix, vectors: Vectors, infos: Mapping[str, PatternInfo], where: Platform, op: Op
) -> CostModel:
    from indexer.training.cost_model.train import forest, train

    return train(_samples(evidence, vectors, infos, where, op), forest())


def _samples(
    evidence: RunMatrix, vectors: Vectors, infos: Mapping[str, PatternInfo], where: Platform, op: Op
) -> Samples:
    from indexer.training.cost_model.samples import from_evidence

    featurizer, raw = next(iter(vectors.items()), ("", {}))
    return from_evidence(evidence, raw, infos, where, op, featurizer=(featurizer, ""))


def _show(where: str, what: str, rows: list[dict[str, Any]]) -> None:
    simulated = ", simulated" if rows[0].get("simulated") else ""
    say(f"{what} on {where}: {rows[0]['matrices']} matrices{simulated}")
    head = ("method", "speed-up@1", "@5", "of optimum@1", "@5", "regret p95", "slower")
    table(
        (*head, "ordered pairs", "spread"),
        [
            (
                row["method"],
                factor(row["speedup@1"]),
                factor(row["speedup@5"]),
                _figure(row["of_optimum@1"]),
                _figure(row["of_optimum@5"]),
                _figure(row["regret_p95@1"]),
                share(row["slower_than_default"]),
                share(row["opa"]),
                _figure(row["spread"]),
            )
            for row in rows
        ],
        indent="  ",
    )
    say()


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
