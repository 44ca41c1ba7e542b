"""Nearest vectors among very many: lists by nearest centre, of which a question reads a few.

An inverted file with flat lists (IVF; Jégou, Douze and Schmid 2011, section IV). Centres are found
by FAISS's k-means; what is kept and read is our own, for FAISS believes the bytes of its files, and
because a list is only read, and its digest only checked, when a question comes by: opening takes
the same time however many vectors there are.

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
from embeddb.index.vectors.faiss_index import centres_of, nearest_places
from embeddb.index.vectors.numpy_index import distances

_ID, _DIGEST, _WORDS = 16, 16, 5
#: Lists per square root of the number of vectors: a question then looks at as many centres as at
#: vectors.
_PER_ROOT = 2.0
#: Numbers of lists that are tried, until the recall is what is wanted.
_PROBES = (4, 8, 16, 32, 64, 128, 256)
_WANTED, _OF, _QUESTIONS = 0.99, 20, 200

Floats = NDArray[np.float32]


class Recall(NamedTuple):
    """`share` of the truly nearest `_OF` that were found where `lists` lists are read."""

    share: float
    lists: int


class _Kept(NamedTuple):
    """Ids, 16 bytes each, and vectors float32[n,d] of one list."""

    ids: bytes
    vectors: Floats


@dataclass(frozen=True, slots=True, eq=False)
class InvertedLists:
    """`centres` float32[l,d], `offsets` int64[l+1] of the lists among all vectors, their `digests`;
    `recall` as it was judged when they were made. `newer` are vectors float32[d] by id that came
    since, or took another's place. `block` gives bytes of the lists from an offset on."""

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
        """Of the vectors they were made from."""
        return int(self.offsets[-1])

    @classmethod
    def build(cls, ids: Sequence[str], vectors: Floats) -> InvertedLists:
        """Of distinct ids and finite vectors float32[n,d]; the same each time."""
        count = max(1, round(_PER_ROOT * math.sqrt(len(ids))))
        centres = centres_of(vectors, count)
        place = _nearest_centre(vectors, centres)
        order = np.lexsort((np.arange(len(ids)), place))
        offsets = np.concatenate([[0], np.cumsum(np.bincount(place, minlength=count))])
        blocks = []
        for start, end in pairwise(offsets):
            rows = order[start:end]
            raw = b"".join(bytes.fromhex(ids[i]) for i in rows)
            blocks.append(raw + vectors[rows].astype("<f4").tobytes())
        data = b"".join(blocks)
        made = cls(
            centres,
            offsets.astype(np.int64),
            b"".join(map(_digest, blocks)),
            Recall(1.0, count),
            lambda at, size: data[at : at + size],
        )
        return replace(made, recall=made._judged(ids, vectors))

    def _judged(self, ids: Sequence[str], vectors: Floats) -> Recall:
        """The least number of lists with the recall that is wanted, over some of the vectors."""
        some = np.linspace(0, len(ids) - 1, min(_QUESTIONS, len(ids))).astype(np.int64)
        k = min(_OF, len(ids))
        nearest = nearest_places(vectors, vectors[some], k)
        exact = [{bytes.fromhex(ids[at]) for at in row} for row in nearest]
        for probed in (n for n in _PROBES if n < len(self.centres)):
            found = (self._probed(vectors[at], k, probed, ())[0] for at in some)
            hits = sum(len(one.intersection(two)) for one, two in zip(exact, found, strict=True))
            if (share := hits / (k * len(some))) >= _WANTED:
                return Recall(share, probed)
        return Recall(1.0, len(self.centres))

    def nearest(
        self, query: Floats, k: int, *, exclude: Collection[str] = ()
    ) -> tuple[list[str], Floats]:
        """The k nearest ids to float32[d] among the lists that are read, by (distance, id), and
        their L2 distances float32[<=k]. Raises: StoreCorrupt for a list that is not as written."""
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
            kept = self._list(at)
            ids.append(kept.ids)
            parts.append(kept.vectors)
            count += len(kept.vectors)
        names, far = b"".join(ids), distances(np.concatenate(parts), query)
        rows = _least(far, k + len(left_out) + len(new))
        found = [(float(far[row]), names[row * _ID : (row + 1) * _ID], row) for row in rows]
        kept_rows = [one for one in sorted(found) if one[2] < len(new) or one[1] not in left_out]
        return [name for _, name, _ in kept_rows[:k]], far[[row for *_, row in kept_rows[:k]]]

    def _list(self, at: int) -> _Kept:
        start, end = int(self.offsets[at]), int(self.offsets[at + 1])
        row = _ID + 4 * self.dim
        raw = self.block(start * row, (end - start) * row)
        if _digest(raw) != self.digests[at * _DIGEST : (at + 1) * _DIGEST]:
            raise StoreCorrupt("a list of vectors is not as it was written")
        ids = (end - start) * _ID
        vectors = np.frombuffer(raw, "<f4", offset=ids).reshape(-1, self.dim)
        return _Kept(raw[:ids], vectors)

    def check(self) -> None:
        """Read all of them. Raises: StoreCorrupt for a list that is not as written."""
        for at in range(len(self.centres)):
            self._list(at)

    def including(self, vectors: Mapping[str, Floats]) -> InvertedLists:
        """With vectors float32[d] that came since; one of an id that is there takes its place."""
        return replace(
            self, newer={**self.newer, **{bytes.fromhex(i): v for i, v in vectors.items()}}
        )

    # -- bytes -----------------------------------------------------------------------------

    def head(self) -> bytes:
        """Everything before the lists; its digest vouches for theirs."""
        words = np.array([len(self.centres), self.dim, self.count, self.recall.lists], "<i8")
        share = np.array([self.recall.share], "<f8")
        return b"".join(
            [
                words.tobytes(),
                share.tobytes(),
                self.offsets.astype("<i8").tobytes(),
                self.digests,
                self.centres.astype("<f4").tobytes(),
            ]
        )

    def body(self) -> bytes:
        """The lists."""
        return self.block(0, self.count * (_ID + 4 * self.dim))

    @classmethod
    def read(cls, data: Callable[[int, int], bytes], size: int) -> tuple[InvertedLists, bytes]:
        """Out of `size` bytes, of which `data` gives so many from an offset on; and the head, whose
        digest says whether it is the one that was written.

        Raises: StoreCorrupt for what the bytes themselves do not fill.
        """
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
        found = cls(
            centres.reshape(count, dim),
            offsets,
            head[at : at + _DIGEST * count],
            Recall(share, min(probed, count)),
            lambda start, size: data(length + start, size),
        )
        return found, head


def _digest(raw: bytes) -> bytes:
    return hashlib.blake2b(raw, digest_size=_DIGEST).digest()


def _least(far: Floats, count: int) -> list[int]:
    """Rows of the least distances, at least `count` with all that are as far as the last."""
    if count >= len(far):
        return list(range(len(far)))
    rows: list[int] = np.flatnonzero(far <= np.partition(far, count - 1)[count - 1]).tolist()
    return rows


def _nearest_centre(vectors: Floats, centres: Floats) -> NDArray[np.int64]:
    """int64[n], a block at a time."""
    square = (centres.astype(np.float64) ** 2).sum(axis=1)
    found = np.empty(len(vectors), dtype=np.int64)
    for at in range(0, len(vectors), 8192):
        part = vectors[at : at + 8192]
        found[at : at + 8192] = (square - 2.0 * (part @ centres.T)).argmin(axis=1)
    return found
