"""Workloads of an HLO module: the program before a compiler has fused it, or its kernels after.

Calls and fusions are inlined, tuples resolved to their elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from embeddb.core.errors import TensorError
from embeddb.tensors.analysis import Region, combine_of, region_text
from embeddb.tensors.check import MOST_OPERATIONS, check_operation, computation
from embeddb.tensors.tensor_graph import Attribute, Operation, Shape, Signature, TensorGraph
from indexer.frontends.hlo.attributes import MOST_RAW, canonical, number_of
from indexer.frontends.hlo.instructions import (
    ENTERED,
    IDLE,
    OPAQUE,
    OPCODES,
    Body,
    Instruction,
    Module,
    ShapeTree,
    leaves,
)

_DEEPEST = 64
_MOST_VISITS = 4 * MOST_OPERATIONS
_MOST_REGION = 64
#: Opcodes with a body for two elements, and the attribute that names it.
_COMBINING = {
    **dict.fromkeys(("reduce", "reduce-window", "scatter", "sort", "map"), "to_apply"),
    **dict.fromkeys(("all-reduce", "reduce-scatter"), "to_apply"),
    "select-and-scatter": "scatter",
}


@dataclass(frozen=True, slots=True)
class Part:
    """One of several results of an operation."""

    place: int
    index: int


#: Value of an instruction: the index of an operation, one of its results, or several values.
Value = int | Part | tuple["Value", ...]


@dataclass(slots=True)
class Graph:
    """Operations in order, and the names of their instructions; `notes` are the module's."""

    module: Module
    operations: list[Operation] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    _parts: dict[Part, int] = field(default_factory=dict)
    _visits: int = 0

    def body(self, name: str, arguments: Sequence[Value] | None = None, depth: int = 0) -> Value:
        """The value of a body, whose instructions are added; without `arguments` its parameters
        are, too.

        Raises: TensorError, with the line.
        """
        if depth > _DEEPEST:
            raise TensorError(f"computations call each other more than {_DEEPEST} deep")
        body = self.module.bodies[name]
        values: dict[str, Value] = {}
        for one in in_order(body):
            self._visits += 1
            if self._visits > _MOST_VISITS or len(self.operations) > MOST_OPERATIONS:
                raise TensorError(f"more than {MOST_OPERATIONS:,} operations, calls inlined")
            try:
                values[one.name] = self._value(one, values, arguments, depth)
            except TensorError as error:
                line = one.line if error.line is None else error.line
                raise TensorError(error.reason, line=line, hint=error.hint) from None
        return values[body.root]

    def places(self, value: Value) -> list[int]:
        """Indices of the arrays in a value; one of several results is extracted by an operation."""
        if isinstance(value, int):
            return [value]
        if isinstance(value, tuple):
            return [place for part in value for place in self.places(part)]
        if value not in self._parts:
            shape = self.operations[value.place].results[value.index]
            extraction = Operation(
                "get-tuple-element", (shape,), (value.place,), {"index": value.index}
            )
            self._parts[value] = self.add(extraction, f"{self.names[value.place]}.{value.index}")
        return [self._parts[value]]

    def add(self, operation: Operation, name: str) -> int:
        check_operation(operation, len(self.operations), name)
        self.operations.append(operation)
        self.names.append(name)
        return len(self.operations) - 1

    def parameters(self, name: str, shape: ShapeTree, number: int) -> Value:
        """One parameter for every array in a shape."""
        if isinstance(shape, Shape):
            return self.add(Operation("parameter", (shape,), (), {"number": number}), name)
        parts = enumerate(shape)
        return tuple(self.parameters(f"{name}.{at}", part, number) for at, part in parts)

    def single(self, one: Instruction, operands: Sequence[Value]) -> Value:
        """An instruction as one operation, regardless of its bodies."""
        places = tuple(place for value in operands for place in self.places(value))
        results = leaves(one.shape)
        if not results:
            return ()
        if one.opcode not in OPCODES:
            self.module.note(f"opcode {one.opcode} is unknown: kept unchanged")
        elif one.opcode in OPAQUE:
            self.module.note(f"{one.opcode} is kept as one operation, without its body")
        attributes = canonical(one) | self._combined(one)
        if one.opcode == "constant" and not attributes:
            self.module.note(f"constant {one.name}: its numbers are {_why_lost(one)}")
        at = self.add(Operation(one.opcode, tuple(results), places, attributes), one.name)
        return at if isinstance(one.shape, Shape) else _parts(one.shape, at)

    def _value(
        self,
        one: Instruction,
        values: dict[str, Value],
        arguments: Sequence[Value] | None,
        depth: int,
    ) -> Value:
        operands = [values[name] for name in one.operands]
        match one.opcode:
            case "parameter":
                number = number_of(one)
                if arguments is not None:
                    return arguments[number]
                return self.parameters(one.name, one.shape, number)
            case "tuple":
                return tuple(operands)
            case "get-tuple-element":
                return _element(operands[0], int(str(canonical(one)["index"])))
            case "call" | "fusion":
                return self.body(body_of(one), operands, depth + 1)
            case "async-start":
                return tuple(operands), self.body(body_of(one), operands, depth + 1)
            case "async-update":
                return operands[0]
            case "async-done":
                return _element(operands[0], 1)
            case "opt-barrier" if len(operands) == 1:
                self.module.note("opt-barrier is left out: it computes nothing")
                return operands[0]
        return self.single(one, operands)

    def _combined(self, one: Instruction) -> dict[str, Attribute]:
        """Attributes of the bodies that an operation applies to elements."""
        key = _COMBINING.get(one.opcode)
        if key is None or key not in one.attributes:
            return {}
        attributes = self._region(_called(one, key), "combine", "region")
        if one.opcode == "select-and-scatter" and "select" in one.attributes:
            attributes |= self._region(_called(one, "select"), "select", "select_region")
        return attributes

    def _region(self, name: str, word: str, text: str) -> dict[str, Attribute]:
        inner = Graph(Module("", "", False, self.module.bodies, []))
        outputs = tuple(inner.places(inner.body(name)))
        region = Region(tuple(inner.operations), outputs)
        if combine := combine_of(region):
            return {word: combine}
        body_text = region_text(region) if len(inner.operations) <= _MOST_REGION else None
        whole = {} if body_text is None or len(body_text) > MOST_RAW else {text: body_text}
        return {word: "other", **whole}


