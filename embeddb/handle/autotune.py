"""Whether a faster kernel pays off, and which of several is fastest, by measuring them."""

from __future__ import annotations

import statistics
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.errors import EmbeddbError
from embeddb.core.files.safe_write import whole_file
from embeddb.handle.choice import Choice, Wishes
from embeddb.handle.matrix import Matrix
from embeddb.handle.served import Served, by_kernel
from embeddb.kernels import build as cpu_build
from embeddb.kernels.called import code_place, is_built

NO_COMPILER = "no C compiler found: install gcc to run the faster kernel"
#: Multiply-adds below which scipy answers: calling a kernel costs more than it saves.
SMALL = 4096
#: Non-zeros below which scipy's SpMV on one thread may be as fast: waking the others takes tens of
#: microseconds (benchmarks/handle_grid.py).
_LEVEL_SPMV = 300_000
#: Seconds that a kernel saves of scipy's for a multiply-add, as benchmarks/handle.py measures;
#: what asking takes if the answer is kept, and copying, checking and converting for a non-zero.
_SAVED_S, _ASK_S, _PREPARE_S = 1.5e-10, 0.005, 2e-8
_USUAL_SPMV = "format=csr,lanes=4,order=ij,reorder=none,schedule=guided,threads=all,unroll=4"
_USUAL_DENSE = "format=csr,ktile={},order=ik1jk0,reorder=none,schedule=guided,threads=all,unroll={}"
#: Width from which on a block of dense columns is best, and how often its loop is unrolled.
_BLOCKS = {
    "spmm": ({0: 32, 65: 64, 128: 128}, 1),
    "sddmm": ({0: 32, 33: 64, 65: 128}, 4),
}
#: How many builds tell what one takes, and what it is taken to take before there was any.
_LATEST, _BUILD_S = 5, 1.0
#: More than any build takes: a file that says so is damaged.
_MOST_OWED_S = 1e6


def too_little(held: Matrix, op: Op, wishes: Wishes) -> str:
    """Why nothing is asked; empty if it is worth it."""
    calls = wishes.calls
    work = held.values.size * op.width
    if work < SMALL:
        return f"fewer than {SMALL} multiply-adds"
    cost = _ASK_S + _PREPARE_S * held.values.size
    if calls is not None and not wishes.build and calls * work * _SAVED_S < cost:
        return (
            f"not worth it for {calls:.0f} calls: choosing and preparing a faster kernel takes "
            "longer than it saves"
        )
    return ""


def too_soon(held: Matrix, op: Op, wishes: Wishes, preparing_s: float) -> str:
    """Why an answer is not waited for that so many seconds prepare; empty if it is."""
    if wishes.calls is None or saved_s(op, held, wishes.calls) >= preparing_s:
        return ""
    return (
        f"not worth it for {wishes.calls:.0f} calls: preparing answers for {op} takes about "
        f"{max(preparing_s, 0.1):.1f} s the first time, longer than it saves"
    )


def too_costly(op: Op, choice: Choice, held: Matrix, wishes: Wishes) -> str:
    """Why the chosen kernel is not used; empty if it is."""
    calls = wishes.calls
    if wishes.build or is_built(Config(choice.config), op):
        return ""
    if cpu_build.compiler() is None:
        return NO_COMPILER
    if wishes.build is False:
        return "the kernel is not built, and building was not asked for"
    if calls is None:
        return ""
    place = code_place(Config(choice.config), op)
    lost_s = owed_s(place, saved_s(op, held, calls))
    if lost_s < (cost_s := usual_build_s()):
        return (
            f"building a better kernel takes {cost_s:.1f} s; it is built once {cost_s:.1f} s have "
            f"been lost, by now {lost_s:.2f} s"
        )
    place.with_suffix(".owed").unlink(missing_ok=True)
    return ""


def level_with_scipy(op: Op, held: Matrix) -> bool:
    """Whether scipy may be as fast as any kernel."""
    return op.name == "spmv" and held.values.size < _LEVEL_SPMV


@lru_cache(maxsize=64)
def usual_config(op: Op) -> Config:
    """Of configurations on plain CSR, the one with the highest share of the best, geometric mean
    over the matrices of the starter, on most of its instances; between its widths, of eight
    matrices on one machine (docs/howto/compile.md)."""
    if op.name == "spmv":
        return Config.parse(_USUAL_SPMV)
    blocks, unroll = _BLOCKS[op.name]
    ktile = next(blocks[least] for least in sorted(blocks, reverse=True) if least <= op.width)
    return Config.parse(_USUAL_DENSE.format(ktile, unroll))


def worth_building(op: Op, held: Matrix, wishes: Wishes) -> bool:
    """Whether a kernel may be built and saves what that takes; calls that nobody announced do."""
    if wishes.build is not None:
        return wishes.build
    return wishes.calls is None or saved_s(op, held, wishes.calls) >= usual_build_s()


