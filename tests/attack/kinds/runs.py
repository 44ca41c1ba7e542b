"""Run logs through every reader, guessed and named, and exports through `db import`."""

from __future__ import annotations

import gzip
import random
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attack.case import Case
from attack.mutate import mutated, mutated_gzip, mutated_json

GOLDEN = Path(__file__).parents[2] / "golden" / "readers"
#: Reader, file below `GOLDEN`, op.
_FILES = (
    ("csv", "runs.csv", "spmm:128"),
    ("jsonl", "runs.jsonl", ""),
    ("waco", "waco/SpMM/CollectedData/toy_4x16_1.txt", ""),
    ("cognate", "cognate.csv", "spmm:128"),
    ("cognate-mapped", "cognate_mapped.csv", "spmm:128"),
    ("ginkgo", "ginkgo/spmv_times.csv", ""),
    ("lcm", "lcm_spmm.csv", ""),
    ("lcm", "lcm_spmv.csv", ""),
    ("ra-spmm", "rtx9000_sweep.csv", ""),
    ("liteform", "liteform.csv", ""),
    ("morpheus", "toy-square_set-serial.csv", ""),
    ("kernel-tuner", "cache.json", "spmm:128"),
    ("t4", "t4.json", "spmm:128"),
    ("tvm", "tvm.json", ""),
    ("autotvm", "autotvm.log", ""),
    ("tpu-graphs", "tpu_graphs.npz", ""),
    ("embeddb", "export.jsonl", ""),
)
_OPS = {f"{reader} {name}": op for reader, name, op in _FILES}
_CPU = ("csv", "jsonl", "kernel-tuner", "t4", "embeddb")
IMPORT = "import"


def seeds() -> list[Case]:
    made = [Case(f"{r} {n}", (GOLDEN / n).read_bytes()) for r, n, _ in _FILES]
    export = (GOLDEN / "export.jsonl").read_bytes()
    made += [Case(f"{IMPORT} export.jsonl", export)] * 3
    made += [Case(f"{IMPORT} export.jsonl", export + line) for line in _LINES]
    made += [Case("t4 t4.json", _t4()), Case("kernel-tuner cache.json", _digits())]
    return made + [Case(f"{c.how}.gz", gzip.compress(c.data, mtime=0)) for c in made[::3]]


#: Records of an export that were seen to end a whole import.
_LINES = (
    b'["op",0,["spmm"]]\n',
    b'["pattern",7,"00000000000000000000000000000007",'
    + b"1"
    + b"0" * 26
    + b',1,1,"a","",false]\n',
    b'["platform",9,"x","x=' + b"1" * 5000 + b'",{}]\n',
    b'["platform",0,"\\u0000",[],{}]\n',
)


def _t4() -> bytes:
    text = (GOLDEN / "t4.json").read_text()
    start = text.find('"objectives"')
    end = text.find("]", start)
    return (text[:start] + '"objectives": 5' + text[end + 1 :]).encode() if start > 0 else b"{}"


def _digits() -> bytes:
    text = (GOLDEN / "cache.json").read_text()
    at = text.rfind(": ")
    return (text[: at + 2] + "1" * 5000 + text[at + 3 :]).encode()


def mutate(rng: random.Random, case: Case, seeds: Sequence[Case]) -> Case:
    others = [one.data for one in rng.sample(seeds, 2)]
    how, data = case.how, case.data
    if how.endswith(".gz"):
        data = mutated_gzip(rng, data, others)
    elif how.endswith((".json", ".jsonl")) and rng.random() < 0.6:
        data = mutated_json(rng, data, others)
    else:
        data = mutated(rng, data, others)
    if rng.random() < 0.3 and not how.startswith(IMPORT):
        how = "guess " + how.partition(" ")[2]
    return Case(how, data)


def prepare(scratch: Path) -> Any:
    from embeddb.platforms.platform import load_platform

    return load_platform("cpu")


def feed(case: Case, scratch: Path, state: Any) -> None:
    reader, _, name = case.how.partition(" ")
    path = scratch / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(case.data)
    if zlib.crc32(case.data) % 8 == 0:  # an unpacked archive may hold links
        rejects = path.with_name(path.name + ".rejects.jsonl")
        rejects.symlink_to(scratch.parent / "canary" / "thesis.tex")
    try:
        if reader == IMPORT:
            _import(path)
        else:
            _ingest(path, reader, state)
    finally:
        for left in path.parent.iterdir():
            if left.name.startswith(path.name):
                left.unlink()


def _import(path: Path) -> None:
    """In, checked, out and in again: what was taken is what everything else can read."""
    from embeddb.core.errors import NothingFound
    from embeddb.database import Database
    from indexer.exchange.exchange import export_file, import_file

    out = path.with_name(path.name + ".out.jsonl")
    with Database.in_memory() as db, Database.in_memory() as other:
        taken = import_file(db.index, path)
        assert db.store.problems() == [], f"an import left {db.store.problems()[:2]}"
        try:
            export_file(db.index, out)
        except NothingFound:
            return
        again = import_file(other.index, out)
        assert again.rejected == 0, f"what was exported is not taken back: {taken} {again}"


def _ingest(path: Path, reader: str, cpu: Any) -> None:
    from embeddb.core.config import Op
    from embeddb.store import memory_store
    from indexer.ingest import ingest
    from indexer.readers.base.row import ReadOptions

    known = next(
        (o for how, o in _OPS.items() if how.partition(" ")[2] == path.name.removesuffix(".gz")), ""
    )
    named = "m" if reader in ("kernel-tuner", "t4", "tvm") else ""
    options = ReadOptions(op=Op.parse(known) if known else None, matrix=named)
    store = memory_store()
    chosen = "" if reader == "guess" else reader
    ingest(store, path, reader=chosen, platform=cpu if reader in _CPU else None, options=options)
    assert store.problems() == []
    store.close()
