"""`init`, `index`, `ingest`, `embed`, `clusters`: a database, its run logs and its vectors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from embeddb.core.errors import UsageError
from embeddb.core.wording import plural
from embeddb.database import Database
from embeddb.ui.cli.arguments import database_to_fill, open_database
from embeddb.ui.cli.coverage_text import show_states
from embeddb.ui.cli.logs import (
    accepted,
    platform_asked,
    read_options,
    reading_options,
    refuse_empty,
    refuse_foreign_folder,
    show_file,
    warn,
)
from embeddb.ui.cli.output import Progress, emit, json_option, note, say, table
from indexer.starter import STARTER

if TYPE_CHECKING:
    from indexer.clusters import PatternCluster
    from indexer.index_runs import IndexReport


@click.command()
@click.argument("db")
@click.argument("runs", nargs=-1, required=True)
@reading_options
@json_option
def index_verb(db: str, runs: tuple[str, ...], as_json: bool, **asked: Any) -> None:
    """Run logs RUNS to a database DB that answers, in one go.

    Checks the platform file, makes DB if there is none, reads every file, gives stubs the
    structure of the matrices in --matrices, embeds, and says what can be answered now and what is
    missing. Matrices go by their names without folders and endings; if --matrices has none of
    them, it fails, and so does a log of which no row can be used. Columns and words that are not
    named as the platform names them are proposed: --yes takes that, [log] of the platform file
    keeps it. Reading a file twice adds nothing; an interrupted one goes on where it stopped.

    \b
    Example:
      embeddb index fpga.db runs.csv --platform my_platform.toml --matrices matrices/
      embeddb index spmv.db spmv_times.csv --format ginkgo --features matrix_features.csv
    """
    from indexer.index_runs import check_inputs, index_runs

    check_inputs(runs, asked["platform"])
    platform = platform_asked(db, asked["platform"])
    options = accepted(
        runs, platform, read_options(asked), reader=asked["reader"], yes=asked["yes"]
    )
    with database_to_fill(db) as opened:
        with Progress() as progress:
            report = index_runs(
                opened.index,
                runs,
                platform=asked["platform"],
                reader=asked["reader"],
                matrices=asked["matrices"],
                options=options,
                progress=progress,
            )
        report = replace(report, database=db)
        if as_json:
            emit(report.document())
        else:
            _show(report)
        refuse_empty(report.files)
        if not report.adopted_runs:
            refuse_foreign_folder(report.files)


def _show(report: IndexReport) -> None:
    for file in report.files:
        show_file(file)
    if report.adopted_runs:
        say(f"{plural(report.adopted_runs, 'run')} of stubs moved to their matrix")
    warn(report.problems)
    say()
    show_states(report.answers)
    if report.example:
        say()
        say(f"ask: {report.example}")


@click.command()
@click.argument("db")
@json_option
def init_verb(db: str, as_json: bool) -> None:
    """Make an empty database DB: a folder, or tables on a server (`postgresql://host/name`).

    \b
    Example:
      embeddb init runs.db
    """
    if db == STARTER:
        raise UsageError(f"{STARTER!r} is the shipped database", hint=f"for a folder: ./{STARTER}")
    with Database.create(db) as made:
        document = {"database": made.store.place, "generation": made.store.generation}
    if as_json:
        emit(document)
    else:
        say(f"made {db}; fill it with `embeddb index {db} RUNS --platform P`")


@click.command()
@click.argument("db")
@click.argument("file")
@reading_options
@json_option
def ingest_verb(db: str, file: str, as_json: bool, **asked: Any) -> None:
    """Read one run log FILE into DB; `embed` or a query makes it answer.

    Rows that cannot be used go to FILE.rejects.jsonl with line and reason.

    \b
    Example:
      embeddb ingest runs.db runs.csv --platform my_platform.toml --op spmm:128 --unit us
      embeddb ingest runs.db log.jsonl --platform spade --map matrix=name --map time_ms=elapsed
    """
    from indexer.index_runs import platform_of_runs
    from indexer.ingest import ingest
    from indexer.library import Library

    with open_database(db) as opened, Progress() as progress:
        platform = platform_of_runs(opened.index, asked["platform"])
        options = accepted(
            [file], platform, read_options(asked), reader=asked["reader"], yes=asked["yes"]
        )
        library = Library(Path(asked["matrices"]) if asked["matrices"] else None)
        report = ingest(
            opened.store,
            Path(file),
            reader=asked["reader"],
            options=options,
            platform=platform,
            library=library,
            progress=lambda rows: progress(f"read {Path(file).name}", rows),
        )
    problems = list(dict.fromkeys(library.problems))
    if as_json:
        emit({**report.document(), "matrix_problems": problems})
    else:
        show_file(report)
        warn(problems)
    refuse_empty([report])
    refuse_foreign_folder([report])


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


#: Clusters at most, unless asked otherwise; that of `indexer.clusters`, not imported for help.
_USUAL = 10


@click.command()
@click.argument("db")
@click.option(
    "--featurizer", default="", help="Whose vectors: scnn if it knows nine of ten, else another."
)
@click.option("-k", "count", type=click.IntRange(min=1), help=f"Clusters, {_USUAL} or fewer.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@json_option
def clusters_verb(db: str, featurizer: str, count: int | None, seed: int, as_json: bool) -> None:
    """Group the patterns of DB by their vectors, with one representative of each group.

    k-means over standardised vectors; the representative is nearest to the centre. Measuring the
    representatives first covers what kinds of matrices there are. The same seed gives the same
    clusters.

    \b
    Example:
      embeddb clusters runs.db -k 10
      embeddb clusters starter --featurizer stats -k 25 --json
    """
    from indexer.clusters import cluster_patterns

    with open_database(db, readonly=True) as opened:
        found = cluster_patterns(opened.index, featurizer=featurizer, count=count, seed=seed)
    clusters = [_document(number, each) for number, each in enumerate(found.clusters, 1)]
    if as_json:
        head = {"database": db, "featurizer": found.featurizer, "version": found.version}
        counts = {"patterns": found.patterns, "without_vector": found.without_vector}
        emit({**head, "seed": seed, **counts, "clusters": clusters})
        return
    rows = [
        (c["cluster"], c["size"], c["groups"], f"{c['spread']:.2f}", c["name"] or c["pattern_id"])
        for c in clusters
    ]
    table(("cluster", "size", "groups", "spread", "representative"), rows)
    say(f"{plural(found.patterns, 'pattern')} by {found.featurizer} {found.version}")
    if found.without_vector:
        say(f"{plural(found.without_vector, 'pattern')} without a vector left out")


def _document(number: int, found: PatternCluster) -> dict[str, Any]:
    return {
        "cluster": number,
        "size": len(found.members),
        "groups": found.groups,
        "spread": found.spread,
        "pattern_id": found.representative.id,
        "name": found.representative.name,
        "members": [info.id for info in found.members],
    }
