"""Fit of votes to a partition's evidence: featurizer, metric and policy, and notes of earlier fits.

`embeddb.index.trial` fits and judges one featurizer; here one is chosen among them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import StoreCorrupt
from embeddb.featurizers import COSTLY
from embeddb.index.evidence import FIT_VERSION
from embeddb.index.features import Features, LearnedFrom, Vectors
from embeddb.index.held_out import Near, split_groups
from embeddb.index.run_matrix import RunMatrix
from embeddb.index.trial import Fitted, Trial, cross_validated
from embeddb.index.view import OwnPolicies, ViewInput, across, base_gains
from embeddb.index.vote import VoteSettings, surely_positive
from embeddb.index.vote_fit import LeftOut
from embeddb.platforms.machines import Facts
from embeddb.store.tables import decoded, reading

Floats = NDArray[np.float64]

#: Standard errors by which neighbours by a costly featurizer must be better: it needs torch or
#: numba, a second to start, and tens of milliseconds a matrix.
_ERRORS = 2.0
#: Folds of groups and seeds of their draws for held-out figures, as in `eval`; with more groups
#: than `_FEW` the first seed alone, which costs a third. Draws differ most where groups differ in
#: size: of 206 groups of 503 matrices by 3 points.
_PARTS, _SEEDS, _FEW = 5, (0, 1, 2), 100


class PolicyNote(msgspec.Struct, frozen=True):
    """Stored policy, and the stamp of the input of its fit."""

    stamp: str
    policy: str

    def __post_init__(self) -> None:
        self.parsed()

    def parsed(self) -> tuple[VoteSettings, VoteSettings | LeftOut | None]:
        """The policy and what else was fitted. Raises: ValueError, TypeError or KeyError for
        nonsense."""
        return VoteSettings.from_json(self.policy), None


class OwnNote(PolicyNote, frozen=True):
    """Stored policies fitted to a machine's own runs: as `OwnPolicies`, `alone` empty for none."""

    alone: str

    def parsed(self) -> OwnPolicies:
        alone = VoteSettings.from_json(self.alone) if self.alone else None
        return OwnPolicies(VoteSettings.from_json(self.policy), alone)

    @classmethod
    def of(cls, stamp: str, own: OwnPolicies) -> OwnNote:
        return cls(stamp, own.policy.to_json(), own.alone.to_json() if own.alone else "")


class FitNote(PolicyNote, frozen=True):
    """Stored fit of a partition: featurizer, a `learned` metric or the plain one, policy, and
    results of leaving machines out. `among` has the versions of the featurizers that its own was
    chosen among: it stays the choice where some of the others cannot be computed. The starter ships
    one for each of its partitions: fitting one takes 5 to 9 seconds."""

    featurizer: str
    learned: bool
    left_out: str
    among: dict[str, str]

    def parsed(self) -> tuple[VoteSettings, LeftOut | None]:
        left_out = LeftOut.from_json(self.left_out) if self.left_out else None
        return VoteSettings.from_json(self.policy), left_out


Note = TypeVar("Note", bound=PolicyNote)


def read_note(raw: bytes | None, kind: type[Note]) -> Note | None:
    """A stored note; None if there is none or it is damaged."""
    with suppress(StoreCorrupt), reading("a noted fit"):
        return None if raw is None else decoded(raw, kind, "its note")
    return None


class Chosen(NamedTuple):
    """A featurizer, its trial and the fit of its votes; `left_out` as in `AnswerIndex`."""

    featurizer: str
    trial: Trial
    fit: Fitted
    left_out: LeftOut | None


