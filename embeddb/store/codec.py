"""Encoding of keys and values of the tables (docs/reference/data-model.md)."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.errors import StoreCorrupt, UsageError
from embeddb.core.files.safe_read import reason_of
from embeddb.core.kinds import is_foreign, kind_of
from embeddb.core.pattern import Pattern
from embeddb.core.records import Measurement, Run, WorkloadInfo
from embeddb.core.sizes import MAX_DIM, Sizes
from embeddb.core.workload import Workload
from embeddb.store.engine import text_of

P = ParamSpec("P")
T = TypeVar("T")
_encoder = msgspec.msgpack.Encoder()
_info_decoder = msgspec.msgpack.Decoder(WorkloadInfo)
#: Largest compression ratio of deflate.
_MOST_SHRUNK = 1032


def _decodes(what: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Turn any exception of a decoder into a StoreCorrupt: the bytes come from a file that others
    may have written. A plain wrapper, since rows are decoded by the hundred thousand."""

    def wrapped(decode: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(decode)
        def decoded(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return decode(*args, **kwargs)
            except StoreCorrupt:
                raise
            except Exception as error:
                raise StoreCorrupt(f"{what} cannot be decoded: {reason_of(error)}") from error

        return decoded

    return wrapped


def pattern_key(pattern_id: str) -> bytes:
    """The 16 bytes of an id. Raises: UsageError if it is not 32 lower-case hex digits."""
    try:
        key = bytes.fromhex(pattern_id)
    except ValueError:
        key = b""
    if len(key) != 16 or key.hex() != pattern_id:
        raise UsageError(f"{pattern_id!r} is not a pattern id", hint="an id is 32 hex digits")
    return key


class RunRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A run without the parts in its key (table number, workload, run id). `imported`: it came with
    an import, so runs measured here take precedence (`embeddb.store.merge_runs`); `source` is the
    number of the contributor who pushed it (`embeddb.store.sources`), 0 where unknown."""

    config_id: bytes
    measurement: Measurement
    campaign: str = ""
    replaces: str = ""
    imported: bool = False
    source: int = 0

    @classmethod
    def of(cls, run: Run, *, imported: bool = False, source: int = 0) -> RunRow:
        config_id = bytes.fromhex(run.config.id)
        return cls(config_id, run.measurement, run.campaign, run.replaces, imported, source)

    def run(self, pattern_id: str, op: Op, platform: str, config: Config) -> Run:
        return Run(pattern_id, op, platform, config, self.measurement, self.campaign, self.replaces)


_row_decoder = msgspec.msgpack.Decoder(RunRow)


def encode_row(row: RunRow) -> bytes:
    if row.source:
        return _encoder.encode(row)
    own = (row.config_id, row.measurement, row.campaign, row.replaces)
    return _encoder.encode((*own, True) if row.imported else own)


@_decodes("a stored run")
def decode_row(raw: bytes) -> RunRow:
    """Decode a run. Raises: StoreCorrupt."""
    return _row_decoder.decode(raw)


@_decodes("a stored configuration")
def decode_config(raw: bytes) -> Config:
    """Decode a configuration. Raises: StoreCorrupt."""
    return Config.from_json(raw)


def encode_info(info: WorkloadInfo) -> bytes:
    """Encode facts about a workload. Raises: UsageError if a field cannot be stored."""
    try:
        raw = _encoder.encode(info)
        _info_decoder.decode(raw)
    except Exception as e:
        raise UsageError(f"pattern {info.name!r} cannot be stored: {reason_of(e)}") from e
    return raw


@_decodes("a stored pattern")
def decode_info(raw: bytes) -> WorkloadInfo:
    """Decode facts about a workload. Raises: StoreCorrupt."""
    return _info_decoder.decode(raw)


def decode_partition(key: bytes, number: bytes) -> tuple[Op | str, str]:
    """Op and platform id; the text of an op whose kind of workload is a plug-in that is not here.
    Raises: StoreCorrupt."""
    text = text_of("partition", key)
    try:
        op, _, platform = text.partition("\0")
        if not platform or len(number) != 4:
            raise ValueError("it lacks a platform or a number")
        return op if is_foreign(op) else Op.parse(op), platform
    except Exception as e:
        raise StoreCorrupt(f"partition {text[:80]!r} is none: {reason_of(e)}") from e


def encode_workload(workload: Workload, info: WorkloadInfo) -> tuple[str, bytes]:
    """Table and bytes of a workload. Raises: UsageError for facts about another workload."""
    if info.id != workload.id:
        raise UsageError(f"the facts are about pattern {info.id}, not {workload.id}")
    kind = kind_of(workload.kind)
    return kind.table, kind.encode(workload)


def encode_structure(pattern: Pattern) -> bytes:
    """Row lengths and column gaps as little-endian int32, deflated at the fastest level.

    Gaps within a row are small where the pattern is local, which is what deflate needs.
    """
    lengths = np.diff(pattern.indptr)
    starts = pattern.indptr[:-1][lengths > 0]
    gaps = np.diff(pattern.indices, prepend=np.int32(0)).astype("<i4")
    gaps[starts] = pattern.indices[starts]
    head = np.array([*pattern.shape, pattern.nnz], dtype="<i8").tobytes()
    return head + zlib.compress(lengths.astype("<i4").tobytes() + gaps.tobytes(), 1)


def decode_structure(raw: bytes, *, pattern_id: str, name: str, group: str) -> Pattern:
    """Decode a matrix. Raises: StoreCorrupt if the bytes do not give the pattern of that id."""
    try:
        shape, indptr, indices = _inflated(raw)
        pattern = Pattern.from_csr(shape, indptr, indices, name=name, group=group)
    except Exception as e:
        message = f"the structure of pattern {pattern_id} is damaged: {reason_of(e)}"
        raise StoreCorrupt(message) from e
    if pattern.id != pattern_id:
        raise StoreCorrupt(f"the structure stored for pattern {pattern_id} does not match that id")
    return pattern


@_decodes("a stored structure")
def structure_sizes(raw: bytes) -> Sizes:
    """Sizes in the header of a stored structure. Raises: StoreCorrupt."""
    m, n, nnz = (int(x) for x in np.frombuffer(raw[:24], dtype="<i8", count=3))
    return Sizes(m, n, nnz)


def _inflated(raw: bytes) -> tuple[tuple[int, int], NDArray[np.int64], NDArray[np.int32]]:
    """Shape, indptr int64[m+1], indices int32[nnz]. Never inflates more than the stated sizes need,
    and rejects sizes that so few bytes cannot hold. Raises: any exception on damaged bytes."""
    m, n, nnz = structure_sizes(raw)
    size = 4 * (m + nnz)
    if not (0 <= m <= MAX_DIM and 0 <= n <= MAX_DIM and nnz >= 0):
        raise ValueError(f"{m} x {n} with {nnz} entries is impossible")
    if size > _MOST_SHRUNK * len(raw):
        raise ValueError(f"{len(raw)} bytes cannot hold {size}")
    both = np.frombuffer(zlib.decompressobj().decompress(raw[24:], size + 1), dtype="<i4")
    lengths, gaps = both[:m], both[m:]
    if gaps.size != nnz or bool((lengths < 0).any()) or int(lengths.sum(dtype=np.int64)) != nnz:
        raise ValueError("row lengths and entries disagree")
    indptr = np.zeros(m + 1, dtype=np.int64)
    np.cumsum(lengths, out=indptr[1:])
    return (m, n), indptr, _columns(indptr, gaps)


def _columns(indptr: NDArray[np.int64], gaps: NDArray[np.int32]) -> NDArray[np.int32]:
    total = np.cumsum(gaps, dtype=np.int64)
    lengths = np.diff(indptr)
    starts = indptr[:-1][lengths > 0]
    base = np.where(starts > 0, total[starts - 1], 0)
    columns: NDArray[np.int64] = total - np.repeat(base, lengths[lengths > 0])
    return columns.astype(np.int32)
