"""The folder of a library in C: written whole, and only where nothing of others lies."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from embeddb.core.errors import UsageError
from embeddb.core.files.own_files import OwnFolder

__all__ = ["Manifest", "write_library"]

#: What tells a folder of ours, and its largest size.
MANIFEST, _MAX_BYTES = "embeddb.json", 1 << 16
_FORMAT = "embeddb-library-1"
_ENDINGS = (".c", ".h", ".hlo")


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a folder holds: configurations (as text) of an operation, names beginning with `prefix`;
    `answer` is the id of the answer they come from, empty if none, `files` what was written."""

    op: str
    configs: list[str]
    prefix: str
    answer: str = ""
    files: list[str] = []
    format: str = _FORMAT


def write_library(place: str | Path, contents: Mapping[str, str], manifest: Manifest) -> None:
    """Write files by name into a folder, which is made if it is not there. What an earlier library
    left there goes.

    Raises: UsageError for a folder that holds something else; OSError.
    """
    path = Path(place)
    before = _earlier(path)
    path.mkdir(exist_ok=True)
    folder = OwnFolder(path)
    # First the manifest: a folder that a kill left half is known as ours then.
    folder.write(MANIFEST, msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")
    for name in sorted(set(before) - set(contents)):
        if name.endswith(_ENDINGS):
            folder.remove(name)
    for name, text in contents.items():
        folder.write(name, text.encode())


def _earlier(path: Path) -> list[str]:
    """Files of a library that lies there. Raises: UsageError for something else."""
    if path.is_symlink() or not path.exists():
        if not path.is_symlink() and path.absolute().parent.is_dir():
            return []
        raise UsageError(f"{path}: there is no folder to make it in")
    if not path.is_dir():
        raise UsageError(f"{path}: a file, not a folder to write to")
    if not any(path.iterdir()):
        return []
    try:
        data = OwnFolder(path).read(MANIFEST, _MAX_BYTES)
        found = msgspec.json.decode(data, type=Manifest)
    except (OSError, ValueError, msgspec.MsgspecError):
        found = None
    if found is None or found.format != _FORMAT:
        raise UsageError(
            f"{path} holds something else than an emitted library", hint="give another folder"
        )
    return found.files
