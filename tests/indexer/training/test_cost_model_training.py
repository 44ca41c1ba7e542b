"""Training of the cost model: samples, losses, stop and resume, fine-tuning, the command."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import run_verb

from embeddb.core.config import Op
from embeddb.core.errors import ModelError, UsageError
from embeddb.core.records import WorkloadInfo
from embeddb.core.sizes import Sizes
from embeddb.core.timing import TimingSummary
from embeddb.cost_model import Problem
from embeddb.database import Database
from embeddb.index.run_matrix import MatrixRow, join
from embeddb.learning import samples as sampling
from embeddb.learning.samples import Samples, from_evidence, samples_of
from embeddb.platforms.platform import load_platform, parse_platform

torch = pytest.importorskip("torch")

from builders import fill, patterns, runs_of, tiny  # noqa: E402
from costmodel_samples import evidence, quick, samples  # noqa: E402

from embeddb.cost_model.model import CostModel  # noqa: E402
from embeddb.learning.calibration import trust  # noqa: E402
from indexer.embed import embed  # noqa: E402
from indexer.training.cost_model import losses, members  # noqa: E402
from indexer.training.cost_model import train as costmodel  # noqa: E402
from indexer.training.cost_model.settings import LOSSES, paper  # noqa: E402
from indexer.training.cost_model.train import retarget, train  # noqa: E402
from tuners.evaluation.choose_predictor import (  # noqa: E402
    Training,
    TrainingRequest,
    candidates,
    learned_before,
)

SPADE = load_platform("spade")
OP = Op.parse("spmm:32")
pytestmark = pytest.mark.usefixtures("one_thread")


def tau(model: CostModel, of: Samples, rows: range) -> float:
    """Mean share of ordered pairs minus the others, over rows."""
    found = []
    for row in rows:
        part, own = of.part(row), of.rows[row]
        configs = [of.configs[c] for c in of.column[part]]
        gain, _ = model.score(Problem(of.vectors[row], of.platform, own.op, own.sizes), configs)
        told = losses.figures(gain, of.gain[part], 0.0)
        assert told is not None
        found.append(told[2])
    return float(np.mean(found))


# -- samples -----------------------------------------------------------------------------------


def test_gains_are_over_the_default_and_cut_below() -> None:
    space, default = SPADE.space(OP, Sizes(9, 9, 9)), SPADE.default(OP, Sizes(9, 9, 9))
    others = [c for c in space.enumerate() if c != default][:3]
    ok = [TimingSummary(s, 0.0, 0.0, 1, "ok") for s in (2.0, 1.0, 1e9)]
    failed = TimingSummary(math.inf, 0.0, 0.0, 1, "timeout")
    told = {default: ok[0], others[0]: ok[1], others[1]: ok[2], others[2]: failed}
    without = {c: v for c, v in told.items() if c != default}
    rows = [
        (MatrixRow("a", "spade", "g"), default, told),
        (MatrixRow("b", "spade", "g"), default, without),
        (MatrixRow("c", "spade", "g"), default, {others[0]: failed, others[1]: failed}),
        (MatrixRow("d", "spade", "g"), default, {default: ok[0]}),
        (MatrixRow("e", "spade", "g"), default, told),
    ]
    known = {i: np.zeros(2, dtype=np.float32) for i in "abcd"}
    made = from_evidence(join(OP, rows), known, {}, SPADE, OP)
    assert [row.pattern_id for row in made.rows] == ["a", "b"]
    by_config = {made.configs[c]: g for c, g in zip(made.column[:4], made.gain[:4], strict=True)}
    assert by_config[default] == 0
    assert by_config[others[0]] == pytest.approx(math.log(2))
    assert by_config[others[1]] == by_config[others[2]] == pytest.approx(math.log(2e-9))
    targets = dict(zip(made.column[:4].tolist(), made.targets[:4].tolist(), strict=True))
    learned = {made.configs[column]: target for column, target in targets.items()}
    assert learned[default] == 0 and learned[others[0]] == by_config[others[0]]
    assert learned[others[1]] == learned[others[2]] == by_config[others[0]] - 6.0
    assert dict(made.left_out) == {
        "every run failed": 1,
        "a single run": 1,
        "no vector of the matrix": 1,
    }


def test_a_limited_choice_is_balanced_and_seeded() -> None:
    whole = samples(matrices=40)
    few = whole.limited(5, 10, seed=1)
    assert sorted(row.sizes.m for row in few.rows) == [2_000, 20_000, 50_000, 100_000, 300_000]
    assert set(np.diff(few.indptr)) == {10}
    assert few.hash == whole.limited(5, 10, seed=1).hash
    assert few.hash != whole.limited(5, 10, seed=2).hash
    more = whole.limited(15, 10_000, seed=1)
    assert len(more.rows) == 15
    for at, row in enumerate(more.rows):
        own = next(i for i, r in enumerate(whole.rows) if r == row)
        np.testing.assert_array_equal(more.gain[more.part(at)], whole.gain[whole.part(own)])
    assert whole.limited(999, 9999, seed=0).hash == whole.hash


def test_widths_are_joined_over_their_configurations() -> None:
    narrow, wide = samples(op="spmm:32", matrices=4), samples(op="spmm:128", matrices=3)
    both = sampling.join([narrow, wide])
    assert both.ops == (Op.parse("spmm:32"), Op.parse("spmm:128"))
    assert (len(both.rows), len(both.gain)) == (7, len(narrow.gain) + len(wide.gain))
    for at in range(7):
        part = narrow if at < 4 else wide
        own = part.part(at % 4 if at < 4 else at - 4)
        assert [both.configs[c] for c in both.column[both.part(at)]] == [
            part.configs[c] for c in part.column[own]
        ]
    with pytest.raises(UsageError, match="one kernel"):
        sampling.join([narrow, samples(op="sddmm:32", matrices=3)])


def test_too_little_is_refused_with_what_to_do() -> None:
    whole = samples(matrices=6)
    with pytest.raises(UsageError, match="20 too few") as caught:
        whole.take([]).check()
    assert "campaign plan" in caught.value.hint
    with pytest.raises(UsageError, match="runs are of one matrix"):
        whole.take([2]).check()
    with pytest.raises(UsageError, match=r"10 too few.*2 left out: every run failed"):
        replace(whole.limited(2, 5, 0), left_out={"every run failed": 2}).check()
    with pytest.raises(UsageError, match="only the best"):
        from_evidence(replace(evidence("spade", "spmm:32", 6, 40), winners=True), {}, {}, SPADE, OP)


def test_a_platform_of_one_configuration_has_nothing_to_learn() -> None:
    text = tiny().text.replace('["a", "b", "c", "d"]', '["a"]')
    with pytest.raises(UsageError, match="one legal configuration"):
        replace(samples(matrices=6), platform=parse_platform(text)).check()


# -- losses ------------------------------------------------------------------------------------


def test_every_loss_prefers_the_right_order() -> None:
    gains = torch.linspace(-1, 1, 20)[None].repeat(3, 1)
    for name in LOSSES:
        torch.manual_seed(0)
        right = losses.loss_of(name, gains.clone(), gains, noise=0.0)
        torch.manual_seed(0)
        wrong = losses.loss_of(name, -gains, gains, noise=0.0)
        assert right < wrong, name
    with pytest.raises(UsageError, match="no loss"):
        losses.loss_of("other", gains, gains, noise=0.0)


def test_the_margin_loss_is_the_papers() -> None:
    """max(0, 1 - (s1 - s2)) where the first is faster; ties and pairs within the noise are out."""
    s, g = torch.tensor([0.4, 3.0, -2.0, 9.0]), torch.tensor([0.5, 0.5, 0.5, 0.001])
    found = losses.pairwise("margin", s, g, noise=0.01)
    assert float(found) == pytest.approx((0.6 + 0.0 + 3.0) / 3)
    assert float(losses.pairwise("margin", s, -g, noise=0.01)) == pytest.approx((1.4 + 4 + 0) / 3)
    assert float(losses.pairwise("margin", s, g * 0, noise=0.0)) == 0


def test_figures_of_a_perfect_and_of_a_reversed_order() -> None:
    gains = np.linspace(0, 60, 30)
    assert losses.figures(gains, gains, 0.1) == (0.0, 1.0, 1.0)
    prl, opa, found = losses.figures(-gains, gains, 0.1) or (0.0, 1.0, 1.0)
    assert (opa, found) == (0.0, -1.0)
    assert prl > 1
    assert losses.figures(gains, gains * 0, 0.1) is None


# -- training ----------------------------------------------------------------------------------


def same(one: CostModel, other: CostModel) -> bool:
    if one.tensors.keys() != other.tensors.keys():
        return False
    return all(np.array_equal(one.tensors[n], other.tensors[n]) for n in one.tensors)


def test_the_weights_that_stay_include_the_last_step(monkeypatch: pytest.MonkeyPatch) -> None:
    fit, trained = members.Member.fit, list[members.Member]()

    def fitted(member: members.Member, *args: Any) -> Any:
        trained.append(member)
        return fit(member, *args)

    monkeypatch.setattr(members.Member, "fit", fitted)
    train(samples(), replace(quick(), average=0.0))
    for member in trained:
        own, mean = member.module.net.parameters(), member.module.mean.parameters()
        assert all(bool((one == other).all()) for one, other in zip(own, mean, strict=True))
    assert trained


def test_it_learns_what_matrices_change_and_the_same_every_time() -> None:
    whole = samples(matrices=40)
    known, new = whole.take(range(30)), range(30, 40)
    made = train(known, quick(epochs=6, lr=5e-3, batch=4))
    prior = train(known, quick(epochs=1, lr=1e-9))
    assert tau(made, whole, new) > tau(prior, whole, new) + 0.05
    figures = made.card["metrics"]
    assert {"valid_prl", "valid_opa", "valid_tau", "coverage_80"} <= figures.keys()
    assert made.card["data"] == known.hash
    assert (made.card["patterns"], made.card["groups"]) == (30, 15)
    json.dumps(made.card, allow_nan=False)
    few = known.take(range(4))
    once = train(few, quick(few_epochs=1))
    assert same(train(few, quick(few_epochs=1)), once)
    assert not same(train(few, quick(few_epochs=1, seed=1)), once)


def test_stopped_and_resumed_is_the_same(tmp_path: Path, monkeypatch: Any) -> None:
    whole, how = samples(matrices=20), quick(members=2, epochs=3)
    wanted = train(whole, how, folder=tmp_path / "whole")
    real, seen = members.loss_of, 0

    def stopping(*args: Any, **named: Any) -> Any:
        nonlocal seen
        seen += 1
        if seen == 80:  # in an epoch of the second member
            raise KeyboardInterrupt
        return real(*args, **named)

    monkeypatch.setattr(members, "loss_of", stopping)
    with pytest.raises(KeyboardInterrupt):
        train(whole, how, folder=tmp_path / "cut")
    assert costmodel.unfinished(tmp_path / "cut")
    assert same(train(whole, how, folder=tmp_path / "cut"), wanted)
    costmodel.forget(tmp_path / "cut")
    assert not costmodel.unfinished(tmp_path / "cut")
    assert [c.exists() for c in costmodel.curves(tmp_path / "cut")] == [True, True]


def test_few_groups_hold_none_out() -> None:
    few = samples(matrices=10).take(range(4))
    made = train(few, quick(few_epochs=4))
    assert made.card["epochs"] == [4]
    assert made.card["metrics"] == {}
    assert made.card["calibration"]["factor"] == 1


def test_a_network_of_few_groups_is_judged_on_all_its_rows(tmp_path: Path) -> None:
    known, how = samples(matrices=20), quick(epochs=2, few_epochs=2)
    card, _, judged = costmodel.learned(known, how, None, tmp_path)
    assert sorted(row for scores in judged for row in scores) == list(range(20))
    assert len(judged) == 4
    assert len(card["epochs"]) == len(costmodel.curves(tmp_path)) == 1


def test_a_family_left_out_is_not_in_the_prior_that_judges_it() -> None:
    """One of many matrices would predict itself: its gains have nothing to do with the others'."""
    whole, rng = samples(matrices=40), np.random.default_rng(0)
    own = np.array([row < 24 for row in range(len(whole.rows))])
    rows = tuple(
        row._replace(group="many" if mine else f"g{at // 2}")
        for at, (row, mine) in enumerate(zip(whole.rows, own, strict=True))
    )
    of_many = np.repeat(own, np.diff(whole.indptr))
    laws = rng.normal(0.0, 0.5, (2, len(whole.configs)))
    gain = np.where(of_many, laws[0][whole.column], laws[1][whole.column])
    card = train(replace(whole, rows=rows, gain=gain), quick(epochs=1, lr=1e-9)).card
    # Predictions of the large family are wrong by about its gains, 0.5.
    assert card["calibration"]["floor"] > 0.3 and card["calibration"]["guard"] > 0.2


