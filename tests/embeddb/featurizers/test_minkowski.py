"""The two backends agree: with what MinkowskiEngine computed once, and with it live where it is."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from embeddb.core.errors import InputError, MissingDependency

torch = pytest.importorskip("torch")

from embeddb.featurizers.network import sparse_conv  # noqa: E402
from embeddb.featurizers.network.sparse_maps import Level  # noqa: E402
from tools import minkowski  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]
GOLDEN = ROOT / "tests" / "golden" / "minkowski"
NAMES = ("banded", "batch", "blocked", "far", "power-law", "random")
OPS = ("conv3", "conv5", "conv3s2", "conv5s2", "twice", "max-pool", "max-stack")
#: The layers of the stored vectors that step down; the others have stride 1.
STRIDED = ("conv3s2", "conv5s2", "third")
FORWARD, GRADIENT = 1e-12, 1e-10

Arrays = dict[str, np.ndarray]
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def live() -> None:
    try:
        minkowski.engine()
    except MissingDependency as e:
        pytest.skip(f"{e}; {e.hint}")


def read(name: str) -> Arrays:
    with np.load(GOLDEN / f"{name}.npz", allow_pickle=False) as file:
        return {key: file[key] for key in file.files}


def level_of(coords: np.ndarray, entries: int | None = None) -> Level:
    return Level.of(torch.from_numpy(coords.astype(np.int64)), entries=entries)


def layers_of(backend: ModuleType, stored: Arrays) -> dict[str, Any]:
    """One backend's layers with the weights of a file."""
    made = {}
    for name in ("conv3", "conv5", "conv3s2", "conv5s2", "second", "third"):
        weight = torch.from_numpy(stored[f"{name}/weight"])
        area, cin, cout = weight.shape
        stride = 2 if name in STRIDED else 1
        layer = backend.SparseConv2d(cin, cout, round(area**0.5), stride).double()
        bias = torch.from_numpy(stored[f"{name}/bias"][0])
        layer.load_state_dict({"weight": weight, "bias": bias})
        made[name] = layer
    return made


def ops_of(backend: ModuleType, made: dict[str, Any]) -> dict[str, Callable[[Any], Any]]:
    pool = backend.SparseMaxPool2d()

    def relu(x: Any) -> Any:
        return sparse_conv.SparseTensor(torch.relu(x.features), x.level)

    def stack(x: Any) -> Any:
        x = pool(relu(made["conv3"](x)))
        return backend.global_average(made["third"](relu(made["second"](x))))

    return {
        **{name: made[name] for name in ("conv3", "conv5", "conv3s2", "conv5s2")},
        "twice": lambda x: made["third"](made["conv3s2"](x)),
        "max-pool": pool,
        "global-mean": backend.global_average,
        "max-stack": stack,
    }


def answer(
    backend: ModuleType, stored: Arrays, op: str, level: Level, values: np.ndarray
) -> Arrays:
    """Output and gradients of sum(out^2)/2, named as in the stored files."""
    made = layers_of(backend, stored)
    x = torch.from_numpy(values).requires_grad_()
    y = ops_of(backend, made)[op](sparse_conv.SparseTensor(x, level))
    out = y if isinstance(y, torch.Tensor) else y.features
    (out**2).sum().div(2).backward()
    found = {"out": out.detach().numpy(), "grad x": x.grad.numpy()}
    for name, layer in made.items():
        if layer.weight.grad is not None:
            found[f"grad {name}/weight"] = layer.weight.grad.numpy()
            found[f"grad {name}/bias"] = layer.bias.grad.numpy()[None]
    return found


def agree(found: Arrays, wanted: Arrays) -> None:
    for part, value in wanted.items():
        assert found[part].shape == value.shape, part
        bound = FORWARD if part == "out" else GRADIENT
        assert np.abs(found[part] - value).max(initial=0) <= bound, part


def test_there_is_a_file_per_pattern_and_they_are_small() -> None:
    files = sorted(GOLDEN.iterdir())
    assert [file.stem for file in files] == sorted(NAMES)
    assert sum(file.stat().st_size for file in files) < 1 << 20


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("op", [*OPS, "global-mean"])
@pytest.mark.parametrize("features", ["ones", "random"])
def test_own_agrees_with_the_stored_vectors(name: str, op: str, features: str) -> None:
    stored = read(name)
    prefix = f"{features}/{op}/"
    wanted = {k.removeprefix(prefix): v for k, v in stored.items() if k.startswith(prefix)}
    ties = features == "ones" and "max" in op
    assert ("grad x" in wanted) == (not ties)
    level = level_of(stored["coords"])
    agree(answer(sparse_conv, stored, op, level, stored[f"{features}/x"]), wanted)


