"""Conditions of a space, from a grammar: the sound and the nearly sound."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attack.case import Case
from attack.mutate import mutated

_NAMES = ("a", "b", "order", "NNZ", "unknown")
_NUMBERS = (
    "1",
    "0",
    "1.5",
    "1e308",
    "-1",
    "99999",
    "9" * 50,
    "9" * 320,
    "1e999",
    "0.1",
    "2147483648",
)
_TEXTS = ("'x'", "'i1'", "''")
_ENVIRONMENTS: tuple[dict[str, Any], ...] = (
    {"a": 3, "b": "x", "order": ("i1", "k"), "NNZ": 2**31 - 1},
    {"a": 1.5, "b": 10**15, "order": "x", "NNZ": 0},
    {"a": True, "b": 0, "order": (), "NNZ": -1},
    {},
)


def seeds() -> list[Case]:
    texts = (
        "a * 2 <= NNZ",
        "b in ('x', 'y') and a > 1",
        "position(order, 'k') < 1",
        "min('') < a",
        f"a * {'9' * 320} * 1.5 > 2",
        "not " * 3000 + "a",
        "(" * 200 + "a" + ")" * 200,
    )
    return [Case("", text.encode()) for text in texts]


def mutate(rng: random.Random, case: Case, seeds: Sequence[Case]) -> Case:
    if rng.random() < 0.2:
        return Case("", mutated(rng, case.data))
    return Case("", _made(rng).encode())


def _made(rng: random.Random, depth: int = 0) -> str:
    act = rng.randrange(14) if depth < 5 else rng.randrange(5)
    if act < 5:
        return _leaf(rng, act)

    def one() -> str:
        return _made(rng, depth + 1)

    if act < 9:
        return f"({one()}{rng.choice(('+', '-', '*', '//', '%'))}{one()})"
    if act == 9:
        return f"({one()}{rng.choice(('<', '<=', '==', '!=', '>', ' in ', ' not in '))}{one()})"
    if act == 10:
        return f"({one()}{rng.choice((' and ', ' or '))}{one()})"
    if act == 11:
        return rng.choice(("not ", "-")) + one()
    if act == 12:
        return f"{rng.choice(('min', 'max'))}({','.join(one() for _ in range(rng.randrange(3)))})"
    return f"position({one()},{one()})"


def _leaf(rng: random.Random, act: int) -> str:
    if act == 0:
        return rng.choice(_NAMES)
    if act in (1, 4):
        return rng.choice((*_NUMBERS, "True", "None"))
    if act == 2:
        return rng.choice(_TEXTS)
    return (
        "(" + "".join(_leaf(rng, rng.randrange(3)) + "," for _ in range(rng.randrange(1, 4))) + ")"
    )


def prepare(scratch: Path) -> Any:
    from embeddb.platforms.space.expression import Expression

    return Expression


def feed(case: Case, scratch: Path, state: Any) -> None:
    made = state(case.data.decode("utf-8", "replace"))
    for values in _ENVIRONMENTS:
        made.holds(values)
