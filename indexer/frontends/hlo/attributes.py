"""Attributes of HLO text in the canonical form of `embeddb.tensors.tensor_graph`, and back: one
table for both directions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from embeddb.core.errors import TensorError
from embeddb.tensors.tensor_graph import Attribute, Operation
from indexer.frontends.hlo.instructions import Instruction, joined

#: Attributes that name bodies, whose contents have attributes of their own.
BODIES = frozenset(
    """
    to_apply calls select scatter condition body branch_computations called_computations
    true_computation false_computation comparator
    """.split()  # noqa: SIM905 - a table of words
)
#: Longest text of an attribute; an operation with a truncated one cannot be written as HLO.
MOST_RAW = 1000
#: The word of each attribute that means the same as an absent one.
_DEFAULTS = {"operand_precision": "default", "algorithm": "dot_unset"}
#: End of the direction of a comparison in which -0 is less than 0 and NaN is ordered.
TOTAL = ".TOTALORDER"
_MOST_NUMBER = 18


def canonical(instruction: Instruction) -> dict[str, Attribute]:
    """Canonical attributes of an instruction, without those of its bodies (see `regions`). Raises:
    TensorError for an attribute that its opcode lacks."""
    attributes = {k: v for k, v in instruction.attributes.items() if k not in BODIES}
    if instruction.opcode == "parameter":
        return {"number": number_of(instruction)}
    if instruction.opcode == "constant":
        return _constant(instruction.literal)
    if instruction.opcode not in FIELDS:
        rest = sorted(item for item in attributes.items() if not _is_default(*item))
        text = ", ".join(f"{key}={joined(value)}" for key, value in rest)
        return {"raw": _short(text)} if text else {}
    if attributes.get("type") == ["TOTALORDER"] and attributes.get("direction"):
        attributes["direction"] = [joined(attributes["direction"]) + TOTAL]
    for field in FIELDS[instruction.opcode]:
        if attributes.get(field.key) == []:  # which `read` takes for an absent one
            raise TensorError(f"attribute {field.key} has no value")
    parts = [field.read(attributes.get(field.key, ())) for field in FIELDS[instruction.opcode]]
    # An absent attribute means no number.
    return {name: value for part in parts for name, value in part.items() if value != ()}


def _is_default(key: str, tokens: Sequence[str]) -> bool:
    words = {token for token in tokens if token not in ("{", "}", ",")}
    return key in _DEFAULTS and words <= {_DEFAULTS[key]}


def number_of(parameter: Instruction) -> int:
    """Number of a parameter. Raises: TensorError for a text that is none."""
    return _int(parameter.literal, "number")


class Field(NamedTuple):
    """An attribute of HLO text: its name, the canonical attributes of its tokens (none where it is
    absent), and its text for an operation, empty if it is left out."""

    key: str
    read: Callable[[Sequence[str]], Mapping[str, Attribute]]
    text: Callable[[Operation], str]


def _numbers(key: str, name: str, *, optional: bool = False) -> Field:
    def text(op: Operation) -> str:
        return "" if optional and not op.dims(name) else braces(op.dims(name))

    return Field(key, lambda tokens: {name: numbers_of(tokens, key)}, text)


def _number(key: str, name: str, default: int) -> Field:
    return Field(
        key,
        lambda tokens: {name: _int("".join(tokens or [str(default)]), key)},
        lambda op: str(op.attributes.get(name, default)),
    )


def _hint(key: str, name: str) -> Field:
    """A request to the compiler, left out where it is the default."""

    def read(tokens: Sequence[str]) -> Mapping[str, Attribute]:
        return {} if _is_default(key, tokens) else {name: _short(joined(tokens))}

    return Field(key, read, lambda op: str(op.attributes.get(name, "")))


def _short(text: str) -> str:
    return text if len(text) <= MOST_RAW else text[: MOST_RAW - 1] + "…"


def _constant(literal: str) -> dict[str, Attribute]:
    """One number as `value`, also where all elements are that number; else the text as `raw`."""
    plain = literal.replace(" ", "")
    if not plain.startswith(("{", "(")):
        return {"value": _short(plain)} if plain else {}
    elements = set(plain.translate({ord("{"): None, ord("}"): None}).split(","))
    if len(elements) == 1 and "..." not in plain and not plain.startswith("("):
        return {"value": _short(elements.pop())}
    return {} if "..." in plain or len(plain) > MOST_RAW else {"raw": plain}


def _window(tokens: Sequence[str]) -> dict[str, Attribute]:
    """`{size=3x3 pad=1_1x1_1 stride=2x2}` with defaults for missing parts."""
    fields: dict[str, list[str]] = {}
    inside = list(tokens[1:-1])
    for at in range(0, len(inside), 3):
        if inside[at + 1 : at + 2] != ["="] or at + 2 >= len(inside):
            raise TensorError(f"a window cannot be {joined(tokens)[:60]!r}")
        fields[inside[at]] = inside[at + 2].split("x")
    rank = len(fields.get("size", ()))
    pads = [part.partition("_") for part in fields.pop("pad", ["0_0"] * rank)]
    window = {
        "size": fields.pop("size", []),
        "stride": fields.pop("stride", ["1"] * rank),
        "low": [low for low, _, _ in pads],
        "high": [high for _, _, high in pads],
        "lhs_dilate": fields.pop("lhs_dilate", ["1"] * rank),
        "rhs_dilate": fields.pop("rhs_dilate", ["1"] * rank),
    }
    reversal = fields.pop("rhs_reversal", [])
    if set(reversal) - {"0"}:
        window["reversal"] = reversal
    if fields:
        raise TensorError(f"a window with {next(iter(fields))[:40]!r} is not supported")
    if any(len(value) != rank for value in window.values()):
        raise TensorError("the parts of the window differ in their number of dimensions")
    return {name: tuple(_int(n, name) for n in value) for name, value in window.items()}


def _window_text(op: Operation) -> str:
    names = ("size", "stride", "lhs_dilate", "rhs_dilate")
    parts = [(name, "x".join(map(str, op.dims(name)))) for name in names]
    pads = zip(op.dims("low"), op.dims("high"), strict=True)
    parts.append(("pad", "x".join(f"{low}_{high}" for low, high in pads)))
    parts.append(("rhs_reversal", "x".join(map(str, op.dims("reversal")))))
    return "{" + " ".join(f"{name}={text}" for name, text in parts if text) + "}"


def _labels(tokens: Sequence[str]) -> dict[str, Attribute]:
    if not tokens:
        raise TensorError("a convolution needs dim_labels")
    return {"labels": "".join(tokens)}


def _slice(tokens: Sequence[str]) -> dict[str, Attribute]:
    """`{[0:12:2], [3:4]}`"""
    form = "a slice is written {[START:LIMIT:STRIDE], ...}"
    parts: list[list[str]] = []
    for token in tokens[1:-1]:
        if token == "[":
            parts.append([])
        elif token not in ("]", ",", ":"):
            if not parts:
                raise TensorError(form)
            parts[-1].append(token)
    return _columns(parts, ("start", "limit", "stride"), "1", "slice", form)


def _slice_text(op: Operation) -> str:
    stride = op.dims("stride") or (1,) * op.shape.rank
    parts = zip(op.dims("start"), op.dims("limit"), stride, strict=True)
    return "{" + ", ".join(f"[{a}:{b}:{c}]" for a, b, c in parts) + "}"


def _padding(tokens: Sequence[str]) -> dict[str, Attribute]:
    """`1_2x0_3_1`: low, high and, optionally, interior."""
    form = "padding is written LOW_HIGH or LOW_HIGH_INTERIOR, x between dimensions"
    parts = [part.split("_") for part in "".join(tokens).split("x") if part]
    return _columns(parts, ("low", "high", "interior"), "0", "padding", form)


def _padding_text(op: Operation) -> str:
    low, high = op.dims("low"), op.dims("high")
    interior = op.dims("interior") or (0,) * len(low)
    return "x".join(f"{a}_{b}_{c}" for a, b, c in zip(low, high, interior, strict=True))


def _columns(
    parts: Sequence[list[str]], names: Sequence[str], default: str, where: str, form: str
) -> dict[str, Attribute]:
    """Two or three numbers for each dimension, by name; the third may be left out."""
    if any(len(part) not in (2, 3) for part in parts):
        raise TensorError(form)
    rows = [[_int(number, where) for number in (*part, default)[:3]] for part in parts]
    return {name: tuple(row[at] for row in rows) for at, name in enumerate(names)}


def braces(numbers: Iterable[int]) -> str:
    return "{" + ",".join(map(str, numbers)) + "}"


def numbers_of(tokens: Sequence[str], where: str) -> tuple[int, ...]:
    """The integers of `{1,2}`. Raises: TensorError, with the attribute's name `where`."""
    return tuple(_int(token, where) for token in tokens if token not in ("{", "}", ","))


