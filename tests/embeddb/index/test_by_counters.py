"""Nests that were counted are placed by vectors with counters; these never meet any others."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import measured_nests as law
import numpy as np
import pytest
from nest_shapes import product, transpose
from nest_weights import SPEC, counted, write_weights

from embeddb.core.errors import NestError
from embeddb.core.records import Measurement, Run
from embeddb.database import Database
from embeddb.featurizers.base import counted_name, counted_parts
from embeddb.featurizers.nest_embedding import NestEmbedding
from embeddb.index import fit
from embeddb.index.run_matrix import RunMatrix
from embeddb.nests.nest import Nest
from embeddb.platforms.platform import default_of
from embeddb.ranking.recommendation import CountersUse, Recommendation
from embeddb.store.counters import counters_of, counting_platforms, keep_counters
from indexer.embed import embed

HERE = law.here().id
NAME = counted_name("nest-embedding", HERE)
DAMAGED = b'{"counters": 9}'


def counters(nest: Nest, source: str = "model") -> Any:
    return counted(source, loads=float(nest.points))


def count(db: Database, *nests: Nest, source: str = "model", place: str = HERE) -> None:
    for nest in nests:
        keep_counters(db.store, nest.id, place, counters(nest, source))


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_weights(tmp_path_factory.mktemp("weights") / "mine.safetensors")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, weights: Path) -> Path:
    folder = law.make(tmp_path_factory.mktemp("made") / "nests.db")
    with Database.open(folder) as db:
        db.index.use_weights(weights)
        embed(db.index)
    return folder


@pytest.fixture
def folder(tmp_path: Path, made: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "nests.db"))


@pytest.fixture
def db(folder: Path) -> Iterator[Database]:
    with Database.open(folder) as db:
        yield db


@pytest.fixture
def better(monkeypatch: pytest.MonkeyPatch) -> None:
    """Held-out answers are better by counters, wherever a featurizer has any."""

    def preferred(tried: Any, _: Any) -> str:
        return next((name for name in tried if counted_parts(name)), next(iter(tried)))

    monkeypatch.setattr(fit, "_preferred", preferred)


def ask(db: Database, nest: Nest) -> Recommendation:
    return db.query(nest, platform=law.here(), op="nest")


@pytest.mark.usefixtures("better")
def test_a_counted_nest_is_placed_by_counters_and_another_one_is_not(
    db: Database, weights: Path
) -> None:
    count(db, *law.measured(), law.asked())
    report = embed(db.index)
    assert report.vectors[NAME] == 8 and report.problems == []
    made = ask(db, law.asked())
    assert made.featurizer == NAME and made.counters == CountersUse(source="model", used=True)
    # Every distance is between vectors with counters, in a metric fitted on such alone.
    partition = db.index.by_counters(law.OP, law.here())
    assert partition is not None and partition.counters == HERE
    plain = NestEmbedding(weights)
    known = {nest.id: nest for nest in law.measured()}
    raw = np.array([plain.embed_counted(known[i], counters(known[i])) for i in partition.ids])
    assert np.array_equal(partition.vectors, raw)
    mine = plain.embed_counted(law.asked(), counters(law.asked()))
    at, there = partition.metric.apply(mine[None])[0], partition.metric.apply(raw)
    far = dict(zip(partition.ids, np.linalg.norm(there - at, axis=1), strict=True))
    for near in made.neighbours:
        assert near.distance == pytest.approx(far[near.pattern_id], rel=1e-4)
    other = ask(db, transpose(64, 64))
    assert other.counters is None and counted_parts(other.featurizer) is None
    assert "was not counted" in other.counters_words
    assert NAME not in db.index.evidence(law.OP, "nest-cpu")[1], (
        "the plain partition has none of them"
    )


def test_held_out_answers_decide(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    count(db, *law.measured(), law.asked())
    losses: dict[str, float] = {}
    choose = fit._preferred

    def preferred(tried: Any, group: Any) -> str:
        losses.update({name: fit._mean(loss) for name, loss in tried.items()})
        return choose(tried, group)

    monkeypatch.setattr(fit, "_preferred", preferred)
    embed(db.index)
    partition = db.index.by_counters(law.OP, law.here())
    assert partition is not None and NAME in losses
    assert losses[partition.featurizer] == min(losses.values())
    made = ask(db, law.asked())
    assert made.featurizer == partition.featurizer != NAME
    assert made.counters is not None and not made.counters.used
    assert made.counters.reason == f"held-out answers were no better than by {made.featurizer}"


@pytest.mark.usefixtures("better")
def test_of_a_half_counted_database_none_is_used(db: Database) -> None:
    count(db, *law.measured()[:4], law.asked())
    assert embed(db.index).vectors[NAME] == 4
    made = ask(db, law.asked())
    assert counted_parts(made.featurizer) is None and made.counters is not None
    assert made.counters.reason.startswith("only 4 of 8 measured nests have vectors with counters")
    count(db, *law.measured())
    embed(db.index)
    assert ask(db, law.asked()).featurizer == NAME, "the rest was counted"


@pytest.mark.usefixtures("better")
def test_counters_of_another_source_are_ignored(db: Database) -> None:
    count(db, *law.measured())
    count(db, law.asked(), source="perf")
    embed(db.index)
    made = ask(db, law.asked())
    assert counted_parts(made.featurizer) is None
    assert made.counters == CountersUse(
        source="perf",
        used=False,
        reason="the network learned from counters of model, these are of perf",
    )
    assert "by the processor is not used" in made.counters_words


@pytest.mark.usefixtures("better")
def test_neighbours_with_counters_of_another_source_are_none(db: Database) -> None:
    count(db, *law.measured(), source="perf")
    count(db, law.asked())
    assert embed(db.index).vectors[NAME] == 0
    made = ask(db, law.asked())
    assert made.counters is not None and made.counters.reason.startswith("only 0 of 8")


@pytest.mark.usefixtures("better")
def test_counters_of_another_machine_are_ignored(db: Database) -> None:
    there = law.here().at("elsewhere")
    db.store.put_platform(there)
    count(db, *law.measured(), law.asked(), place=there.id)
    embed(db.index)
    made = ask(db, law.asked())
    assert made.counters is None and counted_parts(made.featurizer) is None
    asked_there = db.query(law.asked(), platform=there, op="nest")
    assert asked_there.featurizer == counted_name("nest-embedding", there.id)
    count(db, *law.measured(), law.asked())
    embed(db.index)
    vectors = [
        db.store.vectors.every(
            counted_name("nest-embedding", place), db.index.featurizer_version(NAME)
        )
        for place in (HERE, there.id)
    ]
    assert [len(v) for v in vectors] == [8, 8], "each machine's are kept by themselves"


@pytest.mark.usefixtures("better")
def test_a_damaged_note_is_said_and_not_used(db: Database) -> None:
    count(db, *law.measured(), law.asked())
    embed(db.index)
    db.store.notes.put(f"counters/{law.asked().id}/{HERE}", DAMAGED)
    made = ask(db, law.asked())
    assert counted_parts(made.featurizer) is None and made.counters is not None
    assert made.counters.source == "" and f"counters of {law.asked().id}" in made.counters.reason
    (told,) = [line for line in db.problems() if "counters of" in line]
    assert "nest count" in told
    near = law.measured()[0]
    db.store.notes.put(f"counters/{near.id}/{HERE}", DAMAGED)
    with pytest.raises(NestError):
        counters_of(db.store, near.id, HERE)
    report = embed(db.index, again=True)
    assert report.problems == [] and report.vectors[NAME] == 7, "and the others go on"


@pytest.mark.usefixtures("better")
def test_it_is_kept_and_found_again(folder: Path) -> None:
    with Database.open(folder) as db:
        count(db, *law.measured(), law.asked())
        embed(db.index)
        names = sorted(db.index._files.notes())
        assert names == ["partition/nest/nest-cpu", f"partition/nest/nest-cpu/{HERE}"]
        first = ask(db, law.asked())
        embed(db.index, again=True)
        assert sorted(db.index._files.notes()) == names and db.problems() == []
    with Database.open(folder, readonly=True) as db:
        made = ask(db, law.asked())
        assert made.neighbours == first.neighbours and not db.index.repairs()
    stem = folder / "index"
    for file in stem.glob("*.npz"):
        file.write_bytes(file.read_bytes()[:-9])
    with Database.open(folder) as db:
        assert len(db.problems()) == 2
        assert ask(db, law.asked()).neighbours == first.neighbours, "made anew"
        assert any(f"by counters of {HERE}: rebuilt" in line for line in db.index.repairs())
        db.index.forget_partitions()
        assert db.index._files.notes() == {}


@pytest.mark.usefixtures("better")
def test_it_follows_what_is_measured_later(db: Database) -> None:
    count(db, *law.measured(), law.asked())
    embed(db.index)
    ask(db, law.asked())
    later = product(n=112)
    db.index.record(law.runs_of(later, law.here()), later, law.here())
    count(db, later)
    embed(db.index)
    assert later.id in {near.pattern_id for near in ask(db, product(n=96)).neighbours}
    partition = db.index.by_counters(law.OP, law.here())
    assert partition is not None and later.id in partition.ids and len(partition.ids) == 9


def test_a_network_that_reads_no_counters_has_no_such_vectors(db: Database, tmp_path: Path) -> None:
    network = SPEC | {"inputs": "static"}
    db.index.use_weights(write_weights(tmp_path / "static.safetensors", network=network))
    count(db, *law.measured(), law.asked())
    assert NAME not in embed(db.index).vectors and NAME not in db.index.featurizers()
    made = ask(db, law.asked())
    assert made.counters is not None and made.counters.reason == "no network here reads counters"


def test_what_only_ran_its_default_is_nobodys_neighbour(db: Database) -> None:
    only = product(n=72)
    default = default_of(law.here(), law.OP, only)
    run = Run(only.id, law.OP, HERE, default, Measurement(times_s=(1e-3,)))
    db.index.record([run], only, law.here())
    embed(db.index)
    partition = db.index.answering(law.OP, law.here())
    assert partition is not None and only.id not in partition.ids
    evidence, _ = db.index.evidence(law.OP, "nest-cpu")
    assert only.id in {row.pattern_id for row in evidence.rows} - evidence.neighbour_ids
    at = next(i for i, row in enumerate(evidence.rows) if row.pattern_id == only.id)
    alone: RunMatrix = evidence.take(np.array([at]))
    assert alone.neighbour_ids == {only.id}, "where there is nothing else"


def test_platforms_that_count_and_their_nests(db: Database) -> None:
    count(db, law.asked())
    count(db, law.asked(), place="nest-cpu@other")
    assert counting_platforms(db.store) == {
        HERE: [law.asked().id],
        "nest-cpu@other": [law.asked().id],
    }
