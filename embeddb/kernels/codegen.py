"""C source and launch parameters of configurations of the CPU platform.

Order names follow the loops of the common loop nest: i rows and j columns of A, k dense columns,
p positions in the list of non-zeros; 1 is the outer, 0 the inner part of a split loop. The nests
are in `kernel.c.in`, their bodies in `bodies.py`, and the entry functions in `timed.c.in` and
`called.c.in`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

from embeddb.core.config import Config, Op
from embeddb.core.errors import SpaceError
from embeddb.kernels.bodies import MAX_BLOCK, Variant, sddmm_body, spmm_body, spmv_body, types
from embeddb.kernels.forms import FormSpec

#: Part of the platform's instance: raised by every change that makes kernels faster or slower, so
#: that times of different code are not mixed. A new format changes no kernel that was timed.
GENERATION = 2

#: Values of OpenMP's omp_sched_t.
SCHEDULES = {"static": 1, "dynamic": 2, "guided": 3}
#: The nest of each order, by kernel. SDDMM's columns write to distinct places, as rows do.
_DENSE = {
    "ijk": "ROWS",
    "ik1jk0": "ROWS",
    "i1k1i0jk0": "STRIPS",
    "k1ijk0": "TILES",
    "j1ik1j0k0": "PANELS",
    "jk1ik0": "OUTER",
    "pk1k0": "POSITION",
}
_NESTS = {
    "spmm": _DENSE,
    "sddmm": {**_DENSE, "jk1ik0": "ROWS"},
    "spmv": {"ij": "ROWS", "j1ij0": "PANELS", "ji": "OUTER", "p": "POSITION"},
}
#: Formats of an order; the others need csr.
_FORMATS = {
    "ik1jk0": ("csr", "bcsr"),
    "ij": ("csr", "bcsr", "sell", "ell", "sell16"),
    "j1ik1j0k0": ("dcsr",),
    "j1ij0": ("dcsr",),
    "jk1ik0": ("csc",),
    "ji": ("csc",),
}
#: Includes of a self-contained kernel.
_INCLUDES = """\
#define _GNU_SOURCE
#include <omp.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <time.h>"""
_BODIES = {"spmm": spmm_body, "sddmm": sddmm_body, "spmv": spmv_body}
#: Formats whose segments can be unrolled.
_UNROLLED = {"spmm": ("csr", "dcsr"), "spmv": ("csr", "dcsr"), "sddmm": ("csr", "dcsr", "csc")}
#: How 16-bit columns bring x into a vector.
_GATHERS = ("loads", "hardware")
#: Formats of slices, which sorted windows of rows may precede.
_SLICED = ("sell", "ell", "sell16")


@dataclass(frozen=True, slots=True)
class Launch:
    """Run-time parameters of a shared object besides matrix and width.

    `strip` is rows per strip, `pieces` tasks per thread in position space, `scratch` the threads'
    memory beside the result: a row per task (`fixup`), a result per thread (`private`).
    """

    form: FormSpec
    threads: str = "all"
    schedule: str = "static"
    chunk: int = 0
    strip: int = 0
    pieces: int = 0
    scratch: str = ""


def plan(config: Config, op: Op, *, vector_bytes: int = 16) -> tuple[Variant, Launch]:
    """Compile-time and launch parameters of a configuration.

    Raises: SpaceError naming the parameter that is missing, unknown or out of range.
    """
    left = _Left(config)
    order = left.choice("order", tuple(_NESTS[op.name]))
    nest = _NESTS[op.name][order]
    form = _form(left, order)
    plain = order == "ijk" or op.name == "spmv"
    tile = 0 if plain else left.number("ktile", 1, 1024, power=True)
    vectors = op.name == "spmv" and form.format in ("csr", "dcsr")
    lanes = left.number("lanes", 1, 16, power=True) if vectors else 1
    unrolled = form.format in _UNROLLED[op.name] and (tile or op.name == "spmv")
    unroll = left.number("unroll", 1, 16) if unrolled and "unroll" in config else 1
    gathers = form.format == "sell16" and left.gathers()
    strip = left.number("itile", 1, 1 << 30) if nest == "STRIPS" else 0
    threads = left.choice("threads", ("one", "all"))
    split = nest in ("OUTER", "POSITION")
    schedule, chunk = "static", 0
    if threads == "all" and not split:
        schedule = left.choice("schedule", tuple(SCHEDULES))
        chunk = left.number("chunk", 1, 1 << 30) if schedule == "dynamic" else 0
    pieces = left.number("pieces", 1, 4096) if nest == "POSITION" else 0
    meeting = _meeting(left, op.name, nest, threads)
    left.done(order)
    variant = Variant(
        kernel=op.name,
        nest=nest,
        meeting=meeting,
        form=form.format,
        block=form.block,
        slice=form.slice,
        mapped=form.format in ("dcsr", *_SLICED) or form.reorder != "none",
        tile=tile,
        lanes=lanes,
        unroll=unroll,
        gathers=gathers,
        dtype=op.dtype,
        vector_bytes=vector_bytes,
    )
    scratch = meeting if meeting in ("fixup", "private") else ""
    return variant, Launch(form, threads, schedule, chunk, strip, pieces, scratch)


