"""`kill -9` while a log is ingested, patterns are embedded and an index is saved.

After every kill: the database opens, nothing is wrong with it, everything acknowledged is there,
nothing is there in part, and a query answers. Children are forked from a server that has the
modules loaded, so that a round costs milliseconds.
"""

from __future__ import annotations

import csv
import json
import multiprocessing
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from builders import OP, VARIANTS, band, by_law, fill, patterns, tiny

from embeddb.core.config import Config
from embeddb.core.records import Measurement, Run
from embeddb.database import Database
from indexer import embed as embed_module
from indexer import ingest as ingest_module
from indexer.embed import embed
from indexer.ingest import ingest
from indexer.readers.base.row import ReadOptions

pytestmark = pytest.mark.slow

ROUNDS = 26
BATCH = 20
ASKED = band(134, 14, name="asked")


@pytest.fixture(scope="module")
def context() -> Iterator[Any]:
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(["test_crash_index", "scipy.sparse", "faiss"])
    yield made
    if before is None:
        del os.environ["OMP_NUM_THREADS"]


class Acks:
    """Words a child said, in a file: what is written there outlives the child."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def say(self, *words: object) -> None:
        line = json.dumps(words).encode() + b"\n"
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(handle, line)
        os.close(handle)

    def heard(self) -> list[list[Any]]:
        return [json.loads(line) for line in self.path.read_bytes().splitlines()]


def killed(
    context: Any,
    work: Callable[..., None],
    folder: Path,
    after_s: float,
    *options: Any,
    lines: int = 1,
) -> list[list[Any]]:
    """What a child said until it was killed, `after_s` seconds after it had said so many lines, the
    first when it had opened the store."""
    acks = Acks(folder.parent / "acks")
    acks.path.unlink(missing_ok=True)
    acks.path.touch()
    process = context.Process(target=work, args=(folder, acks, *options))
    process.start()
    deadline = time.monotonic() + 60
    while acks.path.read_bytes().count(b"\n") < lines and (lines == 1 or process.is_alive()):
        assert time.monotonic() < deadline and process.is_alive(), "the child did not start"
        time.sleep(0.001)
    time.sleep(after_s)
    process.kill()
    process.join(60)
    return acks.heard()[1:]


def answers(db: Database) -> None:
    made = db.query(ASKED, platform=tiny(), op=OP)
    assert made.candidates and db.recommendation(made.id).candidates == made.candidates


# -- ingest ------------------------------------------------------------------------------------


def _write_log(path: Path, number: int) -> int:
    """A log of a hundred new matrices; every seventh row cannot be used. Returns the rows."""
    rows = []
    for at, pattern in enumerate(patterns(25)):
        name, (m, n) = f"{pattern.name}-{number}", pattern.shape
        for v, variant in enumerate(VARIANTS):
            legal = variant if (4 * at + v) % 7 else "z"
            rows.append((name, m, n, pattern.nnz, legal, pattern.group, by_law(pattern, v)))
    with path.open("w", newline="", encoding="utf-8") as out:
        csv.writer(out).writerow(("matrix", "rows", "cols", "nnz", "variant", "group", "time_s"))
        csv.writer(out).writerows(rows)
    return len(rows)


def _ingest(folder: Path, acks: Acks, log: Path) -> None:
    ingest_module.BATCH = BATCH
    with Database.open(folder) as db:
        acks.say("ready")
        options = ReadOptions(op=OP)
        ingest(db.store, log, platform=tiny(), options=options, progress=lambda n: acks.say(n))
        acks.say("done")


def test_a_kill_during_ingest(tmp_path: Path, context: Any) -> None:
    folder, rng = tmp_path / "db", random.Random(1)
    Database.create(folder).close()
    number = finished = in_the_middle = 0
    log = tmp_path / "0.csv"
    total = _write_log(log, 0)
    for _ in range(ROUNDS):
        said = killed(context, _ingest, folder, rng.uniform(0, 0.15), log)
        acknowledged = max([n for (n,) in said if n != "done"], default=0)
        with Database.open(folder) as db:
            assert db.problems() == []
            held = db.store.count_runs() - finished
            marks = [json.loads(m) for m in db.store.journal.items().values()]
            read = sum(m["rows"] for m in marks) - number * total
            rejected = sum(m["rejected"] for m in marks) - number * _bad(total)
            assert read >= acknowledged, "an acknowledged batch is lost"
            assert read % BATCH == 0 or read == total, "a batch is there in part"
            assert held == read - rejected, "rows and runs do not agree"
            assert rejected == _bad(read)
            in_the_middle += 0 < read < total
            embed(db)
            answers(db)
        if read == total:
            lines = (tmp_path / f"{number}.csv.rejects.jsonl").read_text().splitlines()
            assert [json.loads(line)["line"] for line in lines] == [
                at + 2 for at in range(total) if at % 7 == 0
            ]
            finished += total - _bad(total)
            number += 1
            log = tmp_path / f"{number}.csv"
            _write_log(log, number)
    assert in_the_middle > 0, "no kill hit the middle of a file"
    assert finished > 0
    with Database.open(folder) as db:
        found = db.query(ASKED, platform="tiny", op=OP)
        assert (found.link, found.candidates[0].config) == ("neighbours", {"variant": "c"})


def _bad(rows: int) -> int:
    return (rows + 6) // 7


# -- embed -------------------------------------------------------------------------------------


def _embed(folder: Path, acks: Acks) -> None:
    embed_module._BATCH = 4
    with Database.open(folder) as db:
        acks.say("ready")
        embed(db, progress=acks.say)
        acks.say("done", 0, 0)


def test_a_kill_during_embed(tmp_path: Path, context: Any) -> None:
    folder, rng = tmp_path / "db", random.Random(2)
    among = patterns(10)
    with Database.create(folder) as db:
        fill(db, tiny(), among, indexed=False)
    ids = [p.id for p in among]
    halfway = whole = 0
    for _ in range(ROUNDS):
        # By what it said and not by the clock: how long it takes depends on the machine.
        after = rng.randrange(1, 4 * len(among))
        said = killed(context, _embed, folder, rng.uniform(0, 0.003), lines=after)
        with Database.open(folder) as db:
            assert db.problems() == []
            assert db.store.count_runs() == 4 * len(among)
            for name, featurizer in db.featurizers().items():
                stored = db.store.vectors.get(name, featurizer.version, ids)
                done = max([at for what, at, _ in said if what == f"embed with {name}"], default=0)
                assert len(stored) >= done // 4 * 4, "an acknowledged vector is lost"
                halfway += 0 < len(stored) < len(ids)
                for pattern in among[:: max(1, len(among) // 4)]:
                    if pattern.id in stored:
                        assert (stored[pattern.id] == featurizer.embed(pattern)).all()
            answers(db)
            if ["done", 0, 0] in said:
                whole += 1
                assert db.query(ASKED, platform="tiny", op=OP).link == "neighbours"
                db.forget_derived()
    assert halfway > 0, "no kill hit the middle of the work"
    with Database.open(folder) as db:
        embed(db)
        found = db.query(ASKED, platform="tiny", op=OP)
        assert (found.link, found.candidates[0].config) == ("neighbours", {"variant": "c"})
        assert len(list((folder / "index").iterdir())) == 1


# -- saving an index ---------------------------------------------------------------------------


def _refresh(folder: Path, acks: Acks, first: int) -> None:
    pattern = patterns()[0]
    with Database.open(folder) as db:
        acks.say("ready")
        for number in range(first, first + 10_000):
            seconds = Measurement(times_s=(1.0 + number,))
            db.store.append([Run(pattern.id, OP, "tiny", Config({"variant": "d"}), seconds)])
            acks.say("run", number)
            made = db.refresh(OP, "tiny")
            assert made is not None
            acks.say("saved", made.generation)


def test_a_kill_while_an_index_is_saved(tmp_path: Path, context: Any) -> None:
    folder, rng = tmp_path / "db", random.Random(3)
    with Database.create(folder) as db:
        fill(db, tiny(), patterns())
        runs = db.store.count_runs()
    number = saved = behind = left_over = 0
    for _ in range(ROUNDS):
        said = killed(context, _refresh, folder, rng.uniform(0, 0.15), number)
        left_over += len(list((folder / "index").iterdir())) > 1
        with Database.open(folder) as db:
            assert db.problems() == []
            number = db.store.count_runs() - runs
            told = [n for what, n in said if what == "run"]
            assert set(told) <= set(range(number)), "an acknowledged run is lost"
            (note,) = db.partition_notes().values()
            noted = note["generation"]
            assert noted >= max([n for what, n in said if what == "saved"], default=0)
            behind += noted < db.store.generation
            saved += sum(what == "saved" for what, _ in said)
            found = db.partition(OP, tiny())
            assert found is not None and db.repairs() == []
            row = next(
                i for i, r in enumerate(found.evidence.rows) if r.pattern_id == patterns()[0].id
            )
            times = sorted([by_law(patterns()[0], 3), *(1.0 + n for n in range(number))])
            middle = (times[(len(times) - 1) // 2] + times[len(times) // 2]) / 2
            at = [c["variant"] for c in found.evidence.configs].index("d")
            assert found.evidence.times(row)[at] == pytest.approx(middle)  # the newest run counts
            answers(db)
            assert db.query(ASKED, platform="tiny", op=OP).link == "neighbours"
    assert saved > 0 and behind + left_over > 0
    with Database.open(folder) as db:
        db.refresh(OP, "tiny")
        assert len(list((folder / "index").iterdir())) == 1
        assert db.problems() == []
