"""A machine that fails stops a campaign; what failed wrongly is measured again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from campaign_board import AMONG, COUNT, OPS, OPTIONS, POINTS, TASKS, LawRunner, go, read

from embeddb.core.config import Config, Op
from embeddb.core.errors import InputError, RunnerUnavailable
from embeddb.core.pattern import Pattern
from embeddb.core.records import Measurement, Run
from embeddb.database import Database
from indexer.campaign.folder import Campaign, CampaignProgress
from indexer.campaign.run import CampaignJob
from indexer.runners.base import RunOptions


class Wrong(LawRunner):
    """For everything of tile 2 it says `build`, be it so or not; at point `full` the disk is."""

    def __init__(self, *, full: int = -1, says: str = "build", stop: int = -1) -> None:
        super().__init__(stop=stop)
        self.full, self.says = full, says

    def run(
        self, pattern: Pattern, op: Op, configs: Sequence[Config], *, options: RunOptions
    ) -> Iterator[tuple[Config, Measurement]]:
        for config, measured in super().run(pattern, op, configs, options=options):
            if len(self.asked) - 1 == self.full:
                raise RunnerUnavailable("no space left", hint="free some")
            if self.says and config["tile"] == 2:
                yield config, Measurement(self.says, error="a disk was full")
            else:
                yield config, measured


def again(folder: Path, db: Database, runner: LawRunner, *statuses: str) -> CampaignProgress:
    job = CampaignJob(Campaign(folder), db.index, runner, OPTIONS, read, again=statuses)
    return job.run()


def runs(db: Database) -> list[Run]:
    (platform,) = db.store.platforms()
    return [run for op in OPS for run in db.store.runs(platform, op)]


def test_a_machine_that_fails_stores_nothing_of_the_point(folder: Path) -> None:
    db = Database.in_memory()
    with pytest.raises(RunnerUnavailable, match="no space left"):
        go(folder, db, Wrong(full=COUNT + 3, says=""))
    done = Campaign(folder).progress(db.index)
    assert (done.measured, done.tasks_stored) == (COUNT + 3, 1) and "build" not in done.statuses
    runner = LawRunner()
    done = go(folder, db, runner)
    assert len(runner.asked) == POINTS - COUNT - 3 and done.tasks_stored == TASKS
    assert {r.measurement.status for r in runs(db)} <= {"ok", "timeout"}


def test_points_that_failed_by_a_status_are_repeated(folder: Path) -> None:
    db = Database.in_memory()
    before = go(folder, db, Wrong())
    failed = before.statuses["build"]
    assert failed > 0 and before.tasks_stored == TASKS
    others = LawRunner()
    assert again(folder, db, others, "crash") == before and others.asked == []
    runner = LawRunner()
    done = again(folder, db, runner, "build", "crash")
    assert len(runner.asked) == failed and {c.split(",")[0] for *_, c in runner.asked} == {"tile=2"}
    assert done.statuses["build"] == 0 and done.measured == POINTS and done.tasks_stored == TASKS
    assert Counter(r.measurement.status for r in runs(db)) == done.statuses
    assert db.store.count_runs() == POINTS + failed, "the wrong ones stay, replaced"
    after = LawRunner()
    assert go(folder, db, after) == done and after.asked == []
    assert again(folder, db, after, "build") == done and after.asked == []


def test_repeating_goes_on_after_a_stop(folder: Path) -> None:
    db = Database.in_memory()
    failed = go(folder, db, Wrong()).statuses["build"]
    with pytest.raises(KeyboardInterrupt):
        again(folder, db, LawRunner(stop=2), "build")
    done = Campaign(folder).progress(db.index)
    assert done.measured == POINTS - failed + 2 and done.tasks_stored < TASKS
    runner = LawRunner()
    done = go(folder, db, runner)
    assert len(runner.asked) == failed - 2 and done.tasks_stored == TASKS
    assert done.statuses["build"] == 0 and len(runs(db)) == POINTS
    # another database gets the same out of the folder, and nothing is measured for it
    other = Database.in_memory()
    idle = LawRunner()
    go(folder, other, idle)
    assert idle.asked == [] and {r.id for r in runs(other)} == {r.id for r in runs(db)}


def test_what_fails_again_may_be_repeated_again(folder: Path) -> None:
    db = Database.in_memory()
    failed = go(folder, db, Wrong()).statuses["build"]
    assert again(folder, db, Wrong(says="crash"), "build").statuses["crash"] == failed
    done = again(folder, db, LawRunner(), "crash")
    assert done.statuses["crash"] == 0 and done.measured == POINTS
    assert len(runs(db)) == POINTS and db.store.count_runs() == POINTS + 2 * failed


def test_a_task_of_which_nothing_was_stored_is_repeated_too(folder: Path) -> None:
    db, campaign = Database.in_memory(), Campaign(folder)
    task = campaign.tasks()[0]
    with pytest.raises(KeyboardInterrupt):
        list(campaign.measure(task, Wrong(stop=8), AMONG[task.matrix], options=OPTIONS))
    wrong = sum(m.status == "build" for m in campaign.lines(task).values())
    assert wrong and campaign.repeat({"build"}) == wrong and campaign.outcome(task).lines == 8
    assert len(campaign.lines(task)) == 8 - wrong and campaign.repeat({"build"}) == 0
    assert len(list(campaign.measure(task, LawRunner(), AMONG[task.matrix], options=OPTIONS))) == (
        COUNT - 8 + wrong
    )
    platform = LawRunner().platform(threads=2)
    assert campaign.store(db.index, task, AMONG[task.matrix], platform) == COUNT + wrong
    assert len(runs(db)) == COUNT


def test_a_broken_file_is_said(folder: Path) -> None:
    for bad in (b"[]", b'{"a": ["x"]}', b"\xff", b'{"a": 1}'):
        (folder / "again.json").write_bytes(bad)
        with pytest.raises(InputError, match=r"again.json: not a list of repeated results"):
            Campaign(folder)
    (folder / "again.json").write_text(json.dumps({"0000-spmm_32-0": [-5, 999]}))
    assert go(folder, Database.in_memory(), LawRunner()).measured == POINTS


def test_a_link_in_its_place_is_not_followed(folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("{}")
    (folder / "again.json").symlink_to(outside)
    with pytest.raises(InputError, match="a link"):
        Campaign(folder)
