"""Tensor kernels and programs: ids, sizes, what is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tensors import conv, dot_add, op, row_sum, sample_tensors

from embeddb.core.errors import TensorError
from embeddb.tensors.check import computation
from embeddb.tensors.tensor_graph import Operation, Shape, Signature, TensorGraph
from embeddb.tensors.tensor_text import tensor_from_text, tensor_text


def test_sizes_are_those_of_the_root_and_the_longest_sum() -> None:
    assert dict(dot_add(64, 128, 32).sizes.named) == {
        "RANK": 2, "DIM_1": 64, "DIM_2": 32, "REDUCED": 128
    }  # fmt: skip
    assert dict(row_sum(48, 1000).sizes.named)["REDUCED"] == 1000
    assert dict(conv(features=8).sizes.named)["REDUCED"] == 3 * 3 * 8
    assert dict(dot_add(kind="program").sizes.named) == {"OPERATIONS": 9}


def test_many_dimensions_and_none_have_sizes_too() -> None:
    wide = computation([op("parameter", (2, 3, 4, 5, 6, 7, 8), number=0)], [0])
    assert dict(wide.sizes.named) == {
        "RANK": 6, "DIM_1": 6, "DIM_2": 4, "DIM_3": 5, "DIM_4": 6, "DIM_5": 7, "DIM_6": 8,
        "REDUCED": 1,
    }  # fmt: skip
    scalar = computation([op("constant", (), value="1")], [0])
    assert dict(scalar.sizes.named) == {"RANK": 1, "DIM_1": 1, "REDUCED": 1}
    assert scalar.sizes.possible and wide.sizes.possible


def test_the_id_does_not_depend_on_names_or_the_order_written() -> None:
    """Parameters are numbered as they are met from the outputs, what nothing uses is left out."""
    one = dot_add()
    shuffled = [3, 0, 6, 1, 7, 2, 4, 5, 8]
    place = {old: new for new, old in enumerate(shuffled)}
    listed = [
        replace(one.operations[old], operands=tuple(place[o] for o in one.operations[old].operands))
        for old in shuffled
    ]
    other = computation([*listed, op("parameter", (5,), number=9)], [place[8]], name="x")
    assert other == one and other.operations == one.operations
    assert dot_add(65) != one and dot_add(kind="program") != one


@pytest.mark.parametrize("made", sample_tensors().values(), ids=sample_tensors())
def test_the_text_gives_it_back(made: TensorGraph) -> None:
    found = tensor_from_text(tensor_text(made))
    assert found == made and found.operations == made.operations
    assert (found.name, found.group, found.names) == (made.name, made.group, made.names)


def test_users_and_parameters() -> None:
    made = dot_add()
    assert [made.operations[at].shape.dims for at in made.parameters] == [
        (64, 128),
        (128, 32),
        (32,),
    ]
    assert all(at in made.users[o] for at, x in enumerate(made.operations) for o in x.operands)


def _changed(**code: object) -> str:
    told = json.loads(tensor_text(dot_add()))
    told["code"] |= code
    return json.dumps(told)


F32 = [["f32", [4], [0]]]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", '"tensors": 1'),
        ('{"tensors": 1}', '"code"'),
        (_changed(outputs=[]), "no output"),
        (_changed(outputs=[99]), "not an operation"),
        (_changed(operations=[["add", F32, [0, 0], {}]], outputs=[0]), "cycle"),
        (
            _changed(operations=[["add", F32, [1], {}], ["abs", F32, [0], {}]], outputs=[0]),
            "cycle",
        ),
        (_changed(operations=[["add", F32, [5], {}]], outputs=[0]), "operand 5"),
        (_changed(operations=[["add", [["f31", [4], [0]]], [], {}]], outputs=[0]), "f31"),
        (_changed(operations=[["add", [["f32", [4], [1]]], [], {}]], outputs=[0]), "layout"),
        (_changed(operations=[["add", [["f32", [4], []]], [], {}]], outputs=[0]), "layout"),
        (_changed(operations=[["add", [["f32", [0], [0]]], [], {}]], outputs=[0]), "no element"),
        (_changed(operations=[["add", [["f32", [1 << 41], [0]]], [], {}]], outputs=[0]), "large"),
        (
            _changed(
                operations=[["parameter", F32, [], {}], ["abs", [["f32", [5], [0]]], [0], {}]],
                outputs=[1],
            ),
            "abs of f32[4]{0} cannot have the result f32[5]{0}",
        ),
        (_changed(operations=[["rm -rf", F32, [], {}]], outputs=[0]), "not an opcode"),
        (_changed(operations=[["add", [], [], {}]], outputs=[0]), "has no result"),
        (_changed(operations=[["add", F32, [], {"x": 1.5}]], outputs=[0]), "whole numbers"),
        (_changed(operations=[["add", F32, []]], outputs=[0]), "operation is"),
        (_changed(operations="add", outputs=[0]), "must be a list"),
    ],
)
def test_what_is_none_is_refused_in_one_line(text: str, says: str) -> None:
    with pytest.raises(TensorError) as error:
        tensor_from_text(text, where="k.json")
    assert says in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "signature",
    [
        [],
        {"parameters": [0, 1, 3]},
        {"parameters": [0, 1], "outputs": [8]},
        {"parameters": [0, 1, 1, 3], "outputs": [8]},
        {"parameters": [0, 1, 2, 3], "outputs": [8]},
        {"parameters": [0, 1, 99], "outputs": [8]},
        {"parameters": [0, 1, True], "outputs": [8]},
        {"parameters": [0, 1, 3], "outputs": []},
        {"parameters": [0, 1, 3], "outputs": [8, 7]},
        {"parameters": [0, 1, 3, ["f32[] x", [], []]], "outputs": [8]},
        {"parameters": [0, 1, 3, ["f32", [-1], [0]]], "outputs": [8]},
        {"parameters": [0, 1, 3, ["f32", [4], [1]]], "outputs": [8]},
    ],
)
def test_a_signature_of_another_graph_is_refused(signature: object) -> None:
    document = json.loads(tensor_text(dot_add()))
    order = {"parameters": [3, ["s4", [0], [0]], 0, 1], "outputs": [8, 8]}
    made = tensor_from_text(json.dumps(document | {"signature": order}))
    assert json.loads(tensor_text(made))["signature"] == order and made == dot_add()
    with pytest.raises(TensorError, match="signature") as error:
        tensor_from_text(json.dumps(document | {"signature": signature}))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "signature",
    [
        Signature((0, 1, 3, Shape("f32", (1,) * 17)), (8,)),
        Signature((0, 1, 3, *[Shape("f32")] * 200_000), (8,)),
        Signature((0, 1, 3), (8,) * 200_001),
    ],
)
def test_a_signature_whose_text_could_not_be_read_is_refused(signature: Signature) -> None:
    with pytest.raises(TensorError, match="signature"):
        computation(dot_add().operations, [8], signature=signature)


def test_scalars_select_and_are_bounds_and_nothing_else() -> None:
    given = [op("parameter", ()), op("parameter", (4,))]
    for opcode, operands in (("select", (0, 1, 1)), ("clamp", (0, 1, 0)), ("clamp", (1, 1, 1))):
        assert computation([*given, op(opcode, (4,), *operands)], [2]).operations
    for opcode, operands in (("select", (1, 0, 1)), ("clamp", (1, 0, 1)), ("add", (0, 1))):
        with pytest.raises(TensorError, match=f"{opcode} of"):
            computation([*given, op(opcode, (4,), *operands)], [2])


def test_a_chain_of_a_hundred_thousand_operations_is_read() -> None:
    shape = (Shape("f32", (4,)),)
    chain = [op("parameter", (4,), number=0)]
    chain += [Operation("abs", shape, (at,)) for at in range(100_000)]
    made = computation(chain, [100_000], kind="program")
    assert len(made.operations) == 100_001 and len(made.id) == 32


def test_what_appears_twice_on_a_path_is_no_cycle() -> None:
    """A diamond: both branches meet again."""
    made = computation(
        [
            op("parameter", (4,), number=0),
            op("abs", (4,), 0),
            op("negate", (4,), 0),
            op("add", (4,), 1, 2),
            op("multiply", (4,), 3, 1),
        ],
        [4, 3],
    )
    assert len(made.operations) == 5 and made.outputs == (4, 3)
