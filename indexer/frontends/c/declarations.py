"""Declarations of a C file: arrays, sizes, scalars, types."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from pycparser import c_ast, c_parser

from embeddb.core.errors import NestError
from embeddb.nests.parts import Array, Const, Expr, Index
from indexer.frontends.c.expressions import index_of, value_of
from indexer.frontends.c.text import SourceText
from indexer.frontends.indices import constant
from indexer.frontends.tree import Refused, Scope, StoredArray

_TYPES = {
    ("float",): "f32",
    ("double",): "f64",
    ("int",): "i32",
    ("signed", "int"): "i32",
    ("long",): "i64",
    ("long", "int"): "i64",
    ("long", "long"): "i64",
}


class Declarations:
    """Arrays and stored scalars of a whole file, in the order of their declarations.

    `assigned`: how often each name is written in functions with a scop, except for initial values
    and the indices of loops. `own_names` are those of the arrays in the file, `lines` those of
    their declarations; `fixed` are scalars replaced by their initial value: its text in C, empty
    where it is no number that they store exactly, and the line.
    """

    def __init__(self, text: SourceText, functions: Sequence[Any]) -> None:
        self.arrays: list[Array] = []
        self.array_names: list[str] = []
        self.local: set[int] = set()
        self.assigned = _assigned(functions)
        self.own_names: list[str] = []
        self.lines: list[int] = []
        self.fixed: dict[str, tuple[str, int]] = {}
        self._text = text
        self.defined = {name: Const(value) for name, value in text.defines.items()}
        self._types: dict[str, str] = {}

    def typedef(self, node: Any) -> None:
        self._types[node.name] = self.dtype(node.type) or ""

    def declare(self, node: Any, scope: Scope) -> None:
        """Process a declaration outside of a scop; an unsupported one is refused when it is
        used."""
        if isinstance(node.type, c_ast.FuncDecl) or node.name is None:
            return
        try:
            self._declare_known(node, scope)
        except NestError as error:
            if error.line is not None:
                raise
            scope.names[node.name] = Refused(error.reason)

    def _declare_known(self, node: Any, scope: Scope) -> None:
        kind, shape = node.type, list[int]()
        while isinstance(kind, c_ast.ArrayDecl):
            size = None if kind.dim is None else constant(index_of(kind.dim, scope))
            if size is None:
                raise NestError("has a size that is no number")
            shape.append(size)
            kind = kind.type
        dtype = self.dtype(kind)
        if isinstance(kind, c_ast.PtrDecl):
            raise NestError("is a pointer, which may overlap: declare it as an array with sizes")
        if not dtype:
            raise NestError("has an unsupported type: use float, double, int or long")
        if shape:
            array = Array(dtype, tuple(shape), self._fill(node.name, scope))
            self.hold(node.name, array, scope, node.coord.line)
            return
        value, times = self.defined.get(node.name), self.assigned[node.name]
        if value is not None and not times:
            scope.names[node.name] = value
        elif node.init is not None and not times:
            self._alias(node, dtype, scope)
        elif dtype in ("i32", "i64") and times < 2 and node.init is None:
            scope.names[node.name] = Refused(
                f"has no value in this file: give it with -D {node.name}=64", dtype
            )
        else:
            self.hold(node.name, Array(dtype, (), ""), scope, node.coord.line)

    def _alias(self, node: Any, dtype: str, scope: Scope) -> None:
        """A scalar that is never written: its initial value."""
        value: Index | Expr
        number: int | float | None = None
        if dtype in ("i32", "i64"):
            value = index_of(node.init, scope)
            number = constant(value)
        else:
            value = value_of(node.init, scope)
            if isinstance(value, Const):
                value = Const(float(value.value))
                number = value.value
        # The nest computes with the number as it is written, C with its value rounded to float.
        exact = number is not None and (dtype != "f32" or _as_float(number) == number)
        self.fixed[node.name] = repr(number) if exact else "", node.coord.line
        scope.names[node.name] = value

    def hold(self, name: str, array: Array, scope: Scope, line: int) -> StoredArray:
        """Declare an array, or a stored scalar, on a line."""
        stored = StoredArray(len(self.arrays))
        self.arrays.append(array)
        if not array.shape and len(scope.names.maps) > 1:
            self.local.add(stored.array)
        taken = name in self.array_names
        self.own_names.append(name)
        self.lines.append(line)
        self.array_names.append(f"{name}_{stored.array}" if taken else name)
        scope.names[name] = stored
        return stored

    def dtype(self, kind: Any) -> str | None:
        if not isinstance(kind, c_ast.TypeDecl) or not isinstance(kind.type, c_ast.IdentifierType):
            return None
        names = tuple(kind.type.names)
        return self._types.get(names[0]) or _TYPES.get(names)

    def check_unwritten(self, array: int) -> None:
        """Raises: NestError if a function with a scop writes to an array."""
        if self.assigned[self.own_names[array]]:
            raise NestError(f"{self.own_names[array]} is written")

    def _fill(self, name: str, scope: Scope) -> str:
        if name in self._text.matrix_fills:
            return self._text.matrix_fills[name]
        fill, line = self._text.fills.get(name, ("", 0))
        kind, *parts = fill.split(":")
        words = [kind.strip()]
        for part in parts:
            if re.fullmatch(r"[\d.]+", part):
                words.append(part)
                continue
            try:
                parsed = c_parser.CParser().parse(f"int n = {part};")
                size = constant(index_of(parsed.ext[0].init, scope))
            except (c_parser.ParseError, NestError) as error:
                raise NestError(f"fill of {name}: {part[:40]!r} is no number", line=line) from error
            words.append(str(size))
        return ":".join(words)


def _as_float(number: float) -> float:
    """Rounded to 32 bits."""
    return float(np.float32(number))


def holds_scop(node: Any) -> bool:
    if isinstance(node, c_ast.Pragma):
        return bool(node.string == "scop")
    return any(holds_scop(child) for _, child in node.children())


def _assigned(functions: Sequence[Any]) -> Counter[str]:
    """Number of writes of each name in functions with a scop, except for initial values and the
    indices of loops."""
    writes: Counter[str] = Counter()
    waiting = [one for one in functions if holds_scop(one)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, c_ast.For):
            waiting.append(node.stmt)
            continue
        target = None
        if isinstance(node, c_ast.Assignment):
            target = node.lvalue
        elif isinstance(node, c_ast.UnaryOp) and node.op in ("p++", "++", "p--", "--"):
            target = node.expr
        while isinstance(target, c_ast.ArrayRef):
            target = target.name
        if isinstance(target, c_ast.ID):
            writes[target.name] += 1
        waiting += [child for _, child in node.children()]
    return writes
