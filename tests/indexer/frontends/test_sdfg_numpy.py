"""What DaCe makes of whole numpy programs: many arrays, flags, views, powers, defaults left out."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nest_evaluation import run, run_program
from sdfg_files import (
    access,
    array,
    edge,
    elementwise,
    follows,
    map_entry,
    node,
    ranges,
    scalar,
    sdfg,
    state,
    tasklet,
    written,
)

from embeddb.core.errors import NestError
from indexer.frontends import extract
from indexer.frontends.dace.control import sdfg_program
from indexer.frontends.tree import Extraction

Json = dict[str, Any]


def read(tmp_path: Path, told: object, **defines: float) -> Extraction:
    return extract(written(tmp_path / "program.sdfg", told), defines=defines)


def mapped(source: str, target: str, code: str, *, over: str = "0:N", at: str = "i") -> Json:
    """A state: `target[at] = code(a = source[at])` for i over `over`."""
    nodes = [
        access(source),
        map_entry(["i"], over),
        tasklet(code, scope=1),
        node("MapExit", scope=1),
        access(target),
    ]
    edges = [
        edge(0, 1, f"- | {source}[{over}] | IN_1"),
        edge(1, 2, f"OUT_1 | {source}[{at}] | a"),
        edge(2, 3, f"o | {target}[{at}] | IN_1"),
        edge(3, 4, f"OUT_1 | {target}[{over}] | -"),
    ]
    return state(nodes, edges, label=f"{source}_{target}")


def in_turn(*states: Json) -> list[Json]:
    return [follows(at, at + 1) for at in range(len(states) - 1)]


def test_only_its_own_arrays_count_for_a_nest(tmp_path: Path) -> None:
    names = [f"x{at}" for at in range(90)]
    states = [mapped(a, b, "o = a + 1") for a, b in pairwise(names)]
    arrays = {name: array("N", transient=name != "x0") for name in names}
    found = read(tmp_path, sdfg(arrays, states, in_turn(*states), N=4))
    assert len(found.nests) == 89 and not found.notes
    assert all(len(nest.arrays) == 2 for nest in found.nests)


def test_a_type_that_is_left_out_is_int32(tmp_path: Path) -> None:
    arrays = {"x": array("N"), "y": array("N")}
    for one in arrays.values():
        del one["attributes"]["dtype"]
    (nest,) = read(tmp_path, sdfg(arrays, [mapped("x", "y", "o = a + 1")], N=4)).nests
    assert [a.dtype for a in nest.arrays] == ["i32", "i32"]


def test_flags_are_zero_or_one(tmp_path: Path) -> None:
    arrays = {
        "x": array("N"),
        "flag": array("N", dtype="bool", transient=True),
        "y": array("N"),
    }
    states = [
        mapped("x", "flag", "o = (a > 0.5)"),
        mapped("flag", "y", "o = 2.0 if a else 3.0"),
    ]
    found = read(tmp_path, sdfg(arrays, states, in_turn(*states), N=16))
    assert [n.arrays[n.array_names.index("flag")].fill for n in found.nests] == ["below:2"] * 2
    held = {"x": np.random.default_rng(0).random(16)}
    run(found.nests, held)
    np.testing.assert_array_equal(held["y"], np.where(held["x"] > 0.5, 2.0, 3.0))


@pytest.mark.parametrize(
    ("size", "turns"), [("N ** 2", 16), ("(N - 2) ** K", 8), ("K ** 0", 1), ("N ** (K - 2)", 4)]
)
def test_powers_of_sizes(tmp_path: Path, size: str, turns: int) -> None:
    arrays = {name: array(size, "N", strides=["N", "1"]) for name in ("x", "y")}
    one = mapped("x", "y", "o = a", over=f"0:{size}", at="i, 0")
    for told in one["edges"]:
        memlet = told["attributes"]["data"]["attributes"]
        if len(memlet["subset"]["ranges"]) == 1:
            memlet["subset"] = ranges(f"0:{size}, 0")
    program = sdfg(arrays, [one], N=4, K=3)
    if turns == 1:
        with pytest.raises(NestError):
            read(tmp_path, program)
        return
    (nest,) = read(tmp_path, program).nests
    assert nest.trips == (turns,) and nest.arrays[0].shape == (turns, 4)


@pytest.mark.parametrize(
    ("size", "why"),
    [
        ("N ** 70", "too large"),
        ("((N ** 20) ** 20) ** 20", "too large"),
        ("N ** (0 - 1)", "too large"),
        ("N ** i", "i is undefined"),
    ],
)
def test_powers_that_are_no_size(tmp_path: Path, size: str, why: str) -> None:
    arrays = {"x": array("N"), "y": array("N")}
    with pytest.raises(NestError, match=why):
        read(tmp_path, sdfg(arrays, [mapped("x", "y", "o = a", over=f"0:{size}")], N=4))


def test_a_power_of_a_number(tmp_path: Path) -> None:
    (nest,) = read(tmp_path, elementwise("o = 2 ** (-a)")).nests
    held = {"A": np.random.default_rng(0).random((8, 8)), "c": np.ones(1), "B": np.zeros((8, 8))}
    run([nest], held)
    np.testing.assert_allclose(held["B"], 2.0 ** -held["A"], rtol=1e-12)


@pytest.mark.parametrize("power", ["-1.5", "-1", "0.5", "1", "2.5", "4"])
def test_powers_by_halves(tmp_path: Path, power: str) -> None:
    (nest,) = read(tmp_path, elementwise(f"o = a ** {power}")).nests
    held = {"A": 1 + np.random.default_rng(0).random((8, 8)), "c": np.ones(1)}
    run([nest], held)
    np.testing.assert_allclose(held["B"], held["A"] ** float(power), rtol=1e-12)


@pytest.mark.parametrize("power", ["4.5", "0", "0.3", "c"])
def test_other_powers(tmp_path: Path, power: str) -> None:
    with pytest.raises(NestError, match="only powers up to 4, by halves"):
        read(tmp_path, elementwise(f"o = a ** {power}"))


def test_one_element_is_a_range_of_one(tmp_path: Path) -> None:
    """A scalar that is handed in as `x[i]` is met as `s[0]` and kept in an array of one element."""
    inner = sdfg(
        {"s": scalar(transient=False), "t": array("1", transient=True), "r": array("1")},
        [
            state([access("s"), access("t")], [edge(0, 1, "- | s[0] | -")]),
            mapped("t", "r", "o = a * 2", over="0", at="0"),
        ],
        [follows(0, 1)],
    )
    nodes = [
        access("x"),
        map_entry(["i"], "0:N"),
        node("NestedSDFG", scope=1, sdfg=inner, symbol_mapping={}),
        node("MapExit", scope=1),
        access("y"),
    ]
    edges = [
        edge(0, 1, "- | x[0:N] | IN_1"),
        edge(1, 2, "OUT_1 | x[i] | s"),
        edge(2, 3, "r | y[i] | IN_1"),
        edge(3, 4, "OUT_1 | y[0:N] | -"),
    ]
    arrays = {"x": array("N"), "y": array("N")}
    found = read(tmp_path, sdfg(arrays, [state(nodes, edges)], N=8))
    held = {"x": np.arange(8.0)}
    run(found.nests, held)
    np.testing.assert_array_equal(held["y"], 2 * held["x"])


def through_a_view(shape: list[str], strides: list[str], at: str, *, back: str = "") -> Json:
    """`v` is a view of `A[2, 0:N, 0:N]`; then `B[i] = v[at]`, or `v[at] = B[i]` where `back`."""
    view = array(*shape, strides=strides, transient=True)
    view["type"] = "ArrayView"
    arrays = {"A": array("N", "N", "N"), "B": array("N"), "v": view}
    if back:
        nodes = [
            access("B"),
            map_entry(["i"], "0:N"),
            tasklet("o = a", scope=1),
            node("MapExit", scope=1),
            access("v"),
            access("A"),
        ]
        edges = [
            edge(0, 1, "- | B[0:N] | IN_1"),
            edge(1, 2, "OUT_1 | B[i] | a"),
            edge(2, 3, f"o | v[{at}] | IN_1"),
            edge(3, 4, f"OUT_1 | v[{at}] | -"),
            edge(4, 5, "views | A[2, 0:N, 0:N] | -"),
        ]
        return sdfg(arrays, [state(nodes, edges)], N=4)
    nodes = [
        access("A"),
        access("v"),
        map_entry(["i"], "0:N"),
        tasklet("o = a", scope=2),
        node("MapExit", scope=2),
        access("B"),
    ]
    edges = [
        edge(0, 1, "- | A[2, 0:N, 0:N] | views"),
        edge(1, 2, f"- | v[{at}] | IN_1"),
        edge(2, 3, f"OUT_1 | v[{at}] | a"),
        edge(3, 4, "o | B[i] | IN_1"),
        edge(4, 5, "OUT_1 | B[0:N] | -"),
    ]
    return sdfg(arrays, [state(nodes, edges)], N=4)


@pytest.mark.parametrize(
    ("shape", "strides", "at"),
    [
        (["N", "N"], ["N", "1"], "i, 1"),
        (["N", "1", "N"], ["N", "N", "1"], "i, 0, 1"),
        (["1", "N", "N"], ["N ** 2", "N", "1"], "0, i, 1"),
    ],
)
@pytest.mark.parametrize("back", ["", "back"])
def test_a_view_is_a_part_of_its_array(
    tmp_path: Path, shape: list[str], strides: list[str], at: str, back: str
) -> None:
    (nest,) = read(tmp_path, through_a_view(shape, strides, at, back=back)).nests
    assert set(nest.array_names) == {"A", "B"}
    rng = np.random.default_rng(0)
    held = {"A": rng.random((4, 4, 4)), "B": rng.random(4)}
    run([nest], held)
    np.testing.assert_array_equal(held["B"], held["A"][2, :, 1])


@pytest.mark.parametrize(
    ("shape", "strides", "at"),
    [
        (["N", "N"], ["1", "N"], "i, 1"),
        (["N * N"], ["1"], "i"),
        (["N", "N"], ["N ** 2", "1"], "i, 1"),
        (["N", "N"], [], "i, 1"),
    ],
)
def test_views_that_count_otherwise(
    tmp_path: Path, shape: list[str], strides: list[str], at: str
) -> None:
    with pytest.raises(NestError, match="v is of kind ArrayView: arrays that overlap"):
        read(tmp_path, through_a_view(shape, strides, at))


def test_what_is_no_view_keeps_its_own_elements(tmp_path: Path) -> None:
    told = through_a_view(["N", "N"], ["N", "1"], "i, 1")
    told["attributes"]["_arrays"]["v"]["type"] = "Array"
    with pytest.raises(NestError, match="v is no view"):
        read(tmp_path, told)


def test_a_view_of_another_type(tmp_path: Path) -> None:
    told = through_a_view(["N", "N"], ["N", "1"], "i, 1")
    told["attributes"]["_arrays"]["v"]["attributes"]["dtype"] = "int64"
    with pytest.raises(NestError, match="v is of kind ArrayView"):
        read(tmp_path, told)


def test_the_tree_is_what_the_program_computes(tmp_path: Path) -> None:
    """Time steps and statements outside of loops, which nests leave out, are in the tree."""
    arrays = {"x": array("N"), "y": array("N", transient=True)}
    states = [
        state([], []),
        state([], []),
        mapped("x", "y", "o = a * 2"),
        mapped("y", "x", "o = a + 1"),
    ]
    order = [
        follows(0, 1, t="0"),
        follows(1, 2, "t < 3"),
        follows(2, 3),
        follows(3, 1, t="t + 1"),
        follows(1, 4, "not (t < 3)"),
    ]
    program, notes = sdfg_program(
        written(
            tmp_path / "p.sdfg", sdfg(arrays, [*states, state([], [])], order, N=4)
        ).read_bytes(),
        name="p",
    )
    held = {"x": np.arange(4.0)}
    run_program(program, held)
    np.testing.assert_array_equal(held["x"], 8 * np.arange(4.0) + 7)
    assert not notes


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(("shape", "at"), [("B, N", "0, k"), ("N, B", "k, 0"), ("N", "k")])
def test_a_batch_of_one(tmp_path: Path, batch: int, shape: str, at: str) -> None:
    """`A[i, 0:B, 0:N]`, or the other way round, is handed on as two dimensions, also where one of
    them has one element."""
    sizes = shape.split(", ")
    part = ", ".join(f"0:{size}" for size in sizes) if len(sizes) > 1 else "1, 0:N"
    own = sizes if len(sizes) > 1 else ["B + 1", "N"]
    inner = sdfg(
        {"v": array(*sizes), "r": array("1")},
        [mapped("v", "r", "o = a", over="0:N", at="i")],
    )
    (one,) = inner["nodes"]
    for told in one["edges"][:2]:
        told["attributes"]["data"]["attributes"]["subset"] = ranges(at.replace("k", "i"))
    for told in one["edges"][2:]:
        memlet = told["attributes"]["data"]["attributes"]
        memlet.update(subset=ranges("0"), wcr="lambda x, y: x + y")
    nodes = [
        access("A"),
        map_entry(["i"], "0:N"),
        node("NestedSDFG", scope=1, sdfg=inner, symbol_mapping={"N": "N", "B": "B"}),
        node("MapExit", scope=1),
        access("s"),
    ]
    edges = [
        edge(0, 1, "- | A[0:N] | IN_1"),
        edge(1, 2, f"OUT_1 | A[i, {part}] | v"),
        edge(2, 3, "r | s[i] | IN_1"),
        edge(3, 4, "OUT_1 | s[0:N] | -"),
    ]
    arrays = {"A": array("N", *own), "s": array("N")}
    found = read(tmp_path, sdfg(arrays, [state(nodes, edges)], N=6, B=batch))
    shape_of = {"N": 6, "B": batch, "B + 1": batch + 1}
    held = {"A": np.random.default_rng(0).random((6, *(shape_of[size] for size in own)))}
    run(found.nests, held)
    row = {"0, k": np.s_[:, 0], "k, 0": np.s_[..., 0], "k": np.s_[:, 1]}[at]
    np.testing.assert_allclose(held["s"], held["A"][row].sum(axis=1))


def test_a_map_in_blocks(tmp_path: Path) -> None:
    """Blocks of 8 end where the array does, also the last; one more element is outside."""
    told = mapped("x", "y", "o = a + 1", at="i + j")
    nodes = told["nodes"]
    nodes[1]["attributes"].update(params=["i", "j"], range=ranges("0:N, 0:8"))
    nodes[1]["attributes"]["range"]["ranges"][0]["step"] = "8"
    program = sdfg({"x": array("N"), "y": array("N")}, [told], N=32)
    (nest,) = read(tmp_path, program).nests
    assert nest.trips == (4, 8)
    held = {"x": np.random.default_rng(0).random(32)}
    run([nest], held)
    np.testing.assert_array_equal(held["y"], held["x"] + 1)
    with pytest.raises(NestError, match="outside 0 to 27"):
        read(
            tmp_path,
            {**program, "attributes": {**program["attributes"], "constants_prop": {"N": [{}, 28]}}},
        )
