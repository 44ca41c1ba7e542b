"""Verbs on a file system that is really full: tmpfs, and ext4 in a file where that can be mounted.

`python -m attack.full`. A full disk is not only an error from a call: a page of a sparse file that
is mapped ends a process by a signal. Needs root; only this process sees the mounts, and they end
with it.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from attack.kill import warm
from attack.rounds import usable
from attack.syscalls import Ended, apart, libc
from attack.verbs import VERBS, Board, Verb, command, state_of
from attack.watch import scratch_root

#: By name: bytes, and how it is made in a file ("" in memory).
SYSTEMS = {"tmpfs": (4 << 20, ""), "ext4": (12 << 20, "mkfs.ext4")}
#: Exit code where such a file system cannot be mounted.
CANNOT = 77
_NEWNS = 0x20000


def missing(system: str) -> str:
    """Why such a file system cannot be mounted here; empty if it can."""
    if os.geteuid() != 0:
        return "mounting needs root"
    made_by = SYSTEMS[system][1]
    if made_by and not (shutil.which(made_by) and Path("/dev/loop-control").exists()):
        return f"needs {made_by} and loop devices"
    ended = apart(lambda _: _try(system), most_s=20)
    return "" if ended.code == 0 else f"cannot be mounted here: {ended.said.strip()[-100:]}"


def _try(system: str) -> int:
    root = Path(tempfile.mkdtemp())
    try:
        with mounted(system, root):
            return 0
    finally:
        shutil.rmtree(root, ignore_errors=True)


@contextmanager
def mounted(system: str, root: Path) -> Iterator[Path]:
    """A small file system of its own."""
    size, made_by = SYSTEMS[system]
    if libc().unshare(_NEWNS):
        raise OSError(ctypes.get_errno(), "unshare")
    _run("mount", "--make-rprivate", "/")
    place = root / "mnt"
    place.mkdir(parents=True, exist_ok=True)
    if made_by:
        image = root / "image"
        with image.open("wb") as out:
            out.truncate(size)
        _run(made_by, "-q", "-F", "-m", "0", str(image))
        _run("mount", "-o", "loop", str(image), str(place))
    else:
        _run("mount", "-t", system, "-o", f"size={size}", system, str(place))
    try:
        yield place
    finally:
        _run("umount", "-l", str(place))


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


def filled(place: Path) -> Path:
    """A file that takes what is left, to the last byte."""
    path = place / "filler"
    with path.open("wb", buffering=0) as out:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while out.write(b"\0" * size):
                    pass
            except OSError:
                continue
    return path


def tried(board: Board, verb: Verb, place: Path) -> Iterator[str]:
    """What went wrong with a verb on the full disk, and once there is space again."""
    folder = board.round(verb, place / "round")
    before = state_of(folder / verb.db) if verb.answers else {}
    filler = filled(place)
    yield from _faults(apart(board.work(verb, folder), most_s=60))
    filler.unlink()
    db = folder / verb.db
    if (db / "data.mdb").exists() and before:
        checked = board.run(f"db check {db}", folder)
        if checked.code:
            yield f"db check: {checked.said.strip()[-300:]}"
        now = state_of(db)
        if set(before["runs"]) - set(now.get("runs", ())):
            yield "runs of before are gone"
        if now.get("answer") != before["answer"]:
            yield f"answers {now.get('answer')}"
    again = apart(board.work(verb, folder), most_s=60)
    if again.code not in verb.fine - ({1} if verb.name == "init" else set()):
        said = again.said.strip()[-300:]
        yield f"with space again it ends with {again.code} {again.signal}: {said}"
    shutil.rmtree(folder)


def measured(board: Board, place: Path) -> Iterator[str]:
    """Measuring with a full folder for temporary files: nothing about the machine is kept as a
    property of a configuration."""
    verb = next(one for one in VERBS if one.name == "run")
    folder = board.round(verb, board.root / "round")
    filler = filled(place)
    full = {"TMPDIR": str(place), "XDG_CACHE_HOME": str(place)}
    ended = apart(_with(full, command(board.words(verb.words, folder))), most_s=60)
    yield from _faults(ended)
    filler.unlink()
    failed = apart(lambda acknowledge: _failed(folder / verb.db, acknowledge))
    if failed.acknowledged:
        yield f"kept as failures of configurations: {failed.acknowledged}"


def _with(
    changes: dict[str, str], work: Callable[[Callable[[str], None]], int]
) -> Callable[[Callable[[str], None]], int]:
    def inner(acknowledge: Callable[[str], None]) -> int:
        os.environ.update(changes)
        tempfile.tempdir = None
        return work(acknowledge)

    return inner


def _failed(db: Path, acknowledge: Callable[[str], None]) -> int:
    from embeddb.database import Database

    with Database.open(db, readonly=True) as opened:
        for part in opened.store.partitions():
            for run in opened.store.runs(part.platform, part.op):
                if run.measurement.status != "ok":
                    acknowledge(f"{run.measurement.status} ")
    return 0


def _faults(ended: Ended) -> Iterator[str]:
    if ended.hung:
        yield "hangs"
    elif ended.signal:
        yield f"ended by {ended.signal}: {ended.said[-200:]}"
    elif "Traceback" in ended.said:
        yield f"traceback: {ended.said[-500:]}"
    elif ended.code not in (0, 1, 3):
        yield f"ends with {ended.code}: {ended.said[-200:]}"


def main(words: Sequence[str] | None = None) -> int:
    ask = argparse.ArgumentParser(prog="attack.full", description=__doc__)
    ask.add_argument("--system", choices=list(SYSTEMS), default="tmpfs")
    ask.add_argument("--verb", action="append", choices=[v.name for v in VERBS])
    asked = ask.parse_args(words)
    if missing(asked.system):
        sys.stdout.write(f"{missing(asked.system)}\n")
        return CANNOT
    warm()
    root = Path(tempfile.mkdtemp(prefix="attack-full-", dir=scratch_root()))
    found = []
    try:
        board = Board(root / "board").make()
        with mounted(asked.system, root) as place:
            for verb in VERBS:
                if usable(verb) and verb.name in (asked.verb or [verb.name]):
                    found += [f"{verb.name}: {fault}" for fault in tried(board, verb, place)]
            found += [f"measuring: {fault}" for fault in measured(board, place)]
    finally:
        shutil.rmtree(root, ignore_errors=True)
    sys.stdout.write("\n".join([*found, f"{asked.system}: {len(found)} findings"]) + "\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
