"""Cost networks that do not ship: COGNATE's ablations (sequence predictors, feature augmentation)
and WACO's model. Importing this adds them to the product's forms, latents and losses.

Ours, because no paper states it: sequence predictors have one layer, and read the last state (LSTM,
GRU) or the mean (transformer); under feature augmentation (FA) every parameter of a platform has a
place of its own, under feature mapping (FM) only those that the common loop nest does not map.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from embeddb.core.config import Op
from embeddb.core.errors import ModelError, UsageError
from embeddb.core.files import model_file
from embeddb.core.sizes import signed_log
from embeddb.cost_model.encoders.latent import LATENT_DIM, READERS, LatentEncoder, checked
from embeddb.cost_model.encoders.own_parameters import Block, Layout
from embeddb.cost_model.model import CostModel, space_digest
from embeddb.cost_model.network_numpy import FORMS, Mlp
from embeddb.cost_model.network_torch import MATRIX, NEST, CostNetwork, MlpPredictor, Shape, mapper
from embeddb.platforms.kernel import KernelSpace
from embeddb.platforms.platform import Platform
from indexer.training.cost_model.latent_fit import FITTERS
from indexer.training.cost_model.losses import PAIRWISE
from indexer.training.cost_model.settings import LOSSES, CostSettings

#: Numbers of a token, and of a configuration after WACO's program embedder.
TOKEN, PROGRAM = 64, 128
_HEADS = 4
#: Numbers of the vector that all platforms share under feature augmentation.
_AUGMENTED = 256
_MOST = 1 << 20

# -- networks --------------------------------------------------------------------------------------


class TorchForm(Mlp):
    """Asked by torch: as slow as training, and needed for nothing but judging."""

    def shapes(self, d: int, e: int, settings: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
        made = self.network(d, e, settings).state_dict()
        return {name: tuple(tensor.shape) for name, tensor in made.items()}

    def prepared(
        self, weights: Any, nests: Any, latents: Any, settings: Mapping[str, Any]
    ) -> tuple[Tensor, Tensor, Mapping[str, Any]]:
        return torch.from_numpy(nests), torch.from_numpy(latents), MappingProxyType(settings)

    def scores(self, weights: Any, x: Any, prepared: Any) -> NDArray[np.float64]:
        nests, latents, settings = prepared
        net = self.network(x.shape[1] - 1, latents.shape[1], settings)
        model_file.fill(net, {n: torch.from_numpy(a.copy()) for n, a in weights.items()})
        index = torch.arange(len(nests))[None]
        with torch.no_grad():
            each = net.eval()(torch.from_numpy(x), nests, latents, index)[0]
        return each.numpy().astype(np.float64)


class SequenceForm(TorchForm):
    """The parts are read as a sequence (COGNATE, Figure 8) by `lstm`, `gru` or `transformer`."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def network(
        self, inputs: int, latent: int, settings: Mapping[str, Any], dropout: float = 0.0
    ) -> nn.Module:
        shape = Shape(inputs, latent, settings["fusion"], bool(settings["bilinear"]))
        return SequenceNetwork(self.kind, shape, dropout)


class WacoForm(TorchForm):
    """WACO's program embedder in the place of mapper and latent; with `every` it reads every
    parameter of a platform, not only its own."""

    def __init__(self, *, every: bool) -> None:
        self.every = every

    def layout(self, kernel: KernelSpace) -> Layout:
        return TablesLayout(every_parameter(kernel) if self.every else kernel)

    def network(
        self, inputs: int, latent: int, settings: Mapping[str, Any], dropout: float = 0.0
    ) -> nn.Module:
        shape = WacoShape(inputs, latent, "concat", bool(settings["bilinear"]))
        return WacoNetwork(shape, dropout=dropout)


class EveryForm(Mlp):
    """The product's network, reading every parameter of a platform."""

    def layout(self, kernel: KernelSpace) -> Layout:
        return Layout(every_parameter(kernel))


class SequenceNetwork(CostNetwork):
    def __init__(self, kind: str, shape: Shape, dropout: float) -> None:
        self._kind = kind
        super().__init__(shape, dropout=dropout)

    def draw(self, dropout: float) -> None:
        self.mapper = mapper()
        self.predictor = Sequence(self._kind, self.shape)


class Sequence(nn.Module):
    """LSTM, GRU or transformer over the parts as tokens (COGNATE, Figure 8)."""

    def __init__(self, kind: str, shape: Shape) -> None:
        super().__init__()
        self.of_matrix = nn.Linear(MATRIX, TOKEN)
        self.of_latent = nn.Linear(shape.latent, TOKEN)
        self.places = nn.Parameter(torch.zeros(3, TOKEN))
        if kind == "transformer":
            self.body: nn.Module = nn.TransformerEncoderLayer(
                TOKEN, _HEADS, dim_feedforward=128, dropout=0.0, batch_first=True
            )
        else:
            recurrent = nn.LSTM if kind == "lstm" else nn.GRU
            self.body = recurrent(TOKEN, TOKEN, batch_first=True)
        self.recurrent = kind != "transformer"
        self.last = nn.Linear(TOKEN, 1)

    def forward(self, matrix: Tensor, tokens: list[Tensor], index: Tensor) -> Tensor:
        own = [tokens[0], *(self.of_latent(token) for token in tokens[1:])]
        b, k = index.shape
        parts = [self.of_matrix(matrix)[:, None].expand(b, k, TOKEN), *(t[index] for t in own)]
        sequence = torch.stack([p.reshape(b * k, TOKEN) for p in parts], 1)
        sequence = sequence + self.places[: sequence.shape[1]]
        read = self.body(sequence)
        read = read[0][:, -1] if self.recurrent else read.mean(1)
        out: Tensor = self.last(read)
        return out.reshape(b, k)


