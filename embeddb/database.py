"""`Database`: the one facade, a call for every use.

import embeddb
with embeddb.open("runs.db") as db:
    print(db.query("A.mtx", platform="cpu", op="spmm:64"))
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack, overload

from embeddb.core.arguments import number_of, require_flags, require_list
from embeddb.core.config import Op
from embeddb.core.errors import StoreCorrupt, UsageError
from embeddb.core.records import Run, WorkloadInfo
from embeddb.core.reports import Progress, ignore_progress
from embeddb.core.repr_html import html_of
from embeddb.core.workload import Workload
from embeddb.explain.explain import explain
from embeddb.explain.explanation import Explanation
from embeddb.index.lookup import Lookup
from embeddb.platforms.platform import Platform, parse_platform, this_machine
from embeddb.ranking import answers
from embeddb.ranking.recommendation import Recommendation
from embeddb.store import Store, is_database
from embeddb.store.merge_facts import refuse_other_space
from embeddb.store.rows import Rows, pattern_rows, run_rows
from indexer import resolve

if TYPE_CHECKING:
    from embeddb.index.projection import Projection
    from indexer.calibration.report import CalibrationReport
    from indexer.campaign.folder import Campaign, CampaignProgress
    from indexer.campaign.nodes.coordinator import NodesWords
    from indexer.campaign.plan import PlanOptions
    from indexer.index_runs import IndexReport
    from indexer.readers.base.row import ReadOptions
    from indexer.resolve import WorkloadLike
    from indexer.runners.base import RunOptions
    from tuners.evaluation.figures import EvalRow, Fit
    from tuners.fusion_cuts import FusionTuned
    from tuners.tune import How
    from tuners.tune_fusion import TuneRequest
    from tuners.tune_matrix import MatrixTuned, MatrixTuneRequest
    from tuners.tune_tiles import TilesTuned, TileTuneRequest


def open_database(
    place: str | Path,
    *,
    readonly: bool = False,
    create: bool = False,
    note: Callable[[str], None] | None = None,
    progress: Progress | None = None,
) -> Database:
    """Open the database at a path, or the shipped one under the name `starter`; with `create`, make
    it if there is none. `note` (by default standard error) receives a line when the shipped one is
    unpacked and when indexes take long to build, and `progress` the state of the unpacking.

    Raises: StoreError if there is none; InputError if the shipped data is absent.
    """
    from indexer.starter import STARTER, starter_folder

    note = note or _say
    if str(place) == STARTER:
        place = starter_folder(note=note, progress=progress or ignore_progress)
    if create and not is_database(place):
        return Database.create(place)
    opened = Database.open(place, readonly=readonly)
    opened.index.announce = note
    return opened


def _say(line: str) -> None:
    """Write a line to standard error, since seconds of silence would look like a hang."""
    sys.stderr.write(f"{line}\n")


class Database:
    """An open database; use as a context manager.

    A folder may be opened any number of times, by name, path or link: all of one process share one
    engine, which the last of them closes. Methods may be called from several threads; a forked
    child opens the database again. Heavy modules are imported on the first call that needs them.
    """

    def __init__(self, index: Lookup) -> None:
        self.index = index

    @classmethod
    def open(cls, path: str | Path, *, readonly: bool = False) -> Self:
        """Open an existing database. Raises: StoreError if there is none."""
        return cls(Lookup.open(path, readonly=readonly))

    @classmethod
    def create(cls, path: str | Path) -> Self:
        """Create an empty database. Raises: StoreError if the path exists."""
        return cls(Lookup.create(path))

    @classmethod
    def in_memory(cls) -> Self:
        return cls(Lookup.in_memory())

    @property
    def store(self) -> Store:
        """Runs, workloads, platforms and stored answers as they are on disk."""
        return self.index.store

    def close(self) -> None:
        self.index.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Database({self.store.place!r})"

    def _repr_html_(self) -> str:
        return html_of(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.index.__reduce__()

    def by_featurizer(self, name: str) -> Self:
        """Return this database with neighbours found by one featurizer, whichever it chose itself:
        `db.by_featurizer("scnn").query(…)`. It is closed with this one.

        Raises: UsageError for a featurizer that it does not have, and on a query where no measured
        workload has a vector of it.
        """
        return type(self)(self.index.by_featurizer(name))

    # -- looking around --------------------------------------------------------------------

    def find(self, text: str, *, kind: str = "") -> Workload | WorkloadInfo:
        """Return the workload that a text names: the only one in an existing file, else that with
        this id, else the only one of this name; with `kind`, a `matrix`, `nest`, `kernel` or
        `program`.

        Raises: MatrixError, NestError or TensorError for a file that cannot be read; MatrixError
        for an unknown name; UsageError for several workloads.
        """
        return resolve.find_workload(self.index, os.fspath(text), kind=kind)

    def platform(self, text: str) -> Platform:
        """Return the platform with that id, built-in name, or TOML file; a name without instance is
        enough where there is only one instance. Raises: UsageError if there is none, or more than
        one."""
        return self.index.platform(text)

    def patterns(self, *, kind: str = "") -> Rows[WorkloadInfo]:
        """All workloads, lazily; with `kind`, those that are a `matrix`, `nest`, `kernel` or
        `program`. `.columns()` and `.frame()` return them as a table."""
        return pattern_rows(self.store, kind)

    def runs(
        self, *, platform: str = "", op: str | Op = "", pattern: WorkloadLike | None = None
    ) -> Rows[Run]:
        """All valid runs, lazily, or those of a platform (an id, or a name for all its instances),
        an op, a workload: `db.runs(op="spmm:32", pattern="A.mtx").frame()`.

        Raises: NothingFound for a platform and op without runs; MatrixError for an unknown name.
        """
        what = Op.parse(op) if op else None
        kind = what.kind if what is not None else ""
        one = "" if pattern is None else resolve.resolve_workload(self.index, pattern, kind=kind).id
        return run_rows(self.store, platform=platform, op=what, pattern_id=one)

    def atlas(self, op: str | Op, platform: str | Platform) -> Projection | None:
        """Return the 2-D map of the workloads measured with an op on a platform; None if there are
        none."""
        return self.index.atlas(Op.parse(op), self._named(platform))

    def problems(self) -> list[str]:
        """List all faults of the store, stored answers and derived files; derived files are rebuilt
        on the next use."""
        try:
            self.store.refuse_damage()
        except StoreCorrupt as e:
            return [str(e)]  # a scan of damaged pages could end the process
        return self.index.problems() + answers.problems(self.index)

    # -- queries -------------------------------------------------------------------------

    def query(
        self,
        pattern: WorkloadLike,
        *,
        platform: str | Platform,
        op: str | Op,
        k: int = 5,
        measure: bool = False,
        calls: float = math.inf,
        why: bool = False,
        reproducible: bool = False,
        exact: bool = False,
        tuner: str = "",
        progress: Progress | None = None,
    ) -> Recommendation:
        """Rank `k` configurations for a workload, with the options of `embeddb query`; the answer
        is stored under its `id`. `pattern` may be a sparse matrix of scipy or torch, a file, or the
        name or id of a stored workload. With `measure`, the default and the candidates are run on
        this machine (`Database.measure` has more options). With `why` the answer includes what
        would change it (`Diagnostics`), which takes seconds; `progress` is called during that. With
        `reproducible` it excludes configurations whose summation order varies from call to call,
        with `exact` those that round operands to a shorter type (tensor cores). With the name of a
        `tuner` plug-in, the tuner's proposals are the answer.

        Raises: MatrixError, NestError, TensorError for a file that cannot be read, or an unknown
        name; UsageError for an unknown platform, op or tuner, for `k` other than 1 to 1000 or
        `calls` below 1, for `why` with a tuner, or for a platform whose file does not state which
        configurations are reproducible; NothingFound for a workload known by name only where the
        evidence needs its structure; PluginError for a tuner
        that breaks its contract; StoreError for a platform whose file has another version or space
        than the stored one; with `measure` the errors of that method.
        """
        from embeddb.explain.deep import deepening
        from embeddb.ranking.answer import Request, local_platform, recommend
        from tuners.by_name import answerer

        if tuner and why:
            raise UsageError(
                "`why` explains the database's own ranking, not the proposals of a tuner"
            )
        require_flags(measure=measure, why=why, reproducible=reproducible, exact=exact)
        what = Op.parse(op)
        here = local_platform(self._named(platform))
        refuse_other_space(self.store.sound_platform(here.id), here)
        here = here.restricted(what, reproducible=reproducible, exact=exact)
        workload = resolve.resolve_workload(self.index, pattern, kind=what.kind)
        deepen = deepening(self.index, workload, progress=progress) if why and not measure else None
        request = Request(workload, here, what, count=k, calls=calls, answer_by=answerer(tuner))
        answer = recommend(self.index, request, deepen=deepen)
        if not measure:
            return answer
        where = self._named(platform)
        return self.measure(answer, workload, platform=where, k=k, why=why, progress=progress)

    def measure(
        self,
        answer: Recommendation,
        pattern: WorkloadLike | None = None,
        *,
        platform: Platform | None = None,
        options: RunOptions | None = None,
        rounds: int = 2,
        k: int = 5,
        why: bool = False,
        progress: Progress | None = None,
    ) -> Recommendation:
        """Run the default and the candidates of an answer on this machine, each once per round, and
        rank them by the measured times; the runs and the new answer are stored.

        `pattern` is needed where the structure is not in the database, `platform` where only its
        file may be run. A tuner named by the user receives each of `k` results before it proposes
        the next, which is the first round. With `why` the new answer includes what would change it.

        Raises: NothingFound without a structure; UsageError for another workload than the answer's;
        RunnerUnavailable if the platform cannot be measured here.
        """
        from embeddb.explain.deep import deepening
        from embeddb.ranking.measure import Remeasurement, measure_answer
        from indexer.runners.base import RunOptions
        from tuners.by_name import search_by

        structure = resolve.resolve_structure(self.index, answer, pattern)
        tuner = answer.link == "tuner"
        deep = why or answer.insight.deep
        how = Remeasurement(
            options or RunOptions(),
            rounds=rounds - tuner,
            platform=platform,
            search=search_by(self.index, answer, structure, platform, k) if tuner else None,
            deepen=deepening(self.index, structure, progress=progress) if deep else None,
        )
        return measure_answer(self.index, answer, structure, how, progress=progress)

    def explain(self, answer: str | Recommendation = "last") -> Explanation:
        """Explain an answer from the store alone: that answer, or the `recommendation` that a text
        names. Raises: NothingFound."""
        if not isinstance(answer, Recommendation):
            answer = self.recommendation(answer)
        return explain(answer, self.store)

    def recommendation(
        self, text: str = "last", *, note: Callable[[str], None] = lambda _: None
    ) -> Recommendation:
        """Return the stored answer that a text names: the one with this id, the `last` one, or the
        last for the workload that `find` returns. `note` is called with one line for each answer
        that cannot be read. Raises: NothingFound if there is none; StoreCorrupt."""
        return resolve.find_answer(self.index, text, note=note)

    def recommendations(self) -> list[Recommendation]:
        """Return all stored answers that can be read, oldest first."""
        return answers.recommendations(self.index)

    def _named(self, platform: str | Platform) -> Platform:
        return platform if isinstance(platform, Platform) else self.platform(platform)

    # -- import and measurement ----------------------------------------------------------

    def index_runs(
        self,
        files: Sequence[str | Path],
        *,
        platform: Platform | str | None = None,
        reader: str = "",
        matrices: str | Path = "",
        options: ReadOptions | None = None,
        progress: Progress | None = None,
    ) -> IndexReport:
        """Import run logs so that queries use them: `db.index_runs(["runs.csv"],
        platform="fpga.toml", matrices="matrices/")`. The report lists the result for each file, and
        what can be answered now or is missing. See `indexer.index_runs.index_runs`.

        Raises: ReaderError, PlatformError, UsageError, MatrixError as that function does.
        """
        from indexer.index_runs import index_runs

        return index_runs(
            self.index,
            files,
            platform=platform,
            reader=reader,
            matrices=matrices,
            options=options,
            progress=progress,
        )

    def calibrate(
        self,
        *,
        platform: str | Platform = "cpu",
        ops: Sequence[str | Op] = (),
        minutes: float = 5.0,
        matrices: str | Path = "",
        threads: int = 0,
        campaign: str | Path = "",
        progress: Progress | None = None,
        **nodes: Unpack[NodesWords],
    ) -> CalibrationReport:
        """Measure on this machine, for some minutes, the configurations that best show how it
        differs from others: `db.calibrate(ops=["spmm:32"], minutes=2)`. Without `ops`, all
        operations with runs of any machine; on the files of the folder `matrices`, else on
        generated ones; then let the models of every machine learn from it. With
        `executor="slurm"` other nodes are measured, in the shared folder
        `campaign`.

        Raises: RunnerUnavailable if the platform cannot be measured here; UsageError for no op or
        no time; InputError for a folder without a matrix that can be measured.
        """
        from indexer.calibrate import Calibration, CalibrationRequest, measured_ops
        from indexer.campaign.nodes.coordinator import (
            named_on_nodes,
            nodes_job,
            refuse_without_executor,
        )
        from indexer.executors.base import Effort

        where, files = self._named(platform), Path(matrices) if str(matrices) else None
        progress = progress or ignore_progress
        seconds = 60 * number_of("minutes", minutes)
        request = CalibrationRequest(_ops(ops) or measured_ops(self.index, where), seconds, threads)
        refuse_without_executor(nodes)
        if nodes.get("executor"):
            from indexer.calibration.on_nodes import NodesCalibration, calibrated

            plan = NodesCalibration(self.index, where, request, Path(campaign), progress)
            effort = Effort(threads=threads, platform=named_on_nodes(platform))
            planned = plan.planned(files)
            with nodes_job(planned, self.index, effort, nodes, progress=progress) as on_nodes:
                return calibrated(plan, on_nodes)
        runner, _ = this_machine(where, threads=threads)
        return Calibration(self.index, runner, request, progress=progress).run(files)

    def campaign(
        self,
        folder: str | Path,
        *,
        platform: str | Platform = "",
        ops: Sequence[str | Op] = (),
        matrices: str | Path = "",
        options: PlanOptions | None = None,
        effort: RunOptions | None = None,
        progress: Progress | None = None,
        **nodes: Unpack[NodesWords],
    ) -> CampaignProgress:
        """Measure every matrix file below `matrices` in shuffled rounds, into this database:
        `db.campaign("camp", platform="cpu", ops=["spmm:128"], matrices="matrices/")`. It may be
        stopped at any time; `db.campaign("camp")` continues the plan in that folder (with
        `platform` again where a command of its file measures). `options` set how much is measured,
        `effort` how carefully. With `executor="slurm"` and the other options of `campaign run`
        (`address`, `script`, `chunks`, `mixed`, `no_wait`), nodes that share `folder` measure.

        Raises: UsageError if there is nothing to measure; InputError if another campaign is in
        `folder`; RunnerUnavailable if the platform cannot be measured here.
        """
        from indexer.campaign.nodes.coordinator import (
            effort_on_nodes,
            nodes_job,
            refuse_without_executor,
        )
        from indexer.campaign.run import CampaignJob, plan_campaign, planned_matrices, run_campaign
        from indexer.runners.base import RunOptions

        place, effort, progress = Path(folder), effort or RunOptions(), progress or ignore_progress
        if str(matrices):
            where = self._named(platform)
            files = planned_matrices(matrices, progress=progress)
            campaign, _ = plan_campaign(
                self.index, place, where, _ops(ops), files, options, progress=progress
            )
        else:
            campaign, where = self._planned(place, platform)
        refuse_without_executor(nodes)
        if nodes.get("executor"):
            node_effort = effort_on_nodes(effort, platform)
            with nodes_job(campaign, self.index, node_effort, nodes, progress=progress) as on_nodes:
                return on_nodes.run()[1]
        runner, _ = this_machine(where, threads=effort.threads)
        job = CampaignJob(campaign, self.index, runner, effort, progress=progress)
        return run_campaign(job)[1]

    def _planned(self, folder: Path, platform: str | Platform) -> tuple[Campaign, Platform]:
        """The campaign in a folder and its platform. A command runs only from a platform file that
        is named here: the plan has the text alone."""
        from indexer.campaign.folder import Campaign

        campaign = Campaign(folder)
        if platform:
            return campaign, self._named(platform)
        return campaign, parse_platform(campaign.plan.platform, where=str(folder))

    # -- tuning and evaluation -----------------------------------------------------------

    @overload
    def tune(self, subject: Any, options: TuneRequest, **how: Unpack[How]) -> FusionTuned: ...
    @overload
    def tune(self, subject: Any, options: TileTuneRequest, **how: Unpack[How]) -> TilesTuned: ...
    @overload
    def tune(self, subject: Any, options: MatrixTuneRequest, **how: Unpack[How]) -> MatrixTuned: ...
    def tune(self, subject: Any, options: Any, **how: Unpack[How]) -> Any:
        """Search for the fastest configuration by runs on this machine: of a matrix, `db.tune(A,
        MatrixTuneRequest(hardware_s=60), op="spmm:128")`; the fusion plan of a tensor program,
        `db.tune("unet.small", TuneRequest(hardware_s=60))`; the tiles of a kernel, or of each
        kernel of a program, `db.tune("unet.small/5", TileTuneRequest())`. `subject` is a workload,
        its file or its name. Runs are stored at once: the same call continues an interrupted one.
        See `tuners.tune`.

        Raises: NothingFound for an unknown workload; TensorError for a program without fusion
        plans; UsageError for invalid options; RunnerUnavailable if the platform cannot be measured
        here.
        """
        from tuners.tune import tuned

        return tuned(self.index, subject, options, {"note": _say, **how})

    def evaluate(
        self,
        *,
        platform: str = "",
        op: str | Op = "",
        seeds: Sequence[int] = (0, 1, 2),
        complete: bool = False,
        rankers: Mapping[str, Fit] | None = None,
        progress: Progress | None = None,
    ) -> list[EvalRow]:
        """Evaluate the answers against the baselines, with whole groups of matrices held out:
        `db.evaluate(platform="cpu", op="spmm:128")`. All platforms and ops unless they are named.
        See `tuners.evaluation.evaluate.evaluate`.

        Raises: NothingFound if there are no such runs, or too few to evaluate.
        """
        from tuners.evaluation.bench import measured_scopes
        from tuners.evaluation.evaluate import EvalOptions, evaluate

        what = Op.parse(op) if op else None
        return evaluate(
            self.index,
            EvalOptions(seeds=seeds, complete=complete),
            scopes=measured_scopes(self.index, platform, what),
            rankers=rankers,
            progress=progress,
        )


def _ops(ops: Sequence[str | Op]) -> tuple[Op, ...]:
    """Parse operations, without duplicates."""
    require_list("ops", ops)
    return tuple(dict.fromkeys(map(Op.parse, ops)))
