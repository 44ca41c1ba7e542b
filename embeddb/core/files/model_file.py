"""Model files: weights and their card in one safetensors file, never a pickle.

The card is JSON in the file's own metadata, so weights and what they mean cannot be parted, and
`version_of` covers both. Its keys:

- `kind`: what the tensors are, one of `KINDS`;
- `network`: the spec that `embeddb.featurizers.network.networks.build` takes, and `reduction`: the
  JSON of `embeddb.featurizers.network.reduction.Reduction` (both required where kind is
  `featurizer`); for `nests` and `kernels`, `network` is what `embeddb.nests.encoding.forward` and
  `embeddb.tensors.encoding.spec` read;
- by custom `data` (hash of the ids of the training patterns), `metrics`, `seed`, `code` (version
  of the program), `created` (ISO date). Nothing but a reader's eye depends on these.

A file is checked before anything is allocated by its word: size, header, tensor types, that the
tensors fill the file exactly, and finite weights.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import ModelError
from embeddb.core.extras import needing
from embeddb.core.files.gate import open_regular
from embeddb.core.files.own_files import whole_file

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = [
    "KINDS",
    "MAX_BYTES",
    "arrays_of",
    "content_of",
    "digest",
    "fill",
    "load",
    "read_card",
    "save",
    "version_of",
]

KINDS = ("featurizer", "costmodel", "nests", "kernels", "checkpoint")
#: Largest file that is read: a hundred times the largest network here.
MAX_BYTES = 1 << 30
_MAX_HEADER = 1 << 20
_MAX_RANK = 8
#: Bytes per element of the types a model here may have; U8 holds generator states, I16 trees.
_TYPES = {"F64": 8, "F32": 4, "I64": 8, "I16": 2, "U8": 1}
#: The same types in numpy's words.
_DTYPES = {"F64": "<f8", "F32": "<f4", "I64": "<i8", "I16": "<i2", "U8": "|u1"}
_REQUIRED: dict[str, tuple[str, ...]] = {
    "featurizer": ("network", "reduction"),
    "nests": ("network",),
    "kernels": ("network",),
}
_AGAIN = "the file is damaged or incomplete: copy or train it again"
_NOT_OURS = "model files are safetensors written by `embeddb train`"


def save(path: str | Path, tensors: Mapping[str, Tensor], card: Mapping[str, Any]) -> str:
    """Write tensors and card, whole or not at all; returns the file's version.

    Equal tensors and an equal card give equal bytes.
    Raises: ModelError for an unknown kind, a card that is not JSON or lacks a key of its kind, or
    a tensor that `load` would refuse; MissingDependency without safetensors.
    """
    target = Path(path)
    _check_card(card, card.get("kind"), where=str(target))
    try:
        text = json.dumps(dict(card), sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as e:
        raise ModelError(f"the card is not JSON: {e}", where=str(target)) from e
    plain = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    _check_finite(plain, where=str(target))
    data: bytes = _safetensors().save(plain, metadata={"card": text})
    _header(data, len(data), where=str(target))
    try:
        with whole_file(target) as out:
            out.write(data)
    except OSError as e:
        raise ModelError(f"cannot be written ({e.strerror})", where=str(target)) from e
    return digest(data)


def load(path: str | Path, *, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors by name, on the CPU, and the card of a model file.

    Raises: ModelError (one line that names the file) if it is missing, too large, truncated, not
    safetensors, of another kind, or holds weights that are not finite; MissingDependency without
    torch or safetensors.
    """
    where = str(path)
    data = _read(path, MAX_BYTES)
    card = _card(_header(data, len(data), where=where), kind, where=where)
    library = _safetensors()
    from safetensors import SafetensorError

    try:
        tensors: dict[str, Tensor] = library.load(data)
    except SafetensorError as e:
        raise ModelError(f"not safetensors ({e})", where=where, hint=_AGAIN) from e
    _check_finite(tensors, where=where)
    return tensors, card


def read_card(path: str | Path, *, kind: str = "") -> dict[str, Any]:
    """The card alone, of any kind if none is given; needs neither torch nor safetensors and reads
    only the header.

    Raises: ModelError as `load` does for everything but the weights' values.
    """
    where = str(path)
    data = _read(path, 8 + _MAX_HEADER, whole=False)
    return _card(_header(data, _size(path), where=where), kind, where=where)


def content_of(path: str | Path) -> bytes:
    """The whole file. Raises: ModelError if it is missing or too large; nothing else is checked."""
    return _read(path, MAX_BYTES)


def version_of(path: str | Path) -> str:
    """16 hex digits that stand for the file's whole content, weights and card.

    Raises: ModelError if the file is missing or too large. Nothing else is checked.
    """
    return digest(_read(path, MAX_BYTES))


def fill(module: nn.Module, tensors: Mapping[str, Tensor], *, where: str = "") -> None:
    """Load tensors into a module built for them: the same names, shapes and types, all of them.

    Raises: ModelError that names the first difference; the module is then unchanged.
    """
    hint = "the file was written for another architecture: build the network from its card"
    wanted = module.state_dict()
    for name in sorted(wanted.keys() ^ tensors.keys()):
        said = "is missing" if name in wanted else "has no place in this network"
        raise ModelError(f"tensor {name!r} {said}", where=where, hint=hint)
    for name, own in wanted.items():
        given = tensors[name]
        if given.shape != own.shape or given.dtype != own.dtype:
            raise ModelError(
                f"tensor {name!r} is {_told(given)}, this network has {_told(own)}",
                where=where,
                hint=hint,
            )
    module.load_state_dict(dict(tensors), strict=True)


