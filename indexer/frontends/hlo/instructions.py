"""Instructions of HLO text, and their shapes: `f32[64,128]{1,0:T(8,128)}`, `(s32[], f32[<=10])`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from embeddb.core.errors import TensorError
from embeddb.tensors.tensor_graph import Shape

#: An array, or a tuple of such.
ShapeTree = Shape | tuple["ShapeTree", ...]

_CLOSED_BY = {"(": ")", "{": "}", "[": "]"}
_DEEPEST, _MOST_PARTS = 32, 100_000


def leaves(shape: ShapeTree) -> list[Shape]:
    """The arrays of a shape, in order."""
    if isinstance(shape, Shape):
        return [shape]
    return [leaf for part in shape for leaf in leaves(part)]


def read_shape(
    tokens: Sequence[str], at: int, note: Callable[[str], None], depth: int = 0
) -> tuple[ShapeTree, int]:
    """The shape that begins at a token, and the index after it; `note` is called for dimensions
    that are only bounded.

    Raises: TensorError for anything else, and for dimensions without a bound.
    """
    if depth > _DEEPEST:
        raise TensorError("tuples are nested too deeply")
    if _token(tokens, at) == "(":
        return _tuple(tokens, at + 1, note, depth)
    dtype = tokens[at].lower()
    if _token(tokens, at + 1) != "[":
        raise TensorError(f"{tokens[at][:40]!r} is no shape")
    dims, at = _dims(tokens, at + 2, note)
    layout: tuple[int, ...] = ()
    if at < len(tokens) and tokens[at] == "{":
        layout, at = _layout(tokens, at)
        if layout and sorted(layout) != list(range(len(dims))):
            raise TensorError(f"layout {layout} does not fit the shape {dims}")
    return Shape(dtype, dims, layout), at


def _tuple(
    tokens: Sequence[str], at: int, note: Callable[[str], None], depth: int
) -> tuple[ShapeTree, int]:
    parts: list[ShapeTree] = []
    while _token(tokens, at) != ")":
        part, at = read_shape(tokens, at, note, depth + 1)
        parts.append(part)
        if len(parts) > _MOST_PARTS:
            raise TensorError(f"a tuple of more than {_MOST_PARTS:,} parts")
        if _token(tokens, at) == ",":
            at += 1
    return tuple(parts), at + 1


def _dims(
    tokens: Sequence[str], at: int, note: Callable[[str], None]
) -> tuple[tuple[int, ...], int]:
    dims: list[int] = []
    while (token := _token(tokens, at)) != "]":
        if token == "<" and _token(tokens, at + 1) == "=":
            at += 2
            token = _token(tokens, at)
            note(f"a dimension of at most {token} counts as {token}")
        if token != ",":
            if not token.isdecimal() or len(token) > 18:
                hint = "only dimensions of a fixed or bounded size are supported"
                raise TensorError(f"a dimension cannot be {token[:40]!r}", hint=hint)
            dims.append(int(token))
        at += 1
    return tuple(dims), at + 1


def _layout(tokens: Sequence[str], at: int) -> tuple[tuple[int, ...], int]:
    """Minor to major; tiles and memory spaces behind the colon are left out."""
    end = past_brackets(tokens, at)
    layout: list[int] = []
    for token in tokens[at + 1 : end - 1]:
        if token == ":":
            break
        if token != ",":
            if not token.isdecimal() or len(token) > 4:
                raise TensorError(f"a layout cannot have {token[:40]!r}")
            layout.append(int(token))
    return tuple(layout), end


def past_brackets(tokens: Sequence[str], at: int) -> int:
    """The place behind the bracket that closes the one at a token. Raises: TensorError."""
    open_: list[str] = []
    for place in range(at, len(tokens)):
        token = tokens[place]
        if token in _CLOSED_BY:
            open_.append(_CLOSED_BY[token])
        elif open_ and token == open_[-1]:
            open_.pop()
            if not open_:
                return place + 1
        elif token in (")", "}", "]"):
            break
    raise TensorError("brackets do not fit")


def _token(tokens: Sequence[str], at: int) -> str:
    if at >= len(tokens):
        raise TensorError("ends in the middle of a shape: the dump was cut off")
    return tokens[at]


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

    def called(self, *keys: str) -> list[str]:
        """The computations that attributes name."""
        tokens = [token for key in keys for token in self.attributes.get(key, ())]
        return [token.removeprefix("%") for token in tokens if token not in ("{", "}", ",")]


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
    noted: set[str] = field(default_factory=set, compare=False, repr=False)

    def note(self, line: str) -> None:
        """Add a note, once."""
        if line not in self.noted:
            self.noted.add(line)
            self.notes.append(line)

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


def joined(tokens: Sequence[str]) -> str:
    """Tokens as a text again, with a space only between words."""
    parts: list[str] = []
    for token in tokens:
        if parts and _WORD.match(token[0]) and _WORD.match(parts[-1][-1]):
            parts.append(" ")
        parts.append(token)
    return "".join(parts)
