"""Tasklets of an `.sdfg` file as statements of a nest. Their code, Python or C, is parsed and never
run."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pycparser import c_ast, c_parser

from embeddb.core.errors import NestError
from embeddb.nests.parts import Access, Array, Expr, Statement
from indexer.frontends.c.expressions import typed
from indexer.frontends.dace.data import Place, Values, View, expression, parsed
from indexer.frontends.distribute import combined
from indexer.frontends.scalars import chosen, masked, opposite, truth


@dataclass(frozen=True, slots=True)
class Output:
    """Target of a connector, and the way it is written: `=`, or a reduction."""

    connector: str
    view: View
    combine: str


def tasklet(
    code: object, inputs: Mapping[str, Expr | View], outputs: Sequence[Output], place: Place
) -> tuple[list[Statement], dict[str, Expr]]:
    """The statements of a tasklet, and the values of its variables for tasklets that read them.

    Raises: NestError.
    """
    if not isinstance(code, dict):
        raise NestError("a tasklet has no code")
    language, text = code.get("language"), code.get("string_data")
    views = {output.connector: output.view for output in outputs}
    reader = _Reader(Values({**views, **inputs}, place))
    if language == "Python":
        reader.run(parsed(text), None)
    elif language == "CPP" and isinstance(text, str):
        _run_c(reader, text, inputs, place)
    else:
        raise NestError(f"a tasklet in {str(language)[:20]} is not supported")
    return reader.statements(outputs, place.scope.arrays), reader.assigned


def combine_of(wcr: object) -> str:
    """Assignment operator for the reduction `lambda a, b: ...`; `=` without it.

    Raises: NestError unless it is a sum, product, minimum or maximum.
    """
    if wcr is None:
        return "="
    parsed_wcr = expression(wcr)
    if isinstance(parsed_wcr, ast.Lambda) and len(parsed_wcr.args.args) == 2:
        names = sorted(arg.arg for arg in parsed_wcr.args.args)
        match parsed_wcr.body:
            case ast.BinOp(ast.Name(one), op, ast.Name(other)) if sorted((one, other)) == names:
                combine = {ast.Add: "+=", ast.Mult: "*="}.get(type(op))
                if combine:
                    return combine
            case ast.Call(ast.Name("min" | "max" as op), [ast.Name(one), ast.Name(other)]) if (
                sorted((one, other)) == names
            ):
                return f"{op}="
    raise NestError(f"results are combined by {str(wcr)[:60]!r}, which is not supported in a nest")


class _Reader:
    """Assignments in order: values of names, their conditions, and elements."""

    def __init__(self, values: Values) -> None:
        self.values = values
        self.assigned: dict[str, Expr] = {}
        self._masks: dict[str, Expr] = {}
        self._elements: list[tuple[str, Access, Expr, Expr | None]] = []

    def run(self, body: Sequence[ast.stmt], mask: Expr | None) -> None:
        for node in body:
            match node:
                case ast.Assign([ast.Name(name)], value):
                    self.assign(name, self.values.of(value), mask)
                case ast.Assign([ast.Subscript(ast.Name(name), at)], value):
                    target = self.values.element(name, at)
                    self._elements.append((name, target, self.values.of(value), mask))
                case ast.If(test, one, other):
                    condition = truth(self.values.of(test))
                    self.run(one, masked(mask, condition))
                    self.run(other, masked(mask, opposite(condition)))
                case ast.Pass():
                    pass
                case _:
                    raise NestError(f"{type(node).__name__} is not supported in a tasklet")

    def assign(self, name: str, value: Expr, mask: Expr | None) -> None:
        before = self._masks.pop(name, None)
        if mask is not None:
            if before is not None and mask == opposite(before):
                value = chosen(before, self.assigned[name], value)
            elif before is None and name in self.assigned:
                value = chosen(mask, value, self.assigned[name])
            elif before is None:
                self._masks[name] = mask
            else:
                raise NestError(f"{name} is written under conditions that cannot be combined")
        self.assigned[name] = self.values.names[name] = value

    def statements(self, outputs: Sequence[Output], arrays: Sequence[Array]) -> list[Statement]:
        statements: list[Statement] = []
        for output in outputs:
            for name, target, value, mask in self._elements:
                if name == output.connector:
                    statements.append(combined(target, output.combine, value, mask, arrays))
            if output.connector in self.assigned:
                if not output.view.single:
                    raise NestError(f"{output.connector} is more than one element")
                target = output.view.access([])
                value, mask = self.assigned[output.connector], self._masks.get(output.connector)
                statements.append(combined(target, output.combine, value, mask, arrays))
        return statements


def _run_c(reader: _Reader, text: str, inputs: Mapping[str, Expr | View], place: Place) -> None:
    """`out = expression;` in C, once or more often."""
    if len(text) > 4000:
        raise NestError("a code is a text of at most 4000 letters")
    try:
        tree = c_parser.CParser().parse(f"void f(void) {{ {text} }}")
    except c_parser.ParseError as error:
        raise NestError(f"{text[:40]!r} cannot be parsed") from error
    scope = replace(place.scope.inner(), overloaded=True, loops=())
    for name, value in inputs.items():
        if not isinstance(value, View):
            scope.names[name] = value
    for node in tree.ext[0].body.block_items or []:
        if not (
            isinstance(node, c_ast.Assignment)
            and node.op == "="
            and isinstance(node.lvalue, c_ast.ID)
        ):
            raise NestError(f"{type(node).__name__} is not supported in a tasklet")
        value = typed(node.rvalue, scope).value
        scope.names[node.lvalue.name] = value
        reader.assign(node.lvalue.name, value, None)
