"""A platform file drafted from a log, and the log read by it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from command_line import run_verb
from scipy.io import mmwrite
from scipy.sparse import random as random_matrix

from embeddb.core.config import Config, Op
from embeddb.core.errors import ReaderError, UsageError
from embeddb.platforms.check import check_platform
from embeddb.platforms.platform import Platform, load_platform, parse_platform
from embeddb.store import memory_store
from indexer.drafting.draft import Draft, draft_platform
from indexer.index_runs import index_runs
from indexer.ingest import ingest
from indexer.readers.base.row import ReadOptions

OP = Op.parse("spmm:32")
ASKED = ReadOptions(op=OP)
HEAD = "matrix,panel,lanes,flow,depth,total_cyc"
GRID = list(itertools.product(("a", "b", "c"), (16, 64, 256), (4, 8), (0, 1, 2)))


def cycles(m: str, panel: int, lanes: int, depth: int) -> int:
    return 1000 * (1 + "abc".index(m)) + panel + 100 // lanes - 10 * depth


def grid_rows() -> list[str]:
    return [
        f"{m},{p},{lanes},{'outer' if d else 'row'},{d or ''},{cycles(m, p, lanes, d)}"
        for m, p, lanes, d in GRID
    ]


def drafted(
    folder: Path, rows: Sequence[str], head: str = HEAD, asked: ReadOptions = ASKED
) -> tuple[Draft, Platform]:
    log = folder / "tina.csv"
    log.write_text("\n".join([head, *rows]) + "\n", encoding="utf-8")
    draft = draft_platform(log, asked)
    (folder / "tina.toml").write_text(draft.text, encoding="utf-8")
    platform = load_platform(folder / "tina.toml")
    assert check_platform(platform) == []
    return draft, platform


def read(folder: Path, platform: Platform) -> tuple[int, int]:
    """Rows added and rejected when the drafted platform reads its log without any option."""
    report = ingest(memory_store(), folder / "tina.csv", platform=platform)
    return report.added, report.rejected


def test_a_simulators_log(tmp_path: Path) -> None:
    draft, platform = drafted(tmp_path, grid_rows())
    params = {p.name: (p.kind, p.values, p.when) for p in platform.kernel("spmm").space.params}
    assert params == {
        "panel": ("int", (16, 64, 256), ""),
        "lanes": ("int", (4, 8), ""),
        "flow": ("choice", ("row", "outer"), ""),
        "depth": ("int", (1, 2), "flow == 'outer'"),
    }
    assert platform.simulated and platform.counts_cycles and platform.name == "tina"
    best = Config({"panel": 16, "lanes": 8, "flow": "outer", "depth": 2})
    assert platform.default(OP) == best
    assert read(tmp_path, platform) == (len(GRID), 0)
    assert any("default" in guess for guess in draft.guesses)
    assert draft.text.count("# GUESS: ") == len(draft.guesses)


def test_the_command_that_it_proposes_fits_its_parameters(tmp_path: Path) -> None:
    draft, _ = drafted(tmp_path, grid_rows())
    stub = draft.text.index("# [command]")
    whole = draft.text[:stub] + draft.text[stub:].replace("# ", "")
    platform = parse_platform(whole.replace("# runner = ", "runner = "))
    assert platform.command is not None and check_platform(platform) == []


def test_names_words_and_results(tmp_path: Path) -> None:
    head = "mtx,Tile rows,2x,import,double buffer,max,version,outcome,hits,time_ms"
    rows = [
        f"{m}.mtx,{p},{x},{i},{b},{i},7,{'pass' if p < 256 else 'BUFFER_OVERFLOW'},"
        f"{p * 1.01 + x + len(m) + k / 7},{'' if p == 256 else p + x}"
        for k, (m, p, x, i, b) in enumerate(
            itertools.product(("a", "b"), (16, 64, 256), (1, 2), ("x", "y"), ("true", "false"))
        )
    ]
    draft, platform = drafted(tmp_path, rows, head)
    params = {p.name: p.kind for p in platform.kernel("spmm").space.params}
    assert params == {
        "Tile_rows": "int",
        "p_2x": "int",
        "import_": "choice",
        "double_buffer": "bool",
        "max_": "choice",
    }
    assert set(draft.left_out) == {"version", "hits"}
    assert not platform.simulated and not platform.counts_cycles
    assert read(tmp_path, platform) == (len(rows), 0)


def test_json_lines_with_a_nested_configuration(tmp_path: Path) -> None:
    """All keys of `config` are parameters; the file holds the caller's map."""
    log = tmp_path / "tina.jsonl"
    rows = [
        {"mat": m, "config": {"panel": p, "lanes": 4, "seed": s}, "time_us": p + s, "op": "spmm"}
        | {"K": 32, "host": "one"}
        for m, p, s in itertools.product("abc", (16, 64), (1, 2))
    ]
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    roles = {"matrix": "mat", "width": "K", "instance": "host"}
    platform = parse_platform(draft_platform(log, ReadOptions(columns=roles)).text)
    params = {p.name: p.values for p in platform.kernel("spmm").space.params}
    assert params == {"panel": (16, 64), "lanes": (4,), "seed": (1, 2)}
    report = ingest(memory_store(), log, platform=platform)
    assert (report.added, report.rejected) == (len(rows), 0)
    assert report.platforms == {"tina@one"}
    log.write_text(log.read_text().replace("seed", "max"))
    with pytest.raises(UsageError, match="'max', which is no name of a parameter"):
        draft_platform(log, ReadOptions(columns=roles))


