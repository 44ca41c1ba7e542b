"""Training data of cost models: log gains of configurations on matrices, and the matrices."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.errors import RunnerUnavailable, UsageError
from embeddb.core.records import WorkloadInfo
from embeddb.core.row_lengths import RowLengths
from embeddb.core.sizes import Sizes
from embeddb.cost_model import Problem
from embeddb.featurizers import Featurizer, learned_from
from embeddb.featurizers.base import Joint
from embeddb.index.run_matrix import FAILED_GAIN, RunMatrix
from embeddb.index.scopes import scope_of
from embeddb.learning import LEAST_RUNS
from embeddb.platforms.platform import Platform, platform_here, runner_for
from embeddb.store.merge_facts import extends
from embeddb.store.versions import at_latest

if TYPE_CHECKING:
    from embeddb.index.lookup import Lookup

#: Upper ends of the bins of row counts from which matrices are chosen evenly; the last is open.
#: Source: COGNATE, Section 4.1.
ROW_BINS = (8192, 32768, 65536, 131072)
_LEAST_MATRICES = 2
#: Logarithm of how many times slower than the fastest of its row a sample counts at most. With
#: gains cut at -1.5 over the default, first choices of a public log of SDDMM kernels, where the
#: default is fast and others take up to 40,000 times as long, have 0.89 of the optimum, so 0.97;
#: with 3 to 30 about the same; 3 loses 1.6 points of SDDMM 32 on an H200.
_DEEPEST = 6.0

Floats = NDArray[np.float64]


class SampleRow(NamedTuple):
    """One matrix under one op; `sizes` are its rows, columns and non-zeros (-1: unknown)."""

    pattern_id: str
    op: Op
    group: str
    sizes: Sizes


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Ragged runs of one kernel: entries `indptr[i]:indptr[i+1]` belong to `rows[i]`.

    Shapes: `vectors` float32[r,d] of the matrices, raw; `indptr` int64[r+1]; `column` int32[x],
    positions in `configs`; `gain` float64[x] log gain over the row's default, or over its median
    where the default did not run; a failure has that of the slowest run, at most a quarter of the
    default's speed. Higher is faster.
    `noise` is the relative spread of repeated runs. `left_out` counts unusable rows by reason.
    `lengths` has the row lengths of each row's matrix, or is empty; `machines` the platform
    instance of each row, if they are of several, else it is empty.
    """

    platform: Platform
    rows: tuple[SampleRow, ...]
    vectors: NDArray[np.float32]
    configs: tuple[Config, ...]
    indptr: NDArray[np.int64]
    column: NDArray[np.int32]
    gain: Floats
    featurizer: str = "stats"
    featurizer_version: str = ""
    noise: float = 0.0
    left_out: Mapping[str, int] = field(default_factory=dict)
    lengths: tuple[RowLengths | None, ...] = ()
    machines: tuple[Platform, ...] = ()

    @property
    def targets(self) -> Floats:
        """float64[x]: gains as models learn them, cut where a configuration takes 400 times as
        long as the fastest of the row: how much more it takes says nothing about the fastest."""
        row = np.repeat(np.arange(len(self.rows)), np.diff(self.indptr))
        fastest = np.full(len(self.rows), -np.inf)
        np.maximum.at(fastest, row, self.gain)
        return np.maximum(self.gain, fastest[row] - _DEEPEST)

    @property
    def ops(self) -> tuple[Op, ...]:
        return tuple(sorted({row.op for row in self.rows}))

    @property
    def groups(self) -> NDArray[np.str_]:
        return np.array([row.group for row in self.rows], dtype=np.str_)

    @property
    def hash(self) -> str:
        """16 hex digits that identify matrices, their vectors, and runs."""
        digest = hashlib.blake2b(self.platform.digest.encode(), digest_size=8)
        for row in self.rows:
            digest.update(f"{row.pattern_id} {row.op} {row.group}\n".encode())
        for config in self.configs:
            digest.update(config.json.encode())
        for machine in self.machines:
            digest.update(machine.id.encode())
        for array in (self.vectors, self.indptr, self.column, self.gain):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def part(self, row: int) -> slice:
        """The entries of one row."""
        return slice(int(self.indptr[row]), int(self.indptr[row + 1]))

    def _entries(self, row: int) -> NDArray[np.int64]:
        """Positions of the entries of one row."""
        return np.arange(self.indptr[row], self.indptr[row + 1])

    def problem(self, row: int) -> Problem:
        """The matrix and op of one row."""
        info = self.rows[row]
        lengths = self.lengths[row] if self.lengths else None
        platform = self.machines[row] if self.machines else self.platform
        return Problem(self.vectors[row], platform, info.op, info.sizes, lengths)

    def ran(self, row: int) -> list[Config]:
        """The configurations of one row's entries."""
        return [self.configs[at] for at in self.column[self.part(row)]]

    def take(self, rows: Sequence[int] | NDArray[np.int64]) -> Samples:
        """Some rows, in this order, with all configurations."""
        chosen = [int(i) for i in rows]
        return self._with(chosen, [self._entries(i) for i in chosen])

    def without(self, configs: Collection[Config]) -> Samples:
        """The samples without runs of some configurations, and without rows with fewer than two
        others."""
        excluded = set(configs)
        out = np.array([config in excluded for config in self.configs], dtype=np.bool_)
        entries = [self._entries(i) for i in range(len(self.rows))]
        entries = [own[~out[self.column[own]]] for own in entries]
        rows = [i for i, own in enumerate(entries) if own.size > 1]
        return self._with(rows, [entries[i] for i in rows])

    def limited(self, matrices: int, per_matrix: int, seed: int) -> Samples:
        """A balanced choice of `matrices`, and of `per_matrix` configurations of each row.

        Matrices are drawn in turn from the non-empty bins of row counts, in a bin from even shares
        of the matrices ordered by density; configurations are drawn uniformly.

        Source: COGNATE, Section 4.1; taking turns and the shares are ours.
        """
        rng = np.random.default_rng(seed)
        chosen = self._balanced(matrices, rng)
        rows = [i for i, row in enumerate(self.rows) if row.pattern_id in chosen]
        entries = [np.sort(rng.permutation(self._entries(i))[:per_matrix]) for i in rows]
        return self._with(rows, entries)

    def thinned(self, most: int, seed: int) -> Samples:
        """At most `most` entries of each row: half of them drawn from its fastest, half from the
        others."""
        rng = np.random.default_rng(seed)
        rows = range(len(self.rows))
        entries = [
            self.indptr[i] + fastest_and_others(self.gain[self.part(i)], most, rng) for i in rows
        ]
        return self._with(list(rows), entries)

    def _balanced(self, matrices: int, rng: np.random.Generator) -> set[str]:
        sizes = {row.pattern_id: row.sizes for row in self.rows}
        bins: dict[int, list[str]] = {}
        for pattern_id in sorted(sizes):
            at = int(np.searchsorted(ROW_BINS, sizes[pattern_id].m, side="right"))
            bins.setdefault(at, []).append(pattern_id)
        quota = dict.fromkeys(bins, 0)
        for _ in range(min(matrices, len(sizes))):
            open_bins = [b for b in bins if quota[b] < len(bins[b])]
            least = min(quota[b] for b in open_bins)
            quota[rng.choice([b for b in open_bins if quota[b] == least])] += 1
        chosen: set[str] = set()
        for at, count in quota.items():
            ordered = sorted(bins[at], key=lambda i: (_density(sizes[i]), i))
            for share in np.array_split(np.array(ordered, dtype=np.str_), max(count, 1))[:count]:
                chosen.add(str(rng.choice(share)))
        return chosen

    def _with(self, rows: list[int], entries: Sequence[NDArray[np.int64]]) -> Samples:
        ends = np.cumsum([0, *(len(e) for e in entries)]).astype(np.int64)
        pick = np.concatenate([np.zeros(0, dtype=np.int64), *entries])
        return replace(
            self,
            rows=tuple(self.rows[i] for i in rows),
            vectors=self.vectors[rows],
            lengths=tuple(self.lengths[i] for i in rows) if self.lengths else (),
            machines=tuple(self.machines[i] for i in rows) if self.machines else (),
            indptr=ends,
            column=self.column[pick],
            gain=self.gain[pick],
        )

    def check(self) -> None:
        """Check that there is enough to learn from.

        Raises: UsageError, with a hint what to measure.
        """
        here = f"{', '.join(map(str, self.ops)) or 'this op'} on {self.platform.id}"
        why = "".join(f"; {count} left out: {reason}" for reason, count in self.left_out.items())
        for op in self.ops:
            if self.platform.space(op).size() == 1:
                raise UsageError(f"{here}: there is one legal configuration, nothing to choose")
        matrices, runs = len({row.pattern_id for row in self.rows}), len(self.gain)
        if runs and matrices < _LEAST_MATRICES:
            raise UsageError(
                f"{here}: all {runs} runs are of one matrix{why}",
                hint="measure others too: `embeddb campaign plan` chooses",
            )
        if runs < LEAST_RUNS:
            raise UsageError(
                f"{here}: {runs} usable runs, {LEAST_RUNS - runs} too few to learn from{why}",
                hint="measure some 100 configurations on each of 5 or more matrices: "
                "`embeddb campaign plan`",
            )


