"""Facts of a GPU machine beside driver.cpp's: its names, NVRTC's times, PyTorch's sparse calls.

facts.py KERNELS PATTERNS OUT: folder of kernel lists (space.py), unpacked patterns, JSON.
"""

from __future__ import annotations

import ctypes
import json
import platform
import random
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
#: Byte of row_blocks (then col_blocks) in kernels.cu's Args: 13 pointers, a count, six ints before.
ROW_BLOCKS_AT = 13 * 8 + 8 + 6 * 4
#: Ten patterns of ten families, from short rows to near-dense ones.
TEN = (
    "osm_porto",
    "ego-twitter",
    "su2_naca4412_FV4",
    "igl_hand_P2",
    "blogcatalog",
    "mip_nw04",
    "epfl_hyp",
    "bundle1",
    "dlmc_transformer_magn_0.8_encoder_layer_2_self_attention_mha",
    "n1024-l1",
)


class Nvrtc:
    """NVRTC through its C interface, so that no binding's version matters."""

    def __init__(self, library: str) -> None:
        self.lib = ctypes.CDLL(library)

    def cubin(self, source: str, arch: str) -> bytes:
        program = ctypes.c_void_p()
        args = (ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None)
        self._check(self.lib.nvrtcCreateProgram(*args))
        options = (ctypes.c_char_p * 2)(f"--gpu-architecture={arch}".encode(), b"--std=c++17")
        if self.lib.nvrtcCompileProgram(program, 2, options):
            size = ctypes.c_size_t()
            self.lib.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value)
            self.lib.nvrtcGetProgramLog(program, log)
            raise RuntimeError(log.value.decode())
        size = ctypes.c_size_t()
        self._check(self.lib.nvrtcGetCUBINSize(program, ctypes.byref(size)))
        cubin = ctypes.create_string_buffer(size.value)
        self._check(self.lib.nvrtcGetCUBIN(program, cubin))
        self.lib.nvrtcDestroyProgram(ctypes.byref(program))
        return cubin.raw

    def _check(self, code: int) -> None:
        if code:
            raise RuntimeError(f"NVRTC: error {code}")


def source_of(line: str) -> str:
    return (HERE / "kernels.cu").read_text() + "\n" + line + "\n"


def nvrtc_times(library: str, kernels: Path, arch: str, count: int = 20) -> dict[str, object]:
    """Seconds to compile each of `count` kernels, and from source to the first launch's end."""
    nvrtc = Nvrtc(library)
    texts = [f.read_text() for f in sorted(kernels.glob("kernels*.inc"))]
    lines = [
        x for t in texts for x in t.split("\n") if x.startswith("KERNEL(spm") and "stream" not in x
    ]
    compile_s, first_call_s = {}, {}
    for line in random.Random(1).sample(lines, count):
        name = line[7:].split(",")[0]
        start = time.perf_counter()
        cubin = nvrtc.cubin(source_of(line), arch)
        compile_s[name] = time.perf_counter() - start
        try:
            _launch(cubin, name)
            first_call_s[name] = time.perf_counter() - start
        except OSError:  # no driver on this machine
            continue
    return {"compile_s": compile_s, "first_call_s": first_call_s}


def _launch(cubin: bytes, name: str) -> None:
    """One launch of a kernel with arguments of zero: it returns at its first test."""
    cuda = ctypes.CDLL("libcuda.so.1")
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    codes = [
        cuda.cuModuleLoadData(ctypes.byref(module), cubin),
        cuda.cuModuleGetFunction(ctypes.byref(function), module, name.encode()),
    ]
    arguments = ctypes.create_string_buffer(256)
    struct.pack_into("ii", arguments, ROW_BLOCKS_AT, 1, 1)
    pointers = (ctypes.c_void_p * 1)(ctypes.addressof(arguments))
    codes.append(cuda.cuLaunchKernel(function, 1, 1, 1, 128, 1, 1, 4096, None, pointers, None))
    codes.append(cuda.cuCtxSynchronize())
    if any(codes):
        raise RuntimeError(f"{name}: CUDA errors {codes}")


def csr(path: Path) -> tuple[tuple[int, int], np.ndarray, np.ndarray]:
    raw = np.fromfile(path, np.int32)
    m, n, _ = raw[:3]
    return (int(m), int(n)), raw[3 : 4 + m], raw[4 + m :]


