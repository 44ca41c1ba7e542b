"""The common interface of workloads: sparse matrices, loop nests, tensor kernels and programs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeGuard

from embeddb.core.config import Op
from embeddb.core.errors import UsageError
from embeddb.core.kinds import kind_exists
from embeddb.core.sizes import Sizes


class Workload(Protocol):
    """Something to tune: runs, vectors and answers are stored under its id.

    `kind` names its kind (`embeddb.core.kinds`), like `Op.kind`; `id` is a digest of the content,
    32 hex digits; workloads of one `group` are held out together in every evaluation. In keys,
    columns and JSON the word is *pattern*, whatever the kind.
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
    """Check that all operations are on matrices, for `what`. Raises: UsageError."""
    for op in ops:
        if not op.workload.sparse:
            raise UsageError(
                f"{what} is about matrices, and {op} runs on a {op.kind}",
                hint=f"`embeddb measure DB FILE --platform NAME --op {op}` measures a "
                f"{op.workload.file}",
            )
