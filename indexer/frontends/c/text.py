"""The text of a C file after a minimal preprocessor: comments, macros, conditions, pragmas of
embeddb.

Nothing is run, no other file is read, every line keeps its number; `#include` is left out, and of
the output of `gcc -E` the lines of system headers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress

from embeddb.core.errors import NestError
from embeddb.core.pattern import Pattern
from embeddb.nests.nest import fills_of

_COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|//[^\n]*|/\*.*?\*/', re.S)
_WORD = re.compile(r"[A-Za-z_]\w*|\d[\w.]*|\"(?:\\.|[^\"\\])*\"")
_STRING = re.compile(r'"(?:\\.|[^"\\])*"')
_DIRECTIVE = re.compile(r"\s*#\s*(\w*)\s*(.*)")
_DEFINE = re.compile(r"([A-Za-z_]\w*)(\()?\s*(.*)")
_FILL = re.compile(r"embeddb\s+fill\s+([A-Za-z_]\w*)\s+(\S.*)")
#: A number, or an expression of numbers.
_NUMBERS = re.compile(r"[(+\-\s]*+\.?\d[\w.+\-*/()\s]*+")
#: Macros of rows, columns and entries, and the arrays of row offsets and of columns.
_MATRIX = re.compile(r"embeddb\s+matrix" + 5 * r"\s+([A-Za-z_]\w*)" + r"\s*")
#: The hint about macros of headers, which are not read, and about those with parameters.
_PREPROCESS = "preprocess it: gcc -E -I HEADERS -D N=64 FILE.c -o PREPROCESSED.c"
_MACRO = re.compile(r"\b_*[A-Z][A-Z0-9_]{2,}\b(?=\s*[(A-Za-z_*])")
#: Macros that are supported functions, so that their definition is not needed.
_KNOWN = {"min", "max", "MIN", "MAX", "fmin", "fmax"}
_LONGEST = 100_000


def source_text(
    source: str,
    *,
    defines: Mapping[str, int | float] | None = None,
    matrix: Pattern | None = None,
) -> SourceText:
    """A C file as its compiler would see it; `defines` override the file's own. A matrix sets the
    values of three macros, and the contents of two arrays, by `#pragma embeddb matrix ROWS COLUMNS
    ENTRIES OFFSETS INDICES`; without one that line is ignored.

    Raises: NestError with the line, for macros with parameters and conditions that need a
    preprocessor; for a matrix without such a line in the file.
    """
    if "\0" in source:
        raise NestError("is no text")
    source = source.replace("\\\r\n", "\\\n").replace("\r\n", "\n")
    source = _COMMENT.sub(_blank, source)
    lines, line, joined = [], "", 0
    for part in source.split("\n"):
        if part.endswith("\\"):
            line, joined = line + part[:-1] + " ", joined + 1
            continue
        lines += [line + part, *[""] * joined]
        line, joined = "", 0
    values = dict(defines or {})
    matrix_fills = {} if matrix is None else _matrix_fills(lines, matrix, values)
    return SourceText(lines, values, matrix_fills)


def undefined(macro: str, line: int | None = None) -> NestError:
    """Error for a macro of a header, with its name and a hint."""
    reason = f"macro {macro[:60]} is not defined in this file, and headers are not read"
    return NestError(reason, line=line, hint=_PREPROCESS)


def undefined_macro(text: str, line: int | None) -> tuple[str, int] | None:
    """The first word that looks like a macro with operands or like a type macro, and its line: on
    `line` of a text whose macros are replaced, else anywhere in it."""
    for number, one in enumerate(text.split("\n"), 1):
        if line in (None, number) and not one.lstrip().startswith("#"):
            for word in _MACRO.findall(_STRING.sub('""', one)):
                if word not in _KNOWN:
                    return word, number
    return None


def _matrix_fills(
    lines: list[str], matrix: Pattern, defines: dict[str, int | float]
) -> dict[str, str]:
    """Fills of the arrays with the matrix; its sizes are added to `defines`."""
    pragmas = (_DIRECTIVE.fullmatch(line) for line in lines)
    places = [_MATRIX.fullmatch(p[2]) for p in pragmas if p and p[1] == "pragma"]
    names = [place.groups() for place in places if place]
    if len(names) != 1:
        raise NestError(
            f"has {f'{len(names)} places' if names else 'no place'} for a matrix",
            hint="one line: #pragma embeddb matrix ROWS COLUMNS ENTRIES OFFSETS INDICES",
        )
    *macros, offsets, indices = names[0]
    for name, size in zip(macros, (*matrix.shape, matrix.nnz), strict=True):
        if defines.setdefault(name, size) != size:
            raise NestError(f"{name} is {size} of the matrix, but defined as {defines[name]}")
    return dict(zip((offsets, indices), fills_of(matrix), strict=True))


def _number(text: str) -> float | None:
    """The value of a number of C in parentheses; None for anything else."""
    plain = text.strip(" ()").rstrip("uUlL")
    octal = plain.isdecimal() and plain.startswith("0")
    with suppress(ValueError):
        return int(plain, 8 if octal else 0)
    with suppress(ValueError):
        return float(plain)
    return None


def _blank(match: re.Match[str]) -> str:
    token = match[0]
    return token if token[0] in "\"'" else " " + "\n" * token.count("\n")


class SourceText:
    """`text` with macros replaced; `fills`: the contents of arrays, by name, with the line;
    `matrix_fills`: those of arrays with a matrix; `defines`: the requested values and the matrix's
    sizes; `macros`: numeric ones, or sums of such, as their text and the line of their
    definition; `overridden`: those that a requested value replaces here but not when the file is
    compiled; `tested`: the names in conditions."""

    def __init__(
        self, lines: list[str], defines: dict[str, int | float], matrix_fills: dict[str, str]
    ) -> None:
        self.defines = defines
        self.matrix_fills = matrix_fills
        self.fills: dict[str, tuple[str, int]] = {}
        self.overridden: dict[str, tuple[str, int]] = {}
        self.tested: set[str] = set()
        #: All macros, as they are written.
        self._macros: dict[str, tuple[str, int]] = {}
        self._branches: list[bool] = []
        self._of_system = False
        self._own: set[str] = set()
        self.text = "\n".join(self._line(line, number) for number, line in enumerate(lines, 1))
        if self._branches:
            raise NestError("an #if has no #endif", line=len(lines))
        for name, (fill, at) in self.fills.items():
            self.fills[name] = (self._replaced(fill, at), at)
        written = {
            name: (self._replaced(*one).strip(), one[1]) for name, one in self._macros.items()
        }
        self.macros = {name: one for name, one in written.items() if _NUMBERS.fullmatch(one[0])}

    def _line(self, line: str, number: int) -> str:
        directive = _DIRECTIVE.fullmatch(line)
        if directive is not None:
            return self._directive(directive[1], directive[2].strip(), number)
        return self._replaced(line, number) if all(self._branches) and not self._of_system else ""

    def _directive(self, word: str, rest: str, line: int) -> str:
        if word.isdecimal():  # `# 1 "/usr/include/math.h" 1 3 4`: 3 is a system header
            file, _, flags = rest.rpartition('"')
            system = "3" in flags.split()
            self._own |= set() if system else {file}
            self._of_system = system and file not in self._own  # else a macro of one, as stderr
        elif word in ("ifdef", "ifndef"):
            self.tested.add(rest)
            defined = rest in self._macros or rest in self.defines
            self._branches.append(defined == (word == "ifdef"))
        elif word in ("else", "endif"):
            if not self._branches:
                raise NestError(f"#{word} without an #if", line=line)
            last = self._branches.pop()
            if word == "else":
                self._branches.append(not last)
        elif word in ("if", "elif"):
            reason = "#if needs a preprocessor: only #ifdef and #ifndef"
            raise NestError(reason, line=line, hint=_PREPROCESS)
        elif not all(self._branches):
            return ""
        elif word == "define":
            self._define(rest, line)
        elif word == "undef":
            self._macros.pop(rest, None)
        elif word == "pragma":
            return self._pragma(rest, line)
        elif word == "error":
            raise NestError(f"#error {rest[:80]}", line=line)
        return ""

    def _define(self, rest: str, line: int) -> None:
        definition = _DEFINE.fullmatch(rest)
        if definition is None:
            raise NestError("#define without a name", line=line)
        name, parameters, value = definition.groups()
        if parameters:
            if name not in _KNOWN:
                raise NestError(f"macro {name} has parameters", line=line, hint=_PREPROCESS)
            return
        override = self.defines.get(name)
        if override is not None and _number(value) != override:
            self.overridden[name] = value, line
        self._macros[name] = value if override is None else repr(override), line

    def _pragma(self, rest: str, line: int) -> str:
        fill = _FILL.fullmatch(rest)
        if fill is not None:
            self.fills[fill[1]] = (fill[2], line)
            return ""
        if rest.startswith("embeddb") and not _MATRIX.fullmatch(rest):
            legal = "fill ARRAY FILL, or matrix ROWS COLUMNS ENTRIES OFFSETS INDICES"
            raise NestError(f"a pragma of embeddb is: {legal}", line=line)
        return f"#pragma {rest}" if rest in ("scop", "endscop") else ""

    def _replaced(self, line: str, number: int, inside: frozenset[str] = frozenset()) -> str:
        def one(match: re.Match[str]) -> str:
            name = match[0]
            if name in inside or name not in self._macros:
                return name
            return self._replaced(self._macros[name][0], number, inside | {name})

        replaced = _WORD.sub(one, line)
        if len(replaced) > _LONGEST:
            raise NestError("macros make this line too long", line=number)
        return replaced
