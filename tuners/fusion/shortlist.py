"""The cuts that a model likes best, kept between sessions: an hour of annealing may be stopped."""

from __future__ import annotations

import heapq
import math

import msgspec

from embeddb.core.errors import TensorError
from embeddb.store import Store
from embeddb.tensors.computation import Computation
from embeddb.tensors.edges import CUT, Cut, edges_of
from embeddb.tensors.partition import CutJudge

__all__ = ["MOST_KEPT", "Shortlist", "kept_shortlist"]

#: Cuts that are kept. Ten minutes of hardware run a few hundred.
MOST_KEPT = 500
#: A note longer than this was not written here.
_MOST_BYTES = 1 << 20


class _Note(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    model: str
    spent_s: float
    seen: int
    current: str
    cuts: list[str]
    seconds: list[float]


class Shortlist:
    """`seconds` by cut; `spent_s` of annealing went into it, in which `seen` cuts were priced by
    the `model` of this version, and the walk has come to `current`, None before it begins."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.seconds: dict[Cut, float] = {}
        self.spent_s, self.seen = 0.0, 0
        self.current: Cut | None = None

    def add(self, cut: Cut, seconds: float) -> None:
        """One that was not seen in this session."""
        self.seen += 1
        if math.isfinite(seconds):
            self.seconds[cut] = seconds
        if len(self.seconds) > 2 * MOST_KEPT:
            self.seconds = dict(self.best())

    def best(self) -> list[tuple[Cut, float]]:
        """At most `MOST_KEPT`, the fastest first."""
        return heapq.nsmallest(MOST_KEPT, self.seconds.items(), key=lambda told: told[1])

    def keep(self, store: Store, key: str) -> None:
        """As a note of the store, where it can be written to."""
        if store.readonly or self.current is None:
            return
        best = self.best()
        note = _Note(
            model=self.model,
            spent_s=self.spent_s,
            seen=self.seen,
            current=self.current.text,
            cuts=[cut.text for cut, _ in best],
            seconds=[seconds for _, seconds in best],
        )
        store.notes.put(key, msgspec.json.encode(note))


def kept_shortlist(store: Store, key: str, program: Computation, model: str) -> Shortlist:
    """What was kept of this program under the key by this model; an empty one where there is none,
    or none that can be believed."""
    raw = store.notes.get(key)
    if raw is None or len(raw) > _MOST_BYTES:
        return Shortlist(model)
    try:
        note = msgspec.json.decode(raw, type=_Note)
        told = dict(zip((_cut(program, text) for text in note.cuts), note.seconds, strict=True))
        current = _cut(program, note.current)
    except (msgspec.MsgspecError, TensorError, ValueError):
        return Shortlist(model)
    if note.model != model or not all(0 < s < math.inf for s in (*note.seconds, note.spent_s)):
        return Shortlist(model)
    found = Shortlist(model)
    found.seconds, found.current = told, current
    found.spent_s, found.seen = note.spent_s, note.seen
    return found


def _cut(program: Computation, text: str) -> Cut:
    """Raises: TensorError for one that is not legal."""
    if reason := CutJudge(program).reason({CUT: text}):
        raise TensorError(reason)
    return Cut.read(text, len(edges_of(program).pairs))
