"""Folders that a stranger packed: links, pipes and devices where our files would be, and what must
not happen when a verb opens them: a user's file changed, a wait without end, more than one line.

`python -m attack.hostile` tries every verb on every such folder, `--first` the likeliest verb.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from attack.syscalls import apart
from attack.verbs import Board, command
from attack.watch import scratch_root

#: Seconds after which a verb hangs; each takes a tenth of one.
MOST_S = 20.0
#: Memory of a verb: a device that never ends must not be read to its end.
MOST_BYTES = 2 << 30
_USERS = ("thesis.tex", "id_rsa", "notes.npz")


@dataclass(frozen=True)
class Site:
    """A folder that was unpacked (`db`, `camp`, a log), and the user's own files beside it."""

    root: Path
    board: Path

    @property
    def user(self) -> Path:
        return self.root / "user"

    def contents(self) -> dict[str, bytes]:
        """Of the user's files by name; what is new there counts too, unless it is our folder."""
        files = [path for path in sorted(self.user.rglob("*")) if path.is_file()]
        mine = [path for path in files if path.name in _USERS or not self.user.is_symlink()]
        return {path.relative_to(self.user).as_posix(): path.read_bytes() for path in mine}


Plant = Callable[[Site], None]

#: What a user types, {r} being the folder with what was unpacked.
DB_VERBS = {
    "query": "query {r}/base.db {b}/q.mtx --platform tiny --op spmm:32",
    "check": "db check {r}/base.db",
    "stat": "db stat {r}/base.db",
    "ingest": "ingest {r}/base.db {b}/log.csv --platform {b}/tiny.toml",
    "import": "db import {r}/base.db {b}/x.jsonl",
    "embed": "embed {r}/base.db --again",
    "rebuild": "db rebuild {r}/base.db",
    "compact": "db compact {r}/base.db",
    "explain": "explain {r}/base.db last",
    "export": "db export {r}/base.db {r}/y.jsonl",
    "report": "report {r}/base.db",
    "models": "db models {r}/base.db",
    "init": "init {r}/base.db",
}
CAMPAIGN_VERBS = {
    "run": "campaign run {r}/base.db {r}/camp --platform {b}/timed.toml --repeats 2 --settle 0",
    "nodes": "campaign run {r}/base.db {r}/camp --platform {b}/timed.toml --repeats 2 --settle 0 "
    "--executor local",
    "collect": "campaign collect {r}/base.db {r}/camp",
    "status": "campaign status {r}/base.db {r}/camp",
}
LOG_VERBS = {
    "ingest": "ingest {r}/base.db {r}/log.csv --platform {b}/tiny.toml",
    "guess": "ingest {r}/base.db {r}/log.csv",
    "index": "index {r}/new.db {r}/log.csv --platform {b}/tiny.toml --matrices {r}/m",
    "import": "db import {r}/base.db {r}/x.jsonl",
    "query": "query {r}/base.db {r}/m/q.mtx --platform tiny --op spmm:32",
    "platform": "platform check {r}/tiny.toml",
    "campaign": "campaign plan {r}/base.db {r}/camp --platform {b}/timed.toml --op spmm:32 "
    "--matrices {r}/m --configs 2 --top 0 --rounds 1",
}


def _link(name: str, to: str) -> Plant:
    """A symbolic link `name` to a user's file or folder, or to an absolute path."""

    def plant(site: Site) -> None:
        path = site.root / name
        _clear(path)
        path.symlink_to(to if to.startswith("/") else os.path.relpath(site.user / to, path.parent))

    return plant


def _hard(name: str, to: str) -> Plant:
    def plant(site: Site) -> None:
        path = site.root / name
        _clear(path)
        path.hardlink_to(site.user / to)

    return plant


def _pipe(name: str) -> Plant:
    def plant(site: Site) -> None:
        _clear(site.root / name)
        os.mkfifo(site.root / name)

    return plant


def _each(ending: str, plant: Callable[[str], Plant]) -> Plant:
    """The same done to every index file with that ending."""

    def all_of(site: Site) -> None:
        for path in sorted((site.root / "base.db" / "index").glob(f"*{ending}")):
            plant(str(path.relative_to(site.root)))(site)

    return all_of


