"""A whole database out to one file, and such a file into a database."""

from __future__ import annotations

import gzip
import io
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import msgspec
import numpy as np

from embeddb.core.config import KINDS, Op
from embeddb.core.errors import (
    EmbeddbError,
    InputError,
    NothingFound,
    ReaderError,
    StoreError,
    UsageError,
)
from embeddb.core.files.gate import refusing
from embeddb.core.files.own_files import open_own, whole_file
from embeddb.core.pattern import stub_id
from embeddb.core.records import PatternInfo, Run
from embeddb.featurizers.base import Travelling
from embeddb.index.lookup import Lookup
from embeddb.nests.nest import Nest
from embeddb.platforms.of_subject import Coded, space_of
from embeddb.platforms.platform import builtin_platforms, load_platform, parse_platform
from embeddb.platforms.space.space import ConfigSpace
from embeddb.store import Contradiction, Partition, Store
from embeddb.store.coded import table_of
from embeddb.store.models.table import ModelEntry, checked
from indexer.exchange.models import adopt_models, model_docs
from indexer.exchange.nest_files import one_name_each, write_nests
from indexer.readers.base.row import Reject
from indexer.readers.embeddb import ModelDoc, PlatformDoc, Record, documents

__all__ = [
    "FORMATS",
    "ExportReport",
    "ImportReport",
    "adopt_models",
    "export",
    "export_file",
    "import_file",
]

#: Export formats and the file ending that means them.
FORMATS: Mapping[str, str] = {"jsonl": ".jsonl", "csv": ".csv", "t4": ".json", "c-header": ".h"}
#: Formats without code that `index` reads: nests are then written beside them.
_READ_BACK = ("csv", "t4")
#: Records per transaction.
_BATCH = 10_000
#: Cards and codes per transaction: a hostile one may be of a quarter of a megabyte.
_MODELS = _CODED = 64
#: The featurizers whose vectors travel with the patterns, so that they answer without structure.
_TRAVELS = ("stats", "scnn")


@dataclass(slots=True)
class ExportReport:
    """What was written. `nest_files` hold the code of nests that the export can only name;
    `nests_without_code` counts those that are in neither."""

    file: str
    format: str
    platforms: list[str] = field(default_factory=list)
    patterns: int = 0
    runs: int = 0
    models: int = 0
    nest_files: list[str] = field(default_factory=list)
    nests_without_code: int = 0

    def document(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True)
