"""`kernel import|measure|show`: tensor kernels and programs."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import click

from embeddb.core.config import Op
from embeddb.core.errors import NothingFound, TensorError, UsageError
from embeddb.core.records import WorkloadInfo
from embeddb.core.wording import counted, plural
from embeddb.database import Database
from embeddb.ranking.kernel_prediction import FusedSeconds, fused_seconds_of
from embeddb.tensors.analysis import operation_work, work_of
from embeddb.tensors.tensor_graph import KINDS, TensorGraph, is_probe
from embeddb.tensors.tensor_text import tensor_text
from embeddb.ui.cli import option
from embeddb.ui.cli.arguments import (
    database_to_fill,
    machine_here,
    open_database,
    resolve_workloads,
)
from embeddb.ui.cli.output import Progress, emit, note, note_some, say, table
from embeddb.ui.cli.workload_text import (
    MOST_NOTES,
    added_document,
    note_without_tiles,
    refuse_if_nothing_ran,
    show_fused_seconds,
    time_of,
)

#: Imported computations shown, and notes.
_MOST_ROWS, _MOST_NOTES = 40, 20


@option.verb("import")
@click.argument("db")
@click.argument("files", nargs=-1, metavar="FILE|FOLDER...")
@option.choice("--kind", among=["", *KINDS], help="Import modules as this kind.")
@option.text("--group", help="Model family of new computations.  [default: the module]")
@option.flag("--ours", help="Also the programs that ship with embeddb, of many model families.")
@option.flag("--probes", help="Also synthetic kernels for training.")
@option.flag("--cut", help="Also the kernels that programs are cut into.")
def import_verb(db: str, files: tuple[str, ...], as_json: bool, **options: Any) -> None:
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
    from indexer.programs.tensors.cutting import distinct_kernels, uncut

    if not (files or options["ours"] or options["probes"]):
        raise UsageError("nothing to import", hint="give files or folders, --ours or --probes")
    tensors, notes = _read(files, options["kind"], options["group"])
    notes += uncut(tensors) if options["cut"] else []
    tensors += programs() if options["ours"] else []
    tensors += probes() if options["probes"] else []
    if options["cut"]:
        tensors += distinct_kernels(one for one in tensors if one.kind == "program")
    with database_to_fill(db) as opened, Progress() as progress:
        done = add_coded(opened.index, tensors, progress=progress)
    group = options["group"]
    requested = {one.id for one in tensors if group and one.group == group}
    if others := [one for one in done.stored if one.id in requested and one.group != group]:
        names = ", ".join(f"{one.name} in {one.group}" for one in others[:3])
        names += ", ..." if len(others) > 3 else ""
        notes.append(
            f"--group is for new kernels; {len(others):,} stored before keep theirs: {names}"
        )
    note_some(notes, _MOST_NOTES, "and {:,} more notes: --json has them all")
    if as_json:
        emit({**added_document(db, done, _import_document), "notes": notes})
        return
    states = [(one, "added") for one in done.added] + [(one, "known") for one in done.stored]
    rows = [(one.name, one.kind, str(one.sizes), one.id, word) for one, word in states]
    table(("name", "kind", "sizes", "id", ""), rows[:_MOST_ROWS])
    if len(rows) > _MOST_ROWS:
        say(f"and {len(rows) - _MOST_ROWS:,} more")
    added = counted(Counter(one.kind for one in done.added)) if done.added else "nothing"
    say(f"{db}: {added} added, {len(done.stored):,} already stored")
    if done.adopted_runs:
        say(f"{plural(done.adopted_runs, 'run')} of stubs moved to their kernel")


def _read(files: tuple[str, ...], kind: str, group: str) -> tuple[list[TensorGraph], list[str]]:
    """The computations of all files, and notes by file; unreadable files of a folder become notes.
    Raises: TensorError for an unreadable file, and for a folder without a readable one."""
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


@option.verb("show")
@click.argument("place", metavar="DB|FILE")
@click.argument("name", default="")
@click.option(
    "--as",
    "form",
    default="graph",
    type=click.Choice(["graph", "json", "hlo"]),
    help="Output format.",
)
@option.choice(
    "--kind",
    among=["", *KINDS],
    help="Read a module as this kind; in DB, show the one of this kind.",
)
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
        work = work_of(computation)
        counts = ("flops", "transcendentals", "bytes_read", "bytes_written")
        emit(
            {
                **_import_document(computation),
                **{name: getattr(work, name) for name in counts},
                "operations": _rows(computation),
                "seconds": [asdict(one) for one in took],
                "tensor": json.loads(tensor_text(computation)),
            }
        )
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


# -- measure ---------------------------------------------------------------------------------------


def _fusions(
    db: Database, subjects: Sequence[TensorGraph], options: dict[str, Any], *, as_json: bool
) -> None:
    """Measure programs under many fusion plans, or whole kernels. Raises: RunnerUnavailable
    without jax; TensorError if none of the programs can be measured."""
    from indexer.tensor_runs import FusionJob, FusionRequest

    request = FusionRequest(cuts=options["cuts"], seed=options["seed"])
    platform = db.platform(options["platform"])
    with Progress() as progress:
        job = FusionJob(machine_here(db, platform, repeats=options["repeats"], threads=1), request)
        tally = (job.programs if options["op"] == "fusion" else job.kernels)(subjects, progress)
    if as_json:
        counts = {"known": tally.earlier, "measured": tally.programs}
        counts |= {n: getattr(tally, n) for n in ("partitions", "kernels", "long", "failed")}
        ratio = median(tally.ratios) if tally.ratios else None
        what = "programs" if options["op"] == "fusion" else "asked"
        emit({what: len(subjects), **counts, "ratio": ratio})
    else:
        failed = [f"{name}: {reason}" for name, reason in tally.failed.items()]
        note_some(failed, MOST_NOTES, "and {:,} more failed: --json has them all")
    refuse_if_nothing_ran(tally.earlier + tally.partitions + tally.kernels, tally.failed)
    if as_json:
        return
    earlier = f", {tally.earlier:,} measured before" if tally.earlier else ""
    partitions = f"{plural(tally.partitions, 'partition')}, " if tally.partitions else ""
    kernels = plural(tally.kernels, "kernel")
    say(f"{partitions}{kernels} measured, {tally.long:,} of 50 µs or more{earlier}")
    if tally.ratios:
        say(f"kernels in a row take {median(tally.ratios):.2f} times their sum (median)")


#: Platform by operation.
_PLATFORMS = {"tile": "tile-cpu", "fused": "xla-cpu", "fusion": "xla-cpu"}


@option.verb("measure")
@click.argument("db")
@click.argument("names", nargs=-1, metavar="[NAME...]")
@option.choice("--op", "op", among=[*_PLATFORMS])
@option.text("--platform", help="tile-cpu, or xla-cpu for fused and fusion.")
@option.number("--tiles", default=80, least=1, most=100_000)
@option.number("--rounds", default=2, least=1, most=100)
@option.number("--cuts", default=60, least=0, most=100_000)
@option.number("--repeats", default=2, least=1, most=1000)
@click.option("--seed", default=0, show_default=True, help="Seed of the sampled tiles and cuts.")
def measure_verb(db: str, names: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Measure the tensor kernels or programs in DB on this machine, on one thread.

    For each kernel NAME, or for all in DB but probes, --tiles tiles of all sizes run, the untiled
    loop included, in --rounds rounds. If Kendall's tau of the first two is below 0.8, a third
    follows. Tiles and cuts measured before are skipped, so after Ctrl-C the same command continues.
    Kernels without tiles are listed with the reason.

    With --op fused, kernels are compiled by XLA and timed; with --op fusion programs are, under
    --cuts random fusion plans, and the kernels of each plan are timed too.

    \b
    Example:
      embeddb kernel measure tensors.db
      embeddb kernel measure tensors.db --op fusion --cuts 60
      embeddb kernel measure tensors.db mlp/3 mlp/4 --tiles 200 --rounds 3
    """
    options["platform"] = options["platform"] or _PLATFORMS[options["op"]]
    op = Op(options["op"])
    with open_database(db) as opened:
        opened.platform(options["platform"]).kernel(op)
        subjects = _requested(opened, names, op)
        measure = _tiles if op.name == "tile" else _fusions
        measure(opened, subjects, options, as_json=as_json)


