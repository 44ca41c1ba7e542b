"""From patterns to vectors to partitions: nothing twice, nothing lost, everything made anew."""

from __future__ import annotations

import gc
import re
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import CONFIGS, OP, band, fill, patterns, runs_of, tiny

from embeddb.core.config import Op
from embeddb.core.errors import EmbeddbError
from embeddb.core.records import Measurement, Run, WorkloadInfo
from embeddb.database import Database
from embeddb.featurizers import reads, stats
from indexer import embed as module
from indexer.embed import adopt_stubs, embed
from indexer.library import Library


def _stub(name: str, *, op: Op = OP, **known: Any) -> tuple[WorkloadInfo, list[Run]]:
    info = WorkloadInfo(id=name.encode().hex().ljust(32, "0"), name=name, stub=True, **known)
    return info, [Run(info.id, op, "tiny", c, Measurement(times_s=(1.0,))) for c in CONFIGS]


def test_every_featurizer_embeds_what_it_can_read() -> None:
    db = fill(Database.in_memory(), tiny(), patterns(2), indexed=False)
    named, runs = _stub("named")
    sized, more = _stub("sized", m=9, n=9, nnz=20)
    db.store.append([*runs, *more], patterns=[named, sized])
    report = embed(db.index)
    plain = {name: report.vectors[name] for name in ("stats", "given", "rows", "sizes")}
    assert plain == {"stats": 8, "given": 8, "rows": 8, "sizes": 9}
    (partition,) = report.partitions
    assert partition["patterns"] == 10 and report.problems == []


def test_nothing_is_embedded_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    db = fill(Database.in_memory(), tiny(), patterns(1))
    done: list[str] = []
    real = stats.Stats.embed
    monkeypatch.setattr(
        stats.Stats, "embed", lambda self, p: (done.append(p.name), real(self, p))[1]
    )
    embed(db.index)
    assert done == []
    new = band(137, 14, name="new")
    db.store.put_structure(new, WorkloadInfo.whole(new))
    assert embed(db.index).vectors["stats"] == 5
    assert done == ["new"]


def test_stored_vectors_are_those_of_the_structure() -> None:
    db = fill(Database.in_memory(), tiny(), patterns(2))
    able = {name: f for name, f in db.index.featurizers().items() if reads(f, "matrix")}
    assert {"stats", "sizes"} <= able.keys()
    for name, featurizer in able.items():
        stored = db.store.vectors.get(name, featurizer.version, [p.id for p in patterns(2)])
        for pattern in patterns(2):
            assert np.array_equal(stored[pattern.id], featurizer.embed(pattern)), name


@pytest.mark.parametrize("batch", [1, 3, 100])
def test_batches(monkeypatch: pytest.MonkeyPatch, batch: int) -> None:
    monkeypatch.setattr(module, "_BATCH", batch)
    db = fill(Database.in_memory(), tiny(), patterns(2))
    assert db.store.counts()["vector"] == 5 * 8


