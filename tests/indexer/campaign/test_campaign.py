"""Campaigns: resumed after any stop, every point measured and stored once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import OP, band
from campaign_board import (
    AMONG,
    BOARD,
    COUNT,
    OPS,
    OPTIONS,
    POINTS,
    TASKS,
    LawRunner,
    board,
    go,
    matrices,
    plan,
    read,
)

from embeddb.core.config import Config
from embeddb.core.errors import InputError
from embeddb.core.records import Measurement
from embeddb.database import Database
from embeddb.platforms.platform import parse_platform
from indexer.campaign.folder import Campaign, Task
from indexer.campaign.plan import PlanOptions, make_plan
from indexer.campaign.run import CampaignJob
from indexer.embed import embed

# -- tasks -------------------------------------------------------------------------------------


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
    orders = {tuple(c for *_, c in runner.asked[at : at + 4]) for at in range(0, POINTS, COUNT)}
    assert len(orders) > 5
    again = LawRunner()
    Campaign.create(tmp_path / "other", plan())
    go(tmp_path / "other", Database.in_memory(), again)
    assert again.asked == runner.asked


def test_later_rounds_repeat_a_share(tmp_path: Path) -> None:
    whole = plan(rounds=3, repeat_share=0.5)
    top = [Config(c) for c in whole.configs[str(OP)][5:8]]
    asked = PlanOptions(configs=COUNT, rounds=3, seed=3, repeat_share=0.5)
    planned = make_plan(board(), OPS, matrices(), asked, top={str(OP): top})
    campaign = Campaign.create(tmp_path / "camp", planned)
    for m, choice in enumerate(planned.choices[str(OP)]):
        pinned = {planned.configs[str(OP)][at]["tile"] for at in choice.configs[: choice.pinned]}
        assert choice.pinned == 4 and len(pinned) > 1
        first, second, third = (campaign.wanted(Task(m, str(OP), n)) for n in range(3))
        assert set(first) == set(choice.configs) and len(first) == COUNT
        assert set(second) == set(third) < set(first) and len(second) == COUNT // 2
        assert set(choice.configs[: choice.pinned]) <= set(second)
    done = go(tmp_path / "camp", Database.in_memory(), LawRunner())
    assert done.measured == done.points == 2 * 5 * (COUNT + 2 * COUNT // 2)
    assert done.tasks_stored == done.tasks == 3 * 10


def test_the_same_plan_is_taken_up_and_another_refused(folder: Path) -> None:
    go(folder, Database.in_memory(), LawRunner())
    again = Campaign.create(folder, plan())
    assert again.progress().measured == POINTS
    with pytest.raises(InputError, match="another campaign is there"):
        Campaign.create(folder, plan(seed=9))


# -- running -----------------------------------------------------------------------------------


def test_everything_is_measured_and_stored(folder: Path) -> None:
    db = Database.in_memory()
    seen: list[tuple[str, int, int]] = []
    runner = LawRunner()
    told = lambda what, done, total: seen.append((what, done, total))  # noqa: E731
    done = CampaignJob(Campaign(folder), db.index, runner, OPTIONS, read, told).run()
    assert (done.points, done.measured) == (POINTS, POINTS)
    assert (done.tasks, done.tasks_done, done.tasks_stored) == (TASKS,) * 3
    slow = [c for name, _, c in runner.asked if name[-1] == "a" and c == "tile=4,unroll=4"]
    assert done.statuses == {"ok": POINTS - len(slow), "timeout": len(slow)}
    assert done == Campaign(folder).progress(db.index)
    assert seen[-POINTS:] == [("measure", at, POINTS) for at in range(1, POINTS + 1)]
    (platform,) = db.store.platforms()
    assert platform == LawRunner().platform(threads=2).id
    # rounds are kept apart: a time that came out alike twice is two runs
    assert db.store.count_runs() == POINTS
    embed(db.index)
    assert db.query(AMONG[2], platform=platform, op=OP).candidates[0].config["tile"] == 1
    assert {i.group for i in db.store.patterns()} == {"g0", "g1"}


def test_what_must_be_compiled_is_compiled_first(folder: Path) -> None:
    runner = LawRunner()
    go(folder, Database.in_memory(), runner)
    distinct = {op: len(configs) for op, configs in plan().configs.items()}
    assert runner.built == list(distinct.items()) or dict(runner.built) == distinct
    again = LawRunner()
    go(folder, Database.in_memory(), again)  # all measured, nothing stored there
    assert sum(count for _, count in again.built) == 0


def test_a_finished_campaign_has_nothing_to_do(folder: Path) -> None:
    db = Database.in_memory()
    go(folder, db, LawRunner())
    runner = LawRunner()
    done = go(folder, db, runner)
    assert runner.asked == [] and db.store.count_runs() == POINTS
    assert (done.tasks_done, done.tasks_stored, done.measured) == (TASKS, TASKS, POINTS)


def test_progress_of_a_half_done_campaign(folder: Path) -> None:
    db = Database.in_memory()
    with pytest.raises(KeyboardInterrupt):
        go(folder, db, LawRunner(stop=2 * COUNT + 2))
    done = Campaign(folder).progress(db.index)
    assert (done.measured, done.tasks_done, done.tasks_stored) == (2 * COUNT + 2, 2, 2)
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
    assert campaign.store(db.index, task, pattern, platform) == 0
    with pytest.raises(KeyboardInterrupt):
        list(campaign.measure(task, LawRunner(stop=3), pattern, options=OPTIONS))
    assert len(campaign.lines(task)) == 3
    assert campaign.store(db.index, task, pattern, platform) == 0
    assert len(list(campaign.measure(task, LawRunner(), pattern, options=OPTIONS))) == COUNT - 3
    assert campaign.store(db.index, task, pattern, platform) == COUNT
    assert campaign.store(db.index, task, pattern, platform) == 0
    assert db.store.count_runs() == COUNT


def test_a_damaged_line_is_named(folder: Path) -> None:
    campaign = Campaign(folder)
    task = campaign.tasks()[0]
    list(campaign.measure(task, LawRunner(), AMONG[task.matrix], options=OPTIONS))
    file = folder / "results" / f"{task.id}.jsonl"
    lines = file.read_bytes().splitlines()
    told = (b'["zzz",[1.0]]', b'["ok",[-1.0]]', b'["ok",[]]', b'["ok",[1.0],"me"]')
    hostile = [b"[%d,%s]" % (campaign.wanted(task)[0], said) for said in told]
    for bad in (b"not json", b"[99, []]", b'["a", []]', *hostile):
        file.write_bytes(b"\n".join([lines[0], bad, *lines[2:]]) + b"\n")
        with pytest.raises(InputError, match="not a result of this campaign") as e:
            campaign.progress()
        assert e.value.line == 2 and "delete the file" in e.value.hint
    file.unlink()
    assert campaign.lines(task) == {}


def test_another_space_is_refused(folder: Path) -> None:
    text = BOARD.replace("[1, 2, 4, 8]", "[1, 2, 4, 8, 16]", 1)
    for other in (text, BOARD.replace('"board"', '"table"')):
        with pytest.raises(InputError, match="planned for board, and not as"):
            go(folder, Database.in_memory(), LawRunner(parse_platform(other)))


def test_a_later_version_that_extends_the_planned_one_goes_on(folder: Path) -> None:
    db = Database.in_memory()
    with pytest.raises(KeyboardInterrupt):
        go(folder, db, LawRunner(stop=COUNT + 3))
    text = BOARD.replace("[1, 2, 4, 8]", "[1, 2, 4, 8, 16]", 1)
    later = text.replace('version = "1"', 'version = "2"\nextends = ["1"]')
    assert later != text
    assert go(folder, db, LawRunner(parse_platform(later))).tasks_stored == TASKS
    assert db.store.count_runs() == POINTS


def test_a_later_version_that_forbids_a_planned_configuration_measures_nothing(
    folder: Path,
) -> None:
    later = BOARD.replace('version = "1"', 'version = "2"\nextends = ["1"]')
    runner = LawRunner(parse_platform(later.replace("[1, 2, 4, 8]", "[1, 2, 4]", 1)))
    with pytest.raises(InputError, match="version 2 of board forbids") as e:
        go(folder, Database.in_memory(), runner)
    assert "version 1" in e.value.hint and Campaign(folder).progress().measured == 0


def test_two_runs_of_one_campaign_are_kept_apart(folder: Path) -> None:
    class Impatient(LawRunner):
        """Starts the campaign again in the middle of it."""

        def run(self, *args: Any, **kwargs: Any) -> Iterator[tuple[Config, Measurement]]:
            with pytest.raises(InputError, match="another run of this campaign is going on"):
                go(folder, Database.in_memory(), LawRunner())
            yield from super().run(*args, **kwargs)

    assert go(folder, Database.in_memory(), Impatient()).measured == POINTS


def test_times_of_two_machines_are_not_mixed(folder: Path) -> None:
    db = Database.in_memory()
    with pytest.raises(KeyboardInterrupt):
        go(folder, db, LawRunner(stop=3))
    with pytest.raises(InputError, match="and this is") as e:
        other = replace(OPTIONS, threads=8)
        CampaignJob(Campaign(folder), db.index, LawRunner(), other, read).run()
    assert "same threads" in e.value.hint and "stay evidence" in e.value.hint
    assert Campaign(folder).progress().measured == 3


def test_the_folder_is_plain_text(folder: Path) -> None:
    go(folder, Database.in_memory(), LawRunner())
    body = json.loads((folder / "plan.json").read_text())
    assert [m["name"] for m in body["matrices"]] == [p.name for p in AMONG]
    task = Task(0, "spmm:32", 1)
    (folder / "results" / "0000-spmm_32-1.jsonl").read_text()
    assert len(Campaign(folder).lines(task)) == COUNT


def test_a_broken_machine_record_is_said(folder: Path) -> None:
    for text in (b"{}", b'{"platform":"\xff"}'):
        (folder / "measured-on.json").write_bytes(text)
        with pytest.raises(InputError, match="does not name a machine"):
            go(folder, Database.in_memory(), LawRunner())


def test_a_matrix_that_changed_is_refused(folder: Path) -> None:
    job = CampaignJob(
        Campaign(folder), Database.in_memory().index, LawRunner(), OPTIONS, lambda m: band(50, 3)
    )
    with pytest.raises(InputError, match="not the matrix that was planned"):
        job.run()


def test_results_are_parsed_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go(folder, Database.in_memory(), LawRunner())
    campaign = Campaign(folder)
    parsed: list[Task] = []
    read = Campaign._result
    monkeypatch.setattr(
        Campaign, "_result", lambda self, task: (parsed.append(task), read(self, task))[1]
    )
    for _ in range(3):
        assert campaign.progress().measured == POINTS
        assert len(campaign.agreement()) == 2
    assert len(parsed) == TASKS
    file = folder / "results" / f"{parsed[0].id}.jsonl"
    file.write_bytes(file.read_bytes().rpartition(b"\n[")[0] + b"\n")
    assert campaign.progress().measured == POINTS - 1
    assert len(parsed) == TASKS + 1
