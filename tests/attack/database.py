"""A small database with something in every table, and verbs asked of it in this process."""

from __future__ import annotations

import atexit
import contextlib
import io
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from attack.watch import scratch_root

#: Verbs that open a database, by a short name; {db}, {matrix} and {out} are filled in.
VERBS = {
    "query": "query {db} {matrix} --platform tiny --op spmm:32",
    "name": "query {db} m0a --platform tiny --op spmm:32",
    "why": "query {db} {matrix} --platform tiny --op spmm:32 --why",
    "explain": "explain {db} last",
    "check": "db check {db}",
    "stat": "db stat {db}",
    "models": "db models {db}",
    "export": "db export {db} {out}/x.jsonl",
    "report": "report {db}",
    "embed": "embed {db}",
    "clusters": "clusters {db} -k 2",
    "rebuild": "db rebuild {db}",
    "compact": "db compact {db}",
    "spy": "plot spy {db} m0a -o {out}/x.svg",
    "nearest": "platform nearest {db} --platform tiny --op spmm:32",
}


def make(folder: Path) -> Path:
    """12 patterns on the platform `tiny`, three stubs of another, an answer; `q.mtx` beside it."""
    import scipy.io
    from builders import OP, band, fill, patterns, runs_of, tiny

    from embeddb.core.records import WorkloadInfo
    from embeddb.database import Database
    from indexer.embed import embed

    asked_for = band(333, 6, name="q")
    scipy.io.mmwrite(folder.parent / "q.mtx", asked_for.to_scipy())
    with _no_weights(), Database.create(folder) as db:
        among = patterns(3)
        fill(db, tiny(), among, indexed=False)
        db.store.put_platform(tiny("other", portable=True))
        db.store.append(
            [run for p in among[:3] for run in runs_of(p, tiny("other"))],
            patterns=[WorkloadInfo(id="f" * 32, name="stub", stub=True)],
        )
        embed(db.index)
        db.query(asked_for, platform="tiny", op=OP)
    return folder


@cache
def base() -> Path:
    """`make` once; a child that is forked later finds it there. Copy it."""
    folder = Path(tempfile.mkdtemp(prefix="attack-base-", dir=scratch_root()))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return make(folder / "base.db")


def with_copy(base: Path, folder: Path) -> Path:
    """A fresh copy of a database."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(base, folder, symlinks=True)
    return folder


def asked(verb: str, db: Path, out: Path) -> tuple[int, str]:
    """Exit code and all that was said; whatever the command line does not turn into
    one line comes out as it is."""
    from embeddb.ui.cli import main

    run: Callable[[list[str]], int] = main._run
    words = VERBS[verb].format(db=db, matrix=base().parent / "q.mtx", out=out).split()
    said: Any = io.StringIO()
    with _no_weights(), contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = run(words)
    told = said.getvalue()
    assert code in (0, 1, 2, 3), f"{verb} ended with {code}"
    assert code in (0, 3) or told.strip(), f"{verb} ended with {code} and said nothing"
    return code, told


@contextlib.contextmanager
def _no_weights() -> Iterator[None]:
    """Embedding with the shipped network takes a tenth of a second, and is no subject here."""
    from embeddb.featurizers import scnn

    before, scnn.SHIPPED = scnn.SHIPPED, Path("/none.safetensors")
    try:
        yield
    finally:
        scnn.SHIPPED = before
