"""A preset of `train costmodel`, and the options that were given beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from embeddb.core.errors import UsageError
from indexer.training.cost_model.settings import preset
from tuners.evaluation.whole_training import WholeRequest

__all__ = ["whole_request"]

#: Options that change a preset where they are given.
_CHANGES = ("predictor", "epochs", "lr", "sites")


def whole_request(asked: dict[str, Any]) -> WholeRequest:
    """Of the options of the command that is running, by name.

    Raises: UsageError for a preset or setting that is not there.
    """
    source = click.get_current_context().get_parameter_source
    given = {n: asked[n] for n in _CHANGES if source(n) is ParameterSource.COMMANDLINE}
    if "epochs" in given:
        given |= {"few_epochs": given["epochs"], "patience": given["epochs"]}
    if given.get("predictor") in ("auto", "trees"):
        raise UsageError("a preset's predictor is a network", hint="leave --predictor out")
    paths = {
        name: Path(asked[option]) if asked[option] else None
        for name, option in (("start", "source"), ("weights", "encoder"), ("matrices", "matrices"))
    }
    return WholeRequest(
        settings=preset(asked["preset"], seed=asked["seed"], **given),
        samples=asked["samples"],
        judged=not asked["no_judge"],
        **paths,
    )
