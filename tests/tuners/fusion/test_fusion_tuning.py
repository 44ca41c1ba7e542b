"""A program tuned with a runner whose law is known: budgets, what is kept, and what goes on."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from played_xla import CALL_S, EACH_S, HERE, Played, PlayedModel, chain, crowded_s
from tensors import dot_add, op

from embeddb.core.config import Op
from embeddb.core.errors import RunnerUnavailable, TensorError, UsageError
from embeddb.core.records import Run
from embeddb.database import Database
from embeddb.tensors.check import computation
from embeddb.tensors.edges import edges_of
from embeddb.tensors.tensor_graph import TensorGraph
from indexer import tensor_runs as cut_runs
from tuners import tune_fusion as job_module
from tuners.fusion_cuts import FusionTuned
from tuners.tune_fusion import FusionTuning, TuneRequest

FUSED, FUSION = Op("fused"), Op("fusion")
PROGRAM = chain(12)
BEST_S = 3 * (CALL_S + 4 * EACH_S)


@pytest.fixture
def db() -> Iterator[Database]:
    with Database.in_memory() as opened:
        yield opened


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> list[Played]:
    """Clocks of the program: the hardware's is that of the last runner in the list, and each look
    at the model's is a hundredth of a second later."""
    played: list[Played] = []
    hardware = SimpleNamespace(perf_counter=lambda: played[-1].spent_s() if played else 0.0)
    ticks = count()
    monkeypatch.setattr(cut_runs, "time", hardware)
    monkeypatch.setattr(job_module, "time", SimpleNamespace(monotonic=lambda: next(ticks) / 100))
    return played


def tuned(
    db: Database,
    clocks: list[Played],
    runner: Played,
    model: PlayedModel | None = None,
    program: TensorGraph = PROGRAM,
    **asked: Any,
) -> FusionTuned:
    clocks.append(runner)
    request = TuneRequest(**{"model_s": 8.0, "hardware_s": 2.0, **asked})
    return FusionTuning(db.index, runner, HERE, request, program, model=model).run()


def runs(db: Database, word: str) -> list[Run]:
    """Of cuts, by a word of their campaign."""
    held = db.store.runs(HERE.id, FUSION, PROGRAM.id)
    return [run for run in held if word in run.campaign]


def test_a_model_that_is_right_needs_few_runs(db: Database, clocks: list[Played]) -> None:
    runner, model = Played(crowded_s), PlayedModel(crowded_s, times=1.1)
    done = tuned(db, clocks, runner, model)
    assert done.best is not None and done.best.seconds == pytest.approx(BEST_S, rel=0.05)
    assert done.best_predicted is not None
    assert done.best_predicted.predicted_s == pytest.approx(1.1 * done.best_predicted.seconds)
    assert 2.0 <= done.hardware_s < 2.0 + 1.3 and done.model_s == pytest.approx(8.0, abs=0.5)
    # What the model likes best runs first, then its neighbours, each once, all written back.
    assert done.tried[0].cut == done.best_predicted.cut
    assert [one.predicted_s for one in done.tried] == [
        pytest.approx(1.1 * one.seconds) for one in done.tried
    ]
    assert len({one.cut for one in done.tried}) == len(done.tried) == done.fresh - 2
    assert {run.measurement.seconds for run in runs(db, "tune:model")} >= {
        one.seconds for one in done.tried
    }
    # The compiler's cut is every operation by itself, which is the faster default here.
    assert done.default.cut == edges_of(PROGRAM).single
    assert done.gain == pytest.approx(12 * (CALL_S + EACH_S) / done.best.seconds)
    assert [len(held) for held in done.rounds.values()] == [3, 3, 3]
    assert all(held[0].in_a_row for held in done.rounds.values())


def test_without_a_model_the_hardware_leads(db: Database, clocks: list[Played]) -> None:
    done = tuned(db, clocks, Played(crowded_s), hardware_s=5.0)
    assert not done.model and done.best_predicted is None and done.predicted_cuts == 0
    assert done.best is not None and done.best.seconds == pytest.approx(BEST_S, rel=0.05)
    assert done.hardware_s >= 5.0
    assert len({one.cut for one in done.tried}) == len(done.tried)


def test_a_model_that_is_wrong_costs_little(db: Database, clocks: list[Played]) -> None:
    """It says that kernels take the less the longer they are."""
    wrong = PlayedModel(lambda kernel: 1e-3 / len(kernel.operations))
    done = tuned(db, clocks, Played(crowded_s), wrong, hardware_s=5.0)
    assert done.best_predicted is not None and done.best is not None
    assert done.best_predicted.cut == edges_of(PROGRAM).whole
    assert done.best.seconds == pytest.approx(BEST_S, rel=0.05)


def test_no_seconds_for_a_model_are_no_model(db: Database, clocks: list[Played]) -> None:
    model = PlayedModel(crowded_s)
    done = tuned(db, clocks, Played(crowded_s), model, model_s=0.0)
    assert not model.asked and not done.model and done.tried


def test_no_seconds_of_hardware_are_predictions_alone(db: Database, clocks: list[Played]) -> None:
    runner = Played(crowded_s)
    done = tuned(db, clocks, runner, PlayedModel(crowded_s), hardware_s=0.0)
    assert runner.timed == [] and done.best is None and done.gain is None
    assert done.best_predicted is not None and done.best_predicted.predicted_s is not None
    assert [one.predicted_s for one in done.defaults] == [
        pytest.approx(crowded_s(PROGRAM)),
        pytest.approx(12 * (CALL_S + EACH_S)),
    ]


