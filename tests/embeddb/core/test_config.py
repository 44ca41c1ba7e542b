"""Operations and configurations: canonical form, identity, and the text form there and back."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embeddb.core.config import Config, Op
from embeddb.core.errors import UsageError
from embeddb.core.kinds import operations

OPS = st.builds(
    lambda operation, width, dtype: Op(
        operation.name, width if operation.wide else 1, dtype if operation.typed else "f32"
    ),
    st.sampled_from(operations()),
    st.integers(1, 1 << 20),
    st.sampled_from(["f32", "f64", "f16", "bf16", "tf32", "c64", "c128"]),
)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NAMES = st.one_of(
    st.from_regex(r"[a-z_][a-z0-9_.]{0,8}", fullmatch=True),
    TEXT.filter(lambda t: t and not any(c.isspace() or c in '=,"[]' for c in t)),
)
VALUES = st.one_of(
    st.booleans(),
    st.integers(-(10**30), 10**30),
    st.floats(-1e30, 1e30),
    TEXT,
    st.sampled_from(["true", "false", "null", "NaN", "Infinity", "4x8", "1e5", "", " a ", 'a"b']),
    st.lists(TEXT, max_size=4).map(tuple),
)
CONFIGS = st.dictionaries(NAMES, VALUES, max_size=6)


@given(OPS)
def test_an_operation_survives_its_text(op: Op) -> None:
    assert Op.parse(str(op)) == op
    assert hash(Op.parse(f"  {str(op).upper()} ")) == hash(op)


def test_operations_are_ordered_by_kernel_and_width() -> None:
    ops = [Op("spmv"), Op("spmm", 128), Op("sddmm", 64), Op("spmm", 32), Op("spmm", 32, "f64")]
    assert [str(op) for op in sorted(ops)] == [
        "sddmm:64", "spmm:32", "spmm:32:f64", "spmm:128", "spmv",
    ]  # fmt: skip
    assert Op("spmm", np.int64(8)) == Op("spmm", 8)
    assert str(Op("spmm", np.int64(8))) == "spmm:8"


@pytest.mark.parametrize(
    "text",
    ["", "spmm", "spmm:0", "spmm:-1", "spmm:9999999", "gemm:8", "spmm:8:f31", "spmv:2", "spmm:8:",
     "spmm:8:f32:x", "spmm 8", "spmm:8.5"],
)  # fmt: skip
def test_what_is_no_operation(text: str) -> None:
    with pytest.raises(UsageError):
        Op.parse(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("spmm:1048577", "cannot have 1048577 dense columns"),
        ("spmm:1000000000", "cannot have 1000000000 dense columns"),
        ("spmm:" + "9" * 5000, "cannot have 99999999999999999999 dense columns"),
        ("spmm:1_0", "'1_0' is no number of dense columns"),
        ("spmm:\u0666\u0664", "is no number of dense columns"),
        ("spmm:064", "'064' is no number of dense columns"),
        ("spmm:1e3", "'1e3' is no number of dense columns"),
        ("spmm:f64", "lacks the number of dense columns"),
    ],
)
def test_a_wrong_width_is_named(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        Op.parse(text)
    limit = "1 to 1048576" if "cannot" in said else "write spmm:128"
    assert caught.value.hint == limit


@pytest.mark.parametrize(
    ("spelling", "dtype"),
    [
        ("float32", "f32"),
        ("Float", "f32"),
        ("float64", "f64"),
        ("fp64", "f64"),
        ("DOUBLE", "f64"),
        ("half", "f16"),
        ("fp16", "f16"),
        ("bfloat16", "bf16"),
        ("complex128", "c128"),
    ],
)
def test_value_types_have_the_names_of_other_libraries(spelling: str, dtype: str) -> None:
    assert Op.parse(f"spmm:8:{spelling}") == Op("spmm", 8, dtype)


def test_an_unknown_value_type_names_the_legal_ones() -> None:
    with pytest.raises(UsageError, match="'int8': one of f32, f64, f16, bf16") as caught:
        Op.parse("spmm:8:int8")
    assert "float64" in caught.value.hint


@given(CONFIGS)
def test_a_configuration_survives_text_and_json(values: dict[str, object]) -> None:
    config = Config(values)
    for again in (Config.parse(str(config)), Config.from_json(config.json), Config(dict(config))):
        assert again == config
        assert again.id == config.id
        assert again.json == config.json
        assert dict(again) == dict(config)


@given(CONFIGS, st.randoms(use_true_random=False))
def test_the_order_of_parameters_does_not_matter(values: dict[str, object], random: object) -> None:
    names = list(values)
    random.shuffle(names)  # type: ignore[attr-defined]  # hypothesis gives a random.Random
    assert Config({name: values[name] for name in names}).id == Config(values).id


def test_json_is_canonical() -> None:
    config = Config({"b": 2.0, "a": ("i", "k"), "c": True, "d": np.float32(0.5), "e": "ü"})
    assert config.json == '{"a":["i","k"],"b":2,"c":true,"d":0.5,"e":"ü"}'
    assert json.loads(config.json) == {"a": ["i", "k"], "b": 2, "c": True, "d": 0.5, "e": "ü"}
    assert str(config) == 'a=["i","k"],b=2,c=true,d=0.5,e=ü'


@given(CONFIGS, CONFIGS, VALUES)
def test_replaced_values_are_those_of_a_new_configuration(
    values: dict[str, object], further: dict[str, object], value: object
) -> None:
    _replaces(values, dict.fromkeys(values, value))
    _replaces(values, {**further, **dict.fromkeys(list(values)[:1], value)})


def _replaces(values: dict[str, object], changes: dict[str, object]) -> None:
    config, whole = Config(values), Config({**values, **changes})
    replaced = config.replace(**changes)
    assert replaced == whole and replaced.json == whole.json and list(replaced) == list(whole)
    assert replaced.id == whole.id and config == Config(values)


def test_equality_is_by_content_and_type() -> None:
    assert Config({"a": 2.0}) == Config({"a": np.int32(2)}) != Config({"a": "2"})
    assert Config({"a": True}) != Config({"a": 1})
    assert Config({"a": -0.0}).json == '{"a":0}'
    assert Config({}).id != Config({"a": 0}).id
    assert Config({"a": 1}).replace(b=2, a=3) == Config({"a": 3, "b": 2})


@pytest.mark.parametrize(
    "value",
    [None, float("nan"), float("inf"), 1e300, 10**200, {"a": 1}, [1, 2], ["a", 1], b"a", "\ud800",
     ["\udc80"], np.arange(3), object()],
)  # fmt: skip
def test_what_is_no_value(value: object) -> None:
    with pytest.raises(UsageError, match="'a'"):
        Config({"a": value})


@pytest.mark.parametrize("name", ["", "a b", "a=b", "a,b", 'a"', "a[0]", "a\n", 1, None, "\udc80"])
def test_what_is_no_name(name: object) -> None:
    with pytest.raises(UsageError, match="name a parameter"):
        Config({name: 1})  # type: ignore[dict-item]  # on purpose


@pytest.mark.parametrize(
    "text",
    ["a", "=1", "a=", "a=1,,b=2", "a=1,b", 'a="x', "a=[1", 'a=["x]', "a={}", "a=[[]]", "a=1 2",
     "a=nan=", "a=" + "[" * 100_000],
)  # fmt: skip
def test_what_cannot_be_parsed(text: str) -> None:
    with pytest.raises(UsageError):
        Config.parse(text)


@pytest.mark.parametrize(
    "text", ["", "[]", "3", "{", '{"a":null}', '{"a":NaN}', b"\xff", "[" * 10**5]
)
def test_what_json_is_no_configuration(text: str | bytes) -> None:
    with pytest.raises(UsageError):
        Config.from_json(text)


def test_spaces_around_parts_are_ignored() -> None:
    assert Config.parse(" a = 1 , b = word ") == Config({"a": 1, "b": "word"})
    assert Config.parse("") == Config({})
