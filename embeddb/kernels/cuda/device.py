"""The GPU: kernels loaded and launched through the driver, in the context of torch."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Protocol

from embeddb.core.errors import RunnerUnavailable
from embeddb.core.extras import install_hint, needing
from embeddb.kernels.cuda import nvrtc

_POINTERS = (
    *("ptr", "idx", "val", "rows", "perm", "piece_row", "piece_begin", "piece_end", "position"),
    *("B", "X", "out", "entry_val"),
)
_NUMBERS = ("m", "n", "nnz", "K", "pieces", "piece", "row_blocks", "col_blocks", "columns_fast")
#: Clock cycles that the GPU is kept busy while calls are enqueued.
_BUSY_CYCLES = 400_000
#: The driver was called in a thread that has no context yet.
_NO_CONTEXT = 201


class Args(ctypes.Structure):
    """The one argument of every kernel, as `kernels.cu` declares it."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_int) for name in _NUMBERS),
    )


class Call(ctypes.Structure):
    """Arguments, and behind them the list of pointers to arguments that the driver takes."""

    _fields_ = (("args", Args), ("params", ctypes.c_void_p))


_PARAMS = Call.params.offset


class Kernel(Protocol):
    """A loaded kernel. `max_threads`: the largest block that its registers allow."""

    max_threads: int

    def launch(self, grid: int, block: int, shared: int, stream: int, call: Call) -> None:
        """Start it in a stream. Raises: DeviceError."""


class Device(Protocol):
    """Loads and launches kernels. Tests have one that runs on the CPU."""

    def kernel(self, template: str) -> Kernel:
        """One instance of `kernels.cu`, compiled and loaded once. Raises: CompileFailed;
        RunnerUnavailable."""

    def library(self, name: str) -> Any:
        """A library of the CUDA toolkit, `cusparse`, with the device's context current. Raises:
        RunnerUnavailable if it is missing."""

    def stream(self) -> int:
        """The caller's current stream, as the driver knows it."""

    def clear(self, address: int, size: int, stream: int) -> None:
        """Set `size` bytes to zero, in a stream."""

    def wait_for(self, stream: int) -> None:
        """Let the current stream wait for the work enqueued in another one."""

    def is_built(self, template: str) -> bool:
        """True if `kernel` need not compile it."""

    def build(self, template: str) -> None:
        """Compile it for the cache, in any thread. Raises: as `kernel`."""

    def seconds(self, product: Callable[[], object]) -> float:
        """Time of one call on the device, caches warm: the least of three means."""

    def facts(self) -> dict[str, str]:
        """Facts that name an instance of the platform."""


class DeviceError(Exception):
    """An error of the driver; after some errors its context cannot be used again."""


class NoDeviceMemory(DeviceError):
    """A library of the toolkit had no memory on the GPU; its context goes on."""


def why_missing() -> str | None:
    """None if a GPU can be used here, else one line that says why not."""
    with needing("CUDA kernels", extra="cuda"):
        import cuda.bindings.driver  # noqa: F401
        import torch
    if not torch.cuda.is_available():
        built = torch.version.cuda
        if built is None:
            return "this torch is built without CUDA: install a CUDA build of torch"
        return "no NVIDIA GPU, or its driver is older than this torch needs (nvidia-smi shows it)"
    major, minor = torch.cuda.get_device_capability()
    if major < 8:
        return f"compute capability {major}.{minor}: the CUDA kernels need 8.0 or newer"
    try:
        toolkit = nvrtc.toolkit()
    except RunnerUnavailable as error:
        return str(error)
    driver = _driver_version()
    if int(driver.partition(".")[0]) < int(toolkit.partition(".")[0]):
        return (
            f"NVIDIA's driver is for CUDA {driver}, and NVRTC {toolkit} compiles for a newer one: "
            f"update the driver, or install NVRTC of CUDA {driver}"
        )
    return None


def _driver_version() -> str:
    """The newest CUDA that the driver supports, `13.0`. Raises: DeviceError."""
    from cuda.bindings import driver

    version = _value(driver, driver.cuDriverGetVersion())
    return f"{version // 1000}.{version % 1000 // 10}"


@lru_cache(maxsize=64)
def gpu(index: int) -> Gpu:
    """The GPU of that number. Raises: RunnerUnavailable if it cannot be used."""
    if (reason := why_missing()) is not None:
        raise RunnerUnavailable(reason, hint=install_hint("cuda"))
    return Gpu(index)


