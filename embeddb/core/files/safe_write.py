"""Writing files that belong to embeddb, in folders that others may have created.

A folder that was unpacked, cloned or shared may contain links in place of our files. Functions here
never follow one: not in the last part of a path, and in an `OwnFolder` not anywhere below its root.
So nothing outside a database, a campaign or the folder of a run log is written, truncated or
removed.
"""

from __future__ import annotations

import errno
import os
import stat
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, cast

from embeddb.core.errors import UsageError

#: Flags of `os.open` by the mode of `open`, beside those that refuse links.
_MODES = {
    "rb": os.O_RDONLY,
    "ab": os.O_WRONLY | os.O_APPEND | os.O_CREAT,
    "a+b": os.O_RDWR | os.O_APPEND | os.O_CREAT,
    "r+b": os.O_RDWR,
    "wb": os.O_WRONLY | os.O_CREAT,
}
_SAFE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def open_own(path: str | Path, mode: str, *, folder: int | None = None) -> BinaryIO:
    """Open a file of embeddb's own in mode "rb", "ab", "a+b", "r+b" or "wb"; in the open `folder`
    if that is given. Raises: OSError, also for a link (symbolic, or hard and to be written to) and
    for anything but a regular file; the file is then unchanged."""
    try:
        fd = os.open(path, _MODES[mode] | _SAFE, 0o666, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "a link where a file of ours would be", str(path)) from None
        raise
    try:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        if mode != "rb" and about.st_nlink > 1:
            raise OSError(errno.EMLINK, "a link where a file of ours would be", str(path))
        if mode == "wb":
            os.ftruncate(fd, 0)
        return cast(BinaryIO, os.fdopen(fd, mode))
    except BaseException:
        os.close(fd)
        raise


@contextmanager
def whole_file(path: str | Path, *, folder: int | None = None) -> Iterator[BinaryIO]:
    """Write a file that takes its name when it is complete and on the disk; if the block raises, or
    the process is killed, the file of that name before stays. A link of that name is replaced, not
    followed. Raises: OSError."""
    target = Path(path)
    part = target.with_name(_part_name(target.name, uuid.uuid4().hex[:8]))

    def publish() -> None:
        os.replace(part, target, src_dir_fd=folder, dst_dir_fd=folder)

    with _naming(target):
        with _part_file(part, folder, publish) as out:
            yield out
        if folder is None:
            sync(target.parent)
        else:
            os.fsync(folder)


def _part_name(name: str, mark: str) -> str:
    """A temporary name for a file, of at most 255 bytes: a character has up to four."""
    return f".{name[:45]}.{mark}.part"


