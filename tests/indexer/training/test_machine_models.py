"""One model for every machine of a portable platform: it answers on machines that never ran."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command_line import run_verb

from embeddb.core.config import Config, Op
from embeddb.core.errors import UsageError
from embeddb.core.pattern import Pattern
from embeddb.core.records import Measurement, Run
from embeddb.database import Database
from embeddb.platforms.platform import Platform, parse_platform
from embeddb.ranking.build import build_query
from embeddb.ranking.prediction import with_judgement
from embeddb.ranking.rankers.choose import ranker_of
from embeddb.ranking.rankers.joint import JointRanker

pytest.importorskip("torch")
pytest.importorskip("lightgbm")

from embeddb.cost_model import Problem
from embeddb.cost_model.model import CostModel
from embeddb.learning import boosting
from embeddb.learning.samples import samples_of_machines
from indexer.embed import embed
from indexer.training.cost_model import local
from indexer.training.cost_model.local import JOINED_WEIGHT, learn_from_runs
from indexer.training.cost_model.machines import machine_of, mean_facts
from tuners.evaluation.learned import MACHINES_WEIGHT

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
        patch.setitem(boosting.EVERY_MACHINE, "num_iterations", 60)
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


def test_an_unknown_machine_is_answered_by_its_facts(opened: Database) -> None:
    for vector_bytes in (32, 64):
        new = machine(f"new{vector_bytes}", vector_bytes, l2_bytes="1000000")
        shares = []
        for matrix in matrices(6, first=50):
            answer = opened.query(matrix, platform=new, op=OP)
            assert answer.tuner == "transfer-rank" and answer.model
            assert not any("are unknown for" in line for line in answer.warnings)
            best = min(seconds(matrix, new, c) for c in new.space(OP).enumerate())
            shares.append(best / seconds(matrix, new, Config(answer.candidates[0].config)))
        assert np.mean(shares) > 0.85


def test_a_missing_fact_is_named(opened: Database) -> None:
    answer = opened.query(matrices(1, first=50)[0], platform=machine("new", 32), op=OP)
    assert any("l2_bytes, which are unknown" in line for line in answer.warnings)


def test_a_machine_without_facts_and_runs_is_doubted(opened: Database) -> None:
    answer = opened.query(matrices(1, first=50)[0], platform="lanes@typo", op=OP)
    (doubt,) = (line for line in answer.warnings if "stand in" in line)
    assert doubt.startswith("lanes@typo has none of the 2 facts that the cost model reads and no ")


@pytest.mark.parametrize("share", [0.1, 1.0])
def test_it_is_joined_with_the_vote_whatever_the_card_says(
    opened: Database, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    new = machine("newest", 32, l2_bytes="1000000")
    model, _ = opened.index.usable_model(new, OP)
    assert model is not None
    methods = model.card["held_out"][str(OP)]
    assert methods["transfer+rank"]["weight"] == MACHINES_WEIGHT
    monkeypatch.setitem(methods["rank"], "of_optimum@1", share)
    monkeypatch.setitem(methods, "transfer+rank", {"of_optimum@1": 0.7, "weight": 0.3})
    asked = matrices(1, first=50)[0]
    query = build_query(opened.index, asked, new, OP)
    assert ranker_of(query) is JointRanker and query.prediction.weight == 0.3
    assert query.prediction.judged["transfer+rank"] == 0.7
    warnings = " ".join(opened.query(asked, platform=new, op=OP).warnings)
    assert "by neighbours and cost model, on machines left out, reach only 70 %" in warnings


def test_a_card_without_figures_does_not_rank(
    opened: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = machine("newer", 32, l2_bytes="1000000")
    model, _ = opened.index.usable_model(new, OP)
    assert model is not None
    monkeypatch.setitem(model.card, "held_out", {})
    answer = opened.query(matrices(1, first=50)[0], platform=new, op=OP)
    assert answer.tuner == "transfer" and not answer.model
    assert any("never judged" in line for line in answer.warnings)


def test_it_ranks_at_a_width_near_the_judged_one(opened: Database) -> None:
    """Others ran no such width: the figures of the nearest one are believed."""
    new, wide = machine("wider", 32, l2_bytes="1000000"), Op("spmm", 64)
    query = build_query(opened.index, matrices(1, first=50)[0], new, wide)
    assert ranker_of(query) is JointRanker


def test_without_figures_it_does_not_keep_the_machines_own_model_away(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = machine("judging", 32, l2_bytes="1000000")
    with Database.open(place) as db:
        fill(db, new, matrices(8, first=90), order=(1.6, 1.0, 1.3))
        embed(db.index)
        model, _ = db.index.usable_model(new, OP)
        assert model is not None
        assert db.query(matrices(1, first=50)[0], platform=new, op=OP).model == model.version
        monkeypatch.setitem(model.card, "held_out", {})
        alone = db.query(matrices(1, first=51)[0], platform=new, op=OP)
        own = db.index.models.learned(new, OP)
        assert own is not None and alone.model in ("", own.version)


def test_a_machine_that_it_knows_has_its_own_figures(opened: Database) -> None:
    known = machine("two", VECTOR_BYTES["two"], l2_bytes="1000000")
    query = build_query(opened.index, matrices(1, first=50)[0], known, OP)
    assert ranker_of(query) is JointRanker and query.vote.quality.judged_by == "here"
    assert query.prediction.judged["transfer+rank"] == query.vote.quality.of_optimum
    assert opened.index.models.learned(known, OP) is None


@pytest.mark.parametrize(
    ("judged_by", "known", "voted", "believed"),
    [
        ("machines", False, 0.95, 0.8),
        ("here", False, 0.95, 0.8),
        ("here", False, 0.7, 0.7),
        ("here", True, 0.95, 0.95),
        ("here", True, math.nan, 0.8),
    ],
)
def test_the_share_that_is_believed(
    opened: Database, judged_by: str, known: bool, voted: float, believed: float
) -> None:
    platform = machine("two" if known else "stranger", 32, l2_bytes="1000000")
    model, _ = opened.index.usable_model(platform, OP)
    assert model is not None
    query = build_query(opened.index, matrices(1, first=50)[0], platform, OP)
    quality = query.vote.quality._replace(judged_by=judged_by, of_optimum=voted)
    query = replace(query, vote=replace(query.vote, quality=quality))
    for figures in ({"transfer+rank": {"of_optimum@1": 0.8}}, {"rank": {"of_optimum@1": 0.8}}):
        held = {str(OP): {"rank": {"of_optimum@1": 0.85}, **figures}}
        card = {**model.card, "held_out": held}
        found = with_judgement(query, CostModel(card, model.tensors))
        assert found.prediction.joins and found.prediction.judged["transfer+rank"] == believed


def test_local_runs_correct_its_answers(place: Path) -> None:
    """On this machine another order is the fastest, which its facts do not say."""
    new = machine("local", 32, l2_bytes="1000000")
    with Database.open(place) as db:
        asked = matrices(1, first=50)[0]
        before = db.query(asked, platform=new, op=OP).candidates[0]
        fill(db, new, matrices(8, first=60), order=(1.6, 1.0, 1.3))
        embed(db.index)
        query = build_query(db.index, asked, new, OP)
        after = db.query(asked, platform=new, op=OP)
        model, _ = db.index.usable_model(new, OP)
    assert model is not None and after.model == model.version
    assert (before.config["order"], after.candidates[0].config["order"]) == ("a", "b")
    assert ranker_of(query) is JointRanker and query.vote.quality.judged_by == "here"


@pytest.mark.usefixtures("few_trees")
@pytest.mark.parametrize(("count", "combined"), [(4, False), (6, True)])
def test_it_is_combined_with_a_model_of_the_runs_here(
    place: Path, count: int, combined: bool
) -> None:
    """Where these are of enough groups; `calibrate` learns it."""
    new = machine(f"beside{count}", 32, l2_bytes="1000000")
    with Database.open(place) as db:
        fill(db, new, matrices(count, first=60), order=(1.6, 1.0, 1.3))
        embed(db.index)
        assert learn_from_runs(db.index, new, [OP]) == ([OP], [])
        model, _ = db.index.usable_model(new, OP)
        own = db.index.models.learned(new, OP)
        assert (own is not None) is combined and model is not None
        asked = matrices(1, first=50)[0]
        found = build_query(db.index, asked, new, OP).prediction
        vector, lengths = db.index.vector(asked, "stats"), db.index.lengths(asked)
        problem = Problem(vector, new, OP, asked.sizes, lengths)
        alone, _ = model.score(problem, found.configs)
    assert bool(found.own_model) is combined
    assert found.version == model.version and (found.correlate is not None) is combined
    assert np.allclose(found.gain, alone) is not combined


@pytest.fixture
def few_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(boosting.EVERY_MACHINE, "num_iterations", 60)


def first_order(model: CostModel, db: Database, platform: Platform) -> str:
    """The order of the configuration that the model alone ranks first for an unknown matrix."""
    query = build_query(db.index, matrices(1, first=50)[0], platform, OP)
    configs = list(platform.space(OP).enumerate())
    vector = db.index.vector(matrices(1, first=50)[0], "stats")
    lengths = db.index.lengths(matrices(1, first=50)[0])
    problem = Problem(vector, platform, OP, query.pattern.sizes, lengths)
    return str(configs[int(np.argmax(model.score(problem, configs)[0]))]["order"])


@pytest.mark.usefixtures("few_trees")
def test_a_few_more_runs_here_are_not_learned_from_at_once(place: Path) -> None:
    new, asked, lines = machine("more", 32), matrices(1, first=50)[0], list[str]()
    with Database.open(place) as db:
        fill(db, new, matrices(6, first=60), order=(1.6, 1.0, 1.3))
        embed(db.index)
        learn_from_runs(db.index, new, [OP])
        db.index.announce = lines.append
        for count, learns in ((1, False), (3, True)):
            fill(db, new, matrices(count, first=70), order=(1.6, 1.0, 1.3))
            embed(db.index)
            build_query(db.index, asked, new, OP)
            assert any(line.startswith("learning from") for line in lines) is learns


@pytest.mark.usefixtures("few_trees")
def test_it_learns_from_the_runs_of_one_machine(place: Path) -> None:
    new, other = machine("own", 32, l2_bytes="1000000"), machine("another", 32)
    with Database.open(place) as db:
        source, _ = db.index.usable_model(new, OP)
        fill(db, new, matrices(4, first=60), order=(1.6, 1.0, 1.3))
        embed(db.index)
        assert learn_from_runs(db.index, new, [OP]) == ([OP], [])
        model, _ = db.index.usable_model(new, OP)
        elsewhere, _ = db.index.usable_model(other, OP)
        assert source is not None and model is not None and elsewhere is not None
        assert (first_order(source, db, new), first_order(model, db, new)) == ("a", "b")
        query = build_query(db.index, matrices(1, first=50)[0], new, OP)
        assert db.index.models.learned(new, OP) is None
    assert (place / "models" / "costmodel-lanes@own-spmm.safetensors").is_file()
    assert model.instance == new.id in model.machines and model.card["own_rows"] == 4
    assert model.card["parent"] == source.version == elsewhere.version
    assert ranker_of(query) is JointRanker and query.prediction.weight == JOINED_WEIGHT


@pytest.mark.usefixtures("few_trees")
def test_it_learns_anew_each_time(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = machine("again", 32, l2_bytes="1000000")
    words = ["train", "costmodel", str(place), "--platform", new.id, "--op", str(OP)]
    with Database.open(place) as db:
        source, _ = db.index.usable_model(new, OP)
        fill(db, new, matrices(1, first=60))
        embed(db.index)
        assert learn_from_runs(db.index, new, [Op("spmm", 64)]) == ([], [])
        learned, problems = learn_from_runs(db.index, new, [OP, Op("spmm", 64)])
        assert learned == [] and "did not learn" in problems[0] and len(problems) == 1
    assert run_verb([*words, "--every-machine"]) == 2
    assert "lanes@again ran fewer than 2 matrices of any of spmm:32" in capsys.readouterr().err
    with Database.open(place) as db:
        fill(db, new, matrices(2, first=61))
        embed(db.index)
        assert learn_from_runs(db.index, new, [OP, Op("spmm", 64)]) == ([OP], [])
    assert run_verb([*words, "--every-machine"]) == 0
    printed = capsys.readouterr().out
    assert "queries rank by both together" in printed and "before it learned from" in printed
    assert run_verb([*words, "--every-machine", "--op", "spmv"]) == 2
    assert "one cost model is for one kernel" in capsys.readouterr().err
    model = CostModel.load(place / "models" / "costmodel-lanes@again-spmm.safetensors")
    assert source is not None and model.card["parent"] == source.version
    assert model.card["own_rows"] == 3
    with Database.open(place) as db, pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "trained_for", None)  # the same runs are not learned from again
        assert learn_from_runs(db.index, new, [OP]) == ([OP], [])


@pytest.mark.parametrize("fits", [True, False])
def test_a_model_of_the_machine_alone_stays(place: Path, fits: bool) -> None:
    """Also one that cannot be used for this op."""
    new = machine(f"mine{fits}", 32, l2_bytes="1000000")
    file = place / "models" / f"costmodel-lanes@mine{fits}-spmm.safetensors"
    with Database.open(place) as db:
        source, _ = db.index.usable_model(new, OP)
        assert source is not None
        card = {name: value for name, value in source.card.items() if name != "machines"}
        card |= {} if fits else {"featurizer": {"name": "stats", "version": "other"}}
        CostModel(card, source.tensors).save(file)
        fill(db, new, matrices(3, first=60))
        embed(db.index)
        before = file.read_bytes()
        learned, problems = learn_from_runs(db.index, new, [OP])
        assert learned == [] and file.read_bytes() == before
        assert bool(problems) is not fits
        assert fits or "is a model of this machine alone" in problems[0]


def test_builds_for_one_processor_are_one_machine(opened: Database) -> None:
    samples = samples_of_machines(opened.index, parse_platform(TOML), [OP])
    assert np.unique(machine_of(samples)).size == len({m.id for m in samples.machines})
    name, mean = mean_facts(samples)[0]
    assert name == "l2_bytes" and mean == pytest.approx(np.log2(1_000_001))


def test_a_machine_with_an_earlier_version_of_the_file_counts() -> None:
    text = TOML.replace('version = "1"', 'version = "2"\nextends = ["1"]')
    text = text.replace("64]", "64, 128]")
    later = parse_platform(text)
    with Database.in_memory() as db:
        fill(db, machine("one", 16), matrices(4))
        fill(db, later.at("two", {"vector_bytes": "32"}), matrices(4))
        embed(db.index)
        for asked in (later, parse_platform(TOML)):
            samples = samples_of_machines(db.index, asked, [OP])
            assert samples.platform.text == text and not samples.platform.instance
            assert {m.version for m in samples.machines} == {"2"} and len(samples.rows) == 8
            assert Config({"piece": 128, "order": "a"}) in samples.configs


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
    words[words.index("lanes")] = "lanes@one"
    assert run_verb([*words, "--every-machine"]) == 2
    assert "no model of every machine is in use" in capsys.readouterr().err
    assert run_verb([*words, "--every-machine", "--from", "starter"]) == 2
    assert "leave out --preset and --from" in capsys.readouterr().err
