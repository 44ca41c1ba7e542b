"""`.sdfg` files as nests, read without DaCe: what is read, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nest_evaluation import run
from sdfg_files import (
    access,
    array,
    edge,
    elementwise,
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
from indexer.frontends.tree import Extraction


def read(tmp_path: Path, told: object, **defines: float) -> Extraction:
    return extract(written(tmp_path / "program.sdfg", told), defines=defines)


def reason(tmp_path: Path, told: object) -> str:
    with pytest.raises(NestError) as caught:
        read(tmp_path, told)
    assert caught.value.where.endswith("program.sdfg")
    return caught.value.reason


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("o = a * c + 1", lambda a, c: a * c + 1),
        ("t = a - c\no = max(t, 0.0, -t / 2)", lambda a, c: max(a - c, (c - a) / 2, 0)),
        ("o = a if a < c else c ** 2", lambda a, c: a if a < c else c * c),
        ("if a > c and not a == 1:\n    o = a\nelse:\n    o = math.sqrt(c)", None),
        ("o = dace.float64(np.exp(-a)) + abs(c)", lambda a, c: np.exp(-a) + abs(c)),
    ],
)
def test_tasklets(tmp_path: Path, code: str, value: Any) -> None:
    (nest,) = read(tmp_path, elementwise(code)).nests
    assert nest.trips == (8, 8) and nest.loop_names == ("i", "j")
    rng = np.random.default_rng(0)
    held = {"A": rng.random((8, 8)), "c": np.array([0.5]), "B": np.zeros((8, 8))}
    run([nest], held)
    value = value or (lambda a, c: a if a > c else np.sqrt(c))
    expected = [[value(a, 0.5) for a in row] for row in held["A"]]
    np.testing.assert_allclose(held["B"], expected, rtol=1e-12)


def test_a_tasklet_in_c(tmp_path: Path) -> None:
    (nest,) = read(tmp_path, elementwise("o = (a < c) ? a : c;", language="CPP")).nests
    assert nest.body[0].value.op == "min"


@pytest.mark.parametrize(
    ("wcr", "combine"),
    [
        ("(lambda x, y: (x + y))", "+="),
        ("lambda a, b: a * b", "*="),
        ("lambda y, x: min(y, x)", "min="),
        ("(lambda a, b: max(b, a))", "max="),
    ],
)
def test_reductions(tmp_path: Path, wcr: str, combine: str) -> None:
    (nest,) = read(tmp_path, elementwise("o = a", wcr=wcr)).nests
    assert nest.body[0].combine == combine


def test_symbols_come_from_outside(tmp_path: Path) -> None:
    told = elementwise("o = a")
    assert read(tmp_path, told, N=5).nests[0].trips == (5, 5)
    told["attributes"]["constants_prop"] = {}
    assert "N is undefined" in reason(tmp_path, told)


def loop_over_time(back: str = "t + 1") -> dict[str, Any]:
    """`for t in range(10): y = x; x = y + 1`, as a state machine."""
    nodes = [
        access("x"),
        map_entry(["i"], "0:N"),
        tasklet("o = a", scope=1),
        node("MapExit", scope=1),
        access("y"),
        map_entry(["i"], "0:N"),
        tasklet("o = a + 1", scope=5),
        node("MapExit", scope=5),
        access("x"),
    ]
    edges = [
        edge(0, 1, "- | x[0:N] | IN_1"),
        edge(1, 2, "OUT_1 | x[i] | a"),
        edge(2, 3, "o | y[i] | IN_1"),
        edge(3, 4, "OUT_1 | y[0:N] | -"),
        edge(4, 5, "- | y[0:N] | IN_1"),
        edge(5, 6, "OUT_1 | y[i] | a"),
        edge(6, 7, "o | x[i] | IN_1"),
        edge(7, 8, "OUT_1 | x[0:N] | -"),
    ]
    states = [state([], [], label=name) for name in ("start", "guard", "end")]
    order = [
        follows(0, 1, t="0"),
        follows(1, 2, "(not (t < 10))"),
        follows(1, 3, "(t < 10)"),
        follows(3, 1, t=back),
    ]
    arrays = {"x": array("N"), "y": array("N")}
    return sdfg(arrays, [*states, state(nodes, edges, label="body")], order, N=16)


def test_a_loop_over_time_is_cut_off(tmp_path: Path) -> None:
    found = read(tmp_path, loop_over_time())
    assert [n.trips for n in found.nests] == [(16,), (16,)]
    assert "loop t is cut off at t = 0" in found.notes[0]


def test_states_in_no_loop_are_read_one_by_one(tmp_path: Path) -> None:
    found = read(tmp_path, loop_over_time(back="t * 2"))
    assert len(found.nests) == 2
    assert found.notes[0] == "states branch: its states are read one by one"


def test_the_start_is_where_no_edge_leads(tmp_path: Path) -> None:
    told = loop_over_time()
    told["start_block"] = 3
    assert "loop t is cut off at t = 0" in read(tmp_path, told).notes[0]


def test_a_loop_without_a_known_end(tmp_path: Path) -> None:
    told = loop_over_time()
    for one in told["edges"][1:3]:
        condition = one["attributes"]["data"]["attributes"]["condition"]
        condition["string_data"] = condition["string_data"].replace("10", "T")
    found = read(tmp_path, told)
    assert len(found.nests) == 2 and "T is undefined" in found.notes[0]
    assert "loop t is cut off" in read(tmp_path, told, T=4).notes[0]


def test_a_loop_that_is_a_region(tmp_path: Path) -> None:
    body = loop_over_time()["nodes"][3]
    texts = {"init_statement": "k = 9", "loop_condition": "k >= 2", "update_statement": "k = k - 1"}
    region = {
        "type": "LoopRegion",
        "label": "r",
        "attributes": {name: {"string_data": text} for name, text in texts.items()},
        "nodes": [{**body, "id": 0}],
        "edges": [],
        "start_block": 0,
    }
    arrays = {"x": array("N"), "y": array("N")}
    found = read(tmp_path, sdfg(arrays, [region], N=16))
    assert [n.trips for n in found.nests] == [(16,), (16,)]


def rows() -> dict[str, Any]:
    """`for i: s = 0; for k in row[i]..row[i + 1]: s += val[k] * x[col[k]]; y[i] = s`, nested."""
    inner = sdfg(
        {
            **{name: array("Z") for name in ("val", "x")},
            **{name: array("Z", dtype="int32") for name in ("row", "col")},
            "y": array("1"),
            "s": scalar(),
        },
        [
            state([tasklet("o = 0"), access("s")], [edge(0, 1, "o | s[0] | -")]),
            state(
                [
                    access("val"),
                    access("x"),
                    access("col"),
                    map_entry(["k"], "first:last"),
                    tasklet("o = a * whole[at]", scope=3),
                    node("MapExit", scope=3),
                    access("s"),
                ],
                [
                    edge(0, 3, "- | val[0:Z] | IN_1"),
                    edge(1, 3, "- | x[0:Z] | IN_2"),
                    edge(2, 3, "- | col[0:Z] | IN_3"),
                    edge(3, 4, "OUT_1 | val[k] | a"),
                    edge(3, 4, "OUT_2 | x[0:Z] | whole"),
                    edge(3, 4, "OUT_3 | col[k] | at"),
                    edge(4, 5, "o | s[0] | IN_1", wcr="lambda a, b: a + b"),
                    edge(5, 6, "OUT_1 | s[0] | -"),
                ],
            ),
            state([access("s"), access("y")], [edge(0, 1, "- | s[0] | -")]),
        ],
        [follows(0, 1, first="row[i]", last="row[i + 1]"), follows(1, 2)],
    )
    names = ("val", "x", "col", "row")
    nodes = [
        *(access(name) for name in names),
        map_entry(["i"], "0:R"),
        node("NestedSDFG", scope=4, sdfg=inner, symbol_mapping={"i": "i", "Z": "Z"}),
        node("MapExit", scope=4),
        access("y"),
    ]
    edges = [
        *(edge(at, 4, f"- | {name}[0:Z] | IN_{name}") for at, name in enumerate(names)),
        *(edge(4, 5, f"OUT_{name} | {name}[0:Z] | {name}") for name in names),
        edge(5, 6, "y | y[i] | IN_1"),
        edge(6, 7, "OUT_1 | y[0:R] | -"),
    ]
    arrays = {
        **{name: array("Z") for name in ("val", "x")},
        **{name: array("Z", dtype="int32") for name in ("row", "col")},
        "y": array("R"),
    }
    return sdfg(arrays, [state(nodes, edges)], Z=30, R=6)


def test_nested_programs_and_data_in_bounds(tmp_path: Path) -> None:
    found = read(tmp_path, rows())
    assert [n.depth for n in found.nests] == [1, 2, 1]
    rng = np.random.default_rng(0)
    held = {
        "val": rng.random(30),
        "x": rng.random(30),
        "col": rng.integers(0, 30, 30).astype(float),
        "row": np.r_[0, np.sort(rng.integers(0, 20, 29))].astype(float),
        "y": np.zeros(6),
    }
    run(found.nests, held)
    ends = held["row"].astype(int)
    expected = [
        sum(held["val"][k] * held["x"][int(held["col"][k])] for k in range(ends[i], ends[i + 1]))
        for i in range(6)
    ]
    np.testing.assert_allclose(held["y"], expected, rtol=1e-12)


def test_copies_are_loops(tmp_path: Path) -> None:
    copy = edge(0, 1, "- | A[2, 0:N] | -")
    arrays = {"A": array("N", "N"), "x": array("N")}
    (nest,) = read(tmp_path, sdfg(arrays, [state([access("A"), access("x")], [copy])], N=8)).nests
    assert nest.trips == (8,)
    assert nest.array_names == ("x", "A")


CODE = {
    "a command": ("o = __import__('os').system('touch {marker}')", "a call of this kind"),
    "a statement": ("__import__('os').system('touch {marker}')", "Expr is not supported"),
    "an import": ("import os\no = os.system('touch {marker}')", "Import is not supported"),
    "eval": ("o = eval('1')", "is not supported in a tasklet"),
    "a function": ("o = exec(a)", "function exec with 1 operands"),
    "an attribute": ("o = a.__class__", "Attribute is not supported"),
    "a comprehension": ("o = [a for _ in (1, 2)]", "ListComp is not supported"),
    "a text": ("o = 'x'", "Constant is not supported"),
    "no Python": ("o = = a", "cannot be parsed"),
    # What reads the text first refuses it: Python's own parser before 3.13.
    "too deep": ("o = " + "-" * 3900 + "a", "cannot be parsed|nested too deeply"),
    "too long": ("o = a" + " + a" * 2000, "at most 4000 letters"),
    "a lambda": ("o = (lambda: a)()", "a call of this kind"),
    "nothing": ("", "has no loop nest"),
    "a whole number": ("o = int(a)", "truncated to an integer"),
    "unknown": ("o = b", "b is undefined"),
}


@pytest.mark.parametrize("what", CODE)
def test_code_is_never_run(tmp_path: Path, what: str) -> None:
    code, why = CODE[what]
    marker = tmp_path / "ran"
    said = reason(tmp_path, elementwise(code.format(marker=marker)))
    assert re.search(why, said), said
    assert not marker.exists()


@pytest.mark.parametrize(
    "wcr", ["lambda a, b: a - b", "print", "lambda a, b: f(a, b)", "lambda: 1"]
)
def test_results_combined_otherwise(tmp_path: Path, wcr: str) -> None:
    assert "results are combined by" in reason(tmp_path, elementwise("o = a", wcr=wcr))


def changed(path: str, value: object) -> dict[str, Any]:
    told: Any = elementwise("o = a")
    at = told
    *way, last = path.split("/")
    for name in way:
        at = at[int(name) if isinstance(at, list) else name]
    at[int(last) if isinstance(at, list) else last] = value
    return told


MAP = "nodes/0/nodes/2/attributes/range/ranges/0"
WRONG = {
    "a cycle": ("nodes/0/edges/5/dst", "2", "a graph has a cycle"),
    "a dangling edge": ("nodes/0/edges/0/src", "99", "ends at node 99, which is not there"),
    "an edge that is none": ("nodes/0/edges/0", {"src": "0"}, "an edge is malformed"),
    "a node that is none": ("nodes/0/nodes/0", [], "node 0 is malformed"),
    "a scope in itself": ("nodes/0/nodes/2/scope_entry", "2", "is in no map"),
    "a scope of nothing": ("nodes/0/nodes/3/scope_entry", "77", "is in no map"),
    "not affine": (f"{MAP}/end", "N * i", "is undefined"),
    "a power": (f"{MAP}/end", "N ** 70", "too large"),
    "outside": (f"{MAP}/end", "N", "outside 0 to 7"),
    "overflow": (f"{MAP}/end", "99999999999999999999", "must be a whole number of at most"),
    "empty": (f"{MAP}/end", "-5", "never runs"),
    "backwards": (f"{MAP}/step", "-1", "step -1 is not positive"),
    "a gap": (
        "nodes/0/edges/2/attributes/data/attributes/subset/ranges/0",
        {"start": "0", "end": "6", "step": "2"},
        "has gaps",
    ),
    "few subscripts": (
        "nodes/0/edges/2/attributes/data/attributes/subset/ranges",
        [],
        "0 ranges for 2",
    ),
    "no array": ("nodes/0/edges/2/attributes/data/attributes/data", "Q", "there is no array 'Q'"),
    "a view": ("attributes/_arrays/A/type", "ArrayView", "arrays that overlap are not supported"),
    "columns": (
        "attributes/_arrays/A/attributes/strides",
        ["1", "N"],
        "not those of rows in order",
    ),
    "complex": ("attributes/_arrays/A/attributes/dtype", "complex64", "elements of type complex64"),
    "no shape": ("attributes/_arrays/A/attributes/shape", [], "has no elements"),
    "a shape of text": ("attributes/_arrays/A/attributes/shape", ["open('x')"], "not affine"),
    "a library": ("nodes/0/nodes/3/type", "LibraryNode", "expand_library_nodes"),
    "no states": ("nodes", [], "has no loop nest"),
    "no arrays": ("attributes/_arrays", None, "has no arrays"),
    "no sdfg": ("type", "Graph", "is no SDFG"),
}


@pytest.mark.parametrize("what", WRONG)
def test_files_that_are_wrong(tmp_path: Path, what: str) -> None:
    path, value, why = WRONG[what]
    said = reason(tmp_path, changed(path, value))
    assert why in said, said


def test_deep_and_huge_files(tmp_path: Path) -> None:
    path = tmp_path / "deep.sdfg"
    path.write_bytes(b'{"type": "SDFG", "a": ' + b'{"a": ' * 10_000 + b"1" + b"}" * 10_001)
    with pytest.raises(NestError, match="nested too deeply"):
        extract(path)
    path.write_bytes(b"[" + b"[]," * 3_000_001)
    with pytest.raises(NestError, match="has more than 3000000 parts"):
        extract(path)
    with path.open("wb") as file:
        file.truncate(100 << 20)
    with pytest.raises(NestError, match="larger than 67108864 bytes"):
        extract(path)


def test_programs_nested_without_end(tmp_path: Path) -> None:
    told = elementwise("o = a")
    for _ in range(30):
        inside = node("NestedSDFG", sdfg=told, symbol_mapping={"N": "N"})
        told = sdfg({}, [state([inside], [])], N=8)
    assert "programs lie more than 24 deep" in reason(tmp_path, told)
