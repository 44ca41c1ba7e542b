"""Instructions of HLO text: their shapes (`f32[64,128]{1,0:T(8,128)}`, `(s32[], f32[<=10]{0})`),
and attributes in the canonical form of `embeddb.tensors.tensor_graph`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from embeddb.core.errors import TensorError
from embeddb.tensors.tensor_graph import Attribute, Shape

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


def joined(tokens: list[str]) -> str:
    """Tokens as a text again, with a space only between words."""
    parts: list[str] = []
    for token in tokens:
        if parts and _WORD.match(token[0]) and _WORD.match(parts[-1][-1]):
            parts.append(" ")
        parts.append(token)
    return "".join(parts)


#: Attributes that name bodies, whose contents have attributes of their own.
BODIES = frozenset(
    """
    to_apply calls select scatter condition body branch_computations called_computations
    true_computation false_computation comparator
    """.split()  # noqa: SIM905 - a table of words
)
#: Longest text of an attribute; an operation with a truncated one cannot be written as HLO.
MOST_RAW = 1000
_DOT = {
    "lhs_contracting_dims": "lhs_contracting",
    "rhs_contracting_dims": "rhs_contracting",
    "lhs_batch_dims": "lhs_batch",
    "rhs_batch_dims": "rhs_batch",
}
_WITH_DIMENSIONS = ("broadcast", "transpose", "reverse", "reduce")
#: The precision of a product and of a comparison: hints to a compiler.
_HINTS = ("operand_precision", "algorithm", "type")
_MOST_NUMBER = 18


def canonical(instruction: Instruction) -> dict[str, Attribute]:
    """Canonical attributes of an instruction, without those of its bodies (see `regions`). Raises:
    TensorError for an attribute that its opcode lacks."""
    attributes = {k: v for k, v in instruction.attributes.items() if k not in BODIES}
    opcode = instruction.opcode
    match opcode:
        case "parameter":
            return {"number": _whole([instruction.literal], "number")}
        case "constant":
            return _constant(instruction.literal)
        case "dot":
            return {
                ours: value
                for theirs, ours in _DOT.items()
                if (value := numbers_of(attributes.get(theirs, ()), theirs))
            }
        case "convolution":
            return _convolution(attributes)
        case "reduce-window" | "select-and-scatter":
            return _window(attributes.get("window", []))
        case "iota":
            return {"dimension": _whole(attributes.get("iota_dimension", ["0"]), "iota_dimension")}
        case "concatenate":
            return {"dimension": numbers_of(attributes.get("dimensions", ["0"]), "dimensions")[0]}
        case "slice":
            return _slice(attributes.get("slice", []))
        case "pad":
            return _padding(attributes.get("padding", []))
        case "dynamic-slice":
            return _some({"sizes": numbers_of(attributes.get("dynamic_slice_sizes", ()), "sizes")})
        case "compare":
            return {"direction": joined(attributes.get("direction", ["EQ"]))}
        case "get-tuple-element":
            return {"index": _whole(attributes.get("index", ["0"]), "index")}
        case "custom-call":
            return {
                "target": joined(attributes.get("custom_call_target", [])).strip('"')[:MOST_RAW]
            }
    if opcode in _WITH_DIMENSIONS:
        return _some({"dimensions": numbers_of(attributes.get("dimensions", ()), "dimensions")})
    return _raw({k: v for k, v in attributes.items() if k not in _HINTS})


def _some(attributes: Mapping[str, tuple[int, ...]]) -> dict[str, Attribute]:
    """The attributes without empty ones: an absent attribute means no number."""
    return {name: value for name, value in attributes.items() if value}


def _raw(attributes: Mapping[str, Sequence[str]]) -> dict[str, Attribute]:
    text = ", ".join(f"{key}={joined(list(value))}" for key, value in sorted(attributes.items()))
    return {"raw": _short(text)} if text else {}


def _short(text: str) -> str:
    return text if len(text) <= MOST_RAW else text[: MOST_RAW - 1] + "…"


def _constant(literal: str) -> dict[str, Attribute]:
    """One number as `value`, also where all elements are that number; else the text as `raw`."""
    plain = literal.replace(" ", "")
    if not plain.startswith(("{", "(")):
        return {"value": _short(plain)} if plain else {}
    elements = set(plain.translate({ord("{"): None, ord("}"): None}).split(","))
    if len(elements) == 1 and "..." not in plain and not plain.startswith("("):
        return {"value": _short(elements.pop())}
    return {} if "..." in plain or len(plain) > MOST_RAW else {"raw": plain}


def _convolution(attributes: Mapping[str, list[str]]) -> dict[str, Attribute]:
    labels = "".join(attributes.get("dim_labels", []))
    if not labels:
        raise TensorError("a convolution needs dim_labels")
    return {
        **_window(attributes.get("window", [])),
        "labels": labels,
        "feature_groups": _whole(
            attributes.get("feature_group_count", ["1"]), "feature_group_count"
        ),
        "batch_groups": _whole(attributes.get("batch_group_count", ["1"]), "batch_group_count"),
    }


def _window(tokens: Sequence[str]) -> dict[str, Attribute]:
    """`{size=3x3 pad=1_1x1_1 stride=2x2}` with defaults for missing parts."""
    fields: dict[str, list[str]] = {}
    inside = list(tokens[1:-1])
    for at in range(0, len(inside), 3):
        if inside[at + 1 : at + 2] != ["="] or at + 2 >= len(inside):
            raise TensorError(f"a window cannot be {joined(list(tokens))[:60]!r}")
        fields[inside[at]] = inside[at + 2].split("x")
    rank = len(fields.get("size", ()))
    pads = [part.partition("_") for part in fields.pop("pad", ["0_0"] * rank)]
    window = {
        "size": fields.pop("size", []),
        "stride": fields.pop("stride", ["1"] * rank),
        "low": [low for low, _, _ in pads],
        "high": [high for _, _, high in pads],
        "lhs_dilate": fields.pop("lhs_dilate", ["1"] * rank),
        "rhs_dilate": fields.pop("rhs_dilate", ["1"] * rank),
    }
    reversal = fields.pop("rhs_reversal", [])
    if set(reversal) - {"0"}:
        window["reversal"] = reversal
    if fields:
        raise TensorError(f"a window with {next(iter(fields))[:40]!r} is not supported")
    if any(len(value) != rank for value in window.values()):
        raise TensorError("the parts of the window differ in their number of dimensions")
    return _some({name: tuple(_int(n, name) for n in value) for name, value in window.items()})


def _slice(tokens: Sequence[str]) -> dict[str, Attribute]:
    """`{[0:12:2], [3:4]}`"""
    parts: list[list[int]] = []
    for token in tokens[1:-1]:
        if token == "[":
            parts.append([])
        elif token not in ("]", ",", ":"):
            if not parts:
                raise TensorError("a slice is written {[START:LIMIT:STRIDE], ...}")
            parts[-1].append(_int(token, "slice"))
    if any(len(part) not in (2, 3) for part in parts):
        raise TensorError("a slice is written {[START:LIMIT:STRIDE], ...}")
    return _some(
        {
            "start": tuple(part[0] for part in parts),
            "limit": tuple(part[1] for part in parts),
            "stride": tuple(part[2] if len(part) == 3 else 1 for part in parts),
        }
    )


def _padding(tokens: Sequence[str]) -> dict[str, Attribute]:
    """`1_2x0_3_1`: low, high and, optionally, interior."""
    parts = [part.split("_") for part in "".join(tokens).split("x") if part]
    if any(len(part) not in (2, 3) for part in parts):
        raise TensorError("padding is written LOW_HIGH or LOW_HIGH_INTERIOR, x between dimensions")
    return _some(
        {
            "low": tuple(_int(part[0], "padding") for part in parts),
            "high": tuple(_int(part[1], "padding") for part in parts),
            "interior": tuple(_int(part[2], "padding") if len(part) == 3 else 0 for part in parts),
        }
    )


def numbers_of(tokens: Sequence[str], where: str) -> tuple[int, ...]:
    """The integers of `{1,2}`. Raises: TensorError, with the attribute's name `where`."""
    return tuple(_int(token, where) for token in tokens if token not in ("{", "}", ","))


def _whole(tokens: Sequence[str], where: str) -> int:
    return _int("".join(tokens), where)


def _int(token: str, where: str) -> int:
    if not token.removeprefix("-").isdecimal() or len(token) > _MOST_NUMBER:
        raise TensorError(f"{where}: {token[:40]!r} is no whole number")
    return int(token)
