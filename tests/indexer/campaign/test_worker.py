"""Workers: whole files or none, the first of two wins, what kills a node is named."""

from __future__ import annotations

import errno
import resource
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from campaign_board import COUNT, OPS, OPTIONS, POINTS, TASKS, LawRunner, go, read
from campaign_workers import Deadly, in_a_process, worker

from embeddb.core.config import Config, Op
from embeddb.core.errors import InputError, PluginError, RunnerUnavailable
from embeddb.core.files.safe_write import OwnFolder, write_new
from embeddb.core.pattern import Pattern
from embeddb.core.records import Measurement
from embeddb.database import Database
from embeddb.kernels.machine_failures import ProgramKilled
from embeddb.platforms.platform import Platform
from indexer.campaign.folder import GIVEN_UP, Campaign
from indexer.campaign.nodes.submissions import Attempts
from indexer.campaign.results import Origin
from indexer.campaign.run import CampaignJob
from indexer.runners.base import RunOptions


def parts(folder: Path) -> list[str]:
    return [p.name for p in (folder / "results").iterdir() if p.name.endswith(".part")]


# -- files -------------------------------------------------------------------------------------


def test_the_first_of_two_files_wins(tmp_path: Path) -> None:
    own = OwnFolder(tmp_path, "shared")
    assert write_new(own, "x", b"first") and not write_new(own, "x", b"second")
    assert (tmp_path / "shared" / "x").read_bytes() == b"first"
    assert own.files() == ["x"]


