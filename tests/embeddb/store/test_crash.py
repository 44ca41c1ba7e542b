"""`kill -9` at any moment: what was acknowledged is there, nothing is there in part."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from embeddb.core.config import Config, Op
from embeddb.core.records import Measurement, PatternInfo, Run
from embeddb.store import open_store

SPMM = Op("spmm", 32)
SIZE = 400
ROUNDS = 30

APPEND = """
import sys
sys.path.insert(0, {tests!r})
from test_crash import append_for_ever
append_for_ever({folder!r}, {first})
"""

COMPACT = """
import sys
sys.path.insert(0, {tests!r})
from embeddb.store import open_store
store = open_store({folder!r})
print("ready", flush=True)
while True:
    store.compact()
    print("compacted", flush=True)
"""


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def append_for_ever(folder: str, first: int) -> None:
    """What the child does: batch after batch, each printed once it is acknowledged."""
    store = open_store(folder)
    say("ready")
    number = first
    while True:
        pattern_id = f"{number:032x}"
        runs = [
            Run(pattern_id, SPMM, "cpu", Config({"a": i}), Measurement(times_s=(1.0 + number, 2.0)))
            for i in range(SIZE)
        ]
        store.append(runs, patterns=[PatternInfo(id=pattern_id)], journal={"last": b"%d" % number})
        say(str(number))
        number += 1


def killed(script: str, after_s: float) -> list[str]:
    """The lines a child printed until it was killed, `after_s` seconds after its first."""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(after_s)
    process.send_signal(signal.SIGKILL)
    said, _ = process.communicate()
    whole = said[: said.rfind("\n") + 1]
    return whole.split()


@pytest.mark.slow
def test_a_kill_during_append(tmp_path: Path) -> None:
    folder = tmp_path / "db"
    open_store(folder, create=True).close()
    rng = random.Random(1)
    acknowledged: list[int] = []
    first = 0
    for _ in range(ROUNDS):
        script = APPEND.format(tests=str(Path(__file__).parent), folder=str(folder), first=first)
        said = killed(script, rng.uniform(0, 0.06))
        acknowledged += [int(word) for word in said]
        store = open_store(folder)
        held = Counter(run.pattern_id for run in store.runs("cpu", SPMM))
        assert set(held.values()) <= {SIZE}, "a batch is there in part"
        there = {int(pattern_id, 16) for pattern_id in held}
        assert set(acknowledged) <= there, "an acknowledged batch is lost"
        # The batch that was being acknowledged may be there too, and only that.
        next_one = first + len(said)
        assert there - set(acknowledged) <= {next_one} | set(range(first))
        last = max(there, default=-1)
        assert int(store.journal.get("last") or b"-1") == last
        first = last + 1
        store.close()
    store = open_store(folder)
    assert store.problems() == []
    assert store.count_runs() == SIZE * first
    assert len(acknowledged) > ROUNDS
    store.close()


@pytest.mark.slow
def test_a_kill_during_compact(tmp_path: Path) -> None:
    folder = tmp_path / "db"
    store = open_store(folder, create=True)
    for number in range(20):
        pattern_id = f"{number:032x}"
        runs = [Run(pattern_id, SPMM, "cpu", Config({"a": i}), Measurement()) for i in range(SIZE)]
        store.append(runs, patterns=[PatternInfo(id=pattern_id)])
    store.close()
    script = COMPACT.format(tests=str(Path(__file__).parent), folder=str(folder))
    rng = random.Random(2)
    compacted = 0
    for _ in range(10):
        compacted += len(killed(script, rng.uniform(0, 0.05)))
        store = open_store(folder)
        assert store.count_runs() == 20 * SIZE
        assert store.problems() == []
        store.notes.put("more", b"x")
        store.close()
    assert compacted > 0
