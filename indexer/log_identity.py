"""Identity of the rows of a log: equal runs and log files (docs/explanation/decisions.md), their
platforms and workloads."""

from __future__ import annotations

import hashlib
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import ReaderError, UsageError
from embeddb.core.files.safe_read import open_regular, refusing
from embeddb.core.kinds import kind_of
from embeddb.core.pattern import stub_id
from embeddb.core.records import REPEAT, Run, WorkloadInfo, in_context
from embeddb.core.sizes import UNKNOWN, Sizes
from embeddb.core.wording import plural
from embeddb.matrix_files.source import plain_text
from embeddb.platforms.platform import Platform, load_platform
from embeddb.store import Store
from embeddb.store.merge_facts import extends
from indexer.library import Library
from indexer.readers.base.row import MatrixRef, Reject, RunRow

_encode = msgspec.msgpack.Encoder().encode
_BLOCK = 1 << 20
#: Share and least number of rows that are equal in a copy, and workloads that are compared.
_COPIED, _LEAST_COPIED, _MOST_PLACES = 0.9, 5, 50
#: Last bytes of a text whose last row is whole: of a line, a JSON value, a quoted cell, a binary
#: file.
_ENDS = b'\n\r}]"\0'
#: Matrices that a line about contradictions names.
_MOST_NAMED = 5


class Repeats:
    """Number equal runs of one log.

    The second of them and those after it get their number in their context, which makes them
    distinct runs, the same ones each time the log is read. Runs are remembered by 64 bits, in
    sorted arrays of which each is twice as long as the next.
    """

    def __init__(self) -> None:
        self._levels: list[NDArray[np.int64]] = []
        self._counts: dict[int, int] = {}

    def numbered(self, runs: Sequence[Run]) -> tuple[list[Run], list[int]]:
        """Number the next runs of the log; also returns the indices of those that repeat an earlier
        one."""
        keys = np.fromiter(map(_key, runs), np.int64, len(runs))
        fresh, counts = np.unique(keys, return_counts=True)
        seen = self._seen(fresh)
        again = set(fresh[(counts > 1) | seen].tolist())
        earlier = set(fresh[seen].tolist())
        self._remember(fresh[~seen])
        numbered, places = list(runs), []
        for at, key in enumerate(keys.tolist() if again else ()):
            if key not in again:
                continue
            before = self._counts.get(key, int(key in earlier))
            self._counts[key] = before + 1
            if before:
                context = in_context(runs[at].measurement, {REPEAT: float(before + 1)})
                numbered[at] = replace(runs[at], measurement=context)
                places.append(at)
        return numbered, places

    def _seen(self, keys: NDArray[np.int64]) -> NDArray[np.bool_]:
        seen = np.zeros(len(keys), bool)
        for level in self._levels:
            at = np.searchsorted(level, keys)
            seen |= level[np.minimum(at, len(level) - 1)] == keys
        return seen

    def _remember(self, keys: NDArray[np.int64]) -> None:
        if len(keys):
            self._levels.append(keys)
        while len(self._levels) > 1 and len(self._levels[-2]) < 2 * len(self._levels[-1]):
            last, before = self._levels.pop(), self._levels.pop()
            self._levels.append(np.sort(np.concatenate((before, last))))


def _key(run: Run) -> int:
    """Hash that is equal for equal runs, within this process."""
    parts = (run.pattern_id, run.platform, run.campaign, run.config.json, _encode(run.measurement))
    return hash((*parts, run.op.name, run.op.width, run.op.dtype))


def copies_of(store: Store, runs: Sequence[Run]) -> dict[str, int]:
    """Number of the first `runs` of a new log that equal a stored one in workload, operation,
    instance, configuration and time, by its campaign; only where nine in ten do."""
    places = set(list(dict.fromkeys((r.platform, r.op, r.pattern_id) for r in runs))[:_MOST_PLACES])
    stored: dict[tuple[Any, ...], set[str]] = {}
    for place in places:
        for run in store.runs(*place):
            stored.setdefault((*place, run.config, _digits(run)), set()).add(run.campaign)
    compared = [r for r in runs if (r.platform, r.op, r.pattern_id) in places]
    there = Counter(
        campaign
        for r in compared
        for campaign in stored.get((r.platform, r.op, r.pattern_id, r.config, _digits(r)), ())
    )
    enough = max(_LEAST_COPIED, _COPIED * len(compared))
    return {campaign: count for campaign, count in there.items() if count >= enough}