def _why_lost(constant: Instruction) -> str:
    if "..." in constant.literal:
        return "not in the text: as_hlo_text(True) writes them"
    return f"left out, over {MOST_RAW:,} characters: make it a parameter"


def _element(value: Value, index: int) -> Value:
    assert isinstance(value, tuple)  # `verify` has checked it
    return value[index]


def body_of(one: Instruction) -> str:
    """Name of the body of a call or a fusion. Raises: TensorError if there is none."""
    return _called(one, "to_apply" if "to_apply" in one.attributes else "calls")


def _called(one: Instruction, key: str) -> str:
    if not (named := one.called(key)):
        raise TensorError(f"{one.name}: {one.opcode} names no computation")
    return named[0]


def _parts(shape: ShapeTree, place: int) -> Value:
    """A tuple like `shape`, of the results of the operation at a place."""
    numbers = count()

    def of(part: ShapeTree) -> Value:
        return Part(place, next(numbers)) if isinstance(part, Shape) else tuple(map(of, part))

    return of(shape)


def in_order(body: Body) -> list[Instruction]:
    """The instructions on which the root depends, operands first, without recursion.

    Raises: TensorError, with the line, for cycles.
    """
    done: dict[str, Instruction] = {}
    open_, stack = {body.root}, [(body.root, 0)]
    while stack:
        name, next_ = stack.pop()
        one = body.instructions[name]
        if name in done or next_ == len(one.operands):
            done[name] = one
            open_.discard(name)
            continue
        stack.append((name, next_ + 1))
        below = one.operands[next_]
        if below in done:
            continue
        if below in open_:
            raise TensorError(f"{name} depends on itself: the graph has a cycle", line=one.line)
        open_.add(below)
        stack.append((below, 0))
    return list(done.values())


