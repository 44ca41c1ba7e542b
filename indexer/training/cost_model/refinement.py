"""Refinement of a model of every machine by a machine's own runs, replayed on machines left out.

How machines differ from the model's predictions is alike: the hyper-parameters of the processes of
these differences are the prior of a new machine's process, which few runs would not determine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embeddb.core.reports import Progress
from embeddb.cost_model.gaussian import GaussianProcess, Measured, Residuals
from embeddb.cost_model.model import CostModel
from embeddb.learning.comparison import HeldOutChoices, judge
from embeddb.learning.process import (
    MOST_SAMPLES,
    PRIOR_GROUPS,
    measured_of,
    process_scores,
    source_scores,
)
from embeddb.learning.samples import Samples

#: Matrices of a machine that are given back in a replay.
COUNTS = (0, 1, 3, 10, 30)
#: Samples of a machine by which its hyper-parameters are found.
_SAMPLES = 400

Floats = NDArray[np.float64]
Tensors = dict[str, NDArray[Any]]


class Replay(NamedTuple):
    """A `model` that has seen neither a machine nor some groups of matrices anywhere: `judged`
    bool[r] are the rows of these groups on that machine, `local` bool[r] its other rows."""

    model: CostModel
    judged: NDArray[np.bool_]
    local: NDArray[np.bool_]


def refined(
    samples: Samples,
    machine: NDArray[np.int64],
    replays: Sequence[Replay],
    *,
    seed: int = 0,
    progress: Progress | None = None,
) -> tuple[Tensors, dict[str, list[dict[str, float]]]]:
    """The prior of each op, tensors `differences.OP.NAME` (`gaussian.Residuals`), and by op the
    figures of held-out answers after runs of so many `matrices`; ops that fewer than three machines
    ran have none. `machine` int64[r] numbers the machines."""
    tensors: Tensors = {}
    figures: dict[str, list[dict[str, float]]] = {}
    for op in samples.ops:
        own = np.array([row.op == op for row in samples.rows])
        parts = dict(differences(samples, machine, own, replays, seed))
        if len(parts) < 3:
            continue
        residuals = Residuals(list(parts.values()), seed=seed)
        prior = residuals.prior()
        tensors |= {f"differences.{op}.{name}": array for name, array in prior.items()}
        choices: dict[int, list[HeldOutChoices]] = {}
        for done, (here, replay) in enumerate(_drawn(machine, replays)):
            if progress is not None:
                progress(f"replay {op}", done, len(parts))
            prior = residuals.prior(np.array(list(parts)) != here)
            for count, choice in _answers(samples, replay, own, prior, seed):
                choices.setdefault(count, []).append(choice)
        figures[str(op)] = [
            {"matrices": float(count), **_joined(each).figures()} for count, each in choices.items()
        ]
    return tensors, figures


def _drawn(
    machine: NDArray[np.int64], replays: Sequence[Replay]
) -> Iterator[tuple[np.int64, Replay]]:
    """One replay of each machine, other groups of matrices on each: they take minutes."""
    places = np.array([machine[np.flatnonzero(replay.judged)[0]] for replay in replays])
    for at, one in enumerate(np.unique(places)):
        own = np.flatnonzero(places == one)
        yield one, replays[own[at % len(own)]]


def differences(
    samples: Samples,
    machine: NDArray[np.int64],
    own: NDArray[np.bool_],
    replays: Sequence[Replay],
    seed: int,
) -> Iterator[tuple[int, Measured]]:
    """By machine, samples of the difference of an op's runs to models that have not seen them."""
    for one in np.unique(machine[own]):
        means: dict[int, Floats] = {}
        for replay in replays:
            rows = np.flatnonzero(replay.judged & own & (machine == one))
            means |= _means(samples, rows, replay.model)
        if means:
            yield int(one), measured_of(samples, sorted(means), means, _SAMPLES, seed)


def _answers(
    samples: Samples,
    replay: Replay,
    own: NDArray[np.bool_],
    prior: Mapping[str, NDArray[Any]],
    seed: int,
) -> Iterator[tuple[int, HeldOutChoices]]:
    """Answers of the judged rows after runs of no, 1, 3, 10, … local rows, drawn; both of the build
    of the machine that ran most."""
    if not (replay.judged & own).any():
        return
    build = np.array([one.id for one in samples.machines])
    names, count_of = np.unique(build[replay.judged & own], return_counts=True)
    own = own & (build == names[count_of.argmax()])
    asked = np.flatnonzero(replay.judged & own)
    local = np.random.default_rng(seed).permutation(np.flatnonzero(replay.local & own))
    questions = samples.take(asked)
    plain = source_scores(questions, replay.model)
    yield 0, judge(questions, plain)
    for count in (c for c in COUNTS[1:] if c <= local.size):
        rows = np.sort(local[:count])
        means = _means(samples, rows, replay.model)
        measured = measured_of(samples, rows.tolist(), means, MOST_SAMPLES, seed)
        groups = np.unique(samples.groups[rows]).size
        known = prior if groups < PRIOR_GROUPS else None
        process = GaussianProcess.fit(measured, seed=seed, residual=True, prior=known)
        scores = {at: mean + process_scores(process, questions, at) for at, mean in plain.items()}
        yield count, judge(questions, scores)


def _means(samples: Samples, rows: NDArray[np.int64], model: CostModel) -> dict[int, Floats]:
    """float64[x] predictions for the entries of some rows, by row."""
    scores = source_scores(samples.take(rows), model)
    return {int(row): scores[at] for at, row in enumerate(rows)}


def _joined(parts: Sequence[HeldOutChoices]) -> HeldOutChoices:
    return HeldOutChoices(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
