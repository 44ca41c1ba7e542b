"""Resolve command-line arguments to a database, a workload or a platform."""

from __future__ import annotations

import csv
import shlex
import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from embeddb import database
from embeddb.core.config import Op
from embeddb.core.errors import InputError, NothingFound, UsageError
from embeddb.core.kinds import kind_of
from embeddb.core.pattern import Pattern
from embeddb.core.records import STATUSES, WorkloadInfo
from embeddb.core.server_url import is_server_url
from embeddb.core.workload import Workload
from embeddb.database import Database
from embeddb.nests.nest import Nest
from embeddb.platforms.platform import Platform, this_machine
from embeddb.store import is_database
from embeddb.store.failures import opened_readonly
from embeddb.tensors.tensor_graph import KINDS
from embeddb.ui.cli.output import Progress, note
from indexer.resolve import is_source
from indexer.starter import STARTER

if TYPE_CHECKING:
    from embeddb.index.recorder import Machine
    from indexer.frontends.tree import Extraction

T = TypeVar("T")

#: An output of `embeddb eval --json` is far smaller.
_MOST_EVAL_BYTES = 64 << 20


def open_database(place: str, *, readonly: bool = False) -> Database:
    """The database at a path, or the shipped one.

    Raises: StoreError if there is none; InputError if the shipped data is absent.
    """
    if place != STARTER:
        return database.open_database(place, readonly=readonly)
    with Progress() as progress:
        return database.open_database(place, readonly=readonly, note=note, progress=progress)


def refuse_readonly(db: Database) -> None:
    """Check before long work that its results can be stored. Raises: StoreReadOnly."""
    if db.store.readonly:
        raise opened_readonly(db.store.place)


@contextmanager
def database_to_fill(place: str, *, readonly: bool = False) -> Iterator[Database]:
    """The database at a path, created if there is none; `readonly` is for one that is there. A new
    one is removed again if the block raises before it has a run, a nest or a kernel; tables on a
    server stay.

    Raises: StoreError for a path that cannot be a database; InputError as `open_database`.
    """
    if place == STARTER or is_database(place):
        with open_database(place, readonly=readonly) as opened:
            yield opened
        return
    folder = Path(place)
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    empty = False
    try:
        with database.open_database(place, create=True) as opened:
            try:
                yield opened
            except BaseException:
                store = opened.store
                if not is_server_url(place) and not store.count_runs():
                    # Rejected rows leave matrices behind.
                    empty = all(p.workload.sparse for p in store.patterns())
                raise
    finally:
        if empty:
            for part in folder.iterdir():
                shutil.rmtree(part) if part.is_dir() else part.unlink()
            for one in missing:
                one.rmdir()


def resolve_workloads(
    db: Database, text: str, op: Op, defines: Sequence[str] = (), matrix: str = ""
) -> list[Workload | WorkloadInfo]:
    """The workloads that a text names for an operation: a matrix, a nest, the nests of a C file
    (`defines` override its constants, `N=64`; `matrix` fills its index arrays), or the kernels or
    the program in a file. A note says when a whole program is taken as one kernel.

    Raises: as `Database.find`; NestError, TensorError for a file that cannot be read; UsageError
    for a malformed define.
    """
    if op.kind in KINDS and is_source(db.index, text) and not (defines or matrix):
        from indexer.frontends.hlo.files import read_tensors
        from indexer.library import contents
        from indexer.programs.tensors.cutting import distinct_kernels

        all_read = read_tensors(text).tensors if op.kind == "kernel" else []
        programs = [one for one in all_read if one.kind == "program"]
        parts = len(distinct_kernels(programs)) if len(programs) == 1 else 0
        if parts > 1:
            note(
                f"{text} is a whole program, here taken as one kernel: `embeddb kernel import DB "
                f"{text} --cut` stores the {parts} kernels it cuts into; query them by name"
            )
        return list(contents(text, op.kind))
    if op.kind != "nest" or not is_source(db.index, text):
        if defines or matrix:
            option = "--define" if defines else "--matrix"
            raise UsageError(
                f"{option} is for a program with loop nests", hint="see docs/howto/loop-nests.md"
            )
        return [db.find(text, kind=op.kind)]
    (pattern,) = read_matrices([matrix] if matrix else [])
    return list(extracted(text, defined(defines), pattern, alone=True).nests)


def extracted(
    file: str, constants: dict[str, int], matrix: Pattern | None, *, alone: bool
) -> Extraction:
    """The nests of a file. A file of C that is `alone` must know every constant.

    Raises: NestError.
    """
    from indexer.frontends import extract, read_c_file

    if not file.lower().endswith(".c"):
        return extract(file, defines=constants, matrix=matrix)
    _, read, extraction = read_c_file(file, defines=constants, matrix=matrix)
    read.check_defined(constants if alone else (), file)
    return extraction


def read_matrices(files: Sequence[str]) -> Sequence[Pattern | None]:
    """The matrices that fill a program's index arrays, or a single None. Raises: MatrixError."""
    from embeddb.matrix_files import read_pattern

    return [read_pattern(file) for file in files] or [None]


def defined(texts: Sequence[str]) -> dict[str, int]:
    """The numbers of `-D N=64` by name. Raises: UsageError for a malformed define."""
    numbers = {}
    for text in texts:
        name, _, value = text.partition("=")
        if not name.isidentifier() or not value.isdecimal() or len(value) > 12:
            raise UsageError(f"-D {text!r}: not NAME=NUMBER", hint="a whole number as in -D N=1024")
        numbers[name] = int(value)
    return numbers


