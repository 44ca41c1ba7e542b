"""The child process that compiles and times by XLA: `python -m indexer.runners.xla_code.worker`.

It may crash or hang, which its parent detects. It runs in any interpreter that has jax, so it
imports nothing of this project but the serving loop.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jaxlib
import numpy as np
from jaxlib import _hlo, _jax, xla_client

from indexer.runners.harness.serving import Answering, Reply, serve

_EFFORT = ("repeats", "max_repeats", "min_time_s")


class _Worker(Answering):
    """One program, its compiled kernels by id, and the arrays of kernels waiting to be timed."""

    def __init__(self) -> None:
        self.kernels: dict[str, Executable] = {}
        self.waiting: dict[str, list[Any]] = {}
        self.arguments: list[Any] = []
        self.expected: list[Any] = []

    def answer(self, request: Reply, payload: bytes) -> Reply:
        try:
            return super().answer(request, payload)
        except ValueError as error:
            return {"status": "build", "error": str(error)}

    def about(self, _: Reply) -> Reply:
        """Return the versions of jax and jaxlib, which decide on the code."""
        jax.devices("cpu")
        return {"status": "ok", "jax": jax.__version__, "jaxlib": jaxlib.__version__}

    def load(self, request: Reply, text: bytes) -> Reply:
        """Compile and run a program; the results of its partitions must equal its own."""
        self.kernels.clear()
        self.waiting.clear()
        program = Executable(text)
        self.arguments = drawn(request["parameters"], request["seed"])
        self.expected = program.call(self.arguments)
        return {"status": "ok", "compile_s": program.compile_s}

    def optimised(self, _: Reply, text: bytes) -> Reply:
        return {"status": "ok", "text": Executable(text).optimised()}

    def kernel(self, request: Reply, text: bytes) -> Reply:
        """Compile a kernel, unless it is compiled already. With `called` also call it, so that
        `rounds` can time it; without, it serves a chain only."""
        executable = self.kernels.get(request["id"]) or Executable(text)
        self.kernels[request["id"]] = executable
        reply: Reply = {"status": "ok", "compile_s": executable.compile_s}
        if not request["called"]:
            return reply
        arguments = drawn(request["parameters"], request["seed"])
        if request["check"]:
            plain = Executable(text, plain=True).call(arguments)
            if wrong := disagreement(executable.call(arguments), plain):
                return {"status": "wrong", "error": f"{wrong}, from the unoptimised kernel's"}
        executable.warmed(arguments)
        self.waiting[request["id"]] = arguments
        return reply

    def rounds(self, request: Reply) -> Reply:
        """Seconds by id of kernels that were called; their arrays are freed. Kernels that only an
        earlier worker process called are reported as missing."""
        if missing := [one for one in request["ids"] if one not in self.waiting]:
            return {"status": "missing", "ids": missing}
        ready = {one: (self.kernels[one], self.waiting.pop(one)) for one in request["ids"]}
        effort = {name: request[name] for name in ("rounds", "apart_s", *_EFFORT)}
        return {"status": "ok", "times": timed_in_rounds(ready, **effort)}

    def chain(self, request: Reply) -> Reply:
        """Run the kernels one after the other and compare the results with the program's.

        The inputs of those to `keep` wait for `rounds`. With `times` the chain is run that often
        for its CPU seconds: a long run is interrupted where others compute too, its single kernels
        hardly are.
        """
        if missing := [one["id"] for one in request["kernels"] if one["id"] not in self.kernels]:
            return {"status": "missing", "ids": missing}
        taken: dict[str, list[Any]] = {name: [] for name in request["keep"]}
        values = self._chained(request, taken)
        results = [values[at] for _, at in request["outputs"]]
        if wrong := disagreement(results, [self.expected[n] for n, _ in request["outputs"]]):
            return {"status": "wrong", "error": f"{wrong}, from the whole program's"}
        for name, arguments in taken.items():
            self.kernels[name].warmed(arguments)
            self.waiting[name] = arguments
        times = []
        for _n in range(request["times"]):
            start = time.process_time()
            self._chained(request, {})
            times.append(time.process_time() - start)
        return {"status": "ok", "times_s": times}

    def _chained(self, request: Reply, taken: dict[str, list[Any]]) -> dict[int, Any]:
        """Values by place in the program that are needed at the end; `taken` receives the inputs of
        its kernels, from their last run."""
        values = dict(zip(request["given"], self.arguments, strict=True))
        for one in request["kernels"]:
            arguments = [values[at] for at in one["takes"]]
            if one["id"] in taken:
                taken[one["id"]] = arguments
            results = self.kernels[one["id"]].call(arguments)
            values.update(zip(one["gives"], results, strict=True))
            for at in one["last"]:
                del values[at]
        return values


_DTYPES = {"pred": "bool", "bf16": "bfloat16", "f8e4m3fn": "float8_e4m3fn", "f8e5m2": "float8_e5m2"}
_KINDS = {"f": "float", "s": "int", "u": "uint", "c": "complex"}
#: Whole numbers are drawn below this: they may be indices, or counts of steps.
_BELOW = 8
#: How far results of the same program may be apart, to the largest of them, and the share of
#: elements that may be further: rounding can turn a comparison.
_TOLERANCE, _TURNED = {2: 5e-2, 4: 2e-3, 8: 1e-9}, 1e-3
#: Seconds of calls after which a kernel is long enough to be disturbed in every round alike.
_MUCH_S = 0.5
#: Options of an unoptimised build.
_PLAIN = [("xla_backend_optimization_level", 0), ("xla_disable_hlo_passes", "fusion")]


class Executable:
    """A module compiled by XLA. Raises: ValueError with XLA's message if it does not compile."""

    def __init__(self, text: bytes, *, plain: bool = False) -> None:
        start = time.perf_counter()
        device = jax.devices("cpu")[0]
        options = xla_client.CompileOptions()
        if plain:
            options.env_option_overrides = _PLAIN
        try:
            module = _hlo.hlo_module_from_text(text.decode()).as_serialized_hlo_module_proto()
            self._executable = device.client.compile_and_load(
                _jax.mlir.hlo_to_stablehlo(module), _jax.DeviceList((device,)), options
            )
        except (RuntimeError, ValueError) as error:  # jax's own error is a RuntimeError
            raise ValueError(" ".join(str(error).split())[:400]) from None
        self.compile_s = time.perf_counter() - start

    def call(self, arguments: Sequence[Any]) -> list[Any]:
        """Run it and return jax arrays that are complete."""
        results: list[Any] = self._executable.execute(arguments)
        for array in results:
            array.block_until_ready()
        return results

    def timed(
        self, arguments: Sequence[Any], *, repeats: int, max_repeats: int, min_time_s: float
    ) -> tuple[list[float], list[float]]:
        """Wall seconds of each call, and CPU seconds of all threads of this process. Call `warmed`
        before."""
        wall: list[float] = []
        cpu: list[float] = []
        while len(wall) < repeats or (sum(wall) < min_time_s and len(wall) < max_repeats):
            busy, start = time.process_time(), time.perf_counter()
            self.call(arguments)
            wall.append(time.perf_counter() - start)
            cpu.append(time.process_time() - busy)
        return wall, cpu

    def warmed(self, arguments: Sequence[Any]) -> None:
        """Two calls that do not count."""
        for _ in range(2):
            self.call(arguments)

    def optimised(self) -> str:
        """The module after XLA's passes, as text."""
        return str(self._executable.hlo_modules()[0].to_string())


