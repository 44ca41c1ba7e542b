"""Reader of HLO text, which refuses a module whose shapes do not fit.

Written from the grammar that XLA prints, in its versions since 2018: names with `%` or without,
operands with their shapes or without, bodies with a signature or without, tables of source lines
before the first body.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from embeddb.core.errors import TensorError
from embeddb.tensors.tensor_graph import Shape
from indexer.frontends.hlo.instructions import (
    OPCODES,
    Body,
    Instruction,
    Module,
    ShapeTree,
    Statement,
    joined,
    past_brackets,
    read_shape,
    statements,
)
from indexer.frontends.hlo.verify import check_module

MOST_TEXT = 1 << 28
_MOST_INSTRUCTIONS = 1_000_000
_MOST_NAME = 200
#: Attributes without effect on the result: large, and different from run to run.
_LEFT_OUT = frozenset(
    """
    metadata backend_config sharding frontend_attributes statistics origin control-predecessors
    original_value parameter_replication outer_dimension_partitions
    """.split()  # noqa: SIM905 - a table of words
)


def read_module(text: str) -> Module:
    """Parse and check a module. Raises: TensorError, with the line, for a text that is no HLO or
    was cut off, and for instructions whose shapes do not follow from their operands."""
    if len(text) > MOST_TEXT:
        raise TensorError(f"a module has at most {MOST_TEXT:,} characters")
    lines = statements(text)
    head = next(lines, Statement(1, [""]))
    if head.tokens[0] != "HloModule" or len(head.tokens) < 2:
        raise TensorError("is no HLO text: it begins with `HloModule NAME`", hint=_other(head))
    module = Module(_name(head.tokens[1]), "", "is_scheduled" in head.tokens, {}, [])
    count = 0
    body: Body | None = None
    for statement in lines:
        if body is None:
            body = _head(statement, module)
            continue
        if statement.tokens[0] == "}":
            if not body.instructions:
                raise TensorError(f"computation {body.name} is empty", line=body.line)
            # Versions of 2018 leave the ROOT out where it is the last.
            body.root = body.root or next(reversed(body.instructions))
            body = None
            continue
        count += 1
        if count > _MOST_INSTRUCTIONS:
            raise TensorError(f"more than {_MOST_INSTRUCTIONS:,} instructions", line=statement.line)
        _add(statement, body, module)
    if body is not None:
        raise TensorError(f"ends inside of {body.name}: the dump was cut off", line=body.line)
    if not module.entry:
        raise TensorError("has no ENTRY computation: the dump was cut off")
    if "entry_computation_layout" in head.tokens:
        start = head.tokens.index("entry_computation_layout") + 3
        module.bodies[module.entry].signatures.append(_signature(head, start, module.note))
    check_module(module)
    return module


def _other(head: Statement) -> str:
    if head.tokens[0] in ("module", "#loc") or head.tokens[0].startswith("func"):
        return "this is MLIR; JAX gives HLO by .compiler_ir('hlo').as_hlo_text()"
    return "XLA writes it with --xla_dump_to=FOLDER --xla_dump_hlo_as_text"


def _name(token: str) -> str:
    return token.removeprefix("%")[:_MOST_NAME]


def _head(statement: Statement, module: Module) -> Body | None:
    """The computation that a statement opens; tables before the first are skipped."""
    tokens = statement.tokens
    opens = tokens[0] == "ENTRY" or "->" in tokens
    if opens and "{" in tokens[:-1] and "=" in tokens:
        raise TensorError(
            "has instructions on the line that opens a computation",
            line=statement.line,
            hint="put each on a line of its own",
        )
    if tokens[-1] != "{" or len(tokens) < 2:
        return None
    entry = tokens[0] == "ENTRY"
    name = _name(tokens[1] if entry else tokens[0])
    if name in module.bodies or (entry and module.entry):
        raise TensorError(f"computation {name} is there twice", line=statement.line)
    body = Body(name, statement.line)
    if "(" in tokens and "->" in tokens:
        plain = Statement(statement.line, tokens[:-1])
        body.signatures.append(_signature(plain, tokens.index("("), module.note))
    module.bodies[name] = body
    if entry:
        module.entry = name
    return body


def _signature(
    statement: Statement, at: int, note: Callable[[str], None]
) -> tuple[tuple[ShapeTree, ...], ShapeTree]:
    """The shapes of `(x: f32[4], f32[]) -> f32[4]`, from its bracket on."""
    tokens, takes = statement.tokens, list[ShapeTree]()
    try:
        end = past_brackets(tokens, at)
        at += 1
        while at < end - 1:
            shape, at = read_shape(tokens, at + 2 if tokens[at + 1] == ":" else at, note)
            takes.append(shape)
            at += 1
        return tuple(takes), read_shape(tokens, end + 1, note)[0]
    except TensorError as error:
        raise TensorError(error.reason, line=statement.line, hint=error.hint) from None


def _add(statement: Statement, body: Body, module: Module) -> None:
    tokens = statement.tokens
    try:
        root = tokens[0] == "ROOT" and tokens[1] != "="
        instruction = _instruction(tokens[1:] if root else tokens, statement.line, module.note)
        instruction = _desugared(instruction, module)
    except TensorError as error:
        raise TensorError(error.reason, line=statement.line, hint=error.hint) from None
    except IndexError:
        raise TensorError("an instruction was cut off", line=statement.line) from None
    if instruction.name in body.instructions:
        raise TensorError(f"{instruction.name} is there twice", line=statement.line)
    body.instructions[instruction.name] = instruction
    if root:
        body.root = instruction.name


def _instruction(tokens: list[str], line: int, note: Callable[[str], None]) -> Instruction:
    if tokens[1] != "=":
        raise TensorError(f"{joined(tokens[:8])[:60]!r} is no instruction: it has no `=`")
    shape, at = read_shape(tokens, 2, note)
    opcode = tokens[at]
    if tokens[at + 1] != "(":
        raise TensorError(f"{opcode[:40]!r} is no opcode: no bracket follows it")
    end = past_brackets(tokens, at + 1)
    inside = tokens[at + 2 : end - 1]
    plain = opcode in ("parameter", "constant")
    operands = [] if plain else [_operand(item, note) for item in _items(inside)]
    return Instruction(
        _name(tokens[0]),
        opcode,
        shape,
        tuple(name for name, _ in operands),
        _attributes(tokens[end:]),
        joined(inside) if plain else "",
        line,
        tuple(shape for _, shape in operands),
    )


def _desugared(one: Instruction, module: Module) -> Instruction:
    """`fusion-start` and its like as `async-start` of a computation with that one instruction."""
    stem, _, when = one.opcode.rpartition("-")
    if when not in ("start", "update", "done") or one.opcode in OPCODES or stem not in OPCODES:
        return one
    if when != "start":
        return replace(one, opcode=f"async-{when}")
    parts = () if isinstance(one.shape, Shape) else one.shape[:2]
    if len(parts) != 2 or isinstance(parts[0], Shape):
        raise TensorError(f"{one.opcode} gives ((OPERANDS), RESULT, ...)")
    body = Body(f"{one.name}.async", one.line)
    for at, shape in enumerate(parts[0]):
        parameter = Instruction(f"operand.{at}", "parameter", shape, (), {}, str(at), one.line)
        body.instructions[parameter.name] = parameter
    body.root = one.name
    taken = tuple(f"operand.{at}" for at in range(len(parts[0])))
    body.instructions[one.name] = Instruction(
        one.name, stem, parts[1], taken, one.attributes, "", one.line
    )
    module.bodies[body.name] = body
    return replace(one, opcode="async-start", attributes={"calls": [body.name]})


def _items(tokens: list[str]) -> Iterator[list[str]]:
    """The parts between commas outside of brackets."""
    at = 0
    while at < len(tokens):
        start = at
        while at < len(tokens) and tokens[at] != ",":
            at = past_brackets(tokens, at) if tokens[at] in ("(", "{", "[") else at + 1
        yield tokens[start:at]
        at += 1


def _operand(item: list[str], note: Callable[[str], None]) -> tuple[str, ShapeTree | None]:
    """Name of an operand, with the shape that some versions write before it."""
    if not item:
        raise TensorError("an operand is missing")
    return _name(item[-1]), read_shape(item, 0, note)[0] if len(item) > 1 else None


def _attributes(tokens: list[str]) -> dict[str, list[str]]:
    """Attributes of `, key=value`; a value extends to the comma outside of brackets."""
    if tokens and tokens[0] != ",":
        raise TensorError(f"{tokens[0][:40]!r} in place of `, key=value`")
    if tokens[-1:] == [","]:
        raise TensorError("an instruction was cut off")
    items = list(_items(tokens[1:]))
    for item in items:
        if item[1:2] != ["="]:
            raise TensorError(f"attribute {joined(item[:1])[:40]!r} has no value")
    return {key: value for key, _, *value in items if key not in _LEFT_OUT}
