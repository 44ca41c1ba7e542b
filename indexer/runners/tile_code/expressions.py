"""One element of an operation as an expression of C."""

from __future__ import annotations

import math

from embeddb.core.errors import TensorError
from embeddb.tensors.tiling.forms import Form, Part
from embeddb.tensors.tiling.values import Value, number_of

__all__ = ["C_TYPES", "combined", "constant", "element", "form_text"]

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
#: The largest numbers stand for infinities, which -ffast-math does not know.
_LARGEST = {"f32": 3.4028234663852886e38, "f64": 1.7976931348623157e308}
_FUNCTIONS = {
    "exponential": "exp",
    "exponential-minus-one": "expm1",
    "log": "log",
    "log-plus-one": "log1p",
    "tanh": "tanh",
    "sine": "sin",
    "cosine": "cos",
    "tan": "tan",
    "sqrt": "sqrt",
    "cbrt": "cbrt",
    "erf": "erf",
    "floor": "floor",
    "ceil": "ceil",
    "round-nearest-afz": "round",
    "round-nearest-even": "rint",
    "power": "pow",
    "atan2": "atan2",
}
_SIGNS = {"add": "+", "subtract": "-", "multiply": "*", "and": "&", "or": "|", "xor": "^"}
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
    """A number of a computation as a literal of its type."""
    number = number_of(text, dtype)
    if dtype in _LARGEST:
        if not math.isfinite(number):
            number = math.copysign(_LARGEST[dtype], number) if number == number else 0.0
        return f"{float(number)!r}{'f' if dtype == 'f32' else ''}"
    suffix = "ULL" if dtype.startswith("u") else "LL"
    whole = int(number)
    return f"(({C_TYPES[dtype]})({whole + 1}LL - 1))" if whole < 0 else f"{whole}{suffix}"


def combined(opcode: str, one: str, other: str) -> str:
    """Two terms of a sum."""
    if opcode in ("minimum", "maximum"):
        sign = "<" if opcode == "minimum" else ">"
        return f"({one} {sign} {other} ? {one} : {other})"
    return f"({one} {_SIGNS[opcode]} {other})"


def element(value: Value, of: list[str], args: list[str]) -> str:
    """Of a `map`, whose operands `args` have the types `of`.

    Raises: TensorError for a function that its type does not have.
    """
    opcode, dtype = value.opcode, value.dtype
    real = dtype in _LARGEST
    if opcode in ("minimum", "maximum") or opcode in _SIGNS:
        if opcode in ("and", "or", "xor") and real:
            raise TensorError(f"{opcode} of {dtype} is not computed here")
        return combined(opcode, *args)
    match opcode:
        case "compare":
            if value.text not in _COMPARISONS:
                raise TensorError(f"a comparison by {value.text[:20]!r} is not known")
            return f"({args[0]} {_COMPARISONS[value.text]} {args[1]})"
        case "select":
            return f"({args[0]} ? {args[1]} : {args[2]})"
        case "clamp":
            low, x, high = args
            return f"({x} < {low} ? {low} : {x} > {high} ? {high} : {x})"
        case "convert":
            return f"({args[0]} != 0)" if dtype == "pred" else f"({C_TYPES[dtype]}){args[0]}"
        case "not":
            return f"(!{args[0]})" if dtype == "pred" else f"(~{args[0]})"
        case "negate":
            return f"(-{args[0]})"
        case "sign":
            return f"(({args[0]} > 0) - ({args[0]} < 0))"
        case "abs" if not real:
            return f"({args[0]} < 0 ? -{args[0]} : {args[0]})"
        case "divide" if real:
            return f"({args[0]} / {args[1]})"
        case "divide":
            a, b = args
            return f"({b} == 0 ? -1 : {b} == ({C_TYPES[dtype]})-1 && {b} < 0 ? -{a} : {a} / {b})"
        case "remainder" if not real:
            a, b = args
            return f"({b} == 0 ? {a} : {b} == ({C_TYPES[dtype]})-1 && {b} < 0 ? 0 : {a} % {b})"
    return _real(value, of, args)


def _real(value: Value, of: list[str], args: list[str]) -> str:
    if of[0] not in _LARGEST:
        raise TensorError(f"{value.opcode} of {of[0]} is not computed here")
    f, one = ("f", "1.0f") if of[0] == "f32" else ("", "1.0")
    match value.opcode:
        case "abs":
            return f"fabs{f}({args[0]})"
        case "remainder":
            return f"fmod{f}({args[0]}, {args[1]})"
        case "rsqrt":
            return f"({one} / sqrt{f}({args[0]}))"
        case "logistic":
            return f"({one} / ({one} + exp{f}(-{args[0]})))"
        case "is-finite":
            largest = constant("inf", of[0])
            return f"({args[0]} >= -{largest} && {args[0]} <= {largest})"
    return f"{_FUNCTIONS[value.opcode]}{f}({', '.join(args)})"
