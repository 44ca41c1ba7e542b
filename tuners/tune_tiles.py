"""Tuning of kernels: the best tiles by an analytical model, a learned one or neighbours run beside
the untiled kernel, the fastest again ("A Learned Performance Model for Tensor Processing Units",
Section 7.2).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.errors import UsageError
from embeddb.core.reports import Progress, ignore_progress
from embeddb.index.lookup import Lookup
from embeddb.index.recorder import Machine
from embeddb.platforms.designed_tiles import designed_tiles
from embeddb.platforms.platform import Platform, default_of, space_of, this_machine
from embeddb.ranking.build import build_query
from embeddb.ranking.fallback import answer
from embeddb.tensors.roofline.analysis import ANALYSED, Analysis
from embeddb.tensors.tensor_graph import TensorGraph
from embeddb.tensors.tiles import why_not
from indexer.programs.tensors.cutting import pieces_of
from indexer.runners.base import RunOptions
from tuners.search import Effort, Trials, Tuned, final_rounds, in_order

if TYPE_CHECKING:
    from embeddb.cost_model.graph_model import GraphModel

_OP = Op("tile")
#: Most tiles to rank; of more legal ones, a sample stratified by size.
_MOST_RANKED = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class TileTuneRequest:
    """Run the first `count` tiles once, then the fastest of them and the default in so many
    `rounds`. `seed` is for sampling where there are too many tiles, or no evidence. `by` is the
    ranking: `analytical`, for the code of `tile-cpu` alone, `model` or `neighbours`; empty: a model
    on top of the analytical one, else the first of these that is available.
    """

    by: str = ""
    count: int = 10
    rounds: int = 3
    seed: int = 0
    options: RunOptions = field(
        default_factory=lambda: RunOptions(repeats=2, max_repeats=5, min_time_s=0.002, threads=1)
    )


@dataclass(frozen=True, slots=True)
class TileTuning:
    """Tunes kernels into `db` with a runner of `tile-cpu` on `here`, the platform's instance on
    this machine. Runs are stored at once: the same tuning continues an interrupted one."""

    db: Lookup
    runner: Any
    here: Platform
    request: TileTuneRequest
    model: GraphModel | None = None
    progress: Progress = ignore_progress

    def run(self, kernels: Sequence[TensorGraph]) -> tuple[list[Tuned], dict[str, str]]:
        """The tuned kernels, and the reason why others have no tiles, by name. `by` of each is
        `analytical`, `model`, `neighbours` or, without evidence, `sizes`: a stratified sample.

        Raises: ModelError from the model; RunnerUnavailable if the machine fails in the middle.
        """
        tuned: list[Tuned] = []
        skipped: dict[str, str] = {}
        for at, kernel in enumerate(kernels):
            self.progress(f"tune {kernel.name}", at, len(kernels))
            if reason := why_not(kernel):
                skipped[kernel.label(skipped)] = reason
            else:
                tuned.append(self._one(kernel))
        return tuned, skipped

    def _one(self, kernel: TensorGraph) -> Tuned:
        request, version = self.request, "" if self.model is None else self.model.version[:8]
        machine = Machine(self.db, self.runner, self.here, request.options)
        effort = Effort(rounds=request.rounds)
        campaign = f"tune:tiles/{request.by}/{version}/{request.seed}"
        with Trials(machine, kernel, _OP, campaign) as trials:
            done, first = self._chosen(kernel, list(trials.stored()))
            in_order(done, trials, first, effort, lambda _: None)
            final_rounds(done, trials, effort, lambda _: None)
            done.fresh = trials.fresh
        return done

    def _chosen(self, kernel: TensorGraph, before: Sequence[Config]) -> tuple[Tuned, list[Config]]:
        """The empty outcome, and the tiles to try in order: by neighbours first those that this
        tuning ran before, since the runs of the kernel itself change its neighbours' ranking."""
        request = self.request
        space, default = space_of(self.here, _OP, kernel), default_of(self.here, _OP, kernel)
        rng = np.random.default_rng(request.seed)
        legal = designed_tiles(space, default, _MOST_RANKED, rng=rng)
        by = request.by or self._usual()
        if by == "analytical":
            analysis = Analysis(self.here.environment)
            first = _ranked(legal, analysis.logs(kernel, legal))
        elif by == "model" and self.model is not None:
            first = _ranked(legal, self.model.predict(kernel, legal))
        else:
            query, count = build_query(self.db, kernel, self.here, _OP), request.count + 1
            answered = answer(query, count)
            by, first = "neighbours", [*before, *(Config(c.config) for c in answered.candidates)]
            if answered.source == "default":
                by, first = "sizes", designed_tiles(space, default, count, rng=rng)
        others = [tile for tile in dict.fromkeys(first) if tile != default]
        done = Tuned(subject=kernel, default=default, by=by, ranked=len(legal))
        return done, others[: request.count]

    def _usual(self) -> str:
        """The ranking for an empty `by`."""
        if self.model is not None and (self.model.analysed or self.here.name != ANALYSED):
            return "model"
        return "analytical" if self.here.name == ANALYSED else "neighbours"


def _ranked(tiles: Sequence[Config], scores: NDArray[np.float64]) -> list[Config]:
    return [tiles[int(at)] for at in np.argsort(scores, kind="stable")]


@dataclass(frozen=True, slots=True)
class TilesTuned:
    """The outcomes of distinct kernels, their numbers of occurrences `times` by id, and the reasons
    why others have no tiles, by name; `platform` is the instance that they ran on."""

    platform: str
    kernels: Sequence[Tuned]
    times: Mapping[str, int]
    skipped: Mapping[str, str]


def tune_tiles(
    db: Lookup,
    subjects: Sequence[TensorGraph],
    platform: Platform,
    request: TileTuneRequest,
    *,
    progress: Progress | None = None,
    note: Callable[[str], None],
) -> TilesTuned:
    """Tune kernels, or those of programs, on this machine; `note` receives a remark if there is no
    model, so that neighbours choose.

    Raises: UsageError for the analytical model of another platform; as `TileTuning.run`;
    RunnerUnavailable if the platform cannot be measured here.
    """
    times: dict[str, int] = {}
    kernels: dict[str, TensorGraph] = {}
    for subject in subjects:
        whole = subject.kind == "program"
        for kernel in [piece.kernel for piece in pieces_of(subject)] if whole else [subject]:
            kernels.setdefault(kernel.id, kernel)
            times[kernel.id] = times.get(kernel.id, 0) + 1
    if request.by == "analytical" and platform.name != ANALYSED:
        raise UsageError(
            f"the analytical model knows no {platform.name}", hint="choose who else ranks"
        )
    runner, here = this_machine(platform, threads=1)
    model, reason = None, ""
    if request.by in ("", "model"):
        model, reason = db.graph_model(here, Op("tile"))
        others = "neighbours choose"
        if not request.by and here.name == ANALYSED:
            others = "the analytical model chooses"
        elif not reason:
            reason = "no model of tile kernels: `embeddb train kernels` makes one"
        if model is None and reason:
            note(f"{reason}; {others}")
    job = TileTuning(db, runner, here, request, model, progress or ignore_progress)
    tuned, skipped = job.run(list(kernels.values()))
    return TilesTuned(here.id, tuned, times, skipped)
