"""Printer of a computation as HLO text that XLA parses and compiles."""

from __future__ import annotations

from collections.abc import Sequence

from embeddb.core.errors import TensorError
from embeddb.tensors.analysis import region_of
from embeddb.tensors.partition import Partition
from embeddb.tensors.tensor_graph import Operation, Shape, TensorGraph
from indexer.frontends.hlo.attributes import FIELDS, braces

_LOST = frozenset(("while", "conditional", "custom-call", "fusion", "call", "async-start"))
_COMBINED = ("reduce", "reduce-window", "scatter", "sort", "map", "all-reduce", "reduce-scatter")


def hlo_text(graph: TensorGraph) -> str:
    """One module whose entry takes the parameters in their order and returns the outputs: one
    array, or a tuple of them. A bitcast, which only an optimised module may have, is written as the
    equivalent transposes and reshape.

    Raises: TensorError for operations whose bodies were left out when they were read.
    """
    regions: dict[str, str] = {}
    body = _computation("ENTRY main", graph, regions)
    return "\n\n".join([_head(graph), *regions.values(), body]) + "\n"


def fused_text(partition: Partition) -> str:
    """The program of a partition as one module whose entry calls each kernel as a fusion.

    Raises: as `hlo_text`.
    """
    program, regions = partition.program, dict[str, str]()
    bodies: list[str] = []
    entry = [
        f"  {_name(at)} = {program.operations[at].shape} parameter({number})"
        for number, at in enumerate(program.parameters)
    ]
    for number, placed in enumerate(partition.kernels):
        kernel, called = placed.kernel, f"fused_computation.{number}"
        bodies.append(_computation(called, kernel, regions))
        arguments = ", ".join(map(_name, placed.takes))
        gives = _output_shapes(kernel)
        single = len(placed.gives) == 1
        name = _name(placed.gives[0]) if single else f"fusion.{number}"
        entry.append(
            f"  {name} = {gives} fusion({arguments}), kind={_kind(kernel)}, calls={called}"
        )
        if not single:
            entry += [
                f"  {_name(at)} = {program.operations[at].shape} "
                f"get-tuple-element({name}), index={index}"
                for index, at in enumerate(placed.gives)
            ]
    entry += _copied(partition, regions)
    whole = [_head(program), *regions.values(), *bodies, _framed("ENTRY main", program, entry)]
    return "\n\n".join(whole) + "\n"


def _copied(partition: Partition, regions: dict[str, str]) -> list[str]:
    """Lines of outputs that no kernel computes: constants, and operations on them."""
    program = partition.program
    computed = {*program.parameters, *(at for placed in partition.kernels for at in placed.gives)}
    needed = set(program.outputs) - computed
    for at in reversed(range(len(program.operations))):
        if at in needed:
            needed |= set(program.operations[at].operands) - computed
    return [_line(program, at, regions) for at in sorted(needed)]


def _kind(kernel: TensorGraph) -> str:
    """XLA's kind of fusion for a kernel."""
    opcodes = {op.opcode for op in kernel.operations}
    if opcodes & {"dot", "convolution"}:
        return "kOutput"
    return "kInput" if "reduce" in opcodes else "kLoop"


def _head(graph: TensorGraph) -> str:
    shapes = [str(graph.operations[at].shape) for at in graph.parameters]
    layout = f"entry_computation_layout={{({', '.join(shapes)})->{_output_shapes(graph)}}}"
    return f"HloModule {_word(graph.name) or 'kernel'}, {layout}"


def _output_shapes(graph: TensorGraph) -> str:
    return _one_or_tuple([_shapes(graph.operations[at].results) for at in graph.outputs])


def _computation(head: str, graph: TensorGraph, regions: dict[str, str]) -> str:
    lines = [_line(graph, at, regions) for at in range(len(graph.operations))]
    return _framed(head, graph, lines)


def _framed(head: str, graph: TensorGraph, lines: list[str]) -> str:
    """A computation with its root marked."""
    text = "\n".join([f"{head} {{", *lines])
    if len(graph.outputs) > 1:
        outputs = ", ".join(map(_name, graph.outputs))
        return f"{text}\n  ROOT out = {_output_shapes(graph)} tuple({outputs})\n}}"
    start = f"\n  {_name(graph.outputs[0])} = "
    return text.replace(start, start.replace("  ", "  ROOT "), 1) + "\n}"


def _name(at: int) -> str:
    return f"o{at}"


