"""Import of another database's records into a store: the same checks for exports and for pushes."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TextIO

from embeddb.core.config import Op
from embeddb.core.errors import EmbeddbError, ReaderError, StoreError
from embeddb.core.files.safe_read import refusing
from embeddb.core.kinds import kind_exists
from embeddb.core.pattern import stub_id
from embeddb.core.records import Run, WorkloadInfo
from embeddb.core.reports import Report
from embeddb.core.workload import Workload
from embeddb.platforms.platform import builtin_platforms, load_platform, parse_platform, space_of
from embeddb.platforms.space.space import ConfigSpace
from embeddb.store import Contradiction, Store
from embeddb.store.models import ModelEntry, checked
from embeddb.store.sources import Pushing
from indexer.ingest import open_rejects
from indexer.readers.base.row import Reject
from indexer.readers.embeddb import ModelDoc, PlatformDoc, Record

#: Records per transaction.
_BATCH = 10_000
#: Model cards and codes per transaction: a hostile one may have a quarter of a megabyte.
_MODELS = _CODED = 64
_MOST_REASONS = 10


@dataclass(slots=True, kw_only=True)
class RecordReport(Report):
    """Counts of records by outcome: `duplicates` were stored before, `withdrawn` ones of them stay
    withdrawn, `rejected` records are unusable; `contradicting` ones, `kept` in JSON, are added
    without what contradicts stored facts."""

    platforms: list[str] = field(default_factory=list)
    patterns: int = 0
    runs: int = 0
    added: int = 0
    duplicates: int = 0
    withdrawn: int = 0
    rejected: int = 0
    contradicting: int = 0
    seconds: float = 0.0

    def document(self) -> dict[str, Any]:
        """The fields as plain values, by name."""
        names = {"contradicting": "kept"}
        return {names.get(one.name, one.name): getattr(self, one.name) for one in fields(self)}


@dataclass(slots=True, kw_only=True)
class ImportReport(RecordReport):
    """Counts of the records of one export."""

    file: str
    models: int = 0
    rejects_file: str = ""


class Importer:
    """Import of another database's records: every record is checked, and adds to the store without
    changing what it has. `rejects` is the file for unusable records, `pushing` the source to
    record, if any."""

    def __init__(
        self, store: Store, name: str, rejects: Path | None, pushing: Pushing | None = None
    ) -> None:
        self.report = ImportReport(file=name)
        self.runs: list[Run] = []
        self.infos: list[WorkloadInfo] = []
        self.coded: dict[str, Workload] = {}
        self.models: list[ModelEntry] = []
        self._store = store
        self._pushing = pushing
        self._rejects_path = rejects
        #: The first reasons of rejected and contradicting records.
        self.reasons: list[str] = []
        self._rejects_out: TextIO | None = None
        self._ids: set[str] = set()
        self._spaces: dict[tuple[str, Op], tuple[str, tuple[ConfigSpace, set[str]]]] = {}

    def all_of(self, records: Iterable[Record], progress: Callable[[int], None]) -> ImportReport:
        """Import all records, a batch per transaction.

        Raises: ReaderError where `records` is cut off; the records before are stored.
        """
        started = time.monotonic()
        try:
            for record in records:
                self.take(record)
                large = len(self.coded) >= _CODED or len(self.models) >= _MODELS
                if large or len(self.runs) + len(self.infos) >= _BATCH:
                    self.write()
                    progress(self.report.runs + self.report.patterns)
            self.write()
        except ReaderError:  # of the file: those of a record are caught by `take`
            self.write()
            raise
        finally:
            self.close()
        self.report.seconds = time.monotonic() - started
        return self.report

    def take(self, record: Record) -> None:
        """Import one record: an unusable one is rejected alone; an error of the store ends the
        import."""
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

    def _take(self, record: PlatformDoc | WorkloadInfo | Workload | ModelDoc | Reject) -> None:
        if isinstance(record, WorkloadInfo):
            _check_pattern(record)
            self.report.patterns += 1
            self.infos.append(record)
        elif isinstance(record, PlatformDoc):
            self._put_platform(record)
        elif isinstance(record, ModelDoc):
            # A card without its model file: it is not in use here. A stored version is not changed.
            entry = ModelEntry(record.version, record.card, registered=record.registered)
            self.models.append(checked(entry))
            self.report.models += 1
        elif isinstance(record, Reject):
            self._reject(record)
        else:
            self.coded[record.id] = record

    def _put_platform(self, doc: PlatformDoc) -> None:
        name, _, instance = doc.id.partition("@")
        if doc.text:
            read = parse_platform(doc.text, where=doc.id, known_only=True)
            platform = read if read.kernels else parse_platform(doc.text, where=doc.id)
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
        """Raises: ReaderError unless platform and configuration agree with the platform's
        description."""
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
        """The configuration space and the configurations checked in it: one for all matrices, and
        one for the last workload of another kind, which has rules of its own."""
        own = "" if run.op.workload.sparse else run.pattern_id
        owner, judge = self._spaces.get((run.platform, run.op), ("", None))
        if judge is None or owner != own:
            # The stored platform: the description in the file may allow more.
            platform = self._store.platform(run.platform)
            if platform is None:
                raise ReaderError(
                    f"platform {run.platform} is unknown: the export has no description of it"
                )
            facts = WorkloadInfo(id=own, kind=run.op.kind)
            subject = (self.coded.get(own) or self._store.workload_or_info(facts)) if own else facts
            with refusing(ReaderError):
                judge = (space_of(platform, run.op, subject), set())
            self._spaces[run.platform, run.op] = (own, judge)
        return judge

    def _contradicted(self, against: Contradiction) -> None:
        reject = Reject(0, against.reason, against.what)
        if against.refused:
            self._reject(reject)
        else:
            self.report.contradicting += 1
            self._log_reject(reject, partly=True)

    def _reject(self, reject: Reject) -> None:
        self.report.rejected += 1
        self._log_reject(reject)

    def _log_reject(self, reject: Reject, *, partly: bool = False) -> None:
        if len(self.reasons) < _MOST_REASONS:
            self.reasons.append(f"{reject.text}: {reject.reason}")
        if self._rejects_path is None:
            return
        if self._rejects_out is None:
            self.report.rejects_file = str(self._rejects_path)
            raw = open_rejects(self._rejects_path, "wb")
            self._rejects_out = io.TextIOWrapper(raw, encoding="utf-8", newline="\n")
        body = {"line": reject.line, "reason": reject.reason, "text": reject.text, "kept": partly}
        self._rejects_out.write(json.dumps({k: v for k, v in body.items() if v}) + "\n")

    def write(self) -> None:
        if self.runs or self.infos or self.coded:
            result = self._store.take(
                self.runs, self.infos, self.coded.values(), pushing=self._pushing
            )
            self.report.added += result.added
            self.report.duplicates += result.duplicates
            self.report.withdrawn += result.withdrawn
            for against in result.against:
                self._contradicted(against)
            self.runs, self.infos, self.coded = [], [], {}
        if self.models:
            self._store.models.register(self.models)
            self.models = []

    def close(self) -> None:
        if self._rejects_out is not None:
            self._rejects_out.close()


def _check_pattern(info: WorkloadInfo) -> None:
    """Raises: ReaderError for an inconsistent record, also for a stub under a foreign id: the
    pattern that adopts it would get the runs of the pattern with that id."""
    _check_id(info.id)
    if not kind_exists(info.kind) or (info.named and info.workload.sparse):
        raise ReaderError(f"no kind of pattern {info.kind[:40]!r} that has sizes {info.sizes}")
    own = info.id == stub_id(info.name, info.m, info.n, info.nnz, kind=info.kind)
    if info.stub and not own:
        raise ReaderError("a stub, but its id is not that of its name and sizes")
    if own and not info.stub:
        raise ReaderError(f"its id is that of a stub, but its record is of a {info.kind}")


def _check_id(pattern_id: str) -> None:
    try:
        good = len(bytes.fromhex(pattern_id)) == 16 and pattern_id == pattern_id.lower()
    except ValueError:
        good = False
    if not good:
        raise ReaderError(f"{pattern_id[:40]!r} is no id of a pattern")
