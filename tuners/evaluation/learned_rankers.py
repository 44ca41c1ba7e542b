"""The learned rankers that `embeddb eval --learned` judges: the product's cost models, with the
settings that it trains them with."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING

from embeddb.core.config import Op
from embeddb.core.errors import MissingDependency
from embeddb.core.extras import install_hint

if TYPE_CHECKING:
    from embeddb.core.records import WorkloadInfo
    from embeddb.cost_model.model import CostModel
    from embeddb.index.run_matrix import RunMatrix
    from embeddb.learning.samples import Samples
    from embeddb.platforms.platform import Platform
    from tuners.evaluation.bench import Vectors
    from tuners.evaluation.figures import Fit


def learned_rankers() -> dict[str, Fit]:
    """Rankers that learn from runs of matrices, by name.

    Raises: MissingDependency without torch.
    """
    if find_spec("torch") is None:
        raise MissingDependency(
            "--learned trains a cost model, which needs torch",
            hint=install_hint("learn"),
        )
    return {"costmodel": _network, "boosted": _trees}


def _network(
    evidence: RunMatrix,
    vectors: Vectors,
    infos: Mapping[str, WorkloadInfo],
    where: Platform,
    op: Op,
) -> CostModel:
    """The default recipe on the first featurizer's vectors."""
    from indexer.training.cost_model.settings import CostSettings
    from indexer.training.cost_model.train import train

    return train(_samples(evidence, vectors, infos, where, op), CostSettings())


def _trees(
    evidence: RunMatrix,
    vectors: Vectors,
    infos: Mapping[str, WorkloadInfo],
    where: Platform,
    op: Op,
) -> CostModel:
    from indexer.training.cost_model.settings import forest
    from indexer.training.cost_model.train import train

    return train(_samples(evidence, vectors, infos, where, op), forest())


def _samples(
    evidence: RunMatrix,
    vectors: Vectors,
    infos: Mapping[str, WorkloadInfo],
    where: Platform,
    op: Op,
) -> Samples:
    from embeddb.learning.samples import from_evidence

    featurizer, raw = next(iter(vectors.items()), ("", {}))
    return from_evidence(evidence, raw, infos, where, op, featurizer=(featurizer, ""))
