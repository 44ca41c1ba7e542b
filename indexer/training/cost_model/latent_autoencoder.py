"""Training of the autoencoders behind the latent encoder, with torch.

The weights are numpy arrays: encoding is two small products, which numpy computes as fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embeddb.cost_model.encoders.latent import Layers

#: Table 4 of COGNATE: Adam, 0.001, batches of 32, 1000 epochs, mean squared error.
RATE, BATCH, EPOCHS = 1e-3, 32, 1000
#: Steps of one training; only spaces of more than 640 distinct rows see fewer epochs for it.
MAX_STEPS = 20_000
#: The paper gives no layers: one hidden layer on each side.
HIDDEN = 128
#: Weight of the Kullback-Leibler term of the variational form, beside the squared error summed
#: over columns: at 1 the latents of most spaces collapse to noise.
KL_WEIGHT = 1e-3


class _Network(nn.Module):
    def __init__(self, width: int, dim: int, *, variational: bool) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(width, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, dim * (1 + variational))
        )
        self.decoder = nn.Sequential(nn.Linear(dim, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, width))
        self.variational = variational

    def loss(self, rows: Tensor) -> Tensor:
        if not self.variational:
            error: Tensor = functional.mse_loss(self.decoder(self.encoder(rows)), rows)
            return error
        mean, log_variance = self.encoder(rows).chunk(2, dim=1)
        drawn = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
        off = (self.decoder(drawn) - rows).square().sum(dim=1)
        divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(dim=1)
        return torch.mean(off + KL_WEIGHT * divergence)


def train(
    raw: NDArray[np.float32], dim: int, *, seed: int, variational: bool
) -> tuple[Layers, Layers]:
    """Encoder (of a variational one, the means) and decoder fitted to raw float32[r,h]; the same
    rows and seed give the same weights. torch's random state and threads are restored."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # waking a second thread costs more than one of these products
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = _Network(raw.shape[1], dim, variational=variational)
            _descend(network, torch.tensor(raw))
    finally:
        torch.set_num_threads(threads)
    return _layers(network.encoder, dim), _layers(network.decoder, raw.shape[1])


def _descend(network: _Network, rows: Tensor) -> None:
    optimizer = torch.optim.Adam(network.parameters(), lr=RATE, fused=True)
    batches = -(-len(rows) // BATCH)
    for _ in range(min(EPOCHS, -(-MAX_STEPS // batches))):
        for chosen in torch.split(torch.randperm(len(rows)), BATCH):
            optimizer.zero_grad()
            loss = network.loss(rows[chosen])
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            optimizer.step()


def _layers(network: nn.Sequential, out: int) -> Layers:
    layers = []
    for module in network:
        if isinstance(module, nn.Linear):
            weight = module.weight.detach().numpy().T
            layers.append((weight.copy(), module.bias.detach().numpy().copy()))
    weight, bias = layers[-1]
    layers[-1] = (np.ascontiguousarray(weight[:, :out]), bias[:out].copy())
    return tuple(layers)
