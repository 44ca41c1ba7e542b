"""Expressions and accesses of a nest as C, and their types.

Types are those of C, with three differences: a literal has no type of its own (as in NumPy), a
quotient of integers is real, and so is a root, a logarithm, ... of one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from embeddb.nests.nest import Nest
from embeddb.nests.parts import (
    COMPARISONS,
    DTYPES,
    Access,
    Affine,
    Array,
    Call,
    Const,
    Expr,
    Index,
    LoopIndex,
    Read,
    Statement,
)

C_TYPES = {"f32": "float", "f64": "double", "i32": "int32_t", "i64": "int64_t"}
#: Type promotion, lowest first: integer literal, integers, real literal, reals.
_RANKS = ("int", "i32", "i64", "real", "f32", "f64")
_REAL = ("real", "f32", "f64")
_FUNCTIONS = ("sqrt", "exp", "log", "tanh")


def _helpers() -> str:
    functions = []
    for dtype, c in C_TYPES.items():
        functions += [
            f"static inline {c} {name}_{dtype}({c} x, {c} y) {{ return x {sign} y ? x : y; }}"
            for name, sign in (("min", "<"), ("max", ">"))
        ]
    for dtype in ("i32", "i64"):
        c = C_TYPES[dtype]
        functions.append(f"static inline {c} abs_{dtype}({c} x) {{ return x < 0 ? -x : x; }}")
    return "\n".join(functions)


#: C functions that an expression may call, beside those of math.h.
HELPERS = _helpers()


def type_of(expression: Expr, arrays: Sequence[Array]) -> str:
    """Type of an expression, one of `DTYPES`; `int` or `real` if it has literals only."""
    match expression:
        case Const(value):
            return "int" if isinstance(value, int) else "real"
        case LoopIndex():
            return "i64"
        case Read(access):
            return arrays[access.array].dtype
        case Call(op, args):
            types = [type_of(argument, arrays) for argument in args]
            if op in COMPARISONS:
                return "i32"
            joined = joined_type(types[1:] if op == "select" else types)
            whole = joined not in _REAL
            return "f64" if whole and (op == "/" or op in _FUNCTIONS) else joined


def joined_type(types: list[str]) -> str:
    """Type of an operator whose operands have these types."""
    widest = max(types, key=_RANKS.index)
    mixed = widest == "real" and any(t in ("i32", "i64") for t in types)
    return "f64" if mixed else widest


@dataclass(frozen=True, slots=True)
class Site:
    """Context of a piece of code: the index of each loop (a variable and an offset), and the arrays
    that are read from a packed copy."""

    loops: Mapping[int, tuple[str, int]]
    packed: Mapping[int, tuple[str, tuple[tuple[int, str], ...]]] = field(default_factory=dict)

    def affine(self, affine: Affine, times: int = 1) -> tuple[int, list[tuple[int, str]]]:
        """Constant and terms (coefficient, variable) of `times` the affine index."""
        constant, terms = affine.constant * times, []
        for loop, coef in enumerate(affine.coefs):
            if coef:
                name, more = self.loops[loop]
                constant += coef * more * times
                terms.append((coef * times, name))
        return constant, terms


def linear(constant: int, terms: list[tuple[int, str]]) -> str:
    """A sum as C."""
    text = ""
    for coef, name in terms:
        size = name if abs(coef) == 1 else f"{abs(coef)} * {name}"
        sign = ("-" if coef < 0 else "") if not text else " - " if coef < 0 else " + "
        text += sign + size
    if not text:
        return str(constant)
    return text + (f" {'-' if constant < 0 else '+'} {abs(constant)}" if constant else "")


class Writer:
    """Writer of expressions of one nest, with the C names `arrays`."""

    def __init__(self, nest: Nest, arrays: list[str]) -> None:
        self.nest = nest
        self.arrays = arrays

    def access(self, access: Access, site: Site, *, write: bool = False) -> str:
        if access.array in site.packed and not write:
            return self._packed(access, site)
        return f"{self.arrays[access.array]}[{self.place(access, site)}]"

    def place(self, access: Access, site: Site) -> str:
        """The row-major position of an element."""
        constant, terms = 0, []
        strides = self.nest.arrays[access.array].strides
        for index, stride in zip(access.at, strides, strict=True):
            more, added = site.affine(index.affine, stride)
            constant += more
            terms += added
            if index.of is not None:
                terms.append((stride, f"(int64_t){self.access(index.of, site)}"))
        return linear(constant, _merged(terms))

    def _packed(self, access: Access, site: Site) -> str:
        buffer, places = site.packed[access.array]
        constant, terms = 0, []
        for index, (stride, low) in zip(access.at, places, strict=True):
            more, added = site.affine(index.affine, stride)
            constant += more
            terms += [*added, *([(-stride, low)] if low else [])]
        return f"{buffer}[{linear(constant, _merged(terms))}]"

    def statement(self, statement: Statement, site: Site, target: str = "") -> str:
        """The statement, for its own target or another variable in its place."""
        target = target or self.access(statement.target, site, write=True)
        dtype = self.nest.arrays[statement.target.array].dtype
        cut = dtype not in _REAL and type_of(statement.value, self.nest.arrays) in _REAL
        value = self.value(statement.value, site, "f64" if cut else dtype)
        if cut:
            value = f"({C_TYPES[dtype]}){value}"
        if statement.combine in ("min=", "max="):
            line = f"{target} = {statement.combine[:-1]}_{dtype}({target}, {value});"
        else:
            line = f"{target} {statement.combine} {_bare(value)};"
        if statement.where is None:
            return line
        return f"if ({_bare(self.truth(statement.where, site))}) {line}"

    def index(self, index: Index, site: Site) -> str:
        """A bound or an index."""
        constant, terms = site.affine(index.affine)
        if index.of is not None:
            terms.append((1, f"(int64_t){self.access(index.of, site)}"))
        return linear(constant, terms)

    def value(self, expression: Expr, site: Site, wanted: str) -> str:
        """The expression, converted to `wanted` by C itself; literals are written in that type."""
        own = type_of(expression, self.nest.arrays)
        match expression:
            case Const(number):
                return _number(number, wanted)
            case LoopIndex(loop):
                name, more = site.loops[loop]
                return f"({name} + {more})" if more else name
            case Read(access):
                return self.access(access, site)
            case Call(op, args):
                return self._call(op, args, site, wanted if own in ("int", "real") else own)

    def _call(self, op: str, args: tuple[Expr, ...], site: Site, computed: str) -> str:
        if op in COMPARISONS:
            computed = joined_type([type_of(a, self.nest.arrays) for a in args])
            computed = {"int": "i64", "real": "f64"}.get(computed, computed)
        if op == "select":
            tested = self.truth(args[0], site)
            chosen = [self.value(a, site, computed) for a in args[1:]]
            return f"({tested} ? {chosen[0]} : {chosen[1]})"
        operands = [self.value(a, site, computed) for a in args]
        if op in ("min", "max") or (op == "abs" and computed not in _REAL):
            return f"{op}_{computed}({', '.join(operands)})"
        single = "f" if computed == "f32" else ""
        if op in _FUNCTIONS:
            return f"{op}{single}({operands[0]})"
        if op == "abs":
            return f"fabs{single}({operands[0]})"
        if op == "neg":
            return f"(-{operands[0]})"
        if op == "/":
            whole = all(type_of(a, self.nest.arrays) not in _REAL for a in args)
            return f"({'(double)' * whole}{operands[0]} / {operands[1]})"
        return f"({operands[0]} {op} {operands[1]})"

    def truth(self, expression: Expr, site: Site) -> str:
        """C of a condition: true if not 0."""
        computed = type_of(expression, self.nest.arrays)
        return self.value(expression, site, {"int": "i64", "real": "f64"}.get(computed, computed))


def _number(number: int | float, wanted: str) -> str:
    if wanted not in _REAL:
        return str(int(number)) if number >= 0 else f"({int(number)})"
    text = repr(float(number)) + ("f" if wanted == "f32" else "")
    return text if number >= 0 else f"({text})"


def _merged(terms: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Terms with one coefficient for each variable, in order of appearance."""
    sums: dict[str, int] = {}
    for coef, name in terms:
        sums[name] = sums.get(name, 0) + coef
    return [(coef, name) for name, coef in sums.items() if coef]


