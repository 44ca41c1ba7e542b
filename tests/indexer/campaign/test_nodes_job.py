"""The coordinator: rounds, what is lost, what is cancelled, and that it never turns in circles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from campaign_board import POINTS, TASKS, LawRunner, board, go, matrices, read
from campaign_workers import Deadly, worker
from inline_executor import InlineExecutor

from embeddb.core.config import Config, Op
from embeddb.core.errors import InputError, PluginError, RunnerUnavailable, UsageError
from embeddb.core.pattern import Pattern
from embeddb.core.records import Measurement
from embeddb.database import Database
from indexer.campaign.budget.growing_plan import BudgetRequest, bought, planned
from indexer.campaign.exclusive import alone
from indexer.campaign.folder import GIVEN_UP, Campaign
from indexer.campaign.nodes.coordinator import NodesJob, collect
from indexer.campaign.nodes.submissions import (
    Attempts,
    Place,
    Submissions,
    Submitted,
    SubmittedJob,
    in_chunks,
    spread_of,
)
from indexer.campaign.results import Line
from indexer.campaign.run import Settle
from indexer.executors.base import Submission
from indexer.runners.base import RunOptions


def job(folder: Path, db: Database, executor: InlineExecutor, **more: Any) -> NodesJob:
    return NodesJob(campaign=Campaign(folder), db=db.index, executor=executor, read=read, **more)


# -- to the end --------------------------------------------------------------------------------


def test_rounds_are_jobs_one_after_the_other(folder: Path) -> None:
    db, executor = Database.in_memory(), InlineExecutor()
    notes: list[str] = []
    _, done = job(folder, db, executor, note=notes.append).run(Settle(rounds=0))
    assert (done.tasks_done, done.tasks_stored, done.measured) == (TASKS, TASKS, POINTS)
    assert db.store.count_runs() == POINTS
    assert [after for _, after in executor.started] == ["", "job1"]
    frozen = [Submissions(folder).read(n) for n in (1, 2)]
    assert [one.round for one in frozen] == [0, 1] and len(notes) == 2
    every = {name for one in frozen for chunk in one.chunks for name in chunk}
    assert every == {task.id for task in Campaign(folder).tasks()}
    assert Submissions(folder).open() == []


def test_a_job_without_a_name_leaves_the_campaign_usable(folder: Path) -> None:
    class Nameless(InlineExecutor):
        def start(self, work: Submission, *, after: str = "") -> Any:
            super().start(work, after=after)

    db = Database.in_memory()
    with pytest.raises(PluginError, match="start returned None, not the name of a job"):
        job(folder, db, Nameless()).run(Settle(rounds=0))
    job(folder, db, InlineExecutor()).run(Settle(rounds=0))
    assert db.store.count_runs() == POINTS


def test_nothing_is_measured_or_stored_twice(folder: Path) -> None:
    db = Database.in_memory()
    job(folder, db, InlineExecutor()).run(Settle(rounds=0))
    again = InlineExecutor()
    job(folder, db, again).run(Settle(rounds=0))
    assert again.started == [] and db.store.count_runs() == POINTS
    assert collect(Campaign(folder), db.index, read=read).tasks == 0
    other = Database.in_memory()
    found = collect(Campaign(folder), other.index, read=read)
    assert (found.tasks, found.runs) == (TASKS, POINTS)
    (platform,) = other.store.platforms()
    assert other.platform(platform).environment == {"threads": "2"}


def test_rounds_that_disagree_are_settled_by_the_coordinator(folder: Path) -> None:
    executor = InlineExecutor(lambda number, _: _Odd(number))
    campaign, done = job(folder, Database.in_memory(), executor).run(Settle(rounds=1))
    assert campaign.settling_rounds == 1 and done.tasks > TASKS
    assert Submissions(folder).read(3).round == 2


class _Odd(LawRunner):
    """Two rounds that do not agree on one matrix."""

    def __init__(self, number: int) -> None:
        super().__init__(spoilt=["m0b"] if number == 2 else [], always=True)


def test_a_strategy_buys_round_by_round(tmp_path: Path) -> None:
    wish = BudgetRequest(platform=board(), op=Op("spmm", 32), strategy="ea10", budget=60)
    clusters = lambda count: ("", [[at] for at in range(min(count, 5))])  # noqa: E731
    planned(tmp_path / "camp", wish, matrices(), clusters)
    db = Database.in_memory()
    campaign, done = job(tmp_path / "camp", db, InlineExecutor()).run(Settle(rounds=0))
    spent = bought(campaign)
    assert spent is not None and spent.measured == spent.planned == 60 and spent.rounds > 1
    assert done.tasks_stored == done.tasks
    more = {campaign.outcome(task).lines - len(campaign.wanted(task)) for task in campaign.tasks()}
    assert more == {0, 1}, "a later share of a matrix has the default beside what was bought"


# -- what goes wrong ---------------------------------------------------------------------------


def test_what_is_lost_is_submitted_again(folder: Path) -> None:
    executor = InlineExecutor(lambda number, chunk: None if number == 1 else LawRunner())
    db = Database.in_memory()
    _, done = job(folder, db, executor, chunk_s=0.0).run(Settle(rounds=0))
    assert done.tasks_stored == TASKS and db.store.count_runs() == POINTS
    assert [one.round for one in map(Submissions(folder).read, (1, 2, 3))] == [0, 1, 0]


def test_a_point_that_kills_its_node_does_not_end_the_campaign(folder: Path) -> None:
    executor = InlineExecutor(lambda *_: Deadly(poison="tile=2,unroll=2"))
    campaign, done = job(folder, Database.in_memory(), executor).run(Settle(rounds=0))
    assert done.tasks_done == TASKS and done.statuses["crash"] > 0
    told = [m for t in campaign.tasks() for m in campaign.lines(t).values() if m.status == "crash"]
    assert all(m.context[GIVEN_UP] == 3 and "3 times, on n" in m.error for m in told)
    assert spread_of(campaign).points_given_up == len(told) == done.statuses["crash"]
    suspects = Submissions(folder).read(3).chunks
    assert any(len(chunk) == 1 for chunk in suspects), "it does not take others with it"


class Speaking(InlineExecutor):
    """Its workers say why they do nothing."""

    def start(self, work: Submission, *, after: str = "") -> str:
        (Path(work.logs) / "0.log").write_text("module: command not found\n\n")
        return super().start(work, after=after)


def test_nothing_came_of_it(folder: Path) -> None:
    executor = InlineExecutor(lambda *_: None)
    with pytest.raises(InputError, match=r"nothing came of submission 6$") as caught:
        job(folder, Database.in_memory(), executor).run()
    assert "submit/0006" in caught.value.hint and len(executor.started) == 6


def test_workers_that_say_why_they_do_nothing_are_believed(folder: Path) -> None:
    executor = Speaking(lambda *_: None)
    with pytest.raises(InputError, match=r"submission 1: module: command not found") as caught:
        job(folder, Database.in_memory(), executor).run()
    assert "submit/0001" in caught.value.hint, "the first reason, not that of a later round"
    assert len(executor.started) == 2


class Refusing(LawRunner):
    """Fails at the points with this part in their configuration."""

    def __init__(self, part: str) -> None:
        super().__init__()
        self._part = part

    def run(
        self, pattern: Pattern, op: Op, configs: Sequence[Config], *, options: RunOptions
    ) -> Iterator[tuple[Config, Measurement]]:
        for config in configs:
            if self._part in str(config):
                raise RunnerUnavailable("no such program")
            yield from super().run(pattern, op, [config], options=options)


@pytest.mark.parametrize(("part", "submissions"), [("tile", 6), ("tile=2,unroll=2", 8)])
def test_attempts_that_measure_no_new_point_do_not_go_on_for_ever(
    folder: Path, part: str, submissions: int
) -> None:
    def refusing(number: int, _: int) -> LawRunner:
        assert number <= submissions, "submitted again without progress"
        return Refusing(part)

    with pytest.raises(InputError, match=rf"nothing came of submission {submissions}$"):
        job(folder, Database.in_memory(), InlineExecutor(refusing)).run()


def test_an_attempt_on_another_host_is_progress(tmp_path: Path) -> None:
    attempts, seen = Attempts(tmp_path), []
    one = Measurement("ok", (1.0,), "hardware", when=1.0)
    for host, points in (("n1", 5), ("n2", 3), ("n2", 3)):
        with attempts.beginning("t1", Place(on="board@1", host=host)) as attempt:
            for config in range(points):
                attempt.point(Line(config, one))
        seen.append(attempts.reached())
    assert seen[0] != seen[1] == seen[2], "an attempt resumes only what its own host measured"


def test_what_is_killed_before_it_begins_is_submitted_again(folder: Path) -> None:
    executor = InlineExecutor(lambda number, _: None if number <= 4 else LawRunner())
    db = Database.in_memory()
    _, done = job(folder, db, executor).run(Settle(rounds=0))
    assert done.tasks_stored == TASKS and db.store.count_runs() == POINTS


def test_a_cancelled_job_is_not_submitted_behind_the_users_back(folder: Path) -> None:
    executor = InlineExecutor(cancels=(1, 2))
    with pytest.raises(InputError, match=r"submission 1 \(inline job job1\) was cancelled"):
        job(folder, Database.in_memory(), executor).run()
    assert len(executor.started) == 2


def test_two_coordinators(folder: Path) -> None:
    with alone(folder), pytest.raises(InputError, match="another run of this campaign is going on"):
        job(folder, Database.in_memory(), InlineExecutor()).run()


def test_two_submissions_at_once_have_two_numbers(folder: Path) -> None:
    one, other = Submissions(folder), Submissions(folder)
    frozen = Submitted(executor="inline", chunks=[["x"]])
    assert [one.add(frozen), other.add(frozen), one.add(frozen)] == [1, 2, 3]
    (folder / "submit" / "0004").symlink_to(folder)
    assert other.add(frozen) == 5, "nothing is written through a link that was there"


# -- submitting and leaving --------------------------------------------------------------------


def test_submit_and_return(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    db, executor = Database.in_memory(), InlineExecutor()
    monkeypatch.setattr("indexer.campaign.nodes.submissions.executor_named", lambda *_: executor)
    _, done = job(folder, db, executor, wait=False).run()
    assert done.measured == 0 and len(executor.started) == 2
    with pytest.raises(InputError, match="submission 1 may still be worked on"):
        go(folder, db, LawRunner())
    assert Campaign(folder).progress().measured == POINTS, "asking had it worked off"
    _, done = job(folder, db, executor, wait=False).run(Settle(rounds=0))
    assert done.tasks_stored == TASKS and len(executor.started) == 2
    with pytest.raises(UsageError, match="has to wait"):
        job(folder, db, InlineExecutor(detached=False), wait=False).run()


def test_the_spread_over_nodes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = InlineExecutor()
    monkeypatch.setattr("indexer.campaign.nodes.submissions.executor_named", lambda *_: executor)
    campaign = Campaign(folder)
    assert spread_of(campaign).hosts == [] and spread_of(campaign).waiting == 0
    tasks = campaign.tasks()
    worker(folder, host="a").work(tasks[:3])
    worker(folder, host="b").work(tasks[3:4])
    with pytest.raises(KeyboardInterrupt):
        worker(folder, LawRunner(stop=2), host="b").work(tasks[4:5])
    number = Submissions(folder).add(
        Submitted(executor="inline", chunks=[[t.id for t in tasks[:6]], [tasks[7].id]])
    )
    Submissions(folder).note(number, SubmittedJob(job="job1"))
    monkeypatch.setattr(executor, "states", lambda _: {0: "running", 1: "waiting"})
    seen = spread_of(Campaign(folder))
    assert (seen.done, seen.running, seen.waiting, seen.stopped) == (4, 0, 3, 1)
    by_host = {one.host: (one.done, one.stopped) for one in seen.hosts}
    assert by_host == {"a": (3, 0), "b": (1, 1)}
    # Another node goes on with the task: its attempt counts, whatever the order of the files.
    place = Place(on=campaign.instances.first, host="a")
    with Attempts(folder).beginning(tasks[4].id, place):
        seen = spread_of(Campaign(folder))
        assert (seen.running, seen.stopped) == (1, 0)
        assert {one.host: one.running for one in seen.hosts} == {"a": 1, "b": 0}
    monkeypatch.setattr(executor, "states", lambda _: None)
    assert spread_of(Campaign(folder)).waiting is None


# -- chunks ------------------------------------------------------------------------------------


def test_chunks_are_of_a_minute_and_suspects_alone(folder: Path) -> None:
    campaign = Campaign(folder)
    tasks = campaign.tasks()
    names = [t.id for t in tasks]
    whole = in_chunks(campaign, tasks)
    # 12 points of 0.2 s each are 2.4 s: 25 tasks make a minute, and there are 20.
    assert whole == [names]
    each = in_chunks(campaign, tasks, least_s=1.0)
    assert each == [[name] for name in names]
    suspects = frozenset(names[:2])
    assert in_chunks(campaign, tasks, suspects=suspects) == [names[2:], [names[0]], [names[1]]]


@pytest.mark.parametrize("most", [1, 2, 3, 5, 19, 20])
@pytest.mark.parametrize("suspects", [0, 1, 7, 20])
def test_a_submission_has_at_most_so_many_chunks(folder: Path, most: int, suspects: int) -> None:
    campaign = Campaign(folder)
    names = [t.id for t in campaign.tasks()]
    ended = frozenset(names[:suspects])
    chunks = in_chunks(campaign, campaign.tasks(), suspects=ended, least_s=1.0, most=most)
    assert len(chunks) <= most and sorted(n for c in chunks for n in c) == sorted(names)


def test_the_estimate_learns_from_what_was_done(folder: Path) -> None:
    campaign = Campaign(folder)
    tasks = campaign.tasks()
    worker(folder).work(tasks[:4])  # a law takes no time at all
    assert len(in_chunks(campaign, tasks[4:], least_s=10.0)) == 1