def fastest_and_others(gain: Floats, most: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Positions of `most` gains float64[x], or of all: half of them drawn from the `most` largest,
    half from the others."""
    if len(gain) <= most:
        return np.arange(len(gain))
    fast = np.argsort(-gain, kind="stable")[:most]
    near = rng.choice(fast, most // 2, replace=False)
    rest = np.setdiff1d(np.arange(len(gain)), near)
    return np.sort(np.concatenate([near, rng.choice(rest, most - len(near), replace=False)]))


def _density(sizes: Sizes) -> float:
    m, n, nnz = sizes
    return nnz / (m * n) if min(m, n) > 0 else 0.0


def from_evidence(
    evidence: RunMatrix,
    vectors: Mapping[str, NDArray[np.float32]],
    infos: Mapping[str, WorkloadInfo],
    platform: Platform,
    op: Op,
    *,
    featurizer: tuple[str, str] = ("stats", ""),
) -> Samples:
    """Samples of one op from evidence and raw vectors float32[d] by pattern id; `featurizer` is
    their name and version.

    Raises: UsageError where only the winners were recorded.
    """
    if evidence.winners:
        raise UsageError(
            f"{op} on {platform.id}: only the best of each matrix was recorded",
            hint="a cost model needs the runs of several configurations on a matrix",
        )
    rows, parts, left_out = [], [], Counter[str]()
    for at, row in enumerate(evidence.rows):
        runs = evidence.row(at)
        reason = _useless(runs.seconds, row.pattern_id in vectors)
        if reason:
            left_out[reason] += 1
            continue
        info = infos.get(row.pattern_id) or WorkloadInfo(id=row.pattern_id)
        rows.append(SampleRow(row.pattern_id, op, row.group, info.sizes))
        parts.append((runs.column, _gains(runs.seconds, float(evidence.default_s[at]))))
    dim = len(next(iter(vectors.values()))) if vectors else 0
    raw = [np.asarray(vectors[row.pattern_id], dtype=np.float32) for row in rows]
    return Samples(
        platform,
        tuple(rows),
        np.array(raw, dtype=np.float32).reshape(len(rows), dim),
        evidence.configs,
        np.cumsum([0, *(len(c) for c, _ in parts)]).astype(np.int64),
        np.concatenate([np.zeros(0, dtype=np.int32), *(c for c, _ in parts)]),
        np.concatenate([np.zeros(0), *(g for _, g in parts)]),
        *featurizer,
        noise=evidence.noise,
        left_out=left_out,
    )


def _useless(seconds: Floats, has_vector: bool) -> str:
    if not has_vector:
        return "no vector of the matrix"
    if not np.isfinite(seconds).any():
        return "every run failed"
    return "" if len(seconds) > 1 else "a single run"


def _gains(seconds: Floats, default_s: float) -> Floats:
    ok = np.isfinite(seconds)
    base = default_s if math.isfinite(default_s) else float(np.median(seconds[ok]))
    measured = math.log(base) - np.log(seconds[ok])
    gains = np.full(len(seconds), min(FAILED_GAIN, float(measured.min())))
    gains[ok] = measured
    return gains


def join(parts: Iterable[Samples]) -> Samples:
    """Join the samples of several ops of one kernel.

    Raises: UsageError for none, or parts of other kernels, spaces or vectors.
    """
    samples = list(parts)
    if not samples:
        raise UsageError("there are no samples to join")
    first = samples[0]
    for other in samples[1:]:
        if len({op.name for part in (first, other) for op in part.ops}) > 1:
            raise UsageError("one cost model is for one kernel", hint="train one for each")
        if (first.platform.digest, first.featurizer, first.featurizer_version) != (
            other.platform.digest,
            other.featurizer,
            other.featurizer_version,
        ):
            raise UsageError("samples of another space or featurizer cannot be joined")
    configs = sorted({c for part in samples for c in part.configs}, key=lambda c: c.json)
    place = {config: at for at, config in enumerate(configs)}
    columns = [
        np.array([place[c] for c in part.configs], dtype=np.int32)[part.column] for part in samples
    ]
    counts = np.concatenate([np.diff(part.indptr) for part in samples])
    left_out = sum((Counter(part.left_out) for part in samples), Counter[str]())
    return replace(
        first,
        rows=tuple(row for part in samples for row in part.rows),
        vectors=np.concatenate([part.vectors for part in samples]),
        lengths=tuple(one for part in samples for one in part.lengths),
        machines=tuple(one for part in samples for one in part.machines),
        configs=tuple(configs),
        indptr=np.cumsum([0, *counts]).astype(np.int64),
        column=np.concatenate(columns),
        gain=np.concatenate([part.gain for part in samples]),
        noise=max(part.noise for part in samples),
        left_out=left_out,
    )


#: From pattern ids to the vectors (possibly empty) of those that are usable.
Reads = Callable[[Collection[str]], Mapping[str, NDArray[np.float32]]]


def samples_of(
    db: Lookup,
    platform: Platform,
    ops: Sequence[Op],
    *,
    featurizer: str = "stats",
    read: Reads | None = None,
) -> Samples:
    """All samples of a database for these ops on one instance of a platform, with the vectors of a
    featurizer. A platform without an instance and runs stands for its only instance with runs.

    With `read` the samples are for a model that is trained end to end: vectors are from `read`, and
    gains as measured.

    Raises: UsageError for ops of several kernels, one without runs, or a featurizer without
    vectors; if several instances have runs and none is named.
    """
    if len({op.name for op in ops}) != 1:
        raise UsageError("one cost model is for one kernel", hint="train one for each")
    platform = _instance(db, platform, ops)
    parts = []
    for op in dict.fromkeys(ops):
        evidence, readable = db.evidence(op, scope_of(platform))
        evidence = evidence.of_platform(platform.id)
        if not evidence.rows:
            ran = {p: (p.platform, p.platform.partition("@")[0]) for p in db.store.partitions()}
            have = sorted({str(p.op) for p, names in ran.items() if platform.id in names})
            raise UsageError(
                f"{op} on {platform.id}: there are no runs",
                hint=f"there are runs of: {', '.join(have) or 'nothing on this platform'}",
            )
        parts.append(_of_one(db, evidence, readable, platform, featurizer, read))
    return join(parts)


def _of_one(
    db: Lookup,
    evidence: RunMatrix,
    readable: Mapping[str, Mapping[str, NDArray[np.float32]]],
    platform: Platform,
    featurizer: str,
    read: Reads | None = None,
) -> Samples:
    """The samples of one op on one instance, with row lengths. Raises: as `samples_of`."""
    op, scope = evidence.op, scope_of(platform)
    name_and_version, plugs = ("", ""), db.featurizers()
    if read is None:
        plug = plugs.named(featurizer)
        name_and_version = (featurizer, str(plug.version))
        if learned_from(plug):
            raise UsageError(
                f"vectors of {featurizer} were learned from runs, so a cost model of them cannot "
                "be judged on held-out groups",
                hint=f"use what it was learned with: --featurizer {_part_of(plug)}",
            )
    ids = {row.pattern_id for row in evidence.rows}
    vectors = readable.get(featurizer, {}) if read is None else read(ids)
    if not vectors and read is None:
        raise UsageError(
            f"{op} on {scope}: no matrix has a vector of {featurizer}",
            hint=_other_vectors([name for name in readable if not learned_from(plugs[name])]),
        )
    if not vectors:
        raise UsageError(
            f"{op} on {scope}: of no matrix the structure is known",
            hint="give the folder of the matrix files: --matrices",
        )
    infos = {i: info for i in ids if (info := db.store.pattern(i)) is not None}
    samples = from_evidence(evidence, vectors, infos, platform, op, featurizer=name_and_version)
    lengths = (
        db.lengths(infos.get(row.pattern_id) or WorkloadInfo(id=row.pattern_id))
        for row in samples.rows
    )
    return replace(samples, lengths=tuple(lengths))


def _part_of(plug: Featurizer) -> str:
    """The featurizer by whose vectors one that was learned from runs is computed."""
    return plug.parts[0].name if isinstance(plug, Joint) else "stats"


def _other_vectors(names: Sequence[str]) -> str:
    """The hint where matrices have vectors of these featurizers only."""
    structures = "`embeddb index` with --matrices DIR adds structures, which `stats` reads"
    return f"add --featurizer {names[0]}, or {structures}" if names else structures


def samples_of_machines(
    db: Lookup, platform: Platform, ops: Sequence[Op], *, featurizer: str = "stats"
) -> Samples:
    """All samples of a database for these ops on all instances of a portable platform, each row
    with its instance.

    Raises: as `samples_of`; UsageError for a platform that is not portable, or with runs of fewer
    than two machines.
    """
    ran = {p.platform for p in db.store.partitions() if p.op in ops}
    instances = [i for i in sorted(ran) if i.partition("@")[0] == platform.name and "@" in i]
    if not platform.portable or len(instances) < 2:
        raise UsageError(
            f"{platform.name}: a model of every machine needs runs of two or more instances of a "
            f"portable platform, here are {len(instances)}",
            hint="leave out --every-machine, or index another machine's runs",
        )
    [platform] = at_latest(db.store, [platform])
    machines = [
        platform.at(one.instance, one.environment) if extends(platform, one) else one
        for one in map(db.platform, instances)
    ]
    parts = []
    for op in dict.fromkeys(ops):
        evidence, readable = db.evidence(op, platform.name)
        for own in machines:
            rows = evidence.of_platform(own.id)
            if rows.rows:
                part = _of_one(db, rows, readable, own, featurizer)
                parts.append(replace(part, machines=(own,) * len(part.rows)))
    return replace(join(parts), platform=replace(platform, instance=""))


def _instance(db: Lookup, platform: Platform, ops: Sequence[Op]) -> Platform:
    """The instance for a platform without one: this machine if it has runs, else the only one."""
    if platform.instance:
        return platform
    partitions = [p for p in db.store.partitions() if p.op in ops]
    named = {p.platform for p in partitions if p.platform.partition("@")[0] == platform.name}
    if platform.id in named:
        return platform
    with suppress(RunnerUnavailable):
        here = platform_here(runner_for(platform), facts=False)
        if here.id in named:
            return here
    if len(named) > 1:
        every = ", or learn from all with --every-machine" if platform.portable else ""
        raise UsageError(
            f"{len(named)} machines have runs of this, and a cost model is of one",
            hint=f"name one: --platform {' or '.join(sorted(named))}{every}",
        )
    return db.platform(named.pop()) if named else platform