def times_of(call: Callable[[], object]) -> dict[str, float]:
    """Microseconds of a call: on the GPU (events over many calls), and waited for on the host."""
    import torch

    for _ in range(5):
        call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    one = time.perf_counter() - start
    count = int(max(10, min(200, 0.02 / one)))
    samples, waited = [], []
    for _ in range(3):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(count):
            call()
        end.record()
        torch.cuda.synchronize()
        samples.append(begin.elapsed_time(end) * 1e3 / count)
    for _ in range(count):
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        waited.append((time.perf_counter() - start) * 1e6)
    return {
        "gpu_us": statistics.median(samples),
        "waited_us": statistics.median(waited),
    }


def graph_us(call: Callable[[], object], count: int = 10) -> float:
    """Microseconds of a call as one of `count` in a CUDA graph."""
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(count):
            call()
    graph.replay()
    samples = []
    for _ in range(3):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        samples.append(begin.elapsed_time(end) * 1e3 / count)
    return statistics.median(samples)


def calls_on(name: str, patterns: Path) -> dict[str, Callable[[], object]]:
    import torch

    shape, ptr, idx = csr(patterns / f"{name}.bin")
    indices = [torch.from_numpy(x.copy()).cuda() for x in (ptr, idx)]
    a = torch.sparse_csr_tensor(*indices, torch.rand(len(idx), device="cuda") + 0.1, size=shape)
    x = torch.rand(shape[1], device="cuda")
    calls: dict[str, Callable[[], object]] = {"spmv": lambda: a @ x}
    for k in (32, 128, 512):
        b = torch.rand(shape[1], k, device="cuda")
        calls[f"spmm:{k}"] = lambda b=b: torch.sparse.mm(a, b)
    for k in (32, 128):
        p, q = torch.rand(shape[0], k, device="cuda"), torch.rand(shape[1], k, device="cuda").T
        calls[f"sddmm:{k}"] = lambda p=p, q=q: torch.sparse.sampled_addmm(a, p, q, beta=0.0)
    return calls


def torch_times(patterns: Path, limit_s: float) -> list[dict[str, object]]:
    """First all calls in a stream, then in graphs: a capture that fails may spoil what follows."""
    started = time.perf_counter()
    rows: dict[tuple[str, str], dict[str, object]] = {}
    for in_graph in (False, True):
        for name in TEN:
            for op, call in calls_on(name, patterns).items():
                if time.perf_counter() - started > limit_s:
                    return list(rows.values())
                row = rows.setdefault((name, op), {"matrix": name, "op": op})
                try:
                    row |= {"graph_us": graph_us(call)} if in_graph else times_of(call)
                except RuntimeError as error:
                    row["error"] = str(error)[:200]
    return list(rows.values())


def machine() -> dict[str, object]:
    import torch

    p = torch.cuda.get_device_properties(0)
    query = "name,driver_version,clocks.max.sm,clocks.max.mem,memory.total,power.limit"
    smi = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]
    return {
        "gpu": p.name,
        "compute_capability": f"{p.major}.{p.minor}",
        "multiprocessors": p.multi_processor_count,
        "l2_bytes": p.L2_cache_size,
        "memory_bytes": p.total_memory,
        "nvidia_smi": subprocess.run(smi, capture_output=True, text=True).stdout.strip(),
        "toolkit": torch.version.cuda,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpu": platform.processor(),
    }


def main(kernels: str, patterns: str, out: str) -> None:
    import torch

    torch.zeros(1, device="cuda")
    facts: dict[str, object] = {"machine": machine()}

    def save() -> None:
        Path(out).write_text(json.dumps(facts, indent=1) + "\n")

    save()
    facts["torch"] = torch_times(Path(patterns), 40)
    save()
    found = [p for s in sys.path for p in Path(s).glob("nvidia/*/lib/libnvrtc.so.1*")]
    found += list(Path("/usr/local/cuda/lib64").glob("libnvrtc.so.1*"))
    major, minor = torch.cuda.get_device_capability()
    facts["nvrtc"] = nvrtc_times(str(found[0]), Path(kernels), f"sm_{major}{minor}")
    save()


if __name__ == "__main__":
    main(*sys.argv[1:])
