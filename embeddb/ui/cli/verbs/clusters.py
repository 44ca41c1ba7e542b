"""`clusters`: which kinds of matrices a database holds, and one matrix that stands for each."""

from __future__ import annotations

from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import NothingFound
from embeddb.core.records import PatternInfo
from embeddb.database import Database
from embeddb.ui.cli.arguments import open_database
from embeddb.ui.cli.output import emit, json_option, plural, say, table

__all__ = ["clusters_verb"]

#: Clusters unless asked otherwise: the most matrices of the paper's smaller selection (EA-10).
_USUAL = 10
#: Share of the patterns that a featurizer must know to be used unasked.
_ENOUGH = 0.9


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
    with open_database(db, readonly=True) as opened:
        infos = list(opened.store.patterns())
        name, vectors = _vectors(opened, featurizer, [info.id for info in infos])
        version = opened.featurizer_version(name)
    known = sorted((info for info in infos if info.id in vectors), key=lambda info: info.id)
    asked = min(_USUAL, len(known)) if count is None else count
    clusters = _clusters(known, vectors, asked, seed)
    left_out = len(infos) - len(known)
    document = {
        "database": db,
        "featurizer": name,
        "version": version,
        "seed": seed,
        "patterns": len(known),
        "without_vector": left_out,
        "clusters": clusters,
    }
    if as_json:
        emit(document)
        return
    rows = [
        (c["cluster"], c["size"], c["groups"], f"{c['spread']:.2f}", c["name"] or c["pattern_id"])
        for c in clusters
    ]
    table(("cluster", "size", "groups", "spread", "representative"), rows)
    say(f"{plural(len(known), 'pattern')} by {name} {version}")
    if left_out:
        say(f"{plural(left_out, 'pattern')} without a vector left out")


def _vectors(
    db: Database, asked: str, ids: list[str]
) -> tuple[str, dict[str, NDArray[np.float32]]]:
    """A featurizer and its vectors by pattern id; unless one is asked for, one that knows nine of
    ten of the patterns that any knows, the learned one first.

    Raises: UsageError if there is no such featurizer; NothingFound without any vector.
    """
    there = db.featurizers()
    plugs = {asked: there.named(asked)} if asked else dict(there)
    found = {name: db.store.vectors.get(name, plug.version, ids) for name, plug in plugs.items()}
    most = max(len(vectors) for vectors in found.values())
    # A stub that only its sizes are known of must not make all patterns compared by sizes.
    enough = [name for name, vectors in found.items() if len(vectors) >= _ENOUGH * most]
    name = "scnn" if "scnn" in enough else enough[0]
    if not found[name]:
        whose = f"of {asked} " if asked else ""
        raise NothingFound(f"no vectors {whose}in the database", hint="run `embeddb embed DB`")
    return name, found[name]


def _clusters(
    known: list[PatternInfo], vectors: dict[str, NDArray[np.float32]], k: int, seed: int
) -> list[dict[str, Any]]:
    """One document per cluster, the largest first."""
    from indexer.campaign.budget.clusters import cluster

    made = cluster(np.stack([vectors[info.id] for info in known]), k, seed)
    documents = []
    for at, centre in enumerate(made.representatives):
        members = [known[i] for i in made.members(at)]
        documents.append(
            {
                "cluster": at + 1,
                "size": len(members),
                "groups": len({info.group or info.name or info.id for info in members}),
                "spread": made.spread(at),
                "pattern_id": known[centre].id,
                "name": known[centre].name,
                "members": [info.id for info in members],
            }
        )
    return documents
