"""The learned model of tensor kernels at query time: tiles of one kernel ranked without running
them, or the seconds of a fused kernel.

The network is `embeddb.tensors.encoding.forward`, what may answer in its place is in
`trees_numpy` and `operation_sums`; here any is a model of one op on one platform, whose scores
are told as log gains.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.errors import ModelError, UsageError
from embeddb.core.files import model_file
from embeddb.core.files.safe_read import refusing
from embeddb.cost_model import Problem
from embeddb.cost_model.model import space_digest
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
from embeddb.tensors.encoding.forward import KernelNetwork
from embeddb.tensors.encoding.predictor import (
    TRAIN_AGAIN,
    GraphPredictor,
    KernelPredictor,
    reads_rows,
)
from embeddb.tensors.roofline.analysis import ANALYSIS_VERSION, ROW_LENGTH, Analysis
from embeddb.tensors.tensor_graph import TensorGraph

if TYPE_CHECKING:
    Floats = NDArray[np.float64]


class KernelTrees(GraphPredictor):
    """Of one member, of tiles."""

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
        """float32[c,t], the last columns what the analytical model says, where there is one."""
        rows = super().rows(kernel, tiles)
        if self._analysis is None:
            return rows
        told = self._analysis.rows(kernel, tiles).astype(np.float32)
        return np.concatenate([rows, told], axis=1)

    def predicted(self, graph: KernelGraph, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        told = rows[:, len(TILE) :] if self._analysis is not None else None
        table = table_of(graph, rows[:, : len(TILE)], told)
        missed = np.asarray(self._forest.score(table)[0], dtype=np.float32)
        return missed if told is None else told[:, 0] + missed


def table_of(
    graph: KernelGraph,
    tiles: NDArray[np.float32],
    told: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """float32[c,f] that trees read of a kernel under tiles float32[c,t]; `told` float32[c,12] is
    what the analytical model says of them (`Analysis.rows`), if it is asked."""
    table = flat_rows(graph, tiles)
    return table if told is None else np.concatenate([table, told], axis=1)


def _analysis(read: Mapping[str, Any]) -> Analysis | None:
    """Raises: ModelError for facts of a machine that are none, and for another version of it."""
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
    """The network, trees or sums that a card tells of.

    Raises: ModelError for weights of another.
    """
    if not reads_rows(card):
        return KernelNetwork(card, weights, where=where)
    kind = OperationSums if card.get("kernel") == OperationSums.task else KernelTrees
    return kind(card, weights, where=where)


def predictor_of(path: str | Path) -> KernelPredictor:
    """The network, trees or sums of a file. Raises: ModelError naming it."""
    file = model_file.read(path, kind="kernels")
    return predictor_from(file.card, file.tensors, where=str(path))


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
        with refusing(ModelError, where=str(path), hint=TRAIN_AGAIN):
            return cls(predictor_of(path), model_file.version_of(path))

    #: Its first few answers are a set, not the best predicted in order (`Prediction.plain`).
    plain = False

    @property
    def flat(self) -> bool:
        """Whether a tile of a large kernel is predicted as fast as one of a small kernel: a
        network of graphs looks at all operations for each tile."""
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
        """The log gain it must promise over the default to be believed against it; of a model that
        was never judged, more than anything can promise."""
        return float(self.card["calibration"].get("guard", math.inf))

    def mismatch(self, platform: Platform, op: Op) -> str:
        """Why it may not be used here, one line; empty if it may."""
        known = self.card["platform"]
        if known["name"] != platform.name:
            return f"trained for the platform {known['name']}, not {platform.name}"
        if "@" in self.instance and self.instance != platform.id:
            return f"trained on the runs of {self.instance}, and this is {platform.id}"
        if self.network.task != op.name or op.name not in platform.kernels:
            return f"trained for {self.network.task}, not {op.name}"
        if known["space"] != space_digest(platform, op):
            return f"trained for another space of {platform.name} {op.name} than it has now"
        return ""

    def predict(self, kernel: TensorGraph, configs: Sequence[Config]) -> Floats:
        """float64[c], lower is faster: of use only among configurations of one kernel.

        Raises: ModelError where the weights make no number of it.
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
        """Of a kernel under op `fused`. Raises: ModelError for a model of tiles."""
        return self.network.seconds(kernel)

    def by_operation(self, kernel: TensorGraph) -> tuple[float, dict[int, float]] | None:
        """Seconds of the call of a fused kernel, and by place of its operations; None where the
        model does not tell them apart."""
        network = self.network
        return network.by_operation(kernel) if isinstance(network, OperationSums) else None

    def apart(self, kernel: TensorGraph) -> float | None:
        """By which factor its members differ about the seconds of a fused kernel; None for a model
        without such."""
        return self.network.apart(kernel) if isinstance(self.network, OperationSums) else None

    def of(self, kernel: TensorGraph) -> KernelScorer:
        """What ranks the tiles of this kernel."""
        return KernelScorer(self, kernel)


@dataclass(frozen=True, slots=True)
class KernelScorer:
    """A model asked about one kernel, in the form that a query takes a cost model in."""

    model: GraphModel
    kernel: TensorGraph

    @property
    def guard(self) -> float:
        """The model's."""
        return self.model.guard

    def score(self, asked: Problem, configs: Sequence[Config]) -> tuple[Floats, Floats]:
        """float64[c] log gain over the mean of these configurations, higher is faster, and
        float64[c] its standard deviation, as on kernels held out of the training. The kernel is
        known: vector and sizes are not looked at.

        Raises: UsageError for another op; ModelError as `predict`.
        """
        if asked.op.name != self.model.network.task:
            raise UsageError(f"the model is of {self.model.network.task}, not {asked.op.name}")
        fit = self.model.card["calibration"]
        said = self.model.predict(self.kernel, configs)
        return -fit["slope"] * (said - said.mean()), np.full(len(said), fit["floor"])


def _finite(said: NDArray[np.float32]) -> Floats:
    """Raises: ModelError for what is no number."""
    if not np.isfinite(said).all():
        raise ModelError("predicts what is no number", hint=TRAIN_AGAIN)
    return said.astype(np.float64)