def test_a_condition_over_two_parameters(tmp_path: Path) -> None:
    rows = [
        f"{m},{p},{lanes},{f},{8 if f == 'outer' and lanes == 8 else ''},{p + lanes}"
        for m, p, lanes, f in itertools.product("ab", (16, 64), (4, 8), ("row", "outer"))
    ]
    rows += [row.replace(",8,outer,8,", ",8,outer,16,") for row in rows if ",8,outer,8," in row]
    _, platform = drafted(tmp_path, rows)
    depth = platform.kernel("spmm").space.rules.by_name["depth"]
    assert sorted(depth.when.split(" and ")) == ["flow == 'outer'", "lanes == 8"]
    assert read(tmp_path, platform) == (len(rows), 0)


def test_a_parameter_without_a_condition_is_said(tmp_path: Path) -> None:
    rows = grid_rows()
    rows[1] = rows[1].replace("outer,1,", "outer,,")
    draft, _ = drafted(tmp_path, rows)
    assert any("depth" in guess and "when" in guess for guess in draft.guesses)


def test_a_value_that_occurs_once_may_be_a_typing_error(tmp_path: Path) -> None:
    rows = grid_rows()
    draft, _ = drafted(tmp_path, rows)
    assert "occurs in one row" not in draft.text
    rows[3] = rows[3].replace(",16,", ",17,")
    draft, platform = drafted(tmp_path, rows)
    line = "panel: 17 occurs in one row: a typing error?"
    assert f"# {line}" in draft.text and any(guess.startswith(line) for guess in draft.guesses)
    assert platform.kernel("spmm").space.params[0].values == (16, 17, 64, 256)


def test_limits_that_hold_are_suggestions_only(tmp_path: Path) -> None:
    rows = [
        f"{m},{p},{lanes},row,,{p}"
        for m, p, lanes in itertools.product("ab", (16, 64, 256), (4, 8, 16))
        if p * lanes <= 1024
    ]
    draft, platform = drafted(tmp_path, rows)
    assert '# constraints = ["panel * lanes <= 1024"]' in draft.text
    assert platform.kernel("spmm").space.constraints == ()


def test_results_of_a_small_log_are_no_parameters(tmp_path: Path) -> None:
    rows = [
        f"{m},{panel},{panel + 7 * at},{1 / (3 + at)},{panel + at}"
        for at, (m, panel) in enumerate(itertools.product("abcd", (16, 64)))
    ]
    draft, platform = drafted(tmp_path, rows, "matrix,panel,stalls,util,total_cyc")
    assert [p.name for p in platform.kernel("spmm").space.params] == ["panel"]
    assert set(draft.left_out) == {"stalls", "util"}
    assert read(tmp_path, platform) == (len(rows), 0)


