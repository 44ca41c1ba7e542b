"""`embed`: what is derived from patterns and runs, made where it is missing."""

from __future__ import annotations

import click

from embeddb.core.wording import plural
from embeddb.ui.cli.arguments import open_database
from embeddb.ui.cli.logs.reading import warn
from embeddb.ui.cli.output import Progress, emit, json_option, note, say, table

__all__ = ["embed_verb"]


@click.command()
@click.argument("db")
@click.option("--again", is_flag=True, help="Make everything derived anew.")
@click.option("--weights", default="", metavar="FILE", help="Weights of `scnn` for DB from now on.")
@click.option("--featurizer", default="", metavar="NAME", help="`dynamics` too, from now on.")
@json_option
def embed_verb(db: str, again: bool, weights: str, featurizer: str, as_json: bool) -> None:
    """Compute missing vectors of DB and refresh its indexes.

    With --weights, a model file made by `embeddb train featurizer` is checked and copied into DB;
    `scnn` then embeds everything anew. Vectors of other weights are never compared with its own.
    With --featurizer dynamics, matrices are placed by simulated counters too, from then on: used
    where their neighbours answer better, families held out (needs numba, extra `dynamics`).

    \b
    Example:
      embeddb embed runs.db
      embeddb embed runs.db --weights scnn.safetensors
      embeddb embed runs.db --featurizer dynamics
    """
    from indexer.embed import embed

    with open_database(db) as opened, Progress() as progress:
        version = opened.index.use_weights(weights) if weights else None
        also = (featurizer,) if featurizer else ()
        report = embed(opened.index, again=again, also=also, progress=progress)
    if as_json:
        emit(
            {
                "vectors": report.vectors,
                "partitions": report.partitions,
                "problems": report.problems,
                "notes": report.notes,
                "weights": version,
            }
        )
        return
    if version:
        say(f"weights {version} of scnn are those of {db} now")
    table(("featurizer", "vectors"), report.vectors.items())
    say(plural(len(report.partitions), "index", "indexes") + " up to date")
    for line in report.notes:
        note(line)
    warn(report.problems)
