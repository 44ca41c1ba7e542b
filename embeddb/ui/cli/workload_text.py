"""Terminal output and C files for tensor kernels and loop nests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embeddb.core.config import Config
from embeddb.core.errors import TensorError, UsageError
from embeddb.core.files.safe_write import whole_file
from embeddb.core.pattern import Pattern
from embeddb.core.records import WorkloadInfo
from embeddb.core.wording import clean, duration, factor, plural, short_time
from embeddb.core.workload import Workload
from embeddb.database import Database
from embeddb.explain.explanation import Explanation
from embeddb.nests.check import packable, parallel_loops, reduction_loops
from embeddb.nests.dependence.legality import dependences
from embeddb.nests.lines import loop_lines, statement_line
from embeddb.nests.nest import Nest
from embeddb.nests.schedule import Schedule
from embeddb.ranking.recommendation import Recommendation
from embeddb.tensors.tensor_graph import TensorGraph
from embeddb.ui.cli.arguments import whole
from embeddb.ui.cli.output import note, note_some, say, table
from embeddb.ui.views import occluded_figure, occluded_head, occluded_part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from embeddb.core.config import Op
    from embeddb.ranking.kernel_prediction import FusedSeconds
    from embeddb.ranking.kernel_view import KernelView
    from embeddb.ranking.recommendation import Diagnostics
    from indexer.add import Added

_MOST = 8


def refuse_if_nothing_ran(count: int, reasons: Mapping[str, str]) -> None:
    """Fail if no requested kernel was measured, now or before; `reasons` by kernel name.

    Raises: TensorError."""
    if count or not reasons:
        return
    name, reason = next(iter(reasons.items()))
    more = f", and {plural(len(reasons) - 1, 'other')}" if len(reasons) > 1 else ""
    raise TensorError("nothing could be measured", hint=f"{name}: {reason}{more}")


#: Kernels that could not be measured, of those that are named.
MOST_NOTES = 10


def note_without_tiles(skipped: Mapping[str, str]) -> None:
    """Name kernels without tiles on stderr, with the reason of each."""
    lines = [f"{name} has no tiles: {reason}" for name, reason in skipped.items()]
    note_some(lines, MOST_NOTES, "and {:,} more without tiles: --json has them all")


#: Use of a fusion plan.
NO_PLAN_FOR_XLA = (
    "XLA takes no fusion plan: this is a prediction until you compile the kernels one by one, as "
    "HLO that `embeddb emit` writes of a query's answer"
)


def added_document(
    db: str, done: Added[Any], document: Callable[[Any], dict[str, object]]
) -> dict[str, object]:
    """JSON document of imported nests or kernels, each by `document`."""
    return {
        "database": db,
        "added": [document(one) for one in done.added],
        "known": [document(one) for one in done.stored],
        "adopted_runs": done.adopted_runs,
    }


def show_occluded(insight: Diagnostics, view: KernelView | None) -> None:
    """Table of the operations or sizes of a kernel that matter, if deep diagnostics ran."""
    if not insight.occluded:
        return
    say()
    say(occluded_head(insight.occluded_by))
    rows = [
        (clean(occluded_part(one, view))[:60], occluded_figure(one, insight.occluded_by))
        for one in insight.occluded[:_MOST]
    ]
    table(("left out", "then" if insight.occluded_by == "model" else "moves by"), rows, indent="  ")


def fused_seconds(db: Database, subject: Workload | WorkloadInfo, op: Op) -> Sequence[FusedSeconds]:
    """Measured and predicted seconds of a kernel, by machine; only for op `fused`."""
    if op.name != "fused":
        return ()
    from embeddb.ranking.kernel_prediction import fused_seconds_of

    kernel = subject if isinstance(subject, TensorGraph) else db.store.tensor(subject.id)
    return () if kernel is None else fused_seconds_of(db.index, kernel)


def show_fused_seconds(took: Iterable[FusedSeconds]) -> None:
    for one in took:
        measured = "not measured" if one.measured is None else f"{time_of(one.measured)} measured"
        prediction = ""
        if one.model is not None and one.predicted is not None:
            call = "" if one.call is None else f", its call {time_of(one.call)}"
            disagreement = (
                f" (trees and network: {factor(one.apart)} apart)" if (one.apart or 1) > 1 else ""
            )
            prediction = f", {time_of(one.predicted)} by model {one.model[:8]}{disagreement}{call}"
        say(f"{one.platform}: {measured}{prediction}")


def time_of(seconds: float) -> str:
    """`12.3 µs`, or a longer time with its own unit."""
    return short_time(seconds, micro="µs") or duration(seconds)


# -- loop nests ------------------------------------------------------------------------------------

#: Neighbours with transferred schedules, of which the steps are shown.
_MOST_TRANSFERS = 2


def show_transfers(e: Explanation) -> None:
    """Transfer of neighbours' schedules to the answer, step by step, and the resulting loops;
    nothing for a workload that is no nest."""
    nest = e.pattern.nest
    if nest is not None:
        say()
        say("the nest, and below it its loops as the answer has them")
        for depth, line in enumerate([*nest.loops, *nest.body]):
            say(f"  {'  ' * min(depth, len(nest.loops))}{clean(line)}")
        say()
        for depth, line in enumerate(nest.answer):
            say(f"  {'  ' * depth}{clean(line)}")
    for one in e.transfers[:_MOST_TRANSFERS]:
        say()
        source = f"{clean(one.name or one.pattern_id)}, where it is {factor(one.gain)} the default"
        # The table of neighbours has one machine each, so its gains may differ.
        source += " over all machines that ran it" if len(e.machines) > 1 else ""
        say(f"transferred from {source}")
        rows = []
        for step in one.steps:
            pairs = ", ".join(f"{clean(a)} with {clean(b)} ({d:.2g})" for a, b, d in step.matched)
            here = clean(step.target_text) or "left out"
            rows.append((clean(step.text), here, pairs or "-", clean(step.reason)))
        table(("step there", "step here", "matched (distance)", "why"), rows, indent="  ")


def emit_schedules(
    db: Database,
    subjects: Sequence[Workload | WorkloadInfo],
    answers: Sequence[Recommendation],
    place: str,
) -> None:
    """Write the first candidate of each answer as a complete C program: to the file, or for several
    nests to files beside it with their names.

    Raises: UsageError for a workload that is no nest; NothingFound for a nest known by name only.
    """
    from indexer.runners.nest_code.in_place import c_program

    path = Path(place)
    for subject, answer in zip(subjects, answers, strict=True):
        if subject.kind != "nest":
            raise UsageError(f"--emit writes the C of a nest, not of a {subject.kind}")
        nest = whole(db, subject, Nest)
        schedule = _schedule(answer, nest)
        alone = len(subjects) == 1
        target = path if alone else path.with_name(f"{path.stem}_{nest.name}{path.suffix}")
        with whole_file(target) as file:
            file.write(c_program(nest, schedule).encode())
        note(f"{target}: {nest.name} as {schedule.config}")


def emit_program(
    file: str,
    answers: Sequence[Recommendation],
    place: str,
    *,
    defines: Mapping[str, int],
    matrix: Pattern | None,
) -> None:
    """Write a C file in which each scop has the schedule of its answer's first candidate; it
    compiles in place of the original. A note names each scop that stays unchanged.

    Raises: NestError; UsageError if the target is the program itself.
    """
    from indexer.frontends import read_c_file
    from indexer.runners.nest_code.in_place import Tuned, program_in_place

    if Path(place).exists() and Path(place).samefile(file):
        raise UsageError(f"{place} is the program itself", hint="give --emit another file")
    source, read, scops = read_c_file(file, defines=defines, matrix=matrix)
    tuned = [
        Tuned(nest, lines, _schedule(answer, nest), _remark(answer))
        for nest, lines, answer in zip(scops.nests, scops.lines, answers, strict=True)
    ]
    text, unchanged = program_in_place(source, Path(file).name, read, tuned, scops.partial)
    with whole_file(Path(place)) as out:
        out.write(text.encode())
    for line in unchanged:
        note(line)
    for one in tuned:
        note(f"{place}: {one.nest.name}, {lines_words(one.lines)}, as {one.schedule.config}")


def lines_words(lines: tuple[int, int] | None) -> str:
    """The lines of a nest in its file; empty where they are not known."""
    if lines is None:
        return ""
    return f"line {lines[0]}" if lines[0] == lines[1] else f"lines {lines[0]} to {lines[1]}"


def _schedule(answer: Recommendation, nest: Nest) -> Schedule:
    first = answer.candidates[0].config if answer.candidates else answer.default
    return Schedule.of(Config(first), nest.depth)


def _remark(answer: Recommendation) -> str:
    """The time of an answer's first candidate: measured, else predicted."""
    if not answer.candidates:
        return "the default: no evidence on others"
    first = answer.candidates[0]
    if first.seconds is not None:
        gain = factor(answer.default_seconds / first.seconds if answer.default_seconds else None)
        return f"measured: {duration(first.seconds)}, {gain} the default"
    return f"predicted: {factor(first.expected_gain)} the default (sure: {answer.confidence})"


