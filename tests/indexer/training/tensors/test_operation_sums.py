"""Trees and a network of operations learn what each takes from sums alone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensors import op

torch = pytest.importorskip("torch")
pytest.importorskip("lightgbm")

from tiled_kernels import predictor_of  # noqa: E402

from benchmarks.kernel_baselines import SECONDS  # noqa: E402
from embeddb.core.config import Config  # noqa: E402
from embeddb.core.errors import ModelError  # noqa: E402
from embeddb.core.files import model_file  # noqa: E402
from embeddb.cost_model.graph_model import GraphModel  # noqa: E402
from embeddb.cost_model.operation_sums import NETWORK, TREES, OperationNetwork, OperationSums  # noqa: E402
from embeddb.tensors.check import computation  # noqa: E402
from embeddb.tensors.encoding.operation_rows import (  # noqa: E402
    OPERATION,
    operation_places,
    operation_rows,
)
from embeddb.tensors.tensor_graph import (  # noqa: E402
    PROBE,
    TensorGraph,
)
from indexer.training.folder import checkpoint_of  # noqa: E402
from indexer.training.tensors.operations import (  # noqa: E402  # noqa: E402
    MEMBERS,
    NetworkTraining,
    network_weights,
    summed_card,
    summed_predictions,
    summed_weights,
)
from indexer.training.tensors.samples import KernelSample, sample_of, split  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

CALL_S = 4e-6
#: Seconds of an element.
EACH_S = {"add": 2e-10, "exponential": 2e-9, "sine": 8e-9, "negate": 1e-10}
WORDS = tuple(EACH_S)


def kernel(words: tuple[str, ...], size: int, group: str) -> TensorGraph:
    operations = [op("parameter", (size,), number=0)]
    for word in words:
        last = len(operations) - 1
        operations.append(op(word, (size,), last, *((last,) if word == "add" else ())))
    return computation(operations, [len(words)], name=f"{group}/{size}", group=group)


def seconds(made: TensorGraph) -> float:
    parts = (EACH_S[one.opcode] * one.shape.elements for one in made.operations[1:])
    return CALL_S + sum(parts)


def kernels(words: tuple[str, ...], count: int, seed: int) -> Iterator[TensorGraph]:
    rng = np.random.default_rng(seed)
    for number in range(count):
        some = tuple(words[at] for at in rng.integers(0, len(words), rng.integers(1, 6)))
        yield kernel(some, int(np.exp(rng.uniform(7, 13))), f"family{number % 7}")


def samples(made: Iterator[TensorGraph]) -> list[KernelSample]:
    return [sample_of(one, {Config({}): seconds(one)}, fused=True) for one in made]


def apart() -> Iterator[TensorGraph]:
    """Kernels in none of which functions meet."""
    yield from kernels(("add", "exponential"), 300, 0)
    yield from kernels(("add", "sine"), 300, 1)


@pytest.fixture(scope="module")
def learned() -> dict[str, OperationSums]:
    made = summed_weights(samples(apart()))
    own = {
        name: {key: array for key, array in made.items() if key.startswith(name)}
        for name in MEMBERS
    }
    alone = {name: OperationSums(summed_card((name,)), own[name]) for name in MEMBERS}
    return {**alone, "both": OperationSums(summed_card(), made)}


@pytest.fixture(scope="module")
def both(learned: dict[str, OperationSums]) -> OperationSums:
    return learned["both"]


def test_what_never_met_is_summed(learned: dict[str, OperationSums]) -> None:
    """Kernels that have both functions, as no kernel of the training has: flat trees, which know
    kernels as a whole, err by far more."""
    met = [
        kernel((*("exponential", "sine", "add")[:at], "sine", "exponential"), size, "new")
        for at in range(1, 4)
        for size in (30_000, 100_000, 200_000)
    ]
    held, flat = samples(iter(met)), SECONDS["trees"](samples(apart()), 0)
    told = {
        name: [float(np.exp(said[0])) for said in summed_predictions(one, held)]
        for name, one in learned.items()
    }
    errors = {
        name: np.median([abs(one / s.seconds[0] - 1) for one, s in zip(said, held, strict=True)])
        for name, said in {**told, "flat": [flat(s) for s in held]}.items()
    }
    for name in learned:
        assert errors[name] < 0.25 and errors[name] < 0.7 * errors["flat"], errors


def test_seconds_are_told_by_operation(both: OperationSums) -> None:
    made = kernel(("sine", "add"), 100_000, "new")
    call, sine, add = both.parts(operation_rows(made)).tolist()
    assert sine == pytest.approx(8e-4, rel=0.3)
    assert call < sine / 5 and add < sine / 5
    assert both.seconds(made) == pytest.approx(call + sine + add)
    assert summed_predictions(both, samples(iter([made])))[0][0] == pytest.approx(
        np.log(call + sine + add)
    )
    without = np.exp(both.without(made, [{}])[:, 0])
    at = operation_places(made)[0]
    assert without[at] == pytest.approx(call + add, rel=1e-3)
    assert without[0] == pytest.approx(call + sine + add, rel=1e-3)


def test_how_far_members_are_apart(learned: dict[str, OperationSums]) -> None:
    one = kernel(("add", "sine"), 20_000, "new")
    sums = [learned[name].seconds(one) for name in MEMBERS]
    assert learned["both"].apart(one) == pytest.approx(max(sums) / min(sums), rel=1e-4)
    assert learned["both"].seconds(one) == pytest.approx(math.sqrt(sums[0] * sums[1]), rel=1e-4)
    assert learned["trees"].apart(one) == 1.0


def test_a_file_says_what_was_learned(both: OperationSums, tmp_path: Path) -> None:
    made = summed_weights(samples(kernels(WORDS, 60, 3)))
    card = {"kind": "kernels", **summed_card()}
    file = tmp_path / "fused.safetensors"
    model_file.save(file, {n: torch.from_numpy(a) for n, a in made.items()}, card)
    again = predictor_of(file)
    assert isinstance(again, OperationSums) and again.task == "fused"
    assert {name.partition(".")[0] + "." for name in made} == {TREES, NETWORK}
    direct = OperationSums(card, made)
    for one in kernels(WORDS, 5, 4):
        assert again.seconds(one) == direct.seconds(one)
    for wrong, told in (
        ({"network": {"task": "tile", "operations": ""}}, "of 'tile'"),
        ({"network": {"task": "fused", "encoding": "00000000"}}, "encoded otherwise"),
        ({"network": {}}, "fused.safetensors"),
    ):
        model_file.save(file, {n: torch.from_numpy(a) for n, a in made.items()}, {**card, **wrong})
        with pytest.raises(ModelError, match=told):
            predictor_of(file)


def test_both_are_the_geometric_mean_of_their_sums(learned: dict[str, OperationSums]) -> None:
    asked = samples(kernels(WORDS, 5, 6))
    said = {name: np.concatenate(summed_predictions(one, asked)) for name, one in learned.items()}
    np.testing.assert_allclose(said["both"], (said["trees"] + said["network"]) / 2, atol=1e-9)
    rows = np.concatenate([sample.operations for sample in asked])
    parts = learned["both"].parts(rows)  # of all kernels at once, and of each by itself
    each = [learned["both"].parts(sample.operations) for sample in asked]
    np.testing.assert_allclose(parts, np.concatenate(each), rtol=1e-5)


def test_numpy_says_what_torch_does() -> None:
    from indexer.training.tensors.operations import _Kernels, _Network

    asked = samples(kernels(WORDS, 40, 7))
    how = NetworkTraining(hidden=24, epochs=2)
    made = network_weights(asked, how=how)
    network = _Network(how)
    network.scale = torch.from_numpy(made["scale"])
    network.load_state_dict({name: torch.from_numpy(array) for name, array in made.items()})
    with torch.no_grad():
        wanted = network.eval()(_Kernels(asked).batch(np.arange(40), torch.device("cpu")))
    model = OperationSums(
        summed_card(("network",)), {NETWORK + name: array for name, array in made.items()}
    )
    said = np.concatenate(summed_predictions(model, asked))
    np.testing.assert_allclose(said, wanted.numpy(), atol=1e-4)


def test_an_opcode_that_nobody_learned_from_adds_nothing() -> None:
    asked = samples(kernels(("add", "negate"), 40, 7))
    network = OperationNetwork(network_weights(asked, how=NetworkTraining(hidden=24, epochs=2)))
    rows = operation_rows(kernel(("add",), 50_000, "new"))
    other = rows.copy()
    other[1, OPERATION.index("is_sine")] = 1.0
    np.testing.assert_array_equal(network.predict(other), network.predict(rows))
    other[1, OPERATION.index("is_negate")] = 1.0
    assert network.predict(other)[1] != network.predict(rows)[1]


def test_a_training_that_was_killed_ends_with_the_same_weights(tmp_path: Path) -> None:
    asked, how = samples(kernels(WORDS, 60, 8)), NetworkTraining(hidden=16, epochs=4, kernels=16)
    whole = network_weights(asked, how=how, folder=tmp_path / "whole")
    seen = 0

    def killed(_: str, done: int, of: int) -> None:
        nonlocal seen
        seen += 1
        if seen > of // 2 + 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        network_weights(asked, how=how, folder=tmp_path / "killed", progress=killed)
    assert checkpoint_of(tmp_path / "killed").exists()
    again = network_weights(asked, how=how, folder=tmp_path / "killed")
    for name, array in whole.items():
        np.testing.assert_array_equal(again[name], array, err_msg=name)


@pytest.mark.parametrize(
    ("name", "wrong", "told"),
    [
        ("head.weight", lambda a: a[:, :0], "layers of 0"),
        ("head.bias", lambda a: a.astype(np.float64), "head.bias"),
        ("layers.1.weight", lambda a: a * np.inf, "layers.1.weight"),
        ("layers.0.weight", lambda a: a[:, 1:], "layers.0.weight"),
        ("scale", lambda a: a * 0, "deviation"),
    ],
)
def test_weights_of_strangers_are_looked_at(name: str, wrong: Any, told: str) -> None:
    made = network_weights(samples(kernels(WORDS, 20, 9)), how=NetworkTraining(hidden=8, epochs=1))
    with pytest.raises(ModelError, match=told):
        OperationNetwork({**made, name: wrong(made[name])})
    del made[name]
    with pytest.raises((KeyError, ModelError)):
        OperationNetwork(made)


def test_a_file_with_neither_is_refused() -> None:
    with pytest.raises(ModelError, match="neither"):
        OperationSums(summed_card(), {"splits": np.zeros(1, np.int16)})


def test_an_operation_that_is_hidden_takes_no_time(both: OperationSums) -> None:
    card = {
        **both.card,
        "platform": {"name": "xla-cpu", "id": "xla-cpu@1", "space": "0"},
        "calibration": {"slope": 1.0, "floor": 0.1},
    }
    model = GraphModel(OperationSums(card, summed_weights(samples(kernels(WORDS, 60, 3)))))
    made = kernel(("sine", "negate"), 50_000, "new")
    hidden, whole = model.without(made, [Config({})]), model.predict(made, [Config({})])
    assert hidden.shape == (3, 1) and hidden[1, 0] < whole[0] and model.flat


def test_probes_are_learned_from_and_never_held_out() -> None:
    made = list(kernels(WORDS, 70, 5))
    probes = [
        replace(one, name=f"{PROBE}x/{at}", group=f"{PROBE}x") for at, one in enumerate(made[:20])
    ]
    for by in ("family", "program"):
        train, held = split(samples(iter([*probes, *made])), by, 0)
        assert held and not any(sample.group.startswith(PROBE) for sample in held)
        assert sum(sample.group.startswith(PROBE) for sample in train) == 20
