"""What a model is worth when the fusion of programs is tuned (Figure 5 of "A Learned Performance
Model for Tensor Processing Units"): annealing on hardware against annealing on the model of fused
kernels, the best of which run in its order (the paper's way), and against annealing on hardware
where the model says which neighbour is next (`embeddb tune`), from the compiler's cut and from one
by chance.

    python benchmarks/fusion_tuning.py DB [PROGRAM...] [--hardware 600] [--short 60] [--model 300]
        [--long 0] [--seeds 3] [--family-out] [--rows ROWS] > benchmarks/results/fusion_tuning.json

Without PROGRAM, those where anything is to be gained: the best cut that DB knows of is more than
5 % faster than the faster of the compiler's cut and the whole program. DB has them measured
(`embeddb kernel measure DB --op fusion`) and a model of op `fused`; it is only read. With
`--family-out` the model is sums over operations, learned for each program on the kernels of all
families but its own. Each program is a line of ROWS: a second call goes on from there.

Every kernel is measured once and kept for all methods; whoever needs it first or again is charged
the seconds that compiling and timing it took, once for each search. So budgets are the hardware's
seconds as if each search had run alone, and no method has the luck of another timing. Cuts of which
all kernels are known to a search cost it nothing: their results are not checked; a search that
meets hardly any others ends when its own seconds of the processor are as many as its budget. With
`--long` annealing on hardware goes on for so many seconds, as the best that is known; a program of
at most `--exhaustive` edges has every legal cut run instead. At the end what won is run again, all
in interleaved rounds: speedups are medians of these, over the faster default there.

What hardware finds fastest runs again as in `embeddb tune` (`tuners.tune_fusion`), beyond the
budget. Of each kernel a second timing is kept for all methods too; `again` counts those of a
search.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from kernel_rows import Rows
from machine import about, spread

from embeddb.core.config import Op
from embeddb.core.errors import EmbeddbError
from embeddb.core.timing import summarise_runs
from embeddb.cost_model.operation_sums import OperationSums
from embeddb.database import Database, open_database
from embeddb.platforms.platform import load_platform, this_machine
from embeddb.tensors.edges import CUT, Cut, edges_of
from embeddb.tensors.partition import CutJudge, Partition, random_cut
from embeddb.tensors.tensor_graph import TensorGraph
from indexer.runners.base import RunOptions
from indexer.runners.xla_code.measuring import APART_S, ROUNDS, ProgramTimes
from indexer.training.tensors.operations import summed
from indexer.training.tensors.samples import KernelSample, runs_of
from tuners.fusion_cuts import CutPrices, CutSteps, PredictsKernels, ScreenedSteps, Tried
from tuners.search import Annealer, anneal
from tuners.tune_fusion import settled

FUSION, FUSED = Op("fusion"), Op("fused")
#: What is to be gained at least, by the best cut that is known.
GAIN = 1.05
STARTS = ("default", "random")
#: Rounds begin so far apart: what timing kernels takes beside calling them.
WAITS_S = (ROUNDS - 1) * APART_S
#: Cuts that a model hands on: more than any budget runs.
MOST = 2000


@dataclass
class Hardware:
    """Kernels of one program, each measured with the others of the cut that first needs it:
    `seconds`, and what compiling and timing it took, `cost_s`. `anew` are second timings."""

    times: ProgramTimes
    seconds: dict[str, float] = field(default_factory=dict)
    cost_s: dict[str, float] = field(default_factory=dict)
    anew: dict[str, float] = field(default_factory=dict)

    def again(self, partition: Partition) -> None:
        """Its kernels a second time, where they were not."""
        self.times.seconds = self.anew
        self.times.measure(partition)

    def measure(self, partition: Partition) -> float:
        """Infinite for one that fails."""
        self.times.seconds = self.seconds
        start = time.perf_counter()
        told = self.times.measure(partition)
        took = time.perf_counter() - start - WAITS_S
        compiled = {kernel.id: found.compile_s or 0.0 for kernel, found in told.fresh}
        timed = max(took - sum(compiled.values()), 0.0) / max(len(compiled), 1)
        self.cost_s |= {name: seconds + timed for name, seconds in compiled.items()}
        return told.measurement.seconds if told.measurement.ok else math.inf


@dataclass
class Search:
    """One search's view of the hardware: `spent_s` is what its kernels cost."""

    program: TensorGraph
    hardware: Hardware
    spent_s: float = 0.0
    found: dict[Cut, float] = field(default_factory=dict)
    known: dict[str, float] = field(default_factory=dict)
    _begun: float = field(default_factory=time.process_time)

    def clock(self) -> float:
        """Seconds against the budget."""
        return max(self.spent_s, time.process_time() - self._begun)

    def seconds(self, cut: Cut) -> float:
        partition = Partition.of(self.program, cut)
        fresh = {p.kernel.id for p in partition.kernels if p.kernel.id not in self.known}
        self.found[cut] = self.hardware.measure(partition)
        told = self.hardware.seconds
        self.known |= {name: told[name] for name in fresh if name in told}
        self.spent_s += sum(self.hardware.cost_s.get(name, 0.0) for name in fresh)
        self.spent_s += WAITS_S if fresh else 0.0
        return self.found[cut]

    def best(self) -> tuple[Cut, int]:
        """The fastest, and how many kernels were timed again to say so: none for one alone."""
        if len(self.found) == 1:
            return next(iter(self.found)), 0
        twice: set[str] = set()

        def again(cut: Cut) -> None:
            self.hardware.again(Partition.of(self.program, cut))
            twice.update(self._names(cut))

        def told(name: str) -> list[float]:
            anew = self.hardware.anew if name in twice else {}
            return [self.known.get(name, math.inf), *([anew[name]] if name in anew else [])]

        tried = [Tried(cut, seconds=seconds) for cut, seconds in self.found.items()]
        best = settled(tried, self._names, told, again)
        assert best is not None
        return best, len(twice)

    def _names(self, cut: Cut) -> list[str]:
        return [placed.kernel.id for placed in Partition.of(self.program, cut).kernels]


