"""The GPU as a machine that is timed: events, CUDA graphs, and a short probe of its facts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

import torch

from embeddb.kernels.cuda.device import Device, gpu

Call = Callable[[], object]
#: Bytes that a copy moves, in the long probe and in the short one.
_COPY_BYTES, _SHORT_COPY_BYTES = 1 << 30, 1 << 28
_COPIES, _SHORT_COPIES = 10, 4
_LAUNCHES = 200
#: Clock cycles that the GPU is kept busy while the host enqueues what is timed.
_BUSY_CYCLES = 400_000


class Machine(Protocol):
    """A device of torch with a clock. All work goes into one stream, in which graphs can be
    captured. Tests have one on the CPU."""

    place: str
    device: Device

    def identity(self) -> dict[str, str]:
        """Facts that name an instance."""

    def properties(self) -> dict[str, str]:
        """Facts that need no measuring."""

    def free_bytes(self) -> int:
        """Memory that is free now."""

    def wait(self) -> None:
        """Wait for all enqueued work."""

    def once(self, call: Call) -> float:
        """Seconds of one call in the stream."""

    def graphed(self, call: Call, calls: int, samples: int) -> list[float]:
        """Mean seconds of a call in a graph of so many calls, once for each replay."""


class CudaMachine:
    """The first visible GPU. Raises: RunnerUnavailable where it cannot be used."""

    place = "cuda"

    def __init__(self) -> None:
        self.device = gpu(0)
        # The default stream cannot be captured.
        self._cuda: Any = torch.cuda
        self._stream = self._cuda.Stream()
        torch.cuda.set_stream(self._stream)

    def identity(self) -> dict[str, str]:
        return self.device.facts()

    def properties(self) -> dict[str, str]:
        of = torch.cuda.get_device_properties(0)
        return {
            "multiprocessors": str(of.multi_processor_count),
            "l2_bytes": str(of.L2_cache_size),
            "memory_bytes": str(of.total_memory),
        }

    def free_bytes(self) -> int:
        return int(torch.cuda.mem_get_info()[0])

    def wait(self) -> None:
        torch.cuda.synchronize()

    def once(self, call: Call) -> float:
        start, end = self._events()
        self._cuda._sleep(_BUSY_CYCLES)
        start.record()
        call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    def graphed(self, call: Call, calls: int, samples: int) -> list[float]:
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            for _ in range(calls):
                call()
        except BaseException:
            with suppress(RuntimeError):
                graph.capture_end()
            raise
        graph.capture_end()
        graph.replay()
        seconds = []
        for _ in range(samples):
            # Waited for each, as the runs that ship were timed: the launch of the graph is inside.
            start, end = self._events()
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            seconds.append(float(start.elapsed_time(end)) / 1e3 / calls)
        graph.reset()
        return seconds

    def _events(self) -> tuple[Any, Any]:
        return self._cuda.Event(enable_timing=True), self._cuda.Event(enable_timing=True)


def figures(machine: Machine, *, short: bool) -> dict[str, float]:
    """Copy bandwidth in GB/s (bytes read and written), and unless `short` the time of a launch, of
    many in a row, in a stream and in a graph, in microseconds. Figures without memory for them are
    left out."""
    measured: dict[str, float] = {}
    size = min(_SHORT_COPY_BYTES if short else _COPY_BYTES, machine.free_bytes() // 8)
    with suppress(torch.OutOfMemoryError):
        source = torch.zeros(size, dtype=torch.uint8, device=machine.place)
        target = torch.empty_like(source)
        target.copy_(source)
        copies = _SHORT_COPIES if short else _COPIES
        seconds = min(machine.once(lambda: target.copy_(source)) for _ in range(copies))
        measured["copy_gb_s"] = 2 * size / seconds / 1e9
    if not short:
        one = torch.zeros(1, device=machine.place)

        def many() -> None:
            for _ in range(_LAUNCHES):
                one.add_(1)

        many()
        measured["launch_us"] = machine.once(many) / _LAUNCHES * 1e6
        in_graph = machine.graphed(lambda: one.add_(1), _LAUNCHES, 3)
        measured["graph_launch_us"] = min(in_graph) * 1e6
    return {name: float(f"{value:.4g}") for name, value in measured.items()}