def _digits(run: Run) -> str:
    """The time in nine digits: a conversion of units changes the last ones."""
    return f"{run.seconds:.9g}"


class Content(msgspec.Struct, frozen=True):
    """Path, size in bytes, and digest of a file."""

    path: str
    size: int
    digest: str


def content_of(path: Path, size: int | None = None) -> tuple[Content, Any]:
    """A file, or its first `size` bytes, and the hash of them, which callers may extend.

    Raises: ReaderError if it cannot be read.
    """
    digest = hashlib.blake2b(digest_size=16)
    count = 0
    with refusing(ReaderError, where=str(path)), open_regular(path) as file:
        while block := file.read(_BLOCK if size is None else min(_BLOCK, size - count)):
            digest.update(block)
            count += len(block)
    return Content(plain_text(path.resolve()), count, digest.hexdigest()), digest


class LogName:
    """The campaign of a log's runs: its reader and name, with as many of its folders as distinguish
    it from other logs of that name in the database.

    It is the same log if it has the same path, or extends the content that was read before. It is
    `new` if the database has no such log, `edited` if it was read with another content, a part of
    its last row included, and `unchanged` if it was read with exactly this content. It is `open` if
    its last line has no end: a number there may be cut off.
    """

    def __init__(self, store: Store, reader: str, path: Path, content: Content) -> None:
        folders = Path(content.path).parts[:-1]
        name = plain_text(path.name)
        self.edited = self.unchanged = False
        self.open = _open_at(path, content.size)
        while (entry := self._entry(store, f"{reader}:{name}")) is not None:
            longer = entry.size <= content.size
            goes_on = longer and content_of(path, entry.size)[0].digest == entry.digest
            if entry.path == content.path or goes_on or not folders:
                self.edited = not goes_on or _open_at(path, entry.size, before=content.size)
                self.unchanged = goes_on and entry.size == content.size
                break
            folders, name = folders[:-1], f"{folders[-1]}/{name}"
        self.new = entry is None
        self.campaign = f"{reader}:{name}"
        self.journal = {_journal(self.campaign): msgspec.json.encode(content)}

    @staticmethod
    def _entry(store: Store, campaign: str) -> Content | None:
        raw = store.journal.get(_journal(campaign))
        return None if raw is None else msgspec.json.decode(raw, type=Content)


def _open_at(path: Path, size: int, before: int | None = None) -> bool:
    """True if the first `size` bytes of a text end within a line; with `before`, only if they are
    fewer and the file goes on in that line. Raises: ReaderError if it cannot be read."""
    with refusing(ReaderError, where=str(path)), open_regular(path) as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(max(size - 1, 0))
        last, after = file.read(1), file.read(1)
    goes_on = before is None or (size < before and after not in (b"\n", b"\r"))
    return goes_on and not packed and last != b"" and last not in _ENDS


def _journal(campaign: str) -> str:
    return f"log/{campaign}"


def platform_of(plug: Any, path: Path) -> Platform:
    """The platform of a reader's format. Raises: UsageError if it has none."""
    if plug.platform:
        return load_platform(plug.platform)
    file = shlex.quote(str(path))
    how = f"`embeddb platform draft {file} --op spmm:WIDTH -o my.toml` drafts one from the log"
    if plug.name == "embeddb":
        how = f"`embeddb db import DB {file}` reads an export with the platforms it has"
    hint = f"give --platform NAME or FILE; no platform file? {how}"
    raise UsageError(f"{path}: which platform ran this?", hint=hint)


class RowPlatforms:
    """The platform of each row: the base one, or an instance of it that the row names."""

    def __init__(self, store: Store, base: Platform) -> None:
        self._store, self._base = store, base
        self._cache: dict[tuple[str, str], Platform] = {}
        self.used: set[str] = set()
        self.changes: list[str] = []

    def of(self, row: RunRow) -> Platform:
        key = (row.platform, row.instance)
        platform = self._cache.get(key)
        if platform is None:
            if row.platform and row.platform != self._base.name:
                raise ReaderError(f"the row is of platform {row.platform}, not {self._base.name}")
            fixed = self._base.instance or not row.instance
            platform = self._base if fixed else self._base.at(row.instance, row.facts)
            self.changes += self._store.put_platform(platform)
            stored = self._store.platform(platform.id)
            if stored is not None and extends(stored, platform):
                platform = stored  # the later version, which may forbid what this file allows
            self.used.add(platform.id)
            self._cache[key] = platform
        return platform


