"""The handle on a GPU beside torch and cuSPARSE: totals by number of calls, calls, a GCN.

    python benchmarks/gpu/handle.py MATRICES OUT.json [SECONDS]

MATRICES is a folder of matrix files. Totals count everything from the sparse tensor to the last
result: choosing, preparing, calls, one wait at the end. Kernels are compiled before (a first run in
a fresh cache is timed apart). cuSPARSE is the best of its algorithms, each through its library with
preprocessing counted; for SDDMM it is torch.sparse.sampled_addmm, which leaves out A's values.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import embeddb
from embeddb.core.config import Op
from embeddb.handle.cuda_matrix import csr_of
from embeddb.kernels.cuda.device import gpu
from embeddb.kernels.cuda.plan import plan
from embeddb.kernels.cuda.product import bind
from embeddb.matrix_files import read_pattern

CALLS = (1, 10, 100, 1000)
OPS = ("spmm:32", "spmm:128", "spmm:512", "spmv", "sddmm:32", "sddmm:128")
ALGORITHMS = {"spmm": ("default", "csr2", "csr3"), "spmv": ("csr1", "csr2")}


def total_s(make: Callable[[], Callable[[], Any]], calls: int) -> float:
    torch.cuda.synchronize()
    begun = time.perf_counter()
    once = make()
    for _ in range(calls):
        once()
    torch.cuda.synchronize()
    return time.perf_counter() - begun


def best_of(make: Callable[[], Callable[[], Any]], calls: int, rounds: int = 3) -> float:
    gc.collect()
    return min(total_s(make, calls) for _ in range(rounds))


def tensor_of(path: Path) -> torch.Tensor:
    pattern = read_pattern(path)
    ptr, idx = (torch.from_numpy(one.copy()) for one in (pattern.indptr, pattern.indices))
    values = torch.rand(pattern.nnz, generator=torch.Generator().manual_seed(1)) - 0.5
    return torch.sparse_csr_tensor(ptr.int(), idx.int(), values, pattern.shape).cuda()


def makers(a: torch.Tensor, op: Op, calls: float) -> dict[str, Callable[[], Callable[[], Any]]]:
    m, n = a.shape
    k = None if op.kernel == "spmv" else op.width
    b = torch.rand((n,) if k is None else (n, k), device="cuda")
    c = torch.rand((m, k or 1), device="cuda")

    def ours() -> Callable[[], Any]:
        f = embeddb.compile(a, op.kernel, k=k, calls=calls)
        return (lambda: f(c, b)) if op.kernel == "sddmm" else lambda: f(b)

    if op.kernel == "sddmm":
        bt = b.T
        library = {"cusparse": lambda: lambda: torch.sparse.sampled_addmm(a, c, bt, beta=0)}
        return {"ours": ours, **library}

    def cusparse(algorithm: str) -> Callable[[], Callable[[], Any]]:
        def make() -> Callable[[], Any]:
            wanted = plan({"work": "cusparse", "algorithm": algorithm}, op)
            made = bind(csr_of(a).csr, wanted, gpu(0))
            return lambda: made(b, None, b.new_empty((m, *b.shape[1:])))

        return make

    libraries = {f"cusparse-{one}": cusparse(one) for one in ALGORITHMS[op.kernel]}
    return {"ours": ours, "torch": lambda: lambda: a @ b, **libraries}


def one_case(a: torch.Tensor, op: Op) -> dict[str, Any]:
    row: dict[str, Any] = {}
    begun = time.perf_counter()
    makers(a, op, 10**9)["ours"]()()
    torch.cuda.synchronize()
    row["first_s"] = time.perf_counter() - begun
    for calls in CALLS:
        by = makers(a, op, calls)
        row[str(calls)] = {name: best_of(make, calls) for name, make in by.items()}
    k = None if op.kernel == "spmv" else op.width
    f = embeddb.compile(a, op.kernel, k=k, calls=10**9)
    row["config"], row["why"] = str(f.config), f.why()
    row["steady"] = {}
    for name, make in makers(a, op, 10**9).items():
        once = make()
        row["steady"][name] = best_of(lambda once=once: once, 200) / 200  # type: ignore[misc]
    return row


def overhead() -> dict[str, float]:
    """Microseconds of host time for a call whose kernel takes none."""
    a = torch.eye(64).to_sparse_csr().cuda()
    b = torch.rand(64, 32, device="cuda")
    out = torch.empty(64, 32, device="cuda")
    f = embeddb.compile(a, "spmm", k=32, calls=10**9)
    grad = b.clone().requires_grad_()
    cases = {
        "handle": lambda: f(b),
        "handle_out": lambda: f(b, out=out),
        "handle_with_gradient": lambda: f(grad),
        "torch": lambda: a @ b,
    }
    return {
        name: 1e6 * best_of(lambda once=once: once, 2000) / 2000 for name, once in cases.items()
    }  # type: ignore[misc]


def gcn(a: torch.Tensor, width: int = 128, steps: int = 50) -> dict[str, float]:
    """Milliseconds of a training step of a two-layer GCN, with the handle and with torch."""
    torch.manual_seed(0)
    m = min(a.shape)
    square = a.to_sparse_coo().coalesce()
    inside = (square.indices() < m).all(0)
    parts = square.indices()[:, inside], square.values()[inside].abs()
    a = torch.sparse_coo_tensor(*parts, (m, m)).to_sparse_csr()
    x = torch.rand(m, width, device="cuda")
    labels = torch.randint(0, 16, (m,), device="cuda")
    f = embeddb.compile(a, "spmm", k=width, calls=10**6)
    last = embeddb.compile(a, "spmm", k=16, calls=10**6)

    def step(products: tuple[Callable[..., Any], ...]) -> Callable[[], Any]:
        one = torch.nn.Linear(width, width, device="cuda")
        two = torch.nn.Linear(width, 16, device="cuda")
        optimiser = torch.optim.SGD([*one.parameters(), *two.parameters()], lr=1e-3)

        def train() -> float:
            optimiser.zero_grad()
            hidden = torch.relu(products[0](one(x)))
            loss = torch.nn.functional.cross_entropy(products[1](two(hidden)), labels)
            loss.backward()
            optimiser.step()
            return loss

        return train

    by_torch = (lambda b: torch.sparse.mm(a, b),) * 2
    cases = {"handle": (f, last), "torch": by_torch}
    times = {}
    for name, products in cases.items():
        train = step(products)
        times[name] = 1e3 * best_of(lambda train=train: train, steps) / steps  # type: ignore[misc]
    return times


def bandwidth() -> float:
    """GB/s of a copy, bytes read and written."""
    x = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    y = torch.empty_like(x)
    return 2 * x.numel() / (best_of(lambda: lambda: y.copy_(x), 20) / 20) / 1e9


def summary(cases: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for op in OPS:
        rows = [row for name, row in cases.items() if name.endswith(f"/{op}")]
        if not rows:
            continue
        found[op] = {}
        for calls in (*map(str, CALLS), "steady"):
            ratios: dict[str, list[float]] = {"torch": [], "cusparse": []}
            for row in rows:
                times = row[calls]
                library = min(t for name, t in times.items() if name.startswith("cusparse"))
                ratios["cusparse"].append(library / times["ours"])
                ratios["torch"].append(times.get("torch", library) / times["ours"])
            found[op][calls] = {
                name: {
                    "geometric_mean": statistics.geometric_mean(values),
                    "least": min(values),
                    "slower_by_5_percent": sum(v < 0.95 for v in values) / len(values),
                }
                for name, values in ratios.items()
            }
    return found


def measured(matrices: list[Path], seconds: float) -> dict[str, Any]:
    warnings.filterwarnings("ignore", message="Sparse .* tensor support is in beta")
    begun = time.perf_counter()
    report: dict[str, Any] = {"device": gpu(0).facts(), "overhead_us": overhead()}
    report["copy_gb_s"] = bandwidth()
    cases: dict[str, Any] = {}
    for path in matrices:
        a = tensor_of(path)
        for op in OPS:
            if time.perf_counter() - begun > seconds:
                break
            cases[f"{path.stem}/{op}"] = one_case(a, Op.parse(op))
    report["gcn_ms"] = {path.stem: gcn(tensor_of(path)) for path in matrices[:3]}
    return {**report, "summary": summary(cases), "cases": cases}


def main(folder: str, out: str, seconds: str = "120") -> None:
    paths = sorted(p for p in Path(folder).iterdir() if p.suffix in (".npz", ".mtx", ".gz"))
    report = measured(paths, float(seconds))
    Path(out).write_text(json.dumps(report, indent=1))
    short = {key: value for key, value in report.items() if key != "cases"}
    print(json.dumps(short, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
