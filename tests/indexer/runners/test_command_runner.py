"""Programs of others as a platform: started, read, limited, killed, and refused out of a store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_files import ODD, OP, PATTERN, QUICK, RUN, A, B, measured, platform_of
from command_line import run_verb
from nest_shapes import sweep
from scipy.io import mmread
from scipy.sparse import load_npz

from embeddb.core.config import Config, Op
from embeddb.core.errors import RunnerUnavailable
from embeddb.database import Database
from embeddb.nests.nest_text import nest_from_text
from embeddb.platforms.check import check_platform
from embeddb.platforms.platform import Platform, load_platform, parse_platform, runner_for
from embeddb.testing.runners import RunnerContract
from indexer.runners.base import RunOptions
from indexer.runners.command import CommandRunner

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


class TestContract(RunnerContract):
    @pytest.fixture
    def runner(self, tmp_path: Path) -> Any:
        return runner_for(platform_of(tmp_path, "echo t=1.5"))

    @pytest.fixture
    def options(self) -> RunOptions:
        return QUICK

    @pytest.fixture
    def configs(self) -> list[Config]:
        return [A, B]


class TestExampleContract(RunnerContract):
    """The worked example of docs/howto/new-platform.md."""

    @pytest.fixture
    def runner(self) -> Any:
        return runner_for(load_platform(EXAMPLES / "my_simulator.toml"))

    @pytest.fixture
    def options(self) -> RunOptions:
        return QUICK

    @pytest.fixture
    def configs(self) -> list[Config]:
        default = load_platform(EXAMPLES / "my_simulator.toml").default(self.op)
        return [default, default.replace(lanes=8)]


NEST_TOML = """
name = "dsp"
version = "1"
title = "A processor with recipes of its own"
simulated = true
runner = "command"

[command]
run = ["sh", "dsp.sh", "{matrix}", "{config.recipe}", "{config.parallel}"]
time = { regex = 't=(\\S+)', unit = "ms" }

[[space]]
kernels = ["nest"]

[space.params]
recipe = { type = "choice", values = ["dma", "cache"] }
parallel = { type = "choice", values = ["none", "outer"] }

