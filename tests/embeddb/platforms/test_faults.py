"""A platform file with several faults: all are listed, and none that only follows from another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import run_verb

from embeddb.core.errors import PlatformError
from embeddb.platforms.platform import parse_platform

GOOD = """
name = "board"
version = "1"
title = "A board"
simulated = true
runner = "command"

[traits]
lanes = 4

[command]
run = ["sh", "sim.sh", "{matrix}", "{config.rows}", "{config.flow}", "{config.depth:-0}"]
time = { regex = 't=(\\\\S+)', unit = "cycles" }

[log]
unit = "cycles"

[[space]]
kernels = ["spmm"]
constraints = ["rows > 2", "rows * 2 < 4096"]

[space.params]
rows = { type = "int", values = [16, 64, 256] }
flow = { type = "choice", values = ["row", "outer"] }
depth = { type = "int", values = [1, 2], when = "flow == 'outer'" }

[space.default]
rows = 64
flow = "row"
"""
#: What is changed, and where the fault then lies.
FAULTS = {
    'name = "board"': ('name = "Board"', "name"),
    'version = "1"': ("", "version"),
    "simulated = true": ('simulated = "yes"', "simulated"),
    "lanes = 4": ("lanes = [4]", "traits.lanes"),
    '"{config.flow}"': ('"{config.flw}"', "command.run[4]"),
    "time = { regex = 't=(\\\\S+)', unit = \"cycles\" }": (
        "time = { regex = 't=', unit = \"cycles\" }",
        "command.time.regex",
    ),
    '[log]\nunit = "cycles"': ('[log]\nunit = "cycle"', "log.unit"),
    '"rows > 2"': ('"rws > 2"', "space[0].constraints[0]"),
    '"outer"] }': ('"outer", "row"] }', "space[0].params.flow.values"),
    "[space.default]\nrows = 64": ("[space.default]\nrows = 65", "space[0].default"),
}


def places(text: str) -> list[str]:
    with pytest.raises(PlatformError) as caught:
        parse_platform(text)
    return [line.partition(": ")[0] for line in caught.value.problems]


def test_the_file_without_changes_is_right() -> None:
    assert parse_platform(GOOD).counts_cycles


@pytest.mark.parametrize("good", FAULTS)
def test_one_fault_is_one_line(good: str) -> None:
    assert GOOD.count(good) == 1
    wrong, place = FAULTS[good]
    assert places(GOOD.replace(good, wrong)) == [place]


def test_all_faults_are_listed() -> None:
    text = GOOD
    for good, (wrong, _) in FAULTS.items():
        text = text.replace(good, wrong)
    assert sorted(places(text)) == sorted(place for _, place in FAULTS.values())


def test_a_parameter_that_cannot_be_read_hides_what_follows_from_it_alone() -> None:
    text = GOOD.replace("[16, 64, 256]", "[16, 64, 16]").replace("rows * 2", "rws * 2")
    assert places(text) == ["space[0].params.rows.values", "space[0].constraints[1]"]


def test_unknown_keys_are_all_listed() -> None:
    text = GOOD.replace('version = "1"', 'version = "1"\nvers = 1\ntitel = "x"')
    text = text.replace("constraints =", "kernles = []\nconstraints =")
    assert places(text) == ["space[0].kernles", "vers", "titel"]


def test_a_section_that_cannot_be_read_leaves_the_others() -> None:
    second = GOOD[GOOD.index("[[space]]") :].replace('"spmm"', '"spmv"').replace("rows > 2", "(")
    text = GOOD.replace('kernels = ["spmm"]', 'kernels = ["spam"]') + second
    assert places(text) == ["space[0].kernels", "space[1].constraints[0]"]


def test_check_lists_them_and_ends_with_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "board.toml"
    file.write_text(GOOD.replace('version = "1"', "").replace("lanes = 4", "lanes = [4]"))
    assert run_verb(["platform", "check", str(file)]) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if f"{file}: " in line]
    assert any("version" in line for line in lines) and any(
        "traits.lanes" in line for line in lines
    )
    assert run_verb(["platform", "check", str(file), "--json"]) == 1
    assert len(json.loads(capsys.readouterr().out)["problems"]) == 2
