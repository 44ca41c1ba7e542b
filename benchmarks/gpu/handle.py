"""Section of `check.py`: the handle beside torch and cuSPARSE, by the number of calls; a GCN.

Totals count everything from the sparse tensor to the last result: choosing, preparing, calls, one
wait at the end; kernels were compiled before, and a first run in this process is timed apart.
cuSPARSE is the best of its algorithms, each through its library with preprocessing counted; for
SDDMM it is torch.sparse.sampled_addmm, which leaves out the product by A's values.
"""

from __future__ import annotations

import gc
import itertools
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from sample_times import known_entries
from sections import Options, run

import embeddb
from embeddb.core.config import Op
from embeddb.handle.choice import CompileOptions, Wanted
from embeddb.handle.cuda import CudaProducts, csr_of
from embeddb.handle.tensors import TensorHandle
from embeddb.kernels.cuda.device import Device, gpu
from embeddb.kernels.cuda.plan import plan
from embeddb.kernels.cuda.product import bind
from embeddb.matrix_files import matrix_files, matrix_name, read_pattern

CALLS = (1, 10, 100, 1000)
OPS = ("spmm:32", "spmm:128", "spmm:512", "spmv", "sddmm:32", "sddmm:128")
ALGORITHMS = {"spmm": ("default", "csr2", "csr3"), "spmv": ("csr1", "csr2"), "sddmm": ()}
#: Seconds that the first case may take.
_FIRST_S = 3.0
#: Seconds for the GCN, and matrices that it runs on.
_GCN_S, _GCN_MATRICES = 25.0, ("pubmed", "musae_facebook", "soc-slashdot0902")
Make = Callable[[], Callable[[], Any]]


class Place:
    """A GPU, or the emulating device with tensors of the CPU."""

    def __init__(self, emulate: bool) -> None:
        self.name = "cpu" if emulate else "cuda"
        self.calls = (1, 10) if emulate else CALLS
        self.repeats = 3 if emulate else 200
        self.device: Device = _emulated() if emulate else gpu(0)

    def compile(self, a: torch.Tensor, kernel: str, k: int | None, calls: float) -> Any:
        if self.name == "cuda":
            return embeddb.compile(a, kernel, k=k, calls=calls)
        wanted = Wanted(kernel, k, None, "starter", CompileOptions(min(calls, 1e5)))
        return TensorHandle(CudaProducts.of(a, wanted, self.device))

    def wait(self) -> None:
        if self.name == "cuda":
            torch.cuda.synchronize()

    def best_s(self, make: Make, calls: int, rounds: int = 3) -> float:
        """The least of some totals: making, calls, waiting."""
        gc.collect()
        times = []
        for _ in range(rounds):
            self.wait()
            begun = time.perf_counter()
            once = make()
            for _ in range(calls):
                once()
            self.wait()
            times.append(time.perf_counter() - begun)
        return min(times)

    def call_s(self, once: Callable[[], Any], calls: int = 0) -> float:
        calls = calls or self.repeats
        return self.best_s(lambda: once, calls) / calls

    def tensor(self, path: Path) -> torch.Tensor:
        pattern = read_pattern(path)
        ptr, idx = (torch.from_numpy(one.copy()).int() for one in (pattern.indptr, pattern.indices))
        values = torch.rand(pattern.nnz, generator=torch.Generator().manual_seed(1)) - 0.5
        return torch.sparse_csr_tensor(ptr, idx, values, pattern.shape, check_invariants=False).to(
            self.name
        )


def _emulated() -> Device:
    from emulated_gpu import EmulatedGpu

    return EmulatedGpu(Path(tempfile.mkdtemp()))


def makers(place: Place, a: torch.Tensor, op: Op, calls: float) -> dict[str, Make]:
    (m, n), k = a.shape, None if op.name == "spmv" else op.width
    b = torch.rand((n,) if k is None else (n, k), device=place.name)
    c = torch.rand((m, k or 1), device=place.name)

    def ours() -> Callable[[], Any]:
        f = place.compile(a, op.name, k, calls)
        return (lambda: f(c, b)) if op.name == "sddmm" else lambda: f(b)

    if op.name == "sddmm":
        bt = b.T
        sampled = lambda: lambda: torch.sparse.sampled_addmm(a, c, bt, beta=0)  # noqa: E731
        return {"ours": ours, "cusparse": sampled}

    def cusparse(algorithm: str) -> Make:
        def make() -> Callable[[], Any]:
            wanted = plan({"work": "cusparse", "algorithm": algorithm}, op)
            made = bind(csr_of(a).csr, wanted, place.device)
            return lambda: made(b, None, b.new_empty((m, *b.shape[1:])))

        return make

    libraries = {f"cusparse-{one}": cusparse(one) for one in ALGORITHMS[op.name]}
    return {"ours": ours, "torch": lambda: lambda: a @ b, **libraries}


