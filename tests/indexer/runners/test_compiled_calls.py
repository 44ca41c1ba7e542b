"""Calls of what was compiled: as many as are asked for."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from embeddb.kernels import build
from indexer.runners.harness.building import build_one, command
from indexer.runners.harness.worker import Libraries

pytestmark = pytest.mark.skipif(build.compiler() is None, reason="no C compiler")

#: Faster than any processor stores a number.
_NEVER_S = 5e-11
_CALLS = 10_000_000


def test_a_short_call_is_made_as_often_as_it_is_counted(tmp_path: Path) -> None:
    """Gcc knows that each writes the same again."""
    text = "static void v0(const float *restrict p, float *restrict o) { o[0] = 2 * p[0]; }"
    path, compiler = tmp_path / "short.so", command("-O3", "-ffast-math")
    assert build_one(path, [(text, "a[0], a[1]")], prelude="", compiler=compiler) == ""
    arrays = [np.ones(1, np.float32), np.zeros(1, np.float32)]
    seconds = Libraries().call(str(tmp_path / "short.so"), 0, arrays, 1, _CALLS)
    assert seconds > _NEVER_S and arrays[1].tolist() == [2.0]


def test_functions_are_called_by_number(tmp_path: Path) -> None:
    functions = [(f"static void v{n}(double *o) {{ o[0] = {n + 1}; }}", "a[0]") for n in range(3)]
    path = tmp_path / "three.so"
    assert build_one(path, functions, prelude="", compiler=command("-O2")) == ""
    libraries, array = Libraries(), np.zeros(1)
    for which, times in itertools.product(range(3), (1, 2)):
        libraries.call(str(tmp_path / "three.so"), which, [array], 1, times)
        assert array[0] == which + 1
