"""What a calibration measures of one matrix and op: the default, a part of the panel that all
matrices share, and the first answers for the matrix."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from embeddb.core.config import Config, Op
from embeddb.core.pattern import Pattern
from embeddb.index.lookup import Lookup
from embeddb.platforms.platform import Platform
from embeddb.ranking.answer import first_answers
from embeddb.ranking.build import build_query

__all__ = ["AGAIN", "TASK", "measured_on_all", "task_configs"]

#: Of each task: configurations that all matrices run, the first answers for the matrix, and how
#: many run once more at its end, the default among them: for the noise.
_PANEL, _ANSWERS, AGAIN = 17, 6, 3
TASK = 1 + _PANEL + _ANSWERS + AGAIN
#: Of a panel that was measured so far a task is not begun again: evidence of others moves it.
_DONE = 0.8


def task_configs(
    db: Lookup,
    pattern: Pattern,
    here: Platform,
    op: Op,
    panel: Sequence[Config],
    *,
    number: int = 0,
    known: Collection[Config] = (),
) -> list[Config]:
    """What is missing of a matrix and op, beside the `known`, in a pass of that number, which takes
    the next part of the panel; the default first. Nothing if nothing is."""
    space = here.space(op, pattern.sizes)
    legal = [space.canonical(c) for c in panel if space.reason(c) is None]
    part = list(dict.fromkeys(legal))[number * _PANEL : (number + 1) * _PANEL]
    rest = [config for config in part if config not in known]
    if (known and len(rest) <= (1 - _DONE) * len(part)) or (number and not part):
        return []
    query = build_query(db, pattern, here, op)
    first = [query.default, *rest]
    answers = first_answers(query, _ANSWERS + len(known) + len(first))
    new = [space.canonical(c) for c in answers]
    new = [c for c in dict.fromkeys(new) if c not in known and c not in first]
    return list(dict.fromkeys([*first, *new[:_ANSWERS]]))


def measured_on_all(db: Lookup, here: Platform, ops: Sequence[Op]) -> list[str]:
    """Ids of the patterns that an instance ran all of these ops on."""
    members = [
        set(db.store.members(p)) for op in ops if (p := db.store.partition(here.id, op)) is not None
    ]
    return sorted(set.intersection(*members)) if len(members) == len(ops) else []
