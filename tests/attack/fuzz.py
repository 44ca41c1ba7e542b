"""Feed mutated inputs for a time, and tell what came of them.

`python -m attack.fuzz --seconds 600` (with `tests` and `tests/fixtures` on the path; `make fuzz`).
An input is made from (seed, kind, number) alone. Children that die are replaced; what ended one is
made again and kept. `--replay FILE` feeds a kept one.
"""

from __future__ import annotations

import argparse
import base64
import json
import mmap
import os
import random
import shutil
import signal
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from attack.case import Case
from attack.watch import HARD_S, Fault, Outcome, Watch, digest, scratch_root

#: In the order of the table.
KINDS = (
    "matrices", "runs", "platforms", "expressions", "words", "models", "records", "indexes",
    "pagefile", "pages", "meaning",
)  # fmt: skip
#: These start a process of their own to read a file.
_STARTS = {"pages"}
#: Shared by a child and its parent: number of the input, when it began, whether it is done.
_STATE = struct.Struct("<Qdq")
#: Inputs of a child, however long it took to begin.
_LEAST = 5
_MOST_TRIES, _MOST_SHRINK_S = 200, 1.0


@dataclass
class Tally:
    """What came of one kind. `faults` are by signature; deaths and hangs count as faults."""

    kind: str
    inputs: int = 0
    read: int = 0
    refused: int = 0
    seconds: float = 0.0
    slowest_s: float = 0.0
    grown_bytes: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def row(self) -> dict[str, Any]:
        return {
            "kind": self.kind, "inputs": self.inputs, "read": self.read, "refused": self.refused,
            "findings": sum(self.faults.values()), "causes": len(self.faults),
            "inputs_per_s": round(self.inputs / self.seconds, 1) if self.seconds else 0.0,
            "slowest_s": round(self.slowest_s, 2), "grown_mb": self.grown_bytes >> 20,
            "faults": dict(self.faults.most_common()),
        }  # fmt: skip


def module_of(kind: str) -> ModuleType:
    return import_module(f"attack.kinds.{kind}")