def by_hardware(
    search: Search, start: Cut, budget_s: float, seed: int
) -> Iterator[tuple[Cut, float]]:
    annealer = Annealer(CutSteps(search.program), start, rng=np.random.default_rng([seed, 1]))
    return anneal(annealer, search.seconds, search.clock, budget_s)


def by_model(
    program: TensorGraph, model: PredictsKernels, start: Cut, budget_s: float, seed: int
) -> tuple[list[Cut], int]:
    """The cuts that it likes best, the first first, and how many it priced."""
    prices, told = CutPrices(program, model.seconds), {}
    annealer = Annealer(CutSteps(program), start, rng=np.random.default_rng([seed, 0]))
    begun = time.process_time()
    priced = 0
    for cut, seconds in anneal(
        annealer, prices.seconds, lambda: time.process_time() - begun, budget_s
    ):
        priced += 1
        told[cut] = seconds
        if len(told) > 2 * MOST:
            told = dict(sorted(told.items(), key=lambda one: one[1])[:MOST])
    return sorted(told, key=lambda cut: told[cut])[:MOST], priced


def by_both(
    search: Search, model: PredictsKernels, starts: Sequence[Cut], budget_s: float, seed: int
) -> None:
    """Annealing on hardware from the fastest of the starts, neighbours chosen by the model, as
    `embeddb tune` does."""
    screen = ScreenedSteps(CutPrices(search.program, model.seconds))

    def price(cut: Cut) -> float:
        seconds = search.seconds(cut)
        screen.learn(cut, search.known)
        return seconds

    start = min(starts, key=price)
    annealer = Annealer(screen, start, rng=np.random.default_rng([seed, 1]))
    for _ in anneal(annealer, price, search.clock, budget_s):
        pass


