"""embeddb: which configuration should run this sparse kernel, how sure is that, and why.

import embeddb

with embeddb.open("runs.db") as db:
    pattern = embeddb.read_pattern("A.mtx")
    answer = db.query(pattern, platform="cpu", op="spmm:64")
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from embeddb.core import __version__
from embeddb.core.config import Config, Op
from embeddb.core.errors import EmbeddbError
from embeddb.core.moved import install
from embeddb.core.pattern import Pattern
from embeddb.core.records import Measurement, PatternInfo, Run
from embeddb.core.shown import draw_with

if TYPE_CHECKING:
    from pathlib import Path

    from embeddb.database import Database
    from embeddb.handle.compile import compile
    from embeddb.matrix_files import read_pattern
    from embeddb.platforms.platform import Platform, load_platform

__all__ = [
    "Config",
    "Database",
    "EmbeddbError",
    "Measurement",
    "Op",
    "Pattern",
    "PatternInfo",
    "Platform",
    "Run",
    "__version__",
    "compile",
    "load_platform",
    "open",
    "read_pattern",
]

install()

#: Names that cost more than numpy to import; fetched on first use.
_LAZY = {
    "Database": "embeddb.database",
    "Platform": "embeddb.platforms.platform",
    "compile": "embeddb.handle.compile",
    "load_platform": "embeddb.platforms.platform",
    "read_pattern": "embeddb.matrix_files",
}


def open(path: str | Path, *, readonly: bool = False) -> Database:
    """Open a database folder, or the shipped database by the word `starter`; imported on first use,
    which takes half a minute (a folder of that name is `./starter`).

    Raises: StoreError if there is none; InputError if the shipped data is absent.
    """
    from embeddb.database import open_database

    return open_database(path, readonly=readonly)


def _drawn(thing: object) -> str:
    from embeddb.ui.notebook import html_of

    return html_of(thing)


draw_with(_drawn)


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'embeddb' has no attribute {name!r}")
