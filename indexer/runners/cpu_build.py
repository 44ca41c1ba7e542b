"""Compiling generated C, once: shared objects kept in the user's cache folder.

A shared object is named by the digest of everything that decides its content (source, flags,
compiler, processor) and carries a trailer with its own digest and the seconds its build took.
The loader ignores bytes behind the ELF image, so file and checksum appear in one atomic rename.
"""

from __future__ import annotations

import hashlib
import os
import platform as host
import re
import shutil
import struct
import subprocess
import tempfile
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from embeddb.errors import RunnerUnavailable

__all__ = ["FLAGS", "Built", "build", "cache_folder", "compiler", "cpu_model", "vector_bytes"]

#: No -ffast-math: the vector loops run over columns, so no sum has to be reordered.
FLAGS = ("-O3", "-march=native", "-fopenmp", "-fno-math-errno", "-std=gnu11", "-fPIC", "-shared")
_TRAILER = struct.Struct("<8s16sd")
_MAGIC = b"embeddb1"
_BUILD_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Built:
    """A shared object and the seconds its build took, or the reason why there is none."""

    path: Path
    compile_s: float
    error: str = ""


def build(source: str) -> Built:
    """The shared object of a C source, from the cache unless it is missing or damaged there.

    Raises: RunnerUnavailable if there is no compiler or the cache folder cannot be written.
    """
    found = compiler()
    if found is None:
        raise RunnerUnavailable("gcc not found: install a C compiler to measure")
    folder = cache_folder()
    path = folder / f"{_key(source, found[1])}.so"
    seconds = _verified(path)
    if seconds is not None:
        return Built(path, seconds)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(".tmp", ".build-", folder)
        os.close(handle)
    except OSError as error:
        reason = f"cannot keep compiled kernels in {folder}: {error.strerror}"
        raise RunnerUnavailable(reason, hint="set XDG_CACHE_HOME to a writable folder") from None
    try:
        return _compile(source, found[0], Path(name), path)
    finally:
        Path(name).unlink(missing_ok=True)


def _compile(source: str, gcc: str, temporary: Path, path: Path) -> Built:
    # Read from stdin: a file name would end up in the object and make equal builds differ.
    command = [gcc, *FLAGS, "-x", "c", "-", "-o", str(temporary)]
    start = time.perf_counter()
    try:
        done = subprocess.run(
            command,
            input=source,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_BUILD_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return Built(path, _BUILD_TIMEOUT_S, f"gcc took more than {_BUILD_TIMEOUT_S:.0f} s")
    seconds = time.perf_counter() - start
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or ["no message"]
        return Built(path, seconds, f"gcc failed: {lines[0].strip()}")
    image = temporary.read_bytes()
    try:
        temporary.write_bytes(image + _TRAILER.pack(_MAGIC, _digest(image), seconds))
        temporary.replace(path)
    except OSError as error:
        return Built(path, seconds, f"cannot write {path}: {error.strerror}")
    return Built(path, seconds)


def _verified(path: Path) -> float | None:
    """Build seconds of an intact shared object, None if it is missing or damaged."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    if len(data) < _TRAILER.size:
        return None
    magic, digest, seconds = _TRAILER.unpack(data[-_TRAILER.size :])
    if magic != _MAGIC or digest != _digest(data[: -_TRAILER.size]):
        return None
    return float(seconds)


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def _key(source: str, version: str) -> str:
    # The processor is part of it: a home folder may be shared by machines that differ.
    parts = (source, " ".join(FLAGS), version, cpu_model(), " ".join(_cpu_flags()))
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or ""
    root = Path(base) if Path(base).is_absolute() else Path.home() / ".cache"
    return root / "embeddb" / "kernels"


def compiler() -> tuple[str, str] | None:
    """Path and version line of gcc; None if it is not on PATH."""
    path = shutil.which("gcc")
    version = _version(path) if path else ""
    return (path, version) if path and version else None


@cache
def _version(path: str) -> str:
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.splitlines()[0].strip() if done.stdout and not done.returncode else ""


@cache
def _cpuinfo() -> dict[str, str]:
    """Fields of the first processor; empty where the system has no such file."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    pairs = re.findall(r"^([^\n:]+?)\s*: ([^\n]*)$", text.split("\n\n", 1)[0], re.MULTILINE)
    return dict(pairs)


def cpu_model() -> str:
    """Model name with family, model and stepping, for some hypervisors name all models alike."""
    info = _cpuinfo()
    name = info.get("model name") or host.processor() or host.machine()
    numbers = [info.get(key, "?") for key in ("cpu family", "model", "stepping")]
    return f"{name} ({'/'.join(numbers)})" if "?" not in numbers else name


def _cpu_flags() -> list[str]:
    info = _cpuinfo()
    return (info.get("flags") or info.get("Features") or "").split()


def vector_bytes() -> int:
    """Width of the widest vector register -march=native uses."""
    flags = _cpu_flags()
    return 64 if "avx512f" in flags else 32 if "avx2" in flags else 16