def _word(name: str) -> str:
    """A module name that XLA accepts: letters and digits of a name."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "_.-") else "_" for c in name)
    return plain if plain[:1].isalpha() or plain[:1] == "_" else plain and f"_{plain}"


def _shapes(results: Sequence[Shape]) -> str:
    return _one_or_tuple([str(shape) for shape in results])


def _one_or_tuple(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"({', '.join(texts)})"


def _line(graph: TensorGraph, at: int, regions: dict[str, str]) -> str:
    op = graph.operations[at]
    if op.opcode in _LOST:
        raise TensorError(
            f"{_where(graph, at)}: {op.opcode} cannot be written as HLO: its body was not read"
        )
    operands = ", ".join(map(_name, op.operands))
    if op.opcode == "parameter":
        operands = str(op.attributes["number"])
    elif op.opcode == "constant":
        operands = _literal(op)
    elif op.opcode == "bitcast":
        if not op.operands:  # in the text of a region, which is not checked
            raise TensorError(f"{_where(graph, at)}: a bitcast of nothing cannot be written as HLO")
        return _bitcast(at, op, graph.operand_shapes(at)[0])
    tail = _attributes(graph, at, regions)
    return ", ".join([f"  {_name(at)} = {_shapes(op.results)} {op.opcode}({operands})", *tail])


def _bitcast(at: int, op: Operation, operand: Shape) -> str:
    """The operand's elements in memory order, read as the result's."""
    if operand.dtype != op.shape.dtype:
        return f"  {_name(at)} = {op.shape} bitcast-convert({_name(op.operands[0])})"
    outer, inner = operand.layout[::-1], op.shape.layout[::-1]
    before = Shape(operand.dtype, tuple(operand.dims[d] for d in outer))
    after = Shape(operand.dtype, tuple(op.shape.dims[d] for d in inner))
    back = tuple(inner.index(d) for d in range(len(inner)))
    name, below = _name(at), _name(op.operands[0])
    return "\n".join(
        [
            f"  {name}.lies = {before} transpose({below}), dimensions={braces(outer)}",
            f"  {name}.flat = {after} reshape({name}.lies)",
            f"  {name} = {op.shape} transpose({name}.flat), dimensions={braces(back)}",
        ]
    )


def _where(graph: TensorGraph, at: int) -> str:
    return f"operation {graph.names[at] if graph.names else at}"


def _literal(op: Operation) -> str:
    """The number, repeated for each element; XLA chooses the elements of a truncated literal."""
    if "raw" in op.attributes:
        return str(op.attributes["raw"])
    if not op.shape.rank:
        return str(op.attributes.get("value", "0"))
    if "value" not in op.attributes or op.shape.elements > 1 << 16:
        return "{...}"
    text = str(op.attributes["value"])
    for dim in reversed(op.shape.dims):
        text = "{" + ",".join([text] * dim) + "}"
    return text


def _attributes(graph: TensorGraph, at: int, regions: dict[str, str]) -> list[str]:
    op = graph.operations[at]
    raw = "" if op.opcode in FIELDS else str(op.attributes.get("raw", ""))
    if raw.endswith("…"):
        raise TensorError(f"{_where(graph, at)}: its attributes were cut short")
    texts = {field.key: field.text(op) for field in FIELDS.get(op.opcode, ())}
    written = [f"{key}={text}" for key, text in texts.items() if text]
    return [*written, *([raw] if raw else []), *_bodies(graph, at, regions)]


def _bodies(graph: TensorGraph, at: int, regions: dict[str, str]) -> list[str]:
    """The bodies that an operation applies to elements, each once in `regions`."""
    op = graph.operations[at]
    if op.opcode == "select-and-scatter":
        both = [("select", "select", "select_region"), ("scatter", "combine", "region")]
    elif op.opcode in _COMBINED:
        both = [("to_apply", "combine", "region")]
    else:
        return []
    return [f"{key}={_body(graph, at, word, text, regions)}" for key, word, text in both]


def _body(graph: TensorGraph, at: int, word: str, text: str, regions: dict[str, str]) -> str:
    op = graph.operations[at]
    combine = str(op.attributes.get(word, "other"))
    if combine != "other":
        dtype = op.shape.dtype
        region = region_of(f"parameter.{dtype}()0 parameter.{dtype}()1 {combine}.{dtype}(0,1) => 2")
        key = f"{combine}.{dtype}"
    elif text in op.attributes:
        key = str(op.attributes[text])
        region = region_of(key)
    else:
        raise TensorError(
            f"{_where(graph, at)}: {op.opcode} cannot be written as HLO: its "
            "combining body was not read"
        )
    if key not in regions:
        graph = TensorGraph(region.operations, region.outputs)
        regions[key] = _computation(f"region{len(regions)}", graph, regions)
    return regions[key].partition(" ")[0]
