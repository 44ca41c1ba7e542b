"""The `[command]` table of a platform file: what it may say, and the message when it may not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_files import OP, PATTERN, QUICK, RUN, A, text_of
from command_line import run_verb

from embeddb.core.config import Config
from embeddb.core.errors import PlatformError
from embeddb.platforms.check import check_platform, check_programs
from embeddb.platforms.platform import load_platform, parse_platform, runner_for
from indexer.runners.command import CommandRunner

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"run": "[]"}, "command.run: must list the program"),
        ({"run": '["{matrix}", "{config.mode}"]'}, r"command.run\[0\]: is the program"),
        ({"run": '["x", "{matrix}", "{foo}"]'}, r"command.run\[2\]: unknown placeholder {foo}"),
        ({"run": '["x", "{matrix}", "{config.mod}"]'}, r"run\[2\]: unknown placeholder {config.m"),
        ({"run": '["x", "{matrix:-a}"]'}, r"run\[1\]: {matrix} is always known"),
        ({"run": '["x", "{matrix"]'}, r"command.run\[1\]: a lone {"),
        ({"run": '["x", "matrix}"]'}, r"command.run\[1\]: a lone }"),
        ({"run": '["x", "{config.mode}"]'}, "command.run: has no {matrix}"),
        ({"run": '["x", "{matrix}"]'}, "command.run: has no {config.mode}"),
        ({"run": '["x", "a\\u0000"]'}, r"command.run\[1\]: must have at most .* no NUL"),
        ({"run": json.dumps(["x"] * 300)}, "command.run: 300 arguments"),
        ({"time": "{ unit = 's' }"}, "command.time.regex: a time is read by"),
        ({"time": "{ unit = 's', regex = '(' }"}, "command.time.regex: not a regular expression"),
        ({"time": "{ unit = 's', regex = 'x' }"}, "command.time.regex: has 0 groups"),
        ({"time": "{ unit = 's', regex = '(x)', json = 'a' }"}, "command.time.regex"),
        ({"time": "{ unit = 'h', json = 'a' }"}, "command.time.unit: 'h' is not one of"),
        ({"time": "{ unit = 's', json = 'a..b' }"}, "command.time.json: 'a..b' is no path"),
        ({"time": "{ json = 'a' }"}, "command.time.unit: is missing"),
        ({"extra": "timeout_s = 0"}, "command.timeout_s: must be more than 0"),
        ({"extra": "timeout_s = nan"}, "command.timeout_s: must be more than 0"),
        ({"extra": "retries = 1.5"}, "command.retries: must be a whole number"),
        ({"extra": "retries = inf"}, "command.retries: must be a whole number"),
        ({"extra": "max_output_bytes = 1e12"}, "command.max_output_bytes: must be a whole"),
        ({"extra": "matrix = 'xls'"}, "command.matrix: 'xls' is not one of"),
        ({"extra": "env = ['A=B']"}, r"command.env\[0\]"),
        ({"extra": "retry = 1"}, "command.retry: unknown key"),
        ({"extra": "[command.exit]\n256 = 'ok'"}, "command.exit.256: is no exit code"),
        ({"extra": "[command.exit]\n1 = 'bad'"}, "command.exit.1: 'bad' is not one of"),
        ({"extra": "[command.status]\nok = 'x'"}, "command.status.ok: is no failure"),
        ({"extra": "[command.status]\noom = '(x'"}, "command.status.oom: not a regular"),
    ],
)
def test_bad_tables(parts: dict[str, str], message: str) -> None:
    with pytest.raises(PlatformError, match=message) as caught:
        parse_platform(text_of(**parts), where="f.toml")
    assert str(caught.value).startswith("f.toml: ") and "\n" not in str(caught.value)


def test_the_table_and_the_runner_belong_together() -> None:
    text = text_of()
    with pytest.raises(PlatformError, match="command: is only read with runner"):
        parse_platform(text.replace('runner = "command"', 'runner = "cpu"'))
    with pytest.raises(PlatformError, match=r"which is 'comand', and there is no such runner here"):
        parse_platform(text.replace('runner = "command"', 'runner = "comand"'))
    start, _, rest = text.partition("[command]")
    with pytest.raises(PlatformError, match="command: is missing"):
        parse_platform(start + rest[rest.index("[[space]]") :])
    time = "{ json = 'a', unit = 'cycles' }"
    for clock in ("'fast'", "0", "-1", "nan", "1e7"):
        with pytest.raises(PlatformError, match=r"time.unit: .*clock_ghz.* is no number above 0"):
            parse_platform(text_of(time=time).replace("clock_ghz = 2", f"clock_ghz = {clock}"))
    time = "{ json = 'a', unit = 's', from = 'output' }"
    with pytest.raises(PlatformError, match=r"`run` has no {output}"):
        parse_platform(text_of(time=time, run=RUN.replace("{output}", "out")))


def test_a_parameter_that_may_be_absent_needs_a_default(tmp_path: Path) -> None:
    depth = 'depth = { type = "int", values = [1, 2], when = "mode == \'b\'" }'
    run = '["sh", "sim.sh", "{matrix}", "{config.mode}", "{config.depth}"]'
    text = text_of(run=run).replace("[space.default]", f"{depth}\n[space.default]")
    with pytest.raises(PlatformError, match=r"run\[4\]: parameter 'depth' is not part") as caught:
        parse_platform(text)
    assert caught.value.hint == "say what stands for its absence: {config.depth:-0}"
    (tmp_path / "sim.sh").write_text("echo t=$3")
    (tmp_path / "p.toml").write_text(text.replace("{config.depth}", "{config.depth:-9}"))
    runner = runner_for(load_platform(tmp_path / "p.toml"))
    configs = [A, Config({"mode": "b", "depth": 2})]
    times = [m.times_s for _, m in runner.run(PATTERN, OP, configs, options=QUICK)]
    assert times == [(pytest.approx(9e-3),), (pytest.approx(2e-3),)]


def test_symbols_reach_the_program_as_numbers(tmp_path: Path) -> None:
    text = text_of(run='["sh", "sim.sh", "{matrix}", "{config.mode}"]')
    values = 'mode = { type = "int", values = [1, "NUM_MATRIX_COLS"] }'
    lines = [values if line.startswith("mode = {") else line for line in text.splitlines()]
    text = "\n".join(lines).replace('mode = "a"', "mode = 1")
    (tmp_path / "sim.sh").write_text("echo t=$2")
    (tmp_path / "p.toml").write_text(text)
    runner = runner_for(load_platform(tmp_path / "p.toml"))
    config = Config({"mode": "NUM_MATRIX_COLS"})
    ((_, found),) = runner.run(PATTERN, OP, [config], options=QUICK)
    assert found.times_s == (5e-3,)


def test_the_page_shows_the_example() -> None:
    page = (ROOT / "docs" / "howto" / "new-platform.md").read_text(encoding="utf-8")
    keys = (ROOT / "docs" / "reference" / "platform-file.md").read_text(encoding="utf-8")
    example = (ROOT / "examples" / "my_simulator.toml").read_text(encoding="utf-8")
    block = example[example.index("[command]") : example.index("[[space]]")].strip()
    assert block in page
    for key in (
        *("run", "time", "matrix", "values", "version", "env", "timeout_s", "retries"),
        *("max_output_bytes", "max_memory_mib", "exit", "status"),
        *("{matrix}", "{output}", "{threads}", "{repeats}", "{op.kernel}", "{config.NAME}"),
    ):
        assert f"`{key}`" in keys, key


def test_a_check_names_what_cannot_work(tmp_path: Path) -> None:
    file = tmp_path / "other.toml"
    cycles = "{ regex = 't=(.)', unit = 'cycles' }"

    def problems(text: str) -> list[str]:
        file.write_text(text)
        platform = load_platform(file)
        return check_platform(platform) + check_programs(platform)

    (missing,) = problems(text_of())
    assert missing.startswith("command.run[1]: no file 'sim.sh' beside the platform file")
    assert check_platform(load_platform(file)) == [], "logs are read elsewhere, too"
    assert "no file 'sim.sh'" in (CommandRunner(load_platform(file)).available() or "")
    (tmp_path / "sim.sh").touch()
    assert problems(text_of()) == []
    (missing,) = problems(text_of(run=RUN.replace('"sh"', '"no-such-shell"')))
    assert missing.startswith("command.run[0]: no program 'no-such-shell'")
    for trait in ("clock_mhz = 2000", "core_clock = 1.5", "frequency = 1", "freq = 3"):
        (clock,) = problems(text_of(time=cycles).replace("clock_ghz = 2", trait))
        assert clock.startswith(f"traits.{trait.split()[0]}: is not read as the clock")
    facts = "dram_mhz = 1600\nclock_domains = 2\nclock = 'one'\nclock_gated = true"
    assert problems(text_of(time=cycles).replace("clock_ghz = 2", facts)) == []


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        ('"java", "Main"', ""),
        ('"bash", "gunzip"', ""),
        ('"python3", "-m"', ""),
        ('"python3", "sim.py"', "no file 'sim.py'"),
        ('"bash", "bin/sim"', "no file 'bin/sim'"),
    ],
)
def test_a_script_is_named_as_one(
    words: str, missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: name)
    run = RUN.replace('"sh", "sim.sh"', words)
    (tmp_path / "other.toml").write_text(text_of(run=run))
    problems = check_programs(load_platform(tmp_path / "other.toml"))
    assert [missing in line for line in problems] == [True] * bool(missing)


def test_a_runner_that_is_not_here(tmp_path: Path) -> None:
    text = text_of().replace('runner = "command"', 'runner = "comand"').partition("[command]")[0]
    (tmp_path / "other.toml").write_text(text + "[[space]]" + text_of().partition("[[space]]")[2])
    (problem,) = check_programs(load_platform(tmp_path / "other.toml"))
    assert problem.startswith("runner: no plug-in here has the name 'comand': command, cpu, ")


def test_the_name_of_a_built_in_platform() -> None:
    ours = load_platform("cpu").version
    text = text_of().replace('name = "other"', 'name = "cpu"')
    older, same = text.replace('version = "1"', 'version = "0"'), f'version = "{ours}"'
    assert check_platform(parse_platform(older)) == []
    (name,) = check_platform(parse_platform(text.replace('version = "1"', same)))
    assert name.startswith("name: 'cpu' is another platform")


@pytest.mark.parametrize(("verb", "shown"), [("check", "spmv 3"), ("show", "spmv: 3 legal")])
def test_counts_of_an_operation_without_dense_columns(
    verb: str, shown: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = text_of(run=RUN.replace('"{output}"', '"{config.unroll}"')).replace(
        "[space.params]", "[space.params]\nunroll = { type = 'int', values = [1, 2, 4] }"
    )
    text = text.replace("[space.default]", "[space.default]\nunroll = 1")
    text = text.replace('"spmv"]', '"spmv"]\nconstraints = ["unroll <= WIDTH"]')
    (tmp_path / "other.toml").write_text(text)
    (tmp_path / "sim.sh").touch()
    assert run_verb(["platform", verb, str(tmp_path / "other.toml")]) == 0
    assert shown in capsys.readouterr().out
