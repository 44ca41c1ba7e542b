"""`kernel import`: the tensor kernels and programs of HLO text into a database."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from embeddb.core.errors import TensorError, UsageError
from embeddb.core.wording import counted, plural
from embeddb.tensors.computation import KINDS
from embeddb.ui.cli.arguments import database_to_fill
from embeddb.ui.cli.output import Progress, emit, json_option, note, say, table

if TYPE_CHECKING:
    from embeddb.tensors.computation import Computation
    from indexer.add import Added

__all__ = ["import_verb"]

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
    ours: bool,
    probes: bool,
    cut: bool,
    as_json: bool,
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

    if not (files or ours or probes):
        raise UsageError("nothing is named", hint="give files or folders, --ours or --probes")
    tensors, notes = _read(files, kind, group)
    tensors += programs() if ours else []
    tensors += made_up.probes() if probes else []
    if cut:
        tensors += distinct_kernels(one for one in tensors if one.kind == "program")
    with database_to_fill(db) as opened, Progress() as progress:
        done = add_coded(opened.index, tensors, progress=progress)
    notes += _groups_that_stay(done.known, tensors, group)
    _note(notes)
    if as_json:
        emit({"database": db, **_told(done), "notes": notes})
    else:
        _show(db, done)


def _groups_that_stay(known: list[Computation], given: list[Computation], group: str) -> list[str]:
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


def _told(done: Added[Computation]) -> dict[str, object]:
    return {
        "added": [_document(one) for one in done.added],
        "known": [_document(one) for one in done.known],
        "adopted_runs": done.adopted_runs,
    }


def _show(db: str, done: Added[Computation]) -> None:
    told = [(one, "added") for one in done.added] + [(one, "known") for one in done.known]
    rows = [(one.name, one.kind, str(one.sizes), one.id, word) for one, word in told]
    table(("name", "kind", "sizes", "id", ""), rows[:_MOST_ROWS])
    if len(rows) > _MOST_ROWS:
        say(f"and {len(rows) - _MOST_ROWS:,} more")
    added = _counted(done.added) if done.added else "nothing"
    say(f"{db}: {added} added, {len(done.known):,} known already")
    if done.adopted_runs:
        say(f"{plural(done.adopted_runs, 'run')} of stubs moved to their kernel")


def _read(files: tuple[str, ...], kind: str, group: str) -> tuple[list[Computation], list[str]]:
    """The computations of all files, and what was noted, by file. Of a folder, files that cannot be
    read are noted.

    Raises: TensorError for a file that cannot be read, and for a folder without any that can.
    """
    from indexer.frontends.hlo.files import read_tensors, tensor_files

    found: list[Computation] = []
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


def _counted(tensors: list[Computation]) -> str:
    return counted({kind: sum(one.kind == kind for one in tensors) for kind in KINDS})


def _document(made: Computation) -> dict[str, object]:
    sizes = dict(made.sizes.named)
    return {
        "id": made.id,
        "kind": made.kind,
        "name": made.name,
        "group": made.group,
        "sizes": sizes,
    }
