"""`init`, `index`, `ingest`, `embed`, `clusters`: a database, its run logs and its vectors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from embeddb.core.errors import UsageError
from embeddb.core.wording import plural
from embeddb.database import Database
from embeddb.ui.cli import option
from embeddb.ui.cli.arguments import database_to_fill, open_database
from embeddb.ui.cli.logs import (
    accepted,
    platform_of_logs,
    read_options,
    reading_options,
    refuse_empty,
    refuse_foreign_folder,
    show_file,
)
from embeddb.ui.cli.output import Progress, emit, note, result, say, table, warn
from embeddb.ui.cli.verbs.db import show_states
from indexer.starter import STARTER

if TYPE_CHECKING:
    from indexer.index_runs import IndexReport


@option.verb()
@click.argument("db")
@click.argument("runs", nargs=-1, required=True)
@reading_options
def index_verb(db: str, runs: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Turn run logs RUNS into a database DB that answers queries, in one step.

    Checks the platform file, creates DB if missing, reads every file, adds the structures of the
    matrices in --matrices, embeds, and lists what can be answered now and what is missing. Matrices
    match by name without folder and extension; it fails if --matrices has none of them, or if no
    row of a log can be used. For columns and words that the platform names differently a mapping is
    proposed: --yes accepts it, [log] of the platform file stores it. Reading a file twice adds
    nothing; an interrupted read is resumed.

    \b
    Example:
      embeddb index fpga.db runs.csv --platform my_platform.toml --matrices matrices/
      embeddb index spmv.db spmv_times.csv --format ginkgo --features matrix_features.csv
    """
    from indexer.index_runs import check_inputs, index_runs

    check_inputs(runs, options["platform"])
    platform = platform_of_logs(db, options["platform"])
    read = accepted(
        runs, platform, read_options(options), reader=options["reader"], yes=options["yes"]
    )
    with database_to_fill(db) as opened:
        with Progress() as progress:
            report = index_runs(
                opened.index,
                runs,
                platform=options["platform"],
                reader=options["reader"],
                matrices=options["matrices"],
                options=read,
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
        say(f"try: {report.example}")


@option.verb()
@click.argument("db")
def init_verb(db: str, as_json: bool) -> None:
    """Create an empty database DB: a folder, or tables on a server (`postgresql://host/name`).

    \b
    Example:
      embeddb init runs.db
    """
    if db == STARTER:
        raise UsageError(f"{STARTER!r} is the shipped database", hint=f"for a folder: ./{STARTER}")
    with Database.create(db) as created:
        document = {"database": created.store.place, "generation": created.store.generation}
    result(document, f"created {db}; fill it with `embeddb index {db} RUNS --platform P`", as_json)


@option.verb()
@click.argument("db")
@click.argument("file")
@reading_options
def ingest_verb(db: str, file: str, as_json: bool, **options: Any) -> None:
    """Read one run log FILE into DB; `embed`, or the next query, updates the indexes.

    Rejected rows go to FILE.rejects.jsonl with line and reason, or into DB if the folder of FILE is
    read-only or below neither the current folder nor that of DB.

    \b
    Example:
      embeddb ingest runs.db runs.csv --platform my_platform.toml --op spmm:128 --unit us
      embeddb ingest runs.db log.jsonl --platform spade --map matrix=name --map time_ms=elapsed
    """
    from indexer.index_runs import platform_of_runs
    from indexer.ingest import ingest
    from indexer.library import Library

    with open_database(db) as opened, Progress() as progress:
        platform = platform_of_runs(opened.index, options["platform"])
        read = accepted(
            [file], platform, read_options(options), reader=options["reader"], yes=options["yes"]
        )
        library = Library(Path(options["matrices"]) if options["matrices"] else None)
        report = ingest(
            opened.store,
            Path(file),
            reader=options["reader"],
            options=read,
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


@option.verb()
@click.argument("db")
@option.flag("--again", help="Recompute everything derived.")
@option.text("--weights", metavar="FILE", help="Weights of `scnn` to use for DB from now on.")
@option.text("--featurizer", metavar="NAME", help="Also embed by `dynamics` from now on.")
def embed_verb(db: str, again: bool, weights: str, featurizer: str, as_json: bool) -> None:
    """Compute missing vectors of DB and refresh its indexes.

    With --weights, a model file written by `embeddb train featurizer` is checked and copied into
    DB; `scnn` then recomputes all vectors. Vectors of different weights are never compared.
    With --featurizer dynamics, matrices are also embedded by simulated counters from then on: used
    where their neighbours answer better in cross-validation (needs numba, extra `dynamics`).

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
        names = ("vectors", "partitions", "problems", "notes")
        emit({**{name: getattr(report, name) for name in names}, "weights": version})
        return
    if version:
        say(f"{db} uses weights {version} of scnn now")
    table(("featurizer", "vectors"), report.vectors.items())
    say(plural(len(report.partitions), "index", "indexes") + " up to date")
    for line in report.notes:
        note(line)
    warn(report.problems)


#: Default number of clusters; as in `indexer.clusters`, which a help text must not import.
_USUAL = 10


@option.verb()
@click.argument("db")
@option.text("--featurizer", help="[default: scnn if it has vectors of 90 %, else another]")
@option.number("-k", "count", least=1, help=f"Clusters.  [default: at most {_USUAL}]")
@option.number("--seed", default=0, least=0)
def clusters_verb(db: str, featurizer: str, count: int | None, seed: int, as_json: bool) -> None:
    """Group the patterns of DB by their vectors, with one representative of each group.

    k-means over standardised vectors; the representative is nearest to the centre. Measuring the
    representatives first covers the kinds of matrices. The same seed gives the same clusters.

    \b
    Example:
      embeddb clusters runs.db -k 10
      embeddb clusters starter --featurizer stats -k 25 --json
    """
    from indexer.clusters import cluster_patterns

    with open_database(db, readonly=True) as opened:
        clustering = cluster_patterns(opened.index, featurizer=featurizer, count=count, seed=seed)
    clusters = [
        {
            "cluster": number,
            "size": len(cluster.members),
            "groups": cluster.groups,
            "spread": cluster.spread,
            "pattern_id": cluster.members[0].id,
            "name": cluster.members[0].name,
            "members": [info.id for info in cluster.members],
        }
        for number, cluster in enumerate(clustering.clusters, 1)
    ]
    if as_json:
        head = {"database": db, "featurizer": clustering.featurizer, "version": clustering.version}
        counts = {"patterns": clustering.patterns, "without_vector": clustering.without_vector}
        emit({**head, "seed": seed, **counts, "clusters": clusters})
        return
    rows = [
        (c["cluster"], c["size"], c["groups"], f"{c['spread']:.2f}", c["name"] or c["pattern_id"])
        for c in clusters
    ]
    table(("cluster", "size", "groups", "spread", "representative"), rows)
    say(f"{plural(clustering.patterns, 'pattern')} by {clustering.featurizer} {clustering.version}")
    if clustering.without_vector:
        say(f"{plural(clustering.without_vector, 'pattern')} without a vector left out")
