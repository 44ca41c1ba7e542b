"""Plug-ins: those that ship, one file in a folder of the user's, an installed distribution."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders import OP, fill, tiny

from embeddb.core import plugins
from embeddb.core.errors import MissingDependency, PluginError, RunnerUnavailable, UsageError
from embeddb.database import Database
from embeddb.platforms.platform import load_platform, this_machine
from embeddb.testing.executors import script_campaign
from embeddb.ui.cli.main import run

FAKE = Path(__file__).parents[2] / "fake_dist"

MINE = """
from __future__ import annotations
from dataclasses import dataclass

@dataclass
class PLUGIN:
    name: str = "my-tuner"
"""


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("EMBEDDB_PLUGINS", raising=False)
    _forget()
    yield
    _forget()


def _forget() -> None:
    plugins._locate.cache_clear()
    plugins._load_file.cache_clear()


#: A tuner that is nothing but its two methods.
LAST_FIRST = """
from embeddb.ranking import Candidate

class PLUGIN:
    def __init__(self, query, *, rng):
        self.left = list(query.space.enumerate())[::-1]

    def ask(self, count):
        asked, self.left = self.left[:count], self.left[count:]
        return [Candidate(config=dict(c), score=0.0, origin="last") for c in asked]

    def tell(self, config, measurement):
        self.left = [c for c in self.left if c != config]
"""


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checked-in distribution, as if it had been installed."""
    monkeypatch.syspath_prepend(str(FAKE))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tuners").mkdir()
    monkeypatch.setenv("EMBEDDB_PLUGINS", f"{tmp_path / 'nowhere'}{os.pathsep}{tmp_path}")
    return tmp_path / "tuners"


def test_what_ships() -> None:
    assert "stats" in plugins.available("featurizer")
    assert plugins.load("featurizer", "stats").name == "stats"
    for kind in ("reader", "featurizer", "runner", "tuner"):
        names = plugins.available(kind)
        assert names == sorted(set(names))
        assert not [name for name in names if name.startswith(("_", "-")) or "_" in name]


def test_listing_imports_no_plugin() -> None:
    script = (
        "import sys; from embeddb.core.plugins import available;"
        "[available(k) for k in ('reader', 'featurizer', 'runner', 'tuner')];"
        "print([m for m in sys.modules if m.count('.') > 1"
        " and m.startswith(('indexer.', 'embeddb.featurizers.')) and not m.endswith('.base')])"
    )
    said = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert said.stdout.strip() == "[]"


def test_a_folder_of_that_name_on_the_path_hides_no_tuner(folder: Path) -> None:
    (folder / "my_tuner.py").write_text(MINE)
    script = (
        "import sys; from embeddb.core.plugins import available, load; import tuners;"
        "print(load('tuner', 'transfer').__name__, load('tuner', 'random').__name__);"
        "print(*available('tuner')); import tuners.tune"
    )
    said = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True, text=True, check=True, timeout=60, cwd=folder.parent,
        env={**os.environ, "PYTHONPATH": str(folder.parent)},
    ).stdout.splitlines()  # fmt: skip
    assert said[0] == "StrategyTuner RandomTuner" and "my-tuner" in said[1].split()
    assert len(said[1].split()) > 5


def test_one_file_in_a_folder(folder: Path) -> None:
    (folder / "my_tuner.py").write_text(MINE)
    (folder / "_hidden.py").write_text(MINE)
    (folder / "notes.txt").write_text("x")
    names = plugins.available("tuner")
    assert "my-tuner" in names
    assert not {"_hidden", "-hidden", "hidden", "notes"} & set(names)
    found = plugins.load("tuner", "my-tuner")
    assert found().name == "my-tuner"
    assert plugins.load("tuner", "my-tuner") is found
    assert "my-tuner" not in plugins.available("reader")


def test_a_users_tuner_answers_and_is_judged(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "last_first.py").write_text(LAST_FIRST)
    with Database.create(tmp_path / "runs.db") as db:
        fill(db, tiny())
        name = next(iter(db.store.patterns())).name
    place = [str(tmp_path / "runs.db")]
    asked = [*place, name, "--platform", "tiny", "--op", str(OP), "-k", "2"]
    shown = []
    for args in (["query", *asked], ["eval", *place, "--seeds", "1"]):
        with pytest.raises(SystemExit) as ended:
            run([*args, "--tuner", "last-first", "--json"])
        assert ended.value.code == 0
        shown.append(json.loads(capsys.readouterr().out))
    assert shown[0]["tuner"] == "last-first"
    assert [c["config"]["variant"] for c in shown[0]["candidates"]] == ["d", "c"]
    row = next(row for row in shown[1] if row["method"] == "last-first")
    assert row["of_optimum@1"] < row["of_optimum@2"] < row["of_optimum@5"] == 1.0


def test_an_installed_distribution(installed: None) -> None:
    assert {"from-dist", "needs-more"} <= set(plugins.available("tuner"))
    assert plugins.load("tuner", "from-dist").name == "from-dist"


def test_the_nearer_place_wins(
    installed: None, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "from_dist.py").write_text("PLUGIN = 'folder'\n")
    (tmp_path / "more" / "tuners").mkdir(parents=True)
    (tmp_path / "more" / "tuners" / "from_dist.py").write_text("PLUGIN = 'second folder'\n")
    assert plugins.load("tuner", "from-dist") == "folder"
    both = f"{tmp_path}{os.pathsep}{tmp_path / 'more'}"
    monkeypatch.setenv("EMBEDDB_PLUGINS", both)
    assert plugins.load("tuner", "from-dist") == "folder"
    assert plugins.load("featurizer", "stats").name == "stats"  # the one that ships