class Figure5:
    """Of one program."""

    def __init__(self, program: TensorGraph, runner: Any, model: PredictsKernels, asked: Any):
        self.program, self.model, self.asked = program, model, asked
        self.hardware = Hardware(runner.program(program, RunOptions(threads=1, check=False)))
        self.times = runner.program(program, RunOptions(threads=1))
        edges = edges_of(program)
        self.defaults = {"whole": edges.whole, "compiler": runner.compiler_cut(program)}
        self.winners: dict[str, list[Cut]] = {}
        self.notes: dict[str, list[dict[str, float]]] = {}

    def run(self) -> dict[str, Any]:
        for start, seed in itertools.product(STARTS, range(self.asked.seeds)):
            self._from(start, seed)
        self._reference()
        rounds = self._rounds()
        return self._row(rounds)

    def _from(self, start: str, seed: int) -> None:
        asked, program = self.asked, self.program
        rng = np.random.default_rng(seed)
        cut = self.defaults["compiler"] if start == "default" else random_cut(program, rng)
        for budget in dict.fromkeys((asked.hardware, asked.short)):
            search = Search(program, self.hardware)
            steps = sum(1 for _ in by_hardware(search, cut, budget, seed))
            self._won(f"{start}: hardware {budget:g} s", search, cuts=steps)
        ranked, priced = by_model(program, self.model, cut, asked.model, seed)
        for budget in (0.0, asked.short):
            search = Search(program, self.hardware)
            for one in ranked:
                search.seconds(one)
                if search.spent_s >= budget:
                    break
            name = f"{start}: model, then hardware {budget:g} s"
            name = name if budget else f"{start}: model alone"
            self._won(name, search, cuts=len(search.found), priced=priced)
        search = Search(program, self.hardware)
        by_both(search, self.model, [cut, *ranked[:1]], asked.short, seed)
        self._won(f"{start}: hardware {asked.short:g} s with model", search, cuts=len(search.found))

    def _won(self, name: str, search: Search, **told: float) -> None:
        best, again = search.best()
        spent = {"spent_s": round(search.spent_s, 2), "again": again}
        self.winners.setdefault(name, []).append(best)
        self.notes.setdefault(name, []).append({**told, **spent})
        sys.stderr.write(f"{self.program.name}, {name}: {search.found[best]:.6f} s\n")

    def _reference(self) -> None:
        edges = edges_of(self.program)
        search = Search(self.program, self.hardware)
        if len(edges.pairs) <= self.asked.exhaustive:
            judge = CutJudge(self.program)
            for bits in itertools.product((False, True), repeat=len(edges.pairs)):
                if not judge.reason({CUT: Cut(bits).text}):
                    search.seconds(Cut(bits))
            self._won("exhaustive", search, cuts=len(search.found))
        elif self.asked.long:
            start = self.defaults["compiler"]
            steps = sum(1 for _ in by_hardware(search, start, self.asked.long, 0))
            self._won(f"hardware {self.asked.long:g} s", search, cuts=steps)

    def _rounds(self) -> dict[Cut, list[Any]]:
        """All winners and the defaults, checked, all kernels timed anew each round."""
        held = itertools.chain(self.defaults.values(), *self.winners.values())
        found: dict[Cut, list[Any]] = {cut: [] for cut in held}
        for number in range(self.asked.rounds):
            rng = np.random.default_rng(number)
            cuts = list(found)
            for at in rng.permutation(len(cuts)):
                self.times.seconds.clear()
                partition = Partition.of(self.program, cuts[int(at)])
                found[cuts[int(at)]].append(self.times.measure(partition, chained=True))
        return found

    def _row(self, rounds: dict[Cut, list[Any]]) -> dict[str, Any]:
        def seconds(cut: Cut) -> float:
            return statistics.median(one.measurement.seconds for one in rounds[cut])

        def in_a_row(cut: Cut) -> float:
            told = [statistics.median(one.chain_s) for one in rounds[cut] if one.chain_s]
            return statistics.median(told) if told else math.inf

        default = min(self.defaults, key=lambda name: seconds(self.defaults[name]))
        base = self.defaults[default]
        speedups = {
            name: spread([seconds(base) / seconds(cut) for cut in cuts])
            for name, cuts in self.winners.items()
        }
        whole = in_a_row(self.defaults["whole"])
        return {
            "program": self.program.name,
            "edges": len(edges_of(self.program).pairs),
            "default": default,
            "defaults_ms": {n: 1e3 * seconds(cut) for n, cut in self.defaults.items()},
            "kernels": len(self.hardware.seconds),
            "speedup": speedups,
            "speedup_in_a_row_over_whole": {
                name: spread([whole / in_a_row(cut) for cut in cuts])
                for name, cuts in self.winners.items()
            },
            "spread_of_rounds": statistics.median(
                max(times) / min(times) - 1
                for held in rounds.values()
                if (times := [one.measurement.seconds for one in held])
            ),
            "searches": self.notes,
        }