@pytest.mark.parametrize("name", NAMES)
def test_own_keeps_the_sites_minkowski_keeps(name: str) -> None:
    stored = read(name)
    half = level_of(stored["coords"]).coarser(2)
    np.testing.assert_array_equal(half.coords.numpy(), stored["coords2"])
    np.testing.assert_array_equal(half.coarser(2).coords.numpy(), stored["coords4"])


def test_a_wrong_order_of_offsets_would_be_seen() -> None:
    """The vectors tell (row, column) from (column, row) and a kernel from its mirror image."""
    stored = read("random")
    level, values = level_of(stored["coords"]), stored["random/x"]
    weight = stored["conv3/weight"]
    for wrong in (weight.reshape(3, 3, 2, 3).swapaxes(0, 1).reshape(9, 2, 3), weight[::-1].copy()):
        out = answer(sparse_conv, stored | {"conv3/weight": wrong}, "conv3", level, values)["out"]
        assert np.abs(out - stored["random/conv3/out"]).max() > 0.1


def sites(rng: np.random.Generator, *counts: int) -> np.ndarray:
    """One batch entry per count, with about that many sites, half of them along a diagonal."""
    parts = []
    for entry, count in enumerate(counts):
        at = rng.integers(0, 40, (count, 2))
        at[::2, 1] = at[::2, 0] + rng.integers(-2, 3, len(at[::2]))
        parts.append(np.insert(np.abs(at), 0, entry, axis=1))
    return np.unique(np.concatenate(parts), axis=0)


