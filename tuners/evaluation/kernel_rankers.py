"""The learned ranker of tiles of `embeddb eval --learned`: boosted trees, trained per fold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.errors import NothingFound, UsageError
from embeddb.core.records import WorkloadInfo
from embeddb.cost_model import Problem
from embeddb.cost_model.graph_model import KernelTrees
from embeddb.index.run_matrix import RunMatrix
from embeddb.platforms.platform import Platform
from embeddb.tensors.roofline.analysis import Analysis, analysis_of
from embeddb.tensors.tensor_graph import TensorGraph
from indexer.training.tensors.grown_trees import grown
from indexer.training.tensors.samples import KernelSample, sample_of
from tuners.evaluation.figures import Fit

Vectors = Mapping[str, Mapping[str, NDArray[np.float32]]]


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
    ) -> KernelTreesScorer:
        if op.name != "tile":
            raise UsageError(f"trees of kernels rank tiles, not {op}")
        analysis = analysis_of(where.name, op.name, where.environment)
        samples = _samples(evidence, kernel_by_id, analysis)
        return KernelTreesScorer(grown(samples, analysis=analysis), kernel_of)

    return {"kernel-trees": fit}


def _samples(
    evidence: RunMatrix,
    kernel_by_id: Callable[[str], TensorGraph | None],
    analysis: Analysis | None,
) -> list[KernelSample]:
    """Raises: NothingFound for fewer than two kernels."""
    samples = []
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
    return samples
