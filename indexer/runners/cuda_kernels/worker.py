"""The child process that runs CUDA kernels: `python -m indexer.runners.cuda_kernels.worker`.

It may hang, or lose its context by a kernel's fault; then it ends, and the parent starts another.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from embeddb.core.errors import MissingDependency, RunnerUnavailable, SpaceError
from embeddb.kernels.cuda.cusparse import CusparseProduct, cusparse
from embeddb.kernels.cuda.device import DeviceError
from embeddb.kernels.cuda.forms import FormRefused
from embeddb.kernels.cuda.nvrtc import CompileFailed
from embeddb.kernels.cuda.plan import Plan, plan
from embeddb.kernels.cuda.product import Product, bind
from indexer.runners.cuda_kernels.job import Loaded
from indexer.runners.cuda_kernels.machine import CudaMachine, Machine, figures
from indexer.runners.harness.serving import Reply, serve

#: A graph takes about this long, and has so many products.
_GRAPH_S, _FEWEST, _MOST = 100e-6, 3, 20
#: A product that takes longer is timed once; so is one of so many times the best, unless a graph of
#: it takes no time either.
_SLOW_S, _SLOW_FACTOR, _SHORT_S = 5e-3, 8, 100e-6


class KernelFault(Exception):
    """An error of the driver after which nothing more runs in this process."""


class Worker:
    """Answers requests; holds one loaded pattern."""

    def __init__(self, opened: Callable[[], Machine]) -> None:
        self._opened = opened
        self._machine: Machine | None = None
        self._converted: set[str] = set()
        self.job: Loaded | None = None

    def answer(self, request: Reply, payload: bytes) -> Reply:
        """Raises: KernelFault, which ends the process; RunnerUnavailable."""
        try:
            if request["do"] == "load":
                return self.load(request, payload)
            reply: Reply = getattr(self, request["do"])(request)
            return reply
        except torch.OutOfMemoryError as error:
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

    @property
    def machine(self) -> Machine:
        """Raises: RunnerUnavailable."""
        if self._machine is None:
            self._machine = self._opened()
        return self._machine

    def about(self, _: Reply) -> Reply:
        """Facts of the GPU, or `missing`: why there is none to use."""
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
            return {**reply, "status": "oom", "error": need}

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