def test_a_name_that_is_not_there(folder: Path) -> None:
    (folder / "mine.py").write_text("PLUGIN = 1\n")
    with pytest.raises(UsageError, match="no tuner named 'yours'") as caught:
        plugins.load("tuner", "yours")
    assert "mine" in caught.value.hint
    assert caught.value.hint.endswith(f"names no folder: {folder.parent / 'nowhere'}")
    for call in (lambda: plugins.available("gadget"), lambda: plugins.load("gadget", "x")):
        with pytest.raises(UsageError, match="gadget") as caught:
            call()
        assert "reader" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("x = 1\n", UsageError, "PLUGIN"),
        ("def f(:\n", UsageError, "broken.py"),
        ("import a_module_that_nobody_has\n", MissingDependency, "a_module_that_nobody_has"),
    ],
)
def test_a_file_that_is_no_plugin(
    folder: Path, text: str, error: type[Exception], said: str
) -> None:
    (folder / "broken.py").write_text(text)
    assert "broken" in plugins.available("tuner")
    with pytest.raises(error, match=said) as caught:
        plugins.load("tuner", "broken")
    assert str(folder / "broken.py") in str(caught.value)
    (folder / "broken.py").write_text("PLUGIN = 'mended'\n")
    assert plugins.load("tuner", "broken") == "mended"


def test_a_distribution_that_is_broken(installed: None) -> None:
    with pytest.raises(MissingDependency, match="a_module_that_nobody_has"):
        plugins.load("tuner", "needs-more")
    with pytest.raises(UsageError, match="Missing"):
        plugins.load("tuner", "no-object")


def test_what_a_distribution_states_wrongly_hurts_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = tmp_path / "odd-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: odd\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[embeddb.tuner]\nodd = no-module:X\nwhole = json\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert {"odd", "whole", "default"} <= set(plugins.available("tuner"))
    assert plugins.load("tuner", "whole") is json
    with pytest.raises((UsageError, PluginError), match=r"tuner odd \(no-module:X\): "):
        plugins.load("tuner", "odd")


#: A runner of the platform `tiny`, with something wrong added after it.
RUNNER = """
from embeddb.platforms.platform import load_platform

class PLUGIN:
    name = "board"
    def available(self): return None
    def platform(self, *, threads=0): return load_platform(FILE).at("", {"board": "1"})
    def run(self, pattern, op, configs, *, options): return iter(())

"""


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("import nothing_of_this_name", "No module named 'nothing_of_this_name'"),
        ("PLUGIN = 5", "runner board cannot be created: 'int' object is not callable"),
        ("PLUGIN.available = lambda self: 1 // 0", r"runner board: available raised ZeroDivision"),
        ("PLUGIN.available = lambda self: True", "runner board: available returned True"),
        ("PLUGIN.platform = lambda self, threads=0: exit(3)", "platform raised SystemExit: 3"),
        ("PLUGIN.platform = lambda self, threads=0: None", "runner board: platform returned None"),
        ("FILE = 'cpu'", "runner board has cpu, not tiny"),
        ("PLUGIN.facts = lambda self, threads=0: 1 // 0", "facts raised ZeroDivisionError"),
        (None, "no runner named 'board'"),
    ],
)
def test_a_platform_whose_runner_cannot_be_used_answers_queries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str | None, said: str
) -> None:
    (tmp_path / "runners").mkdir()
    file = tmp_path / "tiny.toml"
    text = 'runner = "board"\n' + tiny().text.replace("simulated = true", "simulated = false")
    file.write_text(text)
    if wrong is not None:
        code = f"FILE = {str(file)!r}\n{RUNNER}{wrong}\n"
        (tmp_path / "runners" / "board.py").write_text(code)
    monkeypatch.setenv("EMBEDDB_PLUGINS", str(tmp_path))
    platform = load_platform(file)
    with Database.create(tmp_path / "runs.db") as db:
        fill(db, platform)
        name = next(iter(db.store.patterns())).name
        assert db.query(name, platform=platform.name, op=OP).candidates
        with pytest.raises(RunnerUnavailable, match=said):
            this_machine(platform)


@pytest.mark.parametrize("error", ["OSError(5, 'no bus')", "KeyError('x')", "SystemExit(0)"])
def test_what_a_plug_in_raises_anywhere_is_its_fault(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], error: str
) -> None:
    (tmp_path / "executors").mkdir()
    (tmp_path / "executors" / "odd.py").write_text(f"def PLUGIN(options): raise {error}\n")
    with pytest.raises((OSError, KeyError, SystemExit)) as caught:
        plugins.load("executor", "odd")(None)
    said = plugins.culprit(caught.value)
    assert said.startswith(f"executor odd raised {error.partition('(')[0]}: ")
    assert said.endswith(" (odd.py, line 1)")
    assert plugins.culprit(KeyError("ours")) == ""


def test_a_fault_of_an_executor_is_one_line(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("EMBEDDB_DEBUG", raising=False)
    (tmp_path / "executors").mkdir()
    (tmp_path / "executors" / "odd.py").write_text(
        "class PLUGIN:\n"
        "    name, detached = 'odd', False\n"
        "    def __init__(self, options): pass\n"
        "    def available(self): raise SystemExit(0)\n"
        "    def close(self): pass\n"
    )
    campaign = script_campaign(tmp_path)
    Database.create(tmp_path / "runs.db").close()
    with pytest.raises(SystemExit) as ended:
        words = ["campaign", "run", str(tmp_path / "runs.db"), str(campaign.folder)]
        run([*words, "--platform", str(tmp_path / "script.toml"), "--executor", "odd"])
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert "embeddb: executor odd raised SystemExit: 0 (odd.py, line 4) (traceback in" in said
    assert "bug in embeddb" not in said
