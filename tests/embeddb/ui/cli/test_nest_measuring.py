"""`nest measure`, `nest count`, `train nests`: what people type to fill and to learn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import run_verb
from nest_weights import write_weights

from embeddb.core.config import Op
from embeddb.core.errors import NestError
from embeddb.core.timing import state_of
from embeddb.database import open_database
from embeddb.store.counters import counters_of, counting_platforms
from indexer.nest_runs import counted

PROGRAM = """
#define N 24
float C[N][N], A[N][N], B[N][N];
void product(void) {
#pragma scop
for (int i = 0; i < N; i++)
  for (int j = 0; j < N; j++)
    for (int k = 0; k < N; k++)
      C[i][j] += A[i][k] * B[k][j];
#pragma endscop
}
"""


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    capsys.readouterr()
    assert run_verb(words) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    capsys.readouterr()
    return run_verb(words), capsys.readouterr().err


@pytest.fixture
def program(tmp_path: Path) -> str:
    (tmp_path / "product.c").write_text(PROGRAM)
    return str(tmp_path / "product.c")


@pytest.mark.gcc
def test_what_is_measured_is_not_measured_again(
    tmp_path: Path, program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("nest", "measure", str(tmp_path / "n.db"), program, "--designed", "3")
    words += ("--searched", "4", "--repeats", "1", "--json")
    first = printed(capsys, *words)
    assert (first["nests"], first["measured"], first["known"]) == (1, 1, 0)
    again = printed(capsys, *words)
    assert (again["measured"], again["known"], again["runs"]) == (0, 1, 0)
    with open_database(tmp_path / "n.db") as db:
        (partition,) = db.store.partitions()
        runs = list(db.store.runs(partition.platform, Op("nest")))
    assert len(runs) == first["runs"] and {run.measurement.status for run in runs} == {"ok"}
    # The default, the designed ones and the search; the best of them and the default twice more.
    assert len({run.config for run in runs}) >= 4 and len(runs) > len({run.config for run in runs})
    code = run_verb(["query", words[2], program, "--platform", "nest-cpu", "--op", "nest"])
    assert code == 0, "it can be asked at once"


@pytest.mark.gcc
def test_counters_are_kept_beside_the_run(
    tmp_path: Path, program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    db = str(tmp_path / "n.db")
    words = ("nest", "count", db, program, "--source", "model", "--threads", "1", "--json")
    assert run_verb([*words[:-1]]) == 0
    assert capsys.readouterr().out == "1 nest counted of 1\n"
    assert printed(capsys, *words)["counted"] == 0, "what was counted is left out"
    assert run_verb([*words[:-1]]) == 0
    assert "0 nests counted of 1; the others were counted before" in capsys.readouterr().out
    with open_database(db) as opened:
        (place,) = counting_platforms(opened.store)
        (found,) = counted(opened.store, place)
        assert found.counters.source == "model" and found.seconds > 0
        assert found.counters.of("f32_scalar") == 2 * 24**3
        (run,) = opened.store.runs(place, Op("nest"), found.nest.id)
        assert state_of(run.measurement.context), "a count under load can be left out"
        opened.store.notes.put(f"counters/{found.nest.id}/{place}", b'{"counters": 9}')
        with pytest.raises(NestError, match=f"counters of {found.nest.id}"):
            counters_of(opened.store, found.nest.id, place)


@pytest.mark.gcc
def test_a_nest_is_counted_before_it_is_asked_about(
    tmp_path: Path,
    program: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shipped = write_weights(tmp_path / "weights.safetensors")
    monkeypatch.setattr("embeddb.featurizers.nest_embedding.SHIPPED", shipped)
    monkeypatch.setattr("embeddb.index.fit._preferred", lambda tried, _: list(tried)[-1])
    db, near, page = (str(tmp_path / name) for name in ("n.db", "near.c", "why.html"))
    Path(near).write_text(PROGRAM.replace("24", "20"))
    words = ("--designed", "3", "--searched", "2", "--repeats", "1", "--threads", "1")
    assert run_verb(["nest", "measure", db, near, *words]) == 0
    ask = ("query", db, program, "--platform", "nest-cpu", "--op", "nest", "--threads", "1")

    def answer(*more: str) -> Any:
        """Whichever ran fastest, the default among them, which is code 3."""
        capsys.readouterr()
        assert run_verb([*ask, *more, "--json"]) in (0, 3)
        return json.loads(capsys.readouterr().out)

    plain = answer()
    assert plain["counters"] is None and plain["featurizer"] == "nest-stats"
    first = answer("--count")["counters"]
    assert not first["used"] and first["reason"].startswith("only 0 of 1 measured nests")
    words = ("nest", "count", db, "--source", "model", "--threads", "1", "--json")
    told = printed(capsys, *words)
    assert (told["nests"], told["counted"]) == (2, 1), "the asked one was counted before"
    made = answer("--count")
    assert made["counters"] == {"source": "model", "used": True, "reason": ""}
    assert made["featurizer"] == f"nest-embedding+counters@{made['platform']}"
    with open_database(db) as opened:
        assert len(counting_platforms(opened.store)[made["platform"]]) == 2
    assert printed(capsys, "explain", db, "last", "--json")["counters"]["used"] is True
    assert run_verb(["explain", db, "last", "--html", page]) == 0
    assert "by what was counted in modelled caches" in Path(page).read_text()
    capsys.readouterr()
    assert run_verb(["explain", db, "last"]) == 0
    shown = capsys.readouterr().out
    assert "neighbours by nest-embedding with counters" in shown and "counters: used" in shown


def test_only_nests_are_counted_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    db, matrix = str(tmp_path / "n.db"), tmp_path / "A.mtx"
    assert run_verb(["init", db]) == 0
    matrix.write_text("%%MatrixMarket matrix coordinate pattern general\n2 2 1\n1 1\n")
    words = (str(matrix), "--platform", "cpu", "--op", "spmv", "--count")
    code, told = refused(capsys, "query", db, *words)
    assert code == 2 and "--count is for loop nests" in told
    code, message = refused(capsys, "nest", "count", db)
    assert code == 3 and "has no nest" in message
    code, message = refused(capsys, "nest", "count", str(tmp_path / "none.db"))
    assert code != 0 and not (tmp_path / "none.db").exists()


def test_programs_and_sizes_that_are_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db = str(tmp_path / "n.db")
    code, told = refused(capsys, "nest", "measure", db, "nonsense")
    assert code == 2 and "nonsense: neither a file nor a shipped program" in told
    code, told = refused(capsys, "nest", "measure", db, "gemm", "--size", "huge")
    assert code == 2 and "no size 'huge'" in told
    assert not (tmp_path / "n.db").exists(), "nothing is made for what cannot be read"


def test_training_needs_something_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db, out = str(tmp_path / "n.db"), str(tmp_path / "w.safetensors")
    assert run_verb(["init", db]) == 0
    code, told = refused(capsys, "train", "nests", db, "-o", out)
    assert code == 3 and "no nest has counters" in told and "nest count" in told
    (tmp_path / "w.safetensors").write_bytes(b"")
    code, told = refused(capsys, "train", "nests", db, "-o", out)
    assert code == 2 and "already exists" in told
