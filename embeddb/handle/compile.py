"""`embeddb.compile`: compiled code for a matrix and an operation."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from embeddb.core.arguments import number_of, require, require_flags
from embeddb.core.config import Config, Op
from embeddb.core.errors import EmbeddbError, RunnerUnavailable, UsageError
from embeddb.handle.autotune import (
    SMALL,
    TRIED,
    Trial,
    alone,
    crowded,
    in_equal_parts,
    level_with_scipy,
    team_of,
    too_costly,
    too_little,
    too_soon,
    usual_config,
    usual_kernel,
    usual_pays,
    worth_building,
)
from embeddb.handle.choice import (
    Choice,
    CompileOptions,
    Wanted,
    choice_of_config,
    cpu_target,
    preparing_s,
    query_choice,
    warn_once,
)
from embeddb.handle.handle import DeferredConfig, Handle
from embeddb.handle.kernel_call import (
    FormRefused,
    KernelCall,
    by_kernel,
    by_scipy,
    is_ready,
)
from embeddb.handle.matrix import Matrix, matrix_of
from embeddb.kernels import build as cpu_build
from embeddb.kernels.called import is_built
from embeddb.kernels.codegen import plan
from embeddb.kernels.forms import CSR

if TYPE_CHECKING:
    from embeddb.database import Database
    from embeddb.handle.tensors import TensorHandle

__all__ = ["SMALL", "compile"]

_op = lru_cache(maxsize=64)(Op)

#: Confidence of answers from this machine's own runs, which are tried only in a small part of all
#: calls. Runs are of bare kernels, while a handle also checks for NaN.
_SURE = ("high", "measured")
#: Smallest ratio of all calls to those of a trial.
_MANY_TIMES = 4
#: The same if an answer is sure, and if scipy, which needs no preparation, is likely to win.
_SURE_TIMES = _LEVEL_TIMES = 16
_KERNELS = ("spmm", "spmv", "sddmm")


def compile(
    matrix: Any,
    kernel: str,
    *,
    k: int | None = None,
    calls: float | None = None,
    db: Database | str | Path = "starter",
    config: Mapping[str, Any] | str | None = None,
    seconds: float = 0.0,
    reproducible: bool = False,
    dtype: Any = None,
    build: bool | None = None,
) -> Handle | TensorHandle:
    """Compile `spmm`, `spmv` or `sddmm` with a sparse matrix m×n and k dense columns, in the
    configuration recommended by `db`, or in `config`.

    The matrix is a scipy CSR, CSC or COO, of float32 or float64 (else `dtype`, or the smaller type
    that holds its values), or a sparse tensor of torch, on the CPU or an NVIDIA GPU
    (docs/howto/gpu.md), with results as tensors and with gradients; it is copied. `calls`: expected
    number of calls. If given, a matrix whose conversion pays is converted at once; otherwise first
    calls run from CSR, and it is converted after as many calls as amortise the conversion.
    `seconds`: time limit for measuring the best few here.
    `reproducible`: the same bits in every call with the same number of threads; without `calls`
    the matrix then stays CSR. `build`: True compiles a missing kernel unless A is tiny, False never
    does, None if `calls` amortise it.

    If calls are too few to amortise a query or a build, the static best kernel runs if it is built.
    Otherwise, without a compiler, if a kernel cannot be built or stored, and below `SMALL`
    multiply-adds, scipy computes; a missing compiler and a failed build give one RuntimeWarning.

    Raises: UsageError for an invalid matrix or other argument; MatrixError for a damaged matrix;
    SpaceError for an illegal `config`; StoreError and others as `embeddb.open` does.
    """
    kernel, width = _product(kernel, k)
    options = _options(calls, seconds, reproducible, build)
    _check_sources(db, config)
    # Without an import of torch; a module or type of it has no layout.
    if type(matrix).__module__.partition(".")[0] == "torch" and hasattr(matrix, "layout"):
        if dtype is not None:
            raise UsageError("dtype is for numpy", hint="give A in that type: A.double()")
        from embeddb.handle.tensors import tensor_handle

        on_gpu = matrix.device.type == "cuda"
        named = _parsed(config) if config is not None and on_gpu else config
        return tensor_handle(matrix, Wanted(kernel, k, named, db, options), compile)
    csr = matrix_of(matrix, dtype)
    op = _op(kernel, max(width, 1), "f64" if csr.values.dtype == np.float64 else "f32")
    named = None if config is None else _named(config, op, reproducible)
    if width == 0:
        return _Empty(csr, op, "scipy computes: there are no dense columns")
    try:
        if named is None:
            return _answered(csr, op, db, options)
        _check_compiler()
        choice = choice_of_config(named, csr.pattern, op)
        if seconds > 0:
            choice = _measured(csr, op, choice, options)
        return _compiled(csr, op, choice, options)
    except RunnerUnavailable as error:
        warn_once(f"scipy computes instead: {error}")
        return _scipy(csr, op, None, f"scipy computes: {error}")


def _answered(matrix: Matrix, op: Op, db: Database | str | Path, options: CompileOptions) -> Handle:
    """A handle with the database's answer, or with the static best kernel if that does not pay."""
    if note := too_little(matrix, op, options):
        return _unasked(matrix, op, None, note, options)
    _check_compiler()
    few = options.calls is not None and not options.build
    waits_s = preparing_s(matrix.pattern, op, db, options, cpu_target()) if few else 0.0
    if note := too_soon(matrix, op, options, waits_s):
        return _unasked(matrix, op, None, note, options)
    choice = query_choice(matrix.pattern, op, db, options, cpu_target())
    if crowded() and options.calls is not None:
        choice = alone(choice, op, matrix)
    if options.seconds > 0:
        choice = _measured(matrix, op, choice, options)
    if note := too_costly(op, choice, matrix, options):
        handle = _unasked(matrix, op, choice, note, options)
        if handle.config is None and cpu_build.compiler() is None:
            warn_once(f"scipy computes instead: {note}")
        return handle
    handle = _compiled(matrix, op, choice, options)
    usual = usual_config(op, matrix)
    return _tried(handle, matrix, options, usual, sure=choice.sure in _SURE)


