"""Platform ids with and without instance, through every verb that takes one."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import pytest
import scipy.sparse as sp
from builders import OP, band, by_law, fill, patterns, runs_of, tiny
from command_line import run_verb

from embeddb.database import Database

ASKED = band(134, 14, name="asked")

#: One that keeps its instances apart, one that does not, each known with and without one.
IDS = ("alone", "alone@one", "kind", "kind@one")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log without an instance was indexed; then runs of an instance came, and nothing was
    refreshed."""
    folder = tmp_path_factory.mktemp("ids")
    with Database.create(folder / "db") as db:
        for platform in (tiny("alone"), tiny("kind", portable=True)):
            fill(db, platform, patterns(2))
            (folder / f"{platform.name}.toml").write_text(platform.text)
            for instance, size in (("one", 150), ("two", 160)):
                pattern = band(size, 6, name=f"late-{instance}")
                there = platform.at(instance)
                db.index.record(runs_of(pattern, there), pattern, there)
    (folder / "matrices").mkdir()
    sp.save_npz(folder / "matrices" / "asked.npz", ASKED.to_scipy())
    with (folder / "runs.csv").open("w", newline="", encoding="utf-8") as out:
        rows = csv.writer(out)
        rows.writerow(("matrix", "rows", "cols", "nnz", "variant", "time_s"))
        rows.writerows(
            ("asked", *ASKED.shape, ASKED.nnz, v, by_law(ASKED, at)) for at, v in enumerate("abcd")
        )
    return folder


def _verbs(at: Path, platform: str) -> dict[str, list[str]]:
    db, matrix, op = str(at / "db"), str(at / "matrices" / "asked.npz"), ["--op", str(OP)]
    named = ["--platform", platform]
    return {
        "query": ["query", db, matrix, *named, *op],
        "query-late": ["query", db, "late-one", *named, *op],
        "measure": ["measure", db, matrix, *named, *op],
        "calibrate": ["calibrate", db, *named, *op, "--minutes", "0.1"],
        "campaign": [
            *("campaign", "plan", db, str(at / "camp"), *named, *op),
            *("--matrices", str(at / "matrices")),
        ],
        "dynamics": ["dynamics", matrix, *named, *op],
        "eval": ["eval", db, *named, "--seeds", "1"],
        "export": ["db", "export", db, str(at / "out.jsonl"), *named],
        "index": ["index", db, str(at / "runs.csv"), *named, *op],
        "ingest": ["ingest", db, str(at / "runs.csv"), *named, *op],
        "show": ["platform", "show", platform, "--db", db],
        "curve": ["plot", "curve", db, "late-one", *named, *op, "-o", str(at / "c.svg")],
        "map": ["plot", "map", db, *named, *op, "-o", str(at / "m.svg")],
        "winners": ["plot", "winners", db, *named, "-o", str(at / "w.svg")],
        "costmodel": [
            *("train", "costmodel", db, *named, *op, "-o", str(at / "cost.safetensors")),
            *("--members", "1", "--epochs", "1", "--predictor", "mlp"),
        ],
    }


#: Those that need nothing but what is there: any other ends in one line at worst.
ANSWER = ("query", "query-late", "export", "index", "ingest", "map", "winners")


@pytest.mark.parametrize("verb", sorted(_verbs(Path(), "x")))
def test_every_verb_takes_ids_with_and_without_instance(
    made: Path, tmp_path: Path, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(made, tmp_path / "copy"))
    for platform in (*IDS, str(folder / "alone.toml"), str(folder / "kind.toml")):
        code = run_verb(_verbs(folder, platform)[verb])  # what is raised fails the test
        err = capsys.readouterr().err
        assert code in (0, 1, 2, 3), (platform, err)
        if verb in ANSWER and not (verb == "export" and platform.endswith(".toml")):
            assert code == 0 or (verb == "winners" and code == 3), (platform, err)


def test_a_bare_id_answers_without_the_runs_of_its_instances(made: Path, tmp_path: Path) -> None:
    """The pattern that an instance ran meanwhile is in no partition of the bare id, and the other
    way round; a portable platform's are one."""
    folder = Path(shutil.copytree(made / "db", tmp_path / "db"))
    with Database.open(folder) as db:
        late = {name: db.store.find(f"late-{name}")[0].id for name in ("one", "two")}
        for platform, known in (
            ("alone", set()),
            ("alone@one", {late["one"]}),
            ("kind", set(late.values())),
        ):
            found = db.index.partition(OP, db.platform(platform))
            assert found is not None
            rows = {row.pattern_id for row in found.evidence.rows}
            assert rows & set(late.values()) == known == set(found.ids) & set(late.values())
            assert db.query(ASKED, platform=platform, op=OP).candidates
