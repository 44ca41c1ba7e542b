"""Compilation of generated C, with shared objects in the user's cache folder.

A shared object is named by the digest of everything that determines its content (source, flags,
compiler, processor) and has a trailer with its own digest and its build time in seconds. The loader
ignores bytes behind the ELF image, so file and checksum appear in one atomic rename.
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from embeddb.core.errors import RunnerUnavailable, UsageError
from embeddb.core.files.user_folders import user_folder
from embeddb.kernels.machine_failures import AGAIN, Deadline, blamed_line, killed_by

#: Variables that select another compiler than gcc, and another target processor than this one. Both
#: are part of the instance: to a schedule they are another machine.
COMPILER_VARIABLE, MARCH_VARIABLE = "EMBEDDB_CC", "EMBEDDB_MARCH"
_MARCH = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")
#: Predefined macros of vector extensions and the bytes of their registers, widest first.
_EXTENSIONS = (("__AVX512F__", 64), ("__AVX2__", 32))
_TRAILER = struct.Struct("<8s16sd")
_MAGIC = b"embeddb1"
#: Age of a file of an unfinished build from which on no process writes it.
_LEFT_S = 3600.0
#: File with a line for each compiler of cached objects; and how many of the latest are tried.
_COMPILERS, _MOST_COMPILERS = "compilers", 16
_which = cache(shutil.which)


@dataclass(frozen=True, slots=True)
class Built:
    """A shared object and its build time in seconds, or the error in its source."""

    path: Path
    compile_s: float
    error: str = ""


def flags() -> tuple[str, ...]:
    """Compiler flags. Without -ffast-math: the vector loops run over columns, so no sum has to be
    reordered.

    Raises: UsageError if the environment has an invalid processor name.
    """
    march = os.environ.get(MARCH_VARIABLE) or "native"
    if not _MARCH.fullmatch(march):
        raise UsageError(
            f"{MARCH_VARIABLE}={march!r} is no processor name", hint="for example x86-64-v3"
        )
    to = f"-march={march}"
    return ("-O3", to, "-fopenmp", "-fno-math-errno", "-std=gnu11", "-fPIC", "-shared")


def build(source: str) -> Built:
    """The shared object of a C source, from the cache, or compiled if missing or damaged there.

    Raises: RunnerUnavailable without a compiler, or if the machine cannot compile or store it.
    """
    if (there := cached(source)) is not None:
        return there
    (program, version), path = _compiler(), place_of(source)
    folder = path.parent
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _remember(folder, version)
        with _temporary(folder) as temporary:
            start = time.perf_counter()
            problem = compile_to(temporary, source, [program, *flags()])
            seconds = time.perf_counter() - start
            if not problem:
                image = temporary.read_bytes()
                temporary.chmod(0o700)  # the linker used the default permissions
                temporary.write_bytes(image + _TRAILER.pack(_MAGIC, _digest(image), seconds))
                temporary.replace(path)
            return Built(path, seconds, problem)
    except OSError as error:
        raise RunnerUnavailable(
            f"cannot store compiled kernels in {folder}: {error.strerror}",
            hint=f"make room there, or set XDG_CACHE_HOME to a writable folder; {AGAIN}",
        ) from None


@contextmanager
def _temporary(folder: Path) -> Iterator[Path]:
    """An empty file in a folder, removed at the end; those that killed processes left there more
    than an hour ago are removed first. Raises: OSError."""
    for left in folder.glob(".build-*.tmp"):
        with suppress(OSError):  # another process may have removed it
            if left.stat().st_mtime < time.time() - _LEFT_S:
                left.unlink()
    handle, name = tempfile.mkstemp(".tmp", ".build-", folder)
    os.close(handle)
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


def cached(source: str) -> Built | None:
    """The intact object of a source in the cache; None if `build` would compile it. Without a
    compiler, objects of any earlier compiler count: a cache may be copied to such a machine."""
    own = compiler()
    versions = _remembered(cache_folder()) if own is None else [own[1]]
    for version in versions:
        path = cache_folder() / f"{_key(source, version)}.so"
        if (seconds := seconds_of(path)) is not None:
            return Built(path, seconds)
    return None


def _remembered(folder: Path) -> list[str]:
    """Version lines of the compilers of cached objects, the latest first."""
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
    """Path of a source's object in the cache.

    Raises: RunnerUnavailable without a compiler, whose version is part of the name.
    """
    return cache_folder() / f"{_key(source, _compiler()[1])}.so"


def _compiler() -> tuple[str, str]:
    own = compiler()
    if own is None:
        raise RunnerUnavailable(no_compiler())
    return own


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
    # The processor is part of the key: different machines may share a home folder.
    parts = (source, " ".join(flags()), version, cpu_model(), " ".join(cpu_flags()))
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()


def instance_of(identity: Mapping[str, str], *, separator: str = "\n") -> str:
    """Name of a machine: 8 hex digits of the digest of the facts that identify it."""
    text = separator.join(f"{key}={identity[key]}" for key in sorted(identity))
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def cache_folder() -> Path:
    return user_folder("XDG_CACHE_HOME", ".cache") / "kernels"


def _named() -> str:
    return os.environ.get(COMPILER_VARIABLE) or "gcc"


def no_compiler() -> str:
    """Message for a missing compiler, or a program in its place that is none."""
    fault = "is no C compiler (--version fails)" if shutil.which(_named()) else "not found"
    if os.environ.get(COMPILER_VARIABLE):
        return f"{_named()} {fault}: name another by {COMPILER_VARIABLE}, or unset it"
    return f"{_named()} {fault}: install a C compiler to build kernels; queries need none"


def has_code() -> bool:
    """True if kernels can run here: there is a compiler, or a cache with objects."""
    return compiler() is not None or bool(_remembered(cache_folder()))


def compiler() -> tuple[str, str] | None:
    """Path and version line of gcc, or of EMBEDDB_CC; None if it is not on PATH."""
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
def cpuinfo(path: Path = Path("/proc/cpuinfo")) -> dict[str, str]:
    """Fields of the first processor; empty without such a file."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    pairs = re.findall(r"^([^\n:]+?)\s*: ([^\n]*)$", text.split("\n\n", 1)[0], re.MULTILINE)
    return dict(pairs)


