"""One model for every machine of a portable platform: it answers on machines that never ran."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from command_line import run_verb

from embeddb.core.config import Config, Op
from embeddb.core.errors import ModelError, UsageError
from embeddb.core.pattern import Pattern
from embeddb.core.records import Measurement, Run
from embeddb.database import Database
from embeddb.platforms.platform import Platform, parse_platform
from embeddb.ranking import prediction
from embeddb.ranking.build import build_query

pytest.importorskip("torch")
pytest.importorskip("lightgbm")

from embeddb.cost_model import Problem
from embeddb.cost_model.gaussian import GaussianProcess, Inputs, Measured
from embeddb.cost_model.model import CostModel
from embeddb.learning.samples import samples_of_machines
from indexer.embed import embed
from indexer.training.cost_model import trees
from indexer.training.cost_model.machines import machine_of, mean_facts

OP = Op("spmm", 32)
#: Starting a piece costs more where registers are wide, and short rows fill no long piece.
TOML = """
name = "lanes"
version = "1"
title = "Rows in pieces"
portable = true

[[space]]
kernels = ["spmm"]
[space.params]
piece = { type = "int", values = [1, 2, 4, 8, 16, 32, 64] }
order = { type = "choice", values = ["a", "b", "c"] }
[space.derived]
units = "sum_rows(max(1, ceil(LENGTH / piece)))"
[space.default]
piece = 1
order = "a"
"""
VECTOR_BYTES = {"one": 16, "two": 32, "three": 64, "four": 16, "five": 32, "six": 64}


def machine(name: str, vector_bytes: int, **facts: str) -> Platform:
    environment = {"cpu": f"processor {name}", "vector_bytes": str(vector_bytes), **facts}
    return parse_platform(TOML).at(name, environment)


def matrices(count: int, first: int = 0) -> list[Pattern]:
    found = []
    for i in range(first, first + count):
        rng = np.random.default_rng(i)
        rows, mean = int(rng.integers(100, 300)), int(2 ** rng.uniform(1, 6))
        length = np.clip(rng.poisson(mean, rows), 1, rows)
        at = np.repeat(np.arange(rows), length)
        columns = np.concatenate([rng.permutation(rows)[:n] for n in length])
        found.append(Pattern.from_coo((rows, rows), at, columns, name=f"m{i}", group=f"g{i}"))
    return found


def seconds(
    matrix: Pattern, platform: Platform, config: Config, order: tuple[float, ...] = (1.0, 1.1, 1.2)
) -> float:
    pieces = np.ceil(np.diff(matrix.indptr) / config["piece"])
    work = float((pieces * (int(platform.environment["vector_bytes"]) / 4 + config["piece"])).sum())
    return 1e-6 * work * order["abc".index(str(config["order"]))]


def fill(db: Database, platform: Platform, known: list[Pattern], **law: tuple[float, ...]) -> None:
    db.store.put_platform(platform)
    db.index.add_patterns(known)
    db.store.append(
        Run(m.id, OP, platform.id, c, Measurement("ok", (seconds(m, platform, c, **law),)))
        for m in known
        for c in platform.space(OP).enumerate()
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six machines that ran 16 matrices, and the model of them all."""
    folder = tmp_path_factory.mktemp("machines") / "db"
    with Database.create(folder) as db:
        for name, vector_bytes in VECTOR_BYTES.items():
            l2 = {} if name == "six" else {"l2_bytes": "1000000"}
            fill(db, machine(name, vector_bytes, **l2), matrices(16))
        embed(db.index)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trees, "_TREES", 60)
        words = ["train", "costmodel", str(folder), "--platform", "lanes", "--op", str(OP)]
        assert run_verb([*words, "--every-machine"]) == 0
    return folder


@pytest.fixture
def opened(place: Path) -> Iterator[Database]:
    with Database.open(place) as db:
        yield db


def test_its_file_and_card(place: Path) -> None:
    (file,) = (place / "models").glob("*.safetensors")
    assert file.name == "costmodel-lanes-spmm.safetensors"
    model = CostModel.load(file)
    assert model.machines == tuple(sorted(f"lanes@{name}" for name in VECTOR_BYTES))
    assert model.members == len(VECTOR_BYTES) and model.instance == "lanes"
    assert dict(model.card["facts"]).keys() == {"l2_bytes", "vector_bytes"}
    assert 0.8 < model.card["held_out"][str(OP)]["rank"]["of_optimum@1"] <= 1.0
    replayed = model.card["refined"][str(OP)]
    assert [each["matrices"] for each in replayed] == [0, 1, 3, 10]
    assert replayed[0]["of_optimum@1"] <= replayed[-1]["of_optimum@1"]
    assert all(0.7 < each["of_optimum@1"] <= 1.0 for each in replayed)


