"""Words of the command line and of the page that are parsed: operations and configurations."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attack.case import Case
from attack.mutate import mutated, mutated_json

_OPS = ("spmm:128", "spmv", "sddmm:64:f64", "spmm:1:f16")
_CONFIGS = ("a=1,b=word", 'a="x,y",b=true', "order=ijk,format=csr,tile=1.5", 'x="\\u00e9"')


def seeds() -> list[Case]:
    made = [Case("op", text.encode()) for text in _OPS]
    made += [Case("config", text.encode()) for text in (*_CONFIGS, "a=" + "1" * 5000)]
    return [*made, Case("json", b'{"a":1,"b":"x","c":true,"d":1.5}'), Case("json", b"[" * 5000)]


def mutate(rng: random.Random, case: Case, seeds: Sequence[Case]) -> Case:
    others = [one.data for one in rng.sample(seeds, 2)]
    change = mutated_json if case.how == "json" and rng.random() < 0.5 else mutated
    return Case(case.how, change(rng, case.data, others)[:100_000])


def prepare(scratch: Path) -> Any:
    return None


def feed(case: Case, scratch: Path, state: Any) -> None:
    from embeddb.core.config import Config, Op

    text = case.data.decode("utf-8", "surrogateescape")
    if case.how == "op":
        op = Op.parse(text)
        assert Op.parse(str(op)) == op
        return
    config = Config.parse(text) if case.how == "config" else Config.from_json(case.data)
    assert Config.parse(str(config)) == config
    assert Config.from_json(config.json).id == config.id
