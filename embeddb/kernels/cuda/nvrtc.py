"""Compile kernels of `kernels.cu` with NVRTC, and cache the machine code."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from embeddb.core.errors import RunnerUnavailable
from embeddb.core.extras import install_hint, needing
from embeddb.core.files.safe_read import read_bounded
from embeddb.core.files.safe_write import whole_file
from embeddb.kernels.build import cache_folder

SOURCE = Path(__file__).with_name("kernels.cu")
#: Name of the one function in a compiled module.
ENTRY = "embeddb_kernel"
_MAX_CUBIN = 16 << 20


class CompileFailed(Exception):
    """NVRTC's first error for a kernel."""


@lru_cache(maxsize=1)
def source() -> str:
    return SOURCE.read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def nvrtc() -> Any:
    """The module `cuda.bindings.nvrtc`, its library loaded.

    Raises: MissingDependency without the extra; RunnerUnavailable where NVRTC's library is missing.
    """
    with needing("compiling CUDA kernels", extra="cuda"):
        from cuda.bindings import nvrtc as bindings
    try:
        bindings.nvrtcVersion()
    except Exception as error:  # noqa: BLE001 (the bindings raise several types of their own)
        reason = str(error).splitlines()[0]
        raise RunnerUnavailable(
            f"NVRTC cannot be loaded: {reason}", hint=install_hint("cuda")
        ) from None
    return bindings


def toolkit() -> str:
    """Version of NVRTC, `13.0`. Raises: as `nvrtc`."""
    _, major, minor = nvrtc().nvrtcVersion()
    return f"{major}.{minor}"


def cubin(template: str, architecture: str) -> bytes:
    """Machine code of one instance, `spmm<float,float,0,32,1,1,0,1>` for `sm_90`, from the cache or
    compiled.

    Raises: CompileFailed; MissingDependency, RunnerUnavailable as `nvrtc`.
    """
    place, text = _place(template, architecture)
    with suppress(OSError):
        return read_bounded(place, _MAX_CUBIN)
    code = compiled(text, architecture)
    with suppress(OSError):
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with whole_file(place) as file:
            file.write(code)
    return code


def is_kept(template: str, architecture: str) -> bool:
    """True if the cache has its machine code."""
    return _place(template, architecture)[0].is_file()


def forget(template: str, architecture: str) -> None:
    """Remove cached machine code that the driver refused."""
    with suppress(OSError):
        _place(template, architecture)[0].unlink()


def _place(template: str, architecture: str) -> tuple[Path, str]:
    """The cache file of an instance, named by all that its code depends on, and its source."""
    line = f"KERNEL({ENTRY}, {template})\n"
    digest = _source_digest(architecture).copy()
    digest.update(line.encode())
    return cache_folder().parent / "cuda" / f"{digest.hexdigest()}.cubin", f"{source()}\n{line}"


@lru_cache(maxsize=8)
def _source_digest(architecture: str) -> hashlib.blake2b:
    text = "\n".join((toolkit(), architecture, source(), ""))
    return hashlib.blake2b(text.encode(), digest_size=16)


def compiled(text: str, architecture: str) -> bytes:
    """Machine code of a source. Raises: CompileFailed; as `nvrtc`."""
    library = nvrtc()
    error, program = library.nvrtcCreateProgram(text.encode(), b"kernels.cu", 0, [], [])
    _check(error, library)
    try:
        options = [f"--gpu-architecture={architecture}".encode(), b"--std=c++17"]
        (error,) = library.nvrtcCompileProgram(program, len(options), options)
        if int(error):
            _, size = library.nvrtcGetProgramLogSize(program)
            log = b" " * size
            library.nvrtcGetProgramLog(program, log)
            lines = log.decode(errors="replace").splitlines()
            first = next((line for line in lines if "error" in line), f"NVRTC error {int(error)}")
            raise CompileFailed(first.strip())
        error, size = library.nvrtcGetCUBINSize(program)
        _check(error, library)
        code = b" " * size
        (error,) = library.nvrtcGetCUBIN(program, code)
        _check(error, library)
        return bytes(code)
    finally:
        library.nvrtcDestroyProgram(program)


def _check(error: Any, library: Any) -> None:
    if int(error):
        raise CompileFailed(library.nvrtcGetErrorString(error)[1].decode())
