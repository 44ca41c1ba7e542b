"""`kernel import|measure|show`: tensor kernels and programs."""

from __future__ import annotations

import json
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
from embeddb.ui.cli.kernel_text import show_fused_seconds, time_of
from embeddb.ui.cli.output import Progress, emit, json_option, note, say, table
from embeddb.ui.cli.verbs.kernel_measure import measure_verb

if TYPE_CHECKING:
    from embeddb.tensors.tensor_graph import TensorGraph
    from indexer.add import Added

#: Rows of what was read that are shown, and notes.
_MOST_ROWS, _MOST_NOTES = 40, 20


@click.command("import")
@click.argument("db")
@click.argument("files", nargs=-1, metavar="FILE|FOLDER...")
@click.option("--kind", default="", type=click.Choice(["", *KINDS]), help="Take modules as these.")
@click.option("--group", default="", help="Model family of what is new. Else the module.")
@click.option("--ours", is_flag=True, help="Our own programs, of many model families, too.")
@click.option("--probes", is_flag=True, help="Kernels made up to be learned from, too.")
@click.option("--cut", is_flag=True, help="The kernels that programs are cut into, too.")
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
    """Keep the tensor kernels and programs of FILES in DB, made if there is none.

    A file is HLO text (.txt, .hlo, also gzipped) or computations as embeddb writes them (.json); a
    folder what XLA writes with --xla_dump_to. A module that is optimised is its kernels: each
    fusion and each operation beside; any other one is a program. --kind program takes the first as
    a program too, but not from a folder that has it as it was before; --kind kernel takes the
    second as one kernel. --cut adds what a compiler would make of programs by default: one heavy
    operation in each kernel, for tiles. --probes adds some 14,000 kernels that are made up, of
    every kind of operation: seconds of fused kernels are predicted better where they were measured.
    Runs of those that DB knows by their names only move to them.

    \b
    Example:
      embeddb kernel import tensors.db dump/
      embeddb kernel import tensors.db resnet50.hlo --group resnet --cut
      embeddb kernel import tensors.db --ours --cut
      embeddb kernel import tensors.db --probes
    """
    from indexer.add import add_coded
    from indexer.programs.tensors import probes as made_up
    from indexer.programs.tensors import programs
    from indexer.programs.tensors.cutting import distinct_kernels

    if not (files or wanted["ours"] or wanted["probes"]):
        raise UsageError("nothing is named", hint="give files or folders, --ours or --probes")
    tensors, notes = _read(files, kind, group)
    tensors += programs() if wanted["ours"] else []
    tensors += made_up.probes() if wanted["probes"] else []
    if wanted["cut"]:
        tensors += distinct_kernels(one for one in tensors if one.kind == "program")
    with database_to_fill(db) as opened, Progress() as progress:
        done = add_coded(opened.index, tensors, progress=progress)
    notes += _groups_that_stay(done.known, tensors, group)
    _note(notes)
    if as_json:
        emit({"database": db, **_told(done), "notes": notes})
    else:
        _show_import(db, done)


def _groups_that_stay(known: list[TensorGraph], given: list[TensorGraph], group: str) -> list[str]:
    """That --group is of what is new, where some of what it was given for has another."""
    asked = {one.id for one in given if group and one.group == group}
    others = [one for one in known if one.id in asked and one.group != group]
    if not others:
        return []
    names = ", ".join(f"{one.name} in {one.group}" for one in others[:3])
    more = ", ..." if len(others) > 3 else ""
    return [
        f"--group is for what is new; {len(others):,} known before stay in theirs: {names}{more}"
    ]


def _note(notes: list[str]) -> None:
    for line in notes[:_MOST_NOTES]:
        note(line)
    if len(notes) > _MOST_NOTES:
        note(f"and {len(notes) - _MOST_NOTES:,} more notes: --json has them all")


def _told(done: Added[TensorGraph]) -> dict[str, object]:
    return {
        "added": [_import_document(one) for one in done.added],
        "known": [_import_document(one) for one in done.known],
        "adopted_runs": done.adopted_runs,
    }


