"""`.sdfg` files: JSON that DaCe writes, read without DaCe."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from embeddb.core.errors import NestError
from embeddb.nests.parts import Const
from indexer.frontends.dace.containers import Containers
from indexer.frontends.dace.control import program_nodes
from indexer.frontends.dace.data import Registry
from indexer.frontends.dace.place import Place
from indexer.frontends.tree import Program, Scope

#: Lists and objects in a file: what they need of memory is many times their text.
_MOST_PARTS = 3_000_000
#: Of no use here, and most of a file.
_LEFT_OUT = {"debuginfo", "orig_sdfg", "transformation_hist", "symbol_instrument_condition"}


def sdfg_program(
    data: bytes, *, name: str, defines: Mapping[str, int | float] | None = None
) -> tuple[Program, list[str]]:
    """The program of a file, and what of it could not be read, one line each. `defines` are values
    of symbols, which win over the file's own constants.

    Raises: NestError.
    """
    if data.count(b"{") + data.count(b"[") > _MOST_PARTS:
        raise NestError(f"has more than {_MOST_PARTS} parts")
    told = json.loads(data, object_pairs_hook=_kept)
    if not isinstance(told, dict) or told.get("type") != "SDFG":
        raise NestError('is no SDFG: it needs "type": "SDFG"')
    attributes = told.get("attributes")
    described = attributes.get("_arrays") if isinstance(attributes, dict) else None
    if not isinstance(attributes, dict) or not isinstance(described, dict):
        raise NestError("has no arrays")
    registry = Registry()
    scope = Scope(registry.arrays)
    constants = _constants(attributes.get("constants_prop"))
    scope.names.update(
        {symbol: Const(value) for symbol, value in {**constants, **(defines or {})}.items()}
    )
    body = program_nodes(told, Place(registry, Containers(described, {}), scope))
    program = Program(
        name,
        tuple(registry.arrays),
        tuple(registry.names),
        tuple(body),
        frozenset(registry.local),
        strict=False,
    )
    return program, registry.notes


def _kept(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value for name, value in pairs if name not in _LEFT_OUT}


def _constants(told: Any) -> dict[str, int | float]:
    """Numbers among the constants, which are [type, value]."""
    found: dict[str, int | float] = {}
    for name, pair in told.items() if isinstance(told, dict) else ():
        match pair:
            case [_, int(value) | float(value)] if not isinstance(value, bool):
                found[name] = value
    return found
