"""Reading an untrusted matrix file in a separate process: a few kilobytes can unpack for minutes
and need gigabytes of memory, and only a process can always be stopped."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from functools import partial
from pathlib import Path

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

#: Time limit of reading a file, in seconds.
READ_S = 30.0
#: Address space for the interpreter and its libraries.
_OWN_BYTES = 1 << 30
#: Rows allowed in any file; a larger file may have as many rows as bytes.
_FREE_ROWS = 1 << 20


class Limits(msgspec.Struct, frozen=True):
    """Limits of one file: entries, rows and columns of its matrix; unpacked bytes, and bytes of
    memory."""

    entries: int
    rows: int
    columns: int
    unpacked_bytes: int
    memory_bytes: int

    @classmethod
    def of_upload(cls, most: int, size: int) -> Limits:
        """Limits proportional to `most`, the largest file in bytes: the shortest text entry takes
        four bytes, and compression has a bounded ratio. Rows, which take memory even if empty, are
        limited in proportion to `size`, the bytes of this file."""
        rows = min(most // 2, max(_FREE_ROWS, size))
        return cls(most // 2, rows, most // 2, 16 * most, _OWN_BYTES + 32 * most)


async def read_apart(path: Path, name: str, limits: Limits) -> tuple[Pattern, bytes]:
    """Read the matrix of a file, named `name`; its features are computed within the limits, too;
    return it and its thumbnail. Writes beside the file. In every case, the process has ended
    afterwards.

    Raises: MatrixError without a place, also if it takes too much memory; TimeoutError after
    `READ_S`.
    """
    out = path.with_name("pattern.npz")
    arguments = msgspec.json.encode((str(path), str(out), limits)).decode()
    # -P: nothing of the folder the server was started in is imported.
    command = [sys.executable, "-P", "-m", "embeddb.ui.serve.reading", arguments]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    with anyio.fail_after(READ_S):
        ended, output = await _ended(command, environment)
    if ended == 0:
        return await anyio.to_thread.run_sync(partial(_loaded, out, name))
    if ended < 0:  # by a signal: the kernel's, if memory ran out
        raise MatrixError("reading it exceeds the memory limit of one file")
    try:
        reason, line, hint = msgspec.json.decode(output, type=tuple[str, int | None, str])
    except msgspec.MsgspecError:  # it ended before it reported
        raise MatrixError("it could not be read") from None
    raise MatrixError(reason, line=line, hint=hint)


async def _ended(command: list[str], environment: dict[str, str]) -> tuple[int, bytes]:
    """Exit status and stdout of a process; it is killed on cancellation."""
    # Not a process of the event loop: the loop may end before the process does, and cancels more
    # than once.
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
    ) as process:
        try:
            output, _ = await anyio.to_thread.run_sync(process.communicate, abandon_on_cancel=True)
        finally:
            process.kill()
    return process.returncode, output


def _loaded(out: Path, name: str) -> tuple[Pattern, bytes]:
    with np.load(out, allow_pickle=False) as arrays:
        m, n = (int(x) for x in arrays["shape"])
        pattern = Pattern.from_csr(
            (m, n), arrays["indptr"], arrays["indices"], name=name, group=name
        )
        return pattern, arrays["thumbnail"].tobytes()


def _main(arguments: str) -> int:
    path, out, limits = msgspec.json.decode(arguments, type=tuple[str, str, Limits])
    resource.setrlimit(resource.RLIMIT_AS, (limits.memory_bytes, limits.memory_bytes))
    try:
        with refusing(MatrixError):
            _read(path, out, limits)
    except MatrixError as e:
        sys.stdout.buffer.write(msgspec.json.encode((e.reason, e.line, e.hint)))
        return 1
    return 0


def _read(path: str, out: str, limits: Limits) -> None:
    """Read a file and store its matrix. Raises: MatrixError; as features and thumbnail."""
    pattern = read_pattern(path, max_nnz=limits.entries, max_bytes=limits.unpacked_bytes)
    (m, n), more = pattern.shape, "is more than the"
    if m > limits.rows:
        raise MatrixError(f"{m} x {n} {more} {limits.rows} rows that a file of its size may have")
    if n > limits.columns:
        raise MatrixError(f"{m} x {n} {more} {limits.columns} columns taken")
    Stats().embed(pattern)  # fail here, not in the server, if this takes too long
    statistics(pattern)
    picture = np.frombuffer(thumbnail(pattern), np.uint8)
    np.savez(
        out, shape=pattern.shape, indptr=pattern.indptr, indices=pattern.indices, thumbnail=picture
    )


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1]))