def cpu_model() -> str:
    """Model name with family, model and stepping: some hypervisors use one name for all models."""
    info = cpuinfo()
    name = info.get("model name") or host.processor() or host.machine()
    numbers = [info.get(key, "?") for key in ("cpu family", "model", "stepping")]
    return f"{name} ({'/'.join(numbers)})" if "?" not in numbers else name


@cache
def cpu_flags() -> tuple[str, ...]:
    """Extensions of this processor by their names in the system."""
    return tuple((cpuinfo().get("flags") or cpuinfo().get("Features") or "").split())


def threads_used(threads: int) -> int:
    """The requested number of threads; for 0, that of the processors available to this process."""
    if threads:
        return threads
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def vector_bytes() -> int:
    """Bytes of the widest vector register, of this processor or of the compiler's target."""
    if flags()[1] == "-march=native":
        own = cpu_flags()
        return 64 if "avx512f" in own else 32 if "avx2" in own else 16
    own_compiler = compiler()
    predefined = macros(own_compiler[0], flags()[1]) if own_compiler else ""
    return next((width for macro, width in _EXTENSIONS if macro in predefined), 16)


@cache
def exact_division(path: str) -> tuple[str, ...]:
    """The compiler's option against approximate quotients of -ffast-math, for which 1 / infinity is
    NaN, by trial: x86 gcc has the first, clang the second, others need none.

    Raises: RunnerUnavailable if the machine cannot run the compiler.
    """
    for option in ("-mno-recip", "-mrecip=none"):
        problem = _called([path, option, "-fsyntax-only", "-x", "c", "-"], "")
        if problem is None:
            return (option,)
        if problem.of_machine:
            raise _unable(f"{Path(path).name} {problem.message}", cache_folder())
    return ()


@cache
def macros(path: str, march: str) -> str:
    """Lines `#define NAME VALUE` that a compiler predefines for a processor.

    Raises: RunnerUnavailable if the compiler cannot run.
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
        # Assuming narrow vectors would give other code under the same name.
        raise RunnerUnavailable(f"cannot get the vector width from {path}: {error}") from None
    return done.stdout


_TIMEOUT_S = 120.0
#: A small program with the requirements of all kernels: headers, OpenMP, assembler, linker.
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
int main(void)
{
    return embeddb_able(1) != 0;
}
"""
#: Validity of a successful test compilation, in seconds; many sources may fail at the same time.
_ABLE_S = 0.5
_able: dict[tuple[str, ...], float] = {}


