"""A calibration of machines that are elsewhere: what one would visit is chosen at once, frozen as a
campaign in a folder that the nodes see, and worked on by an executor.

The time asked for is that of the measuring, of all nodes together, as it is guessed: nobody looks
at a clock, for nodes come and go. The matrices are written into the folder, generated ones or the
user's, so that nodes need nothing else.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from embeddb.core.config import Config, Op
from embeddb.core.errors import InputError
from embeddb.core.files.safe_write import OwnFolder
from embeddb.core.pattern import Pattern
from embeddb.core.reports import Progress, ignore_progress
from embeddb.core.timing import summarise_runs
from embeddb.core.workload import matrices_only
from embeddb.index.lookup import Lookup
from embeddb.platforms.platform import Platform
from indexer.calibrate import CalibrationRequest, learn
from indexer.calibration.choice import (
    AGAIN,
    TASK,
    Candidates,
    Chooser,
    Pace,
    largest_nnz,
    measured_on_all,
    panel_of,
    task_configs,
)
from indexer.calibration.report import CalibrationReport, Tally, op_report
from indexer.campaign.folder import Campaign
from indexer.campaign.nodes.coordinator import NodesJob
from indexer.campaign.plan import PLAN, Choice, Matrix, Plan
from indexer.campaign.run import Settle

_MATRICES = "matrices"
#: The largest part of the time that one task may be guessed to take.
_LARGEST_SHARE = 1 / 4
#: Non-zeros of a matrix that is never too large.
_SMALL = 20_000
_BATCH = 6
#: The first round measures all, the second some once more: for the noise.
_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class NodesCalibration:
    """What is to be measured on nodes of a `platform`, which names their instance where that is
    known from before. `folder` is the campaign's."""

    db: Lookup
    platform: Platform
    wish: CalibrationRequest
    folder: Path
    progress: Progress = ignore_progress

    def planned(self, matrices: Path | None = None) -> Campaign:
        """The campaign in the folder: the one that is there, or a new one on the matrices of a
        folder, else on generated ones.

        Raises: InputError if another campaign is there, or there is no matrix; UsageError for an op
        that the platform lacks.
        """
        if os.path.lexists(self.folder / PLAN):
            return self._there()
        matrices_only(self.wish.ops, "a calibration")
        for op in self.wish.ops:
            self.platform.space(op)
        return Campaign.create(self.folder, self._plan(matrices))

    def _there(self) -> Campaign:
        campaign = Campaign(self.folder)
        plan = campaign.plan
        if (plan.platform, plan.ops) != (self.platform.text, [str(op) for op in self.wish.ops]):
            raise InputError(
                f"a campaign of {', '.join(plan.ops)} is there, or of another platform",
                where=str(self.folder),
                hint="name another folder, or what was asked for at first",
            )
        return campaign

    # -- what is measured ------------------------------------------------------------------

    def _plan(self, folder: Path | None) -> Plan:
        ops = [str(op) for op in self.wish.ops]
        tables: dict[str, dict[Config, int]] = {op: {} for op in ops}
        choices: dict[str, list[Choice]] = {op: [] for op in ops}
        matrices: list[Matrix] = []
        for pattern, configs in self._chosen(folder):
            matrices.append(self._kept(pattern))
            for op, chosen in configs.items():
                table = tables[str(op)]
                at = [table.setdefault(config, len(table)) for config in chosen]
                choices[str(op)].append(Choice(min(1, len(at)), at))
        return Plan(
            platform=self.platform.text,
            ops=ops,
            rounds=_ROUNDS,
            repeat_share=AGAIN / TASK,
            seed=0,
            grid_op="",
            grid=[],
            matrices=matrices,
            configs={op: [msgspec.json.decode(c.json) for c in tables[op]] for op in ops},
            choices=choices,
        )

    def _chosen(self, folder: Path | None) -> Iterator[tuple[Pattern, dict[Op, list[Config]]]]:
        """Matrices and what each is to run, until the time is guessed to be up."""
        db, ops, total_s = self.db, self.wish.ops, self.wish.seconds
        found = {op: db.partition(op, self.platform) for op in ops}
        panel = {op: panel_of(found[op], self.platform, op) for op in ops}
        fullest = max(found.values(), key=lambda p: len(p.ids) if p else 0)
        featurizer = fullest.featurizer if fullest else "stats"
        features = {"stats", *(p.featurizer for p in found.values() if p)}
        most = min(largest_nnz(op, TASK, _LARGEST_SHARE * total_s) for op in ops)
        candidates = Candidates(folder, max(most, _SMALL))
        chooser = Chooser(
            iter(candidates),
            lambda pattern: db.vector(pattern, featurizer),
            fullest,
            done=measured_on_all(db, self.platform, ops),
            familiar=folder is None,
        )
        spent_s, built = 0.0, set[tuple[Op, Config]]()
        while batch := chooser.take(_BATCH):
            for pattern in batch:
                if db.store.structure(pattern.id) is None:
                    db.add_pattern(pattern, only=features)
                configs = {op: self._missing(pattern, op, panel[op]) for op in ops}
                if not any(configs.values()):
                    continue
                more_s = _guessed_s(pattern, configs, built)
                if spent_s and spent_s + more_s > total_s:
                    return
                spent_s += more_s
                built |= {(op, config) for op, held in configs.items() for config in held}
                self.progress("choose, seconds", round(min(spent_s, total_s)), round(total_s))
                yield pattern, configs
        if not spent_s:
            hint = "; ".join(candidates.problems[:1]) or "give more --minutes"
            raise InputError("no matrix that can be measured", where=str(folder), hint=hint)

    def _missing(self, pattern: Pattern, op: Op, panel: Sequence[Config]) -> list[Config]:
        """What is to run of an op, without what an instance that is named ran before."""
        known = summarise_runs(self.db.store.runs(self.platform.id, op, pattern.id))
        return task_configs(self.db, pattern, self.platform, op, panel, known=known)

    def _kept(self, pattern: Pattern) -> Matrix:
        """A matrix of the plan, whose structure lies in the campaign's folder from now on."""
        held, body = OwnFolder(self.folder, _MATRICES), io.BytesIO()
        np.savez_compressed(
            body,
            format=np.array(b"csr"),
            shape=np.array(pattern.shape),
            data=np.ones(pattern.nnz, dtype=np.int8),
            indices=pattern.indices,
            indptr=pattern.indptr,
        )
        self.folder.mkdir(parents=True, exist_ok=True)
        held.write(f"{pattern.id}.npz", body.getvalue())
        path = self.folder.resolve() / _MATRICES / f"{pattern.id}.npz"
        group = pattern.group or pattern.name
        return Matrix(str(path), pattern.name, group, *pattern.shape, pattern.nnz)

    # -- what came of it -------------------------------------------------------------------

    def report(self, campaign: Campaign) -> CalibrationReport:
        """What was found so far of the nodes' instance; no platform before any result."""
        name = campaign.instances.first
        if not name:
            return CalibrationReport("", self.wish.seconds)
        here = campaign.instances.platform(name)
        tally = {op: Tally() for op in self.wish.ops}
        for task in campaign.tasks():
            lines, one = campaign.lines(task), tally[Op.parse(task.op)]
            if lines:
                one.matrices.add(str(task.matrix))
            one.runs += len(lines)
            one.failures += sum(not m.ok for m in lines.values())
        report = CalibrationReport(name, self.wish.seconds)
        report.seconds = sum(campaign.spent_s(task) for task in campaign.tasks())
        report.complete = not any(campaign.missing(task) for task in campaign.tasks())
        report.indexed = True
        for op in self.wish.ops:
            partition = self.db.partition(op, here)
            report.ops.append(op_report(partition, here, op, tally[op]))
        return report


def calibrated(asked: NodesCalibration, job: NodesJob) -> CalibrationReport:
    """Measure what is missing of a planned calibration, train the models of every machine on the
    runs once they are complete, and report.

    Raises: as `NodesJob.run`.
    """
    campaign, _ = job.run(Settle(0))
    report = asked.report(campaign)
    if report.complete and report.platform:
        here = campaign.instances.platform(report.platform)
        learn(report, asked.db, here, asked.wish.ops, asked.progress)
    return report


def _guessed_s(
    pattern: Pattern, configs: dict[Op, list[Config]], built: set[tuple[Op, Config]]
) -> float:
    pace = Pace()
    return sum(
        pace.expected_s(
            op,
            len(held) + AGAIN,
            pattern.nnz,
            fresh=sum((op, config) not in built for config in held),
        )
        for op, held in configs.items()
    )
