"""The learned rankers of `embeddb eval --learned`: cost models with the settings of the product,
and the process that `query` learns from few samples."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

from embeddb.core.config import Op
from embeddb.core.errors import MissingDependency
from embeddb.core.extras import install_hint

if TYPE_CHECKING:
    from embeddb.core.records import WorkloadInfo
    from embeddb.cost_model.model import CostModel
    from embeddb.index.run_matrix import RunMatrix
    from embeddb.platforms.platform import Platform
    from indexer.training.cost_model.settings import CostSettings
    from tuners.evaluation.bench import Vectors
    from tuners.evaluation.figures import Fit


def learned_rankers() -> dict[str, Fit]:
    """The rankers of matrices by name.

    Raises: MissingDependency without torch.
    """
    if find_spec("torch") is None:
        raise MissingDependency(
            "--learned trains a cost model, which needs torch",
            hint=install_hint("learn"),
        )
    from indexer.training.cost_model.settings import CostSettings, forest

    return {
        "costmodel": partial(_train, CostSettings()),
        "boosted": partial(_train, forest()),
        "process": partial(_train, None),
    }


def _train(
    settings: CostSettings | None,
    evidence: RunMatrix,
    vectors: Vectors,
    infos: Mapping[str, WorkloadInfo],
    where: Platform,
    op: Op,
) -> CostModel:
    """A cost model, without `settings` the process of few samples."""
    from embeddb.learning.few_samples import process_card
    from embeddb.learning.process import learn
    from embeddb.learning.samples import from_evidence
    from indexer.training.cost_model.train import train

    featurizer, raw = next(iter(vectors.items()), ("", {}))
    samples = from_evidence(evidence, raw, infos, where, op, featurizer=(featurizer, ""))
    if settings is None:
        return learn(samples, process_card(samples))
    return train(samples, settings)
