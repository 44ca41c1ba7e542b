"""Elements of values as C expressions, with common subexpressions of a loop computed once."""

from __future__ import annotations

import math
from collections.abc import Callable

from embeddb.core.errors import TensorError
from embeddb.kernels.emitter import Lines
from embeddb.tensors.tiling.forms import Form, Forms, Part, Value, number_of, position
from embeddb.tensors.tiling.plan import Plan, Stage

C_TYPES = {
    "f32": "float",
    "f64": "double",
    "pred": "uint8_t",
    **{
        f"{sign}{bits}": f"{c}int{bits}_t"
        for sign, c in (("s", ""), ("u", "u"))
        for bits in (8, 16, 32, 64)
    },
}
#: Largest numbers, in place of infinities, which -ffast-math does not support.
_LARGEST = {"f32": 3.4028234663852886e38, "f64": 1.7976931348623157e308}
#: C of operations by their operands, of numbers of any type and of whole ones of the type `c`.
_OF_ANY = {
    "select": "({0} ? {1} : {2})",
    "negate": "(-{0})",
    "sign": "(({0} > 0) - ({0} < 0))",
}
_OF_WHOLE = {
    "abs": "({0} < 0 ? -{0} : {0})",
    "divide": "({1} == 0 ? -1 : {1} == ({c})-1 && {1} < 0 ? -{0} : {0} / {1})",
    "remainder": "({1} == 0 ? {0} : {1} == ({c})-1 && {1} < 0 ? 0 : {0} % {1})",
}
#: Of real ones: `f` is the suffix of the functions of math.h.
_OF_REAL = {
    "divide": "({0} / {1})",
    "rsqrt": "(1.0{f} / sqrt{f}({0}))",
    "logistic": "(1.0{f} / (1.0{f} + exp{f}(-{0})))",
    "abs": "fabs{f}({0})",
    "exponential": "exp{f}({0})",
    "exponential-minus-one": "expm1{f}({0})",
    "log": "log{f}({0})",
    "log-plus-one": "log1p{f}({0})",
    "tanh": "tanh{f}({0})",
    "sine": "sin{f}({0})",
    "cosine": "cos{f}({0})",
    "tan": "tan{f}({0})",
    "sqrt": "sqrt{f}({0})",
    "cbrt": "cbrt{f}({0})",
    "erf": "erf{f}({0})",
    "floor": "floor{f}({0})",
    "ceil": "ceil{f}({0})",
    "round-nearest-afz": "round{f}({0})",
    "round-nearest-even": "rint{f}({0})",
    "remainder": "fmod{f}({0}, {1})",
    "power": "pow{f}({0}, {1})",
    "atan2": "atan2{f}({0}, {1})",
}
_SIGNS = {"add": "+", "subtract": "-", "multiply": "*", "and": "&", "or": "|", "xor": "^"}
#: Operations of `pred`, whose sums and products stay 0 or 1.
_LOGICAL = {"add": "|", "multiply": "&"}
_COMPARISONS = {"EQ": "==", "NE": "!=", "LT": "<", "LE": "<=", "GT": ">", "GE": ">="}


def form_text(form: Form) -> str:
    parts = []
    for var, coef in form.terms:
        if isinstance(var, Part):
            name = f"(({form_text(var.form)}) {var.what} {var.by})"
        else:
            name = var.name
        parts.append(name if coef == 1 else f"{coef} * {name}")
    if form.constant or not parts:
        parts.append(str(form.constant))
    return " + ".join(parts).replace("+ -", "- ")


def constant(text: str, dtype: str) -> str:
    """A constant as a literal of its type."""
    number = number_of(text, dtype)
    if dtype in _LARGEST:
        if not math.isfinite(number):
            number = math.copysign(_LARGEST[dtype], number) if number == number else 0.0
        return f"{float(number)!r}{'f' if dtype == 'f32' else ''}"
    suffix = "ULL" if dtype.startswith("u") else "LL"
    whole = int(number)
    return f"(({C_TYPES[dtype]})({whole + 1}LL - 1))" if whole < 0 else f"{whole}{suffix}"


def combined(opcode: str, dtype: str, one: str, other: str) -> str:
    """C of a reduction of two terms."""
    if opcode in ("minimum", "maximum"):
        sign = "<" if opcode == "minimum" else ">"
        return f"({one} {sign} {other} ? {one} : {other})"
    sign = _LOGICAL.get(opcode, "") if dtype == "pred" else ""
    return f"({one} {sign or _SIGNS[opcode]} {other})"


