"""Trees of operations learn what each takes from sums alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tensors import op

torch = pytest.importorskip("torch")
pytest.importorskip("lightgbm")

from embeddb.core.config import Config  # noqa: E402
from embeddb.core.errors import ModelError  # noqa: E402
from embeddb.core.files import model_file  # noqa: E402
from embeddb.cost_model.graph_model import GraphModel  # noqa: E402
from embeddb.cost_model.kernel_trees import predictor_of  # noqa: E402
from embeddb.cost_model.operation_trees import OperationTrees  # noqa: E402
from embeddb.tensors.check import computation  # noqa: E402
from embeddb.tensors.computation import Computation  # noqa: E402
from embeddb.tensors.encoding.operation_rows import operation_places, operation_rows  # noqa: E402
from embeddb.tensors.probe import PROBE  # noqa: E402
from indexer.training.tensors.baselines import SECONDS  # noqa: E402
from indexer.training.tensors.samples import KernelSample, sample_of, split  # noqa: E402
from indexer.training.tensors.summed_trees import (  # noqa: E402
    summed_card,
    summed_said,
    summed_trees,
    summed_weights,
)

pytestmark = pytest.mark.usefixtures("one_thread")

CALL_S = 4e-6
#: Seconds of an element.
EACH_S = {"add": 2e-10, "exponential": 2e-9, "sine": 8e-9, "negate": 1e-10}
WORDS = tuple(EACH_S)


def kernel(words: tuple[str, ...], size: int, group: str) -> Computation:
    operations = [op("parameter", (size,), number=0)]
    for word in words:
        last = len(operations) - 1
        operations.append(op(word, (size,), last, *((last,) if word == "add" else ())))
    return computation(operations, [len(words)], name=f"{group}/{size}", group=group)


def seconds(made: Computation) -> float:
    parts = (EACH_S[one.opcode] * one.shape.elements for one in made.operations[1:])
    return CALL_S + sum(parts)


def kernels(words: tuple[str, ...], count: int, seed: int) -> Iterator[Computation]:
    rng = np.random.default_rng(seed)
    for number in range(count):
        some = tuple(words[at] for at in rng.integers(0, len(words), rng.integers(1, 6)))
        yield kernel(some, int(np.exp(rng.uniform(7, 13))), f"family{number % 7}")


def samples(made: Iterator[Computation]) -> list[KernelSample]:
    return [sample_of(one, {Config({}): seconds(one)}, fused=True) for one in made]


def apart() -> Iterator[Computation]:
    """Kernels in none of which functions meet."""
    yield from kernels(("add", "exponential"), 300, 0)
    yield from kernels(("add", "sine"), 300, 1)


@pytest.fixture(scope="module")
def trees() -> OperationTrees:
    return summed_trees(samples(apart()))


def test_what_never_met_is_summed(trees: OperationTrees) -> None:
    """Kernels that have both functions, as no kernel of the training has: flat trees, which know
    kernels as a whole, err by far more."""
    both = [
        kernel((*("exponential", "sine", "add")[:at], "sine", "exponential"), size, "new")
        for at in range(1, 4)
        for size in (30_000, 100_000, 200_000)
    ]
    held, flat = samples(iter(both)), SECONDS["trees"](samples(apart()), 0)
    summed = [float(np.exp(said[0])) for said in summed_said(trees, held)]
    errors = {
        name: np.median([abs(one / s.seconds[0] - 1) for one, s in zip(told, held, strict=True)])
        for name, told in (("summed", summed), ("flat", [flat(s) for s in held]))
    }
    assert errors["summed"] < 0.25 and errors["summed"] < 0.7 * errors["flat"]


def test_seconds_are_told_by_operation(trees: OperationTrees) -> None:
    made = kernel(("sine", "add"), 100_000, "new")
    call, sine, add = trees.parts(operation_rows(made)).tolist()
    assert sine == pytest.approx(8e-4, rel=0.3)
    assert call < sine / 5 and add < sine / 5
    assert trees.seconds(made) == pytest.approx(call + sine + add)
    assert summed_said(trees, samples(iter([made])))[0][0] == pytest.approx(
        np.log(call + sine + add)
    )
    without = np.exp(trees.without(made, [{}])[:, 0])
    at = operation_places(made)[0]
    assert without[at] == pytest.approx(call + add, rel=1e-3)
    assert without[0] == pytest.approx(call + sine + add, rel=1e-3)


def test_a_file_says_what_was_learned(trees: OperationTrees, tmp_path: Path) -> None:
    made = summed_weights(samples(kernels(WORDS, 60, 3)))
    card = {"kind": "kernels", **summed_card()}
    file = tmp_path / "fused.safetensors"
    model_file.save(file, {n: torch.from_numpy(a) for n, a in made.items()}, card)
    again = predictor_of(file)
    assert isinstance(again, OperationTrees) and again.task == "fused"
    direct = OperationTrees(card, made)
    for one in kernels(WORDS, 5, 4):
        assert again.seconds(one) == direct.seconds(one)
    for wrong, told in (
        ({"network": {"task": "tile", "operations": ""}}, "of 'tile'"),
        ({"network": {"task": "fused", "encoding": "00000000"}}, "told otherwise"),
        ({"network": {}}, "fused.safetensors"),
    ):
        model_file.save(file, {n: torch.from_numpy(a) for n, a in made.items()}, {**card, **wrong})
        with pytest.raises(ModelError, match=told):
            predictor_of(file)


def test_an_operation_that_is_hidden_takes_no_time(trees: OperationTrees) -> None:
    card = {
        **trees.card,
        "platform": {"name": "xla-cpu", "id": "xla-cpu@1", "space": "0"},
        "calibration": {"slope": 1.0, "floor": 0.1},
    }
    model = GraphModel(OperationTrees(card, summed_weights(samples(kernels(WORDS, 60, 3)))))
    made = kernel(("sine", "negate"), 50_000, "new")
    hidden, whole = model.without(made, [Config({})]), model.predict(made, [Config({})])
    assert hidden.shape == (3, 1) and hidden[1, 0] < whole[0] and model.flat


def test_probes_are_learned_from_and_never_held_out() -> None:
    made = list(kernels(WORDS, 70, 5))
    probes = [one.renamed(f"{PROBE}x/{at}", f"{PROBE}x") for at, one in enumerate(made[:20])]
    for by in ("family", "program"):
        train, held = split(samples(iter([*probes, *made])), by, 0)
        assert held and not any(sample.group.startswith(PROBE) for sample in held)
        assert sum(sample.group.startswith(PROBE) for sample in train) == 20
