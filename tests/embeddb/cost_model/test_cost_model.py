"""The cost model at query time: numpy against torch, files, refusals."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embeddb.core.config import Op
from embeddb.core.errors import ModelError
from embeddb.core.files import model_file
from embeddb.core.sizes import Sizes
from embeddb.cost_model import Problem, network_numpy
from embeddb.cost_model.encoders import latent
from embeddb.cost_model.network_numpy import FORMS
from embeddb.platforms.platform import load_platform, parse_platform

torch = pytest.importorskip("torch")

from costmodel_samples import DIM, quick, samples, vectors  # noqa: E402

from embeddb.cost_model.encoders.inputs import matrix_inputs, nest_inputs, seen_parts  # noqa: E402
from embeddb.cost_model.encoders.own_parameters import Layout  # noqa: E402
from embeddb.cost_model.model import CostModel  # noqa: E402
from embeddb.cost_model.network_torch import CostNetwork, Shape  # noqa: E402
from indexer.training.cost_model.train import train  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]
SPADE, OP = load_platform("spade"), Op.parse("spmm:32")
SIZES = (50_000, 50_000, 400_000)
CONFIGS = list(SPADE.space(OP, Sizes(SIZES[0], SIZES[1], SIZES[2])).enumerate())
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def model() -> CostModel:
    return train(samples(), quick(members=2, epochs=2))


def vector(at: int = 0) -> Any:
    return vectors(24)[f"p{at:03d}"]


def score(model: CostModel, **changes: Any) -> tuple[Any, Any]:
    asked = {"vector": vector(), "configs": CONFIGS, "sizes": SIZES, **changes}
    return model.score(Problem(asked["vector"], SPADE, OP, asked["sizes"]), asked["configs"])


def by_torch(model: CostModel, x: Any) -> Any:
    """The same sum with the training's own modules."""
    settings, encoder = model.card["settings"], model.encoder
    nests = nest_inputs(SPADE, OP, CONFIGS, SIZES)
    latents = encoder.encode(Layout(SPADE.kernel(OP)).raw(CONFIGS))
    read = matrix_inputs(x[None], [OP], model.below("scale."))
    parts = [torch.from_numpy(a) for a in (read, *seen_parts(nests, latents, settings["parts"]))]
    each = []
    for at in range(model.members):
        net = FORMS["mlp"].network(DIM, encoder.dim, settings)
        model_file.fill(net, {n: torch.tensor(a) for n, a in model.below(f"member.{at}.").items()})
        with torch.no_grad():
            each.append(net.eval()(*parts, torch.arange(len(CONFIGS))[None])[0].numpy())
    prior = model._prior(OP, CONFIGS, nests, latents)
    scaled = model.card["calibration"]["slope"] * (np.array(each, dtype=np.float64) + prior)
    return (scaled - scaled.mean(axis=1, keepdims=True)).mean(axis=0)


@pytest.mark.parametrize("fusion", ["add", "concat"])
@pytest.mark.parametrize("bilinear", [True, False])
def test_numpy_scores_as_torch_does(fusion: str, bilinear: bool) -> None:
    made = train(samples(), quick(epochs=1, members=2, fusion=fusion, bilinear=bilinear))
    for at in range(5):
        gain, spread = score(made, vector=vector(at))
        np.testing.assert_allclose(gain, by_torch(made, vector(at)), atol=1e-5)
        assert abs(gain.mean()) < 1e-9
        assert (spread > 0).all()


@pytest.mark.parametrize("fusion", ["add", "concat"])
@pytest.mark.parametrize("bilinear", [True, False])
def test_the_shapes_numpy_expects_are_those_of_the_network(fusion: str, bilinear: bool) -> None:
    net = CostNetwork(Shape(7, 64, fusion, bilinear))
    own = {name: tuple(t.shape) for name, t in net.state_dict().items()}
    assert own == FORMS["mlp"].shapes(7, 64, {"fusion": fusion, "bilinear": bilinear})


