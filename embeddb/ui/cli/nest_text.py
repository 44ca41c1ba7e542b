"""What the command line says and writes of loop nests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from embeddb.core.config import Config
from embeddb.core.errors import NothingFound, UsageError
from embeddb.core.own_files import whole_file
from embeddb.core.records import PatternInfo
from embeddb.database import Database
from embeddb.nests.nest import Content, Nest
from embeddb.nests.schedule import Schedule
from embeddb.query.recommendation import Recommendation
from embeddb.ui.cli.output import note

__all__ = ["emit_schedules"]


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
    from indexer.runners.nest_code.generate import c_program

    path = Path(place)
    for subject, made in zip(subjects, answers, strict=True):
        nest = db.store.known(subject) if isinstance(subject, PatternInfo) else subject
        if subject.kind != "nest":
            raise UsageError("--emit writes the C of a loop nest, not of a matrix")
        if not isinstance(nest, Nest):
            raise NothingFound(f"{subject.name}: known by name only", hint="give its program")
        first = made.candidates[0].config if made.candidates else made.default
        schedule = Schedule.of(Config(first), nest.depth)
        alone = len(subjects) == 1
        target = path if alone else path.with_name(f"{path.stem}_{nest.name}{path.suffix}")
        with whole_file(target) as file:
            file.write(c_program(nest, schedule).encode())
        note(f"{target}: {nest.name} as {Config(first)}")
