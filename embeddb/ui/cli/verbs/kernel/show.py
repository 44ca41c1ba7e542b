"""`kernel show`: one tensor kernel or program, for people and for programs."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from embeddb.core.errors import NothingFound, UsageError
from embeddb.core.records import PatternInfo
from embeddb.ranking.kernels.fused_seconds import FusedSeconds, fused_seconds_of
from embeddb.tensors.analysis import operation_work, work_of
from embeddb.tensors.computation import KINDS, Computation, is_probe
from embeddb.tensors.tensor_text import tensor_text
from embeddb.ui.cli.arguments import open_database
from embeddb.ui.cli.kernel_text import show_fused_seconds, time_of
from embeddb.ui.cli.output import emit, json_option, note, say, table

__all__ = ["show_verb"]

#: Operations, and characters of attributes, that the table shows.
_MOST_ROWS, _MOST_WORDS = 200, 60


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
    table(("name", "kind", "family", "sizes"), rows[:_MOST_ROWS])
    if len(rows) > _MOST_ROWS:
        note(f"and {len(rows) - _MOST_ROWS:,} more: --json has them all")


def _of_database(place: str, name: str, kind: str) -> tuple[Computation, list[FusedSeconds]]:
    """Raises: NothingFound for a computation that is not there, or whose operations are not;
    UsageError for the name of a kernel and a program."""
    with open_database(place, readonly=True) as opened:
        kinds = {info.kind for info in opened.store.find(name) if info.kind in KINDS}
        if not kind and len(kinds) > 1:
            hint = "say which: --kind kernel or --kind program"
            raise UsageError(f"a kernel and a program are called {name}", hint=hint)
        there = kinds or {info.kind for info in opened.store.patterns() if info.kind in KINDS}
        found = opened.find(name, kind=kind or min(there, default="kernel"))
        made = opened.store.tensor(found.id) if isinstance(found, PatternInfo) else None
        if made is None:
            hint = "`embeddb kernel import` adds kernels and programs"
            raise NothingFound(f"{name} is no tensor kernel, or known by its name only", hint=hint)
        return made, fused_seconds_of(opened.index, made)


def _of_file(place: str, name: str, kind: str) -> Computation:
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


def _rows(made: Computation) -> list[dict[str, Any]]:
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


def _document(made: Computation, took: list[FusedSeconds]) -> dict[str, Any]:
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


def _show(made: Computation, took: list[FusedSeconds]) -> None:
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
        for at, row in enumerate(_rows(made)[:_MOST_ROWS])
    ]
    told = ("at", "operation", "gives", "takes", "attributes", "computes")
    table((*told, "predicted") if parts else told, rows)
    if len(made.operations) > _MOST_ROWS:
        say(f"and {len(made.operations) - _MOST_ROWS:,} operations more: --json has them all")
    say("* is given out")


def _words(attributes: dict[str, Any]) -> str:
    parts = [
        f"{name} {','.join(map(str, value)) if isinstance(value, tuple) else value}"
        for name, value in sorted(attributes.items())
    ]
    text = ", ".join(parts)
    return text if len(text) <= _MOST_WORDS else text[: _MOST_WORDS - 1] + "…"