def test_a_file_that_does_not_fit_is_not_there(tmp_path: Path) -> None:
    own = OwnFolder(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError, match="too large") as caught:
            write_new(own, "x", bytes(5000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert caught.value.errno == errno.EFBIG and caught.value.filename == str(tmp_path / "x")
    assert list(tmp_path.iterdir()) == []
    assert write_new(own, "x", b"whole")


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "x").symlink_to(tmp_path / "outside")
    assert not write_new(OwnFolder(tmp_path), "x", b"mine")
    assert not (tmp_path / "outside").exists()


# -- working -----------------------------------------------------------------------------------


class Faulty(LawRunner):
    """Returns too few results of one matrix, and raises on another."""

    def run(
        self, pattern: Pattern, op: Op, configs: Sequence[Config], *, options: RunOptions
    ) -> Iterator[tuple[Config, Measurement]]:
        if pattern.name == "m0b":
            raise IndexError
        few = configs[:-1] if pattern.name == "m0a" else configs
        yield from super().run(pattern, op, few, options=options)


def test_a_faulty_runner_is_named_and_the_other_tasks_go_on(folder: Path) -> None:
    campaign = Campaign(folder)
    worked = worker(folder, Faulty()).work(campaign.tasks())
    reasons = set(worked.failed.values())
    assert "runner law, on m0a: it returned 11 results for 12 configurations" in reasons
    (raised,) = (one for one in reasons if "m0b" in one)
    assert "runner law, on m0b: run raised IndexError (test_worker.py, line" in raised
    assert len(worked.done) + len(worked.failed) == TASKS and worked.done
    with pytest.raises(PluginError, match="runner law, on m0"):
        go(folder, Database.in_memory(), Faulty())


def test_a_worker_needs_no_database_and_its_files_are_those_of_a_campaign(folder: Path) -> None:
    campaign = Campaign(folder)
    worked = worker(folder).work(campaign.tasks())
    assert len(worked.done) == TASKS and not worked.there and not worked.failed
    assert parts(folder) == [] and Attempts(folder).count() == 0
    done = Campaign(folder).progress()
    assert (done.measured, done.tasks_done) == (POINTS, TASKS)
    hosts = {m.context["host"] for t in campaign.tasks() for m in campaign.lines(t).values()}
    assert hosts == {"n1"}
    db, idle = Database.in_memory(), LawRunner()
    assert go(folder, db, idle).tasks_stored == TASKS and idle.asked == []
    assert db.store.count_runs() == POINTS


def test_the_second_of_two_workers_adds_nothing(folder: Path) -> None:
    class Meanwhile(LawRunner):
        """Another worker has the same task at the same time, and is done first."""

        def prepare(self, *_: object) -> None:
            other.work([task])

    task = Campaign(folder).tasks()[0]
    other = worker(folder, host="n2")
    worked = worker(folder, Meanwhile()).work([task])
    assert worked.there == [task.id] and not worked.done
    campaign = Campaign(folder)
    assert {m.context["host"] for m in campaign.lines(task).values()} == {"n2"}
    assert campaign.outcome(task).lines == COUNT and parts(folder) == []
    assert worker(folder).work([task]).there == [task.id]


def test_a_kill_leaves_no_result_and_the_same_host_goes_on(folder: Path) -> None:
    task = Campaign(folder).tasks()[0]
    assert in_a_process(worker(folder, Deadly(after=5)), [task]) == -signal.SIGKILL
    assert Campaign(folder).missing(task) and not list((folder / "results").iterdir())
    (dead,) = Attempts(folder).all()
    assert not dead.alive and len(dead.lines) == 5 and dead.open is not None
    elsewhere, here = LawRunner(), LawRunner()
    other = Campaign(folder).tasks()[1]
    assert in_a_process(worker(folder, Deadly(after=5)), [other]) == -signal.SIGKILL
    assert worker(folder, here).work([task]).done == [task.id]
    assert len(here.asked) == COUNT - 5
    assert worker(folder, elsewhere, host="n2").work([other]).done == [other.id]
    assert len(elsewhere.asked) == COUNT, "gains stay within one node"
    assert Attempts(folder).count() == 0


def test_what_kills_a_process_three_times_is_given_up(folder: Path) -> None:
    campaign = Campaign(folder)
    task = campaign.tasks()[0]
    poison = campaign.wanted(task)[4]
    text = str(campaign.configs[task.op][poison])
    for number in range(3):
        asked = worker(folder, Deadly(poison=text), host=f"n{number}")
        assert in_a_process(asked, [task]) == -signal.SIGKILL
        assert [a.open for a in Attempts(folder).all()] == [poison] * (number + 1)
    assert in_a_process(worker(folder, Deadly(poison=text), host="n3"), [task]) == 0
    line = Campaign(folder).lines(task)[campaign.configs[task.op][poison]]
    assert line.status == "crash" and line.context[GIVEN_UP] == 3
    assert "3 times, on n0, n1, n2" in line.error
    assert Campaign(folder).progress().statuses["crash"] == 1


class _Killed(LawRunner):
    """A program of the user is killed at the fifth point, the worker is not."""

    def run(self, *args: Any, **words: Any) -> Iterator[Any]:
        for number, one in enumerate(super().run(*args, **words)):
            if number == 4:
                raise ProgramKilled("ended by SIGKILL", signal="SIGKILL", hint="")
            yield one


def test_a_program_that_is_killed_leaves_its_point_open(folder: Path) -> None:
    task = Campaign(folder).tasks()[0]
    with pytest.raises(ProgramKilled):
        worker(folder, _Killed()).work([task])
    (begun,) = Attempts(folder).all()
    assert begun.open == Campaign(folder).wanted(task)[4], "it counts against the point"


@pytest.mark.parametrize("which", ["first five", "one value"])
def test_points_that_kill_the_program_do_not_end_a_campaign(folder: Path, which: str) -> None:
    campaign = Campaign(folder)
    task = campaign.tasks()[0]
    first = {campaign.configs[task.op][at] for at in campaign.wanted(task)[:5]}
    name = campaign.plan.matrices[task.matrix].name

    class Killing(LawRunner):
        def run(self, pattern: Any, op: Any, configs: Any, **words: Any) -> Iterator[Any]:
            for config in configs:
                of_first = (pattern.name, str(op)) == (name, task.op) and config in first
                if of_first if which == "first five" else config["unroll"] == 8:
                    raise ProgramKilled("ended by SIGKILL", signal="SIGKILL", hint="")
                yield from super().run(pattern, op, [config], **words)

    done = go(folder, Database.in_memory(), Killing())
    assert (done.measured, done.tasks_stored) == (done.points, done.tasks)
    assert done.statuses["crash"] > 4


def test_failures_of_workers_are_of_their_instance(folder: Path) -> None:
    class Rebuilt(LawRunner):
        def platform(self, *, threads: int = 0) -> Platform:
            return self._platform.at("", {"build": "2"})

    class Failing(LawRunner):
        def _measured(self, *_: Any) -> Measurement:
            return Measurement("crash")

    worker(folder, Failing()).work(Campaign(folder).tasks()[:1])
    for runner in (Rebuilt(), LawRunner()):
        db = Database.in_memory()
        job = CampaignJob(Campaign(folder), db.index, runner, OPTIONS, read, again=["crash"])
        if isinstance(runner, Rebuilt):
            with pytest.raises(InputError, match="another build or machine"):
                job.run()
        else:
            assert job.run().tasks_stored == TASKS


def test_a_stop_in_order_blames_nothing(folder: Path) -> None:
    task = Campaign(folder).tasks()[0]
    for _ in range(4):
        with pytest.raises(KeyboardInterrupt):
            worker(folder, LawRunner(stop=3), host=f"n{_}").work([task])
    assert {a.ended for a in Attempts(folder).all()} == {"KeyboardInterrupt"}
    assert worker(folder).work([task]).done == [task.id]
    assert "crash" not in Campaign(folder).progress().statuses


def test_who_is_alive_is_not_taken_for_dead(folder: Path) -> None:
    seen: list[bool] = []

    class Looking(LawRunner):
        def prepare(self, *_: object) -> None:
            seen.extend(a.alive for a in Attempts(folder).all())

    worker(folder, Looking()).work(Campaign(folder).tasks()[:1])
    assert seen == [True]


def test_a_machine_that_fails_ends_the_work_in_one_line(folder: Path) -> None:
    class Full(LawRunner):
        def run(self, *args: object, **kwargs: object) -> object:  # type: ignore[override]
            raise RunnerUnavailable("no space left")

    with pytest.raises(RunnerUnavailable, match="no space left"):
        worker(folder, Full()).work(Campaign(folder).tasks())
    assert Campaign(folder).progress().measured == 0


def test_a_full_disk_leaves_nothing_half_there(folder: Path) -> None:
    class Filling(LawRunner):
        """The disk is full from the sixth point on."""

        def prepare(self, *_: object) -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (900, resource.RLIM_INFINITY))

    tasks = Campaign(folder).tasks()[:2]
    assert in_a_process(worker(folder, Filling()), tasks) == 70
    assert list((folder / "results").iterdir()) == []
    (begun,) = Attempts(folder).all()
    assert 0 < len(begun.lines) < COUNT and not begun.alive
    assert worker(folder).work(tasks).done == [task.id for task in tasks]
    assert Campaign(folder).progress().measured == 2 * COUNT


