"""What is called how in generated C."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from embeddb.nests.nest import Nest
from embeddb.nests.parts import DTYPES

__all__ = ["Names", "function_name", "names_of"]

_KEYWORDS = frozenset(
    (
        *("asm", "auto", "break", "case", "char", "const", "continue", "default", "do", "double"),
        *("else", "enum", "extern", "float", "for", "goto", "if", "inline", "int", "long", "main"),
        *("register", "restrict", "return", "short", "signed", "sizeof", "static", "struct"),
        *("switch", "typedef", "typeof", "union", "unsigned", "void", "volatile", "while"),
    )
)
#: Macros of the headers, beside those in capitals.
_MACROS = ("linux", "unix", "i386", "stdin", "stdout", "stderr", "errno", "signgam")
_FUNCTIONS = frozenset(
    (
        *("sqrt", "sqrtf", "exp", "expf", "log", "logf", "tanh", "tanhf", "fabs", "fabsf"),
        *(f"{name}_{dtype}" for name in ("min", "max", "abs") for dtype in DTYPES),
    )
)
_LONGEST_CAPITALS = 2


@dataclass(frozen=True, slots=True)
class Names:
    """Variables of C, no two alike. By loop: the index, the index its block begins with, and the
    index behind the last; by array: its pointer."""

    points: tuple[str, ...]
    blocks: tuple[str, ...]
    ends: tuple[str, ...]
    arrays: tuple[str, ...]


def function_name(nest: Nest) -> str:
    """The name of its function in a file that is written for people."""
    plain = re.sub(r"[^A-Za-z0-9_]+", "_", nest.name).strip("_")
    return f"nest_{plain or nest.id[:12]}"


def names_of(nest: Nest, taken: frozenset[str] = frozenset()) -> Names:
    """Those of the nest wherever C allows; `taken` are functions of the file."""
    used = {*_KEYWORDS, *_MACROS, *_FUNCTIONS, *taken}

    def unlike(names: Iterator[str]) -> tuple[str, ...]:
        made = []
        for name in names:
            tries = (name if not n else f"{name}_{n}" for n in count())
            made.append(next(t for t in tries if t not in used))
            used.add(made[-1])
        return tuple(made)

    loops = [_allowed(nest.loop_name(at)) for at in range(nest.depth)]
    return Names(
        points=unlike(iter(loops)),
        arrays=unlike(_allowed(nest.array_name(a)) for a in range(len(nest.arrays))),
        blocks=unlike(f"{name}_block" for name in loops),
        ends=unlike(f"{name}_end" for name in loops),
    )


def _allowed(name: str) -> str:
    """A word of C that is no macro of a header, nor kept for the compiler."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", name)
    if not name[:1].isalpha():
        name = f"v{name}"
    if name.endswith("_t"):  # a type
        return f"{name}_"
    return f"{name}_" if name.isupper() and len(name) > _LONGEST_CAPITALS else name
