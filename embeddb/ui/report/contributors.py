"""Contributions to a team's database by source, operation and platform."""

from __future__ import annotations

import math
import statistics
from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from embeddb.core.config import Config
from embeddb.core.errors import UsageError
from embeddb.core.records import WorkloadInfo
from embeddb.core.reports import Progress, ignore_progress
from embeddb.core.timing import TimingSummary, summarise_runs
from embeddb.platforms.platform import default_of
from embeddb.store.provenance import runs_by_source
from embeddb.store.versions import instance_at_latest

if TYPE_CHECKING:
    from embeddb.core.records import Run
    from embeddb.database import Database
    from embeddb.platforms.platform import Platform
    from embeddb.store import RunTable

#: Winners of each contribution, so that a report stays small.
_MOST_WINNERS = 3


class Brought(msgspec.Struct, frozen=True, kw_only=True):
    """Runs of one source for one operation on one platform instance, without withdrawn ones.

    `alone` counts patterns that no other source ran there. `gain` is the geometric mean gain of its
    best configurations over its own default. `beside_others` is the median of its seconds over
    those of all others, for the `in_common` configurations that both ran on the same pattern
    there. `winners` count the patterns on which a configuration was its fastest.
    """

    op: str
    platform: str
    simulated: bool
    runs: int
    failed: int
    patterns: int
    alone: int
    configs: int
    first: float | None
    last: float | None
    gain: float | None
    in_common: int
    beside_others: float | None
    winners: list[tuple[dict[str, Any], int]]


class Contributor(msgspec.Struct, frozen=True, kw_only=True):
    """One source (`name` empty: runs that were not pushed) with its pushes, by `user@host`, and its
    runs; `withdrawn` ones are not counted elsewhere. Moments are in seconds since 1970."""

    name: str
    pushed_by: list[str]
    pushes: int
    first_push: float | None
    last_push: float | None
    runs: int
    withdrawn: int
    brought: list[Brought]


@dataclass
class _Sum:
    runs: int = 0
    failed: int = 0
    patterns: int = 0
    alone: int = 0
    first: float = math.inf
    last: float = -math.inf
    configs: set[Config] = field(default_factory=set)
    gains: array[float] = field(default_factory=lambda: array("d"))
    beside: array[float] = field(default_factory=lambda: array("d"))
    winners: Counter[Config] = field(default_factory=Counter)

    def see(
        self,
        runs: list[Run],
        own: dict[Config, TimingSummary],
        others: dict[Config, TimingSummary],
        default: Config,
    ) -> None:
        self.runs += len(runs)
        self.failed += sum(not run.measurement.ok for run in runs)
        self.patterns += 1
        self.alone += not others
        whens = [run.measurement.when for run in runs if run.measurement.when > 0]
        self.first = min([self.first, *whens])
        self.last = max([self.last, *whens])
        self.configs.update(own)
        for config, timing in own.items():
            other = others.get(config)
            if other is not None and math.isfinite(timing.seconds + other.seconds):
                self.beside.append(timing.seconds / other.seconds)
        ok = {config: t.seconds for config, t in own.items() if math.isfinite(t.seconds)}
        if ok:
            best = min(ok, key=lambda config: (ok[config], config.json))
            self.winners[best] += 1
            if default in ok:
                self.gains.append(math.log(ok[default] / ok[best]))

    def brought(self, op: str, platform: Platform) -> Brought:
        gains, beside = self.gains, self.beside
        return Brought(
            op=op,
            platform=platform.id,
            simulated=platform.simulated,
            runs=self.runs,
            failed=self.failed,
            patterns=self.patterns,
            alone=self.alone,
            configs=len(self.configs),
            first=self.first if math.isfinite(self.first) else None,
            last=self.last if math.isfinite(self.last) else None,
            gain=math.exp(statistics.fmean(gains)) if gains else None,
            in_common=len(beside),
            beside_others=statistics.median(beside) if beside else None,
            winners=[(dict(c), n) for c, n in self.winners.most_common(_MOST_WINNERS)],
        )


def contributors_of(
    db: Database, *, only: str = "", progress: Progress = ignore_progress
) -> list[Contributor]:
    """Every source, registered ones first; empty if nothing was pushed. With `only`, the source of
    that name: partitions without runs of its machines are then not read.

    Raises: UsageError for an unknown name; StoreCorrupt if something cannot be read.
    """
    entries = {source.number: source for source in db.store.sources.entries()}
    wanted = {n for n, source in entries.items() if not only or source.name == only}
    if only and not wanted:
        raise UsageError(f"no source {only!r}", hint="`embeddb db sources` lists them")
    if not entries:
        return []
    platforms = {p for n in wanted for push in entries[n].pushes for p in push.platforms}
    parts = [p for p in db.store.partitions() if not only or p.platform in platforms]
    brought: dict[int, list[Brought]] = {}
    infos = {info.id: info for info in db.store.patterns()} if parts else {}
    for at, part in enumerate(parts):
        progress("contributors", at, len(parts))
        for number, contribution in _summed(db, part, infos).items():
            brought.setdefault(number, []).append(contribution)
    withdrawn = db.store.sources.withdrawn()
    numbers = [*sorted(wanted), *([] if only or 0 not in brought else [0])]
    contributors = []
    for number in numbers:
        source, own = entries.get(number), brought.get(number, [])
        pushes = () if source is None else source.pushes
        contributors.append(
            Contributor(
                name="" if source is None else source.name,
                pushed_by=sorted({f"{push.user}@{push.host}" for push in pushes if push.user}),
                pushes=len(pushes),
                first_push=min((push.when for push in pushes), default=None),
                last_push=max((push.when for push in pushes), default=None),
                runs=sum(one.runs for one in own),
                withdrawn=withdrawn.get(number, 0),
                brought=sorted(own, key=lambda one: (one.platform, one.op)),
            )
        )
    return contributors


def _summed(db: Database, part: RunTable, infos: Mapping[str, WorkloadInfo]) -> dict[int, Brought]:
    platform = instance_at_latest(db.store, part.platform)
    if platform is None:
        return {}
    sums: dict[int, _Sum] = {}
    normal = db.store.usual_at(platform.id)
    for by_source in runs_by_source(db.store, part):
        runs = next(iter(by_source.values()))
        info = infos.get(runs[0].pattern_id) or WorkloadInfo(id=runs[0].pattern_id)
        default = default_of(platform, part.op, db.store.workload_or_info(info))
        for number, own in by_source.items():
            timings = summarise_runs(own, normal)
            rest = (
                run
                for other, other_runs in by_source.items()
                if other != number
                for run in other_runs
            )
            others = summarise_runs(rest, normal)
            sums.setdefault(number, _Sum()).see(own, timings, others, default)
    return {number: one.brought(str(part.op), platform) for number, one in sums.items()}
