"""One partition made ready to answer: evidence, vectors in an index, and how to vote.

A partition is everything measured for one op in one *scope*: a platform, or all instances of a
platform that declares itself portable. Its files lie under `index/` in the database folder, are
derived from the store, carry the store's generation and a checksum, and are rebuilt when either
does not hold.
"""

from __future__ import annotations

import io
import json
import math
import zipfile
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embeddb.config import Config, Op
from embeddb.errors import StoreCorrupt, UsageError
from embeddb.evidence import WINNER_GAIN, Evidence, EvidenceRow, curve_of, join
from embeddb.featurizers import NEED_NETWORK
from embeddb.platform import Platform
from embeddb.policy import (
    Metric,
    Policy,
    effects,
    fit_policy,
    greedy_cover,
    mean_gain,
    surely_positive,
    votes,
)
from embeddb.records import PatternInfo
from embeddb.store import Partition, Store
from embeddb.vectors import VectorIndex
from embeddb.vectors.faiss_index import FaissIndex

__all__ = ["PartitionIndex", "build_evidence", "scope_of"]


def scope_of(platform: Platform) -> str:
    """Portable platforms share evidence between instances; others keep to themselves."""
    return platform.name if platform.portable else platform.id


@dataclass(frozen=True, slots=True, eq=False)
class Averages:
    """What holds for the platform as a whole, over r rows and c configurations.

    `level` float64[r] and `prior` float64[c] are the additive fit of the gains, `mean` float64[c]
    the plain mean gain, `cover` int64[<=c] a fixed set that serves most patterns, best first.
    In the latter two a failure counts as the default, which is what trying it would cost. A
    finite number of `calls` shares out the conversion, as in `Evidence.gains`.
    """

    level: NDArray[np.float64]
    prior: NDArray[np.float64]
    mean: NDArray[np.float64]
    cover: NDArray[np.int64]

    @classmethod
    def of(cls, evidence: Evidence, *, calls: float = math.inf) -> Averages:
        tried = evidence.gains(calls=calls, failed=0.0)
        fit = effects(votes(evidence.gains(calls=calls)))
        return cls(*fit, mean_gain(tried), greedy_cover(tried))


