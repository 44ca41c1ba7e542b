"""What is tuned: a sparse matrix, a loop nest, a tensor kernel or a tensor program."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeGuard

from embeddb.core.config import Op
from embeddb.core.errors import UsageError
from embeddb.core.kinds import kind_exists
from embeddb.core.sizes import Sizes


class Workload(Protocol):
    """Something with an id, whose runs, vectors and answers are kept under it.

    `kind` names its kind (`embeddb.core.kinds`), as `Op.kind` says what an operation runs on; `id`
    is a digest of the content, 32 hex digits; those of one `group` are held out together in every
    evaluation. In keys, columns and JSON the word is *pattern*, whatever the kind.
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


def is_workload(value: object) -> TypeGuard[Workload]:
    """Return true if an object is a workload of a registered kind."""
    kind = getattr(value, "kind", None)
    return isinstance(kind, str) and hasattr(value, "sizes") and kind_exists(kind)


def matrices_only(ops: Iterable[Op], what: str) -> None:
    """Raises: UsageError for an operation on something else, for `what` that is about matrices."""
    for op in ops:
        if not op.workload.sparse:
            raise UsageError(
                f"{what} is about matrices, and {op} runs on a {op.kind}",
                hint="`embeddb measure DB PROGRAM.c --platform nest-cpu --op nest` measures nests",
            )
