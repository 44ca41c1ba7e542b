"""C between `#pragma scop` and `#pragma endscop` as a tree of loops.

    #define N 1000
    float A[N][N], x[N], y[N];
    int col[N];
    #pragma embeddb fill col below:N
    void kernel(void) {
    #pragma scop
      for (int i = 0; i < N; i++) { y[i] = 0; for (int j = 0; j < N; j++) y[i] += A[i][j] * x[col[j]]; }
    #pragma endscop
    }

No preprocessor or compiler runs: `c_text` replaces macros, pycparser parses. Arrays are declared
with their sizes; pointers, which could overlap, are refused. Initial values of arrays are not read.
"""

from __future__ import annotations

import re
from collections import ChainMap, Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from pycparser import c_ast, c_parser

from embeddb.core.errors import NestError
from embeddb.nests.parts import Affine, Array, Call, Const, Expr, Index, Loop, Read, Statement
from indexer.frontends.c_expressions import (
    Held,
    Refused,
    Scope,
    access_of,
    index_of,
    is_whole,
    value_of,
)
from indexer.frontends.c_text import SourceText, source_text
from indexer.frontends.combine import combined
from indexer.frontends.indices import added, constant, scaled, whole
from indexer.frontends.tree import Block, Node, Program, Step, reads, walk

__all__ = ["c_program"]

_TYPES = {
    ("float",): "f32",
    ("double",): "f64",
    ("int",): "i32",
    ("signed", "int"): "i32",
    ("long",): "i64",
    ("long", "int"): "i64",
    ("long", "long"): "i64",
}
#: Types of headers, which are not read; on the first line, so that lines keep their numbers.
_TYPEDEFS = "typedef int int32_t; typedef long int64_t; typedef long size_t; typedef int bool; "
_BEYOND = {
    c_ast.While: "a while loop",
    c_ast.DoWhile: "a do loop",
    c_ast.Goto: "goto",
    c_ast.Break: "break",
    c_ast.Continue: "continue",
    c_ast.Return: "return",
    c_ast.Switch: "switch",
    c_ast.FuncCall: "a call of a function",
}


def c_program(
    source: str, *, name: str, defines: Mapping[str, int | float] | None = None
) -> Program:
    """The scops of a C file, one after the other. `defines` are values of macros, and of scalars
    that the file gives none.

    Raises: NestError with the line.
    """
    text = source_text(source, defines=defines)
    reader = _Reader(text, dict(defines or {}))
    try:
        tree = c_parser.CParser().parse(_TYPEDEFS + text.text)
    except c_parser.ParseError as error:
        said = re.fullmatch(r"[^:]*:(\d+)(?::\d+)?:\s*(.*)", str(error), re.S)
        line, why = (int(said[1]), said[2]) if said else (None, str(error))
        raise NestError(f"cannot be parsed, {why}", line=line) from error
    body = reader.file(tree)
    local = frozenset(reader.local)
    return Program(name, tuple(reader.arrays), tuple(reader.array_names), body, local)


