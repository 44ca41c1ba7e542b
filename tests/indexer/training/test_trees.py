"""Boosted trees: numpy says what LightGBM says, files are checked, a source travels with them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embeddb.core.config import Op
from embeddb.core.errors import MissingDependency, ModelError, UsageError
from embeddb.core.sizes import Sizes
from embeddb.cost_model import Problem, trees_numpy
from embeddb.cost_model.trees_numpy import TENSORS, Forest
from embeddb.platforms.platform import load_platform

pytest.importorskip("torch")
lightgbm = pytest.importorskip("lightgbm")

from builders import CONFIGS, tiny  # noqa: E402
from builders import OP as TINY_OP  # noqa: E402
from costmodel_samples import DIM, quick, samples  # noqa: E402

from embeddb.cost_model.model import CostModel  # noqa: E402
from embeddb.learning import boosting  # noqa: E402
from embeddb.learning.calibration import _guard, held_out, judged_only  # noqa: E402
from embeddb.learning.samples import SampleRow, Samples  # noqa: E402
from indexer.training.cost_model import train as costmodel  # noqa: E402
from indexer.training.cost_model.settings import forest  # noqa: E402
from indexer.training.cost_model.train import retarget, train, unfinished  # noqa: E402
from indexer.training.cost_model.trees import Grown, grow  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]
SPADE, OP = load_platform("spade"), Op.parse("spmm:32")


@pytest.fixture(autouse=True)
def fewer_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(boosting.ONE_MACHINE, "num_iterations", 40)


@pytest.fixture(scope="module")
def model() -> CostModel:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(boosting.ONE_MACHINE, "num_iterations", 40)
        return train(samples(), forest(members=2))


def score(model: CostModel, of: Samples, row: int) -> Any:
    info, part = of.rows[row], of.part(row)
    configs = [of.configs[c] for c in of.column[part]]
    return model.score(Problem(of.vectors[row], of.platform, info.op, info.sizes), configs)[0]


def agreement(model: CostModel, of: Samples, rows: range) -> float:
    """Mean correlation of scores and gains."""
    found = [np.corrcoef(score(model, of, r), of.gain[of.part(r)])[0, 1] for r in rows]
    return float(np.mean(found))


def same(one: CostModel, other: CostModel) -> bool:
    names = one.tensors.keys()
    alike = (one.tensors[n].tobytes() == other.tensors[n].tobytes() for n in names)
    return names == other.tensors.keys() and all(alike)


def test_trees_do_not_know_which_errors_correlate(model: CostModel) -> None:
    assert model.correlation is None


# -- arrays ------------------------------------------------------------------------------------


def grown(rows: int, columns: int, seed: int, **settings: Any) -> tuple[Any, Any]:
    """A booster, and float32[rows,columns] with many equal numbers that it learned from."""
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(rows, columns)).astype(np.float32)
    table[:, ::2] = np.round(table[:, ::2])
    table[:, 1] *= 1e6
    goal = table[:, 0] * table[:, 2] + np.sin(table[:, 3])
    how = {**boosting.ONE_MACHINE, "num_iterations": 60, "min_data_in_leaf": 3, "seed": seed}
    return boosting.boosted(table, goal, {**how, **settings}), table


@pytest.mark.parametrize("blocks", [[(0, 9)], [(0, 2), (2, 3), (3, 9)]])
@pytest.mark.parametrize("extra", [True, False])
def test_the_arrays_say_what_lightgbm_says(blocks: list[tuple[int, int]], extra: bool) -> None:
    pairs = [grown(300, 9, seed, extra_trees=extra) for seed in (0, 1)]
    forest = Forest([boosting.weights(b) for b, _ in pairs], [slice(*b) for b in blocks])
    fresh = np.random.default_rng(9).normal(size=(700, 9)).astype(np.float32)
    on_splits = pairs[0][1].copy()
    for table in (pairs[0][1], fresh, np.zeros((1, 9), np.float32), fresh[:0]):
        found = forest.score(table)
        assert found.shape == (2, len(table))
        for own, (booster, _) in zip(found, pairs, strict=True):
            if len(table):
                np.testing.assert_allclose(own, booster.predict(table), atol=1e-6)
    # Numbers that are splits themselves, and their neighbours.
    for side in (0, -np.inf, np.inf):
        at = on_splits.copy()
        for tree in pairs[0][0].dump_model()["tree_info"]:
            node = tree["tree_structure"]
            if "split_index" in node:
                at[: len(at) // 2, node["split_feature"]] = node["threshold"]
        at = np.nextafter(at, np.float32(side)) if side else at
        at[np.abs(at) < 1e-34] = 0  # LightGBM takes such for zero
        np.testing.assert_allclose(forest.score(at)[0], pairs[0][0].predict(at), atol=1e-6)


def test_trees_without_a_split_are_a_constant() -> None:
    booster, table = grown(30, 9, 0, min_data_in_leaf=1000)
    own = boosting.weights(booster)
    assert own["splits"].max(initial=0) == 0
    found = Forest([own], [slice(0, 9)]).score(table)
    np.testing.assert_allclose(found[0], booster.predict(table), atol=1e-6)


def by_hand() -> dict[str, Any]:
    """Two trees: x0 <= 1 ? (x1 <= 5 ? 10 : 20) : 40, and the constant 7."""
    return {
        "splits": np.array([2, 0], np.int16),
        "feature": np.array([0, 1], np.int16),
        "threshold": np.array([1, 5], np.float32),
        "left": np.array([1, ~2], np.int16),
        "right": np.array([~0, ~1], np.int16),
        "value": np.array([40, 20, 10, 7], np.float32),
    }


def test_a_tree_by_hand() -> None:
    table = np.array([[1, 5], [1, 6], [2, 5]], np.float32)
    found = Forest([by_hand()], [slice(0, 2)]).score(table)
    np.testing.assert_array_equal(found, [[17, 27, 47]])


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("splits", [3, 0]),
        ("splits", [1, 0]),
        ("splits", [-1, 3]),
        ("splits", [32, 0]),
        ("splits", []),
        ("feature", [0, 2]),
        ("feature", [0, -1]),
        ("feature", [0]),
        ("threshold", [1, np.nan]),
        ("threshold", [np.inf, 1]),
        ("left", [0, ~2]),  # leads back to itself
        ("left", [2, ~2]),  # out of the tree
        ("left", [1, 0]),  # back to the root
        ("left", [~2, ~2]),  # one leaf twice, a split without a parent
        ("left", [1, ~3]),  # no such leaf
        ("left", [1, -32768]),
        ("right", [1, ~1]),  # one split twice
        ("right", [~1, ~1]),
        ("right", [~0, ~1, ~2]),
        ("value", [1, 2, 3]),
        ("value", [1, 2, 3, np.inf]),
    ],
)
def test_what_is_no_tree_is_refused(name: str, wrong: list[float]) -> None:
    damaged = {**by_hand(), name: np.array(wrong, TENSORS[name])}
    with pytest.raises(ModelError, match="member 0"):
        Forest([damaged], [slice(0, 2)])


def test_more_trees_than_can_be_are_refused() -> None:
    many = {**by_hand(), "splits": np.zeros(1 << 17, np.int16)}
    with pytest.raises(ModelError, match="more than"):
        Forest([many], [slice(0, 2)])


@pytest.mark.parametrize("name", list(TENSORS))
@pytest.mark.parametrize("change", [lambda a: a.astype(np.float64), lambda a: a[None], None])
def test_a_tensor_of_another_kind_or_missing_is_refused(
    model: CostModel, name: str, change: Callable[[Any], Any] | None
) -> None:
    tensors = dict(model.tensors)
    own = tensors.pop(f"member.1.{name}")
    if change is not None:
        tensors[f"member.1.{name}"] = change(own)
    with pytest.raises(ModelError, match=name):
        CostModel(model.card, tensors)


# -- the model ---------------------------------------------------------------------------------


def test_it_learns_what_matrices_change_and_the_same_every_time() -> None:
    whole = samples(matrices=40)
    known, new = whole.take(range(30)), range(30, 40)
    made = train(known, forest(members=2))
    blind = train(known, forest(members=2, parts=("mapper", "tiles", "latent")))
    assert agreement(made, whole, new) > agreement(blind, whole, new) + 0.05
    assert same(train(known, forest(members=2)), made)
    assert not same(train(known, forest(members=2, seed=1)), made)
    figures = made.card["metrics"]
    assert {"valid_prl", "valid_opa", "valid_tau", "coverage_80"} <= figures.keys()
    assert made.card["calibration"]["factor"] != 1
    assert made.card["settings"]["residual"] is False


def test_with_few_groups_each_is_left_out_once_to_judge_by(tmp_path: Path) -> None:
    known = samples(matrices=10)
    assert 3 <= len(set(known.groups)) < 8
    made = train(known, forest(members=2), folder=tmp_path)
    assert {"valid_opa", "coverage_80"} <= made.card["metrics"].keys()
    assert made.card["calibration"]["floor"] != 0.15
    assert not unfinished(tmp_path)
    gain, spread = made.score(
        Problem(samples().vectors[0], SPADE, OP, Sizes(9, 9, 9)), samples().configs[:9]
    )
    assert abs(gain.mean()) < 1e-9
    assert (spread > 0).all()


def test_with_two_groups_nothing_is_judged() -> None:
    known = samples(matrices=10)
    two = known.take(np.flatnonzero(np.isin(known.groups, np.unique(known.groups)[:2])))
    made = train(two, forest(members=2))
    assert made.card["metrics"] == {}
    assert made.card["calibration"] == {"slope": 1.0, "floor": 0.15, "factor": 1.0}


@pytest.mark.parametrize("part", ["featurizer", "mapper", "tiles", "latent"])
def test_an_ablation_does_not_see_the_part(part: str) -> None:
    parts = tuple(p for p in ("featurizer", "mapper", "tiles", "latent") if p != part)
    made = train(samples(), forest(members=1, parts=parts))
    matrix, nest, _, own, *_ = made.table.blocks
    hidden = {
        "featurizer": range(matrix.start, matrix.stop - 1),
        "mapper": range(nest.start, nest.start + 53),
        "tiles": range(nest.start + 53, nest.stop),
        "latent": range(own.start, own.stop),
    }
    used = set(made.tensors["member.0.feature"].tolist())
    for name, columns in hidden.items():
        assert bool(used & set(columns)) == (name != part)
    whole = samples()
    info, configs = whole.rows[0], [whole.configs[c] for c in whole.column[whole.part(0)]]
    asked = Problem(whole.vectors[0], SPADE, OP, info.sizes)
    table = made.table.of(asked, configs, None)
    assert not table[:, hidden[part]].any()


def test_saved_and_loaded_it_is_the_same_without_lightgbm(model: CostModel, tmp_path: Path) -> None:
    file = tmp_path / "m.safetensors"
    version = model.save(file)
    again = CostModel.load(file)
    assert again.version == version
    np.testing.assert_array_equal(score(again, samples(), 3), score(model, samples(), 3))
    code = (
        "import sys, numpy as np\n"
        "from embeddb.cost_model import Problem\n"
        "from embeddb.cost_model.model import CostModel\n"
        "from embeddb.platforms.platform import load_platform\n"
        "from embeddb.core.config import Op\n"
        "p, op = load_platform('spade'), Op.parse('spmm:32')\n"
        "configs = list(p.space(op, m=9, n=9, nnz=9).enumerate())\n"
        f"m = CostModel.load({str(file)!r})\n"
        "from embeddb.core.sizes import Sizes\n"
        f"m.score(Problem(np.zeros({DIM}, np.float32), p, op, Sizes(9, 9, 9)), configs)\n"
        "assert not {'torch', 'numba', 'lightgbm'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.mark.parametrize("cells", [1 << 22, 2_000, 200])
def test_what_was_asked_before_does_not_change_scores(
    model: CostModel, cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trees_numpy, "_CELLS", cells)  # remembers all, some, and a row or two
    whole, asked_before = samples(), CostModel(model.card, model.tensors)
    for row, step in ((3, 1), (5, 2), (3, 1), (4, 3), (5, 1), (3, 2)):
        info, chosen = whole.rows[row], [whole.configs[c] for c in whole.column[whole.part(row)]]
        problem = Problem(whole.vectors[row], SPADE, OP, info.sizes)
        fresh = CostModel(model.card, model.tensors).score(problem, chosen[::step])
        np.testing.assert_array_equal(asked_before.score(problem, chosen[::step]), fresh)


@pytest.mark.parametrize(
    "change",
    [{"vector": None}, {"vector": 0}, {"vector": 10**6}, {"layout": 7}, {"vector": True}],
)
def test_a_card_that_is_wrong_is_refused(model: CostModel, change: dict[str, Any]) -> None:
    with pytest.raises(ModelError):
        CostModel({**model.card, **change}, model.tensors)


def test_a_card_of_other_parameters_is_refused_when_asked(model: CostModel) -> None:
    told = {**model.card, "layout": [*model.card["layout"], "more"]}
    with pytest.raises(UsageError, match="own parameters"):
        score(CostModel(told, model.tensors), samples(), 0)
    with pytest.raises(ModelError, match="the model reads"):
        model.score(
            Problem(np.zeros(DIM + 1, np.float32), SPADE, OP, Sizes(9, 9, 9)), samples().configs
        )


# -- the default's guard ------------------------------------------------------------------------


def judged(known: Samples, seen: list[tuple[float, float]]) -> tuple[Samples, list[Any]]:
    """Rows whose best (promised, gained) so much over the default, and what was said of them."""
    gain, pairs = known.gain.copy(), []
    for row, (promised, gained) in enumerate(seen):
        part, info = known.part(row), known.rows[row]
        m, n, nnz = info.sizes
        default = SPADE.default(OP, Sizes(m, n, nnz))
        column = known.column[part]
        at = next(i for i, c in enumerate(column) if known.configs[c] == default)
        best = (at + 1) % len(column)
        own = np.full(len(column), -1.0)
        own[at], own[best] = 0.0, promised
        gain[part] = -1.0
        gain[part.start + at], gain[part.start + best] = 0.0, gained
        pairs.append((row, own))
    return replace(known, gain=gain), pairs


def test_the_guard_is_what_following_lost() -> None:
    known = samples(matrices=10)
    mixed = [(0.1, -0.5), (0.2, -0.1), (0.4, 0.3), (0.6, 0.2)] * 2
    told, pairs = judged(known, mixed)
    assert _guard(told, pairs) == pytest.approx(0.15)
    assert _guard(told, [(row, 3 * own) for row, own in pairs]) == pytest.approx(0.15)
    assert _guard(told, pairs[:7]) == 0.0  # too few to tell
    assert _guard(*judged(known, [(0.1, 0.3)] * 8)) == 0.0
    losing = [(0.1 * i, -0.2) for i in range(1, 9)]
    assert _guard(*judged(known, losing)) == pytest.approx(0.2)


def test_a_row_without_its_default_says_nothing_of_the_guard() -> None:
    known = samples(matrices=10)
    told, pairs = judged(known, [(0.1, -0.2)] * 10)
    row, own = pairs[0]
    part, info = told.part(row), told.rows[row]
    m, n, nnz = info.sizes
    default = SPADE.default(OP, Sizes(m, n, nnz))
    other = next(i for i, c in enumerate(told.configs) if c != default)
    column = told.column.copy()
    column[part] = np.where([told.configs[c] == default for c in column[part]], other, column[part])
    without = replace(told, column=column)
    assert _guard(without, [(row, own)] * 8) == 0.0
    assert _guard(told, [(row, own)] * 8) == pytest.approx(0.2)


@given(count=st.integers(1, 60), parts=st.integers(2, 12), seed=st.integers(0, 9))
def test_what_is_only_judged_leaves_each_row_out_once(count: int, parts: int, seed: int) -> None:
    groups = np.array([f"g{i // 2}" for i in range(count)])
    names = np.unique(groups).size
    held = [held_out(groups, i, seed) for i in range(2)]
    apart = judged_only(groups, held, seed, parts)
    if names < 3 or sum(out.sum() for out in held) >= 24:
        assert apart == []
        return
    assert len(apart) == min(parts, names)
    assert (np.sum(apart, axis=0) == 1).all()
    for out in apart:
        assert not set(groups[out]) & set(groups[~out])


def test_a_model_of_few_groups_is_judged_on_all_its_rows() -> None:
    known = samples(matrices=20)
    made, judged = costmodel._grown(known, forest(members=2), None, lambda *_: None)[1:]
    assert sum(len(scores) for scores in judged) == 20
    assert {name.split(".")[1] for name in made if name.startswith("member.")} == {"0", "1"}


def test_the_guard_is_of_one_default_and_stays_behind_when_that_changes() -> None:
    made = train(samples("cpu", configs=30, matrices=20), forest(members=1))
    made.card["calibration"]["guard"] = 0.3
    assert retarget(made, load_platform("cpu"), (OP,)).guard == 0.3
    assert retarget(made, SPADE, (OP,)).guard == 0.0
    assert made.guard == 0.3


# -- a source ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sources() -> dict[str, CostModel]:
    cpu = samples("cpu", configs=30, matrices=20)
    return {"mlp": train(cpu, quick(epochs=2)), "trees": train(cpu, forest(members=1))}


def _helps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trees that read the source come out ahead, whatever this processor's sums are."""
    made: list[Grown] = []

    def judged(*args: Any) -> Grown:
        made.append(grow(*args))
        return replace(made[-1], loss=1.0 / len(made))

    monkeypatch.setattr(costmodel, "grow", judged)


