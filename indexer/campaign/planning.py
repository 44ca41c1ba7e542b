"""From a folder of matrix files to a campaign that is planned and can be run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from embeddb.core.config import Config, Op
from embeddb.core.errors import MatrixError
from embeddb.core.pattern import Pattern
from embeddb.core.subject import matrices_only
from embeddb.index.lookup import Lookup
from embeddb.matrix_files import matrix_files, matrix_names, plain_name, read_pattern
from embeddb.matrix_files.source import plain_text
from embeddb.platforms.platform import Platform
from indexer.campaign.folder import Campaign
from indexer.campaign.plan import Matrix, PlanOptions, Told, make_plan, static_top

__all__ = ["plan_campaign", "planned_matrices"]

#: Configurations that serve most matrices of the database, which every matrix runs.
_TOP = 10


def planned_matrices(
    folder: str | Path,
    *,
    nnz: tuple[int, int] = (0, 0),
    groups: Mapping[str, str] | None = None,
    seen: Callable[[Pattern], None] | None = None,
    note: Callable[[str], None] | None = None,
    told: Told | None = None,
) -> list[Matrix]:
    """The matrix files below a folder with a number of non-zeros within limits (a high one of 0 is
    none), each shown to `seen`; what cannot be read is left out, and `note` told. `groups` has the
    group by name, else a matrix is one of its own.

    Raises: MatrixError if it is not a folder.
    """
    report = note or (lambda _: None)
    files, (low, high) = matrix_files(folder, note=report), nnz
    names = matrix_names(files, Path(folder))
    found = []
    for at, path in enumerate(files):
        name = names[path]
        if told is not None:
            told("read matrices", at, len(files))
        try:
            if plain_text(path) != str(path):
                raise MatrixError("a plan cannot hold its name", where=plain_text(path))
            pattern = read_pattern(path)
        except MatrixError as e:
            report(f"warning: left out: {e}")
            continue
        if pattern.nnz >= low and (not high or pattern.nnz <= high):
            families = groups or {}
            group = families.get(name) or families.get(plain_name(name), name)
            sizes = (*pattern.shape, pattern.nnz)
            found.append(Matrix(str(path.resolve()), name, group, *sizes))
            if seen is not None:
                seen(pattern)
    return found


def plan_campaign(
    lookup: Lookup,
    folder: Path,
    platform: Platform,
    ops: Sequence[Op],
    matrices: Sequence[Matrix],
    options: PlanOptions | None = None,
    *,
    top: int = _TOP,
    told: Told | None = None,
) -> tuple[Campaign, dict[str, list[Config]]]:
    """The campaign in a folder, new or taken up, and the static top by op.

    Raises: UsageError if there is nothing to measure; InputError if another campaign is there.
    """
    matrices_only(ops, "a campaign")
    best = {str(op): static_top(lookup, platform, op, top) for op in ops}
    plan = make_plan(platform, ops, matrices, options or PlanOptions(), top=best, told=told)
    return Campaign.create(folder, plan), best
