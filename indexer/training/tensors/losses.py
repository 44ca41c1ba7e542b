"""What is minimised: wrong orders of the tiles of one kernel, or errors of log seconds."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from embeddb.core.errors import UsageError

__all__ = ["LOSSES", "loss_of"]

#: `hinge` and `logistic` are the rank loss of Eq. 1; `squared` is for absolute seconds.
LOSSES = ("hinge", "logistic", "squared")


def loss_of(name: str, said: Tensor, logs: Tensor, owner: Tensor) -> Tensor:
    """The scalar to be minimised, of what is predicted float32[b] (lower is faster), standardised
    log seconds float32[b] and which kernel each is of, int64[b].

    Source: "A Learned Performance Model for Tensor Processing Units", Eq. 1: phi(y'_i - y'_j) for
    each pair of tiles of one kernel where i is slower than j, by the number of such pairs.
    Raises: UsageError for an unknown name.
    """
    if name not in LOSSES:
        raise UsageError(f"no loss {name!r}", hint=f"losses: {', '.join(LOSSES)}")
    if name == "squared":
        return (said - logs).square().mean()
    slower = (logs[:, None] > logs[None]) & (owner[:, None] == owner[None])
    apart = said[:, None] - said[None]
    each = functional.relu(1 - apart) if name == "hinge" else functional.softplus(-apart)
    return torch.where(slower, each, 0).sum() / slower.sum().clamp(min=1)
