"""Queries on a platform with few samples and no trained model: they learn one, and keep it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from command_line import run_verb
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.pattern import Pattern
from embeddb.core.records import Measurement, Run
from embeddb.cost_model.gaussian import OnMatrix
from embeddb.cost_model.model import CostModel
from embeddb.database import Database
from embeddb.index.answer_index import AnswerIndex
from embeddb.index.lookup import Lookup
from embeddb.learning import few_samples, left_out, process
from embeddb.platforms.platform import Platform, parse_platform
from embeddb.store.model_files import model_states

OP = Op("spmm", 32)
#: The best piece of a matrix is about the mean length of its rows; how long others take follows
#: from the number of pieces and from what is filled up in them.
TOML = """
name = "pieces"
version = "1"
title = "Rows in pieces"

[[space]]
kernels = ["spmm"]
[space.params]
piece = { type = "int", values = [1, 2, 4, 8, 16, 32, 64, 128] }
order = { type = "choice", values = ["a", "b", "c"] }
block = { type = "int", values = [1, 2, 4, 8, 16] }
[space.derived]
units = "sum_rows(max(1, ceil(LENGTH / piece)))"
[space.default]
piece = 1
order = "a"
block = 1
"""


def matrices(count: int, *, first: int = 0) -> list[Pattern]:
    found = []
    for i in range(first, first + count):
        rng = np.random.default_rng(i)
        rows, mean = int(rng.integers(100, 600)), int(2 ** rng.uniform(1, 6.5))
        length = np.clip(rng.poisson(mean, rows), 1, rows)
        at = np.repeat(np.arange(rows), length)
        columns = np.concatenate([rng.permutation(rows)[:n] for n in length])
        found.append(Pattern.from_coo((rows, rows), at, columns, name=f"m{i}", group=f"g{i}"))
    return found


def seconds(matrix: Pattern, config: Config) -> float:
    length = np.diff(matrix.indptr)
    pieces = np.ceil(length / config["piece"])
    work = float((pieces * (4 + config["piece"])).sum())
    return (
        1e-6 * work * {"a": 1.0, "b": 1.1, "c": 1.3}[config["order"]] * (1 + config["block"] / 40)
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """25 matrices with the default and 11 configurations drawn for each."""
    folder = tmp_path_factory.mktemp("few") / "db"
    with Database.create(folder) as db:
        fill(db, parse_platform(TOML), matrices(25), each=11)
    return folder


def fill(db: Database, platform: Platform, known: list[Pattern], each: int) -> None:
    db.store.put_platform(platform)
    db.index.add_patterns(known)
    rng = np.random.default_rng(0)
    for matrix in known:
        space = platform.space(OP)
        configs = dict.fromkeys([platform.default(OP), *space.sample(each, rng=rng)])
        db.store.append(
            Run(matrix.id, OP, platform.id, c, Measurement("ok", (seconds(matrix, c),), when=1.0))
            for c in configs
        )


@pytest.fixture
def opened(place: Path) -> Iterator[Database]:
    with Database.open(place) as db:
        yield db


def shares(db: Database) -> list[float]:
    found = []
    for matrix in matrices(8, first=100):
        answer = db.query(matrix, platform="pieces", op=OP)
        best = min(seconds(matrix, c) for c in parse_platform(TOML).space(OP).enumerate())
        found.append(best / seconds(matrix, Config(answer.candidates[0].config)))
        assert (answer.link, answer.tuner) == ("model", "rank")
    return found


def test_the_learned_model_answers_and_is_kept(
    opened: Database, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert np.mean(shares(opened)) > 0.95
    files = list((place / "learned").iterdir())
    assert [file.name for file in files] == ["pieces-spmm-32.safetensors"]
    entries = opened.store.models.entries()
    assert set(model_states(opened.store, entries).values()) == {"by a query"}

    def learned_again(*_: object) -> None:
        raise AssertionError("no run was added")

    monkeypatch.setattr(few_samples, "_learned", learned_again)
    shares(opened)


def test_process_and_vote_are_compared_on_the_same_matrices(tmp_path: Path) -> None:
    """The share of the vote counts matrices whose default ran: here two, where it is the best."""
    platform, known = parse_platform(TOML), matrices(25)
    space, rng = platform.space(OP), np.random.default_rng(0)
    default = platform.default(OP)
    with Database.create(tmp_path / "db") as db:
        db.store.put_platform(platform)
        db.index.add_patterns(known)
        for at, matrix in enumerate(known):
            configs = [c for c in space.sample(11, rng=rng) if c != default]
            if at < 2:
                slower = max(configs, key=lambda c: seconds(matrix, c))
                configs = [default, slower]
            runs = [(c, Measurement("ok", (seconds(matrix, c),), when=1.0)) for c in configs]
            db.store.append(Run(matrix.id, OP, platform.id, c, took) for c, took in runs)
        partition = db.index.answering(OP, platform)
        assert partition is not None and partition.view(platform).policy.loss == 0.0
        assert np.mean(shares(db)) > 0.9
        model = db.index.models.learned(platform, OP)
    assert model is not None
    figures = model.card["held_out"][str(OP)]["rank"]
    assert figures["ahead"] > figures["ahead_error"] > 0


def test_a_number_of_calls_keeps_the_process_where_no_run_has_a_conversion(
    opened: Database,
) -> None:
    matrix = matrices(1, first=100)[0]
    plain, few = (opened.query(matrix, platform="pieces", op=OP, **n) for n in ({}, {"calls": 10}))
    assert plain.tuner == few.tuner == "rank"
    assert [c.config for c in plain.candidates] == [c.config for c in few.candidates]


def test_a_process_that_is_not_ahead_does_not_answer(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(place, tmp_path / "db", ignore=shutil.ignore_patterns("learned"))
    monkeypatch.setattr(AnswerIndex, "own_losses", lambda self, _: dict.fromkeys(self.ids, 0.0))
    with Database.open(tmp_path / "db") as db:
        answer = db.query(matrices(1, first=100)[0], platform="pieces", op=OP)
        assert answer.tuner != "rank" and db.index.models.learned(parse_platform(TOML), OP)


def test_where_the_vote_cannot_be_judged_the_process_answers(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(place, tmp_path / "db", ignore=shutil.ignore_patterns("learned"))
    monkeypatch.setattr(AnswerIndex, "own_losses", lambda *_: {})
    with Database.open(tmp_path / "db") as db:
        assert np.mean(shares(db)) > 0.95


def test_a_later_version_of_the_platform_is_learned_anew(place: Path, tmp_path: Path) -> None:
    """A model of the earlier space encodes configurations otherwise."""
    shutil.copytree(place, tmp_path / "db")
    text = TOML.replace('version = "1"', 'version = "2"\nextends = ["1"]')
    text = text.replace('"c"]', '"c", "d"]')
    with Database.open(tmp_path / "db") as db:
        shares(db)
        later = parse_platform(text)
        for _ in ("before the first runs of the later version", "after"):
            answer = db.query(matrices(1, first=100)[0], platform=later, op=OP)
            assert answer.tuner == "rank" and not any("not used" in w for w in answer.warnings)
            db.store.put_platform(later)


def test_other_derived_quantities_are_learned_anew(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place, tmp_path / "db")
    other = parse_platform(TOML.replace("ceil(LENGTH / piece)", "ceil(LENGTH / (2 * piece))"))
    derived = []
    with Database.open(tmp_path / "db") as db:
        for platform in (parse_platform(TOML), other):
            db.query(matrices(1, first=100)[0], platform=platform, op=OP)
            model = db.index.models.learned(platform, OP)
            assert model is not None and not model.mismatch(
                platform, OP, "stats", db.index.featurizer_version("stats")
            )
            derived.append(model.card["derived"])
    assert len(set(derived)) == 2


def test_five_answers_are_a_set_by_the_errors_that_the_model_expects(opened: Database) -> None:
    asked: list[int] = []

    def counted(on: OnMatrix, at: NDArray[np.int64]) -> object:
        asked.append(len(at))
        return correlation(on, at)

    correlation = OnMatrix.correlation
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OnMatrix, "correlation", counted)
        shares(opened)
    assert asked and min(asked) >= 5


def test_vectors_that_these_runs_taught_are_not_learned_from(
    opened: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They say of each matrix what was the fastest: nothing is held out from them."""
    index, platform = opened.index, opened.index.platform("pieces")
    featurizers, stats = index.featurizers(), index.featurizers().named("stats")
    partition = index.answering(OP, platform)
    assert partition is not None
    raw = dict(zip(partition.ids, partition.vectors.tolist(), strict=True))

    class Tower:
        name, version, dim, parts = "learned", "1", 1, (stats,)
        learned_from = frozenset({"g3"})

        def join(self, vectors: list[object]) -> object:
            return vectors[0]

    tower = Tower()
    other = SimpleNamespace(**{n: getattr(partition, n) for n in ("ids", "evidence")})
    other.featurizer, other.vectors = "learned", np.arange(25, dtype=np.float32)[:, None]
    monkeypatch.setattr(type(featurizers), "named", lambda _, name: {"learned": tower}[name])
    samples = few_samples.own_samples(index, other, platform, OP)  # type: ignore[arg-type]  # has what it reads
    assert samples.featurizer == "stats" and len(samples.rows) == 25
    assert samples.vectors.tolist() == [raw[row.pattern_id] for row in samples.rows]
    tower.learned_from = frozenset({"of other matrices"})
    assert few_samples.own_samples(index, other, platform, OP).featurizer == "learned"  # type: ignore[arg-type]  # as above
    # Imported features may be of the learned one alone.
    tower.learned_from = frozenset({"g3"})
    monkeypatch.setattr(type(index.store.vectors), "get", lambda *_, **__: {})
    monkeypatch.setattr(type(index.models), "learned", lambda *_: None)
    assert few_samples.learned_model(index, other, platform, OP) is None  # type: ignore[arg-type]  # as above


