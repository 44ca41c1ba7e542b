"""Reading a stranger's matrix file in a process of its own: a few kilobytes can ask for minutes of
unpacking and gigabytes of memory, and only a process can be stopped whatever it does."""

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
from embeddb.core.pattern import Pattern
from embeddb.matrix_files import read_pattern

__all__ = ["Limits", "read_apart"]

#: Seconds in which a file must have been read.
READ_S = 30.0
#: Address space for the interpreter and its libraries.
_OWN_BYTES = 1 << 30


class Limits(msgspec.Struct, frozen=True):
    """Of one file: entries, and rows or columns, of its matrix; bytes it may make us unpack, and
    bytes of memory."""

    entries: int
    side: int
    unpacked_bytes: int
    memory_bytes: int

    @classmethod
    def of_upload(cls, most: int) -> Limits:
        """In proportion to `most`, the bytes that a file may have. The plainest text form takes
        four bytes for an entry; a packed file may hold more than that, but not without end."""
        return cls(most // 2, most // 2, 16 * most, _OWN_BYTES + 32 * most)


class _Failed(msgspec.Struct):
    reason: str
    line: int | None
    hint: str


async def read_apart(path: Path, name: str, limits: Limits) -> Pattern:
    """The matrix of a file, under `name`. Writes beside the file.

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
    failed = msgspec.json.decode(told, type=_Failed)
    raise MatrixError(failed.reason, line=failed.line, hint=failed.hint)


async def _ended(command: list[str], environment: dict[str, str]) -> tuple[int, bytes]:
    """Exit status and stdout of a process; it is killed where this is cancelled."""
    started = await anyio.open_process(
        command, stdin=subprocess.DEVNULL, stderr=None, env=environment
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


def _loaded(out: Path, name: str) -> Pattern:
    with np.load(out, allow_pickle=False) as held:
        m, n = (int(x) for x in held["shape"])
        return Pattern.from_csr((m, n), held["indptr"], held["indices"], name=name, group=name)


def _main(asked: str) -> int:
    path, out, limits = msgspec.json.decode(asked, type=tuple[str, str, Limits])
    resource.setrlimit(resource.RLIMIT_AS, (limits.memory_bytes, limits.memory_bytes))
    try:
        found = read_pattern(path, max_nnz=limits.entries, max_bytes=limits.unpacked_bytes)
        if max(found.shape) > limits.side:
            m, n = found.shape
            raise MatrixError(f"{m} x {n} is more than the {limits.side} rows or columns taken")
    except (MatrixError, MemoryError) as e:
        told = e if isinstance(e, MatrixError) else MatrixError("it does not fit into memory")
        failed = _Failed(told.reason, told.line, told.hint)
        sys.stdout.buffer.write(msgspec.json.encode(failed))
        return 1
    np.savez(out, shape=found.shape, indptr=found.indptr, indices=found.indices)
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1]))
