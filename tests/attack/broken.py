"""A kind whose reader does everything wrong: what the fuzzer must see (`test_fuzz`)."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attack import fuzz, watch
from attack.case import Case

FAULTS = ("traceback", "message", "memory", "outside", "canary", "death", "program", "slow")


def seeds() -> list[Case]:
    return [Case(fault, b"12345 here 67890") for fault in ("fine", *FAULTS, "fine")]


def mutate(rng: random.Random, case: Case, seeds: Sequence[Case]) -> Case:
    return Case("fine", rng.randbytes(10))


def prepare(scratch: Path) -> Any:
    return None


def feed(case: Case, scratch: Path, state: Any) -> None:
    from embeddb.core.errors import EmbeddbError

    if case.how == "traceback" and b"here" in case.data:
        raise IndexError("list index out of range")
    if case.how == "message":
        error = EmbeddbError("one")
        error.args = ("two\nlines",)
        raise error
    if case.how == "memory":
        bytearray(400 << 20)[::4096] = b"x" * (400 << 8)
    if case.how == "outside":
        (scratch.parent.parent / "elsewhere").write_text("x")
    if case.how == "canary":  # past the hook, as a library would
        os.close(os.dup(1))
        fd = os.open(scratch.parent / "canary", os.O_RDONLY)
        os.utime("thesis.tex", (1, 1), dir_fd=fd)
        os.close(fd)
    if case.how == "death":
        os.abort()
    if case.how == "program":
        subprocess.run(["true"], check=False)
    if case.how == "slow":
        until = time.process_time() + 0.6
        while time.process_time() < until:
            pass


def main(folder: Path) -> int:
    watch.SLOW_S = 0.5
    sys.modules["attack.kinds.broken"] = sys.modules[__name__]
    wish = fuzz.Wish(("broken",), 60, 40, 1, 1, folder)
    (tally,) = fuzz.fuzz(wish)
    found = {fault.partition(":")[0] for fault in tally.faults}
    wanted = {"traceback", "message", "memory", "outside", "canary", "death", "slow"}
    assert found == wanted, (found ^ wanted, tally.faults)
    assert tally.inputs == 40 and tally.read == 32, tally
    kept = next(path for fault, path in tally.examples.items() if "IndexError" in fault)
    assert '"shown": "here"' in Path(kept).read_text()
    assert "IndexError" in fuzz.replay(Path(kept))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
