"""Submanifold and strided sparse convolution in two dimensions, with pooling.

A layer runs in chunks of output sites: gather the input rows of all pairs, one matrix product per
kernel offset, sum the products of each output site. Only the chunk's rows are ever gathered.

Alternatives measured on one thread of a server core, relative to the time of the matrix products:

- whole layers at once, by offset: gather 0.5 and add 1.2 at 32 channels, 0.1 and 0.2 at 128, since
  data leaves the caches in between. In chunks of 16,384 pairs the gather is 0.09 and 0.02;
- `index_add_` of the products, in chunks: 1.8 at 32 channels, 0.5 at 64, 0.14 at 128.
  `embedding_bag` over the pairs by output site: 0.08, 0.04, 0.02, which is used;
- one product per site over all offsets (im2col) where no neighbour is absent: the product alone
  takes 0.91 at 32 channels and 0.96 to 1.05 from 64 on. Not used: it also computes the gaps of
  patterns.

The remaining limit is the speed of `torch.mm` on a few hundred rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from embeddb.core.errors import InputError
from embeddb.featurizers.network.sparse_maps import KernelMap, Level, Plan


@dataclass(frozen=True, slots=True, eq=False)
class SparseTensor:
    """Features of the sites of one level: float32[n,c] or float64[n,c], one row per site."""

    features: Tensor
    level: Level


class SparseConv2d(nn.Module):
    """`out[s] = bias + sum over offsets o of in[s + o] @ weight[o]`, over stored sites only.

    Shapes: `weight` [k*k,cin,cout], offsets with the row fastest; `bias` [cout]. With stride 1 the
    output sites are the input sites (submanifold), with stride s the sites floored to multiples.
    Raises: InputError for an even kernel with stride 1 or a size below 1.
    """

    def __init__(
        self, cin: int, cout: int, kernel: int, stride: int = 1, *, bias: bool = True
    ) -> None:
        super().__init__()
        if min(cin, cout, kernel, stride) < 1 or (stride == 1 and kernel % 2 == 0):
            raise InputError(f"no convolution {cin} to {cout}, kernel {kernel}, stride {stride}")
        self.kernel, self.stride = kernel, stride
        self.weight = nn.Parameter(torch.empty(kernel * kernel, cin, cout))
        self.bias = nn.Parameter(torch.empty(cout)) if bias else None
        # The initialisation of a dense convolution in torch.
        bound = 1 / math.sqrt(kernel * kernel * cin)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def forward(self, tensor: SparseTensor) -> SparseTensor:
        sites = tensor.level.kernel_map(self.kernel, self.stride)
        return SparseTensor(convolve(tensor.features, self.weight, self.bias, sites), sites.target)


class SparseMaxPool2d(nn.Module):
    """Maximum of the stored sites under a kernel, per channel. Among equal values the first in the
    order of offsets receives the gradient. Raises: InputError for a stride of 1 or one larger than
    the kernel (windows could be empty)."""

    def __init__(self, kernel: int = 2, stride: int = 2) -> None:
        super().__init__()
        if not 2 <= stride <= kernel:
            raise InputError(f"no max pooling with kernel {kernel}, stride {stride}")
        self.kernel, self.stride = kernel, stride

    def forward(self, tensor: SparseTensor) -> SparseTensor:
        sites = tensor.level.kernel_map(self.kernel, self.stride)
        pooled: Tensor = _MaxPool.apply(tensor.features, sites)  # type: ignore[no-untyped-call]  # torch's
        return SparseTensor(pooled, sites.target)


def convolve(features: Tensor, weight: Tensor, bias: Tensor | None, sites: KernelMap) -> Tensor:
    """[n_out,cout] from `features` [n_in,cin] and `weight` [k*k,cin,cout], differentiable once.
    Raises: InputError if the sizes do not fit."""
    if features.shape != (sites.source.sites, weight.shape[1]):
        raise InputError(
            f"{sites.source.sites} sites and a layer of {weight.shape[1]} channels "
            f"do not take features of shape {tuple(features.shape)}"
        )
    out: Tensor = _Convolve.apply(features, weight, bias, sites)  # type: ignore[no-untyped-call]  # torch's
    return out


def global_average(tensor: SparseTensor) -> Tensor:
    """[entries,c]: the mean over the sites of each pattern, 0 for a pattern without sites."""
    parts = tensor.features.split_with_sizes(tensor.level.counts)
    return torch.stack([part.sum(0) / max(part.shape[0], 1) for part in parts])


class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, sites: KernelMap) -> Any:
        x = x.contiguous()
        ctx.save_for_backward(x, weight)
        ctx.sites = sites
        out = x.new_empty(sites.target.sites, weight.shape[2])
        _run(sites.plan, x, out, weight.unbind(0))
        return out if bias is None else out.add_(bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        sites: KernelMap = ctx.sites
        wants_x, wants_weight, wants_bias, _ = ctx.needs_input_grad
        grad = grad.contiguous()
        grad_x = torch.empty_like(x) if wants_x else None
        grad_weight = torch.zeros_like(weight) if wants_weight else None
        back = weight.transpose(1, 2).contiguous().unbind(0)
        mirror = sites.mirror
        if grad_x is not None:
            _run(sites.reverse, grad, grad_x, [back[o] for o in mirror])
        if grad_weight is not None:
            into = grad_weight.unbind(0)
            _weights(sites.reverse, grad, x, [into[o] for o in mirror])
        return grad_x, grad_weight, grad.sum(0) if wants_bias else None, None


def _run(plan: Plan, x: Tensor, out: Tensor, weights: Any) -> None:
    """Fill `out` with the sum over all pairs of x[source] @ weights[offset]."""
    gathered = x.new_empty(plan.largest, x.shape[1])
    products = x.new_empty(plan.largest, out.shape[1])
    for chunk in plan.chunks:
        block = out[chunk.start : chunk.stop]
        if plan.centre is not None:
            torch.mm(x[chunk.start : chunk.stop], weights[plan.centre], out=block)
        if not chunk.pairs:
            if plan.centre is None:
                block.zero_()
            continue
        rows, results = gathered[: chunk.pairs], products[: chunk.pairs]
        torch.index_select(x, 0, chunk.source, out=rows)
        parts = zip(
            chunk.offsets,
            rows.split_with_sizes(chunk.sizes),
            results.split_with_sizes(chunk.sizes),
            strict=True,
        )
        for offset, part, product in parts:
            torch.mm(part, weights[offset], out=product)
        summed = functional.embedding_bag(
            chunk.order, results, chunk.bounds, mode="sum", include_last_offset=True
        )
        if plan.centre is None:
            block.copy_(summed)
        else:
            block.add_(summed)


def _weights(plan: Plan, grad: Tensor, x: Tensor, into: Any) -> None:
    """Add x[row].T @ grad[source] of all pairs to `into[offset]`."""
    gathered = grad.new_empty(plan.largest, grad.shape[1])
    inputs = x.new_empty(plan.largest, x.shape[1])
    for chunk in plan.chunks:
        block = x[chunk.start : chunk.stop]
        if plan.centre is not None:
            into[plan.centre].addmm_(block.t(), grad[chunk.start : chunk.stop])
        if not chunk.pairs:
            continue
        rows, own = gathered[: chunk.pairs], inputs[: chunk.pairs]
        torch.index_select(grad, 0, chunk.source, out=rows)
        torch.index_select(block, 0, chunk.rows, out=own)
        parts = zip(
            chunk.offsets,
            rows.split_with_sizes(chunk.sizes),
            own.split_with_sizes(chunk.sizes),
            strict=True,
        )
        for offset, part, mine in parts:
            into[offset].addmm_(mine.t(), part)


class _MaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, sites: KernelMap) -> Any:
        out = x.new_empty(sites.target.sites, x.shape[1])
        winner = torch.empty(out.shape, dtype=torch.int64, device=x.device)
        for chunk in sites.plan.chunks:
            # By output site, then offset; mode 2 is the maximum.
            source = chunk.source.index_select(0, chunk.order)
            best = torch.embedding_bag(x, source, chunk.bounds, False, 2, False, None, True)
            out[chunk.start : chunk.stop] = best[0]
            winner[chunk.start : chunk.stop] = best[3]
        ctx.save_for_backward(winner)
        ctx.sites = sites
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        (winner,) = ctx.saved_tensors
        sites: KernelMap = ctx.sites
        into = grad.new_zeros(sites.source.sites, grad.shape[1])
        if sites.kernel == sites.target.stride // sites.source.stride:
            # No site is in two windows, so no addition is needed, which takes five times as long.
            return into.scatter_(0, winner, grad), None
        return into.scatter_add_(0, winner, grad), None
