"""The cost model's network: matrix vector and configuration to one score, higher is faster.

COGNATE (Section 3, Table 6; DASH has the same parts): the vector of a matrix becomes 128 numbers,
the common loop nest 64 (`mapper`), and the latent of the platform's own parameters is taken as it
is. They are fused (`add`: 192 numbers, the table; `concat`: 256 with latents of 64, the text) and
a predictor makes the score: `mlp` 128, 64, 1, or the paper's ablation `lstm`, `gru`,
`transformer`, which read the parts as a sequence.

Ours, because no paper states it: hidden layers of 128 (matrix) and 64 (mapper), ReLU between them,
dropout, log2 of the op's width beside the matrix, one layer and mean pooling in the sequence
predictors, and the bilinear term u(matrix) . v(configuration), which `bilinear` turns off.

The vector may be that of a sparse network trained together with all this
(`indexer.training.cost_model.encoder`): then this is the rest of the papers' model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from embeddb.core.errors import UsageError
from embeddb.core.files import model_file
from embeddb.cost_model.network_numpy import FUSIONS, NETWORKS

__all__ = ["CostNetwork", "ProgramEmbedder", "Shape", "built"]

#: Numbers of a loop nest and its tiles, of the matrix embedding, of the mapper, and of a token.
NEST, MATRIX, MAPPED, TOKEN = 65, 128, 64, 64
#: Numbers of a configuration after WACO's program embedder.
PROGRAM = 128
_BILINEAR, _HEADS = 32, 4


@dataclass(frozen=True, slots=True)
class Shape:
    """d numbers of a matrix, e of a latent, and how they are joined: by mapper and fusion, or by
    WACO's program embedder."""

    inputs: int
    latent: int = 64
    predictor: str = "mlp"
    fusion: str = "concat"
    bilinear: bool = True
    embedder: bool = False

    def __post_init__(self) -> None:
        """Raises: UsageError for parts that do not fit together."""
        if self.predictor not in NETWORKS:
            raise UsageError(f"no predictor {self.predictor!r}: {', '.join(NETWORKS)}")
        if self.fusion not in FUSIONS:
            raise UsageError(f"no fusion {self.fusion!r}: {', '.join(FUSIONS)}")
        if self.embedder and self.predictor != "mlp":
            raise UsageError("a program embedder goes with the predictor mlp")
        if self.fusion == "add" and self.latent != MAPPED:
            raise UsageError(
                f"fusion add needs latents of {MAPPED} numbers, not {self.latent}",
                hint="use the fusion concat with the latent encoder fa",
            )

    @property
    def fused(self) -> int:
        """Numbers of a configuration after fusion."""
        if self.embedder:
            return PROGRAM
        return MAPPED if self.fusion == "add" else MAPPED + self.latent


