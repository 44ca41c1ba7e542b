"""Index run logs into a database that answers, in one call.

import embeddb
from indexer.index_runs import index_runs

with embeddb.Database.create("fpga.db") as db:
    report = index_runs(db, ["runs.csv"], platform="my_platform.toml", matrices="matrices/")
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from embeddb.core.arguments import require, require_list
from embeddb.core.errors import MatrixError, ReaderError
from embeddb.core.reports import Progress, ignore_progress
from embeddb.index.lookup import Lookup
from embeddb.matrix_files import matrix_files, read_pattern
from embeddb.platforms.check import check_platform
from embeddb.platforms.platform import Platform, builtin_platforms, load_platform
from embeddb.store.merge_facts import latest
from indexer.coverage import Question, example, scope_states
from indexer.embed import EmbedReport, adopt_stubs, embed
from indexer.ingest import IngestReport, ingest
from indexer.library import Library
from indexer.readers.base.row import ReadOptions

#: Matrix files tried until one can be read and queried.
_MOST_TRIED = 5


@dataclass(frozen=True)
class IndexReport:
    """Result of indexing run logs.

    `database` is its folder, `platform_problems` one line for each mistake of the platform file,
    `files` one report per log, `adopted_runs` how many runs moved from a stub to its matrix,
    `matrix_problems` the files that could not be used, `embedded` the vectors by featurizer,
    `answers` one document for each operation and platform (`indexer.coverage.scope_states`) with
    its shortcomings in `missing`, `question` an example of a query that works now, None if there is
    none.
    """

    database: str
    platform_problems: list[str]
    files: list[IngestReport]
    adopted_runs: int
    matrix_problems: list[str]
    embedded: EmbedReport
    answers: list[dict[str, Any]]
    question: Question | None

    @property
    def problems(self) -> list[str]:
        """All problems, those of the platform first."""
        return [*self.platform_problems, *self.matrix_problems, *self.embedded.problems]

    @property
    def example(self) -> str:
        """A command line that can be typed now; empty if nothing can be answered."""
        return self.question.command(self.database) if self.question is not None else ""

    def document(self) -> dict[str, Any]:
        """JSON form, as printed by `embeddb index --json`."""
        return {
            "database": self.database,
            "platform_problems": self.platform_problems,
            "files": [report.document() for report in self.files],
            "adopted_runs": self.adopted_runs,
            "matrix_problems": self.matrix_problems,
            "embedded": self.embedded.vectors,
            "embed_problems": self.embedded.problems,
            "answers": self.answers,
            "example": self.example,
        }


def index_runs(
    db: Lookup,
    files: Sequence[str | Path],
    *,
    platform: Platform | str | None = None,
    reader: str = "",
    matrices: str | Path = "",
    options: ReadOptions | None = None,
    progress: Progress | None = None,
) -> IndexReport:
    """Read run logs into a database and make it answer.

    `platform` (a name, name@instance or TOML file) is where they ran, `reader` their format if it
    is not to be detected, `matrices` the folder of the matrix files they name. A platform file is
    checked first, then every log is read, stubs get the structure of matrices in the folder, and
    new workloads are embedded and indexed. Reading a file twice adds nothing; an interrupted one
    resumes where it stopped. `progress` is called with (task, done, total); a total of 0 is
    unknown.

    Raises: ReaderError for a missing file or one that no reader recognises; PlatformError for an
    invalid platform; UsageError for a file without a platform; MatrixError if `matrices` is no
    folder.
    """
    check_inputs(files, platform)
    require("options", options, ReadOptions | None, "a ReadOptions")
    report_progress = progress or ignore_progress
    problems = _platform_problems(platform)
    library = Library(Path(matrices) if str(matrices) else None)
    read = partial(ingest, db.store, reader=reader, options=options, library=library)
    reports = [
        read(
            path,
            platform=platform_of_runs(db, platform),
            progress=partial(_report_rows, report_progress, f"read {path.name}"),
        )
        for path in map(Path, files)
    ]
    moved = adopt_stubs(db, library) if len(library) else 0
    embedded = embed(db, progress=report_progress)
    answers = scope_states(db)
    return IndexReport(
        database="" if db.store.path is None else db.store.place,
        platform_problems=problems,
        files=reports,
        adopted_runs=moved,
        matrix_problems=list(dict.fromkeys(library.problems)),
        embedded=embedded,
        answers=answers,
        question=example(db, _of_logs(reports, answers), matrix=_any_file(matrices)),
    )


def check_inputs(files: Sequence[str | Path], platform: Platform | str | None = None) -> None:
    """Check files and platform before a database is created for them.

    Raises: ReaderError for the first missing file; PlatformError for a platform file that cannot be
    used.
    """
    require_list("files", files)
    require(
        "platform", platform, str | Platform | None, "a Platform, or its name or file as a text,"
    )
    for path in files:
        if not Path(path).exists():
            raise ReaderError("no such file", where=str(path))
    if isinstance(platform, str) and _is_file(platform):
        load_platform(platform)


def platform_of_runs(db: Lookup | None, platform: Platform | str | None) -> Platform | None:
    """The platform of the runs to be read: a TOML file, a built-in name, or a platform of the
    database; None if none is named. It has no instance unless one is named, since the rows of a log
    state theirs.

    Raises: PlatformError if there is none of that name.
    """
    if not platform or isinstance(platform, Platform):
        return platform or None
    bare = platform.partition("@")[0]
    if _is_file(platform) or "/" in platform or bare in builtin_platforms() or db is None:
        return load_platform(platform)
    stored = [p for p in db.store.platforms() if platform in (p, p.partition("@")[0])]
    if not stored:
        return load_platform(platform)
    if platform in stored:
        return db.store.platform(platform)
    sound = [one for i in stored if (one := db.store.sound_platform(i)) is not None]
    first = sound[0] if sound else db.platform(stored[0])
    return latest([first], sound)[0].at("")


def _of_logs(
    reports: Sequence[IngestReport], answers: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The answers for the operations and platforms in the logs; all of them if no row was used."""
    ops = {op for report in reports for op in report.ops}
    platforms = {one.partition("@")[0] for report in reports for one in report.platforms}
    read = [s for s in answers if s["op"] in ops and s["platform"].partition("@")[0] in platforms]
    return read if ops else answers


def _platform_problems(platform: Platform | str | None) -> list[str]:
    """Problems of a platform file or of a Platform object; built-in and stored ones have none."""
    if isinstance(platform, Platform):
        return check_platform(platform)
    return check_platform(load_platform(platform)) if platform and _is_file(platform) else []


def _is_file(platform: str) -> bool:
    return platform.endswith(".toml")


def _any_file(folder: str | Path) -> str:
    """A matrix file of the folder that can be queried; empty if there is none."""
    for path in matrix_files(folder)[:_MOST_TRIED] if str(folder) else ():
        try:
            read_pattern(path)
        except MatrixError:
            continue
        return str(path)
    return ""


def _report_rows(progress: Progress, task: str, rows: int) -> None:
    progress(task, rows, 0)
