"""What the command line says and writes of loop nests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from embeddb.core.config import Config
from embeddb.core.errors import NothingFound, UsageError
from embeddb.core.files.own_files import whole_file
from embeddb.core.records import PatternInfo
from embeddb.core.wording import clean, factor
from embeddb.database import Database
from embeddb.explain.explanation import Explanation
from embeddb.nests.nest import Nest
from embeddb.nests.schedule import Schedule
from embeddb.platforms.of_subject import Content
from embeddb.query.recommendation import Recommendation, TransferredStep
from embeddb.ui.cli.output import note, say, table

__all__ = ["emit_schedules", "show_transfers"]

#: Neighbours whose schedules became the answer, of which the steps are told.
_MOST_TRANSFERS = 2


def show_transfers(e: Explanation) -> None:
    """How neighbours' schedules became the answer, step by step, and what loops that makes; nothing
    for what is no nest."""
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
        said = f"{clean(one.name or one.pattern_id)}, where it is {factor(one.gain)} the default"
        # The table of neighbours has what ran on one machine each, which may say otherwise.
        said += " over all machines that ran it" if len(e.machines) > 1 else ""
        say(f"carried over from {said}")
        rows = [
            (clean(step.text), clean(step.made) or "left out", _pairs(step), clean(step.reason))
            for step in one.steps
        ]
        table(("step there", "step here", "matched (how far apart)", "why"), rows, indent="  ")


def _pairs(step: TransferredStep) -> str:
    told = (f"{clean(a)} with {clean(b)} ({apart:.2g})" for a, b, apart in step.matched)
    return ", ".join(told) or "-"


def emit_schedules(
    db: Database,
    subjects: Sequence[Content | PatternInfo],
    answers: Sequence[Recommendation],
    place: str,
) -> None:
    """Write the first candidate of each answer as a C program that can be compiled alone: to the
    file, or for several nests to files beside it with their names.

    Raises: UsageError for what is no nest; NothingFound for a nest known by name only.
    """
    from indexer.runners.nest_code.program import c_program

    path = Path(place)
    for subject, made in zip(subjects, answers, strict=True):
        nest = db.store.known(subject) if isinstance(subject, PatternInfo) else subject
        if subject.kind != "nest":
            raise UsageError(f"--emit writes the C of a nest, not of a {subject.kind}")
        if not isinstance(nest, Nest):
            raise NothingFound(f"{subject.name}: known by name only", hint="give its program")
        first = made.candidates[0].config if made.candidates else made.default
        schedule = Schedule.of(Config(first), nest.depth)
        alone = len(subjects) == 1
        target = path if alone else path.with_name(f"{path.stem}_{nest.name}{path.suffix}")
        with whole_file(target) as file:
            file.write(c_program(nest, schedule).encode())
        note(f"{target}: {nest.name} as {Config(first)}")
