"""The learned ranker of tiles that `embeddb eval --learned` judges: boosted trees of kernels, grown
anew in every fold."""

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
    """Trees asked as a query asks a cost model. A scorer is given features alone: `kernels` finds
    what has them."""

    trees: KernelTrees
    kernels: Callable[[NDArray[np.float32]], TensorGraph]

    def score(
        self, asked: Problem, configs: Sequence[Config]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """As `Scorer.score`; how far it errs is unknown. Raises: NothingFound for features of no
        known kernel."""
        said = -self.trees.scores(self.kernels(asked.vector), configs).astype(np.float64)
        return said - said.mean(), np.full(len(configs), np.nan)


def kernel_rankers(
    known: Callable[[str], TensorGraph | None],
    vectors: Mapping[str, NDArray[np.float32]],
) -> dict[str, Fit]:
    """By name, for op `tile`. `known` gives a kernel by its id, `vectors` raw features float32[d]
    by id: those that rankers are asked with."""
    by_vector = {vector.tobytes(): kernel_id for kernel_id, vector in vectors.items()}

    def found(vector: NDArray[np.float32]) -> TensorGraph:
        kernel = known(by_vector.get(vector.tobytes(), ""))
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
        samples = _samples(evidence, known, analysis)
        return KernelTreesScorer(grown(samples, analysis=analysis), found)

    return {"kernel-trees": fit}


def _samples(
    evidence: RunMatrix,
    known: Callable[[str], TensorGraph | None],
    analysis: Analysis | None,
) -> list[KernelSample]:
    """Raises: NothingFound for fewer than two kernels."""
    made = []
    for at, row in enumerate(evidence.rows):
        kernel, runs = known(row.pattern_id), evidence.row(at)
        if kernel is None:
            continue
        seconds = zip(runs.column, runs.seconds, strict=True)
        told = {evidence.configs[c]: float(s) for c, s in seconds}
        sample = sample_of(kernel, told, analysis=analysis)
        if len(sample.seconds) > 1:
            made.append(sample)
    if len(made) < 2:
        raise NothingFound("fewer than two kernels have tiles to learn from")
    return made