def test_with_few_groups_the_network_counts_as_far_as_it_was_right() -> None:
    few = samples(matrices=6)
    believed = train(few, quick()).card["calibration"]["trust"]
    assert 0.0 <= believed <= 1.0
    assert train(samples(matrices=4), quick()).card["calibration"]["trust"] == 0.5  # two groups
    assert "trust" not in train(samples(), quick()).card["calibration"]

    def trained(on: Any) -> Any:
        model = train(on, quick(epochs=20))
        return lambda rest: (model.card, model.tensors)

    whole = samples()
    wrong = replace(whole, gain=-whole.gain)
    assert trust(few, trained(whole))["trust"] > 0.5
    assert trust(few, trained(wrong))["trust"] == 0.0


def test_a_model_with_too_much_trust_is_refused() -> None:
    made = train(samples(matrices=6), quick())
    card = {**made.card, "calibration": {**made.card["calibration"], "trust": 2.0}}
    with pytest.raises(ModelError, match="outside 0"):
        CostModel(card, made.tensors)


def test_a_model_moves_to_another_platform() -> None:
    source = train(samples("cpu", configs=30, matrices=20), quick(epochs=4))
    target = samples(matrices=30)
    few, new = target.take(range(20)).limited(12, 40, seed=0), range(20, 30)
    made = train(few, quick(few_epochs=6, lr=1e-3), start=source)
    assert made.card["platform"]["name"] == "spade"
    assert made.card["parent"] == source.version
    assert made.encoder.width != source.encoder.width
    zero = retarget(source, SPADE, (OP,))
    assert zero.mismatch(SPADE, OP, "stats", "1") == ""
    assert np.isfinite(tau(zero, target, new))
    assert tau(made, target, new) > tau(zero, target, new)
    assert set(made.card["learned_from"]) == {*source.card["learned_from"], *few.groups.tolist()}
    learned, few_groups = source.card["learned_from"], np.unique(few.groups)
    both = set(few_groups.tolist()) & set(learned)
    none, warned = learned_before(source, few.groups)
    assert not none
    assert f"{len(both)} of the {few_groups.size} groups that judge this one" in warned
    new = np.array([f"new{i}" for i in range(8)])
    shared, judged_by = learned_before(source, np.concatenate([new, few_groups]))
    assert shared == both and judged_by.startswith("judged by the")
    assert learned_before(source, new) == learned_before(None, few.groups) == (frozenset(), "")
    unnamed = CostModel(
        {k: v for k, v in source.card.items() if k != "learned_from"}, source.tensors
    )
    assert "groups that its file does not name" in learned_before(unnamed, few.groups)[1]
    later = train(few, quick(few_epochs=1), start=unnamed)
    assert "groups that its file does not name" in learned_before(later, few.groups)[1]
    untouched = source.tensors["member.0.mapper.0.weight"]
    np.testing.assert_array_equal(zero.tensors["member.0.mapper.0.weight"], untouched)


