"""Shapes as HLO writes them: `f32[64,128]{1,0:T(8,128)}`, `(s32[], f32[<=10]{0})`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from embeddb.core.errors import TensorError
from embeddb.tensors.tensor_graph import Shape

#: An array, or a tuple of such.
ShapeTree = Shape | tuple["ShapeTree", ...]

_CLOSING = {"(": ")", "{": "}", "[": "]"}
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
        if token in _CLOSING:
            open_.append(_CLOSING[token])
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
