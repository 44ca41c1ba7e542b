"""Calibration with a runner whose times follow a law, under a clock that only it moves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from embeddb.core.config import Config, Op
from embeddb.core.errors import InputError, MatrixError, SpaceError, UsageError
from embeddb.core.pattern import Pattern
from embeddb.core.records import Measurement, Run, WorkloadInfo
from embeddb.core.timing import is_outlier, summarise_runs
from embeddb.database import Database
from embeddb.platforms.platform import Platform, parse_platform
from indexer import calibrate
from indexer.calibrate import CAMPAIGN, Calibration, CalibrationRequest
from indexer.calibration.choice import (
    Candidates,
    Chooser,
    Pace,
    Timer,
    _most_informative,
    largest_nnz,
    panel_of,
)
from indexer.embed import embed
from indexer.training.cost_model.local import Learned

TOML = """
name = "board"
version = "1"
title = "Two numbers"
portable = true

[[space]]
kernels = ["spmm"]

[space.params]
tile = { type = "int", values = [1, 2, 4, 8, 16, 32] }
unroll = { type = "int", values = [1, 2, 4, 8] }

[space.default]
tile = 1
unroll = 1
"""
OPS = (Op("spmm", 32), Op("spmm", 64))
CONFIGS = [Config({"tile": t, "unroll": u}) for t in (1, 2, 4, 8, 16, 32) for u in (1, 2, 4, 8)]


def machine(name: str) -> Platform:
    return parse_platform(TOML).at(name, {"threads": "2"})


def seconds(pattern: Pattern, config: Config, best: int) -> float:
    """The farther the tile is from what is best on the machine, the slower, more so below it; long
    rows like it twice as large."""
    wanted = best + (pattern.nnz / pattern.shape[0] > 20)
    off = math.log2(int(str(config["tile"]))) - wanted
    return 1e-6 * 1.4 ** max(-off, 0.9 * off) * (1 + 0.02 * int(str(config["unroll"])))


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Runner:
    """Machine `name`, on which tiles of 2**`best` are fastest. A configuration takes `each_s`, the
    one at position `slow` takes `slow_s`, and before the one at `stop` it is interrupted."""

    clock: Clock
    name: str = "mine"
    best: int = 4
    each_s: float = 0.1
    compile_s: float = 0.0
    slow: int = -1
    slow_s: float = 0.0
    stop: int = -1
    noise: float = 0.0
    asked: list[tuple[str, str, Config]] = field(default_factory=list)

    def available(self) -> str | None:
        return None

    def platform(self, *, threads: int = 0) -> Platform:
        return machine(self.name)

    def prepare(self, op: Op, configs: Sequence[Config]) -> None:
        self.clock.now += self.compile_s * len(configs)

    def run(
        self, pattern: Pattern, op: Op, configs: Sequence[Config], *, options: Any
    ) -> Iterator[tuple[Config, Measurement]]:
        for config in configs:
            if len(self.asked) == self.stop:
                raise KeyboardInterrupt
            self.clock.now += self.slow_s if len(self.asked) == self.slow else self.each_s
            self.asked.append((pattern.name, str(op), config))
            rng = np.random.default_rng(len(self.asked))
            factor = math.exp(self.noise * rng.normal())
            time_s = seconds(pattern, config, self.best) * factor
            yield config, Measurement(times_s=(time_s,), when=self.clock.now)

    @property
    def tasks(self) -> list[tuple[str, str]]:
        """Matrix and op in the order they were measured."""
        return list(dict.fromkeys((name, op) for name, op, _ in self.asked))


def matrix(rows: int, length: int, name: str) -> Pattern:
    at = np.repeat(np.arange(rows), length)
    cols = (at * 7 + np.tile(np.arange(length), rows) * 3) % rows
    return Pattern.from_coo((rows, rows), at, cols, name=name, group=name[:2])


ELSEWHERE = [matrix(150 + 10 * i, 4 + 4 * (i % 8), f"e{i}") for i in range(12)]


@pytest.fixture
def db() -> Database:
    """What two other machines measured, on which tiles of 2 and 4 are fastest."""
    made = Database.in_memory()
    for name, best in (("one", 1), ("two", 2)):
        made.store.put_platform(machine(name))
        for pattern in ELSEWHERE:
            made.store.put_structure(pattern, WorkloadInfo.whole(pattern))
            for op in OPS:
                runs = [
                    Run(
                        pattern.id,
                        op,
                        f"board@{name}",
                        config,
                        Measurement(times_s=(seconds(pattern, config, best),)),
                    )
                    for config in CONFIGS
                ]
                made.store.append(runs)
    embed(made.index)
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Nine matrices of other sizes."""
    place = tmp_path / "matrices"
    place.mkdir()
    for at in range(9):
        pattern = matrix(205 + 10 * at, 3 + 4 * at, f"m{at}")
        sp.save_npz(place / f"m{at}.npz", sp.csr_matrix(pattern.to_scipy()))
    return place