def test_a_task_that_cannot_be_worked_on_does_not_keep_the_others(folder: Path) -> None:
    def partly(matrix: object) -> object:
        if matrix.name == "m0a":  # type: ignore[attr-defined]
            raise InputError("no such file", where="m0a.mtx")
        return read(matrix)  # type: ignore[arg-type]

    worked = worker(folder, read=partly).work(Campaign(folder).tasks())
    assert len(worked.failed) == 4 and set(worked.failed.values()) == {"m0a.mtx: no such file"}
    assert len(worked.done) == TASKS - 4


# -- instances ---------------------------------------------------------------------------------


def test_another_instance_is_refused_unless_they_may_mix(folder: Path) -> None:
    tasks = Campaign(folder).tasks()
    worker(folder).work(tasks[:8])
    other = replace(OPTIONS, threads=8)
    with pytest.raises(InputError, match="and this is board@"):
        worker(folder, options=other).work(tasks[8:])
    worked = worker(folder, options=other, mixed=True, host="n2").work(tasks)
    assert worked.there == [t.id for t in tasks[:8]] and len(worked.done) == TASKS - 8
    campaign = Campaign(folder)
    first, last = campaign.instance_of(tasks[0]), campaign.instance_of(tasks[-1])
    assert first != last and campaign.instances.first == first
    assert campaign.instances.platform(last).environment == {"threads": "8"}
    with pytest.raises(InputError, match="does not name a machine"):
        campaign.instances.platform("board@unknown")
    db = Database.in_memory()
    here = LawRunner().platform(threads=2)
    for task in tasks:
        campaign.store(db.index, task, read(campaign.plan.matrices[task.matrix]), here)
    assert set(db.store.platforms()) == {first, last}
    assert db.store.count_runs() == POINTS


