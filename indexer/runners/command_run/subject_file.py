"""The private folder of a program, and in it what it is to run on: written whole, or said not to
be."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from embeddb.core.errors import RunnerUnavailable, UsageError
from embeddb.core.kinds import kind_of
from embeddb.core.pattern import Pattern
from embeddb.kernels.machine_failures import AGAIN
from embeddb.nests.nest import Nest

if TYPE_CHECKING:
    from embeddb.core.config import Op
    from embeddb.core.subject import Subject
    from embeddb.platforms.command import CommandSpec

#: An upper bound of what one entry takes in any of the formats, and one row.
_ENTRY_BYTES, _ROW_BYTES = 48, 24


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A private folder. Raises: RunnerUnavailable if none can be made."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="embeddb-", ignore_cleanup_errors=True)
    except OSError as error:
        raise _unwritten(error) from None
    with folder as text:
        yield Path(text)


def most_bytes(subject: Subject) -> int:
    """What its file may need."""
    if isinstance(subject, Pattern):
        return subject.nnz * _ENTRY_BYTES + subject.shape[0] * _ROW_BYTES
    return len(kind_of(subject.kind).write(subject))


def write_subject(subject: Subject, folder: Path, spec: CommandSpec, op: Op, seed: int) -> Path:
    """Write a matrix with values, in the form that a command asks for, or the JSON of what is none.

    Raises: RunnerUnavailable if it cannot be written whole; UsageError for a nest that holds a
    matrix, which its JSON does not.
    """
    if isinstance(subject, Nest) and subject.matrix_ids:
        raise UsageError(f"{subject.name or subject.id} holds a matrix, which no command is given")
    path = folder / (f"matrix.{spec.matrix}" if op.workload.sparse else f"{op.kind}.json")
    try:
        with path.open("wb") as out:
            if isinstance(subject, Pattern):
                _write_matrix(subject, out, spec, op, seed)
            else:
                out.write(kind_of(subject.kind).write(subject))
        path.chmod(0o400)  # every configuration is to see the same file
    except OSError as error:
        raise _unwritten(error) from None
    return path


def _write_matrix(pattern: Pattern, out: BinaryIO, spec: CommandSpec, op: Op, seed: int) -> None:
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
        f"its file cannot be written for the program: {error.strerror or error}",
        hint=f"free space in the folder for temporary files, or name another by TMPDIR; {AGAIN}",
    )