def listing(nest: Nest, schedule: Schedule | None = None) -> str:
    """Its loops, one inside the other, and its statements; with a schedule, the generated loops."""
    lines = [*loop_lines(nest, schedule)]
    body = [statement_line(nest, statement) for statement in nest.body]
    indented = ["  " * at + line for at, line in enumerate(lines)]
    return "\n".join([*indented, *("  " * len(lines) + line for line in body)])


def loop_words(nest: Nest) -> list[str]:
    """Order of the iterations of each loop: `independent`, `a reduction` or `in order`."""
    parallel, reduction = parallel_loops(nest), reduction_loops(nest)
    return [
        "independent" if at in parallel else "a reduction" if at in reduction else "in order"
        for at in range(nest.depth)
    ]


def dependence_lines(nest: Nest) -> list[str]:
    """One line for each distinct dependence between iterations; reductions named as such."""
    lines = []
    for one in dependences(nest):
        if any(part != (0, 0) for part in one.vector):
            word = "distance" if one.distance is not None else "direction"
            reduction = ", a reduction" if one.reduction else ""
            lines.append(f"{nest.array_name(one.array)}: {word} {one.vector_text}{reduction}")
    return list(dict.fromkeys(lines))


def array_rows(nest: Nest) -> list[tuple[str, str, str, str, str]]:
    """Name, type, shape, initial contents and use of each array."""
    packs, written = packable(nest), nest.written
    read = {access.array for _, access, writes in nest.accesses() if not writes}
    rows = []
    for at, array in enumerate(nest.arrays):
        used = [word for word, which in (("read", read), ("written", written)) if at in which]
        used += [f"pack read{packs.index(at) + 1}"] if at in packs[:2] else []
        shape = " x ".join(map(str, array.shape))
        rows.append((nest.array_name(at), array.dtype, shape, array.fill, ", ".join(used)))
    return rows
