"""C libraries for configurations of the CPU platform.

Kernels are those of `embeddb/kernels`, with their entry `called`; around them the library has in C
what Python does elsewhere: checks, conversions (`forms.py`), padding, and codes in place of
exceptions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from embeddb.core.config import Config, Op
from embeddb.core.errors import UsageError
from embeddb.kernels import build as cpu_build
from embeddb.kernels.bodies import Variant
from embeddb.kernels.codegen import SCHEDULES, Launch, conversions, declarations, plan, source

_CONVERSIONS = {
    "csc": "columns",
    "dcsr": "panels",
    "bcsr": "blocks",
    "sell": "slices",
    "ell": "slices",
    "sell16": "slices",
}


@dataclass(frozen=True, slots=True)
class Part:
    """A configuration with the number of its kernel; configurations that differ only in the launch
    share one."""

    config: Config
    variant: Variant
    launch: Launch
    kernel: int

    @property
    def conversion(self) -> str:
        """Name of the conversion from CSR: that of its template and of its function."""
        form = self.launch.form
        if form.format == "csr":
            return "plain" if form.reorder == "none" else form.reorder
        return _CONVERSIONS[form.format]

    def row(self, prefix: str) -> str:
        """Its row in the table of the library."""
        launch, form = self.launch, self.launch.form
        values = {
            "configuration": f'"{self.config}"',
            "kernel": f"{prefix}_kernel_{self.kernel}",
            "convert": f"to_{self.conversion}",
            "block_rows": form.block[0],
            "block_columns": form.block[1],
            "panel": form.panel,
            "slice": form.slice,
            "sigma": form.sigma,
            "equal": int(form.format == "ell"),
            "index_bytes": form.index_bytes,
            "one": int(launch.threads == "one"),
            "schedule": SCHEDULES[launch.schedule],
            "chunk": launch.chunk,
            "strip": max(1, launch.strip // form.rows),
            "pieces": launch.pieces,
        }
        lines = "\n".join(f"        .{name} = {value}," for name, value in values.items())
        return f"    {{\n{lines}\n    }},"


def parts_of(configs: Sequence[Config], op: Op, vector_bytes: int) -> list[Part]:
    """Parts in the order of `configs`. Raises: SpaceError for an illegal configuration."""
    kernels: dict[Variant, int] = {}
    parts = []
    for config in configs:
        variant, launch = plan(config, op, vector_bytes=vector_bytes)
        number = kernels.setdefault(variant, len(kernels))
        parts.append(Part(config, variant, launch, number))
    return parts


_ARGUMENTS = {"spmm": "k, b, d", "spmv": "x, y", "sddmm": "k, c, b, values"}
_DENSE = {
    "spmm": "int64_t k, const @T@ *b, @T@ *d",
    "spmv": "const @T@ *x, @T@ *y",
    "sddmm": "int64_t k, const @T@ *c, const @T@ *b, @T@ *values",
}
_OPERANDS = {
    "spmm": "b has n rows of k values, the result m",
    "spmv": "x has n values, the result m",
    "sddmm": "c has m rows of k values, b has n; the result has a value for each of the matrix",
}
PACK = """\
- **Choice**: `@p@_create` takes the configuration that the rule in @p@_rule.h names, from sizes,
  row pointers and some of the columns, or the first where that one's format would be mostly fill.
  That file states the runs it was learned from and its held-out figures.