[space.default]
recipe = "cache"
parallel = "none"
"""


def nest_platform(folder: Path, script: str = "echo t=1.5") -> Platform:
    (folder / "dsp.sh").write_text(script)
    (folder / "dsp.toml").write_text(NEST_TOML)
    return load_platform(folder / "dsp.toml")


class TestNestContract(RunnerContract):
    op = Op("nest")

    @pytest.fixture
    def runner(self, tmp_path: Path) -> Any:
        return runner_for(nest_platform(tmp_path))

    @pytest.fixture
    def options(self) -> RunOptions:
        return QUICK

    @pytest.fixture
    def configs(self) -> list[Config]:
        return [Config({"recipe": recipe, "parallel": "none"}) for recipe in ("dma", "cache")]


def test_a_program_is_given_a_nest_and_no_schedule_that_it_forbids(
    tmp_path: Path,
) -> None:
    platform = nest_platform(tmp_path, 'cp "$1" seen; echo "$3" >> ran; echo t=1')
    asked = [Config({"recipe": "dma", "parallel": way}) for way in ("none", "outer")]
    found = dict(runner_for(platform).run(sweep(), Op("nest"), asked, options=QUICK))
    assert [found[config].status for config in asked] == ["ok", "invalid"]
    assert (tmp_path / "ran").read_text().split() == ["none"]
    assert nest_from_text((tmp_path / "seen").read_bytes()) == sweep()


# -- what the program is told --------------------------------------------------------------------


def test_arguments_arrive_as_they_are(tmp_path: Path) -> None:
    """No shell, no second expansion: a value stays one argument whatever it holds."""
    script = 'for word in "$@"; do printf "%s\\n" "$word" >> args; done; echo t=1'
    run = (
        '["sh", "sim.sh", "{matrix}", "{config.mode}", "x={config.mode}", "{{{config.mode}}}", '
        '"{op.kernel} {op.width} {op.dtype}", "{threads} {repeats}", "; touch owned"]'
    )
    options = RunOptions(repeats=4, threads=3)
    found = measured(tmp_path, script, config=ODD, run=run, options=options)
    assert found.ok and found.source == "simulator" and found.context["tries"] == 1
    matrix, *rest = (tmp_path / "args").read_text().splitlines()
    odd = ODD["mode"]
    assert rest == [odd, f"x={odd}", f"{{{odd}}}", "spmm 8 f32", "3 4", "; touch owned"]
    assert Path(matrix).name == "matrix.mtx" and not Path(matrix).parent.exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["args", "other.toml", "sim.sh"]


def test_the_environment_is_an_allow_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIM_HOME", "here")
    monkeypatch.setenv("SIM_SECRET", "hidden")
    script = 'test -z "$SIM_SECRET" || exit 9; test -d "$TMPDIR" || exit 8; read x && exit 7\n'
    script += 'test "$SIM_HOME" = here && echo t=1'
    found = measured(tmp_path, script, extra='env = ["SIM_HOME", "NOT_SET"]')
    assert found.ok, found.error


@pytest.mark.parametrize("values", ["ones", "random"])
@pytest.mark.parametrize("form", ["mtx", "npz", "smtx"])
def test_the_matrix_is_the_pattern(tmp_path: Path, form: str, values: str) -> None:
    from embeddb.matrix_files import read_pattern

    script = f'cp "$1" kept.{form}; echo t=1'
    assert measured(tmp_path, script, extra=f'matrix = "{form}"\nvalues = "{values}"').ok
    kept = tmp_path / f"kept.{form}"
    assert read_pattern(kept) == PATTERN
    if form != "smtx":
        data = np.asarray((load_npz(kept) if form == "npz" else mmread(kept)).data)
        assert (data == 1).all() == (values == "ones") and (data > 0).all()


def test_the_matrix_is_written_once_and_the_folder_removed(tmp_path: Path) -> None:
    runner = runner_for(platform_of(tmp_path, 'stat -c %i "$1" >> inodes; echo t=1'))
    stream = runner.run(PATTERN, OP, [A, B, ODD], options=QUICK)
    next(stream)
    next(stream)
    stream.close()
    first, second = (tmp_path / "inodes").read_text().split()
    assert first == second


# -- how its time is read ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "time", "seconds"),
    [
        ("echo t=2 t=4; echo t=6", "{ regex = 't=(?P<x>[0-9.]+)', unit = 's' }", (2, 4, 6)),
        ("echo 7 us >&2", "{ regex = '^(\\d+) us$', unit = 'us', from = 'stderr' }", (7e-6,)),
        ("echo t=2 ms t=4 short", "{ regex = 't=(\\S+)', unit = 'ms' }", (2e-3, 4e-3)),
        ("echo 3 > $3", "{ json = '0', unit = 'ms', from = 'output' }", None),
        ("echo [3] > $3", "{ json = '0', unit = 'ms', from = 'output' }", (3e-3,)),
        ('echo log; echo \'{"a":{"b":[4,8]}}\'', "{ json = 'a.b', unit = 'ns' }", (4e-9, 8e-9)),
        ("printf '{\\n\"c\":\\n4e9}'", "{ json = 'c', unit = 'cycles' }", (2.0,)),
    ],
)
def test_times(tmp_path: Path, script: str, time: str, seconds: tuple[float, ...] | None) -> None:
    found = measured(tmp_path, script, time=time)
    if seconds is None:
        assert found.status == "crash" and "no field 0" in found.error
    else:
        assert found.ok and found.times_s == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ("t=nan", "which is not positive and finite"),
        ("t=-1", "which is not positive and finite"),
        ("t=0", "which is not positive and finite"),
        ("t=1 t=inf", "which is not positive and finite"),
        ("t=1e-400", "which is not positive and finite"),
        ("t=quick", "'quick', which is no number"),
        ("nothing", "no time in its stdout"),
        ("", "no time in its stdout"),
        ("t=12.5 us done", "'12.5 us done', and command.time.unit is 'ms'"),
        ("t=1 ms t=2 cycles", "command.time.unit is 'ms'"),
        ("t=7 microseconds", "command.time.unit is 'ms'"),
    ],
)
def test_what_is_no_time(tmp_path: Path, said: str, problem: str) -> None:
    found = measured(tmp_path, f"echo '{said}'")
    assert found.status == "crash" and problem in found.error and found.times_s == ()


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ("{}", "no field t"),
        ('{"t": null}', "which is no number"),
        ('{"t": true}', "which is not positive and finite"),
        ('{"t": NaN}', "which is not positive and finite"),
        ('{"t": {}}', "which is no number"),
        ('{"t": []}', "no time"),
        ('{"t": [[1]]}', "which is no number"),
        ('{"t": ' + "1" * 5000 + "}", "no JSON"),
        ('{"t": ' + "1" * 400 + "}", "which is no number"),
        ("[" * 100_000, "no JSON"),
        ('{"t": [' + "1," * 20_000 + "1]}", "20001 times"),
        ('{"t": 1', "no JSON"),
    ],
)
def test_what_is_no_time_in_json(tmp_path: Path, said: str, problem: str) -> None:
    (tmp_path / "said").write_text(said)
    found = measured(tmp_path, "cat said", time='{ json = "t", unit = "ms" }')
    assert found.status == "crash" and problem in found.error


def test_garbage_is_a_status(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    (tmp_path / "said").write_bytes(rng.integers(0, 256, 5000, np.uint8).tobytes() + b"\n\x1b[31mX")
    found = measured(tmp_path, "cat said; cat said >&2")
    assert found.status == "crash" and "\x1b" not in found.error


@pytest.mark.parametrize("script", ["yes", "yes >&2", "yes > $3"])
def test_huge_output_is_bounded(tmp_path: Path, script: str) -> None:
    if "$3" in script:
        script = "head -c 200000 /dev/zero > $3"
    time = "{ regex = '(1)', unit = 's', from = 'output' }"
    found = measured(tmp_path, script, time=time, extra="max_output_bytes = 100000")
    assert found.status == "crash" and "more than 100000 bytes" in found.error


def test_real_hardware_is_repeated_and_said_to_be_hardware(tmp_path: Path) -> None:
    found = measured(tmp_path, "echo x >> count; echo t=1", simulated=False)
    assert found.source == "hardware" and found.times_s == (1e-3, 1e-3)
    run = RUN.replace('"{output}"', '"{repeats}"')
    found = measured(tmp_path, "echo t=1 t=2 t=$3", simulated=False, run=run)
    assert found.times_s == (1e-3, 2e-3, 2e-3)


# -- which program it is -------------------------------------------------------------------------


def test_another_build_is_another_instance(tmp_path: Path) -> None:
    def instance(script: str, **parts: Any) -> str:
        return str(runner_for(platform_of(tmp_path, script, **parts)).platform().instance)

    first = instance("echo t=1")
    assert first == instance("echo t=1") and len(first) == 8
    assert first == instance("echo t=1", extra="timeout_s = 9\nretries = 2")
    others = {
        instance("echo t=2"),
        instance("echo t=1", time="{ regex = 't=(.)', unit = 'ns' }"),
        instance("echo t=1", simulated=False),
        instance("echo t=1", extra='version = ["sh", "-c", "echo 1.0"]'),
        instance("echo t=1", extra='version = ["sh", "-c", "echo 1.1"]'),
    }
    assert len(others | {first}) == 6


def test_a_version_stands_for_the_program(tmp_path: Path) -> None:
    platform = platform_of(tmp_path, "echo t=1", extra='version = ["sh", "-c", "echo v2; echo x"]')
    found = runner_for(platform).platform()
    assert found.environment["version"] == "v2" and found.digest == platform.digest
    (tmp_path / "sim.sh").write_text("echo t=1 # rebuilt")
    assert runner_for(platform).platform().instance == found.instance
    broken = platform_of(tmp_path, "", extra='version = ["sh", "-c", "echo no >&2; exit 1"]')
    with pytest.raises(RunnerUnavailable, match=r"command.version: exit status 1.*: no"):
        runner_for(broken).platform()


def test_the_command_does_not_change_what_configurations_mean(tmp_path: Path) -> None:
    one = platform_of(tmp_path, "", run=RUN)
    other = platform_of(tmp_path, "", run=RUN.replace("sim.sh", "sim2.sh"))
    assert one.digest == other.digest and one.command != other.command
    assert check_platform(one) == []


def test_arguments_that_are_no_names_of_files(tmp_path: Path) -> None:
    run = RUN.replace('"{output}"', f'"", "{"x" * 4000}", "/dev/zero", "."')
    found = runner_for(platform_of(tmp_path, "echo t=1", run=run)).platform()
    assert [word.partition(":")[0] for word in found.environment["program"].split()] == ["sim.sh"]


def test_a_missing_program_is_said(tmp_path: Path) -> None:
    for program in ("./absent", "absent-program", "./other.toml"):
        run = RUN.replace('"sh"', f'"{program}"')
        with pytest.raises(RunnerUnavailable, match=rf"other.toml: command.run\[0\].*{program}"):
            runner_for(platform_of(tmp_path, "", run=run))


# -- who may have it run -------------------------------------------------------------------------


def test_a_command_out_of_a_database_is_not_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    platform = platform_of(tmp_path, "touch ran; echo t=1")
    here = runner_for(platform).platform()
    matrix = tmp_path / "a.mtx"
    matrix.write_text("%%MatrixMarket matrix coordinate pattern general\n2 2 1\n1 1\n")
    with Database.create(tmp_path / "x.db") as db:
        db.store.put_platform(here)
        # Even where its id looks like a file that is there.
        db.store._engine.write(
            lambda txn: txn.put(
                "platform",
                b"other.toml",
                txn.get("platform", here.id.encode()) or b"",
            )
        )
        stored = db.platform("other")
    assert stored.command is not None and stored.file == ""
    for found in (stored, parse_platform(platform.text)):
        with pytest.raises(RunnerUnavailable, match="only run out of a platform file"):
            runner_for(found)
        runner = CommandRunner(found)
        with pytest.raises(RunnerUnavailable):
            runner.platform()
        with pytest.raises(RunnerUnavailable):
            list(runner.run(PATTERN, OP, [A], options=QUICK))
    for name in ("other", here.id, "other.toml"):
        words = ["measure", str(tmp_path / "x.db"), str(matrix), "--platform", name]
        ended = run_verb([*words, "--op", "spmm:8"])
        said = capsys.readouterr().err
        assert ended == 1 and "--platform" in said and said.count("\n") == 1
    assert not (tmp_path / "ran").exists()


def test_the_worked_example(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As in docs/howto/new-platform.md: measure, ask."""
    matrix = tmp_path / "a.mtx"
    entries = "\n".join(f"{i} {j} 1" for i in range(1, 41) for j in range(1, 1 + i % 7))
    count = entries.count("\n") + 1
    head = "%%MatrixMarket matrix coordinate real general"
    matrix.write_text(f"{head}\n40 40 {count}\n{entries}\n")
    db, file = str(tmp_path / "sim.db"), str(EXAMPLES / "my_simulator.toml")

    def call(*words: str) -> tuple[str, str]:
        ended = run_verb(words)
        said = capsys.readouterr()
        assert ended == 0, said.err
        return said.out, said.err

    assert "no problems" in call("platform", "check", file)[0]
    call("init", db)
    ask = ("--op", "spmm:32", "--json")
    out, err = call("measure", db, str(matrix), "--platform", file, *ask, "--configs", "2")
    assert "simulated" in err
    (document,) = json.loads(out)
    assert document["platform"].startswith("my-simulator@")
    assert {c["status"] for c in document["configs"]} == {"ok"}
    with Database.open(db) as opened:
        op = Op.parse("spmm:32")
        runs = list(opened.store.runs(document["platform"], op))
        assert len(runs) == 3
        assert {r.measurement.source for r in runs} == {"simulator"}
    answer = json.loads(call("query", db, str(matrix), "--platform", "my-simulator", *ask)[0])
    assert answer["link"] == "measured" and answer["simulated"]
    assert any("simulated" in line for line in answer["warnings"])


