"""The runs of one configuration joined: medians, spread, and how it failed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

import numpy as np
import pytest

from embeddb.core.config import Config, Op
from embeddb.core.records import ARRAYS, OF_PROGRAM, Measurement, Run, failure_kinds
from embeddb.core.timing import TimingSummary, summarise_runs

CONFIG = Config({"a": 1})


def test_failures_that_differ_in_numbers_alone_are_of_one_kind() -> None:
    job = [("crash", f"no licence, job {n}: took {t}") for n, t in ((7, "0.5"), (12, "1.5e-05"))]
    other = ("oom", "no licence, job 7: took 0.5")
    failed = Counter({job[0]: 2, other: 4, job[1]: 3})
    assert failure_kinds(failed) == {("crash", "no licence, job …: took …"): 5, other: 4}
    same = ("oom", "no licence, job 7: took 0.9")
    assert failure_kinds(Counter({other: 1, same: 1})) == {("oom", "no licence, job 7: took …"): 2}


def test_timings_by_hand() -> None:
    def run(*times: float, **fields: object) -> Run:
        return Run("p", Op("spmm", 32), "cpu", CONFIG, Measurement(times_s=times, **fields))  # type: ignore[arg-type]  # of a Measurement

    timings = summarise_runs(
        [run(1.0, 9.0, 2.0, conversion_s=4.0), run(4.0), run(3.0, conversion_s=6.0), run(
            status="timeout")]
    )[CONFIG]  # fmt: skip
    assert timings == TimingSummary(
        seconds=3.0, spread=1 / 3, conversion_s=5.0, runs=3, status="ok", failed=1
    )
    assert timings.failing == 0.25
    failed = summarise_runs([run(status="oom"), run(status="crash"), run()])[CONFIG]
    assert failed == TimingSummary(math.inf, 0.0, 0.0, 0, "crash", 2)
    assert failed.failing == 1.0
    assert summarise_runs([run()])[CONFIG].status == "invalid"
    assert summarise_runs([]) == {}


def test_one_wrong_result_leaves_no_time() -> None:
    def run(status: str) -> Run:
        return Run("p", Op("spmv"), "cpu", CONFIG, Measurement(status, times_s=(1.0,)))

    for statuses in (("ok", "wrong", "crash"), ("wrong", "ok", "ok", "ok")):
        timing = summarise_runs(map(run, statuses))[CONFIG]
        assert (timing.seconds, timing.status) == (math.inf, "wrong")
        assert timing.runs == statuses.count("ok") == len(statuses) - timing.failed
    assert summarise_runs(map(run, ("ok", "crash")))[CONFIG].seconds == 1.0


def test_tiles_and_fused_kernels_take_the_least_of_all_calls() -> None:
    for name in ("tile", "fused"):
        runs = [
            Run("k", Op(name), "here", CONFIG, Measurement(times_s=times, context=dict(state)))
            for times, state in (
                ((2.0, 4.0, 6.0), {"state_clock": 1.0}),
                ((9.0, 3.0, 9.0), {"state_clock": 1.0}),
                # What is least counts, in whatever state the machine was.
                ((8.0, 1.0, 9.0), {"state_clock": 9.0}),
            )
        ]
        assert [run.seconds for run in runs] == [2.0, 3.0, 1.0]
        timing = summarise_runs(runs, lambda: {"clock": 1.0})[CONFIG]
        assert timing == TimingSummary(
            seconds=1.0, spread=0.5, conversion_s=0.0, runs=3, status="ok"
        )
    failed = Run("k", Op("tile"), "here", CONFIG, Measurement("crash", times_s=(1.0,)))
    assert failed.seconds == math.inf and summarise_runs([failed])[CONFIG].status == "crash"


def test_more_runs_make_the_time_surer_and_one_strange_run_changes_little() -> None:
    rng = np.random.default_rng(0)

    def spread(times: Iterable[float]) -> float:
        runs = [Run("p", Op("spmv"), "cpu", CONFIG, Measurement(times_s=(t,))) for t in times]
        return summarise_runs(runs)[CONFIG].spread

    for count in (3, 5, 9, 30):
        draws = 1 + 0.05 * rng.standard_normal((800, count))
        mean = np.mean([spread(row) for row in draws.tolist()])
        assert mean == pytest.approx(np.median(draws, axis=1).std(), rel=0.25)
    assert spread([1.0, 1.01, 1.02, 1.03, 50.0]) < 0.02
    assert 0.0 < spread([1.0, 1.0, 1.0, 1.0, 50.0]) < 1e-3  # several, if of a coarse clock
    assert spread([1.0, 1.0, 1.0, 1.0]) == 0.0


def test_a_fused_kernel_takes_what_it_takes_in_its_program() -> None:
    def run(seconds: float, status: str = "ok", **context: str) -> Run:
        told = Measurement(status, times_s=(seconds,), context=dict(context))
        return Run("k", Op("fused"), "here", CONFIG, told)

    handed, drawn = {ARRAYS: OF_PROGRAM}, run(1.0)
    timing = summarise_runs([run(5.0, **handed), drawn, run(4.0, **handed)])[CONFIG]
    assert timing == TimingSummary(4.0, 0.125, 0.0, 3, "ok")
    assert summarise_runs([drawn, run(2.0)])[CONFIG].seconds == 1.0
    assert summarise_runs([drawn, run(2.0, "wrong", **handed)])[CONFIG].seconds == 1.0
