"""What a tensor computation is made of: operations, the shapes of what they give, attributes.

Opcodes, shapes, layouts and windows are those of XLA's HLO, the features that "A Learned
Performance Model for Tensor Processing Units" (Section 3.1) reads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["DTYPES", "MOST_RANK", "Attribute", "Operation", "Shape"]

#: Bytes of an element, by HLO's name of the type.
DTYPES = {
    **dict.fromkeys(("pred", "s8", "u8", "f8e4m3fn", "f8e5m2"), 1),
    **dict.fromkeys(("s16", "u16", "f16", "bf16"), 2),
    **dict.fromkeys(("s32", "u32", "f32"), 4),
    **dict.fromkeys(("s64", "u64", "f64", "c64"), 8),
    "c128": 16,
    "token": 0,
}
MOST_RANK = 16

#: A whole number, several, or a word.
Attribute = int | tuple[int, ...] | str


@dataclass(frozen=True, slots=True)
class Shape:
    """An array: `dims` in logical order, `layout` the dimensions from minor to major; what is laid
    out row by row has (rank - 1, ..., 0), which is also what an empty `layout` becomes."""

    dtype: str
    dims: tuple[int, ...] = ()
    layout: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.layout:
            object.__setattr__(self, "layout", tuple(reversed(range(len(self.dims)))))

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def elements(self) -> int:
        return math.prod(self.dims)

    @property
    def bytes(self) -> int:
        return self.elements * DTYPES[self.dtype]

    def __str__(self) -> str:
        plain = f"{self.dtype}[{','.join(map(str, self.dims))}]"
        return f"{plain}{{{','.join(map(str, self.layout))}}}" if self.dims else plain


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation. `operands` are places in the computation, all before its own; `results` are
    several where it gives a tuple. `attributes` by name, sorted:

    - `dot`: lhs_contracting, rhs_contracting, lhs_batch, rhs_batch
    - `convolution`: size, stride, low, high, lhs_dilate, rhs_dilate (of the window, per spatial
      dimension), reversal (where the window is turned round), labels (`b01f_01io->b01f`),
      feature_groups, batch_groups
    - `reduce`: dimensions, combine (`add`, `multiply`, `minimum`, `maximum`, `and`, `or`, or
      `other`, with the body as `region`, see `embeddb.tensors.region`, where it is short);
      `reduce-window`: combine and a window over all dimensions; `select-and-scatter` also select;
      `scatter`, `sort`, `map`: combine and raw
    - `broadcast`, `transpose`, `reverse`: dimensions; `concatenate`, `iota`: dimension
    - `slice`: start, limit, stride; `pad`: low, high, interior; `dynamic-slice`: sizes
    - `compare`: direction; `constant`: value, where all of it is one number, else raw, where it is
      short; `custom-call`: target
    - `parameter`: number; `get-tuple-element`: index
    - all others: raw, the text that HLO has there, cut short

    An attribute of several numbers that has none is left out.
    """

    opcode: str
    results: tuple[Shape, ...]
    operands: tuple[int, ...] = ()
    attributes: Mapping[str, Attribute] = field(default_factory=dict, hash=False)

    @property
    def shape(self) -> Shape:
        """Of the first result."""
        return self.results[0]

    def dims(self, name: str) -> tuple[int, ...]:
        """An attribute that is several numbers; none where it is absent or something else."""
        found = self.attributes.get(name, ())
        return found if isinstance(found, tuple) else ()
