"""`clusters`: which kinds of matrices a database holds, and one matrix that stands for each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from embeddb.core.wording import plural
from embeddb.ui.cli.arguments import open_database
from embeddb.ui.cli.output import emit, json_option, say, table

if TYPE_CHECKING:
    from indexer.clusters import PatternCluster

__all__ = ["clusters_verb"]

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
