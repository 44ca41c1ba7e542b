"""From a partition, a cost model and a vector to the query a tuner sees."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.errors import EmbeddbError, ModelError, StoreCorrupt, UsageError
from embeddb.core.machine_state import usual_at
from embeddb.index.answer_index import AnswerIndex
from embeddb.index.pooling import Source
from embeddb.index.run_matrix import RunMatrix, timings_of
from embeddb.platforms.platform import Platform
from embeddb.platforms.space.space import ConfigSpace
from embeddb.query.query import Neighbour, Promise, Query
from embeddb.store.model_table import ModelEntry

if TYPE_CHECKING:
    from embeddb.cost_model.model import CostModel
    from embeddb.store import Store

__all__ = [
    "MOST_PREDICTED",
    "Clock",
    "CostModels",
    "Scorer",
    "foreign_winners",
    "judged",
    "nearest_widths",
    "shared_out",
    "with_evidence",
    "with_judgement",
    "with_prediction",
]

#: A space of at most so many configurations is predicted whole; of a larger one what was measured
#: on the platform, the default, and other platforms' winners mapped into it.
MOST_PREDICTED = 4096
#: Other platforms' winners that join the candidates of such a space: each costs a search there.
_MOST_FOREIGN = 8


def with_evidence(
    query: Query,
    partition: AnswerIndex,
    vector: NDArray[np.float32] | None,
    *,
    name_of: Callable[[str], str] | None = None,
) -> Query:
    """The query with what a partition says of raw features float32[d].

    What was measured on this pattern on this platform is `own`, not a neighbour; what another
    instance of a portable platform measured on it is the nearest neighbour there can be. Without a
    vector there are no neighbours, only what holds for the platform as a whole.
    """
    evidence, view = partition.evidence, partition.view(query.platform, calls=query.calls)
    averages, policy = view.averages, view.policy
    ids: list[str] = []
    distances = np.zeros(0)
    if vector is not None:
        if not query.own and query.pattern.id in partition.ids:
            policy = partition.known_policy(query.platform)
        excluded = {query.pattern.id} if query.own else ()
        ids, distances = partition.nearest(vector, count=policy.k, exclude=excluded)
    rows = np.array([partition.place_of(i) for i in ids], dtype=np.int64)
    found, rejected = _split_legal(evidence, query.space)
    legal = sorted(found.values())
    place = {at: new for new, at in enumerate(legal)}
    weights = policy.weights(distances)
    sources = [belief.source for belief in view.beliefs]
    table = partition.preparation
    cost = table.cost(rows, weights, query.platform.id, partition.op) if table else None
    return replace(
        query,
        preparation=cost,
        configs=tuple(sorted(found, key=found.__getitem__)),
        gains=view.gains[rows][:, legal],
        trust=view.trust[rows][:, legal],
        levels=averages.level[rows],
        weights=weights,
        prior=averages.prior[legal],
        mean=averages.mean[legal],
        shrink=policy.shrink,
        cover=np.array([place[at] for at in averages.cover if at in place], dtype=np.int64),
        evidence_op=_main_op(sources, view.shares[rows], weights, partition.op),
        held_out=math.nan if evidence.winners else math.exp(-policy.loss),
        judged_by=view.judged,
        promise=Promise.of(policy),
        machines=_machines(sources, view.shares[rows], weights),
        measured_here=view.own,
        elsewhere=any(source.platform != query.platform.id for source in sources),
        failing=view.failing[rows][:, legal],
        machine_effects=view.effects[:, legal],
        knows_default=bool(evidence.knows_default.any()),
        noise=evidence.noise,
        neighbours=tuple(
            _neighbour(partition, i, sources[int(shares.argmax())], float(distance), name_of)
            for i, shares, distance in zip(ids, view.shares[rows], distances, strict=True)
        ),
        rejected=rejected,
        vector=np.zeros(0, dtype=np.float32) if vector is None else vector,
        featurizer=partition.featurizer,
    )


def _machines(
    sources: Sequence[Source], shares: NDArray[np.float64], weights: NDArray[np.float64]
) -> dict[str, float]:
    """How much of the vote rests on runs of each platform instance, the most first."""
    found: dict[str, float] = {}
    if len(weights):
        mass = weights @ shares / max(float(weights.sum()), 1e-12)
        for source, share in zip(sources, mass, strict=True):
            found[source.platform] = found.get(source.platform, 0.0) + float(share)
    return dict(sorted(found.items(), key=lambda x: (-x[1], x[0])))


def _main_op(
    sources: Sequence[Source],
    shares: NDArray[np.float64],
    weights: NDArray[np.float64],
    asked: Op,
) -> Op:
    """The op that most of the vote ran; where nobody votes the one that most was measured at."""
    if not len(weights):
        return asked if any(s.op == asked for s in sources) else sources[0].op
    mass: dict[Op, float] = {}
    for source, share in zip(sources, weights @ shares, strict=True):
        mass[source.op] = mass.get(source.op, 0.0) + float(share)
    return max(mass, key=lambda op: (mass[op], op == asked))


def _neighbour(
    partition: AnswerIndex,
    pattern_id: str,
    source: Source,
    distance: float,
    name_of: Callable[[str], str] | None,
) -> Neighbour:
    group = partition.evidence.rows[partition.row_of(pattern_id)].group
    name = name_of(pattern_id) if name_of is not None else ""
    percentile = partition.percentile(distance)
    return Neighbour(pattern_id, source.platform, name, group, distance, percentile, str(source.op))


def _split_legal(
    evidence: RunMatrix, space: ConfigSpace
) -> tuple[dict[Config, int], dict[Config, str]]:
    """Legal configurations in their stored form, with their positions, and the others.

    Two that are the same choice on this matrix (a symbol and its number) are one proposal: the
    one that was run more often.
    """
    runs = np.bincount(evidence.column, minlength=len(evidence.configs))
    legal: dict[Config, int] = {}
    rejected: dict[Config, str] = {}
    for at, config in enumerate(evidence.configs):
        reason = space.reason(config)
        if reason is not None:
            rejected[config] = reason
            continue
        stored = space.canonical(config)
        if stored not in legal or runs[at] > runs[legal[stored]]:
            legal[stored] = at
    return legal, rejected


# -- the cost model --------------------------------------------------------------------------------


class Scorer(Protocol):
    """What ranks: a cost model, or what takes its place in an evaluation."""

    def score(
        self,
        vector: NDArray[np.float32],
        platform: Platform,
        op: Op,
        configs: Sequence[Config],
        sizes: tuple[int, int, int],
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """See `embeddb.cost_model.model.CostModel.score`."""


def with_prediction(
    query: Query, scorer: Scorer, vector: NDArray[np.float32], *, store: Store | None = None
) -> Query:
    """The query with what a scorer says of raw features float32[d]; a spread may be nan. Where the
    space is too large to be predicted whole, a store adds other platforms' winners.

    Raises: EmbeddbError as the scorer does; ModelError if it gives no finite numbers.
    """
    info, space = query.pattern, query.space
    sizes = (info.m, info.n, info.nnz)
    size = space.size()
    if size is not None and size <= MOST_PREDICTED:
        known = tuple(space.enumerate())
    else:
        known = (*query.configs, *(foreign_winners(store, query) if store is not None else ()))
    # All of these are legal, but for the default where nothing is.
    first = (query.default,) if space.reason(query.default) is None else ()
    configs = tuple(dict.fromkeys([*first, *known]))
    if not configs:
        return query

    def scored(asked: Sequence[Config]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        gain, spread = scorer.score(vector, query.platform, query.op, asked, sizes)
        if not np.isfinite(gain).all():
            raise ModelError("it predicts numbers that are not finite", hint="train it again")
        return gain, spread

    def predict(asked: Sequence[Config]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        # A model centres what it is asked for: only differences within one call mean anything.
        gain, spread = scored((query.default, *asked))
        return shared_out(query, asked, gain[1:] - gain[0], spread[1:])

    gain, spread = scored(configs) if math.isinf(query.calls) else predict(configs)
    return replace(
        query,
        predicted_configs=configs,
        predicted=gain,
        predicted_spread=spread,
        predicted_guard=getattr(scorer, "guard", 0.0),  # a ranker that is no model has none
        predict=predict,
    )


def shared_out(
    query: Query,
    configs: Sequence[Config],
    gain: NDArray[np.float64],
    spread: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Log gains float64[c] over the default and their standard deviations with the preparation
    shared out over the query's calls; as they are where that is not known."""
    if query.preparation is None or math.isinf(query.calls):
        return gain, spread
    base, *ratio = query.preparation.of((query.default, *configs)) / query.calls
    running = np.exp(-gain)
    cost = running + np.array(ratio)
    # Errors of the two parts are independent, each counts by its part in the cost.
    part = running / cost
    both = np.hypot(part * spread, (1.0 - part) * query.preparation.spread)
    return np.log1p(base) - np.log(cost), both