def calibrated(db: Database, runner: Runner, total_s: float, folder: Path | None) -> Any:
    return Calibration(db.index, runner, CalibrationRequest(OPS, total_s), clock=runner.clock).run(
        folder
    )


def mine(db: Database, op: Op = OPS[0]) -> dict[str, dict[Config, Any]]:
    """Curves of this machine by matrix."""
    partition = db.store.partition("board@mine", op)
    ids = db.store.members(partition) if partition else {}
    return {i: summarise_runs(db.store.runs("board@mine", op, i)) for i in ids}


# -- the time ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "costs",
    [
        {"each_s": 0.02},
        {"each_s": 0.5},
        {"each_s": 0.1, "compile_s": 0.5},
        {"each_s": 0.4, "compile_s": 1.0},
        {"each_s": 0.05, "slow": 20, "slow_s": 3.0},
        {"each_s": 3.0},
    ],
)
@pytest.mark.parametrize("total_s", [30.0, 60.0])
def test_it_stops_in_time(
    db: Database, folder: Path, costs: dict[str, Any], total_s: float
) -> None:
    runner = Runner(Clock(), **costs)
    report = calibrated(db, runner, total_s, folder)
    assert report.seconds == runner.clock.now - 100.0 <= 1.1 * total_s
    assert runner.asked and sum(op.runs for op in report.ops) == len(runner.asked)
    if not report.complete:  # and it uses the time it has
        assert report.seconds > 0.4 * total_s


def test_with_time_enough_everything_is_measured_once(db: Database, folder: Path) -> None:
    runner = Runner(Clock(), each_s=0.001)
    report = calibrated(db, runner, 600.0, folder)
    assert report.complete and report.seconds < 600.0
    assert len(runner.tasks) == 9 * len(OPS)
    for curves in mine(db).values():
        assert len(curves) >= 20
    again = Runner(Clock(), each_s=0.001)
    assert calibrated(db, again, 600.0, folder).complete and not again.asked


def test_all_matrices_come_before_more_configurations_and_ops_take_turns(
    db: Database, folder: Path
) -> None:
    runner = Runner(Clock(), each_s=0.001)
    calibrated(db, runner, 600.0, folder)
    order: list[tuple[str, str]] = []
    for name, op, _ in runner.asked:
        if not order or order[-1] != (name, op):
            order.append((name, op))
    first = order[: 9 * len(OPS)]
    assert len(set(first)) == len(first)
    assert {op for _, op in order[:2]} == {"spmm:32", "spmm:64"}


def test_a_task_runs_the_default_the_panel_and_some_twice(db: Database, folder: Path) -> None:
    runner = Runner(Clock(), each_s=0.2)
    calibrated(db, runner, 30.0, folder)
    name, op = runner.tasks[0]
    ran = [config for n, o, config in runner.asked if (n, o) == (name, op)]
    assert CONFIGS[0] in ran and len(set(ran)) == len(ran) - 3 and ran.count(CONFIGS[0]) == 2
    panel = panel_of(db.index.partition(OPS[0], machine("mine")), machine("mine"), OPS[0])
    assert set(panel[:10]) <= set(ran)


