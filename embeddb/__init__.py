"""embeddb: which configuration should run this sparse kernel, how sure is that, and why.

import embeddb

answer = embeddb.query(A, op="spmm:64")  # a scipy or torch matrix, or a file: the starter answers
with embeddb.open("runs.db") as db:
    answer = db.query("A.mtx", platform="cpu", op="spmm:64")
"""

from __future__ import annotations

from importlib import import_module
from math import inf
from typing import TYPE_CHECKING, Any

from embeddb.core import __version__
from embeddb.core.repr_html import set_html_renderer

if TYPE_CHECKING:
    from pathlib import Path

    from embeddb.core.config import Config, Op
    from embeddb.core.errors import EmbeddbError
    from embeddb.core.pattern import Pattern
    from embeddb.core.records import Measurement, Run, WorkloadInfo
    from embeddb.database import Database
    from embeddb.handle.compile import compile
    from embeddb.matrix_files import read_pattern
    from embeddb.platforms.platform import Platform, load_platform
    from embeddb.ranking.recommendation import Recommendation
    from indexer.resolve import WorkloadLike

__all__ = [
    "Config",
    "Database",
    "EmbeddbError",
    "Measurement",
    "Op",
    "Pattern",
    "Platform",
    "Recommendation",
    "Run",
    "WorkloadInfo",
    "__version__",
    "compile",
    "load_platform",
    "open",
    "query",
    "read_pattern",
]

#: Fetched on first use, so that the command line begins at once: see `embeddb.ui.cli.entry`.
_LAZY = {
    "Config": "embeddb.core.config",
    "Database": "embeddb.database",
    "EmbeddbError": "embeddb.core.errors",
    "Measurement": "embeddb.core.records",
    "Op": "embeddb.core.config",
    "Pattern": "embeddb.core.pattern",
    "Platform": "embeddb.platforms.platform",
    "Recommendation": "embeddb.ranking.recommendation",
    "Run": "embeddb.core.records",
    "WorkloadInfo": "embeddb.core.records",
    "compile": "embeddb.handle.compile",
    "load_platform": "embeddb.platforms.platform",
    "read_pattern": "embeddb.matrix_files",
}


def open(path: str | Path, *, readonly: bool = False) -> Database:
    """Open a database folder, or the shipped database under the name `starter`, which is imported
    on first use and takes half a minute (a folder of that name is `./starter`).

    Raises: StoreError if there is none; InputError if the shipped data is absent.
    """
    from embeddb.database import open_database

    return open_database(path, readonly=readonly)


def query(
    matrix: WorkloadLike,
    *,
    op: str | Op,
    platform: str | Platform = "cpu",
    db: str | Path = "starter",
    k: int = 5,
    measure: bool = False,
    calls: float = inf,
    why: bool = False,
    reproducible: bool = False,
    exact: bool = False,
) -> Recommendation:
    """Answer one question, from the shipped database unless `db` names a folder: `embeddb.query(A,
    op="spmm:64").candidates[0].config`. `matrix` is a sparse matrix of scipy or torch, a file, or
    the name of a stored one. The other parameters are those of `Database.query`; open the database
    once with `open` to answer several questions.

    Raises: as `open` and `Database.query`.
    """
    with open(db) as opened:
        return opened.query(
            matrix,
            platform=platform,
            op=op,
            k=k,
            measure=measure,
            calls=calls,
            why=why,
            reproducible=reproducible,
            exact=exact,
        )


def _html(thing: object) -> str:
    from embeddb.ui.notebook import html_of

    return html_of(thing)


set_html_renderer(_html)


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'embeddb' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
