"""`measure`: configurations of a few matrices, run here and written back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from embeddb.core.config import Config, Op
from embeddb.core.errors import NothingFound
from embeddb.core.machine_state import between, state_now
from embeddb.core.pattern import Pattern
from embeddb.core.records import Run, in_context
from embeddb.index.run_matrix import Timing, timings_of
from embeddb.ui.cli.arguments import known_pattern, open_database, runner_here
from embeddb.ui.cli.output import Progress, duration, emit, factor, json_option, note, say, table
from embeddb.ui.cli.verbs.campaign.campaign import campaign_verb

if TYPE_CHECKING:
    from embeddb.database import Database
    from embeddb.platforms.platform import Platform

__all__ = ["campaign_verb", "measure_verb"]

#: Lines of the table for people; `--json` has all.
_SHOWN = 10


@click.command()
@click.argument("db")
@click.argument("matrices", nargs=-1, required=True, metavar="MATRIX...")
@click.option("--platform", required=True, help="A platform with a runner: cpu.")
@click.option("--op", required=True, help="KERNEL:WIDTH, as spmm:128.")
@click.option("--configs", default=10, show_default=True, type=click.IntRange(1, 100_000))
@click.option("--config", "given", multiple=True, metavar="A=1,B=2", help="Instead of a sample.")
@click.option("--repeats", default=5, show_default=True, type=click.IntRange(1, 1000))
@click.option("--baselines", is_flag=True, help="Time scipy, torch, numba, MKL and taco too.")
@click.option("--threads", default=0, type=click.IntRange(0, 1024), help="0: all there are.")
@click.option("--seed", default=0, show_default=True, help="Of the sample and the order.")
@json_option
def measure_verb(db: str, matrices: tuple[str, ...], as_json: bool, **asked: Any) -> None:
    """Run the default and other configurations of each MATRIX on this machine, into DB.

    MATRIX is a file, or name or id of a pattern whose structure DB has. Without --config, a
    sample of --configs configurations is run. What was measured before Ctrl-C is kept.

    \b
    Example:
      embeddb measure runs.db A.mtx B.npz --platform cpu --op spmm:128 --configs 40
      embeddb measure runs.db A.mtx --platform cpu --op spmm:128 --config "order=ijk,format=csr,..."
    """
    op = Op.parse(asked["op"])
    documents = []
    with open_database(db) as opened, Progress() as progress:
        runner, here = runner_here(opened.platform(asked["platform"]), asked["threads"])
        for text in matrices:
            job = _Job(opened, runner, here, op, asked)
            documents.append(job.measure(_structure(opened, text), progress))
    if as_json:
        emit(documents)
        return
    for document in documents:
        _show(document)


def _structure(db: Database, text: str) -> Pattern:
    pattern = known_pattern(db, text)
    found = pattern if isinstance(pattern, Pattern) else db.store.structure(pattern.id)
    if found is None:
        raise NothingFound(
            f"{text}: its structure is not in the database, so it cannot be measured",
            hint="give the matrix file",
        )
    return found


class _Job:
    """One measuring of one matrix."""

    def __init__(
        self, db: Database, runner: Any, here: Platform, op: Op, asked: dict[str, Any]
    ) -> None:
        from indexer.runners.base import RunOptions

        self._db, self._runner, self._here, self._op, self._asked = db, runner, here, op, asked
        repeats = asked["repeats"]
        self._options = RunOptions(
            repeats=repeats, max_repeats=max(25, repeats), threads=asked["threads"]
        )

    def measure(self, pattern: Pattern, progress: Progress) -> dict[str, Any]:
        """Writes back what was measured, also when it is interrupted."""
        configs = self._configs(pattern)
        runs: list[Run] = []
        before, after = self._state(), {}
        try:
            for config, m in self._runner.run(pattern, self._op, configs, options=self._options):
                runs.append(Run(pattern.id, self._op, self._here.id, config, m, "measure"))
                progress(f"measure {pattern.name}", len(runs), len(configs))
            after = self._state()
        finally:
            if runs:
                state = between(before, after)
                runs = [replace(r, measurement=in_context(r.measurement, state)) for r in runs]
                self._db.record(runs, pattern, self._here)
        return self._document(pattern, timings_of(runs), self._baselines(pattern))

    def _state(self) -> dict[str, float]:
        return state_now(self._runner, threads=self._options.threads)

    def _configs(self, pattern: Pattern) -> list[Config]:
        """The default and what was asked for, in a shuffled order.

        Raises: SpaceError, UsageError for a configuration that is not legal here.
        """
        import numpy as np

        from indexer.campaign.plan import choose_configs

        rng = np.random.default_rng(self._asked["seed"])
        m, n = pattern.shape
        space = self._here.space(self._op, m=m, n=n, nnz=pattern.nnz)
        default = self._default(pattern)
        if self._asked["given"]:
            given = [space.canonical(Config.parse(text)) for text in self._asked["given"]]
            for config in given:
                space.check(config)
            chosen = list(dict.fromkeys([default, *given]))
        else:
            chosen = choose_configs(space, default, self._asked["configs"] + 1, rng=rng)
        return [chosen[i] for i in rng.permutation(len(chosen))]

    def _default(self, pattern: Pattern) -> Config:
        m, n = pattern.shape
        return self._here.default(self._op, m=m, n=n, nnz=pattern.nnz)

    def _baselines(self, pattern: Pattern) -> dict[str, Any]:
        if not self._asked["baselines"]:
            return {}
        if not hasattr(self._runner, "baselines"):
            note(f"no baselines: {self._here.name} has none to compare with")
            return {}
        found = self._runner.baselines(pattern, self._op, options=self._options)
        apart = ("conversion_s", "compile_s")
        return {
            name: {**_outcome(m.seconds, m.status), **{key: getattr(m, key) for key in apart}}
            for name, m in found.items()
        }

    def _document(
        self, pattern: Pattern, curves: dict[Config, Timing], baselines: dict[str, Any]
    ) -> dict[str, Any]:
        default = self._default(pattern)
        base = curves[default].seconds if default in curves else math.inf
        ranked = sorted(curves, key=lambda config: (curves[config].seconds, config.json))
        return {
            "pattern_id": pattern.id,
            "name": pattern.name,
            "platform": self._here.id,
            "op": str(self._op),
            "default": {"config": dict(default), **_outcome(base, "")},
            "configs": [
                {
                    "config": dict(config),
                    **_outcome(curves[config].seconds, curves[config].status),
                    "gain": base / curves[config].seconds if base < math.inf else None,
                }
                for config in ranked
            ],
            "baselines": baselines,
        }


def _outcome(seconds: float, status: str) -> dict[str, Any]:
    known = {"seconds": seconds if math.isfinite(seconds) else None}
    return {**known, "status": status} if status else known


def _show(document: dict[str, Any]) -> None:
    say(f"{document['name']}: {document['op']} on {document['platform']}")
    configs: Sequence[dict[str, Any]] = document["configs"]
    rows = [
        (duration(c["seconds"]) if c["seconds"] else c["status"], factor(c["gain"]), _text(c))
        for c in configs[:_SHOWN]
    ]
    base = document["default"]["seconds"]
    rows.append((duration(base), factor(1.0 if base else None), "the default"))
    for name, found in document["baselines"].items():
        gain = base / found["seconds"] if base and found["seconds"] else None
        took = duration(found["seconds"]) if found["seconds"] else found["status"]
        rows.append((took, factor(gain), name))
    table(("time", "gain", "configuration"), rows)
    failed = [c for c in configs if c["seconds"] is None]
    more = f", {len(failed)} of them failed" if failed else ""
    say(f"{len(configs)} configurations measured and stored{more}")
    say()


def _text(configured: dict[str, Any]) -> str:
    return str(Config(configured["config"]))
