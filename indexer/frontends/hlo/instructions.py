"""Parts of a module of HLO text: computations and their instructions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from embeddb.core.errors import TensorError
from indexer.frontends.hlo.shapes import ShapeTree


@dataclass(frozen=True, slots=True)
class Instruction:
    """`ROOT name = shape opcode(operands), key=value, ...`. `operands` are names, `operand_shapes`
    the shapes that some versions write before them (else None); for a parameter and a constant the
    content of the brackets is `literal`."""

    name: str
    opcode: str
    shape: ShapeTree
    operands: tuple[str, ...]
    attributes: dict[str, list[str]]
    literal: str
    line: int
    operand_shapes: tuple[ShapeTree | None, ...] = ()


@dataclass(slots=True)
class Body:
    """The instructions of one computation by name, and the name of its root. `signatures` are the
    shapes of its parameters and of its result, from its head and the module's."""

    name: str
    line: int
    instructions: dict[str, Instruction] = field(default_factory=dict)
    root: str = ""
    signatures: list[tuple[tuple[ShapeTree, ...], ShapeTree]] = field(default_factory=list)


@dataclass(slots=True)
class Module:
    """Computations by name; `notes` are one line each, for users."""

    name: str
    entry: str
    scheduled: bool
    bodies: dict[str, Body]
    notes: list[str]

    @property
    def optimised(self) -> bool:
        """True if a compiler has already decided about fusions."""
        return self.scheduled or any(
            one.opcode == "fusion"
            for body in self.bodies.values()
            for one in body.instructions.values()
        )


#: Kept as one operation, without their bodies.
OPAQUE = frozenset(("while", "conditional", "custom-call"))
#: Their bodies contain kernels of an optimised module.
ENTERED = frozenset(("while", "conditional", "call"))
#: They neither move nor compute: never a kernel.
IDLE = frozenset(
    """
    parameter constant bitcast tuple get-tuple-element after-all opt-barrier add-dependency
    partition-id replica-id domain get-dimension-size copy-done async-update async-done
    all-reduce-done all-gather-done collective-permute-done send-done recv-done
    """.split()  # noqa: SIM905 - a table of words
)
OPCODES = (
    OPAQUE
    | ENTERED
    | IDLE
    | frozenset(
        """
        abs acos acosh add all-gather all-gather-start all-reduce all-reduce-start all-to-all and
        asin asinh async-start atan2 atanh batch-norm-grad batch-norm-inference batch-norm-training
        bitcast-convert broadcast cbrt ceil cholesky clamp collective-broadcast collective-permute
        collective-permute-start compare complex concatenate convert convolution copy copy-start cos
        cosh cosine count-leading-zeros divide dot dynamic-reshape dynamic-slice
        dynamic-update-slice erf exponential exponential-minus-one fft floor fusion gather imag
        infeed iota is-finite log log-plus-one logistic map maximum minimum multiply negate not or
        outfeed pad popcnt power ragged-all-to-all ragged-dot real recv reduce reduce-precision
        reduce-scatter reduce-window remainder reshape reverse rng rng-bit-generator
        rng-get-and-update-state round-nearest-afz round-nearest-even rsqrt scaled-dot scan scatter
        select select-and-scatter send set-dimension-size shift-left shift-right-arithmetic
        shift-right-logical sign sine sinh slice sort sqrt stochastic-convert subtract tan tanh topk
        transpose triangular-solve xor
        """.split()  # noqa: SIM905 - a table of words
    )
)


_TOKEN = re.compile(
    r'"(?:[^"\\]++|\\.)*+"?+'  # a text
    r"|/\*(?:[^*]++|\*(?!/))*+(?:\*/)?+|//.*+"  # a remark
    r"|->"
    r"|(?:[\w.%+?@$]|-(?!>))++"  # a name, a number, a word
    r"|\S"
)
_OPENING, _CLOSING = frozenset("({["), frozenset(")}]")
#: A literal of a large constant goes over several lines.
_MOST_LINES, _MOST_TOKENS = 1 << 20, 1 << 22
_WORD = re.compile(r"[\w.%+?@$-]")


@dataclass(frozen=True, slots=True)
class Statement:
    """The tokens of a line, and of the following lines up to its closing bracket."""

    line: int
    tokens: list[str]


def statements(text: str) -> Iterator[Statement]:
    """Statements in order, without remarks and empty lines. A bracket at the end of a line opens a
    body if it is the only open one.

    Raises: TensorError, with the line, for brackets that do not match.
    """
    tokens: list[str] = []
    depth = first = 0
    for number, line in enumerate(text.splitlines(), 1):
        line_tokens = [t for t in _TOKEN.findall(line) if not t.startswith(("/*", "//"))]
        if not line_tokens:
            continue
        if not tokens:
            first = number
        for token in line_tokens:
            if token in _OPENING:
                depth += 1
            elif token in _CLOSING:
                depth -= 1
        tokens += line_tokens
        opens_body = depth == 1 and line_tokens[-1] == "{" and "=" not in tokens[1:3]
        if depth <= 0 or opens_body:
            if depth < 0 and tokens[0] != "}":
                raise TensorError("a closing bracket has no opening one", line=number)
            yield Statement(first, tokens)
            tokens, depth = [], 0
        elif number - first > _MOST_LINES or len(tokens) > _MOST_TOKENS:
            raise TensorError("a bracket is never closed", line=first)
    if tokens:
        raise TensorError("ends inside of brackets: the dump was cut off", line=first)


def joined(tokens: list[str]) -> str:
    """Tokens as a text again, with a space only between words."""
    parts: list[str] = []
    for token in tokens:
        if parts and _WORD.match(token[0]) and _WORD.match(parts[-1][-1]):
            parts.append(" ")
        parts.append(token)
    return "".join(parts)
