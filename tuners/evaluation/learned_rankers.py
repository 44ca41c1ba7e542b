"""The learned rankers of `embeddb eval`, trained per fold: the process that `query` learns by
itself, and with `--learned` cost models of matrices with the settings of the product and boosted
trees of tiles."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.errors import MissingDependency, NothingFound, UsageError
from embeddb.core.extras import install_hint
from embeddb.ranking.prediction import ranks
from tuners.evaluation.learned import ALONE

if TYPE_CHECKING:
    from embeddb.core.records import WorkloadInfo
    from embeddb.core.row_lengths import RowLengths
    from embeddb.cost_model import Problem
    from embeddb.cost_model.graph_model import KernelTrees
    from embeddb.cost_model.model import CostModel
    from embeddb.index.lookup import Lookup
    from embeddb.index.run_matrix import RunMatrix
    from embeddb.platforms.platform import Platform
    from embeddb.tensors.tensor_graph import TensorGraph
    from indexer.training.cost_model.settings import CostSettings
    from indexer.training.tensors.samples import KernelSample
    from tuners.evaluation.bench import Bench, Vectors
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
    }


def own_rankers(db: Lookup, bench: Bench, *, always: bool) -> dict[str, Fit]:
    """The process by name where `query` learns one; `always`: also where it ranks by a trained
    model."""
    from embeddb.learning.few_samples import enough

    own = bench.evidence.take(bench.of_instance(np.arange(len(bench.evidence.rows))))
    if not bench.op.workload.learned or not enough(own):
        return {}
    model, _ = db.usable_model(bench.platforms[own.rows[0].platform], bench.op)
    return {ALONE: partial(_train, None)} if always or not ranks(model, bench.op) else {}


def _train(
    settings: CostSettings | None,
    evidence: RunMatrix,
    vectors: Vectors,
    infos: Mapping[str, WorkloadInfo],
    where: Platform,
    op: Op,
    lengths: Mapping[str, RowLengths | None],
) -> CostModel:
    """A cost model, without `settings` the process of few samples."""
    from embeddb.learning.few_samples import process_card
    from embeddb.learning.process import learn
    from embeddb.learning.samples import from_evidence
    from indexer.training.cost_model.train import train

    featurizer, raw = next(iter(vectors.items()), ("", {}))
    samples = from_evidence(evidence, raw, infos, where, op, featurizer=(featurizer, ""))
    samples = replace(samples, lengths=tuple(lengths[row.pattern_id] for row in samples.rows))
    if settings is None:
        return learn(samples, process_card(samples))
    return train(samples, settings)


@dataclass(frozen=True, slots=True, eq=False)
class KernelTreesScorer:
    """Boosted trees as a `Scorer`; `kernels` maps the features of a problem to its kernel."""

    trees: KernelTrees
    kernels: Callable[[NDArray[np.float32]], TensorGraph]

    def score(
        self, problem: Problem, configs: Sequence[Config]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Scores, with unknown errors. Raises: NothingFound for features without a kernel."""
        gains = -self.trees.scores(self.kernels(problem.vector), configs).astype(np.float64)
        return gains - gains.mean(), np.full(len(configs), np.nan)


def kernel_rankers(
    kernel_by_id: Callable[[str], TensorGraph | None],
    vectors: Mapping[str, NDArray[np.float32]],
) -> dict[str, Fit]:
    """The rankers of op `tile` by name; `vectors` are the raw features float32[d] of problems by
    kernel id."""
    from embeddb.tensors.roofline.analysis import analysis_of
    from indexer.training.tensors.grown_trees import grown
    from indexer.training.tensors.samples import sample_of

    by_vector = {vector.tobytes(): kernel_id for kernel_id, vector in vectors.items()}

    def kernel_of(vector: NDArray[np.float32]) -> TensorGraph:
        kernel = kernel_by_id(by_vector.get(vector.tobytes(), ""))
        if kernel is None:
            raise NothingFound("trees of kernels need the structure of every kernel that is judged")
        return kernel

    def fit(
        evidence: RunMatrix,
        vectors: Vectors,
        infos: Mapping[str, WorkloadInfo],
        where: Platform,
        op: Op,
        lengths: Mapping[str, RowLengths | None],
    ) -> KernelTreesScorer:
        """Raises: NothingFound for fewer than two kernels."""
        if op.name != "tile":
            raise UsageError(f"trees of kernels rank tiles, not {op}")
        analysis = analysis_of(where.name, op.name, where.environment)
        samples: list[KernelSample] = []
        for at, row in enumerate(evidence.rows):
            kernel, runs = kernel_by_id(row.pattern_id), evidence.row(at)
            if kernel is None:
                continue
            pairs = zip(runs.column, runs.seconds, strict=True)
            seconds = {evidence.configs[c]: float(s) for c, s in pairs}
            sample = sample_of(kernel, seconds, analysis=analysis)
            if len(sample.seconds) > 1:
                samples.append(sample)
        if len(samples) < 2:
            raise NothingFound("fewer than two kernels have tiles to learn from")
        return KernelTreesScorer(grown(samples, analysis=analysis), kernel_of)

    return {"kernel-trees": fit}
