"""Model files: cards, tensors, headers; read, registered, scored with, embedded with."""

from __future__ import annotations

import json
import math
import random
import struct
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from attack.case import Case
from attack.mutate import mutated, mutated_tree

DATA = Path(__file__).parents[3] / "embeddb" / "data"


@cache
def _shipped() -> tuple[Case, ...]:
    names = ("costmodel-cpu-spmm.safetensors", "scnn.safetensors")
    return tuple(Case(name, (DATA / name).read_bytes()) for name in names)


def seeds() -> list[Case]:
    made = list(_shipped())
    cost = made[0]
    header, _ = _split(cost.data)
    names = [
        name for name, entry in header.items() if name != "__metadata__" and "F" in entry["dtype"]
    ]
    return [
        *made,
        *(Case(cost.how, _weights(cost.data, n, b"\x7f\x7f\x7f\x7f")) for n in names[:3]),
    ]


def _split(data: bytes) -> tuple[dict[str, Any], bytes]:
    size = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def _joined(header: Any, body: bytes) -> bytes:
    raw = json.dumps(header).encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(raw)) + raw + body


def _weights(data: bytes, name: str, word: bytes) -> bytes:
    """All numbers of a tensor the same: large, not a number."""
    header, body = _split(data)
    start, end = header[name]["data_offsets"]
    return _joined(header, body[:start] + (word * (end - start))[: end - start] + body[end:])


def mutate(rng: random.Random, case: Case, seeds: Sequence[Case]) -> Case:
    try:
        header, body = _split(case.data)
    except (ValueError, KeyError):
        return Case(case.how, mutated(rng, case.data))
    act = rng.random()
    try:
        if act < 0.5:
            card = mutated_tree(rng, json.loads(header["__metadata__"]["card"]))
            header["__metadata__"]["card"] = json.dumps(card)
        elif act < 0.7:
            header = mutated_tree(rng, header)
        elif act < 0.9:
            name = rng.choice([n for n in header if n != "__metadata__"])
            words = (
                b"\x7f\x7f\x7f\x7f",
                b"\xff\xff\xff\x7f",
                b"\0\0\x80\x7f",
                b"\0\0\0\0",
                b"\1\0\0\0",
            )
            return Case(case.how, _weights(case.data, name, rng.choice(words)))
        else:
            return Case(case.how, mutated(rng, case.data))
        return Case(case.how, _joined(header, body))
    except (ValueError, RecursionError):
        return Case(case.how, mutated(rng, case.data))


def prepare(scratch: Path) -> Any:
    """A database of runs that the shipped model was not trained on, embedded with its featurizer;
    and a pattern to embed."""
    from builders import patterns

    from embeddb.core.config import Op
    from embeddb.core.pattern import Pattern
    from embeddb.core.records import WorkloadInfo
    from embeddb.database import Database
    from embeddb.platforms.platform import load_platform
    from indexer.embed import embed

    cpu, op = load_platform("cpu").at("0" * 8, {}), Op.parse("spmm:32")
    rng = np.random.default_rng(0)
    folder = scratch / "asked"
    with Database.create(folder) as db:
        db.store.put_platform(cpu)
        for pattern in patterns(2):
            info = WorkloadInfo.whole(pattern)
            db.store.put_structure(pattern, info)
            db.store.append(_runs(pattern, cpu, op, cpu.space(op, info.sizes).sample(6, rng=rng)))
        embed(db.index)
        db.query(info, platform=cpu, op=op)
    (folder / "models").mkdir(exist_ok=True)
    pattern = Pattern.from_coo((50, 50), np.arange(50), np.arange(50)[::-1], name="p", group="p")
    return folder, info, cpu, op, pattern


def _runs(pattern: Any, cpu: Any, op: Any, configs: list[Any]) -> Any:
    from embeddb.core.records import Measurement, Run

    return [
        Run(pattern.id, op, cpu.id, config, Measurement(times_s=(1e-3 * (at + 1),)))
        for at, config in enumerate([*configs, cpu.default(op)])
    ]


def feed(case: Case, scratch: Path, state: Any) -> None:
    from embeddb.core.errors import EmbeddbError
    from embeddb.store.model_files import entry_of
    from embeddb.store.models import facts_of

    cost = case.how.startswith("costmodel")
    folder = state[0] / "models" if cost else scratch / "given"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / Path(case.how).name
    path.write_bytes(case.data)
    refused: EmbeddbError | None = None
    try:
        try:
            facts_of(entry_of(path))
        except EmbeddbError as error:
            refused = error
        if cost:
            _ask(state)
        else:
            _embed(path, scratch / "given.db", state[-1])
    finally:
        path.unlink()
    if refused is not None:
        raise refused


def _ask(state: Any) -> None:
    """A bad model is told of in the answer, which stands without it."""
    from embeddb.database import Database

    folder, info, cpu, op, _ = state
    with Database.open(folder) as db:
        made = db.query(info, platform=cpu, op=op)
        assert made.candidates
        gains = [c.expected_gain for c in made.candidates if c.expected_gain is not None]
        assert all(math.isfinite(gain) for gain in gains), "a promised gain is not a number"
        db.explain(made.id)
        db.store.recommendations.delete([made.id])


def _embed(path: Path, folder: Path, pattern: Any) -> None:
    from embeddb.featurizers import Featurizers
    from embeddb.featurizers.scnn import install

    folder.mkdir(exist_ok=True)
    install(path, folder)
    vector = Featurizers(folder).named("scnn").embed(pattern)
    assert np.isfinite(vector).all()
