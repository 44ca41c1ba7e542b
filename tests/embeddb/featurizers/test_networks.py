"""The two networks against dense convolutions, and what every network promises."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embeddb.core.errors import MissingDependency, ModelError
from embeddb.core.pattern import Pattern
from embeddb.featurizers.network.reduction import CHANNELS, Input, Reduction, reduce

torch = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402  # after the check that torch is there

from embeddb.core.files import model_file  # noqa: E402
from embeddb.featurizers.network.networks import NETWORKS, build, collate, complete  # noqa: E402
from tools import minkowski  # noqa: E402

NAMES = tuple(NETWORKS)


def spec(name: str, **given: Any) -> dict[str, Any]:
    return {"name": name, "in_channels": CHANNELS, "dim": 16, "dtype": "float64"} | given


def scattered(seed: int, m: int = 60, n: int = 50, count: int = 300) -> Pattern:
    rng = np.random.default_rng(seed)
    return Pattern.from_coo((m, n), rng.integers(0, m, count), rng.integers(0, n, count))


def banded(n: int = 60) -> Pattern:
    rows = np.repeat(np.arange(n), 3)
    cols = np.clip(rows + np.tile([-1, 0, 1], n), 0, n - 1)
    return Pattern.from_coo((n, n), rows, cols)


EMPTY = Pattern.from_coo((9, 4), [], [])
SINGLE = Pattern.from_coo((1, 500), [0], [333])
FULL = Pattern.from_csr((30, 40), np.arange(31) * 40, np.tile(np.arange(40), 30))
PATTERNS = (scattered(0), banded(), EMPTY, SINGLE, FULL, scattered(1, 900, 33, 2000))


def inputs() -> list[Input]:
    return [reduce(p, Reduction(size=40)) for p in PATTERNS]


def run(module: Any, given: list[Input]) -> Any:
    with torch.no_grad():
        return module(*collate(given))


class Dense:
    """Sparse layers by masked dense ones: image [1,c,h,w] and mask [1,1,h,w]."""

    def __init__(self, found: Input) -> None:
        rows, cols = found.coords.T
        self.image = torch.zeros(1, CHANNELS, 64, 64, dtype=torch.float64)
        self.image[0, :, rows, cols] = torch.from_numpy(found.features.T).double()
        self.mask = torch.zeros(1, 1, 64, 64, dtype=torch.float64)
        self.mask[0, 0, rows, cols] = 1

    def convolve(self, layer: Any) -> None:
        area, cin, cout = layer.weight.shape
        k = int(area**0.5)
        # Offsets are stored with the row fastest.
        weight = layer.weight.view(k, k, cin, cout).permute(3, 2, 1, 0)
        self.image = functional.conv2d(
            self.image, weight, layer.bias, stride=layer.stride, padding=k // 2
        )
        if layer.stride == 2:
            self.mask = functional.max_pool2d(self.mask, 2, ceil_mode=True)
        self.image = functional.relu(self.image) * self.mask

    def pool(self) -> None:
        low = self.image.masked_fill(self.mask == 0, -torch.inf)
        self.mask = functional.max_pool2d(self.mask, 2)
        self.image = torch.where(self.mask > 0, functional.max_pool2d(low, 2), 0.0)

    def average(self) -> Any:
        return self.image.sum((0, 2, 3)) / self.mask.sum().clamp(min=1)


def dense(module: Any, found: Input) -> Any:
    """float64[dim] of one pattern by dense layers."""
    state, averages = Dense(found), []
    for number, layer in enumerate(module.convolutions):
        if len(module.convolutions) == 12 and number in (3, 6, 9):
            state.pool()
        state.convolve(layer)
        averages.append(state.average())
    mean = averages[-1] if len(module.convolutions) == 12 else torch.cat(averages)
    if module.head.shape:
        mean = torch.cat([mean, torch.from_numpy(found.shape).double()])
    return module.head.project(mean)


@pytest.mark.parametrize("shape", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_equal_to_dense_convolutions(name: str, shape: bool) -> None:
    module = build(spec(name, shape=shape), seed=3)
    given = inputs()
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim == 1:
                parameter.uniform_(-0.1, 0.1)
        expected = torch.stack([dense(module, found) for found in given])
    found = run(module, given)
    assert found.dtype == torch.float64
    scale = float(expected.abs().max())
    assert scale > 0.1
    np.testing.assert_allclose(found / scale, expected / scale, rtol=0, atol=1e-12)


def test_layers_are_those_of_table_5() -> None:
    module = build(spec("cognate", in_channels=1, dim=128))
    shapes = [tuple(layer.weight.shape) for layer in module.convolutions]
    widths = [1, 32, 32, 64, 64, 64, 128, 128, 128, 256, 256, 256, 256]
    assert shapes == [
        (25 if at == 0 else 9, cin, cout) for at, (cin, cout) in enumerate(pairwise(widths))
    ]
    assert {layer.stride for layer in module.convolutions} == {1}
    assert module.head.project.weight.shape == (128, 256)


def test_layers_of_waco() -> None:
    module = build(spec("waco", dim=128))
    assert [layer.stride for layer in module.convolutions] == [1, *[2] * 13]
    assert {layer.weight.shape[2] for layer in module.convolutions} == {32}
    assert module.head.project.weight.shape == (128, 14 * 32 + 3)


@pytest.mark.parametrize("name", NAMES)
def test_an_embedding_does_not_depend_on_its_batch(name: str) -> None:
    module, given = build(spec(name)), inputs()
    together = run(module, given)
    assert together.shape == (len(PATTERNS), 16)
    for number, found in enumerate(given):
        np.testing.assert_allclose(together[number], run(module, [found])[0], rtol=1e-10)
    np.testing.assert_allclose(together.flip(0), run(module, given[::-1]), rtol=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_every_weight_learns(name: str) -> None:
    module = build(spec(name, shape=True))
    module(*collate(inputs())).square().sum().backward()
    for label, parameter in module.named_parameters():
        assert parameter.grad is not None and bool(parameter.grad.isfinite().all()), label
        assert float(parameter.grad.abs().max()) > 0, label


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("pattern", PATTERNS, ids=range(len(PATTERNS)))
def test_gradients_with_patterns_of_every_kind(name: str, pattern: Pattern) -> None:
    """Empty, single and full patterns alone in a batch."""
    module = build(spec(name))
    out = module(*collate([reduce(pattern, Reduction(size=16))]))
    out.sum().backward()
    assert bool(out.isfinite().all())
    assert all(bool(p.grad.isfinite().all()) for p in module.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_first_weights_follow_from_the_seed(name: str) -> None:
    before = torch.random.get_rng_state()
    first, again, other = (build(spec(name), seed=s).state_dict() for s in (1, 1, 2))
    assert torch.equal(before, torch.random.get_rng_state())
    for label, tensor in first.items():
        assert torch.equal(tensor, again[label])
        assert tensor.ndim == 1 or not torch.equal(tensor, other[label])
    single = build(spec(name, dtype="float32"), seed=1).state_dict()
    assert all(torch.equal(single[label].double(), tensor) for label, tensor in first.items())


@pytest.mark.parametrize("name", NAMES)
def test_first_activations_neither_fade_nor_explode(name: str) -> None:
    module = build(spec(name, dim=128, dtype="float32"))
    for pattern in (scattered(0, 1000, 1000, 3000), banded(500), scattered(1, 100, 100, 5000)):
        for kind in ("grid", "sites"):
            size = float(run(module, [reduce(pattern, Reduction(kind, size=64))]).norm())  # type: ignore[arg-type]
            assert 0.01 < size < 1000


def test_shape_enters_where_the_spec_says() -> None:
    given = reduce(PATTERNS[0], Reduction())
    larger = replace(given, shape=given.shape + 1)
    for name, default in (("cognate", False), ("waco", True)):
        for shape in (None, False, True):
            module = build(spec(name) | ({} if shape is None else {"shape": shape}))
            first, second = run(module, [given]), run(module, [larger])
            assert torch.equal(first, second) != (default if shape is None else shape)


def test_a_float32_network_is_near_a_float64_one() -> None:
    for name in NAMES:
        double = run(build(spec(name)), inputs())
        single = run(build(spec(name, dtype="float32")), inputs())
        assert single.dtype == torch.float32
        np.testing.assert_allclose(single, double, rtol=1e-3, atol=1e-4 * float(double.abs().max()))


@pytest.mark.parametrize("name", NAMES)
def test_weights_travel_through_a_file(name: str, tmp_path: Path) -> None:
    module = build(spec(name), seed=5)
    card = {"kind": "featurizer", "network": spec(name), "reduction": Reduction().to_json()}
    path = tmp_path / "net.safetensors"
    model_file.save(path, module.state_dict(), card)
    tensors, read = model_file.load(path, kind="featurizer")
    other = build(read["network"])
    model_file.fill(other, tensors, where=path.name)
    assert torch.equal(run(other, inputs()), run(module, inputs()))
    for wrong in (
        spec("waco" if name == "cognate" else "cognate"),
        spec(name, dim=17),
        spec(name, in_channels=1),
        spec(name, dtype="float32"),
    ):
        with pytest.raises(ModelError, match=r"net\.safetensors: tensor "):
            model_file.fill(build(wrong), tensors, where=path.name)


def test_specs_are_json_and_complete() -> None:
    for name in NAMES:
        full = complete({"name": name, "in_channels": 3})
        assert full["dim"] == 128 and full["dtype"] == "float32"
        assert complete(json.loads(json.dumps(full))) == full


@pytest.mark.parametrize(
    "bad",
    [
        {},
        {"name": "resnet", "in_channels": 1},
        {"name": ["cognate"], "in_channels": 1},
        {"name": "cognate"},
        spec("cognate", dim=0),
        spec("cognate", dim=1 << 40),
        spec("cognate", dim=16.0),
        spec("cognate", in_channels=True),
        spec("cognate", shape=1),
        spec("cognate", dtype="float16"),
        spec("cognate", dtype=["float32"]),
        spec("cognate", layers=3),
    ],
)
def test_specs_of_no_network(bad: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match="network") as caught:
        build(bad)
    assert "\n" not in str(caught.value)


def test_backends_share_weights_and_results() -> None:
    for name in NAMES:
        own = build(spec(name), seed=2)
        theirs = build(spec(name), seed=2, layers=minkowski)
        for label, tensor in own.state_dict().items():
            assert torch.equal(tensor, theirs.state_dict()[label])
        try:
            found = run(theirs, inputs())
        except MissingDependency as e:
            pytest.skip(str(e))
        expected = run(own, inputs())
        scale = float(expected.abs().max())
        np.testing.assert_allclose(found / scale, expected / scale, rtol=0, atol=1e-12)
