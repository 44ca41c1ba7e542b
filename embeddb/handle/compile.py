"""`embeddb.compile`: a matrix, an operation, and code that runs the answer."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from embeddb.core.config import Config, Op
from embeddb.core.errors import EmbeddbError, RunnerUnavailable, UsageError
from embeddb.handle.autotune import (
    NO_COMPILER,
    SMALL,
    TRIED,
    Trial,
    level_with_scipy,
    measured,
    too_costly,
    too_little,
    too_soon,
    usual_config,
    worth_building,
)
from embeddb.handle.choice import Choice, Wanted, Wishes, asked, cpu_target, given, preparing_s
from embeddb.handle.handle import Handle, Later, warn_of_scipy
from embeddb.handle.matrix import Matrix, matrix_of
from embeddb.handle.served import FormRefused, Served, by_kernel, by_scipy, is_plain
from embeddb.kernels import build as cpu_build
from embeddb.kernels.called import is_built
from embeddb.kernels.codegen import plan

if TYPE_CHECKING:
    from embeddb.database import Database
    from embeddb.handle.tensors import TensorHandle

__all__ = ["SMALL", "compile"]

#: Answers of this machine's own runs: tried only where that is a small part of all calls. Runs are
#: of bare kernels, and beside them a handle looks for NaN.
_SURE = ("high", "measured")
#: So many times the calls of a trial do not count among all.
_MANY_TIMES = 4
#: The same where an answer is sure, and where scipy, which needs no preparation, is likely to win.
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
    """Code that computes `spmm`, `spmv` or `sddmm` with a sparse matrix m×n and k dense columns, in
    the configuration that `db` answers with, or in `config`.

    The matrix is a scipy CSR, CSC or COO, of float32 or float64 (else `dtype`, or what holds its
    values), or a sparse tensor of torch, on the CPU or an NVIDIA GPU (docs/howto/gpu.md), for which
    the result takes and gives tensors and gradients; it is copied. `calls`: how often it will be
    called. If that is given, a matrix whose conversion pays is converted at once; if not, first
    calls run from CSR, and conversion comes when as many were made as it costs. `seconds`: the few
    best are measured here for about so long.
    `reproducible`: the same bits in every call with the same number of threads. `build`: True
    compiles what is not compiled yet, False never does, None unless `calls` are too few to win it
    back.

    Where calls are too few to win back asking or building, a usual kernel runs if it is built.
    Else, without a compiler, where a kernel cannot be built or kept, and below `SMALL`
    multiply-adds, scipy computes; a missing compiler and a failed build are said once as a
    RuntimeWarning.

    Raises: UsageError for a matrix, kernel, k or type that is none; MatrixError for a damaged
    matrix; SpaceError for a `config` that is none; StoreError and others as `embeddb.open` does.
    """
    width = _width(kernel, k)
    wishes = Wishes(calls, seconds, reproducible, build)
    if type(matrix).__module__.partition(".")[0] == "torch":
        if dtype is not None:
            raise UsageError("dtype is for numpy", hint="give A in that type: A.double()")
        from embeddb.handle.tensors import tensor_handle

        named = config if config is None or not _on_gpu(matrix) else _parsed(config)
        wanted = Wanted(kernel, k, named, db, wishes)
        return tensor_handle(matrix, wanted, OnHost(wanted))
    held = matrix_of(matrix, dtype)
    op = Op(kernel, max(width, 1), "f64" if held.values.dtype == np.float64 else "f32")
    named = None if config is None else _named(config, op, reproducible)
    if width == 0:
        return _Empty(held, op, "scipy computes: there are no dense columns")
    try:
        if named is None:
            return _answered(held, op, db, wishes)
        _check_compiler()
        choice = given(named, held.pattern, op)
        if seconds > 0:
            choice = measured(held, op, choice, wishes)
        return _compiled(held, op, choice, wishes)
    except RunnerUnavailable as error:
        warn_of_scipy(str(error))
        return _scipy(held, op, None, f"scipy computes: {error}")


def _answered(held: Matrix, op: Op, db: Database | str | Path, wishes: Wishes) -> Handle:
    """What the database's answer, or where that does not pay the usual kernel, computes."""
    if note := too_little(held, op, wishes):
        return _unasked(held, op, None, note, wishes)
    _check_compiler()
    few = wishes.calls is not None and not wishes.build
    waits_s = preparing_s(held.pattern, op, db, wishes, cpu_target()) if few else 0.0
    if note := too_soon(held, op, wishes, waits_s):
        return _unasked(held, op, None, note, wishes)
    choice = asked(held.pattern, op, db, wishes, cpu_target())
    if wishes.seconds > 0:
        choice = measured(held, op, choice, wishes)
    if note := too_costly(op, choice, held, wishes):
        made = _unasked(held, op, choice, note, wishes)
        if made.config is None and cpu_build.compiler() is None:
            warn_of_scipy(note)
        return made
    return _tried(_compiled(held, op, choice, wishes), held, wishes, sure=choice.sure in _SURE)


def _check_compiler() -> None:
    if not cpu_build.has_code():
        raise RunnerUnavailable(NO_COMPILER)


