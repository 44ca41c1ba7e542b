"""What people are used to: tables on a terminal, completion, a welcome, hints."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
from importlib import metadata
from pathlib import Path

import pytest
from builders import OP, band, fill, patterns, tiny
from command_line import run_verb

import embeddb
from embeddb.database import Database
from embeddb.store import Store
from embeddb.store.engine import MemoryEngine
from embeddb.ui.cli import output, terminal
from embeddb.ui.cli.main import VERBS
from embeddb.ui.cli.output import COMPLETING
from embeddb.ui.cli.welcome import EXAMPLE, welcome
from indexer import starter
from indexer.shipped.__main__ import ship
from indexer.shipped.file import unpack

HEAD = ("rank", "name", "seconds", "configuration")
ROWS = [
    (1, "a [red]b[/] :smile:", 0.5, "block=4x4,format=bcsr,order=ij,schedule=guided,threads=all"),
    (12, "näme 行列", None, "x" * 70),
]
PRINTING = (
    "from embeddb.ui.cli.output import table; import test_terminal_habits as t;"
    "table(t.HEAD, t.ROWS); import sys; print('rich' in sys.modules)"
)


def on_terminal(code: str, *, columns: int, **environment: str) -> str:
    """What a Python program prints on a terminal that wide."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    known = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")}
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[3] / "fixtures")]
    env = {**known, "TERM": "xterm-256color", "PYTHONPATH": os.pathsep.join(paths)}
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=theirs,
        stdin=subprocess.DEVNULL,
        env={**env, "PYTHONIOENCODING": "utf-8", **environment},
    ) as child:
        os.close(theirs)
        read = b""
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # Linux says so at the end
                break
            if not piece:
                break
            read += piece
    os.close(ours)
    assert child.returncode == 0
    return read.decode().replace("\r\n", "\n")


