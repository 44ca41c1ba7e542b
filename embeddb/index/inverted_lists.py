"""Nearest vectors among very many: lists by nearest centre, of which a question reads a few.

An inverted file with flat lists (IVF; Jégou, Douze and Schmid 2011, section IV). Centres come from
FAISS's k-means. The file format is our own: FAISS trusts the bytes of its files, and here a list is
read, and its digest checked, only when a query needs it, so opening takes the same time however
many vectors there are.

Layout of the bytes, little-endian: int64 lists l, dimensions d, vectors n and lists probed; float64
recall; offsets int64[l+1]; a blake2b-128 of each list; centres float32[l,d]; then list after list
the ids (16 bytes each) and vectors float32[.,d].
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import StoreCorrupt
from embeddb.index.vectors import distances, faiss, least

_ID, _DIGEST, _WORDS = 16, 16, 5
#: Lists per square root of the number of vectors: a query then reads as many centres as vectors.
_PER_ROOT = 2.0
#: Numbers of lists that are tried until this share of the nearest `_OF` is retrieved.
_PROBES = (4, 8, 16, 32, 64, 128, 256)
_RECALL, _OF, _QUERIES = 0.99, 20, 200
#: Rounds of k-means and vectors per centre; more of either hardly improve the centres.
_ROUNDS, _PER_CENTRE = 10, 64

Floats = NDArray[np.float32]


class Recall(NamedTuple):
    """`share` of the exact nearest `_OF` vectors that reading `lists` lists retrieves."""

    share: float
    lists: int


@dataclass(frozen=True, slots=True, eq=False)
class InvertedLists:
    """`centres` float32[l,d], `offsets` int64[l+1] of the lists among all vectors, their `digests`;
    `recall` as it was measured when they were built. `newer` are vectors float32[d] by id that were
    added or replaced since. `block` reads a number of bytes of the lists from an offset."""

    centres: Floats
    offsets: NDArray[np.int64]
    digests: bytes
    recall: Recall
    block: Callable[[int, int], bytes]
    newer: Mapping[bytes, Floats] = field(default_factory=dict)

    @property
    def dim(self) -> int:
        return int(self.centres.shape[1])

    @property
    def count(self) -> int:
        """Number of vectors they were built from."""
        return int(self.offsets[-1])

    @classmethod
    def build(cls, ids: Sequence[str], vectors: Floats) -> InvertedLists:
        """Build from distinct ids and finite vectors float32[n,d]; deterministic."""
        count = max(1, round(_PER_ROOT * math.sqrt(len(ids))))
        centres = _centres(vectors, count)
        place = _nearest_centre(vectors, centres)
        order = np.lexsort((np.arange(len(ids)), place))
        offsets = np.concatenate([[0], np.cumsum(np.bincount(place, minlength=count))])
        blocks = []
        for start, end in pairwise(offsets):
            rows = order[start:end]
            raw = b"".join(bytes.fromhex(ids[i]) for i in rows)
            blocks.append(raw + vectors[rows].astype("<f4").tobytes())
        data = b"".join(blocks)
        lists = cls(
            centres,
            offsets.astype(np.int64),
            b"".join(map(_digest, blocks)),
            Recall(1.0, count),
            lambda at, size: data[at : at + size],
        )
        return replace(lists, recall=lists._measured_recall(ids, vectors))

    def _measured_recall(self, ids: Sequence[str], vectors: Floats) -> Recall:
        """The least number of lists with a recall of `_RECALL`, measured on a sample of vectors."""
        some = np.linspace(0, len(ids) - 1, min(_QUERIES, len(ids))).astype(np.int64)
        k = min(_OF, len(ids))
        nearest = faiss().knn(vectors[some], vectors, k)[1]
        exact = [{bytes.fromhex(ids[at]) for at in row} for row in nearest]
        for probed in (n for n in _PROBES if n < len(self.centres)):
            retrieved = (self._probed(vectors[at], k, probed, ())[0] for at in some)
            pairs = zip(exact, retrieved, strict=True)
            hits = sum(len(one.intersection(other)) for one, other in pairs)
            if (share := hits / (k * len(some))) >= _RECALL:
                return Recall(share, probed)
        return Recall(1.0, len(self.centres))

    def nearest(
        self, query: Floats, k: int, *, exclude: Collection[str] = ()
    ) -> tuple[list[str], Floats]:
        """The k nearest ids to float32[d] in the nearest lists, by (distance, id), and their L2
        distances float32[<=k]. Raises: StoreCorrupt for a list with another digest."""
        barred = [bytes.fromhex(i) for i in exclude]
        ids, far = self._probed(query, k, self.recall.lists, barred)
        return [i.hex() for i in ids], far

    def _probed(
        self, query: Floats, k: int, probed: int, barred: Collection[bytes]
    ) -> tuple[list[bytes], Floats]:
        left_out = {*self.newer, *barred}
        new = [i for i in self.newer if i not in barred]
        ids = [b"".join(new)]
        parts = [np.array([self.newer[i] for i in new], np.float32).reshape(-1, self.dim)]
        near = np.argsort(distances(self.centres, query), kind="stable")
        count = len(new)
        for read, at in enumerate(near.tolist()):
            if read >= probed and count >= k + len(left_out):
                break
            list_ids, vectors = self._list(at)
            ids.append(list_ids)
            parts.append(vectors)
            count += len(vectors)
        names, far = b"".join(ids), distances(np.concatenate(parts), query)
        rows: list[int] = least(far, k + len(left_out) + len(new)).tolist()
        nearest = sorted((float(far[row]), names[row * _ID : (row + 1) * _ID], row) for row in rows)
        nearest = [one for one in nearest if one[2] < len(new) or one[1] not in left_out][:k]
        return [name for _, name, _ in nearest], far[[row for *_, row in nearest]]

    def _list(self, at: int) -> tuple[bytes, Floats]:
        """Ids, 16 bytes each, and vectors float32[n,d] of one list."""
        start, end = int(self.offsets[at]), int(self.offsets[at + 1])
        row = _ID + 4 * self.dim
        raw = self.block(start * row, (end - start) * row)
        if _digest(raw) != self.digests[at * _DIGEST : (at + 1) * _DIGEST]:
            raise StoreCorrupt("a list of vectors is not as it was written")
        ids = (end - start) * _ID
        return raw[:ids], np.frombuffer(raw, "<f4", offset=ids).reshape(-1, self.dim)

    def check(self) -> None:
        """Read all lists. Raises: StoreCorrupt for one with another digest."""
        for at in range(len(self.centres)):
            self._list(at)

    def including(self, vectors: Mapping[str, Floats]) -> InvertedLists:
        """Copy with further vectors float32[d]; those of known ids are replaced."""
        newer = {bytes.fromhex(i): vector for i, vector in vectors.items()}
        return replace(self, newer={**self.newer, **newer})

    # -- bytes -----------------------------------------------------------------------------

    def head(self) -> bytes:
        """The bytes before the lists, with the digests of the lists."""
        words = np.array([len(self.centres), self.dim, self.count, self.recall.lists], "<i8")
        sizes = words.tobytes() + np.array([self.recall.share], "<f8").tobytes()
        centres = self.centres.astype("<f4").tobytes()
        return sizes + self.offsets.astype("<i8").tobytes() + self.digests + centres

    def body(self) -> bytes:
        """The bytes of the lists."""
        return self.block(0, self.count * (_ID + 4 * self.dim))

    @classmethod
    def read(cls, data: Callable[[int, int], bytes], size: int) -> tuple[InvertedLists, bytes]:
        """Lists in `size` bytes, of which `data` reads a number from an offset; and their head,
        whose digest the caller checks. Raises: StoreCorrupt for sizes or centres that are not
        consistent."""
        if size < 8 * _WORDS:
            raise StoreCorrupt("a file of lists without its sizes")
        words = np.frombuffer(data(0, 8 * _WORDS), "<i8")
        if not (words[:4] > 0).all():
            raise StoreCorrupt("a file of lists without its sizes")
        count, dim, total, probed = map(int, words[:4])
        length = 8 * (_WORDS + count + 1) + _DIGEST * count + 4 * count * dim
        if length + total * (_ID + 4 * dim) != size:
            raise StoreCorrupt("a file of lists that is not as long as it says")
        head = data(0, length)
        offsets = np.frombuffer(head, "<i8", count + 1, 8 * _WORDS).astype(np.int64)
        if offsets[0] or offsets[-1] != total or (np.diff(offsets) < 0).any():
            raise StoreCorrupt("lists that are not one after the other")
        at = 8 * (_WORDS + count + 1)
        centres = np.frombuffer(head, "<f4", count * dim, at + _DIGEST * count)
        if not np.isfinite(centres).all():
            raise StoreCorrupt("centres that are none")
        share = float(np.frombuffer(head, "<f8", 1, 32)[0])
        lists = cls(
            centres.reshape(count, dim),
            offsets,
            head[at : at + _DIGEST * count],
            Recall(share, min(probed, count)),
            lambda start, size: data(length + start, size),
        )
        return lists, head


def _digest(raw: bytes) -> bytes:
    return hashlib.blake2b(raw, digest_size=_DIGEST).digest()


def _nearest_centre(vectors: Floats, centres: Floats) -> NDArray[np.int64]:
    """int64[n], computed in blocks of vectors."""
    square = (centres.astype(np.float64) ** 2).sum(axis=1)
    nearest = np.empty(len(vectors), dtype=np.int64)
    for at in range(0, len(vectors), 8192):
        part = vectors[at : at + 8192]
        nearest[at : at + 8192] = (square - 2.0 * (part @ centres.T)).argmin(axis=1)
    return nearest


def _centres(vectors: Floats, count: int) -> Floats:
    """float32[count,d] centres of float32[n,d] by k-means with a fixed seed."""
    kmeans = faiss().Kmeans(
        int(vectors.shape[1]),
        count,
        niter=_ROUNDS,
        seed=1,
        min_points_per_centroid=1,
        max_points_per_centroid=_PER_CENTRE,
    )
    kmeans.train(np.ascontiguousarray(vectors, dtype=np.float32))
    return np.asarray(kmeans.centroids, dtype=np.float32).reshape(count, -1)