def test_the_predictor_is_as_wide_as_the_papers_table() -> None:
    """Table 6: 192 numbers added, 256 concatenated; then 128, 64, 1."""
    for fusion, wide in (("add", 192), ("concat", 256)):
        mlp = CostNetwork(Shape(128, 64, fusion, False)).predictor
        assert mlp.of_matrix.in_features + mlp.of_config.in_features == wide
        assert (mlp.second.in_features, mlp.third.in_features, mlp.third.out_features) == (
            128,
            64,
            1,
        )


def test_saved_and_loaded_it_is_the_same(model: CostModel, tmp_path: Path) -> None:
    file = tmp_path / "m.safetensors"
    version = model.save(file)
    again = CostModel.load(file)
    assert again.version == version == model.version
    assert again.card == model.card
    for one, other in zip(score(again), score(model), strict=True):
        np.testing.assert_array_equal(one, other)


def test_ranking_needs_no_torch(model: CostModel, tmp_path: Path) -> None:
    file = tmp_path / "m.safetensors"
    model.save(file)
    code = (
        "import sys, numpy as np\n"
        "from embeddb.cost_model import Problem\n"
        "from embeddb.cost_model.model import CostModel\n"
        "from embeddb.platforms.platform import load_platform\n"
        "from embeddb.core.config import Op\n"
        "p, op = load_platform('spade'), Op.parse('spmm:32')\n"
        "configs = list(p.space(op, m=9, n=9, nnz=9).enumerate())\n"
        f"m = CostModel.load({str(file)!r})\n"
        f"m.score(Problem(np.zeros({DIM}, np.float32), p, op, (9, 9, 9)), configs)\n"
        "assert not {'torch', 'numba'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_what_is_remembered_is_not_mixed_up(model: CostModel) -> None:
    """The same configurations are other loop nests on a narrow matrix, and other matrices score
    otherwise; asking again in any order gives the same."""
    wide, narrow = score(model)[0], score(model, sizes=(50_000, 900, 400_000))[0]
    other = score(model, vector=vector(1))[0]
    assert not np.allclose(wide, narrow)
    assert not np.allclose(wide, other)
    np.testing.assert_array_equal(score(model)[0], wide)
    backwards = score(model, configs=CONFIGS[::-1])[0]
    np.testing.assert_allclose(backwards[::-1], wide, atol=1e-6)
    for at in range(12):
        score(model, configs=CONFIGS[at : at + 9])
    np.testing.assert_array_equal(score(model)[0], wide)


def test_no_configurations_and_one(model: CostModel) -> None:
    assert [len(a) for a in score(model, configs=[])] == [0, 0]
    gain, spread = score(model, configs=CONFIGS[:1])
    assert gain[0] == 0
    assert spread[0] > 0


def test_a_vector_of_another_length_is_refused(model: CostModel) -> None:
    with pytest.raises(ModelError, match="the model reads"):
        score(model, vector=np.zeros(DIM + 1, dtype=np.float32))


def test_mismatch_says_what_differs(model: CostModel) -> None:
    def why(platform: Any = SPADE, op: Op = OP, name: str = "stats", version: str = "1") -> str:
        return model.mismatch(platform, op, name, version)

    assert why() == ""
    assert why(op=Op.parse("spmm:512")) == ""
    assert why(platform=SPADE.at("other")) == ""
    assert "sddmm" in why(op=Op.parse("sddmm:32"))
    assert "f64" in why(op=Op.parse("spmm:32:f64"))
    assert "cpu" in why(platform=load_platform("cpu"))
    assert "stats 1" in why(version="2")
    assert "scnn" in why(name="scnn")
    changed = SPADE.text.replace("2048", "4096")
    assert "another space" in why(platform=parse_platform(changed))
    for text in (why(version="2"), why(platform=parse_platform(changed))):
        assert "\n" not in text


def broken(model: CostModel, **tensors: Any) -> CostModel:
    return CostModel(model.card, {**model.tensors, **tensors}, where="m.safetensors")


def test_a_model_that_is_not_whole_is_refused(model: CostModel) -> None:
    name = "member.1.matrix.0.weight"
    weight = model.tensors[name]
    with pytest.raises(ModelError, match=r"m\.safetensors: .*member\.1\.matrix\.0\.weight"):
        broken(model, **{name: weight[:, :-1]})
    with pytest.raises(ModelError, match="not finite"):
        broken(model, **{name: np.full_like(weight, np.nan)})
    for missing in (name, "scale.center", "prior.spmm:32.ids", "latent.encoder.0.weight"):
        rest = {n: a for n, a in model.tensors.items() if n != missing}
        with pytest.raises(ModelError):
            CostModel(model.card, rest)
    with pytest.raises(ModelError, match="rest"):
        broken(model, **{"prior.spmm:32.rest": model.tensors["prior.spmm:32.rest"][1:]})


def test_weights_that_overflow_say_nothing_finite(model: CostModel) -> None:
    """No warning of numpy, which is an error here; who asks refuses it with a warning of ours."""
    large = {n: np.full_like(a, 1e38) for n, a in model.tensors.items() if n.startswith("member.")}
    made = broken(model, **large)
    space = SPADE.space(made.ops[0], Sizes(100, 100, 500))
    vector = np.ones(len(model.tensors["scale.center"]), np.float32)
    configs = space.sample(3, rng=np.random.default_rng(0))
    gain, _ = made.score(Problem(vector, SPADE, made.ops[0], Sizes(100, 100, 500)), configs)
    assert not np.isfinite(gain).all()


@pytest.mark.parametrize(
    "change",
    [
        {"settings": {}},
        {"settings": None},
        {"ops": []},
        {"ops": ["spmm:0"]},
        {"ops": 7},
        {"featurizer": {}},
        {"platform": "cpu"},
        {"calibration": {"slope": 1, "floor": 0, "factor": 1}},
        {"calibration": {"slope": float("nan"), "floor": 1, "factor": 1}},
        {"calibration": {}},
        {"kernel": None, "platform": None},
    ],
)
def test_a_card_that_is_wrong_is_refused(model: CostModel, change: dict[str, Any]) -> None:
    with pytest.raises(ModelError) as caught:
        CostModel({**model.card, **change}, model.tensors, where="m.safetensors")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [{"predictor": "gru2"}, {"fusion": "sum"}, {"latent": "x"}, {"parts": ["y"]}, {"parts": 3}],
)
def test_settings_nobody_has_are_refused(model: CostModel, change: dict[str, Any]) -> None:
    settings = {**model.card["settings"], **change}
    with pytest.raises(ModelError):
        CostModel({**model.card, "settings": settings}, model.tensors)