def test_further_runs_are_learned_from(place: Path) -> None:
    with Database.open(place) as db:
        shares(db)
        before = db.index.models.learned(parse_platform(TOML), OP)
        fill(db, parse_platform(TOML), matrices(1, first=50), each=11)
        db.index.learns = False
        shares(db)
        assert db.index.models.learned(parse_platform(TOML), OP) is before
        db.index.learns = True
        shares(db)
        after = db.index.models.learned(parse_platform(TOML), OP)
    assert before is not None and after is not None
    assert after.card["groups"] == before.card["groups"] + 1


def test_of_many_runs_the_process_reads_some_and_the_trees_all(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("lightgbm")
    monkeypatch.setattr(left_out, "MOST_SAMPLES", 100)
    monkeypatch.setattr(process, "_SHARES", {100: 0.25})
    shutil.copytree(place, tmp_path / "db")
    shutil.rmtree(tmp_path / "db" / "learned", ignore_errors=True)
    lines: list[str] = []
    with Database.open(tmp_path / "db") as db:
        db.index.announce = lines.append
        assert np.mean(shares(db)) > 0.9
        learned = db.index.models.learned(parse_platform(TOML), OP)
    assert learned is not None
    read, runs = len(learned.tensors[f"process.{OP}.row"]), learned.card["samples"]
    assert read <= 100 < runs and f"trees.{OP}.value" in learned.tensors
    (one,) = [line for line in lines if line.startswith("learning from")]
    assert one.startswith(f"learning from {runs:,} runs of spmm:32")


@pytest.mark.parametrize(
    ("card", "runs", "stale", "few"),
    [
        ({"runs": 100}, 101, 1.25, True),
        ({"runs": 100}, 125, 1.25, False),
        ({"runs": 100}, 100, 1.25, False),  # others in their place
        ({"runs": 100}, 99, 1.25, False),  # one was withdrawn
        ({"runs": 100}, 101, 1.0, False),
        ({}, 101, 1.25, False),
        ({"runs": "many"}, 101, 1.25, False),
    ],
)
def test_a_few_more_runs(card: dict[str, object], runs: int, stale: float, few: bool) -> None:
    assert few_samples.few_more(card, runs, stale) is few


def test_a_damaged_file_is_learned_again(opened: Database, place: Path) -> None:
    shares(opened)
    file = place / "learned" / "pieces-spmm-32.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    assert np.mean(shares(opened)) > 0.95
    assert file.stat().st_size > 1000


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    with Database.create(tmp_path / "db") as db:
        fill(db, parse_platform(TOML), matrices(25), each=11)
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "db" / "learned").symlink_to(tmp_path / "elsewhere")
        assert np.mean(shares(db)) > 0.9
    assert not list((tmp_path / "elsewhere").iterdir())


