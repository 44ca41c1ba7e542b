"""Buying inside training: the model that is fine-tuned on what is bought says where to buy more.

Data-selection paper, Section 3.2: the reward of a matrix is the rank quality of the model in
training on its newest schedules. Here a round is told, judged by the model as all earlier rounds
have left it, and then learned from: the weights go on from round to round. The paper does not say
when it judges, how many epochs a round has, or whether the optimizer goes on; judging before
learning is ours, for a model that has learned from a sample can be asked nothing about it.

Everything follows from where the model started, the rounds and a seed. So what is kept in a folder
only saves time: after a stop the rounds that it lacks are learned again, to the same bits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config
from embeddb.core.errors import ModelError
from indexer.campaign.budget.pupils import Progress, Pupil
from indexer.campaign.budget.reward import Rewarded, Told, rewarded

__all__ = ["InTraining"]

Floats = NDArray[np.float64]


@dataclass(slots=True)
class InTraining:
    """Rewards of rounds by a model that learns from them, one after the other (`Rewards`). With a
    `file` the model is kept there after each round."""

    pupil: Pupil
    file: Path | None = None
    progress: Progress | None = None
    _learned: int = field(init=False, default=0)
    _looked: bool = field(init=False, default=False)

    def __call__(self, rounds: Sequence[Sequence[Told]]) -> Rewarded:
        """What the last round earned; those before it are learned from first. None where the model
        knows nothing yet."""
        pupil = self.after(rounds[:-1])
        scores = {at: pupil.score(at, []) for at in {one.matrix for one in rounds[-1]}}
        if any(found is None for found in scores.values()):
            return []

        def scorer(matrix: int, configs: Sequence[Config]) -> Floats:
            found = pupil.score(matrix, configs)
            assert found is not None
            return found

        return rewarded(scorer, rounds[-1])

    def after(self, rounds: Sequence[Sequence[Told]]) -> Pupil:
        """The model that has learned from these rounds: at least those it knows already."""
        if not self._looked:
            self._looked = True
            self._found(rounds)
        for count in range(self._learned + 1, len(rounds) + 1):
            told = [one for r in rounds[:count] for one in r]
            self.pupil = self.pupil.taught(told, self._within(count))
            self._learned = count
            if self.file is not None:
                self.pupil.save(self.file, {"rounds": count, "bought": _digest(rounds[:count])})
        return self.pupil

    def _found(self, rounds: Sequence[Sequence[Told]]) -> None:
        """Go on with the model that is kept, if it has learned from the first of these rounds."""
        if self.file is None or not self.file.exists():
            return
        with suppress(ModelError):
            pupil, card = self.pupil.load(self.file)
            count = card.get("rounds", 0)
            if 0 < count <= len(rounds) and card.get("bought") == _digest(rounds[:count]):
                self.pupil, self._learned = pupil, count

    def _within(self, count: int) -> Progress | None:
        told = self.progress
        if told is None:
            return None
        return lambda what, done, total: told(f"{what} on round {count}", done, total)


def _digest(rounds: Sequence[Sequence[Told]]) -> str:
    """16 hex digits of what was told, round by round."""
    form = [[(one.matrix, one.config.id, one.seconds) for one in r] for r in rounds]
    return hashlib.blake2b(msgspec.msgpack.encode(form), digest_size=8).hexdigest()