@dataclass(frozen=True, eq=False)
class PartitionIndex:
    """Shapes: `ids` p patterns; `vectors` float32[p,d] raw features; `row_of` the evidence rows
    of each pattern; `far` float64[p] ascending leave-one-group-out nearest distances."""

    op: Op
    scope: str
    featurizer: str
    generation: int
    evidence: Evidence
    ids: tuple[str, ...]
    vectors: NDArray[np.float32]
    metric: Metric
    policy: Policy
    averages: Averages
    far: NDArray[np.float64]
    index: VectorIndex

    @classmethod
    def build(
        cls,
        evidence: Evidence,
        readable: Mapping[str, Mapping[str, NDArray[np.float32]]],
        *,
        scope: str,
        generation: int = 0,
    ) -> PartitionIndex:
        """Fit metric and policy, and index every pattern that has a vector.

        `readable` holds raw vectors float32[d] by pattern id for one or more featurizers, in
        order of preference: the one whose neighbours answer best with groups held out is used. One
        that needs a network must be better by more than two standard errors.
        """
        tried = {name: _fitted(evidence, vectors) for name, vectors in readable.items()}
        name = _preferred(tried)
        fit = tried[name]
        return cls(
            evidence.op,
            scope,
            name,
            generation,
            evidence,
            fit.ids,
            fit.raw,
            fit.metric,
            fit.policy,
            Averages.of(evidence),
            fit.far,
            FaissIndex.build(fit.ids, fit.metric.apply(fit.raw)),
        )

    def nearest(
        self, vector: NDArray[np.float32], *, exclude: Collection[str] = ()
    ) -> tuple[list[str], NDArray[np.float64]]:
        """The policy's k nearest patterns to raw features float32[d], with distances."""
        ids, distances = self.index.search(
            self.metric.apply(vector[None, :]), self.policy.k, exclude=exclude
        )
        return ids[0], np.asarray(distances[0][: len(ids[0])], dtype=np.float64)

    def percentile(self, distance: float) -> float:
        """Share of leave-one-out nearest distances that are smaller than `distance`."""
        if not self.far.size:
            return math.nan
        return float(np.searchsorted(self.far, distance, side="left")) / self.far.size

    def row_of(self, pattern_id: str, platform: str) -> int:
        """The evidence row of an indexed pattern: the asked platform's, else the fullest."""
        found = self._rows_by_pattern[pattern_id]
        own = [i for i in found if self.evidence.rows[i].platform == platform]
        lengths = np.diff(self.evidence.indptr)
        return own[0] if own else max(found, key=lambda i: (int(lengths[i]), -i))

    @cached_property
    def _rows_by_pattern(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for at, row in enumerate(self.evidence.rows):
            found.setdefault(row.pattern_id, []).append(at)
        return found

    def describe(self) -> dict[str, Any]:
        """What can be answered from here, for reports."""
        return {
            "op": str(self.op),
            "scope": self.scope,
            "featurizer": self.featurizer,
            "patterns": len({row.pattern_id for row in self.evidence.rows}),
            "indexed": len(self.ids),
            "configs": len(self.evidence.configs),
            "measured": len(self.evidence.seconds),
            "noise": self.evidence.noise,
            "disagreeing": int((self.evidence.spread > 0.2).sum()),
            "without_default": int((~self.evidence.knows_default).sum()),
            **self._held_out(),
        }

    def _held_out(self) -> dict[str, Any]:
        """How the policy did with groups held out. Of winners only the hits can be counted."""
        found = self.policy.describe()
        if not self.evidence.winners:
            return found
        hits = {
            "winner_hits_held_out": 1.0 - self.policy.loss / WINNER_GAIN,
            "static_best_hits_held_out": 1.0 - self.policy.static_loss / WINNER_GAIN,
        }
        return {**found, "of_optimum_held_out": None, "static_best_held_out": None, **hits}

    def to_bytes(self) -> bytes:
        """Everything but the index itself, as an uncompressed npz without objects."""
        e = self.evidence
        head = {
            "op": str(self.op),
            "scope": self.scope,
            "featurizer": self.featurizer,
            "generation": self.generation,
            "rows": [list(row) for row in e.rows],
            "configs": [c.json for c in e.configs],
            "ids": list(self.ids),
            "winners": e.winners,
            "policy": self.policy.to_json(),
        }
        out = io.BytesIO()
        arrays: dict[str, Any] = {
            "head": np.frombuffer(json.dumps(head).encode(), dtype=np.uint8),
            **{name: getattr(e, name) for name in _EVIDENCE_ARRAYS},
            "vectors": self.vectors,
            **{f"averages_{k}": getattr(self.averages, k) for k in Averages.__slots__},
            "far": self.far,
            **{f"metric_{k}": v for k, v in self.metric.arrays().items()},
        }
        np.savez(out, **arrays)
        return out.getvalue()

    @classmethod
    def from_bytes(cls, raw: bytes, index: Any) -> PartitionIndex:
        """`index(ids, vectors)` gives the index. Raises: StoreCorrupt."""
        try:
            with np.load(io.BytesIO(raw), allow_pickle=False) as z:
                a = {name: z[name] for name in z.files}
            return cls._revived(json.loads(a.pop("head").tobytes()), a, index)
        except _UNREADABLE as e:
            raise StoreCorrupt(f"a partition file cannot be read: {e}") from e

    @classmethod
    def _revived(cls, head: Mapping[str, Any], a: Mapping[str, Any], index: Any) -> PartitionIndex:
        evidence = Evidence(
            op=Op.parse(head["op"]),
            rows=tuple(EvidenceRow(*row) for row in head["rows"]),
            configs=tuple(Config.from_json(c) for c in head["configs"]),
            winners=bool(head["winners"]),
            **{k: a[k] for k in _EVIDENCE_ARRAYS},
        )
        metric = Metric.from_arrays(
            {k.removeprefix("metric_"): v for k, v in a.items() if k.startswith("metric_")}
        )
        ids = tuple(head["ids"])
        return cls(
            evidence.op,
            head["scope"],
            head["featurizer"],
            head["generation"],
            evidence,
            ids,
            a["vectors"],
            metric,
            Policy.from_json(head["policy"]),
            Averages(*(a[f"averages_{k}"] for k in Averages.__slots__)),
            a["far"],
            index(ids, metric.apply(a["vectors"])),
        )


#: What reading a file of an older program, or one that is no npz, may raise.
_UNREADABLE = (
    ValueError, KeyError, IndexError, OSError, EOFError, TypeError, zipfile.BadZipFile, UsageError,
)  # fmt: skip


#: Standard errors by which neighbours found with a network must be better to be used: it costs
#: torch, its start of a second, and tens of milliseconds a matrix.
_ERRORS = 2.0


class _Fit(NamedTuple):
    """`losses` by row of the evidence: pattern and platform."""

    ids: tuple[str, ...]
    raw: NDArray[np.float32]
    metric: Metric
    policy: Policy
    far: NDArray[np.float64]
    losses: dict[EvidenceRow, float]


def _fitted(evidence: Evidence, vectors: Mapping[str, NDArray[np.float32]]) -> _Fit:
    rows = [i for i, row in enumerate(evidence.rows) if row.pattern_id in vectors]
    ids = tuple(sorted({evidence.rows[i].pattern_id for i in rows}))
    raw = np.array([vectors[i] for i in ids], dtype=np.float32)
    known = evidence.take(np.array(rows, dtype=np.int64))
    at = {pattern_id: i for i, pattern_id in enumerate(ids)}
    of_row = raw[[at[row.pattern_id] for row in known.rows]]
    metric, policy, far, losses = fit_policy(of_row, known.gains(), known.groups)
    return _Fit(ids, raw, metric, policy, far, dict(zip(known.rows, losses.tolist(), strict=True)))


def _preferred(tried: Mapping[str, _Fit]) -> str:
    """The name of least loss; of those that need a network only one that is surely better."""

    def best(names: Iterable[str]) -> str:
        return min(names, key=lambda n: (_loss(tried[n].policy), list(tried).index(n)), default="")

    plain, costly = best(tried.keys() - NEED_NETWORK), best(tried.keys() & NEED_NETWORK)
    if not (plain and costly):
        return plain or costly
    return costly if _surely_better(tried[costly], tried[plain]) else plain


def _surely_better(one: _Fit, other: _Fit) -> bool:
    both = [row for row in one.losses if row in other.losses]
    gain = np.array([other.losses[row] - one.losses[row] for row in both])
    judged = np.isfinite(gain)
    group = np.unique([row.group for row in both], return_inverse=True)[1]
    return bool(judged.any()) and surely_positive(gain[judged], group[judged], errors=_ERRORS)


def _loss(policy: Policy) -> float:
    return policy.loss if math.isfinite(policy.loss) else math.inf


_EVIDENCE_ARRAYS = ("indptr", "column", "seconds", "conversion", "spread", "default_s")


def build_evidence(
    store: Store, op: Op, scope: str, *, only: Collection[str] | None = None
) -> Evidence:
    """Evidence of every partition of the scope, or of some patterns of it."""
    platforms = (store.platform(p.platform) for p in scope_partitions(store, op, scope))
    winners = any(p is not None and p.traits.get("winners_only") for p in platforms)
    return join(op, _rows(store, op, scope, only), winners=winners)


def scope_partitions(store: Store, op: Op, scope: str) -> list[Partition]:
    return [
        p for p in store.partitions() if p.op == op and scope in (p.platform, _name(p.platform))
    ]


def _name(platform_id: str) -> str:
    return platform_id.partition("@")[0]


def _rows(store: Store, op: Op, scope: str, only: Collection[str] | None) -> Iterable[Any]:
    if only is None:
        infos = {info.id: info for info in store.patterns()}
    else:
        infos = {i: info for i in only if (info := store.pattern(i)) is not None}
    for partition in scope_partitions(store, op, scope):
        platform = store.platform(partition.platform)
        if platform is None or scope_of(platform) != scope:
            continue
        if only is None:
            chunks = _by_pattern(store.runs(partition.platform, op))
        else:
            chunks = ((i, list(store.runs(partition.platform, op, i))) for i in only)
        for pattern_id, runs in chunks:
            if runs:
                info = infos.get(pattern_id) or PatternInfo(id=pattern_id)
                group = info.group or info.name or info.id
                default = platform.default(op, m=info.m, n=info.n, nnz=info.nnz)
                yield EvidenceRow(pattern_id, partition.platform, group), default, curve_of(runs)


def _by_pattern(runs: Iterable[Any]) -> Iterable[tuple[str, list[Any]]]:
    held: list[Any] = []
    for run in runs:
        if held and held[-1].pattern_id != run.pattern_id:
            yield held[-1].pattern_id, held
            held = []
        held.append(run)
    if held:
        yield held[-1].pattern_id, held