def test_a_flag_that_is_empty_in_some_rows_of_a_matrix_is_a_parameter(tmp_path: Path) -> None:
    rows = [
        f"{m},{p},{flag},{fact},{10 * p + len(flag)}"
        for m, p, flag in itertools.product(("a", "b", "c"), (16, 64), ("", "packed"))
        for fact in ["grid" if m == "a" else ""]
    ]
    draft, platform = drafted(tmp_path, rows, "matrix,panel,layout,kind,time_us")
    assert [p.name for p in platform.kernel("spmm").space.params] == ["panel", "layout"]
    assert "layout is empty in some rows" in draft.text
    assert draft.left_out == {"kind": "the same in all rows of a matrix: a fact of the matrix"}
    assert read(tmp_path, platform) == (6, 6)


@pytest.mark.parametrize(
    "name",
    [
        *("seed", "trial", "rep", "session", "date", "node_id", "power_w", "temperature"),
        *("gpu name", "gpu"),
    ],
)
def test_repeats_and_the_machine_are_no_parameters_by_their_names(
    tmp_path: Path, name: str
) -> None:
    rows = [f"{row},{at % 2}" for at, row in enumerate(grid_rows())]
    draft, platform = drafted(tmp_path, rows, f"{HEAD},{name}")
    own = name.replace(" ", "_")
    assert own not in {p.name for p in platform.space(OP).params}
    assert "by its name" in draft.left_out[own] and f"#   {name}: of a" in draft.text
    mapped = ReadOptions(op=OP, columns={f"config.{own}": name})
    draft, platform = drafted(tmp_path, rows, f"{HEAD},{name}", mapped)
    assert own in {p.name for p in platform.space(OP).params}


def test_a_cell_that_means_no_value_sets_no_parameter(tmp_path: Path) -> None:
    rows = [
        f"{matrix},{mode},{word if mode == 'merge' else vec},{vec + len(mode)}"
        for matrix in "abcd"
        for word in ("nan", "NA", "")
        for mode in ("merge", "split")
        for vec in (1, 2)
    ]
    _, platform = drafted(tmp_path, rows, "matrix,mode,vec,total_cyc")
    assert [one.values for one in platform.space(OP).params if one.name == "vec"] == [(1, 2)]
    assert read(tmp_path, platform) == (len(rows), 0)
    # Unless the platform has such a value.
    text = platform.text.replace("[1, 2]", '[1, 2, "NA"]').replace('"int"', '"choice"')
    assert 0 < read(tmp_path, parse_platform(text))[1] < len(rows)
    none = [row.replace("nan", "None") for row in rows]
    draft, platform = drafted(tmp_path, none, "matrix,mode,vec,total_cyc")
    assert any("'None' among numbers" in guess for guess in draft.guesses)


@pytest.mark.parametrize("mode", ["a's", "a\\"])
def test_no_condition_names_a_value_that_no_expression_can(tmp_path: Path, mode: str) -> None:
    cases = ((mode, 4), (mode, 8), ("b", ""), ("c", ""), ("d", ""))
    rows = [f"{m},{one},{tile},{nth}7" for m in "abcd" for nth, (one, tile) in enumerate(cases)]
    draft, _ = drafted(tmp_path, rows, "matrix,mode,tile,total_cyc")
    assert any("tile is empty in some rows" in guess for guess in draft.guesses)


def test_the_name_alone_of_an_operation_is_in_the_file_of_a_log_with_widths(
    tmp_path: Path,
) -> None:
    rows = [f"{m},{w},{p},{p * w}" for m in "abc" for w in (32, 64) for p in (1, 2)]
    named = ReadOptions(op_name="spmm")
    draft, platform = drafted(tmp_path, rows, "matrix,width,panel,total_cyc", named)
    assert 'op = "spmm"' in draft.text and platform.log.op_name == "spmm"
    report = ingest(memory_store(), tmp_path / "tina.csv", platform=platform)
    assert report.added == len(rows) and set(report.ops) == {"spmm:32", "spmm:64"}


