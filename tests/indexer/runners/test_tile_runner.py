"""The tile runner: every tile checked, every failure a status, nothing without tiles compiled."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tensors import conv, dot_add
from tile_kernels import Kernel, softmax

from embeddb.core.config import Config, Op
from embeddb.core.errors import TensorError, UsageError
from embeddb.core.plugins import available, load
from embeddb.kernels.build import compiler
from embeddb.kernels.tiles.generate import c_function
from embeddb.tensors.tensor_graph import TensorGraph
from embeddb.tensors.tiles import Tile
from embeddb.testing.runners import RunnerContract
from indexer.runners.base import RunOptions
from indexer.runners.harness import building, measuring
from indexer.runners.tile import TileRunner
from indexer.runners.tile_code import job as tile_job

needs_gcc = pytest.mark.skipif(compiler() is None, reason="needs gcc")
pytestmark = [pytest.mark.gcc, needs_gcc]

OP = Op("tile")
QUICK = RunOptions(repeats=1, max_repeats=1, threads=1)
DOT = dot_add(24, 20, 40)
FEW = [Tile((0, 0)).config, Tile((8, 0), 8).config, Tile((4, 16)).config]


@pytest.fixture(scope="module")
def shared_runner() -> Iterator[TileRunner]:
    with TileRunner() as made:
        yield made


def statuses(runner: TileRunner, kernel: TensorGraph, configs: list[Config]) -> list[str]:
    found = runner.run(kernel, OP, configs, options=QUICK)
    return [f"{m.status} {m.error}".strip() for _, m in found]


class TestContract(RunnerContract):
    op = OP

    @pytest.fixture
    def runner(self, shared_runner: TileRunner) -> TileRunner:
        return shared_runner

    @pytest.fixture
    def options(self) -> RunOptions:
        return QUICK

    @pytest.fixture
    def configs(self) -> list[Config]:
        return FEW

    @pytest.fixture
    def pattern(self) -> TensorGraph:
        return DOT


def test_it_is_a_plugin_for_kernels() -> None:
    assert "tile" in available("runner")
    assert load("runner", "tile") is TileRunner


def test_the_platform_is_of_one_thread(shared_runner: TileRunner) -> None:
    here = shared_runner.platform(threads=2)
    assert here.name == "tile-cpu" and here.environment["threads"] == "1"
    assert here.id == shared_runner.platform(threads=1).id


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"t1": 3, "t2": 0, "tr": 0}, "t1"),
        ({"t1": 32, "t2": 0, "tr": 0}, "t1 < DIM_1"),
        ({"t1": 0, "tr": 0}, "t2"),
        ({"t1": 0, "t2": 0, "tr": 64}, "tr < REDUCED"),
    ],
)
def test_what_is_no_tile_is_invalid(
    shared_runner: TileRunner, config: dict[str, int], said: str
) -> None:
    (found,) = statuses(shared_runner, DOT, [Config(config)])
    assert found.startswith("invalid") and said in found


def test_a_block_longer_than_the_longest_dimension_summed_is_invalid(
    shared_runner: TileRunner,
) -> None:
    """Three times three times eight terms, but none of these has more than eight."""
    (found,) = statuses(shared_runner, conv(), [Tile((0, 0, 0, 0), 64).config])
    assert found == "invalid tr=64: sums run over 8 (0 is the whole)"


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        ("k4[0] = 9; for", "wrong relu[0, 0] is off by"),
        ("*(volatile int *)8; for", "crash the worker ended with signal SIGSEGV"),
        ("no_such_thing; for", "build gcc failed:"),
    ],
)
def test_a_failing_tile_is_a_status(
    monkeypatch: pytest.MonkeyPatch, shared_runner: TileRunner, new: str, expected: str
) -> None:
    def told(kernel: TensorGraph, tile: Tile, name: str) -> str:
        text = c_function(kernel, tile, name)
        head, result, rest = text.partition("/* the result */")
        return f"{head}{result}{new} {rest.strip()[3:]}" if tile.sizes[0] == 8 else text

    monkeypatch.setattr(tile_job, "c_function", told)
    shared_runner.close()  # what it compiled of this kernel before
    found = statuses(shared_runner, DOT, FEW)
    shared_runner.close()
    assert found[0] == found[2] == "ok"
    assert found[1].startswith(expected)


def test_an_endless_tile_is_ended(
    monkeypatch: pytest.MonkeyPatch, shared_runner: TileRunner
) -> None:
    def told(kernel: TensorGraph, tile: Tile, name: str) -> str:
        text = c_function(kernel, tile, name)
        return (
            text.replace("{\n", "{\nfor (volatile int x = 1; x;) ;\n", 1) if tile.reduced else text
        )

    monkeypatch.setattr(tile_job, "c_function", told)
    monkeypatch.setattr(measuring, "SLOWEST_BESIDE_S", 2.0)
    shared_runner.close()
    found = statuses(shared_runner, DOT, FEW)
    shared_runner.close()
    assert found[0] == found[2] == "ok" and found[1].startswith("timeout")


def test_another_round_compiles_nothing(
    monkeypatch: pytest.MonkeyPatch, shared_runner: TileRunner
) -> None:
    assert statuses(shared_runner, DOT, FEW) == ["ok"] * 3
    monkeypatch.setattr(building, "compile_to", lambda *asked: pytest.fail("compiled again"))
    assert statuses(shared_runner, DOT, FEW[::-1]) == ["ok"] * 3


def test_too_large_a_kernel_is_out_of_memory(shared_runner: TileRunner) -> None:
    options = RunOptions(repeats=1, max_bytes=10_000, threads=1)
    (found,) = (m for _, m in shared_runner.run(DOT, OP, FEW[:1], options=options))
    assert found.status == "oom" and "10000" in found.error


def gather() -> TensorGraph:
    k = Kernel()
    return k.done(k.op("gather", (4, 5), k.given(9, 5), k.given(4, dtype="s32")), name="gather")


def sixteen_bits() -> TensorGraph:
    k = Kernel()
    x = k.given(4, dtype="bf16")
    return k.done(k.op("add", (4,), x, x, dtype="bf16"), name="halves")


def past_its_dimensions() -> TensorGraph:
    k = Kernel()
    return k.done(k.op("broadcast", (4, 5), k.given(5), dimensions=(7,)), name="unlike")


def huge() -> TensorGraph:
    return softmax(1 << 17, 1 << 10)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (gather, "gather is not supported"),
        (sixteen_bits, "arrays of bf16 are not supported"),
        (past_its_dimensions, "its attributes do not fit its shapes"),
        (huge, "bytes of scratch memory"),
        (lambda: dot_add(kind="program"), "cut into kernels first"),
    ],
)
def test_what_has_no_tiles_is_refused_before_it_is_compiled(
    monkeypatch: pytest.MonkeyPatch, shared_runner: TileRunner, made: object, said: str
) -> None:
    monkeypatch.setattr(building, "compile_to", lambda *asked: pytest.fail("compiled"))
    assert callable(made)
    with pytest.raises(TensorError, match=said):
        statuses(shared_runner, made(), FEW)


def test_shapes_that_do_not_fit_fail_the_kernel_and_not_the_runner(
    shared_runner: TileRunner,
) -> None:
    k = Kernel()
    bad = k.done(k.op("transpose", (64, 32), k.given(64, 32), dimensions=(1, 0)), name="aaa")
    (status,) = set(statuses(shared_runner, bad, FEW[:1]))
    assert status.startswith("invalid") and "shapes do not fit" in status
    assert statuses(shared_runner, DOT, FEW[:1]) == ["ok"]


def test_its_operation_is_tile(shared_runner: TileRunner) -> None:
    with pytest.raises(UsageError, match="no nest"):
        list(shared_runner.run(DOT, Op("nest"), FEW, options=QUICK))


def test_a_kernel_whose_reference_fails_is_invalid_alone(shared_runner: TileRunner) -> None:
    k = Kernel()
    x, y = k.given(8, 8, dtype="pred"), k.given(8, 8, dtype="pred")
    k.op("subtract", (8, 8), x, y, dtype="pred")
    (said,) = statuses(shared_runner, k.done(), [Tile((0, 0)).config])
    assert said.startswith("invalid its reference fails with TypeError: numpy boolean subtract")
    assert statuses(shared_runner, DOT, FEW[:1]) == ["ok"]
