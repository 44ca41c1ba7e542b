"""Workloads of a module: the program before a compiler has fused it, or its kernels after."""

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
            for below in _entered(one):
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


def _entered(one: Instruction) -> list[str]:
    if one.opcode not in ENTERED:
        return []
    tokens = [t for key in (*_CALLED, *_CALLED_BEFORE) for t in one.attributes.get(key, ())]
    return [token.removeprefix("%") for token in tokens if token not in ("{", "}", ",")]


def _kernel(module: Module, body: Body, one: Instruction, name: str, group: str) -> TensorGraph:
    graph = Graph(module)
    operands = [_input(graph, body.instructions[below]) for below in one.operands]
    if one.opcode in ("fusion", "async-start"):
        value: Value = graph.body(body_of(one), operands)
    else:
        value = graph.single(one, operands)
    outputs = list(dict.fromkeys(graph.places(value)))
    return computation(graph.operations, outputs, name=name, group=group, names=graph.names)


def _input(graph: Graph, instruction: Instruction) -> Value:
    if (
        instruction.opcode == "constant"
        and isinstance(instruction.shape, Shape)
        and not instruction.shape.rank
    ):
        return graph.add(
            Operation("constant", (instruction.shape,), (), canonical(instruction)),
            instruction.name,
        )
    return graph.parameters(instruction.name, instruction.shape, 0)