@pytest.fixture
def preferred(opened: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model answers though neighbours, too, see through a law this simple."""
    model, _ = opened.index.usable_model(machine("new", 32), OP)
    assert model is not None
    monkeypatch.setitem(model.card["held_out"][str(OP)]["rank"], "of_optimum@1", 0.999)


@pytest.mark.usefixtures("preferred")
def test_an_unknown_machine_is_answered_by_its_facts(opened: Database) -> None:
    for vector_bytes in (32, 64):
        new = machine(f"new{vector_bytes}", vector_bytes, l2_bytes="1000000")
        shares = []
        for matrix in matrices(6, first=50):
            answer = opened.query(matrix, platform=new, op=OP)
            assert answer.link == "model"
            assert not any("are unknown for" in line for line in answer.warnings)
            best = min(seconds(matrix, new, c) for c in new.space(OP).enumerate())
            shares.append(best / seconds(matrix, new, Config(answer.candidates[0].config)))
        assert np.mean(shares) > 0.85


@pytest.mark.usefixtures("preferred")
def test_a_missing_fact_is_named(opened: Database) -> None:
    answer = opened.query(matrices(1, first=50)[0], platform=machine("new", 32), op=OP)
    assert any("l2_bytes, which are unknown" in line for line in answer.warnings)


def test_where_neighbours_are_better_they_answer(
    opened: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = machine("newest", 32, l2_bytes="1000000")
    model, _ = opened.index.usable_model(new, OP)
    assert model is not None
    methods = model.card["held_out"][str(OP)]
    monkeypatch.delitem(methods, "transfer+rank", raising=False)
    voted = methods["transfer"]["of_optimum@1"]
    for share, link in ((voted - 0.02, "neighbours"), (voted - 0.005, "model"), (1.0, "model")):
        monkeypatch.setitem(methods["rank"], "of_optimum@1", share)
        assert opened.query(matrices(1, first=50)[0], platform=new, op=OP).link == link


def test_local_runs_refine_it(place: Path) -> None:
    """On this machine another order is the fastest, which its facts do not say."""
    new = machine("local", 32, l2_bytes="1000000")
    with Database.open(place) as db:
        fill(db, new, matrices(8, first=60), order=(1.6, 1.0, 1.3))
        embed(db.index)
        asked = matrices(1, first=50)[0]
        answer = db.query(asked, platform=new, op=OP)
        learned = db.index.models.learned(new, OP)
        vector, lengths = db.index.vector(asked, "stats"), db.index.lengths(asked)
    assert learned is not None and learned.source is not None
    assert answer.candidates[0].config["order"] == "b"
    assert (answer.tuner, answer.model) == ("transfer-rank", learned.version)
    figures = learned.card["held_out"][str(OP)]
    assert figures["rank"]["of_optimum@1"] > figures["source"]["of_optimum@1"]
    # An explanation tells what the model of every machine said before.
    problem = Problem(vector, new, OP, asked.sizes, lengths)
    configs = list(new.space(OP).enumerate())
    scores = learned.scores(problem, configs)
    alone = learned.source.score(problem, configs)[0]
    slope = learned.card["calibration"]["slope"]
    assert scores.source == pytest.approx(slope * (alone - alone.mean()))
    assert learned.source.scores(problem, configs).source is None
    first = answer.candidates[0]
    assert {"cost model", "refined by local runs"} <= {term.term for term in first.terms}


def test_a_refinement_within_an_error_of_the_vote_is_joined_with_it(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The vote was judged among matrices that are nearer to one another than to a user's. Where the
    refinement is worse, the model as it is is joined."""
    new = machine("nearly", 32, l2_bytes="1000000")
    with Database.open(place) as db:
        fill(db, new, matrices(8, first=80), order=(1.6, 1.0, 1.3))
        embed(db.index)
        asked = matrices(1, first=50)[0]
        quality = build_query(db.index, asked, new, OP).vote.quality
        assert quality.judged_by == "here"
        for behind, refined in ((0.03, True), (0.05, False)):
            rank = {
                "of_optimum@1": quality.of_optimum - behind,
                "of_optimum@5": 1.0,
                "error@1": 0.04,
            }
            figures = {"rank": rank, "source": {"of_optimum@1": 0.0}}
            monkeypatch.setattr(prediction, "judged", lambda *_, f=figures, **__: f)
            answer, learned = db.query(asked, platform=new, op=OP), db.index.models.learned(new, OP)
            assert learned is not None and answer.tuner == "transfer-rank"
            assert answer.model and (answer.model == learned.version) is refined


def test_matrices_that_the_source_has_seen_do_not_judge(place: Path) -> None:
    """Other machines ran these matrices, so the trees know something of what it measured: its
    figures are those of as many matrices of machines left out."""
    new = machine("again", 32, l2_bytes="1000000")
    with Database.open(place) as db:
        fill(db, new, matrices(8), order=(1.6, 1.0, 1.3))
        embed(db.index)
        answer = db.query(matrices(1, first=50)[0], platform=new, op=OP)
        learned = db.index.models.learned(new, OP)
    assert learned is not None and learned.source is not None
    figures = learned.card["held_out"][str(OP)]["rank"]
    assert learned.card["replayed"] and figures["matrices"] == 3
    assert figures in learned.source.card["refined"][str(OP)]
    assert learned.card["calibration"] == learned.source.card["calibration"]
    assert answer.model == learned.version and answer.candidates[0].config["order"] == "b"


@pytest.mark.parametrize("gained", [0.01, -0.01])
def test_two_matrices_refine_it_if_as_few_did_elsewhere(
    place: Path, monkeypatch: pytest.MonkeyPatch, gained: float
) -> None:
    new = machine(f"two{gained > 0}", 32, l2_bytes="1000000")
    with Database.open(place) as db:
        model, _ = db.index.usable_model(new, OP)
        assert model is not None
        before, after, *_ = model.card["refined"][str(OP)]
        monkeypatch.setitem(after, "of_optimum@1", before["of_optimum@1"] + gained)
        monkeypatch.setitem(after, "of_optimum@5", before["of_optimum@5"])
        fill(db, new, matrices(2, first=70), order=(1.6, 1.0, 1.3))
        embed(db.index)
        answer = db.query(matrices(1, first=50)[0], platform=new, op=OP)
        learned = db.index.models.learned(new, OP)
    if gained > 0:
        assert answer.candidates[0].config["order"] == "b" and answer.link == "model"
    assert (learned is not None) == (gained > 0)


def test_a_prior_that_does_not_fit_is_refused(opened: Database) -> None:
    model, _ = opened.index.usable_model(machine("new", 32), OP)
    assert model is not None
    prior = model.differences(Op("spmm", 64))
    measured = Measured(Inputs(np.ones((4, 1)), np.ones((4, 2)), np.ones((4, 1))),
                        np.arange(4.0), np.zeros(4, dtype=np.int64))  # fmt: skip
    with pytest.raises(ModelError, match="other columns"):
        GaussianProcess.fit(measured, residual=True, prior=prior)
    with pytest.raises(ModelError):
        CostModel({**model.card, "refined": {str(OP): [{"share": 1.0}]}}, model.tensors)
    for name in ("spread", "unit", "scale.config"):
        tensor = f"differences.{OP}.{name}"
        with pytest.raises(ModelError, match="not positive"):
            CostModel(model.card, {**model.tensors, tensor: 0 * model.tensors[tensor]})
        with pytest.raises(ModelError, match="lacks"):
            CostModel(model.card, {n: a for n, a in model.tensors.items() if n != tensor})


def test_a_source_without_a_replay_answers_itself(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its refinement by matrices that other machines ran cannot be judged."""
    new = machine("unjudged", 32, l2_bytes="1000000")
    with Database.open(place) as db:
        model, _ = db.index.usable_model(new, OP)
        assert model is not None
        monkeypatch.setitem(model.card, "refined", {})
        fill(db, new, matrices(8), order=(1.6, 1.0, 1.3))
        embed(db.index)
        answer = db.query(matrices(1, first=50)[0], platform=new, op=OP)
        learned = db.index.models.learned(new, OP)
    assert learned is not None and learned.card["held_out"] == {str(OP): {}}
    assert answer.model != learned.version


def test_builds_for_one_processor_are_one_machine(opened: Database) -> None:
    samples = samples_of_machines(opened.index, parse_platform(TOML), [OP])
    assert np.unique(machine_of(samples)).size == len({m.id for m in samples.machines})
    name, mean = mean_facts(samples)[0]
    assert name == "l2_bytes" and mean == pytest.approx(np.log2(1_000_001))


def test_one_machine_is_too_few(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(tmp_path / "db")
    with Database.create(folder) as db:
        fill(db, machine("one", 16), matrices(12))
        embed(db.index)
        with pytest.raises(UsageError, match="two or more instances"):
            samples_of_machines(db.index, parse_platform(TOML), [OP])
    words = ["train", "costmodel", folder, "--platform", "lanes", "--op", str(OP)]
    assert run_verb([*words, "--every-machine"]) == 2
    assert "two or more instances" in capsys.readouterr().err
    assert run_verb([*words, "--every-machine", "--from", "starter"]) == 2
    assert "leave out --preset and --from" in capsys.readouterr().err
