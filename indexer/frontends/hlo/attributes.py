"""Attributes of an HLO instruction in the canonical form of `embeddb.tensors.tensor_graph`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from embeddb.core.errors import TensorError
from embeddb.tensors.tensor_graph import Attribute
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
_DOT = {
    "lhs_contracting_dims": "lhs_contracting",
    "rhs_contracting_dims": "rhs_contracting",
    "lhs_batch_dims": "lhs_batch",
    "rhs_batch_dims": "rhs_batch",
}
_WITH_DIMENSIONS = ("broadcast", "transpose", "reverse", "reduce")
#: The precision of a product and of a comparison: hints to a compiler.
_HINTS = ("operand_precision", "algorithm", "type")
_MOST_NUMBER = 18


def canonical(instruction: Instruction) -> dict[str, Attribute]:
    """Canonical attributes of an instruction, without those of its bodies (see `regions`). Raises:
    TensorError for an attribute that its opcode lacks."""
    attributes = {k: v for k, v in instruction.attributes.items() if k not in BODIES}
    opcode = instruction.opcode
    match opcode:
        case "parameter":
            return {"number": _whole([instruction.literal], "number")}
        case "constant":
            return _constant(instruction.literal)
        case "dot":
            return {
                ours: value
                for theirs, ours in _DOT.items()
                if (value := numbers_of(attributes.get(theirs, ()), theirs))
            }
        case "convolution":
            return _convolution(attributes)
        case "reduce-window" | "select-and-scatter":
            return _window(attributes.get("window", []))
        case "iota":
            return {"dimension": _whole(attributes.get("iota_dimension", ["0"]), "iota_dimension")}
        case "concatenate":
            return {"dimension": numbers_of(attributes.get("dimensions", ["0"]), "dimensions")[0]}
        case "slice":
            return _slice(attributes.get("slice", []))
        case "pad":
            return _padding(attributes.get("padding", []))
        case "dynamic-slice":
            return _some({"sizes": numbers_of(attributes.get("dynamic_slice_sizes", ()), "sizes")})
        case "compare":
            return {"direction": joined(attributes.get("direction", ["EQ"]))}
        case "get-tuple-element":
            return {"index": _whole(attributes.get("index", ["0"]), "index")}
        case "custom-call":
            return {
                "target": joined(attributes.get("custom_call_target", [])).strip('"')[:MOST_RAW]
            }
    if opcode in _WITH_DIMENSIONS:
        return _some({"dimensions": numbers_of(attributes.get("dimensions", ()), "dimensions")})
    return _raw({k: v for k, v in attributes.items() if k not in _HINTS})


def _some(attributes: Mapping[str, tuple[int, ...]]) -> dict[str, Attribute]:
    """The attributes without empty ones: an absent attribute means no number."""
    return {name: value for name, value in attributes.items() if value}


def _raw(attributes: Mapping[str, Sequence[str]]) -> dict[str, Attribute]:
    text = ", ".join(f"{key}={joined(list(value))}" for key, value in sorted(attributes.items()))
    return {"raw": _short(text)} if text else {}


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


def _convolution(attributes: Mapping[str, list[str]]) -> dict[str, Attribute]:
    labels = "".join(attributes.get("dim_labels", []))
    if not labels:
        raise TensorError("a convolution needs dim_labels")
    return {
        **_window(attributes.get("window", [])),
        "labels": labels,
        "feature_groups": _whole(
            attributes.get("feature_group_count", ["1"]), "feature_group_count"
        ),
        "batch_groups": _whole(attributes.get("batch_group_count", ["1"]), "batch_group_count"),
    }


def _window(tokens: Sequence[str]) -> dict[str, Attribute]:
    """`{size=3x3 pad=1_1x1_1 stride=2x2}` with defaults for missing parts."""
    fields: dict[str, list[str]] = {}
    inside = list(tokens[1:-1])
    for at in range(0, len(inside), 3):
        if inside[at + 1 : at + 2] != ["="] or at + 2 >= len(inside):
            raise TensorError(f"a window cannot be {joined(list(tokens))[:60]!r}")
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
    return _some({name: tuple(_int(n, name) for n in value) for name, value in window.items()})


def _slice(tokens: Sequence[str]) -> dict[str, Attribute]:
    """`{[0:12:2], [3:4]}`"""
    parts: list[list[int]] = []
    for token in tokens[1:-1]:
        if token == "[":
            parts.append([])
        elif token not in ("]", ",", ":"):
            if not parts:
                raise TensorError("a slice is written {[START:LIMIT:STRIDE], ...}")
            parts[-1].append(_int(token, "slice"))
    if any(len(part) not in (2, 3) for part in parts):
        raise TensorError("a slice is written {[START:LIMIT:STRIDE], ...}")
    return _some(
        {
            "start": tuple(part[0] for part in parts),
            "limit": tuple(part[1] for part in parts),
            "stride": tuple(part[2] if len(part) == 3 else 1 for part in parts),
        }
    )


def _padding(tokens: Sequence[str]) -> dict[str, Attribute]:
    """`1_2x0_3_1`: low, high and, optionally, interior."""
    parts = [part.split("_") for part in "".join(tokens).split("x") if part]
    if any(len(part) not in (2, 3) for part in parts):
        raise TensorError("padding is written LOW_HIGH or LOW_HIGH_INTERIOR, x between dimensions")
    return _some(
        {
            "low": tuple(_int(part[0], "padding") for part in parts),
            "high": tuple(_int(part[1], "padding") for part in parts),
            "interior": tuple(_int(part[2], "padding") if len(part) == 3 else 0 for part in parts),
        }
    )


def numbers_of(tokens: Sequence[str], where: str) -> tuple[int, ...]:
    """The integers of `{1,2}`. Raises: TensorError, with the attribute's name `where`."""
    return tuple(_int(token, where) for token in tokens if token not in ("{", "}", ","))


def _whole(tokens: Sequence[str], where: str) -> int:
    return _int("".join(tokens), where)


def _int(token: str, where: str) -> int:
    if not token.removeprefix("-").isdecimal() or len(token) > _MOST_NUMBER:
        raise TensorError(f"{where}: {token[:40]!r} is no whole number")
    return int(token)