class _Reader:
    """One walk over a file, which collects arrays and statements."""

    def __init__(self, text: SourceText, defines: dict[str, int | float]) -> None:
        self.arrays: list[Array] = []
        self.array_names: list[str] = []
        self.local: set[int] = set()
        self._text = text
        self._defines = defines
        self._types: dict[str, str] = {}
        self._assigned: Counter[str] = Counter()
        self._scops = 0

    def file(self, tree: Any) -> tuple[Node, ...]:
        scope, body = Scope(self.arrays), list[Node]()
        self._assigned = _assigned([n for n in tree.ext if isinstance(n, c_ast.FuncDef)])
        for node in tree.ext:
            with _line(node):
                if isinstance(node, c_ast.Typedef):
                    self._types[node.name] = self._dtype(node.type) or ""
                elif isinstance(node, c_ast.Decl):
                    self._declare(node, scope)
                elif isinstance(node, c_ast.FuncDef):
                    body += self._function(node, scope.inner())
        if self._scops != len(re.findall(r"^#pragma scop$", self._text.text, re.M)):
            raise NestError("#pragma scop stands in the body of a function, outside of loops")
        if not self._scops:
            raise NestError("has no #pragma scop around its loops")
        for name, (_, line) in self._text.fills.items():
            if name not in self.array_names:
                raise NestError(f"fill of {name}: there is no such array", line=line)
        return tuple(body)

    def _function(self, node: Any, scope: Scope) -> list[Node]:
        if not _holds_scop(node):
            return []
        parameters = node.decl.type.args
        for one in parameters.params if parameters else []:
            if isinstance(one, c_ast.Decl):
                self._declare(one, scope)
        return self._scops_of(node.body.block_items or [], scope)

    def _scops_of(self, items: Sequence[Any], scope: Scope) -> list[Node]:
        found: list[Node] = []
        start = None
        for at, node in enumerate(items):
            with _line(node):
                if isinstance(node, c_ast.Pragma) and node.string == "scop":
                    start = at + 1
                elif isinstance(node, c_ast.Pragma) and node.string == "endscop":
                    if start is None:
                        raise NestError("#pragma endscop without #pragma scop")
                    self._scops += 1
                    found += self._run(items[start:at], scope, (), None)
                    start = None
                elif start is None and isinstance(node, c_ast.Decl):
                    self._declare(node, scope)
                elif start is None and isinstance(node, c_ast.Compound):
                    found += self._scops_of(node.block_items or [], scope.inner())
        if start is not None:
            raise NestError("#pragma scop without #pragma endscop", line=items[-1].coord.line)
        return found

    # -- declarations ------------------------------------------------------------------------------

    def _declare(self, node: Any, scope: Scope) -> None:
        """What a declaration outside of a scop says; what cannot be used is refused on its use."""
        if isinstance(node.type, c_ast.FuncDecl) or node.name is None:
            return
        try:
            self._declare_known(node, scope)
        except NestError as error:
            scope.names[node.name] = Refused(error.reason)

    def _declare_known(self, node: Any, scope: Scope) -> None:
        kind, shape = node.type, list[int]()
        while isinstance(kind, c_ast.ArrayDecl):
            size = None if kind.dim is None else constant(index_of(kind.dim, scope))
            if size is None:
                raise NestError("has a size that is no number")
            shape.append(size)
            kind = kind.type
        dtype = self._dtype(kind)
        if isinstance(kind, c_ast.PtrDecl):
            raise NestError("is a pointer, which may overlap: declare it as an array with sizes")
        if not dtype:
            raise NestError("has a type that is not known: float, double, int and long are")
        if shape:
            self._hold(node.name, Array(dtype, tuple(shape), self._fill(node.name, scope)), scope)
            return
        value, times = self._defines.get(node.name), self._assigned[node.name]
        if value is not None and not times:
            scope.names[node.name] = Const(value)
        elif node.init is not None and not times:
            self._alias(node.name, node.init, dtype, scope)
        elif dtype in ("i32", "i64") and times < 2:
            scope.names[node.name] = Refused("has no value here; give it from outside", dtype)
        else:
            self._hold(node.name, Array(dtype, (), ""), scope)

    def _alias(self, name: str, init: Any, dtype: str, scope: Scope) -> None:
        """A scalar that is never written: its initial value."""
        value: Index | Expr
        value = index_of(init, scope) if dtype in ("i32", "i64") else value_of(init, scope)
        if isinstance(value, Const):
            value = Const(float(value.value))
        scope.names[name] = value

    def _hold(self, name: str, array: Array, scope: Scope) -> Held:
        told = Held(len(self.arrays))
        self.arrays.append(array)
        if not array.shape and len(scope.names.maps) > 1:
            self.local.add(told.array)
        taken = name in self.array_names
        self.array_names.append(f"{name}_{told.array}" if taken else name)
        scope.names[name] = told
        return told

    def _dtype(self, kind: Any) -> str | None:
        if not isinstance(kind, c_ast.TypeDecl) or not isinstance(kind.type, c_ast.IdentifierType):
            return None
        names = tuple(kind.type.names)
        return self._types.get(names[0]) or _TYPES.get(names)

    def _fill(self, name: str, scope: Scope) -> str:
        told, line = self._text.fills.get(name, ("", 0))
        kind, *parts = told.split(":")
        made = [kind.strip()]
        for part in parts:
            if re.fullmatch(r"[\d.]+", part):
                made.append(part)
                continue
            try:
                parsed = c_parser.CParser().parse(f"int n = {part};")
                size = constant(index_of(parsed.ext[0].init, scope))
            except (c_parser.ParseError, NestError) as error:
                raise NestError(f"fill of {name}: {part[:40]!r} is no number", line=line) from error
            made.append(str(size))
        return ":".join(made)

    # -- statements --------------------------------------------------------------------------------

    def _run(
        self, items: Sequence[Any], scope: Scope, loops: tuple[str, ...], mask: Expr | None
    ) -> list[Node]:
        found: list[Node] = []
        for node in items:
            with _line(node):
                found += self._statement(node, scope, loops, mask)
        return found

    def _statement(
        self, node: Any, scope: Scope, loops: tuple[str, ...], mask: Expr | None
    ) -> list[Node]:
        match node:
            case c_ast.Compound():
                return self._run(node.block_items or [], scope.inner(), loops, mask)
            case c_ast.Label():
                return self._run([node.stmt], scope, loops, mask)
            case c_ast.DeclList():
                return self._run(node.decls, scope, loops, mask)
            case c_ast.Pragma() | c_ast.EmptyStatement() | None:
                return []
            case c_ast.For():
                return self._for(node, scope, loops, mask)
            case c_ast.If():
                return self._if(node, scope, loops, mask)
            case c_ast.Decl():
                return self._local(node, scope, mask)
            case c_ast.Assignment():
                return self._assign(node, scope, mask)
            case c_ast.UnaryOp(op="p++" | "++" | "p--" | "--"):
                one = c_ast.Constant("int", "1", node.coord)
                op = "+=" if "+" in node.op else "-="
                return self._assign(c_ast.Assignment(op, node.expr, one, node.coord), scope, mask)
        raise NestError(f"{_BEYOND.get(type(node), type(node).__name__)} is not known in a scop")

    def _local(self, node: Any, scope: Scope, mask: Expr | None) -> list[Node]:
        """A declaration within a scop: a scalar, stored unless it is a whole number set once."""
        dtype = self._dtype(node.type)
        if dtype is None:
            self._declare(node, scope)
            return []
        times = self._assigned[node.name]
        if dtype in ("i32", "i64") and node.init is None and times < 2:
            scope.names[node.name] = Refused("has no value here", dtype)
            return []
        if dtype in ("i32", "i64") and not times:
            with suppress(NestError):
                scope.names[node.name] = self._constant_index(node.init, scope)
                return []
        self._hold(node.name, Array(dtype, (), ""), scope)
        if node.init is None:
            return []
        target = c_ast.ID(node.name, node.coord)
        made = c_ast.Assignment("=", target, node.init, node.coord)
        return self._assign(made, scope, None)

    def _constant_index(self, node: Any, scope: Scope) -> Index:
        """An index that stays as it is: nothing that it comes out of is written in the scop."""
        index = index_of(node, scope)
        for access in () if index.of is None else (*index.of.inner(), index.of):
            if self._assigned[self.array_names[access.array]]:
                raise NestError(f"{self.array_names[access.array]} is written")
        return index

    def _assign(self, node: Any, scope: Scope, mask: Expr | None) -> list[Node]:
        op, right = node.op, node.rvalue
        if isinstance(node.lvalue, c_ast.ID):
            told = scope.names.get(node.lvalue.name)
            if isinstance(told, Refused) and told.dtype:
                if op == "=" and mask is None:
                    with suppress(NestError):
                        scope.names[node.lvalue.name] = self._constant_index(right, scope)
                        return []
                where = next(one for one in scope.names.maps if node.lvalue.name in one)
                self._hold(node.lvalue.name, Array(told.dtype, (), ""), Scope([], ChainMap(where)))
        target = access_of(node.lvalue, scope)
        value = value_of(right, scope)
        if op == "/=" and is_whole(Read(target), self.arrays):
            raise NestError("whole numbers are divided, which is not known in a nest")
        statement = combined(target, op, value, mask)
        return [Step(statement, node.coord.line)]

    def _if(self, node: Any, scope: Scope, loops: tuple[str, ...], mask: Expr | None) -> list[Node]:
        condition = value_of(node.cond, scope)
        found = self._run([node.iftrue], scope.inner(), loops, _both(mask, condition))
        if node.iffalse is not None:
            other = Call("==", (condition, Const(0)))
            found += self._run([node.iffalse], scope.inner(), loops, _both(mask, other))
            found = _merged(found, condition, mask)
        asked = {access.array for access in reads(condition)}
        steps = [(path, one) for path, one in walk(found) if isinstance(one, Step)]
        for at, (path, one) in enumerate(steps):
            if one.statement.target.array in asked and (path or at + 1 < len(steps)):
                name = self.array_names[one.statement.target.array]
                raise NestError(f"{name} decides over statements and is written by one of them")
        return found

    def _for(
        self, node: Any, scope: Scope, loops: tuple[str, ...], mask: Expr | None
    ) -> list[Node]:
        name, first = _first(node.init)
        if self._assigned[name]:
            raise NestError(f"{name} is a loop and is written in it")
        step = _step(node.next, name, scope)
        last, within = _last(node.cond, name)
        start, end = index_of(first, scope), index_of(last, scope)
        inner, own = scope.inner(), Index(Affine(0, (*[0] * len(loops), 1)))
        if step > 0 and within in ("<", "<="):
            loop = Loop(start, added(end, whole(within == "<=")), step)
            inner.names[name] = own
        elif step < 0 and within in (">", ">="):
            turns = added(added(start, scaled(end, -1)), whole(within == ">="))
            loop = Loop(whole(0), turns, -step)
            inner.names[name] = added(start, scaled(own, -1))
        else:
            raise NestError(f"loop {name} steps by {step} while {name} {within} its end")
        inside = self._run([node.stmt], inner, (*loops, name), mask)
        return [Block(name, loop, tuple(inside), node.coord.line)] if inside else []


