"""The model that a campaign teaches as it buys, out of the campaign's folder.

`start.safetensors` is what it goes on from, `model.safetensors` what it has become; the second may
be deleted, it is learned again. A preset's encoder lies beside each of them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.errors import InputError, ModelError, UsageError
from embeddb.core.extras import needing
from embeddb.core.pattern import Pattern
from embeddb.core.records import PatternInfo
from embeddb.core.reports import Progress
from embeddb.core.timing import Timing
from embeddb.cost_model.model import CostModel
from embeddb.index.lookup import Lookup
from embeddb.index.run_matrix import MatrixRow, join
from embeddb.platforms.platform import Platform, parse_platform
from indexer.campaign.budget.sampler import Rewarded, Told, rewarded
from indexer.campaign.plan import Matrix, Plan, Teaching
from indexer.training.cost_model.encoder import Encoder, Structures
from indexer.training.cost_model.samples import Samples, from_evidence
from indexer.training.cost_model.settings import CostSettings
from indexer.training.cost_model.train import learned, retarget
from indexer.training.cost_model.whole import Whole, load_whole, train_whole

if TYPE_CHECKING:
    from indexer.campaign.folder import Campaign
    from indexer.training.cost_model.whole import Whole


#: Epochs of a round: the next one goes on from there.
_EPOCHS = 5
_START, _MODEL = "start.safetensors", "model.safetensors"

Read = Callable[[Matrix], Pattern]


def lessons(
    settings: CostSettings, start: CostModel | Whole | None, featurizer: str = "stats"
) -> Teaching:
    """What a plan says of a model that learns as it buys: `settings` are those of a whole training,
    of which each round has a few epochs.

    Raises: UsageError for trees, which cannot go on from where they are.
    """
    from embeddb.cost_model.model import CostModel

    if settings.predictor == "trees":
        raise UsageError("trees cannot learn round by round", hint="a network can: --predictor mlp")
    short = replace(settings, epochs=_EPOCHS, few_epochs=_EPOCHS, patience=_EPOCHS)
    found = {n: getattr(short, n) for n in type(short).__dataclass_fields__}
    model = start if start is None or isinstance(start, CostModel) else start.model
    version = "" if model is None else model.version
    return Teaching(settings=found, start=version, featurizer=featurizer)


def put_start(folder: Path, start: CostModel | Whole | None) -> None:
    """Have the model that learning goes on from in a campaign's folder, which is made.

    Raises: ModelError if it cannot be written.
    """
    from embeddb.cost_model.model import CostModel
    from indexer.training.cost_model.whole import Whole

    if start is None or (folder / _START).exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    model = start if isinstance(start, CostModel) else start.model
    own = CostModel(model.card, model.tensors)
    if not isinstance(start, CostModel):
        Whole(own, start.encoder).save_encoder(folder / _START)
    own.save(folder / _START)


def taught_on_the_way(
    campaign: Campaign, db: Lookup, read: Read, told: Progress | None = None
) -> InTraining | None:
    """What gives the rewards of a campaign whose plan teaches a model; None of any other. `read`
    brings a matrix of the plan.

    Raises: InputError if the plan's settings are none, or its model is not in the folder;
    MissingDependency without torch.
    """
    buying = campaign.plan.buying
    if isinstance(buying, msgspec.UnsetType) or isinstance(buying.teaching, msgspec.UnsetType):
        return None
    with needing("training"):
        from indexer.campaign.budget.teaching import InTraining
    pupil = _pupil(campaign, buying.teaching, db, read)
    return InTraining(pupil, campaign.folder / _MODEL, told)


def _pupil(campaign: Campaign, teaching: Teaching, db: Lookup, read: Read) -> Pupil:
    from embeddb.cost_model.model import CostModel
    from indexer.campaign.budget.teaching import Ground, StatisticsPupil

    settings, start = _settings(campaign, teaching), campaign.folder / _START
    if teaching.start and not start.exists():
        raise InputError(
            "the model that learning starts from is gone",
            where=str(start),
            hint="put it back, or plan the campaign anew in another folder",
        )
    if settings.encoder:
        return _whole_pupil(campaign.plan, settings, start if teaching.start else None, read)
    platform, op = _where(campaign.plan)
    vectors = _Vectors(campaign.plan, db, teaching.featurizer, read)
    ground = Ground(platform, op, vectors, vectors.featurizer)
    return StatisticsPupil.begin(
        ground, settings, CostModel.load(start) if teaching.start else None
    )


def _whole_pupil(plan: Plan, settings: CostSettings, start: Path | None, read: Read) -> Pupil:
    from embeddb.featurizers.network.reduction import reduce, seen_through
    from indexer.campaign.budget.teaching import Ground, Known, WholePupil
    from indexer.training.cost_model.encoder import Encoder, Structures
    from indexer.training.cost_model.whole import load_whole

    whole = load_whole(start) if start else None
    encoder = whole.encoder if whole else Encoder.drawn(settings)
    structures = Structures({})
    seen: dict[int, Known] = {}

    def known(at: int) -> Known:
        if at not in seen:
            pattern = read(plan.matrices[at])
            channels = int(encoder.spec["in_channels"])
            structures.add(pattern.id, seen_through(reduce(pattern, encoder.reduction), channels))
            seen[at] = Known(PatternInfo.of(pattern), np.zeros(0, dtype=np.float32))
        return seen[at]

    ground = Ground(*_where(plan), known, (encoder.name, encoder.version))
    return WholePupil.begin(ground, settings, whole or encoder, structures)


class _Vectors:
    """Matrices of a plan and their vectors by one featurizer, read once they are asked for."""

    def __init__(self, plan: Plan, db: Lookup, featurizer: str, read: Read) -> None:
        self._plan, self._read = plan, read
        self._plug = db.featurizers().named(featurizer)
        self._seen: dict[int, Known] = {}

    @property
    def featurizer(self) -> tuple[str, str]:
        return self._plug.name, str(self._plug.version)

    def __call__(self, at: int) -> Known:
        from indexer.campaign.budget.teaching import Known

        if at not in self._seen:
            pattern = self._read(self._plan.matrices[at])
            self._seen[at] = Known(PatternInfo.of(pattern), self._plug.embed(pattern))
        return self._seen[at]


def _where(plan: Plan) -> tuple[Platform, Op]:
    return parse_platform(plan.platform), Op.parse(plan.ops[0])


def _settings(campaign: Campaign, teaching: Teaching) -> CostSettings:
    """Raises: InputError for what are no settings; a plan may come from elsewhere."""
    from indexer.training.cost_model.settings import settings_of

    try:
        return settings_of(teaching.settings)
    except (TypeError, UsageError) as e:
        raise InputError(
            f"not the settings of a model: {e}",
            where=str(campaign.folder),
            hint="plan the campaign anew in another folder",
        ) from None


Floats = NDArray[np.float64]
#: What a model adds to its score is not calibrated on rounds: only the order is asked for.
_UNJUDGED = {"slope": 1.0, "floor": 1.0, "factor": 1.0}


class Known(NamedTuple):
    """A matrix of the pool: what is known of it, and its vector float32[d] (of no numbers where the
    model reads the structure)."""

    info: PatternInfo
    vector: NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Ground:
    """Where samples are bought: `known(at)` is a matrix of the pool, asked for once it is bought
    of; vectors are of `featurizer`, a name and a version."""

    platform: Platform
    op: Op
    known: Callable[[int], Known]
    featurizer: tuple[str, str] = ("stats", "")

    def samples(self, told: Sequence[Told], *, cut: bool = True) -> Samples:
        """What was told as a cost model learns it, all in one group: of few matrices none is held
        out. `cut` as in `from_evidence`. Raises: UsageError for too little."""
        curves: dict[int, dict[Config, Timing]] = {}
        for one in told:
            status = "ok" if math.isfinite(one.seconds) else "invalid"
            curve = Timing(one.seconds, 0.0, 0.0, 1, status)
            curves.setdefault(one.matrix, {})[one.config] = curve
        known = {at: self.known(at) for at in curves}
        rows = [
            (
                MatrixRow(known[at].info.id, self.platform.id, ""),
                self.platform.default(self.op, known[at].info.sizes),
                curve,
            )
            for at, curve in curves.items()
        ]
        found = from_evidence(
            join(self.op, rows),
            {one.info.id: one.vector for one in known.values()},
            {one.info.id: one.info for one in known.values()},
            self.platform,
            self.op,
            featurizer=self.featurizer,
            cut=cut,
        )
        found.check()
        return found


class Pupil(Protocol):
    """A model on its way. `score` gives float64[c] of configurations on a matrix of the pool; the
    higher, the faster; None as long as it has learned nothing. `taught` is the model after more
    epochs on all that was told, itself where that is too little. `save` and `load` keep it in a
    file; `load` raises ModelError for what is none."""

    def score(self, matrix: int, configs: Sequence[Config]) -> Floats | None: ...

    def taught(self, told: Sequence[Told], progress: Progress | None) -> Self: ...

    def save(self, file: Path, about: dict[str, Any]) -> None: ...

    def load(self, file: Path) -> tuple[Self, dict[str, Any]]: ...


@dataclass(frozen=True, eq=False)
class StatisticsPupil:
    """A network that reads vectors. `source` is what it starts from, made for this platform, and
    `model` what it is by now; both None: from nothing."""

    ground: Ground
    settings: CostSettings
    source: CostModel | None = None
    model: CostModel | None = None

    @classmethod
    def begin(cls, ground: Ground, settings: CostSettings, start: CostModel | None) -> Self:
        """From a model of another platform, or from nothing. Raises: UsageError as `retarget`."""
        source = None if start is None else retarget(start, ground.platform, (ground.op,))
        return cls(ground, settings, source, source)

    def score(self, matrix: int, configs: Sequence[Config]) -> Floats | None:
        if self.model is None:
            return None
        info, vector = self.ground.known(matrix)
        ground = self.ground
        return self.model.score(vector, ground.platform, ground.op, configs, info.sizes)[0]

    def taught(self, told: Sequence[Told], progress: Progress | None) -> Self:
        try:
            samples = self.ground.samples(told)
        except UsageError:
            return self
        card, tensors, _ = learned(samples, self.settings, self._start(), None, progress)
        return replace(self, model=CostModel({**card, "calibration": _UNJUDGED}, tensors))

    def _start(self) -> CostModel | None:
        """The weights as they are by now. The prior is drawn to that of the source and to nothing
        else: what a round before has found rests on the very samples it is fitted to again."""
        if self.model is None or self.source is self.model:
            return self.model
        members = {n: a for n, a in self.model.tensors.items() if n.startswith("member.")}
        if self.source is not None:
            return CostModel(self.source.card, {**self.source.tensors, **members})
        blank = {
            n: a[:0] if n.endswith((".ids", ".rest")) else np.zeros_like(a)
            for n, a in self.model.tensors.items()
            if n.startswith("prior.")
        }
        return CostModel(self.model.card, {**self.model.tensors, **blank})

    def save(self, file: Path, about: dict[str, Any]) -> None:
        if self.model is not None:
            CostModel({**self.model.card, **about}, self.model.tensors).save(file)

    def load(self, file: Path) -> tuple[Self, dict[str, Any]]:
        found = CostModel.load(file)
        return replace(self, model=found), found.card


@dataclass(frozen=True, eq=False)
class WholePupil:
    """A paper's model whole: the sparse network is trained with the rest. `structures` has those of
    the pool that were bought of, by pattern id; `model` is None before anything was learned."""

    ground: Ground
    settings: CostSettings
    encoder: Encoder
    structures: Structures
    model: CostModel | None = None

    @classmethod
    def begin(
        cls,
        ground: Ground,
        settings: CostSettings,
        start: Encoder | Whole,
        structures: Structures,
    ) -> Self:
        """From an encoder alone, or from a model whole of another platform.

        Raises: UsageError as `retarget`."""
        if isinstance(start, Encoder):
            return cls(ground, settings, start, structures)
        model = retarget(start.model, ground.platform, (ground.op,))
        return cls(ground, settings, start.encoder, structures, model)

    def score(self, matrix: int, configs: Sequence[Config]) -> Floats | None:
        if self.model is None:
            return None
        ground, info = self.ground, self.ground.known(matrix).info
        (vector,) = self.encoder.vectors(self.structures, [info.id])
        return self.model.score(vector, ground.platform, ground.op, configs, info.sizes)[0]

    def taught(self, told: Sequence[Told], progress: Progress | None) -> Self:
        try:
            samples = self.ground.samples(told, cut=False)
        except UsageError:
            return self
        made = train_whole(
            samples,
            self.settings,
            self.encoder,
            self.structures,
            start=self.model,
            progress=progress,
        )
        # The encoder has no name before it is saved; the next round finds it again by none.
        card = {**made.model.card, "featurizer": {"name": "", "version": ""}}
        return replace(self, model=CostModel(card, made.model.tensors), encoder=made.encoder)

    def save(self, file: Path, about: dict[str, Any]) -> None:
        if self.model is not None:
            whole = Whole(CostModel({**self.model.card, **about}, self.model.tensors), self.encoder)
            whole.save_encoder(file)
            whole.model.save(file)

    def load(self, file: Path) -> tuple[Self, dict[str, Any]]:
        found = load_whole(file)
        return replace(self, model=found.model, encoder=found.encoder), found.model.card


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