@lru_cache(maxsize=256)
def source(variant: Variant, *, entry: str = "timed", shared: str = "") -> str:
    """The complete C file of a variant, with `embeddb_run` that times it, or for the `entry`
    `called` with `embeddb_call`, which only computes. `shared` replaces its includes and
    declarations by lines that include a header with `declarations`.

    Raises: SpaceError for SDDMM blocks that exceed the registers.
    """
    defines = {
        "NEST_" + variant.nest: 1,
        "SDDMM": int(variant.kernel == "sddmm"),
        "MAPPED": int(variant.mapped),
        "ROWS": variant.block[0],
        "TILE": max(variant.tile, 1),
        "SEAMS_ATOMIC": int(variant.meeting == "atomic"),
        "SEAMS_FIXUP": int(variant.meeting == "fixup"),
        "MERGE_TILES": int(variant.meeting == "tiles"),
        "MERGE_PRIVATE": int(variant.meeting == "private"),
    }
    if entry == "called":
        defines["FILLED"] = int(variant.filled)
    text = _text("kernel")
    for mark, part in (
        (", and the loop that times it", "" if shared else ", and the loop that times it"),
        ("@HEADS@", shared or _INCLUDES),
        ("@PROBLEM@\n\n", "" if shared else _text("problem") + "\n"),
        ("@DEFINES@", "\n".join(f"#define {name} {value}" for name, value in defines.items())),
        ("@TYPES@", types(variant)),
        ("@BODY@", _BODIES[variant.kernel](variant)),
        ("@ENTRY@\n", _text(entry)),
        ("@HELD@\n", "" if shared else _text("held")),
    ):
        text = text.replace(mark, part)
    return text


def declarations() -> str:
    """C of the structs of the entry `called`, for which `T` must be defined."""
    return f"{_text('problem')}\n{_text('held')}"


def conversions(*names: str) -> str:
    """The C of the conversions to blocks (`formats`) and slices (`slices`); without names, of all
    and of copies of `rows`, as one file."""
    return "\n".join(map(_text, names or ("formats", "slices", "rows")))


@cache
def _text(name: str) -> str:
    folder = files("embeddb.kernels")
    return folder.joinpath(f"{name}.c.in").read_text(encoding="utf-8")


def _form(left: _Left, order: str) -> FormSpec:
    name = left.choice("format", _FORMATS.get(order, ("csr",)))
    if name == "bcsr":
        return FormSpec("bcsr", block=left.block())
    if name == "dcsr":
        return FormSpec("dcsr", panel=left.number("jtile", 1, 1 << 31))
    if name in _SLICED:
        rows = left.number("slice", 1, 64, power=True)
        sigma = 1 if name == "ell" else left.number("sigma", 1, 1 << 31)
        return FormSpec(name, slice=rows, sigma=sigma)
    if name == "csr" and "reorder" in left.values:
        return FormSpec("csr", reorder=left.choice("reorder", ("none", "length", "rcm")))
    return FormSpec(name)


def _meeting(left: _Left, kernel: str, nest: str, threads: str) -> str:
    """Synchronisation of threads that write the same part of the result."""
    if nest == "POSITION" and kernel != "sddmm":
        return left.choice("seams", ("atomic", "fixup"))
    if nest == "OUTER" and threads == "all":
        return "private" if kernel == "spmv" else left.choice("merge", ("tiles", "private"))
    return ""


class _Left:
    """Parameters not yet taken from a configuration."""

    def __init__(self, config: Config) -> None:
        self.values: dict[str, Any] = dict(config)

    def choice(self, name: str, allowed: tuple[str, ...]) -> str:
        value = self.values.pop(name, None)
        if value not in allowed:
            raise SpaceError(f"{name} = {value}: allowed here are {', '.join(allowed)}")
        return str(value)

    def number(self, name: str, low: int, high: int, *, power: bool = False) -> int:
        value = self.values.pop(name, None)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise SpaceError(f"{name} = {value}: allowed are whole numbers {low}..{high}")
        if power and value & (value - 1):
            raise SpaceError(f"{name} = {value}: allowed are powers of two")
        return value

    def gathers(self) -> bool:
        """True if the processor's instruction gathers x; configurations of before it do not say."""
        return "gather" in self.values and self.choice("gather", _GATHERS) == "hardware"

    def block(self) -> tuple[int, int]:
        value = self.values.pop("block", None)
        match = re.fullmatch(r"(\d{1,4})x(\d{1,4})", value) if isinstance(value, str) else None
        if match and all(1 <= int(edge) <= MAX_BLOCK for edge in match.groups()):
            return int(match[1]), int(match[2])
        raise SpaceError(f"block = {value}: allowed are RxC with edges 1..{MAX_BLOCK}")

    def done(self, order: str) -> None:
        if self.values:
            name = min(self.values)
            raise SpaceError(f"{name} is not a parameter of this kernel (order = {order})")
