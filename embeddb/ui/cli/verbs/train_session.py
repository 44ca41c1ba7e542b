"""Training on the command line: threads, resuming, presets, and the trained model in words."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from embeddb.core.errors import UsageError
from embeddb.core.extras import needing
from embeddb.core.wording import plural, share
from embeddb.store.model_files import MODELS
from embeddb.ui.cli.output import Progress, note, say
from tuners.evaluation.whole_training import WholeRequest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from embeddb.learning.samples import Samples


@contextmanager
def threads(count: int) -> Iterator[None]:
    """torch computes with so many threads inside; 0 leaves it alone."""
    if not count:
        yield
        return
    with needing("training"):
        import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def session(count: int) -> Iterator[Progress]:
    """What training happens in: its progress, its threads, and on Ctrl-C how to go on."""
    try:
        with Progress() as progress, threads(count):
            yield progress
    except KeyboardInterrupt:
        note("")
        note(f"stopped; go on with: {command_again(click.get_current_context())}")
        raise


def command_again(ctx: click.Context) -> str:
    """The command line that goes on: what was given, and --resume."""
    words = []
    for param in ctx.command.params:
        value = ctx.params.get(param.name or "")
        if param.name == "resume" or value in (None, False) or value == param.default:
            continue
        if isinstance(param, click.Argument):
            words.append(str(value))
        elif value is True:
            words.append(param.opts[-1])
        else:
            for one in value if isinstance(value, tuple) else (value,):
                words += [param.opts[-1], str(one)]
    return shlex.join(["embeddb", "train", str(ctx.command.name), *words, "--resume"])


#: Options that change a preset where they are given.
_CHANGES = ("predictor", "epochs", "lr", "sites")


def whole_request(asked: dict[str, Any]) -> WholeRequest:
    """Of the options of the command that is running, by name.

    Raises: UsageError for a preset or setting that is not there.
    """
    with needing("training"):
        from indexer.training.cost_model.settings import preset
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


#: Who ranks, by the name under which a card judges it; of equals the first is taken.
_BY = {"transfer": "neighbours", "rank": "the model", "transfer+rank": "both together"}
#: With fewer held-out groups differences between rankers are mostly chance.
_FEWEST_GROUPS = 10
_FIGURES = {
    "valid_opa": "ordered pairs",
    "valid_tau": "tau",
    "coverage_80": "covered by the 80 % interval",
}


def show_samples(samples: Samples) -> None:
    """What is learned from, and what is left out and why, for whoever watches."""
    for reason, count in samples.left_out.items():
        note(f"warning: {plural(count, 'matrix', 'matrices')} left out: {reason}")
    groups = len(set(samples.groups))
    note(
        f"{len(samples.gain):,} runs of {plural(len(samples.rows), 'matrix', 'matrices')} in "
        f"{plural(groups, 'group')}"
    )


def show_trained(document: Mapping[str, Any], db: str) -> None:
    """The document of `train costmodel`; `db` is the database that was named."""
    figures = [f"{_FIGURES[n]} {v:.3f}" for n, v in document["metrics"].items() if n in _FIGURES]
    judged = ", ".join(figures) or "too few groups to hold any out, so not judged"
    say(
        f"{document['file']}: version {document['version']}, {', '.join(document['ops'])} on "
        f"{document['platform']['name']}, {plural(document['settings']['members'], 'member')}; "
        f"held-out groups: {judged}"
    )
    error = document.get("squared_error")
    if error:
        used = "used" if "source" in document else "left out"
        say(
            f"the source is {used}: squared error of gains on rows not seen "
            f"{error['with_source']:.4f} with it, {error['alone']:.4f} without"
        )
    for op in document["ops"]:
        say(_ranking(document, op, db))


def _ranking(document: Mapping[str, Any], op: str, db: str) -> str:
    """Whether queries at an op will rank by the model, and why."""
    held = document["held_out"].get(op, {})
    if not held:
        return f"{op}: queries do not rank by it, for it was not judged with groups held out"
    able = [method for method in _BY if method in held]
    best = max(able, key=lambda m: (held[m]["of_optimum@1"], held[m].get("of_optimum@5", 0.0)))
    shares = ", ".join(f"{_BY[m]} {share(held[m]['of_optimum@1'])}" for m in able)
    of = "of the fastest configuration that ran on each matrix, its group held out"
    if Path(document["file"]).parent.name != MODELS:
        return f"{op}: queries of {db} do not rank by it, it lies elsewhere; {shares} {of}"
    how = "keep ranking by neighbours" if best == "transfer" else f"rank by {_BY[best]}"
    alone = "" if best == "rank" else "; `embeddb query --tuner rank` asks the model alone"
    return f"{op}: queries {how}: {_judged_on(held[best])}{shares} {of}{alone}"


def _judged_on(figures: Mapping[str, float]) -> str:
    """The groups that a choice of ranker rests on, where they are few."""
    groups = int(figures.get("groups", _FEWEST_GROUPS))
    if groups >= _FEWEST_GROUPS:
        return ""
    return f"judged on only {plural(groups, 'group')}, too few to tell these apart: "
