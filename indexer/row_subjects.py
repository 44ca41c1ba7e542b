"""Assignment of log rows to platforms and workloads."""

from __future__ import annotations

import msgspec

from embeddb.core.errors import ReaderError
from embeddb.core.kinds import kind_of
from embeddb.core.pattern import stub_id
from embeddb.core.records import WorkloadInfo
from embeddb.core.sizes import UNKNOWN
from embeddb.platforms.platform import Platform
from embeddb.store import Store
from indexer.library import Library
from indexer.readers.base.row import MatrixRef, RunRow


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
            self.used.add(platform.id)
            self._cache[key] = platform
        return platform


class RowSubjects:
    """The workload of each row, of the kind of its operation: a file of the library, a stored
    workload, or a stub. `patterns` and `stubs` count new ones, `structures` is true for names with
    a structure."""

    def __init__(self, store: Store, library: Library) -> None:
        self._store, self.library = store, library
        self.patterns = self.stubs = 0
        self._cache: dict[tuple[str, str, int, int, int, str], tuple[WorkloadInfo, str]] = {}
        self._fresh: list[WorkloadInfo] = []
        self.structures: dict[str, bool] = {}

    def of(self, ref: MatrixRef, kind: str) -> tuple[WorkloadInfo, str]:
        own = ref.content.id if ref.content is not None else ""
        key = (kind, ref.name, ref.m, ref.n, ref.nnz, own)
        workload = self._cache.get(key)
        if workload is None:
            if max(ref.m, ref.n, ref.nnz) >= 1 << 62 or min(ref.m, ref.n, ref.nnz) < -1:
                raise ReaderError(f"{ref.m} x {ref.n} with {ref.nnz} entries is no possible size")
            info = self._resolved(ref, kind)
            self.structures[ref.name] = not info.stub and self.structures.get(ref.name, True)
            workload = self._cache[key] = (info, info.id)
        return workload

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
        pattern = self.library.subject(kind, ref.name, ref.sizes)
        if pattern is None:
            pattern = ref.content
        if pattern is not None:
            info = _described(WorkloadInfo.whole(pattern), ref)
            self._store.put_structure(pattern, info)
            self.patterns += 1
            return info
        wanted = (ref.m, ref.n, ref.nnz)
        for stored in self._store.find(ref.name):
            have = (stored.m, stored.n, stored.nnz)
            fits = all(w in (-1, h) for w, h in zip(wanted, have, strict=True))
            if fits and stored.kind == kind:
                self._note(ref, stored.id, kind, stub=stored.stub)
                return stored
        self.stubs += 1
        return self._note(ref, stub_id(ref.name, *wanted, kind=kind), kind, stub=True)

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


def _described(info: WorkloadInfo, ref: MatrixRef) -> WorkloadInfo:
    """A workload of the library with the names and features that the row states."""
    return msgspec.structs.replace(
        info,
        group=ref.group or info.group,
        features=dict(ref.features),
        about=dict(ref.about),
    )
