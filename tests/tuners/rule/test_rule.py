"""A rule: learned by what is gained, and the same choice in C, on every pattern there is."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from builders import (
    CONFIGS,
    DEFAULT,
    OP,
    band,
    by_chance,
    fill,
    patterns,
    runs_of,
    sized,
    tiny,
    winner,
)
from rule_programs import choices_in_c, compiled, degenerate_patterns

from embeddb.core.config import Config, Op
from embeddb.core.errors import NothingFound, UsageError
from embeddb.core.pattern import Pattern
from embeddb.core.records import Measurement, Run, WorkloadInfo
from embeddb.database import Database
from embeddb.featurizers.stats import Stats
from indexer.embed import embed
from tuners.rule.features import NAMES
from tuners.rule.learn import learn_rule
from tuners.rule.rule import Rule

HOSTILE = '*/ } " \\ ??/ é \n #error'


@pytest.fixture(scope="module")
def database() -> Iterator[Database]:
    with Database.in_memory() as db:
        yield fill(db, tiny(portable=True).at("one"), patterns(8))


@pytest.fixture(scope="module")
def rule(database: Database) -> Rule:
    return learn_rule(database.index, "tiny", OP)


def row(rule: Rule, method: str) -> tuple[float, float]:
    (found,) = [row for row in rule.held_out if row.method == method]
    return found.of_optimum, found.slower


def test_a_law_is_found_on_groups_held_out(rule: Rule) -> None:
    assert rule.configs[0] == DEFAULT and set(rule.configs) <= set(CONFIGS)
    assert (rule.patterns, rule.groups, rule.judged) == (32, 8, 32)
    assert row(rule, "rule")[0] > 0.98
    assert row(rule, "default")[0] < row(rule, "best single configuration")[0] < 0.8
    assert row(rule, "best that ran") == (1.0, 0.0)
    assert row(rule, "rule")[0] <= row(rule, "best of the portfolio")[0]
    for length, config in zip((2, 6, 14, 30), CONFIGS, strict=True):
        assert rule.choose(band(150, length)) == config


def test_few_configurations_are_those_that_gain_most(database: Database) -> None:
    two = learn_rule(database.index, "tiny@one", OP, 2)
    assert len(two.configs) == 2 and two.platform == "tiny@one"
    one = learn_rule(database.index, "tiny", OP, 1)
    assert one.configs == (DEFAULT,) and one.choose(band(400, 30)) == DEFAULT
    assert row(one, "rule") == row(one, "default")


def test_where_nothing_is_to_be_gained_it_gives_the_default() -> None:
    with Database.in_memory() as db:
        fill(db, tiny(), patterns(8), times=lambda pattern, variant: 1e-3 * (1 + 0.1 * variant))
        found = learn_rule(db.index, "tiny", OP)
    assert found.configs == (DEFAULT,) and row(found, "rule") == (1.0, 0.0)


def test_chance_is_not_taken_for_a_law() -> None:
    with Database.in_memory() as db:
        fill(db, tiny(), patterns(12), times=by_chance(1, 0.02))
        found = learn_rule(db.index, "tiny", OP)
    assert row(found, "rule")[0] > row(found, "default")[0] - 0.01


def test_a_rule_that_is_worse_than_the_default_warns(rule: Rule) -> None:
    assert not rule.warning and "Warning" not in rule.header()
    worse = [replace(one, speedup=0.9) if one.method == "rule" else one for one in rule.held_out]
    worse_rule = replace(rule, held_out=tuple(worse))
    assert "0.90x" in worse_rule.warning and f"is {worse_rule.warning}." in worse_rule.header()


def test_too_little_is_refused(database: Database) -> None:
    with pytest.raises(NothingFound, match="no runs of spmm:64 on tiny"):
        learn_rule(database.index, "tiny", Op("spmm", 64))
    with pytest.raises(UsageError, match="0 configurations"):
        learn_rule(database.index, "tiny", OP, 0)
    with Database.in_memory() as db:
        fill(db, tiny(), patterns(1))
        with pytest.raises(NothingFound, match="4 matrices in 1 group"):
            learn_rule(db.index, "tiny", OP)


def test_one_configuration_alone_is_no_evidence() -> None:
    with Database.in_memory() as db:
        fill(db, tiny(), patterns(1))
        more = patterns(6, first=1)
        db.store.append(run for p in more for run in runs_of(p, tiny(), variants=[1]))
        with pytest.raises(NothingFound, match="4 matrices in 1 group"):
            learn_rule(db.index, "tiny", OP)


def test_another_kind_of_operation_is_refused(database: Database) -> None:
    with pytest.raises(UsageError, match="is about matrices"):
        learn_rule(database.index, "nest-cpu", Op("nest"))


def test_a_bare_name_takes_every_machine_and_an_instance_its_own() -> None:
    one, other = (tiny(portable=True).at(name, {"cpu": name}) for name in ("one", "two"))
    with Database.in_memory() as db:
        fill(db, one, patterns(8))
        fill(db, other, patterns(6), times=lambda pattern, variant: 1e-3 * (2 + (variant != 3)))
        own = learn_rule(db.index, "tiny@two", OP)
        both = learn_rule(db.index, "tiny", OP)
    assert (own.platform, own.patterns) == ("tiny@two", 24)
    assert own.environment == {"cpu": "two"}
    assert "cpu: two" in own.header() and "tiny@one" not in own.header()
    assert own.choose(band(150, 6)) == CONFIGS[3]
    assert (both.platform, both.patterns) == ("tiny", 32)  # 24 of them on both machines
    assert both.environment == {"machines": "tiny@one tiny@two"}


def test_the_default_may_differ_by_matrix() -> None:
    platform = sized()
    with Database.in_memory() as db:
        for pattern in patterns(6):
            default = platform.default(OP, pattern.sizes)
            tall = default.replace(rows=16)
            fast = (2e-3, 1e-3) if pattern.nnz / pattern.shape[0] > 10 else (1e-3, 2e-3)
            db.index.record(
                [
                    Run(pattern.id, OP, platform.id, config, Measurement(times_s=(seconds,)))
                    for config, seconds in zip((default, tall), fast, strict=True)
                ],
                pattern,
                platform,
            )
        embed(db.index)
        found = learn_rule(db.index, "sized", OP)
    assert row(found, "default")[0] < row(found, "rule")[0] == 1.0


def test_statistics_that_came_with_runs_are_enough() -> None:
    stats = Stats()
    platform = tiny()
    with Database.in_memory() as db:
        db.store.put_platform(platform)
        for pattern in patterns(8):
            info = WorkloadInfo.whole(pattern)
            features = stats.as_features(stats.embed(pattern))
            db.store.put_patterns([msgspec.structs.replace(info, features=features)])
            db.store.append(runs_of(pattern, platform))
        assert db.store.structure(patterns(1)[0].id) is None
        embed(db.index)
        found = learn_rule(db.index, "tiny", OP)
    assert set(found.used) == set(NAMES)
    assert row(found, "rule")[0] > 0.98
    asked = patterns(8)
    assert sum(found.choose(p) == CONFIGS[winner(p)] for p in asked) >= len(asked) - 2


@pytest.mark.gcc
@pytest.mark.parametrize("flags", [(), ("-fsanitize=address,undefined", "-fno-sanitize-recover")])
def test_c_chooses_the_same(rule: Rule, tmp_path: Path, flags: tuple[str, ...]) -> None:
    asked = [*patterns(8), *degenerate_patterns(np.random.default_rng(11))]
    found = choices_in_c(tmp_path, rule, asked, *flags)
    here = [rule.index(pattern) for pattern in asked]
    assert found[:, 0].tolist() == here and found[:, 1].tolist() == here
    assert len(set(here)) == len(rule.configs) == 4


@pytest.mark.gcc
def test_one_configuration_is_c_too(database: Database, tmp_path: Path) -> None:
    one = learn_rule(database.index, "tiny", OP, 1)
    assert choices_in_c(tmp_path, one, patterns(1)).tolist() == [[0, 0]] * 4


@pytest.mark.gcc
@pytest.mark.parametrize("compiler", ["gcc", "g++"])
def test_whatever_a_database_holds_the_c_stays_c(rule: Rule, tmp_path: Path, compiler: str) -> None:
    odd = [
        Config({"class": HOSTILE, "while": 1.5, "α": ("a", HOSTILE), "n": True}),
        *(Config({"class": HOSTILE, "x": 2**62 + at, "NAN": -1}) for at in range(3)),
    ]
    told = replace(
        rule,
        platform=f"tiny@{HOSTILE}",
        configs=tuple(odd),
        environment={HOSTILE: HOSTILE},
        held_out=tuple(replace(row, method=HOSTILE) for row in rule.held_out),
    )
    other = replace(rule, op=Op("spmv"))
    text = told.header() + told.header() + other.header()
    compiled(tmp_path, text, compiler=compiler)
    assert text.count("#error") == 3 + text.count(" #error")  # one a header; the others are text


@pytest.mark.gcc
def test_a_rule_of_another_platform_is_refused(rule: Rule, tmp_path: Path) -> None:
    asked = rule.header()
    with pytest.raises(AssertionError, match="is a rule of another platform"):
        compiled(tmp_path, "#define EMBEDDB_PLATFORM_ID 1u\n" + asked)
    own = next(line for line in asked.splitlines() if "_PLATFORM_ID 0x" in line).split()[-1]
    compiled(tmp_path, f"#define EMBEDDB_PLATFORM_ID {own}\n" + asked)


@pytest.mark.gcc
@pytest.mark.parametrize("compiler", ["gcc", "g++"])
def test_the_program_of_the_docs_compiles_and_runs(
    rule: Rule, tmp_path: Path, compiler: str
) -> None:
    page = (Path(__file__).parents[3] / "docs/howto/emit-c.md").read_text(encoding="utf-8")
    block = re.search(r"```c\n(.*?)```", page, re.DOTALL)
    assert block is not None
    text = block[1].replace("spmv.h", "rule.h")
    told = replace(rule, platform="cpu@70882216", op=Op("spmv"))
    program = compiled(tmp_path, told.header(), text, compiler=compiler)
    done = subprocess.run([program], capture_output=True, check=True)
    small = Pattern.from_csr((3, 4), [0, 2, 2, 5], [0, 3, 0, 1, 2])
    assert done.stdout.decode() == f"{told.choose(small)}\n"