def _told(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _safetensors() -> Any:
    with needing("a model file"):
        import safetensors.torch
    return safetensors.torch


def digest(data: bytes) -> str:
    """The version of a file that holds these bytes."""
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def _size(path: str | Path) -> int:
    try:
        return Path(path).stat().st_size
    except OSError as e:
        raise ModelError(f"cannot be read ({e.strerror})", where=str(path)) from e


def _read(path: str | Path, most: int, *, whole: bool = True) -> bytes:
    """At most `most` bytes; with `whole` a longer file is refused instead of cut."""
    if not os.path.isfile(path):  # noqa: PTH113  # a Path raises where a name is too long
        said = "is not a file" if os.path.exists(path) else "there is no such file"  # noqa: PTH110
        raise ModelError(said, where=str(path), hint=_NOT_OURS)
    size = _size(path)
    if whole and size > most:
        raise ModelError(
            f"{size} bytes are more than the {most} a model may have",
            where=str(path),
            hint=_NOT_OURS,
        )
    try:
        with open_regular(path) as file:
            return file.read(most)
    except OSError as e:
        raise ModelError(f"cannot be read ({e.strerror})", where=str(path)) from e


def _header(data: bytes, size: int, *, where: str) -> dict[str, Any]:
    """The checked header of a file of `size` bytes that begins with `data`.

    Layout: its length as uint64, then JSON of {name: {dtype, shape, data_offsets}}, then tensors.
    """
    # A header begins with its brace: 8 bytes of length may well look like the start of a pickle.
    if data[8:9] not in (b"{", b""):
        other = "a pickle or zip (a .pt file?)" if data[:1] in (b"\x80", b"P") else "no model"
        raise ModelError(f"is {other}, not safetensors", where=where, hint=_NOT_OURS)
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > size - 8:
        raise ModelError("ends before its header does", where=where, hint=_AGAIN)
    if length > _MAX_HEADER:
        raise ModelError(f"its header claims {length} bytes", where=where, hint=_NOT_OURS)
    try:
        header = json.loads(data[8 : 8 + length])
    except (ValueError, RecursionError) as e:
        raise ModelError("its header is not JSON", where=where, hint=_NOT_OURS) from e
    if not isinstance(header, dict):
        raise ModelError("its header is not a table of tensors", where=where, hint=_NOT_OURS)
    spans = sorted(
        _span(name, entry, where=where) for name, entry in header.items() if name != "__metadata__"
    )
    at = 0
    for start, stop, name in spans:
        if start != at:
            raise ModelError(f"tensor {name!r} overlaps or leaves a gap", where=where, hint=_AGAIN)
        at = stop
    if at != size - 8 - length:
        raise ModelError(
            f"{size - 8 - length} bytes of tensors where its header says {at}",
            where=where,
            hint=_AGAIN,
        )
    return header


def _span(name: str, entry: Any, *, where: str) -> tuple[int, int, str]:
    """First and last byte of a tensor, which are what its type and shape need."""
    said = ModelError(f"tensor {name!r} has no sound description", where=where, hint=_NOT_OURS)
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise said
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _TYPES:
        kinds = ", ".join(_TYPES)
        raise ModelError(
            f"tensor {name!r} has type {dtype!r}, not one of {kinds}", where=where, hint=_NOT_OURS
        )
    if not (_counts(shape) and _counts(offsets)) or len(shape) > _MAX_RANK or len(offsets) != 2:
        raise said
    # Python's whole numbers do not wrap: a shape of 2^62 entries is compared as it is.
    if offsets[1] - offsets[0] != math.prod(shape) * _TYPES[dtype]:
        raise said
    return offsets[0], offsets[1], name


def _counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(v) is int and v >= 0 for v in values)


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
    found = card.get("kind")
    if found not in KINDS:
        raise ModelError(f"kind {found!r} is none of {', '.join(KINDS)}", where=where)
    if kind and found != kind:
        raise ModelError(f"is a {found}, not a {kind}", where=where, hint=f"give a {kind} file")
    for key in _REQUIRED.get(found, ()):
        if not isinstance(card.get(key), Mapping):
            raise ModelError(f"its card has no table {key!r}", where=where, hint=_NOT_OURS)


def _check_finite(tensors: Mapping[str, Tensor], *, where: str) -> None:
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise ModelError(f"tensor {name!r} is not finite", where=where, hint=_AGAIN)


# -- without torch ---------------------------------------------------------------------------------


def arrays_of(data: bytes) -> dict[str, NDArray[Any]]:
    """Tensors by name of a safetensors file whose header `model_file.read_card` has checked.

    Raises: ValueError or KeyError if the bytes are not such a file after all.
    """
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    found = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        start, stop = entry["data_offsets"]
        raw = data[8 + length + start : 8 + length + stop]
        found[name] = np.frombuffer(raw, _DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return found