def _both(mask: Expr | None, condition: Expr) -> Expr:
    if not (isinstance(condition, Call) and condition.op in ("<", "<=", "==", "!=")):
        condition = Call("!=", (condition, Const(0)))
    return condition if mask is None else Call("*", (mask, condition))


def _merged(nodes: list[Node], condition: Expr, mask: Expr | None) -> list[Node]:
    """`if (c) x = a; else x = b;` as one statement; anything else as it is."""
    match nodes:
        case [Step(one, line), Step(other, _)] if one.where == _both(mask, condition) and (
            one.target,
            one.combine,
        ) == (other.target, other.combine):
            value = Call("select", (condition, one.value, other.value))
            return [Step(Statement(one.target, one.combine, value, mask), line)]
    return nodes


def _first(init: Any) -> tuple[str, Any]:
    if isinstance(init, c_ast.DeclList) and len(init.decls) == 1 and init.decls[0].init:
        return init.decls[0].name, init.decls[0].init
    if isinstance(init, c_ast.Assignment) and init.op == "=" and isinstance(init.lvalue, c_ast.ID):
        return init.lvalue.name, init.rvalue
    raise NestError("a loop starts with one index: for (int i = ...")


def _last(condition: Any, name: str) -> tuple[Any, str]:
    if isinstance(condition, c_ast.BinaryOp) and condition.op in ("<", "<=", ">", ">="):
        left, right = condition.left, condition.right
        if isinstance(left, c_ast.ID) and left.name == name:
            return right, condition.op
        if isinstance(right, c_ast.ID) and right.name == name:
            return left, condition.op.translate(str.maketrans("<>", "><"))
    raise NestError(f"loop {name} ends by a comparison of {name} with a bound")


