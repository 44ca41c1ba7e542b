"""The last lines of `train costmodel`: whether queries rank by it, and of what the shares are."""

from __future__ import annotations

from typing import Any

import pytest

from embeddb.core.config import Op
from embeddb.core.errors import InputError
from embeddb.ui.cli.verbs.train import show_trained
from indexer.starter import source_model


def _document(**changes: Any) -> dict[str, Any]:
    held = {m: {"of_optimum@1": s} for m, s in (("transfer", 0.98), ("rank", 0.97))}
    return {
        "file": "runs.db/models/costmodel-p-spmm.safetensors",
        "version": "ab",
        "ops": ["spmm:64"],
        "platform": {"name": "p"},
        "settings": {"members": 3},
        "metrics": {"valid_tau": 0.5},
        "held_out": {"spmm:64": held},
        **changes,
    }


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, "queries rank as without it: neighbours 98 %, the model 97 % of the fastest"),
        (
            {"held_out": {"spmm:64": {"rank": {"of_optimum@1": 0.9}}}},
            "queries rank by the model: the model 90 % of the fastest configuration",
        ),
        # A model of every machine is joined with the neighbours, whatever either reaches.
        (
            {
                "machines": ["p@a", "p@b"],
                "held_out": {
                    "spmm:64": {
                        "transfer": {"of_optimum@1": 0.975},
                        "rank": {"of_optimum@1": 0.97},
                        "transfer+rank": {"of_optimum@1": 0.96},
                    }
                },
            },
            "queries rank by both together: neighbours 98 %, the model 97 %, both together 96 %",
        ),
        ({"held_out": {}}, "queries do not rank by it: it was not cross-validated"),
        (
            {"file": "mine.safetensors"},
            "queries of runs.db do not rank by it: its file is elsewhere",
        ),
        (
            {"squared_error": {"alone": 0.2, "with_source": 0.1}, "source": {}},
            "the source is used: squared error of gains on held-out rows 0.1000 with it, 0.2000",
        ),
        ({"squared_error": {"alone": 0.1, "with_source": 0.2}}, "the source is not used"),
    ],
)
def test_the_last_lines_say_who_ranks(
    changes: dict[str, Any], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    show_trained(_document(**changes), "runs.db")
    assert told in capsys.readouterr().out


@pytest.mark.parametrize(("groups", "few"), [(5, True), (10, False)])
def test_few_groups_are_named_and_how_to_ask_the_model(
    groups: int, few: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    methods = {"transfer": 0.98, "rank": 0.97}
    held = {m: {"of_optimum@1": s, "groups": float(groups)} for m, s in methods.items()}
    show_trained(_document(held_out={"spmm:64": held}), "runs.db")
    shown = capsys.readouterr().out
    assert ("5 groups" in shown) == few
    assert "--tuner rank" in shown


def test_the_model_that_ships_can_be_begun_with() -> None:
    assert source_model("starter", Op.parse("spmm:64")).endswith("cpu@70882216-spmm.safetensors")
    assert source_model("mine.safetensors", Op.parse("spmm:64")) == "mine.safetensors"
    assert source_model("", Op.parse("spmm:64")) == ""
    with pytest.raises(InputError, match="no model ships"):
        source_model("starter", Op.parse("nest"))
