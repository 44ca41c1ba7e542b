"""Numbers of the form of an operation: what `operation_forms` tells, and how it reads counts."""

from __future__ import annotations

import math

from embeddb.tensors.operation import Operation

__all__ = ["FORM", "Form", "combine_number", "counted", "halvings", "whole_number"]

#: What `operation_forms.form_of` may tell. `run`: elements that lie and are walked in one piece;
#: `minor`: whether the dimension that is vectorised is the one that the operation is about;
#: `pieces`: how often what is for each product, kept and summed over take turns in memory;
#: `X_batch`: whether what is for each product is outermost (1) or not (2); `X_even`: how often X
#: can be halved.
FORM: tuple[str, ...] = (
    # Of a product, and of what is written as one.
    *("rows", "columns", "terms", "batch", "lhs_minor", "rhs_minor", "summed"),
    *("lhs_pieces", "rhs_pieces", "lhs_batch", "rhs_batch"),
    # Of a window, and of a convolution.
    *("window", "window_minor", "stride", "stride_minor", "padded", "spatial", "positions"),
    *("channels", "features", "given_holes", "window_holes", "groups", "batch_groups"),
    *("reversed", "meeting", "given_order", "window_order", "out_order"),
    *("columns_even", "terms_even", "channels_even"),
    # Of what sums, moves and picks.
    *("minor", "run", "kept", "along", "combine", "results", "from_bytes", "from_float"),
)
#: By name, of those that are not 0.
Form = dict[str, float]
_MOST_HALVINGS = 6
_COMBINES = ("other", "add", "multiply", "minimum", "maximum", "and", "or")


def counted(value: float) -> float:
    """A count, as it is read."""
    return math.log2(1 + abs(value))


def halvings(value: int) -> float:
    """How often a count can be halved, up to what fills the widest vector and more; 0 for none."""
    return float(min((value & -value).bit_length() - 1, _MOST_HALVINGS)) if value > 0 else 0.0


def combine_number(op: Operation) -> float:
    """1 for what is not told by a word."""
    word = op.attributes.get("combine", "other")
    return 1.0 + _COMBINES.index(word) if word in _COMBINES else 1.0


def whole_number(op: Operation, name: str) -> int:
    """An attribute that is one number; 1 where it is none."""
    found = op.attributes.get(name, 1)
    return found if isinstance(found, int) else 1