def saved_s(op: Op, held: Matrix, calls: float) -> float:
    """Seconds that so many calls of a kernel save of scipy's."""
    return calls * held.values.size * op.width * _SAVED_S


def owed_s(place: Path, more_s: float) -> float:
    """Seconds that programs have lost on this machine by the object of a kernel not lying at
    `place`, `more_s` added. None of them may win its building back, but all together do."""
    file = place.with_suffix(".owed")
    with suppress(OSError, ValueError):
        known = float(file.read_bytes()[:32])
        more_s += known if 0 < known < _MOST_OWED_S else 0.0
    with suppress(OSError):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with whole_file(file) as written:
            written.write(f"{more_s:.6f}".encode())
    return more_s


def usual_build_s() -> float:
    """How long building a kernel takes here: the median of the latest in the cache."""
    with suppress(OSError):
        found = cpu_build.cache_folder().glob("*.so")
        latest = sorted(found, key=lambda path: path.stat().st_mtime)[-_LATEST:]
        if known := [s for path in latest if (s := cpu_build.seconds_of(path)) is not None]:
            return statistics.median(known)
    return _BUILD_S


def measured(held: Matrix, op: Op, choice: Choice, wishes: Wishes) -> Choice:
    """The choice with the fastest of its configurations first, conversion shared among the calls;
    those that come too late, or cannot be built, are left out."""
    calls = wishes.calls
    rng = np.random.default_rng(0)
    m, n = held.pattern.shape
    b = rng.random((n, op.width)).astype(held.values.dtype)
    c = rng.random((m, op.width)).astype(held.values.dtype) if op.name == "sddmm" else None
    end = time.perf_counter() + wishes.seconds
    configs = list(dict.fromkeys(map(Config, (choice.config, choice.default, *choice.others))))
    took: dict[Config, float] = {}
    for nth, config in enumerate(configs):
        left = end - time.perf_counter()
        if took and left <= 0:
            break
        try:
            served = by_kernel(held, op, config)
        except EmbeddbError:
            continue
        spent = _seconds(served, b, c, left / (len(configs) - nth))
        took[config] = spent + (served.conversion_s / calls if calls else 0.0)
    if not took:
        return choice
    best = min(took, key=lambda one: took[one])
    told = f"fastest of {len(took)} measured here, {1e3 * took[best]:.3f} ms a call"
    break_even = 0.0 if calls else choice.break_even if dict(best) == choice.config else None
    gain = took[Config(choice.default)] / took[best] if Config(choice.default) in took else None
    return Choice(
        config=dict(best),
        default=choice.default,
        source=told,
        gain=gain,
        break_even=break_even,
        sure="measured",
        answer=choice.answer,
    )


def _seconds(served: Served, b: Any, c: Any, budget_s: float) -> float:
    """Median of calls with warm caches, at least three."""
    served.compute(b, c, None)
    times: list[float] = []
    start = time.perf_counter()
    while len(times) < 3 or (len(times) < 50 and time.perf_counter() - start < budget_s):
        before = time.perf_counter()
        served.compute(b, c, None)
        times.append(time.perf_counter() - before)
    return float(np.median(times))


#: Calls of each; the first one warms up and does not count.
TRIED = 4
#: What computes, and its configuration; None for scipy.
Rival = tuple[Served, Config | None]


@dataclass(slots=True, eq=False)
class Trial:
    """Rivals, the answer first, with the seconds of their calls. An answer from other machines'
    runs may be wrong here by a factor of two, and calls that have to be made anyway show it."""

    rivals: tuple[Rival, ...]
    _seconds: tuple[list[float], ...] = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._seconds = tuple([] for _ in self.rivals)

    def compute(self, b: Any, c: Any, out: Any) -> NDArray[Any]:
        """As `Served.compute`, by the one whose turn it is."""
        with self._lock:
            made_by = [len(seconds) for seconds in self._seconds]
        at = made_by.index(min(made_by))
        start = time.perf_counter()
        made = self.rivals[at][0].compute(b, c, out)
        with self._lock:
            self._seconds[at].append(time.perf_counter() - start)
        return made

    @property
    def over(self) -> bool:
        """Whether all were tried often enough."""
        return min(map(len, self._seconds)) >= TRIED

    @property
    def winner(self) -> Rival:
        """The fastest one; of equals the first."""
        took = self._medians()
        return self.rivals[took.index(min(took))]

    def told(self) -> str:
        """One line: what each took, and who stays."""
        each = zip(map(_name, self.rivals), self._medians(), strict=True)
        tried = ", ".join(f"{name} {1e3 * took:.3f} ms" for name, took in each)
        return f"first calls tried {tried}; {_name(self.winner)} stays"

    def _medians(self) -> list[float]:
        return [statistics.median(of[1:]) for of in self._seconds]


def _name(rival: Rival) -> str:
    return "scipy" if rival[1] is None else str(rival[1])