@pytest.mark.parametrize("name", ["threads", "max_iter", "power_limit_w", "index", "nodes"])
def test_a_name_that_may_be_a_choice_is_a_parameter(tmp_path: Path, name: str) -> None:
    rows = [f"{row},{at % 2}" for at, row in enumerate(grid_rows())]
    _, platform = drafted(tmp_path, rows, f"{HEAD},{name}")
    assert name in {p.name for p in platform.space(OP).params}


def test_a_size_that_changes_within_a_matrix_is_asked_about(tmp_path: Path) -> None:
    rows = [f"{m},{cols},5" for m in "abc" for cols in (1024, 2048)]
    with pytest.raises(UsageError, match="line 3") as caught:
        drafted(tmp_path, rows, "matrix,cols,total_cyc")
    assert "--map config." in caught.value.hint
    asked = ReadOptions(op=OP, columns={"config.cols": "cols"})
    _, platform = drafted(tmp_path, rows, "matrix,cols,total_cyc", asked)
    assert [p.name for p in platform.kernel("spmm").space.params] == ["cols"]
    assert read(tmp_path, platform) == (len(rows), 0)


def test_a_row_without_sizes_contradicts_none(tmp_path: Path) -> None:
    rows = [f"{m},{'' if lane == 8 else 9},{lane},5" for m in "abc" for lane in (8, 16)]
    _, platform = drafted(tmp_path, rows, "matrix,nnz,lanes,total_cyc")
    assert [p.name for p in platform.kernel("spmm").space.params] == ["lanes"]


def test_a_choice_that_one_operation_alone_ran_is_named(tmp_path: Path) -> None:
    rows = [f"{m},{at},{k},5" for m in "abc" for at, k in (("x", "spmm"), ("y", "spmm"))]
    rows += [f"{m},x,sddmm,5" for m in "abc"]
    asked = ReadOptions(columns={"width": "wide"})
    head = "matrix,program,kernel,wide,total_cyc"
    draft, _ = drafted(tmp_path, [row.replace(",5", ",32,5") for row in rows], head, asked)
    assert "\n# program: y in no run of sddmm: if it is none of its choices," in draft.text
    assert "x in no run" not in draft.text and "fastest of each, at spmm:32)" in draft.text


def test_samples_that_no_two_matrices_share(tmp_path: Path) -> None:
    rows = ["a,16,4,row,,9", "b,64,4,row,,8", "c,16,8,row,,7", "d,16,4,outer,1,6"]
    _, platform = drafted(tmp_path, rows)
    assert dict(platform.default(OP)) == {"panel": 16, "lanes": 4, "flow": "row"}


def test_json_lines(tmp_path: Path) -> None:
    log = tmp_path / "runs.jsonl"
    records = [
        {"matrix": m, "lanes": n, "order": order, "cycles": n + len(order)}
        for m, n, order in itertools.product("ab", (4, 8), (["i", "j"], ["j", "i"]))
    ]
    log.write_text("\n".join(map(json.dumps, records)))
    platform = parse_platform(draft_platform(log, ASKED).text)
    params = {p.name: p.kind for p in platform.kernel("spmm").space.params}
    assert params == {"lanes": "int", "order": "permutation"}
    assert ingest(memory_store(), log, platform=platform).added == len(records)


@pytest.mark.parametrize(
    ("head", "rows", "asked", "error", "place"),
    [
        (HEAD, ["a,1,2,row,,5"], ReadOptions(), UsageError, "--op"),
        ("matrix,panel,cost", ["a,1,5"], ASKED, UsageError, "time"),
        ("matrix,panel,time", ["a,1,5"], ASKED, UsageError, "unit"),
        ("matrix,time_ms", ["a,1", "b,2"], ASKED, UsageError, "no column is a parameter"),
        ("panel,time_ms", ["1,2"], ASKED, UsageError, "matrix"),
        (HEAD, ["a,16,4,row,,x"], ASKED, (ReaderError, UsageError), "tina.csv"),
    ],
)
def test_what_no_log_says_is_asked_for(
    tmp_path: Path, head: str, rows: list[str], asked: ReadOptions, error: type, place: str
) -> None:
    with pytest.raises(error, match=place):
        drafted(tmp_path, rows, head, asked)


