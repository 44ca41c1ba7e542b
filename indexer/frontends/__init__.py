"""Programs of others as loop nests: nest files, C with `#pragma scop`, `.sdfg` files of DaCe."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from embeddb.core.errors import NestError
from embeddb.core.gate import read_bounded, refusing
from embeddb.nests.nest import Nest
from embeddb.nests.nest_text import nest_from_text
from indexer.frontends.c.scop import c_program
from indexer.frontends.dace.sdfg import sdfg_program
from indexer.frontends.distribute import nests_of
from indexer.frontends.tree import Extraction

__all__ = ["extract", "read_nests"]

_MOST_BYTES = {".json": 16 << 20, ".c": 1 << 20, ".sdfg": 64 << 20}
_MOST_NESTS = 10_000


def read_nests(path: str | Path, *, defines: Mapping[str, int | float] | None = None) -> list[Nest]:
    """The nests of a file: `.json` (one nest or a list of them), `.c`, `.sdfg`.

    `defines` are values of macros, parameters and symbols that the file leaves open, or gives.
    Raises: NestError, one line that names the file.
    """
    return list(extract(path, defines=defines).nests)


def extract(path: str | Path, *, defines: Mapping[str, int | float] | None = None) -> Extraction:
    """As `read_nests`, with what was left out or cut off.

    Raises: NestError.
    """
    path = Path(path)
    with refusing(NestError, where=str(path)):
        suffix = path.suffix.lower()
        if suffix not in _MOST_BYTES:
            raise NestError(f"a program is one of {', '.join(_MOST_BYTES)}, not {suffix or path}")
        data = read_bounded(path, _MOST_BYTES[suffix])
        if suffix == ".c":
            return nests_of(c_program(data.decode(), name=path.stem, defines=defines))
        if suffix == ".sdfg":
            program, notes = sdfg_program(data, name=path.stem, defines=defines)
            return nests_of(program, notes)
        return _nests_of_json(data)


def _nests_of_json(data: bytes) -> Extraction:
    told = json.loads(data)
    told = told if isinstance(told, list) else [told]
    if len(told) > _MOST_NESTS:
        raise NestError(f"{len(told)} nests, at most {_MOST_NESTS} are read")
    return Extraction(tuple(nest_from_text(json.dumps(one)) for one in told))
