"""`.sdfg` files: JSON that DaCe writes, read without DaCe."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from embeddb.core.errors import NestError
from embeddb.nests.parts import Const
from indexer.frontends.dace.containers import Containers
from indexer.frontends.dace.control import program_nodes
from indexer.frontends.dace.data import Place, Registry
from indexer.frontends.tree import Program, Scope

#: Most lists and objects in a file: they need many times the memory of their text.
_MOST_PARTS = 3_000_000
#: Unused properties, which make up most of a file.
_LEFT_OUT = {"debuginfo", "orig_sdfg", "transformation_hist", "symbol_instrument_condition"}


def sdfg_program(
    data: bytes, *, name: str, defines: Mapping[str, int | float] | None = None
) -> tuple[Program, list[str]]:
    """The program of a file, and one line for each part that could not be read. `defines` are
    values of symbols, which override the file's own constants.

    Raises: NestError.
    """
    if data.count(b"{") + data.count(b"[") > _MOST_PARTS:
        raise NestError(f"has more than {_MOST_PARTS} parts")
    document = json.loads(data, object_pairs_hook=_without_unused)
    if not isinstance(document, dict) or document.get("type") != "SDFG":
        raise NestError('is no SDFG: it needs "type": "SDFG"')
    attributes = document.get("attributes")
    described = attributes.get("_arrays") if isinstance(attributes, dict) else None
    if not isinstance(attributes, dict) or not isinstance(described, dict):
        raise NestError("has no arrays")
    registry = Registry()
    scope = Scope(registry.arrays)
    constants = _constants(attributes.get("constants_prop"))
    scope.names.update(
        {symbol: Const(value) for symbol, value in {**constants, **(defines or {})}.items()}
    )
    body = program_nodes(document, Place(registry, Containers(described, {}), scope))
    program = Program(
        name,
        tuple(registry.arrays),
        tuple(registry.names),
        tuple(body),
        frozenset(registry.local),
        strict=False,
    )
    return program, registry.notes


def _without_unused(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value for name, value in pairs if name not in _LEFT_OUT}


def _constants(properties: Any) -> dict[str, int | float]:
    """Numbers among the constants, which are [type, value]."""
    constants: dict[str, int | float] = {}
    for name, pair in properties.items() if isinstance(properties, dict) else ():
        match pair:
            case [_, int(value) | float(value)] if not isinstance(value, bool):
                constants[name] = value
    return constants