@pytest.mark.parametrize("budget", [-1.0, float("inf"), float("nan")])
def test_budgets_that_are_none(budget: float) -> None:
    with pytest.raises(UsageError, match="a budget is"):
        TuneRequest(model_s=budget)
    with pytest.raises(UsageError, match="a budget is"):
        TuneRequest(hardware_s=budget)


def test_nothing_to_tune_by(db: Database, clocks: list[Played]) -> None:
    with pytest.raises(UsageError, match="both budgets are 0"):
        TuneRequest(model_s=0.0, hardware_s=0.0)
    with pytest.raises(UsageError, match="without a model"):
        tuned(db, clocks, Played(), hardware_s=0.0)
    with pytest.raises(UsageError, match="no start 'elsewhere'"):
        TuneRequest(start="elsewhere")


def test_programs_that_cannot_be_cut(db: Database, clocks: list[Played]) -> None:
    with pytest.raises(TensorError, match="nothing to cut"):
        tuned(db, clocks, Played(), program=chain(1))
    loop = computation(
        [op("parameter", (8,), number=0), op("while", (8,), 0), op("negate", (8,), 1)],
        [2],
        kind="program",
        name="loop",
    )
    with pytest.raises(TensorError, match="cannot be written as HLO"):
        tuned(db, clocks, Played(), program=loop)


def test_kernels_that_fail_in_the_middle_end_nothing(db: Database, clocks: list[Played]) -> None:
    program = dot_add(kind="program")
    runner = Played(crowded_s, breaks=frozenset({"maximum"}))
    done = tuned(db, clocks, runner, PlayedModel(crowded_s), program=program)
    assert done.failed and done.best is None and done.gain is None
    assert all("XLA has none" in one.error for one in done.failed)
    assert done.default.cut in {one.cut for one in done.defaults}


@pytest.mark.parametrize("model", [None, PlayedModel(crowded_s)])
@pytest.mark.parametrize("stop", [KeyboardInterrupt, RunnerUnavailable])
def test_it_goes_on_where_it_was_stopped(
    db: Database,
    clocks: list[Played],
    model: PlayedModel | None,
    stop: type[BaseException],
) -> None:
    with Database.in_memory() as other:
        whole = tuned(other, clocks, Played(crowded_s), model)
    runner = Played(crowded_s, left=25, stop=stop)
    with pytest.raises(stop):
        tuned(db, clocks, runner, model)
    before = runs(db, "tune:")
    # Every kernel that was timed is there, those of the cut that was not finished too.
    assert sum(1 for one in set(runner.timed) for _ in db.store.runs(HERE.id, FUSED, one)) == 25
    rest = Played(crowded_s)
    done = tuned(db, clocks, rest, model)
    assert 0 < len(before) < len(runs(db, "tune:"))
    # The cuts that were tried are the same ones in the same order; none of them ran twice.
    own = ("rounds", "again")
    ran = [run.config for run in runs(db, "tune:") if run.campaign.rpartition("/")[2] not in own]
    assert len(ran) == len(set(ran))
    shorter = min(len(done.tried), len(whole.tried))
    assert [one.cut for one in done.tried[:shorter]] == [one.cut for one in whole.tried[:shorter]]
    again = Played(crowded_s)
    finished = tuned(db, clocks, again, model)
    assert again.timed == [] and finished.fresh == finished.kernels == 0
    assert finished.gain == done.gain and finished.rounds.keys() == done.rounds.keys()


def test_larger_budgets_go_further(db: Database, clocks: list[Played]) -> None:
    model = PlayedModel(crowded_s)
    first = tuned(db, clocks, Played(crowded_s), model, model_s=2.0, hardware_s=1.0)
    more = tuned(db, clocks, Played(crowded_s), model, model_s=6.0, hardware_s=2.0)
    assert more.predicted_cuts > first.predicted_cuts
    assert first.model_s < 3.0 < more.model_s < 7.0
    assert first.hardware_s < more.hardware_s and len(first.tried) < len(more.tried)


def test_another_model_begins_anew(db: Database, clocks: list[Played]) -> None:
    tuned(db, clocks, Played(crowded_s), PlayedModel(crowded_s))
    other = PlayedModel(crowded_s, version="fedcba9876543210")
    done = tuned(db, clocks, Played(crowded_s), other)
    assert done.model == other.version and other.asked and done.fresh > 0


def test_progress_is_told(db: Database, clocks: list[Played]) -> None:
    told: list[tuple[str, int, int]] = []
    runner = Played(crowded_s)
    clocks.append(runner)
    FusionTuning(
        db.index,
        runner,
        HERE,
        TuneRequest(model_s=3.0, hardware_s=1.0),
        PROGRAM,
        model=PlayedModel(crowded_s),
        progress=lambda *words: told.append(words),
    ).run()
    assert [words[0] for words in dict.fromkeys((w[0],) for w in told)] == [
        "measure the defaults",
        "predict, seconds",
        "measure, seconds",
        "run the fastest again",
        "rounds",
    ]
    assert all(0 <= done <= total for _, done, total in told)