def test_what_was_begun_here_is_ended_with_its_default_on_the_node(folder: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        go(folder, Database.in_memory(), LawRunner(stop=7))
    campaign = Campaign(folder)
    task = campaign.tasks()[0]
    default = campaign.default(task)
    assert default is not None and len(campaign.missing(task)) == COUNT - 7
    runner = LawRunner()
    assert worker(folder, runner).work([task]).done == [task.id]
    again = default not in campaign.missing(task)
    assert len(runner.asked) == COUNT - 7 + again
    assert runner.asked[0][2] == str(campaign.configs[task.op][default]) or not again
    assert not Campaign(folder).missing(task)
    db = Database.in_memory()
    assert go(folder, db, LawRunner()).measured == POINTS
    assert db.store.count_runs() == POINTS + again


def test_a_task_begun_on_another_instance_is_left_to_it(folder: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        go(folder, Database.in_memory(), LawRunner(stop=7))
    task, other = Campaign(folder).tasks()[0], replace(OPTIONS, threads=8)
    worked = worker(folder, options=other, mixed=True).work([task])
    assert "was begun on board@" in worked.failed[task.id] and not worked.done


def test_repeated_points_are_a_part_of_their_own(folder: Path) -> None:
    worker(folder).work(Campaign(folder).tasks())
    campaign = Campaign(folder)
    slow = campaign.repeat({"timeout"})
    assert slow and campaign.progress().measured == POINTS - slow
    runner = LawRunner()
    worker(folder, runner, host="n2").work(campaign.tasks())
    done = Campaign(folder).progress()
    assert done.measured == POINTS and any((folder / "results").glob("*.1.jsonl"))
    defaults = len(runner.asked) - slow
    db = Database.in_memory()
    assert go(folder, db, LawRunner()).tasks_stored == TASKS
    assert db.store.count_runs() == POINTS + slow + defaults
    (platform,) = db.store.platforms()
    live = sum(1 for op in OPS for _ in db.store.runs(platform, op))
    assert live == POINTS + defaults, "the repeated ones are replaced"


def test_the_state_of_the_node_comes_with_the_results(folder: Path) -> None:
    class Telling(LawRunner):
        def state(self, *, threads: int = 0) -> dict[str, float]:
            return {"stream": 1.0 if len(self.asked) < COUNT else 3.0}

    task = Campaign(folder).tasks()[0]
    worker(folder, Telling()).work([task])
    campaign = Campaign(folder)
    assert [m.done for m in campaign.states(task).moments()] == [0, COUNT]
    assert campaign.spoilt() == [task]
    assert campaign.states(task).contexts(COUNT)[0]["state_stream"] == pytest.approx(3**0.5, 1e-3)


def test_a_hostile_origin_is_told(folder: Path) -> None:
    campaign = Campaign(folder)
    task = campaign.tasks()[0]
    for body in (b'{"on": 3}', b"{", b'{"on": "board@x", "host": "n", "states": [[0, 1]]}'):
        (folder / "results" / f"{task.id}.jsonl").write_bytes(body + b"\n")
        with pytest.raises(InputError, match="not a result of this campaign"):
            Campaign(folder).progress()
    campaign.results.make()
    (folder / "results" / f"{task.id}.jsonl").unlink()
    assert campaign.results.deliver(task.id, 0, Origin(on="board@x", host="n"), [])
    assert not campaign.results.deliver(task.id, 0, Origin(on="board@y", host="n"), [])
