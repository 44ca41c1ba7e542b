"""Derived quantities: the language, what is refused, and the numbers they come to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embeddb.core.config import Config, Op
from embeddb.core.errors import PlatformError
from embeddb.core.row_lengths import RowLengths
from embeddb.core.sizes import UNKNOWN, Sizes
from embeddb.platforms.check import check_platform
from embeddb.platforms.derived import DerivedQuantities, as_inputs
from embeddb.platforms.platform import Platform, builtin_platforms, load_platform, parse_platform

OP = Op("spmm", 32)
HEAD = """
name = "toy"
version = "1"
title = "Toy"
[traits]
elements = 4
label = "four"
[[space]]
kernels = ["spmm", "sddmm", "spmv"]
[space.params]
kind = { type = "choice", values = ["rows", "pieces", "none"] }
piece = { type = "int", values = [2, 4], when = "kind == 'pieces'" }
panel = { type = "int", values = [3, "NUM_MATRIX_COLS"] }
order = { type = "permutation", values = ["i", "j"] }
wide = { type = "bool" }
[space.default]
kind = "rows"
panel = 3
order = ["i", "j"]
wide = 0
[space.derived]
"""
ROWS = Config({"kind": "rows", "panel": 3, "order": ["i", "j"], "wide": 0})
PIECES = Config({"kind": "pieces", "piece": 2, "panel": 3, "order": ["j", "i"], "wide": 1})
#: Four rows of 0, 1, 5 and 5 entries.
LENGTHS = RowLengths(np.array([0.0, 1.0, 5.0]), np.array([1.0, 1.0, 2.0]))
SIZES = Sizes(4, 7, 11)


def platform(**quantities: str) -> Platform:
    lines = (f'{name} = """{text}"""' for name, text in quantities.items())
    return parse_platform(HEAD + "\n".join(lines), where="toy.toml")


def values_of(
    text: str,
    *configs: Config,
    sizes: Sizes = SIZES,
    lengths: RowLengths | None = LENGTHS,
    **others: str,
) -> list[float]:
    """Of one quantity, one number per configuration."""
    made = DerivedQuantities(platform(q=text, **others), OP, configs or (ROWS,))
    return made.values(sizes, lengths)[:, 0].tolist()


def fault(text: str, **others: str) -> str:
    with pytest.raises(PlatformError) as error:
        platform(q=text, **others)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NUM_MATRIX_ROWS + NUM_MATRIX_COLS * 2 - NNZ", 7),
        ("WIDTH / 5", 6.4),
        ("WIDTH // 5 + WIDTH % 5", 8),
        ("ceil(7 / 2) * 10 + floor(7 / 2)", 43),
        ("log2(WIDTH)", 5),
        ("min(3, NNZ, 2) + max(1, 5)", 7),
        ("1 if NNZ > 10 else 2", 1),
        ("3 - -(NNZ > 10)", 4),
        ("3 < NNZ <= 11", 1),
        ("NNZ in (3, 11) and not panel == 3", 0),
        ("position(order, 'j')", 1),
        ("panel", 3),
        ("wide or kind == 'rows'", 1),
        ("fact('elements', 9) + fact('label', 1) + fact('nowhere', 2.5)", 7.5),
        ("sum_rows(LENGTH)", 11),
        ("sum_rows(ceil(LENGTH / 2))", 7),
        ("max_rows(LENGTH) + sum_rows(min(LENGTH, 3) * 0 + 1)", 9),
    ],
)
def test_expressions(text: str, expected: float) -> None:
    assert values_of(text) == [expected]


def test_each_configuration_has_its_own_numbers() -> None:
    text = "sum_rows(max(1, ceil(LENGTH / piece))) if kind == 'pieces' else NUM_MATRIX_ROWS"
    assert values_of(text, ROWS, PIECES, ROWS) == [4, 8, 4]


def test_quantities_read_each_other_in_any_order_and_within_rows() -> None:
    made = platform(q="sum_rows(min(LENGTH, panels))", panels="ceil(NUM_MATRIX_COLS / panel)")
    assert DerivedQuantities(made, OP, [ROWS]).values(SIZES, LENGTHS).tolist() == [[7, 3]]


def test_a_symbol_is_its_number() -> None:
    whole = ROWS.replace(panel="NUM_MATRIX_COLS")
    assert values_of("ceil(NUM_MATRIX_COLS / panel)", ROWS, whole) == [3, 1]


@pytest.mark.parametrize(
    "text",
    ["piece", "piece + 1", "NNZ / (wide * 0)", "log2(wide)", "0 - NNZ", "NNZ % (wide * 0)"],
)
def test_what_does_not_apply_is_no_number_and_nought_to_a_model(text: str) -> None:
    assert np.isnan(values_of(text)).all()
    inputs = DerivedQuantities(platform(q=text), OP, [ROWS]).inputs(SIZES, LENGTHS)
    assert inputs.tolist() == [[0.0]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("default(piece, 7)", 7),
        ("1 if piece == 2 else 3", 3),
        ("1 if piece != 2 else 3", 1),
        ("1 if piece < 9 else 3", 3),
        ("1 if piece in (2, 4) else 3", 3),
        ("1 if not piece else 3", 1),
        ("5 if kind == 'rows' else piece", 5),
    ],
)
def test_what_does_not_apply_equals_nothing(text: str, expected: float) -> None:
    assert values_of(text) == [expected]


def test_unknown_sizes_and_row_lengths_do_not_apply() -> None:
    assert np.isnan(values_of("NNZ", sizes=UNKNOWN)).all()
    assert np.isnan(values_of("sum_rows(LENGTH)", lengths=None)).all()
    assert values_of("WIDTH", sizes=UNKNOWN) == [32]


def test_values_are_bounded() -> None:
    assert values_of("1e300 * NNZ * 1e300") == [2.0**64]
    assert np.isnan(values_of("1e300 * NNZ * 1e300 - 1e300 * NNZ * 1e300")).all()
    inputs = as_inputs(np.array([0.0, 2.0**64, 1.0, np.nan]))
    assert inputs.dtype == np.float32
    assert inputs.round(2).tolist() == pytest.approx([0.0, 74.0, 10.0, 0.0], abs=0.01)


def test_an_empty_matrix_and_no_configurations() -> None:
    empty = RowLengths(np.zeros(0), np.zeros(0))
    assert values_of(
        "sum_rows(LENGTH) + max_rows(LENGTH)", sizes=Sizes(0, 0, 0), lengths=empty
    ) == [0]
    assert DerivedQuantities(platform(q="NNZ"), OP, []).values(SIZES).shape == (0, 1)
    assert DerivedQuantities(parse_platform(HEAD), OP, [ROWS]).inputs(SIZES).shape == (1, 0)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("pieces + 1", "there is no parameter 'pieces'"),
        ("kind + 1", "'kind' is a text"),
        ("kind", "is a text"),
        ("'rows'", "is a text"),
        ("kind < 'rows'", "'kind' is a text"),
        ("kind == order", "is a text"),
        ("sum_rows(LENGTH * kind)", "'kind' is a text"),
        ("min(kind, 2)", "'kind' is a text"),
        ("piece == 'x'", "is not a value of 'piece'"),
        ("kind == 'colums'", "colums is not a value of 'kind'"),
        ("panel in ('a', 3)", "is not a value of 'panel'"),
        ("order == 'i'", "is a text"),
        ("position(kind, 'rows')", "'kind' is a text"),
        ("order in ('i', 'j')", "is a text"),
        ("LENGTH + 1", "LENGTH is of one row"),
        ("sum_rows(NNZ)", "does not read LENGTH"),
        ("sum_rows(3)", "does not read LENGTH"),
        ("max_rows(LEN)", "there is no parameter 'LEN'"),
        ("fact('elements', 'many')", "not allowed"),
        ("-'a' + NNZ", "can never be evaluated"),
        ("sum_rows(sum_rows(LENGTH) + LENGTH)", "cannot be nested"),
        ("sum_rows(max_rows(LENGTH))", "cannot be nested"),
        ("sum_rows(LENGTH, 2)", "not allowed"),
        ("sum_rows()", "not allowed"),
        ("ceil(1, 2)", "can never be evaluated"),
        ("ceil(NNZ, 2)", "takes 1"),
        ("min()", "can never be evaluated"),
        ("1 / 0 + NNZ", "can never be evaluated"),
        ("log2(0) + NNZ", "can never be evaluated"),
        ("inf", "there is no parameter 'inf'"),
        ("1e999", "no number larger"),
        ("9" * 400, "no number larger"),
        ("", "empty"),
        ("NNZ +", "not an expression"),
        ("NNZ ** 2", "not allowed"),
        ("NNZ.real", "not allowed"),
        ("(lambda: 1)()", "not allowed"),
        ("[NNZ for NNZ in (1, 2)]", "not allowed"),
        ("__import__('os')", "not allowed"),
        ("fact(kind, 1)", "not allowed"),
        ("fact('elements')", "not allowed"),
        ("min(NNZ, key=2)", "not allowed"),
        ("1 if kind else 2", "'kind' is a text"),
        ("NNZ" + " + NNZ" * 166_000, "at most 1000 characters"),
        ("-" * 900 + "NNZ", "nested"),
        ("(" * 450 + "NNZ" + ")" * 450, "not an expression"),
        ("not " * 200 + "NNZ", "levels deep"),
    ],
)
def test_what_is_refused_names_field_and_token(text: str, part: str) -> None:
    message = fault(text)
    assert "toy.toml: space[0].derived.q: " in message
    assert part in message


@pytest.mark.parametrize("name", ["kind", "NNZ", "LENGTH", "a b", "x" * 65, "1x"])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(PlatformError, match=r"space\[0\]\.derived"):
        parse_platform(HEAD + f'"{name}" = "NNZ"')


def test_a_cycle_and_too_many_are_refused() -> None:
    assert "circle: " in fault("a + 1", a="b", b="q")
    assert "circle: " in fault("q + 1")
    many = {f"q{i}": "NNZ" for i in range(32)}
    assert "at most 32" in fault("NNZ", **many)


def test_a_number_is_not_an_expression() -> None:
    with pytest.raises(PlatformError, match=r"derived\.q: must be a text"):
        parse_platform(HEAD + "q = 3")


def test_all_faults_are_listed() -> None:
    with pytest.raises(PlatformError) as error:
        platform(q="NNZ +", r="NNZ **", s="NNZ")
    assert len(error.value.problems) == 2


def test_only_matrices_have_rows() -> None:
    text = (
        'name = "n"\nversion = "1"\ntitle = "N"\n[[space]]\nkernels = ["nest"]\n'
        '[space.params]\na = { type = "int", values = [1, 2] }\n[space.default]\na = 1\n'
        '[space.derived]\nq = "?"\n'
    )
    assert parse_platform(text.replace("?", "TRIP_1 * a")).quantities(Op("nest")).names == ("q",)
    with pytest.raises(PlatformError, match="no rows"):
        parse_platform(text.replace("?", "sum_rows(LENGTH)"))


def test_a_parameter_may_have_the_name_of_a_function_or_of_the_length() -> None:
    text = HEAD.replace("panel", "ceil") + 'q = "ceil(NNZ / ceil)"'
    made = DerivedQuantities(parse_platform(text), OP, [Config({**ROWS, "ceil": 3})])
    assert made.values(SIZES).tolist() == [[4]]
    with pytest.raises(PlatformError, match="LENGTH"):
        parse_platform(HEAD.replace("panel", "LENGTH") + 'q = "sum_rows(LENGTH)"')


# --- identity ------------------------------------------------------------------------------


def test_quantities_change_no_digest() -> None:
    plain, more = parse_platform(HEAD), platform(q="NNZ", r="q / 2")
    assert plain.digest == more.digest
    assert plain.kernel("spmm").digest_form() == more.kernel("spmm").digest_form()
    assert more.quantities(OP).digest != platform(q="NNZ", r="q / 3").quantities(OP).digest
    assert plain.quantities(OP).digest == ""


def test_a_stored_platform_of_an_older_file_takes_the_shipped_quantities() -> None:
    text = load_platform("spade").text
    start = text.index("[space.derived]")
    older = parse_platform(_without_meaning(text[:start] + text[text.index("[space.default]") :]))
    assert older.quantities(OP).names == load_platform("spade").quantities(OP).names
    changed = parse_platform(older.text.replace("row_panels = 256", "row_panels = 32"))
    assert not changed.quantities(OP)


def _without_meaning(text: str) -> str:
    return text[: text.index("[meaning]")] + text[text.index("[traits]") :]


def test_a_restricted_space_keeps_them() -> None:
    cuda = load_platform("cuda")
    assert cuda.restricted(OP, exact=True, reproducible=True).quantities(OP)


def test_meanings_may_be_of_quantities() -> None:
    text = HEAD.replace("[traits]", '[meaning]\nq = "entries"\n[traits]')
    assert parse_platform(text + 'q = "NNZ"').meaning == {"q": "entries"}
    with pytest.raises(PlatformError, match="meaning"):
        parse_platform(text)


# --- the shipped ones ----------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in builtin_platforms() if n in ("cpu", "cuda", "spade")])
def test_shipped_quantities_have_meanings_and_vary(name: str) -> None:
    made = load_platform(name)
    assert not check_platform(made, samples=2)
    for kernel in made.ops:
        op = Op(kernel, 1 if kernel == "spmv" else 48)
        assert {*made.quantities(op).names} <= made.meaning.keys()
        sizes = Sizes(4000, 5000, 11 * 1000)
        configs = made.space(op, sizes).sample(200, rng=np.random.default_rng(0))
        lengths = RowLengths(LENGTHS.values, LENGTHS.times * 1000)
        inputs = DerivedQuantities(made, op, configs).inputs(sizes, lengths)
        assert np.isfinite(inputs).all()
        assert (inputs.min(axis=0) < inputs.max(axis=0)).sum() >= 0.8 * inputs.shape[1]


def test_facts_of_a_machine_come_before_the_default() -> None:
    cuda, config = load_platform("cuda"), load_platform("cuda").kernel("spmm").default
    here = cuda.at("x", {"multiprocessors": "66", "name": "inf"})
    at = cuda.quantities(OP).names.index("waves")
    ours, plain = (
        DerivedQuantities(p, OP, [config]).values(SIZES, LENGTHS)[0, at] for p in (here, cuda)
    )
    assert ours == 2 * plain


def test_the_check_names_a_quantity_that_is_never_there() -> None:
    assert "spmm: quantity 'q'" in "\n".join(check_platform(platform(q="0 - NNZ"), samples=4))
    assert not [p for p in check_platform(platform(q="NNZ"), samples=4) if "quantity" in p]


# --- many at once --------------------------------------------------------------------------

_TEXTS = (
    "sum_rows(max(1, ceil(LENGTH / piece))) if kind == 'pieces' else NUM_MATRIX_ROWS",
    "max_rows(min(LENGTH, default(piece, 99))) * panel",
    "NNZ / (wide + position(order, 'j'))",
)


@settings(max_examples=30, deadline=None)
@given(
    picks=st.lists(st.integers(0, 10**6), max_size=30),
    lengths=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 5)), min_size=1, max_size=6),
)
def test_many_configurations_are_computed_as_one(
    picks: list[int], lengths: list[tuple[int, int]]
) -> None:
    made = platform(a=_TEXTS[0], b=_TEXTS[1], c=_TEXTS[2])
    every = list(made.space(OP).enumerate())
    configs: list[Mapping[str, Any]] = [every[pick % len(every)] for pick in picks]
    times = dict(lengths)
    histogram = RowLengths(
        *(np.array(x, dtype=float) for x in zip(*sorted(times.items()), strict=True))
    )
    sizes = Sizes(int(histogram.rows), 50, int(histogram.entries))
    together = DerivedQuantities(made, OP, configs).values(sizes, histogram)
    for config, row in zip(configs, together, strict=True):
        alone = DerivedQuantities(made, OP, [config]).values(sizes, histogram)
        assert np.array_equal(alone[0], row, equal_nan=True)
        pieces = [max(1, -(-n // config.get("piece", 1))) * t for n, t in times.items()]
        rows = sum(pieces) if config["kind"] == "pieces" else sizes.m
        assert row[0] == rows
