"""Training of a graph convolutional network (Kipf and Welling 2017) with two layers, in torch: two
products with the normalised adjacency matrix forward and, for the gradient, two with its transpose.

python examples/programs/gcn.py [GRAPH.mtx]
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from race import graph, matrix, race, told
from scipy import sparse

import embeddb

FEATURES, HIDDEN, CLASSES, EPOCHS = 128, 64, 16, 20
Multiply = Callable[[torch.Tensor], torch.Tensor]


def adjacency(edges: Any) -> torch.Tensor:
    """D^-½ (A + I) D^-½ as a sparse CSR tensor float32[n, n]."""
    with_self = sparse.csr_array(abs(edges) + sparse.eye_array(edges.shape[0]))
    half = sparse.diags_array(1 / np.sqrt(np.asarray(with_self.sum(axis=1)).ravel()))
    made = sparse.csr_array(half @ with_self @ half).astype(np.float32)
    places = (torch.from_numpy(one.astype(np.int64)) for one in (made.indptr, made.indices))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls its sparse CSR a beta
        return torch.sparse_csr_tensor(*places, torch.from_numpy(made.data), made.shape)


def trained(narrow: Multiply, wide: Multiply, nodes: int) -> Any:
    """float32[EPOCHS]: the loss by epoch; `wide` multiplies HIDDEN columns, `narrow` CLASSES."""
    torch.manual_seed(0)
    x, y = torch.randn(nodes, FEATURES), torch.randint(0, CLASSES, (nodes,))
    first = torch.nn.Linear(FEATURES, HIDDEN)
    second = torch.nn.Linear(HIDDEN, CLASSES)
    steps = torch.optim.Adam([*first.parameters(), *second.parameters()], lr=0.01)
    losses = []
    for _ in range(EPOCHS):
        steps.zero_grad()
        loss = torch.nn.functional.cross_entropy(narrow(second(torch.relu(wide(first(x))))), y)
        loss.backward()
        steps.step()
        losses.append(loss.item())
    return np.array(losses)


def by_embeddb(a: torch.Tensor) -> Any:
    narrow = embeddb.compile(a, "spmm", k=CLASSES, calls=EPOCHS, build=True)
    wide = embeddb.compile(a, "spmm", k=HIDDEN, calls=EPOCHS, build=True)
    return trained(narrow, wide, a.shape[0])


def by_torch(a: torch.Tensor) -> Any:
    return trained(lambda b: a @ b, lambda b: a @ b, a.shape[0])


def main() -> None:
    a = adjacency(matrix(graph))
    raced = race({"embeddb": lambda: by_embeddb(a), "torch": lambda: by_torch(a)}, rounds=3)
    told(f"{EPOCHS} epochs over {tuple(a.shape)} with {a.values().numel()} entries", raced)


if __name__ == "__main__":
    main()
