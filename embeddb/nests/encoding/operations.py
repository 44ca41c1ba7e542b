"""What the statements of a nest compute, counted by what it costs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from embeddb.nests.parts import Call, Const, Expr, LoopIndex, Read, Statement

__all__ = ["OPERATIONS", "operations", "uses_loop"]

#: Operators by what they cost.
OPERATIONS = {
    "add": ("+", "-"),
    "multiply": ("*",),
    "divide": ("/",),
    "compare": ("<", "<=", "==", "!=", "select"),
    "extreme": ("min", "max"),
    "sign": ("neg", "abs"),
    "sqrt": ("sqrt",),
    "exp": ("exp", "log", "tanh"),
}
_CLASS = {op: name for name, ops in OPERATIONS.items() for op in ops}


def operations(body: Iterable[Statement]) -> dict[str, int]:
    """How many operations of each class of `OPERATIONS` one turn of the body has, those by which
    reductions combine included; those of masks count as if always done."""
    found = dict.fromkeys(OPERATIONS, 0)
    for statement in body:
        for expression in (statement.value, statement.where):
            for op in _operators(expression):
                found[_CLASS[op]] += 1
        if statement.reduction:
            found[_CLASS[statement.combine.removesuffix("=")]] += 1
    return found


def _operators(expression: Expr | None) -> Iterator[str]:
    if isinstance(expression, Call):
        yield expression.op
        for argument in expression.args:
            yield from _operators(argument)


def uses_loop(expression: Expr | None) -> bool:
    """Whether it needs the value of a loop's index."""
    match expression:
        case LoopIndex():
            return True
        case Call(_, args):
            return any(map(uses_loop, args))
        case None | Const() | Read():
            return False