def one_case(place: Place, a: torch.Tensor, op: Op) -> dict[str, Any]:
    """Seconds by number of calls and by who computes; of a call in a long row of them, and in a
    CUDA graph, which leaves the host out."""
    row: dict[str, Any] = {"first_s": place.best_s(makers(place, a, op, 1e9)["ours"], 1, 1)}
    for calls in place.calls:
        by = makers(place, a, op, calls)
        rounds = 3 if calls < 1000 else 2
        row[str(calls)] = {name: place.best_s(make, calls, rounds) for name, make in by.items()}
    f = place.compile(a, op.name, None if op.name == "spmv" else op.width, 1e9)
    row["config"], row["why"] = str(f.config), f.why()
    every = makers(place, a, op, 1e9)
    row["steady"] = {name: place.call_s(make()) for name, make in every.items()}
    if place.name == "cuda":
        row["graph"] = {name: graph_s(make()) for name, make in every.items()}
    return row


def graph_s(once: Callable[[], Any], calls: int = 20) -> float:
    """Seconds of a call in a replayed graph; the least of five."""
    graph: Any = torch.cuda.CUDAGraph()
    side: Any = torch.cuda.Stream()
    with torch.cuda.stream(side):
        once()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            once()
    event: Any = torch.cuda.Event
    marks = [event(enable_timing=True) for _ in range(6)]
    graph.replay()
    for number, mark in enumerate(marks):
        mark.record()
        if number < len(marks) - 1:
            graph.replay()
    torch.cuda.synchronize()
    spans = (first.elapsed_time(second) for first, second in itertools.pairwise(marks))
    return min(spans) / 1e3 / calls


def overhead_us(place: Place) -> dict[str, float]:
    """Microseconds of host time for a call whose kernel takes next to none."""
    a = torch.eye(64).to_sparse_csr().to(place.name)
    b = torch.rand(64, 32, device=place.name)
    out = torch.empty(64, 32, device=place.name)
    f = place.compile(a, "spmm", 32, 1e9)
    grad = b.clone().requires_grad_()
    cases: dict[str, Callable[[], Any]] = {
        "handle": lambda: f(b),
        "handle_out": lambda: f(b, out=out),
        "handle_with_gradient": lambda: f(grad),
        "torch": lambda: a @ b,
    }
    calls = 10 if place.name == "cpu" else 2000
    return {name: 1e6 * place.call_s(once, calls) for name, once in cases.items()}


def gcn_ms(place: Place, a: torch.Tensor, width: int = 128) -> dict[str, float]:
    """Milliseconds of a training step of a two-layer GCN, with the handle and with torch."""
    torch.manual_seed(0)
    m = min(a.shape)
    coo = a.to_sparse_coo().coalesce()
    inside = (coo.indices() < m).all(0)
    parts = coo.indices()[:, inside], coo.values()[inside].abs()
    a = torch.sparse_coo_tensor(*parts, (m, m)).to_sparse_csr()
    x = torch.rand(m, width, device=place.name)
    labels = torch.randint(0, 16, (m,), device=place.name)
    handles = [place.compile(a, "spmm", k, 1e6) for k in (width, 16)]
    by_torch = [lambda b: torch.sparse.mm(a, b)] * 2
    times = {}
    for name, products in (("handle", handles), ("torch", by_torch)):
        one = torch.nn.Linear(width, width, device=place.name)
        two = torch.nn.Linear(width, 16, device=place.name)
        optimiser = torch.optim.SGD([*one.parameters(), *two.parameters()], lr=1e-3)

        def train(
            products: Any = products, one: Any = one, two: Any = two, o: Any = optimiser
        ) -> None:
            o.zero_grad()
            hidden = torch.relu(products[0](one(x)))
            torch.nn.functional.cross_entropy(products[1](two(hidden)), labels).backward()
            o.step()

        times[name] = 1e3 * place.call_s(train, 2 if place.name == "cpu" else 50)
    return times


