"""Model files: what was written comes back, and nothing else is taken for one."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embeddb.core.errors import ModelError
from embeddb.core.files import model_file

torch = pytest.importorskip("torch")

CARD: dict[str, Any] = {
    "kind": "featurizer",
    "network": {"name": "cognate", "dim": 128},
    "reduction": {"kind": "grid"},
    "metrics": {"loss": 0.25},
    "seed": 7,
}


def tensors() -> dict[str, Any]:
    made = torch.Generator().manual_seed(0)
    return {
        "weight": torch.randn(9, 4, 8, generator=made),
        "moment": torch.randn(8, generator=made, dtype=torch.float64),
        "step": torch.tensor(12),
        "random": torch.arange(16, dtype=torch.uint8),
        "none": torch.zeros(0, 3),
    }


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    model_file.save(path, tensors(), CARD)
    return path


def refused(path: Path, match: str, kind: str = "featurizer") -> None:
    with pytest.raises(ModelError, match=match) as caught:
        model_file.load(path, kind=kind)
    assert path.name in str(caught.value) and "\n" not in str(caught.value)


def raw(header: Mapping[str, Any] | bytes, data: bytes = b"") -> bytes:
    """The bytes of a file with any header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def described(**given: Any) -> bytes:
    """A file of one float32[2] tensor, with parts of its description replaced."""
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | given
    return raw({"__metadata__": {"card": json.dumps(CARD)}, "w": entry}, bytes(8))


def test_round_trip(path: Path) -> None:
    found, card = model_file.load(path, kind="featurizer")
    assert card == CARD
    assert model_file.read_card(path, kind="featurizer") == CARD
    given = tensors()
    assert found.keys() == given.keys()
    for name, tensor in given.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor)
    # The file described by hand is as good, so what is refused below is refused for its fault.
    path.write_bytes(described())
    assert torch.equal(model_file.load(path, kind="featurizer")[0]["w"], torch.zeros(2))


def test_shared_and_strided_tensors(tmp_path: Path) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    model_file.save(tmp_path / "m", {"a": base.T, "b": base, "c": base[1:]}, CARD)
    found, _ = model_file.load(tmp_path / "m", kind="featurizer")
    assert torch.equal(found["a"], base.T) and torch.equal(found["c"], base[1:])


def test_version_stands_for_weights_and_card(tmp_path: Path, path: Path) -> None:
    again = model_file.save(tmp_path / "again", dict(reversed(tensors().items())), CARD)
    assert again == model_file.version_of(path) == model_file.version_of(tmp_path / "again")
    assert len(again) == 16 and int(again, 16) >= 0
    other = tensors() | {"step": torch.tensor(13)}
    assert model_file.save(tmp_path / "other", other, CARD) != again
    assert model_file.save(tmp_path / "card", tensors(), CARD | {"seed": 8}) != again


def test_a_failed_write_leaves_the_old_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = path.read_bytes()

    def fails(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fails)
    with pytest.raises(ModelError, match="No space left"):
        model_file.save(path, {"w": torch.ones(3)}, CARD)
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("card", "match"),
    [
        ({}, "kind None"),
        ({"kind": "picture"}, "picture"),
        ({"kind": "featurizer", "network": {}}, "reduction"),
        (CARD | {"network": "cognate"}, "network"),
        (CARD | {"metrics": float("nan")}, "not JSON"),
        (CARD | {"metrics": {1, 2}}, "not JSON"),
    ],
)
def test_cards_that_are_not_written(tmp_path: Path, card: dict[str, Any], match: str) -> None:
    with pytest.raises(ModelError, match=match):
        model_file.save(tmp_path / "m", tensors(), card)
    assert not list(tmp_path.iterdir())


def test_tensors_that_are_not_written(tmp_path: Path) -> None:
    for bad, match in (
        (torch.tensor([1.0, float("nan")]), "not finite"),
        (torch.zeros(2, dtype=torch.bfloat16), "BFloat16"),
        (torch.zeros(2, dtype=torch.int32), "int32"),
        (torch.zeros([1] * 9), "rank 9"),
    ):
        with pytest.raises(ModelError, match=match):
            model_file.save(tmp_path / "m", {"w": bad}, CARD)
    with pytest.raises(ModelError, match="written"):
        model_file.save(tmp_path / "no" / "folder", tensors(), CARD)
    assert not list(tmp_path.iterdir())


def test_a_file_cut_anywhere(path: Path) -> None:
    whole = path.read_bytes()
    for length in {0, 1, 7, 8, 9, 100, len(whole) // 2, len(whole) - 1}:
        path.write_bytes(whole[:length])
        refused(path, "safetensors")
        with pytest.raises(ModelError):
            model_file.read_card(path, kind="featurizer")
    path.write_bytes(whole + b"\0")
    refused(path, "not safetensors")


def test_any_flipped_byte_of_the_header_is_refused_or_harmless(path: Path) -> None:
    whole = path.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    for at in range(8 + length):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x11]) + whole[at + 1 :])
        try:
            model_file.load(path, kind="featurizer")
        except ModelError as e:
            assert "\n" not in str(e)


