"""Export of a database to one file, import of such a file, and push of a contributor's own runs to
a team's database: an import whose source is recorded."""

from __future__ import annotations

import getpass
import gzip
import io
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TextIO

from embeddb.core.config import Op
from embeddb.core.errors import InputError, NothingFound, UsageError
from embeddb.core.files.safe_write import whole_file
from embeddb.core.kinds import kind_exists
from embeddb.core.records import Run, WorkloadInfo
from embeddb.core.reports import Progress, Report, ignore_progress
from embeddb.core.workload import Workload
from embeddb.index.lookup import Lookup
from embeddb.nests.nest import Nest
from embeddb.store import RunTable, Store
from embeddb.store.sources import Push, Pushing
from indexer.exchange.export_records import (
    abridged,
    model_docs,
    one_name_each,
    platform_docs,
    with_features,
    write_nests,
)
from indexer.exchange.importer import Importer, ImportReport, RecordReport
from indexer.ingest import rejects_places
from indexer.readers.embeddb import Record, documents

#: Export formats and their file endings.
FORMATS: Mapping[str, str] = {"jsonl": ".jsonl", "csv": ".csv", "t4": ".json", "c-header": ".h"}
#: Facts of a workload, or its content.
Described = WorkloadInfo | Workload
#: Formats without code that `index` reads: nests are then written beside them.
_READ_BACK = ("csv", "t4")


@dataclass(slots=True)
class ExportReport(Report):
    """Contents of an export. `nest_files` hold the code of nests that the export can only name;
    `nests_without_code` counts those whose code is in neither."""

    file: str
    format: str
    platforms: list[str] = field(default_factory=list)
    patterns: int = 0
    runs: int = 0
    models: int = 0
    nest_files: list[str] = field(default_factory=list)
    nests_without_code: int = 0


# -- out ---------------------------------------------------------------------------------------


def export_file(
    db: Lookup,
    path: Path,
    *,
    format: str = "",
    platform: str = "",
    op: Op | None = None,
    brief: bool = False,
) -> ExportReport:
    """Write an export under a temporary name, then rename it; gzip if the name ends in `.gz`.
    Formats that `index` reads and that can only name nests get files with their code beside them.

    The same records give the same bytes. The format follows from the ending unless given.

    Raises: UsageError for an unknown format; NothingFound if the selection is empty; InputError if
    the file cannot be written.
    """
    chosen = format or _format_of(path)
    try:
        with _text(path, packed=path.name.endswith(".gz")) as out:
            report = export(db, out, format=chosen, platform=platform, op=op, brief=brief)
        if report.nests_without_code and chosen in _READ_BACK:
            report.nest_files = write_nests(_named_nests(db.store, platform, op), path)
            report.nests_without_code = 0
    except OSError as e:
        raise InputError(f"cannot be written: {e.strerror}", where=str(path)) from None
    report.file = str(path)
    return report


def _format_of(path: Path) -> str:
    name = path.name.removesuffix(".gz")
    for format, ending in FORMATS.items():
        if name.endswith(ending):
            return format
    raise UsageError(
        f"{path}: no export format has this file ending", hint=f"--format {' | '.join(FORMATS)}"
    )


@contextmanager
def _text(path: Path, *, packed: bool) -> Iterator[TextIO]:
    with whole_file(path) as raw:
        # Without a time stamp and a name in it, the packed file depends on its content alone.
        inner = gzip.GzipFile("", "wb", fileobj=raw, mtime=0) if packed else raw
        out = io.TextIOWrapper(inner, encoding="utf-8", newline="\n")
        try:
            yield out
        finally:
            out.detach()  # what is below is closed when it is on the disk
        if packed:
            inner.close()


