"""`kernel import|measure|show`: tensor kernels and programs."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from embeddb.core.errors import NothingFound, TensorError, UsageError
from embeddb.core.records import WorkloadInfo
from embeddb.core.wording import counted, plural
from embeddb.ranking.kernels.fused_seconds import FusedSeconds, fused_seconds_of
from embeddb.tensors.analysis import operation_work, work_of
from embeddb.tensors.tensor_graph import KINDS, TensorGraph, is_probe
from embeddb.tensors.tensor_text import tensor_text
from embeddb.ui.cli.arguments import database_to_fill, open_database
from embeddb.ui.cli.output import Progress, emit, json_option, note, note_some, say, table
from embeddb.ui.cli.verbs.kernel_measure import measure_verb
from embeddb.ui.cli.workload_text import added_document, show_fused_seconds, time_of

if TYPE_CHECKING:
    from embeddb.tensors.tensor_graph import TensorGraph
    from indexer.add import Added

#: Imported computations shown, and notes.
_MOST_ROWS, _MOST_NOTES = 40, 20


@click.command("import")
@click.argument("db")
@click.argument("files", nargs=-1, metavar="FILE|FOLDER...")
@click.option(
    "--kind", default="", type=click.Choice(["", *KINDS]), help="Import modules as this kind."
)
@click.option(
    "--group", default="", help="Model family of new computations.  [default: the module]"
)
@click.option(
    "--ours", is_flag=True, help="Also the programs that ship with embeddb, of many model families."
)
@click.option("--probes", is_flag=True, help="Also synthetic kernels for training.")
@click.option("--cut", is_flag=True, help="Also the kernels that programs are cut into.")
@json_option
def import_verb(
    db: str,
    files: tuple[str, ...],
    *,
    kind: str,
    group: str,
    as_json: bool,
    **wanted: bool,
) -> None:
    """Import the tensor kernels and programs of FILES into DB (created if missing).

    A file is HLO text (.txt, .hlo, also gzipped) or computations written by embeddb (.json); a
    folder is the output of XLA with --xla_dump_to. An optimised module gives kernels: each fusion
    and each operation outside of fusions; any other module is a program. --kind program imports an
    optimised module as a program, unless the folder has it before optimisation; --kind kernel
    imports a program as one kernel. --cut adds the kernels of a compiler's default fusion: one
    heavy operation in each, for tiles. --probes adds some 14,000 synthetic kernels of every kind of
    operation: measuring them improves the predicted seconds of fused kernels.
    Runs that DB has under the name only are assigned to the imported kernels.

    \b
    Example:
      embeddb kernel import tensors.db dump/
      embeddb kernel import tensors.db resnet50.hlo --group resnet --cut
      embeddb kernel import tensors.db --ours --cut
      embeddb kernel import tensors.db --probes
    """
    from indexer.add import add_coded
    from indexer.programs.tensors import probes, programs
    from indexer.programs.tensors.cutting import distinct_kernels

    if not (files or wanted["ours"] or wanted["probes"]):
        raise UsageError("nothing to import", hint="give files or folders, --ours or --probes")
    tensors, notes = _read(files, kind, group)
    tensors += programs() if wanted["ours"] else []
    tensors += probes() if wanted["probes"] else []
    if wanted["cut"]:
        tensors += distinct_kernels(one for one in tensors if one.kind == "program")
    with database_to_fill(db) as opened, Progress() as progress:
        done = add_coded(opened.index, tensors, progress=progress)
    notes += _unchanged_groups(done.known, tensors, group)
    note_some(notes, _MOST_NOTES, "and {:,} more notes: --json has them all")
    if as_json:
        emit({**added_document(db, done, _import_document), "notes": notes})
    else:
        _show_import(db, done)


def _unchanged_groups(
    stored: list[TensorGraph], imported: list[TensorGraph], group: str
) -> list[str]:
    """A note if stored kernels keep a group other than --group."""
    requested = {one.id for one in imported if group and one.group == group}
    others = [one for one in stored if one.id in requested and one.group != group]
    if not others:
        return []
    names = ", ".join(f"{one.name} in {one.group}" for one in others[:3])
    more = ", ..." if len(others) > 3 else ""
    return [f"--group is for new kernels; {len(others):,} stored before keep theirs: {names}{more}"]


def _show_import(db: str, done: Added[TensorGraph]) -> None:
    states = [(one, "added") for one in done.added] + [(one, "known") for one in done.known]
    rows = [(one.name, one.kind, str(one.sizes), one.id, word) for one, word in states]
    table(("name", "kind", "sizes", "id", ""), rows[:_MOST_ROWS])
    if len(rows) > _MOST_ROWS:
        say(f"and {len(rows) - _MOST_ROWS:,} more")
    added = counted(Counter(one.kind for one in done.added)) or "nothing"
    say(f"{db}: {added} added, {len(done.known):,} already stored")
    if done.adopted_runs:
        say(f"{plural(done.adopted_runs, 'run')} of stubs moved to their kernel")


def _read(files: tuple[str, ...], kind: str, group: str) -> tuple[list[TensorGraph], list[str]]:
    """The computations of all files, and notes by file; unreadable files of a folder become notes.

    Raises: TensorError for an unreadable file, and for a folder without a readable one.
    """
    from indexer.frontends.hlo.files import read_tensors, tensor_files

    computations: list[TensorGraph] = []
    notes: list[str] = []
    for source in files:
        folder = Path(source).is_dir()
        inside = tensor_files(Path(source), kind=kind) if folder else [Path(source)]
        read = 0
        for file in inside:
            try:
                module = read_tensors(file, kind=kind, group=group)
            except TensorError as error:
                if not folder:
                    raise
                notes.append(str(error))
                continue
            read += len(module.tensors)
            computations += module.tensors
            notes += [f"{file}: {line}" for line in module.notes]
        if not read:
            hint = notes[0] if notes else "XLA_FLAGS=--xla_dump_to=FOLDER writes such files"
            raise TensorError("has no kernel and no program", where=source, hint=hint)
    return computations, notes


def _import_document(computation: TensorGraph) -> dict[str, object]:
    names = ("id", "kind", "name", "group")
    sizes = dict(computation.sizes.named)
    return {**{name: getattr(computation, name) for name in names}, "sizes": sizes}


#: Operations, and characters of attributes, that the table shows.
_MOST_OPERATIONS, _MOST_WORDS = 200, 60


@click.command("show")
@click.argument("place", metavar="DB|FILE")
@click.argument("name", default="")
@click.option(
    "--as",
    "form",
    default="graph",
    type=click.Choice(["graph", "json", "hlo"]),
    help="Output format.",
)
@click.option(
    "--kind",
    default="",
    type=click.Choice(["", *KINDS]),
    help="Read a module as this kind; in DB, show the one of this kind.",
)
@json_option
def show_verb(place: str, name: str, form: str, kind: str, as_json: bool) -> None:
    """Show the operations of a kernel or a program, with the work of each: NAME (or id) in DB or in
    a FILE; a single one needs no name. DB alone lists its contents. For a kernel in DB also its
    seconds by XLA, if measured (`kernel measure --op fused`), and those predicted by the trained
    model, by operation (`train kernels --task fused`).

    --as json is a file that embeddb reads, --as hlo one that XLA compiles.

    \b
    Example:
      embeddb kernel show tensors.db
      embeddb kernel show tensors.db mlp
      embeddb kernel show dump/module_0002.jit_mlp.cpu_after_optimizations.txt
      embeddb kernel show tensors.db mlp --as hlo
      embeddb kernel show tensors.db mlp --kind program
    """
    took: list[FusedSeconds] = []
    if not name and not Path(place).is_file():
        if form != "graph":
            raise UsageError(
                f"which kernel of {place} as {form}?", hint="embeddb kernel show DB NAME"
            )
        _list(place, kind, as_json=as_json)
        return
    if Path(place).is_file():
        computation = _of_file(place, name, kind)
    else:
        computation, took = _of_database(place, name, kind)
    if as_json:
        emit(_document(computation, took))
    elif form == "json":
        say(tensor_text(computation).decode())
    elif form == "hlo":
        from indexer.frontends.hlo.printer import hlo_text

        click.echo(hlo_text(computation), nl=False)
    else:
        _show(computation, took)


def _list(place: str, kind: str, *, as_json: bool) -> None:
    """List a database's kernels and programs except probes. Raises: NothingFound if it has none."""
    with open_database(place, readonly=True) as opened:
        there = (
            info for info in opened.store.patterns() if info.kind in ((kind,) if kind else KINDS)
        )
        infos = sorted(
            (info for info in there if not is_probe(info.group)),
            key=lambda info: (info.kind, info.group, info.name, info.id),
        )
    if as_json:
        words = ("id", "kind", "name", "group")
        emit([{**{w: getattr(i, w) for w in words}, **dict(i.sizes.named)} for i in infos])
        return
    if not infos:
        hint = "`embeddb kernel import` adds kernels and programs"
        raise NothingFound(f"{place} has no tensor {kind or 'kernel'}", hint=hint)
    rows = [(info.name or info.id, info.kind, info.group, str(info.sizes)) for info in infos]
    table(("name", "kind", "family", "sizes"), rows[:_MOST_OPERATIONS])
    if len(rows) > _MOST_OPERATIONS:
        note(f"and {len(rows) - _MOST_OPERATIONS:,} more: --json has them all")


