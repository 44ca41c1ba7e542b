"""Every kind of kernel and cuSPARSE's algorithms: compiled, then compared with float64 on
degenerate patterns, in four value types, and with NaN and infinity among the operands."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from cuda_cases import KERNELS, LIBRARY, csr_of, largest_excess, pattern, patterns, planned, shapes
from sections import Options, run

from embeddb.core.config import Config, Op
from embeddb.core.errors import SpaceError
from embeddb.kernels.build import cache_folder
from embeddb.kernels.cuda import nvrtc
from embeddb.kernels.cuda.device import gpu
from embeddb.kernels.cuda.plan import Plan, fit
from embeddb.kernels.cuda.product import bind

TYPES = ("f32", "f64", "f16", "bf16")
#: With `--emulate`: every so many kinds of kernels, in float32.
_FEW = 8


def section(options: Options) -> dict[str, Any]:
    """Compile, check on patterns, check NaN and infinities."""
    plans = list(all_plans(options.emulate))
    device, place = opened(options.emulate)
    built = build(device, [one.template for one in plans if one.template])
    failures: list[str] = [f"build: {text}" for text in built["errors"]]
    broken = {text.partition(": ")[0] for text in built["errors"]}
    checked, largest = 0, dict.fromkeys(TYPES, 0.0)
    for name, a in patterns().items():
        for one in plans:
            if options.left_s < 0:
                failures.append("no time was left for the rest")
                break
            if one.template in broken:
                continue
            try:
                excess = largest_excess(a, one, device, place)
            except Exception as error:  # noqa: BLE001 (each is a finding of its own)
                failures.append(f"{name}: {label(one)}: {error!r}"[:300])
                continue
            checked += 1
            largest[one.op.dtype] = max(largest[one.op.dtype], excess)
            if not excess <= 1:
                failures.append(f"{name}: {label(one)}: {excess:.3g} times the tolerance")
    exact = [one for one in plans if one.form.exact and one.op.dtype == "f32"]
    special, wrong = special_values([p for p in exact if p.template not in broken], device, place)
    failures += wrong
    table = [
        f"{built['kernels']} kernels compiled in {built['seconds']} s",
        f"{checked} products on {len(patterns())} patterns, {special} with NaN and infinity",
        "largest error over tolerance: "
        + ", ".join(f"{dtype} {value:.2g}" for dtype, value in largest.items()),
        *(f"FAILED {text}" for text in failures[:20]),
    ]
    found = {"checked": checked, "special": special, "largest_over_tolerance": largest}
    return {"ok": not failures, "build": built, **found, "failures": failures, "table": table}


def opened(emulate: bool) -> tuple[Any, str]:
    """The device, and torch's name of it."""
    if not emulate:
        return gpu(0), "cuda"
    from emulated_gpu import EmulatedGpu

    folder = cache_folder().parent / "emulated"
    folder.mkdir(parents=True, exist_ok=True)
    return EmulatedGpu(folder), "cpu"


def all_plans(emulate: bool) -> Iterator[Plan]:
    """Each kind of kernel in every value type that it has, and cuSPARSE's algorithms."""
    lines = [line.split() for line in KERNELS.split("\n")[1:-1]]
    library = [line.split() for line in LIBRARY.split("\n")[1:-1]]
    for text, config in [*(lines[::_FEW] if emulate else lines), *library]:
        kind = Op.parse(text)
        for dtype in ("f32",) if emulate else TYPES:
            op = Op(kind.name, kind.width, dtype)
            with suppress(SpaceError):
                fitted = fit({"block": 64, **planned_values(op, config)}, op)
                yield planned(op, str(fitted))


def planned_values(op: Op, config: str) -> dict[str, Any]:
    plain = {"grid": "columns", "reorder": "none"} if op.name == "spmm" else {}
    return {**plain, **Config.parse(config)}


def label(one: Plan) -> str:
    return f"{one.op} {one.template or 'cusparse ' + one.algorithm} {one.form.layout}"


def build(device: Any, templates: list[str]) -> dict[str, Any]:
    """Compile by NVRTC on all processors; the emulation by one call of its compiler."""
    wanted, errors = list(dict.fromkeys(templates)), []
    begun = time.perf_counter()
    if hasattr(device, "prepare"):
        device.prepare(wanted)
    else:

        def compiled(template: str) -> None:
            try:
                nvrtc.cubin(template, device.architecture)
            except nvrtc.CompileFailed as error:
                errors.append(f"{template}: {error}")

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(compiled, wanted))
    seconds = round(time.perf_counter() - begun, 2)
    return {"kernels": len(wanted), "seconds": seconds, "errors": errors}


def special_values(plans: list[Plan], device: Any, place: str) -> tuple[int, list[str]]:
    """Products with a NaN or an infinity in one row of B, and in one value of A: the result has
    them where scipy's has."""
    a, failures, count = pattern(45, 90, [2] * 45, 3), [], 0
    for one in plans:
        if one.op.name == "sddmm":
            continue
        for value in (float("nan"), float("inf")):
            for within in ("A", "B"):
                count += 1
                b = np.ones(shapes(one, a)[0], np.float32)
                entries = a.data.astype(np.float32)
                if within == "B":
                    b[a.indices[0]] = value
                else:
                    entries[5] = value
                marked = sp.csr_array((entries, a.indices, a.indptr), a.shape)
                expected = np.asarray(marked @ b)
                out = torch.zeros(expected.shape, dtype=torch.float32, device=place)
                product = bind(csr_of(marked, torch.float32, place), one, device)
                product(torch.from_numpy(b).to(place), None, out)
                if not np.allclose(out.cpu().numpy(), expected, 1e-4, 1e-5, equal_nan=True):
                    failures.append(f"{value} in {within}: {label(one)}")
    return count, failures


if __name__ == "__main__":
    run(section)