"""
_EXAMPLE = """\
int multiply(int64_t m, int64_t n, int64_t nnz, const int64_t *ptr, const int32_t *col,
    const @T@ *val, {dense})
{{
    @p@_matrix *a;
    int code = @p@_create(&a, m, n, nnz, ptr, col, val);
    if (code == @P@_OK)
        code = @p@_run(a, {arguments}, 0);
    @p@_destroy(a);
    return code; /* @p@_message(code) is what it means */
}}"""


def readme_parts(op: Op, parts: Sequence[Part], made_from: str, *, pack: bool) -> dict[str, str]:
    """README texts by mark. `pack`: a rule chooses among the configurations."""
    blocks = any(part.launch.form.rows > 1 or part.launch.form.block[1] > 1 for part in parts)
    fills = any(part.variant.filled for part in parts)
    one = all(part.launch.threads == "one" for part in parts)
    atomic = any(part.variant.meeting == "atomic" for part in parts)
    return {
        "FROM": f" from {made_from}" if made_from else "",
        "EXAMPLE": _EXAMPLE.format(dense=_DENSE[op.name], arguments=_ARGUMENTS[op.name]),
        "OPERANDS": _OPERANDS[op.name],
        "BLOCKS": " Where their rows fill no whole block,\n  each call copies them."
        if blocks
        else "",
        "THREADS": " What was chosen uses one." if one else "",
        "FILLED": " A result with NaN is computed again\n  value by value, which is slow."
        if fills
        else "",
        "ORDER": "it varies, and with it the last bits, with more than one thread"
        if atomic
        else "the same in every call with as many threads, and so are the bits",
        "PACK": PACK if pack else "",
        "KERNELS": "\n".join(f"    {part.config}" for part in parts),
    }


_TYPES = {"f32": "float", "f64": "double"}
TITLES = {
    "spmm": "SpMM, D = A B",
    "spmv": "SpMV, y = A x",
    "sddmm": "SDDMM, E = A * (C B^T) at the non-zeros of A",
}
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,39}")
_AGAIN = """\
    if (done == NOT_A_NUMBER)
        return without_fill(a, k, b, d);"""


@dataclass(frozen=True, slots=True)
class RuleText:
    """C code of a rule: a header, and the name of its function, which takes rows, columns, row
    pointers of 64 bits and column indices of a matrix, and returns a position."""

    header: str
    function: str


class Library:
    """C library of configurations of one operation: a single one, or those that `rule` chooses
    among, the first of which replaces formats that would be mostly fill. Public names have the
    prefix `prefix`, or the operation's.

    Raises: SpaceError for an illegal configuration; UsageError for an operation without code or an
    invalid prefix; RunnerUnavailable if the vector width of EMBEDDB_MARCH needs a compiler that is
    missing.
    """

    def __init__(
        self,
        op: Op,
        configs: Sequence[Config],
        *,
        prefix: str = "",
        rule: RuleText | None = None,
    ) -> None:
        if op.name not in TITLES or op.dtype not in _TYPES:
            hint = "spmm, sddmm and spmv, in f32 and f64: sddmm:64:f64"
            raise UsageError(f"no code for {op}", hint=hint)
        self.op, self.rule = op, rule
        self.prefix = checked_prefix(prefix or f"embeddb_{op.name}_{op.dtype}")
        self.vector_bytes = cpu_build.vector_bytes()
        self.parts = parts_of(configs, op, self.vector_bytes)

    def files(self, made_from: str = "") -> dict[str, str]:
        """Contents by file name. `made_from`, for the README: the origin of the configurations."""
        p, kernels = self.prefix, {part.kernel: part.variant for part in self.parts}
        arguments = "const held *h, const T *b, const T *c, T *d, int64_t most"
        prototypes = [f"int64_t @p@_kernel_{number}({arguments});" for number in kernels]
        objects = [f"{p}.o", *(f"{p}_kernel_{number}.o" for number in kernels)]
        test = {"READING": _text("reading.c"), "CHECKING": _text(f"check_{self.op.name}.c")}
        run = {"RUN": _text(f"{self.op.name}.h")}
        readme = readme_parts(self.op, self.parts, made_from, pack=self.rule is not None)
        contents = {
            f"{p}.h": self._filled("header.h", run),
            f"{p}_internal.h": self._filled("internal.h", {"KERNELS": "\n".join(prototypes)}),
            f"{p}.c": self._filled("matrix.c", self._matrix_parts()),
            "test.c": self._filled("test.c", test),
            "Makefile": self._filled("Makefile", {"OBJECTS": " ".join(objects)}),
            "README.md": self._filled("README.md", readme),
            "LICENSE": _text("LICENSE"),
        }
        if self.rule is not None:
            contents[f"{p}_rule.h"] = self.rule.header
        for number, variant in kernels.items():
            head = f'#include "{p}_internal.h"\n\n#define embeddb_call {p}_kernel_{number}'
            text = source(variant, entry="called", shared=head)
            contents[f"{p}_kernel_{number}.c"] = f"/* SPDX-License-Identifier: MIT-0 */\n{text}"
        return contents

    def _filled(self, name: str, parts: Mapping[str, str]) -> str:
        """A template with its marks replaced: first by `parts`, which may have marks themselves."""
        marks = {
            **parts,
            "DECLARATIONS": declarations(),
            "TITLE": f"{TITLES[self.op.name]}, in {_TYPES[self.op.dtype]}",
            "K": str(self.op.width),
            "MARCH": cpu_build.flags()[1].partition("=")[2],
            "WIDTH": str(self.vector_bytes),
            "p": self.prefix,
            "P": self.prefix.upper(),
            "T": _TYPES[self.op.dtype],
        }
        return filled(name, marks)

    def _matrix_parts(self) -> dict[str, str]:
        needed = {part.conversion for part in self.parts}
        before = {"by_length": {"length"}, "reordered": {"length", "rcm"}}
        names = [*(name for name, users in before.items() if needed & users), *sorted(needed)]
        fills = any(part.variant.filled for part in self.parts)
        product = [] if self.op.name == "sddmm" else ["product"]
        running = ["padded", *(["filled"] if fills else []), *product, self.op.name]
        return {
            "CONVERSIONS": "\n".join(_text(f"{name}.c") for name in names),
            "FORMATS": _own(conversions("formats")),
            "SLICES": _own(conversions("slices")),
            "SPECS": "\n".join(part.row(self.prefix) for part in self.parts),
            **self._choice(),
            "PLACE": "a->place" if self.op.name == "sddmm" else "NULL",
            "RUNNING": "\n".join(_text(f"{name}.c") for name in running),
            "AGAIN": _AGAIN if fills else "",
        }

    def _choice(self) -> dict[str, str]:
        if self.rule is None:
            choice = "converted(made, &specs[0], &from)"
            return {"INCLUDE": "", "CHOOSING": "", "CHOICE": choice}
        return {
            "INCLUDE": '#include "@p@_rule.h"',
            "CHOOSING": _text("chosen.c"),
            "CHOICE": "chosen(made, &from)",
            "RULE": self.rule.function,
        }


def _own(text: str) -> str:
    """C code with static functions."""
    return re.sub(r"^(?=(?:int64_t|void) \w+\()", "static ", text, flags=re.MULTILINE)


def filled(name: str, marks: Mapping[str, str]) -> str:
    """The template of that name with its marks replaced in order: a part may have later ones."""
    text = _text(name)
    for mark, part in marks.items():
        part = part.rstrip("\n")
        if not part:
            text = re.sub(f"^@{mark}@\n", "", text, flags=re.MULTILINE)
        text = text.replace(f"@{mark}@", part)
    return re.sub(r"\n{3,}", "\n\n", text)


def checked_prefix(prefix: str) -> str:
    """A valid prefix of C names. Raises: UsageError for others, and the name of the test."""
    if not _NAME.fullmatch(prefix) or prefix in ("test", "untiled"):
        hint = "a letter, then letters, digits and _, 40 in all, but not test or untiled"
        raise UsageError(f"prefix {prefix!r}: {hint}")
    return prefix


@cache
def _text(name: str) -> str:
    return files("embeddb.emit").joinpath(f"{name}.in").read_text(encoding="utf-8")
