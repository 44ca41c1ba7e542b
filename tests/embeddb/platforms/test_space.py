"""Configuration spaces and their expressions, against a brute-force reference."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embeddb.core.config import Config
from embeddb.core.errors import SpaceError
from embeddb.platforms.space import parts as space_parts
from embeddb.platforms.space.expression import Expression
from embeddb.platforms.space.rules import MAX_VALUES, Param
from embeddb.platforms.space.space import ConfigSpace

# --- strategies and the reference ----------------------------------------------------------


@st.composite
def spaces(draw: st.DrawFn) -> ConfigSpace:
    """Small spaces of every kind of parameter with conditions and constraints."""
    params: list[Param] = []
    numeric: list[str] = []
    for i in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(["int", "choice", "bool", "permutation"]))
        values: tuple[Any, ...]
        if kind == "int":
            values = tuple(sorted(draw(st.sets(st.integers(0, 64), min_size=1, max_size=4))))
        elif kind == "choice":
            values = tuple(draw(st.lists(st.sampled_from("abcde"), min_size=1, unique=True)))
        elif kind == "bool":
            values = (0, 1)
        else:
            values = ("x", "y", "z")[: draw(st.integers(1, 3))]
        when = ""
        if numeric and draw(st.booleans()):
            when = f"{draw(st.sampled_from(numeric))} {draw(st.sampled_from(['>', '<=']))} 3"
        params.append(Param(f"p{i}", kind, values, when))  # type: ignore[arg-type]  # drawn
        if kind in ("int", "bool"):
            numeric.append(f"p{i}")
    constraints = []
    if len(numeric) > 1 and draw(st.booleans()):
        a, b = draw(st.permutations(numeric))[:2]
        constraints.append(f"{a} + {draw(st.integers(0, 3))} >= {b} or {b} % 2 == 0")
    if draw(st.booleans()):
        params.reverse()
    return ConfigSpace(params, constraints)


def brute_force(space: ConfigSpace) -> set[str]:
    """Every legal configuration by trying every subset of every product (values as declared)."""
    choices: list[list[Any]] = []
    for p in space.params:
        values = p.values
        if p.kind == "permutation":
            values = tuple(itertools.permutations(p.values))  # type: ignore[arg-type]  # names
        choices.append([None, *values])
    found = set()
    for combo in itertools.product(*choices):
        env = {p.name: v for p, v in zip(space.params, combo, strict=True) if v is not None}
        right = all(
            (p.name in env) == (Expression(p.when).holds(env) is True if p.when else True)
            for p in space.params
        )
        if right and all(Expression(c).holds(env) is not False for c in space.constraints):
            found.add(Config(env).json)
    return found


def some(space: ConfigSpace, count: int = 5) -> list[Config]:
    return space.sample(count, rng=np.random.default_rng(1))


# --- the space against the reference -------------------------------------------------------


@settings(max_examples=80, deadline=None)
@given(spaces())
def test_enumeration_is_the_set_of_legal_configurations(space: ConfigSpace) -> None:
    listed = [c.json for c in space.enumerate()]
    assert len(listed) == len(set(listed)) == space.size()
    assert set(listed) == brute_force(space)
    assert listed == [c.json for c in space.enumerate()]


@settings(max_examples=50, deadline=None)
@given(spaces(), st.integers(0, 30), st.integers(0, 9))
def test_samples_are_distinct_legal_and_round_trip(
    space: ConfigSpace, count: int, seed: int
) -> None:
    drawn = space.sample(count, rng=np.random.default_rng(seed))
    size = space.size()
    assert size is not None
    assert len(drawn) == len({c.id for c in drawn}) == min(count, size)
    for config in drawn:
        assert space.reason(config) is None
        assert Config.parse(str(config)) == config
        assert space.canonical(config) == config
    assert drawn == space.sample(count, rng=np.random.default_rng(seed))


@settings(max_examples=80, deadline=None)
@given(spaces())
def test_neighbours_are_other_legal_configurations(space: ConfigSpace) -> None:
    for config in some(space):
        near = space.neighbours(config)
        assert config not in near
        assert len(near) == len(set(near))
        assert all(space.reason(n) is None for n in near)


@settings(max_examples=80, deadline=None)
@given(spaces(), st.dictionaries(st.sampled_from(["p0", "p1", "p2", "odd"]), st.integers(0, 99)))
def test_nearest_is_legal_and_keeps_what_is_legal(space: ConfigSpace, wish: dict[str, int]) -> None:
    near = space.nearest(wish)
    assert (near is None) == (space.size() == 0)
    assert near is None or space.reason(near) is None
    for config in some(space):
        assert space.nearest(config) == config
        assert space.nearest({**config, "foreign": 1}) == config


@settings(max_examples=60, deadline=None)
@given(spaces(), st.integers(0, 99), st.integers(0, 99))
def test_nearest_is_the_nearest(space: ConfigSpace, a: int, b: int) -> None:
    """Branch and bound finds the least cost that scanning the whole space finds."""
    wish = {"p0": a, "p1": b}

    def cost(config: Config) -> float:
        total = 0.0
        for part in space.parts:
            for i, name in enumerate(part.names):
                if name not in config:
                    total += space_parts.DROPPED if name in wish else 0.0
                elif name in wish:
                    total += part.distance(i, config[name], wish[name])
                else:
                    total += space_parts.UNASKED * part.domains[i].index(config[name])
        return total

    near = space.nearest(wish)
    if near is not None:
        assert cost(near) <= min(map(cost, space.enumerate())) + 1e-9


@settings(max_examples=40, deadline=None)
@given(spaces())
def test_a_space_too_large_to_list_answers_the_same(space: ConfigSpace) -> None:
    everything = {c.json for c in space.enumerate()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(space_parts, "PART_LIMIT", 0)
        patch.setattr(space_parts, "FEW", 0)
        large = ConfigSpace(space.params, space.constraints)
        if not everything:
            return
        assert large.size() is None
        assert {c.json for c in large.enumerate()} == everything
        drawn = large.sample(3, rng=np.random.default_rng(0))
        assert {c.json for c in drawn} <= everything
        assert len(drawn) == min(3, len(everything))


def test_a_sample_ends_where_nothing_new_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(space_parts, "PART_LIMIT", 0)
    monkeypatch.setattr(space_parts, "FEW", 0)
    space = ConfigSpace(
        [Param("a", "int", (1, 2, 4)), Param("b", "int", (1, 2, 4))], ["a * b <= 4"]
    )
    draws: list[int] = []
    draw = space_parts.Part.draw

    def counted(part: space_parts.Part, rng: np.random.Generator) -> Any:
        draws.append(1)
        return draw(part, rng)

    monkeypatch.setattr(space_parts.Part, "draw", counted)
    drawn = space.sample(100_000, rng=np.random.default_rng(0))
    assert {c.json for c in drawn} == {c.json for c in space.enumerate()}
    assert len(draws) < 20_000  # 100 for each of the requested would take minutes


@settings(max_examples=40, deadline=None)
@given(spaces(), st.integers(0, 40))
def test_a_size_is_counted_up_to_a_limit(space: ConfigSpace, most: int) -> None:
    size = space.size()
    again = ConfigSpace(space.params, space.constraints)
    assert again.size(most) == (size if size is not None and size <= most else None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(space_parts, "FEW", 3)
        again = ConfigSpace(space.params, space.constraints)
        assert (again.size(most), again.size()) == (space.size(most), size)


# --- legality and its reasons --------------------------------------------------------------

TILES = ConfigSpace(
    [
        Param("order", "choice", ("ijk", "kij")),
        Param("tile", "int", (8, 16, 32), "order == 'kij'"),
        Param("fast", "bool", (0, 1)),
        Param("loops", "permutation", ("i", "j", "k")),
    ],
    ["tile <= WIDTH or tile == 8", "position(loops, 'i') < 2"],
)
GOOD = {"order": "kij", "tile": 16, "fast": 0, "loops": ("i", "j", "k")}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"tile": 10}, "parameter 'tile': 10 is not one of 8, 16, 32"),
        ({"tile": "16"}, "parameter 'tile': 16 is not one of 8, 16, 32"),
        ({"tile": 16.5}, "parameter 'tile': 16.5 is not one of 8, 16, 32"),
        ({"fast": 2}, "parameter 'fast': 2 is not one of 0, 1"),
        ({"tile": True}, "parameter 'tile': true is not one of 8, 16, 32"),
        ({"order": "jki"}, "parameter 'order': jki is not one of ijk, kij"),
        ({"order": "ijk"}, "parameter 'tile' may only be given when order == 'kij'"),
        ({"tile": None}, "parameter 'tile' is missing (it is needed when order == 'kij')"),
        ({"fast": None}, "parameter 'fast' is missing"),
        ({"tile": None, "fast": 2}, "parameter 'fast': 2 is not one of 0, 1"),
        (
            {"fast": None, "speed": 3},
            "unknown parameter 'speed'; parameters: order, tile, fast, loops",
        ),
        ({"speed": 3}, "unknown parameter 'speed'; parameters: order, tile, fast, loops"),
        ({"loops": ("i", "j")}, "parameter 'loops': [i j] is not an order of i, j, k"),
        ({"loops": ("i", "j", "j")}, "parameter 'loops': [i j j] is not an order of i, j, k"),
        ({"loops": "ijk"}, "parameter 'loops': ijk is not an order of i, j, k"),
        (
            {"loops": ("j", "k", "i")},
            "loops=[j k i]: breaks the constraint position(loops, 'i') < 2",
        ),
        (
            {"tile": 32},
            "tile=32, WIDTH=20: breaks the constraint tile <= WIDTH or tile == 8",
        ),
    ],
)
def test_reason_names_parameter_value_and_what_is_allowed(
    change: dict[str, Any], reason: str
) -> None:
    space = TILES.bind({"WIDTH": 20})
    values = {k: v for k, v in {**GOOD, **change}.items() if v is not None}
    assert space.reason(Config(values)) == reason
    with pytest.raises(SpaceError, match=f"^{re.escape(reason)}$"):
        space.check(Config(values))
    assert "\n" not in reason


def test_unresolved_constraints_hold_and_resolving_tightens_them() -> None:
    config = Config({**GOOD, "tile": 32})
    assert TILES.unresolved == ("WIDTH",)
    assert TILES.reason(config) is None
    assert TILES.bind({"WIDTH": 32}).reason(config) is None
    assert TILES.bind({"WIDTH": 31}).reason(config) is not None
    assert TILES.bind({"NNZ": 3}) is TILES


def test_reason_keeps_a_long_list_of_values_on_one_line() -> None:
    space = ConfigSpace([Param("p", "int", tuple(range(500)))])
    reason = space.reason({"p": 900})
    assert reason is not None
    assert len(reason) < 250
    assert "(500 in all)" in reason


# --- moving around -------------------------------------------------------------------------


def test_neighbours_step_by_kind_and_repair_what_is_tied() -> None:
    space = ConfigSpace(
        [
            Param("size", "int", (1, 2, 4, 8)),
            Param("schedule", "choice", ("static", "dynamic", "guided")),
            Param("chunk", "int", (0, 1, 16)),
            Param("loops", "permutation", ("i", "j", "k")),
        ],
        ["schedule == 'static' or chunk > 0"],
    )
    start = Config({"size": 2, "schedule": "static", "chunk": 0, "loops": ("i", "j", "k")})
    near = space.neighbours(start)
    assert {n["size"] for n in near} == {1, 2, 4}
    assert {n["loops"] for n in near if n["loops"] != start["loops"]} == {
        ("j", "i", "k"),
        ("i", "k", "j"),
    }
    moved = [n for n in near if n["schedule"] != "static"]
    assert {(n["schedule"], n["chunk"]) for n in moved} == {("dynamic", 1), ("guided", 1)}
    assert len(near) == 2 + 2 + 1 + 2
    with pytest.raises(SpaceError, match="missing"):
        space.neighbours({"size": 2})


def test_nearest_takes_foreign_and_partial_assignments() -> None:
    space = ConfigSpace(TILES.params, TILES.constraints, prefer={**GOOD, "order": "ijk"})
    space = space.bind({"WIDTH": 64})
    near = space.nearest({"tile": 30, "vendor": "x"})
    assert near is not None
    assert (near["order"], near["tile"]) == ("kij", 32)
    bare = space.nearest({})
    assert bare is not None
    assert bare["order"] == "ijk"
    assert "tile" not in bare
    assert space.nearest({"loops": ("k", "j", "i")})["loops"] != ("k", "j", "i")  # type: ignore[index]  # not empty
    assert space.nearest({"order": "kij", "tile": 10**15})["tile"] == 32  # type: ignore[index]  # not empty


def test_an_empty_space_has_nothing() -> None:
    space = ConfigSpace([Param("a", "int", (1, 2)), Param("b", "int", (1,))], ["a < b"])
    assert space.size() == 0
    assert list(space.enumerate()) == []
    assert space.sample(3, rng=np.random.default_rng(0)) == []
    assert space.nearest({"a": 1}) is None


def test_contradictions_in_a_huge_part_end_in_time() -> None:
    params = [Param(f"p{i}", "int", tuple(range(1, 40))) for i in range(8)]
    space = ConfigSpace(params, [" + ".join(p.name for p in params) + " < 0"])
    start = time.perf_counter()
    assert space.size() is None
    assert space.sample(1, rng=np.random.default_rng(0)) == []
    assert time.perf_counter() - start < 10


def test_a_search_where_nothing_is_legal_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embeddb.platforms.space.parts.GIVE_UP", 1000)
    params = [Param(f"p{i}", "int", tuple(range(1, 1000))) for i in range(8)]
    space = ConfigSpace(params, [" + ".join(p.name for p in params) + " < 0"])
    assert space.nearest({"p0": 3}) is None


def test_sampling_is_uniform_over_configurations_not_values() -> None:
    space = ConfigSpace(
        [Param("a", "bool", (0, 1)), Param("b", "int", tuple(range(9)), "a == 1")],
    )
    rng = np.random.default_rng(5)
    zeros = sum(space.sample(1, rng=rng)[0]["a"] == 0 for _ in range(2000))
    assert 130 < zeros < 280  # 1 in 10, not 1 in 2


# --- symbols -------------------------------------------------------------------------------

PANELS = ConfigSpace([Param("cols", "int", (1024, 16384, "NUM_MATRIX_COLS"))])


def names(space: ConfigSpace) -> Iterator[Any]:
    return (c["cols"] for c in space.enumerate())


def test_symbols_are_stored_by_name() -> None:
    space = PANELS.bind({"NUM_MATRIX_COLS": 3000})
    assert list(names(space)) == [1024, 16384, "NUM_MATRIX_COLS"]
    assert space.canonical({"cols": 3000}) == Config({"cols": "NUM_MATRIX_COLS"})
    assert space.reason({"cols": 3000}) is None
    assert space.numeric({"cols": "NUM_MATRIX_COLS"}) == {"cols": 3000}
    assert space.canonical({"cols": 7}) == Config({"cols": 7})
    assert "7 is not one of 1024, 16384, NUM_MATRIX_COLS" in str(space.reason({"cols": 7}))
    assert space.nearest({"cols": 2900}) == Config({"cols": "NUM_MATRIX_COLS"})
    # One step is by size: 3000 lies between 1024 and 16384.
    assert {n["cols"] for n in space.neighbours({"cols": 1024})} == {"NUM_MATRIX_COLS"}
    assert {n["cols"] for n in space.neighbours({"cols": 3000})} == {1024, 16384}


def test_a_symbol_that_coincides_with_a_value_is_that_value() -> None:
    space = PANELS.bind({"NUM_MATRIX_COLS": 1024})
    assert list(names(space)) == [1024, 16384]
    assert space.size() == 2
    assert space.reason({"cols": "NUM_MATRIX_COLS"}) is None
    assert space.canonical({"cols": "NUM_MATRIX_COLS"}) == Config({"cols": 1024})
    assert {c["cols"] for c in space.sample(9, rng=np.random.default_rng(0))} == {1024, 16384}


def test_two_symbols_that_coincide_are_the_first() -> None:
    both = ConfigSpace([Param("s", "int", (4, "NUM_MATRIX_COLS", "NUM_MATRIX_ROWS"))])
    space = both.bind({"NUM_MATRIX_COLS": 9, "NUM_MATRIX_ROWS": 9})
    assert [c["s"] for c in space.enumerate()] == [4, "NUM_MATRIX_COLS"]
    assert space.canonical({"s": "NUM_MATRIX_ROWS"})["s"] == "NUM_MATRIX_COLS"


def test_unresolved_symbols_stay_names() -> None:
    assert list(names(PANELS)) == [1024, 16384, "NUM_MATRIX_COLS"]
    assert PANELS.reason({"cols": 3000}) is not None
    with pytest.raises(SpaceError, match="'cols': no value for NUM_MATRIX_COLS"):
        PANELS.numeric({"cols": "NUM_MATRIX_COLS"})
    bounded = ConfigSpace(PANELS.params, ["cols < 2000"])
    assert bounded.size() == 2
    assert bounded.bind({"NUM_MATRIX_COLS": 1500}).size() == 2
    assert bounded.bind({"NUM_MATRIX_COLS": 2500}).size() == 1


def test_values_above_the_matrix_stay_unless_a_constraint_drops_them() -> None:
    assert PANELS.bind({"NUM_MATRIX_COLS": 10}).size() == 3
    tight = ConfigSpace(PANELS.params, ["cols <= NUM_MATRIX_COLS"])
    assert list(names(tight.bind({"NUM_MATRIX_COLS": 10}))) == ["NUM_MATRIX_COLS"]


def test_aliases_and_booleans_become_the_stored_values() -> None:
    space = ConfigSpace(
        [
            Param("f", "choice", ("csr", "ell"), aliases=(("Csr", "csr"),)),
            Param("s", "int", (32, 256), aliases=(("1", 32),)),
            Param("b", "bool", (0, 1)),
        ]
    )
    config = space.canonical({"f": "Csr", "s": 1, "b": True})
    assert config == Config({"f": "csr", "s": 32, "b": 0 + 1})
    assert config.json == '{"b":1,"f":"csr","s":32}'
    assert space.canonical(config) is config
    assert space.reason({"f": "Csr", "s": 1, "b": True}) is None
    assert (
        space.reason({"f": "CSR", "s": 1, "b": True}) == "parameter 'f': CSR is not one of csr, ell"
    )
    assert "cannot have the value" in str(space.reason({"f": float("nan"), "s": 1, "b": 0}))


# --- declarations that are wrong -----------------------------------------------------------

A, B = Param("a", "int", (1, 2)), Param("b", "choice", ("x", "y"))


@pytest.mark.parametrize(
    ("params", "constraints", "message"),
    [
        ([], [], "at least one parameter"),
        ([A, A], [], "'a' is declared twice"),
        ([A], ["a < c"], r"constraints\[0\]: there is no parameter 'c'"),
        ([A], ["a <"], r"constraints\[0\]: 'a <' is not an expression"),
        ([A], ["NNZ > 3"], "mentions no parameter"),
        ([A, B], ["b == 'z'"], "z is not a value of 'b': x, y"),
        ([Param("c", "int", (1,), "NNZ > 3"), A], [], "a condition cannot use 'NNZ'"),
        ([Param("c", "int", (1,), "d == 1")], [], "there is no parameter 'd'"),
        ([Param("c", "int", (1,), "c == 1")], [], "circle: c -> c"),
        (
            [Param("c", "int", (1,), "d == 1"), Param("d", "int", (1,), "c == 1")],
            [],
            "circle: (c -> d -> c|d -> c -> d)",
        ),
        (
            [Param("c", "int", (1, "NNZ")), Param("d", "int", (1,), "c == 1")],
            [],
            "depend on the matrix",
        ),
        ([Param(f"p{i}", "int", (1,)) for i in range(65)], [], "65 parameters, at most 64"),
    ],
)
def test_inconsistent_spaces_are_refused(
    params: list[Param], constraints: list[str], message: str
) -> None:
    with pytest.raises(SpaceError, match=message):
        ConfigSpace(params, constraints)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a", "int", ()), "params.a.values: there are no values"),
        (("a", "int", (1, 1)), "1 is there twice"),
        (("a", "int", ("x",)), "x is not a value for type 'int'"),
        (("a", "int", (2**70,)), "too large"),
        (("a", "int", tuple(range(MAX_VALUES + 1))), "1001 values, at most 1000"),
        (("a", "bool", (0, 2)), "2 is not a value for type 'bool'"),
        (("a", "choice", ("NNZ",)), "NNZ is not a value for type 'choice'"),
        (("a", "choice", ("",)), "is not a value"),
        (("a", "permutation", tuple("abcdefghi")), "9 values, at most 8"),
        (("a", "real", (1,)), "'real' is not one of int, choice, bool, permutation"),
        (("min", "int", (1,)), "cannot be the name"),
        (("WIDTH", "int", (1,)), "cannot be the name"),
        (("a b", "int", (1,)), "cannot be the name"),
        (("or", "int", (1,)), "cannot be the name"),
        (("a", "int", (1,), "", (("2", 3),)), "'2' stands for 3, not a value"),
    ],
)
def test_impossible_parameters_are_refused(arguments: Any, message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        Param(*arguments)


# --- expressions ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a + 2 * b - 1", 12),
        ("a // 2", 1),
        ("a % 2", 1),
        ("-a", -3),
        ("min(a, b)", 3),
        ("max(a, b, 9)", 9),
        ("1 < a < b", True),
        ("1 < a < 2", False),
        ("a in (1, 3) and c not in ['x']", True),
        ("not (a == 3 or b == 0)", False),
        ("position(p, 'k')", 1),
        ("c == 'word'", True),
    ],
)
def test_expressions_compute(text: str, value: Any) -> None:
    env = {"a": 3, "b": 5, "c": "word", "p": ("i", "k")}
    assert Expression(text).value(env) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a ** 9",
        "a.b",
        "a[0]",
        "f(a)",
        "__import__('os')",
        "min(*a)",
        "min(a, key=b)",
        "lambda: 1",
        "[x for x in a]",
        "a if b else c",
        "a is b",
        "(a := 1)",
        "f'{a}'",
        "'x' in a",
        "a / 2",
        "True",
        "1j",
        "b''",
        "...",
        "a; b",
        "a\\\nb",
        "a = 1",
        "1 +",
        "(" * 300,
        "a" * 401,
        "a < 9" + "9" * 320,
        "a < 1e999",
        "a == 1 or min('') < a",
        "a < 1 // 0",
        "a < " + "-" * 390 + "'x'",
        "a < " + " * ".join(["1e200", "1e200"]),
    ],
)
def test_everything_else_is_not_an_expression(text: str) -> None:
    with pytest.raises(SpaceError):
        Expression(text)


def test_expressions_that_cannot_be_computed_do_not_hold() -> None:
    assert Expression("a < 'x'").holds({"a": 1}) is False
    assert Expression("a // b > 0").holds({"a": 1, "b": 0}) is False
    assert Expression("'x' * a == 'xx'").holds({"a": 2}) is False
    assert Expression("position(a, 'q') == 0").holds({"a": ("i",)}) is False
    assert Expression("min(a) < 'x'").holds({"a": ()}) is False
    assert Expression("a * a * 1.5 > 2").holds({"a": 10**200}) is False
    assert Expression("a * a * a != 1").holds({"a": 10**99}) is True
    with pytest.raises(SpaceError, match="a // b cannot be evaluated"):
        Expression("a // b").value({"a": 1, "b": 0})
    assert Expression("b > 0").holds({"a": 1}) is None
    assert Expression("a == 1 or b > 0").holds({"a": 1}) is True


@settings(max_examples=40, deadline=None)
@given(st.text(alphabet="ab1 ()<=+-*/%'[],.:\n\\inotr", max_size=40))
def test_no_text_makes_the_parser_fail_otherwise(text: str) -> None:
    try:
        Expression(text)
    except SpaceError as error:
        assert "\n" not in str(error).replace(repr(text), "")