@dataclass(frozen=True, eq=False)
class FitInput:
    """The input of a fit: runs, raw vectors float32[d] by featurizer and pattern id, the
    environments of the instances, and the training groups of each featurizer."""

    runs: RunMatrix
    readable: Mapping[str, Vectors]
    facts: Mapping[str, Facts] = field(default_factory=dict)
    learned: Mapping[str, LearnedFrom] = field(default_factory=dict)

    def fitted(self, *, held_out: bool = True) -> Chosen:
        """Fit of the featurizer with the best held-out answers, with figures if `held_out`."""
        trials = {name: self._trial(name) for name in self.readable}
        risk, prefer = self.runs.op.workload.max_slower, _preference(self.runs)
        folds = _folds(self.runs) if held_out else []
        validated = cross_validated(trials, folds, prefer=prefer, most_slower=risk)
        name = prefer(trials)
        trial = trials[name]
        fit = trial.fitted(validated, most_slower=risk)
        fitted = set(trial.ids)
        runs = self.runs.where(lambda row: row.pattern_id in fitted)
        inputs = ViewInput.of(runs, trial.ids, fit.near, self.facts)
        several = len({row.platform for row in self.runs.rows}) > 1 and not self.runs.winners
        return Chosen(name, trial, fit, across(inputs) if several else None)

    def is_of(self, note: FitNote, versions: Mapping[str, str]) -> bool:
        """Return true if a note is of the same input and of these featurizers, none of them new."""
        name = note.featurizer
        same = name in self.readable and versions.items() <= note.among.items()
        return same and self.stamp(name) == note.stamp

    def again(self, note: FitNote) -> Chosen | None:
        """The fit of a note; None if its policy is not among those tried."""
        trial = self._trial(note.featurizer, (note.learned,))
        policy, left_out = note.parsed()
        fit = trial.again(policy, learned=note.learned)
        return None if fit is None else Chosen(note.featurizer, trial, fit, left_out)

    def stamp(self, featurizer: str) -> str:
        """32 hex digits that change with the input of a fit by this featurizer."""
        runs, digest = self.runs, hashlib.blake2b(FIT_VERSION.encode(), digest_size=16)
        vectors = self.readable[featurizer]
        facts = sorted((name, sorted(of.items())) for name, of in self.facts.items())
        configs = [config.id for config in runs.configs]
        digest.update(repr((runs.rows, configs, runs.winners, facts)).encode())
        digest.update(repr((featurizer, sorted(vectors))).encode())
        arrays = [runs.indptr, runs.column, runs.seconds, runs.conversion, runs.default_s]
        for array in arrays + [vectors[i] for i in sorted(vectors)]:
            digest.update(np.ascontiguousarray(array).tobytes())
        tried = np.diff(runs.indptr)
        row = np.repeat(np.arange(len(runs.rows)), tried)
        ok = np.bincount(row[np.isfinite(runs.seconds)], minlength=len(runs.rows))
        if (ok < 0.6 * tried).any():
            digest.update(b"rows of which most runs failed")  # older code did not judge by them
        return digest.hexdigest()

    def _trial(self, name: str, ways: Sequence[bool] = (False, True)) -> Trial:
        """Trial of one featurizer."""
        vectors = self.readable[name]
        readable = self.runs.neighbour_ids & vectors.keys()
        ids = tuple(sorted(readable))
        runs = self.runs.where(lambda row: row.pattern_id in readable)
        gains, trust = base_gains(ViewInput.of(runs, ids, Near.none(len(ids)), self.facts))
        of = {row.pattern_id: row.group for row in runs.rows}
        groups = np.array([of[i] for i in ids], dtype=np.str_)
        features = Features.of(ids, vectors, groups, self.learned.get(name, LearnedFrom()))
        return Trial.of(features, gains, groups, trust, ids, ways=ways)


def _folds(evidence: RunMatrix) -> list[dict[str, int]]:
    """The fold of each group, once for every seed."""
    groups = evidence.groups
    names = np.unique(groups).size
    seeds = _SEEDS if names <= _FEW else _SEEDS[:1]
    split = (split_groups(groups, min(_PARTS, names), seed) for seed in seeds)
    return [dict(zip(groups.tolist(), fold.tolist(), strict=True)) for fold in split]


def _preference(evidence: RunMatrix) -> Callable[[Mapping[str, Trial]], str]:
    """A function that chooses among several trials, which need not be of the same patterns."""
    of = {row.pattern_id: row.group for row in evidence.rows}
    place = {pattern_id: at for at, pattern_id in enumerate(sorted(of))}
    groups = np.unique([of[i] for i in place], return_inverse=True)[1].astype(np.int64)

    def prefer(trials: Mapping[str, Trial]) -> str:
        losses = {name: np.full(len(place), np.nan) for name in trials}
        for name, trial in trials.items():
            losses[name][[place[i] for i in trial.ids]] = trial.losses
        return _preferred(losses, groups)

    return prefer


def _preferred(losses: Mapping[str, Floats], group: NDArray[np.int64]) -> str:
    """The first of the names, in order of preference, that is not worse by a standard error over
    groups int64[p] than that of the least mean; losses float64[p] are logs (nan: not judged). A
    costly one must be better by two than one that is not."""

    def first(names: Sequence[str]) -> str:
        """The first by the rule; the first of all where nothing was judged."""
        judged = [name for name in names if np.isfinite(losses[name]).any()] or names
        best = min(judged, key=lambda name: _mean(losses[name]), default="")
        worse = {n for n in judged if _surely_positive(losses[n] - losses[best], group, 1.0)}
        return next((name for name in judged if name not in worse), "")

    plain, costly = (first([n for n in losses if (n in COSTLY) == dear]) for dear in (False, True))
    if not (plain and costly):
        return plain or costly
    return costly if _worth_it(losses[plain] - losses[costly], group) else plain


def _worth_it(gain: Floats, group: NDArray[np.int64]) -> bool:
    """Return true if a costly featurizer gains enough, float64[p] over groups int64[p]."""
    return _surely_positive(gain, group, _ERRORS)


def _surely_positive(gain: Floats, group: NDArray[np.int64], errors: float) -> bool:
    """`surely_positive` of the finite gains float64[p]."""
    judged = np.isfinite(gain)
    return bool(judged.any()) and surely_positive(gain[judged], group[judged], errors=errors)


def _mean(losses: Floats) -> float:
    """The mean of finite losses; infinite without any."""
    finite = losses[np.isfinite(losses)]
    return float(finite.mean()) if finite.size else math.inf
