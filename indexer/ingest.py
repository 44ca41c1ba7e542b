"""Reading of run logs into the store: resumable, idempotent, every rejected row counted and written
to a file."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from embeddb.core import plugins
from embeddb.core.config import Config, Op, Value
from embeddb.core.errors import InputError, PlatformError, ReaderError, UsageError
from embeddb.core.files.safe_read import open_regular, refusing
from embeddb.core.files.safe_write import open_own
from embeddb.core.kinds import operation_of
from embeddb.core.records import Run, WorkloadInfo
from embeddb.core.reports import Report
from embeddb.matrix_files.source import plain_text
from embeddb.platforms.log_table import LogTable
from embeddb.platforms.platform import Platform, platform_here, runner_for, space_of
from embeddb.platforms.space.rules import show
from embeddb.platforms.space.space import ConfigSpace
from embeddb.store import Store
from embeddb.store.failures import translating
from embeddb.store.withdrawn import RunSelection
from indexer.library import Library
from indexer.log_identity import (
    LogName,
    Repeats,
    RowPlatforms,
    RowSubjects,
    content_of,
    copies_of,
    platform_of,
)
from indexer.readers.base.lines import guess, read_rows, refuse_packed
from indexer.readers.base.row import MatrixRef, ReadOptions, Reject, RunRow

#: Rows per transaction: the disk's fsync does not matter, and a kill loses less than a second.
BATCH = 10_000
#: Reasons of rejected rows that are counted apart; those after them are `_OTHER` together.
MOST_REASONS = 100
_OTHER, _LONGEST_REASON = "other reasons", 300
#: Equivalent parameter values reported for rows that repeat others.
_MOST_SAME = 4
#: Subjects whose legal configurations are remembered: logs mostly list one after the other.
_MOST_JUDGES = 64
#: Parts of a report that the journal has beside the numbers of rows, unless they are empty.
_JOURNALLED = ("reasons", "new_values", "repeats", "same_values", "first_reject", "contradictions")
#: Times of a run, in seconds: least by whether its platform is simulated, as a fraction of a cycle
#: at several GHz is no shorter, and most, ten years.
_LEAST, _MOST_TIME = {False: 1e-9, True: 1e-11}, 3.2e8
#: The instance of rows measured on this machine.
THIS = "this"


@dataclass(slots=True)
class IngestReport(Report):
    """Counts of the rows of one file by outcome, and the problems met."""

    file: str
    reader: str
    #: Other readers that recognise the file, where none was chosen, and the campaign of its runs,
    #: unless a row states another.
    also: list[str] = field(default_factory=list)
    campaign: str = ""
    platforms: set[str] = field(default_factory=set)
    ops: set[str] = field(default_factory=set)
    rows: int = 0
    added: int = 0
    duplicates: int = 0
    rejected: int = 0
    rejects_file: str = ""
    resumed_at: int = 0
    patterns: int = 0
    stubs: int = 0
    seconds: float = 0.0
    #: The folder of matrices and nests, how many of the names in the file it has (or the database
    #: had), and the other names.
    matrices: str = ""
    matrices_found: int = 0
    matrices_missing: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    #: Rows that repeat another one of the file, equivalent parameter values in them, and the first
    #: rejected row, with its line and reason.
    repeats: int = 0
    same_values: list[str] = field(default_factory=list)
    #: One line for matrices of several sizes, and one for those of several groups.
    contradictions: list[str] = field(default_factory=list)
    first_reject: str = ""
    open_end: bool = False  #: its last line has no end: a number there may be cut off
    #: Rows of a new log that equal runs of another one, by its campaign; stored runs of an earlier
    #: reading that are not in the log now; withdrawn runs of the log; where it neither added runs
    #: nor has withdrawn ones of its campaign, those of all others.
    copies: dict[str, int] = field(default_factory=dict)
    stale: int = 0
    withdrawn: int = 0
    withdrawn_others: int = 0
    #: Number of rejected rows by reason, at most `MOST_REASONS` reasons.
    reasons: dict[str, int] = field(default_factory=dict)
    #: By parameter, the number of rows for each value that an open choice does not list.
    new_values: dict[str, dict[str, int]] = field(default_factory=dict)
    #: Edits of a platform file that change the meaning of runs stored before.
    changes: list[str] = field(default_factory=list)

    @property
    def nothing_read(self) -> bool:
        """True if no row could be used, though there may be some."""
        return self.rejected >= self.rows

    def document(self) -> dict[str, Any]:
        own = Report.document(self)
        return {**own, "platforms": sorted(self.platforms), "ops": sorted(self.ops)}


def ingest(
    store: Store,
    path: Path,
    *,
    reader: str = "",
    platform: Platform | None = None,
    options: ReadOptions | None = None,
    library: Library | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> IngestReport:
    """Read every row of `path` into the store. Those that cannot be used go to
    `<path>.rejects.jsonl` with line and reason, in the database if the folder of `path` is not the
    user's (`rejects_places`); where none is left, the file of an earlier reading is removed. An
    interrupted file resumes where the last transaction ended; a file read to its end adds nothing
    the second time, and rows appended later are added once. Equal rows of one file are repeats, and
    all are stored.
    With the instance `this` the rows are stored under this machine's instance, as measurements by
    the platform's runner would be.

    Raises: ReaderError if no reader recognises the file; UsageError if its platform is unknown;
    RunnerUnavailable for the instance `this` of a platform that cannot be measured here.
    """
    if not path.exists():
        raise ReaderError("no such file", where=str(path))
    chosen, *also = [reader] if reader else readers_of(path)
    plug = plugins.created("reader", chosen)
    base = platform or platform_of(plug, path)
    read_options = completed(options or ReadOptions(), base)
    log = read_options.log
    if (read_options.instance or log.instance) == THIS:
        read_options = replace(read_options, instance="", log=replace(log, instance=""))
        base = base if base.instance else platform_here(runner_for(base))
    report = IngestReport(plain_text(path), chosen, also, f"{chosen}:{plain_text(path.name)}")
    journal, names, named = "", {}, None
    if not path.is_dir():  # folders are not journalled
        content, digest = content_of(path)
        code = plugins.code_of(plug) + chosen.encode()
        journal = _journal_key(digest, code, base, read_options)
        named = LogName(store, chosen, path, content)
        report.campaign, names, report.open_end = named.campaign, named.journal, named.open
    job = _Job(store, path, base, Library(None) if library is None else library, report)
    rows = read_rows(plug, path, read_options)
    job.consume(rows, journal, names, progress, new=named is not None and named.new)
    if named is not None:
        job.compare(edited=named.edited, unchanged=named.unchanged)
    return report


def reader_of(path: Path) -> str:
    """The name of the reader that recognises a file. Raises: ReaderError if none does."""
    return readers_of(path)[0]


def readers_of(path: Path) -> list[str]:
    """Names of the readers that recognise a file, the most specific first. Raises: ReaderError if
    none does."""
    candidates = guess(path)
    if not candidates and not path.is_dir():
        refuse_packed(path)
    if not candidates:
        what = "a folder, not a log" if path.is_dir() else "unknown format"
        hint = f"give --format: one of {', '.join(plugins.available('reader'))}"
        raise ReaderError(f"{what}: no reader recognises it", where=str(path), hint=hint)
    return candidates


def completed(options: ReadOptions, platform: Platform) -> ReadOptions:
    """The options with the log table of the platform's file, and with the names of its parameters,
    so that columns can be recognised."""
    ops = [Op.parse(operation_of(kernel)[0].example()) for kernel in platform.ops]
    params = [p for op in ops for p in platform.space(op).params]
    names, values = [p.name for p in params], [v for p in params for v in p.values]
    log = platform.log if options.log == LogTable() else options.log
    op_name = options.op_name or ("" if options.op else log.op_name)
    texts = frozenset(value for value in values if isinstance(value, str))
    unique = tuple(dict.fromkeys(names))
    return replace(options, params=unique, log=log, op_name=op_name, texts=texts)


def _journal_key(content: Any, code: bytes, platform: Platform, options: ReadOptions) -> str:
    """Journal key of a reading, by the hash `content` of the file, reader, and options."""
    h = content.copy()
    if options.features is not None:
        part = options.features
        with refusing(ReaderError, where=str(part)), open_regular(part) as file:
            while block := file.read(1 << 20):
                h.update(block)
    h.update(code + f"\0{platform.id}\0{platform.digest}\0{options!r}".encode())
    if platform.open_choices:
        # Rows rejected while a choice was closed are accepted when the file is read again.
        h.update(repr(sorted(platform.open_choices)).encode())
    return f"ingest/{h.hexdigest()}"


class _Job:
    """The ingestion of one file into the store."""

    def __init__(
        self,
        store: Store,
        path: Path,
        base: Platform,
        library: Library,
        report: IngestReport,
    ) -> None:
        self.store, self.path, self.report = store, path, report
        self._subjects = RowSubjects(store, library)
        self._platforms = RowPlatforms(store, base)
        self._places = rejects_places(path, store, report.campaign.partition(":")[2])
        self._rejects = self._places[0]
        self._judges: dict[tuple[str, Op, str], tuple[ConfigSpace, dict[str, Config]]] = {}
        self._judge: tuple[ConfigSpace, dict[str, Config]]
        self._new: dict[str, dict[str, Value]] = {}
        self._simulated = self._states_campaign = False
        self._repeats = Repeats()
        self._matrix: MatrixRef | None = None
        self._op: Op | None = None
        self._place = ("", "")
        self._pattern_id = self._platform_id = ""

    def consume(
        self,
        rows: Iterator[RunRow | Reject],
        journal: str,
        names: Mapping[str, bytes],
        progress: Callable[[int], None],
        *,
        new: bool,
    ) -> None:
        """Store all new rows. `journal` is the key of the reading, `names` are the journal entries
        of the log (none of a folder). A `new` log is compared with the others."""
        report, started = self.report, time.monotonic()
        state = json.loads((journal and self.store.journal.get(journal)) or b"{}")
        report.resumed_at = report.rows = state.get("rows", 0)
        for name in ("rejected", *_JOURNALLED):
            setattr(report, name, state.get(name, getattr(report, name)))
        if report.rejected:
            self._forget_rejects_after(report.rejected, inside=state.get("inside", False))
        if state.get("done"):
            rows = iter(())
        elif report.rows:
            self._pass_over(islice(rows, report.rows))
        while batch := list(islice(rows, BATCH)):
            report.rows += len(batch)
            runs, rejects = self._numbered(batch)
            if new and report.rows == len(batch):
                report.copies = copies_of(self.store, runs)
            self._write_rejects(rejects, first=report.rejected == 0)
            report.rejected += len(rejects)
            self._count(rejects)
            mark = self._mark(done=len(batch) < BATCH)
            result = self.store.append(
                runs,
                patterns=self._subjects.fresh(),
                journal={journal: mark, **names} if journal else None,
            )
            report.added += result.added
            report.duplicates += result.duplicates
            progress(report.rows)
        if not report.rejected and self._rejects.is_file() and not self._rejects.is_symlink():
            self._rejects.unlink()  # of a reading before the log was corrected
        report.seconds = time.monotonic() - started
        report.platforms = set(self._platforms.used)
        report.changes = list(dict.fromkeys(self._platforms.changes))
        subjects, library = self._subjects, self._subjects.library
        subjects.settle()
        report.patterns, report.stubs = subjects.patterns, len(subjects.stubs)
        report.problems = library.problems
        if library.folder is not None:
            report.matrices = str(library.folder)
            report.matrices_missing = [n for n, there in subjects.structures.items() if not there]
            report.matrices_found = len(subjects.structures) - len(report.matrices_missing)

    def compare(self, *, edited: bool, unchanged: bool) -> None:
        """Count the runs of the log that are withdrawn and, where it was `edited` or is read in
        another way, as with another instance, those that are not in it any more."""
        report, selection = self.report, RunSelection(campaign=self.report.campaign)
        table = self.store.withdrawn
        if table.count():
            report.withdrawn = sum(kind.runs for kind in table.chosen(selection, back=True))
            if not (report.added or report.withdrawn):  # they may have come under another name
                report.withdrawn_others = table.count()
        otherwise = unchanged and report.added > 0
        if (edited or otherwise) and not self._states_campaign:
            stored = sum(kind.runs for kind in table.chosen(selection))
            stored += edited * report.withdrawn  # of an unchanged log they are of the other way
            report.stale = max(stored - (report.rows - report.rejected), 0)

    def _pass_over(self, rows: Iterator[RunRow | Reject]) -> None:
        """Skip rows stored before, remembering them: later rows may repeat them."""
        new_values = deepcopy(self.report.new_values)
        while batch := list(islice(rows, BATCH)):
            runs, _, _ = self._split(batch)
            self._repeats.numbered(runs)
        self.report.new_values = new_values

    def _numbered(self, batch: list[RunRow | Reject]) -> tuple[list[Run], list[Reject]]:
        """Runs of a batch, repeats numbered, and the rejected rows."""
        runs, rejects, legal = self._split(batch)
        numbered, places = self._repeats.numbered(runs)
        self.report.repeats += len(places)
        same = self.report.same_values
        for at in places:
            if len(same) >= _MOST_SAME:
                break
            same += (line for line in _spellings(legal[at], runs[at].config) if line not in same)
        return numbered, rejects

    def _mark(self, *, done: bool) -> bytes:
        """Journal entry of a file read so far."""
        report = self.report
        entry: dict[str, Any] = {"rows": report.rows, "rejected": report.rejected}
        for name in _JOURNALLED:
            if value := getattr(report, name):
                entry[name] = value
        if self._is_inside(self._rejects):
            entry["inside"] = True
        if done:
            entry["done"] = True
        return json.dumps(entry).encode()

    def _count(self, rejects: list[Reject]) -> None:
        self.report.contradictions = self._subjects.contradictions()
        reasons = self.report.reasons
        if rejects and not self.report.first_reject:
            first = rejects[0]
            place = f"{first.where} line {first.line}" if first.where else f"line {first.line}"
            self.report.first_reject = f"{place}: {first.reason[:_LONGEST_REASON]}"
        for reject in rejects:
            reason = reject.reason[:_LONGEST_REASON]
            if reason not in reasons and len(reasons) >= MOST_REASONS:
                reason = _OTHER
            reasons[reason] = reasons.get(reason, 0) + 1

    def _split(
        self, batch: list[RunRow | Reject]
    ) -> tuple[list[Run], list[Reject], list[dict[str, Config]]]:
        """Runs, rejects, and for each run the legal configurations by the configuration in the
        log."""
        runs: list[Run] = []
        rejects: list[Reject] = []
        legal: list[dict[str, Config]] = []
        self._subjects.expect(batch)
        for row in batch:
            if isinstance(row, Reject):
                rejects.append(row)
                continue
            try:
                runs.append(self._run(row))
                legal.append(self._judge[1])
            except (ReaderError, PlatformError, UsageError) as e:
                rejects.append(Reject(row.line, str(e), str(dict(row.config))[:200], row.where))
        return runs, rejects, legal

    def _run(self, row: RunRow) -> Run:
        """The run of a row. Rows of one workload, operation and platform mostly follow each other:
        their common facts are looked up when one of the three changes."""
        place = (row.platform, row.instance)
        if row.matrix is not self._matrix or row.op is not self._op or place != self._place:
            platform = self._platforms.of(row)
            info = self._subjects.of(row.matrix, row.op.kind)
            judge = self._judge_of(platform, row.op, info)
            # Nothing above has changed `self`: a row that raised leaves the last good one's facts.
            self._judge, self._pattern_id, self._platform_id = judge, info.id, platform.id
            self._simulated = platform.simulated
            self._matrix, self._op = row.matrix, row.op
            self._place = place
            self.report.ops.add(str(row.op))
        config = self._legal(row)
        if row.measurement.ok:
            least = _LEAST[self._simulated]
            for time in row.measurement.times_s:
                if not isinstance(time, (int, float)):
                    raise ReaderError(f"the reader's time {time!r:.40} is no number")
                if not least <= time <= _MOST_TIME:
                    raise ReaderError(f"no run takes {time:.3g} s: check the unit of the time")
        self._states_campaign |= bool(row.campaign)
        campaign = row.campaign or self.report.campaign
        return Run(self._pattern_id, row.op, self._platform_id, config, row.measurement, campaign)

    def _judge_of(
        self, platform: Platform, op: Op, info: WorkloadInfo
    ) -> tuple[ConfigSpace, dict[str, Config]]:
        """The configuration space, and the legal configurations met in it; one for all matrices
        where its rules do not depend on sizes. Nests and tensor kernels each have their own."""
        fixed = op.workload.sparse and not platform.space(op).unresolved
        key = (platform.id, op, "" if fixed else info.id)
        judge = self._judges.pop(key, None)
        if judge is None:
            judge = space_of(platform, op, self.store.workload_or_info(info)), {}
        self._judges[key] = judge
        if len(self._judges) > _MOST_JUDGES:  # the least recently used
            del self._judges[next(iter(self._judges))]
        return judge

    def _legal(self, row: RunRow) -> Config:
        space, canonical = self._judge
        config = row.config if isinstance(row.config, Config) else Config(row.config)
        legal = canonical.get(config.json)
        if legal is None:
            wrong = "; ".join(space.reasons(config))
            if wrong:
                raise ReaderError(wrong)
            legal = canonical[config.json] = space.canonical(config)
            if space.rules.open:
                self._new[legal.json] = space.new_values(legal)
        for name, value in self._new.get(legal.json, {}).items():
            rows = self.report.new_values.setdefault(name, {})
            rows[show(value)] = rows.get(show(value), 0) + 1
        return legal

    def _is_inside(self, rejects: Path) -> bool:
        """True for a file in the database."""
        return rejects.parent == self.store.path

    def _forget_rejects_after(self, count: int, *, inside: bool) -> None:
        """Rejects written by a batch that was never committed come again; keep the others, in the
        place of the earlier reading, which may have started in another folder."""
        places = (one for one in self._places if self._is_inside(one) == inside)
        self._rejects = next(places, self._rejects)
        self.report.rejects_file = str(self._rejects)
        if self._rejects.is_file():
            with open_rejects(self._rejects, "r+b") as lines:
                for _ in range(count):
                    lines.readline()
                lines.truncate(lines.tell())  # in place: a kill must not cost those to be kept

    def _write_rejects(self, rejects: list[Reject], *, first: bool) -> None:
        if not rejects:
            return
        self.report.rejects_file = str(self._rejects)
        with (
            translating(self._rejects, OSError),
            open_rejects(self._rejects, "wb" if first else "ab") as out,
        ):
            for r in rejects:
                body = {"line": r.line, "reason": r.reason, "text": r.text, "where": r.where}
                out.write((json.dumps({k: v for k, v in body.items() if v != ""}) + "\n").encode())
            out.flush()
            os.fsync(out.fileno())  # before the batch that counts them is committed


def _spellings(legal: Mapping[str, Config], config: Config) -> Iterator[str]:
    """Parameter values of a log that are another spelling of a legal one: `panel: 2048 is all`."""
    for text, meant in legal.items():
        if meant == config and text != config.json:
            for name, value in json.loads(text).items():
                if (stored := config.get(name)) != value:
                    yield f"{name}: {value} is {show(stored)}"


def rejects_places(path: Path, store: Store, name: str) -> list[Path]:
    """Files for rejected records, the one to write first: next to the log, and in the database
    under the log's `name`, which comes first if the log's folder is read-only or is neither below
    the current folder nor below the database's."""
    beside = path.parent / f"{path.name}.rejects.jsonl"
    if store.path is None:
        return [beside]
    inside = store.path / f"{(name or path.name).replace('/', '-')}.rejects.jsonl"
    near = [store.path.resolve().parent]
    with suppress(OSError):  # the current folder may have been removed
        near.append(Path.cwd())
    folder = path.parent.resolve()
    own = os.access(folder, os.W_OK) and any(map(folder.is_relative_to, near))
    return [beside, inside] if own else [inside, beside]


def open_rejects(rejects: Path, mode: str) -> BinaryIO:
    """Open the file of rejected records. Raises: InputError if a link or something else is in its
    place."""
    with refusing(
        InputError, where=str(rejects), hint="rejected records are written there: remove it"
    ):
        return open_own(rejects, mode)
