"""Checks that all contract suites share."""

from __future__ import annotations

import ctypes
import io
import os
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np

from embeddb.core.plugins import shipped, ships


@contextmanager
def leaves_all_alone() -> Iterator[None]:
    """Assert that nothing is printed, also by C code and child processes, since standard output
    belongs to the answer of a verb, and that shared state of the process is as before."""
    before, out = _once(), io.StringIO()
    with tempfile.TemporaryFile() as file, redirect_stdout(out):
        stdout = os.dup(1)
        _flush()
        os.dup2(file.fileno(), 1)
        try:
            yield
        finally:
            _flush()
            os.dup2(stdout, 1)
            os.close(stdout)
        file.seek(0)
        printed = out.getvalue() + file.read().decode(errors="replace")
    assert not printed, f"prints on standard output: {printed[:80]!r}"
    changed = [what for what, value in _once().items() if value != before[what]]
    assert not changed, f"changes {', '.join(changed)}"


def has_own_name(kind: str, plug: Any) -> None:
    """Assert that a plug-in has a name, and not that of one that ships, which is used instead."""
    assert isinstance(plug.name, str) and plug.name, f"its name is {plug.name!r}"
    assert ships(plug) or not shipped(kind, plug.name), f"{plug.name} is a {kind} that ships"


def _flush() -> None:
    ctypes.CDLL(None).fflush(None)


def _once() -> dict[str, object]:
    """State that all of a process shares, by a description."""
    numpy_state = np.random.get_state(legacy=False)  # noqa: NPY002
    return {
        "the current folder": Path.cwd(),
        "numpy's handling of errors (np.errstate sets it in a block)": np.geterr(),
        "the state of numpy.random (use a Generator of your own)": repr(numpy_state),
        "the state of random (use a Random of your own)": random.getstate(),
    }