def _int(token: str, where: str) -> int:
    if not token.removeprefix("-").isdecimal() or len(token) > _MOST_NUMBER:
        raise TensorError(f"{where}: {token[:40]!r} is no whole number")
    return int(token)


_WINDOW = Field("window", _window, _window_text)
_PRECISION = _hint("operand_precision", "precision")
_DIMENSIONS = _numbers("dimensions", "dimensions")
#: Attributes by opcode; those of other opcodes are one text, `raw`.
FIELDS: dict[str, tuple[Field, ...]] = {
    **dict.fromkeys(("parameter", "constant"), ()),
    **dict.fromkeys(("broadcast", "transpose", "reverse", "reduce"), (_DIMENSIONS,)),
    **dict.fromkeys(("reduce-window", "select-and-scatter"), (_WINDOW,)),
    "dot": (
        *(
            _numbers(f"{name}_dims", name, optional=True)
            for name in ("lhs_batch", "lhs_contracting", "rhs_batch", "rhs_contracting")
        ),
        _PRECISION,
        _hint("algorithm", "algorithm"),
    ),
    "convolution": (
        _WINDOW,
        Field("dim_labels", _labels, lambda op: str(op.attributes.get("labels", ""))),
        _number("feature_group_count", "feature_groups", 1),
        _number("batch_group_count", "batch_groups", 1),
        _PRECISION,
    ),
    "iota": (_number("iota_dimension", "dimension", 0),),
    "concatenate": (
        Field(
            "dimensions",
            lambda tokens: {"dimension": numbers_of(tokens or ["0"], "dimensions")[0]},
            lambda op: f"{{{op.attributes.get('dimension', 0)}}}",
        ),
    ),
    "slice": (Field("slice", _slice, _slice_text),),
    "pad": (Field("padding", _padding, _padding_text),),
    "dynamic-slice": (_numbers("dynamic_slice_sizes", "sizes"),),
    "compare": (
        Field(
            "direction",
            lambda tokens: {"direction": joined(tokens or ["EQ"])},
            lambda op: str(op.attributes.get("direction", "EQ")).removesuffix(TOTAL),
        ),
        Field(
            "type",
            lambda tokens: {},  # `canonical` adds it to the direction
            lambda op: TOTAL[1:] if str(op.attributes.get("direction", "")).endswith(TOTAL) else "",
        ),
    ),
    "get-tuple-element": (_number("index", "index", 0),),
    "custom-call": (
        Field(
            "custom_call_target",
            lambda tokens: {"target": joined(tokens).strip('"')[:MOST_RAW]},
            lambda op: "",  # never written: its body was left out
        ),
    ),
}
