"""The verbs that write, each on a small board, and what a database holds before and after."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attack.syscalls import Ended, apart

Work = Callable[[Callable[[str], None]], int]
_SPACE = "--platform {b}/tiny.toml"
_TIMED = "--platform {b}/timed.toml --op spmm:32"
_ROWS_A_WRITE = 50


@dataclass(frozen=True)
class Verb:
    """`words` with {b} for the board's folder and {r} for that of the round; `copies` of the board
    that the round begins with; `before` are commands run first, each to its end.

    `answers`: the database answers before, and so it must at any moment. `exact`: repeated to its
    end it gives what an uninterrupted run gives. `file` is written beside the database, whole or
    not at all (where it is not `exact`, of the same size). `fine` are the exit codes of a
    repetition.
    """

    name: str
    words: str
    copies: Sequence[str] = ("base.db",)
    before: Sequence[str] = ()
    db: str = "base.db"
    answers: bool = True
    exact: bool = True
    file: str = ""
    fine: frozenset[int] = frozenset({0})
    again: str = ""
    acknowledges: bool = False
    nightly: bool = False
    #: Needs these packages.
    needs: Sequence[str] = ()


VERBS = (
    Verb("init", "init {r}/new.db", (), db="new.db", answers=False, fine=frozenset({0, 1})),
    Verb("ingest", f"ingest {{r}}/new.db {{r}}/log.csv {_SPACE}", ("log.csv",),
         ("init {r}/new.db",), db="new.db", answers=False, acknowledges=True,
         file="log.csv.rejects.jsonl"),
    Verb("index", f"index {{r}}/new.db {{r}}/log.csv {_SPACE} --matrices {{b}}/m", ("log.csv",),
         db="new.db", answers=False),
    Verb("import", "db import {r}/new.db {r}/x.jsonl", ("x.jsonl",), db="new.db", answers=False),
    Verb("import into", "db import {r}/base.db {r}/x.jsonl", ("x.jsonl", "base.db")),
    Verb("embed", "embed {r}/base.db --again"),
    Verb("rebuild", "db rebuild {r}/base.db"),
    Verb("compact", "db compact {r}/base.db"),
    Verb("query", "query {r}/base.db {b}/q.mtx --platform tiny --op spmm:32"),
    Verb("query measured", f"query {{r}}/base.db {{b}}/m/m0a.mtx {_TIMED} --measure",
         fine=frozenset({0, 3}), exact=False),
    Verb("measure", f"measure {{r}}/base.db {{b}}/m/m0a.mtx {_TIMED} --configs 3 --repeats 2",
         exact=False),
    Verb("plan", f"campaign plan {{r}}/base.db {{r}}/camp {_TIMED} --matrices {{b}}/m2 --configs 3 "
         "--top 0 --rounds 1", file="camp/plan.json"),
    Verb("run", "campaign run {r}/base.db {r}/camp --platform {b}/timed.toml --repeats 2 "
         "--settle 0", ("base.db", "camp"), exact=False),
    Verb("resume", "campaign resume {r}/base.db {r}/camp --platform {b}/timed.toml --repeats 2 "
         "--settle 0", ("base.db", "camp"), exact=False),
    Verb("export", "db export {r}/base.db {r}/y.jsonl", file="y.jsonl"),
    Verb("withdraw", "db withdraw {r}/base.db --platform tiny --yes", fine=frozenset({0, 3}),
         answers=False),
    Verb("calibrate", "calibrate {r}/base.db --platform cpu --op spmm:32 --minutes 0.1 "
         "--matrices {b}/m2", exact=False, nightly=True, needs=("gcc",)),
    Verb("train featurizer", "train featurizer {b}/m -o {r}/f.safetensors --epochs 3 --copies 0 "
         "--batch 4 --threads 1 --seed 5", again=" --resume", file="f.safetensors", nightly=True,
         exact=False,
         needs=("torch", "safetensors")),
    Verb("train costmodel", "train costmodel {r}/base.db --platform {b}/tiny.toml --op spmm:32 "
         "--predictor mlp --latent pca --epochs 3 --members 1 --no-judge", again=" --resume",
         nightly=True, needs=("torch", "safetensors"), exact=False),
)  # fmt: skip

_TIMED_TOML = """
name = "timed"
version = "1"
title = "A program that says how long it took"
simulated = true
runner = "command"

[command]
run = ["/bin/sh", "-c", "echo t=1.5", "{config.variant}", "{matrix}"]
time = { regex = 't=(\\S+)', unit = "ms" }

[[space]]
kernels = ["spmm"]

[space.params]
variant = { type = "choice", values = ["a", "b", "c", "d"] }

