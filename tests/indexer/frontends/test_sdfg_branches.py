"""Branches between states as conditions of statements, and symbols that are read out of arrays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nest_evaluation import run, run_program
from sdfg_files import (
    access,
    array,
    edge,
    follows,
    map_entry,
    node,
    scalar,
    sdfg,
    state,
    tasklet,
    written,
)

from embeddb.core.errors import NestError
from indexer.frontends import extract
from indexer.frontends.dace.control import join_of, sdfg_program
from indexer.frontends.tree import Extraction

Json = dict[str, Any]
EMPTY = state([], [])


def sets(target: str, code: str, *reads: str) -> Json:
    """A state: `target = code`, where the connectors of `reads` are a, b, ..."""
    nodes = [*(access(one.split("[")[0]) for one in reads), tasklet(code)]
    nodes.append(access(target.split("[")[0]))
    here = len(reads)
    edges = [edge(at, here, f"- | {one} | {'abc'[at]}") for at, one in enumerate(reads)]
    return state(nodes, [*edges, edge(here, here + 1, f"o | {target} | -")])


def in_a_map(states: Sequence[Json], order: Sequence[Json], **symbols: str) -> Json:
    """`for i < N:` a nested program on x and y, both whole, and a flag `f = x[i] > 0`."""
    arrays = {"x": array("N"), "y": array("N"), "f": scalar("bool")}
    flag = sets("f[0]", "o = a > 0", "x[i]")
    shifted = [
        {**one, "src": str(int(one["src"]) + 1), "dst": str(int(one["dst"]) + 1)} for one in order
    ]
    inner = sdfg(arrays, [flag, *states], [follows(0, 1, **symbols), *shifted])
    nodes = [
        access("x"),
        access("y"),
        map_entry(["i"], "0:N"),
        node("NestedSDFG", scope=2, sdfg=inner, symbol_mapping={"i": "i", "N": "N"}),
        node("MapExit", scope=2),
        access("x"),
        access("y"),
    ]
    edges = [
        edge(0, 2, "- | x[0:N] | IN_x"),
        edge(1, 2, "- | y[0:N] | IN_y"),
        edge(2, 3, "OUT_x | x[0:N] | x"),
        edge(2, 3, "OUT_y | y[0:N] | y"),
        edge(3, 4, "x | x[0:N] | IN_x"),
        edge(3, 4, "y | y[0:N] | IN_y"),
        edge(4, 5, "OUT_x | x[0:N] | -"),
        edge(4, 6, "OUT_y | y[0:N] | -"),
    ]
    return sdfg({"x": array("N"), "y": array("N")}, [state(nodes, edges)], N=12)


def read(tmp_path: Path, told: object) -> Extraction:
    return extract(written(tmp_path / "program.sdfg", told))


def computed(tmp_path: Path, told: object) -> tuple[Any, Any, Any]:
    """x before, x and y after; by the nests and by the tree, which must be the same."""
    before = np.random.default_rng(0).uniform(-1, 1, 12)
    held = {"x": before.copy(), "y": np.arange(12.0)}
    found = read(tmp_path, told)
    assert not found.notes
    run(found.nests, held)
    program, _ = sdfg_program((tmp_path / "program.sdfg").read_bytes(), name="p")
    tree = {"x": before.copy(), "y": np.arange(12.0)}
    run_program(program, tree)
    for name in ("x", "y"):
        np.testing.assert_array_equal(held[name], tree[name])
    return before, held["x"], held["y"]


def test_one_way_or_none(tmp_path: Path) -> None:
    states = [EMPTY, sets("y[i]", "o = a * 2", "x[i]"), EMPTY]
    order = [follows(0, 1, "f"), follows(0, 2, "not f"), follows(1, 2)]
    x, _, y = computed(tmp_path, in_a_map(states, order))
    np.testing.assert_array_equal(y, np.where(x > 0, 2 * x, np.arange(12)))


def test_what_runs_under_a_condition_may_change_what_it_was_made_from(tmp_path: Path) -> None:
    states = [
        EMPTY,
        sets("x[i]", "o = -1.0"),
        sets("y[i]", "o = a", "x[i]"),
        sets("y[i]", "o = a + b", "x[i]", "y[i]"),
        EMPTY,
    ]
    order = [
        follows(0, 1, "not (s <= 0)"),
        follows(1, 2),
        follows(0, 3, "(s <= 0)"),
        follows(2, 4),
        follows(3, 4),
    ]
    x, after, y = computed(tmp_path, in_a_map(states, order, s="x[i]"))
    np.testing.assert_array_equal(after, np.where(x > 0, -1, x))
    np.testing.assert_array_equal(y, np.where(x > 0, -1, x + np.arange(12)))


def test_branches_in_branches(tmp_path: Path) -> None:
    states = [
        EMPTY,
        EMPTY,
        sets("y[i]", "o = 1.0"),
        sets("y[i]", "o = 2.0"),
        EMPTY,
        EMPTY,
    ]
    order = [
        follows(0, 1, "f[0]"),
        follows(0, 5, "not f[0]"),
        follows(1, 2, "(i < 6)"),
        follows(1, 3, "not (i < 6)"),
        follows(2, 4),
        follows(3, 4),
        follows(4, 5),
    ]
    x, _, y = computed(tmp_path, in_a_map(states, order))
    at = np.arange(12)
    np.testing.assert_array_equal(y, np.where(x > 0, np.where(at < 6, 1, 2), at))


REFUSED = {
    "contrary": ([follows(0, 1, "f"), follows(0, 2, "f"), follows(1, 2)], "not contrary"),
    "three": ([follows(0, 1, "f"), follows(0, 2, "not f"), follows(0, 1)], "states branch"),
    "a circle": (
        [follows(0, 1, "f"), follows(0, 2, "not f"), follows(1, 0)],
        "states branch|a circle that is no loop",
    ),
    "code": (
        [follows(0, 1, "open('x')"), follows(0, 2, "not open('x')"), follows(1, 2)],
        "there is no array 'open'",
    ),
    "nothing": ([follows(0, 1), follows(0, 2), follows(1, 2)], "is no expression"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_branches_that_are_refused(tmp_path: Path, what: str) -> None:
    order, why = REFUSED[what]
    states = [EMPTY, sets("y[i]", "o = 2.0"), EMPTY]
    with pytest.raises(NestError, match=why):
        read(tmp_path, in_a_map(states, order))


def test_a_symbol_with_a_value_on_each_way(tmp_path: Path) -> None:
    states = [EMPTY, EMPTY, EMPTY, sets("y[i]", "o = k")]
    order = [
        follows(0, 1, "f", k="1"),
        follows(0, 2, "not f", k="2"),
        follows(1, 3),
        follows(2, 3),
    ]
    with pytest.raises(NestError, match="k has another value on each of two ways"):
        read(tmp_path, in_a_map(states, order))


def test_outside_of_loops_both_ways_are_read(tmp_path: Path) -> None:
    def over(target: str) -> Json:
        nodes = [map_entry(["i"], "0:N"), tasklet("o = 1.0", scope=0)]
        nodes += [node("MapExit", scope=0), access(target)]
        edges = [edge(0, 1), edge(1, 2, f"o | {target}[i] | IN"), edge(2, 3, f"OUT | {target} | -")]
        return state(nodes, edges)

    arrays = {"x": array("N"), "y": array("N"), "f": scalar("bool", transient=False)}
    order = [follows(0, 1, "f"), follows(0, 2, "not f")]
    found = read(tmp_path, sdfg(arrays, [EMPTY, over("x"), over("y")], order, N=4))
    assert [n.array_names for n in found.nests] == [("x",), ("y",)]
    assert all(s.where is None for n in found.nests for s in n.body)
    assert found.notes == ("states branch: its states are read one by one",)


def test_what_was_read_before_it_was_written(tmp_path: Path) -> None:
    """`s = x[i]; x[i] = 5; y[i] = s` is not `y[i] = x[i]`."""
    states = [sets("x[i]", "o = 5.0"), sets("y[i]", "o = s")]
    with pytest.raises(NestError, match="s was read before its array was written"):
        read(tmp_path, in_a_map(states, [follows(0, 1)], s="x[i]"))
    _, _, y = computed(tmp_path, in_a_map([states[1], states[0]], [follows(0, 1)], s="x[i]"))
    assert not np.array_equal(y, np.full(12, 5.0))


def test_what_a_loop_writes_was_read_before_it(tmp_path: Path) -> None:
    """`s = x[i]; for k: { y[i] = s; x[i] = 5 }`: the second turn would read 5."""
    states = [EMPTY, EMPTY, sets("y[i]", "o = s"), sets("x[i]", "o = 5.0"), EMPTY]
    order = [
        follows(0, 1, k="0"),
        follows(1, 2, "k < 3"),
        follows(2, 3),
        follows(3, 1, k="k + 1"),
        follows(1, 4, "not (k < 3)"),
    ]
    with pytest.raises(NestError, match="s was read before its array was written"):
        read(tmp_path, in_a_map(states, order, s="x[i]"))


@pytest.mark.parametrize(
    ("out", "join"),
    [
        ({"a": ["b", "c"], "b": ["c"], "c": []}, "c"),
        ({"a": ["b", "c"], "b": ["d"], "c": ["d"], "d": ["e"], "e": []}, "d"),
        ({"a": ["b", "c"], "b": [], "c": []}, None),
        ({"a": ["b", "c"], "b": ["g"], "c": ["d"], "d": ["g"], "g": []}, "g"),
        ({"a": ["b", "c"], "b": ["b2", "b3"], "b2": ["d"], "b3": ["d"], "c": ["d"], "d": []}, "d"),
        ({"a": ["b", "c"], "b": ["b2", "d"], "b2": ["b"], "c": ["d"], "d": []}, "d"),
    ],
)
def test_where_ways_meet(out: dict[str, list[str]], join: str | None) -> None:
    assert join_of(out, "a", None) == join


def test_ways_that_meet_at_the_end_of_a_turn() -> None:
    out = {"g": ["a", "end"], "a": ["b", "c"], "b": ["g"], "c": ["g"], "end": []}
    assert join_of(out, "a", "g") == "g"
    out["b"], out["c"], out["d"] = ["d"], ["d"], ["g"]
    assert join_of(out, "a", "g") == "d"


def test_too_many_states_to_follow() -> None:
    out = {str(at): [str(at + 1), str(at + 2)] for at in range(300)}
    with pytest.raises(NestError, match="more than 256"):
        join_of({**out, "300": [], "301": []}, "0", None)
