"""`query --exact`: configurations that round operands to a shorter type stay out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from builders import OP, band, fill, patterns, tiny
from command_line import run_verb

from embeddb.core.config import Config, Op
from embeddb.core.sizes import Sizes
from embeddb.database import Database
from embeddb.platforms.platform import (
    Platform,
    builtin_platforms,
    load_platform,
    parse_platform,
)
from embeddb.ranking.order_reason import rank_notes, rests_on
from embeddb.store.merge_facts import platform_conflict


def declared(
    line: str = "inexact = [\"variant == 'd'\"]\nvarying = [\"variant == 'c'\"]",
) -> Platform:
    return parse_platform(tiny().text.replace("[[space]]\n", f"[[space]]\n{line}\n"))


def variants(platform: Platform) -> list[object]:
    return [config["variant"] for config in platform.space(OP).enumerate()]


def test_an_exact_space_has_the_same_digest() -> None:
    assert declared().digest == tiny().digest == declared().restricted(OP, exact=True).digest


def test_restrictions_combine() -> None:
    assert variants(declared().restricted(OP, exact=True)) == ["a", "b", "c"]
    assert variants(declared().restricted(OP, reproducible=True, exact=True)) == ["a", "b"]
    assert variants(declared().restricted(OP)) == variants(tiny())
    reason = declared().restricted(OP, exact=True).space(OP).reason(Config({"variant": "d"}))
    assert reason == "computes at reduced precision"


def test_without_a_declaration_every_configuration_is_exact() -> None:
    assert variants(tiny().restricted(OP, exact=True)) == variants(tiny())
    assert tiny().is_exact(OP, Config({"variant": "d"}))


@pytest.mark.parametrize("op", ["spmm:32", "spmm:512", "sddmm:128", "spmv"])
def test_cuda_has_no_tensor_cores_where_it_is_exact(op: str) -> None:
    parsed = Op.parse(op)
    space = (
        load_platform("cuda").restricted(parsed, exact=True).space(parsed, Sizes(1000, 1000, 9000))
    )
    assert not [c for c in space.enumerate() if c.get("math", "fp32") != "fp32"]


def test_a_meaning_of_reduced_precision_is_declared() -> None:
    """`--exact` leaves out what the text of a shipped platform calls reduced precision."""
    for name in builtin_platforms():
        platform = load_platform(name)
        for op in platform.ops:
            for text, meaning in platform.meaning.items():
                parameter, is_value, value = text.partition("=")
                reduced = "reduced precision" in meaning or "TF32" in meaning
                if is_value and reduced and parameter in platform.kernel(op).default:
                    config = Config({**platform.kernel(op).default, parameter: value})
                    assert not platform.is_exact(Op(op), config), (name, text)
    gpu = load_platform("gpu-kernels")
    exact = {
        str(config["kernel"]) for config in gpu.restricted(OP, exact=True).space(OP).enumerate()
    }
    assert exact == {"CSR_DIRECT", "RODE_ENHANCED", "ZERO_OVERHEAD_CSR", "CUSPARSE"}


def test_a_stored_platform_of_an_older_file_takes_the_built_in_word() -> None:
    """Databases from before gpu-kernels stated its precision answer, and merge with new ones."""
    now = load_platform("gpu-kernels")
    start = now.text.index("inexact = [")
    end = now.text.index("]", now.text.index("TF32", start)) + 1
    older = parse_platform(now.text[:start] + now.text[end:]).at("x")
    assert older.kernel("spmm").inexact is None and older.digest == now.digest
    assert not older.is_exact(OP, Config({"kernel": "TC_DIRECT_TF32"}))
    kept = {config["kernel"] for config in older.restricted(OP, exact=True).space(OP).enumerate()}
    assert "CSR_DIRECT" in kept and not any("TC_" in str(kernel) for kernel in kept)
    conflict = platform_conflict(older, now.at("x"))
    assert conflict is not None and not conflict.refused


def test_a_platform_that_states_no_precision_warns() -> None:
    with fill(Database.in_memory(), tiny()) as db:
        new = band(130, 30, name="new")
        made = db.query(new, platform="tiny", op=OP, exact=True)
        assert made.best == {"variant": "d"} and not made.exact
        warned = [line for line in made.warnings if "does not state" in line]
        assert len(warned) == 1 and "--exact (exact=True) leaves none out" in warned[0]
        assert not any(
            "does not state" in w for w in db.query(new, platform="tiny", op=OP).warnings
        )


def test_they_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_verb(["platform", "show", "gpu-kernels"]) == 0
    shown = capsys.readouterr().out
    assert "rounds its operands: kernel in ('TC_DIRECT', " in shown and "?" not in shown
    assert run_verb(["platform", "show", "gpu-kernels", "--json"]) == 0
    (kernel,) = json.loads(capsys.readouterr().out)["kernels"]
    assert len(kernel["inexact"]) == 2 and kernel["varying"] is None


def test_built_in_platforms_without_a_statement_have_no_such_kernels() -> None:
    platform = load_platform("cpu")
    assert all(
        platform.restricted(Op(op), exact=True).kernel(Op(op)).inexact == () for op in platform.ops
    )


def test_an_answer_without_them() -> None:
    with fill(Database.in_memory(), declared()) as db:
        new = band(130, 30, name="new")
        default = db.query(new, platform="tiny", op=OP)
        assert default.best == {"variant": "d"}
        assert any("--exact" in warning for warning in default.warnings)
        assert [c.inexact for c in default.candidates] == [
            c.config["variant"] == "d" for c in default.candidates
        ]
        assert any(line.startswith("inexact:") for line in rank_notes(default.candidates))
        assert rests_on(default.candidates[0], default.default).endswith("; inexact")
        made = db.query(new, platform="tiny", op=OP, exact=True)
        assert made.exact and db.recommendation(made.id).exact
        assert {c.config["variant"] for c in made.candidates} == {"a", "b", "c"}
        assert made.rejected["variant=d"] == "computes at reduced precision"
        assert "d" not in {one.config["variant"] for one in made.insight.next}
        assert not any("--exact" in warning for warning in made.warnings)
        assert not any("inexact" in line for line in rank_notes(made.candidates))


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Database.create(tmp_path / "db") as made:
        fill(made, declared(), patterns(3))
    asked = [
        "query",
        str(tmp_path / "db"),
        "m0d",
        "--platform",
        "tiny",
        "--op",
        "spmm:32",
        "--exact",
    ]
    capsys.readouterr()
    assert run_verb([*asked, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["exact"] is True
    assert all(c["config"]["variant"] in "abc" for c in answer["candidates"])
    assert run_verb(asked) == 0
    assert "lower-precision operands are excluded" in capsys.readouterr().out
