"""What is told of an operation by itself, of its place, and of its kernel."""

from __future__ import annotations

import hashlib
import time

import numpy as np
import pytest
from tensors import conv, dot_add, op, row_sum

from embeddb.core.sizes import log_size
from embeddb.tensors.analysis import operation_work
from embeddb.tensors.check import computation
from embeddb.tensors.encoding.forms import FORM, form_of, rough_seconds
from embeddb.tensors.encoding.operation_rows import (
    OPERATION,
    USUAL,
    operation_places,
    operation_rows,
    operations_version,
)
from embeddb.tensors.tensor_graph import Operation, Shape, TensorGraph


def told(kernel: TensorGraph, at: int) -> dict[str, float]:
    """Of the operation at a place, what is not 0."""
    row = operation_rows(kernel)[1 + operation_places(kernel).index(at)]
    pairs = zip(OPERATION, row.tolist(), strict=True)
    return {name: value for name, value in pairs if value}


def read(*counts: int) -> list[float]:
    return [float(np.float32(log_size(count))) for count in counts]


def form(
    opcode: str, dims: tuple[int, ...], *given: Shape, **attributes: object
) -> dict[str, float]:
    made = Operation(opcode, (Shape("f32", dims),), tuple(range(len(given))), attributes)  # type: ignore[arg-type]
    return dict(form_of(made, given))


def test_what_does_nothing_has_no_row_and_the_call_comes_first() -> None:
    kernel = dot_add()
    places = operation_places(kernel)
    opcodes = [kernel.operations[at].opcode for at in places]
    assert opcodes == ["dot", "broadcast", "add", "broadcast", "maximum"]
    rows = operation_rows(kernel)
    assert rows.shape == (6, len(OPERATION)) and rows.dtype == np.float32
    assert rows[:, OPERATION.index("call")].tolist() == [1, 0, 0, 0, 0, 0]
    assert len(set(OPERATION)) == len(OPERATION)
    parameters = OPERATION.index("kernel_parameters")
    assert rows[:, parameters].tolist() == pytest.approx([log_size(3)] * 6)


def test_a_place_is_told_by_what_is_before_and_behind_it() -> None:
    kernel = dot_add()
    dot, *_, add, _, top = operation_places(kernel)
    row = told(kernel, add)
    assert row["from_product"] == row["from_repeated"] == row["into_computed"] == 1
    assert (row["above"], row["below"]) == tuple(read(2, 1))
    assert "output" not in row and told(kernel, top)["output"] == 1
    assert told(kernel, dot)["from_given"] == 2
    assert told(kernel, dot)["share"] > told(kernel, add)["share"]


def test_products_are_told_by_their_sizes_and_what_lies_next_to_each_other() -> None:
    row = told(dot_add(64, 128, 32), operation_places(dot_add())[0])
    assert [row["rows"], row["terms"], row["columns"]] == read(64, 128, 32)
    assert (row["lhs_minor"], row["rhs_minor"]) == (1, 3)
    turned = form(
        "dot",
        (4, 8, 16),
        Shape("f32", (4, 32, 8)),
        Shape("f32", (4, 16, 32)),
        lhs_contracting=(1,),
        rhs_contracting=(2,),
        lhs_batch=(0,),
        rhs_batch=(0,),
    )
    assert (turned["lhs_minor"], turned["rhs_minor"]) == (3, 1)
    assert (turned["rows"], turned["columns"], turned["batch"]) == tuple(map(log_size, (8, 16, 4)))


def test_convolutions_are_told_by_channels_window_and_order() -> None:
    kernel = conv(2, 16, 8, 4)
    row = told(kernel, operation_places(kernel)[0])
    assert [row["channels"], row["features"], row["window"]] == read(8, 4, 9)
    assert [row["rows"]] == read(2 * 256) and row["spatial"] == 2
    assert (row["given_order"], row["window_order"], row["out_order"]) == (2, 1, 2)
    assert 0.8 < row["meeting"] < 1  # padding is not multiplied
    assert "given_holes" not in row


def test_sums_and_moves_are_told_by_what_lies_in_one_piece() -> None:
    given = Shape("f32", (6, 5, 4))
    rows = form("reduce", (6,), given, Shape("f32"), dimensions=(1, 2), combine="add")
    assert (rows["minor"], rows["run"], rows["terms"]) == (2, log_size(20), log_size(20))
    columns = form("reduce", (4,), given, Shape("f32"), dimensions=(0, 1), combine="maximum")
    assert (columns["minor"], columns["run"]) == (1, log_size(4))
    assert rows["combine"] != columns["combine"]
    turned = form("transpose", (6, 4, 5), given, dimensions=(0, 2, 1))
    assert (turned["minor"], turned["run"], turned["along"]) == (2, log_size(1), log_size(4))
    stays = form("transpose", (5, 6, 4), given, dimensions=(1, 0, 2))
    assert (stays["minor"], stays["run"]) == (2, log_size(4))
    part = form("slice", (6, 2, 4), given, start=(0, 1, 0), limit=(6, 3, 4), stride=(1, 1, 1))
    assert (part["minor"], part["run"]) == (2, log_size(8))
    wide = form("broadcast", (6, 5, 4), Shape("f32", (5, 4)), dimensions=(1, 2))
    assert (wide["minor"], wide["run"]) == (2, log_size(20))


def test_what_fits_no_operands_is_told_by_its_shape_alone() -> None:
    assert form("convolution", (4, 4), Shape("f32", (4, 4)), Shape("f32", (4, 4))) == {}
    assert form("transpose", (4,), Shape("f32", (4,)), dimensions=(3,)) == {}
    assert form("dot", (4,), Shape("f32", (4,))) == {}
    odd = computation([op("parameter", (8,), number=0), op("custom-call", (8,), 0)], [1])
    assert set(told(odd, 1)) & set(FORM) == set()


def test_what_columns_say_goes_with_the_version() -> None:
    """Where this fails, the number in `operations_version` goes up: files say other seconds."""
    rows = np.concatenate([operation_rows(one) for one in (dot_add(), conv(), row_sum())])
    told = hashlib.blake2b(np.round(rows, 3).astype("<f4").tobytes(), digest_size=4).hexdigest()
    assert (operations_version(), told) == ("fef3caa1", "4876fc3f")


def test_rows_of_a_large_kernel_take_time_in_proportion() -> None:
    def took(length: int) -> float:
        operations = [op("parameter", (8,), number=0)]
        operations += [op("negate", (8,), at) for at in range(length)]
        kernel, times = computation(operations, [length]), []
        for _ in range(3):
            began = time.process_time()
            assert len(operation_rows(kernel)) == length + 1
            times.append(time.process_time() - began)
        return min(times)

    assert took(16_000) < 32 * took(1_000)  # 16 times; by the square 256


def test_guesses_grow_with_the_work() -> None:
    few, many = (dot_add(m) for m in (16, 256))
    at = operation_places(few)[0]
    one, other = (
        rough_seconds(op, operation_work(op, k.operand_shapes(at)))
        for k in (few, many)
        for op in [k.operations[at]]
    )
    assert other > 8 * one
    rows = operation_rows(row_sum())
    assert np.isfinite(rows).all() and (np.exp(rows[:, USUAL]) > 0).all()
