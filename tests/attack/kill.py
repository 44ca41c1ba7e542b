"""Stop the writing verbs again and again, and tell what did not hold.

`python -m attack.kill --rounds 1000` (`make kill`); `attack.rounds` says what a round is.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attack.rounds import NotSound, Rounds, Stop, usable
from attack.verbs import VERBS, Board, Verb
from attack.watch import scratch_root


def warm() -> None:
    """Import what the verbs need, so that a fork has it. No thread is started by it."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    import builders  # noqa: F401
    import faiss  # noqa: F401
    import lmdb.verify  # noqa: F401
    import scipy.io  # noqa: F401

    import indexer.campaign.run
    import indexer.embed
    import indexer.exchange.exchange
    import indexer.index_runs
    import indexer.measure  # noqa: F401


def main(words: Sequence[str] | None = None) -> int:
    ask = argparse.ArgumentParser(prog="attack.kill", description=__doc__)
    ask.add_argument("--rounds", type=int, default=200)
    ask.add_argument("--seconds", type=float, default=1e9)
    ask.add_argument("--verb", action="append", choices=[v.name for v in VERBS])
    ask.add_argument("--how", action="append", choices=("kill", "torn", "full", "time"))
    ask.add_argument("--at", type=int, default=0, help="this call and no other")
    ask.add_argument("--every", action="store_true", help="every call, one after another")
    ask.add_argument("--nightly", action="store_true", help="trainings and calibration too")
    ask.add_argument("--seed", type=int, default=1)
    ask.add_argument("--json", type=Path)
    asked = ask.parse_args(words)
    warm()
    root = Path(tempfile.mkdtemp(prefix="attack-kill-", dir=scratch_root()))
    try:
        rounds = Rounds(Board(root / "board").make(), asked.seed)
        _go(rounds, asked)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return _told(rounds, asked.json)


def _go(rounds: Rounds, asked: Any) -> None:
    nightly = asked.nightly or bool(asked.verb)
    wanted = [v for v in VERBS if v.name in (asked.verb or [v.name]) and usable(v, nightly=nightly)]
    verbs = [verb for verb in wanted if _sound(rounds, verb)]
    until, count = time.monotonic() + asked.seconds, 0
    hows = asked.how or ("kill", "kill", "torn", "full", "time")
    while verbs and count < asked.rounds and time.monotonic() < until:
        verb = verbs[count % len(verbs)]
        at = asked.at or (count // len(verbs) + 1 if asked.every else 0)
        if asked.every and at > rounds.points(verb.name):
            verbs.remove(verb)
            continue
        stop = Stop(hows[0], at) if at else rounds.chosen(verb, hows)
        for what in rounds.round(verb, stop):
            sys.stderr.write(f"{verb.name}, {stop}: {what[:300]}\n")
        count += 1


def _sound(rounds: Rounds, verb: Verb) -> bool:
    """Whether a verb does its work at all."""
    try:
        rounds.reference(verb)
    except NotSound as error:
        rounds.problems.append((verb.name, "not stopped", str(error)))
        return False
    return True


def _told(rounds: Rounds, out: Path | None) -> int:
    bad = Counter(name for name, _, _ in rounds.problems)
    lines = [f"{'verb':>18} {'rounds':>7} {'stopped':>8} {'points':>7} {'problems':>9}"]
    for name, count in rounds.done.items():
        points, stopped = rounds.points(name), rounds.stopped[name]
        lines.append(f"{name:>18} {count:7} {stopped:8} {points:7} {bad[name]:9}")
    done, stopped = sum(rounds.done.values()), sum(rounds.stopped.values())
    lines.append(f"{done} rounds, {stopped} stopped, {rounds.seconds:.0f} s")
    told: dict[tuple[str, str], list[str]] = {}
    for name, stop, what in rounds.problems:
        told.setdefault((name, what.splitlines()[-1][:160]), []).append(stop)
    for (name, what), stops in sorted(told.items(), key=lambda one: -len(one[1])):
        how, at = stops[0].split()[:2]
        lines.append(f"{len(stops)} x {name}: {what}  (--verb '{name}' --how {how} --at {at})")
    sys.stdout.write("\n".join(lines) + "\n")
    if out:
        body = {
            "rounds": dict(rounds.done),
            "stopped": dict(rounds.stopped),
            "problems": rounds.problems,
        }
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(body, indent=1) + "\n")
    return 1 if rounds.problems else 0


if __name__ == "__main__":
    sys.exit(main())