# -- stopping and going on -----------------------------------------------------------------------


def test_a_second_call_goes_on(db: Database, folder: Path) -> None:
    clock = Clock()
    first, second = Runner(clock), Runner(clock)
    assert not calibrated(db, first, 30.0, folder).complete
    calibrated(db, second, 30.0, folder)
    assert first.tasks and second.tasks and not set(first.tasks) & set(second.tasks)


@pytest.mark.parametrize("stop", [10, 60, 100])
def test_a_kill_loses_nothing_that_was_measured(db: Database, folder: Path, stop: int) -> None:
    runner = Runner(Clock(), stop=stop)
    with pytest.raises(KeyboardInterrupt):
        calibrated(db, runner, 60.0, folder)
    assert sum(len(list(db.store.runs("board@mine", op))) for op in OPS) == stop
    assert all(run.campaign == CAMPAIGN for run in db.store.runs("board@mine", OPS[0]))
    rest = Runner(Clock(), each_s=0.001)
    calibrated(db, rest, 600.0, folder)
    whole = [curves for op in OPS for curves in mine(db, op).values()]
    assert len(whole) == 18 and all(len(curves) >= 20 for curves in whole)


# -- the report ----------------------------------------------------------------------------------


def test_it_tells_what_has_changed(db: Database, folder: Path) -> None:
    report = calibrated(db, Runner(Clock(), noise=0.03, each_s=0.01), 60.0, folder)
    assert [op.op for op in report.ops] == ["spmm:32", "spmm:64"]
    for op in report.ops:
        assert op.measured == op.matrices == 9 and not op.failures
        assert op.noise is not None and 0.005 < op.noise < 0.04
        assert op.before is not None and op.after is not None
        assert op.before < 0.8 < op.after <= 1.0
        assert op.differs is not None and op.differs > 0.8
        assert op.shift is not None and op.shift > 1.2
        config, factor = op.moved[0]
        assert config["tile"] in (16, 32) and factor > 1.5
    document = report.document()
    assert document["ops"][0]["moved"][0]["config"]["tile"] in (16, 32)
    assert document["runs"] == sum(op.runs for op in report.ops)
    made = db.query(ELSEWHERE[0], platform=machine("mine"), op=OPS[0])
    assert made.candidates[0].config["tile"] in (8, 16, 32)


def test_indexes_are_built_anew_where_there_is_time(db: Database, folder: Path) -> None:
    assert not calibrated(db, Runner(Clock(), each_s=1.0), 30.0, folder).indexed
    partition = db.index.partition(OPS[0], machine("mine"))
    assert partition is not None and set(mine(db)) <= set(partition.ids)
    assert calibrated(db, Runner(Clock(), each_s=0.01), 60.0, folder).indexed
    partition = db.index.partition(OPS[0], machine("mine"))
    assert partition is not None and len(set(mine(db)) & set(partition.ids)) == 9


@pytest.mark.parametrize(
    ("learning_s", "learns"), [(0.0, False), (10.0, True), (14.0, True), (20.0, False)]
)
def test_cost_models_learn_where_there_is_time(
    db: Database,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    learning_s: float,
    learns: bool,
) -> None:
    runner = Runner(Clock(), each_s=0.2)
    learned_at = []

    def learn(_db: Any, here: Platform, ops: Sequence[Op], _progress: Any) -> Learned:
        learned_at.append((runner.clock.now - 100.0, here.id, len(runner.asked)))
        runner.clock.now += learning_s
        return Learned(list(ops), [])

    monkeypatch.setattr(calibrate, "expected_s", lambda *_: learning_s)
    monkeypatch.setattr(calibrate, "learn_from_runs", learn)
    report = calibrated(db, runner, 60.0, folder)
    assert report.document()["learned"] == (["spmm:32", "spmm:64"] if learns else [])
    if learns:
        ((at_s, where, runs),) = learned_at
        assert at_s <= 1.05 * 60.0 - learning_s and where == "board@mine"
        assert runs == len(runner.asked) and report.seconds <= 1.1 * 60.0
    problems = [line for line in report.problems if "did not learn" in line]
    assert problems == (
        ["the cost models did not learn from these runs, which takes about 20 s: "
         "give more --minutes"] if learning_s > 18.0 else []
    )  # fmt: skip