def _measured(matrix: Matrix, op: Op, choice: Choice, options: CompileOptions) -> Choice:
    """The choice with its fastest configuration first, conversion amortised over the calls; those
    beyond the time limit, or that cannot be built, are skipped."""
    calls = options.calls
    rng = np.random.default_rng(0)
    m, n = matrix.pattern.shape
    b = rng.random((n, op.width)).astype(matrix.values.dtype)
    c = rng.random((m, op.width)).astype(matrix.values.dtype) if op.name == "sddmm" else None
    end = time.perf_counter() + options.seconds
    configs = list(dict.fromkeys(map(Config, (choice.config, choice.default, *choice.others))))
    took: dict[Config, float] = {}
    for nth, config in enumerate(configs):
        left = end - time.perf_counter()
        if took and left <= 0:
            break
        try:
            served = by_kernel(matrix, op, config)
        except EmbeddbError:
            continue
        spent = _seconds(served, b, c, left / (len(configs) - nth))
        took[config] = spent + (served.conversion_s / calls if calls else 0.0)
    if not took:
        return choice
    best = min(took, key=lambda one: took[one])
    source = f"fastest of {len(took)} measured here, {1e3 * took[best]:.3f} ms a call"
    break_even = 0.0 if calls else choice.break_even if dict(best) == choice.config else None
    gain = took[Config(choice.default)] / took[best] if Config(choice.default) in took else None
    return Choice(
        config=dict(best),
        default=choice.default,
        source=source,
        gain=gain,
        break_even=break_even,
        sure="measured",
        answer=choice.answer,
    )


def _seconds(served: KernelCall, b: Any, c: Any, budget_s: float) -> float:
    """Median seconds of at least three calls with warm caches."""
    served.compute(b, c, None)
    times: list[float] = []
    start = time.perf_counter()
    while len(times) < 3 or (len(times) < 50 and time.perf_counter() - start < budget_s):
        before = time.perf_counter()
        served.compute(b, c, None)
        times.append(time.perf_counter() - before)
    return float(np.median(times))


def _check_compiler() -> None:
    if not cpu_build.has_code():
        raise RunnerUnavailable(cpu_build.no_compiler())


class _Empty(Handle):
    """Handle for no dense columns: nothing to compute, and no operation has that width."""

    def __init__(self, matrix: Matrix, op: Op, note: str) -> None:
        super().__init__(by_scipy(matrix, op), None, None, [note])
        m, n = matrix.pattern.shape
        self._shape_b, self._shape_c = (n, 0), (m, 0)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Empty, (self.running[0].matrix, self._op, self._notes[0])


def _product(kernel: str, k: int | None) -> tuple[str, int]:
    """The kernel as a plain string (numpy's are others), and its number of dense columns."""
    if not isinstance(kernel, str) or kernel not in _KERNELS:
        raise UsageError(f"unknown kernel {kernel!r}", hint=f"one of {', '.join(_KERNELS)}")
    kernel = _KERNELS[_KERNELS.index(kernel)]
    if kernel == "spmv":
        if k not in (None, 1):
            raise UsageError(f"spmv has one dense column, not {k}", hint="spmm has k of them")
        return kernel, 1
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 0:
        raise UsageError(f"{kernel} needs k, its dense columns, not {k!r}", hint="k=128")
    return kernel, int(k)


