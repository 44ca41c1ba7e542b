"""The pages: commands parse, links lead somewhere, one word per idea, code runs."""

from __future__ import annotations

import itertools
import lzma
import os
import re
import shlex
import shutil
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from command_line import run_verb
from scipy.io import mmwrite
from scipy.sparse import random as random_matrix

from benchmarks.house import arrows_of, modules_of
from embeddb.core import plugins
from embeddb.database import Database
from embeddb.kernels import build as cpu_build
from embeddb.ui.cli.main import cli
from tools import results_tables

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
SOURCES = [
    path
    for folder in ("embeddb", "indexer", "tuners", "examples")
    for path in sorted((ROOT / folder).rglob("*.py"))
]


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Language and text of every fenced block."""
    found = re.finditer(r"^```(\w*)\n(.*?)^```", text_of(page), re.M | re.S)
    yield from ((m[1], m[2]) for m in found)


def commands(page: Path) -> list[str]:
    """Lines of blocks that start with `embeddb`, with continued lines joined; not of Python, nor of
    output that is marked as `text`."""
    shell = (body for language, body in blocks(page) if language not in ("python", "text"))
    text = "\n".join(shell)
    lines = text.replace("\\\n", " ").splitlines()
    return [line.strip().removeprefix("$ ") for line in lines if _is_command(line)]


def _is_command(line: str) -> bool:
    return line.strip().removeprefix("$ ").startswith("embeddb ")


def spans(page: Path) -> list[str]:
    """Code in running text that starts with `embeddb` and names a verb."""
    text = re.sub(r"^```.*?^```", "", text_of(page), flags=re.M | re.S)
    return re.findall(r"`(embeddb [a-z][^`]*)`", " ".join(text.split()))


def leaf(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that `words` (without `embeddb`) name, and what follows."""
    command: click.Command = cli
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(click.Context(command), words[0])
        assert found is not None, f"no verb {words[0]!r}"
        command, words = found, words[1:]
    return command, words