_CALLED = (
    *("to_apply", "body", "condition", "branch_computations"),
    *("true_computation", "false_computation"),
)


def program_of(module: Module, *, name: str = "", group: str = "") -> TensorGraph:
    """The entry, with calls and fusions inlined; the elements of its root tuple are the outputs.
    Loops, branches and custom calls are single operations, with a note. `group` and `name` default
    to the module's without `jit_`.

    Raises: TensorError, with the line.
    """
    plain = _plain(module)
    graph = Graph(module)
    outputs = graph.places(graph.body(module.entry))
    return computation(
        graph.operations,
        list(dict.fromkeys(outputs)),
        kind="program",
        name=name or plain,
        group=group or plain,
        names=graph.names,
        signature=Signature(_parameters(graph), tuple(outputs)),
    )


def _parameters(graph: Graph) -> tuple[int | Shape, ...]:
    """The entry's parameters in the order of their numbers, tuples as their elements."""
    entry = graph.module.bodies[graph.module.entry].instructions.values()
    shapes = {number_of(one): one.shape for one in entry if one.opcode == "parameter"}
    places: dict[int, list[int]] = {}
    for at, operation in enumerate(graph.operations):
        if operation.opcode == "parameter":
            places.setdefault(operation.number("number"), []).append(at)
    return tuple(
        one for number in sorted(shapes) for one in places.get(number) or leaves(shapes[number])
    )


def kernels_of(module: Module, *, name: str = "", group: str = "") -> list[TensorGraph]:
    """Each fusion and each lone operation that computes or moves data, in order: those of the
    entry, of its calls, and, once, of the bodies of its loops and of its branches.

    Results of other kernels are parameters, except for constants of one element. Operations that
    cannot be kernels are noted. Names consist of module (or `name`) and instruction.

    Raises: TensorError, with the line, if the module is inconsistent.
    """
    head = name or _plain(module)
    kernels: list[TensorGraph] = []
    waiting, seen = [module.entry], {module.entry}
    while waiting:
        body = module.bodies[waiting.pop(0)]
        for one in in_order(body):
            for below in one.called(*_CALLED) if one.opcode in ENTERED else ():
                if below not in seen:
                    seen.add(below)
                    waiting.append(below)
            if one.opcode in IDLE or one.opcode in ENTERED:
                continue
            try:
                kernel = _kernel(module, body, one, f"{head}.{one.name}", group or _plain(module))
            except TensorError as error:
                module.notes.append(f"{one.name} is left out: {error.reason}")
                continue
            kernels.append(kernel)
    return kernels


def _plain(module: Module) -> str:
    return module.name.removeprefix("jit_")


def _kernel(module: Module, body: Body, one: Instruction, name: str, group: str) -> TensorGraph:
    graph = Graph(module)
    operands = [_input(graph, body.instructions[below]) for below in one.operands]
    if one.opcode in ("fusion", "async-start"):
        value: Value = graph.body(body_of(one), operands)
    else:
        value = graph.single(one, operands)
    places = graph.places(value)
    arguments = (at for operand in operands for at in graph.places(operand))
    parameters = [at for at in arguments if graph.operations[at].opcode == "parameter"]
    return computation(
        graph.operations,
        list(dict.fromkeys(places)),
        name=name,
        group=group,
        names=graph.names,
        signature=Signature(tuple(parameters), tuple(places)),
    )


def _input(graph: Graph, instruction: Instruction) -> Value:
    name, shape = instruction.name, instruction.shape
    if instruction.opcode == "constant" and isinstance(shape, Shape) and not shape.rank:
        return graph.add(Operation("constant", (shape,), (), canonical(instruction)), name)
    return graph.parameters(name, shape, 0)
