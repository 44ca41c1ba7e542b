"""`train towers`: matrices and configurations in one vector space."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from embeddb.core.errors import UsageError
from embeddb.core.extras import needing
from embeddb.core.files.own_files import OwnFolder, check_place
from embeddb.core.wording import plural
from embeddb.featurizers.tower import OWN
from embeddb.ui.cli.arguments import open_database
from embeddb.ui.cli.output import Progress, emit, json_option, note, say, table
from embeddb.ui.cli.verbs.train_session import session


@click.command("towers")
@click.argument("db")
@click.option("-o", "out", default="", metavar="FILE", help="Else into the database, in use.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0, 2**31 - 1))
@click.option(
    "--threads", default=1, show_default=True, type=click.IntRange(0, 1024), help="0: torch's."
)
@click.option("--resume", is_flag=True, help="Go on with the training that was interrupted.")
@json_option
def towers_verb(db: str, out: str, as_json: bool, **asked: Any) -> None:
    """Learn vectors of matrices and of configurations from all runs of sparse kernels in DB.

    A small network maps the 48 statistics of a matrix to 16 numbers, another one the parameters of
    a configuration; their inner product ranks. Without -o queries find neighbours by the matrix's
    vectors wherever held-out answers are as good as by statistics, and configurations by the inner
    product. Five more trainings without a fifth of the families each give the held-out figures.

    \b
    Example:
      embeddb train towers runs.db
      embeddb train towers runs.db -o towers.safetensors
      embeddb embed other.db --weights towers.safetensors
    """
    with session(asked["threads"]) as progress:
        document = _train(db, out, asked, progress)
        if not out:
            document |= _in_use(db, document["file"], progress)
    if as_json:
        emit(document)
        return
    _show(document)


def _train(db: str, out: str, asked: dict[str, Any], progress: Progress) -> dict[str, Any]:
    with needing("training"):
        from indexer.training.towers import tower_data, train_towers, unfinished
    with open_database(db, readonly=True) as opened:
        file = _place(opened.store.path, out)
        if unfinished(file) and not asked["resume"]:
            raise UsageError(
                f"{file}: a training is unfinished there",
                hint="add --resume to go on with it, or remove its .training folder",
            )
        data = tower_data(opened.index, progress=progress)
    note(
        f"{data.runs:,} runs of {plural(len(data.ids), 'matrix', 'matrices')}, "
        f"{plural(len(data.units), 'operation')} on {plural(len(data.trunks), 'space')}"
    )
    return {"file": str(file), **train_towers(data, file, seed=asked["seed"], progress=progress)}


def _place(home: str | Path | None, out: str) -> Path:
    """The file to write; its folder is there. Raises: UsageError if there can be none."""
    if out:
        check_place(Path(out))
        return Path(out)
    if home is None:
        raise UsageError("a database in memory has no folder for weights", hint="give -o FILE")
    try:
        OwnFolder(Path(home), OWN.parent.name).make()
    except OSError as e:
        fault = f"{home}: no weights can be written there ({e.strerror})"
        raise UsageError(fault, hint="give -o FILE") from None
    return Path(home) / OWN


def _in_use(db: str, file: str, progress: Progress) -> dict[str, Any]:
    """Register the weights in DB and refresh vectors and indexes."""
    from indexer.embed import embed

    with open_database(db) as opened:
        opened.index.use_weights(file)
        report = embed(opened.index, progress=progress)
    return {"indexes": report.partitions, "problems": report.problems}


def _show(document: dict[str, Any]) -> None:
    say(f"{document['file']}: version {document['version']}; with families held out:")
    rows = [
        (unit["op"], unit["platform"], unit["matrices"], *_figures(unit["held_out"]))
        for unit in document["units"]
    ]
    head = ("operation", "platform", "matrices", "of optimum@1", "@5", "recall@10", "@50")
    table(head, rows)
    for one in document.get("indexes", ()):
        if one["op"] in {unit["op"] for unit in document["units"]}:
            say(f"{one['op']} on {one['scope']}: neighbours by {one['featurizer']}")


def _figures(held_out: dict[str, float]) -> list[str]:
    return [f"{held_out[name]:.3f}" for name in held_out]