def options_of(command: click.Command) -> set[str]:
    names = {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
    return names | {"-h", "--help", "--version"}


def check_options(command: click.Command, words: list[str]) -> None:
    for word in words:
        if word.startswith("-") and len(word) > 1:
            assert word.partition("=")[0] in options_of(command), f"no option {word}"


COMMANDS = [(shown(page), line) for page in PAGES for line in commands(page)]
SPANS = sorted({(shown(page), span) for page in PAGES for span in spans(page)})


def problems(items: Iterable[tuple[str, str]], check: Callable[[str], None]) -> list[str]:
    """Page, text and reason of every item that `check` does not accept."""
    lines = []
    for page, text in items:
        try:
            check(text)
        except (AssertionError, click.ClickException, ValueError, SyntaxError) as error:
            lines.append(f"{page}: {text[:100]}: {error}")
    return lines


def check_command(line: str) -> None:
    if re.search(r"[\[\]…|]", line):  # a synopsis, not a command
        words = re.findall(r"[^\s\[\]…|]+", line)[1:]
        check_options(*leaf(words))
        return
    command, words = leaf(shlex.split(line, comments=True)[1:])
    assert not isinstance(command, click.Group), "lacks a verb"
    command.make_context("embeddb", words)


def check_span(span: str) -> None:
    check_options(*leaf([w for w in re.findall(r"[^\s\[\]…|]+", span)[1:] if w[0] != "…"]))


def test_every_command_parses() -> None:
    assert not problems(COMMANDS, check_command)


def test_every_command_in_running_text_exists() -> None:
    assert not problems(SPANS, check_span)


def test_the_pages_hold_commands_at_all() -> None:
    assert len(COMMANDS) > 15 and len(SPANS) > 10


def test_links_lead_somewhere() -> None:
    links = ((p, t) for p in PAGES for t in re.findall(r"\]\(([^)\s]+)\)", text_of(p)))
    own = ((p, t) for p, t in links if not t.startswith(("http:", "https:", "#", "mailto:")))
    lost = [f"{shown(p)}: {t}" for p, t in own if not (p.parent / t.partition("#")[0]).exists()]
    assert not lost


def test_results_name_no_folder_of_a_machine() -> None:
    for file in (ROOT / "benchmarks" / "results").rglob("*.*"):
        opened = lzma.open if file.suffix == ".xz" else open
        with opened(file, "rt", encoding="utf-8") as f:
            path = re.search(r"(?<![\w.])/\w+/[\w./-]*(?:\.venv|\.db)", f.read())
        assert not path, f"{file.name}: {path and path[0]}"


def test_every_page_is_listed() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    for page in PAGES:
        if page.parent != ROOT and page.name != "index.md":
            name = str(page.relative_to(ROOT / "docs"))
            assert f"({name})" in index, f"docs/index.md does not list {name}"


def test_pages_that_code_names_exist() -> None:
    names = ((p, n) for p in SOURCES for n in re.findall(r"docs/[\w/-]+\.md", text_of(p)))
    lost = [f"{shown(path)}: {name}" for path, name in names if not (ROOT / name).is_file()]
    assert not lost


def is_name(name: str) -> bool:
    """A dotted name is a module or package, or defined in the module before its last dot."""
    *parents, last = name.split(".")
    folder = ROOT.joinpath(*parents)
    if (folder / last).is_dir() or (folder / f"{last}.py").is_file():
        return True
    files = (folder / "__init__.py", folder.with_suffix(".py"))
    texts = [text_of(file) for file in files if file.is_file()]
    if not texts:  # An attribute of a class.
        return len(parents) > 1 and is_name(".".join(parents))
    defined = rf'(?:def|class) {last}\b|^ *{last}\b *[:=,]|import .*\b{last}\b|"{last}"'
    return any(re.search(defined, text, re.M) for text in texts)


def test_modules_and_files_that_texts_name_exist() -> None:
    """Dotted names and paths between backticks; parts in capitals stand for any name."""
    folders = "embeddb|indexer|tuners|reproductions|benchmarks|tools|tests|examples"
    dotted = re.compile(rf"`((?:{folders})(?:\.[a-zA-Z_]\w*)+)")
    path = re.compile(rf"`((?:{folders})(?:/[\w.-]+)+)")
    #: Groups of entry points, and names that are a file's.
    others = re.compile(
        r"embeddb\.(?:reader|featurizer|runner|tuner|executor|workload)|.*NAME|\w+\.(?:toml|db|h)"
    )
    lost = []
    more = (p for room in folders.split("|")[3:] for p in (ROOT / room).rglob("*.py"))
    for page in {*PAGES, *SOURCES, *more} - {ROOT / "CHANGELOG.md"}:
        text = text_of(page)
        files = [name for name in path.findall(text) if not re.search(r"\b[A-Z]+\b", name)]
        lost += [(shown(page), name) for name in files if not (ROOT / name).exists()]
        names = (name for name in dotted.findall(text) if not others.fullmatch(name))
        lost += [(shown(page), name) for name in names if not is_name(name)]
    assert not lost


def test_results_are_cited() -> None:
    """Every file of results is named by a page, a table or a script."""
    rooms = ("benchmarks", "tools", "tests")
    scripts = [p for room in rooms for p in (ROOT / room).rglob("*") if p.suffix in (".md", ".py")]
    tables = text_of(ROOT / "tools" / "results_tables.py")
    texts = [text_of(p) for p in (*PAGES, *SOURCES, *scripts)]
    files = (p for p in (ROOT / "benchmarks" / "results").rglob("*") if p.is_file())
    lost = [p.name for p in files if not any(p.name in text for text in texts)]
    assert not [name for name in lost if f'"{name.partition(".")[0]}"' not in tables]


def test_no_page_or_message_names_another_project_on_the_package_index() -> None:
    wrong = re.compile(r"pip install [\"']?embeddb(?!-)")
    assert not [shown(path) for path in (*PAGES, *SOURCES) if wrong.search(text_of(path))]


def test_the_data_model_names_every_table_and_field() -> None:
    from embeddb.core.records import Measurement, WorkloadInfo
    from embeddb.store.engine import TABLES

    page = (ROOT / "docs" / "reference" / "data-model.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.+?) \|", page, re.M)
    listed = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert set(TABLES) <= listed
    assert set(Measurement.__struct_fields__) <= listed
    assert " ".join(WorkloadInfo.__struct_fields__) in page


def test_python_blocks_compile() -> None:
    bodies = ((shown(p), body) for p in PAGES for kind, body in blocks(p) if kind == "python")
    assert not problems(bodies, lambda body: compile(body, "page", "exec") and None)


def test_the_drawing_is_the_tree() -> None:
    """Every arrow of the architecture page is an import, and every import follows from arrows."""
    page = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
    ends = re.compile(r'^ *(\w+)(?:\["[^"]*"\])? --> (\w+)', re.M)
    drawn = set(ends.findall(page))
    imports = {
        (_room(a.source), _room(a.target))
        for a in arrows_of(modules_of(ROOT))
        if a.kind == "import"
    }
    above = {"", "__main__", "testing"}
    imports = {(one, other) for one, other in imports if one != other and not above & {one, other}}
    assert not drawn - imports, f"no such import: {sorted(drawn - imports)}"
    below: dict[str, set[str]] = {}
    for one, other in sorted(drawn):
        below.setdefault(one, set()).add(other)
    for _ in below:
        for reached in below.values():
            reached |= {far for near in reached for far in below.get(near, ())}
    lost = {pair for pair in imports if pair[1] not in below.get(pair[0], ())}
    assert not lost, f"not in the drawing: {sorted(lost)}"


def _room(module: str) -> str:
    """A module's folder in the drawing: of `embeddb` the second part, else the package."""
    package, *parts = module.split(".")
    return package if package != "embeddb" else (parts[0] if parts else "")


def test_tables_of_results_are_those_of_the_files() -> None:
    assert not results_tables.stale(), "python tools/results_tables.py --write"


# -- what the pages promise to be tested -------------------------------------------------------


def test_the_tutorial_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every command and Python block down to `Your own log`, in order, in an empty folder."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    monkeypatch.chdir(tmp_path)
    import board_log

    board_log.main(Path("board"))
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    page = (ROOT / "docs" / "tutorial" / "own-log.md").read_text(encoding="utf-8")
    part = tmp_path / "page.md"
    part.write_text(page.partition("## Your own log")[0], encoding="utf-8")
    for line in commands(part):
        ended = run_verb(shlex.split(line)[1:])
        assert ended == 0, f"{line}: {capsys.readouterr().err}"
    names: dict[str, Any] = {}
    for language, body in blocks(part):
        if language == "python":
            exec(compile(body, "tutorial", "exec"), names)
    assert names["answer"].insight.deep and len(names["names"]) == 20
    assert set(names["columns"]["pattern"]) <= set(names["names"])
    said = capsys.readouterr().out
    assert "1 rejected" in said and "my-fpga" in said and "neighbours" in said
    worked = (ROOT / "docs" / "explanation" / "answer.md").read_text(encoding="utf-8")
    printed = re.search(r"`(5\S+x  \S+x\.\.\S+x)`", worked)
    assert printed is not None and printed[1] in said
    reject = (tmp_path / "board" / "runs.csv.rejects.jsonl").read_text()
    quoted = re.search(r'^(\{"line": .*?), \.\.\.\}$', page, re.M)
    assert quoted is not None and reject.startswith(quoted[1])
    assert "#" in (tmp_path / "best.h").read_text()
    head = (tmp_path / "board" / "runs.csv").read_text().splitlines()[:2]
    assert "\n".join(head) in page


@pytest.mark.slow
@pytest.mark.gcc
@pytest.mark.skipif(cpu_build.compiler() is None, reason="needs gcc")
def test_the_first_query_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Commands and Python blocks of the first tutorial and the README's example, in order."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EMBEDDB_HOME", str(tmp_path / "home"))
    page = ROOT / "docs" / "tutorial" / "first-query.md"
    names: dict[str, Any] = {}
    for language, body in blocks(page):
        if language == "python":
            exec(compile(body, "first-query", "exec"), names)
        for line in body.splitlines():
            if _is_command(line):
                assert run_verb(shlex.split(line)[1:]) == 0, capsys.readouterr().err
    assert Path("why.html").is_file() and names["C"].shape[1] == 128
    (example,) = (body for kind, body in blocks(ROOT / "README.md") if kind == "python")
    exec(compile(example, "README", "exec"), names)
    assert "True" in capsys.readouterr().out


def simulated_log(folder: Path) -> None:
    """A simulator, matrices, and its log as an architect has them."""
    import my_simulator

    shutil.copy(ROOT / "examples" / "my_simulator.py", folder / "simulator.py")
    (folder / "matrices").mkdir()
    rows = ["matrix,tile_rows,lanes,dataflow,double_buffer,prefetch,total_cyc"]
    for seed in range(7):
        file = folder / "matrices" / f"m{seed}.mtx" if seed else folder / "new.mtx"
        size = 60 + 30 * seed
        mmwrite(file, random_matrix(size, 50, 0.02 + 0.03 * (seed % 3), random_state=seed))
        columns, lengths = my_simulator.row_lengths(file)
        for tile, lanes, flow, (double, prefetch) in itertools.product(
            (16, 64, 256, 1024), (4, 8, 16), ("row", "outer"), ((0, 0), (1, 1), (1, 2), (1, 4))
        ):
            chosen = Namespace(
                **{"width": 32, "lanes": lanes, "tile_rows": tile, "dataflow": flow},
                **{"double_buffer": double, "prefetch": prefetch},
            )
            cycles = my_simulator.cycles(columns, lengths, chosen)
            rows.append(f"m{seed},{tile},{lanes},{flow},{double},{prefetch or ''},{cycles}")
    kept = [row for row in rows if not row.startswith("m0,")]
    (folder / "log.csv").write_text("\n".join(kept) + "\n", encoding="utf-8")


def test_the_architects_path_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every command of the section, in order; the lines of its TOML block put into the draft."""
    pytest.importorskip("lightgbm")
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    monkeypatch.chdir(tmp_path)
    simulated_log(tmp_path)
    page = (ROOT / "docs" / "howto" / "new-platform.md").read_text(encoding="utf-8")
    _, _, section = page.partition("## From a simulator and its log")
    part = tmp_path / "page.md"
    part.write_text(section.partition("\n## ")[0], encoding="utf-8")
    ((_, edited),) = [block for block in blocks(part) if block[0] == "toml"]
    draft, *rest = commands(part)
    assert run_verb(shlex.split(draft)[1:]) == 0
    text = Path("my.toml").read_text(encoding="utf-8")
    text = text.replace('# runner = "command"', 'runner = "command"')
    text = text.replace('# instance = "this"', 'instance = "this"')
    text = text.partition("# [command]")[0] + edited[edited.index("[command]") :]
    Path("my.toml").write_text(text, encoding="utf-8")
    for line in rest:
        assert run_verb(shlex.split(line)[1:]) == 0, f"{line}: {capsys.readouterr().err}"
    shown = capsys.readouterr().out
    assert "576 runs added" in shown and " cycles" in shown
    assert "5 of a budget of 5 samples spent" in shown
    with Database.open("my.db", readonly=True) as db:
        assert len(db.store.platforms()) == 1


def plugin_files(folder: Path) -> None:
    """The files of the pages that add a plug-in, under the names that their first lines give."""
    for kind in ("reader", "featurizer", "runner", "tuner", "executor", "kind"):
        for language, body in blocks(ROOT / "docs" / "howto" / f"new-{kind}.md"):
            if language in ("python", "toml"):
                name = body.partition("\n")[0].removeprefix("# ")
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_text(body, encoding="utf-8")


def test_the_plugins_keep_their_contracts(tmp_path: Path) -> None:
    plugin_files(tmp_path)
    environment = {
        **os.environ,
        "EMBEDDB_PLUGINS": str(tmp_path),
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]),
    }
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None and int(passed[1]) >= 25


def test_the_plugins_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plugin_files(tmp_path)
    monkeypatch.setenv("EMBEDDB_PLUGINS", str(tmp_path))
    for kind, name in (
        ("reader", "board"),
        ("featurizer", "shape"),
        ("runner", "slices"),
        ("tuner", "nearest"),
        ("executor", "modest"),
    ):
        assert name in plugins.available(kind)
        assert plugins.load(kind, name)
    log = tmp_path / "log.txt"
    log.write_text("# board 1\n" + "".join(f"m{i} 256 4 {i}\nm{i} 64 8 1\n" for i in range(2, 6)))
    platform = str(ROOT / "examples" / "my_platform.toml")
    folder = str(tmp_path / "x.db")
    ended = run_verb(["index", folder, str(log), "--platform", platform, "--op", "spmm:32"])
    assert ended == 0
    assert "read as board" in capsys.readouterr().out
    with Database.open(folder) as db:
        assert db.store.count_runs() == 8


def test_the_nearest_tuner_copies_the_nearest_neighbour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from embeddb.core.config import Op
    from embeddb.core.records import WorkloadInfo
    from embeddb.platforms.platform import load_platform
    from embeddb.ranking.query import Query, Vote

    plugin_files(tmp_path)
    monkeypatch.setenv("EMBEDDB_PLUGINS", str(tmp_path))
    op, platform = Op("spmm", 32), load_platform("cpu")
    configs = tuple(platform.space(op).neighbours(platform.default(op))[:3])
    query = Query(
        WorkloadInfo(id="0"),
        platform,
        op,
        platform.space(op),
        platform.default(op),
        vote=Vote(configs=configs, gains=np.array([[0.1, np.nan, 0.5], [9.0, 9.0, 9.0]])),
    )
    tuner = plugins.load("tuner", "nearest")(query, rng=np.random.default_rng(0))
    assert [dict(c.config) for c in tuner.ask(5)] == [dict(configs[2]), dict(configs[0])]


def test_runs_of_kernels_of_others_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from indexer.programs.tensors import program
    from indexer.programs.tensors.cutting import distinct_kernels

    monkeypatch.chdir(tmp_path)
    files = dict(blocks(ROOT / "docs" / "howto" / "tensor-kernels.md"))
    Path("my-tpu.toml").write_text(files["toml"], encoding="utf-8")
    Path("runs.csv").write_text(files["csv"], encoding="utf-8")
    names = ["perceptron.small", "two_tower.small"]
    with Database.create("tensors.db") as db:
        db.index.add_patterns(distinct_kernels(map(program, names)))
    lines = [
        line for line in commands(ROOT / "docs" / "howto" / "tensor-kernels.md") if "my-tpu" in line
    ]
    assert [line.split()[1] for line in lines] == ["platform", "index", "query"]
    for line in lines:
        assert run_verb(shlex.split(line)[1:]) == 0, f"{line}: {capsys.readouterr().err}"
    said = capsys.readouterr().out
    assert "5 runs added, 0 rejected" in said and "two_tower.small/0" in said


@pytest.mark.gcc
@pytest.mark.skipif(cpu_build.compiler() is None, reason="needs gcc")
def test_the_analytical_model_is_asked_as_the_page_says() -> None:
    names: dict[str, Any] = {}
    found = (
        body
        for _, body in blocks(ROOT / "docs" / "howto" / "tensor-kernels.md")
        if "TileModel" in body
    )
    exec(compile(next(found), "tensors", "exec"), names)
    seconds = names["model"].seconds([{"t2": 32, "t3": 128, "tr": 64}, {"t3": 128}])
    assert seconds.shape == (2,) and np.all((seconds > 1e-6) & (seconds < 1))
