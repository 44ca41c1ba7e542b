"""Attributes of an HLO instruction in the canonical form of `embeddb.tensors.tensor_graph`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from embeddb.core.errors import TensorError
from embeddb.tensors.tensor_graph import Attribute
from indexer.frontends.hlo.instructions import Instruction, joined

#: Attributes that name bodies: what they hold is told otherwise.
BODIES = frozenset(
    """
    to_apply calls select scatter condition body branch_computations called_computations
    true_computation false_computation comparator
    """.split()  # noqa: SIM905 - a table of words
)
#: Longer texts are cut short, and what they belong to cannot be written as HLO again.
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
    """Without what its bodies tell (see `regions`). Raises: TensorError for what is no attribute
    of such an operation."""
    told = {k: v for k, v in instruction.attributes.items() if k not in BODIES}
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
                if (value := numbers_of(told.get(theirs, ()), theirs))
            }
        case "convolution":
            return _convolution(told)
        case "reduce-window" | "select-and-scatter":
            return _window(told.get("window", []))
        case "iota":
            return {"dimension": _whole(told.get("iota_dimension", ["0"]), "iota_dimension")}
        case "concatenate":
            return {"dimension": numbers_of(told.get("dimensions", ["0"]), "dimensions")[0]}
        case "slice":
            return _slice(told.get("slice", []))
        case "pad":
            return _padding(told.get("padding", []))
        case "dynamic-slice":
            return _some({"sizes": numbers_of(told.get("dynamic_slice_sizes", ()), "sizes")})
        case "compare":
            return {"direction": joined(told.get("direction", ["EQ"]))}
        case "get-tuple-element":
            return {"index": _whole(told.get("index", ["0"]), "index")}
        case "custom-call":
            return {"target": joined(told.get("custom_call_target", [])).strip('"')[:MOST_RAW]}
    if opcode in _WITH_DIMENSIONS:
        return _some({"dimensions": numbers_of(told.get("dimensions", ()), "dimensions")})
    return _raw({k: v for k, v in told.items() if k not in _HINTS})


def _some(made: Mapping[str, tuple[int, ...]]) -> dict[str, Attribute]:
    """Without those that have no number: no number is what an absent one means."""
    return {name: value for name, value in made.items() if value}


def _raw(told: Mapping[str, Sequence[str]]) -> dict[str, Attribute]:
    text = ", ".join(f"{key}={joined(list(value))}" for key, value in sorted(told.items()))
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


def _convolution(told: Mapping[str, list[str]]) -> dict[str, Attribute]:
    labels = "".join(told.get("dim_labels", []))
    if not labels:
        raise TensorError("a convolution needs dim_labels")
    return {
        **_window(told.get("window", [])),
        "labels": labels,
        "feature_groups": _whole(told.get("feature_group_count", ["1"]), "feature_group_count"),
        "batch_groups": _whole(told.get("batch_group_count", ["1"]), "batch_group_count"),
    }


def _window(tokens: Sequence[str]) -> dict[str, Attribute]:
    """`{size=3x3 pad=1_1x1_1 stride=2x2}`: what is not written has its usual value."""
    told: dict[str, list[str]] = {}
    inside = list(tokens[1:-1])
    for at in range(0, len(inside), 3):
        if inside[at + 1 : at + 2] != ["="] or at + 2 >= len(inside):
            raise TensorError(f"a window cannot be {joined(list(tokens))[:60]!r}")
        told[inside[at]] = inside[at + 2].split("x")
    rank = len(told.get("size", ()))
    pads = [part.partition("_") for part in told.pop("pad", ["0_0"] * rank)]
    made = {
        "size": told.pop("size", []),
        "stride": told.pop("stride", ["1"] * rank),
        "low": [low for low, _, _ in pads],
        "high": [high for _, _, high in pads],
        "lhs_dilate": told.pop("lhs_dilate", ["1"] * rank),
        "rhs_dilate": told.pop("rhs_dilate", ["1"] * rank),
    }
    reversal = told.pop("rhs_reversal", [])
    if set(reversal) - {"0"}:
        made["reversal"] = reversal
    if told:
        raise TensorError(f"a window with {next(iter(told))[:40]!r} is not known")
    if any(len(value) != rank for value in made.values()):
        raise TensorError("the parts of the window have not as many dimensions each")
    return _some({name: tuple(_int(n, name) for n in value) for name, value in made.items()})


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
    """`1_2x0_3_1`: low, high and, where there is any, interior."""
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
    """The whole numbers of `{1,2}`. Raises: TensorError, with the attribute's name `where`."""
    return tuple(_int(token, where) for token in tokens if token not in ("{", "}", ","))


def _whole(tokens: Sequence[str], where: str) -> int:
    return _int("".join(tokens), where)


def _int(token: str, where: str) -> int:
    if not token.removeprefix("-").isdecimal() or len(token) > _MOST_NUMBER:
        raise TensorError(f"{where}: {token[:40]!r} is no whole number")
    return int(token)
