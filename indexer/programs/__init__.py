"""Our own programs, each written from its formula, to test and tune nests.

A program is a C file in the folder of its kind, whose loops lie between `#pragma scop` and `#pragma
endscop` (`indexer.frontends.c.scop`). Its `#define`s are its medium size; the comment `// sizes
small: N=64; large: N=256` has the others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from embeddb.core.errors import UsageError
from embeddb.core.pattern import Pattern
from embeddb.nests.nest import Nest
from indexer.frontends import read_nests

__all__ = ["SIZES", "applications", "nests_of", "program_names", "sizes_of"]

SIZES = ("small", "medium", "large")

_FOLDER = Path(__file__).parent
_DEFINE = re.compile(r"^#define (\w+) (\d+)$", re.M)
_OTHER_SIZES = re.compile(r"^// sizes small: (.*); large: (.*)$", re.M)


def program_names() -> list[str]:
    """All programs, by name."""
    return sorted(path.stem for path in _FOLDER.glob("*/*.c"))


def applications() -> list[str]:
    """The programs of "Performance Embeddings", Table 2."""
    return sorted(path.stem for path in _FOLDER.glob("applications/*.c"))


def sizes_of(program: str) -> dict[str, dict[str, int]]:
    """Values of a program's macros at each of `SIZES`. Raises: UsageError as `nests_of`."""
    text = _path(program).read_text(encoding="utf-8")
    other_sizes = _OTHER_SIZES.search(text)
    assert other_sizes is not None, program
    medium = {name: int(value) for name, value in _DEFINE.findall(text)}
    return {"small": _numbers(other_sizes[1]), "medium": medium, "large": _numbers(other_sizes[2])}


def nests_of(
    program: str, size: str | Mapping[str, int] = "medium", *, matrix: Pattern | None = None
) -> list[Nest]:
    """The nests of a program in the order of its text, of the group PROGRAM and called PROGRAM_SIZE
    or PROGRAM_1_SIZE, ...; a mapping overrides values of macros, beside those set by a matrix.

    Raises: UsageError for an unknown program, size or macro; NestError if the values let a loop
    leave an array, and for a matrix that the program cannot use.
    """
    sizes = sizes_of(program)
    if not isinstance(size, str):
        if unknown := size.keys() - sizes["medium"].keys():
            macros = ", ".join(sizes["medium"])
            raise UsageError(f"{program} has no size {min(unknown)!r}", hint=f"it has: {macros}")
        return read_nests(_path(program), defines=size, matrix=matrix)
    if size not in SIZES:
        raise UsageError(f"no size {size!r}", hint=f"sizes: {', '.join(SIZES)}")
    nests = read_nests(_path(program), defines=sizes[size])
    return [replace(nest, name=f"{nest.name}_{size}") for nest in nests]


def _path(program: str) -> Path:
    if program not in program_names():
        raise UsageError(f"no program {program!r}", hint=f"programs: {', '.join(program_names())}")
    return next(_FOLDER.glob(f"*/{program}.c"))


def _numbers(text: str) -> dict[str, int]:
    pairs = (pair.split("=") for pair in text.split())
    return {name: int(value) for name, value in pairs}