def _of_database(place: str, name: str, kind: str) -> tuple[TensorGraph, list[FusedSeconds]]:
    """Raises: NothingFound for a computation that is not stored, or by name only; UsageError for a
    name of both a kernel and a program."""
    with open_database(place, readonly=True) as opened:
        kinds = {info.kind for info in opened.store.find(name) if info.kind in KINDS}
        if not kind and len(kinds) > 1:
            hint = "choose one: --kind kernel or --kind program"
            raise UsageError(f"a kernel and a program are called {name}", hint=hint)
        there = kinds or {info.kind for info in opened.store.patterns() if info.kind in KINDS}
        stored = opened.find(name, kind=kind or min(there, default="kernel"))
        computation = opened.store.tensor(stored.id) if isinstance(stored, WorkloadInfo) else None
        if computation is None:
            hint = "`embeddb kernel import` adds kernels and programs"
            raise NothingFound(f"{name} is no tensor kernel, or is stored by name only", hint=hint)
        return computation, fused_seconds_of(opened.index, computation)


def _of_file(place: str, name: str, kind: str) -> TensorGraph:
    from indexer.frontends.hlo.files import read_tensors

    read = read_tensors(place, kind=kind)
    for line in read.notes:
        note(line)
    fits = [one for one in read.tensors if name in ("", one.name, one.id)]
    if len({one.id for one in fits}) == 1:
        return fits[0]
    names = ", ".join(one.name for one in read.tensors[:20])
    if not fits:
        raise NothingFound(f"{place}: no kernel {name!r}", hint=f"there are: {names or 'none'}")
    raise UsageError(f"{place} has {len(fits)} kernels", hint=f"name one: {names}")


