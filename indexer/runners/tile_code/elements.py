"""Elements of values as names of C: what is met twice in a loop is computed once."""

from __future__ import annotations

from collections.abc import Callable

from embeddb.kernels.emitter import Lines
from embeddb.tensors.tiling.forms import Form, Forms, whole
from embeddb.tensors.tiling.plan import Plan, Stage
from embeddb.tensors.tiling.values import Value
from indexer.runners.tile_code.expressions import C_TYPES, constant, element, form_text

__all__ = ["Elements"]


class Elements:
    """Writes what they need above them, into the loop that `begin` was told of last. `buffer`
    gives the text of an element that is kept."""

    def __init__(self, plan: Plan, buffer: Callable[[Stage, Forms], str]) -> None:
        self.plan, self._buffer = plan, buffer
        self._values = plan.values.values
        self._lines = Lines([])
        self._known: dict[tuple[int, Forms], str] = {}
        self._count = 0

    def begin(self, lines: Lines) -> None:
        self._lines, self._known = lines, {}

    def named(self, ctype: str, text: str) -> str:
        """A new name for an expression."""
        self._count += 1
        self._lines.add(f"const {ctype} x{self._count} = {text};")
        return f"x{self._count}"

    def at(self, place: int, forms: Forms) -> str:
        """The element of a value at an index."""
        stage = self.plan.staged.get(place)
        if stage is not None:
            return self._buffer(stage, forms)
        return self.computed(place, forms)

    def computed(self, place: int, forms: Forms) -> str:
        """The same, computed even where it is kept."""
        key = place, forms
        if key not in self._known:
            self._known[key] = self._computed(self._values[place], forms)
        return self._known[key]

    def _computed(self, value: Value, forms: Forms) -> str:
        match value.what:
            case "given":
                index = whole(0)
                for form, stride in zip(forms, value.strides, strict=True):
                    index = index + form * stride
                return f"p{value.number}[{form_text(index)}]"
            case "number":
                return constant(value.text, value.dtype)
            case "iota":
                return f"(({C_TYPES[value.dtype]})({form_text(forms[value.number])}))"
        found = value.access(forms, ())
        match value.what:
            case "pad":
                return self._padded(value, forms, found)
            case "join":
                return self._joined(value, forms, found)
            case "map":
                args = [self.at(o, f) for o, f in zip(value.operands, found, strict=True)]
                of = [self._values[o].dtype for o in value.operands]
                return self.named(C_TYPES[value.dtype], element(value, of, args))
        return self.at(value.operands[0], found[0])

    def _padded(self, value: Value, forms: Forms, found: list[Forms]) -> str:
        """Read only where there is something to read."""
        conditions: list[str] = []
        dims = self._values[value.operands[0]].dims
        for d, (form, inner) in enumerate(zip(forms, found[0], strict=True)):
            moved = form + -value.low[d]
            low, high = moved.range()
            if low < 0:
                conditions.append(f"{form_text(moved)} >= 0")
            if high // (value.gap[d] + 1) >= dims[d]:
                conditions.append(f"{form_text(inner)} < {dims[d]}")
            if value.gap[d]:
                conditions.append(f"({form_text(moved)}) % {value.gap[d] + 1} == 0")
        filled = self.at(value.operands[1], ())
        if not conditions:
            return self.at(value.operands[0], found[0])
        inside = self._guarded(value, value.operands[0], found[0])
        return self.named(C_TYPES[value.dtype], f"{' && '.join(conditions)} ? {inside} : {filled}")

    def _joined(self, value: Value, forms: Forms, found: list[Forms]) -> str:
        form: Form = forms[value.number]
        text, end = "", 0
        for operand, inner in list(zip(value.operands, found, strict=True))[:-1]:
            end += self._values[operand].dims[value.number]
            inside = self._guarded(value, operand, inner)
            text += f"{form_text(form)} < {end} ? {inside} : "
        text += self._guarded(value, value.operands[-1], found[-1])
        return self.named(C_TYPES[value.dtype], text)

    def _guarded(self, value: Value, operand: int, forms: Forms) -> str:
        """An element whose operands are read only if it is."""
        outside, known = self._lines, self._known
        self._lines, self._known = Lines([], 0), {}
        name = self.at(operand, forms)
        inside = " ".join(self._lines.told)
        self._lines, self._known = outside, known
        return f"({{ {inside} {name}; }})" if inside else name
