"""Kernel instance and launch geometry of configurations of the platform `cuda`.

The parameters are described in `platforms/cuda.toml`, the kernels in `kernels.cu`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import index
from typing import Any

from embeddb.core.config import Config, Op
from embeddb.core.errors import SpaceError
from embeddb.kernels.build import instance_of as instance_of

#: Generation of the kernels' source: raised if a configuration gets other machine code, so that
#: runs of different sources are never pooled.
GENERATION = 3
#: C++ types by value type.
TYPES = {"f32": "float", "f64": "double", "f16": "f16", "bf16": "bf16"}
SIZES = {"f32": 4, "f64": 8, "f16": 2, "bf16": 2}
#: cuSPARSE's algorithms by operation.
ALGORITHMS = {"spmm": ("default", "csr2", "csr3"), "spmv": ("csr1", "csr2")}
#: Largest difference from a float64 reference, relative to the sum of magnitudes.
TOLERANCES = {"f32": 1e-5, "f64": 1e-13, "f16": 2e-3, "bf16": 1.6e-2}
_MATH_TOLERANCES = {"tf32": 2e-3, "tf32x3": 1e-3, "bf16": 1.6e-2, "f16": 2e-3}
_WORK = {"rows": 0, "pieces": 1, "entries": 2, "slices": 3, "coo": 4}
#: Kinds of work of which a group of threads does several units.
_BATCHED = {"row-batches": "rows", "piece-batches": "pieces"}
_STAGE = {"direct": 0, "shuffle": 1, "shared": 2}
_MATH = {"tf32": 0, "tf32x3": 1, "bf16": 2, "f16": 3}
_KINDS = {
    "spmm": (*("rows", "pieces", "entries", *_BATCHED), "windows", "window-pieces"),
    "spmv": ("rows", "pieces", "entries", "slices", *_BATCHED, "stream"),
    "sddmm": ("rows", "entries", "coo", "windows", "window-pieces"),
}
#: Values with which no kernel reads or writes outside its arrays, or waits for threads that its
#: block does not have. The space has fewer.
_SAFE: dict[str, Sequence[int]] = {
    "lanes": (1, 2, 4, 8, 16, 32),
    "vec": (1, 2, 4, 8),
    "cols": range(1, 17),
    "unroll": range(1, 17),
    "batch": range(1, 17),
    "block": range(32, 1025, 32),
    "piece": range(1, (1 << 16) + 1),
    "sigma": range(1 << 31),
    "window": (4, 8, 16),
}
_REORDERS = ("none", "length", "columns")
#: Threads that the arrays of stage=shared have room for, and bytes of shared memory of a block.
_STAGED_THREADS, _SHARED_BYTES = 512, 48 << 10
#: Columns of one block of a window, by arithmetic.
BLOCK_COLUMNS = {"fp32": 1, "tf32": 8, "tf32x3": 8, "bf16": 16, "f16": 16}
#: Largest number of rows, columns and entries: the kernels count them in 32 bits, and steps beyond
#: the last, of a block of threads or of the longest piece, must fit, too.
MOST_ENTRIES = (1 << 31) - 1 - (1 << 17)
#: Work that may add to one row of the result from several groups of threads.
_SHARES_ROWS = ("pieces", "entries", "stream")


def identity_of(facts: Mapping[str, str]) -> dict[str, str]:
    """The identity of an instance: the facts of `Device.facts`, and the kernels' generation."""
    return {**facts, "kernels": str(GENERATION)}


@dataclass(frozen=True, slots=True)
class FormSpec:
    """A storage format of the matrix. `layout` is one of csr, rows, pieces, entries, slices, stream
    and windows; `reorder` none, length or columns; `math` and `sampled` (SDDMM) set the order of a
    window's values."""

    layout: str
    piece: int = 0
    reorder: str = "none"
    sigma: int = 0
    window: int = 0
    math: str = ""
    sampled: bool = False

    @property
    def exact(self) -> bool:
        """True if a NaN or infinity of B reaches only the rows that have an entry in its row."""
        return self.layout != "windows"