def export(
    db: Lookup,
    out: TextIO,
    *,
    format: str,
    platform: str = "",
    op: Op | None = None,
    brief: bool = False,
) -> ExportReport:
    """Write runs with the patterns and platforms they need. `platform` is an id or a bare name (all
    its instances), `op` one operation; without both, everything is written.

    Structures of matrices are left out: only their statistics and thumbnails are written; nests are
    complete in JSONL, and named in other formats. With `brief`, minimum, median and maximum, to
    four digits, replace the repeats of a run, and its context is left out (but `arrays` and
    `repeat`).

    Raises: UsageError for an unknown format; NothingFound if the selection is empty; StoreCorrupt
    for a damaged data file, of which a part could be missing silently.
    """
    from indexer.exchange.export_formats import write_c_header, write_csv, write_jsonl, write_t4

    db.store.refuse_damage()
    chosen = _selected(db.store, platform, op)
    ids = None if not (platform or op) else _members(db.store, chosen)
    report = ExportReport("", format, sorted({p.platform for p in chosen}))
    infos = [info for info in db.store.patterns() if ids is None or info.id in ids]
    report.patterns = len(infos)
    if format != "jsonl":
        infos = one_name_each(infos)
        report.nests_without_code = sum(i.kind == "nest" and not i.stub for i in infos)
    runs = _counted((run for p in chosen for run in db.store.runs(p.platform, p.op)), report)
    if brief:
        runs = map(abridged, runs)
    if format == "jsonl":
        selected = None if ids is None else set(report.platforms)
        docs = [d for d in platform_docs(db.store) if selected is None or d.id in selected]
        report.platforms = [d.id for d in docs]
        models = list(model_docs(db.store, chosen if platform or op else None))
        report.models = len(models)
        workloads = map(db.store.workload_or_info, infos)
        coded = (one for one in workloads if not isinstance(one, WorkloadInfo))
        every = _with_later(db, runs, {info.id for info in infos})
        report.patterns += write_jsonl(out, every, with_features(db, infos), docs, models, coded)
    elif format in FORMATS:
        plain = {"csv": write_csv, "t4": write_t4, "c-header": write_c_header}
        plain[format](out, runs, infos)
    else:
        raise UsageError(f"no export format {format!r}", hint=f"one of {', '.join(FORMATS)}")
    return report


def _named_nests(store: Store, platform: str, op: Op | None) -> Iterator[tuple[str, Nest]]:
    """Nests of an export by their names in it."""
    ids = _members(store, _selected(store, platform, op)) if platform or op else None
    infos = (info for info in store.patterns() if ids is None or info.id in ids)
    for info in one_name_each(infos):
        nest = store.nest(info.id)
        if nest is not None:
            yield info.name, nest


def _selected(store: Store, platform: str, op: Op | None) -> list[RunTable]:
    partitions = [p for p in _of_platform(store, platform) if op is None or p.op == op]
    if not partitions and (platform or op):
        have = ", ".join(f"{p.op} on {p.platform}" for p in store.partitions()[:8])
        what = " ".join(x for x in (str(op or ""), f"on {platform}" if platform else "") if x)
        raise NothingFound(f"no runs of {what}", hint=f"there are: {have or 'none'}")
    return partitions


def _of_platform(store: Store, platform: str) -> Iterator[RunTable]:
    """Runs of a platform, by its id or its name for all instances; all without a name."""
    for p in store.partitions():
        if platform in ("", p.platform, p.platform.partition("@")[0]):
            yield p


def _members(store: Store, partitions: Iterable[RunTable]) -> set[str]:
    return {pattern_id for p in partitions for pattern_id in store.members(p)}


def _with_later(db: Lookup, runs: Iterable[Run], ids: set[str]) -> Iterator[Run | Described]:
    """Runs; before the first one of a workload that is not among `ids`, since it was stored while
    others were read, the workload's facts and its content."""
    for run in runs:
        if run.pattern_id not in ids:
            ids.add(run.pattern_id)
            info = db.store.pattern(run.pattern_id)
            if info is not None and kind_exists(info.kind):
                yield from with_features(db, [info], few=True)
                if not isinstance(one := db.store.workload_or_info(info), WorkloadInfo):
                    yield one
        yield run


