"""The learned model of tensor kernels at query time: tiles of one kernel ranked without running
them, or the seconds of a fused kernel.

The network is `embeddb.tensors.encoding.predictor`; `KernelTrees` and `operation_sums` are the
alternatives. Here each is a model of one op on one platform, whose scores become log gains.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.errors import ModelError
from embeddb.core.files import model_file
from embeddb.core.files.safe_read import refusing
from embeddb.cost_model.model import platform_mismatch
from embeddb.cost_model.operation_sums import OperationSums
from embeddb.cost_model.trees_numpy import Forest
from embeddb.platforms.platform import Platform
from embeddb.tensors.encoding.features import (
    STATISTICS,
    TILE,
    TILED,
    KernelGraph,
    encoding_version,
    flat_rows,
)
from embeddb.tensors.encoding.predictor import (
    TRAIN_AGAIN,
    GraphPredictor,
    KernelNetwork,
    KernelPredictor,
    reads_rows,
)
from embeddb.tensors.roofline.analysis import ANALYSIS_VERSION, ROW_LENGTH, Analysis
from embeddb.tensors.tensor_graph import TensorGraph

if TYPE_CHECKING:
    Floats = NDArray[np.float64]


class KernelTrees(GraphPredictor):
    """Boosted trees (one member) that rank tiles."""

    task = "tile"

    def _open(self, network: Mapping[str, Any], weights: Mapping[str, NDArray[Any]]) -> None:
        if network["task"] != self.task:
            raise ModelError(f"its trees are of {network['task']!r}")
        if network["encoding"] != encoding_version():
            raise ModelError("its trees read kernels that are encoded otherwise")
        self._analysis = _analysis(network)
        # Columns that are the same for all tiles of a kernel are read once.
        analysed = 0 if self._analysis is None else ROW_LENGTH
        blocks = [slice(0, STATISTICS), slice(STATISTICS, TILED + analysed)]
        self._forest = Forest([weights], blocks)

    def rows(self, kernel: TensorGraph, tiles: Sequence[Mapping[str, Any]]) -> NDArray[np.float32]:
        """Rows float32[c,t] of tiles; the last columns are the analytical model's, if any."""
        rows = super().rows(kernel, tiles)
        if self._analysis is None:
            return rows
        analytical = self._analysis.rows(kernel, tiles).astype(np.float32)
        return np.concatenate([rows, analytical], axis=1)

    def predicted(self, graph: KernelGraph, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        error = np.asarray(self._forest.score(table_of(graph, rows))[0], dtype=np.float32)
        return error if self._analysis is None else rows[:, len(TILE)] + error


def table_of(graph: KernelGraph, rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Inputs float32[c,f] of the trees for a kernel and the rows float32[c,t] of tiles
    (`KernelTrees.rows`)."""
    plain = flat_rows(graph, rows[:, : len(TILE)])
    return np.concatenate([plain, rows[:, len(TILE) :]], axis=1)


def _analysis(read: Mapping[str, Any]) -> Analysis | None:
    """The analytical model of a card. Raises: ModelError for malformed facts of a machine or
    another version of the model."""
    facts = read.get("machine")
    if facts is None:
        return None
    if not (isinstance(facts, dict) and all(isinstance(v, str) for v in facts.values())):
        raise ModelError("the machine in its card is none")
    if read.get("analysis") != ANALYSIS_VERSION:
        raise ModelError("its trees mend another version of the analytical model")
    return Analysis(facts)


def predictor_from(
    card: Mapping[str, Any], weights: Mapping[str, NDArray[Any]], *, where: str = ""
) -> KernelPredictor:
    """The network, trees or sums described by a card.

    Raises: ModelError for weights of another.
    """
    if not reads_rows(card):
        return KernelNetwork(card, weights, where=where)
    kind = OperationSums if card.get("kernel") == OperationSums.task else KernelTrees
    return kind(card, weights, where=where)


class GraphModel:
    """A network, trees or sums of kernels, the card, and the version: the digest of the file."""

    def __init__(self, network: KernelPredictor, version: str = "") -> None:
        """Raises: ModelError for a card that does not say what a model is for."""
        self.network, self.version = network, version
        self.card: Mapping[str, Any] = network.card
        platform, fit = self.card.get("platform"), self.card.get("calibration")
        names = ("name", "id", "space")
        if not isinstance(platform, dict) or not all(
            isinstance(platform.get(name), str) for name in names
        ):
            raise ModelError("its card does not say of which platform it is", hint=TRAIN_AGAIN)
        if not isinstance(fit, dict) or not all(
            type(fit.get(name)) is float and 0 <= fit[name] < 1e6 for name in ("slope", "floor")
        ):
            raise ModelError("its card has no calibration", hint=TRAIN_AGAIN)
        guard = fit.get("guard", math.inf)
        if type(guard) is not float or not guard >= 0:
            raise ModelError("the guard in its card is none", hint=TRAIN_AGAIN)

    @classmethod
    def load(cls, path: str | Path) -> GraphModel:
        """The model of a file. Raises: ModelError naming the file."""
        file = model_file.read(path, kind="kernels")
        with refusing(ModelError, where=str(path), hint=TRAIN_AGAIN):
            return cls(predictor_from(file.card, file.tensors, where=str(path)), file.version)

    #: Its first few answers are a set, not the best predicted in order (`Prediction.plain`).
    plain = False

    @property
    def flat(self) -> bool:
        """True if the time of a prediction does not depend on the size of the kernel; a graph
        network reads all operations for each tile."""
        return reads_rows(self.card)

    @property
    def analysed(self) -> bool:
        """True if it predicts the error of the analytical model (trees)."""
        return "machine" in self.card["network"]

    @property
    def instance(self) -> str:
        """The platform instance whose runs it learned from."""
        return str(self.card["platform"]["id"])

    @property
    def guard(self) -> float:
        """Predicted log gain over the default above which its answer replaces the default; infinite
        for a model that was never judged."""
        return float(self.card["calibration"].get("guard", math.inf))

    def mismatch(self, platform: Platform, op: Op) -> str:
        """Return the reason not to use it here, in one line; empty if there is none."""
        return platform_mismatch(self.card, self.network.task, platform, op)

    def predict(self, kernel: TensorGraph, configs: Sequence[Config]) -> Floats:
        """Scores float64[c], lower is faster, comparable among configurations of one kernel.

        Raises: ModelError where a score is not finite.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            return _finite(self.network.scores(kernel, configs))

    def without(self, kernel: TensorGraph, configs: Sequence[Config]) -> Floats:
        """float64[n,c] what it would predict of each configuration if the n-th operation were
        hidden: a network then sees its edges alone, sums leave it out.

        Raises: ModelError as `predict`.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            return _finite(self.network.without(kernel, configs))

    def seconds(self, kernel: TensorGraph) -> float:
        """Predicted seconds of a fused kernel. Raises: ModelError for a model of tiles."""
        return self.network.seconds(kernel)

    def by_operation(self, kernel: TensorGraph) -> tuple[float, dict[int, float]] | None:
        """Seconds of the call of a fused kernel, and of its operations by place; None where the
        model predicts only their sum."""
        network = self.network
        return network.by_operation(kernel) if isinstance(network, OperationSums) else None

    def apart(self, kernel: TensorGraph) -> float | None:
        """Ratio of the largest to the smallest prediction of a fused kernel's seconds among its
        members; None for a model without members."""
        return self.network.apart(kernel) if isinstance(self.network, OperationSums) else None

    def gains(self, kernel: TensorGraph, configs: Sequence[Config]) -> tuple[Floats, Floats]:
        """Log gain float64[c] over the mean of these configurations, higher is faster, and its
        standard deviation float64[c] on kernels held out of the training.

        Raises: ModelError as `predict`.
        """
        fit, scores = self.card["calibration"], self.predict(kernel, configs)
        return -fit["slope"] * (scores - scores.mean()), np.full(len(scores), fit["floor"])


def _finite(scores: NDArray[np.float32]) -> Floats:
    """Scores as float64. Raises: ModelError unless all are finite."""
    if not np.isfinite(scores).all():
        raise ModelError("predicts what is no number", hint=TRAIN_AGAIN)
    return scores.astype(np.float64)
