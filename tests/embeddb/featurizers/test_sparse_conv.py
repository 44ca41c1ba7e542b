"""Sparse convolution and pooling against dense `conv2d` in float64."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from sites import PATTERNS, SIZE, sites_of  # noqa: E402
from torch.nn import functional  # noqa: E402

from embeddb.core.errors import InputError  # noqa: E402
from embeddb.featurizers.network.sparse_conv import (  # noqa: E402
    SparseConv2d,
    SparseMaxPool2d,
    SparseTensor,
    global_average,
)
from embeddb.featurizers.network.sparse_maps import Level  # noqa: E402

ENTRIES = 4
LOW = -1e300


def dense_of(features: torch.Tensor, level: Level, fill: float = 0.0) -> torch.Tensor:
    """[entries,c,rows,columns], in units of the level's stride."""
    size = -(-SIZE // level.stride)
    grid = features.new_full((level.entries, size, size, features.shape[1]), fill)
    entry, row, column = level.coords.unbind(1)
    at = (entry, row // level.stride, column // level.stride)
    return grid.index_put(at, features).permute(0, 3, 1, 2)


def at_sites(grid: torch.Tensor, level: Level) -> torch.Tensor:
    entry, row, column = level.coords.unbind(1)
    return grid.permute(0, 2, 3, 1)[entry, row // level.stride, column // level.stride]


def dense_layer(layer: SparseConv2d, features: torch.Tensor, level: Level) -> torch.Tensor:
    """The same layer as a dense convolution read at the output sites."""
    k = layer.kernel
    # The row is fastest in the sparse kernel: [k(column), k(row), cin, cout].
    kernel = layer.weight.view(k, k, *layer.weight.shape[1:]).permute(3, 2, 1, 0)
    pad = (k // 2, k // 2) * 2 if k % 2 else (0, k - 1) * 2
    grid = functional.pad(dense_of(features, level), pad)
    out = functional.conv2d(grid, kernel, layer.bias, stride=layer.stride)
    return at_sites(out, level.coarser(layer.stride))


def inputs(name: str, channels: int, values: str) -> tuple[torch.Tensor, Level]:
    coords = sites_of(name)
    level = Level.of(coords, entries=ENTRIES)
    torch.manual_seed(1)
    made = torch.ones if values == "ones" else torch.randn
    return made(len(coords), channels, dtype=torch.float64).requires_grad_(), level


@pytest.fixture(params=[10_000, 50], ids=["one-chunk", "chunks"])
def chunked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embeddb.featurizers.network.sparse_maps.CHUNK_PAIRS", request.param)


@pytest.mark.parametrize("values", ["ones", "random"])
@pytest.mark.parametrize(
    ("kernel", "stride"), [(1, 1), (3, 1), (5, 1), (1, 2), (2, 2), (3, 2), (5, 2)]
)
@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.usefixtures("chunked")
def test_layer_equals_a_dense_convolution(name: str, kernel: int, stride: int, values: str) -> None:
    x, level = inputs(name, 5, values)
    layer = SparseConv2d(5, 7, kernel, stride).double()
    found = layer(SparseTensor(x, level))
    assert found.level is level.coarser(stride)
    wanted = dense_layer(layer, x, level)
    torch.testing.assert_close(found.features, wanted, rtol=0, atol=1e-12)
    into = (x, layer.weight, layer.bias)
    push = torch.randn_like(wanted)
    got = torch.autograd.grad(found.features, into, push)
    for one, other in zip(got, torch.autograd.grad(wanted, into, push), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


@pytest.mark.usefixtures("chunked")
def test_layers_in_a_row_share_maps_across_strides() -> None:
    x, level = inputs("blocked", 3, "random")
    layers = [SparseConv2d(3, 4, 5).double(), SparseConv2d(4, 6, 3, 2, bias=False).double()]
    layers += [SparseConv2d(6, 4, 3).double(), SparseConv2d(4, 2, 5, 2).double()]
    tensor, dense = SparseTensor(x, level), x
    for layer in layers:
        dense = dense_layer(layer, dense, tensor.level)
        tensor = layer(tensor)
    assert tensor.level.stride == 4
    torch.testing.assert_close(tensor.features, dense, rtol=0, atol=1e-12)
    weights = [x, *(p for layer in layers for p in layer.parameters())]
    got = torch.autograd.grad(tensor.features.square().sum(), weights)
    wanted = torch.autograd.grad(dense.square().sum(), weights)
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


def test_only_what_needs_a_gradient_gets_one() -> None:
    x, level = inputs("random", 3, "random")
    layer = SparseConv2d(3, 2, 3).double()
    layer(SparseTensor(x.detach(), level)).features.sum().backward()
    assert layer.weight.grad is not None
    assert layer.bias is not None and layer.bias.grad is not None
    for parameter in layer.parameters():
        parameter.requires_grad_(False)
    (got,) = torch.autograd.grad(layer(SparseTensor(x, level)).features.sum(), x)
    (wanted,) = torch.autograd.grad(dense_layer(layer, x, level).sum(), x)
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize(("kernel", "stride"), [(2, 2), (3, 2), (4, 3)])
def test_max_pooling_equals_a_dense_one(name: str, kernel: int, stride: int) -> None:
    x, level = inputs(name, 4, "random")
    found = SparseMaxPool2d(kernel, stride)(SparseTensor(x, level))
    # Far below all values, and like an absent site of no use to any window.
    pad = (kernel // 2, kernel // 2) * 2 if kernel % 2 else (0, kernel - 1) * 2
    grid = functional.pad(dense_of(x, level, LOW), pad, value=LOW)
    pooled = functional.max_pool2d(grid, kernel, stride)
    wanted = at_sites(pooled, found.level)
    assert torch.equal(found.features, wanted)
    push = torch.randn_like(wanted)
    (got,) = torch.autograd.grad(found.features, x, push)
    (expected,) = torch.autograd.grad(wanted, x, push)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-10)


def test_a_tie_sends_the_gradient_to_the_first_offset() -> None:
    level = Level.of(torch.tensor([[0, 0, 0], [0, 0, 1], [0, 1, 0]]))
    x = torch.ones(3, 1, requires_grad=True)
    SparseMaxPool2d()(SparseTensor(x, level)).features.sum().backward()
    assert x.grad is not None
    assert x.grad.view(-1).tolist() == [1, 0, 0]


def test_global_pooling_by_entry() -> None:
    x, level = inputs("batch", 3, "random")
    parts = [x[level.coords[:, 0] == entry] for entry in range(ENTRIES)]
    wanted = [p.mean(0) if len(p) else torch.zeros(3) for p in parts]
    found = global_average(SparseTensor(x, level))
    torch.testing.assert_close(found, torch.stack(wanted).double(), rtol=0, atol=1e-12)
    (grad,) = torch.autograd.grad(found.sum(), x)
    # Each entry with sites hands back a total of one per channel.
    assert grad.sum() == pytest.approx(3 * sum(bool(len(p)) for p in parts))


def test_a_batch_is_its_patterns_one_by_one() -> None:
    x, level = inputs("batch", 3, "random")
    layer = SparseConv2d(3, 4, 5).double()
    whole = layer(SparseTensor(x, level)).features
    for entry, count in enumerate(level.counts):
        own = level.coords[:, 0] == entry
        coords = level.coords[own] * torch.tensor([0, 1, 1])
        alone = layer(SparseTensor(x[own], Level.of(coords, entries=1))).features
        assert len(alone) == count
        torch.testing.assert_close(whole[own], alone, rtol=0, atol=1e-12)


def test_float32_stays_float32_and_repeats_exactly() -> None:
    coords = sites_of("dense")
    x = torch.randn(len(coords), 8)
    layer = SparseConv2d(8, 8, 3)
    first, second = (layer(SparseTensor(x, Level.of(coords))).features for _ in range(2))
    assert first.dtype == torch.float32
    assert torch.equal(first, second)


def test_wrong_sizes_are_one_line() -> None:
    level = Level.of(sites_of("random"))
    layer = SparseConv2d(3, 4, 3)
    for shape in ((level.sites, 2), (level.sites + 1, 3)):
        with pytest.raises(InputError, match="channels"):
            layer(SparseTensor(torch.zeros(shape), level))
    for sizes in ((3, 4, 2), (3, 4, 0), (0, 4, 3)):
        with pytest.raises(InputError, match="no convolution"):
            SparseConv2d(*sizes)
    for kernel, stride in ((1, 2), (3, 1), (0, 0)):
        with pytest.raises(InputError, match="no max pooling"):
            SparseMaxPool2d(kernel, stride)


@pytest.mark.slow
def test_hundred_thousand_sites_need_little_more_than_their_features() -> None:
    """Buffers are those of one chunk: no layer gathers all pairs at once."""
    from torch.profiler import ProfilerActivity, profile

    n, channels = 100_000, 32
    row = torch.arange(n // 5).repeat_interleave(5)
    column = row + torch.arange(5).repeat(n // 5)
    level = Level.of(torch.stack((torch.zeros_like(row), row, column), 1))
    level.kernel_map(5).plan  # noqa: B018  # Made before what is measured.
    layer, x = SparseConv2d(channels, channels, 5), torch.randn(n, channels)
    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        layer(SparseTensor(x, level))
    asked = [e.cpu_memory_usage for e in seen.events() if e.name == "aten::empty"]
    assert max(asked) <= 4 * n * channels
