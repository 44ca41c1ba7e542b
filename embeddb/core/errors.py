"""All exceptions that embeddb raises on purpose, with the exit code of a command for each.

The failure of a *configuration* is data (`Measurement.status`), never one of these.
"""

from __future__ import annotations

from collections.abc import Sequence


class EmbeddbError(Exception):
    """Base of all errors. `str(e)` is one line; `hint` says what to do about it."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        # Messages of libraries, and names of files in them, may contain line ends.
        super().__init__(" ".join(part.strip() for part in message.splitlines()))
        self.hint = hint


class UsageError(EmbeddbError):
    """The request is invalid: an unknown name, a value out of range, conflicting options."""

    exit_code = 2


class NothingFound(EmbeddbError):
    """The request is valid but the database has no evidence for an answer."""

    exit_code = 3


class InputError(EmbeddbError):
    """A file or value from outside is wrong. The message names file, line or field."""

    def __init__(
        self, message: str, *, where: str = "", line: int | None = None, hint: str = ""
    ) -> None:
        place = f"{where}:{line}" if where and line is not None else where
        super().__init__(f"{place}: {message}" if place else message, hint=hint)
        self.reason = message
        self.where = where
        self.line = line


class MatrixError(InputError):
    """A matrix file is truncated, contradicts its stated size, or holds impossible entries."""


class NestError(InputError):
    """A loop nest, or the program it comes from, cannot be read or could not be run safely."""


class TensorError(InputError):
    """A tensor kernel or program cannot be read, or is not one."""


class PlatformError(InputError):
    """A platform file is not a valid platform. The message is the first of its `problems`, which
    are one line each with what to do about it."""

    def __init__(
        self,
        message: str,
        *,
        where: str = "",
        line: int | None = None,
        hint: str = "",
        problems: Sequence[str] = (),
    ) -> None:
        super().__init__(message, where=where, line=line, hint=hint)
        self.problems = tuple(problems) or (f"{self} ({hint})" if hint else str(self),)


class SpaceError(InputError):
    """A configuration is not legal in its space; the message names the parameter."""


class ReaderError(InputError):
    """A run log, or one row of it, cannot be read."""


class ModelError(InputError):
    """A model file is damaged, of another architecture, or not a model at all."""


class MissingDependency(EmbeddbError):
    """An optional package or program is not installed; `hint` names what to install."""


class RunnerUnavailable(MissingDependency):
    """The platform cannot be measured on this machine; queries still work."""


class PluginError(EmbeddbError):
    """A plug-in broke its contract; the message names the plug-in and the fault."""


class StoreError(EmbeddbError):
    """The database cannot be opened or used in the requested way."""


class StoreLocked(StoreError):
    """Another process holds the database for writing."""


class StoreReadOnly(StoreError):
    """A write was attempted on a database opened (or mounted) read-only."""


class StoreFull(StoreError):
    """The disk or the largest allowed map is full; the batch was not written."""


class StoreCorrupt(StoreError):
    """The data file is damaged; nothing was changed."""


class PluginWarning(UserWarning):
    """Something is left out, since a plug-in is not here or cannot be used."""


class StoreVersion(StoreError):
    """The database was written with another schema version."""