def with_judgement(query: Query, model: CostModel) -> Query:
    """The query with which model predicted, and how good its answers were: at the width that the
    neighbours ran, or where there are none at the nearest one that was judged."""
    op = query.evidence_op or query.op
    # A model of a time when machines were not told apart is believed where there is only one.
    here = bool(model.instance) or not query.elsewhere
    figures = judged(model.card, op, near=query.evidence_op is None) if here else {}
    at_1 = {method: float(f["of_optimum@1"]) for method, f in figures.items()}
    weight = float(figures.get("transfer+rank", {}).get("weight", 0.5))
    note = f"cost model {model.version} was never judged at {op} with groups held out"
    if not here:
        note = f"cost model {model.version} was judged on another machine"
    return replace(
        query,
        model=model.version,
        model_featurizer=str(model.card["featurizer"]["name"]),
        judged=at_1,
        rank_weight=min(max(weight, 0.0), 1.0),
        model_note="" if at_1 else f"{note}: it does not rank",
        unrun_first=bool(_unrun_first(model.card, op)),
    )


def _unrun_first(card: Mapping[str, Any], op: Op) -> bool:
    """Whether hidden configurations have shown that one which ran nowhere may go first."""
    hidden = card.get("hidden")
    figures = hidden.get(str(op)) if isinstance(hidden, dict) else None
    return isinstance(figures, dict) and figures.get("unrun_first") is True