def test_a_source_of_another_kernel_or_featurizer_is_refused_by_name() -> None:
    source = train(samples(), quick(epochs=1))
    with pytest.raises(UsageError, match=r"for spmm.*of sddmm"):
        train(samples(op="sddmm:32"), quick(epochs=1), start=source)
    with pytest.raises(UsageError, match=r"stats 1.*of stats 2"):
        train(replace(samples(), featurizer_version="2"), quick(epochs=1), start=source)
    with pytest.raises(UsageError, match="spmm"):
        retarget(source, SPADE, (Op.parse("sddmm:32"),))


def test_cognates_settings_train_and_move() -> None:
    how = paper(latent="pca", epochs=1, few_epochs=1, passes=1)
    source = train(samples("cpu", configs=40, matrices=16), how)
    assert not [name for name in source.tensors if name.startswith(("prior.", "member.0.u."))]
    made = train(samples(matrices=16), how, start=source)
    assert np.isfinite(tau(made, samples(matrices=16), range(3)))


@pytest.mark.parametrize("left_out", ["featurizer", "mapper", "latent"])
def test_an_ablation_does_not_see_the_part(left_out: str) -> None:
    parts = tuple(p for p in ("featurizer", "mapper", "latent") if p != left_out)
    made = train(samples(), quick(epochs=1, parts=parts, residual=False))
    whole = samples()
    configs = [whole.configs[c] for c in whole.column[whole.part(0)]]
    row = whole.rows[0]
    gain, _ = made.score(Problem(whole.vectors[0], SPADE, OP, row.sizes), configs)
    if left_out == "featurizer":
        other, _ = made.score(Problem(whole.vectors[1], SPADE, OP, row.sizes), configs)
        np.testing.assert_array_equal(gain, other)
    distinct = len(np.unique(np.round(gain, 6)))
    assert distinct < len(configs) if left_out != "featurizer" else distinct > 1


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(UsageError, match="no loss"):
        quick(loss="x")
    with pytest.raises(UsageError, match="no latent"):
        quick(latent="x")
    with pytest.raises(UsageError, match="no predictor"):
        train(samples(), quick(predictor="x"))