def element(value: Value, of: list[str], args: list[str]) -> str:
    """C of an element of a `map`, whose operands `args` have the types `of`.

    Raises: TensorError for an operation that is not supported for its type.
    """
    opcode, dtype = value.opcode, value.dtype
    real = dtype in _LARGEST
    if opcode in ("minimum", "maximum") or opcode in _SIGNS:
        if opcode in ("and", "or", "xor") and real:
            raise TensorError(f"{opcode} of {dtype} is not supported")
        return combined(opcode, dtype, *args)
    match opcode:
        case "compare":
            if value.text not in _COMPARISONS:
                raise TensorError(f"unknown comparison {value.text[:20]!r}")
            return f"({args[0]} {_COMPARISONS[value.text]} {args[1]})"
        case "clamp":
            low, x, high = args
            return combined("minimum", dtype, combined("maximum", dtype, x, low), high)
        case "convert" if dtype == "pred":
            return f"({args[0]} != 0)"
        case "convert" if of[0] in _LARGEST and not real:
            return _saturated(args[0], of[0], dtype)
        case "convert":
            return f"({C_TYPES[dtype]}){args[0]}"
        case "not":
            return f"(!{args[0]})" if dtype == "pred" else f"(~{args[0]})"
        case "is-finite" if of[0] in _LARGEST:
            largest = constant("inf", of[0])
            return f"({args[0]} >= -{largest} && {args[0]} <= {largest})"
    template = _OF_ANY.get(opcode) or ("" if real else _OF_WHOLE.get(opcode))
    if not template and of[0] not in _LARGEST:
        raise TensorError(f"{opcode} of {of[0]} is not supported")
    suffix = "f" if of[0] == "f32" else ""
    return (template or _OF_REAL[opcode]).format(*args, c=C_TYPES[dtype], f=suffix)


def _saturated(number: str, of: str, dtype: str) -> str:
    """C of a real number as a whole one: the end of the type's range for those outside, and 0 for
    NaN, which is seen by its bits, since -ffast-math drops comparisons."""
    bits, signed = int(dtype[1:]), dtype.startswith("s")
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if signed else (0, 2**bits)
    infinity = "0xff000000u" if of == "f32" else "0xffe0000000000000u"
    as_bits = f"(union {{ {C_TYPES[of]} x; uint{of[1:]}_t bits; }}){{{number}}}.bits"
    return (
        f"(({as_bits} << 1) > {infinity} ? 0"
        f" : {number} <= {constant(str(low), of)} ? {constant(str(low), dtype)}"
        f" : {number} >= {constant(str(high), of)} ? {constant(str(high - 1), dtype)}"
        f" : ({C_TYPES[dtype]}){number})"
    )


class Elements:
    """Elements of values; subexpressions are written into the loop of the last `begin`. `buffer`
    gives the C of a buffered element."""

    def __init__(self, plan: Plan, buffer: Callable[[Stage, Forms], str]) -> None:
        self.plan, self._buffer = plan, buffer
        self._values = plan.values
        self._lines = Lines([])
        self._known: dict[tuple[int, Forms], str] = {}
        self._count = 0

    def begin(self, lines: Lines) -> None:
        self._lines, self._known = lines, {}

    def named(self, ctype: str, text: str) -> str:
        """A new variable for an expression."""
        self._count += 1
        self._lines.add(f"const {ctype} x{self._count} = {text};")
        return f"x{self._count}"

    def at(self, place: int, forms: Forms) -> str:
        """C of the element of a value at an index."""
        stage = self.plan.staged.get(place)
        if stage is not None:
            return self._buffer(stage, forms)
        return self.computed(place, forms)

    def computed(self, place: int, forms: Forms) -> str:
        """C of an element, computed even if it is buffered."""
        key = place, forms
        if key not in self._known:
            self._known[key] = self._computed(self._values[place], forms)
        return self._known[key]

    def _computed(self, value: Value, forms: Forms) -> str:
        match value.what:
            case "given":
                return f"p{value.number}[{form_text(position(forms, value.strides))}]"
            case "number":
                return constant(value.text, value.dtype)
            case "iota":
                return f"(({C_TYPES[value.dtype]})({form_text(forms[value.number])}))"
        accessed = value.access(forms, ())
        match value.what:
            case "pad":
                return self._padded(value, forms, accessed)
            case "join":
                return self._joined(value, forms, accessed)
            case "map":
                args = [self.at(o, f) for o, f in zip(value.operands, accessed, strict=True)]
                of = [self._values[o].dtype for o in value.operands]
                return self.named(C_TYPES[value.dtype], element(value, of, args))
        return self.at(value.operands[0], accessed[0])

    def _padded(self, value: Value, forms: Forms, accessed: list[Forms]) -> str:
        """C of an element of a padded value, read only inside the operand."""
        conditions: list[str] = []
        dims = self._values[value.operands[0]].dims
        for d, (form, inner) in enumerate(zip(forms, accessed[0], strict=True)):
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
            return self.at(value.operands[0], accessed[0])
        inside = self._guarded(value, value.operands[0], accessed[0])
        return self.named(C_TYPES[value.dtype], f"{' && '.join(conditions)} ? {inside} : {filled}")

    def _joined(self, value: Value, forms: Forms, accessed: list[Forms]) -> str:
        form: Form = forms[value.number]
        text, end = "", 0
        for operand, inner in list(zip(value.operands, accessed, strict=True))[:-1]:
            end += self._values[operand].dims[value.number]
            inside = self._guarded(value, operand, inner)
            text += f"{form_text(form)} < {end} ? {inside} : "
        text += self._guarded(value, value.operands[-1], accessed[-1])
        return self.named(C_TYPES[value.dtype], text)

    def _guarded(self, value: Value, operand: int, forms: Forms) -> str:
        """C of an element whose operands are read only if it is."""
        outside, outer = self._lines, self._known
        self._lines, self._known = Lines([], 0), {}
        name = self.at(operand, forms)
        inside = " ".join(self._lines.text)
        self._lines, self._known = outside, outer
        return f"({{ {inside} {name}; }})" if inside else name
