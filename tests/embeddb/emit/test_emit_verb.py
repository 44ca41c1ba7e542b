"""`embeddb emit`: which answers it takes, and where it writes."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from command_line import run_verb
from scipy import sparse

from embeddb.core.config import Config
from embeddb.core.pattern import Pattern
from embeddb.database import open_database
from embeddb.emit.emit import emit_answer
from embeddb.ranking.recommendation import Candidate, Recommendation

ROWS = "order=ij,format=csr,lanes=8,unroll=4,reorder=none,threads=one"


def answered(folder: Path, platform: str = "cpu") -> tuple[str, Recommendation]:
    """A database with an answer for the platform, and that."""
    pattern = Pattern.from_matrix(sparse.random(50, 40, 0.2, format="csr", random_state=1))
    db = str(folder / "runs.db")
    with open_database(db, create=True) as made:
        op = "spmv:f64" if platform == "cpu" else "spmm:32"
        return db, made.query(pattern, platform=platform, op=op)


def test_an_answer_is_written_as_its_best_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db, answer = answered(tmp_path)
    place = tmp_path / "c"
    assert run_verb(["emit", db, "last", "-o", str(place), "--prefix", "fast", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["op"] == "spmv:f64" and made["prefix"] == "fast" and made["folder"] == str(place)
    assert made["answer"] == answer.id
    files = {one.name for one in place.iterdir()}
    assert files == {*made["files"], "embeddb.json"} >= {"fast.c", "fast.h", "LICENSE", "README.md"}
    assert f"answer {answer.id}" in (place / "README.md").read_text()
    assert made["configs"] == [str(Config(answer.best))]
    assert f'"{Config(answer.best)}"' in (place / "fast.c").read_text()
    other = Candidate(config=dict(Config.parse(ROWS)), score=0.5, origin="neighbours")
    better = msgspec.structs.replace(answer, candidates=[other, *answer.candidates])
    assert emit_answer(better, place, prefix="fast").configs == [str(Config.parse(ROWS))]
    assert "double" in (place / "fast.h").read_text()
    texts = "".join(one.read_text() for one in place.iterdir())
    assert "@" not in texts.replace("$@", "").replace("@echo", "")


def test_another_platforms_answer_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db, _ = answered(tmp_path, "spade")
    assert run_verb(["emit", db, "last", "-o", str(tmp_path / "c")]) == 2
    said = capsys.readouterr().err
    assert "is for spade: code is available for " in said and said.count("\n") == 1
    assert not (tmp_path / "c").exists()
    assert run_verb(["emit", db, "r0", "-o", str(tmp_path / "c")]) == 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--config", ROWS, "--op", "spmv:f16"], "no code for spmv:f16"),
        (["--config", ROWS, "--op", "nest"], "no code for nest"),
        (["--config", "order=ji", "--op", "spmv"], "format = None"),
        (["--config", ROWS, "--op", "spmv", "--prefix", "a-b"], "prefix 'a-b'"),
        (["--config", ROWS, "--op", "spmv", "--prefix", ""], "--prefix is empty"),
        (["--config", ROWS], "give either ANSWER"),
        (["last", "--config", ROWS, "--op", "spmv"], "give either ANSWER"),
        ([], "give either ANSWER"),
    ],
)
def test_what_cannot_be_emitted_is_said(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_verb(["emit", "none.db", *words, "-o", str(tmp_path / "c")]) in (1, 2)
    assert said in capsys.readouterr().err
    assert not (tmp_path / "c").exists()


def test_a_folder_with_something_else_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def emitted(place: Path, config: str = ROWS, prefix: str = "y") -> int:
        words = ["emit", "no.db", "--config", config, "--op", "spmv", "--prefix", prefix]
        return run_verb([*words, "-o", str(place)])

    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("all of it")
    assert emitted(other) == 2 and [f.name for f in other.iterdir()] == ["thesis.tex"]
    (other / "embeddb.json").write_text('{"op": 1}')
    assert emitted(other) == 2 and len(list(other.iterdir())) == 2
    assert emitted(tmp_path / "not" / "there") == 2
    assert emitted(other / "thesis.tex") == 2

    own = tmp_path / "own"
    assert emitted(own) == 0
    (own / "mine.c").write_text("int mine;")
    assert emitted(own, prefix="z") == 0
    assert {"mine.c", "z.c", "z.h"} <= {f.name for f in own.iterdir()}
    assert not (own / "y.c").exists()
    (own / "z.c").unlink()
    (own / "z.c").symlink_to(other / "thesis.tex")
    assert emitted(own, prefix="z") == 0 and not (own / "z.c").is_symlink()
    assert (other / "thesis.tex").read_text() == "all of it"