@contextmanager
def _part_file(
    part: str | Path, folder: int | None, publish: Callable[[], object]
) -> Iterator[BinaryIO]:
    """Create a file under a temporary name, which `publish` gives its name once it is on the disk;
    the temporary name is removed in any case."""
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE, 0o666, dir_fd=folder)
    try:
        with os.fdopen(fd, "wb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        publish()
    finally:
        with suppress(OSError):
            os.unlink(part, dir_fd=folder)


def check_place(file: Path) -> None:
    """Check that a file named by the user can be written, before its content is computed. Raises:
    UsageError for a missing parent folder, and for a folder in place of the file."""
    if not file.parent.is_dir():
        raise UsageError(f"{file}: the folder {file.parent} does not exist")
    if file.is_dir():
        raise UsageError(f"{file}: is a folder, not a file to write")


def own_size(path: str | Path, *, hard: bool = False) -> int | None:
    """Size in bytes of a file of our own that another library will open; None if it does not exist.
    A file that is only read may have further hard links (`hard`): backups are made that way.
    Raises: OSError for a link and for anything but a regular file."""
    try:
        about = Path(path).lstat()
    except FileNotFoundError:
        return None
    linked = stat.S_ISREG(about.st_mode) and about.st_nlink > 1 and not hard
    if linked or stat.S_ISLNK(about.st_mode):
        raise OSError(errno.ELOOP, "a link where a file of ours would be", str(path))
    if not stat.S_ISREG(about.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return about.st_size


def drop_torn_line(file: BinaryIO) -> None:
    """Truncate a file after its last line end: a killed process may leave half a line. The file is
    open for reading and writing."""
    file.seek(0)
    raw = file.read()
    whole = raw.rfind(b"\n") + 1
    if whole < len(raw):
        file.truncate(whole)
    file.seek(0, os.SEEK_END)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Add the path to an OSError: that of a full disk or of a name in an open folder has none, and
    the temporary name is no user's."""
    try:
        yield
    except OSError as error:
        name = str(error.filename or "")
        if ("/" not in name or name.endswith(".part")) and error.errno is not None:
            error.filename = str(path)
        raise


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class OwnFolder:
    """A folder in which only embeddb writes: `OwnFolder(database, "index")`.

    `root` comes from the user and may be reached through links; the parts below it, and the files
    in it, may not be links. Files are named by their plain names.
    """

    def __init__(self, root: str | Path, *parts: str) -> None:
        self._root, self._parts = Path(root), tuple(map(_plain, parts))
        self.path = self._root.joinpath(*self._parts)

    @contextmanager
    def opened(self, *, make: bool = False) -> Iterator[int]:
        """Open the folder and yield its descriptor. Raises: OSError, also where a part is a link or
        no folder."""
        fd = os.open(self._root, _FOLDER)
        try:
            for part in self._parts:
                below = self._below(fd, part, make=make)
                os.close(fd)
                fd = below
            yield fd
        finally:
            os.close(fd)

    def _below(self, fd: int, part: str, *, make: bool) -> int:
        if make:
            with suppress(FileExistsError):
                os.mkdir(part, dir_fd=fd)
        try:
            return os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=fd)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                reason = "a link or file where a folder of ours would be"
                raise OSError(error.errno, reason, str(self.path)) from None
            raise

    def make(self) -> None:
        """Create the parts below the root where they are missing. Raises: OSError."""
        with self.opened(make=True):
            pass

    @contextmanager
    def open(self, name: str, mode: str) -> Iterator[BinaryIO]:
        """Open a file in the folder, as `open_own`. Raises: OSError."""
        place = self.path / _plain(name)
        with _naming(place), self.opened() as folder, open_own(name, mode, folder=folder) as file:
            yield file

    def read(self, name: str, most: int) -> bytes:
        """Content of a file of at most `most` bytes. Raises: OSError, also for a larger one."""
        with self.open(name, "rb") as file:
            data = file.read(most + 1)
        if len(data) > most:
            raise OSError(errno.EFBIG, f"larger than {most} bytes", str(self.path / name))
        return data

    def write(self, name: str, data: bytes) -> None:
        """Write a file as `whole_file`; creates the folder. Raises: OSError."""
        with self.whole(name) as out:
            out.write(data)

    @contextmanager
    def whole(self, name: str) -> Iterator[BinaryIO]:
        """Write a file in the folder as `whole_file`; creates the folder. Raises: OSError."""
        place = self.path / _plain(name)
        with (
            _naming(place),
            self.opened(make=True) as folder,
            whole_file(name, folder=folder) as out,
        ):
            yield out

    def files(self) -> list[str]:
        """Names of the regular files, sorted; empty where the folder does not exist."""
        try:
            with self.opened() as folder, os.scandir(folder) as entries:
                return sorted(
                    entry.name for entry in entries if entry.is_file(follow_symlinks=False)
                )
        except OSError:
            return []

    def remove(self, name: str) -> None:
        """Remove a file, or the link in its place, if it is there. Raises: OSError."""
        place = self.path / _plain(name)
        with _naming(place), self.opened() as folder, suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)


def _plain(name: str) -> str:
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise OSError(errno.EINVAL, "not a plain file name", name)
    return name


def write_new(folder: OwnFolder, name: str, data: bytes) -> bool:
    """Create a file in the folder, which is created too; return False if the name is taken, and
    leave that file as it is. The file appears whole or not at all, and the first of several writers
    wins, on one machine or on many that share the disk.

    Raises: OSError that names the file, also on a file system without hard links.
    """
    part = _part_name(name, uuid.uuid4().hex)
    won: list[bool] = []
    try:
        with folder.opened(make=True) as where:
            with _part_file(part, where, lambda: won.append(_linked(part, name, where))) as out:
                out.write(data)
            os.fsync(where)
    except OSError as error:
        if error.errno is not None:
            error.filename, error.filename2 = str(folder.path / name), None
        raise
    return won[0]


def _linked(part: str, name: str, where: int) -> bool:
    try:
        os.link(part, name, src_dir_fd=where, dst_dir_fd=where, follow_symlinks=False)
    except FileExistsError:
        # On a network file system the reply to a successful link may be lost and the request
        # repeated; the number of links shows whose file it is.
        return os.stat(part, dir_fd=where, follow_symlinks=False).st_nlink > 1
    return True