def summary(cases: dict[str, Any]) -> dict[str, Any]:
    """By operation and calls, the time of torch and of the best cuSPARSE over the handle's."""
    found: dict[str, Any] = {}
    for op in OPS:
        rows = [row for name, row in cases.items() if name.endswith(f"/{op}")]
        kinds = [kind for kind in (*map(str, CALLS), "steady", "graph") if rows and kind in rows[0]]
        for kind in kinds:
            for name in ("torch", "cusparse"):
                ratios = [
                    min(t for by, t in row[kind].items() if by.startswith(name)) / row[kind]["ours"]
                    for row in rows
                    if any(by.startswith(name) for by in row[kind])
                ]
                if ratios:
                    found.setdefault(op, {}).setdefault(kind, {})[name] = {
                        "geometric_mean": statistics.geometric_mean(ratios),
                        "least": min(ratios),
                        "slower_by_5_percent": sum(r < 0.95 for r in ratios) / len(ratios),
                    }
    return found


def table_of(report: dict[str, Any]) -> list[str]:
    lines = [f"call in us: {_numbers(report['overhead_us'])}"]
    for op, kinds in report["summary"].items():
        for kind, names in kinds.items():
            cells = [
                f"{name} {one['geometric_mean']:.2f} (least {one['least']:.2f}, slower "
                f"{one['slower_by_5_percent']:.0%})"
                for name, one in names.items()
            ]
            lines.append(f"{op:10} {kind:>6} calls, over {', over '.join(cells)}")
    lines.append(f"{len(report['cases'])} cases, {report['left_out']} left out for want of time")
    lines += [f"GCN step in ms, {name}: {_numbers(by)}" for name, by in report["gcn_ms"].items()]
    return lines


def _numbers(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.2f}" for name, value in values.items())


def section(options: Options) -> dict[str, Any]:
    warnings.filterwarnings("ignore", message="Sparse ")
    paths = {matrix_name(path): path for path in matrix_files(options.matrices)}
    if not paths:
        reason = f"{options.matrices} has no matrix: give a folder that has some by --matrices"
        return {"ok": False, "error": reason}
    place = Place(options.emulate)
    report: dict[str, Any] = {"ok": True, "overhead_us": overhead_us(place), "gcn_ms": {}}
    begun = time.monotonic()
    for name in [name for name in _GCN_MATRICES if name in paths] or list(paths)[:1]:
        if time.monotonic() - begun < _GCN_S:
            report["gcn_ms"][name] = gcn_ms(place, place.tensor(paths[name]))
    planned = sizes(paths, OPS[:1] if options.emulate else OPS)
    planned = planned[:1] if options.emulate else planned
    report["cases"] = cases = timed_cases(place, planned, paths, report, options)
    report |= {"left_out": len(planned) - len(cases), "summary": summary(cases)}
    return {**report, "table": table_of(report)}


def sizes(paths: Mapping[str, Path], ops: Sequence[str]) -> list[tuple[int, str, Op]]:
    """Non-zeros times dense columns, matrix and operation of all cases, the smallest first. The
    non-zeros of a matrix that did not ship are guessed from the size of its file."""
    known = known_entries()
    cases = [
        ((known.get(name) or path.stat().st_size // 8) * op.width, name, op)
        for name, path in paths.items()
        for op in map(Op.parse, ops)
    ]
    return sorted(cases, key=lambda case: (case[0], case[1], str(case[2])))


def timed_cases(
    place: Place,
    planned: Sequence[tuple[int, str, Op]],
    paths: Mapping[str, Path],
    report: dict[str, Any],
    options: Options,
) -> dict[str, Any]:
    """The cases that there is time for, by the time of the case before, scaled by the size. Each is
    kept with the report at once: one may hang."""
    cases: dict[str, Any] = {}
    took, done = _FIRST_S, 0
    for size, name, op in planned:
        if options.left_s < 1.5 * took * (max(1.0, size / done) if done else 1.0):
            break
        begun = time.monotonic()
        cases[f"{name}/{op}"] = one_case(place, place.tensor(paths[name]), op)
        took, done = time.monotonic() - begun, size
        options.keep({**report, "cases": cases})
    return cases


if __name__ == "__main__":
    run(section)
