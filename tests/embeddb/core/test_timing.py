"""The runs of one configuration joined: medians, spread, and how it failed."""

from __future__ import annotations

import math

from embeddb.core.config import Config, Op
from embeddb.core.records import Measurement, Run
from embeddb.core.timing import Timing, timings_of

CONFIG = Config({"a": 1})


def test_timings_by_hand() -> None:
    def run(*times: float, **fields: object) -> Run:
        return Run("p", Op("spmm", 32), "cpu", CONFIG, Measurement(times_s=times, **fields))  # type: ignore[arg-type]  # of a Measurement

    timings = timings_of(
        [run(1.0, 9.0, 2.0, conversion_s=4.0), run(4.0), run(3.0, conversion_s=6.0), run(
            status="timeout")]
    )[CONFIG]  # fmt: skip
    assert timings == Timing(seconds=3.0, spread=1 / 3, conversion_s=5.0, runs=4, status="ok")
    failed = timings_of([run(status="oom"), run(status="crash"), run()])[CONFIG]
    assert failed == Timing(math.inf, 0.0, 0.0, 3, "crash")
    assert timings_of([run()])[CONFIG].status == "invalid"
    assert timings_of([]) == {}
