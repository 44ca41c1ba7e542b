"""Gaps worth measuring, with commands; the most pressing first."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from embeddb.core.config import Op
from embeddb.core.kinds import kind_of, operation_of
from embeddb.core.wording import counted, many_of, one_of, plural, share, shown
from embeddb.index.guards import GOOD
from embeddb.store.versions import instance_at_latest
from embeddb.ui.report import commands
from embeddb.ui.report.scopes import is_shared
from indexer.coverage import readable

if TYPE_CHECKING:
    from embeddb.core.records import WorkloadInfo
    from embeddb.database import Database
    from embeddb.ranking.recommendation import Recommendation
    from embeddb.ui.report.scopes import ScopeFacts

#: Gaps shown of each kind.
_MOST = 10
#: Patterns named in one command.
_MOST_NAMED = 8
#: Structures read from the store; the time of a read is proportional to the matrix.
_MOST_READ = 100
#: A pattern has few runs below this share of the median pattern's configurations.
_FEW = 0.25
#: A query is poorly covered if its nearest neighbour is beyond this quantile of distances.
_FAR = 0.9


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """A gap in the data. `kind`: `question` (queried, low confidence), `structure` (could be
    measured at once), `quality`, `width`, `kernel`, `default`, `noise`. `command` is empty
    without a runner."""

    kind: str
    what: str
    why: str
    command: str


def gaps_of(
    db: Database,
    scopes: Sequence[ScopeFacts],
    infos: Mapping[str, WorkloadInfo],
    place: str,
) -> list[Gap]:
    """Gaps of all kinds; `place` names the database in commands."""
    shared = [s for s in scopes if is_shared(s.op)]
    members = {
        (p.platform, str(p.op)): frozenset(db.store.members(p)) for p in db.store.partitions()
    }
    finder = _Finder(db, shared, infos, shlex.quote(shown(place)), members)
    kinds = (
        finder.questions(),
        finder.structures(),
        finder.quality(),
        finder.widths(),
        finder.kernels(),
        finder.defaults(),
        finder.noise(),
    )
    return [gap for kind in kinds for gap in islice(kind, _MOST)]


@dataclass(frozen=True)
class _Finder:
    _db: Database
    _scopes: Sequence[ScopeFacts]
    _infos: Mapping[str, WorkloadInfo]
    _place: str
    _members: Mapping[tuple[str, str], frozenset[str]]

    def questions(self) -> Iterator[Gap]:
        """Queries answered with low confidence or by distant neighbours and not measured since,
        latest first."""
        seen: set[tuple[str, str, str]] = set()
        for recommendation in reversed(self._db.recommendations()):
            key = (recommendation.pattern_id, recommendation.op, recommendation.platform)
            if key in seen or not is_shared(recommendation.op):
                continue
            seen.add(key)
            reason = self._open_question(recommendation)
            if reason:
                name, command = shown(recommendation.subject, 80), ""
                platform = self._db.store.sound_platform(recommendation.platform)
                if platform is not None and platform.runner:
                    # By its file if the structure is not stored.
                    stored = self._is_stored(self._db.store.resolve(recommendation.pattern_id))
                    named = [name if stored else commands.FILE]
                    where = (platform.name, recommendation.op)
                    command = commands.measure(self._place, named, *where, 30)
                yield Gap(
                    kind="question",
                    what=f"{name}: {recommendation.op} on {shown(recommendation.platform)}",
                    why=f"was queried; {reason}",
                    command=command,
                )

    def _is_stored(self, pattern_id: str) -> bool:
        store = self._db.store
        readers = (store.structure, store.nest, store.tensor)
        return any(read(pattern_id) is not None for read in readers)

    def _open_question(self, recommendation: Recommendation) -> str:
        pattern = self._db.store.resolve(recommendation.pattern_id)
        if pattern in self._members.get((recommendation.platform, recommendation.op), ()):
            return ""
        far = min(
            (n.percentile for n in recommendation.neighbours if n.percentile is not None),
            default=None,
        )
        if far is not None and far > _FAR:
            return f"its nearest neighbour is farther than {share(far)} of neighbours are"
        return "the answer has low confidence" if recommendation.confidence == "low" else ""

    def structures(self) -> Iterator[Gap]:
        """Patterns with few runs and a stored structure, so that they can be measured at once."""
        complete = [i for i, info in self._infos.items() if not info.stub]
        read = islice(complete, _MOST_READ)
        stored = [i for i in read if self._is_stored(i)]
        for s in self._scopes:
            ran: Counter[str] = Counter()
            for at in s.instances:
                for i in self._members[at, s.op].intersection(stored):
                    runs = self._db.store.runs(at, Op.parse(s.op), i)
                    ran[i] += len({run.config for run in runs})
            few = sorted(
                i
                for i in stored
                if self._infos[i].kind == _kind(s) and ran[i] < _FEW * s.per_pattern
            )
            if few and s.runnable:
                often = Counter(info.name for info in self._infos.values())
                named = (self._infos[i].name for i in few[:_MOST_NAMED])
                names = [
                    shown(name, 80) if name and often[name] == 1 else i
                    for i, name in zip(few, named, strict=False)
                ]
                yield Gap(
                    kind="structure",
                    what=f"{counted({_kind(s): len(few)})}: {s.op} on {s.platform}",
                    why=f"their structure is stored, and fewer than a quarter of the usual "
                    f"{s.per_pattern:,.0f} configurations ran on them",
                    command=commands.measure(self._place, names, s.platform, s.op, 40),
                )

    def quality(self) -> Iterator[Gap]:
        for s in self._scopes:
            reached = max([s.of_optimum or 0.0, *s.model_of_optimum.values()])
            if s.winners_only or not s.patterns:
                continue
            what, command = f"more {many_of(_kind(s))}", self._campaign(s, s.op)
            if not s.featurizer:
                infos = [self._infos[i] for i in self._patterns(s) if i in self._infos]
                if any(map(readable, infos)):  # `unfinished` reports it
                    continue
                what, why, command = "sizes and structures", kind_of(_kind(s)).unreadable, ""
            elif s.of_optimum is None:
                groups = f"{plural(s.groups, 'group')} of {many_of(_kind(s))}"
                why = f"{groups}: too few for cross-validation"
            elif reached < GOOD:
                why = f"held-out answers reach {share(reached)} of the optimum"
            else:
                continue
            yield Gap(
                kind="quality",
                what=f"{what}: {s.op} on {s.platform}",
                why=why,
                command=command,
            )

    def widths(self) -> Iterator[Gap]:
        """Patterns measured at one width of a kernel but not at another."""
        for s in self._scopes:
            op = Op.parse(s.op)
            missing: set[str] = set()
            for other in self._scopes:
                near = Op.parse(other.op)
                if other.platform == s.platform and near.name == op.name:
                    missing |= self._patterns(other) - self._patterns(s)
            if len(missing) > 0.1 * s.patterns:
                yield Gap(
                    kind="width",
                    what=f"{counted({op.kind: len(missing)})}: {s.op} on {s.platform}",
                    why=f"measured at another width of {op.name}, never at this one",
                    command=self._campaign(s, s.op),
                )

    def _patterns(self, s: ScopeFacts) -> set[str]:
        return set().union(*(self._members[p, s.op] for p in s.instances))

    def kernels(self) -> Iterator[Gap]:
        ran = {(s.platform, Op.parse(s.op).name) for s in self._scopes}
        for s in {s.platform: s for s in self._scopes}.values():
            platform = instance_at_latest(self._db.store, s.instances[0])
            for kernel in platform.ops if platform else ():
                if (s.platform, kernel) not in ran:
                    op = operation_of(kernel)[0].example()
                    yield Gap(
                        kind="kernel",
                        what=f"{kernel} on {s.platform}",
                        why="the platform has this kernel, but no measurements of it",
                        command=self._campaign(s, op),
                    )

    def defaults(self) -> Iterator[Gap]:
        """Patterns, or pairs of pattern and machine, whose default was not measured, so that gains
        are unknown."""
        for s in self._scopes:
            platform = instance_at_latest(self._db.store, s.instances[0])
            if not s.without_default or s.winners_only or platform is None:
                continue
            command = commands.the_default(self._place, platform, s.platform, s.op)
            missing = counted({_kind(s): s.without_default})
            if len(s.instances) > 1:
                missing = f"{plural(s.without_default, 'pair')} of {one_of(_kind(s))} and machine"
            yield Gap(
                kind="default",
                what=f"{missing}: {s.op} on {s.platform}",
                why="the default has no ok run there, so gains are unknown",
                command=command if s.runnable else "",
            )

    def noise(self) -> Iterator[Gap]:
        for s in self._scopes:
            if s.runs and not s.noise.repeated and not s.simulated and not s.winners_only:
                yield Gap(
                    kind="noise",
                    what=f"a second round: {s.op} on {s.platform}",
                    why="nothing was run twice, so close ranks may be ties",
                    command=self._campaign(s, s.op, " --rounds 2"),
                )

    def _campaign(self, s: ScopeFacts, op: str, more: str = "") -> str:
        return commands.again_all(self._place, s.platform, op, more) if s.runnable else ""


def _kind(s: ScopeFacts) -> str:
    return Op.parse(s.op).kind