def promising(db: Database, here: str, runner: Any) -> dict[str, float]:
    """Programs by name where the best known cut is faster than the defaults, with by how much."""
    found = {}
    for info in db.store.patterns():
        program = db.store.tensor(info.id) if info.kind == "program" else None
        if not isinstance(program, TensorGraph):
            continue
        runs = list(db.store.runs(here, FUSION, program.id))
        told = {str(c[CUT]): timing.seconds for c, timing in summarise_runs(runs).items()}
        if len(told) < 3:
            continue
        try:
            compiler = runner.compiler_cut(program).text
        except EmbeddbError:
            continue
        default = min(told.get("whole", math.inf), told.get(compiler, math.inf))
        gain = default / min(told.values())
        if math.isfinite(gain) and gain > GAIN:
            found[program.name] = gain
    return found


@dataclass(frozen=True)
class FamilyOut:
    """Sums over operations that learned from the kernels of all other families."""

    samples: Sequence[KernelSample]
    version: str = "sums, family held out"
    known: dict[str, PredictsKernels] = field(default_factory=dict)

    def of(self, program: TensorGraph) -> PredictsKernels:
        """Learned once for a family."""
        if program.group not in self.known:
            others = [s for s in self.samples if s.group != program.group]
            self.known[program.group] = _Learned(summed(others))
        return self.known[program.group]


@dataclass(frozen=True)
class _Learned:
    sums: OperationSums
    version: str = FamilyOut.version

    def seconds(self, kernel: TensorGraph) -> float:
        return self.sums.seconds(kernel)


def program_named(db: Database, name: str) -> TensorGraph:
    """Raises: SystemExit for none."""
    for info in db.store.find(name):
        made = db.store.tensor(info.id)
        if isinstance(made, TensorGraph) and made.kind == "program":
            return made
    raise SystemExit(f"no program is called {name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("db")
    parser.add_argument("programs", nargs="*")
    parser.add_argument("--hardware", type=float, default=600.0)
    parser.add_argument("--short", type=float, default=60.0)
    parser.add_argument("--model", type=float, default=300.0)
    parser.add_argument("--long", type=float, default=0.0)
    parser.add_argument("--exhaustive", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--most", type=int, default=12, help="of the programs that promise most")
    parser.add_argument("--family-out", action="store_true")
    parser.add_argument("--rows", type=Path, default=Path("fusion_tuning.jsonl"))
    parser.add_argument("--minutes", type=float, default=600)
    asked = parser.parse_args()
    kept = Rows(asked.rows, asked.minutes)
    with open_database(asked.db, readonly=True) as db:
        runner, here = this_machine(load_platform("xla-cpu"), threads=1)
        model, reason = db.index.graph_model(here, FUSED)
        held = FamilyOut(runs_of(db.store, FUSED, here.id).samples) if asked.family_out else None
        if model is None and held is None:
            raise SystemExit(reason or "no model: embeddb train kernels DB --task fused")
        gains = promising(db, here.id, runner) if not asked.programs else {}
        chosen = sorted(gains, key=lambda name: -gains[name])[: asked.most] or asked.programs

        def row(name: str) -> dict[str, Any]:
            program = program_named(db, name)
            own = held.of(program) if held is not None else model
            assert own is not None
            return Figure5(program, runner, own, asked).run()

        names = ("hardware", "short", "model", "long", "seeds", "rounds", "family_out")
        how = {name: getattr(asked, name) for name in names}
        made = [kept.of({"program": name, **how}, lambda n=name: row(n)) for name in chosen]
        rows = [one for one in made if one is not None]
    document = {
        "machine": about(),
        "platform": here.id,
        "model": held.version if held is not None else getattr(model, "version", ""),
        "budgets_s": how,
        "named_in_advance": {name: round(gain, 4) for name, gain in gains.items()},
        "programs": rows,
        "not_done": kept.left,
        "geometric_mean": {
            name: statistics.geometric_mean([row["speedup"][name]["median"] for row in rows])
            for name in (rows[0]["speedup"] if rows else ())
            if all(name in row["speedup"] for row in rows)
        },
    }
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
