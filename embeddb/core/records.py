"""Stored records: runs, their measurements, and facts about a workload."""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from embeddb.core.config import Config, Op
from embeddb.core.errors import UsageError
from embeddb.core.files.safe_read import reason_of
from embeddb.core.kinds import WorkloadKind, kind_of
from embeddb.core.repr_html import html_of
from embeddb.core.sizes import Sizes
from embeddb.core.workload import Workload

#: Outcomes of one run. Everything but `ok` is a failure of that configuration.
WRONG = "wrong"
STATUSES = ("ok", "invalid", "build", "crash", "timeout", WRONG, "oom")
SOURCES = ("hardware", "simulator", "imported")
#: In the `context` of a fused kernel that was timed on the arrays its program passes, not on random
#: ones: the time of a sine depends on its argument. Such runs replace all others.
ARRAYS, OF_PROGRAM = "arrays", "program"
#: In the `context` of a run that occurs several times in a log: its number among the equal ones,
#: from 2 (docs/explanation/decisions.md). The first has none.
REPEAT = "repeat"


#: Suffixes of campaign names `tune:…` for repeated measurements of the apparent best of a tuning:
#: alone, and alternating with the default. The minimum of many single timings is biased (winner's
#: curse), so where there are such runs they decide.
AGAIN, ROUNDS = REMEASURED = ("/again", "/rounds")
#: In the `context` of a fusion plan: median time of its kernels called in sequence, in seconds.
IN_A_ROW = "chain_s"
#: In the `context` of a run of a tuner: the seconds of compiling and timing.
HARDWARE_S = "hardware_s"
#: A number in the text of an error.
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?", re.ASCII)
#: Cycles stored as one second where the clock of a platform is unknown.
CYCLES_PER_S = 1e9


def failure_kinds(failed: Counter[tuple[str, str]]) -> Counter[tuple[str, str]]:
    """Counts of failures by status and error, those whose errors differ in numbers alone (a job's,
    a time) as one, with `…` for the numbers that differ."""
    alike: dict[tuple[str, tuple[str, ...]], list[tuple[list[str], int]]] = {}
    for (status, error), count in failed.items():
        key = status, tuple(_NUMBER.split(error))
        alike.setdefault(key, []).append((_NUMBER.findall(error), count))
    kinds: Counter[tuple[str, str]] = Counter()
    for (status, (head, *rest)), members in alike.items():
        each = zip(*(numbers for numbers, _ in members), strict=True)
        shown = [one[0] if len(set(one)) == 1 else "…" for one in each]
        text = head + "".join(n + part for n, part in zip(shown, rest, strict=True))
        kinds[status, text] += sum(count for _, count in members)
    return kinds


