"""A program cut into kernels: all of it, each operation once, and put together again the same."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from tensors import op

from embeddb.tensors.check import computation
from embeddb.tensors.tensor_graph import Operation, Shape, TensorGraph, code_of
from indexer.programs.tensors import program, programs
from indexer.programs.tensors.cutting import (
    MOST_OPERATIONS,
    VIEWS,
    Piece,
    distinct_kernels,
    pieces_of,
)

SMALL = (
    "resnet.v2",
    "lstm.train",
    "bert.small",
    "dlrm.train",
    "densenet.small",
    "state_space.small",
    "bodies.small",
)
_HEAVY = ("dot", "convolution", "reduce", "reduce-window")


def test_what_follows_a_product_is_in_its_kernel() -> None:
    found = pieces_of(_two_layers())
    assert [_heavy(p) for p in found] == [["dot"], ["dot"]]
    first, second = found
    assert [o.opcode for o in first.kernel.operations][-1] == "maximum"
    assert first.kernel.name == "mlp/0"
    assert (second.kernel.name, second.kernel.group) == ("mlp/1", "dense")
    assert first.gives in second.takes


def test_a_softmax_is_one_kernel() -> None:
    (piece,) = pieces_of(_softmax())
    assert _heavy(piece) == ["reduce", "reduce"]
    assert len(piece.takes) == 1


def test_sums_along_other_dimensions_are_not_one_kernel() -> None:
    rows = [
        op("parameter", (8, 8), number=0),
        op("constant", (), value="0"),
        op("reduce", (8,), 0, 1, dimensions=(1,), combine="add"),
        op("broadcast", (8, 8), 2, dimensions=(0,)),
        op("subtract", (8, 8), 0, 3),
        op("reduce", (8,), 4, 1, dimensions=(0,), combine="add"),
    ]
    assert len(pieces_of(computation(rows, [5], kind="program"))) == 2
    rows[5] = op("reduce", (8,), 4, 1, dimensions=(1,), combine="add")
    assert len(pieces_of(computation(rows, [5], kind="program"))) == 1


def test_what_two_kernels_read_is_made_by_one_and_views_by_both() -> None:
    rows = [
        op("parameter", (16,), number=0),
        op("exponential", (16,), 0),
        op("broadcast", (16, 16), 1, dimensions=(0,)),
        op("parameter", (16, 16), number=1),
        op("dot", (16, 16), 2, 3, lhs_contracting=(1,), rhs_contracting=(0,)),
        op("dot", (16, 16), 3, 2, lhs_contracting=(1,), rhs_contracting=(0,)),
    ]
    made = computation(rows, [4, 5], kind="program", names=[str(at) for at in range(6)])
    found = pieces_of(made)
    assert [[made.names[m] for m in p.members] for p in found] == [["1"], ["4"], ["5"]]
    for piece in found[1:]:
        assert [o.opcode for o in piece.kernel.operations].count("broadcast") == 1
        assert [made.names[t] for t in piece.takes] in (["1", "3"], ["3", "1"])


def test_what_is_given_out_is_written_even_if_it_is_read_on_or_a_view() -> None:
    rows = [
        op("parameter", (4, 6), number=0),
        op("tanh", (4, 6), 0),
        op("negate", (4, 6), 1),
        op("transpose", (6, 4), 2, dimensions=(1, 0)),
        op("reshape", (24,), 0),
    ]
    made = computation(rows, [1, 3, 4], kind="program")
    found = pieces_of(made)
    assert sorted(p.gives for p in found) == sorted(made.outputs)
    _check(made)


def test_a_long_chain_is_cut_where_a_kernel_is_full() -> None:
    rows = [op("parameter", (32,), number=0)]
    rows += [op("sine", (32,), at) for at in range(200)]
    made = computation(rows, [200], kind="program")
    assert [len(p.kernel.operations) for p in pieces_of(made)] == [12, 64, 64, 64]
    _check(made)


def test_what_gives_several_arrays_is_in_no_kernel() -> None:
    f32 = Shape("f32", (8,))
    rows = [
        op("parameter", (8,), number=0),
        op("exponential", (8,), 0),
        Operation("sort", (f32, f32), (1, 0), {"combine": "other"}),
        Operation("get-tuple-element", (f32,), (2,), {"index": 0}),
        op("tanh", (8,), 3),
    ]
    made = computation(rows, [4], kind="program")
    before, after = pieces_of(made)
    assert [o.opcode for o in before.kernel.operations] == ["parameter", "exponential"]
    assert [o.opcode for o in after.kernel.operations] == ["parameter", "tanh"]
    assert made.operations[after.takes[0]].opcode == "get-tuple-element"


def test_kernels_of_many_programs_are_there_once_wherever_slices_begin() -> None:
    def step(start: int) -> TensorGraph:
        rows = [
            op("parameter", (8, 4), number=0),
            op("slice", (1, 4), 0, start=(start, 0), limit=(start + 1, 4), stride=(1, 1)),
            op("tanh", (1, 4), 1),
        ]
        return computation(rows, [2], kind="program", name=f"step.{start}", group="steps")

    (kernel,) = distinct_kernels([step(3), step(0), step(7), step(3)])
    assert (kernel.name, kernel.group) == ("step.3/0", "steps")
    assert kernel.operations[1].dims("start") == (3, 0)


@pytest.mark.parametrize("name", SMALL)
def test_kernels_put_together_are_the_program(name: str) -> None:
    _check(program(name))


@pytest.mark.slow
def test_kernels_of_every_program_put_together_are_the_program() -> None:
    for made in programs():
        _check(made)


def test_cutting_again_gives_the_same() -> None:
    made = program("nmt.small")
    assert [(p.kernel.id, p.takes) for p in pieces_of(made)] == [
        (p.kernel.id, p.takes) for p in pieces_of(made)
    ]


def _check(made: TensorGraph) -> None:
    """Each operation is computed once, views and single numbers aside; with equal operations as
    one, what the kernels give from what they take is what the program has there."""
    found = pieces_of(made)
    numbers = _Numbers()
    told = numbers.of(made, {at: ("given", at) for at in made.parameters})
    ready = set(made.parameters)
    for piece in found:
        assert len(piece.kernel.operations) <= MOST_OPERATIONS
        assert len([o for o in _heavy(piece) if o != "reduce"]) <= 1
        assert ready.issuperset(piece.takes), "it needs what a later kernel gives"
        (out,) = piece.kernel.outputs
        takes = dict(zip(piece.kernel.parameters, (told[t] for t in piece.takes), strict=True))
        assert numbers.of(piece.kernel, takes)[out] == told[piece.gives]
        ready.add(piece.gives)
    assert ready.issuperset(made.outputs)
    count = Counter(at for piece in found for at in piece.members)
    assert not count or max(count.values()) == 1
    for at, operation in enumerate(made.operations):
        if operation.opcode not in (*VIEWS, "parameter", "constant"):
            assert count[at] == 1, operation.opcode


class _Numbers:
    """A number for every different value: what it is computed by, from which other values."""

    def __init__(self) -> None:
        self.known: dict[Any, int] = {}

    def of(self, made: TensorGraph, given: dict[int, Any]) -> list[Any]:
        told: list[Any] = []
        for at, operation in enumerate(made.operations):
            key = given.get(at, (_code(operation), tuple(told[o] for o in operation.operands)))
            known = key if isinstance(key, int) else self.known.setdefault(key, len(self.known))
            told.append(known)
        return told


def _code(operation: Operation) -> str:
    return str(code_of(TensorGraph((replace(operation, operands=()),), (0,))))


def _heavy(piece: Piece) -> list[str]:
    return [o.opcode for o in piece.kernel.operations if o.opcode in _HEAVY]


def _two_layers() -> TensorGraph:
    rows = [
        op("parameter", (8, 16), number=0),
        op("parameter", (16, 16), number=1),
        op("dot", (8, 16), 0, 1, lhs_contracting=(1,), rhs_contracting=(0,)),
        op("parameter", (16,), number=2),
        op("broadcast", (8, 16), 3, dimensions=(1,)),
        op("add", (8, 16), 2, 4),
        op("constant", (), value="0"),
        op("broadcast", (8, 16), 6),
        op("maximum", (8, 16), 5, 7),
        op("dot", (8, 16), 8, 1, lhs_contracting=(1,), rhs_contracting=(0,)),
        op("add", (8, 16), 9, 4),
    ]
    return computation(rows, [10], kind="program", name="mlp", group="dense")


def _softmax() -> TensorGraph:
    rows = [
        op("parameter", (8, 32), number=0),
        op("constant", (), value="-inf"),
        op("reduce", (8,), 0, 1, dimensions=(1,), combine="maximum"),
        op("broadcast", (8, 32), 2, dimensions=(0,)),
        op("subtract", (8, 32), 0, 3),
        op("exponential", (8, 32), 4),
        op("constant", (), value="0"),
        op("reduce", (8,), 5, 6, dimensions=(1,), combine="add"),
        op("broadcast", (8, 32), 7, dimensions=(0,)),
        op("divide", (8, 32), 5, 8),
    ]
    return computation(rows, [9], kind="program", name="softmax")