def _bare(text: str) -> str:
    """Text without enclosing parentheses."""
    if not text.startswith("(") or not text.endswith(")"):
        return text
    depth = 0
    for at, sign in enumerate(text):
        depth += (sign == "(") - (sign == ")")
        if not depth and at < len(text) - 1:
            return text
    return text[1:-1]


_KEYWORDS = frozenset(
    (
        *("asm", "auto", "break", "case", "char", "const", "continue", "default", "do", "double"),
        *("else", "enum", "extern", "float", "for", "goto", "if", "inline", "int", "long", "main"),
        *("register", "restrict", "return", "short", "signed", "sizeof", "static", "struct"),
        *("switch", "typedef", "typeof", "union", "unsigned", "void", "volatile", "while"),
    )
)
#: Macros of the headers, beside those in capitals.
_MACROS = ("linux", "unix", "i386", "stdin", "stdout", "stderr", "errno", "signgam")
_OF_MATH = tuple(f"{name}{single}" for name in (*_FUNCTIONS, "fabs") for single in ("", "f"))
_MATH_CALL = re.compile(rf"\b({'|'.join(_OF_MATH)})\(")
_C_FUNCTIONS = frozenset(
    (
        *_OF_MATH,
        *(f"{name}_{dtype}" for name in ("min", "max", "abs") for dtype in DTYPES),
    )
)
_LONGEST_CAPITALS = 2