class ImportReport:
    """What became of every record of one export. `rejected` records were not taken; `kept` ones
    say something else than is known here, which stays: nothing but that was left out of them."""

    file: str
    platforms: list[str] = field(default_factory=list)
    patterns: int = 0
    runs: int = 0
    models: int = 0
    added: int = 0
    duplicates: int = 0
    rejected: int = 0
    kept: int = 0
    rejects_file: str = ""
    seconds: float = 0.0

    def document(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


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
    """Write an export under a temporary name, then rename it; gzip if the name ends in `.gz`. What
    can only name nests, and can be read back, has their code in files beside it.

    The same records give the same bytes. The format follows from the ending unless given.
    Raises: UsageError for an unknown format; NothingFound if the selection is empty; InputError
    if the file cannot be written.
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
        f"{path}: the name does not tell the format", hint=f"--format {' | '.join(FORMATS)}"
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
    """Write runs with the patterns and platforms they need. `platform` is an id or a bare name
    (all its instances), `op` one operation; without both, everything is written.

    Structures of matrices stay behind: they travel with their statistics and thumbnails; nests
    travel whole in JSONL, and by name in other formats. With `brief`, minimum, median and maximum
    stand for the repeats of a run, to four digits, and its context stays behind.
    Raises: UsageError for an unknown format; NothingFound if the selection is empty; StoreCorrupt
    for a damaged data file, of which a part could be missing without a word.
    """
    from indexer.exchange.writers import write_c_header, write_csv, write_jsonl, write_t4

    db.store.refuse_damage()
    chosen = _selected(db.store, platform, op)
    ids = None if not (platform or op) else _members(db.store, chosen)
    report = ExportReport("", format, sorted({p.platform for p in chosen}))
    infos = [info for info in db.store.patterns() if ids is None or info.id in ids]
    report.patterns = len(infos)
    if format != "jsonl":
        infos = one_name_each(infos)
        report.nests_without_code = sum(i.kind == "nest" and not i.stub for i in infos)
    runs = _counted(_runs(db.store, chosen), report)
    if brief:
        runs = map(_abridged, runs)
    if format == "jsonl":
        known = None if ids is None else set(report.platforms)
        docs = [d for d in _platform_docs(db.store) if known is None or d.id in known]
        report.platforms = [d.id for d in docs]
        models = list(model_docs(db.store, chosen if platform or op else None))
        report.models = len(models)
        coded = _coded(db.store, infos)
        write_jsonl(out, runs, _with_features(db, infos), docs, models, coded)
    elif format in FORMATS:
        plain = {"csv": write_csv, "t4": write_t4, "c-header": write_c_header}
        plain[format](out, runs, infos)
    else:
        raise UsageError(f"no export format {format!r}", hint=f"one of {', '.join(FORMATS)}")
    return report


def _named_nests(store: Store, platform: str, op: Op | None) -> Iterator[tuple[str, Nest]]:
    """The nests of an export, by the names that it has for them."""
    ids = _members(store, _selected(store, platform, op)) if platform or op else None
    infos = (info for info in store.patterns() if ids is None or info.id in ids)
    for info in one_name_each(infos):
        nest = store.nest(info.id) if info.kind == "nest" else None
        if nest is not None:
            yield info.name, nest


def _selected(store: Store, platform: str, op: Op | None) -> list[Partition]:
    found = [
        p
        for p in store.partitions()
        if (not platform or platform in (p.platform, p.platform.partition("@")[0]))
        and (op is None or p.op == op)
    ]
    if not found and (platform or op):
        have = ", ".join(f"{p.op} on {p.platform}" for p in store.partitions()[:8])
        what = " ".join(x for x in (str(op or ""), f"on {platform}" if platform else "") if x)
        raise NothingFound(f"no runs of {what}", hint=f"there are: {have or 'none'}")
    return found


def _members(store: Store, partitions: Iterable[Partition]) -> set[str]:
    return {pattern_id for p in partitions for pattern_id in store.members(p)}


def _runs(store: Store, partitions: Iterable[Partition]) -> Iterator[Run]:
    for p in partitions:
        yield from store.runs(p.platform, p.op)


def _counted(runs: Iterator[Run], report: ExportReport) -> Iterator[Run]:
    for run in runs:
        report.runs += 1
        yield run


def _abridged(run: Run) -> Run:
    """The run with its repeats told by minimum, median and maximum, its moment to the minute."""
    m = run.measurement
    short = msgspec.structs.replace(
        m,
        times_s=_quantiles(m.times_s, (0.0, 0.5, 1.0)),
        cpu_max_s=_quantiles(m.cpu_max_s, (0.5,)),
        cpu_sum_s=_quantiles(m.cpu_sum_s, (0.5,)),
        conversion_s=None if m.conversion_s is None else float(f"{m.conversion_s:.3g}"),
        compile_s=None,
        when=60.0 * round(m.when / 60),
        context={},
    )
    return replace(run, measurement=short)


def _quantiles(times: tuple[float, ...], at: tuple[float, ...]) -> tuple[float, ...]:
    if len(times) <= len(at):
        return tuple(float(f"{t:.4g}") for t in times)
    return tuple(float(f"{t:.4g}") for t in np.quantile(times, at))


def _platform_docs(store: Store) -> list[PlatformDoc]:
    docs = []
    for platform_id in store.platforms():
        platform = store.platform(platform_id)
        if platform is not None:
            docs.append(PlatformDoc(platform_id, platform.text, dict(platform.environment)))
    return docs


def _coded(store: Store, infos: list[PatternInfo]) -> Iterator[Coded]:
    found = (store.known(info) for info in infos)
    return (one for one in found if not isinstance(one, PatternInfo))


def _with_features(db: Lookup, infos: list[PatternInfo]) -> Iterator[PatternInfo]:
    """Patterns with their vector among the features: that is what answers where it is read."""
    there = db.featurizers()
    readers = [(n, plug) for n in _TRAVELS if isinstance(plug := there.get(n), Travelling)]
    stored = [(r, db.store.vectors.every(name, r.version)) for name, r in readers]
    for info in infos:
        features = dict(info.features)
        for reader, vectors in stored:
            if info.id in vectors:
                features |= reader.as_features(vectors[info.id])
        yield msgspec.structs.replace(info, features=features)


# -- in ----------------------------------------------------------------------------------------


def import_file(
    db: Lookup,
    path: Path,
    *,
    rejects: bool = True,
    progress: Callable[[int], None] | None = None,
) -> ImportReport:
    """Read an export into the database. What is there already is counted, not added again, so an
    interrupted import is simply repeated. It adds to what is known and changes none of it: records
    that cannot be used, and those that say something else than is known, go to
    `<path>.rejects.jsonl` (with `rejects`), with the reason.

    Raises: ReaderError if the file is no export, or of a newer version.
    """
    started = time.monotonic()
    job = _Import(db.store, path, rejects)
    try:
        for record in documents(path):
            job.take(record)
            large = len(job.coded) >= _CODED or len(job.models) >= _MODELS
            if large or len(job.runs) + len(job.infos) >= _BATCH:
                job.write()
                if progress is not None:
                    progress(job.report.runs + job.report.patterns)
        job.write()
    finally:
        job.close()
    job.report.seconds = time.monotonic() - started
    return job.report


class _Import:
    """One export on its way into a store."""

    def __init__(self, store: Store, path: Path, rejects: bool) -> None:
        self.report = ImportReport(str(path))
        self.runs: list[Run] = []
        self.infos: list[PatternInfo] = []
        self.coded: dict[str, Coded] = {}
        self.models: list[ModelEntry] = []
        self._store = store
        self._rejects_path = path.with_name(path.name + ".rejects.jsonl") if rejects else None
        self._rejects_out: TextIO | None = None
        self._ids: set[str] = set()
        self._spaces: dict[tuple[str, Op], tuple[str, tuple[ConfigSpace, set[str]]]] = {}

    def take(self, record: Record) -> None:
        """A record that fails costs itself alone; a store that fails ends the import."""
        try:
            if isinstance(record, Run):
                self.report.runs += 1
                self._check(record)
                self.runs.append(record)
                return
            with refusing(ReaderError):
                self._take(record)
        except StoreError:
            raise
        except EmbeddbError as e:
            text = getattr(record, "id", getattr(record, "version", ""))
            self._reject(Reject(0, str(e), f"{type(record).__name__} {text}"[:200]))

    def _take(self, record: PlatformDoc | PatternInfo | Coded | ModelDoc | Reject) -> None:
        if isinstance(record, PatternInfo):
            _check_pattern(record)
            self.report.patterns += 1
            self.infos.append(record)
        elif isinstance(record, Coded):
            self.coded[record.id] = record
        elif isinstance(record, PlatformDoc):
            self._put_platform(record)
        elif isinstance(record, ModelDoc):
            # Of a model without a file: it is not in use here. A known version stays as it is.
            entry = ModelEntry(record.version, record.card, registered=record.registered)
            self.models.append(checked(entry))
            self.report.models += 1
        else:
            self._reject(record)

    def _put_platform(self, doc: PlatformDoc) -> None:
        name, _, instance = doc.id.partition("@")
        if doc.text:
            platform = parse_platform(doc.text, where=doc.id)
        elif name in builtin_platforms():
            platform = load_platform(name)
        else:
            raise ReaderError(f"platform {doc.id} has no description")
        if platform.name != name:
            raise ReaderError(f"platform {doc.id} is described as {platform.name}")
        platform = platform.at(instance, doc.environment) if instance else platform
        against = self._store.take_platform(platform)
        if against is not None:
            self._contradicted(against)
        if against is None or not against.refused:
            self.report.platforms.append(doc.id)

    def _check(self, run: Run) -> None:
        """Raises: ReaderError unless platform and configuration are what the platform says."""
        space, legal = self._space_of(run)
        if run.config.json not in legal:
            with refusing(ReaderError):
                reason = space.reason(run.config)
            if reason is not None:
                raise ReaderError(reason)
            legal.add(run.config.json)
        if run.pattern_id not in self._ids:
            _check_id(run.pattern_id)
            self._ids.add(run.pattern_id)

    def _space_of(self, run: Run) -> tuple[ConfigSpace, set[str]]:
        """The space and what was found legal in it: one for all matrices, and for the nest or
        tensor kernel that the runs were on last, whose own rules decide."""
        own = run.pattern_id if table_of(run.op.kind) else ""
        known, found = self._spaces.get((run.platform, run.op), ("", None))
        if found is None or known != own:
            # The stored one: what the file says of it may be wider.
            platform = self._store.platform(run.platform)
            if platform is None:
                raise ReaderError(f"platform {run.platform} is not known")
            facts = PatternInfo(id=own, kind=run.op.kind)
            subject = (self.coded.get(own) or self._store.known(facts)) if own else facts
            with refusing(ReaderError):
                found = (space_of(platform, run.op, subject), set())
            self._spaces[run.platform, run.op] = (own, found)
        return found

    def _contradicted(self, against: Contradiction) -> None:
        reject = Reject(0, against.reason, against.what)
        if against.refused:
            self._reject(reject)
        else:
            self.report.kept += 1
            self._tell(reject, kept=True)

    def _reject(self, reject: Reject) -> None:
        self.report.rejected += 1
        self._tell(reject)

    def _tell(self, reject: Reject, *, kept: bool = False) -> None:
        if self._rejects_path is None:
            return
        if self._rejects_out is None:
            self.report.rejects_file = str(self._rejects_path)
            raw = _opened(self._rejects_path)
            self._rejects_out = io.TextIOWrapper(raw, encoding="utf-8", newline="\n")
        body = {"line": reject.line, "reason": reject.reason, "text": reject.text, "kept": kept}
        self._rejects_out.write(json.dumps({k: v for k, v in body.items() if v}) + "\n")

    def write(self) -> None:
        if self.runs or self.infos or self.coded:
            result = self._store.take(self.runs, self.infos, self.coded.values())
            self.report.added += result.added
            self.report.duplicates += result.duplicates
            for against in result.against:
                self._contradicted(against)
            self.runs, self.infos, self.coded = [], [], {}
        if self.models:
            self._store.models.register(self.models)
            self.models = []

    def close(self) -> None:
        if self._rejects_out is not None:
            self._rejects_out.close()


def _opened(rejects: Path) -> BinaryIO:
    """Raises: InputError where a link or something else stands in its place."""
    with refusing(InputError, where=str(rejects), hint="it is written beside the file: remove it"):
        return open_own(rejects, "wb")


def _check_pattern(info: PatternInfo) -> None:
    """Raises: ReaderError, also for a stub under another id than its own: the pattern that adopts
    it would get the runs of the pattern that has this id."""
    _check_id(info.id)
    if info.kind not in KINDS.values() or (info.kind == "matrix" and info.named):
        raise ReaderError(f"no kind of pattern {info.kind[:40]!r} that has sizes {info.sizes}")
    own = info.id == stub_id(info.name, info.m, info.n, info.nnz, kind=info.kind)
    if info.stub and not own:
        raise ReaderError("a stub, but its id is not that of its name and sizes")
    if own and not info.stub:
        raise ReaderError(f"its id is that of a stub, but it is told as a {info.kind}")


def _check_id(pattern_id: str) -> None:
    try:
        good = len(bytes.fromhex(pattern_id)) == 16 and pattern_id == pattern_id.lower()
    except ValueError:
        good = False
    if not good:
        raise ReaderError(f"{pattern_id[:40]!r} is no id of a pattern")