class _Problem(NamedTuple):
    message: str
    of_machine: bool


def compile_to(
    out: Path, source: str, command: Sequence[str], libraries: Sequence[str] = ()
) -> str:
    """Compile with a command to which input, output and `libraries` are appended; empty if `out`
    was written, else a line with the error in the source.

    Raises: RunnerUnavailable if the machine cannot compile.
    """
    problem = _compiled(command, source, out, libraries)
    if problem is None:
        return ""
    name = Path(command[0]).name
    if problem.of_machine:
        raise _unable(f"{name} {problem.message}", out.parent)
    _require_able(command, out.parent, name)
    return f"{name} {problem.message}"


def _compiled(
    command: Sequence[str], source: str, out: Path, libraries: Sequence[str] = ()
) -> _Problem | None:
    problem = _called([*command, "-x", "c", "-", "-o", str(out), *libraries], source)
    if problem is None and not (out.exists() and out.stat().st_size):
        return _Problem("wrote nothing", False)  # such as EMBEDDB_CC=true
    return problem


def _require_able(command: Sequence[str], folder: Path, name: str) -> None:
    """Check that the small program compiles. Raises: RunnerUnavailable."""
    key = (*command, os.environ.get("TMPDIR", ""), str(folder))
    if time.monotonic() - _able.get(key, -_ABLE_S) < _ABLE_S:
        return
    try:
        with _temporary(folder) as out:
            problem = _compiled(command, _SMALL, out)
    except OSError as error:
        raise _unable(f"{folder}: {error.strerror}", folder) from None
    if problem is not None:
        raise _unfit(name, problem, folder)
    _able[key] = time.monotonic()


def _unfit(name: str, problem: _Problem, folder: Path) -> RunnerUnavailable:
    variables = [
        f"{variable}={value}"
        for variable in (COMPILER_VARIABLE, MARCH_VARIABLE)
        if (value := os.environ.get(variable))
    ]
    chosen = f" ({', '.join(variables)})" if variables else ""
    reason = f"{name} cannot compile even a small test program{chosen}: it {problem.message}"
    unable = _unable(reason, folder)
    if problem.of_machine or not variables:
        return unable
    return RunnerUnavailable(
        reason, hint=f"change or unset {' and '.join(variables)}; else {unable.hint}"
    )


def _unable(reason: str, folder: Path) -> RunnerUnavailable:
    there = os.environ.get("TMPDIR") or "/tmp"
    return RunnerUnavailable(
        reason,
        hint=f"check free space and memory (temporary files in {there}, "
        f"compiled kernels in {folder}), {AGAIN}",
    )


def _called(command: Sequence[str], source: str) -> _Problem | None:
    """Run a compiler; return the problem, if any."""
    # Read from stdin: a file name would end up in the object and make equal builds differ.
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env={**os.environ, "LC_ALL": "C"},  # messages are parsed here
        )
    except OSError as error:
        return _Problem(f"cannot be started: {error.strerror}", True)
    with process:
        try:
            output = _awaited(process, source)
        except BaseException:
            process.kill()
            raise
    if output is None:
        return _Problem(f"took more than {_TIMEOUT_S:.0f} s", False)
    return _classified(process.returncode, output) if process.returncode else None


def _classified(code: int, output: str) -> _Problem:
    if signal := killed_by(code):
        return _Problem(f"was ended by {signal}", True)
    if blamed := blamed_line(output):
        return _Problem(f"failed: {blamed}", True)
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line] or lines[-1:] or ["no message"]
    return _Problem(f"failed: {errors[0]}", False)


def _awaited(process: subprocess.Popen[str], source: str) -> str | None:
    """The output on stderr; None if the process was killed at the time limit."""
    deadline, stdin_text = Deadline(_TIMEOUT_S), source
    while True:
        try:
            return process.communicate(stdin_text, timeout=deadline.wait_s())[1]
        except subprocess.TimeoutExpired:
            stdin_text = ""
        if deadline.left_s() <= 0:
            process.kill()
            return None
