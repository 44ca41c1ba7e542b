"""The model that a campaign teaches as it buys, out of the campaign's folder.

`start.safetensors` is what it goes on from, `model.safetensors` what it has become; the second may
be deleted, it is learned again. A preset's encoder lies beside each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from embeddb.core.config import Op
from embeddb.core.errors import InputError, UsageError
from embeddb.core.extras import needing
from embeddb.core.pattern import Pattern
from embeddb.core.records import PatternInfo
from embeddb.index.lookup import Lookup
from embeddb.platforms.platform import Platform, parse_platform
from indexer.campaign.plan import Matrix, Plan, Teaching, Told

if TYPE_CHECKING:
    from embeddb.cost_model.model import CostModel
    from indexer.campaign.budget.in_training import InTraining
    from indexer.campaign.budget.pupils import Known, Pupil
    from indexer.campaign.folder import Campaign
    from indexer.training.cost_model.settings import CostSettings
    from indexer.training.cost_model.whole import Whole

__all__ = ["lessons", "put_start", "taught_on_the_way"]

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
    campaign: Campaign, db: Lookup, read: Read, told: Told | None = None
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
        from indexer.campaign.budget.in_training import InTraining
    pupil = _pupil(campaign, buying.teaching, db, read)
    return InTraining(pupil, campaign.folder / _MODEL, told)


def _pupil(campaign: Campaign, teaching: Teaching, db: Lookup, read: Read) -> Pupil:
    from embeddb.cost_model.model import CostModel
    from indexer.campaign.budget.pupils import Ground, StatisticsPupil

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
    from indexer.campaign.budget.pupils import Ground, Known, WholePupil
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
        from indexer.campaign.budget.pupils import Known

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
