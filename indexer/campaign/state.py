"""The states of the machine around the tasks of a campaign, and which tasks they spoil.

Beside `results/TASK.jsonl` lies `states/TASK.jsonl` where the runner tells states: a line
`[runs done, figures]` before the task, one after it, and two more wherever it was taken up again.
A run was made between the last state before it and the first one after it. A line cut by a kill
does not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from embeddb.core.errors import InputError
from embeddb.core.files.gate import refusing
from embeddb.core.files.own_files import OwnFolder, drop_torn_line
from embeddb.core.machine_state import APART, State, apart, between, usual

__all__ = ["Moment", "TaskStates", "normal_of", "read_lines"]


#: Larger files are not those of a task.
_MOST_BYTES = 256 << 20


class Moment(msgspec.Struct, frozen=True, array_like=True):
    """The machine's state when so many runs of a task were done."""

    done: int
    figures: dict[str, float]


def read_lines(folder: OwnFolder, name: str) -> bytes:
    """The whole lines of a file of a campaign; none where there is no file.

    Raises: InputError if it cannot be read: a folder may come from elsewhere.
    """
    hint = "it is no file of a campaign: remove it and resume"
    with refusing(InputError, where=str(folder.path / name), hint=hint):
        try:
            raw = folder.read(name, _MOST_BYTES)
        except FileNotFoundError:
            return b""
    return raw[: raw.rfind(b"\n") + 1]


class TaskStates:
    """The states around one task, in a file of its own, beside those that were `delivered` with its
    results (each -1: the last of its part; 1: another)."""

    def __init__(self, file: Path, delivered: Sequence[tuple[Moment, int]] = ()) -> None:
        self._file, self._delivered = file, delivered
        # Below the campaign's folder, which is the user's word, nothing may be a link.
        self._folder = OwnFolder(file.parent.parent, file.parent.name)

    def note(self, done: int, figures: Mapping[str, float]) -> None:
        """Add a moment; one without figures is none."""
        if not figures:
            return
        self._folder.make()
        with self._folder.open(self._file.name, "a+b") as out:
            drop_torn_line(out)
            out.write(msgspec.json.encode(Moment(done, dict(figures))) + b"\n")

    def moments(self) -> list[Moment]:
        """In the order noted. Raises: InputError for a line that is none."""
        raw = read_lines(self._folder, self._file.name)
        found = []
        for number, line in enumerate(raw.splitlines(), 1):
            try:
                found.append(msgspec.json.decode(line, type=Moment))
            except msgspec.MsgspecError as e:
                raise InputError(
                    f"not a state of the machine: {e}",
                    where=str(self._file),
                    line=number,
                    hint="delete the file: nothing is then known of the state of these runs",
                ) from None
        if not self._delivered:
            return found
        # Where one part ends another begins: its own end comes first, its own begin last.
        ranked = [*self._delivered, *((one, 0) for one in found)]
        return [one for one, _ in sorted(ranked, key=lambda pair: (pair[0].done, pair[1]))]

    def contexts(self, count: int) -> list[dict[str, float]]:
        """What the context of each of `count` runs says, in the order they were made."""
        moments = self.moments()
        found = []
        for at in range(count):
            before = [m.figures for m in moments if m.done <= at][-1:]
            after = [m.figures for m in moments if m.done > at][:1]
            found.append(between(before[0] if before else {}, after[0] if after else {}))
        return found

    def spoilt(self, normal: State) -> bool:
        """Whether the state changed during the task, or was another than `normal`."""
        figures = [m.figures for m in self.moments()]
        changes = (apart(one, other) for one, other in pairwise(figures))
        offs = (apart(one, normal) for one in figures)
        return any((far or 0.0) > APART for far in (*changes, *offs))


def normal_of(tasks: Iterable[TaskStates]) -> dict[str, float]:
    """The median state over all moments of a campaign."""
    return usual(m.figures for task in tasks for m in task.moments())
