"""What a module is taken for: the program before a compiler has fused it, or its kernels after."""

from __future__ import annotations

from embeddb.core.errors import TensorError
from embeddb.tensors.check import computation
from embeddb.tensors.tensor_graph import Operation, Shape, TensorGraph
from indexer.frontends.hlo.attributes import canonical
from indexer.frontends.hlo.graph import Graph, Value, body_of, in_order
from indexer.frontends.hlo.instructions import ENTERED, IDLE, Body, Instruction, Module

_CALLED = ("to_apply", "body", "condition", "branch_computations")
_CALLED_BEFORE = ("true_computation", "false_computation")


def program_of(module: Module, *, name: str = "", group: str = "") -> TensorGraph:
    """The entry, with calls and fusions inlined; what its root tuple holds is given out. Loops,
    branches and custom calls are single operations, with a note.

    `group` and `name` are the module's without `jit_` where none is given.
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
    )


def kernels_of(module: Module, *, name: str = "", group: str = "") -> list[TensorGraph]:
    """Each fusion and each lone operation that computes or moves something, in order: those of the
    entry, of what it calls, and, once, of the bodies of its loops and of its branches.

    What other kernels make is a parameter, but for constants of one element. Those that cannot be
    kernels are noted. Named are they by module (or `name`) and instruction.
    Raises: TensorError, with the line, where the module does not fit together.
    """
    head = name or _plain(module)
    found: list[TensorGraph] = []
    waiting, seen = [module.entry], {module.entry}
    while waiting:
        body = module.bodies[waiting.pop(0)]
        for one in in_order(body):
            for below in _entered(one):
                if below not in seen:
                    seen.add(below)
                    waiting.append(below)
            if one.opcode in IDLE or one.opcode in ENTERED:
                continue
            try:
                made = _kernel(module, body, one, f"{head}.{one.name}", group or _plain(module))
            except TensorError as error:
                module.notes.append(f"{one.name} is left out: {error.reason}")
                continue
            found.append(made)
    return found


def _plain(module: Module) -> str:
    return module.name.removeprefix("jit_")


def _entered(one: Instruction) -> list[str]:
    if one.opcode not in ENTERED:
        return []
    tokens = [t for key in (*_CALLED, *_CALLED_BEFORE) for t in one.attributes.get(key, ())]
    return [token.removeprefix("%") for token in tokens if token not in ("{", "}", ",")]


def _kernel(module: Module, body: Body, one: Instruction, name: str, group: str) -> TensorGraph:
    graph = Graph(module)
    operands = [_given(graph, body.instructions[below]) for below in one.operands]
    if one.opcode in ("fusion", "async-start"):
        value: Value = graph.body(body_of(one), operands)
    else:
        value = graph.single(one, operands)
    outputs = list(dict.fromkeys(graph.places(value)))
    return computation(graph.operations, outputs, name=name, group=group, names=graph.names)


def _given(graph: Graph, made: Instruction) -> Value:
    if made.opcode == "constant" and isinstance(made.shape, Shape) and not made.shape.rank:
        return graph.add(Operation("constant", (made.shape,), (), canonical(made)), made.name)
    return graph.parameters(made.name, made.shape, 0)