def case_of(kind: ModuleType, seeds: Sequence[Case], seed: int, number: int) -> Case:
    """Every other one of the first is a seed itself."""
    if number % 2 == 0 and number // 2 < len(seeds):
        return seeds[number // 2]
    rng = random.Random(f"{seed}:{kind.__name__}:{number}")
    made: Case = kind.mutate(rng, rng.choice(seeds), seeds)
    return made


class _Child:
    """Feeds inputs from `first` on until the time or the count is up; runs after a fork."""

    def __init__(self, kind: str, scratch: Path, out: Path, state: mmap.mmap) -> None:
        self._kind, self._out, self._state = kind, out, state
        self._scratch = scratch / "in"
        shutil.rmtree(self._scratch, ignore_errors=True)  # of a child that died
        self._scratch.mkdir(parents=True)
        self._module = module_of(kind)
        self._seen: set[str] = set()

    def run(self, seed: int, first: int, last: int, until: float) -> None:
        seeds = self._module.seeds()
        self._watch = Watch(self._scratch, starts=self._kind in _STARTS)
        self._watch.install()
        self._known = self._module.prepare(self._scratch)
        self.feed(seeds[0])  # what is imported late is no growth of the first input
        number = first
        while number < last and (time.time() < until or number < first + _LEAST):
            case = case_of(self._module, seeds, seed, number)
            self._state[: _STATE.size] = _STATE.pack(number, time.time(), 0)
            outcome = self.feed(case)
            self._tell(number, seed, case, outcome)
            number += 1
        self._state[: _STATE.size] = _STATE.pack(number, time.time(), 1)

    def feed(self, case: Case) -> Outcome:
        def one() -> None:
            self._module.feed(case, self._scratch, self._known)

        return self._watch.one(one, len(case.data))

    def _tell(self, number: int, seed: int, case: Case, outcome: Outcome) -> None:
        fault = outcome.fault
        line: dict[str, Any] = {
            "n": number, "s": round(outcome.seconds, 4), "b": outcome.grown_bytes,
            "refused": outcome.refused,
        }  # fmt: skip
        if fault is not None:
            line["fault"] = f"{fault.kind}: {fault.signature}"
            if fault.signature not in self._seen:
                self._seen.add(fault.signature)
                small = (
                    case
                    if fault.kind not in ("traceback", "message")
                    else self._shrunk(case, fault)
                )
                line["kept"] = kept(self._out, self._kind, small, fault, (seed, number))
        self._report(line)

    def _report(self, line: dict[str, Any]) -> None:
        if "fault" in line or line["s"] > 0.5 or line["b"] > 1 << 26:
            with (self._out / f"{self._kind}.lines").open("a") as out:
                out.write(json.dumps(line) + "\n")
        at = _STATE.size + (8 if line["refused"] else 0)
        (count,) = struct.unpack_from("<Q", self._state, at)
        struct.pack_into("<Q", self._state, at, count + ("fault" not in line))

    def _shrunk(self, case: Case, fault: Fault) -> Case:
        """Shorter bytes with the same fault, in some seconds."""
        until, tries = time.time() + _MOST_SHRINK_S, 0
        data, step = case.data, max(1, len(case.data) // 2)
        while step and tries < _MOST_TRIES and time.time() < until:
            at = 0
            while at < len(data) and tries < _MOST_TRIES and time.time() < until:
                tries += 1
                shorter = data[:at] + data[at + step :]
                again = self.feed(Case(case.how, shorter)).fault
                if again is not None and again.signature == fault.signature:
                    data = shorter
                else:
                    at += step
            step //= 2
        return Case(case.how, data)


def kept(out: Path, kind: str, case: Case, fault: Fault, origin: tuple[int, int]) -> str:
    """The file an input was kept in, with the command that feeds it again."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{kind}-{digest(fault.signature)}.json"
    body = {
        "kind": kind, "how": case.how, "fault": fault.kind, "signature": fault.signature,
        "seed": origin[0], "number": origin[1],
        "again": f"make fuzz REPLAY={path}",
        "shown": case.data[:300].decode("utf-8", "backslashreplace"),
        "told": fault.told, "data": base64.b64encode(case.data).decode(),
    }  # fmt: skip
    path.write_text(json.dumps(body, indent=1) + "\n")
    return str(path)


@dataclass
class Wish:
    """What to do: seconds and inputs for each kind, at most."""

    kinds: Sequence[str] = KINDS
    seconds: float = 60.0
    count: int = 1 << 40
    seed: int = 1
    jobs: int = 1
    out: Path = Path("build/attack")


def fuzz(wish: Wish, told: Callable[[str], None] = lambda _: None) -> list[Tally]:
    """Each kind for its share of the time; `jobs` at once."""
    wish.out.mkdir(parents=True, exist_ok=True)
    for kind in wish.kinds:  # imported once; a child is a fork
        module_of(kind).seeds()
    waiting, done = list(wish.kinds), []
    running: dict[int, _Job] = {}
    try:
        while waiting or running:
            while waiting and len(running) < max(1, wish.jobs):
                job = _Job(waiting.pop(0), wish)
                running[job.start()] = job
            for pid, job in list(running.items()):
                if job.ended(pid):
                    del running[pid]
                    if job.goes_on():
                        running[job.start()] = job
                    else:
                        done.append(job.tally())
                        told(json.dumps(done[-1].row()))
            time.sleep(0.02)
    finally:
        for pid, job in running.items():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            job.clean()
    return sorted(done, key=lambda one: wish.kinds.index(one.kind))


class _Job:
    """One kind: its child, and what ended those before it."""

    def __init__(self, kind: str, wish: Wish) -> None:
        self.kind, self._wish = kind, wish
        self._scratch = Path(tempfile.mkdtemp(prefix=f"attack-{kind}-", dir=scratch_root()))
        self._state = mmap.mmap(-1, _STATE.size + 16)
        self._began = time.time()
        self._until = self._began + wish.seconds
        self._first = 0
        self._done = False
        self._deaths: Counter[str] = Counter()
        (wish.out / f"{kind}.lines").unlink(missing_ok=True)

    def start(self) -> int:
        self._state[: _STATE.size] = _STATE.pack(self._first, time.time() + 60, 0)
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            _quiet(self._wish.out / f"{self.kind}.said")
            child = _Child(self.kind, self._scratch, self._wish.out.resolve(), self._state)
            child.run(self._wish.seed, self._first, self._wish.count, self._until)
            code = 0
        except BaseException:  # noqa: BLE001 - told, and the parent counts it
            import traceback

            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    def ended(self, pid: int) -> bool:
        gone, status = os.waitpid(pid, os.WNOHANG)
        number, began, done = _STATE.unpack(self._state[: _STATE.size])
        if not gone:
            if time.time() - began < 4 * HARD_S:
                return False
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            self._died(number, "hang", f"hang for {4 * HARD_S:g} s outside Python")
        elif os.WIFSIGNALED(status):
            name = signal.Signals(os.WTERMSIG(status)).name
            self._died(number, "death", f"died of {name}")
        elif not done:
            code = os.waitstatus_to_exitcode(status)
            self._died(number, "death", f"the child ended with code {code}")
            self._done = code == 1 and number == self._first
        self._first = number + (not done)
        return True

    def _died(self, number: int, kind: str, why: str) -> None:
        self._deaths[f"{kind}: {why}"] += 1
        if self._deaths[f"{kind}: {why}"] > 5:
            return
        module = module_of(self.kind)
        case = case_of(module, module.seeds(), self._wish.seed, number)
        fault = Fault(kind, f"{why} {number}", why)
        kept(self._wish.out, self.kind, case, fault, (self._wish.seed, number))

    def goes_on(self) -> bool:
        left = self._first < self._wish.count and time.time() < self._until
        if not left or self._done:
            self.clean()
        return left and not self._done

    def clean(self) -> None:
        shutil.rmtree(self._scratch, ignore_errors=True)

    def tally(self) -> Tally:
        read, refused = struct.unpack_from("<QQ", self._state, _STATE.size)
        found = Tally(self.kind, self._first, read, refused, time.time() - self._began)
        found.faults.update(self._deaths)
        path = self._wish.out / f"{self.kind}.lines"
        for line in path.read_text().splitlines() if path.exists() else []:
            one = json.loads(line)
            found.slowest_s = max(found.slowest_s, one["s"])
            found.grown_bytes = max(found.grown_bytes, one["b"])
            if "fault" in one:
                found.faults[one["fault"]] += 1
            if "kept" in one:
                found.examples.setdefault(one["fault"], one["kept"])
        return found


def _quiet(path: Path) -> None:
    """What a child prints goes to a file; the last 10 MB would be too much already."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o666)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(fd, 2)


def replay(path: Path) -> str:
    """What a kept input does now; empty if it is read or refused as it should be."""
    body = json.loads(path.read_text())
    case = Case(body["how"], base64.b64decode(body["data"]))
    scratch = Path(tempfile.mkdtemp(prefix="attack-replay-", dir=scratch_root()))
    try:
        child = _Child(body["kind"], scratch, scratch, mmap.mmap(-1, _STATE.size + 16))
        child._watch = Watch(child._scratch, starts=body["kind"] in _STARTS)
        child._watch.install()
        child._known = child._module.prepare(child._scratch)
        fault = child.feed(case).fault
        return "" if fault is None else f"{fault.kind}: {fault.told}"
    finally:
        os.chdir("/")
        shutil.rmtree(scratch, ignore_errors=True)


def table(tallies: Sequence[Tally]) -> str:
    head = ("kind", "inputs", "read", "refused", "findings", "causes", "inputs_per_s", "slowest_s",
            "grown_mb")  # fmt: skip
    rows = [[str(t.row()[name]) for name in head] for t in tallies]
    wide = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = ["  ".join(c.rjust(w) for c, w in zip(row, wide, strict=True)) for row in (head, *rows)]
    for tally in tallies:
        for fault, count in tally.faults.most_common():
            lines.append(f"{tally.kind}: {count} x {fault}  {tally.examples.get(fault, '')}")
    return "\n".join(lines) + "\n"


def main(words: Sequence[str] | None = None) -> int:
    ask = argparse.ArgumentParser(prog="attack.fuzz", description=__doc__)
    ask.add_argument("--seconds", type=float, default=600.0, help="of all kinds together")
    ask.add_argument("--count", type=int, default=1 << 40, help="inputs of each kind, at most")
    ask.add_argument("--kind", action="append", choices=KINDS)
    ask.add_argument("--seed", type=int, default=1)
    ask.add_argument("--jobs", type=int, default=1)
    ask.add_argument("--out", type=Path, default=Path("build/attack"))
    ask.add_argument("--json", type=Path)
    ask.add_argument("--replay", type=Path)
    asked = ask.parse_args(words)
    if asked.replay:
        told = replay(asked.replay)
        sys.stdout.write(f"{told or 'read or refused as it should be'}\n")
        return 1 if told else 0
    kinds = asked.kind or KINDS
    seconds = asked.seconds * min(asked.jobs, len(kinds)) / len(kinds)
    wish = Wish(kinds, seconds, asked.count, asked.seed, asked.jobs, asked.out)
    tallies = fuzz(wish, lambda line: sys.stderr.write(line[:200] + "\n") and None)
    sys.stdout.write(table(tallies))
    if asked.json:
        rows = [one.row() for one in tallies]
        asked.json.parent.mkdir(parents=True, exist_ok=True)
        asked.json.write_text(json.dumps({"seed": asked.seed, "kinds": rows}, indent=1) + "\n")
    return 1 if any(one.faults for one in tallies) else 0


if __name__ == "__main__":
    sys.exit(main())
