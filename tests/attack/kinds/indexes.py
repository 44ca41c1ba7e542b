"""Saved index files, and notes that carry the checksum of whatever lies there."""

from __future__ import annotations

import hashlib
import io
import json
import random
import zipfile
import zlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from attack import database
from attack.case import Case
from attack.mutate import mutated, mutated_json

_VERBS = ("query", "name", "check", "stat", "report")


@cache
def _saved() -> dict[str, bytes]:
    """The file and the note of one partition."""
    from embeddb.database import Database

    folder = database.base()
    with Database.open(folder) as db:
        raw = db.store.notes.items("partition/")
    note = next(value for key, value in sorted(raw.items()) if "tiny" in key)
    stem = json.loads(note)["stem"]
    return {"npz": (folder / "index" / f"{stem}.npz").read_bytes(), "note": note}


def seeds() -> list[Case]:
    return [Case(f"{what} {verb}", data) for what, data in _saved().items() for verb in _VERBS]


def mutate(rng: random.Random, case: Case, seeds: Sequence[Case]) -> Case:
    what, _ = case.how.split()
    if what == "note":
        data = mutated_json(rng, case.data)
    elif what == "npz" and rng.random() < 0.8:
        data = _archive(rng, case.data)
    else:
        data = mutated(rng, case.data, [one.data for one in rng.sample(seeds, 2)])
    return Case(f"{what} {rng.choice(_VERBS)}", data)


def _archive(rng: random.Random, data: bytes) -> bytes:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
    except (zipfile.BadZipFile, OSError, zlib.error, ValueError):
        return mutated(rng, data)
    chosen = rng.choice(sorted(members))
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as made:
        for name, body in members.items():
            if name != chosen or rng.random() < 0.95:
                made.writestr(name, mutated(rng, body) if name == chosen else body)
    return out.getvalue()


def prepare(scratch: Path) -> Any:
    return database.base()


def feed(case: Case, scratch: Path, state: Any) -> None:
    what, verb = case.how.split()
    folder = database.with_copy(state, scratch / "in.db")
    forge(folder, what, case.data)
    code, told = database.asked(verb, folder, scratch)
    assert code == 0 or verb == "check", f"an index is derived: it can be rebuilt ({told.strip()})"


def forge(folder: Path, what: str, data: bytes) -> None:
    """Put the bytes in place of the file, and its checksum into the note."""
    from embeddb.database import Database

    with Database.open(folder) as db:
        notes = db.store.notes.items("partition/")
        name, raw = next((k, v) for k, v in sorted(notes.items()) if "tiny" in k)
        if what == "note":
            db.store.notes.put(name, data)
            return
        note = json.loads(raw)
        path = folder / "index" / f"{note['stem']}.npz"
        path.unlink()
        path.write_bytes(data)
        note["npz"] = hashlib.blake2b(data, digest_size=16).hexdigest()
        db.store.notes.put(name, json.dumps(note).encode())