def test_from_a_log_to_an_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log.csv").write_text("\n".join([HEAD, *grid_rows()]))
    for seed, name in enumerate("abc"):
        matrix = random_matrix(40 + seed, 30, 0.2, random_state=seed)
        mmwrite(tmp_path / f"{name}.mtx", matrix)
    log, file, db = (str(tmp_path / name) for name in ("log.csv", "mine.toml", "new/a.db"))
    assert run_verb(["index", db, log]) == 2
    assert "platform draft" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
    assert run_verb(["platform", "draft", log, "--op", "spmm:32", "-o", file]) == 0
    assert run_verb(["platform", "draft", log, "--op", "spmm:32", "-o", file]) == 1
    assert run_verb(["platform", "check", file]) == 0
    assert run_verb(["index", db, log, "--platform", file, "--matrices", str(tmp_path)]) == 0
    capsys.readouterr()
    asked = [str(tmp_path / "a.mtx"), "--platform", "mine", "--op", "spmm:32"]
    assert run_verb(["query", db, *asked, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["link"] == "measured" and answer["time_unit"] == "cycles"


def test_a_draft_as_json_and_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "tina.csv"
    log.write_text("\n".join([HEAD, *grid_rows()]))
    assert run_verb(["platform", "draft", str(log), "--op", "spmm:32"]) == 0
    text = capsys.readouterr().out
    assert run_verb(["platform", "draft", str(log), "--op", "spmm:32", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["text"] == text
    assert parse_platform(text).name == "tina"


def test_a_log_of_which_nothing_can_be_used_leaves_no_database(tmp_path: Path) -> None:
    _, platform = drafted(tmp_path, grid_rows())
    (tmp_path / "bad.csv").write_text(f"{HEAD}\na,17,4,row,,5\n")
    words = [str(tmp_path / name) for name in ("a.db", "bad.csv")]
    assert run_verb(["index", *words, "--platform", str(tmp_path / "tina.toml")]) == 1
    assert not (tmp_path / "a.db").exists()
    (tmp_path / "a.db").mkdir()
    assert run_verb(["index", *words, "--platform", str(tmp_path / "tina.toml")]) == 1
    assert list((tmp_path / "a.db").iterdir()) == []
    assert platform.name == "tina"


def test_the_library_makes_it_too(tmp_path: Path) -> None:
    from embeddb.database import Database

    drafted(tmp_path, grid_rows())
    with Database.in_memory() as db:
        report = index_runs(db.index, [tmp_path / "tina.csv"], platform=str(tmp_path / "tina.toml"))
    assert report.files[0].added == len(GRID)


def test_the_default_ran_on_most_devices_and_is_judged_within_each(tmp_path: Path) -> None:
    """A fast device must not decide by its seconds, nor by configurations that run on it alone."""
    rows = [
        f"{device},{m},{fmt},{scale * t}"
        for device, scale in (("gpu1", 1), ("cpu1", 50), ("cpu2", 60))
        for m in "abc"
        for fmt, t in (("hyb", 1), ("csr", 4), ("ell", 3))
        if not (device == "gpu1" and fmt == "ell") and (device == "gpu1" or fmt != "hyb")
    ]
    log = tmp_path / "log.csv"
    log.write_text("\n".join(("device,matrix,format,time_us", *rows, "")))
    draft = draft_platform(log, ReadOptions(op=OP))
    assert 'format = "csr"' in draft.text
    assert "ran on 3 matrices and 3 devices, 1.92 times the fastest of each" in draft.text


@pytest.mark.parametrize("log", ["cache.json", "t4.json", "autotvm.log"])
def test_a_log_of_another_program(tmp_path: Path, log: str) -> None:
    path = Path(__file__).parents[1] / "golden" / "readers" / log
    draft = draft_platform(path, ReadOptions(op=Op.parse("tile")))
    platform = parse_platform(draft.text)
    assert check_platform(platform) == []
    report = ingest(memory_store(), path, platform=platform)
    assert (report.added, report.rejected) == (draft.rows, draft.rejected)