def judged(
    card: Mapping[str, Any], op: Op, *, near: bool = False
) -> Mapping[str, Mapping[str, float]]:
    """Figures by method of answers with groups held out, as a model's card has them for an op, or
    with `near` for the nearest judged width; empty if there are none or they make no sense."""
    held = card.get("held_out")
    by_op = dict(_figures(held)) if isinstance(held, dict) else {}
    if op in by_op or not near:
        return by_op.get(op, {})
    widths = nearest_widths(by_op, op)
    return by_op[widths[0]] if widths else {}


def _figures(held: Mapping[str, Any]) -> Iterator[tuple[Op, Mapping[str, Mapping[str, float]]]]:
    """The parts of a card's judgement that can be read: nobody but its maker has checked it."""
    for name, methods in held.items():
        with suppress(UsageError):
            op = Op.parse(name)
            if isinstance(methods, dict) and methods and all(map(_sensible, methods.values())):
                yield op, methods


def _sensible(figures: Any) -> bool:
    if not isinstance(figures, dict) or "of_optimum@1" not in figures:
        return False
    shares = [figures["of_optimum@1"], figures.get("weight", 0.5)]
    return all(type(v) in (int, float) and 0 <= v <= 1 for v in shares)


class CostModels:
    """The cost models of one database, below its folder. None ships for all: a model trained on
    one machine says less than neighbours that ran on the user's.

    A file is read when it is first asked for, and again when it was replaced.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = None if folder is None else folder / "models"
        self._read: dict[Path, tuple[tuple[int, int], CostModel | str]] = {}

    def find(
        self, platform: Platform, op: Op, version_of: Callable[[str], str]
    ) -> tuple[CostModel | None, str]:
        """The model for an op on a platform, or one line on why it cannot be used.
        `version_of` gives a featurizer's version, or raises EmbeddbError."""
        if self._folder is None:
            return None, ""
        why = ""
        for name in dict.fromkeys((platform.id, platform.name)):
            path = self._folder / f"costmodel-{name}-{op.kernel}.safetensors"
            try:
                stat = path.stat()
            except OSError:
                continue
            found = self._open(path, (stat.st_mtime_ns, stat.st_size))
            reason = found if isinstance(found, str) else _mismatch(found, platform, op, version_of)
            if not isinstance(found, str) and not reason:
                return found, ""
            why = why or f"cost model {path.name} is not used: {reason}"
        return None, why

    def apply(
        self,
        query: Query,
        vector_of: Callable[[str], NDArray[np.float32]],
        *,
        version_of: Callable[[str], str],
        store: Store,
    ) -> Query:
        """The query with a model's predictions, or a note why there are none. `vector_of` gives the
        pattern's raw features by a featurizer, or raises EmbeddbError."""
        model, note = self.find(query.platform, query.op, version_of)
        if model is None:
            return replace(query, model_note=note) if note else query
        name = str(model.card["featurizer"]["name"])
        try:
            same = query.featurizer == name and query.vector.size
            vector = query.vector if same else vector_of(name)
            query = with_prediction(query, model, vector, store=store)
        except EmbeddbError as e:
            return replace(query, model_note=f"cost model {model.version} is not used: {e}")
        return with_judgement(query, model)

    def register(self, version: str, store: Store) -> None:
        """Keep the card of the model that an answer rests on, unless the store has it."""
        for path, (_, found) in list(self._read.items()):
            if not isinstance(found, str) and found.version == version:
                # No card, or one too large to keep, is no reason to withhold the answer.
                with suppress(ModelError, StoreCorrupt):
                    if store.models.get(version) is None:
                        store.models.register([ModelEntry(version, found.card, path.name)])

    def _open(self, path: Path, stamp: tuple[int, int]) -> CostModel | str:
        """The model, or what is wrong with its file."""
        from embeddb.cost_model.model import CostModel

        known = self._read.get(path)
        if known is not None and known[0] == stamp:
            return known[1]
        found: CostModel | str
        try:
            found = CostModel.load(path)
        except EmbeddbError as e:
            # What is not installed now may be later.
            if not isinstance(e, ModelError):
                return str(e)
            found = str(e)
        self._read[path] = (stamp, found)
        return found


