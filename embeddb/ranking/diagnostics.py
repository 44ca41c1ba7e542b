"""What was found out about an answer while it was made; kept with it, so that it can be explained
later from the store alone."""

from __future__ import annotations

import math
from typing import Any

import msgspec

__all__ = [
    "Counterfactual",
    "Diagnostics",
    "NextRun",
    "Occluded",
    "ParameterEffect",
    "SimplerAnswer",
]


class SimplerAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """First choice of a simpler method: `default`, `static-best`, `nearest` (the fastest that the
    one nearest neighbour ran), `transfer` (the vote alone), `rank` (the cost model alone).

    `expected_gain` is a factor over the default, by the same evidence the answer is judged by;
    `same` says that it is the answer itself. `gain_there` is what `nearest` measured on that
    neighbour, a factor over its own default (None: its default did not run; all other methods).
    """

    method: str
    config: dict[str, Any]
    expected_gain: float | None = None
    same: bool = False
    gain_there: float | None = None


class NextRun(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration worth measuring on this pattern. `worth` is what is gained on average
    (geometric) by measuring it and then taking the faster of it and the answer (0.02: 2 %);
    `chance` (0..1) is how often it is the faster, and `faster_by` by how much it then is (0.08:
    8 %). All three are of one distribution: log(1 + worth) = chance * log(1 + faster_by)."""

    config: dict[str, Any]
    worth: float
    chance: float = math.nan
    faster_by: float = math.nan


class ParameterEffect(msgspec.Struct, frozen=True, kw_only=True):
    """One value of one parameter on this pattern: the best and the median gain (factors over the
    default) of the ranked configurations that have it, with every other parameter free."""

    parameter: str
    value: str
    configs: int
    best_gain: float
    median_gain: float


class Counterfactual(msgspec.Struct, frozen=True, kw_only=True):
    """The smallest tried change of one feature, all others kept, that changes the answer.

    `start` and `end` are raw values of the feature, `deviations` the way between them in standard
    deviations of the partition, `winner` what would then be answered.
    """

    feature: str
    start: float
    end: float
    deviations: float
    winner: dict[str, Any]


class Occluded(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a tensor kernel that was left out: an operation by its `place` (`what` is its
    opcode), or with -1 a statistic by its name."""

    what: str
    moved: float
    place: int = -1


class Diagnostics(msgspec.Struct, frozen=True, kw_only=True):
    """`simpler` and `next` come with every answer; `answer_gain` is what the answer itself gains by
    the evidence that those are judged by (None: not known). `effects`, `moves` and `attention` only
    where they were asked for (`deep`), for they cost hundreds of queries: `attention` holds, row by
    row, how far (standard deviations of the partition) the pattern moves in the space that
    neighbours are found in when the non-zeros of one cell of an `attention_side` x `attention_side`
    grid are left out. Of a tensor kernel `occluded` holds what leaving a part out changes, the most
    first, by what `occluded_by` names: `model`, the log gain that the best tile promises over the
    default when the operation is hidden; `operations`, how far the kernel then moves in the space
    that neighbours are found in; `sizes`, how far it moves with a statistic as it is on average.
    """

    answer_gain: float | None = None
    simpler: list[SimplerAnswer] = []
    next: list[NextRun] = []
    deep: bool = False
    effects: list[ParameterEffect] = []
    moves: list[Counterfactual] = []
    attention: list[float] = []
    attention_side: int = 0
    occluded: list[Occluded] = []
    occluded_by: str = ""
