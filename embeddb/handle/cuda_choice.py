"""Choose the code that computes a product on a GPU: by number of calls, database, and timing."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from embeddb.core.config import Config, Op
from embeddb.core.errors import (
    EmbeddbError,
    MissingDependency,
    NothingFound,
    RunnerUnavailable,
    SpaceError,
    UsageError,
)
from embeddb.core.pattern import Pattern
from embeddb.handle.choice import (
    Choice,
    CompileOptions,
    Target,
    preparing_s,
    query_choice,
    warn_once,
)
from embeddb.kernels.cuda.device import Device, DeviceError
from embeddb.kernels.cuda.forms import Csr, Form
from embeddb.kernels.cuda.nvrtc import CompileFailed
from embeddb.kernels.cuda.plan import SIZES, Plan, fit, identity_of, instance_of, plan
from embeddb.kernels.cuda.product import bind
from embeddb.platforms.platform import load_platform

if TYPE_CHECKING:
    from embeddb.database import Database

#: Value types that cuSPARSE accumulates in their own precision.
_WHOLE = (torch.float32, torch.float64)
#: Bytes a second that a product moves, and seconds of a launch, on an H200 (docs/results/gpu.md).
_BYTES_S, _LAUNCH_S = 1.2e12, 4e-6
#: Overhead of torch's own products beside the kernel, in seconds.
_TORCH_CALL_S = {"spmm": 2.5e-5, "spmv": 2e-5, "sddmm": 1e-4}
#: Share of a product's time saved: by the static best over the library, by an answer over the
#: static best, and by timing over the answer (benchmarks/results/gpu).
_USUAL_SAVES, _ANSWER_SAVES, _TIMING_SAVES = 0.3, 0.2, 0.04
#: Seconds: converting a format, compiling a kernel, a query (a cached answer; per non-zero to hash
#: the pattern on the host), timing one configuration.
_FORMAT_S, _COMPILE_S, _ASK_S, _ASK_NNZ_S, _TIME_S = 5e-4, 0.1, 0.02, 5e-9, 2e-3
#: Number of configurations that are timed.
_TIMED = 5
#: Static best configurations over 210 matrices on an H200.
_PIECES = (
    "work=pieces,lanes=16,stage=direct,unroll=1,block=256,grid=columns,reorder=length,piece=32"
)
_SPMV = "work=pieces,lanes=8,unroll=2,block=256,reorder=length,piece=32"
_COO = "work=coo,lanes={},vec=4,unroll=1,block=64,piece={}"
#: Static best configurations on plain CSR.
_ROWS = "work=rows,lanes={},vec={},cols=1,stage=direct,unroll=2,block=128,grid=columns,reorder=none"
_ROWS_SPMV = "work=rows,lanes=8,unroll=2,block=256,reorder=none"
#: A shorter product is dominated by its launch, unless a row is longer, in seconds and entries.
_SHORT_S, _SHORT_ROW = 1.5e-5, 512
#: Measured widths.
_WIDTHS = {"spmm": (32, 128, 512), "sddmm": (32, 128), "spmv": (1,)}
_FAILURES = (EmbeddbError, CompileFailed, DeviceError)


class Compute(Protocol):
    """A product with one matrix: `Product`, cuSPARSE's or torch's own."""

    @property
    def csr(self) -> Csr: ...

    def __call__(
        self, b: torch.Tensor, x: torch.Tensor | None, out: torch.Tensor
    ) -> torch.Tensor: ...

    def with_values(self, values: torch.Tensor) -> Any: ...


class TorchProduct:
    """torch's own kernels, which need no preparation. SpMM in 16 bits is computed in float32: the
    algorithms of cuSPARSE that torch calls round partial sums of long rows to 16 bits.

    `form` holds the tensors beside the CSR matrix. They are complete with the product, which calls
    from several threads and streams may use.
    """

    def __init__(self, csr: Csr, op: Op) -> None:
        self.csr, self.op = csr, op
        self._matrix: torch.Tensor | None = None
        whole, sampled = csr.values.dtype in _WHOLE, op.name == "sddmm"
        if sampled and not whole:
            self.form = Form({"rows": csr.rows})
            return
        wide = csr.values if whole else csr.values.float()
        parts = csr.ptr, csr.idx, torch.zeros_like(wide) if sampled else wide
        self.form = Form({"val": parts[2]})
        self._matrix = torch.sparse_csr_tensor(*parts, csr.shape, check_invariants=False)

    def __call__(self, b: torch.Tensor, x: torch.Tensor | None, out: torch.Tensor) -> torch.Tensor:
        if x is not None:
            return self._sampled(x, b, out)
        assert self._matrix is not None
        return out.copy_(self._matrix @ (b if b.dtype in _WHOLE else b.float()))

    def _sampled(self, x: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        csr = self.csr
        if self._matrix is not None:
            sampled = torch.sparse.sampled_addmm(self._matrix, x, b.T)
            return torch.mul(sampled.values(), csr.values, out=out)
        step = max(1, (1 << 24) // max(1, x.shape[1]))
        for low in range(0, csr.nnz, step):
            part = slice(low, low + step)
            dots = (x[csr.rows[part].long()] * b[csr.idx[part].long()]).sum(1)
            out[part] = csr.values[part] * dots
        return out

    def with_values(self, values: torch.Tensor) -> TorchProduct:
        return TorchProduct(self.csr.with_values(values), self.op)


@dataclass(slots=True)
class Chosen:
    """The chosen code and the reasons. `config` is None for torch; `seconds` is the time of
    choosing and preparing; `streams` are those that torch knows to read the matrix."""

    compute: Compute
    op: Op
    config: Config | None = None
    choice: Choice | None = None
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0
    streams: set[int] = field(default_factory=set)

    @property
    def answer(self) -> str:
        """Id of the stored answer, empty if there is none."""
        return "" if self.choice is None else self.choice.answer

    @property
    def vec(self) -> int:
        """Vector length of reads from a dense row."""
        return 1 if self.config is None else plan(self.config, self.op).vec

    def why(self) -> str:
        """Reasons for the choice, a line each."""
        m, n = self.compute.csr.shape
        lines = [f"{self.op} on {m}x{n}, nnz={self.compute.csr.nnz}"]
        lines.append("runs: torch" if self.config is None else f"runs: {self.config}")
        if self.choice is not None:
            lines += self.choice.why()
        lines.append(f"choosing and preparing took {1e3 * self.seconds:.1f} ms")
        return "\n".join(lines + self.notes)


def choose(
    csr: Csr,
    op: Op,
    device: Device | None,
    db: Database | str | Path,
    options: CompileOptions,
    config: Config | None,
) -> Chosen:
    """Choose the code for an operation with a matrix; torch without a `device`.

    Raises: SpaceError for a `config` that is illegal or has no kernel; FormRefused for one that
    does not suit the matrix; as `embeddb.open` and `Database.query` do.
    """
    begun = time.perf_counter()
    reason = None if config is None else load_platform("cuda").kernel(op).space.reason(config)
    if reason is not None:  # at any width: answers are for the nearest measured one
        raise SpaceError(reason, hint="`embeddb platform show cuda` lists parameters and values")
    if device is None or not csr.nnz or not all(csr.shape):
        bound = Chosen(TorchProduct(csr, op), op, notes=["torch computes: nothing to choose"])
    elif config is not None:
        product = bind(csr, plan(config, op), device)
        if options.reproducible and (product.form.adds or product.plan.algorithm):
            raise UsageError(f"{config} sums in varying order and is not reproducible")
        bound = Chosen(product, op, config)
    else:
        bound = _by_calls(csr, op, device, db, options)
    bound.seconds = time.perf_counter() - begun
    return bound


def product_s(csr: Csr, op: Op) -> float:
    """Estimated seconds of a product."""
    (m, n), size = csr.shape, SIZES[op.dtype]
    dense = csr.nnz * 0.25 if op.name != "spmv" else csr.nnz * 0.1
    return _LAUNCH_S + (csr.nnz * (4 + size) + (dense + m + n) * op.width * size) / _BYTES_S


def _by_calls(
    csr: Csr, op: Op, device: Device, db: Database | str | Path, options: CompileOptions
) -> Chosen:
    calls = math.inf if options.calls is None else options.calls
    each = product_s(csr, op)
    plain = options.reproducible or (each < _SHORT_S and csr.longest <= _SHORT_ROW)
    usual = usual_config(op, plain)
    built = device.is_built(plan(usual, op).template)
    saved = calls * (each * _USUAL_SAVES + _TORCH_CALL_S[op.name])
    if options.build is False and not built:
        note = "torch computes: the kernel is not compiled, and build=False"
        return Chosen(TorchProduct(csr, op), op, notes=[note])
    # torch's sums may run in an order that varies.
    if not (options.build or options.reproducible) and saved < _FORMAT_S + (
        0 if built else _COMPILE_S
    ):
        note = f"torch computes: {calls:.0f} calls do not amortise preparing a kernel"
        return Chosen(TorchProduct(csr, op), op, notes=[note])
    question = cache(lambda: _question(csr, op, device, db, options))
    saved, wait_s = calls * each * _ANSWER_SAVES, _ASK_S + _ASK_NNZ_S * csr.nnz
    if wait_s <= saved < math.inf:
        wait_s += preparing_s(*question())
    if saved < wait_s and not options.seconds:
        note = f"no query for {calls:.0f} calls: the static best configuration of the H200 runs"
        return _first([(usual, note)], csr, op, device, None)
    choice, ranked = None, [(usual, "the static best configuration of the H200 runs")]
    with suppress(NothingFound):
        choice = query_choice(*question())
        usable = list(_usable(choice, op))
        if options.build is False:
            usable = [one for one in usable if device.is_built(plan(one, op).template)]
        ranked = [(one, "") for one in usable] or ranked
    timing_s = _TIMED * (_TIME_S + _FORMAT_S)
    if options.reproducible or (calls * each * _TIMING_SAVES < timing_s and not options.seconds):
        return _first(ranked, csr, op, device, choice)
    rivals = list(dict.fromkeys([*(one for one, _ in ranked[:_TIMED]), usual, *_libraries(op)]))
    return _timed(rivals, csr, op, device, choice)


@lru_cache(maxsize=256)
def usual_config(op: Op, plain: bool = False) -> Config:
    """The static best configuration for the width and value type; `plain`: one without conversion
    and atomic additions."""
    if plain and op.name != "sddmm":
        lanes, vec = (8, 4) if op.width <= 32 else (16, 4) if op.width <= 64 else (32, 4)
        rows = _ROWS.format(lanes, vec) if op.name == "spmm" else _ROWS_SPMV
        return fit(Config.parse(rows), op)
    if op.name == "spmv":
        return Config.parse(_SPMV)
    if op.name == "sddmm":
        return fit(Config.parse(_COO.format(4, 2) if op.width <= 64 else _COO.format(8, 3)), op)
    vec, cols = (2, 1) if op.width <= 32 else (4, 1) if op.width <= 64 else (4, 2)
    return fit(Config.parse(f"{_PIECES},vec={vec},cols={cols}"), op)


def _libraries(op: Op) -> list[Config]:
    names = {"spmm": ("csr2", "csr3"), "spmv": ("csr1", "csr2"), "sddmm": ()}[op.name]
    configs = (Config({"work": "cusparse", "algorithm": name}) for name in names)
    return [config for config in configs if _is_exact(plan(config, op))]


def _is_exact(wanted: Plan) -> bool:
    """True for a kernel as exact as float arithmetic in another order: not those that propagate a
    NaN to other rows, nor algorithms of cuSPARSE that were wrong on long rows in 16 bits
    (benchmarks/gpu/README.md)."""
    narrow = wanted.op.name == "spmm" and wanted.op.dtype in ("f16", "bf16")
    return wanted.form.exact and not (narrow and wanted.algorithm in ("default", "csr2"))


def _question(
    csr: Csr, op: Op, device: Device, db: Database | str | Path, options: CompileOptions
) -> tuple[Pattern, Op, Database | str | Path, CompileOptions, Target]:
    """Query of the database for the nearest measured width, in float32."""
    width = min(_WIDTHS[op.name], key=lambda w: abs(math.log(w / op.width)))
    identity = identity_of(device.facts())
    here = load_platform("cuda").at(instance_of(identity), identity)
    target = Target(here, (here.id,), count=2 * _TIMED, exact=True)
    pattern = Pattern.from_csr(csr.shape, csr.ptr.cpu().numpy(), csr.idx.cpu().numpy())
    return pattern, Op(op.name, width), db, options, target


def _usable(choice: Choice, op: Op) -> Iterator[Config]:
    """Configurations of an answer, best first, with an exact kernel for the operation
    (`_is_exact`)."""
    for values in (choice.config, *choice.others):
        with suppress(EmbeddbError):
            config = fit(values, op)
            if _is_exact(plan(config, op)):
                yield config


def _first(
    ranked: list[tuple[Config, str]], csr: Csr, op: Op, device: Device, choice: Choice | None
) -> Chosen:
    """The first configuration whose form accepts the matrix."""
    notes = []
    for config, note in ranked:
        try:
            bound = bind(csr, plan(config, op), device)
        except (MissingDependency, NothingFound, RunnerUnavailable) as error:
            warn_once(f"torch computes instead: {error}")
            notes.append(f"torch computes: {error}")
            break
        except _FAILURES as error:
            notes.append(f"not {config}: {error}")
            continue
        return Chosen(bound, op, config, choice, [*notes, *([note] if note else [])])
    return Chosen(TorchProduct(csr, op), op, None, choice, notes)


def _timed(rivals: list[Config], csr: Csr, op: Op, device: Device, choice: Choice | None) -> Chosen:
    """The fastest of several configurations, timed on operands of ones."""
    plans = {config: plan(config, op) for config in rivals}
    _compile_all(plans.values(), device)
    b, x, out = _operands(csr, op)
    best: tuple[float, Config, Any] | None = None
    notes = []
    for config, wanted in plans.items():
        try:
            bound = bind(csr, wanted, device)
            took = device.seconds(lambda bound=bound: bound(b, x, out))  # type: ignore[misc]
        except _FAILURES as error:
            notes.append(f"not {config}: {error}")
            continue
        if best is None or took < best[0]:
            best = took, config, bound
    if best is None:
        return Chosen(TorchProduct(csr, op), op, None, choice, notes)
    notes.append(f"the fastest of {len(rivals)} timed here: {1e6 * best[0]:.1f} us")
    return Chosen(best[2], op, best[1], choice, notes)


def _compile_all(plans: Any, device: Device) -> None:
    """Compile missing kernels in parallel; a failure shows when the kernel is bound."""
    missing = {p.template for p in plans if p.template and not device.is_built(p.template)}
    if len(missing) < 2:
        return

    def one(template: str) -> None:
        with suppress(*_FAILURES):
            device.build(template)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, missing))


def _operands(csr: Csr, op: Op) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    (m, n), like = csr.shape, csr.values
    width = () if op.name == "spmv" else (op.width,)
    sampled = op.name == "sddmm"
    out = like.new_empty((csr.nnz,) if sampled else (m, *width))
    return like.new_ones((n, *width)), like.new_ones((m, *width)) if sampled else None, out
