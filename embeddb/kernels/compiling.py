"""Calling the C compiler, and telling what is wrong with a source from what is wrong here.

A source is at fault only if another one, small and right, compiles at that moment with the same
flags, temporary folder and cache, and if nothing that was said names the machine.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from embeddb.core.errors import RunnerUnavailable
from embeddb.kernels.machine_failures import AGAIN, Deadline, blamed_line, killed_by

__all__ = ["compile_to"]

_TIMEOUT_S = 120.0
#: The small one needs what all of ours need: headers, OpenMP, assembler, linker.
_SMALL = """
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
int64_t embeddb_able(int64_t count)
{
    int64_t sum = 0;
#pragma omp parallel for reduction(+ : sum)
    for (int64_t i = 0; i < count; i++)
        sum += i;
    return sum;
}
"""
#: How long it counts that the small one compiled; many sources may fail at the same time.
_ABLE_S = 0.5
_able: dict[tuple[str, ...], float] = {}


class _Problem(NamedTuple):
    said: str
    of_machine: bool


def compile_to(
    out: Path, source: str, command: Sequence[str], libraries: Sequence[str] = ()
) -> str:
    """Compile with a command that lacks input, output and the `libraries` behind them; empty if
    `out` is made, else the line that says what is wrong with the source.

    Raises: RunnerUnavailable if the machine could not compile it.
    """
    problem = _called([*command, "-x", "c", "-", "-o", str(out), *libraries], source)
    if problem is None:
        return ""
    name = Path(command[0]).name
    if problem.of_machine:
        raise _unable(f"{name} {problem.said}", out.parent)
    _require_able(command, out.parent, name)
    return f"{name} {problem.said}"


def _require_able(command: Sequence[str], folder: Path, name: str) -> None:
    """Raises: RunnerUnavailable unless the small source compiles."""
    key = (*command, os.environ.get("TMPDIR", ""), str(folder))
    if time.monotonic() - _able.get(key, -_ABLE_S) < _ABLE_S:
        return
    try:
        handle, out = tempfile.mkstemp(".tmp", ".build-", folder)
        os.close(handle)
    except OSError as error:
        raise _unable(f"{folder}: {error.strerror}", folder) from None
    try:
        problem = _called([*command, "-x", "c", "-", "-o", out], _SMALL)
    finally:
        Path(out).unlink(missing_ok=True)
    if problem is not None:
        raise _unable(f"{name} compiles nothing here, be it right: it {problem.said}", folder)
    _able[key] = time.monotonic()


def _unable(reason: str, folder: Path) -> RunnerUnavailable:
    there = os.environ.get("TMPDIR") or "/tmp"
    return RunnerUnavailable(
        reason,
        hint=f"look at the space and memory that are left (temporary files in {there}, "
        f"compiled kernels in {folder}), {AGAIN}",
    )


def _called(command: Sequence[str], source: str) -> _Problem | None:
    """What went wrong, if anything did."""
    # Read from stdin: a file name would end up in the object and make equal builds differ.
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env={**os.environ, "LC_ALL": "C"},  # what it says is read here
        )
    except OSError as error:
        return _Problem(f"cannot be started: {error.strerror}", True)
    with process:
        try:
            said = _awaited(process, source)
        except BaseException:
            process.kill()
            raise
    if said is None:
        return _Problem(f"took more than {_TIMEOUT_S:.0f} s", False)
    return _judged(process.returncode, said) if process.returncode else None


def _judged(code: int, said: str) -> _Problem:
    if signal := killed_by(code):
        return _Problem(f"was ended by {signal}", True)
    if blamed := blamed_line(said):
        return _Problem(f"failed: {blamed}", True)
    lines = [line for line in said.splitlines() if "error" in line] or ["no message"]
    return _Problem(f"failed: {lines[0].strip()}", False)


def _awaited(process: subprocess.Popen[str], source: str) -> str | None:
    """What it said on stderr, None if it was killed at the time limit."""
    deadline, given = Deadline(_TIMEOUT_S), source
    while True:
        try:
            return process.communicate(given, timeout=deadline.wait_s())[1]
        except subprocess.TimeoutExpired:
            given = ""
        if deadline.left_s() <= 0:
            process.kill()
            return None