@dataclass(frozen=True, slots=True)
class WacoShape(Shape):
    @property
    def fused(self) -> int:
        return PROGRAM


class WacoNetwork(CostNetwork):
    def draw(self, dropout: float) -> None:
        self.program = ProgramEmbedder(self.shape.latent)
        self.predictor = MlpPredictor(self.shape.fused, dropout)

    def tokens(self, nest: Tensor, latent: Tensor) -> list[Tensor]:
        return [self.program(torch.cat([nest, latent], 1))]


class ProgramEmbedder(nn.Sequential):
    """WACO's program embedder: float32[u,128] of loop nests and own parameters float32[u,65+e].

    WACO looks up an embedding for the value of each parameter, reads an order as a flat permutation
    matrix, and puts a linear layer over all of it side by side. As nothing bends in between, that
    is a sum of embeddings of the layer's size, one for each parameter: the columns of the first
    layer here, for its input has a column for each value and each place of an order
    (`TablesLayout`). Numbers without a table, the splits of the common loop nest, are
    scaled log2. First weights are normal, as `nn.Embedding` has them: of as many inputs as there
    are columns, few are not zero.
    """

    def __init__(self, latent: int) -> None:
        tables = nn.Linear(NEST + latent, PROGRAM)
        nn.init.normal_(tables.weight, std=0.25)
        super().__init__(tables, nn.ReLU(), nn.Linear(PROGRAM, PROGRAM))


# -- configurations --------------------------------------------------------------------------------


def every_parameter(kernel: KernelSpace) -> KernelSpace:
    """The space without its common loop nest: all parameters are the platform's own."""
    names = tuple(p.name for p in kernel.space.params)
    return replace(kernel, mapping=None, heterogeneous=names)


class TablesBlock(Block):
    @property
    def names(self) -> tuple[str, ...]:
        param, name = self.param, self.param.name
        plain = super().names
        if param.kind != "int" or not plain:
            return plain
        return (*((f"{name}?",) if param.when else ()), *(f"{name}={v}" for v in param.values))

    def row(self, value: Any) -> list[float]:
        plain = super().row(value)
        if self.param.kind != "int" or value is None:
            return plain
        return [*([1.0] if self.param.when else []), *self._one_hot(value)]

    def _one_hot(self, value: Any) -> list[float]:
        """The place of a value of an int, or of the declared number that is nearest to it."""
        if value not in self.param.values:
            if not isinstance(value, (int, float)):
                raise self._unknown(value)
            numbers = [v for v in self.param.values if isinstance(v, (int, float))]
            if not numbers:
                raise self._unknown(value)
            value = min(numbers, key=lambda known: abs(signed_log(known) - signed_log(value)))
        return [float(value == known) for known in self.param.values]


class TablesLayout(Layout):
    """An int, too, is one-hot over its declared values (of others the nearest), as the table of an
    embedding wants it."""

    block_type = TablesBlock


# -- latents and losses ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Augmented:
    """Feature augmentation: the raw numbers from column `start` of `dim`, zero elsewhere.

    Source: COGNATE, Section 3.3 ("code optimizations that are not applicable to a selected
    hardware platform are zeroed out"). Parameters of two platforms are two, whatever their names.
    """

    width: int
    start: int
    dim: int

    def encode(self, raw: NDArray[np.float32]) -> NDArray[np.float32]:
        out = np.zeros((len(checked(raw, self.width)), self.dim), dtype=np.float32)
        out[:, self.start : self.start + self.width] = raw
        return out

    def to_tensors(self) -> dict[str, NDArray[Any]]:
        return {"place": np.array([self.width, self.start, self.dim], dtype=np.int64)}

    @classmethod
    def read(cls, arrays: Mapping[str, NDArray[Any]]) -> Augmented:
        """Raises: ModelError for tensors that are not those of `to_tensors`."""
        place = arrays.get("place")
        if len(arrays) != 1 or place is None or place.shape != (3,) or place.dtype != np.int64:
            raise ModelError("latent encoder fa: needs place int64[3] and nothing else")
        width, start, dim = map(int, place)
        if min(width, start) < 0 or not LATENT_DIM <= dim <= _MOST or start > dim - width:
            raise ModelError(f"latent encoder fa: no place {width}, {start}, {dim}")
        return cls(width, start, dim)


def augmented(
    platform: Platform, ops: Any, settings: CostSettings, start: CostModel | None
) -> LatentEncoder:
    """Parameters come after those of the platforms before."""
    if start is not None and start.card["platform"]["space"] == space_digest(platform, ops[0]):
        return start.encoder
    op: Op = ops[0]
    width, at = FORMS[settings.predictor].layout(platform.kernel(op)).width, 0
    if start is not None:
        place = start.encoder.to_tensors()["place"]
        at = int(place[0] + place[1])
    if at + width > _AUGMENTED:
        raise UsageError(f"feature augmentation has {_AUGMENTED} places, not {at + width}")
    return Augmented(width, at, _AUGMENTED)


FORMS |= {kind: SequenceForm(kind) for kind in ("lstm", "gru", "transformer")}
FORMS |= {"waco-fm": WacoForm(every=False), "waco-fa": WacoForm(every=True), "every": EveryForm()}
READERS["fa"] = Augmented.read
FITTERS["fa"] = augmented
PAIRWISE["logistic"] = lambda ahead: functional.softplus(-ahead)
LOSSES.append("logistic")