@pytest.mark.parametrize("part", ["weights", "card"])
def test_a_flipped_bit_is_refused(path: Path, part: str) -> None:
    whole = path.read_bytes()
    places = {"weights": range(len(whole) - 200, len(whole)), "card": [whole.index(b"0.25") + 2]}
    for at in places[part]:
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        refused(path, "its content differs from its checksum")


def test_a_card_with_keys_that_are_numbers_is_read_again(path: Path) -> None:
    """JSON turns them into text, which is in another order."""
    model_file.save(path, tensors(), CARD | {"at": {10: 0.1, 9: -0.0, 1: (1e300, "\xe9")}})
    card = model_file.read_card(path)
    assert card["at"] == {"10": 0.1, "9": -0.0, "1": [1e300, "\xe9"]} and "checksum" not in card


def test_tensors_of_any_form_are_read_again(path: Path) -> None:
    forms = {
        "order": np.arange(6, dtype=">f8").reshape(2, 3).T,
        "none": np.zeros((0, 3), dtype=np.float32),
        "scalar": np.array(3, dtype=np.int64),
    }
    model_file.save(path, forms, CARD)
    again = model_file.read(path).tensors
    assert all(np.array_equal(again[name], array) for name, array in forms.items())


def test_pickles_are_never_opened(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
            return Path.touch, (tmp_path / "sprung",)

    path = tmp_path / "model.safetensors"
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        path.write_bytes(pickle.dumps(Trap(), protocol=protocol))
        refused(path, "safetensors|header")
    torch.save({"w": torch.ones(2)}, path)
    refused(path, "pickle or zip")
    with zipfile.ZipFile(path, "w") as out:
        out.writestr("data.pkl", pickle.dumps(Trap()))
    refused(path, "pickle or zip")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (described(dtype="F16"), "F16"),
        (described(dtype=["F32"]), "not safetensors"),
        (described(shape=[3]), "not safetensors"),
        (described(shape=[-2]), "not safetensors"),
        (described(shape=[True, 2]), "not safetensors"),
        (described(shape=[2**62, 4]), "not safetensors"),
        (described(shape=[1] * 20 + [2]), "rank 21"),
        (described(shape=2), "not safetensors"),
        (described(data_offsets=[8, 16]), "not safetensors"),
        (described(data_offsets=[0, 8, 8]), "not safetensors"),
        (described(data_offsets=None), "not safetensors"),
        (
            raw({"w": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}),
            "not safetensors",
        ),
        (raw({"__metadata__": {"card": "{"}}), "no card"),
        (raw({"__metadata__": {"card": "[1]"}}), "no card"),
        (raw({"__metadata__": ["card"]}), "not safetensors"),
        (raw({}), "no card"),
        (raw(b"{" + b"[" * 50_000), "not safetensors"),
        (raw(b'{"w": 1}'), "not safetensors"),
        (raw(b"{\xff}"), "not safetensors"),
        (raw(b"[1, 2]"), "safetensors"),
        ((1 << 40).to_bytes(8, "little") + b"{", "header"),
        ((1 << 21).to_bytes(8, "little") + b"{" + bytes(1 << 21), "claims"),
        (b"%%MatrixMarket matrix coordinate", "safetensors"),
        (bytes(64), "safetensors"),
    ],
)
def test_files_that_lie(tmp_path: Path, data: bytes, match: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    refused(path, match)


def test_not_a_number_among_the_weights(path: Path) -> None:
    whole = bytearray(path.read_bytes())
    length = int.from_bytes(whole[:8], "little")
    at = json.loads(whole[8 : 8 + length])["weight"]["data_offsets"][0] + 8 + length
    whole[at : at + 4] = b"\xff\xff\xff\x7f"
    path.write_bytes(whole)
    refused(path, "'weight' is not finite")


def test_another_kind_no_file_and_a_large_one(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused(path, "is a featurizer, not a costmodel", kind="costmodel")
    refused(tmp_path / "absent", "no such file")
    refused(tmp_path / ("x" * 300), "no such file")
    refused(tmp_path, "is not a file")
    with pytest.raises(ModelError, match="no such file"):
        model_file.version_of(tmp_path / "absent")
    monkeypatch.setattr(model_file, "MAX_BYTES", 1000)
    refused(path, "more than the 1000")


def test_fill_is_strict() -> None:
    module = torch.nn.Linear(3, 2)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    good = {"weight": torch.ones(2, 3), "bias": torch.ones(2)}
    for bad, match in (
        ({"weight": good["weight"]}, "'bias' is missing"),
        (good | {"third": torch.ones(1)}, "'third' has no place"),
        (good | {"bias": torch.ones(3)}, r"float32\[3\], this network has float32\[2\]"),
        (good | {"bias": torch.ones(2, dtype=torch.float64)}, "float64"),
    ):
        with pytest.raises(ModelError, match=f"mine: .*{match}") as caught:
            model_file.fill(module, bad, where="mine")
        assert caught.value.hint
        for name, tensor in module.state_dict().items():
            assert torch.equal(tensor, before[name])
    model_file.fill(module, good)
    assert torch.equal(module.weight, good["weight"])


def test_version_and_card_need_no_torch(path: Path) -> None:
    code = (
        "import sys; from embeddb.core.files import model_file as m;"
        f"m.version_of({str(path)!r}); m.read_card({str(path)!r}, kind='featurizer');"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
