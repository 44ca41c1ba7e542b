"""The private folder of a program, and the matrix in it: written whole, or said not to be."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from embeddb.core.errors import RunnerUnavailable
from indexer.runners.machine import AGAIN

if TYPE_CHECKING:
    from embeddb.core.config import Op
    from embeddb.core.pattern import Pattern
    from embeddb.platforms.command import CommandSpec

__all__ = ["scratch_folder", "write_matrix"]


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A private folder. Raises: RunnerUnavailable if none can be made."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="embeddb-", ignore_cleanup_errors=True)
    except OSError as error:
        raise _unwritten(error) from None
    with folder as text:
        yield Path(text)


def write_matrix(pattern: Pattern, path: Path, spec: CommandSpec, op: Op, seed: int) -> None:
    """Write a pattern as a file with values, in the form that a command asks for.

    Raises: RunnerUnavailable if it cannot be written whole.
    """
    try:
        with path.open("wb") as out:
            _write(pattern, out, spec, op, seed)
        path.chmod(0o400)  # every configuration is to see the same file
    except OSError as error:
        raise _unwritten(error) from None


def _write(pattern: Pattern, out: BinaryIO, spec: CommandSpec, op: Op, seed: int) -> None:
    """`smtx` has no values. Raises: OSError."""
    if spec.matrix == "smtx":
        m, n = pattern.shape
        out.write(f"{m}, {n}, {pattern.nnz}\n".encode())
        for numbers in (pattern.indptr, pattern.indices):
            out.write((" ".join(map(str, numbers.tolist())) + "\n").encode())
        return
    from scipy.io import mmwrite
    from scipy.sparse import csr_matrix, save_npz

    matrix = csr_matrix(pattern.to_scipy(np.float64 if op.dtype == "f64" else np.float32))
    if spec.values == "random":
        # Never 0: a program might drop such an entry, and the pattern would be another.
        matrix.data[:] = 1.0 - np.random.default_rng(seed).random(pattern.nnz, np.float32)
    if spec.matrix == "npz":
        save_npz(out, matrix, compressed=False)
    else:  # to a stream of ours: by its name scipy would write it without a look at errors
        mmwrite(out, matrix, field="real", symmetry="general")


def _unwritten(error: OSError) -> RunnerUnavailable:
    return RunnerUnavailable(
        f"the matrix cannot be written for the program: {error.strerror or error}",
        hint=f"free space in the folder for temporary files, or name another by TMPDIR; {AGAIN}",
    )
