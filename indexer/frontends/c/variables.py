"""Writes of variables in the tree of a C file, and whether the value that a scop leaves in one is
read after it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from pycparser import c_ast

_STEPS = ("p++", "++", "p--", "--")


def below(nodes: Sequence[Any]) -> Iterator[Any]:
    """The nodes and all nodes below them."""
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        yield node
        waiting += [child for _, child in node.children()]


def writes(nodes: Sequence[Any]) -> Counter[str]:
    """Number of writes of each name, except for initial values and the indices of loops."""
    names: Counter[str] = Counter()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if isinstance(node, c_ast.For):
            waiting.append(node.stmt)
            continue
        target = _target(node)
        while isinstance(target, c_ast.ArrayRef):
            target = target.name
        if isinstance(target, c_ast.ID):
            names[target.name] += 1
        waiting += [child for _, child in node.children()]
    return names


def outer_indices(nodes: Sequence[Any]) -> set[str]:
    """Indices of loops that are declared before them: `for (k = 0; ...)`."""
    starts = [_target(node.init) for node in below(nodes) if isinstance(node, c_ast.For)]
    return {start.name for start in starts if isinstance(start, c_ast.ID)}


def _target(node: Any) -> Any:
    """The target of an assignment or of a step by one; None for another node."""
    if isinstance(node, c_ast.Assignment):
        return node.lvalue
    if isinstance(node, c_ast.UnaryOp) and node.op in _STEPS:
        return node.expr
    return None


def set_outside(nodes: Sequence[Any], inside: frozenset[str] = frozenset()) -> set[str]:
    """Variables, not arrays, that statements write and that are declared before these."""
    names: set[str] = set()
    for node in nodes:
        inside |= declared_by([node])
        target = _target(node)
        if isinstance(target, c_ast.ID) and target.name not in inside:
            names.add(target.name)
        names |= set_outside([child for _, child in node.children()], inside)
    return names


def declared_by(nodes: Sequence[Any]) -> frozenset[str]:
    """Names that declarations among the nodes declare for what follows these."""
    lists = [node.decls if isinstance(node, c_ast.DeclList) else [node] for node in nodes]
    decls = (one for some in lists for one in some if isinstance(one, c_ast.Decl))
    return frozenset(one.name for one in decls if one.name)


class AroundScop:
    """The function around the `#pragma endscop` on line `end`."""

    def __init__(self, function: Any, end: int) -> None:
        self._function = function
        self._end = end
        #: What follows in each block around the pragma, the innermost first.
        self._rests: list[Sequence[Any]] = []
        #: Declarations before it, in the order in which a name is looked up.
        self._declarations: list[Any] = []
        self._enter(function.body.block_items or [], end)
        parameters = function.decl.type.args
        self._declarations += parameters.params if parameters else []

    def _enter(self, items: Sequence[Any], end: int) -> bool:
        for at, node in enumerate(items):
            here = isinstance(node, c_ast.Pragma) and node.coord.line == end
            inner = isinstance(node, c_ast.Compound)
            if here or (inner and self._enter(node.block_items or [], end)):
                self._rests.append(items[at + 1 :])
                self._declarations += [n for n in items[:at] if isinstance(n, c_ast.Decl)]
                return True
        return False

    def declaration(self, name: str) -> Any:
        """The declaration of a name that is valid at the pragma; None outside of the function."""
        own = (one for one in self._declarations if getattr(one, "name", None) == name)
        return next(own, None)

    def uses(self, name: str) -> bool:
        """True if the rest of the block of the pragma uses a name, whatever it stands for."""
        return used(self._rests[0], name)

    def needs(self, name: str) -> str:
        """Reason why the value that a variable has at the pragma may be read; empty if it is
        not."""
        storage = getattr(self.declaration(name), "storage", ["extern"])
        if "extern" in storage:
            return f"the last value of {name} may be read by another function"
        if "static" in storage:
            return f"the last value of {name} may be read by another call, as it is static"
        for node in below([self._function.body]):
            if isinstance(node, c_ast.Label) and node.coord.line < self._end:
                return f"the last value of {name} may be read after a goto {node.name}"
            if isinstance(node, c_ast.UnaryOp) and node.op == "&" and names_it(node.expr, name):
                return f"the last value of {name} may be read by its address"
        if not any(used(rest, name) for rest in self._rests):
            return ""
        try:
            use = next((use for rest in self._rests if (use := _block(rest, name))), "")
        except RecursionError:  # an expression of thousands of operators
            use = "read"
        return f"{name} is read after them" if use == "read" else ""


def names_it(node: Any, name: str) -> bool:
    """True for a use of a variable."""
    return isinstance(node, c_ast.ID) and node.name == name


def used(nodes: Sequence[Any], name: str) -> bool:
    """True if a name is used below nodes, whatever it stands for there."""
    return any(names_it(node, name) for node in below(nodes))


def _block(items: Sequence[Any], name: str) -> str:
    """The use in a block; below a declaration of the same name it is of another variable."""
    use = _first(items, name)
    return "" if use == "hidden" else use


def _first(nodes: Sequence[Any], name: str) -> str:
    return next((use for node in nodes if (use := _use(node, name))), "")


def _use(node: Any, name: str) -> str:
    """The first use of a variable in a node: `read` if it may be read, `set` if it is set or the
    function ends, `hidden` if another one of the name is declared; else empty."""
    match node:
        case None:
            return ""
        case c_ast.ID():
            return "read" if node.name == name else ""
        case c_ast.Assignment(op="=", lvalue=c_ast.ID(name=target)):
            return _use(node.rvalue, name) or ("set" if target == name else "")
        case c_ast.Assignment():
            return _first((node.rvalue, node.lvalue), name)
        case c_ast.Decl(name=declared) if declared == name:
            return "read" if used([node], name) else "hidden"
        case c_ast.Compound():
            return _block(node.block_items or [], name)
        case c_ast.Return():
            return _use(node.expr, name) or "set"
        case c_ast.If() | c_ast.TernaryOp():
            either = (_use(one, name) for one in (node.iftrue, node.iffalse))
            return _use(node.cond, name) or _of_either(*either)
        case c_ast.BinaryOp(op="&&" | "||"):
            return _use(node.left, name) or _of_either(_use(node.right, name), "")
        case c_ast.For():
            use = _first((node.init, node.cond), name)
            if use == "hidden":
                return ""
            return use or _of_either(_use(node.stmt, name), _use(node.next, name), "")
        case c_ast.While():
            return _use(node.cond, name) or _of_either(_use(node.stmt, name), "")
        case c_ast.DoWhile():
            return _of_either(_use(node.stmt, name), _use(node.cond, name), "")
        case c_ast.Switch():
            jumps = any(isinstance(one, c_ast.Goto) for one in below([node]))
            return "read" if jumps or used([node], name) else ""
        case c_ast.Goto():
            return "read"  # at its label
    return _first([child for _, child in node.children()], name)


def _of_either(*uses: str) -> str:
    """The use of a node that runs one of its parts."""
    if "read" in uses:
        return "read"
    return "set" if all(use == "set" for use in uses) else ""
