"""Reading a stranger's matrix file in a process of its own: a few kilobytes can ask for minutes of
unpacking and gigabytes of memory, and only a process can be stopped whatever it does."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import NamedTuple

import anyio
import anyio.to_thread
import msgspec
import numpy as np

from embeddb.core.errors import MatrixError
from embeddb.core.files.safe_read import refusing
from embeddb.core.pattern import Pattern
from embeddb.core.thumbnail import thumbnail
from embeddb.featurizers.sizes import statistics
from embeddb.featurizers.stats import Stats
from embeddb.matrix_files import read_pattern

#: Seconds in which a file must have been read.
READ_S = 30.0
#: Address space for the interpreter and its libraries.
_OWN_BYTES = 1 << 30
#: Rows that any file may have; a larger one as many as it has bytes.
_FREE_ROWS = 1 << 20


class Upload(NamedTuple):
    """A matrix that came in a file, and its thumbnail."""

    pattern: Pattern
    thumbnail: bytes


class Limits(msgspec.Struct, frozen=True):
    """Of one file: entries, rows and columns of its matrix; bytes it may make us unpack, and bytes
    of memory."""

    entries: int
    rows: int
    columns: int
    unpacked_bytes: int
    memory_bytes: int

    @classmethod
    def of_upload(cls, most: int, size: int) -> Limits:
        """In proportion to `most`, the bytes that a file may have. The plainest text form takes
        four bytes for an entry; a packed file may hold more than that, but not without end. Rows,
        which the server's own memory holds even where they are empty, in proportion to `size`,
        the bytes that it has."""
        rows = min(most // 2, max(_FREE_ROWS, size))
        return cls(most // 2, rows, most // 2, 16 * most, _OWN_BYTES + 32 * most)


class _Failed(msgspec.Struct):
    reason: str
    line: int | None
    hint: str


async def read_apart(path: Path, name: str, limits: Limits) -> Upload:
    """The matrix of a file, under `name`; its features can be computed within the limits, too.
    Writes beside the file.

    Raises: MatrixError without a place, also where it takes too much memory; TimeoutError where it
    takes more than `READ_S`. However this ends, the process has ended too.
    """
    out = path.with_name("pattern.npz")
    asked = msgspec.json.encode((str(path), str(out), limits)).decode()
    # -P: nothing of the folder the server was started in is imported.
    command = [sys.executable, "-P", "-m", "embeddb.ui.serve.reading", asked]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    with anyio.fail_after(READ_S):
        ended, told = await _ended(command, environment)
    if ended == 0:
        return await anyio.to_thread.run_sync(partial(_loaded, out, name))
    if ended < 0:  # by a signal: the kernel's, where memory ran out
        raise MatrixError("it could not be read in the memory that one file may take")
    try:
        failed = msgspec.json.decode(told, type=_Failed)
    except msgspec.MsgspecError:  # it ended before it could tell
        raise MatrixError("it could not be read") from None
    raise MatrixError(failed.reason, line=failed.line, hint=failed.hint)


async def _ended(command: list[str], environment: dict[str, str]) -> tuple[int, bytes]:
    """Exit status and stdout of a process; it is killed where this is cancelled."""
    started = await anyio.open_process(
        command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    )
    async with started as process:
        assert process.stdout is not None
        try:
            told = b"".join([part async for part in process.stdout])
            return await process.wait(), told
        finally:
            # Closing would wait for it: the end of the server cancels only once.
            if process.returncode is None:
                process.kill()


def _loaded(out: Path, name: str) -> Upload:
    with np.load(out, allow_pickle=False) as held:
        m, n = (int(x) for x in held["shape"])
        pattern = Pattern.from_csr((m, n), held["indptr"], held["indices"], name=name, group=name)
        return Upload(pattern, held["thumbnail"].tobytes())


def _main(asked: str) -> int:
    path, out, limits = msgspec.json.decode(asked, type=tuple[str, str, Limits])
    resource.setrlimit(resource.RLIMIT_AS, (limits.memory_bytes, limits.memory_bytes))
    try:
        with refusing(MatrixError):
            _read(path, out, limits)
    except MatrixError as e:
        sys.stdout.buffer.write(msgspec.json.encode(_Failed(e.reason, e.line, e.hint)))
        return 1
    return 0


def _read(path: str, out: str, limits: Limits) -> None:
    """Raises: MatrixError, and whatever features and thumbnail raise."""
    found = read_pattern(path, max_nnz=limits.entries, max_bytes=limits.unpacked_bytes)
    (m, n), more = found.shape, "is more than the"
    if m > limits.rows:
        raise MatrixError(f"{m} x {n} {more} {limits.rows} rows that a file of its size may have")
    if n > limits.columns:
        raise MatrixError(f"{m} x {n} {more} {limits.columns} columns taken")
    Stats().embed(found)  # what takes the server too long or too much shall end here
    statistics(found)
    picture = np.frombuffer(thumbnail(found), np.uint8)
    np.savez(out, shape=found.shape, indptr=found.indptr, indices=found.indices, thumbnail=picture)


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1]))