[space.default]
variant = "a"
"""


def command(words: Sequence[str]) -> Work:
    """`embeddb WORDS` in a child that was forked; small transactions, so that there are many."""

    def work(acknowledge: Callable[[str], None]) -> int:
        import indexer.exchange.importer as importer
        import indexer.ingest as ingest
        from embeddb.featurizers import scnn
        from embeddb.ui.cli import main

        scnn.SHIPPED = Path("/none.safetensors")
        ingest.BATCH = _ROWS_A_WRITE
        importer._BATCH = _ROWS_A_WRITE  # type: ignore[attr-defined]
        run: Callable[[list[str]], int] = main._run
        return run(list(words))

    return work


def ingesting(words: Sequence[str]) -> Work:
    """`ingest`, which says how many rows are stored each time some are."""

    def work(acknowledge: Callable[[str], None]) -> int:
        import indexer.ingest as ingest
        from embeddb.core.errors import EmbeddbError
        from embeddb.database import Database
        from embeddb.platforms.platform import load_platform

        ingest.BATCH = _ROWS_A_WRITE
        _, db, log, _, platform = words
        try:
            with Database.open(db) as opened:
                ingest.ingest(
                    opened.store, Path(log), reader="csv", platform=load_platform(platform),
                    progress=lambda rows: acknowledge(f"{rows}\n"),
                )  # fmt: skip
        except EmbeddbError as error:
            sys.stderr.write(f"{error}\n")
            return error.exit_code
        return 0

    return work


def state_of(folder: Path) -> dict[str, Any]:
    """Ids of runs, sizes of patterns, counts, and what is answered; made in a child."""

    def work(acknowledge: Callable[[str], None]) -> int:
        from builders import OP, band

        from embeddb.core.errors import EmbeddbError
        from embeddb.database import Database
        from embeddb.featurizers import scnn

        scnn.SHIPPED = Path("/none.safetensors")
        with Database.open(folder, readonly=True) as db:
            parts = db.store.partitions()
            body: dict[str, Any] = {
                "runs": sorted(r.id for p in parts for r in db.store.runs(p.platform, p.op)),
                "patterns": sorted([i.id, i.m, i.n, i.nnz] for i in db.store.patterns()),
                "counts": db.store.counts(),
                "platforms": db.store.platforms(),
            }
            try:
                made = db.query(band(333, 6, name="q"), platform="tiny", op=OP)
                body["answer"] = [made.link, *(str(c.config) for c in made.candidates)]
            except EmbeddbError as error:
                body["answer"] = [f"refused: {error}"]
        acknowledge(json.dumps(body))
        return 0

    ended = apart(work)
    if ended.code:
        return {"fault": ended.said[-800:]}
    found: dict[str, Any] = json.loads(ended.acknowledged)
    return found


@dataclass
class Board:
    """What the rounds begin with, made once below `root`."""

    root: Path
    good_rows: int = 0
    bad_rows: int = 0
    #: Lines of the log that cannot be used, by number from 1.
    bad_lines: set[int] = field(default_factory=set)

    def make(self) -> Board:
        self.root.mkdir(parents=True, exist_ok=True)
        ended = apart(self._files, most_s=120)
        assert ended.code == 0, ended.said
        self._log()
        for words in (
            f"db export {self.root}/full.db {self.root}/x.jsonl",
            f"campaign plan {self.root}/base.db {self.root}/camp {_TIMED} --matrices "
            f"{self.root}/m2 --configs 3 --top 0 --rounds 1".format(b=self.root),
        ):
            ended = apart(command(words.split()), most_s=120)
            assert ended.code == 0, (words, ended.said)
        return self

    def _files(self, _: Callable[[str], None]) -> int:
        import scipy.io
        from builders import band, by_law, fill, patterns, runs_of, tiny

        from embeddb.database import Database
        from embeddb.featurizers import scnn

        scnn.SHIPPED = Path("/none.safetensors")
        for name, among in (("m", patterns(3)), ("m2", patterns(1)[:3])):
            (self.root / name).mkdir()
            for one in among:
                scipy.io.mmwrite(self.root / name / f"{one.name}.mtx", one.to_scipy())
        scipy.io.mmwrite(self.root / "q.mtx", band(333, 6).to_scipy())
        (self.root / "tiny.toml").write_text(tiny().text)
        (self.root / "timed.toml").write_text(_TIMED_TOML)
        with Database.create(self.root / "base.db") as db:
            fill(db, tiny(), patterns(3))
        with Database.create(self.root / "full.db") as db:
            fill(db, tiny(), patterns(4))
            from dataclasses import replace

            for at in range(4):
                times = lambda p, v, at=at: by_law(p, v) * (1.001 + at / 1000)  # noqa: E731
                runs = [r for p in patterns(4) for r in runs_of(p, tiny(), times=times)]
                db.store.append(replace(run, campaign="law") for run in runs)
        return 0

    def _log(self) -> None:
        from builders import by_law, patterns

        lines = ["matrix,op,variant,time_s"]
        for repeat in range(8):
            for pattern in patterns(3):
                for variant in range(4):
                    time_s = f"{by_law(pattern, variant) * (1 + 0.001 * repeat):.9g}"
                    if len(lines) % 33 == 0:
                        time_s = "oops"
                        self.bad_lines.add(len(lines))
                    lines.append(f"{pattern.name},spmm:32,{'abcd'[variant]},{time_s}")
        self.bad_rows = len(self.bad_lines)
        self.good_rows = len(lines) - 1 - self.bad_rows
        (self.root / "log.csv").write_text("\n".join(lines) + "\n")

    def round(self, verb: Verb, folder: Path) -> Path:
        """A fresh folder for one round of a verb."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name in verb.copies:
            source = self.root / name
            if source.is_dir():
                shutil.copytree(source, folder / name)
            else:
                shutil.copy(source, folder / name)
        for words in verb.before:
            ended = self.run(words, folder)
            assert ended.code == 0, ended.said
        return folder

    def words(self, text: str, folder: Path) -> list[str]:
        return text.format(b=self.root, r=folder).split()

    def run(self, text: str, folder: Path, *, most_s: float = 120) -> Ended:
        """To its end, in a child."""
        return apart(command(self.words(text, folder)), most_s=most_s)

    def work(self, verb: Verb, folder: Path, *, again: bool = False) -> Work:
        words = self.words(verb.words + (verb.again if again else ""), folder)
        return ingesting(words) if verb.acknowledges and not again else command(words)
