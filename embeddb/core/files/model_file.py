"""Model files: weights and their card in one safetensors file, never a pickle.

The card is JSON in the file's own metadata, so weights and their meaning stay together, and the
version covers both. Its keys:

- `kind`: what the tensors are, one of `KINDS`;
- `network`: the spec that `embeddb.featurizers.network.networks.build` takes, and `reduction`: the
  JSON of `embeddb.featurizers.network.reduction.Reduction` (both required where kind is
  `featurizer`); for `nests` and `kernels`, `network` is what `embeddb.nests.encoding.forward` and
  `embeddb.tensors.encoding.predictor` read;
- by custom `data` (hash of the ids of the training patterns), `metrics`, `seed`, `code` (version
  of the program), `created` (ISO date). Nothing but a reader's eye depends on these.

The library `safetensors` reads and checks the layout; file size, header size, tensor types, finite
weights, and a checksum of card and tensors (older files have none) are checked here.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import ModelError
from embeddb.core.extras import needing
from embeddb.core.files.safe_read import open_regular, reason_of, refusing
from embeddb.core.files.safe_write import whole_file

if TYPE_CHECKING:
    from torch import Tensor, nn

KINDS = ("featurizer", "costmodel", "towers", "nests", "kernels", "checkpoint")
#: Largest file that is read: a hundred times the largest network here.
MAX_BYTES = 1 << 30
_MAX_HEADER = 1 << 20
_MAX_RANK = 8
#: Allowed tensor types; uint8 holds generator states, int16 trees, float16 networks that ship.
_TYPES = ("float64", "float32", "float16", "int64", "int16", "uint8")
_REQUIRED: dict[str, tuple[str, ...]] = {
    "featurizer": ("network", "reduction"),
    "nests": ("network",),
    "kernels": ("network",),
}
#: Key of the checksum in the stored card.
_CHECKSUM = "checksum"
_AGAIN = "the file is damaged or incomplete: copy or train it again"
_NOT_OURS = "model files are safetensors written by `embeddb train`"


class ModelFile(NamedTuple):
    """The content of one model file; the version stands for weights and card."""

    tensors: dict[str, NDArray[Any]]
    card: dict[str, Any]
    version: str


def save(
    path: str | Path, tensors: Mapping[str, Tensor | NDArray[Any]], card: Mapping[str, Any]
) -> str:
    """Write tensors and card, whole or not at all; returns the file's version.

    Equal tensors and an equal card give equal bytes.
    Raises: ModelError for an unknown kind, a card that is not JSON or lacks a key of its kind, or
    a tensor that `read` would refuse.
    """
    from safetensors.numpy import save as serialize

    target = Path(path)
    where = str(target)
    _check_card(card, card.get("kind"), where=where)
    try:
        text = json.dumps(dict(card), sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as e:
        raise ModelError(f"the card is not JSON: {e}", where=where) from e
    with refusing(ModelError, where=where):
        arrays = {name: _array(tensor) for name, tensor in tensors.items()}
        _check(arrays, where=where)
        plain = json.loads(text)
        plain[_CHECKSUM] = _checksum(arrays, plain)
        data = serialize(arrays, metadata={"card": json.dumps(plain, sort_keys=True)})
    try:
        with whole_file(target) as out:
            out.write(data)
    except OSError as e:
        raise ModelError(f"cannot be written ({e.strerror})", where=where) from e
    return digest(data)


def read(path: str | Path, *, kind: str = "") -> ModelFile:
    """Tensors, card and version of a model file, of any kind if none is given; those in half
    precision as float32. Raises: ModelError
    (one line that names the file) if it is missing, too large, truncated, not safetensors, of
    another kind, or holds weights that are not finite."""
    # Imported here: naming a version or a kind needs no library.
    from safetensors.numpy import load as deserialize

    where, data = str(path), _read(path)
    # A header begins with its brace: 8 bytes of length may well look like the start of a pickle.
    if data[8:9] not in (b"{", b""):
        other = "a pickle or zip (a .pt file?)" if data[:1] in (b"\x80", b"P") else "not a model"
        raise ModelError(f"is {other}, not safetensors", where=where, hint=_NOT_OURS)
    stop = 8 + int.from_bytes(data[:8], "little")
    if len(data) >= stop > 8 + _MAX_HEADER:
        raise ModelError(f"its header claims {stop - 8} bytes", where=where, hint=_NOT_OURS)
    try:
        tensors = deserialize(data)
        card = _card(json.loads(data[8:stop]), kind, where=where)
    except ModelError:
        raise
    except KeyError as e:
        raise ModelError(f"a tensor has type {e}", where=where, hint=_NOT_OURS) from e
    except Exception as e:
        raise ModelError(f"not safetensors: {reason_of(e)}", where=where, hint=_AGAIN) from e
    _check(tensors, where=where)
    stated = card.pop(_CHECKSUM, None)
    if stated is not None and stated != _checksum(tensors, card):
        raise ModelError("its content differs from its checksum", where=where, hint=_AGAIN)
    wide = {n: a.astype(np.float32) if a.dtype == np.float16 else a for n, a in tensors.items()}
    return ModelFile(wide, card, digest(data))


def load(path: str | Path, *, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors by name as torch's, on the CPU, and the card of a model file. Raises: ModelError as
    `read`; MissingDependency without torch."""
    with needing("a model file"):
        import torch
    file = read(path, kind=kind)
    return {name: torch.from_numpy(array) for name, array in file.tensors.items()}, file.card