class Gpu:
    """One GPU of this process, in the context that torch uses."""

    def __init__(self, index: int) -> None:
        import torch
        from cuda.bindings import driver

        self.index, self._driver = index, driver
        with torch.cuda.device(index):
            torch.cuda.current_stream().synchronize()  # makes the context
            self._context = _value(driver, driver.cuCtxGetCurrent())
        major, minor = torch.cuda.get_device_capability(index)
        self.architecture = f"sm_{major}{minor}"
        self._kernels: dict[str, GpuKernel] = {}
        self._kept: set[str] = set()
        self._stream = torch._C._cuda_getCurrentRawStream

    def kernel(self, template: str) -> GpuKernel:
        kernel = self._kernels.get(template)
        if kernel is None:
            kernel = self._kernels[template] = self._load(template)
        return kernel

    def library(self, name: str) -> ctypes.CDLL:
        from cuda import pathfinder

        self.use()
        try:
            loaded = pathfinder.load_nvidia_dynamic_lib(name)
            return ctypes.CDLL(loaded.abs_path)
        except (RuntimeError, OSError) as error:
            reason = str(error).strip().splitlines()[0]
            raise RunnerUnavailable(
                f"the library {name} cannot be loaded: {reason}", hint=install_hint("cuda")
            ) from None

    def stream(self) -> int:
        return int(self._stream(self.index))

    def clear(self, address: int, size: int, stream: int) -> None:
        arguments = address, 0, size, stream
        (error,) = self._driver.cuMemsetD8Async(*arguments)
        if error:
            self.call_again(error, self._driver.cuMemsetD8Async, *arguments)

    def wait_for(self, stream: int) -> None:
        import torch

        if not torch.cuda.is_current_stream_capturing():  # what a graph replays waits on its own
            cuda: Any = torch.cuda
            if stream:
                other = cuda.ExternalStream(stream, device=self.index)
            else:  # torch may take 0 for a stream of its pool
                other = cuda.default_stream(self.index)
            cuda.current_stream(self.index).wait_stream(other)

    def is_built(self, template: str) -> bool:
        if template in self._kernels or template in self._kept:
            return True
        if nvrtc.is_kept(template, self.architecture):
            self._kept.add(template)
            return True
        return False

    def build(self, template: str) -> None:
        nvrtc.cubin(template, self.architecture)

    def seconds(self, product: Callable[[], object]) -> float:
        import torch

        cuda: Any = torch.cuda
        product()
        calls, spans = 4, []
        for _ in range(3):
            start, end = (cuda.Event(enable_timing=True) for _ in range(2))
            cuda._sleep(_BUSY_CYCLES)  # the host enqueues what is timed meanwhile
            start.record()
            for _ in range(calls):
                product()
            end.record()
            end.synchronize()
            spans.append(float(start.elapsed_time(end)))
        return min(spans) / calls / 1e3

    def facts(self) -> dict[str, str]:
        """Facts that name an instance: GPU, compute capability, driver, toolkit."""
        import torch

        return {
            "gpu": torch.cuda.get_device_name(self.index),
            "capability": self.architecture.removeprefix("sm_"),
            "driver": _driver_version(),
            "toolkit": nvrtc.toolkit(),
        }

    def use(self) -> None:
        """Make the GPU's context current in this thread."""
        self._driver.cuCtxSetCurrent(self._context)

    def call_again(self, error: Any, function: Any, *arguments: Any) -> None:
        """Call a function of the driver once more if its thread had no context. Raises: DeviceError
        for its error, or that of the second call."""
        if int(error) == _NO_CONTEXT:
            self.use()
            (error,) = function(*arguments)
        if int(error):
            raise DeviceError(_text(self._driver, error))

    def _load(self, template: str) -> GpuKernel:
        self.use()
        driver = self._driver
        error, module = driver.cuModuleLoadData(nvrtc.cubin(template, self.architecture))
        if int(error):  # a damaged file of the cache
            nvrtc.forget(template, self.architecture)
            code = nvrtc.cubin(template, self.architecture)
            module = _value(driver, driver.cuModuleLoadData(code))
        function = _value(driver, driver.cuModuleGetFunction(module, nvrtc.ENTRY.encode()))
        return GpuKernel(self, driver, function)


class GpuKernel:
    """A function in a module that stays loaded as long as the process lives."""

    def __init__(self, device: Gpu, driver: Any, function: Any) -> None:
        self._device, self._launch, self._function = device, driver.cuLaunchKernel, function
        most = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK
        self.max_threads: int = _value(driver, driver.cuFuncGetAttribute(most, function))

    def launch(self, grid: int, block: int, shared: int, stream: int, call: Call) -> None:
        call.params = at = ctypes.addressof(call)
        shape = grid, 1, 1, block, 1, 1, shared
        params = at + _PARAMS
        (error,) = self._launch(self._function, *shape, stream, params, 0)
        if error:
            arguments = self._function, *shape, stream, params, 0
            self._device.call_again(error, self._launch, *arguments)


def _value(driver: Any, reply: tuple[Any, ...]) -> Any:
    error, *values = reply
    if int(error):
        raise DeviceError(_text(driver, error))
    return values[0] if values else None


def _text(driver: Any, error: Any) -> str:
    _, text = driver.cuGetErrorString(error)
    return (text or b"unknown error").decode()