def timed_in_rounds(
    ready: Mapping[str, tuple[Executable, Sequence[Any]]],
    *,
    rounds: int,
    apart_s: float,
    **effort: Any,
) -> dict[str, tuple[list[float], list[float]]]:
    """Fastest call of each round by name, as `Executable.timed` returns it. Rounds begin at least
    `apart_s` after each other; a kernel whose calls took `_MUCH_S` is left out of further
    rounds."""
    fastest: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in ready}
    spent = dict.fromkeys(ready, 0.0)
    begun = -apart_s
    for _ in range(rounds):
        time.sleep(max(0.0, begun + apart_s - time.perf_counter()))
        begun = time.perf_counter()
        for name, (executable, arguments) in ready.items():
            if spent[name] > _MUCH_S:
                continue
            wall, cpu = executable.timed(arguments, **effort)
            spent[name] += sum(wall)
            least = wall.index(min(wall))
            fastest[name][0].append(wall[least])
            fastest[name][1].append(cpu[least])
    return fastest


def drawn(parameters: Sequence[tuple[str, list[int]]], seed: int) -> list[Any]:
    """Random arrays of these types and sizes. Reals are uniform around 0, scaled such that a sum
    over all but the last dimension has about the width of one: repeated products stay finite."""
    arrays = []
    for number, (dtype, dims) in enumerate(parameters):
        rng = np.random.default_rng([seed, number])
        name = _DTYPES.get(dtype) or f"{_KINDS[dtype[0]]}{dtype[1:]}"
        values: Any
        if dtype == "pred":
            values = rng.integers(0, 2, dims)
        elif dtype[0] in "su":
            values = rng.integers(0, _BELOW, dims)
        else:
            terms = np.prod(dims[:-1], dtype=float) if len(dims) > 1 else 1.0
            values = (2 * rng.random(dims, np.float32) - 1) * np.float32(np.sqrt(3 / max(terms, 1)))
        arrays.append(jax.device_put(np.asarray(values).astype(name)))
    return arrays


def disagreement(results: Sequence[Any], expected: Sequence[Any]) -> str:
    """Describe the first output that differs too much from the expected one; empty if none does."""
    for number, (one, other) in enumerate(zip(results, expected, strict=True)):
        got, right = np.asarray(one), np.asarray(other)
        tolerance = 0.0
        if got.dtype.kind not in "biu":
            tolerance = _TOLERANCE.get(got.dtype.itemsize, 2e-3)
            wide = np.complex128 if got.dtype.kind == "c" else np.float64
            got, right = got.astype(wide), right.astype(wide)
        finite = np.isfinite(right)
        largest = float(np.abs(right[finite]).max(initial=0.0))
        off = np.abs(np.where(finite, got, 0) * 1.0 - np.where(finite, right, 0))
        bad = ~(off <= tolerance * largest)
        if bad.sum() > _TURNED * bad.size:
            worst = float(np.nanmax(np.where(bad, off, 0.0)))
            return f"output {number} is off by {worst:.3g}, the largest value is {largest:.3g}"
    return ""


def main() -> None:
    """Serve until stdin ends."""
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    jax.config.update("jax_enable_x64", True)
    serve(_Worker().answer)


if __name__ == "__main__":
    main()
