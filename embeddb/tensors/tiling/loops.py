"""Which loop of a sum runs best over vectors, and which operands are worth a copy for it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from embeddb.tensors.tiling.forms import Form, Forms, Var
from embeddb.tensors.tiling.values import Value

__all__ = ["Loops"]

#: An operand is copied if each of its elements is read at least so often.
_WORTH = 4
#: What reading with a stride costs beside reading in order, and a loop too short for vectors.
_STRIDED, _COPIED, _SHORT = 8.0, 2.0, 6.0
_VECTOR = 8


class Loops:
    """Of the sums among `values`."""

    def __init__(self, values: Sequence[Value]) -> None:
        self.values = values

    def innermost(self, value: Value, vars_: tuple[Var, ...], found: list[Forms]) -> Var | None:
        """The loop that runs best over vectors."""
        candidates = [v for v in (*value.over, *vars_) if v.extent > 1]

        def cost(var: Var) -> float:
            total = 1.0 if var in vars_ else 0.5
            for operand, forms in zip(value.operands, found, strict=True):
                total += self._read_cost(operand, forms, var, self._reuse(value, vars_, operand))
            return total + (_SHORT if var.extent < _VECTOR else 0.0)

        return min(reversed(candidates), key=cost, default=None)

    def _read_cost(self, place: int, forms: Forms, var: Var, reuse: float) -> float:
        """Of one operand along a loop: 0 where it stays the same."""
        if not any(var in form.variables for form in forms):
            return 0.0
        value = self.values[place]
        match value.what:
            case "given":
                return _cost(forms, value.strides, var)
            case "sum":
                shape = self.values[place].dims
                return _cost(
                    forms, tuple(math.prod(shape[d + 1 :]) for d in range(len(shape))), var
                )
            case "hold":
                cost = self._read_cost(value.operands[0], forms, var, reuse)
                if reuse < _WORTH:
                    return cost
                return 1.0 if self._computed(value.operands[0]) else min(cost, _COPIED)
            case "number" | "iota":
                return 0.0
        found = value.access(forms, ())
        return max(
            self._read_cost(o, f, var, reuse) for o, f in zip(value.operands, found, strict=True)
        )

    def _reuse(self, value: Value, vars_: tuple[Var, ...], operand: int) -> float:
        """How often each element of an operand is read."""
        turns = math.prod(v.extent for v in (*vars_, *value.over))
        return turns / max(self.values[operand].elements, 1)

    def _computed(self, place: int) -> bool:
        """Whether reading it is more than one access to a parameter or a buffer."""
        value = self.values[place]
        if value.what in ("given", "number", "iota", "sum"):
            return False
        if value.what in ("view", "hold"):
            return self._computed(value.operands[0])
        return True

    def worth(
        self, value: Value, vars_: tuple[Var, ...], operand: int, forms: Forms, inner: Var | None
    ) -> bool:
        """Whether an operand of a sum is worth a copy: read often, and computed or read with a
        stride."""
        held = self.values[operand]
        if held.what != "hold" or self._reuse(value, vars_, operand) < _WORTH:
            return False
        below = held.operands[0]
        if self._computed(below):
            return True
        return inner is not None and self._read_cost(below, forms, inner, 1) >= _STRIDED


def _cost(forms: Sequence[Form], strides: Sequence[int], var: Var) -> float:
    step = 0
    for form, stride in zip(forms, strides, strict=True):
        coef = form.coef(var)
        if coef is None:
            return _STRIDED
        step += coef * stride
    return 0.0 if step == 0 else 1.0 if step == 1 else _STRIDED
