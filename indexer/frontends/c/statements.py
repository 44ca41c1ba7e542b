"""Declarations of a C file, and the statements of a scop as nodes of a tree of loops."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from pycparser import c_ast, c_parser

from embeddb.core.errors import NestError
from embeddb.kernels.nests.expressions import joined_type
from embeddb.nests.parts import Array, Const, Expr, Index, Loop, Statement, reads
from indexer.frontends.c.expressions import element, index_of, typed
from indexer.frontends.c.text import SourceText, undefined
from indexer.frontends.c.types import NATURALS, STORED, Operators, declared, of_index
from indexer.frontends.c.variables import names_it, outer_indices, writes
from indexer.frontends.distribute import combined
from indexer.frontends.scalars import chosen, computed_type, masked, single
from indexer.frontends.tree import (
    Block,
    Node,
    Refused,
    Registry,
    Scope,
    Step,
    StoredArray,
    constant,
    counted,
    walk,
)


class Declarations(Registry):
    """Arrays and stored scalars of a whole file, in the order of their declarations.

    `assigned`: how often each name is written in functions with a scop, except for initial values
    and the indices of loops. `own_names` are those of the arrays in the file, `lines` those of
    their declarations; `fixed` are scalars replaced by their initial value, by name and line of the
    declaration, 0 outside of functions: its text in C, empty where it is no number that they store
    exactly, and the line.
    """

    def __init__(self, text: SourceText, functions: Sequence[Any]) -> None:
        super().__init__()
        self.assigned = writes([one for one in functions if holds_scop(one)])
        self.own_names: list[str] = []
        self.lines: list[int] = []
        self.fixed: dict[tuple[str, int], tuple[str, int]] = {}
        self._text = text
        self.defined = {name: Const(value) for name, value in text.defines.items()}

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
        scope.types[node.name] = declared(kind, scope)
        dtype = STORED.get(scope.types[node.name], "")
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
            value = typed(node.init, scope).value
            if isinstance(value, Const):
                value = Const(float(value.value))
                number = value.value
        # The nest computes with the number as it is written, C with its value rounded to float.
        exact = number is not None and (dtype != "f32" or single(number) == number)
        line = node.coord.line
        local = line if len(scope.names.maps) > 1 else 0
        self.fixed[node.name, local] = repr(number) if exact else "", line
        scope.names[node.name] = value

    def hold(self, name: str, array: Array, scope: Scope, line: int) -> None:
        """Declare an array, or a stored scalar, on a line."""
        local = not array.shape and len(scope.names.maps) > 1
        scope.names[name] = StoredArray(self.add(name, array, local=local))
        self.own_names.append(name)
        self.lines.append(line)

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


def holds_scop(node: Any) -> bool:
    if isinstance(node, c_ast.Pragma):
        return bool(node.string == "scop")
    return any(holds_scop(child) for _, child in node.children())


def header(node: Any, scope: Scope) -> tuple[str, Loop, Index]:
    """Name and loop, and the value of its index.

    Raises: NestError unless it is a loop over equally spaced integers.
    """
    name, first = _first(node.init)
    step = _step(node.next, name, scope)
    last, within = _last(node.cond, name)
    start, end = index_of(first, scope), index_of(last, scope)
    return name, *counted(start, within, end, step, len(scope.loops))


def _first(init: Any) -> tuple[str, Any]:
    if isinstance(init, c_ast.DeclList) and len(init.decls) == 1 and init.decls[0].init:
        return init.decls[0].name, init.decls[0].init
    if isinstance(init, c_ast.Assignment) and init.op == "=" and isinstance(init.lvalue, c_ast.ID):
        return init.lvalue.name, init.rvalue
    raise NestError("a loop starts with one index: for (int i = ...")


def _last(condition: Any, name: str) -> tuple[Any, str]:
    if isinstance(condition, c_ast.BinaryOp) and condition.op in ("<", "<=", ">", ">="):
        left, right = condition.left, condition.right
        if names_it(left, name):
            return right, condition.op
        if names_it(right, name):
            return left, condition.op.translate(str.maketrans("<>", "><"))
    raise NestError(f"loop {name} ends by a comparison of {name} with a bound")


def _step(after: Any, name: str, scope: Scope) -> int:
    match after:
        case c_ast.UnaryOp(op="p++" | "++" | "p--" | "--") if names_it(after.expr, name):
            return 1 if "+" in after.op else -1
        case c_ast.Assignment(op="+=" | "-=") if names_it(after.lvalue, name):
            by, sign = after.rvalue, 1 if after.op == "+=" else -1
        case c_ast.Assignment(op="=", rvalue=c_ast.BinaryOp(op="+" | "-")) if names_it(
            after.lvalue, name
        ) and names_it(after.rvalue.left, name):
            by, sign = after.rvalue.right, 1 if after.rvalue.op == "+" else -1
        case _:
            raise NestError(f"loop {name} steps by a number: {name}++ or {name} += 4")
    step = constant(index_of(by, scope))
    if not step:
        raise NestError(f"loop {name} steps by a number that is not 0")
    return sign * step


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


#: The index of a loop, outside of it: nests do not set the variable. Before the loop, it would
#: have the value that is left from the turn before of a loop around.
_INDEX = Refused("is the index of a loop and is used outside of it: declare it in for (int ...)")


class Statements:
    """A reader of statements. `mask`: the value that must not be 0 for a statement to run."""

    def __init__(self, names: Declarations) -> None:
        self.names = names

    def scop(self, items: Sequence[Any], scope: Scope) -> list[Node]:
        scope.names.update(dict.fromkeys(outer_indices(items), _INDEX))
        return self.run(items, scope, None)

    def run(self, items: Sequence[Any], scope: Scope, mask: Expr | None) -> list[Node]:
        nodes: list[Node] = []
        indices = outer_indices(items)
        for node in items:
            with on_line(node):
                if isinstance(node, c_ast.Decl) and node.name in indices:
                    scope.types[node.name] = declared(node.type, scope)
                    scope.names[node.name] = _INDEX
                else:
                    nodes += self._statement(node, scope, mask)
        return nodes

    def _statement(self, node: Any, scope: Scope, mask: Expr | None) -> list[Node]:
        match node:
            case c_ast.Compound():
                return self.run(node.block_items or [], scope.inner(), mask)
            case c_ast.Label():
                return self.run([node.stmt], scope, mask)
            case c_ast.DeclList():
                return self.run(node.decls, scope, mask)
            case c_ast.Pragma() | c_ast.EmptyStatement() | None:
                return []
            case c_ast.For():
                return self._for(node, scope, mask)
            case c_ast.If():
                return self._if(node, scope, mask)
            case c_ast.Decl():
                return self._local(node, scope, mask)
            case c_ast.Assignment():
                return self._assign(node, scope, mask)
            case c_ast.FuncCall(name=c_ast.ID(name=name)) if name.isupper():
                raise undefined(name)
            case c_ast.UnaryOp(op="p++" | "++" | "p--" | "--"):
                one = c_ast.Constant("int", "1", node.coord)
                op = "+=" if "+" in node.op else "-="
                return self._assign(c_ast.Assignment(op, node.expr, one, node.coord), scope, mask)
        raise NestError(
            f"{_BEYOND.get(type(node), type(node).__name__)} is not supported in a scop"
        )

    def _local(self, node: Any, scope: Scope, mask: Expr | None) -> list[Node]:
        """A declaration within a scop: a scalar, stored unless it is an integer set once."""
        scope.types[node.name] = declared(node.type, scope)
        dtype = STORED.get(scope.types[node.name])
        if dtype is None:
            self.names.declare(node, scope)
            return []
        times = self.names.assigned[node.name]
        if dtype in ("i32", "i64") and node.init is None and times < 2:
            scope.names[node.name] = Refused("has no value here", dtype, node.coord.line)
            return []
        if dtype in ("i32", "i64") and not times:
            with suppress(NestError):
                scope.names[node.name] = self._constant_index(node.name, node.init, scope)
                return []
        self.names.hold(node.name, Array(dtype, (), ""), scope, node.coord.line)
        if node.init is None:
            return []
        target = c_ast.ID(node.name, node.coord)
        assignment = c_ast.Assignment("=", target, node.init, node.coord)
        return self._assign(assignment, scope, None)

    def _constant_index(self, name: str, node: Any, scope: Scope) -> Index:
        """The index that a variable keeps: none of its arrays is written in the scop."""
        if scope.types.get(name) == "bool":
            raise NestError(f"{name} is 0 or 1")
        index = index_of(node, scope)
        for access in index.reads():
            array = self.names.own_names[access.array]
            if self.names.assigned[array]:
                raise NestError(f"{array} is written")
        return index

    def _assign(self, node: Any, scope: Scope, mask: Expr | None) -> list[Node]:
        op, right = node.op, node.rvalue
        if isinstance(right, c_ast.Assignment):  # a = b = 1: b has its type before a reads it
            last = c_ast.Assignment(op, node.lvalue, right.lvalue, node.coord)
            return [*self._assign(right, scope, mask), *self._assign(last, scope, mask)]
        if isinstance(node.lvalue, c_ast.ID):
            meaning = scope.names.get(node.lvalue.name)
            if isinstance(meaning, Refused) and meaning.dtype:
                if op == "=" and mask is None:
                    with suppress(NestError):
                        name = node.lvalue.name
                        scope.names[name] = self._constant_index(name, right, scope)
                        return []
                home = scope.home(node.lvalue.name)
                self.names.hold(node.lvalue.name, Array(meaning.dtype, (), ""), home, meaning.line)
        target, own = element(node.lvalue, scope)
        cast = isinstance(right, c_ast.Cast) and declared(right.to_type.type, scope)
        if cast == own.type and (cast == "f32" or (op == "=" and cast in ("i32", "i64"))):
            right = right.expr
        operators, value = Operators(self.names.arrays, scope.loops), typed(right, scope)
        if op == "/=" or (value.real and op in ("+=", "-=", "*=")):
            # Refuses a quotient of whole numbers, unsigned ones, or whole ones rounded to float.
            operators.stored(operators.pair(op[0], own, value), own.type, "=")
        stored = operators.stored(value, own.type, op)
        statement = combined(target, op, stored, mask, self.names.arrays)
        return [Step(statement, node.coord.line)]

    def _if(self, node: Any, scope: Scope, mask: Expr | None) -> list[Node]:
        operators, decides = Operators(self.names.arrays), typed(node.cond, scope)
        condition = operators.truth(decides)
        nodes = self.run([node.iftrue], scope.inner(), masked(mask, condition))
        if node.iffalse is not None:
            other = operators.opposite(decides)
            nodes += self.run([node.iffalse], scope.inner(), masked(mask, other))
            nodes = _merged(nodes, condition, mask, self.names.arrays)
        deciding = {access.array for access in reads(condition)}
        steps = [(path, one) for path, one in walk(nodes) if isinstance(one, Step)]
        for at, (path, one) in enumerate(steps):
            if one.statement.target.array in deciding and (path or at + 1 < len(steps)):
                name = self.names.array_names[one.statement.target.array]
                raise NestError(
                    f"{name} is the condition of statements and is written by one of them"
                )
        return nodes

    def _for(self, node: Any, scope: Scope, mask: Expr | None) -> list[Node]:
        name, loop, index = header(node, scope)
        inside = outer_indices([node.stmt])
        if name in inside or writes([node.stmt])[name]:
            raise NestError(f"{name} is a loop and is written in it")
        inner = scope.within(name, loop, index)
        if isinstance(node.init, c_ast.DeclList):
            inner.types[name] = of_index(node.init.decls[0].type, scope)
        elif scope.types.get(name) in NATURALS:
            inner.types[name] = NATURALS[scope.types[name]]
        nodes = self.run([node.stmt], inner, mask)
        return [Block(name, loop, tuple(nodes), node.coord.line)] if nodes else []


def _merged(
    nodes: list[Node], condition: Expr, mask: Expr | None, arrays: Sequence[Array]
) -> list[Node]:
    """`if (c) x = a; else x = b;` as one statement, where it converts neither value; anything else
    as it is."""
    match nodes:
        case [Step(one, line), Step(other, _)] if (
            one.where == masked(mask, condition)
            and (
                one.target,
                one.combine,
            )
            == (other.target, other.combine)
            and _alike(one, other, arrays)
        ):
            value = chosen(condition, one.value, other.value)
            return [Step(Statement(one.target, one.combine, value, mask), line)]
    return nodes


def _alike(one: Statement, other: Statement, arrays: Sequence[Array]) -> bool:
    """True if two values are computed in one type, or one is a number that gets that of the
    target."""
    left, right = (computed_type(each.value, arrays) for each in (one, other))
    number = isinstance(one.value, Const) or isinstance(other.value, Const)
    own = arrays[one.target.array].dtype
    return left == right or (number and joined_type([left, right]) == own)


@contextmanager
def on_line(node: Any) -> Iterator[None]:
    """Errors inside get the line of a node, unless they have one."""
    try:
        yield
    except NestError as error:
        coord = getattr(node, "coord", None)
        if error.line is not None or coord is None:
            raise
        raise NestError(
            error.reason, where=error.where, line=coord.line, hint=error.hint
        ) from error
