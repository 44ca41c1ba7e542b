"""Many cuts of many programs: kernels timed once, what was done is left out, what fails is said."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from played_xla import HERE, Played, chain, plain_s, played
from tensors import dot_add, op, row_sum, softmax

from embeddb.core.config import Op
from embeddb.core.errors import RunnerUnavailable
from embeddb.core.records import HARDWARE_S, IN_A_ROW
from embeddb.database import Database, open_database
from embeddb.tensors.check import computation
from embeddb.tensors.edges import edges_of
from embeddb.tensors.partition import Partition
from embeddb.tensors.tensor_graph import TensorGraph
from indexer.tensor_runs import CutRuns, FusionJob, FusionRequest

FUSED, FUSION = Op("fused"), Op("fusion")


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with open_database(tmp_path / "db", create=True) as opened:
        yield opened


def job(db: Database, runner: Played, **asked: float) -> FusionJob:
    return FusionJob(played(db.index, runner), FusionRequest(cuts=6, **asked))  # type: ignore[arg-type]  # a seed or a share


def test_cuts_of_programs_and_their_kernels_are_kept(db: Database) -> None:
    runner, program = Played(), softmax()
    tally = job(db, runner, chained=1.0).programs([program])
    runs = list(db.store.runs(HERE.id, FUSION, program.id))
    cuts = {str(run.config["cut"]) for run in runs}
    assert {"whole", "single"} <= cuts and len(cuts) == len(runs) == tally.partitions >= 5
    assert tally.programs == 1 and tally.ratios == [pytest.approx(1.5)] * len(runs)
    assert len(runner.timed) == len(set(runner.timed)) == tally.kernels
    for run in runs:
        kernels = [p.kernel.id for p in Partition.of(program, str(run.config["cut"])).kernels]
        seconds = [
            next(iter(db.store.runs(HERE.id, FUSED, one))).measurement.seconds for one in kernels
        ]
        assert run.measurement.seconds == pytest.approx(sum(seconds))
    assert 0 < tally.long < tally.kernels
    kernel = db.store.tensor(runner.timed[0])
    assert isinstance(kernel, TensorGraph) and kernel.group == program.group


def test_what_was_done_is_left_out(db: Database) -> None:
    programs = [softmax(), dot_add(kind="program")]
    job(db, Played()).programs(programs)
    again = Played()
    tally = job(db, again).programs(programs)
    assert (tally.earlier, tally.programs, tally.partitions, again.timed) == (2, 0, 0, [])
    # Another seed draws other cuts, of kernels most of which are known.
    other = Played()
    job(db, other, seed=1).programs(programs)
    known = {info.id for info in db.store.patterns() if info.kind == "kernel"}
    assert set(other.timed) <= known and not set(other.timed) & set(again.timed)


def test_cuts_that_ran_are_left_out_however_many_were_asked_for(db: Database) -> None:
    program = chain()
    few = FusionJob(played(db.index), FusionRequest(cuts=3)).programs([program])
    more = FusionJob(played(db.index), FusionRequest(cuts=8)).programs([program])
    runs = [run.config for run in db.store.runs(HERE.id, FUSION, program.id)]
    assert len(runs) == len(set(runs)) == few.partitions + more.partitions
    assert more.partitions == 5
    tuned = softmax()
    single = CutRuns(played(db.index), tuned)
    single.measure(edges_of(tuned).single, "tuned")
    FusionJob(played(db.index), FusionRequest(cuts=0)).programs([tuned])
    cuts = [run.config["cut"] for run in db.store.runs(HERE.id, FUSION, tuned.id)]
    assert sorted(map(str, cuts)) == ["single", "whole"]


def test_a_machine_that_fails_loses_the_last_partition_alone(db: Database, tmp_path: Path) -> None:
    program = softmax()
    whole = Played()
    with open_database(tmp_path / "other", create=True) as other:
        most = job(other, whole).programs([program]).partitions
    with pytest.raises(RunnerUnavailable):
        job(db, Played(left=3)).programs([program])
    done = len(list(db.store.runs(HERE.id, FUSION, program.id)))
    rest = Played()
    tally = job(db, rest).programs([program])
    assert 0 < done < most and tally.partitions == most - done
    assert set(rest.timed) < set(whole.timed)


def test_a_kernel_that_fails_is_not_tried_again(db: Database) -> None:
    runner = Played(breaks=frozenset({"divide"}))
    tally = job(db, runner).programs([softmax()])
    runs = list(db.store.runs(HERE.id, FUSION, softmax().id))
    assert len(runs) >= 5
    assert tally.failed["softmax"] == "XLA has none"
    assert len(runner.timed) == len(set(runner.timed))
    stored = [r for one in runner.timed for r in db.store.runs(HERE.id, FUSED, one)]
    assert {run.measurement.status for run in stored} == {"ok", "build"}


def test_programs_that_are_not_compiled_are_named(db: Database) -> None:
    loop = computation(
        [op("parameter", (8,), number=0), op("while", (8,), 0)], [1], kind="program", name="loop"
    )
    tally = job(db, Played()).programs([loop, softmax()])
    assert tally.failed == {"loop": "while cannot be written as HLO"} and tally.programs == 1


def test_kernels_by_themselves(db: Database) -> None:
    runner = Played()
    tally = job(db, runner).kernels([row_sum(), dot_add()])
    assert tally.kernels == 2 and tally.long == 2
    assert job(db, runner).kernels([row_sum()]).earlier == 1


def test_kernels_with_drawn_arrays_are_timed_again_in_their_program(db: Database) -> None:
    program, drawn = softmax(), Played(law=lambda _: 1e-6)
    kernels = [placed.kernel for placed in Partition.of(program, "single").kernels]
    alone = job(db, drawn).kernels(kernels)
    assert alone.kernels == len({kernel.id for kernel in kernels})
    handed = Played()
    job(db, handed).programs([program])
    assert set(drawn.timed) <= set(handed.timed) and len(handed.timed) == len(set(handed.timed))
    (run,) = (r for r in db.store.runs(HERE.id, FUSION, program.id) if r.config["cut"] == "single")
    assert run.measurement.seconds == pytest.approx(sum(map(plain_s, kernels)))
    # What is known of the program is not timed once more by itself.
    assert job(db, Played()).kernels(kernels).kernels == 0


def test_kernels_that_fail_are_no_measured_ones_and_each_is_named(db: Database) -> None:
    same = [replace(softmax(rows), name="m", group="m") for rows in (8, 16, 24)]
    kernels = [replace(one, kind="kernel") for one in same]
    tally = job(db, Played(breaks=frozenset({"divide"}))).kernels([*kernels, row_sum()])
    assert tally.kernels == 1 and len(tally.failed) == 3 and "m" in tally.failed
    assert f"m ({kernels[1].id[:12]})" in tally.failed


def test_kernels_that_took_turns_are_kept_before_the_next_do(db: Database) -> None:
    kernels = [dot_add(m=size) for size in (8, 16, 24, 32, 40)]
    with pytest.raises(RunnerUnavailable):
        job(db, Played(left=3)).kernels(kernels)
    told: list[tuple[int, int]] = []
    again = Played()
    tally = job(db, again).kernels(kernels, lambda _, done, of: told.append((done, of)))
    assert (tally.earlier, tally.kernels) == (2, 3) and told == [(2, 3), (3, 3)]
    assert again.timed == [kernel.id for kernel in kernels[2:]]


def test_kernels_of_a_partition_that_was_interrupted_are_kept(db: Database) -> None:
    runner, program = Played(left=2), softmax()
    runs = CutRuns(played(db.index, runner), program)
    with pytest.raises(RunnerUnavailable):
        runs.measure(edges_of(program).single, "stopped")
    assert len(runner.timed) == 2
    for kernel in runner.timed:
        (run,) = db.store.runs(HERE.id, FUSED, kernel)
        assert run.campaign == "stopped" and run.measurement.ok
    assert db.store.pattern(program.id) is None


def test_a_cut_that_is_measured_anew_times_its_kernels_again(db: Database) -> None:
    runner, program = Played(), softmax()
    runs = CutRuns(played(db.index, runner), program)
    single = edges_of(program).single
    first, timed = runs.measure(single, "one")
    _, again = runs.measure(single, "two")
    anew, timed_anew = runs.measure(single, "three", anew=True, chained=True)
    assert len(timed) == len(timed_anew) > 1 and again == []
    assert float(first.context[HARDWARE_S]) > 0 and IN_A_ROW not in first.context
    assert anew.context[IN_A_ROW] == pytest.approx(1.5 * anew.seconds)
