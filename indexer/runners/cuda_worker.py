"""The child process that runs CUDA kernels: `python -m indexer.runners.cuda_worker`.

It times the GPU by events and CUDA graphs, probes its facts, and has a matrix on the device with
random values, dense operands and the expected result. It may hang, or lose its context by a
kernel's fault; then it ends, and the parent starts another.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from typing import Any

import numpy as np
import torch

from embeddb.core.config import Op
from embeddb.core.errors import MissingDependency, RunnerUnavailable, SpaceError
from embeddb.kernels.cuda.device import DeviceError, NoDeviceMemory, gpu
from embeddb.kernels.cuda.forms import Csr, FormRefused
from embeddb.kernels.cuda.nvrtc import CompileFailed
from embeddb.kernels.cuda.plan import Plan, plan
from embeddb.kernels.cuda.product import CusparseProduct, Product, bind, cusparse
from indexer.runners.harness.serving import Answering, Reply, serve

Call = Callable[[], object]
#: Bytes that a copy moves, in the long probe and in the short one.
_COPY_BYTES, _SHORT_COPY_BYTES = 1 << 30, 1 << 28
_COPIES, _SHORT_COPIES = 10, 4
_LAUNCHES = 200
#: Clock cycles that the GPU is kept busy while the host enqueues what is timed.
_BUSY_CYCLES = 400_000


class CudaMachine:
    """The first visible GPU, with a clock. All work goes into one stream, in which graphs can be
    captured. Tests have one on the CPU.

    Raises: RunnerUnavailable where it cannot be used.
    """

    place = "cuda"

    def __init__(self) -> None:
        self.device = gpu(0)
        # The default stream cannot be captured.
        self._cuda: Any = torch.cuda
        self._stream = self._cuda.Stream()
        torch.cuda.set_stream(self._stream)

    def identity(self) -> dict[str, str]:
        """Facts that name an instance."""
        return self.device.facts()

    def properties(self) -> dict[str, str]:
        """Facts that need no measuring."""
        of = torch.cuda.get_device_properties(0)
        return {
            "multiprocessors": str(of.multi_processor_count),
            "l2_bytes": str(of.L2_cache_size),
            "memory_bytes": str(of.total_memory),
        }

    def free_bytes(self) -> int:
        return int(torch.cuda.mem_get_info()[0])

    def wait(self) -> None:
        torch.cuda.synchronize()

    def once(self, call: Call) -> float:
        """Seconds of one call in the stream."""
        self._cuda._sleep(_BUSY_CYCLES)
        return self._seconds(call)

    def graphed(self, call: Call, calls: int, samples: int) -> list[float]:
        """Mean seconds of a call in a graph of so many calls, once for each replay."""
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            for _ in range(calls):
                call()
        except BaseException:
            with suppress(RuntimeError):
                graph.capture_end()
            raise
        graph.capture_end()
        graph.replay()
        # Waited for each, as the runs that ship were timed: the launch of the graph is inside.
        seconds = [self._seconds(graph.replay) / calls for _ in range(samples)]
        graph.reset()
        return seconds

    def _seconds(self, call: Call) -> float:
        start, end = (self._cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3


def figures(machine: CudaMachine, *, short: bool) -> dict[str, float]:
    """Copy bandwidth in GB/s (bytes read and written), and unless `short` the time of a launch, of
    many in a row, in a stream and in a graph, in microseconds. Figures without memory for them are
    left out."""
    measured: dict[str, float] = {}
    size = min(_SHORT_COPY_BYTES if short else _COPY_BYTES, machine.free_bytes() // 8)
    with suppress(torch.OutOfMemoryError):
        source = torch.zeros(size, dtype=torch.uint8, device=machine.place)
        target = torch.empty_like(source)
        target.copy_(source)
        copies = _SHORT_COPIES if short else _COPIES
        seconds = min(machine.once(lambda: target.copy_(source)) for _ in range(copies))
        measured["copy_gb_s"] = 2 * size / seconds / 1e9
    if not short:
        one = torch.zeros(1, device=machine.place)

        def many() -> None:
            for _ in range(_LAUNCHES):
                one.add_(1)

        many()
        measured["launch_us"] = machine.once(many) / _LAUNCHES * 1e6
        in_graph = machine.graphed(lambda: one.add_(1), _LAUNCHES, 3)
        measured["graph_launch_us"] = min(in_graph) * 1e6
    return {name: float(f"{value:.4g}") for name, value in measured.items()}


_DTYPES = {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16}
#: Dense columns of the reference that are computed together, and values that are compared together.
_COLUMNS, _CHUNK = 64, 1 << 25
#: Smallest difference that counts in half precision: its subnormal numbers are this far apart.
_HALF_STEP = 1e-7


class Loaded:
    """One pattern with random values and everything that its products work on, on one device.

    `b` dtype[n,k], for SDDMM `x` dtype[m,k] (else None), `out` dtype[m,k] or dtype[nnz]; vectors
    for SpMV. Random values are uniform in [-0.5, 0.5). The reference is computed in float64 by
    torch and kept, with the sum of magnitudes of each value, if `check`.
    """

    def __init__(self, request: dict[str, Any], payload: bytes, place: str) -> None:
        self.op, self.place = Op.parse(request["op"]), place
        m, n = request["shape"]
        ptr = np.frombuffer(payload, np.int64, m + 1)
        idx = np.frombuffer(payload, np.int32, offset=ptr.nbytes)
        self._random = torch.Generator(device=place).manual_seed(request["seed"])
        width = () if self.op.name == "spmv" else (self.op.width,)
        sampled = self.op.name == "sddmm"
        self._csr = Csr(
            (m, n),
            torch.from_numpy(ptr.astype(np.int32)).to(place),
            torch.from_numpy(idx.copy()).to(place),
            self._drawn((len(idx),)),
        )
        self.b = self._drawn((n, *width))
        self.x = self._drawn((m, *width)) if sampled else None
        size = (len(idx),) if sampled else (m, *width)
        self.out = torch.empty(size, dtype=_DTYPES[self.op.dtype], device=place)
        self.left_bytes: int = request["left_bytes"]
        #: Seconds of the fastest product so far.
        self.best_s = math.inf
        self._expected = self._reference() if request["check"] else None

    def csr(self) -> Csr:
        """The matrix, without the rows of its entries, so that each conversion pays for them."""
        return Csr(self._csr.shape, self._csr.ptr, self._csr.idx, self._csr.values)

    def wrong(self, tolerance: float) -> str:
        """Empty if `out` is off by at most `tolerance` of the sum of magnitudes, everywhere."""
        if self._expected is None:
            return ""
        result = self.out.view(-1)
        step = _HALF_STEP if self.op.dtype == "f16" else 0.0
        exact, size = self._expected
        for low in range(0, len(result), _CHUNK):
            part = slice(low, low + _CHUNK)
            off = (result[part].double() - exact[part]).abs_()
            bad = ~(off <= size[part] * tolerance + step)
            if bool(bad.any()):
                at = int(bad.int().argmax())
                sampled, place = self.op.name == "sddmm", low + at
                where = f"non-zero {place}" if sampled else f"row {place // max(self.op.width, 1)}"
                return f"{where} is off by {float(off[at]):.3g}, more than rounding explains"
        return ""

    def _drawn(self, shape: tuple[int, ...]) -> torch.Tensor:
        wide = torch.float64 if self.op.dtype == "f64" else torch.float32
        values = torch.rand(shape, generator=self._random, device=self.place, dtype=wide)
        return values.sub_(0.5).to(_DTYPES[self.op.dtype])

    def _reference(self) -> tuple[torch.Tensor, torch.Tensor]:
        """float64[values of out] expected, and float32 of the same shape: the sum of the magnitudes
        of its terms and its own."""
        exact = torch.zeros(self.out.numel(), dtype=torch.float64, device=self.place)
        size = torch.zeros(self.out.numel(), dtype=torch.float32, device=self.place)
        if self._csr.nnz and self.out.numel():
            fill = self._sampled_products if self.op.name == "sddmm" else self._products
            fill(exact, size)
        return exact, size.add_(exact.abs())

    def _products(self, exact: torch.Tensor, size: torch.Tensor) -> None:
        csr, rows = self._csr, self._csr.shape[0]
        places = torch.stack([csr.rows.long(), csr.idx.long()])
        about: dict[str, Any] = {"check_invariants": False, "is_coalesced": True}
        values = csr.values.double()
        a = torch.sparse_coo_tensor(places, values, csr.shape, **about)
        absolute = torch.sparse_coo_tensor(places, values.abs(), csr.shape, **about)
        b = self.b.view(csr.shape[1], -1)
        columns = b.shape[1]
        for low in range(0, columns, _COLUMNS):
            part = slice(low, low + _COLUMNS)
            dense = b[:, part].double()
            exact.view(rows, columns)[:, part] = torch.sparse.mm(a, dense)
            size.view(rows, columns)[:, part] = torch.sparse.mm(absolute, dense.abs()).float()

    def _sampled_products(self, exact: torch.Tensor, size: torch.Tensor) -> None:
        csr, x = self._csr, self.x
        assert x is not None
        step = max(1, _CHUNK // max(self.op.width, 1))
        for low in range(0, csr.nnz, step):
            part = slice(low, low + step)
            terms = x[csr.rows[part]].double() * self.b[csr.idx[part]].double()
            values = csr.values[part].double()
            exact[part] = terms.sum(1) * values
            size[part] = (terms.abs_().sum(1) * values.abs()).float()


#: A graph takes about this long, and has so many products.
_GRAPH_S, _FEWEST, _MOST = 100e-6, 3, 20
#: A product that takes longer is timed once; so is one of so many times the best, unless a graph of
#: it takes no time either.
_SLOW_S, _SLOW_FACTOR, _SHORT_S = 5e-3, 8, 100e-6


class KernelFault(Exception):
    """An error of the driver after which nothing more runs in this process."""


class Worker(Answering):
    """Answers requests; holds one loaded pattern."""

    def __init__(self, opened: Callable[[], CudaMachine]) -> None:
        self._opened = opened
        self._converted: set[str] = set()
        self.job: Loaded | None = None

    def answer(self, request: Reply, payload: bytes) -> Reply:
        """Raises: KernelFault, which ends the process; RunnerUnavailable."""
        try:
            return super().answer(request, payload)
        except (torch.OutOfMemoryError, NoDeviceMemory) as error:
            torch.cuda.empty_cache()
            return {"status": "oom", "error": _first_line(error)}
        except FormRefused as error:
            return {"status": error.status, "error": str(error)}
        except SpaceError as error:
            return {"status": "invalid", "error": str(error)}
        except CompileFailed as error:
            return {"status": "build", "error": _first_line(error)}
        except (DeviceError, RuntimeError) as error:
            if "out of memory" in str(error):
                return {"status": "oom", "error": _first_line(error)}
            raise KernelFault(_first_line(error)) from None

    @cached_property
    def machine(self) -> CudaMachine:
        """Raises: RunnerUnavailable."""
        return self._opened()

    def about(self, _: Reply) -> Reply:
        """Facts of the GPU, or `missing`, the reason why none can be used."""
        try:
            machine = self.machine
        except MissingDependency as error:
            return {"status": "ok", "missing": str(error)}
        facts = {"identity": machine.identity(), "properties": machine.properties()}
        return {"status": "ok", **facts}

    def probe(self, request: Reply) -> Reply:
        return {"status": "ok", "figures": figures(self.machine, short=request["short"])}

    def load(self, request: Reply, payload: bytes) -> Reply:
        self.job = None
        torch.cuda.empty_cache()  # also what graphs of the last job used
        self.job = Loaded(request, payload, self.machine.place)
        self.machine.wait()
        return {"status": "ok"}

    def compile(self, request: Reply) -> Reply:
        """Compile and load a configuration's kernel, or load cuSPARSE."""
        assert self.job is not None, "load comes before compile"
        wanted, device = plan(request["config"], self.job.op), self.machine.device
        begun = time.perf_counter()
        if wanted.algorithm:
            cusparse(device)
        else:
            device.kernel(wanted.template)
        return {"status": "ok", "compile_s": time.perf_counter() - begun}

    def measure(self, request: Reply) -> Reply:
        """Convert, run over output that holds NaN, compare, time."""
        job, machine = self.job, self.machine
        assert job is not None, "load comes before measure"
        wanted = plan(request["config"], job.op)
        product, conversion_s = self._bound(job, wanted)
        reply: Reply = {"conversion_s": conversion_s, "tolerance": wanted.tolerance}
        if product.form.nbytes > job.left_bytes:
            need = f"the format needs {product.form.nbytes} bytes beside the matrix"
            left = f"max_bytes leaves {job.left_bytes}"
            return {**reply, "status": "oom", "error": f"{need}, {left}"}

        def call() -> object:
            return product(job.b, job.x, job.out)

        job.out.fill_(float("nan"))
        call()
        machine.wait()
        if error := job.wrong(wanted.tolerance):
            return {**reply, "status": "wrong", "error": error}
        times, products = self._timed(job, call, request["repeats"])
        return {**reply, "status": "ok", "times_s": times, "graph_products": products}

    def _bound(self, job: Loaded, wanted: Plan) -> tuple[Product | CusparseProduct, float]:
        """The product, and seconds of the conversion alone, once the kernels of torch or cuSPARSE
        that convert have been loaded by another one."""
        kind = wanted.algorithm or wanted.form.layout
        if kind not in self._converted:
            bind(job.csr(), wanted, self.machine.device)
            self._converted.add(kind)
        self.machine.wait()
        begun = time.perf_counter()
        product = bind(job.csr(), wanted, self.machine.device)
        self.machine.wait()
        return product, time.perf_counter() - begun

    def _timed(
        self, job: Loaded, call: Callable[[], object], samples: int
    ) -> tuple[list[float], int]:
        """Mean seconds of a product in a graph, for each replay, and the products of the graph; of
        a slow one those of a single call, and 0."""
        once = self.machine.once(call)
        if once > _SLOW_S or once > max(_SLOW_FACTOR * job.best_s, _SHORT_S):
            return [once], 0
        products = min(max(round(_GRAPH_S / max(once, 1e-9)), _FEWEST), _MOST)
        times = self.machine.graphed(call, products, samples)
        job.best_s = min(job.best_s, *times)
        return times, products


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def main(opened: Callable[[], Any] = CudaMachine) -> None:
    """Serve until stdin ends."""
    serve(Worker(opened).answer, machine=(OSError, RunnerUnavailable))


if __name__ == "__main__":
    main()
