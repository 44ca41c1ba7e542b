"""`campaign plan`: the matrices there are, and what a strategy buys of them with a budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from embeddb.core.config import Op
from embeddb.core.errors import InputError, MatrixError, UsageError
from embeddb.platforms.platform import Platform
from embeddb.ui.cli.arguments import families
from embeddb.ui.cli.output import Progress, note, plural, say

if TYPE_CHECKING:
    from embeddb.core.pattern import Pattern
    from embeddb.database import Database
    from indexer.campaign.folder import Campaign
    from indexer.campaign.plan import Matrix

__all__ = [
    "Vectors",
    "bought_document",
    "buy_first",
    "check_options",
    "read_matrices",
    "say_bought",
    "with_strategy",
]

_NAMES = ("ea10", "ea25", "mab25", "binned", "random", "kmeans")
_USUAL_BUDGET = 500
#: Options of `campaign plan` that say what a strategy decides.
_DECIDED = ("configs", "top", "sample", "shared", "grid", "grid_op", "rounds", "repeat_share")


def with_strategy(command: Any) -> Any:
    """The options --strategy and --budget."""
    for option in (
        click.option("--budget", type=click.IntRange(1), help=f"Samples; {_USUAL_BUDGET} usually."),
        click.option("--strategy", default="", help=f"Buys samples: {', '.join(_NAMES)}."),
    ):
        command = option(command)
    return command


def check_options(asked: dict[str, Any]) -> None:
    """Check what goes together; for a strategy, --max-work becomes a limit on the non-zeros.

    Raises: UsageError if a strategy is asked for together with what it decides, or not of one op,
    or a budget without a strategy.
    """
    if not asked["strategy"]:
        if asked["budget"] is not None:
            raise UsageError("--budget is of a --strategy", hint="add --strategy ea25")
        return
    source = click.get_current_context().get_parameter_source
    given = [name for name in _DECIDED if source(name) is click.core.ParameterSource.COMMANDLINE]
    if given:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise UsageError(f"{names} and --strategy: the strategy decides that", hint="leave it out")
    if len(set(asked["ops"])) != 1:
        raise UsageError(
            "a strategy buys samples of one --op", hint="plan a campaign in a folder for each"
        )
    if asked["max_work"]:
        most = max(1, asked["max_work"] // max(1, Op.parse(asked["ops"][0]).width))
        asked["max_nnz"] = min(asked["max_nnz"] or most, most)


def read_matrices(
    asked: dict[str, Any], progress: Progress, seen: Callable[[Pattern], None] | None = None
) -> list[Matrix]:
    """The files within the limits, each shown to `seen`; what cannot be read is said and left
    out."""
    from embeddb.matrix_files import matrix_files, read_pattern
    from indexer.campaign.plan import Matrix
    from indexer.library import matrix_name

    groups = families(asked["manifest"])
    low, high = asked["min_nnz"], asked["max_nnz"]
    files = matrix_files(asked["matrices"])
    found = []
    for at, path in enumerate(files):
        name = matrix_name(path)
        progress("read matrices", at, len(files))
        try:
            pattern = read_pattern(path)
        except MatrixError as e:
            note(f"warning: left out: {e}")
            continue
        if pattern.nnz >= low and (not high or pattern.nnz <= high):
            sizes = (*pattern.shape, pattern.nnz)
            found.append(Matrix(str(path.resolve()), name, groups.get(name, name), *sizes))
            if seen is not None:
                seen(pattern)
    return found


class Vectors:
    """Vectors of the patterns shown, by the learned featurizer if it works here, else by plain
    statistics. Computed as the matrices are read: their structures are not kept. Not computed for
    a folder with a plan or for a strategy without clusters.
    """

    def __init__(self, db: Database, folder: str, name: str) -> None:
        from embeddb.featurizers import missing
        from indexer.campaign.budget.by_name import strategy

        chosen = strategy(name)
        there = db.featurizers()
        learned = there.get("scnn")
        self._plug = there.named("stats") if learned is None or missing(learned) else learned
        self._wanted = chosen.clusters(chosen.most) > 0 and not _plan_file(folder).exists()
        self._made: list[np.ndarray[Any, np.dtype[np.float32]]] = []

    def __call__(self, pattern: Pattern) -> None:
        if self._wanted:
            self._made.append(self._plug.embed(pattern))

    def clusters(self, count: int, seed: int) -> tuple[str, list[list[int]]]:
        """The featurizer's name, and the clusters of what was shown; fewer is said."""
        from indexer.campaign.budget.by_name import clusters_of

        made = clusters_of(np.stack(self._made), count, seed)
        if len(made) < count:
            note(
                f"warning: {plural(len(made), 'cluster')} instead of {count}: there are not more "
                "matrices that differ"
            )
        return f"{self._plug.name} {self._plug.version}", made


def _plan_file(folder: str) -> Path:
    return Path(folder) / "plan.json"


def buy_first(
    folder: str,
    platform: Platform,
    matrices: Sequence[Matrix],
    vectors: Vectors,
    asked: dict[str, Any],
) -> Campaign:
    """The campaign of a strategy in `folder`: a new one with its first round, or the one that is
    there, with its next round if this one is measured.

    Raises: InputError if another campaign is there; UsageError for what cannot be bought.
    """
    from indexer.campaign.budget.growing_plan import BudgetRequest, buy_more, first_plan, takes_up
    from indexer.campaign.folder import Campaign

    op, seed = Op.parse(asked["ops"][0]), asked["seed"]
    budget = asked["budget"] or _USUAL_BUDGET
    wish = BudgetRequest(
        platform=platform, op=op, strategy=asked["strategy"], budget=budget, seed=seed
    )
    place = Path(folder)
    if not _plan_file(folder).exists():
        plan = first_plan(wish, matrices, lambda count: vectors.clusters(count, seed))
        return Campaign.create(place, plan)
    campaign = Campaign(place)
    if not takes_up(campaign.plan, wish, matrices):
        raise InputError(
            "another campaign is there",
            where=folder,
            hint="go on with that one by `embeddb campaign run`, or name another folder",
        )
    return buy_more(campaign) or campaign


def bought_document(campaign: Campaign) -> dict[str, Any] | None:
    """`{"name", "budget", "planned", "measured", "matrices", "rounds", "clusters"}`, None without
    a strategy."""
    from indexer.campaign.budget.growing_plan import bought

    found = bought(campaign)
    if found is None:
        return None
    return {
        "name": found.strategy,
        "budget": found.budget,
        "planned": found.planned,
        "measured": found.measured,
        "matrices": found.matrices,
        "rounds": found.rounds,
        "clusters": found.clusters,
    }


def say_bought(document: dict[str, Any] | None) -> None:
    if document is not None:
        say(
            f"{document['name']}: {document['measured']:,} of a budget of "
            f"{plural(document['budget'], 'sample')} spent, {document['planned']:,} planned, on "
            f"{plural(document['matrices'], 'matrix', 'matrices')} in "
            f"{plural(document['rounds'], 'round')}"
        )