def _counted(runs: Iterator[Run], report: ExportReport) -> Iterator[Run]:
    for run in runs:
        report.runs += 1
        yield run


# -- in ----------------------------------------------------------------------------------------


def import_file(
    db: Lookup,
    path: Path,
    *,
    rejects: bool = True,
    progress: Callable[[int], None] = lambda _: None,
) -> ImportReport:
    """Read an export into the database. Records stored before are counted, not added again, so an
    interrupted import is simply repeated. Nothing stored is changed: unusable records, and those
    that contradict the stored ones, go to `<path>.rejects.jsonl` (with `rejects`), with the reason.

    Raises: ReaderError if the file is no export, or of a newer version; also if its end is missing,
    when the records before it are stored.
    """
    rejects_path = rejects_places(path, db.store, path.name)[0] if rejects else None
    job = Importer(db.store, str(path), rejects_path)
    return job.all_of(documents(path), progress)


# -- to a team ---------------------------------------------------------------------------------

#: Environment variable with the default name of the contributor.
_VARIABLE = "EMBEDDB_SOURCE"


@dataclass(slots=True, kw_only=True)
class PushReport(RecordReport):
    """Counts of a push; `reasons` are the first of rejected and contradicting records."""

    source: str
    database: str
    reasons: list[str]


def own_source() -> str:
    """Name of this contributor: `EMBEDDB_SOURCE`, else user and host, `ann@cluster7`."""
    return os.environ.get(_VARIABLE) or f"{_user()}@{socket.gethostname()}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a number without a name, as in a container
        return str(os.getuid())


def push(
    db: Lookup,
    team: Lookup,
    *,
    platform: str = "",
    source: str = "",
    progress: Progress = ignore_progress,
) -> PushReport:
    """Add the runs measured or read here, of a platform (an id, or a name for all its instances) or
    of all, to another database, with their patterns. Runs that came by an import or a push are left
    out: their contributor pushes them.

    Pushing the same runs again adds nothing, so an interrupted push is simply repeated.

    Raises: NothingFound if there are no such runs; UsageError for an invalid source name;
    StoreCorrupt for a damaged data file; StoreReadOnly, StoreFull, StoreLocked as every write.
    """
    db.store.refuse_damage()
    chosen = _own_partitions(db, platform)
    if not chosen:
        raise NothingFound(f"no runs measured or read here{f' on {platform}' if platform else ''}")
    platforms = tuple(sorted({p.platform for p in chosen}))
    record = Push(
        id=uuid.uuid4().hex[:16],
        when=round(time.time(), 3),
        user=_user(),
        host=socket.gethostname(),
        platforms=platforms,
    )
    pushing = Pushing(source or own_source(), record)
    importer = Importer(team.store, pushing.source, None, pushing)
    total = sum(db.store.count_runs(p) for p in chosen)
    done = importer.all_of(_records(db, chosen), lambda done: progress("push", done, total))
    counts = {one.name: getattr(done, one.name) for one in fields(RecordReport)}
    return PushReport(
        source=pushing.source,
        database=team.store.place,
        reasons=importer.reasons,
        **{**counts, "platforms": list(platforms)},
    )


def _own_partitions(db: Lookup, platform: str) -> list[RunTable]:
    named = _of_platform(db.store, platform)
    return [p for p in named if any(True for _ in db.store.runs(p.platform, p.op, own=True))]


def _records(db: Lookup, chosen: list[RunTable]) -> Iterator[Record]:
    """Records in the order of an export: platforms, then patterns and their code, then runs."""
    store, wanted = db.store, {p.platform for p in chosen}
    yield from (doc for doc in platform_docs(store) if doc.id in wanted)
    ids = _members(store, chosen)
    infos = [info for info in store.patterns() if info.id in ids]
    yield from with_features(db, infos)
    for info in infos:
        code = store.workload_or_info(info)
        if not isinstance(code, WorkloadInfo):
            yield code
    runs = (run for p in chosen for run in store.runs(p.platform, p.op, own=True))
    yield from _with_later(db, runs, ids)