# -- the command -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("filled") / "runs.db"
    with Database.create(folder) as db:
        fill(db, tiny(), patterns(10))
    return folder


@pytest.fixture
def database(filled: Path, tmp_path: Path) -> str:
    return str(shutil.copytree(filled, tmp_path / "runs.db"))


QUICK = ("--members", "1", "--epochs", "2", "--threads", "1")
QUICK += ("--predictor", "mlp")


def command(*words: str) -> list[str]:
    return ["train", "costmodel", *words, *QUICK]


def test_the_command_registers_its_model(
    database: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    asked = command(database, "--platform", "tiny", "--op", "spmm:32")
    assert run_verb([*asked, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    file = Path(database) / "models" / "costmodel-tiny-spmm.safetensors"
    assert told["file"] == str(file)
    model = CostModel.load(file)
    assert model.version == told["version"]
    assert model.card["featurizer"]["name"] == "stats"
    assert all(Path(curve).exists() for curve in told["curves"])
    assert not costmodel.unfinished(file.with_name("costmodel-tiny-spmm.training"))
    elsewhere = tmp_path / "fine.safetensors"
    words = ("-o", str(elsewhere), "--from", str(file), "--samples", "40")
    assert run_verb([*asked, *words]) == 0
    shown = capsys.readouterr().out
    assert str(elsewhere) in shown
    fine = CostModel.load(elsewhere).card
    assert (fine["parent"], fine["patterns"], fine["samples"]) == (model.version, 10, 40)
    assert model.card["dce"] == model.card["samples"]
    assert fine["dce"] == model.card["dce"] + 40


def test_a_stopped_command_says_how_to_go_on(
    database: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = command(database, "--platform", "tiny", "--op", "spmm:32")
    real, seen = members.loss_of, 0

    def stopping(*args: Any, **named: Any) -> Any:
        nonlocal seen
        seen += 1
        if seen == 30:  # in the second epoch
            raise KeyboardInterrupt
        return real(*args, **named)

    monkeypatch.setattr(members, "loss_of", stopping)
    assert run_verb(asked) == 130
    told = capsys.readouterr().err
    line = next(text for text in told.splitlines() if "continue with" in text)
    assert "--op spmm:32" in line
    assert line.endswith("--resume")
    monkeypatch.undo()
    assert run_verb(asked) == 2
    assert "unfinished" in capsys.readouterr().err
    assert run_verb([*asked, "--resume"]) == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--platform", "tiny", "--op", "spmm:64"), "there are runs of: spmm:32"),
        (("--platform", "tiny", "--op", "spmm:32", "--op", "spmv"), "one kernel"),
        (("--platform", "nowhere", "--op", "spmm:32"), "nowhere"),
        (("--platform", "tiny", "--op", "spmm:32", "--featurizer", "scnn"), "scnn"),
        (
            ("--platform", "tiny", "--op", "spmm:32", "-o", "no/such/m.safetensors"),
            "does not exist",
        ),
        (("--platform", "tiny", "--op", "spmm:32", "--from", "none"), "no such file"),
    ],
)
def test_the_command_refuses_in_one_line(
    database: str, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], told: str
) -> None:
    assert run_verb(["train", "costmodel", database, *QUICK[2:], *words]) != 0
    err = capsys.readouterr().err
    assert told in err
    assert "Traceback" not in err


def test_too_few_runs_say_how_many_are_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "few.db"
    with Database.create(folder) as db:
        fill(db, tiny(), patterns(1))
    assert run_verb(command(str(folder), "--platform", "tiny", "--op", "spmm:32")) == 2
    err = capsys.readouterr().err
    assert "16 usable runs, 4 too few" in err
    assert "campaign plan" in err


def test_without_structures_the_hint_names_a_featurizer_that_works(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, known = tmp_path / "sizes.db", patterns(9)
    with Database.create(folder) as db:
        db.store.put_platform(tiny())
        db.store.put_patterns(
            WorkloadInfo(
                id=p.id,
                m=p.shape[0],
                n=p.shape[1],
                nnz=p.nnz,
                name=p.name,
                group=p.group,
                stub=True,
            )
            for p in known
        )
        db.store.append(run for p in known for run in runs_of(p, tiny()))
        embed(db.index)
    asked = ["train", "costmodel", str(folder), "--platform", "tiny", "--op", "spmm:32"]
    assert run_verb([*asked, "--no-judge"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "no matrix has a vector of stats" in line
    hint = line.partition("add ")[2].partition(",")[0].split()
    assert hint[0] == "--featurizer" and "--matrices DIR" in line
    assert run_verb([*asked, "--no-judge", *hint]) == 0


def test_a_bare_platform_stands_for_its_only_instance_with_runs() -> None:
    here = tiny("board").at("here")
    with fill(Database.in_memory(), here) as db:
        known = samples_of(db.index, tiny("board"), [OP])
        assert known.platform.id == "board@here" and known.rows
        training = Training(db.index, known, TrainingRequest(), None, Path(), print)
        assert (
            training._judge(TrainingRequest().settings("mlp"), None, frozenset())
            ._bench(OP)
            .evidence.rows
        )
        with pytest.raises(UsageError, match="there are no runs") as caught:
            samples_of(db.index, tiny("board"), [Op("spmm", 999)])
        assert caught.value.hint == f"there are runs of: {OP}"


def test_few_runs_make_a_gaussian_process() -> None:
    with fill(Database.in_memory(), tiny("board"), patterns(9)) as db:
        known = samples_of(db.index, tiny("board"), [OP])
    names, why = candidates(TrainingRequest(), known, None)
    assert names == ("gp",) and "of 9 groups it learns most" in why
