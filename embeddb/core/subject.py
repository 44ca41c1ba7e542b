"""What is tuned: a sparse matrix, or a loop nest."""

from __future__ import annotations

from typing import Protocol

from embeddb.core.sizes import Sizes

__all__ = ["Subject"]


class Subject(Protocol):
    """Something with an id, whose runs, vectors and answers are kept under it.

    `kind` is `matrix` (`embeddb.core.pattern.Pattern`) or `nest` (`embeddb.nests.nest.Nest`), as
    `Op.kind` says what an operation runs on; `id` is a digest of the content, 32 hex digits; those
    of one `group` are held out together in every evaluation. In keys, columns and JSON the word is
    *pattern*, whatever the kind.
    """

    @property
    def kind(self) -> str: ...

    @property
    def id(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def group(self) -> str: ...

    @property
    def sizes(self) -> Sizes: ...
