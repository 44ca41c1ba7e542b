"""Points of a campaign that are to be measured again, though something was said of them before.

`again.json` names, by task, the lines of its result file that do not count any more, from 0. The
lines stay, for nothing measured is dropped: in the database the run of a later line replaces them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from embeddb.core.errors import InputError
from embeddb.core.files.own_files import OwnFolder

__all__ = ["Repeats"]

_FILE = "again.json"
_MOST_BYTES = 64 << 20


class Repeats:
    """The repeated lines of one campaign's folder. Raises: InputError for a file that is none."""

    def __init__(self, folder: Path) -> None:
        self._folder = OwnFolder(folder)
        self._lines = {task: frozenset(lines) for task, lines in self._read().items()}

    def of(self, task: str) -> frozenset[int]:
        """Numbers of the lines of a task that do not count."""
        return self._lines.get(task, frozenset())

    def add(self, lines: Mapping[str, Iterable[int]]) -> None:
        """Have further lines not count, all of them or none. Raises: OSError."""
        changed = {task: self.of(task) | frozenset(more) for task, more in lines.items()}
        if changed:
            self._lines |= changed
            body = {task: sorted(held) for task, held in sorted(self._lines.items())}
            self._folder.write(_FILE, msgspec.json.encode(body))

    def _read(self) -> dict[str, list[int]]:
        try:
            raw = self._folder.read(_FILE, _MOST_BYTES)
            return msgspec.json.decode(raw, type=dict[str, list[int]])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as e:
            raise InputError(
                f"does not say which results are repeated: {e}",
                where=str(self._folder.path / _FILE),
                hint="delete the file: what was measured last then counts",
            ) from None