def _rows(computation: TensorGraph) -> list[dict[str, Any]]:
    rows = []
    for at, op in enumerate(computation.operations):
        work = operation_work(op, computation.operand_shapes(at))
        rows.append(
            {
                "name": computation.names[at] if computation.names else str(at),
                "opcode": op.opcode,
                "shapes": [str(shape) for shape in op.results],
                "operands": list(op.operands),
                "attributes": dict(op.attributes),
                "flops": work.flops,
                "transcendentals": work.transcendentals,
                "output": at in computation.outputs,
            }
        )
    return rows


def _document(computation: TensorGraph, took: list[FusedSeconds]) -> dict[str, Any]:
    work = work_of(computation)
    return {
        **_import_document(computation),
        "flops": work.flops,
        "transcendentals": work.transcendentals,
        "bytes_read": work.bytes_read,
        "bytes_written": work.bytes_written,
        "operations": _rows(computation),
        "seconds": [asdict(one) for one in took],
        "tensor": json.loads(tensor_text(computation)),
    }


def _show(computation: TensorGraph, took: list[FusedSeconds]) -> None:
    work = work_of(computation)
    say(
        f"{computation.name or 'a computation'} ({computation.id}): a {computation.kind}, "
        f"{computation.sizes}"
    )
    fused = "" if computation.kind == "kernel" else " if all of it were one kernel"
    say(
        f"{work.flops:,} flops, {work.transcendentals:,} transcendental calls, "
        f"{work.bytes_read:,} bytes read, {work.bytes_written:,} written{fused}"
    )
    show_fused_seconds(took)
    say()
    # With several machines, the first that a model predicts.
    parts = next((one.operations for one in took if one.operations), {})
    rows = [
        (
            f"{at}{' *' if row['output'] else ''}",
            row["opcode"],
            ", ".join(row["shapes"]),
            ", ".join(map(str, row["operands"])),
            _words(row["attributes"]),
            f"{row['flops'] + row['transcendentals']:,}",
            *([time_of(parts[at]) if at in parts else ""] if parts else []),
        )
        for at, row in enumerate(_rows(computation)[:_MOST_OPERATIONS])
    ]
    head = ("at", "operation", "results", "operands", "attributes", "operations")
    table((*head, "predicted") if parts else head, rows)
    if len(computation.operations) > _MOST_OPERATIONS:
        say(f"and {len(computation.operations) - _MOST_OPERATIONS:,} more: --json has them all")
    say("* is an output")


def _words(attributes: dict[str, Any]) -> str:
    parts = [
        f"{name} {','.join(map(str, value)) if isinstance(value, tuple) else value}"
        for name, value in sorted(attributes.items())
    ]
    text = ", ".join(parts)
    return text if len(text) <= _MOST_WORDS else text[: _MOST_WORDS - 1] + "…"


@click.group("kernel", commands=[import_verb, measure_verb, show_verb])
def kernel_verb() -> None:
    """Tensor kernels and programs: import, measure, show.

    \b
    Example:
      embeddb kernel import tensors.db dump/
      embeddb kernel measure tensors.db
      embeddb kernel show tensors.db mlp
    """
