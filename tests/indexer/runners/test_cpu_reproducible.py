"""`query --reproducible` on the CPU: what is left gives the same bits in every call."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from embeddb.core.config import Config, Op
from embeddb.core.pattern import Pattern
from embeddb.core.sizes import Sizes
from embeddb.kernels import build as cpu_build
from embeddb.kernels import codegen as cpu_codegen
from embeddb.kernels.codegen import conversions
from embeddb.platforms.platform import load_platform
from indexer.runners.cpu_kernels.worker import Worker

needs_gcc = pytest.mark.skipif(cpu_build.compiler() is None, reason="needs gcc")
pytestmark = [pytest.mark.gcc, needs_gcc]

OPS = (Op("spmm", 32), Op("spmv"), Op("sddmm", 128))
CALLS = 4


def long_rows() -> Pattern:
    """Rows so long that several tasks share one."""
    rng = np.random.default_rng(5)
    rows, cols = np.nonzero(rng.random((60, 3000)) < 0.2)
    return Pattern.from_coo((60, 3000), rows, cols)


@pytest.fixture(scope="module")
def library() -> str:
    return str(cpu_build.build(conversions()).path)


def worker(op: Op, pattern: Pattern, library: str) -> Worker:
    made = Worker()
    made.load(
        {
            "library": library,
            "kernel": op.name,
            "shape": pattern.shape,
            "width": op.width,
            "dtype": op.dtype,
            "tolerance": 1e-5,
            "left_bytes": 1 << 30,
            "seed": 1,
            "check": True,
        },
        pattern.indptr.tobytes() + pattern.indices.tobytes(),
    )
    return made


def results(made: Worker, op: Op, config: Config) -> Iterator[bytes]:
    """The result of each call, as it lies in memory."""
    variant, launch = cpu_codegen.plan(config, op, vector_bytes=cpu_build.vector_bytes())
    request: dict[str, Any] = {
        "library": str(cpu_build.build(cpu_codegen.source(variant)).path),
        "form": asdict(launch.form),
        "schedule": cpu_codegen.SCHEDULES[launch.schedule],
        "chunk": launch.chunk,
        "strip": launch.strip,
        "pieces": launch.pieces,
        "scratch": launch.scratch,
        "threads": 2 if launch.threads == "all" else 1,
        "repeats": 2,
        "max_repeats": 2,
        "min_time_s": 0.0,
    }
    assert made.job is not None
    for _ in range(CALLS):
        reply = made.measure(request)
        assert reply["status"] == "ok", f"{config}: {reply}"
        yield made.job.result().tobytes()


def meetings(op: Op, pattern: Pattern) -> list[Config]:
    """One configuration for every nest, schedule and way in which threads meet."""
    platform = load_platform("cpu").restricted(op, reproducible=True)
    found: dict[Any, Config] = {}
    for config in platform.space(op, pattern.sizes).enumerate():
        variant, launch = cpu_codegen.plan(config, op)
        key = variant.nest, variant.meeting, launch.schedule, launch.pieces
        if launch.threads == "all" and variant.form in ("csr", "csc", "dcsr"):
            found.setdefault(key, config)
    return list(found.values())


@pytest.mark.parametrize("op", OPS, ids=str)
def test_what_is_left_gives_the_same_bits_in_every_call(op: Op, library: str) -> None:
    pattern = long_rows()
    made = worker(op, pattern, library)
    chosen = meetings(op, pattern)
    assert len(chosen) >= 8
    varying = [c for c in chosen if len(set(results(made, op, c))) > 1]
    assert varying == []


def test_atomic_seams_are_what_is_left_out() -> None:
    space = load_platform("cpu").space(Op("spmm", 32), Sizes(60, 3000, 36000))
    steady = load_platform("cpu").restricted(Op("spmm", 32), reproducible=True)
    left = set(steady.space(Op("spmm", 32), Sizes(60, 3000, 36000)).enumerate())
    out = set(space.enumerate()) - left
    assert out
    assert {c["seams"] for c in out} == {"atomic"}
    assert all(c.get("seams") != "atomic" for c in left)