def statuses(option: str, text: str, among: Sequence[str] = STATUSES) -> frozenset[str]:
    """Statuses of runs in a comma-separated text. Raises: UsageError for another word."""
    named = frozenset(word.strip() for word in text.split(",") if word.strip())
    if unknown := sorted(named.difference(among)):
        what = "unknown status {!r}" if among is STATUSES else "{!r} is no failure status"
        hint = f"one or more of {', '.join(among)}"
        raise UsageError(f"{option}: {what.format(unknown[0])}", hint=hint)
    return named


def runner_here(platform: Platform, threads: int) -> tuple[Any, Platform]:
    """`this_machine`, with a note if it is simulated. Raises: as `this_machine`."""
    runner, here = this_machine(platform, threads=threads)
    if here.simulated:
        note(f"{here.id} is simulated: no time is of real hardware")
    return runner, here


def machine_here(
    db: Database, platform: Platform, *, repeats: int, most: int = 25, **effort: Any
) -> Machine:
    """This machine for measurements into a database; `effort` are fields of `RunOptions`. Raises:
    as `this_machine`."""
    from embeddb.index.recorder import Machine
    from indexer.runners.base import RunOptions

    options = RunOptions(repeats=repeats, max_repeats=max(most, repeats), **effort)
    return Machine(db.index, *runner_here(platform, options.threads), options)


def families(manifest: str) -> dict[str, str]:
    """Family by matrix name. Raises: InputError for a file that is not CSV or lacks a column, and
    for a matrix of two families."""
    if not manifest:
        return {}
    try:
        with Path(manifest).open(newline="", encoding="utf-8") as lines:
            rows = csv.DictReader(lines)
            if not {"name", "family"} <= set(rows.fieldnames or ()):
                raise InputError("no columns name and family", where=manifest)
            return _family_of(manifest, rows)
    except (UnicodeDecodeError, csv.Error) as e:
        raise InputError(f"not a CSV file in UTF-8: {e}", where=manifest) from None


def _family_of(manifest: str, rows: csv.DictReader[str]) -> dict[str, str]:
    by_name: dict[str, str] = {}
    for row in rows:
        name, family = row["name"], row["family"]
        if name and family and by_name.setdefault(name, family) != family:
            what = f"{name[:80]} is of family {family[:80]}, and of {by_name[name][:80]} above"
            raise InputError(what, where=manifest, line=rows.line_num, hint="leave one of them")
    return by_name


def whole(db: Database, subject: Workload | WorkloadInfo, kind: type[T]) -> T:
    """The workload of a class with its content. Raises: NothingFound for one known by name only."""
    content = db.store.workload(subject.id) if isinstance(subject, WorkloadInfo) else subject
    if content is None or not isinstance(content, kind):
        raise NothingFound(f"{subject.name}: only known by name", hint="give its file")
    return content


def count_nests(
    db: Database,
    subjects: Sequence[Workload | WorkloadInfo],
    platform: Platform,
    threads: int,
    progress: Progress,
) -> None:
    """Count hardware events of nests, with the counter source that the database's network learned
    from; nests counted before are skipped.

    Raises: UsageError for a workload that is no nest; NothingFound for one known by name only, and
    if there are no counters; RunnerUnavailable if the platform cannot be measured here.
    """
    from indexer.nest_runs import CountJob

    if not all(kind_of(subject.kind).counted for subject in subjects):
        raise UsageError("--count is for loop nests", hint="see docs/howto/loop-nests.md")
    nests = [whole(db, subject, Nest) for subject in subjects]
    machine = machine_here(db, platform, repeats=3, most=9, threads=threads)
    sources = [plug.source for plug in db.index.featurizers().counted(machine.here.id)]
    CountJob(machine, (sources or ["auto"])[0]).run(nests, progress)


def eval_rows(file: str, kind: type[T]) -> list[T]:
    """Return the rows in a file that `embeddb eval --json` wrote.

    Raises: InputError for a file that is not there, or has other content.
    """
    path, hint = Path(file), "embeddb eval DB --json > eval.json"
    if not path.is_file():
        raise InputError("no such file", where=file, hint=hint)
    if path.stat().st_size > _MOST_EVAL_BYTES:
        raise InputError("too large for the output of `embeddb eval --json`", where=file)
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[kind])  # type: ignore[valid-type]
    except msgspec.MsgspecError as e:
        reason = f"not the output of `embeddb eval --json`: {e}"
        raise InputError(reason, where=file, hint=hint) from None


# -- training --------------------------------------------------------------------------------------


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Limit torch to this many threads inside the block; 0: no limit. Without torch nothing is
    limited: what needs it says so itself."""
    if not count or find_spec("torch") is None:
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def session(count: int) -> Iterator[Progress]:
    """Context of a training: progress, threads, and on Ctrl-C the command that continues."""
    try:
        with Progress() as progress, threads(count):
            yield progress
    except KeyboardInterrupt:
        note("")
        note(f"stopped; continue with: {command_again('--resume', without=['resume'])}")
        raise


def command_again(*words: str, without: Collection[str] = ()) -> str:
    """The command line of this call, without the parameters of these names and with `words` at its
    end, such as --resume."""
    ctx = click.get_current_context()
    line = ctx.command_path.split()
    for param in ctx.command.params:
        value = ctx.params.get(param.name or "")
        if param.name in without or value is None or value is False or value == param.default:
            continue
        option = [] if isinstance(param, click.Argument) else [param.opts[-1]]
        if value is True:
            line += option
        else:
            for one in value if isinstance(value, tuple) else (value,):
                line += [*option, str(one)]
    return shlex.join([*line, *words])
