"""Training on the command line: threads, resuming, presets, and the printed summary."""

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
from embeddb.ui.cli.arguments import Number
from embeddb.ui.cli.output import Progress, note, say
from tuners.evaluation.whole_training import WholeRequest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from embeddb.learning.samples import Samples


lr_option = click.option("--lr", default=1e-3, show_default=True, type=Number(0, 1, min_open=True))
resume_option = click.option("--resume", is_flag=True, help="Continue an interrupted training.")
torch_threads_option = click.option(
    "--threads", default=0, type=click.IntRange(0, 1024), help="0: torch's own number."
)
#: Of models that a database has a place for, and of others.
trained_option = click.option(
    "-o", "out", default="", metavar="FILE", help="[default: into the database, in use]"
)
model_file_option = click.option(
    "-o", "out", required=True, metavar="FILE", help="Model file to write."
)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Limit torch to this many threads inside the block; 0: no limit."""
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
    """Context of a training: progress, threads, and on Ctrl-C the command that continues."""
    try:
        with Progress() as progress, threads(count):
            yield progress
    except KeyboardInterrupt:
        note("")
        note(f"stopped; continue with: {command_again(click.get_current_context())}")
        raise


def command_again(ctx: click.Context) -> str:
    """The command line that continues: the options of the call, and --resume."""
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


#: Options that override a preset.
_CHANGES = ("predictor", "epochs", "lr", "sites")


def whole_request(options: dict[str, Any]) -> WholeRequest:
    """A request from the options of the current command, by name.

    Raises: UsageError for an unknown preset or setting.
    """
    with needing("training"):
        from indexer.training.cost_model.settings import preset
    source = click.get_current_context().get_parameter_source
    overrides = {n: options[n] for n in _CHANGES if source(n) is ParameterSource.COMMANDLINE}
    if "epochs" in overrides:
        overrides |= {"few_epochs": overrides["epochs"], "patience": overrides["epochs"]}
    if overrides.get("predictor") in ("auto", "gp", "trees"):
        raise UsageError("a preset's predictor is a network", hint="leave --predictor out")
    paths = {
        name: Path(options[option]) if options[option] else None
        for name, option in (("start", "source"), ("weights", "encoder"), ("matrices", "matrices"))
    }
    return WholeRequest(
        settings=preset(options["preset"], seed=options["seed"], **overrides),
        samples=options["samples"],
        judged=not options["no_judge"],
        **paths,
    )


#: Rankers by their name in a card; of equals the first is taken.
_BY = {"transfer": "neighbours", "rank": "the model", "transfer+rank": "both together"}
#: With fewer held-out groups, differences between rankers are mostly chance.
_FEWEST_GROUPS = 10
_FIGURES = {
    "valid_opa": "ordered pairs",
    "valid_tau": "tau",
    "coverage_80": "covered by the 80 % interval",
}


def show_samples(samples: Samples) -> None:
    """Print a summary of the training data, with rejected matrices and reasons, on stderr."""
    for reason, count in samples.left_out.items():
        note(f"warning: {plural(count, 'matrix', 'matrices')} left out: {reason}")
    groups = len(set(samples.groups))
    note(
        f"{len(samples.gain):,} runs of {plural(len(samples.rows), 'matrix', 'matrices')} in "
        f"{plural(groups, 'group')}"
    )


def show_trained(document: Mapping[str, Any], db: str) -> None:
    """Print the document of `train costmodel`; `db` is the database on the command line."""
    figures = [f"{_FIGURES[n]} {v:.3f}" for n, v in document["metrics"].items() if n in _FIGURES]
    judged = ", ".join(figures) or "too few groups for cross-validation"
    say(
        f"{document['file']}: version {document['version']}, {', '.join(document['ops'])} on "
        f"{document['platform']['name']}, {plural(document['settings']['members'], 'member')}; "
        f"held-out groups: {judged}"
    )
    error = document.get("squared_error")
    if error:
        used = "used" if "source" in document else "not used"
        say(
            f"the source is {used}: squared error of gains on held-out rows "
            f"{error['with_source']:.4f} with it, {error['alone']:.4f} without"
        )
    for op in document["ops"]:
        say(_ranking(document, op, db))


def _ranking(document: Mapping[str, Any], op: str, db: str) -> str:
    """One line: the ranker that queries of an op will use, and why."""
    figures = document["held_out"].get(op, {})
    if not figures:
        return f"{op}: queries do not rank by it: it was not cross-validated"
    able = [method for method in _BY if method in figures]

    def judged(method: str) -> tuple[float, float]:
        return figures[method]["of_optimum@1"], figures[method].get("of_optimum@5", 0.0)

    joins = bool(document.get("machines")) and "transfer+rank" in able
    best = "transfer+rank" if joins else max(able, key=judged)
    shares = ", ".join(f"{_BY[m]} {share(figures[m]['of_optimum@1'])}" for m in able)
    of = "of the fastest configuration on each matrix, cross-validated by group"
    if Path(document["file"]).parent.name != MODELS:
        return f"{op}: queries of {db} do not rank by it: its file is elsewhere; {shares} {of}"
    how = "keep ranking by neighbours" if best == "transfer" else f"rank by {_BY[best]}"
    alone = "" if best == "rank" else "; `embeddb query --tuner rank` uses the model alone"
    return f"{op}: queries {how}: {_few_groups(figures[best])}{shares} {of}{alone}"


def _few_groups(figures: Mapping[str, float]) -> str:
    """A warning if the choice of ranker rests on few groups."""
    groups = int(figures.get("groups", _FEWEST_GROUPS))
    if groups >= _FEWEST_GROUPS:
        return ""
    return f"evaluated on only {plural(groups, 'group')}, too few for a significant difference: "