def test_it_goes_on_after_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BATCH", 2)
    db = fill(Database.in_memory(), tiny(), patterns(2), indexed=False)
    real, left = stats.Stats.embed, [5]

    def failing(self: Any, pattern: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return real(self, pattern)

    monkeypatch.setattr(stats.Stats, "embed", failing)
    with pytest.raises(KeyboardInterrupt):
        embed(db.index)
    assert db.store.counts()["vector"] == 4
    left[0] = 100
    assert embed(db.index).vectors["stats"] == 8
    assert left[0] == 100 - 4  # the four that were stored are not made again


def test_again_makes_everything_anew(tmp_path: Path) -> None:
    with Database.create(tmp_path / "db") as db:
        fill(db, tiny(), patterns(2))
        new = band(137, 14, name="new")
        before = db.query(new, platform="tiny", op=OP)
        for file in (tmp_path / "db" / "index").iterdir():
            file.write_bytes(b"damaged")
        report = embed(db.index, again=True)
        assert report.vectors["stats"] == 8 and db.problems() == []
        after = db.query(new, platform="tiny", op=OP)
        assert after.candidates == before.candidates and after.neighbours == before.neighbours


def test_what_no_featurizer_can_read_is_said() -> None:
    db = Database.in_memory()
    db.store.put_platform(tiny())
    info, runs = _stub("named")
    db.store.append(runs, patterns=[info])
    report = embed(db.index)
    assert report.partitions == []
    assert report.problems == ["spmm:32 on tiny: no featurizer can read its patterns"]


class Own(stats.Stats):
    """A featurizer from outside, since a fault of one that ships is not reported as a plug-in's."""


def odd(_: Any) -> Any:
    raise ValueError("odd\nlength")


@pytest.mark.parametrize(
    ("vector", "fault"),
    [
        (odd, r"it raised ValueError: odd length \(test_embed.py, line \d+\)"),
        (lambda right: right[:3], r"its vector is float32\[3\], not float32\[\d+\]"),
        (lambda right: right.astype(np.float64), r"its vector is float64\[\d+\], not float32"),
        (lambda right: np.full_like(right, np.nan), "its vector is not finite"),
        (lambda right: list(right), r"its vector is list\[\d+\], not float32"),
        (lambda right: None, "embed returned None"),
        (lambda right: sys.exit(3), r"it raised SystemExit: 3 \(test_embed.py, line \d+\)"),
    ],
)
def test_a_faulty_featurizer_is_named_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, vector: Callable[[Any], Any], fault: str
) -> None:
    db = fill(Database.in_memory(), tiny(), patterns(2), indexed=False)
    real, bad = stats.Stats.embed, [p.name for p in patterns(2)][:2]
    monkeypatch.setattr(stats, "PLUGIN", Own)
    monkeypatch.setattr(
        Own,
        "embed",
        lambda self, p: vector(real(self, p)) if p.name in bad else real(self, p),
    )
    report = embed(db.index)
    (problem,) = report.problems
    named = "|".join(bad)
    line = rf"featurizer stats, on ({named}): {fault}.*; 2 patterns not embedded by it"
    assert re.fullmatch(line, problem), problem
    assert (report.vectors["stats"], report.vectors["sizes"]) == (6, 8)
    assert len(report.partitions) == 1


#: A featurizer in a file, with something wrong added after it.
MINE = """
import numpy as np

class PLUGIN:
    name, version, names, dim = "mine", "1", ("a",), 1
    def embed(self, pattern): return np.ones(1, np.float32)
    def from_info(self, info): return None

"""


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("import nothing_of_this_name", "No module named 'nothing_of_this_name'"),
        ("1 // 0", "integer division"),
        ("raise SystemExit('no licence')", "no licence"),
        ("del PLUGIN", "no attribute 'PLUGIN'"),
        ("PLUGIN = PLUGIN()", "it raised TypeError: 'PLUGIN' object is not callable"),
        ("PLUGIN.__init__ = lambda self, path: None", "it raised TypeError"),
        ("PLUGIN.version = 1", "its `version` is 1"),
        ("PLUGIN.name = 'stats'", "its `name` is 'stats'"),
        ("del PLUGIN.from_info", "its `from_info` is None"),
        ("PLUGIN.missing = lambda self: 1 // 0", "its `missing` raised ZeroDivisionError"),
    ],
)
def test_a_featurizer_that_cannot_be_used_is_named_and_the_others_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str, said: str
) -> None:
    (tmp_path / "featurizers").mkdir()
    (tmp_path / "featurizers" / "mine.py").write_text(MINE + wrong)
    monkeypatch.setenv("EMBEDDB_PLUGINS", str(tmp_path))
    db = fill(Database.in_memory(), tiny(), patterns(2), indexed=False)
    report = embed(db.index)
    (problem,) = report.problems
    assert problem.startswith("mine: ") and said in problem
    assert report.vectors["stats"] == 8
    name = next(iter(db.store.patterns())).name
    assert db.query(name, platform="tiny", op=OP).candidates
    if "missing" not in wrong:
        with pytest.raises(EmbeddbError, match=re.escape(said)):
            db.index.featurizers().named("mine")


def test_a_vector_in_shared_memory_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "featurizers").mkdir()
    shared = MINE + (
        "class PLUGIN(PLUGIN):\n"
        "    room = np.zeros(1, np.float32)\n"
        "    def embed(self, pattern):\n"
        "        self.room[0] = pattern.nnz\n"
        "        return self.room\n"
    )
    (tmp_path / "featurizers" / "mine.py").write_text(shared)
    monkeypatch.setenv("EMBEDDB_PLUGINS", str(tmp_path))
    db = fill(Database.in_memory(), tiny(), patterns(2), indexed=False)
    assert embed(db.index).vectors["mine"] == 8
    infos = {info.id: info.nnz for info in db.store.patterns()}
    stored = db.store.vectors.get("mine", "1", list(infos), dim=1)
    assert {one: int(vector[0]) for one, vector in stored.items()} == infos