def read_card(path: str | Path, *, kind: str = "") -> dict[str, Any]:
    """The card of a model file, of any kind if none is given. Raises: ModelError as `read`."""
    return read(path, kind=kind).card


def version_of(path: str | Path) -> str:
    """16 hex digits that stand for the file's whole content, weights and card. Raises: ModelError
    if the file is missing or too large. Nothing else is checked."""
    return digest(_read(path))


def fill(module: nn.Module, tensors: Mapping[str, Tensor], *, where: str = "") -> None:
    """Load tensors into a module built for them: the same names, shapes and types, all of them.
    Raises: ModelError that names the first difference; the module is then unchanged."""
    hint = "the file was written for another architecture: build the network from its card"
    wanted = module.state_dict()
    for name in sorted(wanted.keys() ^ tensors.keys()):
        fault = "is missing" if name in wanted else "has no place in this network"
        raise ModelError(f"tensor {name!r} {fault}", where=where, hint=hint)
    for name, own in wanted.items():
        tensor = tensors[name]
        if tensor.shape != own.shape or tensor.dtype != own.dtype:
            raise ModelError(
                f"tensor {name!r} is {_form(tensor)}, this network has {_form(own)}",
                where=where,
                hint=hint,
            )
    module.load_state_dict(dict(tensors), strict=True)


def _form(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def digest(data: bytes) -> str:
    """Version of a file with this content."""
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def _checksum(tensors: Mapping[str, NDArray[Any]], card: Mapping[str, Any]) -> int:
    """CRC-32 of a card as it is read, and of tensors with their names and forms."""
    named = sorted(tensors.items())
    forms = [(name, array.dtype.name, array.shape) for name, array in named]
    value = zlib.crc32(json.dumps([card, forms], sort_keys=True).encode())
    for _, array in named:  # in the byte order of the file
        stored = array.astype(array.dtype.newbyteorder("<"), order="C", copy=False)
        value = zlib.crc32(stored.data, value)
    return value


def _read(path: str | Path) -> bytes:
    """The whole file. Raises: ModelError if it is missing or too large."""
    if not os.path.isfile(path):  # noqa: PTH113  # a Path raises where a name is too long
        fault = "is not a file" if os.path.exists(path) else "there is no such file"  # noqa: PTH110
        raise ModelError(fault, where=str(path), hint=_NOT_OURS)
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            data = file.read(MAX_BYTES) if size <= MAX_BYTES else b""
    except OSError as e:
        raise ModelError(f"cannot be read ({e.strerror})", where=str(path)) from e
    if size > MAX_BYTES:
        raise ModelError(
            f"{size} bytes are more than the {MAX_BYTES} a model may have",
            where=str(path),
            hint=_NOT_OURS,
        )
    return data


def _array(tensor: Tensor | NDArray[Any]) -> NDArray[Any]:
    """A contiguous copy of an array, or of a tensor of torch on any device."""
    plain = tensor if isinstance(tensor, np.ndarray) else tensor.detach().cpu().numpy()
    return np.array(plain, order="C")


def _check(tensors: Mapping[str, NDArray[Any]], *, where: str) -> None:
    for name, array in tensors.items():
        if array.dtype.name not in _TYPES or array.ndim > _MAX_RANK:
            raise ModelError(
                f"tensor {name!r} is {array.dtype.name} of rank {array.ndim}, not one of "
                f"{', '.join(_TYPES)} of rank {_MAX_RANK} or less",
                where=where,
                hint=_NOT_OURS,
            )
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ModelError(f"tensor {name!r} is not finite", where=where, hint=_AGAIN)


def _card(header: Mapping[str, Any], kind: str, *, where: str) -> dict[str, Any]:
    metadata = header.get("__metadata__")
    text = metadata.get("card") if isinstance(metadata, dict) else None
    try:
        card = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        card = None
    if not isinstance(card, dict):
        raise ModelError("has no card: weights of unknown meaning", where=where, hint=_NOT_OURS)
    _check_card(card, kind, where=where)
    return card


def _check_card(card: Mapping[str, Any], kind: Any, *, where: str) -> None:
    own = card.get("kind")
    if own not in KINDS:
        raise ModelError(f"kind {own!r} is none of {', '.join(KINDS)}", where=where)
    if kind and own != kind:
        raise ModelError(f"is a {own}, not a {kind}", where=where, hint=f"give a {kind} file")
    for key in _REQUIRED.get(own, ()):
        if not isinstance(card.get(key), Mapping):
            raise ModelError(f"its card has no table {key!r}", where=where, hint=_NOT_OURS)