def test_facts_that_a_source_reads_are_asked_for(
    sources: dict[str, CostModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    _helps(monkeypatch)
    made = train(samples(matrices=10), forest(members=1), start=sources["trees"])
    assert made.source is not None and made.imputed(SPADE) == []
    made.source.card["facts"] = [["l2_bytes", 20.0]]
    assert made.imputed(SPADE) == ["l2_bytes"]
    assert made.imputed(SPADE.at("here", {"l2_bytes": "1000"})) == []


@pytest.mark.parametrize("kind", ["mlp", "trees"])
def test_a_source_travels_in_the_file(
    sources: dict[str, CostModel], kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _helps(monkeypatch)
    source, known = sources[kind], samples(matrices=10)
    made = train(known, forest(members=1), start=source)
    assert made.source is not None
    assert made.card["settings"]["predictor"] == "trees"
    assert made.card["source"]["platform"]["name"] == "spade"
    hint = made.table.blocks[2].start
    assert hint in made.tensors["member.0.feature"]
    file = tmp_path / "m.safetensors"
    made.save(file)
    again = CostModel.load(file)
    assert again.mismatch(SPADE, OP, "stats", "1") == ""
    np.testing.assert_array_equal(score(again, known, 2), score(made, known, 2))
    assert not np.allclose(score(made, known, 2), score(train(known, forest()), known, 2))


@pytest.mark.parametrize("helps", [True, False])
def test_a_source_counts_only_where_it_helped(
    sources: dict[str, CostModel], helps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = iter([0.2, 0.1 if helps else 0.2])

    def judged(*args: Any) -> Grown:
        return replace(grow(*args), loss=next(losses))

    monkeypatch.setattr(costmodel, "grow", judged)
    made = train(samples(matrices=10), forest(members=1), start=sources["trees"])
    assert made.card["squared_error"] == {"alone": 0.2, "with_source": 0.1 if helps else 0.2}
    assert (made.source is not None) == helps
    assert any(name.startswith("source.") for name in made.tensors) == helps


def test_trees_of_another_platform_are_asked_without_its_own_parameters(
    sources: dict[str, CostModel],
) -> None:
    moved = retarget(sources["trees"], SPADE, (OP,))
    assert moved.mismatch(SPADE, OP, "stats", "1") == ""
    assert "latent" not in moved.card["settings"]["parts"]
    whole = samples()
    configs = [whole.configs[c] for c in whole.column[whole.part(0)]]
    asked = Problem(whole.vectors[0], SPADE, OP, whole.rows[0].sizes)
    nests = moved.table.of(asked, configs, None)
    assert len(np.unique(score(moved, whole, 0))) <= len(np.unique(nests, axis=0))
    back = retarget(sources["trees"], load_platform("cpu"), (OP,))
    assert back.card["settings"]["parts"] == sources["trees"].card["settings"]["parts"]


def test_what_cannot_be_started_from_is_refused_by_name(
    sources: dict[str, CostModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    _helps(monkeypatch)
    known = samples(matrices=10)
    made = train(known, forest(members=1), start=sources["mlp"])
    with pytest.raises(UsageError, match="reads predictions of another"):
        train(known, forest(members=1), start=made)
    with pytest.raises(UsageError, match="cannot go on from trees"):
        train(known, quick(), start=sources["trees"])
    with pytest.raises(UsageError, match=r"stats 1.*of stats 2"):
        train(replace(known, featurizer_version="2"), forest(), start=sources["mlp"])


def test_a_damaged_source_is_refused(
    sources: dict[str, CostModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = iter([0.2, 0.1])
    monkeypatch.setattr(costmodel, "grow", lambda *a: replace(grow(*a), loss=next(losses)))
    made = train(samples(matrices=10), forest(members=1), start=sources["trees"])
    told = made.card["source"]
    for card in (
        {**told, "source": told},
        {**told, "kernel": "sddmm"},
        {**told, "vector": DIM + 1},
        {**told, "calibration": {}},
        None,
        7,
    ):
        with pytest.raises(ModelError):
            CostModel({**made.card, "source": card}, made.tensors)
    name = "source.member.0.left"
    tensors = {**made.tensors, name: made.tensors[name][::-1]}
    with pytest.raises(ModelError, match="trees of member 0"):
        CostModel(made.card, tensors)
    bare = {n: a for n, a in made.tensors.items() if not n.startswith("source.")}
    with pytest.raises(ModelError):
        CostModel(made.card, bare)


# -- what is learned from ----------------------------------------------------------------------


def test_a_row_of_good_configurations_only_is_not_taken_for_slow_ones() -> None:
    """Every second matrix ran the two best configurations only: centred on themselves, the second
    best would look as slow there as bad ones do elsewhere."""
    gains = np.array([0.6, 0.4, 0.0, -1.0])
    ran = [[0, 1, 2, 3] if at % 2 else [0, 1] for at in range(20)]
    column = np.concatenate(ran).astype(np.int32)
    known = Samples(
        tiny(),
        tuple(SampleRow(str(at), TINY_OP, str(at), (9, 9, 9)) for at in range(20)),
        np.zeros((20, 1), dtype=np.float32),
        CONFIGS,
        np.cumsum([0, *map(len, ran)]),
        column,
        gains[column],
    )
    target = boosting.levelled(known)
    for c in (0, 1):
        here, there = (target[known.part(at)][c] for at in (0, 1))
        assert here == pytest.approx(there, abs=0.1)


def test_a_number_that_is_not_finite_is_refused() -> None:
    known = samples(matrices=10)
    known.vectors[3, 0] = np.nan
    with pytest.raises(UsageError, match=r"p003.*not finite"):
        train(known, forest())


@pytest.mark.parametrize(
    "error",
    [ModuleNotFoundError("No module named 'lightgbm'"), OSError("libgomp.so.1: no such file")],
)
def test_where_lightgbm_does_not_load_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(_: str) -> None:
        raise error

    monkeypatch.setattr(boosting, "import_module", fail)
    with pytest.raises(MissingDependency, match=str(error)) as caught:
        train(samples(matrices=10), forest())
    assert "libgomp1" in caught.value.hint
