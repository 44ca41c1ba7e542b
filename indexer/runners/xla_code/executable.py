"""HLO text compiled by XLA for one processor, and called. Nothing of ours is imported here: the
interpreter that has jax may be another one."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxlib import _hlo, _jax, xla_client

__all__ = ["Executable", "disagreement", "drawn", "timed_in_rounds"]

_DTYPES = {"pred": "bool", "bf16": "bfloat16", "f8e4m3fn": "float8_e4m3fn", "f8e5m2": "float8_e5m2"}
_KINDS = {"f": "float", "s": "int", "u": "uint", "c": "complex"}
#: Whole numbers are drawn below this: they may be indices, or counts of steps.
_BELOW = 8
#: How far results of the same program may be apart, to the largest of them, and the share of
#: elements that may be further: rounding can turn a comparison.
_TOLERANCE, _TURNED = {2: 5e-2, 4: 2e-3, 8: 1e-9}, 1e-3
#: Seconds of calls after which a kernel is long enough to be disturbed in every round alike.
_MUCH_S = 0.5
#: What an unoptimised build is asked for.
_PLAIN = [("xla_backend_optimization_level", 0), ("xla_disable_hlo_passes", "fusion")]


class Executable:
    """What XLA made of a module. Raises: ValueError with XLA's own words if it cannot."""

    def __init__(self, text: str, *, plain: bool = False) -> None:
        start = time.perf_counter()
        device = jax.devices("cpu")[0]
        options = xla_client.CompileOptions()
        if plain:
            options.env_option_overrides = _PLAIN
        try:
            module = _hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()
            self._made = device.client.compile_and_load(
                _jax.mlir.hlo_to_stablehlo(module), _jax.DeviceList((device,)), options
            )
        except (RuntimeError, ValueError) as error:  # jax's own error is a RuntimeError
            raise ValueError(" ".join(str(error).split())[:400]) from None
        self.compile_s = time.perf_counter() - start

    def call(self, given: Sequence[Any]) -> list[Any]:
        """Arrays of jax, there when it returns."""
        found: list[Any] = self._made.execute(given)
        for array in found:
            array.block_until_ready()
        return found

    def timed(
        self, given: Sequence[Any], *, repeats: int, max_repeats: int, min_time_s: float
    ) -> tuple[list[float], list[float]]:
        """Seconds of each call, and those of all threads of this process. Some are to be made
        before (`warmed`)."""
        wall: list[float] = []
        cpu: list[float] = []
        while len(wall) < repeats or (sum(wall) < min_time_s and len(wall) < max_repeats):
            busy, start = time.process_time(), time.perf_counter()
            self.call(given)
            wall.append(time.perf_counter() - start)
            cpu.append(time.process_time() - busy)
        return wall, cpu

    def warmed(self, given: Sequence[Any]) -> None:
        """Two calls that do not count."""
        for _ in range(2):
            self.call(given)

    def optimised(self) -> str:
        """The module after XLA's passes, as text."""
        return str(self._made.hlo_modules()[0].to_string())


def timed_in_rounds(
    ready: Mapping[str, tuple[Executable, Sequence[Any]]],
    *,
    rounds: int,
    apart_s: float,
    **effort: Any,
) -> dict[str, tuple[list[float], list[float]]]:
    """By name, the least of each round's calls, as `Executable.timed` tells them, of what was
    called before. Rounds begin at least `apart_s` after each other; what has taken `_MUCH_S` is
    left out of further ones."""
    found: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in ready}
    spent = dict.fromkeys(ready, 0.0)
    begun = -apart_s
    for _ in range(rounds):
        time.sleep(max(0.0, begun + apart_s - time.perf_counter()))
        begun = time.perf_counter()
        for name, (made, given) in ready.items():
            if spent[name] > _MUCH_S:
                continue
            wall, cpu = made.timed(given, **effort)
            spent[name] += sum(wall)
            least = wall.index(min(wall))
            found[name][0].append(wall[least])
            found[name][1].append(cpu[least])
    return found


def drawn(parameters: Sequence[tuple[str, list[int]]], seed: int) -> list[Any]:
    """Arrays of these types and sizes. Reals are even around 0, so wide that a sum over all but the
    last dimension has about the width of one: what is multiplied many times over stays finite."""
    found = []
    for number, (dtype, dims) in enumerate(parameters):
        rng = np.random.default_rng([seed, number])
        name = _DTYPES.get(dtype) or f"{_KINDS[dtype[0]]}{dtype[1:]}"
        made: Any
        if dtype == "pred":
            made = rng.integers(0, 2, dims)
        elif dtype[0] in "su":
            made = rng.integers(0, _BELOW, dims)
        else:
            terms = np.prod(dims[:-1], dtype=float) if len(dims) > 1 else 1.0
            made = (2 * rng.random(dims, np.float32) - 1) * np.float32(np.sqrt(3 / max(terms, 1)))
        found.append(jax.device_put(np.asarray(made).astype(name)))
    return found


def disagreement(found: Sequence[Any], expected: Sequence[Any]) -> str:
    """In how far results are not what they should be; empty if they are."""
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        got, right = np.asarray(one), np.asarray(other)
        tolerance = 0.0
        if got.dtype.kind not in "biu":
            tolerance = _TOLERANCE.get(got.dtype.itemsize, 2e-3)
            wide = np.complex128 if got.dtype.kind == "c" else np.float64
            got, right = got.astype(wide), right.astype(wide)
        known = np.isfinite(right)
        largest = float(np.abs(right[known]).max(initial=0.0))
        off = np.abs(np.where(known, got, 0) * 1.0 - np.where(known, right, 0))
        bad = ~(off <= tolerance * largest)
        if bad.sum() > _TURNED * bad.size:
            worst = float(np.nanmax(np.where(bad, off, 0.0)))
            return f"output {number} is off by {worst:.3g}, the largest value is {largest:.3g}"
    return ""