class RowSubjects:
    """The workload of each row, of the kind of its operation: a file of the library, a stored
    workload, or a stub. `patterns` counts new ones, `stubs` are new, `structures` is true for names
    with a structure.

    Rows of a matrix may state different facts of it: each one's first value is kept, whichever row
    has it."""

    def __init__(self, store: Store, library: Library) -> None:
        self._store, self.library = store, library
        self.patterns = 0
        self.stubs: set[str] = set()
        self._unsized: set[str] = set()
        self._stated: dict[str, set[Sizes]] = {}
        self._cache: dict[tuple[str, str, int, int, int, str], WorkloadInfo] = {}
        self._fresh: list[WorkloadInfo] = []
        self.structures: dict[str, bool] = {}
        self._sizes: dict[str, dict[str, Sizes]] = {}
        self._several: dict[str, dict[str, Sizes]] = {}
        self._groups: dict[str, str] = {}

    def expect(self, rows: Iterable[RunRow | Reject]) -> None:
        """Note the sizes that the next rows state: others of them may lack some."""
        last = None
        for row in rows:
            if isinstance(row, RunRow) and row.matrix is not last:
                last = row.matrix
                self._stated.setdefault(last.name, set()).add(last.sizes)

    def of(self, ref: MatrixRef, kind: str) -> WorkloadInfo:
        own = ref.content.id if ref.content is not None else ""
        key = (kind, ref.name, ref.m, ref.n, ref.nnz, own)
        info = self._cache.get(key)
        if info is None:
            if max(ref.m, ref.n, ref.nnz) >= 1 << 62 or min(ref.m, ref.n, ref.nnz) < -1:
                raise ReaderError(f"{ref.m} x {ref.n} with {ref.nnz} entries is no possible size")
            info = self._cache[key] = self._resolved(ref, kind)
            self.structures[ref.name] = not info.stub and self.structures.get(ref.name, True)
            if info.workload.sparse:
                self._note_sizes(ref.name, {info.id: info.sizes})
                if -1 in ref.sizes:
                    self._unsized.add(ref.name)
        new = not (
            ref.features.keys() <= info.features.keys() and ref.about.keys() <= info.about.keys()
        )
        if new or (ref.group and ref.group != info.group):
            info = self._cache[key] = self._completed(info, ref)
        return info

    def settle(self) -> None:
        """Move the stored runs of rows that lack sizes to the matrix of their name that has more:
        a failed run often states none."""
        for name in self._unsized:
            named = [info for info in self._store.find(name) if info.workload.sparse]
            for sizes, fuller in _fuller(info.sizes for info in named).items():
                whole = next(info for info in named if info.sizes == fuller)
                for stub in named:
                    if stub.sizes == sizes:
                        self._store.adopt(stub.id, whole)
                        self.stubs.discard(stub.id)
        self._unsized.clear()

    def contradictions(self) -> list[str]:
        """One line for the matrices of which the log has several sizes, or another size than the
        stored one, and one for those of several groups."""
        apart = {n: {*of.values()} - _fuller(of.values()).keys() for n, of in self._several.items()}
        several = {name: of for name, of in apart.items() if len(of) > 1}
        first = dict(islice(several.items(), _MOST_NAMED))
        sizes = {name: " and ".join(map(str, sorted(of))) for name, of in first.items()}
        return [
            f"{plural(count, 'matrix', 'matrices')} with several {what}: {_named(facts, count)}"
            for what, facts, count in (
                (
                    "sizes, each of which is stored as a matrix of its own",
                    sizes,
                    len(several),
                ),
                ("groups, of which the first is kept", self._groups, len(self._groups)),
            )
            if count
        ]

    def _note_sizes(self, name: str, sizes: Mapping[str, Sizes]) -> None:
        """Remember the sizes of a matrix, by workload."""
        stored = self._sizes.setdefault(name, {})
        stored.update(sizes)
        if len(stored) > 1:
            self._several[name] = stored

    def _completed(self, info: WorkloadInfo, ref: MatrixRef) -> WorkloadInfo:
        """A workload with the facts of a further row; another group than the first is noted. A
        file without a group has its name as one."""
        group = "" if info.group == info.name else info.group
        if ref.group and group and ref.group != group:
            self._groups.setdefault(ref.name, f"{group}, not {ref.group}")
        full = msgspec.structs.replace(
            info,
            group=group or ref.group or info.group,
            features={**ref.features, **info.features},
            about={**ref.about, **info.about},
        )
        if full != info:
            self._fresh.append(full)
        return full

    def fresh(self) -> list[WorkloadInfo]:
        """Workloads met since the last call; they are stored with the runs that need them."""
        fresh, self._fresh = self._fresh, []
        return fresh

    def _resolved(self, ref: MatrixRef, kind: str) -> WorkloadInfo:
        if not ref.sizes.possible:
            raise ReaderError(f"{ref.name[:80]}: {ref.sizes} is impossible")
        if not kind_of(kind).sparse and ref.sizes != UNKNOWN:
            raise ReaderError(f"{ref.name[:80]}: m, n and nnz are sizes of a matrix, not a {kind}")
        if ref.content is not None and ref.content.kind != kind:
            raise ReaderError(f"{ref.name[:80]}: a {ref.content.kind} is no {kind}")
        if fuller := _fuller(self._stated.get(ref.name, ())).get(ref.sizes):
            ref = msgspec.structs.replace(ref, **fuller._asdict())
        pattern = self.library.subject(kind, ref.name, ref.sizes)
        if pattern is None:
            pattern = ref.content
        if pattern is not None:
            info = _described(WorkloadInfo.whole(pattern), ref)
            self._store.put_structure(pattern, info)
            self.patterns += 1
            return self._store.pattern(info.id) or info
        wanted = (ref.m, ref.n, ref.nnz)
        others: dict[str, Sizes] = {}
        for stored in self._store.find(ref.name):
            have = (stored.m, stored.n, stored.nnz)
            fits = all(w in (-1, h) for w, h in zip(wanted, have, strict=True))
            if fits and stored.kind == kind:
                return _with_facts(stored, self._note(ref, stored.id, kind, stub=stored.stub))
            others.update({stored.id: stored.sizes} if stored.kind == kind else {})
        if others and kind_of(kind).sparse:
            self._note_sizes(ref.name, others)
        stub = stub_id(ref.name, *wanted, kind=kind)
        self.stubs.add(stub)
        return self._note(ref, stub, kind, stub=True)

    def _note(self, ref: MatrixRef, pattern_id: str, kind: str, *, stub: bool) -> WorkloadInfo:
        info = WorkloadInfo(
            id=pattern_id,
            m=ref.m,
            n=ref.n,
            nnz=ref.nnz,
            name=ref.name,
            group=ref.group,
            stub=stub,
            features=dict(ref.features),
            about=dict(ref.about),
            kind=kind,
        )
        self._fresh.append(info)
        return info


