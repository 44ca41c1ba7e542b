"""A calibration of remote machines: its tasks are chosen at once, frozen as a campaign in a folder
that the nodes see, and measured through an executor.

The requested time is an estimate of the measuring, summed over all nodes: there is no clock, since
nodes come and go. The matrices, generated or the user's, are written into the folder, so that nodes
need nothing else.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from embeddb.core.config import Config, Op
from embeddb.core.errors import InputError
from embeddb.core.files.safe_write import OwnFolder
from embeddb.core.pattern import Pattern
from embeddb.core.reports import Progress, ignore_progress
from embeddb.core.workload import matrices_only
from embeddb.index.lookup import Lookup
from embeddb.platforms.platform import Platform
from indexer.calibrate import CalibrationRequest, learn
from indexer.calibration.choice import AGAIN, TASK, Evidence, Pace, task_configs
from indexer.calibration.report import CalibrationReport, Tally, op_report
from indexer.campaign.folder import Campaign
from indexer.campaign.nodes.coordinator import NodesJob
from indexer.campaign.plan import PLAN, Choice, Matrix, Plan
from indexer.campaign.run import Settle

_MATRICES = "matrices"
#: Largest share of the time for the estimate of one task.
_LARGEST_SHARE = 1 / 4
_BATCH = 6
#: The first round measures all, the second repeats some to measure the noise.
_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class NodesCalibration:
    """A calibration on nodes of a `platform`, with their instance if it has runs from before, as a
    campaign in `folder`."""

    db: Lookup
    platform: Platform
    request: CalibrationRequest
    folder: Path
    progress: Progress = ignore_progress

    def planned(self, matrices: Path | None = None) -> Campaign:
        """The campaign in the folder: the existing one, else a new one on the matrices of a folder
        or on generated ones.

        Raises: InputError if another campaign is there, or there is no matrix; UsageError for an op
        that the platform lacks.
        """
        if os.path.lexists(self.folder / PLAN):
            campaign = Campaign(self.folder)
            plan = campaign.plan
            if (plan.platform, plan.ops) != (self.platform.text, list(map(str, self.request.ops))):
                raise InputError(
                    f"a campaign of {', '.join(plan.ops)} is there, or of another platform",
                    where=str(self.folder),
                    hint="name another folder, or the platform and operations of that campaign",
                )
            return campaign
        matrices_only(self.request.ops, "a calibration")
        for op in self.request.ops:
            self.platform.space(op)
        return Campaign.create(self.folder, self._plan(matrices))

    def _plan(self, folder: Path | None) -> Plan:
        ops = list(map(str, self.request.ops))
        tables: dict[str, dict[Config, int]] = {op: {} for op in ops}
        choices: dict[str, list[Choice]] = {op: [] for op in ops}
        matrices: list[Matrix] = []
        for pattern, configs in self._chosen(folder):
            matrices.append(self._written(pattern))
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
        """Matrices and the configurations of each, until the estimated time is up."""
        ops, total_s = self.request.ops, self.request.seconds
        evidence = Evidence(self.db, self.platform, ops)
        panels = evidence.panels()
        candidates = evidence.candidates(folder, _LARGEST_SHARE * total_s)
        chooser = evidence.chooser(candidates, familiar=folder is None)
        spent_s, built = 0.0, set[tuple[Op, Config]]()
        while batch := chooser.take(_BATCH):
            for pattern in batch:
                evidence.add(pattern)
                configs = {
                    op: task_configs(self.db, pattern, self.platform, op, panels[op]) for op in ops
                }
                if not any(configs.values()):
                    continue
                more_s = _guessed_s(pattern, configs, built)
                if spent_s and spent_s + more_s > total_s:
                    return
                spent_s += more_s
                built |= {(op, config) for op, chosen in configs.items() for config in chosen}
                self.progress("choose, seconds", round(min(spent_s, total_s)), round(total_s))
                yield pattern, configs
        if not spent_s:
            raise candidates.none()

    def _written(self, pattern: Pattern) -> Matrix:
        """A matrix of the plan, after writing its structure into the campaign's folder."""
        folder, body = OwnFolder(self.folder, _MATRICES), io.BytesIO()
        np.savez_compressed(
            body,
            format=np.array(b"csr"),
            shape=np.array(pattern.shape),
            data=np.ones(pattern.nnz, dtype=np.int8),
            indices=pattern.indices,
            indptr=pattern.indptr,
        )
        self.folder.mkdir(parents=True, exist_ok=True)
        folder.write(f"{pattern.id}.npz", body.getvalue())
        path = self.folder.resolve() / _MATRICES / f"{pattern.id}.npz"
        group = pattern.group or pattern.name
        return Matrix(str(path), pattern.name, group, *pattern.shape, pattern.nnz)

    def report(self, campaign: Campaign) -> CalibrationReport:
        """Report on the nodes' instance so far; without a platform before any result."""
        name = campaign.instances.first
        if not name:
            return CalibrationReport("", self.request.seconds)
        here = campaign.instances.platform(name)
        tally = {op: Tally() for op in self.request.ops}
        for task in campaign.tasks():
            lines, one = campaign.lines(task), tally[Op.parse(task.op)]
            if lines:
                one.matrices.add(str(task.matrix))
            one.runs += len(lines)
            one.failures += sum(not m.ok for m in lines.values())
        report = CalibrationReport(name, self.request.seconds)
        report.seconds = sum(campaign.outcome(task).spent_s for task in campaign.tasks())
        report.complete = not any(campaign.missing(task) for task in campaign.tasks())
        report.indexed = True
        for op in self.request.ops:
            partition = self.db.partition(op, here)
            report.ops.append(op_report(partition, here, op, tally[op]))
        return report


def calibrated(calibration: NodesCalibration, job: NodesJob) -> CalibrationReport:
    """Measure the missing points of a planned calibration, train the models of every machine on the
    runs once they are complete, and report.

    Raises: as `NodesJob.run`.
    """
    campaign, _ = job.run(Settle(0))
    report = calibration.report(campaign)
    if report.complete and report.platform:
        here = campaign.instances.platform(report.platform)
        learn(report, calibration.db, here, calibration.request.ops, calibration.progress)
    return report


def _guessed_s(
    pattern: Pattern, configs: dict[Op, list[Config]], built: set[tuple[Op, Config]]
) -> float:
    pace = Pace()
    return sum(
        pace.expected_s(
            op,
            len(chosen) + AGAIN,
            pattern.nnz,
            fresh=sum((op, config) not in built for config in chosen),
        )
        for op, chosen in configs.items()
    )
