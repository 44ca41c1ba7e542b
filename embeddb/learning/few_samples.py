"""The model that a query learns from the runs of a platform without a trained one.

It is saved in the database's folder and learned again when runs were added.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from embeddb.core.blas import one_thread
from embeddb.core.config import Op
from embeddb.core.errors import EmbeddbError
from embeddb.featurizers import Featurizer, learned_from
from embeddb.featurizers.base import Joint
from embeddb.learning import LEAST_GROUPS, LEAST_RUNS
from embeddb.platforms.platform import Platform

if TYPE_CHECKING:
    from embeddb.cost_model.model import CostModel
    from embeddb.index.answer_index import AnswerIndex
    from embeddb.index.lookup import Lookup
    from embeddb.index.run_matrix import RunMatrix
    from embeddb.learning.samples import Samples

#: Raise it when the same runs give another model.
_VERSION = 15


@one_thread()
def learned_model(
    lookup: Lookup, partition: AnswerIndex, platform: Platform, op: Op, *, stale: float = 1.0
) -> CostModel | None:
    """The model of the instance's own runs of an op, in the features of the partition that were not
    learned from these runs: the saved one if these are its runs, or with some more, but less than
    `stale` times as many; else learned now (seconds). None where there is too little to learn from.
    """
    evidence = _own(partition, platform, op)
    if not enough(evidence) or not partition.vectors.size:
        return None
    model = lookup.models.learned(platform, op)
    if model is not None and not _fits(lookup, model, platform, op):
        model = None
    runs = len(evidence.seconds)
    if not lookup.learns or (model is not None and few_more(model.card, runs, stale)):
        return model
    stamp = _stamp(evidence, _unlearned(lookup, partition, evidence).name)
    if model is None or model.card.get("stamp") != stamp:
        what = f"{runs:,} runs of {op} on {platform.id}"
        lookup.announce(f"learning from {what} (seconds, once for these runs)")
        model = _learned(lookup, partition, platform, op, stamp)
        if model is not None:
            lookup.models.keep(platform, op, model)
    return model


def few_more(card: Mapping[str, Any], runs: int, stale: float) -> bool:
    """True if there are more runs than the model of a card learned from, but less than `stale`
    times as many; after a withdrawal there are fewer."""
    learned = card.get("runs")
    return type(learned) is int and learned < runs < stale * learned


def _fits(lookup: Lookup, model: CostModel, platform: Platform, op: Op) -> bool:
    """False if it encodes configurations of an earlier version of the platform, with other derived
    quantities, or reads vectors of an earlier version of its featurizer."""
    name = str(model.card["featurizer"]["name"])
    try:
        return not model.mismatch(platform, op, name, lookup.featurizer_version(name))
    except EmbeddbError:  # a featurizer that is not there, or cannot be used
        return False


def enough(evidence: RunMatrix) -> bool:
    """True if a query learns from these runs of one instance."""
    groups = np.unique(evidence.groups).size
    return not evidence.winners and groups >= LEAST_GROUPS and len(evidence.seconds) >= LEAST_RUNS


def _own(partition: AnswerIndex, platform: Platform, op: Op) -> RunMatrix:
    """The instance's own rows at this very width."""
    evidence = partition.evidence
    rows = [
        at
        for at, row in enumerate(evidence.rows)
        if row.platform == platform.id and row.op in ("", str(op))
    ]
    return evidence.take(np.array(rows, dtype=np.int64)).pruned()


def _learned(
    lookup: Lookup, partition: AnswerIndex, platform: Platform, op: Op, stamp: str
) -> CostModel | None:
    """None if the runs do not fit the platform's present space, or too few are usable."""
    try:
        samples = own_samples(lookup, partition, platform, op)
        if not samples.rows:  # no matrix has a vector that was not learned from these runs
            return None
        from embeddb.learning.process import expected_figures, learn

        runs = len(_own(partition, platform, op).seconds)
        voted = partition.own_losses(platform)
        model = learn(samples, process_card(samples, stamp=stamp, runs=runs), voted=voted)
        model.card["expected"] = {str(op): expected_figures(model, samples)}
        return model
    except EmbeddbError:
        return None


def own_samples(lookup: Lookup, partition: AnswerIndex, platform: Platform, op: Op) -> Samples:
    """The samples that `learned_model` learns from: the instance's own legal runs at this width.

    Raises: UsageError where only winners were recorded; SpaceError for an op without a space.
    """
    evidence = _own(partition, platform, op)
    plug = _unlearned(lookup, partition, evidence)
    ids = {row.pattern_id for row in evidence.rows}
    vectors = dict(zip(partition.ids, partition.vectors, strict=True))
    if plug.name != partition.featurizer:
        vectors = lookup.store.vectors.get(plug.name, plug.version, ids, dim=plug.dim)
    infos = {i: info for i in ids if (info := lookup.store.pattern(i)) is not None}
    space = platform.space(op)
    illegal = [config for config in evidence.configs if space.reason(config) is not None]
    from embeddb.learning.samples import from_evidence

    samples = from_evidence(
        evidence, vectors, infos, platform, op, featurizer=(plug.name, str(plug.version))
    ).without(illegal)
    lengths = tuple(lookup.lengths(infos[row.pattern_id]) for row in samples.rows)
    return replace(samples, lengths=lengths)


def _unlearned(lookup: Lookup, partition: AnswerIndex, evidence: RunMatrix) -> Featurizer:
    """The partition's featurizer, or its part (without one: statistics) if it was trained on runs
    of the same groups: its vectors of these say what was the fastest, so that every judgement would
    be too good."""
    plug = lookup.featurizers().named(partition.featurizer)
    if learned_from(plug).isdisjoint(row.group for row in evidence.rows):
        return plug
    return plug.parts[0] if isinstance(plug, Joint) else lookup.featurizers().named("stats")


def _stamp(evidence: RunMatrix, featurizer: str) -> str:
    """16 hex digits that change with the training data."""
    configs = [config.id for config in evidence.configs]
    text = repr((_VERSION, featurizer, evidence.rows, configs))
    digest = hashlib.blake2b(text.encode(), digest_size=8)
    for array in (evidence.indptr, evidence.column, evidence.seconds):
        digest.update(array.tobytes())
    return digest.hexdigest()


def process_card(samples: Samples, **further: Any) -> dict[str, Any]:
    """The card of a model of Gaussian processes (`CostModel`), without the figures of its
    judgement."""
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