@dataclass(frozen=True, slots=True)
class OnHost:
    """Compiles one of the products with a tensor's matrix on the CPU."""

    wanted: Wanted

    def __call__(self, matrix: Any, kernel: str, asked: bool) -> Handle:
        """`asked`: it is the product that the caller named, with his configuration."""
        wanted = self.wanted
        width = None if kernel == "spmv" else 1 if wanted.kernel == "spmv" else wanted.k
        config = wanted.config if asked else None
        wishes = asdict(wanted.wishes)
        made = compile(matrix, kernel, k=width, config=config, db=wanted.db, **wishes)
        assert isinstance(made, Handle)
        return made


class _Empty(Handle):
    """No dense columns: nothing to compute, and no operation has that width."""

    def __init__(self, matrix: Matrix, op: Op, note: str) -> None:
        super().__init__(by_scipy(matrix, op), None, None, [note])
        m, n = matrix.pattern.shape
        self._shape_b, self._shape_c = (n, 0), (m, 0)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Empty, (self.running[0].matrix, self._op, self._notes[0])


def _width(kernel: str, k: int | None) -> int:
    if kernel not in _KERNELS:
        raise UsageError(f"{kernel!r} is no kernel", hint=f"one of {', '.join(_KERNELS)}")
    if kernel == "spmv":
        if k not in (None, 1):
            raise UsageError(f"spmv has one dense column, not {k}", hint="spmm has k of them")
        return 1
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 0:
        raise UsageError(f"{kernel} needs k, its dense columns, not {k!r}", hint="k=128")
    return int(k)


def _on_gpu(matrix: Any) -> bool:
    return bool(matrix.device.type == "cuda")


def _parsed(config: Mapping[str, Any] | str) -> Config:
    return Config.parse(config) if isinstance(config, str) else Config(config)


def _named(config: Mapping[str, Any] | str, op: Op, reproducible: bool) -> Config:
    found = _parsed(config)
    plan(found, op)  # what is wrong with it is told here
    if reproducible and found.get("seams") == "atomic":
        raise UsageError("seams=atomic adds in varying order: it is not reproducible")
    return found


def _unasked(held: Matrix, op: Op, choice: Choice | None, note: str, wishes: Wishes) -> Handle:
    """What needs no conversion and is best on average, if it is built; else scipy."""
    if held.values.size * op.width >= SMALL:
        try:
            usual = usual_config(op)
            level = level_with_scipy(op, held) and not _many(wishes, 2, _LEVEL_TIMES)
            if not level and is_built(usual, op):
                notes = ["an already built kernel, the best on average without conversion", note]
                made = Handle(by_kernel(held, op, usual), usual, choice, notes)
                return _tried(made, held, wishes)
        except EmbeddbError as error:
            note = f"{note}; {error}"
    return _scipy(held, op, choice, f"scipy computes: {note}")


def _compiled(held: Matrix, op: Op, choice: Choice, wishes: Wishes) -> Handle:
    """The chosen configuration, at once or after calls from CSR."""
    config, default, calls = Config(choice.config), Config(choice.default), wishes.calls
    pays_after = choice.break_even
    plain = is_plain(plan(config, op)[1].form)
    notes = _notes(op, choice)
    alone = cpu_build.compiler() is None and not is_built(default, op)
    if plain or alone or pays_after is None or (calls is not None and pays_after <= calls):
        served, used = _converted(held, op, choice, notes)
        return Handle(served, used, choice, notes)
    handle = Handle(by_kernel(held, op, default), default, choice, notes)
    if calls is None:
        handle.change_later(Later(config, pays_after, tried=not wishes.reproducible))
    return handle


def _tried(made: Handle, held: Matrix, wishes: Wishes, *, sure: bool = True) -> Handle:
    """Let the first calls try the usual configuration beside an answer, and scipy where it may be
    as fast, if calls are many enough and their sums may vary."""
    op, usual, rivals = made.op, usual_config(made.op), [made.running]
    if wishes.reproducible or made.config is None:
        return made
    if made.config != usual and _many(wishes, 2, _SURE_TIMES if sure else _MANY_TIMES):
        with suppress(EmbeddbError):
            if is_built(usual, op) or worth_building(op, held, wishes):
                rivals.append((by_kernel(held, op, usual), usual))
    if level_with_scipy(op, held):
        rivals.append((by_scipy(held, op), None))
    if len(rivals) > 1 and _many(wishes, len(rivals)):
        made.try_first(Trial(tuple(rivals)))
    return made


def _many(wishes: Wishes, rivals: int, times: int = _MANY_TIMES) -> bool:
    """Whether the calls of a trial are few among all."""
    return wishes.calls is None or wishes.calls >= times * TRIED * rivals


def _converted(held: Matrix, op: Op, choice: Choice, notes: list[str]) -> tuple[Served, Config]:
    """The first of the choice and the default that the matrix goes into."""
    config, default = Config(choice.config), Config(choice.default)
    try:
        return by_kernel(held, op, config), config
    except FormRefused as error:
        notes.append(f"not {config}: {error}")
        return by_kernel(held, op, default), default


def _notes(op: Op, choice: Choice) -> list[str]:
    notes = list(choice.warnings)
    if op.dtype == "f64":
        notes.append("float64: what was measured in float32 counts as evidence too")
    return notes


def _scipy(held: Matrix, op: Op, choice: Choice | None, note: str) -> Handle:
    return Handle(by_scipy(held, op), None, choice, [note])
