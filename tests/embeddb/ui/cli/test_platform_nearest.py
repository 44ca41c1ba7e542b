"""`platform nearest`: what is printed, what is refused."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from command_line import run_verb

from embeddb.core.config import Config, Op
from embeddb.core.pattern import Pattern
from embeddb.cost_model.encoders.nearest import nearest_configs
from embeddb.database import Database
from embeddb.platforms.platform import load_platform
from embeddb.ui.cli.verbs.platform import nearest_verb

ROOT = Path(__file__).resolve().parents[4]
MINE = str(ROOT / "examples" / "my_platform.toml")
SIZES = (50_000, 20_000, 1_000_000)
ASKED = ["--op", "spmm:128", "--sizes", "50000,20000,1000000"]


def asked(*args: str) -> int:
    return run_verb(["platform", "nearest", *args])


def document(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, Any]:
    assert asked(*args, "--json") == 0, capsys.readouterr().err
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_worked_example_of_the_paper(capsys: pytest.CaptureFixture[str]) -> None:
    """COGNATE, Appendix E: 4, 1024, 32 and the order 6 7 2 4 1 3 5."""
    config = {"row_panels": 4, "column_panels": 1024, "split": 1}
    own = {"barrier": 0, "bypass": 0, "reorder": 0}
    said = document(capsys, "spade", "cpu", *ASKED, "--config", json.dumps({**config, **own}))
    (entry,) = said["configs"]
    assert entry["config"]["split"] == 32
    assert entry["nest"]["splits"] == {"I": 4, "J": 1024, "K": 32, "K2": 1}
    assert entry["nest"]["order"] == ["k2", "k3", "i2", "j2", "i1", "j1", "k1"]
    assert entry["nest"]["words"].startswith("tiles of 32 dense columns > tiles of 4 rows > tiles")


def test_the_command_says_what_the_function_finds(capsys: pytest.CaptureFixture[str]) -> None:
    cpu, op = load_platform("cpu"), Op("spmm", 128)
    given = [
        '{"order": "ijk", "format": "csr", "threads": "one"}',
        "order=j1ik1j0k0,format=dcsr,ktile=32,jtile=4096,threads=one",
    ]
    options = [word for text in given for word in ("--config", text)]
    said = document(capsys, "cpu", "spade", *ASKED, *options, "-k", "3")
    assert (said["source"], said["target"], said["op"]) == ("cpu", "spade", "spmm:128")
    assert (said["common"], said["own"]) == (True, ["bypass", "reorder"])
    assert said["sizes"] == dict(zip(("m", "n", "nnz"), SIZES, strict=True))
    configs = [Config.from_json(given[0]), Config.parse(given[1])]
    assert [Config(entry["config"]) for entry in said["configs"]] == configs
    found = nearest_configs(load_platform("spade"), cpu, op, configs, k=3, sizes=SIZES)
    for entry, ranked in zip(said["configs"], found, strict=True):
        assert [(Config(x["config"]), x["distance"]) for x in entry["nearest"]] == [
            (near.config, near.distance) for near in ranked
        ]
    # What the CPU leaves out is what SPADE calls NUM_MATRIX_COLS.
    assert said["configs"][0]["nearest"][0]["config"]["column_panels"] == "NUM_MATRIX_COLS"
    assert said["configs"][1]["nest"]["splits"]["J"] == 4096


def test_people_read_both_nests(capsys: pytest.CaptureFixture[str]) -> None:
    assert asked("spade", "cpu", *ASKED, "-k", "2") == 0
    said = capsys.readouterr().out
    assert "50,000 x 20,000, 1,000,000 non-zeros" in said
    assert "tiles of 32 dense columns > tiles of 256 rows > rows > columns > dense columns" in said
    assert said.count("  cpu, distance 0.") == 2 and said.count("loops, outermost first:") == 3
    assert "NUM_MATRIX_COLS" in said and "not part of the loop nest" in said


def test_no_loop_nest_in_common_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    for pair, which in ((("cpu", "gpu-hyb"), "gpu-hyb declares"), (("gpu-hyb", "cpu"), "gpu-hyb")):
        assert asked(*pair, *ASKED, "-k", "4") == 3
        said = capsys.readouterr().out
        assert "no loop nest in common" in said and which in said and "distance" not in said
        assert str(load_platform(pair[1]).default(Op("spmm", 128))) in said
    assert asked("gpu-hyb", "gpu-kernels", *ASKED, "--json") == 3
    found = json.loads(capsys.readouterr().out)
    assert found["common"] is False
    (entry,) = found["configs"]
    assert entry["nest"] is None and entry["nearest"][0]["distance"] is None
    assert asked("gpu-hyb", "gpu-kernels", *ASKED) == 3
    assert "gpu-hyb and gpu-kernels declare none for spmm" in capsys.readouterr().out


def test_a_matrix_gives_the_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.mtx"
    head = "%%MatrixMarket matrix coordinate pattern general\n600 3000 2\n"
    file.write_text(head + "1 1\n600 3000\n")
    common = ["cpu", MINE, "--op", "spmm:16"]
    sizes = document(capsys, *common, "--sizes", "600,3000,2")
    assert document(capsys, *common, "--matrix", str(file)) == sizes
    assert (sizes["target"], sizes["own"]) == ("my-fpga", ["double_buffer", "prefetch"])
    with Database.create(tmp_path / "x.db") as db:
        pattern = Pattern.from_coo((600, 3000), [0, 599], [0, 2999], name="mine")
        db.index.record([], pattern, load_platform(MINE))
    place = ["--db", str(tmp_path / "x.db")]
    # By then the platform is known by name too.
    named = ["cpu", "my-fpga", "--op", "spmm:16", "--matrix", "mine", *place]
    assert document(capsys, *named) == sizes


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["cpu"], 2, "Missing argument"),
        (["cpu", "spade", "--sizes", "5,5,5"], 2, "--op"),
        (["cpu", "spad", *ASKED], 1, "did you mean spade"),
        (["cpu", "gone.toml", *ASKED], 1, "gone.toml: cannot be read"),
        (["cpu", "spade", "--op", "spmm"], 2, "write spmm:128"),
        (["cpu", "spade", "--op", "what:3"], 2, "no kernel 'what'"),
        (["cpu", "spade", "--op", "spmv"], 2, "spade has no spmv"),
        (["cpu", "spade", "--op", "spmm:128"], 2, "give --matrix or --sizes"),
        (["cpu", "spade", *ASKED, "--config", "{bad"], 2, "--config 1: not a configuration"),
        (["cpu", "spade", *ASKED, "--config", "[1]"], 2, "the JSON is not an object"),
        (["cpu", "spade", *ASKED, "--config", "order"], 2, "not name=value"),
        (["cpu", "spade", *ASKED, "--config", '{"order": "x"}'], 1, "is not one of ijk"),
        (
            ["spade", "cpu", *ASKED, "--config", '{"row_panels": 4}'],
            1,
            "--config 1: not legal on spade: parameter 'column_panels' is missing",
        ),
        (["cpu", "spade", *ASKED, "--matrix", "x"], 2, "give one of them"),
        (["cpu", "spade", *ASKED[:2], "--sizes", "5,5"], 2, "is not M,N,NNZ"),
        (["cpu", "spade", *ASKED[:2], "--sizes", "5,-5,5"], 2, "is not M,N,NNZ"),
        (["cpu", "spade", *ASKED[:2], "--sizes", "0,5,5"], 2, "no matrix has"),
        (["cpu", "spade", *ASKED[:2], "--sizes", f"5,{'9' * 5000},5"], 2, "no matrix has"),
        (["cpu", "spade", *ASKED[:2], "--matrix", "gone", "--db", "nowhere"], 1, "no database"),
        (["cpu", "spade", *ASKED, "-k", "0"], 2, "range"),
    ],
)
def test_errors_are_one_line_with_a_code(
    args: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked(*args) == code
    out, err = capsys.readouterr()
    assert said in err and len(err.splitlines()) == 1 and not out


def test_sizes_that_no_nest_needs_may_be_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    said = document(capsys, "cpu", "waco-cpu", "--op", "spmv", "-k", "2")
    assert said["sizes"] == {"m": None, "n": None, "nnz": None}
    first, second = said["configs"][0]["nearest"]
    assert first["distance"] == 0 < second["distance"]
    assert asked("cpu", "waco-cpu", "--op", "spmv") == 0
    assert "a matrix of unknown sizes" in capsys.readouterr().out


def test_the_first_example_of_the_help_can_be_typed(capsys: pytest.CaptureFixture[str]) -> None:
    """The second one needs the starter database."""
    lines = re.findall(r"embeddb platform nearest (.+)", nearest_verb.help or "")
    assert len(lines) == 2 and "--matrix" in lines[1]
    assert asked(*shlex.split(lines[0])) == 0
    assert "distance" in capsys.readouterr().out


def test_the_page_shows_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "howto" / "new-platform.md").read_text(encoding="utf-8")
    shown = re.search(r"^\$ embeddb platform nearest (.+)\n((?:.+\n|\n(?!```))+)```", page, re.M)
    assert shown is not None
    assert asked(*shlex.split(shown[1])) == 0
    assert capsys.readouterr().out.startswith(shown[2])
