"""The model that a query learns by itself from the runs of a platform for which none was trained.

It is saved in the database's folder and learned again when runs were added.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from embeddb.core.config import Op
from embeddb.core.errors import EmbeddbError
from embeddb.platforms.platform import Platform

if TYPE_CHECKING:
    from embeddb.cost_model.model import CostModel
    from embeddb.index.answer_index import AnswerIndex
    from embeddb.index.lookup import Lookup
    from embeddb.index.run_matrix import RunMatrix
    from embeddb.learning.samples import Samples

#: Raised when the same runs give another model.
_VERSION = 4
#: With fewer groups of matrices, or runs, there is too little to learn from and to judge by. A
#: model of every machine is refined by any number of groups: that is judged by replay, in which a
#: matrix has up to 60 runs.
LEAST_GROUPS, LEAST_RUNS = 5, 40
#: Share of the optimum at 5 that a refinement may lose where it gains at 1.
_LESS_AT_5 = 0.005
#: From more runs neighbours answer until a model is trained, which takes minutes; a model of every
#: machine is refined by any number, of which so many of a matrix count.
MOST_RUNS, _PER_MATRIX = 5000, 60


def learned_model(
    lookup: Lookup,
    partition: AnswerIndex,
    platform: Platform,
    op: Op,
    source: CostModel | None = None,
) -> CostModel | None:
    """The model of the instance's own runs of an op, in the features of the partition: the saved
    one where no run was added since, else learned now (seconds). With a `source`, a model of every
    machine, it is of what the runs say beyond that. None where there is too little to learn from.
    """
    evidence = _own(partition, platform, op)
    if not evidence.rows or evidence.winners or not partition.vectors.size:
        return None
    if source is not None and not _reads(source, partition):
        source = None
    runs, groups = len(evidence.seconds), np.unique(evidence.groups).size
    enough = groups >= LEAST_GROUPS and runs <= MOST_RUNS
    enough = enough or (source is not None and _refines(source, op, groups))
    if runs < LEAST_RUNS or not enough:
        return None
    model = lookup.models.learned(platform, op)
    if not lookup.learns:
        return model
    stamp = _stamp(evidence, partition.featurizer, "" if source is None else source.version)
    if model is None or model.card.get("stamp") != stamp:
        lookup.announce(
            f"learning from {runs:,} runs of {op} on {platform.id} (seconds, once for these runs)"
        )
        model = _learned(lookup, partition, platform, op, stamp, source)
        if model is not None:
            lookup.models.keep(platform, op, model)
    return model


def _own(partition: AnswerIndex, platform: Platform, op: Op) -> RunMatrix:
    """The instance's own rows at this very width."""
    evidence = partition.evidence
    rows = [
        at
        for at, row in enumerate(evidence.rows)
        if row.platform == platform.id and row.op in ("", str(op))
    ]
    return evidence.take(np.array(rows, dtype=np.int64)).pruned()


def _refines(source: CostModel, op: Op, matrices: int) -> bool:
    """Return True if answers of a model of every machine, on machines left out, were no worse after
    so many of their matrices than without any: at 1, and at 5 by at most half a point."""
    before, after = (source.refined(op, count) for count in (0, matrices))
    if not before or not after:
        return False
    gained = [after[name] - before[name] for name in ("of_optimum@1", "of_optimum@5")]
    return gained[0] >= 0 and gained[1] >= -_LESS_AT_5


def _reads(source: CostModel, partition: AnswerIndex) -> bool:
    """Return True if a model reads the features of a partition."""
    return str(source.card["featurizer"]["name"]) == partition.featurizer


def _learned(
    lookup: Lookup,
    partition: AnswerIndex,
    platform: Platform,
    op: Op,
    stamp: str,
    source: CostModel | None,
) -> CostModel | None:
    """None where the runs are not of the platform's space as it is now, or too few are usable."""
    try:
        samples = own_samples(lookup, partition, platform, op)
        from embeddb.learning.process import learn

        card = process_card(samples, stamp=stamp)
        if source is None:
            return learn(samples, card)
        seen = _ran_elsewhere(partition, platform)
        return learn(samples.thinned(_PER_MATRIX, 0), card, source=source, seen=seen)
    except EmbeddbError:
        return None


def _ran_elsewhere(partition: AnswerIndex, platform: Platform) -> set[str]:
    """Groups of matrices that other machines ran: a model of every machine may have seen them."""
    rows = partition.evidence.rows
    return {row.group for row in rows if row.platform != platform.id}


def own_samples(lookup: Lookup, partition: AnswerIndex, platform: Platform, op: Op) -> Samples:
    """The samples that `learned_model` learns from: the instance's own legal runs at this width.

    Raises: UsageError where only winners were recorded; SpaceError for an op without a space.
    """
    evidence = _own(partition, platform, op)
    vectors = dict(zip(partition.ids, partition.vectors, strict=True))
    plug = lookup.featurizers().named(partition.featurizer)
    ids = {row.pattern_id for row in evidence.rows}
    infos = {i: info for i in ids if (info := lookup.store.pattern(i)) is not None}
    space = platform.space(op)
    illegal = [config for config in evidence.configs if space.reason(config) is not None]
    from embeddb.learning.samples import from_evidence

    samples = from_evidence(
        evidence, vectors, infos, platform, op, featurizer=(plug.name, str(plug.version))
    ).without(illegal)
    lengths = tuple(lookup.lengths(infos[row.pattern_id]) for row in samples.rows)
    return replace(samples, lengths=lengths)


def _stamp(evidence: RunMatrix, featurizer: str, source: str) -> str:
    """16 hex digits that change with what a model is learned from."""
    text = repr(
        (_VERSION, featurizer, source, evidence.rows, [config.id for config in evidence.configs])
    )
    digest = hashlib.blake2b(text.encode(), digest_size=8)
    for array in (evidence.indptr, evidence.column, evidence.seconds):
        digest.update(array.tobytes())
    return digest.hexdigest()


def process_card(samples: Samples, **further: Any) -> dict[str, Any]:
    """The card of a model of Gaussian processes, as `CostModel` reads it, but for what judging
    adds."""
    from embeddb.cost_model.model import space_digest

    op, platform = samples.ops[0], samples.platform
    return {
        "kind": "costmodel",
        "kernel": op.name,
        "ops": [str(one) for one in samples.ops],
        "platform": {
            "name": platform.name,
            "version": platform.version,
            "id": platform.id,
            "space": space_digest(platform, op),
        },
        "derived": platform.quantities(op).digest,
        "featurizer": {"name": samples.featurizer, "version": samples.featurizer_version},
        "settings": {"predictor": "gp", "members": 1, "parts": [], "fusion": "add"},
        "data": samples.hash,
        "patterns": len({row.pattern_id for row in samples.rows}),
        "groups": int(np.unique(samples.groups).size),
        "samples": len(samples.gain),
        "metrics": {},
        **further,
    }
