"""Cuts of programs, and the kernels that they make."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.csgraph import connected_components
from tensors import dot_add, op, softmax

from embeddb.core.config import Config, Op
from embeddb.core.errors import TensorError
from embeddb.platforms.platform import default_of, load_platform, space_of
from embeddb.tensors.check import computation
from embeddb.tensors.edges import MOST_EDGES, Cut, edges_of
from embeddb.tensors.partition import CutJudge, Partition, flipped, near_cut, random_cut
from embeddb.tensors.tensor_graph import Operation, Shape, TensorGraph

ROW = (8,)


def sorted_pair() -> TensorGraph:
    """An operation with two results, each of which is used."""
    two = (Shape("f32", ROW), Shape("f32", ROW))
    operations = [
        op("parameter", ROW, number=0),
        op("negate", ROW, 0),
        Operation("sort", two, (0, 1), {"raw": "dimensions={0}"}),
        op("get-tuple-element", ROW, 2, index=0),
        op("get-tuple-element", ROW, 2, index=1),
        op("add", ROW, 3, 4),
        op("iota", ROW, dimension=0),
        op("multiply", ROW, 5, 6),
    ]
    return computation(operations, [7, 3], kind="program", name="sorted")


def drawn(seed: int, count: int = 24) -> TensorGraph:
    """A program of random sums."""
    rng = np.random.default_rng(seed)
    operations = [op("parameter", ROW, number=0), op("constant", ROW, value="1")]
    for at in range(2, count):
        operations.append(op("add", ROW, *rng.integers(0, at, 2).tolist()))
    return computation(operations, [count - 1, count - 2, 1], kind="program", name=f"drawn{seed}")


def sums(made: TensorGraph, given: list[float]) -> list[float]:
    """What a computation of sums gives, one number for an array."""
    values: list[float] = []
    parameters = iter(given)
    for one in made.operations:
        if one.opcode == "parameter":
            values.append(next(parameters))
        elif one.opcode == "constant":
            values.append(1.0)
        else:
            assert one.opcode == "add"
            values.append(values[one.operands[0]] + values[one.operands[1]])
    return [values[at] for at in made.outputs]


@settings(deadline=None)
@given(st.integers(0, 60), st.integers(0, 2**31))
def test_cuts_that_are_drawn_are_legal_and_compute_the_program(seed: int, cut_seed: int) -> None:
    program, rng = drawn(seed), np.random.default_rng(cut_seed)
    cut = random_cut(program, rng)
    for _ in range(4):
        assert CutJudge(program).reason({"cut": cut.text}) == ""
        partition = Partition.of(program, cut)
        assert partition.cut == cut
        places = sorted(place for members in partition.members for place in members)
        assert places == list(edges_of(program).computing)
        values = dict.fromkeys(program.parameters, 3.0)
        for placed in partition.kernels:  # in this order each finds what it takes
            found = sums(placed.kernel, [values[place] for place in placed.takes])
            values |= dict(zip(placed.gives, found, strict=True))
        given_in = [3.0] * len(program.parameters)
        for place, wanted in zip(program.outputs, sums(program, given_in), strict=True):
            if program.operations[place].opcode != "constant":
                assert values[place] == wanted
        cut = near_cut(program, cut, rng)


@given(st.integers(0, 60), st.integers(0, 2**31))
def test_kernels_are_what_edges_join(seed: int, cut_seed: int) -> None:
    """As scipy finds the components, whatever is cut."""
    program = drawn(seed)
    edges, count = edges_of(program), len(program.operations)
    cut = Cut(tuple((np.random.default_rng(cut_seed).random(len(edges.pairs)) < 0.5).tolist()))
    fused = [pair for pair, bit in zip(edges.pairs, cut.bits, strict=True) if not bit]
    joined = np.zeros((count, count), dtype=bool)
    joined[tuple(np.array(fused, np.int64).reshape(-1, 2).T)] = True
    found = connected_components(joined, directed=True, connection="weak")[1]
    first: dict[int, int] = {}
    wanted = [first.setdefault(int(found[place]), place) for place in edges.computing]
    labels = edges.labels(cut)
    assert [labels[place] for place in edges.computing] == wanted
    assert {labels[place] for place in set(range(count)) - set(edges.computing)} <= {-1}


def test_whole_and_single() -> None:
    program = softmax()
    (whole,) = Partition.of(program, "whole").kernels
    assert whole.kernel.kind == "kernel" and whole.kernel.group == "s"
    assert len(whole.kernel.operations) == 6 and whole.kernel.names[-1] == "div"
    single = Partition.of(program, "single").kernels
    assert [placed.kernel.operations[-1].opcode for placed in single] == [
        *("exponential", "reduce", "broadcast", "divide"),
    ]
    assert [program.names[placed.gives[0]] for placed in single] == ["exp", "sum", "wide", "div"]
    # Each has the constant for itself, and takes what another makes.
    assert [op.opcode for op in single[1].kernel.operations] == ["parameter", "constant", "reduce"]


def test_a_value_that_several_use_is_an_output_of_its_maker() -> None:
    program = softmax()
    pairs = edges_of(program).pairs
    # exp and sum together; the division needs both.
    cut = Cut(tuple(pair != (1, 3) for pair in pairs))
    first = Partition.of(program, cut).kernels[0]
    assert len(first.kernel.outputs) == 2
    assert {program.names[place] for place in first.gives} == {"exp", "sum"}


def test_kernels_that_need_each_other_are_refused_and_mended() -> None:
    program = softmax()
    edges = edges_of(program)
    cut = Cut(tuple(pair != (1, 5) for pair in edges.pairs))  # exp with div, past sum and wide
    with pytest.raises(TensorError, match=r"exp and div are in one kernel, but sum.* lies between"):
        Partition.of(program, cut)
    assert edges.mended(cut) == edges.whole


def test_what_takes_a_result_out_stays_with_what_makes_it() -> None:
    program = sorted_pair()
    for text in ("whole", "single"):
        kernels = Partition.of(program, text).kernels
        of_sort = [p for p in kernels if any(op.opcode == "sort" for op in p.kernel.operations)]
        assert len(of_sort) == 1
        taken = sum(op.opcode == "get-tuple-element" for op in of_sort[0].kernel.operations)
        assert taken == 2


def test_equal_kernels_of_a_program_are_one() -> None:
    operations = [op("parameter", ROW, number=0)]
    operations += [op("tanh", ROW, at) for at in range(6)]
    program = computation(operations, [6], kind="program", name="deep")
    assert len({placed.kernel.id for placed in Partition.of(program, "single").kernels}) == 1


@given(st.lists(st.booleans(), max_size=70))
def test_a_cut_is_its_text(bits: list[bool]) -> None:
    cut = Cut(tuple(bits))
    assert Cut.read(cut.text, len(bits)) == (cut if any(bits) else Cut((False,) * len(bits)))


def test_the_text_is_as_described() -> None:
    bits = (True, False, True, False, False, True)
    assert Cut(bits).text == "6:a4"
    assert len(Cut((True, *(False,) * (MOST_EDGES - 1))).text) <= 1024


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is not a cut"),
        ("some", "is not a cut"),
        ("-4:0", "is not a cut"),
        ("٤:8", "is not a cut"),
        ("5:80", "it has 5 edges, not 4"),
        ("4:80", "1 hexadecimal digits"),
        ("4:G", "1 hexadecimal digits"),
        ("4:0", "canonical text is whole"),
        ("4:f", "canonical text is single"),
        ("4:e", ""),
        ("4:d", "lies between"),
        ("4:b", ""),
        ("4:4", "an edge is cut inside a kernel; its canonical text is whole"),
    ],
)
def test_the_space_of_a_program_takes_legal_cuts_alone(text: str, reason: str) -> None:
    space = space_of(load_platform("xla-cpu"), Op("fusion"), softmax())
    found = CutJudge(softmax()).reason({"cut": text})
    assert reason in found if reason else found == ""
    assert (space.reason({"cut": text}) is None) == (reason == "")


def test_too_few_edges_leave_bits_that_are_not_there() -> None:
    with pytest.raises(TensorError, match="has more bits than edges"):
        Cut.read("2:1", 2)


def test_default_and_listed_cuts() -> None:
    platform, program = load_platform("xla-cpu"), softmax()
    assert default_of(platform, Op("fusion"), program) == Config({"cut": "whole"})
    space = space_of(platform, Op("fusion"), program)
    assert [c["cut"] for c in space.enumerate()] == ["whole", "single"]
    assert space_of(platform, Op("fused"), dot_add()).size() == 1
    assert default_of(platform, Op("fused"), dot_add()) == Config({})


def test_flipping_an_edge_joins_or_parts_two_kernels() -> None:
    program = softmax()
    edges = edges_of(program)
    # exp and div: what lies between comes along.
    assert flipped(program, edges.single, edges.pairs.index((1, 5))) == edges.whole
    apart = flipped(program, edges.whole, edges.pairs.index((3, 4)))
    partition = Partition.of(program, apart)
    assert [len(members) for members in partition.members] == [2, 2]
    with pytest.raises(TensorError, match="no edge 9"):
        flipped(program, edges.whole, 9)


def test_a_program_without_an_edge() -> None:
    program = computation([op("parameter", ROW, number=0), op("tanh", ROW, 0)], [1], kind="program")
    rng = np.random.default_rng(0)
    assert random_cut(program, rng) == near_cut(program, Cut(()), rng) == Cut(())
    assert Cut(()).text == "whole"


def test_several_results_given_out_as_one_are_refused() -> None:
    two = (Shape("f32", ROW), Shape("f32", ROW))
    both = computation(
        [op("parameter", ROW, number=0), Operation("sort", two, (0, 0))], [1], kind="program"
    )
    with pytest.raises(TensorError, match="make its parts the outputs"):
        Partition.of(both, "whole")
    reason = CutJudge(both).reason({"cut": "whole"})
    assert "make its parts the outputs" in reason