def test_few_groups_or_a_good_vote_learn_nothing(tmp_path: Path) -> None:
    with Database.create(tmp_path / "db") as db:
        fill(db, parse_platform(TOML), matrices(4), each=11)
        answer = db.query(matrices(1, first=100)[0], platform="pieces", op=OP)
        assert answer.link != "model"
        assert db.index.models.learned(parse_platform(TOML), OP) is None


def test_a_learned_file_is_no_fault_of_a_database(opened: Database, place: Path) -> None:
    shares(opened)
    assert run_verb(["db", "check", str(place)]) == 0


def test_a_trained_model_that_does_not_rank_leaves_the_answer_to_the_learned_one(
    opened: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares(opened)
    learned = opened.index.models.learned(opened.index.platform("pieces"), OP)
    assert learned is not None
    figures = {"transfer": {"of_optimum@1": 0.5}, "rank": {"of_optimum@1": 0.4}}
    trained = CostModel({**learned.card, "held_out": {str(OP): figures}}, learned.tensors)
    trained.version = "trained"
    monkeypatch.setattr(Lookup, "usable_model", lambda *_: (trained, ""))
    new = matrices(1, first=200)[0]
    assert opened.query(new, platform="pieces", op=OP).model == learned.version
    figures["rank"]["of_optimum@1"] = 0.6
    assert opened.query(new, platform="pieces", op=OP).model == "trained"
