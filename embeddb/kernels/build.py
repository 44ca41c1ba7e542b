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

from embeddb.core.errors import RunnerUnavailable, UsageError
from embeddb.kernels.compiling import compile_to
from embeddb.kernels.machine_failures import AGAIN

__all__ = [
    "COMPILER_VARIABLE",
    "MARCH_VARIABLE",
    "Built",
    "build",
    "cache_folder",
    "compiler",
    "cpu_flags",
    "cpu_model",
    "flags",
    "has_code",
    "kept",
    "macros",
    "no_compiler",
    "place_of",
    "seconds_of",
    "threads_used",
    "vector_bytes",
]

#: Another compiler than gcc, and another processor to compile for than this one. Both are part of
#: the instance: to a schedule they are another machine.
COMPILER_VARIABLE, MARCH_VARIABLE = "EMBEDDB_CC", "EMBEDDB_MARCH"
_MARCH = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")
#: Predefined macros of vector extensions and the bytes of their registers, widest first.
_EXTENSIONS = (("__AVX512F__", 64), ("__AVX2__", 32))
_TRAILER = struct.Struct("<8s16sd")
_MAGIC = b"embeddb1"
#: A line for each compiler that built what lies in the cache; so many of the latest are looked for.
_COMPILERS, _MOST_COMPILERS = "compilers", 16
_which = cache(shutil.which)


@dataclass(frozen=True, slots=True)
class Built:
    """A shared object and the seconds its build took, or what is wrong with its source."""

    path: Path
    compile_s: float
    error: str = ""


def flags() -> tuple[str, ...]:
    """What the compiler is called with. No -ffast-math: the vector loops run over columns, so no
    sum has to be reordered.

    Raises: UsageError if the environment names no processor that could be one.
    """
    march = os.environ.get(MARCH_VARIABLE) or "native"
    if not _MARCH.fullmatch(march):
        raise UsageError(f"{MARCH_VARIABLE}={march!r} names no processor", hint="as x86-64-v3")
    to = f"-march={march}"
    return ("-O3", to, "-fopenmp", "-fno-math-errno", "-std=gnu11", "-fPIC", "-shared")


def build(source: str) -> Built:
    """The shared object of a C source, from the cache unless it is missing or damaged there.

    Raises: RunnerUnavailable if there is no compiler, or the machine could not compile or keep it.
    """
    if (there := kept(source)) is not None:
        return there
    path = place_of(source)
    folder = path.parent
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _remember(folder, _compiler()[1])
        handle, name = tempfile.mkstemp(".tmp", ".build-", folder)
        os.close(handle)
    except OSError as error:
        raise _unkept(folder, error) from None
    try:
        return _compile(source, _compiler()[0], Path(name), path)
    finally:
        Path(name).unlink(missing_ok=True)


def kept(source: str) -> Built | None:
    """What `build` finds in the cache, intact; None where it would compile. Without a compiler that
    is what any compiler built there before: a cache may be carried to where there is none."""
    found = compiler()
    versions = _remembered(cache_folder()) if found is None else [found[1]]
    for version in versions:
        path = cache_folder() / f"{_key(source, version)}.so"
        if (seconds := seconds_of(path)) is not None:
            return Built(path, seconds)
    return None


def _remembered(folder: Path) -> list[str]:
    """Version lines of the compilers that built what lies in a cache, the latest first."""
    try:
        text = (folder / _COMPILERS).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return []
    return text.splitlines()[::-1][:_MOST_COMPILERS]


def _remember(folder: Path, version: str) -> None:
    if version not in _remembered(folder):
        with (folder / _COMPILERS).open("a", encoding="utf-8") as file:
            file.write(f"{version}\n")


def place_of(source: str) -> Path:
    """Where the object of a source lies in the cache, or would.

    Raises: RunnerUnavailable if there is no compiler, whose version is part of the name.
    """
    return cache_folder() / f"{_key(source, _compiler()[1])}.so"


def _compiler() -> tuple[str, str]:
    found = compiler()
    if found is None:
        raise RunnerUnavailable(no_compiler())
    return found


def _compile(source: str, program: str, temporary: Path, path: Path) -> Built:
    start = time.perf_counter()
    problem = compile_to(temporary, source, [program, *flags()])
    seconds = time.perf_counter() - start
    if problem:
        return Built(path, seconds, problem)
    try:
        image = temporary.read_bytes()
        temporary.chmod(0o700)  # the linker gave it what the user's other files have
        temporary.write_bytes(image + _TRAILER.pack(_MAGIC, _digest(image), seconds))
        temporary.replace(path)
    except OSError as error:
        raise _unkept(path.parent, error) from None
    return Built(path, seconds)


def _unkept(folder: Path, error: OSError) -> RunnerUnavailable:
    return RunnerUnavailable(
        f"cannot keep compiled kernels in {folder}: {error.strerror}",
        hint=f"make room there, or set XDG_CACHE_HOME to a writable folder; {AGAIN}",
    )


def seconds_of(path: Path) -> float | None:
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
    parts = (source, " ".join(flags()), version, cpu_model(), " ".join(cpu_flags()))
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or ""
    root = Path(base) if Path(base).is_absolute() else Path.home() / ".cache"
    return root / "embeddb" / "kernels"


def _named() -> str:
    return os.environ.get(COMPILER_VARIABLE) or "gcc"


def no_compiler() -> str:
    """What to say where there is none."""
    return f"{_named()} not found: install a C compiler to measure; queries still work"


def has_code() -> bool:
    """Whether kernels can run here: there is a compiler, or a cache of what one built."""
    return compiler() is not None or bool(_remembered(cache_folder()))


def compiler() -> tuple[str, str] | None:
    """Path and version line of gcc, or of what EMBEDDB_CC names; None if it is not on PATH."""
    path = _which(_named(), path=os.environ.get("PATH")) or shutil.which(_named())
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


@cache
def cpu_flags() -> tuple[str, ...]:
    """Extensions of this processor, as the system names them."""
    return tuple((_cpuinfo().get("flags") or _cpuinfo().get("Features") or "").split())


def threads_used(threads: int) -> int:
    """The number asked for, or for 0 that of the processors this process may run on."""
    if threads:
        return threads
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def vector_bytes() -> int:
    """Of the widest register that may be used: read, or for another processor the compiler's."""
    if flags()[1] == "-march=native":
        own = cpu_flags()
        return 64 if "avx512f" in own else 32 if "avx2" in own else 16
    found = compiler()
    known = macros(found[0], flags()[1]) if found else ""
    return next((width for macro, width in _EXTENSIONS if macro in known), 16)


@cache
def macros(path: str, march: str) -> str:
    """Lines `#define NAME VALUE` of what a compiler predefines for a processor.

    Raises: RunnerUnavailable if it cannot be asked.
    """
    try:
        done = subprocess.run(
            [path, march, "-dM", "-E", "-x", "c", "-"],
            input="",
            capture_output=True,
            text=True,
            timeout=30,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        # Taken for narrow vectors, it would be other code under the same name.
        raise RunnerUnavailable(f"{path} cannot tell its vector width: {error}") from None
    return done.stdout