def _fuller(sizes: Iterable[Sizes]) -> dict[Sizes, Sizes]:
    """For sizes of one name that are not all known, the only others that they fit and that have
    more of them."""
    left, meant = list(dict.fromkeys(sizes)), dict[Sizes, Sizes]()
    for one in sorted(left, key=lambda of: of.count(-1)):
        fits = [of for of in left if all(w in (-1, h) for w, h in zip(one, of, strict=True))]
        if len(fits) == 2:  # itself, and one more
            meant[one] = next(of for of in fits if of != one)
            left.remove(one)
    return meant


def _with_facts(stored: WorkloadInfo, new: WorkloadInfo) -> WorkloadInfo:
    """A stored workload with newer facts, as the store merges them."""
    return msgspec.structs.replace(
        stored,
        group=stored.group or new.group,
        features={**stored.features, **new.features},
        about={**stored.about, **new.about},
    )


def _named(facts: Mapping[str, str], count: int) -> str:
    """The first names with their facts, of `count` in all."""
    first = [f"{name[:80]} ({fact[:80]})" for name, fact in islice(facts.items(), _MOST_NAMED)]
    return ", ".join([*first, "..."] if count > len(first) else first)


def _described(info: WorkloadInfo, ref: MatrixRef) -> WorkloadInfo:
    """A workload of the library with the names and features that the row states."""
    return msgspec.structs.replace(
        info,
        group=ref.group or info.group,
        features=dict(ref.features),
        about=dict(ref.about),
    )
