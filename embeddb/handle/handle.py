"""`Handle`: a sparse matrix and the code that multiplies by it, called like a function."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.errors import EmbeddbError, UsageError
from embeddb.handle.autotune import Rival, Trial
from embeddb.handle.choice import Choice, warn_once
from embeddb.handle.kernel_call import KernelCall, by_kernel, by_scipy, forkable_lock
from embeddb.handle.matrix import Matrix, matrix_of, operand, result_of

Floats = NDArray[Any]


@dataclass(frozen=True, slots=True)
class DeferredConfig:
    """A configuration to change to after a number of calls, which stays if it is faster."""

    config: Config
    after: float


class Handle:
    """The result of `embeddb.compile`. `f(B)` is A B; for SDDMM `f(C, B)` are the values of
    A ∘ (C Bᵀ), one for each non-zero.

    Shapes: A m×n with nnz non-zeros; B dtype[n,k], C dtype[m,k], result dtype[m,k]; SpMV: B
    dtype[n] or dtype[n,1], result alike; SDDMM: result dtype[nnz] in the order of sorted CSR, which
    `sparse` converts to a matrix. Thread-safe.

    A copy shares compiled code; `update` of one does not change the other. A pickle holds matrix
    and configuration; loading binds them to the kernel, which is built if it is not in the cache;
    if that fails, scipy computes.
    """

    def __init__(
        self, served: KernelCall, config: Config | None, choice: Choice | None, notes: list[str]
    ) -> None:
        self._served = served
        self._config = config
        self._choice = choice
        self._notes = notes
        self._later: DeferredConfig | None = None
        self._trial: Trial | None = None
        self._calls = self._copied = 0
        self._changing = forkable_lock()
        m, n = served.matrix.pattern.shape
        self._op, self._dtype = served.op, served.matrix.values.dtype
        self._k = served.op.width
        self._shape_b, self._shape_c = (n, self._k), (m, self._k)
        self._vector = served.op.name == "spmv"
        self._shapes = (self._shape_b[:1], self._shape_b) if self._vector else (self._shape_b,)
        self._two = served.op.name == "sddmm"

    def __call__(self, dense: Any, other: Any = None, *, out: Floats | None = None) -> Floats:
        """Compute the product into `out`, or a new array. Operands that are not row-major or of
        another type are copied; so is the result for an `out` that is not row-major or overlaps an
        operand.

        Raises: UsageError for shapes and types that do not fit, and for a read-only `out`.
        """
        served = self._served
        if served.direct and other is None and out is None and type(dense) is np.ndarray:
            usual = dense.dtype is self._dtype and dense.shape in self._shapes
            if usual and self._trial is None is self._later and dense.flags.carray:
                return served.directly(dense, None)
        c: Floats | None = None
        if self._two:
            if other is None:
                raise UsageError("SDDMM takes two dense operands", hint="f(C, B) for A ∘ (C Bᵀ)")
            c = operand(dense, "C", self._shape_c, self._dtype)
            b = operand(other, "B", self._shape_b, self._dtype)
        elif other is not None:
            raise UsageError(f"{self._op.name} takes one dense operand")
        else:
            shape: tuple[int, ...] = self._shape_b
            if self._vector and (dense.ndim if type(dense) is np.ndarray else np.ndim(dense)) == 1:
                shape = shape[:1]
            b = operand(dense, "B", shape, self._dtype)
        if b is not (other if self._two else dense) or (self._two and c is not dense):
            self._copied += 1
        if self._later is not None:
            self._count()
        served = self._served
        compute = served.compute if self._trial is None else self._tried
        if out is None:
            return compute(b, c, None)
        shape = (served.matrix.values.size,) if self._two else (*self._shape_c[:1], *b.shape[1:])
        if result_of(out, shape, self._dtype, (b, c)):
            return compute(b, c, out)
        out[...] = compute(b, c, None)
        return out

    @property
    def config(self) -> Config | None:
        """The current configuration; None for scipy."""
        return self._config

    @property
    def running(self) -> Rival:
        """The current kernel call, with its configuration."""
        return self._served, self._config

    @property
    def op(self) -> Op:
        """The operation, with width and value type."""
        return self._op

    @property
    def answer(self) -> str:
        """Id of the stored answer (`embeddb explain`), empty if there is none."""
        return self._choice.answer if self._choice is not None else ""

    def update(self, values: Any) -> None:
        """Replace the values of the matrix: a scipy sparse matrix of the same pattern, converted to
        the handle's type, or, if A and those given since were sorted CSR without duplicates, `data`
        dtype[nnz]. They are copied.

        Raises: UsageError for another pattern, shape or type.
        """
        with self._changing:
            self._replace(values)

    def with_values(self, values: Any) -> Handle:
        """A handle with other values, as in `update`, which shares all else with this one; creating
        it counts as a call of this one.

        Raises: UsageError as `update` does.
        """
        if self._later is not None:
            self._count()
        if (trial := self._trial) is not None and trial.over:
            self._settle(trial)
        handle = copy.copy(self)
        handle._later = None
        handle._replace(values)  # of the copy: this one may be converting
        return handle

    def __copy__(self) -> Self:
        copied = object.__new__(type(self))
        with self._changing:
            copied.__dict__.update(self.__dict__)
        copied._changing, copied._notes = forkable_lock(), list(self._notes)
        return copied

    def __deepcopy__(self, _: dict[int, Any]) -> Self:
        return copy.copy(self)  # shared parts are immutable

    def __reduce__(self) -> tuple[Any, ...]:
        now = copy.copy(self)
        matrix, later = now._served.matrix, now._later
        about = now._choice, now._notes, later, now._calls
        return _rebuilt, (matrix, now._op, now._config, *about)

    def sparse(self, values: Floats | None = None) -> Any:
        """A `scipy.sparse.csr_array` of A's pattern with `values` dtype[nnz] (default: those of A),
        as sorted CSR; shares no memory except `values`."""
        from scipy.sparse import csr_array

        matrix = self._served.matrix
        data = matrix.values.copy() if values is None else values
        if np.shape(data) != matrix.values.shape:
            raise UsageError(
                f"values has the shape {np.shape(data)}, A has {matrix.values.size} non-zeros",
                hint="give one value for each, as SDDMM does",
            )
        parts = (data, matrix.pattern.indices.copy(), matrix.pattern.indptr.copy())
        return csr_array(parts, shape=matrix.pattern.shape)

    def why(self) -> str:
        """The current code and the reasons for it, a line each."""
        pattern = self._served.matrix.pattern
        lines = [f"{self._op} on {pattern!r}"]
        lines.append("runs: scipy" if self._config is None else f"runs: {self._config}")
        if (choice := self._choice) is not None:
            lines += choice.why()
            if choice.break_even is not None:
                calls = f"conversion pays off after {choice.break_even:.0f} calls"
                lines.append(calls if choice.break_even > 0 else "no conversion needed")
        if self._later is not None:
            lines.append(f"converts after {self._later.after:.0f} calls, so far {self._calls}")
        if self._served.conversion_s:
            lines.append(f"conversion took {1e3 * self._served.conversion_s:.1f} ms")
        if any(self._served.buffers):
            lines.append("operands are copied in every call: their rows are no multiple of a block")
        if self._copied:
            lines.append(
                f"operands of {self._copied} calls were copied: not row-major {self._dtype}"
            )
        lines += self._notes
        return "\n".join(lines)

    def __repr__(self) -> str:
        by = "scipy" if self._config is None else str(self._config)
        return f"Handle({self._op}, {self._served.matrix.pattern!r}, {by})"

    def try_first(self, trial: Trial) -> None:
        """Let first calls decide between rivals; the first is the current one."""
        self._trial = trial

    def change_later(self, later: DeferredConfig) -> None:
        """Change to another configuration after a number of calls."""
        self._later = later

    def _tried(self, b: Floats, c: Floats | None, out: Floats | None) -> Floats:
        trial = self._trial
        if trial is None:  # another thread's call was the last of it
            return self._served.compute(b, c, out)
        result = trial.compute(b, c, out)
        if trial.over:
            self._settle(trial)
        return result

    def _settle(self, trial: Trial) -> None:
        with self._changing:
            if self._trial is trial:
                self._trial = None
                self._served, self._config = trial.winner
                self._notes.append(trial.summary())

    def _replace(self, values: Any) -> None:
        served, trial = self._replaced(values), self._trial
        self._trial = None if trial is None else trial.with_values(served)
        self._served = served

    def _replaced(self, values: Any) -> KernelCall:
        old = self._served.matrix
        if hasattr(values, "tocsr"):
            new = matrix_of(values, self._dtype)
            if new.pattern.id != old.pattern.id:
                raise UsageError("the pattern of A has changed", hint="compile it again")
            # After matrices in two orders, values alone are ambiguous.
            both = replace(new, plain=old.plain and new.plain)
            return self._served.with_values(both)
        # Type and length first: an error of theirs is no matter of A's order.
        data = operand(values, "values", old.values.shape, self._dtype)
        if not old.plain:
            raise UsageError(
                "A was not sorted CSR without duplicates: its values alone have no order",
                hint="give the whole matrix",
            )
        return self._served.with_values(type(old)(old.pattern, data.copy(), True))

    def _count(self) -> None:
        """Count a call; the one that amortises the conversion performs it, others go on
        meanwhile."""
        self._calls += 1
        later = self._later
        if (
            later is None
            or self._calls <= later.after
            or not self._changing.acquire(blocking=False)
        ):
            return
        try:
            if self._later is None:
                return
            self._later, self._trial = None, None
            before = self.running
            self._served = by_kernel(self._served.matrix, self._op, later.config)
            self._config = later.config
            self._trial = Trial((self.running, before))
        except EmbeddbError as error:
            self._notes.append(f"no conversion: {error}")
        finally:
            self._changing.release()


def _rebuilt(
    matrix: Matrix,
    op: Op,
    config: Config | None,
    choice: Choice | None,
    notes: list[str],
    later: DeferredConfig | None,
    calls: int,
) -> Handle:
    """A pickled handle: its matrix bound to the kernel of its configuration again; with a warning,
    scipy computes if that cannot be built."""
    try:
        served = by_scipy(matrix, op) if config is None else by_kernel(matrix, op, config)
    except EmbeddbError as error:
        warn_once(f"scipy computes instead: {error}")
        notes = [*notes, f"scipy computes: {error}"]
        served, config, later = by_scipy(matrix, op), None, None
    handle = Handle(served, config, choice, notes)
    handle._later, handle._calls = later, calls
    return handle
