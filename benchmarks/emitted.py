"""Emitted C: what a call costs over its bare kernel, and making a matrix and calling it against the
handle of `embeddb.compile` in the same configuration.

    OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive python benchmarks/emitted.py \
        > benchmarks/results/emitted.json

float32, one thread, generated matrices. Handle and library are called in turn, and the ratios of
each pair kept (above 1: the emitted code takes longer). The handle's making is copying, checking
and conversion, its kernel built before; the emitted `create` does the same, and where the format
reorders values notes their places, which the handle does at the first `update`.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from machine import about, spread
from scipy import sparse

import embeddb
from embeddb.core.config import Config, Op
from embeddb.emit.library import Library
from embeddb.handle.kernel_call import FormRefused, by_kernel
from embeddb.handle.matrix import matrix_of
from embeddb.kernels import build as cpu_build

K = 32
ROUNDS = 15
FLAGS = ("-std=c11", "-O3", "-march=native", "-ffp-contract=fast", "-fno-math-errno", "-fopenmp")
WIDE = f"spmm:{K}"
CASES = (
    (WIDE, "order=ijk,format=csr,threads=one"),
    (WIDE, "order=ik1jk0,format=csr,ktile=32,unroll=4,reorder=none,threads=one"),
    (WIDE, "order=ik1jk0,format=csr,ktile=32,unroll=4,reorder=length,threads=one"),
    (WIDE, "order=ik1jk0,format=csr,ktile=32,unroll=4,reorder=rcm,threads=one"),
    (WIDE, "order=ik1jk0,format=bcsr,block=4x4,ktile=32,threads=one"),
    (WIDE, "order=j1ik1j0k0,format=dcsr,jtile=4096,ktile=32,threads=one"),
    (WIDE, "order=jk1ik0,format=csc,ktile=32,threads=one"),
    ("spmv", "order=ij,format=csr,lanes=8,unroll=4,reorder=none,threads=one"),
    ("spmv", "order=ij,format=sell,slice=16,sigma=256,threads=one"),
    ("spmv", "order=ij,format=ell,slice=16,threads=one"),
    (f"sddmm:{K}", "order=ijk,format=csr,threads=one"),
    (f"sddmm:{K}", "order=jk1ik0,format=csc,ktile=32,unroll=4,threads=one"),
)
TINY = """
#define main nothing
#include "KERNEL"
#undef main
#include "NAME.h"
#include <stdio.h>
#include <time.h>
static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
enum { SIDE = 16, CALLS = 200, ROUNDS = 1001 };
typedef struct { const void *of; held held; } begun; /* how NAME_matrix begins */
int main(void)
{
    static int64_t ptr[SIDE + 1];
    static int32_t col[SIDE];
    static T val[SIDE], b[SIDE * 8], d[SIDE * 8];
    NAME_matrix *a;
    for (int i = 0; i < SIDE; i++)
        ptr[i + 1] = i + 1, col[i] = i, val[i] = 1;
    if (NAME_create(&a, SIDE, SIDE, SIDE, ptr, col, val))
        return 1;
    problem q = ((const begun *)a)->held.q;
    q.width = WIDTH, q.b = b, q.d = d;
    omp_set_num_threads(1);
    for (int round = 0; round < ROUNDS; round++) {
        const double start = now();
        for (int call = 0; call < CALLS; call++)
            kernel(q);
        const double between = now();
        for (int call = 0; call < CALLS; call++)
            RUN;
        const double end = now();
        printf("%.3f %.3f\\n", 1e9 * (between - start) / CALLS, 1e9 * (end - between) / CALLS);
    }
    return 0;
}
"""


def written(folder: Path, op: Op, config: Config) -> str:
    made = Library(op, [config])
    for name, text in made.files().items():
        (folder / name).write_text(text)
    return made.prefix


def compiled(sources: list[Path], out: Path, *flags: str) -> Path:
    found = cpu_build.compiler()
    assert found is not None
    subprocess.run([found[0], *FLAGS, *flags, *sources, "-lm", "-o", out], check=True)
    return out


def overhead(op: Op, config: Config, *flags: str) -> dict[str, Any]:
    """Quartiles of nanoseconds of a call of 16 non-zeros and of its kernel alone, in turns of 200
    calls."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prefix = written(folder, op, config)
        run = f"{prefix}_run(a, b, d, 1)" if op.name == "spmv" else f"{prefix}_run(a, 8, b, d, 1)"
        text = TINY.replace("RUN;", f"{run};").replace("WIDTH", "1" if op.name == "spmv" else "8")
        text = text.replace("KERNEL", f"{prefix}_kernel_0.c").replace("NAME", prefix)
        (folder / "tiny.c").write_text(text)
        program = compiled([folder / "tiny.c", folder / f"{prefix}.c"], folder / "tiny", *flags)
        done = subprocess.run([program], capture_output=True, text=True, check=True)
    rows = np.array([line.split() for line in done.stdout.splitlines()], dtype=np.float64)
    beyond = rows[:, 1] - rows[:, 0]
    return {
        "op": str(op),
        "config": str(config),
        "kernel_ns": quartiles(rows[:, 0]),
        "beyond_kernel_ns": quartiles(beyond),
    }


def quartiles(values: Any) -> list[float]:
    return [round(float(one), 1) for one in np.quantile(values, (0.25, 0.5, 0.75))]