@dataclass(frozen=True, slots=True)
class Names:
    """Distinct C variables. By loop: the index, the start of its block, and the end index; by
    array: its pointer."""

    points: tuple[str, ...]
    blocks: tuple[str, ...]
    ends: tuple[str, ...]
    arrays: tuple[str, ...]


def function_name(nest: Nest) -> str:
    """Name of a nest's function in a generated program."""
    plain = re.sub(r"[^A-Za-z0-9_]+", "_", nest.name).strip("_")
    return f"nest_{plain or nest.id[:12]}"


def math_called(text: str) -> list[str]:
    """The functions of math.h that generated functions call."""
    return sorted(set(_MATH_CALL.findall(text)))


def names_of(nest: Nest, taken: frozenset[str] = frozenset()) -> Names:
    """The nest's own names where C allows; `taken` are functions of the file."""
    used = {*_KEYWORDS, *_MACROS, *_C_FUNCTIONS, *taken}

    def unlike(names: Iterator[str]) -> tuple[str, ...]:
        distinct = []
        for name in names:
            tries = (name if not n else f"{name}_{n}" for n in count())
            distinct.append(next(t for t in tries if t not in used))
            used.add(distinct[-1])
        return tuple(distinct)

    loops = [_allowed(nest.loop_name(at)) for at in range(nest.depth)]
    return Names(
        points=unlike(iter(loops)),
        arrays=unlike(_allowed(nest.array_name(a)) for a in range(len(nest.arrays))),
        blocks=unlike(f"{name}_block" for name in loops),
        ends=unlike(f"{name}_end" for name in loops),
    )


def _allowed(name: str) -> str:
    """A C identifier that is no macro of a header and not reserved."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", name)
    if not name[:1].isalpha():
        name = f"v{name}"
    if name.endswith("_t"):  # a type
        return f"{name}_"
    return f"{name}_" if name.isupper() and len(name) > _LONGEST_CAPITALS else name
