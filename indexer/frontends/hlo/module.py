"""A module of HLO text: bodies of instructions, as they stand there.

Written from the grammar that XLA prints, in its versions since 2018: names with `%` or without,
operands with their shapes or without, bodies with a signature or without, tables of source lines
before the first body.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from embeddb.core.errors import TensorError
from indexer.frontends.hlo.shapes import ShapeTree, past_brackets, read_shape
from indexer.frontends.hlo.tokens import Statement, joined, statements

__all__ = ["MOST_TEXT", "Body", "Instruction", "Module", "read_module"]

MOST_TEXT = 1 << 28
_MOST_INSTRUCTIONS = 1_000_000
_MOST_NAME = 200
#: What says nothing of what is computed: large, and different from run to run.
_LEFT_OUT = frozenset(
    """
    metadata backend_config sharding frontend_attributes statistics origin control-predecessors
    original_value parameter_replication outer_dimension_partitions
    """.split()  # noqa: SIM905 - a table of words
)


@dataclass(frozen=True, slots=True)
class Instruction:
    """`ROOT name = shape opcode(operands), key=value, ...`. `operands` are names; of a parameter
    and a constant, whose brackets hold something else, `literal` is that."""

    name: str
    opcode: str
    shape: ShapeTree
    operands: tuple[str, ...]
    attributes: dict[str, list[str]]
    literal: str
    line: int


@dataclass(slots=True)
class Body:
    """The instructions of one computation by name, and the name of its root."""

    name: str
    line: int
    instructions: dict[str, Instruction] = field(default_factory=dict)
    root: str = ""


@dataclass(slots=True)
class Module:
    """Bodies by name; `notes` are one line each, for people."""

    name: str
    entry: str
    scheduled: bool
    bodies: dict[str, Body]
    notes: list[str]

    @property
    def optimised(self) -> bool:
        """Whether a compiler has already decided what is fused."""
        return self.scheduled or any(
            one.opcode == "fusion"
            for body in self.bodies.values()
            for one in body.instructions.values()
        )


def read_module(text: str) -> Module:
    """Raises: TensorError, with the line, for what is no HLO text or was cut off."""
    if len(text) > MOST_TEXT:
        raise TensorError(f"a module has at most {MOST_TEXT:,} characters")
    lines = statements(text)
    head = next(lines, Statement(1, [""]))
    if head.tokens[0] != "HloModule" or len(head.tokens) < 2:
        raise TensorError("is no HLO text: it begins with `HloModule NAME`", hint=_other(head))
    module = Module(_name(head.tokens[1]), "", "is_scheduled" in head.tokens, {}, [])
    count, noted = 0, set[str]()

    def note(line: str) -> None:
        if line not in noted:
            noted.add(line)
            module.notes.append(line)

    body: Body | None = None
    for statement in lines:
        if body is None:
            body = _head(statement, module)
            continue
        if statement.tokens[0] == "}":
            _close(body, module)
            body = None
            continue
        count += 1
        if count > _MOST_INSTRUCTIONS:
            raise TensorError(f"more than {_MOST_INSTRUCTIONS:,} instructions", line=statement.line)
        _add(statement, body, note)
    if body is not None:
        raise TensorError(f"ends inside of {body.name}: the dump was cut off", line=body.line)
    if not module.entry:
        raise TensorError("has no ENTRY computation: the dump was cut off")
    return module


def _other(head: Statement) -> str:
    if head.tokens[0] in ("module", "#loc") or head.tokens[0].startswith("func"):
        return "this is MLIR; JAX gives HLO by .compiler_ir('hlo').as_hlo_text()"
    return "XLA writes it with --xla_dump_to=FOLDER --xla_dump_hlo_as_text"


def _name(token: str) -> str:
    return token.removeprefix("%")[:_MOST_NAME]


def _head(statement: Statement, module: Module) -> Body | None:
    """The body that a statement opens; tables before the first are passed over."""
    tokens = statement.tokens
    if tokens[-1] != "{" or len(tokens) < 2:
        return None
    entry = tokens[0] == "ENTRY"
    name = _name(tokens[1] if entry else tokens[0])
    if name in module.bodies or (entry and module.entry):
        raise TensorError(f"computation {name} is there twice", line=statement.line)
    body = Body(name, statement.line)
    module.bodies[name] = body
    if entry:
        module.entry = name
    return body


def _close(body: Body, module: Module) -> None:
    if not body.instructions:
        raise TensorError(f"computation {body.name} is empty", line=body.line)
    # Versions of 2018 leave the ROOT out where it is the last.
    body.root = body.root or next(reversed(body.instructions))


def _add(statement: Statement, body: Body, note: Callable[[str], None]) -> None:
    tokens = statement.tokens
    try:
        root = tokens[0] == "ROOT" and tokens[1] != "="
        made = _instruction(tokens[1:] if root else tokens, statement.line, note)
    except TensorError as error:
        raise TensorError(error.reason, line=statement.line, hint=error.hint) from None
    except IndexError:
        raise TensorError("an instruction was cut off", line=statement.line) from None
    if made.name in body.instructions:
        raise TensorError(f"{made.name} is there twice", line=statement.line)
    body.instructions[made.name] = made
    if root:
        body.root = made.name


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
    return Instruction(
        _name(tokens[0]),
        opcode,
        shape,
        () if plain else tuple(_operands(inside)),
        _attributes(tokens, end),
        joined(inside) if plain else "",
        line,
    )


def _operands(tokens: list[str]) -> list[str]:
    """The last word of each part: some versions write the shape before the name."""
    found: list[str] = []
    depth, last = 0, ""
    for token in tokens:
        if token in ("(", "{", "["):
            depth += 1
        elif token in (")", "}", "]"):
            depth -= 1
        elif token == "," and depth == 0:
            found.append(_name(last))
            last = ""
        elif depth == 0:
            last = token
    return [*found, _name(last)] if tokens else []


def _attributes(tokens: list[str], at: int) -> dict[str, list[str]]:
    """`, key=value` each; a value goes on to the comma outside of brackets."""
    found: dict[str, list[str]] = {}
    while at < len(tokens):
        if tokens[at] != ",":
            raise TensorError(f"{tokens[at][:40]!r} stands where `, key=value` should")
        key = tokens[at + 1]
        if tokens[at + 2] != "=":
            raise TensorError(f"attribute {key[:40]!r} has no value")
        start = at = at + 3
        while at < len(tokens) and tokens[at] != ",":
            at = past_brackets(tokens, at) if tokens[at] in ("(", "{", "[") else at + 1
        if key not in _LEFT_OUT:
            found[key] = tokens[start:at]
    return found
