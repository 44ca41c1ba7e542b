"""Campaigns: planned the same way every time, resumed after any stop, stored once."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import CONFIGS, DEFAULT, OP, by_law, patterns, sized, tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from embeddb.config import Config, Op
from embeddb.db import Database
from embeddb.errors import InputError, UsageError
from embeddb.pattern import Pattern
from embeddb.platform import Platform, load_platform
from embeddb.records import Measurement
from indexer.campaign import Campaign, Matrix, Plan, Progress, Task, choose_configs, make_plan
from indexer.embed import embed
from indexer.runners.base import RunOptions

AMONG = patterns(2)[:5]
OPTIONS = RunOptions(threads=2)
OPS = (OP, Op("spmm", 64))


class LawRunner:
    """Measures by the law; stops like a kill before the point `stop` would be told."""

    name = "law"

    def __init__(self, platform: Platform | None = None, *, stop: int = -1) -> None:
        self._platform = platform or tiny()
        self.left = stop
        self.asked: list[tuple[str, str, str]] = []

    def available(self) -> str | None:
        return None

    def platform(self, *, threads: int = 0) -> Platform:
        return self._platform.at("", {"threads": str(threads)})

    def run(
        self, pattern: Pattern, op: Op, configs: Sequence[Config], *, options: RunOptions
    ) -> Iterator[tuple[Config, Measurement]]:
        for config in configs:
            if self.left == 0:
                raise KeyboardInterrupt
            self.left -= 1
            self.asked.append((pattern.name, str(op), str(config)))
            variant = CONFIGS.index(config)
            if variant == 3 and pattern.name.endswith("a"):
                yield config, Measurement("timeout")
            else:
                yield config, Measurement(times_s=(by_law(pattern, variant) * op.width,))


def plan(**changes: Any) -> Plan:
    matrices = [Matrix(f"{p.name}.mtx", p.name, p.group) for p in AMONG]
    options = {"configs": 4, "rounds": 2, "seed": 3} | changes
    return make_plan(tiny(), OPS, matrices, **options)


def read(matrix: Matrix) -> Pattern:
    return next(p for p in AMONG if p.name == matrix.name)


def go(folder: Path, db: Database, runner: LawRunner, **options: Any) -> Progress:
    return Campaign(folder).run(db, runner, options=OPTIONS, read=read, **options)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Campaign.create(tmp_path / "camp", plan())
    return tmp_path / "camp"


POINTS = 2 * 2 * 5 * 4
TASKS = 2 * 2 * 5


# -- planning ----------------------------------------------------------------------------------


def test_a_plan_is_the_same_every_time() -> None:
    assert plan() == plan() and plan().id == plan().id
    assert plan(seed=4).id != plan().id != plan(rounds=1).id
    assert all(c[0] == dict(DEFAULT) for c in plan().configs.values())


def test_a_plan_needs_something_to_measure() -> None:
    with pytest.raises(UsageError, match="no matrix"):
        make_plan(tiny(), OPS, [], configs=4)
    for changes in ({"rounds": 0}, {"configs": 1}):
        with pytest.raises(UsageError, match="at least"):
            plan(**changes)
    with pytest.raises(UsageError, match="no sddmm"):
        make_plan(tiny(), [Op("sddmm", 8)], [Matrix("a", "a", "a")], configs=4)


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 60), st.integers(0, 99), st.sampled_from(["cpu", "spade", "waco-cpu"]))
def test_chosen_configurations(count: int, seed: int, name: str) -> None:
    platform = load_platform(name)
    space, default = platform.space(OP), platform.default(OP)
    chosen = choose_configs(space, default, count, rng=np.random.default_rng(seed))
    assert chosen[0] == default and len(chosen) == len(set(chosen)) == count
    assert all(space.reason(config) is None for config in chosen)
    assert chosen == choose_configs(space, default, count, rng=np.random.default_rng(seed))


def test_a_small_space_is_chosen_whole() -> None:
    rng = np.random.default_rng(0)
    chosen = choose_configs(sized().space(OP), sized().default(OP), 50, rng=rng)
    assert len(chosen) == 9


def test_tasks_are_shuffled_rounds(folder: Path) -> None:
    tasks = Campaign(folder).tasks()
    assert tasks == Campaign(folder).tasks() and len(set(tasks)) == TASKS
    first, second = tasks[: TASKS // 2], tasks[TASKS // 2 :]
    assert {t.round for t in first} == {0} and {t.round for t in second} == {1}
    assert [(t.matrix, t.op) for t in first] != [(t.matrix, t.op) for t in second]
    assert len({t.id for t in tasks}) == TASKS


def test_points_of_a_task_are_shuffled_too(folder: Path, tmp_path: Path) -> None:
    runner = LawRunner()
    go(folder, Database.in_memory(), runner)
    orders = {tuple(c for *_, c in runner.asked[at : at + 4]) for at in range(0, POINTS, 4)}
    assert len(orders) > 5
    again = LawRunner()
    Campaign.create(tmp_path / "other", plan())
    go(tmp_path / "other", Database.in_memory(), again)
    assert again.asked == runner.asked


def test_the_same_plan_is_taken_up_and_another_refused(folder: Path) -> None:
    go(folder, Database.in_memory(), LawRunner(), progress=None)
    again = Campaign.create(folder, plan())
    assert again.progress().measured == POINTS
    with pytest.raises(InputError, match="another campaign is there"):
        Campaign.create(folder, plan(seed=9))


def test_no_campaign_and_a_broken_plan(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no campaign there"):
        Campaign(tmp_path)
    (tmp_path / "plan.json").write_text('{"platform": 3}')
    with pytest.raises(InputError, match="not a plan"):
        Campaign(tmp_path)


# -- running -----------------------------------------------------------------------------------


def test_everything_is_measured_and_stored(folder: Path) -> None:
    db = Database.in_memory()
    seen: list[int] = []
    done = go(folder, db, LawRunner(), progress=lambda p: seen.append(p.measured))
    assert (done.points, done.measured) == (POINTS, POINTS)
    assert (done.tasks, done.tasks_done, done.tasks_stored) == (TASKS,) * 3
    assert done.statuses == {"ok": POINTS - 2 * 2 * 2, "timeout": 2 * 2 * 2}
    assert done == Campaign(folder).progress(db)
    assert seen == list(range(1, POINTS + 1))
    (platform,) = db.store.platforms()
    assert platform == LawRunner().platform(threads=2).id
    # rounds are kept apart: a time that came out alike twice is two runs
    assert db.store.count_runs() == POINTS
    embed(db)
    assert db.query(AMONG[2], platform=platform, op=OP).candidates[0].config == {"variant": "c"}
    assert {i.group for i in db.store.patterns()} == {"g0", "g1"}


def test_a_finished_campaign_has_nothing_to_do(folder: Path) -> None:
    db = Database.in_memory()
    go(folder, db, LawRunner())
    runner = LawRunner()
    done = go(folder, db, runner)
    assert runner.asked == [] and db.store.count_runs() == POINTS
    assert (done.tasks_done, done.tasks_stored, done.measured) == (TASKS, TASKS, POINTS)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 30), max_size=5), st.integers(1, 40))
def test_resumed_after_any_stops(
    tmp_path_factory: pytest.TempPathFactory, stops: list[int], cut: int
) -> None:
    """What was told is never measured again, whatever of the last line is on the disk."""
    folder = tmp_path_factory.mktemp("camp")
    campaign = Campaign.create(folder, plan())
    db = Database.in_memory()
    asked: list[tuple[str, str, str]] = []
    for stop in stops:
        runner = LawRunner(stop=stop)
        with contextlib.suppress(KeyboardInterrupt):
            go(folder, db, runner)
        asked += runner.asked
        files = sorted((folder / "results").glob("*.jsonl"), key=lambda f: f.stat().st_mtime_ns)
        if files:
            with files[-1].open("ab") as torn:
                torn.write(b'[2,["ok",[0.123456789,0.5],"hardware"'[:cut])
        assert campaign.progress(db).measured == len(asked)
    runner = LawRunner()
    done = go(folder, db, runner)
    assert len(asked) + len(runner.asked) == POINTS == done.measured
    assert sorted(asked + runner.asked) == sorted(2 * sorted(set(asked + runner.asked)))
    assert done.tasks_stored == TASKS and db.store.count_runs() == POINTS


def test_progress_of_a_half_done_campaign(folder: Path) -> None:
    db = Database.in_memory()
    with pytest.raises(KeyboardInterrupt):
        go(folder, db, LawRunner(stop=10))
    done = Campaign(folder).progress(db)
    assert (done.measured, done.tasks_done, done.tasks_stored) == (10, 2, 2)
    assert Campaign(folder).progress().tasks_stored == 0
    # measured but not stored: the database may have been lost
    other = Database.in_memory()
    done = go(folder, other, LawRunner())
    assert (done.tasks_done, done.tasks_stored) == (TASKS, TASKS)
    assert other.store.count_runs() == POINTS


def test_a_task_is_stored_once_and_only_when_complete(folder: Path) -> None:
    db, campaign = Database.in_memory(), Campaign(folder)
    platform = LawRunner().platform(threads=2)
    task = campaign.tasks()[0]
    pattern = AMONG[task.matrix]
    assert campaign.store(db, task, pattern, platform) == 0
    with pytest.raises(KeyboardInterrupt):
        list(campaign.measure(task, LawRunner(stop=3), pattern, options=OPTIONS))
    assert len(campaign.lines(task)) == 3
    assert campaign.store(db, task, pattern, platform) == 0
    assert list(campaign.measure(task, LawRunner(), pattern, options=OPTIONS)) in (
        ["ok"],
        ["timeout"],
    )
    assert campaign.store(db, task, pattern, platform) == 4
    assert campaign.store(db, task, pattern, platform) == 0
    assert db.store.count_runs() == 4


def test_a_damaged_line_is_named(folder: Path) -> None:
    campaign = Campaign(folder)
    task = campaign.tasks()[0]
    list(campaign.measure(task, LawRunner(), AMONG[task.matrix], options=OPTIONS))
    file = folder / "results" / f"{task.id}.jsonl"
    lines = file.read_bytes().splitlines()
    for bad in (b"not json", b"[99, []]", b'["a", []]'):
        file.write_bytes(b"\n".join([lines[0], bad, *lines[2:]]) + b"\n")
        with pytest.raises(InputError, match="not a result of this campaign") as e:
            campaign.progress()
        assert e.value.line == 2 and "delete the file" in e.value.hint
    file.unlink()
    assert campaign.lines(task) == {}


def test_another_space_is_refused(folder: Path) -> None:
    text = tiny().text.replace('"d"]', '"d", "e"]')
    from embeddb.platform import parse_platform

    with pytest.raises(InputError, match="another space"):
        go(folder, Database.in_memory(), LawRunner(parse_platform(text)))


def test_times_of_two_machines_are_not_mixed(folder: Path) -> None:
    db = Database.in_memory()
    with pytest.raises(KeyboardInterrupt):
        go(folder, db, LawRunner(stop=3))
    with pytest.raises(InputError, match="and this is") as e:
        Campaign(folder).run(db, LawRunner(), options=replace(OPTIONS, threads=8), read=read)
    assert "same threads" in e.value.hint
    assert Campaign(folder).progress().measured == 3


def test_the_folder_is_plain_text(folder: Path) -> None:
    go(folder, Database.in_memory(), LawRunner())
    body = json.loads((folder / "plan.json").read_text())
    assert [m["name"] for m in body["matrices"]] == [p.name for p in AMONG]
    task = Task(0, "spmm:32", 1)
    (folder / "results" / "0000-spmm_32-1.jsonl").read_text()
    assert len(Campaign(folder).lines(task)) == 4
