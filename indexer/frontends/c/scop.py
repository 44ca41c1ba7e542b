"""C between `#pragma scop` and `#pragma endscop` as a tree of loops.

    #define N 1000
    float A[N][N], x[N], y[N];
    int col[N];
    #pragma embeddb fill col below:N
    void kernel(void) {
    #pragma scop
      for (int i = 0; i < N; i++) {
        y[i] = 0;
        for (int j = 0; j < N; j++)
          y[i] += A[i][j] * x[col[j]];
      }
    #pragma endscop
    }

No preprocessor or compiler runs: `c.text` replaces macros, pycparser parses. Arrays are declared
with their sizes; pointers, which could overlap, are refused. Initial values of arrays are not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pycparser import c_ast, c_parser

from embeddb.core.errors import NestError
from embeddb.core.pattern import Pattern
from indexer.frontends.c.statements import Declarations, Statements, holds_scop, on_line
from indexer.frontends.c.text import SourceText, source_text, undefined, undefined_macro
from indexer.frontends.c.types import declared
from indexer.frontends.tree import Node, Program, Scope

#: Types of headers, which are not read; on the first line, so that lines keep their numbers.
_TYPEDEFS = (
    "typedef int int32_t; typedef long int64_t; typedef unsigned long size_t; typedef _Bool bool; "
)
_NAME = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class Scop:
    """The tree of a function, the lines of the two pragmas, and the statements between them."""

    function: Any
    start: int
    end: int
    items: Sequence[Any]


@dataclass(frozen=True, slots=True)
class CFile:
    """A C file as a program of nests, and its source: the scops, the text without comments and
    macros, and the declarations."""

    program: Program
    scops: tuple[Scop, ...]
    text: SourceText
    names: Declarations

    def check_defined(self, names: Iterable[str], where: str) -> None:
        """Raises: NestError for a name that has no meaning in the file, which is `where`."""
        present = {
            *self.text.macros,
            *self.text.tested,
            *_NAME.findall(self.text.text),
            *(name for fill, _ in self.text.fills.values() for name in _NAME.findall(fill)),
        }
        fixed = [name for name, _ in self.names.fixed]
        for name in names:
            if name not in present:
                there = sorted({*self.text.macros, *self.text.tested, *fixed})
                hint = f"-D sets one of {', '.join(there[:20])}" if there else ""
                raise NestError(f"has no macro or size {name}", where=where, hint=hint)


def read_c(
    source: str,
    *,
    name: str,
    defines: Mapping[str, int | float] | None = None,
    matrix: Pattern | None = None,
) -> CFile:
    """The scops of a C file, one after the other. `defines` are values of macros, and of scalars
    without one in the file; `matrix` as in `source_text`.

    Raises: NestError with the line.
    """
    text = source_text(source, defines=defines, matrix=matrix)
    tree = _parsed(text.text)
    names = Declarations(text, [n for n in tree.ext if isinstance(n, c_ast.FuncDef)])
    scope, scops, body = Scope(names.arrays), list[Scop](), list[Node]()
    scope.names.update(names.defined)
    for node in tree.ext:
        with on_line(node):
            if isinstance(node, c_ast.Typedef):
                scope.types[node.name] = declared(node.type, scope)
            elif isinstance(node, c_ast.Decl):
                names.declare(node, scope)
            elif isinstance(node, c_ast.FuncDef) and holds_scop(node):
                for scop, nodes in _scops_of(node, Statements(names), scope.inner()):
                    scops.append(scop)
                    body += nodes
    if len(scops) != len(re.findall(r"^#pragma scop$", text.text, re.M)):
        raise NestError("#pragma scop must be in the body of a function, outside of loops")
    if not scops:
        raise NestError("has no #pragma scop around its loops")
    for array, (_, line) in text.fills.items():
        if array not in names.array_names:
            raise NestError(f"fill of {array}: there is no such array", line=line)
    for array in text.matrix_fills.keys() - set(names.array_names):
        raise NestError(f"there is no array {array} for the matrix")
    return CFile(names.program(name, body), tuple(scops), text, names)


def _parsed(text: str) -> Any:
    parser = c_parser.CParser()
    try:
        return parser.parse(_TYPEDEFS + text)
    except c_parser.ParseError as error:
        place = re.fullmatch(r"[^:]*:(\d+)(?::\d+)?:\s*(.*)", str(error), re.S)
        # Some errors have no line: then as far as the parser has read.
        read = getattr(parser.clex, "_lineno", None)
        line, reason = (int(place[1]), place[2]) if place else (read, str(error).lstrip(": "))
        if macro := undefined_macro(text, line):
            raise undefined(*macro) from error
        raise NestError(f"cannot be parsed, {reason}", line=line) from error


def _scops_of(
    function: Any, statements: Statements, scope: Scope
) -> Iterator[tuple[Scop, list[Node]]]:
    """The scops of a function, and the nodes of each."""
    parameters = function.decl.type.args
    for one in parameters.params if parameters else []:
        if isinstance(one, c_ast.Decl):
            statements.names.declare(one, scope)

    def within(items: Sequence[Any], scope: Scope) -> Iterator[tuple[Scop, list[Node]]]:
        start = None
        for at, node in enumerate(items):
            with on_line(node):
                if isinstance(node, c_ast.Pragma) and node.string == "scop":
                    start = at
                elif isinstance(node, c_ast.Pragma) and node.string == "endscop":
                    if start is None:
                        raise NestError("#pragma endscop without #pragma scop")
                    between = items[start + 1 : at]
                    scop = Scop(function, items[start].coord.line, node.coord.line, between)
                    yield scop, statements.scop(between, scope)
                    start = None
                elif start is None and isinstance(node, c_ast.Decl):
                    statements.names.declare(node, scope)
                elif start is None and isinstance(node, c_ast.Compound):
                    yield from within(node.block_items or [], scope.inner())
        if start is not None:
            raise NestError("#pragma scop without #pragma endscop", line=items[-1].coord.line)

    return within(function.body.block_items or [], scope)