def _clear(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _loop(site: Site) -> None:
    (site.root / "m" / "again").symlink_to(".")
    (site.root / "m" / "round.mtx").symlink_to("round.mtx")


def _foreign(site: Site) -> None:
    """Files of the user's that lie in a folder of ours by mistake, one under a name like ours."""
    shutil.rmtree(site.user)
    folder = site.root / "base.db" / "index"
    folder.mkdir(exist_ok=True)
    for name in ("thesis.tex", "id_rsa", "notes.npz"):
        (folder / name).write_text(f"the user's {name}\n")
    site.user.symlink_to(os.path.relpath(folder, site.root))


DB_PLANTS: dict[str, Plant] = {
    "index is a link": _link("base.db/index", "."),
    "models is a link": _link("base.db/models", "."),
    "writer.lock is a link": _link("base.db/writer.lock", "thesis.tex"),
    "writer.lock is a hard link": _hard("base.db/writer.lock", "thesis.tex"),
    "writer.lock is a pipe": _pipe("base.db/writer.lock"),
    "lock.mdb is a link": _link("base.db/lock.mdb", "thesis.tex"),
    "lock.mdb is a hard link": _hard("base.db/lock.mdb", "thesis.tex"),
    "lock.mdb is a pipe": _pipe("base.db/lock.mdb"),
    "data.mdb is a link": _link("base.db/data.mdb", "data.mdb"),
    "data.mdb is a hard link": _hard("base.db/data.mdb", "data.mdb"),
    "data.mdb is a pipe": _pipe("base.db/data.mdb"),
    "data.mdb is a device": _link("base.db/data.mdb", "/dev/zero"),
    "compact.part is a link": _link("base.db/compact.part", "."),
    "index tables are pipes": _each(".npz", _pipe),
    "index tables are devices": _each(".npz", lambda name: _link(name, "/dev/zero")),
    "indexes are pipes": _each(".faiss", _pipe),
    "indexes are devices": _each(".faiss", lambda name: _link(name, "/dev/zero")),
    "indexes are links": _each(".faiss", lambda name: _link(name, "thesis.tex")),
    "weights are a pipe": _pipe("base.db/models/scnn.safetensors"),
    "weights are a device": _link("base.db/models/scnn.safetensors", "/dev/zero"),
    "a model is a pipe": _pipe("base.db/models/costmodel-tiny-spmm.safetensors"),
    "a model is a device": _link("base.db/models/costmodel-tiny-spmm.safetensors", "/dev/zero"),
    "the user's files in index": _foreign,
}
CAMPAIGN_PLANTS: dict[str, Plant] = {
    "lock is a link": _link("camp/lock", "thesis.tex"),
    "lock is a hard link": _hard("camp/lock", "thesis.tex"),
    "lock is a pipe": _pipe("camp/lock"),
    "results is a link": _link("camp/results", "."),
    "the plan is a pipe": _pipe("camp/plan.json"),
    "the plan is a device": _link("camp/plan.json", "/dev/zero"),
    "the state is a link": _link("camp/state.json", "thesis.tex"),
    "what nodes begin is a link": _link("camp/attempts", "."),
    "what nodes are given is a link": _link("camp/submit", "."),
}
LOG_PLANTS: dict[str, Plant] = {
    "rejects are a link": _link("log.csv.rejects.jsonl", ".bashrc"),
    "rejects are a hard link": _hard("log.csv.rejects.jsonl", ".bashrc"),
    "rejects are a pipe": _pipe("log.csv.rejects.jsonl"),
    "rejects of the import are a link": _link("x.jsonl.rejects.jsonl", ".bashrc"),
    "the log is a pipe": _pipe("log.csv"),
    "the log is a device": _link("log.csv", "/dev/zero"),
    "the export is a pipe": _pipe("x.jsonl"),
    "the export is a device": _link("x.jsonl", "/dev/zero"),
    "a matrix is a pipe": _pipe("m/q.mtx"),
    "a matrix is a device": _link("m/q.mtx", "/dev/zero"),
    "a text matrix is a pipe": _pipe("m/z.txt"),
    "matrices go round": _loop,
    "the platform is a pipe": _pipe("tiny.toml"),
    "the platform is a device": _link("tiny.toml", "/dev/zero"),
}


#: By what was unpacked: what is wrong with it, and what is typed then.
KINDS: dict[str, tuple[dict[str, Plant], dict[str, str]]] = {
    "database": (DB_PLANTS, DB_VERBS),
    "campaign": (CAMPAIGN_PLANTS, CAMPAIGN_VERBS),
    "log": (LOG_PLANTS, LOG_VERBS),
}


def first(kind: str, what: str) -> str:
    """The verb that is likeliest to fall for it."""
    if "nodes" in what:
        return "nodes"
    if kind != "log":
        return {"database": "query", "campaign": "run"}[kind]
    words = {"import": "import", "export": "import", "matri": "index", "platform": "platform"}
    return next((verb for word, verb in words.items() if word in what), "ingest")


def planted(board: Board, folder: Path, plant: Plant) -> Site:
    """A fresh site with one thing wrong."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "user").mkdir(parents=True)
    for name in ("thesis.tex", "id_rsa", ".bashrc"):
        (folder / "user" / name).write_text(f"the user's {name}\n")
    for name in ("base.db", "camp", "m"):
        shutil.copytree(board.root / name, folder / name)
    for name in ("log.csv", "x.jsonl", "tiny.toml"):
        shutil.copy(board.root / name, folder / name)
    shutil.copy(board.root / "q.mtx", folder / "m" / "q.mtx")
    with (folder / "x.jsonl").open("a") as out:  # something to reject, or there is no such file
        out.write('["run",0,0,0,99,["ok",[1.0],"hardware"],"",""]\n')
    shutil.copy(board.root / "base.db" / "data.mdb", folder / "user" / "data.mdb")
    site = Site(folder, board.root)
    plant(site)
    return site


def tried(site: Site, words: str) -> Iterator[str]:
    """What went wrong when that was typed."""
    before = site.contents()
    ended = apart(_bounded(words.format(r=site.root, b=site.board).split()), most_s=MOST_S)
    after = site.contents()
    touched = sorted(n for n in {**before, **after} if before.get(n) != after.get(n))
    if touched:
        yield f"the user's files: {touched}"
    if ended.hung:
        yield f"hangs for {MOST_S:g} s"
    elif ended.signal:
        yield f"ended by {ended.signal}"
    elif "Traceback" in ended.said:
        yield f"traceback: {ended.said[-600:]}"
    elif ended.code not in (0, 1, 2, 3):
        yield f"ended with {ended.code}: {ended.said[-300:]}"


def _bounded(words: list[str]) -> Callable[[Callable[[str], None]], int]:
    inner = command(words)

    def work(acknowledge: Callable[[str], None]) -> int:
        import resource

        with open("/proc/self/statm") as file:  # noqa: PTH123
            held = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (held + MOST_BYTES,) * 2)
        return inner(acknowledge)

    return work


def main(words: Sequence[str] | None = None) -> int:
    from attack.kill import warm

    ask = argparse.ArgumentParser(prog="attack.hostile", description=__doc__)
    ask.add_argument("--kind", action="append", choices=list(KINDS))
    ask.add_argument("--what", default="", help="only those with this text in their name")
    ask.add_argument("--verb", action="append")
    ask.add_argument("--first", action="store_true")
    ask.add_argument("--json", type=Path)
    asked = ask.parse_args(words)
    warm()
    root = Path(tempfile.mkdtemp(prefix="attack-hostile-", dir=scratch_root()))
    found: dict[str, list[str]] = {}
    try:
        board = Board(root / "board").make()
        for kind in asked.kind or KINDS:
            plants, verbs = KINDS[kind]
            for what, plant in plants.items():
                for verb, line in verbs.items():
                    chosen = (
                        verb == first(kind, what) if asked.first else verb in (asked.verb or verbs)
                    )
                    if chosen and asked.what in what:
                        faults = list(tried(planted(board, root / "site", plant), line))
                        found[f"{kind}: {what}: {verb}"] = faults
                        sys.stderr.writelines(f"{kind}: {what}: {verb}: {f}\n" for f in faults)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    bad = sum(map(bool, found.values()))
    sys.stdout.write(f"{len(found)} folders and verbs, {bad} with findings\n")
    if asked.json:
        asked.json.parent.mkdir(parents=True, exist_ok=True)
        asked.json.write_text(json.dumps(found, indent=1) + "\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