def test_a_campaign_needs_the_file_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    platform_of(tmp_path, "touch ran; echo t=1")
    db, camp, file = (str(tmp_path / name) for name in ("x.db", "camp", "other.toml"))
    (tmp_path / "m").mkdir()
    head = "%%MatrixMarket matrix coordinate pattern general"
    (tmp_path / "m" / "a.mtx").write_text(f"{head}\n2 2 1\n1 1\n")

    def call(code: int, *words: str) -> tuple[str, str]:
        ended = run_verb(words)
        said = capsys.readouterr()
        assert ended == code, said.err
        return said.out, said.err

    call(0, "init", db)
    plan = ("--op", "spmm:8", "--matrices", str(tmp_path / "m"), "--rounds", "1")
    out, _ = call(0, "campaign", "plan", db, camp, "--platform", file, *plan)
    assert f"campaign run {db} {camp} --platform {file}" in out
    assert "--platform" in call(1, "campaign", "run", db, camp)[1]
    assert not (tmp_path / "ran").exists()
    call(0, "campaign", "run", db, camp, "--platform", file)
    with Database.open(db) as opened:
        stored = opened.platform("other")
        found = [r.measurement for r in opened.store.runs(stored.id, OP)]
    assert found and all(m.ok and m.source == "simulator" for m in found)
    ask = ("query", db, str(tmp_path / "m" / "a.mtx"), "--op", "spmm:8", "--json")
    assert json.loads(call(0, *ask, "--platform", file)[0])["platform"] == stored.id
    assert call(0, *ask, "--measure", "--platform", file)
    assert "--platform" in call(1, *ask, "--measure", "--platform", "other")[1]


def test_the_toy_says_what_it_is_and_fails_where_it_must(tmp_path: Path) -> None:
    platform = load_platform(EXAMPLES / "my_simulator.toml")
    runner = runner_for(platform)
    default = platform.default(OP)
    small = default.replace(tile_rows=1024, lanes=8)
    large = default.replace(tile_rows=1024, lanes=16)
    op = Op("spmm", 32)
    found = dict(runner.run(PATTERN, op, [default, small, large, default], options=QUICK))
    assert found[default].ok and found[small].ok
    assert found[large].status == "oom" and "does not fit" in found[large].error
    again = dict(runner.run(PATTERN, op, [default], options=QUICK))
    assert again[default].times_s == found[default].times_s
