"""Printer of a computation as HLO text that XLA parses and compiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from embeddb.core.errors import TensorError
from embeddb.tensors.analysis import region_of
from embeddb.tensors.partition import Partition
from embeddb.tensors.tensor_graph import DTYPES, Operation, Shape, Signature, TensorGraph
from indexer.frontends.hlo.attributes import FIELDS, braces

_LOST = frozenset(("while", "conditional", "custom-call", "fusion", "call", "async-start"))
#: A literal whose numbers are not in the text.
_ELIDED = "{...}"
_COMBINED = ("reduce", "reduce-window", "scatter", "sort", "map", "all-reduce", "reduce-scatter")


def hlo_text(graph: TensorGraph) -> str:
    """One module whose entry takes the parameters and returns the outputs (one array, or a tuple of
    them) of the graph's signature; without one, in the graph's order, with a comment that names
    each parameter. A bitcast, which only an optimised module may have, is written as the equivalent
    transposes and reshape.

    Raises: TensorError for operations whose bodies were left out when they were read.
    """
    graph, regions = _renumbered(graph), dict[str, str]()
    lines = [*_unused(graph), *_lines(graph, regions)]
    return _module(graph, [*regions.values(), _entry(graph, lines)])


def fused_text(partition: Partition) -> str:
    """The program of a partition as one module whose entry calls each kernel. Calls, since XLA
    compiles no fusion but those of its own passes.

    Raises: as `hlo_text`.
    """
    program, regions = _renumbered(partition.program), dict[str, str]()
    bodies: list[str] = []
    entry = [*_unused(program), *(_line(program, at, regions) for at in program.parameters)]
    for number, placed in enumerate(partition.kernels):
        kernel, called = placed.kernel, f"kernel_{number:03}"
        bodies.append(_computation(called, kernel, regions))
        arguments = ", ".join(map(_name, placed.takes))
        gives = _output_shapes(kernel)
        single = len(placed.gives) == 1
        name = _name(placed.gives[0]) if single else f"call.{number}"
        entry.append(f"  {name} = {gives} call({arguments}), to_apply={called}")
        if not single:
            entry += [
                f"  {_name(at)} = {program.operations[at].shape} "
                f"get-tuple-element({name}), index={index}"
                for index, at in enumerate(placed.gives)
            ]
    entry += _copied(partition, regions)
    return _module(program, [*regions.values(), *bodies, _entry(program, entry)])


def _renumbered(graph: TensorGraph) -> TensorGraph:
    """The graph with the numbers that its signature gives to its parameters."""
    operations = list(graph.operations)
    for number, at in enumerate(_signature(graph).parameters):
        if isinstance(at, int):
            operations[at] = replace(operations[at], attributes={"number": number})
    return replace(graph, operations=tuple(operations))


def _unused(graph: TensorGraph) -> list[str]:
    """Lines of the parameters that no output depends on."""
    return [
        f"  unused.{number} = {shape} parameter({number})"
        for number, shape in enumerate(_signature(graph).parameters)
        if isinstance(shape, Shape)
    ]


def _signature(graph: TensorGraph) -> Signature:
    return graph.signature or Signature(graph.parameters, graph.outputs)


def _module(graph: TensorGraph, bodies: Sequence[str]) -> str:
    return "\n\n".join([_head(graph), *bodies]) + "\n"


def _entry(graph: TensorGraph, lines: list[str]) -> str:
    """The entry; of a graph without signature, comments name the parameters before it."""
    comments = []
    if graph.signature is None and graph.names:
        comments = [
            f"// parameter {number} = {graph.names[at]}"
            for number, at in enumerate(graph.parameters)
            if graph.names[at] != _name(at)
        ]
    return "\n".join([*comments, _framed("ENTRY main", graph, lines)])


def _copied(partition: Partition, regions: dict[str, str]) -> list[str]:
    """Lines of outputs that no kernel computes: constants, and operations on them."""
    program = partition.program
    computed = {*program.parameters, *(at for placed in partition.kernels for at in placed.gives)}
    needed = set(program.outputs) - computed
    for at in reversed(range(len(program.operations))):
        if at in needed:
            needed |= set(program.operations[at].operands) - computed
    return [_line(program, at, regions) for at in sorted(needed)]


def _head(graph: TensorGraph) -> str:
    parameters = _signature(graph).parameters
    shapes = [str(p if isinstance(p, Shape) else graph.operations[p].shape) for p in parameters]
    layout = f"entry_computation_layout={{({', '.join(shapes)})->{_output_shapes(graph)}}}"
    return f"HloModule {_word(graph.name) or 'kernel'}, {layout}"


def _output_shapes(graph: TensorGraph) -> str:
    return _one_or_tuple(
        [_shapes(graph.operations[at].results) for at in _signature(graph).outputs]
    )


def _computation(head: str, graph: TensorGraph, regions: dict[str, str]) -> str:
    return _framed(head, graph, _lines(graph, regions))


def _lines(graph: TensorGraph, regions: dict[str, str]) -> list[str]:
    return [_line(graph, at, regions) for at in range(len(graph.operations))]


def _framed(head: str, graph: TensorGraph, lines: list[str]) -> str:
    """A computation with its root marked."""
    text = "\n".join([f"{head} {{", *lines])
    outputs = _signature(graph).outputs
    if len(outputs) > 1:
        names = ", ".join(map(_name, outputs))
        return f"{text}\n  ROOT out = {_output_shapes(graph)} tuple({names})\n}}"
    start = f"\n  {_name(outputs[0])} = "
    return text.replace(start, start.replace("  ", "  ROOT "), 1) + "\n}"


def _name(at: int) -> str:
    return f"o{at}"


def _word(name: str) -> str:
    """A module name that XLA accepts: letters and digits of a name that is no type."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "_.-") else "_" for c in name)
    begins = plain[:1].isalpha() or plain[:1] == "_"
    return plain if begins and plain not in DTYPES else plain and f"_{plain}"


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
    remark = "  // its numbers are left out: XLA reads zeros" if operands == _ELIDED else ""
    line = [f"  {_name(at)} = {_shapes(op.results)} {op.opcode}({operands})", *tail]
    return ", ".join(line) + remark


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
        return _ELIDED
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
    # A region is stored without the parameters that it does not read.
    read = {part.number("number") for part in region.operations if part.opcode == "parameter"}
    types = enumerate(_region_types(op, graph.operand_shapes(at), word))
    unread = [(number, dtype) for number, dtype in types if number not in read]
    key += "".join(f" {number}.{dtype}" for number, dtype in unread)
    if key not in regions:
        more = [Operation("parameter", (Shape(t),), (), {"number": n}) for n, t in unread]
        graph = TensorGraph((*region.operations, *more), region.outputs)
        regions[key] = _computation(f"region{len(regions)}", graph, regions)
    return regions[key].partition(" ")[0]


def _region_types(op: Operation, operands: Sequence[Shape], word: str) -> list[str]:
    """Types of all parameters of a body of an operation, by number."""
    types = [shape.dtype for shape in operands]
    half = len(types) // 2
    match op.opcode:
        case "sort":
            return [dtype for dtype in types for _ in range(2)]
        case "reduce" | "reduce-window":
            return types[half:] + types[:half]
        case "scatter":
            return types[:half] + types[half + 1 :]
        case "map":
            return types
        case "select-and-scatter" if word == "select":
            return types[:1] * 2
    return [op.shape.dtype] * 2
