"""The constants of a machine that a roofline needs, from the facts of a platform's instance."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["USUAL", "Machine"]

#: Where a fact is not known: a core of a server of 2023, and two threads as most machines here.
USUAL = {
    "threads": 2.0,
    "vector_bytes": 64.0,
    "l1_bytes": 32.0 * (1 << 10),
    "l2_bytes": 1.0 * (1 << 20),
    "l3_bytes": 32.0 * (1 << 20),
    "stream_l2_gb_s": 400.0,
    "stream_l3_gb_s": 200.0,
    "stream_memory_gb_s": 50.0,
    "multiply_add_gflop_s": 200.0,
    "wake_us": 5.0,
}
#: Vector multiply-adds a cycle, of two operations a lane each.
_PER_CYCLE = 2


@dataclass(frozen=True, slots=True)
class Machine:
    """`caches`: bytes of L1 and L2 of a core and of the whole L3. `bytes_s`: bytes a second that
    all threads together get from L2, L3 and memory. `wake_s`: seconds until all threads run."""

    threads: int
    vector_bytes: int
    hertz: float
    caches: tuple[float, float, float]
    bytes_s: tuple[float, float, float]
    wake_s: float

    @classmethod
    def of(cls, facts: Mapping[str, str]) -> Machine:
        """From the environment of an instance (`embeddb.platforms.machines`); what it does not
        tell, or no number is, is `USUAL`."""
        known = {name: _number(facts.get(name, ""), usual) for name, usual in USUAL.items()}
        lanes = known["vector_bytes"] / 4
        return cls(
            max(1, int(known["threads"])),
            int(known["vector_bytes"]),
            known["multiply_add_gflop_s"] * 1e9 / (2 * _PER_CYCLE * lanes),
            (known["l1_bytes"], known["l2_bytes"], known["l3_bytes"]),
            (
                known["stream_l2_gb_s"] * 1e9,
                known["stream_l3_gb_s"] * 1e9,
                known["stream_memory_gb_s"] * 1e9,
            ),
            known["wake_us"] * 1e-6,
        )


def _number(text: str, usual: float) -> float:
    try:
        value = float(text)
    except ValueError:
        return usual
    return value if 0 < value < math.inf else usual