def _step(after: Any, name: str, scope: Scope) -> int:
    match after:
        case c_ast.UnaryOp(op="p++" | "++" | "p--" | "--") if _is(after.expr, name):
            return 1 if "+" in after.op else -1
        case c_ast.Assignment(op="+=" | "-=") if _is(after.lvalue, name):
            by, sign = after.rvalue, 1 if after.op == "+=" else -1
        case c_ast.Assignment(op="=", rvalue=c_ast.BinaryOp(op="+" | "-")) if _is(
            after.lvalue, name
        ) and _is(after.rvalue.left, name):
            by, sign = after.rvalue.right, 1 if after.rvalue.op == "+" else -1
        case _:
            raise NestError(f"loop {name} steps by a number: {name}++ or {name} += 4")
    step = constant(index_of(by, scope))
    if not step:
        raise NestError(f"loop {name} steps by a number that is not 0")
    return sign * step


def _is(node: Any, name: str) -> bool:
    return isinstance(node, c_ast.ID) and node.name == name


def _holds_scop(node: Any) -> bool:
    if isinstance(node, c_ast.Pragma):
        return bool(node.string == "scop")
    return any(_holds_scop(child) for _, child in node.children())


def _assigned(functions: Sequence[Any]) -> Counter[str]:
    """How often each name is written in functions that hold a scop, but for initial values and for
    the indices of loops."""
    found: Counter[str] = Counter()
    waiting = [one for one in functions if _holds_scop(one)]
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
            found[target.name] += 1
        waiting += [child for _, child in node.children()]
    return found


@contextmanager
def _line(node: Any) -> Iterator[None]:
    """Errors inside carry the line of a node, unless they have one."""
    try:
        yield
    except NestError as error:
        coord = getattr(node, "coord", None)
        if error.line is not None or coord is None:
            raise
        raise NestError(error.reason, where=error.where, line=coord.line) from error
