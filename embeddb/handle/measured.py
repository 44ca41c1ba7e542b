"""The best configurations of an answer, measured on the caller's own matrix."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from embeddb.core.config import Config, Op
from embeddb.core.errors import EmbeddbError
from embeddb.handle.choice import Choice, Wishes
from embeddb.handle.matrix import Matrix
from embeddb.handle.served import Served, by_kernel

__all__ = ["measured"]


def measured(held: Matrix, op: Op, choice: Choice, wishes: Wishes) -> Choice:
    """The choice with the fastest of its configurations first, conversion shared among the calls;
    those that come too late, or cannot be built, are left out."""
    calls = wishes.calls
    rng = np.random.default_rng(0)
    m, n = held.pattern.shape
    b = rng.random((n, op.width)).astype(held.values.dtype)
    c = rng.random((m, op.width)).astype(held.values.dtype) if op.kernel == "sddmm" else None
    end = time.perf_counter() + wishes.seconds
    configs = list(dict.fromkeys(map(Config, (choice.config, choice.default, *choice.others))))
    took: dict[Config, float] = {}
    for nth, config in enumerate(configs):
        left = end - time.perf_counter()
        if took and left <= 0:
            break
        try:
            served = by_kernel(held, op, config)
        except EmbeddbError:
            continue
        spent = _seconds(served, b, c, left / (len(configs) - nth))
        took[config] = spent + (served.conversion_s / calls if calls else 0.0)
    if not took:
        return choice
    best = min(took, key=lambda one: took[one])
    told = f"fastest of {len(took)} measured here, {1e3 * took[best]:.3f} ms a call"
    break_even = 0.0 if calls else choice.break_even if dict(best) == choice.config else None
    gain = took[Config(choice.default)] / took[best] if Config(choice.default) in took else None
    return Choice(
        config=dict(best),
        default=choice.default,
        source=told,
        gain=gain,
        break_even=break_even,
        sure="measured",
        answer=choice.answer,
    )


def _seconds(served: Served, b: Any, c: Any, budget_s: float) -> float:
    """Median of calls with warm caches, at least three."""
    served.compute(b, c, None)
    times: list[float] = []
    start = time.perf_counter()
    while len(times) < 3 or (len(times) < 50 and time.perf_counter() - start < budget_s):
        before = time.perf_counter()
        served.compute(b, c, None)
        times.append(time.perf_counter() - before)
    return float(np.median(times))