class CostNetwork(nn.Module):
    """Scores of k configurations on each of b matrices; u distinct configurations are encoded
    once and looked up, which is most of the work saved."""

    def __init__(self, shape: Shape, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.shape = shape
        # One more input: the width of the op.
        self.matrix = nn.Sequential(
            nn.Linear(shape.inputs + 1, MATRIX),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(MATRIX, MATRIX),
        )
        if shape.embedder:
            self.program = ProgramEmbedder(shape.latent)
        else:
            self.mapper = nn.Sequential(
                nn.Linear(NEST, MAPPED), nn.ReLU(), nn.Linear(MAPPED, MAPPED)
            )
        if shape.predictor == "mlp":
            self.predictor: nn.Module = _Mlp(shape.fused, dropout)
        else:
            self.predictor = _Sequence(shape)
        if shape.bilinear:
            self.u = nn.Linear(MATRIX, _BILINEAR)
            self.v = nn.Sequential(
                nn.Linear(shape.fused, MATRIX), nn.ReLU(), nn.Linear(MATRIX, _BILINEAR)
            )

    def forward(self, x: Tensor, nest: Tensor, latent: Tensor, index: Tensor) -> Tensor:
        """float32[b,k] from x float32[b,d+1], nest float32[u,65], latent float32[u,e] and
        index int64[b,k], positions in u."""
        matrix, tokens = self.matrix(x), self._tokens(nest, latent)
        fused = torch.cat(tokens, 1)
        score: Tensor = self.predictor(matrix.relu(), tokens, index)
        if self.shape.bilinear:
            both = self.u(matrix) @ self.v(fused).T
            score = score + both.gather(1, index)
        return score

    def _tokens(self, nest: Tensor, latent: Tensor) -> list[Tensor]:
        """What configurations float32[u,...] are to the predictor, side by side."""
        if self.shape.embedder:
            return [self.program(torch.cat([nest, latent], 1))]
        mapped: Tensor = self.mapper(nest)
        return [mapped + latent] if self.shape.fusion == "add" else [mapped, latent]


class ProgramEmbedder(nn.Sequential):
    """WACO's program embedder: float32[u,128] of loop nests and own parameters float32[u,65+e].

    WACO looks up an embedding for the value of each parameter, reads an order as a flat permutation
    matrix, and puts a linear layer over all of it side by side. As nothing bends in between, that
    is a sum of embeddings of the layer's size, one for each parameter: the columns of the first
    layer here, for its input has a column for each value and each place of an order
    (`Layout(tables=True)`). Numbers without a table, the splits of the common loop nest, are
    scaled log2. First weights are normal, as `nn.Embedding` has them: of as many inputs as there
    are columns, few are not zero.
    """

    def __init__(self, latent: int) -> None:
        tables = nn.Linear(NEST + latent, PROGRAM)
        nn.init.normal_(tables.weight, std=0.25)
        super().__init__(tables, nn.ReLU(), nn.Linear(PROGRAM, PROGRAM))


class _Mlp(nn.Module):
    """Table 6. The first layer is split in its matrix and configuration half: the sum of both is
    the layer on the concatenation, and each half is computed once."""

    def __init__(self, fused: int, dropout: float) -> None:
        super().__init__()
        self.of_matrix = nn.Linear(MATRIX, 128)
        self.of_config = nn.Linear(fused, 128, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.second = nn.Linear(128, 64)
        self.third = nn.Linear(64, 1)

    def forward(self, matrix: Tensor, tokens: list[Tensor], index: Tensor) -> Tensor:
        own = self.of_config(torch.cat(tokens, 1))
        hidden = (self.of_matrix(matrix)[:, None] + own[index]).relu()
        out: Tensor = self.third(self.second(self.dropout(hidden)).relu())
        return out[..., 0]


class _Sequence(nn.Module):
    """LSTM, GRU or transformer over the parts as tokens (COGNATE, Figure 8)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.of_matrix = nn.Linear(MATRIX, TOKEN)
        self.of_latent = nn.Linear(shape.latent, TOKEN)
        self.places = nn.Parameter(torch.zeros(3, TOKEN))
        if shape.predictor == "transformer":
            self.body: nn.Module = nn.TransformerEncoderLayer(
                TOKEN, _HEADS, dim_feedforward=128, dropout=0.0, batch_first=True
            )
        else:
            kind = nn.LSTM if shape.predictor == "lstm" else nn.GRU
            self.body = kind(TOKEN, TOKEN, batch_first=True)
        self.recurrent = shape.predictor != "transformer"
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


def built(shape: Shape, members: Sequence[Mapping[str, NDArray[Any]]]) -> list[CostNetwork]:
    """Networks with these weights, in evaluation mode.

    Raises: UsageError for a shape that cannot be; ModelError for weights that do not fit it.
    """
    made = []
    for weights in members:
        net = CostNetwork(shape)
        model_file.fill(net, {n: torch.from_numpy(a.copy()) for n, a in weights.items()})
        made.append(net.eval())
    return made