def _options(
    calls: float | None, seconds: float, reproducible: bool, build: bool | None
) -> CompileOptions:
    require("build", build, bool | np.bool_ | None, "True, False or None")
    require_flags(reproducible=reproducible)
    number = None if calls is None else number_of("calls", calls)
    return CompileOptions(number, number_of("seconds", seconds), bool(reproducible), build)


def _check_sources(db: Any, config: Any) -> None:
    if not hasattr(db, "store"):
        require("db", db, str | PathLike, "a folder, `starter` or an open Database")
    require("config", config, str | Mapping | None, "a mapping, or a text such as order=ij,")


def _parsed(config: Mapping[str, Any] | str) -> Config:
    return Config.parse(config) if isinstance(config, str) else Config(config)


def _named(config: Mapping[str, Any] | str, op: Op, reproducible: bool) -> Config:
    named = _parsed(config)
    plan(named, op)  # raises for an illegal one
    if reproducible and named.get("seams") == "atomic":
        raise UsageError("seams=atomic sums in varying order and is not reproducible")
    return named


def _unasked(
    matrix: Matrix, op: Op, choice: Choice | None, note: str, options: CompileOptions
) -> Handle:
    """The static best kernel, if it is built and its conversion pays; else scipy."""
    try:
        usual = usual_config(op, matrix) if usual_pays(op, matrix, options) else None
        kernel = None if usual is None else usual_kernel(op, usual, matrix, options)
        if usual is not None and kernel is not None:
            notes = ["an already built kernel, the best on average", note]
            handle = Handle(by_kernel(matrix, op, usual, kernel=kernel), usual, choice, notes)
            return _tried(handle, matrix, options, usual)
    except EmbeddbError as error:
        note = f"{note}; {error}"
    return _scipy(matrix, op, choice, f"scipy computes: {note}")


def _compiled(matrix: Matrix, op: Op, choice: Choice, options: CompileOptions) -> Handle:
    """A handle with the chosen configuration, converted at once or after calls from CSR."""
    config, default, calls = Config(choice.config), Config(choice.default), options.calls
    pays_after = choice.break_even
    plain = plan(config, op)[1].form == CSR
    notes = list(choice.warnings)
    if op.dtype == "f64":
        notes.append("float64: runs in float32 count as evidence, too")
    alone = cpu_build.compiler() is None and not is_built(default, op)
    if plain or alone or pays_after is None or (calls is not None and pays_after <= calls):
        try:
            return Handle(by_kernel(matrix, op, config), config, choice, notes)
        except FormRefused as error:
            notes.append(f"not {config}: {error}")
            return Handle(by_kernel(matrix, op, default), default, choice, notes)
    if calls is None and options.reproducible:  # another configuration sums in another order
        notes.append(f"not {config}: it would change the bits of later calls; `calls` decides now")
    handle = Handle(by_kernel(matrix, op, default), default, choice, notes)
    if calls is None and not options.reproducible:
        handle.change_later(DeferredConfig(config, pays_after))
    return handle


def _tried(
    handle: Handle,
    matrix: Matrix,
    options: CompileOptions,
    usual: Config | None,
    *,
    sure: bool = True,
) -> Handle:
    """Let the first calls also try the static best configuration, a team in place of one thread and
    scipy if these may be as fast, provided that calls are many enough and need not be
    reproducible."""
    op, rivals = handle.op, [handle.running]
    if options.reproducible or handle.config is None:
        return handle
    times = _SURE_TIMES if sure else _MANY_TIMES
    if usual is not None and handle.config != usual and _many(options, 2, times):
        with suppress(EmbeddbError):
            if is_ready(usual, op) or worth_building(op, matrix, options):
                rivals.append((by_kernel(matrix, op, usual, like=handle.running[0]), usual))
    team = team_of(op, matrix, handle.config)
    times = _MANY_TIMES if handle.config == usual else times
    if team is not None:
        team = in_equal_parts(team, matrix)
    if team is not None and team != usual and _many(options, len(rivals) + 1, times):
        with suppress(EmbeddbError):
            rivals.append((by_kernel(matrix, op, team, like=handle.running[0]), team))
    level = level_with_scipy(op, matrix, handle.config)
    if level and _many(options, len(rivals) + 1, _LEVEL_TIMES):
        rivals.append((by_scipy(matrix, op), None))
    if len(rivals) > 1 and _many(options, len(rivals)):
        handle.try_first(Trial(tuple(rivals)))
    return handle


def _many(options: CompileOptions, rivals: int, times: int = _MANY_TIMES) -> bool:
    """True if the calls of a trial are few among all."""
    return options.calls is None or options.calls >= times * TRIED * rivals


def _scipy(matrix: Matrix, op: Op, choice: Choice | None, note: str) -> Handle:
    return Handle(by_scipy(matrix, op), None, choice, [note])
