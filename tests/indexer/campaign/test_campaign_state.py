"""Tasks measured while the machine was in another state are measured again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from builders import OP
from campaign_board import AMONG, COUNT, OPS, POINTS, TASKS, LawRunner, go

from embeddb.core.errors import InputError
from embeddb.core.timing import state_of
from embeddb.database import Database
from indexer.campaign.folder import Campaign
from indexer.campaign.run import Settle

QUIET = {"stream": 100.0, "adds": 50.0}
BUSY = {"stream": 50.0, "adds": 25.0}


class StateRunner(LawRunner):
    """Busy from the run `busy[0]` on, until the run `busy[1]`; counted over all runs asked for."""

    def __init__(self, busy: tuple[int, int] = (-1, -1), **how: Any) -> None:
        super().__init__(**how)
        self._busy = busy

    def state(self, *, threads: int = 0) -> dict[str, float]:
        return BUSY if self._busy[0] <= len(self.asked) < self._busy[1] else QUIET


def test_a_steady_machine_measures_nothing_again(folder: Path) -> None:
    db = Database.in_memory()
    done = go(folder, db, StateRunner(), Settle(rounds=3))
    assert done.points == POINTS and Campaign(folder).spoilt() == []
    (platform,) = db.store.platforms()
    for op in OPS:
        for run in db.store.runs(platform, op):
            assert state_of(run.measurement.context) == QUIET
            assert run.measurement.context["state_drift"] == 0.0


def test_without_states_nothing_is_noted(folder: Path) -> None:
    db = Database.in_memory()
    go(folder, db, LawRunner())
    assert not (folder / "states").exists() and Campaign(folder).spoilt() == []
    (platform,) = db.store.platforms()
    assert all(run.measurement.context == {} for run in db.store.runs(platform, OP))


def test_tasks_in_another_state_are_measured_again(folder: Path) -> None:
    """Two whole tasks while it was busy, and one during which it became so."""
    busy = (2 * COUNT + 3, 5 * COUNT)
    db, runner = Database.in_memory(), StateRunner(busy)
    first = go(folder, db, runner, Settle(rounds=0))
    campaign = Campaign(folder)
    spoilt = campaign.tasks()[2:5]
    assert first.points == POINTS and campaign.spoilt() == spoilt
    done = go(folder, db, runner, Settle(rounds=3))
    campaign = Campaign(folder)
    assert campaign.settling_rounds == 1
    again = campaign.tasks()[TASKS:]
    assert {(t.matrix, t.op) for t in again} == {(t.matrix, t.op) for t in spoilt}
    assert done.points == done.measured == POINTS + len(again) * COUNT
    assert db.store.count_runs() == done.points, "no run is dropped"


def test_a_machine_that_stays_restless_is_given_up(folder: Path) -> None:
    class Restless(StateRunner):
        def state(self, *, threads: int = 0) -> dict[str, float]:
            self.left -= 1
            return {k: v * (1 + self.left % 2) for k, v in QUIET.items()}

    done = go(folder, Database.in_memory(), Restless(), Settle(rounds=2))
    assert Campaign(folder).settling_rounds == 2 and done.points == 2 * POINTS


def test_each_run_lies_between_two_states(folder: Path) -> None:
    """A task that was stopped has a state where it stopped being measured and went on."""
    db = Database.in_memory()
    with pytest.raises(KeyboardInterrupt):
        go(folder, db, StateRunner(stop=4))
    file = folder / "states" / f"{Campaign(folder).tasks()[0].id}.jsonl"
    with file.open("ab") as torn:
        torn.write(b'[4,{"stream"')
    later = StateRunner((0, 1))  # busy when it goes on, quiet when it ends
    go(folder, db, later, Settle(rounds=0))
    campaign = Campaign(folder)
    task = campaign.tasks()[0]
    assert [m.done for m in campaign.states(task).moments()] == [0, 4, COUNT]
    contexts = campaign.states(task).contexts(COUNT)
    assert contexts[0] == contexts[3] and contexts[4] == contexts[-1]
    assert all(c["state_drift"] == pytest.approx(0.693, abs=1e-3) for c in contexts)
    assert task in campaign.spoilt()
    pattern = AMONG[task.matrix]
    (platform,) = db.store.platforms()
    held = {run.config: run for run in db.store.runs(platform, OP, pattern.id)}
    assert any("state_drift" in run.measurement.context for run in held.values())


def test_a_damaged_state_is_named(folder: Path) -> None:
    go(folder, Database.in_memory(), StateRunner())
    campaign = Campaign(folder)
    task = campaign.tasks()[3]
    file = folder / "states" / f"{task.id}.jsonl"
    for bad in (b"not json\n", b'[1, {"stream": "fast"}]\n', b'["a", {}]\n'):
        file.write_bytes(bad)
        with pytest.raises(InputError, match="not a state of the machine") as e:
            campaign.spoilt()
        assert e.value.line == 1 and "delete the file" in e.value.hint
    file.write_bytes(b'[0, {"stream": -1.0}]\n[12, {}]\n')
    assert campaign.spoilt() == [] and campaign.states(task).contexts(1) == [{}]
