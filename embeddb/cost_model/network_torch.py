"""The cost model's network: matrix vector and configuration to one score, higher is faster.

COGNATE (Section 3, Table 6; DASH has the same parts): the vector of a matrix becomes 128 numbers,
the common loop nest 64 (`mapper`), and the latent of the platform's own parameters is taken as it
is. They are fused (`add`: 192 numbers, the table; `concat`: 256 with latents of 64, the text) and
an MLP of 128, 64, 1 makes the score.

Ours, because no paper states it: hidden layers of 128 (matrix) and 64 (mapper), ReLU between them,
dropout, log2 of the op's width beside the matrix, and the bilinear term u(matrix) .
v(configuration), which `bilinear` turns off.

The vector may be the output of a sparse network that is trained together with this one
(`indexer.training.cost_model.encoder`), as in the papers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from embeddb.core.errors import UsageError

#: Numbers of a loop nest and its tiles, of the matrix embedding, and of the mapper.
NEST, MATRIX, MAPPED = 65, 128, 64
_BILINEAR = 32


@dataclass(frozen=True, slots=True)
class Shape:
    """d numbers of a matrix, e of a latent, and how mapper and latent are fused."""

    inputs: int
    latent: int = 64
    fusion: str = "concat"
    bilinear: bool = True

    def __post_init__(self) -> None:
        """Raises: UsageError for a latent that cannot be added."""
        if self.fusion == "add" and self.latent != MAPPED:
            raise UsageError(
                f"fusion add needs latents of {MAPPED} numbers, not {self.latent}",
                hint="use the fusion concat",
            )

    @property
    def fused(self) -> int:
        """Numbers of a configuration after fusion."""
        return MAPPED if self.fusion == "add" else MAPPED + self.latent


class CostNetwork(nn.Module):
    """Scores of k configurations on each of b matrices; u distinct configurations are encoded
    only once."""

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
        self.draw(dropout)
        if shape.bilinear:
            self.u = nn.Linear(MATRIX, _BILINEAR)
            self.v = nn.Sequential(
                nn.Linear(shape.fused, MATRIX), nn.ReLU(), nn.Linear(MATRIX, _BILINEAR)
            )

    def draw(self, dropout: float) -> None:
        """Make mapper and predictor."""
        self.mapper = mapper()
        self.predictor: nn.Module = MlpPredictor(self.shape.fused, dropout)

    def forward(self, x: Tensor, nest: Tensor, latent: Tensor, index: Tensor) -> Tensor:
        """float32[b,k] from x float32[b,d+1], nest float32[u,65], latent float32[u,e] and
        index int64[b,k], positions in u."""
        matrix, tokens = self.matrix(x), self.tokens(nest, latent)
        fused = torch.cat(tokens, 1)
        score: Tensor = self.predictor(matrix.relu(), tokens, index)
        if self.shape.bilinear:
            both = self.u(matrix) @ self.v(fused).T
            score = score + both.gather(1, index)
        return score

    def tokens(self, nest: Tensor, latent: Tensor) -> list[Tensor]:
        """Inputs of the predictor for configurations float32[u,...]."""
        mapped: Tensor = self.mapper(nest)
        return [mapped + latent] if self.shape.fusion == "add" else [mapped, latent]


def mapper() -> nn.Module:
    """Layers from loop nests and their tiles float32[u,65] to float32[u,64]."""
    return nn.Sequential(nn.Linear(NEST, MAPPED), nn.ReLU(), nn.Linear(MAPPED, MAPPED))


class MlpPredictor(nn.Module):
    """Predictor of Table 6. The first layer is the sum of a matrix and a configuration half, each
    computed once, which equals the layer on the concatenation."""

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