def _show_import(db: str, done: Added[TensorGraph]) -> None:
    told = [(one, "added") for one in done.added] + [(one, "known") for one in done.known]
    rows = [(one.name, one.kind, str(one.sizes), one.id, word) for one, word in told]
    table(("name", "kind", "sizes", "id", ""), rows[:_MOST_ROWS])
    if len(rows) > _MOST_ROWS:
        say(f"and {len(rows) - _MOST_ROWS:,} more")
    added = _counted(done.added) if done.added else "nothing"
    say(f"{db}: {added} added, {len(done.known):,} known already")
    if done.adopted_runs:
        say(f"{plural(done.adopted_runs, 'run')} of stubs moved to their kernel")


def _read(files: tuple[str, ...], kind: str, group: str) -> tuple[list[TensorGraph], list[str]]:
    """The computations of all files, and what was noted, by file. Of a folder, files that cannot be
    read are noted.

    Raises: TensorError for a file that cannot be read, and for a folder without any that can.
    """
    from indexer.frontends.hlo.files import read_tensors, tensor_files

    found: list[TensorGraph] = []
    notes: list[str] = []
    for given in files:
        folder = Path(given).is_dir()
        inside = tensor_files(Path(given), kind=kind) if folder else [Path(given)]
        read = 0
        for file in inside:
            try:
                made = read_tensors(file, kind=kind, group=group)
            except TensorError as error:
                if not folder:
                    raise
                notes.append(str(error))
                continue
            read += len(made.tensors)
            found += made.tensors
            notes += [f"{file}: {line}" for line in made.notes]
        if not read:
            hint = notes[0] if notes else "XLA_FLAGS=--xla_dump_to=FOLDER makes such files"
            raise TensorError("has no kernel and no program", where=given, hint=hint)
    return found, notes


def _counted(tensors: list[TensorGraph]) -> str:
    return counted({kind: sum(one.kind == kind for one in tensors) for kind in KINDS})


