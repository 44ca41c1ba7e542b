"""`data.mdb` with damaged pages: what LMDB itself is given to read."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from attack import database
from attack.case import Case

_VERBS = ("query", "name", "explain", "check", "stat", "export", "report", "embed", "compact",
          "rebuild", "clusters")  # fmt: skip
_PAGE = 4096


@cache
def _file() -> bytes:
    return (database.base() / "data.mdb").read_bytes()


def seeds() -> list[Case]:
    return [Case(verb, _file()) for verb in _VERBS]


def mutate(rng: random.Random, case: Case, seeds: Sequence[Case]) -> Case:
    d = bytearray(case.data)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        _damage(rng, d)
    return Case(rng.choice(_VERBS), bytes(d))


def _damage(rng: random.Random, d: bytearray) -> None:
    pages = max(1, len(d) // _PAGE)
    at, page, other = rng.randrange(len(d)), rng.randrange(pages), rng.randrange(pages)
    act = rng.randrange(9)
    if act < 3:
        d[at] ^= 1 << rng.randrange(8)
    elif act == 3:
        d[at] = rng.randrange(256)
    elif act == 4:
        words = (b"\xff" * 8, b"\0" * 8, (2**63).to_bytes(8, "little"), rng.randbytes(8))
        d[at : at + 8] = rng.choice(words)
    elif act == 5:
        a, b = page * _PAGE, other * _PAGE
        d[a : a + _PAGE], d[b : b + _PAGE] = d[b : b + _PAGE], d[a : a + _PAGE]
    elif act == 6 and rng.random() < 0.3:
        del d[max(at, 2 * _PAGE) :]
    elif act == 7:
        d[page * _PAGE + rng.randrange(32)] = rng.randrange(256)  # a page's head
    elif act == 8:
        d[rng.randrange(2) * _PAGE + rng.randrange(160)] = rng.randrange(256)  # the meta pages


def prepare(scratch: Path) -> Any:
    return database.base()


def feed(case: Case, scratch: Path, state: Any) -> None:
    folder = database.with_copy(state, scratch / "in.db")
    (folder / "data.mdb").write_bytes(case.data)
    database.asked(case.how, folder, scratch)
