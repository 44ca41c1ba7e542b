"""The environment in which XLA's arrays are allocated; no jax is needed."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from indexer.runners.xla import _ENV

#: Pages that were fresh when 48 MiB were allocated, written and freed for the second time.
FRESH = """
import ctypes, resource
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
def pages():
    at = libc.malloc(48 << 20)
    ctypes.memset(at, 1, 48 << 20)
    libc.free(at)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
first = pages()
print(pages() - first)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the variables are glibc's")
def test_large_arrays_are_allocated_again_without_fresh_pages() -> None:
    def fresh(env: dict[str, str]) -> int:
        asked = [sys.executable, "-c", FRESH]
        found = subprocess.run(asked, env=env, capture_output=True, check=True, text=True)
        return int(found.stdout)

    plain = {name: told for name, told in os.environ.items() if not name.startswith("MALLOC_")}
    assert fresh(plain | _ENV) < 100 < fresh(plain)