def _import_document(made: TensorGraph) -> dict[str, object]:
    sizes = dict(made.sizes.named)
    return {
        "id": made.id,
        "kind": made.kind,
        "name": made.name,
        "group": made.group,
        "sizes": sizes,
    }


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
    help="What to show.",
)
@click.option(
    "--kind",
    default="",
    type=click.Choice(["", *KINDS]),
    help="Take a module as these; of DB, the one of this kind.",
)
@json_option
def show_verb(place: str, name: str, form: str, kind: str, as_json: bool) -> None:
    """Operations of a kernel or a program, with what each computes: the one called NAME (or of that
    id) in DB, or in a FILE, where a single one needs no name. DB alone lists what there is. Of a
    kernel in DB also its seconds by XLA, where it ran (`kernel measure --op fused`), and what the
    learned model says that it takes, by operation (`train kernels --task fused`).

    --as json is it as a file that embeddb reads, --as hlo one that XLA compiles.

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
        made = _of_file(place, name, kind)
    else:
        made, took = _of_database(place, name, kind)
    if as_json:
        emit(_document(made, took))
    elif form == "json":
        say(tensor_text(made).decode())
    elif form == "hlo":
        from indexer.frontends.hlo.printer import hlo_text

        click.echo(hlo_text(made), nl=False)
    else:
        _show(made, took)


def _list(place: str, kind: str, *, as_json: bool) -> None:
    """What a database has by name, made-up kernels left out. Raises: NothingFound for nothing."""
    with open_database(place, readonly=True) as opened:
        there = (
            info for info in opened.store.patterns() if info.kind in ((kind,) if kind else KINDS)
        )
        held = sorted(
            (info for info in there if not is_probe(info.group)),
            key=lambda info: (info.kind, info.group, info.name, info.id),
        )
    if as_json:
        words = ("id", "kind", "name", "group")
        emit([{**{w: getattr(i, w) for w in words}, **dict(i.sizes.named)} for i in held])
        return
    if not held:
        hint = "`embeddb kernel import` adds kernels and programs"
        raise NothingFound(f"no tensor {kind or 'kernel'} is here", hint=hint)
    rows = [(info.name or info.id, info.kind, info.group, str(info.sizes)) for info in held]
    table(("name", "kind", "family", "sizes"), rows[:_MOST_OPERATIONS])
    if len(rows) > _MOST_OPERATIONS:
        note(f"and {len(rows) - _MOST_OPERATIONS:,} more: --json has them all")


def _of_database(place: str, name: str, kind: str) -> tuple[TensorGraph, list[FusedSeconds]]:
    """Raises: NothingFound for a computation that is not there, or whose operations are not;
    UsageError for the name of a kernel and a program."""
    with open_database(place, readonly=True) as opened:
        kinds = {info.kind for info in opened.store.find(name) if info.kind in KINDS}
        if not kind and len(kinds) > 1:
            hint = "say which: --kind kernel or --kind program"
            raise UsageError(f"a kernel and a program are called {name}", hint=hint)
        there = kinds or {info.kind for info in opened.store.patterns() if info.kind in KINDS}
        found = opened.find(name, kind=kind or min(there, default="kernel"))
        made = opened.store.tensor(found.id) if isinstance(found, WorkloadInfo) else None
        if made is None:
            hint = "`embeddb kernel import` adds kernels and programs"
            raise NothingFound(f"{name} is no tensor kernel, or known by its name only", hint=hint)
        return made, fused_seconds_of(opened.index, made)


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


def _rows(made: TensorGraph) -> list[dict[str, Any]]:
    rows = []
    for at, op in enumerate(made.operations):
        work = operation_work(op, made.operand_shapes(at))
        rows.append(
            {
                "name": made.names[at] if made.names else str(at),
                "opcode": op.opcode,
                "shapes": [str(shape) for shape in op.results],
                "operands": list(op.operands),
                "attributes": dict(op.attributes),
                "flops": work.flops,
                "transcendentals": work.transcendentals,
                "output": at in made.outputs,
            }
        )
    return rows


def _document(made: TensorGraph, took: list[FusedSeconds]) -> dict[str, Any]:
    work = work_of(made)
    return {
        "id": made.id,
        "kind": made.kind,
        "name": made.name,
        "group": made.group,
        "sizes": dict(made.sizes.named),
        "flops": work.flops,
        "transcendentals": work.transcendentals,
        "bytes_read": work.bytes_read,
        "bytes_written": work.bytes_written,
        "operations": _rows(made),
        "seconds": [asdict(one) for one in took],
        "tensor": json.loads(tensor_text(made)),
    }


def _show(made: TensorGraph, took: list[FusedSeconds]) -> None:
    work = work_of(made)
    say(f"{made.name or 'a computation'} ({made.id}): a {made.kind}, {made.sizes}")
    fused = "" if made.kind == "kernel" else " if all of it were one kernel"
    say(
        f"{work.flops:,} flops, {work.transcendentals:,} transcendental calls, "
        f"{work.bytes_read:,} bytes read, {work.bytes_written:,} written{fused}"
    )
    show_fused_seconds(took)
    say()
    # Of several machines, the first that a model knows.
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
        for at, row in enumerate(_rows(made)[:_MOST_OPERATIONS])
    ]
    told = ("at", "operation", "gives", "takes", "attributes", "computes")
    table((*told, "predicted") if parts else told, rows)
    if len(made.operations) > _MOST_OPERATIONS:
        say(f"and {len(made.operations) - _MOST_OPERATIONS:,} operations more: --json has them all")
    say("* is given out")


def _words(attributes: dict[str, Any]) -> str:
    parts = [
        f"{name} {','.join(map(str, value)) if isinstance(value, tuple) else value}"
        for name, value in sorted(attributes.items())
    ]
    text = ", ".join(parts)
    return text if len(text) <= _MOST_WORDS else text[: _MOST_WORDS - 1] + "…"


@click.group("kernel")
def kernel_verb() -> None:
    """Tensor kernels and programs: import, measure, show.

    \b
    Example:
      embeddb kernel import tensors.db dump/
      embeddb kernel measure tensors.db
      embeddb kernel show tensors.db mlp
    """


kernel_verb.add_command(import_verb)
kernel_verb.add_command(measure_verb)
kernel_verb.add_command(show_verb)