def _tiles(
    db: Database, kernels: Sequence[TensorGraph], options: dict[str, Any], *, as_json: bool
) -> None:
    """Measure tiles of kernels. Raises: RunnerUnavailable; TensorError if none has tiles."""
    from indexer.measure import MeasureJob
    from indexer.tensor_runs import TILE_AGREEMENT, TileDesign

    design = TileDesign(**{name: options[name] for name in ("tiles", "rounds", "seed")})
    effort = {"repeats": options["repeats"], "most": 5, "min_time_s": 0.002, "threads": 1}
    with Progress() as progress:
        machine = machine_here(db, db.platform(options["platform"]), **effort)
        job = MeasureJob(machine, design, design.rounds, TILE_AGREEMENT)
        tally = job.run(kernels, progress)
    taus = [tau for tau in tally.taus if not math.isnan(tau)]
    if as_json:
        counts = {"known": tally.earlier, "measured": tally.measured, "tiles": tally.configs}
        counts |= {"runs": tally.runs, "again": tally.again}
        agreement = median(taus) if taus else None
        more = {"agreement": agreement, "skipped": tally.skipped}
        emit({"kernels": len(kernels), **counts, **more})
    else:
        note_without_tiles(tally.skipped)
    refuse_if_nothing_ran(tally.earlier + tally.measured, tally.skipped)
    if as_json:
        return
    earlier = f", {plural(tally.earlier, 'kernel')} measured before" if tally.earlier else ""
    say(f"{plural(tally.measured, 'kernel')}, {plural(tally.configs, 'tile')} measured{earlier}")
    if taus:
        say(f"Kendall's tau of the rounds {median(taus):.2f} (median), {tally.again:,} run again")


def _requested(db: Database, names: Sequence[str], op: Op) -> list[TensorGraph]:
    """The kernels, or programs, with these names, or all.

    Raises: NothingFound if there are none.
    """
    if names:
        workloads = [one for name in names for one in resolve_workloads(db, name, op)]
    else:
        there = (info for info in db.store.patterns() if info.kind == op.kind and not info.stub)
        workloads = [one for one in there if op.name != "tile" or not is_probe(one.group)]
    by_id: dict[str, TensorGraph] = {}
    for one in workloads:
        computation = db.store.tensor(one.id) if isinstance(one, WorkloadInfo) else one
        if isinstance(computation, TensorGraph):
            by_id[computation.id] = computation
    if not by_id:
        hint = "`embeddb kernel import DB FILE` adds those of HLO text"
        if op.kind == "kernel" and any(i.kind == "program" for i in db.store.patterns()):
            hint = "import programs with --cut for their kernels, or `embeddb tune` them"
        what = f"no tensor {op.kind} is stored with its operations"
        raise NothingFound(what, hint=hint)
    return list(by_id.values())


@click.group("kernel", commands=[import_verb, measure_verb, show_verb])
def kernel_verb() -> None:
    """Tensor kernels and programs: import, measure, show.

    \b
    Example:
      embeddb kernel import tensors.db dump/
      embeddb kernel measure tensors.db
      embeddb kernel show tensors.db mlp
    """