def matrices() -> dict[str, Any]:
    """A million non-zeros or so: even rows, rows of very different lengths, dense blocks."""
    rng = np.random.default_rng(0)
    n = 60_000
    even = sparse.random(n, n, 16 / n, format="csr", random_state=rng, dtype=np.float32)
    lengths = np.minimum((n / 8 / (1 + rng.permutation(n)) ** 0.75).astype(np.int64) + 2, n // 4)
    rows = np.repeat(np.arange(n), lengths)
    cols = (n * rng.random(rows.size) ** 2).astype(np.int64)
    skewed = sparse.csr_array((np.ones(rows.size, np.float32), (rows, cols)), shape=(n, n))
    few = sparse.random(n // 4, n // 4, 4 / (n // 4), format="csr", random_state=rng)
    blocks = sparse.csr_array(sparse.kron(few, np.ones((4, 4)), format="csr").astype(np.float32))
    found = {"even rows": sparse.csr_array(even), "skewed rows": skewed, "4x4 blocks": blocks}
    for a in found.values():
        a.sum_duplicates()
        a.indices = a.indices.astype(np.int32)
        a.data[:] = rng.random(a.nnz, dtype=np.float32)
    return found


def address(array: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


class Emitted:
    """The library of a configuration, loaded into this process."""

    def __init__(self, folder: Path, op: Op, config: Config) -> None:
        prefix = written(folder, op, config)
        sources = [folder / f"{prefix}.c", folder / f"{prefix}_kernel_0.c"]
        self._library = ctypes.CDLL(str(compiled(sources, folder / "it.so", "-fPIC", "-shared")))
        self._prefix = prefix

    def call(self, name: str, *given: Any) -> int:
        return int(self._library[f"{self._prefix}_{name}"](*given))

    def create(self, a: Any, ptr: Any) -> ctypes.c_void_p | None:
        """`ptr` int64[m+1]. None for a matrix that is mostly fill in this format."""
        made = ctypes.c_void_p()
        sizes = (ctypes.c_int64(size) for size in (*a.shape, a.nnz))
        arrays = map(address, (ptr, a.indices, a.data))
        if self.call("create", ctypes.byref(made), *sizes, *arrays):
            return None
        return made


def ratios(ours: Callable[[], Any], theirs: Callable[[], Any], rounds: int) -> dict[str, float]:
    """Seconds of ours over theirs in turns, of which the first is left out."""
    found = []
    for nth in range(rounds + 1):
        start = time.perf_counter()
        ours()
        between = time.perf_counter()
        theirs()
        end = time.perf_counter()
        if nth:
            found.append((between - start) / (end - between))
    return spread(found)


def one(emitted: Emitted, a: Any, op: Op, config: Config) -> dict[str, Any] | None:
    """Making and calling, both against the handle; None where the matrix does not fit."""
    rng = np.random.default_rng(1)
    ptr = a.indptr.astype(np.int64)
    made = emitted.create(a, ptr)
    try:
        by_kernel(matrix_of(a), op, config)
    except FormRefused:
        return None
    assert made is not None
    k = None if op.name == "spmv" else op.width
    handle = embeddb.compile(a, op.name, k=k, config=config)
    assert handle.config == config, handle.why()
    b = rng.random((a.shape[1], k or 1), dtype=np.float32)
    c = rng.random((a.shape[0], k or 1), dtype=np.float32)
    out = np.empty(a.nnz if op.name == "sddmm" else (a.shape[0], k or 1), dtype=np.float32)
    given = (c, b) if op.name == "sddmm" else (b,) if k else (b[:, 0].copy(),)
    theirs = np.empty_like(out if k else out[:, 0])
    places = [address(one) for one in (*given, out)]
    width = () if k is None else (ctypes.c_int64(op.width),)

    def run() -> None:
        assert emitted.call("run", made, *width, *places, 0) == 0

    def create() -> None:
        emitted.call("destroy", emitted.create(a, ptr))

    def update() -> None:
        emitted.call("update_values", made, address(a.data))

    run()
    handle(*given, out=theirs)
    np.testing.assert_allclose(out.reshape(theirs.shape), theirs, rtol=1e-4, atol=1e-4)
    handle.update(a)
    found = {
        "call": ratios(run, lambda: handle(*given, out=theirs), ROUNDS),
        "create": ratios(create, lambda: by_kernel(matrix_of(a), op, config), ROUNDS // 3),
        "update": ratios(update, lambda: handle.update(a.data), ROUNDS // 3),
    }
    emitted.call("destroy", made)
    return found


def main() -> None:
    result: dict[str, Any] = {"about": about(), "rounds": ROUNDS}
    tiny = [CASES[0], CASES[1], CASES[7], CASES[8]]
    result["overhead"] = [overhead(Op.parse(op), Config.parse(text)) for op, text in tiny]
    result["overhead_without_openmp"] = [
        overhead(Op.parse(op), Config.parse(text), "-fno-openmp", "-fopenmp-simd")
        for op, text in tiny
    ]
    shared, rows = matrices(), []
    result["matrices"] = {name: [*a.shape, a.nnz] for name, a in shared.items()}
    for text, words in CASES:
        op, config = Op.parse(text), Config.parse(words)
        with tempfile.TemporaryDirectory() as folder:
            emitted = Emitted(Path(folder), op, config)
            for name, a in shared.items():
                if (found := one(emitted, a, op, config)) is not None:
                    rows.append({"op": text, "config": words, "matrix": name, **found})
    result["over_handle"] = rows
    result["summary"] = {
        what: {
            "geometric_mean": float(np.exp(np.mean([np.log(r[what]["median"]) for r in rows]))),
            **spread([r[what]["median"] for r in rows]),
        }
        for what in ("call", "create", "update")
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
