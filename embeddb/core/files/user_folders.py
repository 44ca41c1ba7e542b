"""Folders of the user by the XDG base directory specification."""

from __future__ import annotations

import os
from pathlib import Path


def user_folder(variable: str, usual: str) -> Path:
    """The folder for embeddb below the one that an XDG variable names, if that is absolute: the
    specification ignores others; else below `usual` in the home folder. Raises: RuntimeError
    without a home folder."""
    named = Path(os.environ.get(variable) or "")
    return (named if named.is_absolute() else Path.home() / usual) / "embeddb"
