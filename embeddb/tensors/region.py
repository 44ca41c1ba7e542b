"""What a reduction, a sort or a scatter does to two elements: a small body of scalars, as a text.

Its operations in order, `OPCODE.TYPE(OPERANDS)WORD`, and behind `=>` what it gives:

    parameter.f32()0 parameter.f32()1 compare.pred(0,1)GT => 2

The word is the number of a parameter, the value of a constant, the direction of a comparison.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from embeddb.core.errors import TensorError
from embeddb.tensors.operation import Operation, Shape

__all__ = ["COMBINES", "Region", "combine_of", "region_of", "region_text"]

#: What a body is called by, where it is this one operation on its two parameters.
COMBINES = ("add", "multiply", "minimum", "maximum", "and", "or")
_WORDS = {"parameter": "number", "constant": "value", "compare": "direction"}
_PART = re.compile(r"([a-z][a-z0-9-]*+)\.([a-z0-9]++)\(([\d,]*+)\)([\w.+-]*+)")


@dataclass(frozen=True, slots=True)
class Region:
    """Scalars in an order in which operands come first, and the places of what is given out."""

    operations: tuple[Operation, ...]
    outputs: tuple[int, ...]


def region_text(region: Region) -> str | None:
    """None where it is more than the text can tell: arrays, attributes of other kinds."""
    parts: list[str] = []
    for op in region.operations:
        word = _WORDS.get(op.opcode)
        if op.shape.rank or len(op.results) > 1 or set(op.attributes) != ({word} - {None}):
            return None
        value = "" if word is None else str(op.attributes[word])
        operands = ",".join(map(str, op.operands))
        parts.append(f"{op.opcode}.{op.shape.dtype}({operands}){value}")
        if not _PART.fullmatch(parts[-1]):
            return None
    return f"{' '.join(parts)} => {','.join(map(str, region.outputs))}"


@lru_cache(1024)
def region_of(text: str) -> Region:
    """Raises: TensorError for what is no such text."""
    body, _, given = text.partition(" => ")
    made: list[Operation] = []
    for part in body.split():
        found = _PART.fullmatch(part)
        operands = _places(found[3], len(made)) if found else None
        if found is None or operands is None:
            raise TensorError(f"a region cannot have {part[:40]!r}")
        opcode, dtype, value = found[1], found[2], found[4]
        word = _WORDS.get(opcode)
        attributes = {} if word is None else {word: int(value) if word == "number" else value}
        made.append(Operation(opcode, (Shape(dtype),), operands, attributes))
    outputs = _places(given, len(made))
    if not outputs:
        raise TensorError(f"a region gives nothing out: {text[:40]!r}")
    return Region(tuple(made), outputs)


def _places(text: str, count: int) -> tuple[int, ...] | None:
    """None where one is no place before."""
    parts = text.split(",") if text else []
    if not all(part.isdecimal() and len(part) < 9 and int(part) < count for part in parts):
        return None
    return tuple(map(int, parts))


def combine_of(region: Region) -> str | None:
    """The one operation that it is, conversions apart; None for all others."""
    ops = region.operations

    def plain(at: int) -> int:
        while ops[at].opcode == "convert":
            at = ops[at].operands[0]
        return at

    if len(region.outputs) != 1:
        return None
    root = ops[plain(region.outputs[0])]
    below: Sequence[Operation] = [ops[plain(at)] for at in root.operands]
    numbers = sorted(str(op.attributes.get("number")) for op in below if op.opcode == "parameter")
    return root.opcode if root.opcode in COMBINES and numbers == ["0", "1"] else None