class Measurement(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The outcome of running one configuration; all durations in seconds, every repeat kept.

    `cpu_max_s` and `cpu_sum_s` are per-repeat CPU times of the busiest thread and of all threads.
    `conversion_s` is the cost of bringing the matrix into the configuration's format,
    `tolerance` the largest relative error accepted when the result was checked (None: unchecked),
    `when` seconds since the epoch, `context` facts of the moment (load, context switches, ...).
    """

    status: str = "ok"
    times_s: tuple[float, ...] = ()
    source: str = "hardware"
    conversion_s: float | None = None
    compile_s: float | None = None
    tolerance: float | None = None
    when: float = 0.0
    error: str = ""
    cpu_max_s: tuple[float, ...] = ()
    cpu_sum_s: tuple[float, ...] = ()
    context: dict[str, float | str] = {}

    @property
    def seconds(self) -> float:
        """Median of the repeats; infinite unless the status is `ok`."""
        if self.status != "ok" or not self.times_s:
            return math.inf
        times, middle = sorted(self.times_s), len(self.times_s) // 2
        # As `statistics.median`, which takes three times as long: called for every run.
        return times[middle] if len(times) % 2 else (times[middle - 1] + times[middle]) / 2

    @property
    def least(self) -> float:
        """Minimum of the repeats; infinite unless the status is `ok`."""
        return min(self.times_s, default=math.inf) if self.status == "ok" else math.inf

    @property
    def ok(self) -> bool:
        return self.status == "ok"

    @property
    def of_program(self) -> bool:
        """Return true if it was timed on the arrays that its program passes (`ARRAYS`)."""
        return self.context.get(ARRAYS) == OF_PROGRAM


def in_context(m: Measurement, facts: Mapping[str, float | str]) -> Measurement:
    """The same measurement with further facts of the moment."""
    return msgspec.structs.replace(m, context={**m.context, **facts}) if facts else m


def id_parts(
    pattern_id: str, op: str, platform: str, ends: tuple[str, str] = ("", "")
) -> tuple[bytes, bytes]:
    """The parts of a run's id before the JSON of its configuration, and after it (`ends`: the run
    that it replaces, its campaign); the bytes of its measurement follow."""
    replaces, campaign = ends
    before = f"{pattern_id}\0{op}\0{platform}\0"
    return before.encode(), f"\0{replaces}\0{campaign}\0".encode()


_encode = msgspec.msgpack.Encoder(order="deterministic").encode
_decode = msgspec.msgpack.Decoder(Measurement).decode


def fault_of(m: Measurement) -> str:
    """Return why a measurement is impossible, in a few words; empty if it is possible."""
    if m.status not in STATUSES:
        return f"its status is {m.status!r:.40}, none of {', '.join(STATUSES)}"
    if m.source not in SOURCES:
        return f"its source is {m.source!r:.40}, none of {', '.join(SOURCES)}"
    impossible = [time for time in m.times_s if not 0 < time < math.inf]
    if impossible:
        return f"it has a time of {impossible[0]} s"
    for name in ("conversion_s", "compile_s"):
        if not 0 <= (getattr(m, name) or 0.0) < math.inf:
            return f"its {name} is {getattr(m, name)}"
    return "its status is ok, and it has no time" if m.ok and not m.times_s else ""


def storable(m: object) -> Measurement:
    """A measurement of a plug-in, as the store returns it. Raises: ValueError, TypeError for one
    that is impossible or cannot be stored."""
    if not isinstance(m, Measurement):
        raise TypeError(f"it is a {type(m).__name__}, not a Measurement")
    stored = _decode(_encode(m))
    if fault := fault_of(stored):
        raise ValueError(fault)
    return stored


@dataclass(frozen=True, slots=True)
class Run:
    """One configuration run once on one workload. Append-only: a correction names the run that it
    replaces. `id` is a digest of the content, so the same run read twice is one run."""

    pattern_id: str
    op: Op
    platform: str
    config: Config
    measurement: Measurement
    campaign: str = ""
    replaces: str = ""

    @property
    def seconds(self) -> float:
        """Median of the repeats, or their minimum (`Operation.minimum`); infinite if the run
        failed."""
        return self.measurement.least if self.op.traits.minimum else self.measurement.seconds

    @property
    def id(self) -> str:
        """Digest of the content. Raises: UsageError if the measurement cannot be stored."""
        op, ends = str(self.op), (self.replaces, self.campaign)
        try:
            before, behind = id_parts(self.pattern_id, op, self.platform, ends)
            canonical = _decode(_encode(self.measurement))  # whole numbers become floats
            h = hashlib.blake2b(before + self.config.json.encode() + behind, digest_size=16)
            h.update(_encode(canonical))
        except Exception as e:  # the fields come from logs of others
            raise UsageError(f"a run of {self.op} cannot be stored: {reason_of(e)}") from e
        return h.hexdigest()


class WorkloadInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a workload in the store. Sizes are -1 where unknown (a stub may lack them).

    `stub` is true while the structure is unknown. `thumbnail` is the 32x32 density map, uint8[1024]
    on a log scale, row-major. `features` are statistics that came with the runs (by name), used
    where the structure is missing. `kind` is as in `Workload`; for other kinds than matrices,
    `named` are the sizes, and m, n, nnz stay -1.
    """

    id: str
    m: int = -1
    n: int = -1
    nnz: int = -1
    name: str = ""
    group: str = ""
    stub: bool = False
    thumbnail: bytes = b""
    features: dict[str, float] = {}
    about: dict[str, Any] = {}
    kind: str = "matrix"
    named: dict[str, int] = {}

    @property
    def sizes(self) -> Sizes:
        return Sizes(self.m, self.n, self.nnz).naming(self.named)

    @property
    def workload(self) -> WorkloadKind:
        return kind_of(self.kind)

    @property
    def family(self) -> str:
        """The group, of a workload without one its name or id."""
        return self.group or self.name or self.id

    @classmethod
    def of(cls, subject: Workload | WorkloadInfo) -> WorkloadInfo:
        """Sizes and name of a workload."""
        if isinstance(subject, WorkloadInfo):
            return subject
        m, n, nnz = subject.sizes
        return cls(
            id=subject.id,
            m=m,
            n=n,
            nnz=nnz,
            name=subject.name,
            group=subject.group,
            kind=subject.kind,
            named=dict(subject.sizes.named),
        )

    @classmethod
    def whole(cls, workload: Workload) -> WorkloadInfo:
        """All facts that are stored beside a workload, also those computed from its content."""
        facts = kind_of(workload.kind).facts(workload)
        return msgspec.structs.replace(cls.of(workload), **facts)

    def __repr__(self) -> str:
        return f"WorkloadInfo({self.name or self.id[:12]!r}, {self.workload.brief(self)})"

    def _repr_html_(self) -> str:
        return html_of(self)