@pytest.mark.parametrize(
    "change",
    [{"predictor": "lstm"}, {"embedder": True, "latent": "fa"}, {"every": True}, {"latent": "fa"}],
)
def test_another_papers_model_names_reproductions(
    model: CostModel, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**model.card["settings"], **change}
    monkeypatch.setattr(network_numpy, "FORMS", {"mlp": FORMS["mlp"]})
    monkeypatch.setattr(latent, "READERS", {})
    with pytest.raises(ModelError) as caught:
        CostModel({**model.card, "settings": settings}, model.tensors)
    assert "reproductions" in caught.value.hint


@pytest.mark.parametrize("members", [0, -1, 65, 10**9, 2.5, "x"])
def test_a_number_of_members_that_cannot_be_is_refused(model: CostModel, members: Any) -> None:
    settings = {**model.card["settings"], "members": members}
    with pytest.raises(ModelError):
        CostModel({**model.card, "settings": settings}, model.tensors)


def test_files_that_are_no_models(model: CostModel, tmp_path: Path) -> None:
    file = tmp_path / "m.safetensors"
    model.save(file)
    data = file.read_bytes()
    for cut in (0, 7, 100, len(data) // 2, len(data) - 1):
        file.write_bytes(data[:cut])
        with pytest.raises(ModelError, match=r"m\.safetensors"):
            CostModel.load(file)
    file.write_bytes(b"\x80\x04pickle")
    with pytest.raises(ModelError):
        CostModel.load(file)
    with pytest.raises(ModelError, match="no such file"):
        CostModel.load(tmp_path / "none.safetensors")
