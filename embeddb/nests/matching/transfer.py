"""A recipe carried from one nest to another ("Performance Embeddings", Section 5.1).

Step by step: the nodes that the step names are matched with nodes of the target, the step is made
anew on those, and applied if it fits and is legal; else it is left out, and why is said.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from embeddb.core.errors import NestError
from embeddb.nests.matching.matchers import Matcher, Matching, by_slot
from embeddb.nests.nest import Nest
from embeddb.nests.recipe import (
    Inner,
    Order,
    Pack,
    Parallel,
    Step,
    Tile,
    apply,
    as_it_stands,
    named,
    recipe_of,
    step_text,
)
from embeddb.nests.schedule import Schedule

__all__ = ["TILES", "Legal", "Pair", "StepOutcome", "Transfer", "slot_copy", "transfer"]

#: Why a schedule of one nest is not legal; None or "": it is.
Legal = Callable[[Schedule], str | None]

#: The sizes of blocks that `nest-cpu` lists.
TILES = (4, 8, 16, 32, 64, 128, 256)


class Pair(NamedTuple):
    """A loop or an array of the source, its match in the target, by name, and their distance."""

    source: str
    target: str
    distance: float


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What became of one step: `text` as the source has it, `made` as the target has it, empty
    where it was left out; `reason` why that was, or why `made` is another."""

    text: str
    pairs: tuple[Pair, ...]
    made: str
    reason: str = ""

    @property
    def applied(self) -> bool:
        return bool(self.made)


@dataclass(frozen=True, slots=True)
class Transfer:
    """The schedule of the target, legal, and what became of each step of the recipe."""

    schedule: Schedule
    steps: tuple[StepOutcome, ...]

    @property
    def applied(self) -> int:
        """How many steps were applied."""
        return sum(step.applied for step in self.steps)

    def document(self) -> dict[str, Any]:
        """As plain values, for explanations."""
        steps = [
            {
                "step": step.text,
                "matched": [pair._asdict() for pair in step.pairs],
                "made": step.made,
                "reason": step.reason,
            }
            for step in self.steps
        ]
        return {"config": json.loads(self.schedule.config.json), "steps": steps}


def transfer(
    steps: Sequence[Step], source: Nest, *, target: Nest, legal: Legal, matcher: Matcher
) -> Transfer:
    """The recipe of `source` on `target`, whose legality `legal` decides; `matcher` is one between
    these two (`embeddb.nests.matching.matchers`).

    Raises: NestError for a step that does not fit the source.
    """
    known, made = as_it_stands(source), as_it_stands(target)
    outcomes: list[StepOutcome] = []
    for step in steps:
        after = apply(source, known, step)
        matched = matcher(step, known, made)
        made, done, reason = _attempt(step, matched, target, made, legal)
        pairs = _pairs(step, matched, source, target)
        outcomes.append(StepOutcome(step_text(source, step), pairs, done, reason))
        known = after
    return Transfer(made, tuple(outcomes))


def slot_copy(schedule: Schedule, source: Nest, *, target: Nest, legal: Legal) -> Transfer:
    """What a transfer is compared with: the same values in the same slots, as far as they are
    legal. Raises: NestError where the nests are not equally deep."""
    if source.depth != target.depth:
        raise NestError(f"slots of {source.depth} loops are none of {target.depth}")
    steps = recipe_of(source, schedule)
    return transfer(steps, source, target=target, legal=legal, matcher=by_slot(source, target))


def _attempt(
    step: Step, matched: Matching, target: Nest, made: Schedule, legal: Legal
) -> tuple[Schedule, str, str]:
    """The schedule after the step, the step as the target has it, and what is to be said of it."""
    candidates, note = _instances(step, matched, target, made)
    refused = ""
    for candidate in candidates:
        try:
            tried = apply(target, made, candidate)
            against = legal(tried)
        except NestError as error:
            against = str(error)
        if not against:
            return tried, step_text(target, candidate), refused or note
        refused = refused or against
    return made, "", refused or note


def _instances(
    step: Step, matched: Matching, target: Nest, made: Schedule
) -> tuple[list[Step], str]:
    """The step on the target's nodes, and what is to be said of it. That a loop runs in parallel
    matters more than which: where the match cannot, the two that may be are tried."""
    at = [matched[n][0] for n in named(step) if n in matched]
    if not at and not isinstance(step, Parallel):
        return [], "nothing in the target matches"
    match step:
        case Order():
            return ([Order(tuple(at))], "") if len(at) > 1 else ([], "only one loop matches")
        case Tile(_, size):
            return _fitted(Tile(at[0], size), target)
        case Parallel():
            exact = [replace(step, loop=loop) for loop in at]
            outer = made.pieces(target)[:2]
            others = [replace(step, loop=piece.loop, block=piece.block) for piece in outer]
            return list(
                dict.fromkeys([*exact, *others])
            ), "" if at else "nothing in the target matches"
        case Inner():
            return [replace(step, loop=at[0])], ""
        case Pack():
            return [Pack(at[0])], ""


def _fitted(step: Tile, target: Nest) -> tuple[list[Step], str]:
    """Blocks of at most half the turns of the loop."""
    turns = target.trips[step.loop]
    if 2 * step.size <= turns:
        return [step], ""
    fits = [size for size in TILES if 2 * size <= turns and size < step.size]
    note = f"{step.size} is more than half of the {turns} turns of {target.loop_name(step.loop)}"
    return ([replace(step, size=fits[-1])], note) if fits else ([], note)


def _pairs(step: Step, matched: Matching, source: Nest, target: Nest) -> tuple[Pair, ...]:
    def name(nest: Nest, at: int) -> str:
        return nest.array_name(at) if isinstance(step, Pack) else nest.loop_name(at)

    known = [(at, *matched[at]) for at in named(step) if at in matched]
    return tuple(Pair(name(source, at), name(target, to), d) for at, to, d in known)
