"""Measuring an answer, and writing the runs back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest
from builders import (
    CONFIGS,
    OP,
    band,
    by_law,
    fill,
    tiny,
)

import embeddb
from embeddb.core import plugins
from embeddb.core.config import Config, Op
from embeddb.core.errors import NothingFound, PluginError, RunnerUnavailable, UsageError
from embeddb.core.pattern import Pattern
from embeddb.core.records import Measurement, WorkloadInfo
from embeddb.database import Database
from embeddb.platforms.platform import Platform
from embeddb.ranking.build import build_query
from embeddb.ranking.measure import Remeasurement, measure_answer
from indexer.runners.base import RunOptions

WIDE = Op("spmm", 64)


@pytest.fixture(scope="module")
def lawful() -> Database:
    """Shared and not written to by tests but for recommendations."""
    return fill(Database.in_memory(), tiny())


class LawRunner:
    """Knows the law; variant d crashes."""

    name = "law"
    missing: str | None = None
    clock = 0.0

    def available(self) -> str | None:
        return self.missing

    def platform(self, *, threads: int = 0) -> Platform:
        return _measured_platform().at("here", {"threads": str(threads)})

    def run(
        self, pattern: Pattern, op: Op, configs: Sequence[Config], *, options: RunOptions
    ) -> Iterator[tuple[Config, Measurement]]:
        for config in configs:
            variant = CONFIGS.index(config)
            if variant == 3:
                yield config, Measurement("crash", error=f"signal 11 at {options.seed}")
            else:
                LawRunner.clock += 1.0
                yield config, Measurement(times_s=(by_law(pattern, variant),), when=self.clock)


def _measured_platform() -> Platform:
    text = tiny("lab", portable=True).text.replace('title = "F', 'runner = "law"\ntitle = "F')
    return embeddb.platforms.platform.parse_platform(text)


@pytest.fixture
def law(monkeypatch: pytest.MonkeyPatch) -> None:
    real = plugins.load
    monkeypatch.setattr(
        plugins, "load", lambda kind, name: LawRunner if name == "law" else real(kind, name)
    )


@pytest.mark.usefixtures("law")
def test_measured_answers_are_written_back() -> None:
    db = fill(Database.in_memory(), _measured_platform().at("elsewhere"))
    new = band(137, 14, name="new", group="new")
    made = db.query(new, platform="lab", op=OP)
    assert (made.link, made.platform) == ("neighbours", "lab@here")
    steps: list[tuple[str, int, int]] = []
    done = measure_answer(
        db.index,
        made,
        new,
        Remeasurement(RunOptions(), rounds=2),
        progress=lambda *step: steps.append(step),
    )
    assert done.id == made.id and done.platform == "lab@here"
    times = [c.seconds for c in done.candidates]
    assert times[:3] == pytest.approx(sorted(by_law(new, v) for v in (0, 1, 2)))
    assert (times[3], done.candidates[3].status) == (None, "crash")
    assert done.default_seconds == pytest.approx(by_law(new, 0))
    assert steps == [("measure", at, 8) for at in range(1, 9)]
    assert len(list(db.store.runs("lab@here", OP, new.id))) == 2 * 3 + 1  # the crashes are alike
    assert db.recommendation(made.id) == done
    again = db.query(new, platform="lab", op=OP)
    assert (again.link, again.candidates[0].config) == ("measured", {"variant": "c"})
    assert "d" not in [c.config["variant"] for c in again.candidates]  # it crashes here
    other = db.query(band(139, 14), platform="lab", op=OP)
    assert new.id in {n.pattern_id for n in other.neighbours}  # and now is a neighbour itself


@pytest.mark.usefixtures("law")
def test_without_its_runner_queries_still_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    db = fill(Database.in_memory(), _measured_platform().at("elsewhere"))
    monkeypatch.setattr(LawRunner, "missing", "no compiler: install gcc")
    new = band(137, 14, name="new")
    made = db.query(new, platform="lab", op=OP)
    assert (made.link, made.platform) == ("neighbours", "lab")
    with pytest.raises(RunnerUnavailable, match="install gcc"):
        measure_answer(db.index, made, new, Remeasurement(RunOptions()))


def test_a_platform_without_a_runner_cannot_be_measured(lawful: Database) -> None:
    new = band(137, 14, name="new")
    made = lawful.query(new, platform="tiny", op=OP)
    with pytest.raises(RunnerUnavailable, match="has no runner"):
        measure_answer(lawful.index, made, new, Remeasurement(RunOptions()))


@pytest.mark.usefixtures("law")
def test_the_facade_counts_what_it_measures_and_can_look_deeper() -> None:
    db = fill(Database.in_memory(), _measured_platform().at("elsewhere"))
    new = band(137, 14, name="new", group="new")
    made = db.query(new, platform="lab", op=OP)
    with pytest.raises(NothingFound, match="its structure is not in the database"):
        db.measure(made)
    said: list[tuple[str, int, int]] = []
    done = db.measure(made, new, rounds=1, why=True, progress=lambda *told: said.append(told))
    assert [at for what, at, total in said if (what, total) == ("measure", 4)] == [1, 2, 3, 4]
    assert done.insight.deep and done.candidates[0].seconds is not None
    assert db.recommendation(made.id) == done
    assert db.measure(made).platform == "lab@here"  # by now the structure is there
    stored, runs = len(db.recommendations()), len(list(db.runs()))
    for other in (band(139, 14), "m0a"):
        with pytest.raises(UsageError, match=f"answer {made.id} is of matrix new, not "):
            db.measure(made, other)
    assert (len(db.recommendations()), len(list(db.runs()))) == (stored, runs)


@pytest.mark.usefixtures("law")
def test_an_answer_for_a_name_is_measured_on_a_matrix_of_its_sizes() -> None:
    db = fill(Database.in_memory(), _measured_platform().at("elsewhere"))
    stub = WorkloadInfo(id="ab" * 16, m=137, n=137, name="new", stub=True)
    db.store.put_patterns([stub])
    made = db.query(band(137, 14, name="new"), platform="lab", op=OP)
    made = msgspec.structs.replace(made, pattern_id=stub.id)
    with pytest.raises(UsageError, match="is of matrix new, not "):
        db.measure(made, band(139, 14), rounds=1)
    assert db.measure(made, band(137, 14), rounds=1).platform == "lab@here"


@pytest.mark.usefixtures("law")
def test_measured_and_looked_into_a_query_is_built_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []
    for home in (embeddb.ranking.answer, embeddb.ranking.alternatives):
        monkeypatch.setattr(home, "build_query", _counting(built, home.__name__))
    db = fill(Database.in_memory(), _measured_platform().at("elsewhere"))
    new = band(137, 14, name="new", group="new")
    assert db.query(new, platform="lab", op=OP, why=True).insight.deep and len(built) == 1
    made = db.query(new, platform="lab", op=OP)
    assert db.measure(made, new, why=True).insight.deep and len(built) == 3


def _counting(built: list[str], name: str) -> Any:
    def build(*args: Any, **options: Any) -> Any:
        built.append(name)
        return build_query(*args, **options)

    return build


@pytest.mark.usefixtures("law")
@pytest.mark.parametrize("error", [KeyboardInterrupt, PluginError])
def test_what_ran_before_an_interrupt_or_a_tuners_fault_is_kept(error: type[Exception]) -> None:
    db = fill(Database.in_memory(), _measured_platform().at("elsewhere"))
    new = band(137, 14, name="new", group="new")
    made = db.query(new, platform="lab", op=OP)

    def search(_: Any, run: Any) -> list[Any]:
        for config, _measurement in run([CONFIGS[0], CONFIGS[1], CONFIGS[2]]):
            if config == CONFIGS[1]:
                raise error("now")
        return []

    with pytest.raises(error):
        measure_answer(db.index, made, new, Remeasurement(RunOptions(), search=search))
    kept = list(db.store.runs("lab@here", OP, new.id))
    assert {run.config for run in kept} == set(CONFIGS[:2])
    assert db.recommendation(made.id).candidates[0].seconds is None  # the answer is as it was


def test_depth_is_of_the_databases_own_answers(lawful: Database) -> None:
    with pytest.raises(UsageError, match="not the proposals of a tuner"):
        lawful.query(band(137, 14), platform="tiny", op=OP, tuner="random", why=True)


@pytest.mark.usefixtures("law")
@pytest.mark.parametrize(
    ("status", "outcome"), [("timeout", ("ok", "failure risk")), ("wrong", ("wrong", "failed"))]
)
def test_what_fails_in_a_round_is_behind_what_does_not(
    monkeypatch: pytest.MonkeyPatch, status: str, outcome: tuple[str, str]
) -> None:
    run, seen = LawRunner.run, set[Config]()

    def failing(self: LawRunner, *args: Any, **options: Any) -> Iterator[tuple[Config, Any]]:
        for config, m in run(self, *args, **options):
            at = CONFIGS.index(config) == 2 and config not in seen
            seen.add(config)
            yield config, Measurement(status, when=m.when) if at else m

    monkeypatch.setattr(LawRunner, "run", failing)
    db = fill(Database.in_memory(), _measured_platform().at("elsewhere"))
    new = band(137, 14, name="new", group="new")
    done = measure_answer(
        db.index,
        db.query(new, platform="lab", op=OP),
        new,
        Remeasurement(RunOptions(), rounds=2),
    )
    last = done.candidates[2]
    assert last.config == {"variant": "c"}, "the fastest, before the one that always crashes"
    assert (last.status, last.order_reason) == outcome and last.failure == 0.5
