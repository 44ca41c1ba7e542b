"""Emits a CUDA library for each kind of format and each of six operations, builds it by nvcc and
runs its test program on this machine's GPU.

    emitted.py --build FOLDER   # writes and builds all for sm_90, runs nothing

Where there is no nvcc, test programs that were built before in `build/emitted` run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from sections import Options, run

from embeddb.core.config import Config, Op
from embeddb.core.errors import SpaceError
from embeddb.emit.cuda import CudaLibrary
from embeddb.kernels.cuda.device import gpu
from embeddb.kernels.cuda.plan import fit

OPS = ("spmm:32", "spmm:128", "spmm:512", "spmv", "sddmm:32", "sddmm:128")
#: One configuration of each kind of format, by kernel.
KINDS = {
    "spmm": (
        "work=rows,lanes=8,vec=4,cols=1,stage=direct,unroll=2,reorder=none",
        "work=rows,lanes=32,vec=1,cols=1,stage=shuffle,unroll=2,reorder=length",
        "work=pieces,lanes=8,vec=4,cols=1,stage=shared,unroll=1,piece=16,reorder=length",
        "work=entries,lanes=8,vec=2,cols=1,stage=direct,unroll=1,piece=32,reorder=none",
        "work=windows,math=fp32,lanes=8,vec=4,cols=1,window=4,unroll=1,reorder=columns",
        "work=window-pieces,math=tf32x3,window=8,cols=1,piece=32,reorder=none",
        "work=windows,math=bf16,window=16,cols=1,reorder=none",
    ),
    "spmv": (
        "work=rows,lanes=4,unroll=2,reorder=none",
        "work=piece-batches,lanes=4,unroll=1,reorder=length,piece=32,batch=2",
        "work=entries,unroll=1,piece=128",
        "work=slices,unroll=2,sigma=256",
        "work=stream,lanes=4,piece=512",
    ),
    "sddmm": (
        "work=rows,lanes=8,vec=4,unroll=2,reorder=length",
        "work=entries,lanes=8,vec=4,unroll=1,piece=8",
        "work=windows,math=tf32x3,window=16,reorder=none",
    ),
}
_ROOT = Path(__file__).resolve().parents[2]
_BUILT = _ROOT / "build" / "emitted"
#: A test program may take so many seconds.
_TEST_S = 30.0


def libraries() -> Iterator[tuple[str, Op, Config]]:
    """Name, operation and configuration of each."""
    for text in OPS:
        op = Op.parse(text)
        for nth, line in enumerate(KINDS[op.name]):
            config = fit(Config({"block": 128, "grid": "columns", **Config.parse(line)}), op)
            yield f"{op.name}_{op.width}_{nth}_{config['work']}", op, config
    for dtype in ("f64", "f16", "bf16"):
        for text in ("spmm:32", "spmv"):
            kind = Op.parse(text)
            op = Op(kind.name, kind.width, dtype)
            for nth, line in enumerate(KINDS[op.name]):
                config = Config({"block": 128, "grid": "columns", **Config.parse(line)})
                try:
                    config = fit(config, op)
                except SpaceError:  # this kind has no kernel for the type
                    continue
                yield f"{op.name}_{op.width}_{dtype}_{nth}_{config['work']}", op, config


def build(folder: Path, architecture: str) -> dict[str, str]:
    """Write all into a folder and compile on all processors: the compiler's last line for each that
    failed."""
    for name, op, config in libraries():
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        for file, text in CudaLibrary(op, [config], architecture=architecture).files().items():
            (place / file).write_text(text)

    def made(name: str) -> tuple[str, str]:
        command = ["make", "-s", "-C", str(folder / name), "test"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = done.stderr.strip().splitlines() or ["make failed"]
        return name, lines[-1] if done.returncode else ""

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return {
            name: error for name, error in pool.map(made, [n for n, _, _ in libraries()]) if error
        }


def check(folder: Path, left_s: float) -> dict[str, Any]:
    """Run each test program: its last line, or why there is none."""
    end = time.monotonic() + left_s
    results, failures = {}, []
    for name, _, _ in libraries():
        program = folder / name / "test"
        if not program.exists():
            failures.append(f"{name}: not built")
        elif time.monotonic() > end:
            failures.append(f"{name}: no time was left")
        else:
            results[name], failure = _result(program)
            failures += [f"{name}: {failure}"] if failure else []
    return {"results": results, "failures": failures}


def _result(program: Path) -> tuple[str, str]:
    """The last line of output, and why it failed; empty: it did not."""
    try:
        done = subprocess.run([program], capture_output=True, text=True, timeout=_TEST_S)
    except subprocess.TimeoutExpired:
        return "", f"not done within {_TEST_S:.0f} s"
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    last = lines[-1] if lines else f"exit status {done.returncode}"
    return last, "" if done.returncode == 0 else last


def emitted(seconds: float) -> dict[str, Any]:
    """Build (where there is nvcc) and check all within so many seconds."""
    begun = time.monotonic()
    if shutil.which("nvcc") is None and not _BUILT.is_dir():
        reason = "no nvcc here: build elsewhere by `emitted.py --build build/emitted`"
        return {"ok": True, "skipped": reason, "table": [f"skipped: {reason}"]}
    with tempfile.TemporaryDirectory() as name:
        folder, errors = _BUILT, {}
        if shutil.which("nvcc") is not None:
            folder = Path(name)
            errors = build(folder, "native")
        build_s = time.monotonic() - begun
        outcome = check(folder, seconds - build_s)
    failures = [f"{name}: {error}" for name, error in errors.items()] + outcome["failures"]
    table = [
        f"{len(outcome['results'])} libraries: built in {build_s:.1f} s, tested",
        *(f"FAILED {text}" for text in failures[:20]),
    ]
    return {"ok": not failures, "build_s": round(build_s, 1), **outcome, "table": table}


def section(options: Options) -> dict[str, Any]:
    """With `--emulate` nothing runs: the tests of `embeddb emit` emulate it."""
    if options.emulate:
        return {"ok": True, "skipped": "emulated by the tests of `embeddb emit`", "table": []}
    gpu(0)  # raises where there is none
    return emitted(options.left_s)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--build"]:
        problems = build(Path(sys.argv[2]), "sm_90")
        print("\n".join(f"{name}: {error}" for name, error in problems.items()) or "built")
        sys.exit(1 if problems else 0)
    run(section)
