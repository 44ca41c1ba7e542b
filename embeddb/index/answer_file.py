"""A partition as the bytes of one file: an uncompressed npz of numbers and one JSON head.

A database may come from an untrusted source, and its checksums with it. So nothing larger than the
file itself is allocated, and all that was read is checked before it is used.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.index.answer_index import AnswerIndex
from embeddb.index.held_out import Near
from embeddb.index.run_matrix import MatrixRow, RunMatrix
from embeddb.index.vectors import VectorIndex
from embeddb.index.vote import Metric, VoteSettings
from embeddb.index.vote_fit import LeftOut
from embeddb.matrix_files.scipy_npz import npy_header
from embeddb.store.codec import pattern_key
from embeddb.store.tables import decoded, reading

Arrays = Mapping[str, NDArray[Any]]

#: Every array beside the head: its type and number of dimensions.
_ARRAYS = {
    "indptr": ("<i8", 1),
    "column": ("<i4", 1),
    "seconds": ("<f8", 1),
    "conversion": ("<f8", 1),
    "spread": ("<f4", 1),
    "default_s": ("<f8", 1),
    "vectors": ("<f4", 2),
    "far": ("<f8", 1),
    "near": ("<i8", 2),
    "near_distances": ("<f8", 2),
    "metric_center": ("<f8", 1),
    "metric_scale": ("<f8", 1),
    "metric_stretch": ("<f8", 2),
}
_RUN_ARRAYS = ("indptr", "column", "seconds", "conversion", "spread", "default_s")
_METRIC_ARRAYS = ("center", "scale", "stretch")


class _Head(msgspec.Struct, frozen=True):
    """The part of a partition that is stored as JSON."""

    op: str
    scope: str
    featurizer: str
    generation: int
    rows: list[tuple[str, str, str, str]]
    configs: list[str]
    ids: list[str]
    winners: bool
    policy: str
    left_out: str
    facts: dict[str, dict[str, str]]
    counters: str


def to_bytes(partition: AnswerIndex) -> bytes:
    """Serialise a partition, without the index over its vectors."""
    e = partition.evidence
    head = {
        "op": str(partition.op),
        "scope": partition.scope,
        "featurizer": partition.featurizer,
        "generation": partition.generation,
        "rows": [list(row) for row in e.rows],
        "configs": [c.json for c in e.configs],
        "ids": list(partition.ids),
        "winners": e.winners,
        "policy": partition.policy.to_json(),
        "left_out": partition.left_out.to_json() if partition.left_out else "",
        "facts": {name: dict(facts) for name, facts in partition.facts.items()},
        "counters": partition.counters,
    }
    out = io.BytesIO()
    arrays: dict[str, Any] = {
        "head": np.frombuffer(json.dumps(head).encode(), dtype=np.uint8),
        **{name: getattr(e, name) for name in _RUN_ARRAYS},
        "vectors": partition.vectors,
        "far": partition.far,
        "near": partition.near.places,
        "near_distances": partition.near.distances,
        **{f"metric_{name}": getattr(partition.metric, name) for name in _METRIC_ARRAYS},
    }
    np.savez(out, **arrays)
    return out.getvalue()


def from_bytes(raw: bytes) -> AnswerIndex:
    """Restore a partition. Raises: StoreCorrupt for anything that `to_bytes` does not write."""
    with reading("a partition file"):
        with zipfile.ZipFile(io.BytesIO(raw)) as file:
            head = decoded(_array(file, "head", "|u1", 1).tobytes(), _Head, "its head")
            a = {name: _array(file, name, *kind) for name, kind in _ARRAYS.items()}
        # Each condition assumes those before it.
        for sound, what in chain(_of_rows(head), _of_runs(head, a), _of_vectors(head, a)):
            if not sound:
                raise ValueError(f"{what} make no sense")
        return _restored(head, a)


def _array(file: zipfile.ZipFile, name: str, dtype: str, ndim: int) -> NDArray[Any]:
    info = file.getinfo(f"{name}.npy")
    if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
        raise ValueError(f"{name!r} is packed, which we never do")
    with file.open(info) as stream:
        header = npy_header(stream)
        if header.dtype != np.dtype(dtype) or len(header.shape) != ndim:
            raise ValueError(f"{name!r} is {header.dtype} of {len(header.shape)} dimensions")
        if header.whole_bytes != info.file_size:
            raise ValueError(f"{name!r} claims {header.whole_bytes} bytes")
        data = stream.read()
    flat = np.frombuffer(data, header.dtype)
    return flat.reshape(header.shape, order="F" if header.fortran else "C").copy(order="K")


def _restored(head: _Head, a: Arrays) -> AnswerIndex:
    evidence = RunMatrix(
        op=Op.parse(head.op),
        rows=tuple(MatrixRow(*row) for row in head.rows),
        configs=tuple(Config.from_json(c) for c in head.configs),
        winners=head.winners,
        **{k: a[k] for k in _RUN_ARRAYS},
    )
    metric = Metric(*(a[f"metric_{name}"] for name in _METRIC_ARRAYS))
    ids = tuple(head.ids)
    return AnswerIndex(
        evidence.op,
        head.scope,
        head.featurizer,
        head.generation,
        evidence,
        ids,
        a["vectors"],
        metric,
        VoteSettings.from_json(head.policy),
        LeftOut.from_json(head.left_out) if head.left_out else None,
        a["far"],
        Near(a["near"], a["near_distances"]),
        head.facts,
        VectorIndex(ids, metric.apply(a["vectors"])),
        head.counters,
    )


def _of_rows(head: _Head) -> Iterator[tuple[bool, str]]:
    """Conditions on every partition, each with its subject."""
    patterns = {row[0] for row in head.rows}
    for pattern_id in patterns:
        pattern_key(pattern_id)  # raises
    kernel = Op.parse(head.op).name
    others = {row[3] for row in head.rows} - {""}
    yield 0 <= head.generation < 1 << 63, "generations"
    yield all(Op.parse(op).name == kernel for op in others), "operations"
    yield len({(row[0], row[1], row[3]) for row in head.rows}) == len(head.rows), "rows"
    yield len(set(head.configs)) == len(head.configs), "configurations"
    yield len(set(head.ids)) == len(head.ids) and set(head.ids) <= patterns, "ids"


def _of_runs(head: _Head, a: Arrays) -> Iterator[tuple[bool, str]]:
    rows, count = len(head.rows), len(a["column"])
    indptr, column = a["indptr"], a["column"]
    yield all(len(a[k]) == count for k in ("seconds", "conversion", "spread")), "lengths"
    yield len(a["default_s"]) == rows and len(indptr) == rows + 1, "lengths"
    yield indptr[0] == 0 and indptr[-1] == count and bool((np.diff(indptr) >= 0).all()), "parts"
    yield bool(((column >= 0) & (column < len(head.configs))).all()), "columns"
    # A failed run has an infinite time, a default that did not run nan.
    yield bool((a["seconds"] > 0).all() and not (a["default_s"] <= 0).any()), "times"
    yield bool((a["spread"] >= 0).all()), "spreads"


def _of_vectors(head: _Head, a: Arrays) -> Iterator[tuple[bool, str]]:
    count, dim = a["vectors"].shape
    places, distances = a["near"], a["near_distances"]
    yield count == len(head.ids) and dim >= 1, "vectors"
    yield bool(np.isfinite(a["vectors"]).all()), "vectors"
    yield a["metric_center"].shape == a["metric_scale"].shape == (dim,), "metrics"
    yield a["metric_stretch"].shape == (dim, dim), "metrics"
    yield all(np.isfinite(a[k]).all() for k in a if k.startswith("metric_")), "metrics"
    yield bool((a["metric_scale"] > 0).all()), "metrics"
    yield bool((a["far"] >= 0).all() and np.isfinite(a["far"]).all()), "distances"
    yield bool((np.diff(a["far"]) >= 0).all()), "distances"
    yield places.shape == distances.shape and len(places) == count, "neighbours"
    yield bool(((places >= -1) & (places < count)).all()), "neighbours"
    yield bool((distances >= 0).all()), "neighbours"
