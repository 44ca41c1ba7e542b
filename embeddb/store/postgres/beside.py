"""What lies beside a database on a server: index files and models, in a folder of this user's.

All of it can be removed at any time: indexes are made again, and models that the database knows are
fetched again.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path

__all__ = ["folder_beside"]


def folder_beside(database: str) -> Path | None:
    """The folder for what is derived from a database of that id, made if need be; None where there
    can be none: indexes then live as long as the process."""
    try:
        name = str(uuid.UUID(database))  # it is the server's word, and becomes a path
        folder = _home() / "servers" / name
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except (ValueError, OSError, RuntimeError):
        return None
    return folder


def _home() -> Path:
    own = os.environ.get("EMBEDDB_HOME")
    if own:
        return Path(own)
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "embeddb"