def bare(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


# -- tables ------------------------------------------------------------------------------------


def test_a_piped_table_is_plain(capsys: pytest.CaptureFixture[str]) -> None:
    output.table(HEAD, ROWS[:1], indent="  ")
    assert capsys.readouterr().out == (
        "  rank  name                 seconds  configuration\n"
        "     1  a [red]b[/] :smile:      0.5  "
        "block=4x4,format=bcsr,order=ij,schedule=guided,threads=all\n"
    )


@pytest.mark.parametrize("columns", [70, 90, 200])
def test_a_terminal_gets_a_table_that_fits_and_shows_everything(columns: int) -> None:
    shown = bare(on_terminal(PRINTING, columns=columns))
    assert shown.endswith("True\n")
    lines = shown.splitlines()[:-1]
    assert all(len(line) <= columns for line in lines)
    assert "[red]" in shown and ":smile:" in shown and "行列" in shown and "…" not in shown
    assert shown.count("x") == 70 + 1  # and that of 4x4
    for part in ROWS[0][3].split(","):
        assert part in shown
    assert "─" in shown


@pytest.mark.parametrize("said", [{"TERM": "dumb"}, {"COLUMNS": "30"}])
def test_a_terminal_that_cannot_show_a_table_gets_the_plain_one(said: dict[str, str]) -> None:
    shown = on_terminal(PRINTING, columns=100, **said)
    assert "\x1b" not in shown and "─" not in shown
    assert str(ROWS[0][3]) in shown


def test_no_color_and_columns_are_heeded() -> None:
    shown = on_terminal(PRINTING, columns=200, NO_COLOR="1", COLUMNS="80")
    assert max(map(len, bare(shown).splitlines())) <= 80
    assert not re.search(r"\x1b\[[0-9;]*(3|4|9)[0-7]", shown)


def test_columns_without_anything_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    cells = [["a", "b"], ["-", "1"], ["-", "2"]]
    assert terminal.draw(cells, [False, True], indent=0)
    assert "a" not in capsys.readouterr().out


# -- completion --------------------------------------------------------------------------------


def offered(line: str, home: Path) -> list[str]:
    """What bash is told that could stand at the end of a line."""
    return [word for _, word in completed(line, home)]


def completed(line: str, home: Path) -> list[tuple[str, str]]:
    """The kind (`plain`, `dir`, `file`) and the word of each line that bash gets."""
    words = line.split(" ")
    environment = {
        COMPLETING: "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
        "EMBEDDB_HOME": str(home),
    }
    done = subprocess.run(
        [sys.executable, "-m", "embeddb.ui.cli.main"],
        env={**os.environ, **environment},
        capture_output=True,
        check=True,
        text=True,
    )
    assert not done.stderr
    return [(one, word) for one, _, word in (x.partition(",") for x in done.stdout.splitlines())]


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("habits") / "runs.db"
    odd = [band(90, 3, name="$(touch x)"), band(91, 3, name="m0; ls")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("embeddb.featurizers.scnn.SHIPPED", folder / "none")
        fill(Database.create(folder), tiny(), [*patterns(), *odd]).close()
    return folder


def test_shells_complete_what_can_stand_there(db: Path, tmp_path: Path) -> None:
    assert offered("embeddb ", tmp_path) == list(VERBS)
    assert offered("embeddb qu", tmp_path) == ["query"]
    assert "starter" in offered("embeddb query ", tmp_path)
    assert "--platform" in offered(f"embeddb query {db} A.mtx --pl", tmp_path)
    known = offered(f"embeddb query {db} A.mtx --platform ", tmp_path)
    assert {"cpu", "spade", "tiny"} <= set(known)
    assert offered(f"embeddb query {db} A.mtx --op ", tmp_path) == [str(OP)]
    assert "spmv" in offered("embeddb query nowhere.db A.mtx --op ", tmp_path)
    assert offered(f"embeddb query {db} m0", tmp_path)[:4] == ["m0a", "m0b", "m0c", "m0d"]
    assert offered("embeddb completion ", tmp_path) == ["bash", "zsh", "fish"]
    assert "spmv" in offered("embeddb query starter A.mtx --op ", tmp_path)
    assert not list(tmp_path.iterdir())  # the starter is not imported for it


def test_files_are_completed_where_a_file_can_stand(tmp_path: Path) -> None:
    for line in (
        *("embeddb measure runs.db A", "embeddb plot spy A", "embeddb nest import n.db A"),
        *("embeddb platform draft A", "embeddb kernel import k.db A", "embeddb index x.db A"),
    ):
        assert completed(line, tmp_path) == [("file", "A")], line
    folders = "embeddb adopt x.db --matrices A"
    assert completed(folders, tmp_path) == [("dir", "A")]
    assert "spmv" in offered("embeddb calibrate starter --op sp", tmp_path)


def test_names_that_a_shell_would_run_are_not_offered(db: Path, tmp_path: Path) -> None:
    found = "".join(offered(f"embeddb query {db} ", tmp_path))
    assert "touch" not in found and ";" not in found


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_comes_with_how_to_install_it(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_verb(["completion", shell]) == 0
    text = capsys.readouterr().out
    assert COMPLETING in text and f"embeddb completion {shell} >" in text
    assert run_verb(["completion", shell, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert set(document) == {"shell", "script", "install"} and document["script"] in text
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=text, check=True, text=True)


_COMPLETE = """
{script}
COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
COMP_LINE='{line}'; COMP_POINT=${{#COMP_LINE}}
_embeddb_completion embeddb
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_offers_the_words_beside_files_and_within_what_it_cuts(
    db: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "starting").mkdir()
    command = tmp_path / "embeddb"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m embeddb.ui.cli.main "$@"\n')
    command.chmod(0o755)
    assert run_verb(["completion", "bash", "--json"]) == 0
    script = json.loads(capsys.readouterr().out)["script"]

    def replied(line: str, words: str) -> list[str]:
        text = _COMPLETE.format(script=script, line=line, words=words)
        path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "EMBEDDB_HOME": str(tmp_path / "home")}
        done = subprocess.run(
            ["bash", "--norc"],
            input=text,
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            check=True,
            text=True,
        )
        return done.stdout.split()

    assert replied("embeddb query star", "embeddb query star") == ["starter", "starting"]
    line = f"embeddb query {db} A.mtx --platform tin"
    assert replied(line, line) == ["tiny"]
    line = f"embeddb query {db} A.mtx --op spmm:"
    assert replied(line, line.replace(":", " :")) == ["32"]
    line = "embeddb query starter A.mtx --op spmm:1"
    assert replied(line, line.replace(":", " : ")) == ["128"]


# -- a newcomer --------------------------------------------------------------------------------


def test_embeddb_alone_explains_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EMBEDDB_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    assert run_verb([]) == 0
    shown = capsys.readouterr().out
    for said in ("index", "query", "explain", "imported on first use", str(tmp_path / "home")):
        assert said in shown
    assert f"next: embeddb query starter {EXAMPLE} --platform cpu --op spmm:32" in shown
    for extra in set(metadata.metadata("embeddb").get_all("Provides-Extra") or ()) - {
        "dev",
        "docs",
    }:
        assert f"\n  {extra} " in shown, extra
    assert len(shown.splitlines()) < 30 and not (tmp_path / "home").exists()
    Path("a b.mtx").touch()
    Database.create("mine.db").close()
    assert run_verb([]) == 0
    shown = capsys.readouterr().out
    assert "query starter 'a b.mtx' --platform" in shown and "  mine.db: " in shown
    monkeypatch.setattr(starter, "STARTER_FILE", tmp_path / "none")
    welcome()
    shown = capsys.readouterr().out
    assert "not part of this installation" in shown and "next: embeddb index" in shown


def test_the_example_is_in_the_starter() -> None:
    engine = MemoryEngine()
    next(unpack(starter.STARTER_FILE, engine))  # the runs come last
    assert Store(engine).find(EXAMPLE)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["qeury"], "did you mean `embeddb query`?"),
        (["zzz"], "embeddb --help"),
        (["query", "DB", "m0x", "--platform", "tiyn", "--op", "spmm:32"], "did you mean tiny?"),
        (["query", "EMPTY", "m0", "--platform", "cpu", "--op", "spmv"], "`embeddb index` fills"),
        (["query", "EMPTY", "m0", "--platform", "mine", "--op", "spmv"], "built in: autotvm, cpu"),
        (["eval", "EMPTY"], "`embeddb index`"),
        (["query", "gone.db", "m0", "--platform", "cpu", "--op", "spmv"], "embeddb init gone.db"),
    ],
)
def test_errors_say_what_to_do(
    db: Path,
    tmp_path: Path,
    args: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Database.create("empty.db").close()
    names = {"DB": str(db), "EMPTY": "empty.db"}
    assert run_verb([names.get(word, word) for word in args]) in (1, 2, 3)
    err = capsys.readouterr().err
    assert said in err and len(err.splitlines()) == 1


def test_an_empty_database_says_how_to_fill_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Database.create(tmp_path / "e.db").close()
    assert run_verb(["db", "stat", str(tmp_path / "e.db")]) == 0
    assert "embeddb index" in capsys.readouterr().out


def test_the_starter_opens_by_its_name(
    db: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported, data = tmp_path / "all.jsonl", tmp_path / "starter.rows"
    assert run_verb(["db", "export", str(db), str(exported)]) == 0
    ship([exported], data)
    monkeypatch.setattr(starter, "STARTER_FILE", data)
    monkeypatch.setenv("EMBEDDB_HOME", str(tmp_path / "home"))
    with embeddb.open("starter") as opened:
        assert opened.store.counts()["pattern"] > 20
    with embeddb.open(db, readonly=True) as opened:
        assert opened.store.readonly


# -- Ctrl-C ---------------------------------------------------------------------------------------


def test_ctrl_c_during_the_first_imports_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("raise KeyboardInterrupt\n")
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[4])])
    done = subprocess.run(
        [sys.executable, "-m", "embeddb", "--version"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "embeddb: interrupted\n"


def test_the_entry_is_ready_before_anything_large_is_imported() -> None:
    code = "import sys, embeddb.ui.cli.entry; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"click", "msgspec", "numpy"} & set(done.stdout.split())