@pytest.mark.usefixtures("live")
class TestLive:
    @pytest.mark.parametrize("op", OPS)
    @pytest.mark.parametrize("counts", [(300,), (120, 0, 1, 40, 0)], ids=["one", "batch"])
    def test_both_agree(self, op: str, counts: tuple[int, ...], rng: np.random.Generator) -> None:
        stored = read("random")
        coords = sites(rng, *counts)
        values = rng.standard_normal((len(coords), 2))
        level = level_of(coords, entries=len(counts))
        wanted = answer(minkowski, stored, op, level, values)
        agree(answer(sparse_conv, stored, op, level, values), wanted)

    @pytest.mark.parametrize(("kernel", "stride"), [(1, 1), (1, 2), (2, 2), (4, 2), (3, 3), (7, 1)])
    @pytest.mark.parametrize("bias", [True, False])
    def test_other_kernels(
        self, kernel: int, stride: int, bias: bool, rng: np.random.Generator
    ) -> None:
        level = level_of(sites(rng, 200, 30))
        x = torch.from_numpy(rng.standard_normal((level.sites, 3)))
        own = sparse_conv.SparseConv2d(3, 5, kernel, stride, bias=bias).double()
        other = minkowski.SparseConv2d(3, 5, kernel, stride, bias=bias).double()
        other.load_state_dict(own.state_dict())
        y, z = (layer(sparse_conv.SparseTensor(x, level)) for layer in (own, other))
        assert z.level is y.level
        assert (y.features - z.features).abs().max() <= FORWARD

    @pytest.mark.parametrize(("kernel", "stride"), [(2, 2), (4, 2), (3, 2)])
    @pytest.mark.parametrize("counts", [(200, 30), (1,), (2, 0, 1)], ids=str)
    def test_other_poolings(
        self, kernel: int, stride: int, counts: tuple[int, ...], rng: np.random.Generator
    ) -> None:
        """Also where no two sites fall into one."""
        level = level_of(sites(rng, *counts), entries=len(counts))
        values = torch.from_numpy(rng.standard_normal((level.sites, 3)))
        found = []
        for backend in (sparse_conv, minkowski):
            x = values.clone().requires_grad_()
            layer = backend.SparseMaxPool2d(kernel, stride)
            out = layer(sparse_conv.SparseTensor(x, level)).features
            (out**2).sum().div(2).backward()
            found.append({"out": out.detach().numpy(), "grad x": x.grad.numpy()})
        agree(*found)

    def test_float32(self, rng: np.random.Generator) -> None:
        level = level_of(sites(rng, 200))
        x = torch.from_numpy(rng.standard_normal((level.sites, 3)).astype(np.float32))
        own, other = sparse_conv.SparseConv2d(3, 5, 3, 2), minkowski.SparseConv2d(3, 5, 3, 2)
        own.load_state_dict(other.state_dict())
        y, z = (layer(sparse_conv.SparseTensor(x, level)).features for layer in (own, other))
        assert z.dtype == torch.float32
        assert (y - z).abs().max() <= 1e-5

    @pytest.mark.parametrize("op", OPS)
    def test_a_pattern_without_sites(self, op: str) -> None:
        """The engine itself would end the process."""
        stored = read("random")
        empty = level_of(np.empty((0, 3)), entries=2)
        wanted = answer(sparse_conv, stored, op, empty, np.empty((0, 2)))
        agree(answer(minkowski, stored, op, empty, np.empty((0, 2))), wanted)

    def test_backends_may_take_turns_on_one_pattern(self, rng: np.random.Generator) -> None:
        """The engine's table of a coarse level may be there before that of the level above it."""
        stored = read("random")
        coords = sites(rng, 150)
        level, values = level_of(coords), rng.standard_normal((len(coords), 2))
        below = level.coarser(2)
        x = sparse_conv.SparseTensor(torch.ones(below.sites, 3, dtype=torch.float64), below)
        first = layers_of(minkowski, stored)["second"](x).features
        after = answer(minkowski, stored, "max-stack", level, values)
        agree(after, answer(sparse_conv, stored, "max-stack", level, values))
        again = layers_of(minkowski, stored)["second"](x).features
        assert torch.equal(first, again)

    def test_coordinates_it_would_get_wrong_are_refused(self) -> None:
        level = level_of(np.array([[0, 0, 1 << 24]]))
        x = sparse_conv.SparseTensor(torch.ones(1, 2), level)
        with pytest.raises(InputError, match=r"below 2\^24"):
            minkowski.SparseConv2d(2, 2, 3)(x)

    @pytest.mark.parametrize("name", ["cognate", "waco"])
    def test_whole_networks_agree(self, name: str, rng: np.random.Generator) -> None:
        from embeddb.featurizers.network.networks import build

        level = level_of(sites(rng, 200, 60, 1))
        features = torch.from_numpy(rng.standard_normal((level.sites, 2)))
        shapes = torch.ones(3, 3)
        found = []
        for layers in (sparse_conv, minkowski):
            spec = {"name": name, "in_channels": 2, "dim": 16, "dtype": "float64"}
            network = build(spec, seed=1, layers=layers)
            x = features.clone().requires_grad_()
            out = network(sparse_conv.SparseTensor(x, level), shapes.double())
            (out**2).sum().div(2).backward()
            grads = {key: value.grad.numpy() for key, value in network.named_parameters()}
            found.append({"out": out.detach().numpy(), "grad x": x.grad.numpy(), **grads})
        assert np.abs(found[0]["out"]).max() > 0.01
        agree(*found)

    def test_it_leaves_the_number_of_threads_alone(
        self, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys.modules["MinkowskiCoordinateManager"], "CPU_COUNT", 4)
        level = level_of(sites(rng, 50))
        x = sparse_conv.SparseTensor(torch.ones(level.sites, 2), level)
        minkowski.SparseConv2d(2, 2, 3)(x)
        assert torch.get_num_threads() == 1

    @pytest.mark.slow
    def test_the_installed_engine_makes_the_stored_vectors(self, tmp_path: Path) -> None:
        script = ROOT / "tools" / "minkowski_vectors.py"
        subprocess.run([sys.executable, script, tmp_path], check=True, timeout=120, cwd=ROOT)
        for name in NAMES:
            with np.load(tmp_path / f"{name}.npz", allow_pickle=False) as made:
                stored = read(name)
                assert made.files == list(stored)
                for key, value in stored.items():
                    np.testing.assert_allclose(made[key], value, rtol=0, atol=FORWARD, err_msg=key)


def test_features_that_do_not_fit_are_refused_before_the_engine_is_called() -> None:
    level = level_of(np.array([[0, 0, 0], [0, 1, 1]]))
    for layer in (minkowski.SparseConv2d(2, 2, 3), minkowski.SparseMaxPool2d()):
        with pytest.raises(InputError, match="2 sites"):
            layer(sparse_conv.SparseTensor(torch.ones(3, 2), level))
    with pytest.raises(InputError, match="2 channels"):
        minkowski.SparseConv2d(2, 2, 3)(sparse_conv.SparseTensor(torch.ones(2, 3), level))
    with pytest.raises(InputError, match="CPU only"):
        minkowski.SparseMaxPool2d()(
            sparse_conv.SparseTensor(torch.ones(2, 2, device="meta"), level)
        )


def test_without_the_engine_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "MinkowskiEngine", None)
    minkowski.engine.cache_clear()
    try:
        with pytest.raises(MissingDependency, match="minkowski") as e:
            minkowski.engine()
        assert "make minkowski" in e.value.hint
    finally:
        minkowski.engine.cache_clear()


def test_both_take_the_same_state() -> None:
    torch.manual_seed(3)
    own = sparse_conv.SparseConv2d(2, 3, 5, 2)
    torch.manual_seed(3)
    other = minkowski.SparseConv2d(2, 3, 5, 2)
    assert list(own.state_dict()) == list(other.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(own.parameters(), other.parameters(), strict=True))
