"""Programs and kernels by XLA: every failure a status, partitions checked against the program.

Skipped where no interpreter has jax: neither this one nor the one in EMBEDDB_JAX_PYTHON.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hlo_texts import FOLDER
from tensors import dot_add, op, row_sum, softmax

from embeddb.core.config import Config, Op
from embeddb.core.errors import RunnerUnavailable, TensorError, UsageError
from embeddb.tensors.check import computation
from embeddb.tensors.edges import Cut, edges_of
from embeddb.tensors.partition import Partition, random_cut
from embeddb.tensors.tensor_graph import Operation, Shape, TensorGraph
from embeddb.testing.runners import RunnerContract
from indexer.frontends.hlo.files import read_tensors
from indexer.runners import xla
from indexer.runners.base import RunOptions
from indexer.runners.xla import VARIABLE, XlaRunner
from indexer.runners.xla_code import measuring
from indexer.runners.xla_code.measuring import APART_S, ROUNDS, KernelTimes

pytestmark = pytest.mark.skipif(
    XlaRunner().available() is not None, reason=f"needs jax, here or in {VARIABLE}"
)
FUSED, FUSION = Op("fused"), Op("fusion")
QUICK = RunOptions(repeats=1, max_repeats=1, threads=1)


@pytest.fixture(scope="module")
def shared_runner() -> Iterator[XlaRunner]:
    with XlaRunner() as made:
        yield made


def program(name: str) -> TensorGraph:
    (made,) = read_tensors(FOLDER / f"{name}.before.txt").tensors
    return made


def statuses(runner: XlaRunner, made: TensorGraph, *cuts: str) -> list[str]:
    found = runner.run(made, FUSION, [Config({"cut": cut}) for cut in cuts], options=QUICK)
    return [f"{m.status} {m.error}".strip() for _, m in found]


class TestContract(RunnerContract):
    op = FUSION

    @pytest.fixture
    def runner(self, shared_runner: XlaRunner) -> XlaRunner:
        return shared_runner

    @pytest.fixture
    def options(self) -> RunOptions:
        return QUICK

    @pytest.fixture
    def configs(self) -> list[Config]:
        return [Config({"cut": "whole"}), Config({"cut": "single"}), Config({"cut": "3:8"})]

    @pytest.fixture
    def pattern(self) -> TensorGraph:
        return dot_add(8, 8, 8, kind="program")


@pytest.mark.parametrize("name", ["attention", "lstm", "batch_norm", "parts", "pool_gradient"])
def test_partitions_give_what_the_program_gives(name: str, shared_runner: XlaRunner) -> None:
    made = program(name)
    cuts = [random_cut(made, np.random.default_rng(seed)).text for seed in range(2)]
    assert statuses(shared_runner, made, "whole", "single", *cuts) == ["ok"] * 4


def test_a_kernel_is_timed_and_checked(shared_runner: XlaRunner) -> None:
    for kernel in (dot_add(), row_sum()):
        ((_, found),) = shared_runner.run(kernel, FUSED, [Config({})], options=QUICK)
        assert found.ok and found.tolerance and found.compile_s and found.seconds > 0
        assert len(found.times_s) == len(found.cpu_sum_s) == ROUNDS


def test_rounds_are_apart_and_kernels_take_turns_in_them(shared_runner: XlaRunner) -> None:
    times = KernelTimes(shared_runner.session, QUICK)
    kernels = (dot_add(), row_sum())
    ready = {kernel.id: times.ready(kernel, check=False) for kernel in kernels}
    start = time.perf_counter()
    told, problem = times.timed(ready)
    took = time.perf_counter() - start
    assert problem is None and took >= (ROUNDS - 1) * APART_S
    assert {name: len(found.times_s) for name, found in told.items()} == dict.fromkeys(
        ready, ROUNDS
    )
    assert all(told[name].compile_s == ready[name].compile_s for name in ready)


def test_kernels_of_a_worker_that_died_have_no_times_and_have_not_failed(
    shared_runner: XlaRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = program("mlp")
    times, single = shared_runner.program(made, QUICK), Partition.of(made, "single")
    whole, request = times.measure(Partition.of(made, "whole")), shared_runner.session.request

    def dying(message: dict[str, Any], *given: Any, **named: Any) -> dict[str, Any]:
        if message["do"] == "rounds":
            shared_runner.session.close()
        return request(message, *given, **named)

    monkeypatch.setattr(shared_runner.session, "request", dying)
    lost = times.measure(single)
    assert (lost.measurement.status, lost.fresh) == ("crash", ())
    monkeypatch.undo()
    again = times.measure(single)
    assert whole.measurement.ok and again.measurement.ok and len(again.fresh) > 1


def test_kernels_are_tried_alone_where_the_worker_dies_of_one(
    shared_runner: XlaRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels, request = [dot_add(), row_sum(), softmax()], shared_runner.session.request

    def dying(message: dict[str, Any], *given: Any, **named: Any) -> dict[str, Any]:
        if message["do"] == "rounds" and row_sum().id in message["ids"]:
            shared_runner.session.close()
        return request(message, *given, **named)

    monkeypatch.setattr(shared_runner.session, "request", dying)
    (some,) = shared_runner.kernels(kernels, QUICK)
    assert [(kernel.id, found.status) for kernel, found in some] == [
        (kernels[0].id, "ok"),
        (kernels[1].id, "crash"),
        (kernels[2].id, "ok"),
    ]


def test_kernels_come_as_many_at_a_time_as_take_turns(
    shared_runner: XlaRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(xla, "_IN_TURNS", 2)
    monkeypatch.setattr(xla, "_TURNS_A_WORKER", 1)
    made = [dot_add(), row_sum(), dot_add(m=16)]
    some = list(shared_runner.kernels(made, QUICK))
    assert [len(part) for part in some] == [2, 1]
    assert all(found.ok and found.tolerance for part in some for _, found in part)


def test_kernels_take_turns_as_far_as_there_is_room(
    shared_runner: XlaRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "_TOGETHER", 1)
    made = program("mlp")
    single = Partition.of(made, "single")
    found = shared_runner.program(made, QUICK).measure(single)
    ids = {placed.kernel.id for placed in single.kernels}
    assert found.measurement.ok and {kernel.id for kernel, _ in found.fresh} == ids


def test_a_kernel_is_timed_once_for_all_partitions(shared_runner: XlaRunner) -> None:
    made = program("mlp")
    times = shared_runner.program(made, QUICK)
    first = times.measure(Partition.of(made, "single"), chained=True)
    assert first.measurement.ok and len(first.chain_s) > 1
    ids = {placed.kernel.id for placed in Partition.of(made, "single").kernels}
    assert {kernel.id for kernel, _ in first.fresh} == ids
    again = times.measure(Partition.of(made, "single"))
    assert again.fresh == () and again.measurement.seconds == first.measurement.seconds
    total = sum(times.seconds[p.kernel.id] for p in Partition.of(made, "single").kernels)
    assert first.measurement.seconds == pytest.approx(total)


def test_kernels_that_are_timed_anew_are_not_compiled_again(shared_runner: XlaRunner) -> None:
    made = program("mlp")
    times = shared_runner.program(made, QUICK)
    single = Partition.of(made, "single")
    first = times.measure(single)
    times.seconds.clear()
    again = times.measure(single, chained=True)
    compiled = [{k.id: found.compile_s for k, found in told.fresh} for told in (first, again)]
    assert compiled[0] == compiled[1] and again.measurement.ok and again.chain_s
    assert times.fresh == list(again.fresh)


def test_kernels_that_were_timed_before_are_compiled_for_the_check(
    shared_runner: XlaRunner,
) -> None:
    made = program("mlp")
    times = shared_runner.program(made, QUICK)
    single = Partition.of(made, "single")
    times.seconds.update({placed.kernel.id: 1.0 for placed in single.kernels})
    found = times.measure(single)
    assert found.measurement.ok and found.fresh == ()
    assert found.measurement.seconds == len(single.kernels)


def test_kernels_are_timed_with_what_the_program_hands_them(shared_runner: XlaRunner) -> None:
    """Sines of numbers near 0 take half as long; what is drawn for a matrix by itself is narrow,
    what a vector adds is not."""
    dims = (1 << 14, 16)
    made = computation(
        [
            op("parameter", dims, number=0),
            op("parameter", (1 << 18,), number=1),
            *(op("reshape", dims, 1), op("add", dims, 0, 2), op("sine", dims, 3)),
        ],
        [4],
        kind="program",
    )
    single = Partition.of(made, "single")
    found = shared_runner.program(made, QUICK).measure(single)
    sine = single.kernels[-1].kernel
    assert found.measurement.ok and sine.operations[-1].opcode == "sine"
    handed = next(told for kernel, told in found.fresh if kernel.id == sine.id)
    unchecked = replace(QUICK, check=False)
    ((_, drawn),) = KernelTimes(shared_runner.session, unchecked).in_turns([sine])
    assert min(handed.cpu_sum_s) > 1.4 * min(drawn.cpu_sum_s)
    assert handed.of_program and not drawn.of_program


def test_what_gives_other_results_is_wrong(shared_runner: XlaRunner) -> None:
    made = program("mlp")
    times = shared_runner.program(made, QUICK)
    partition = Partition.of(made, "single")
    numbers = [one.kernel.operations[-1].opcode for one in partition.kernels]
    at = numbers.index("exponential")
    kernel = partition.kernels[at].kernel
    other = [*kernel.operations[:-1], op("tanh", kernel.operations[-1].shape.dims, 0)]
    changed = computation(other, kernel.outputs, name="changed")
    broken = list(partition.kernels)
    broken[at] = type(broken[at])(changed, broken[at].takes, broken[at].gives)
    partition.__dict__["kernels"] = tuple(broken)
    found = times.measure(partition)
    assert found.measurement.status == "wrong" and "off by" in found.measurement.error
    # Any of its kernels may be the one: none is known by it.
    assert not times.seconds and {m.status for _, m in found.fresh} == {"wrong"}


def test_cuts_that_no_program_has_are_statuses(shared_runner: XlaRunner) -> None:
    made = program("attention")
    found = statuses(shared_runner, made, "12:000", "some", "whole")
    assert found[0].startswith("invalid is the cut of another program: it has 12 edges, not 19")
    assert found[1].startswith("invalid 'some' is not a cut") and found[2] == "ok"
    pairs = edges_of(made).pairs
    past = Cut(tuple(made.names[p] != "div.7" or made.names[c] != "sub.7" for p, c in pairs))
    (past_others,) = statuses(shared_runner, made, past.text)
    assert past_others.startswith("invalid div.7 and sub.7 are in one kernel, but")


def test_what_xla_does_not_compile_is_a_status(shared_runner: XlaRunner) -> None:
    unknown = computation(
        [op("parameter", (8,), number=0), op("tanh", (8,), 0), op("frobnicate", (8,), 1)],
        [2],
        kind="program",
    )
    whole, single = statuses(shared_runner, unknown, "whole", "single")
    assert whole.startswith("build") and "frobnicate" in whole and single.startswith("build")
    given = [op("parameter", (8, 4), number=0), op("parameter", (5, 8), number=1)]
    dims = {"lhs_contracting": (1,), "rhs_contracting": (0,)}
    misfit = computation([*given, op("dot", (8, 8), 0, 1, **dims)], [2])
    ((_, found),) = shared_runner.run(misfit, FUSED, [Config({})], options=QUICK)
    assert found.status == "build" and "\n" not in found.error
    opaque = program("scan")
    assert statuses(shared_runner, opaque, "whole")[0].startswith("build operation while")
    with pytest.raises(TensorError, match="cannot be written as HLO"):
        shared_runner.compiler_cut(opaque)
    # The worker lives on.
    assert statuses(shared_runner, dot_add(kind="program"), "whole") == ["ok"]


def test_what_is_too_large_is_not_compiled(shared_runner: XlaRunner) -> None:
    huge = Shape("f32", (1 << 32,))
    made = computation(
        [Operation("parameter", (huge,), (), {"number": 0}), Operation("tanh", (huge,), (0,))], [1]
    )
    ((_, found),) = shared_runner.run(made, FUSED, [Config({})], options=QUICK)
    assert found.status == "oom"


def test_another_operation_is_refused(shared_runner: XlaRunner) -> None:
    with pytest.raises(UsageError, match="no tile"):
        list(shared_runner.run(dot_add(), Op("tile"), [Config({})], options=QUICK))


def test_the_compilers_own_fusions_are_a_legal_cut(shared_runner: XlaRunner) -> None:
    made = program("batch_norm")
    cut = shared_runner.compiler_cut(made)
    kernels = Partition.of(made, cut).kernels
    assert 1 <= len(kernels) < len(edges_of(made).computing)
    assert statuses(shared_runner, made, cut.text) == ["ok"]


def test_an_interpreter_without_jax_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "python"))
    reason = XlaRunner().available()
    assert reason is not None and "which is no file" in reason
    with pytest.raises(RunnerUnavailable):
        XlaRunner().compiler_cut(dot_add(kind="program"))
