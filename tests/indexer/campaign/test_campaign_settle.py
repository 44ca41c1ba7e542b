"""Rounds that disagree are measured again; a campaign killed at any point goes on."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from builders import OP
from campaign_board import (
    AMONG,
    COUNT,
    POINTS,
    TASKS,
    LawRunner,
    go,
    plan,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from embeddb.core.config import Config, Op
from embeddb.core.errors import InputError
from embeddb.core.pattern import Pattern
from embeddb.core.records import Measurement
from embeddb.database import Database
from indexer.campaign.folder import Campaign
from indexer.campaign.run import Settle
from indexer.runners.base import RunOptions

# -- rounds that disagree ----------------------------------------------------------------------

SPOILT = (AMONG[1].name, AMONG[3].name)


def test_rounds_that_agree_are_not_measured_again(folder: Path) -> None:
    db = Database.in_memory()
    go(folder, db, LawRunner())
    campaign = Campaign(folder)
    assert campaign.settling_rounds == 0 and not (folder / "settle.json").exists()
    for found in campaign.agreement():
        assert (found.matrices, found.too_few, found.disagreeing) == (5, 0, [])
        assert found.spearman == pytest.approx(1) == found.kendall and found.difference == 0


def test_matrices_whose_rounds_disagree_are_measured_again(folder: Path) -> None:
    db, runner = Database.in_memory(), LawRunner(spoilt=SPOILT)
    done = go(folder, db, runner, Settle(rounds=3))
    campaign = Campaign(folder)
    assert campaign.settling_rounds == 1
    extra = len(SPOILT) * 2 * COUNT
    assert done.points == done.measured == POINTS + extra == len(runner.asked)
    assert done.tasks_stored == done.tasks == TASKS + 4
    # every round stays, the spoilt one too
    assert db.store.count_runs() == POINTS + extra
    marks = Counter(run.campaign.rpartition(":")[2] for run in db.store.runs(*_partition(db)))
    assert marks == {"0": 5 * COUNT, "1": 5 * COUNT, "2": 2 * COUNT}
    for found in campaign.agreement():
        assert found.disagreeing == [] and found.settled == sorted(SPOILT)
    assert go(folder, db, LawRunner(spoilt=SPOILT), Settle(rounds=3)).points == done.points


def _partition(db: Database) -> tuple[str, Op]:
    (platform,) = db.store.platforms()
    return platform, OP


def test_what_never_agrees_is_given_up_and_said(folder: Path) -> None:
    runner = LawRunner(spoilt=SPOILT, always=True)
    done = go(folder, Database.in_memory(), runner, Settle(rounds=2))
    assert Campaign(folder).settling_rounds == 2
    assert done.points == POINTS + 2 * len(SPOILT) * 2 * COUNT
    for found in Campaign(folder).agreement():
        assert found.disagreeing == sorted(SPOILT) and found.settled == []


def test_settling_can_be_left_out_and_done_later(folder: Path) -> None:
    db, runner = Database.in_memory(), LawRunner(spoilt=SPOILT)
    assert go(folder, db, runner, Settle(rounds=0)).points == POINTS
    assert Campaign(folder).agreement()[0].disagreeing == sorted(SPOILT)
    assert go(folder, db, runner, Settle(least=-1.0)).points == POINTS
    assert go(folder, db, runner).points > POINTS


def test_a_share_is_enough_to_see_a_disagreement(tmp_path: Path) -> None:
    """And then the whole choice is measured again, for the first round may be the bad one."""
    Campaign.create(tmp_path / "camp", plan(configs=16, repeat_share=0.7))
    runner = LawRunner(spoilt=SPOILT)
    done = go(tmp_path / "camp", Database.in_memory(), runner)
    assert done.points == 2 * 5 * (16 + 12) + 2 * len(SPOILT) * 16


def test_settling_rounds_of_another_campaign_are_refused(folder: Path) -> None:
    for bad in ("{", '[[[99, "spmm:32"]]]', '[[[0, "spmv"]]]', "[[[0]]]"):
        (folder / "settle.json").write_text(bad)
        with pytest.raises(InputError, match="not the further rounds"):
            Campaign(folder)


# -- stopped at any point ----------------------------------------------------------------------


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 100), max_size=5), st.integers(1, 40))
def test_resumed_after_any_stops(
    tmp_path_factory: pytest.TempPathFactory, stops: list[int], cut: int
) -> None:
    """What was told is never measured again, whatever of the last line is on the disk; so in
    the rounds that settle a disagreement."""
    folder = tmp_path_factory.mktemp("camp")
    campaign = Campaign.create(folder, plan())
    db = Database.in_memory()
    runner = LawRunner(spoilt=SPOILT)
    for stop in stops:
        runner.left = stop
        with contextlib.suppress(KeyboardInterrupt):
            go(folder, db, runner)
        files = sorted((folder / "results").glob("*.jsonl"), key=lambda f: f.stat().st_mtime_ns)
        if files:
            with files[-1].open("ab") as torn:
                torn.write(b'[2,["ok",[0.123456789,0.5],"hardware"'[:cut])
        assert Campaign(folder).progress(db.index).measured == len(runner.asked)
    runner.left = -1
    done = go(folder, db, runner)
    points = POINTS + len(SPOILT) * 2 * COUNT
    assert len(runner.asked) == points == done.measured == done.points
    assert set(runner.rounds.values()) == {2, 3}
    assert done.tasks_stored == TASKS + 4 and db.store.count_runs() == points
    assert campaign.progress().measured == POINTS  # opened before there were further rounds


KILLED = """
import sys
sys.path[:0] = {tests!r}
from test_campaign_settle import measure_slowly
measure_slowly({folder!r}, {db!r})
"""


class SlowRunner(LawRunner):
    """A second round that is chance, told by what the folder holds: a kill forgets all else."""

    def __init__(self, folder: Path) -> None:
        super().__init__(spoilt=SPOILT)
        for task in (campaign := Campaign(folder)).tasks():
            name = campaign.plan.matrices[task.matrix].name
            self.rounds.update((name, task.op, str(c)) for c in campaign.lines(task))

    def run(
        self, pattern: Pattern, op: Op, configs: Sequence[Config], *, options: RunOptions
    ) -> Iterator[tuple[Config, Measurement]]:
        for config, measurement in super().run(pattern, op, configs, options=options):
            time.sleep(0.005)
            yield config, measurement


def measure_slowly(folder: str, db: str) -> None:
    with Database.open(db) as opened:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        go(Path(folder), opened, SlowRunner(Path(folder)))


@pytest.mark.slow
def test_killed_again_and_again(folder: Path, tmp_path: Path) -> None:
    """`kill -9` leaves no point lost, none repeated, and every task stored once."""
    db = tmp_path / "runs.db"
    Database.create(db).close()
    tests = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "fixtures")]
    script = KILLED.format(tests=tests, folder=str(folder), db=str(db))
    rng = np.random.default_rng(1)
    held: dict[str, bytes] = {}
    ended = -signal.SIGKILL.value
    kills = 0
    while ended != 0:
        command = [sys.executable, "-c", script]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            try:
                ended = process.wait(float(rng.uniform(0.05, 0.8)))
            except subprocess.TimeoutExpired:
                process.kill()
                kills += 1
        for name, before in held.items():
            assert (folder / "results" / name).read_bytes().startswith(before), "a point is lost"
        files = (folder / "results").iterdir()
        held = {f.name: (raw := f.read_bytes())[: raw.rfind(b"\n") + 1] for f in files}
        assert kills < 60
    points = POINTS + len(SPOILT) * 2 * COUNT
    assert sum(raw.count(b"\n") for raw in held.values()) == points and kills > 1
    with Database.open(db) as opened:
        assert opened.store.count_runs() == points
