"""What a machine lacks for CUDA kernels is one sentence; the cache of machine code heals."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from embeddb.core.errors import MissingDependency, RunnerUnavailable
from embeddb.kernels.cuda import device, nvrtc

torch = pytest.importorskip("torch", reason="needs the extra learn or cuda")
pytest.importorskip("cuda.bindings.nvrtc", reason="needs the extra cuda")


@pytest.fixture
def gpu_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr(nvrtc, "toolkit", lambda: "13.0")
    monkeypatch.setattr("cuda.bindings.driver.cuDriverGetVersion", lambda: (0, 13000))


def test_nothing_is_missing(gpu_there: None) -> None:
    assert device.why_missing() is None


def test_torch_without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "built without CUDA" in str(device.why_missing())


def test_no_gpu_or_an_old_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert "driver is older" in str(device.why_missing())


def test_an_old_gpu(gpu_there: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (7, 5))
    assert device.why_missing() == "compute capability 7.5: the CUDA kernels need 8.0 or newer"


def test_a_driver_older_than_nvrtc(gpu_there: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """It refuses what NVRTC compiles; a newer minor version of the same major one is taken."""
    monkeypatch.setattr("cuda.bindings.driver.cuDriverGetVersion", lambda: (0, 12080))
    reason = str(device.why_missing())
    assert "driver is for CUDA 12.8" in reason and "update the driver, or install NVRTC" in reason
    monkeypatch.setattr(nvrtc, "toolkit", lambda: "12.9")
    assert device.why_missing() is None


def test_no_nvrtc(gpu_there: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> Any:
        raise RuntimeError("libnvrtc.so.13: cannot open shared object file")

    monkeypatch.undo()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    from cuda.bindings import nvrtc as bindings

    monkeypatch.setattr(bindings, "nvrtcVersion", fails)
    nvrtc.nvrtc.cache_clear()
    try:
        assert "NVRTC cannot be loaded: libnvrtc.so.13" in str(device.why_missing())
        with pytest.raises(RunnerUnavailable, match="NVRTC"):
            device.gpu(0)
    finally:
        nvrtc.nvrtc.cache_clear()


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("cuda")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cuda", None)
    monkeypatch.setattr("embeddb.core.extras.find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match="CUDA kernels needs cuda"):
        device.why_missing()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "embeddb" / "cuda"


def test_machine_code_is_kept_by_architecture(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []

    def compile_one(text: str, architecture: str) -> bytes:
        compiled.append(architecture)
        return architecture.encode()

    monkeypatch.setattr(nvrtc, "compiled", compile_one)
    template = "spmv<float,float,0,8,1,1>"
    assert not nvrtc.is_kept(template, "sm_90")
    for architecture in ("sm_90", "sm_80", "sm_90", "sm_80"):
        assert nvrtc.cubin(template, architecture) == architecture.encode()
    assert compiled == ["sm_90", "sm_80"] and len(list(cache.iterdir())) == 2
    assert nvrtc.is_kept(template, "sm_90") and not nvrtc.is_kept(template, "sm_100")
    nvrtc.forget(template, "sm_90")
    assert not nvrtc.is_kept(template, "sm_90")


def test_a_damaged_file_of_the_cache_is_compiled_again(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver refuses what is no machine code; it is asked once more with fresh code."""
    good = b"machine code"
    monkeypatch.setattr(nvrtc, "compiled", lambda *_: good)
    template = "spmv<float,float,0,4,1,1>"
    nvrtc.cubin(template, "sm_90")
    next(cache.iterdir()).write_bytes(b"damaged")
    loaded: list[bytes] = []

    def load(code: bytes) -> tuple[int, object]:
        loaded.append(code)
        return (0 if code == good else 200), object()

    attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK=0)
    driver = SimpleNamespace(
        cuCtxSetCurrent=lambda _: (0,),
        cuModuleLoadData=load,
        cuModuleGetFunction=lambda *_: (0, object()),
        cuFuncGetAttribute=lambda *_: (0, 512),
        cuLaunchKernel=lambda *_: (0,),
        CUfunction_attribute=attribute,
    )
    gpu = object.__new__(device.Gpu)
    gpu._driver, gpu._context, gpu.architecture = driver, object(), "sm_90"
    gpu._kernels, gpu._kept = {}, set()
    kernel = gpu.kernel(template)
    assert kernel.max_threads == 512 and loaded == [b"damaged", good]
    assert gpu.kernel(template) is kernel and gpu.is_built(template)


def test_a_thread_without_a_context_gets_it() -> None:
    replies = iter([201, 0])
    used: list[object] = []
    driver = SimpleNamespace(
        cuLaunchKernel=lambda *_: (next(replies),),
        cuFuncGetAttribute=lambda *_: (0, 1024),
        CUfunction_attribute=SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK=0),
        cuCtxSetCurrent=used.append,
        cuGetErrorString=lambda _: (0, b"an illegal memory access was encountered"),
    )
    gpu = object.__new__(device.Gpu)
    gpu._driver, gpu._context = driver, "context"
    kernel = device.GpuKernel(gpu, driver, object())
    kernel.launch(1, 64, 0, 0, device.Call())
    assert used == ["context"]
    driver.cuLaunchKernel = lambda *_: (700,)
    faulty = device.GpuKernel(gpu, driver, object())
    with pytest.raises(device.DeviceError, match="illegal memory access"):
        faulty.launch(1, 64, 0, 0, device.Call())


def test_a_driver_that_has_no_context_twice_is_an_error() -> None:
    """Launching and clearing try once more, with the context, and then no more."""
    calls: list[str] = []

    def refuses(name: str) -> Any:
        return lambda *_: (calls.append(name), (201,))[1]

    driver = SimpleNamespace(
        cuLaunchKernel=refuses("launch"),
        cuMemsetD8Async=refuses("clear"),
        cuFuncGetAttribute=lambda *_: (0, 1024),
        CUfunction_attribute=SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK=0),
        cuCtxSetCurrent=lambda _: calls.append("use"),
        cuGetErrorString=lambda _: (0, b"invalid device context"),
    )
    gpu = object.__new__(device.Gpu)
    gpu._driver, gpu._context = driver, "context"
    with pytest.raises(device.DeviceError, match="invalid device context"):
        device.GpuKernel(gpu, driver, object()).launch(1, 64, 0, 0, device.Call())
    with pytest.raises(device.DeviceError, match="invalid device context"):
        gpu.clear(256, 16, 0)
    assert calls == ["launch", "use", "launch", "clear", "use", "clear"]
    replies = iter([201, 0])
    driver.cuMemsetD8Async = lambda *_: (next(replies),)
    gpu.clear(256, 16, 0)
    assert calls[-1] == "use" and next(replies, None) is None


def test_waiting_for_the_default_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[object] = []
    current = SimpleNamespace(wait_stream=waited.append)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: current)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda index: f"default of {index}")
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda number, device: number)
    gpu = object.__new__(device.Gpu)
    gpu.index = 1
    for stream in (0, 77):
        gpu.wait_for(stream)
    assert waited == ["default of 1", 77]
