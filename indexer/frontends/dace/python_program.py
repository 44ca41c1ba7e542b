"""NumPy programs with `@dace.program`, turned into `.sdfg` files by DaCe in a separate interpreter,
since DaCe needs another numpy than embeddb. The program is run there: only read trusted files."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from embeddb.core.errors import MissingDependency, NestError
from embeddb.core.files.safe_read import read_bounded, refusing
from embeddb.kernels.machine_failures import Deadline
from indexer.frontends.dace import driver
from indexer.runners.command_programs import run_once

#: Environment variable with the default interpreter.
VARIABLE = "EMBEDDB_DACE_PYTHON"
TIME_LIMIT_S = 300.0
_MOST_OUTPUT = 1 << 20
_MOST_SOURCE = 1 << 20
_HINT = (
    "python -m venv dace; dace/bin/pip install dace 'numpy<2' 'networkx<3.5'; "
    f"then name dace/bin/python by {VARIABLE}"
)
#: Environment variables passed to the other interpreter.
_HANDED_ON = ("PATH", "LANG", "LC_ALL", "TMPDIR")


@contextmanager
def sdfg_files(
    path: str | Path, *, python: str | None = None, time_limit_s: float = TIME_LIMIT_S
) -> Iterator[tuple[list[Path], list[str]]]:
    """The `.sdfg` files of the programs in a Python file, for the duration of the block, and one
    line for each program that DaCe could not read.

    Raises: MissingDependency without an interpreter that has DaCe; NestError for a program that
    fails, or takes longer than `time_limit_s`.
    """
    with refusing(NestError, where=str(path)):
        read_bounded(path, _MOST_SOURCE)
    interpreter = python or os.environ.get(VARIABLE)
    if not interpreter:
        raise MissingDependency("a DaCe program needs an interpreter that has DaCe", hint=_HINT)
    with tempfile.TemporaryDirectory(prefix="embeddb-dace-") as folder:
        notes = _run(interpreter, Path(path).resolve(), Path(folder), time_limit_s)
        files = sorted(Path(folder).glob("*.sdfg"))
        if not files:
            why = notes[0] if notes else "it has no @dace.program"
            raise NestError(f"DaCe found no program: {why}", where=str(path))
        yield files, notes


def _run(interpreter: str, path: Path, folder: Path, time_limit_s: float) -> list[str]:
    """Write the files; returns one line for each failure."""
    env = {name: os.environ[name] for name in _HANDED_ON if name in os.environ}
    ended = run_once(
        [interpreter, "-I", driver.__file__, str(path), str(folder)],
        folder=folder,
        env={**env, "HOME": str(folder), "OMP_NUM_THREADS": "1"},
        deadline=Deadline(time_limit_s),
        max_bytes=_MOST_OUTPUT,
        max_memory=0,
    )
    if ended.problem == "timeout":
        raise NestError(f"DaCe took longer than {time_limit_s:g} s", where=str(path))
    if ended.problem:
        raise NestError(f"DaCe failed: {ended.problem}", where=str(path))
    if ended.code:
        error_lines = ended.stderr.decode(errors="replace").strip().splitlines()
        last = error_lines[-1][:300] if error_lines else f"it ended with {ended.code}"
        if "No module named 'dace'" in last:
            raise MissingDependency(f"{interpreter} has no DaCe", hint=_HINT)
        raise NestError(f"DaCe failed: {last}", where=str(path))
    return [note for line in ended.stdout.splitlines() if (note := _note(line))]


def _note(line: bytes) -> str:
    """Failure of a program in a line of the driver; "" for any other line."""
    try:
        document = json.loads(line)
        error = document["error"]
    except (ValueError, TypeError, KeyError):
        return ""  # the program's own output
    return f"{document.get('program')}: {' '.join(str(error).split())}" if error else ""