def _mismatch(
    model: CostModel, platform: Platform, op: Op, version_of: Callable[[str], str]
) -> str:
    name = str(model.card["featurizer"]["name"])
    try:
        version = version_of(name)
    except EmbeddbError as e:
        return str(e)
    return model.mismatch(platform, op, name, version)


def foreign_winners(store: Store, query: Query) -> list[Config]:
    """What was fastest on other platforms, on this pattern and then on its neighbours, as the
    nearest legal configurations here; at most 8, none where the platforms share no loop nest."""
    from embeddb.cost_model.encoders.nearest import nearest_legal

    info = query.pattern
    ids = list(dict.fromkeys([info.id, *(n.pattern_id for n in query.neighbours)]))
    found: dict[Config, None] = {}
    for partition in store.partitions():
        source = store.platform(partition.platform)
        same = (partition.op.kernel, partition.op.dtype) == (query.op.kernel, query.op.dtype)
        if source is None or source.name == query.platform.name or not same:
            continue
        normal = usual_at(store, source.id)
        curves = (timings_of(store.runs(source.id, partition.op, i), normal) for i in ids)
        best = [min(c, key=lambda config: c[config].seconds) for c in curves if c]
        wanted = list(dict.fromkeys(best))[: _MOST_FOREIGN - len(found)]
        try:
            near = nearest_legal(
                query.platform, source, query.op, wanted, sizes=(info.m, info.n, info.nnz)
            )
        except EmbeddbError:  # a loop nest that needs a size nobody knows
            continue
        found.update((n.config, None) for n in near if n.distance is not None)
    return list(found)


def nearest_widths(ops: Iterable[Op], op: Op) -> list[Op]:
    """Those of the same kernel, nearest width first: by ratio; of two equally far the narrower."""
    same = [o for o in ops if (o.kernel, o.dtype) == (op.kernel, op.dtype)]
    return sorted(same, key=lambda o: (abs(math.log(o.width / op.width)), o.width))


class Clock:
    """Adds the seconds since the last lap to a stage."""

    def __init__(self, stages_s: dict[str, float]) -> None:
        self._stages = stages_s
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self._stages[stage] = self._stages.get(stage, 0.0) + now - self._last
        self._last = now