def test_what_cannot_learn_is_told(
    db: Database, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def learn(*_: Any) -> Learned:
        return Learned([OPS[1]], ["spmm did not learn: no space left on the device"])

    monkeypatch.setattr(calibrate, "expected_s", lambda *_: 1.0)
    monkeypatch.setattr(calibrate, "learn_from_runs", learn)
    report = calibrated(db, Runner(Clock(), each_s=0.2), 60.0, folder)
    assert report.learned == ["spmm:64"] and report.ops[0].runs
    assert "no space left" in report.problems[0]


def test_a_machine_like_the_others_is_told_so(db: Database, folder: Path) -> None:
    report = calibrated(db, Runner(Clock(), best=2, noise=0.01, each_s=0.01), 60.0, folder)
    for op in report.ops:
        assert op.before is not None and op.after is not None
        assert op.after > 0.9 and op.differs is not None and op.differs < 0.5


def test_a_database_without_evidence_is_calibrated_too(folder: Path) -> None:
    db = Database.in_memory()
    report = calibrated(db, Runner(Clock(), each_s=0.01), 60.0, folder)
    op = report.ops[0]
    assert op.measured == 9 and op.before is None and op.differs is None and op.shift is None
    assert op.after is not None and op.after > 0.6
    assert report.document()["ops"][0]["before"] is None


def test_failures_are_runs(db: Database, folder: Path) -> None:
    runner = Runner(Clock(), each_s=0.01)
    good = runner.run

    def run(*args: Any, **options: Any) -> Iterator[tuple[Config, Measurement]]:
        for config, m in good(*args, **options):
            yield config, Measurement("timeout") if config["tile"] == 32 else m

    runner.run = run  # type: ignore[method-assign]
    report = calibrated(db, runner, 60.0, folder)
    assert report.ops[0].failures >= 9 and report.ops[0].after is not None


# -- what cannot be meant ------------------------------------------------------------------------


def test_bad_input(db: Database, tmp_path: Path, folder: Path) -> None:
    runner = Runner(Clock())
    with pytest.raises(UsageError, match="no op"):
        CalibrationRequest((), 60.0)
    for total_s in (0.0, -1.0, math.nan):
        with pytest.raises(UsageError, match="must be positive"):
            CalibrationRequest(OPS, total_s)
    with pytest.raises((UsageError, SpaceError), match="spmv"):
        Calibration(
            db.index, runner, CalibrationRequest((Op.parse("spmv"),), 60.0), clock=runner.clock
        ).run(folder)
    with pytest.raises(MatrixError, match="not a folder"):
        calibrated(db, runner, 60.0, tmp_path / "gone")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no matrix that can be measured"):
        calibrated(db, runner, 60.0, tmp_path / "empty")
    (tmp_path / "empty" / "bad.mtx").write_text("%%MatrixMarket nonsense\n")
    with pytest.raises(InputError) as bad:
        calibrated(db, runner, 60.0, tmp_path / "empty")
    assert "bad.mtx" in bad.value.hint
    assert not runner.asked


def test_files_that_cannot_be_used_are_told(folder: Path) -> None:
    (folder / "bad.mtx").write_text("%%MatrixMarket nonsense\n")
    sp.save_npz(folder / "none.npz", sp.csr_matrix((5, 5)))
    sp.save_npz(folder / "large.npz", sp.eye(3000, format="csr"))
    candidates = Candidates(folder, 2800 * 3)
    names = [pattern.name for pattern in candidates]
    assert set(names) < {f"m{at}" for at in range(9)} | {"large"} and names
    assert candidates.too_large == 10 - len(names)
    assert len(candidates.problems) == 2
    assert any("bad.mtx" in line for line in candidates.problems)
    assert any("none.npz: no entries" in line for line in candidates.problems)
    assert names == [pattern.name for pattern in Candidates(folder, 2800 * 3)]


# -- the parts -----------------------------------------------------------------------------------


def test_own_runs_leave_the_panel_as_it_is(db: Database, folder: Path) -> None:
    here = machine("mine")
    before = panel_of(db.index.partition(OPS[0], here), here, OPS[0])
    calibrated(db, Runner(Clock()), 60.0, folder)
    assert mine(db)
    assert panel_of(db.index.partition(OPS[0], here), here, OPS[0]) == before
    assert {c["tile"] for c in before[:6]} != {before[0]["tile"]}


def test_the_most_informative_are_of_all_kinds() -> None:
    covariance = np.array([[1.0, 0.99, 0.0], [0.99, 1.0, 0.0], [0.0, 0.0, 0.6]])
    assert set(_most_informative(covariance, 2)) in ({0, 2}, {1, 2})
    assert _most_informative(np.zeros((3, 3)), 2) == []


def test_matrices_are_chosen_from_the_middle_outwards() -> None:
    at = {"middle": 0.0, "left": -3.0, "right": 3.1, "near": 0.1, "far": 9.0}
    patterns = [matrix(50 + i, 3, name) for i, name in enumerate(at)]

    def chooser(names: Sequence[str]) -> Chooser:
        known = (p for p in patterns if p.name in names)
        return Chooser(known, lambda p: np.array([at[p.name]], dtype=np.float32), None)

    assert [p.name for p in chooser(["left", "middle", "right"]).take(1)] == ["middle"]
    whole = chooser(list(at))
    taken = [p.name for p in whole.take(3)]
    assert taken[0] in ("middle", "near") and taken[1] == "far"
    assert len(whole.take(5)) == 2 and whole.take(5) == []


def test_the_pace_is_learned() -> None:
    pace, op = Pace(), OPS[0]
    first = pace.expected_s(op, 20, 100_000, fresh=0)
    for _ in range(3):
        pace.measured(op, 20, 100_000, 10 * first)
    assert 10 * first <= pace.expected_s(op, 20, 100_000, fresh=0) <= 14 * first
    assert pace.expected_s(OPS[1], 20, 100_000, fresh=0) > 10 * first
    pace.compiled(10, 50.0)
    assert pace.expected_s(op, 20, 100_000, fresh=10) > 50.0
    nnz = largest_nnz(op, 20, 5.0)
    assert 4.9 < Pace().expected_s(op, 20, nnz, fresh=0) <= 5.0 and largest_nnz(op, 20, 0.0) == 0


def test_the_timer_counts_from_when_it_was_made() -> None:
    clock = Clock(7.0)
    timer = Timer(clock, 10.0)
    clock.now = 11.0
    assert (timer.spent_s, timer.left_s) == (4.0, 6.0)


class Loaded(Runner):
    """The machine is half as fast after every second task."""

    states: int = 0

    def state(self, *, threads: int = 0) -> dict[str, float]:
        self.states += 1
        return {"copy_gb_s": 5.0 if self.states % 4 == 0 else 10.0}


def test_runs_have_the_state_of_the_machine(db: Database, folder: Path) -> None:
    runner = Loaded(Clock())
    calibrated(db, runner, 30.0, folder)
    runs = list(db.store.runs("board@mine", OPS[0]))
    normal = db.store.usual_at("board@mine")()
    assert runs and normal == {"copy_gb_s": 10.0}
    under_load = {is_outlier(run.measurement.context, normal) for run in runs}
    assert under_load == {True, False}