@dataclass(frozen=True, slots=True)
class Plan:
    """One configuration for one operation.

    `template` names the kernel's instance in `kernels.cu`, empty if `algorithm` names one of
    cuSPARSE. `vec` neighbouring values of a dense row are read at once, so the width and the
    operands' addresses must be multiples of it. `tile` dense columns belong to one block of
    threads, `lanes` threads to a group, `batch` units of work to a group. `wide`: sums are
    accumulated in float32 and rounded to a 16-bit result afterwards.
    """

    op: Op
    form: FormSpec
    template: str = ""
    algorithm: str = ""
    lanes: int = 1
    tile: int = 1
    vec: int = 1
    block: int = 128
    batch: int = 1
    columns_fast: bool = True
    wide: bool = False
    tolerance: float = 1e-5

    def units(self, form_pieces: int, rows: int, nnz: int) -> int:
        """Units of work for the groups of threads."""
        if self.form.layout == "entries":
            return -(-nnz // self.form.piece)
        return form_pieces or rows

    @property
    def per_block(self) -> int:
        """Units of work of one block of threads."""
        if self.form.layout == "stream":
            return 1
        groups = self.block if self.form.layout == "slices" else self.block // self.lanes
        return groups * self.batch

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of one block of threads."""
        size = 8 if self.op.dtype == "f64" else 4
        return self.form.piece * size if self.form.layout == "stream" else 0


def plan(config: Mapping[str, Any], op: Op) -> Plan:
    """`Plan` of a configuration; those of a `Config` are remembered. Raises: as `planned`."""
    return _remembered(config, op) if isinstance(config, Config) else planned(config, op)


def planned(config: Mapping[str, Any], op: Op) -> Plan:
    """The kernel and geometry of a configuration.

    Raises: SpaceError for a configuration that has no kernel for the operation or its width, or
    with which the kernel would leave its arrays.
    """
    if op.name not in ("spmm", "spmv", "sddmm") or op.dtype not in TYPES:
        raise SpaceError(f"the CUDA kernels have no {op}")
    work = str(config.get("work", ""))
    try:
        if work == "cusparse":
            return _cusparse(str(config["algorithm"]), op)
        if work not in _KINDS[op.name]:
            hint = f"{op.name} has {', '.join(_KINDS[op.name])}"
            raise SpaceError(f"work={work} has no CUDA kernel for {op}", hint=hint)
        make = _windows if work in ("windows", "window-pieces") else _planned
        result = make(work, config, op)
    except KeyError as error:
        shown = Config(config)
        raise SpaceError(f"{shown} has no CUDA kernel for {op}: {error} is missing") from None
    if op.width % result.vec:
        raise SpaceError(f"{op.width} dense columns are no multiple of vec={result.vec}")
    if config.get("stage") == "shared" and result.block > _STAGED_THREADS:
        reason = f"stage=shared has no room for block={result.block}"
        raise SpaceError(reason, hint=f"at most block={_STAGED_THREADS}")
    if result.shared_bytes > _SHARED_BYTES:
        reason = f"piece={result.form.piece} needs {result.shared_bytes} bytes of shared memory"
        raise SpaceError(reason, hint=f"a block of threads has {_SHARED_BYTES}")
    return result


def _number(config: Mapping[str, Any], name: str, safe: Sequence[int] = ()) -> int:
    """A parameter's value. Raises: SpaceError for one that is not safe; KeyError."""
    value, safe = config[name], safe or _SAFE[name]
    try:
        if (number := index(value)) in safe:
            return number
    except TypeError:  # no whole number
        pass
    if isinstance(safe, range):
        steps = f" in steps of {safe.step}" if safe.step > 1 else ""
        values = f"{safe.start} to {safe[-1]}{steps}"
    else:
        values = ", ".join(map(str, safe))
    raise SpaceError(f"{name}={value} has no CUDA kernel", hint=f"{name} is one of {values}")


def _reorder(config: Mapping[str, Any]) -> str:
    value = str(config.get("reorder", "none"))
    if value not in _REORDERS:
        hint = f"reorder is one of {', '.join(_REORDERS)}"
        raise SpaceError(f"reorder={value} has no CUDA kernel", hint=hint)
    return value


def _cusparse(algorithm: str, op: Op) -> Plan:
    if algorithm not in ALGORITHMS.get(op.name, ()):
        raise SpaceError(f"cuSPARSE has no algorithm={algorithm} for {op}")
    return Plan(op, FormSpec("csr"), algorithm=algorithm, tolerance=TOLERANCES[op.dtype])


_remembered = lru_cache(maxsize=4096)(planned)


def _planned(work: str, config: Mapping[str, Any], op: Op) -> Plan:
    batched = work in _BATCHED
    work = _BATCHED.get(work, work)
    stored, shares = TYPES[op.dtype], work in _SHARES_ROWS
    wide = op.dtype in ("f16", "bf16") and shares and op.name != "sddmm"
    out = "float" if wide else stored
    lanes = {"entries": 32, "slices": 1}.get(work, 0) if op.name == "spmv" else 0
    lanes = lanes or _number(config, "lanes")
    vec = _number(config, "vec") if "vec" in config else 1
    batch = _number(config, "batch") if batched else 1
    piece = _number(config, "piece") if shares or work == "coo" else 0
    form = _form(work, piece, config)
    if op.name == "spmm":
        cols = _number(config, "cols")
        shape = (_WORK[work], lanes, vec, cols)
        if batched:
            parts: tuple[object, ...] = ("spmm_batch", stored, out, *shape, batch)
        else:
            stage = _STAGE[str(config["stage"])]
            parts = ("spmm", stored, out, *shape, stage, _number(config, "unroll"))
        tile = lanes * vec * cols
    elif op.name == "sddmm":
        loads = -(-op.width // (lanes * vec))
        parts = ("sddmm", stored, _WORK[work], lanes, vec, loads, _number(config, "unroll"))
        tile = 1
    else:
        unroll = _number(config, "unroll") if "unroll" in config else 1
        parts = ("spmv", stored, out, _WORK.get(work), lanes, unroll, batch)
        if work == "stream":
            parts = ("spmv_stream", stored, out, lanes)
        tile, vec = 1, 1
    plain = Plan(op, form, lanes=lanes, tile=tile, vec=vec, batch=batch, wide=wide)
    return _launched(plain, config, parts)


def _form(work: str, piece: int, config: Mapping[str, Any]) -> FormSpec:
    reorder = _reorder(config)
    if work == "rows":
        return FormSpec("csr") if reorder == "none" else FormSpec("rows", reorder=reorder)
    if work == "slices":
        return FormSpec("slices", sigma=_number(config, "sigma"))
    if work == "pieces":
        return FormSpec("pieces", piece=piece, reorder=reorder)
    return FormSpec({"coo": "entries"}.get(work, work), piece=piece)


def _windows(work: str, config: Mapping[str, Any], op: Op) -> Plan:
    math = str(config["math"])
    stored, quad = TYPES[op.dtype], 4 if op.width % 4 == 0 else 1
    rounds = op.dtype in ("f16", "bf16")
    other = math == "f16" if op.dtype == "f32" else math not in (op.dtype, "fp32")
    if op.name == "sddmm":
        other = op.dtype != "f32" or math not in ("tf32", "tf32x3")
    if op.name == "spmv" or op.dtype == "f64" or other:
        raise SpaceError(f"windows with math={math} have no CUDA kernel for {op}")
    sampled = op.name == "sddmm"
    heights = (16,) if sampled else _SAFE["window"] if math == "fp32" else (8, 16)
    window, piece, reorder = _number(config, "window", heights), 0, _reorder(config)
    if work == "window-pieces":
        piece = -(-_number(config, "piece") // BLOCK_COLUMNS[math])
    layout = "tf32" if math == "tf32x3" else math
    form = FormSpec("windows", piece, reorder, window=window, math=layout, sampled=sampled)
    out = "float" if rounds and piece else stored
    lanes, vec, tile = 32, quad, 1
    if sampled:
        parts: tuple[object, ...] = ("sddmm_mma", _MATH[math], -(-op.width // 16), quad)
    elif math == "fp32":
        lanes, vec, cols = (_number(config, name) for name in ("lanes", "vec", "cols"))
        tile, unroll = lanes * vec * cols, _number(config, "unroll")
        parts = ("spmm_window", stored, out, lanes, vec, cols, window, unroll)
    else:
        cols = _number(config, "cols")
        parts = ("spmm_mma", stored, out, _MATH[math], window, cols, quad)
        tile = 32 * cols
    plain = Plan(op, form, lanes=lanes, tile=tile, vec=vec, wide=rounds and bool(piece))
    return _launched(plain, config, parts, _MATH_TOLERANCES.get(math, 0.0))


def _launched(
    plain: Plan, config: Mapping[str, Any], parts: tuple[object, ...], tolerance: float = 0.0
) -> Plan:
    """The plan with its launch, its tolerance, and the instance of a template with these
    arguments, the first its name."""
    name, *arguments = parts
    return replace(
        plain,
        template=f"{name}<{','.join(map(str, arguments))}>",
        block=_number(config, "block"),
        columns_fast=config.get("grid", "columns") == "columns",
        tolerance=max(TOLERANCES[plain.op.dtype], tolerance),
    )


def fit(config: Mapping[str, Any], op: Op) -> Config:
    """The configuration, adapted to the operation's width and value type: fewer values per load if
    the width is no multiple of them, or a load would exceed 32 bytes.

    Raises: SpaceError as `plan` does for the rest.
    """
    changed = Config(config)
    vec = _number(config, "vec") if "vec" in config else 1
    while vec > 1 and (op.width % vec or vec * SIZES[op.dtype] > 32):
        vec //= 2
    if "vec" in config and vec != config["vec"]:
        changed = changed.replace(vec=vec)
    if op.name == "sddmm" and "lanes" in config:
        lanes = _number(config, "lanes")
        while lanes < 32 and -(-op.width // (lanes * vec)) > 8:
            lanes *= 2
        changed = changed.replace(lanes=lanes)
    plan(changed, op)
    return changed
