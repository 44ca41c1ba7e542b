"""The evidence of answers, and a key of it for those that are remembered."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from embeddb.core import __version__
from embeddb.store.model_files import MODELS

#: Raised with every change of how metric, policy and guard are fitted: saved ones are refitted.
FIT_VERSION = "12"
#: Raised where the same evidence and fits give other answers, by ranking or by models that queries
#: learn.
_RANKING_VERSION = "5"


def evidence_key(generation: int, folder: Path | None) -> str:
    """Text that changes with what answers depend on beside their question: runs and vectors
    (`generation` of the store), the model files of the database's folder, and the code. Models that
    queries learned follow from the runs."""
    models = [] if folder is None else _models(folder / MODELS)
    return repr((generation, models, FIT_VERSION, _RANKING_VERSION, __version__))


def _models(folder: Path) -> list[tuple[str, int, int]]:
    """Name, time and size of each file, as of those that are read again once they change."""
    stamps = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):  # removed since, or a link to nothing
                about = entry.stat()
                stamps.append((entry.name, about.st_mtime_ns, about.st_size))
    return sorted(stamps)