def test_faults_of_a_featurizer_hold_no_workload(monkeypatch: pytest.MonkeyPatch) -> None:
    class Odd(ValueError): ...

    raised: list[weakref.ref[Odd]] = []
    held: list[int] = []

    def faulty(self: Any, pattern: Any) -> Any:
        gc.collect()
        held.append(sum(one() is not None for one in raised))
        error = Odd()
        raised.append(weakref.ref(error))
        raise error

    monkeypatch.setattr(stats, "PLUGIN", Own)
    monkeypatch.setattr(Own, "embed", faulty)
    db = fill(Database.in_memory(), tiny(), patterns(2), indexed=False)
    (problem,) = embed(db.index).problems
    assert "Odd" in problem and problem.endswith("; 8 patterns not embedded by it")
    assert held == [0] * 8


def test_our_own_fault_in_a_featurizer_is_not_a_plug_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats.Stats, "embed", lambda self, p: odd(p))
    db = fill(Database.in_memory(), tiny(), patterns(1), indexed=False)
    with pytest.raises(ValueError, match="odd"):
        embed(db.index)


def test_progress_is_told() -> None:
    db = fill(Database.in_memory(), tiny(), patterns(1), indexed=False)
    seen: list[tuple[str, int, int]] = []
    embed(db.index, progress=lambda *a: seen.append(a))
    assert [s for s in seen if s[0] == "embed with stats"] == [
        ("embed with stats", at, 4) for at in (1, 2, 3, 4)
    ]
    assert any(what.startswith("index spmm:32 on tiny") for what, _, _ in seen)


def test_every_scope_gets_its_partition() -> None:
    db = fill(Database.in_memory(), tiny(), patterns(1), indexed=False)
    fill(db, tiny(), patterns(1), op=Op("spmm", 64), indexed=False)
    pair = tiny("pair", portable=True)
    fill(db, pair.at("one"), patterns(1), indexed=False)
    fill(db, pair.at("two"), patterns(1), indexed=False)
    report = embed(db.index)
    found = [(p["op"], p["scope"]) for p in report.partitions]
    assert found == [("spmm:32", "pair"), ("spmm:32", "tiny"), ("spmm:64", "tiny")]


def test_stubs_of_known_features_answer_without_structure() -> None:
    """A store of which no matrix was ever seen: neighbours by what came with the runs."""
    db = Database.in_memory()
    db.store.put_platform(tiny())
    for pattern in patterns():
        m, n = pattern.shape
        info, _ = _stub(pattern.name, m=m, n=n, nnz=pattern.nnz, group=pattern.group)
        runs = [
            Run(info.id, OP, "tiny", run.config, run.measurement)
            for run in runs_of(pattern, tiny())
        ]
        db.store.append(runs, patterns=[info])
    report = embed(db.index)
    assert report.partitions[0]["featurizer"] == "sizes"
    assert report.partitions[0]["indexed"] == 20
    made = db.query(band(137, 14, name="new"), platform="tiny", op=OP)
    assert (made.link, made.candidates[0].config) == ("neighbours", {"variant": "c"})
    stub = WorkloadInfo(id="ef" * 16, m=137, n=137, nnz=137 * 30, name="sized", stub=True)
    assert db.query(stub, platform="tiny", op=OP).candidates[0].config == {"variant": "d"}


def test_adoption_moves_runs_and_keeps_the_family(tmp_path: Path) -> None:
    from scipy.io import mmwrite

    db = Database.in_memory()
    db.store.put_platform(tiny())
    pattern = patterns(1)[2]
    mmwrite(tmp_path / "m0c.mtx", pattern.to_scipy(), field="pattern")
    info, runs = _stub("m0c", m=pattern.shape[0], group="family")
    other, more = _stub("elsewhere")
    db.store.append([*runs, *more], patterns=[info, other])
    assert adopt_stubs(db.index, Library(tmp_path)) == 4
    found = db.store.pattern(pattern.id)
    assert found is not None and found.group == "family" and not found.stub
    assert db.store.resolve(info.id) == pattern.id
    assert len(list(db.store.runs("tiny", OP, pattern.id))) == 4
    assert [i.name for i in db.store.patterns() if i.stub] == ["elsewhere"]
    assert adopt_stubs(db.index, Library(tmp_path)) == 0
    assert db.problems() == []
