"""The cost model's part of a query: its predictions and its held-out quality."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.errors import EmbeddbError, ModelError, UsageError
from embeddb.core.files.safe_read import refusing
from embeddb.core.records import WorkloadInfo
from embeddb.core.row_lengths import RowLengths
from embeddb.core.timing import summarise_runs
from embeddb.core.workload import Workload
from embeddb.cost_model import Problem
from embeddb.featurizers.tower import learned_part
from embeddb.index.lookup import Lookup
from embeddb.index.scopes import nearest_widths
from embeddb.platforms.platform import this_machine
from embeddb.ranking.query import Correlate, Query

if TYPE_CHECKING:
    from embeddb.cost_model.combined import Combined
    from embeddb.cost_model.graph_model import GraphModel
    from embeddb.cost_model.model import CostModel
    from embeddb.store import Store


#: Largest space that is predicted whole; of a larger one the configurations measured on the
#: platform, the default and those retrieved.
MOST_PREDICTED = 4096
#: Configurations retrieved by inner product, which the cost model ranks.
_MOST_RETRIEVED = 512
#: Other platforms' winners among the candidates of such a space, where there are fewer of these:
#: each takes a search.
_MOST_FOREIGN = 8
#: A model of an instance's own runs beside that of every machine stays until there are so many
#: times its runs: seconds of learning after each added run would be worth little.
_STALE = 1.25


class Scorer(Protocol):
    """A cost model, or its substitute in an evaluation."""

    def score(
        self, problem: Problem, configs: Sequence[Config]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Log gain float64[c] over the mean configuration (higher is faster) and its standard
        deviation float64[c] (nan: unknown)."""


def predicted(query: Query, lookup: Lookup, pattern: Workload | WorkloadInfo) -> Query:
    """The query with predictions of the cost model for its op and platform, or a note why there are
    none."""
    model, note = lookup.usable_model(query.platform, query.op)
    if not ranks(model, query.op):
        model = _learned(query, lookup) or model
    if note:
        query = query.with_prediction(note=note)
    if model is None:
        return query
    query = _with_facts(query, model)
    name = str(model.card["featurizer"]["name"])
    try:
        with refusing(ModelError):
            same = query.vote.featurizer == name and query.vote.vector.size
            vector = query.vote.vector if same else lookup.vector(pattern, name)
            scorer, own = _with_own_runs(query, lookup, pattern, model)
            lengths = lookup.lengths(pattern) if scorer.reads_lengths else None
            retrieve = partial(retrieved, lookup, query, pattern)
            scored = predict_by(
                query, scorer, vector, store=lookup.store, lengths=lengths, retrieve=retrieve
            )
            scored = with_judgement(scored, model).with_prediction(own_model=own)
            return _with_imputed(scored, model)
    except EmbeddbError as e:
        return query.with_prediction(note=f"cost model {model.version} is not used: {e}")


def _with_own_runs(
    query: Query, lookup: Lookup, pattern: Workload | WorkloadInfo, model: CostModel
) -> tuple[CostModel | Combined, str]:
    """A model of every machine combined with that of the instance's own runs, where there are
    enough, and the name of the latter; another model as it is, and one that learned from these runs
    as from other machines' (as the starter's: to learn again would delay a first answer by
    seconds)."""
    as_others = query.platform.id in model.machines and "own_rows" not in model.card
    if not model.machines or as_others:
        return model, ""
    partition = lookup.answering(query.op, query.platform)
    if partition is None:
        return model, ""
    from embeddb.cost_model.combined import Combined
    from embeddb.learning.few_samples import learned_model

    own = learned_model(lookup, partition, query.platform, partition.op, stale=_STALE)
    if own is None:
        return model, ""
    vector = lookup.vector(pattern, str(own.card["featurizer"]["name"]))
    return Combined(model, own, vector), str(own.card.get("stamp", ""))


def ranks(model: CostModel | None, op: Op) -> bool:
    """True if there is a trained model by which queries rank: it is of every machine, or better
    than the vote with groups held out."""
    if model is None:
        return False
    figures = judged(model.card, op, near=True)
    if model.machines:
        return bool(figures)
    vote = _at_1_and_5(figures.get("transfer", {}))
    return any(_at_1_and_5(figures[by]) > vote for by in ("rank", "transfer+rank") if by in figures)


def _at_1_and_5(figures: Mapping[str, float]) -> tuple[float, float]:
    return figures.get("of_optimum@1", -math.inf), figures.get("of_optimum@5", -math.inf)


def _learned(query: Query, lookup: Lookup) -> CostModel | None:
    """The model of the instance's own runs, if its first choices on the same held-out rows are
    better than the neighbours' vote by a standard error (the vote's answer is easier to verify), or
    the two can be compared on too few groups, as where hardly any configuration ran on two."""
    if not query.op.workload.learned:
        return None
    partition = lookup.answering(query.op, query.platform)
    if partition is None:
        return None
    from embeddb.learning.few_samples import learned_model

    op = partition.op  # of the runs that answer, which may be of another width
    model = learned_model(lookup, partition, query.platform, op)
    if model is None:
        return None
    figures = judged(model.card, op).get("rank", {})
    ahead = figures.get("ahead", math.inf if figures else -math.inf)
    return model if ahead > figures.get("ahead_error", 0.0) else None


def _with_facts(query: Query, model: CostModel) -> Query:
    """The query with measured facts of this machine, if the model reads facts that are missing and
    the platform is this machine. Takes a second or two, once on a machine."""
    if not model.imputed(query.platform):
        return query
    with suppress(EmbeddbError), ExitStack() as stack:
        runner, here = this_machine(query.platform)
        if hasattr(runner, "close"):
            stack.callback(runner.close)
        return replace(query, platform=here)
    return query


def _with_imputed(query: Query, model: CostModel) -> Query:
    """The query with a note of the facts that the model reads and its machine does not report."""
    imputed = model.imputed(query.platform)
    if not imputed:
        return query
    from embeddb.cost_model.encoders.inputs import numeric_facts

    here = query.platform.id
    what = f"the cost model reads {', '.join(imputed)}, which are unknown for {here}"
    if not numeric_facts(query.platform):
        runs = "" if query.vote.origin.here else " and no runs (is the name right?)"
        what = f"{here} has none of the {len(imputed)} facts that the cost model reads{runs}"
    return query.with_prediction(note=f"{what}: the means of other machines stand in")


def retrieved(lookup: Lookup, query: Query, pattern: Workload | WorkloadInfo) -> list[Config]:
    """Legal configurations with the highest inner product of vectors with the pattern's, best
    first; none without towers for the op on the platform."""
    with suppress(EmbeddbError):
        tower = lookup.models.tower(query.platform, query.op)
        if tower is not None:
            learned = learned_part(lookup.vector(pattern, "tower"))
            return tower.best(learned, query.space, _MOST_RETRIEVED)
    return []


def predict_by(
    query: Query,
    scorer: Scorer,
    vector: NDArray[np.float32],
    *,
    store: Store | None = None,
    lengths: RowLengths | None = None,
    retrieve: Callable[[], Sequence[Config]] = tuple,
) -> Query:
    """The query with a scorer's predictions from raw features float32[d] and row lengths; a spread
    may be nan. In a space too large to be predicted whole, `retrieve` adds the configurations whose
    vectors are nearest to the workload's; a store, where hardly any ran, other platforms' winners.

    Raises: EmbeddbError as the scorer does; ModelError if the predictions are not `sensible`.
    """
    problem = Problem(vector, query.platform, query.op, query.pattern.sizes, lengths)
    configs = _candidates(query, store, retrieve)
    if not configs:
        return query

    def predict(others: Sequence[Config]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        scores = scorer.score(problem, (query.default, *others))
        return over_default(query, others, *tempered(*scores))

    # Without spreads, which take a process longer than the gains.
    quick: Any = getattr(scorer, "gains", None)

    def gains(others: Sequence[Config]) -> NDArray[np.float64]:
        gain = quick(problem, (query.default, *others))
        return over_default(query, others, *tempered(gain, np.zeros(len(gain))))[0]

    if math.isinf(query.calls):
        gain, spread = sensible(*scorer.score(problem, configs))
    else:
        scores = sensible(*scorer.score(problem, (query.default, *configs)))
        gain, spread = over_default(query, configs, *scores)
    return query.with_prediction(
        configs=configs,
        gain=gain,
        spread=spread,
        guard=getattr(scorer, "guard", 0.0),
        predict=predict,
        gains=None if quick is None else gains,
        correlate=correlate_of(scorer, problem),
    )


def correlate_of(scorer: Scorer, problem: Problem) -> Correlate | None:
    """The function to correlations of a scorer's errors on a problem; None where it does not know
    them."""
    own = getattr(scorer, "correlation", None)
    return None if own is None else partial(own, problem)


def _candidates(
    query: Query, store: Store | None, retrieve: Callable[[], Sequence[Config]]
) -> tuple[Config, ...]:
    """Legal configurations to predict, the default first where it is legal."""
    space = query.space
    if space.size(MOST_PREDICTED) is not None:
        # New values of an open choice are not enumerated; some have run.
        candidates = (*space.enumerate(), *query.vote.configs)
    else:
        candidates = (*query.vote.configs, *retrieve())
        if len(candidates) < _MOST_FOREIGN:
            candidates += tuple(foreign_winners(store, query))
    first = (query.default,) if space.reason(query.default) is None else ()
    return tuple(dict.fromkeys([*first, *candidates]))


def over_default(
    query: Query,
    configs: Sequence[Config],
    gain: NDArray[np.float64],
    spread: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Log gains float64[c] over the default and their standard deviations, with the preparation, if
    it is known, shared out over the query's calls; from predictions float64[1+c] for the default
    and the configurations. A model centres the scores of a call: only differences within one call
    are meaningful."""
    gain, spread = gain[1:] - gain[0], spread[1:]
    if query.vote.preparation is None or math.isinf(query.calls):
        return gain, spread
    base, *ratio = query.vote.preparation.of((query.default, *configs)) / query.calls
    running = np.exp(-gain)
    cost = running + np.array(ratio)
    # Errors of the two parts are independent, and weighted by their share of the cost.
    part = running / cost
    both = np.hypot(part * spread, (1.0 - part) * query.vote.preparation.spread)
    return np.log1p(base) - np.log(cost), both


def foreign_winners(store: Store | None, query: Query) -> list[Config]:
    """The fastest configurations of other platforms, on this pattern and then on its neighbours,
    as the nearest legal configurations here; at most 8, none where the platforms share no loop nest
    or there is no store."""
    from embeddb.cost_model.encoders.nearest import nearest_configs

    info = query.pattern
    ids = list(dict.fromkeys([info.id, *(n.pattern_id for n in query.vote.neighbours)]))
    winners: dict[Config, None] = {}
    if store is None:
        return []
    for partition in store.partitions():
        source = store.sound_platform(partition.platform)
        same = (partition.op.name, partition.op.dtype) == (query.op.name, query.op.dtype)
        if source is None or source.name == query.platform.name or not same:
            continue
        wanted = _fastest(store, source.id, partition.op, ids, _MOST_FOREIGN - len(winners))
        try:
            near = nearest_configs(query.platform, source, query.op, wanted, sizes=info.sizes)
        except EmbeddbError:  # a loop nest that needs a size nobody knows
            continue
        winners.update((n.config, None) for n, *_ in near if n.distance is not None)
        if len(winners) >= _MOST_FOREIGN:
            break
    return list(winners)


def _fastest(store: Store, platform: str, op: Op, ids: Sequence[str], most: int) -> list[Config]:
    """The fastest configuration on each workload where any ran; at most `most`."""
    normal, fastest = store.usual_at(platform), dict[Config, None]()
    for pattern_id in ids:
        timings = summarise_runs(store.runs(platform, op, pattern_id), normal)
        seconds = {c: one.seconds for c, one in timings.items() if math.isfinite(one.seconds)}
        if seconds:
            fastest[min(seconds, key=seconds.__getitem__)] = None
        if len(fastest) >= most:
            break
    return list(fastest)


def with_judgement(query: Query, model: CostModel | GraphModel, *, reads: str = "") -> Query:
    """The query with the version of the model and its held-out quality, at the width of the
    neighbours' runs, or without neighbours at the nearest judged width. `reads` names its input,
    else it is the featurizer of its card."""
    op = query.vote.origin.op or query.op
    # A model whose card names no machine is used where there is only one.
    here = bool(model.instance) or not query.vote.origin.elsewhere
    every = bool(model.card.get("machines"))
    near = every or query.vote.origin.op is None
    figures = judged(model.card, op, near=near) if here else {}
    at_1 = {method: float(f["of_optimum@1"]) for method, f in figures.items()}
    at_5 = {m: float(f["of_optimum@5"]) for m, f in figures.items() if "of_optimum@5" in f}
    joins = every and "rank" in at_1
    if joins:
        at_1["transfer+rank"] = _joined_share(query, model.card["machines"], at_1)
    joint = figures.get("transfer+rank", {})
    note = f"cost model {model.version} was never judged at {op} with groups held out"
    if not here:
        note = f"cost model {model.version} was judged on another machine"
    return query.with_prediction(
        version=model.version,
        featurizer=reads or str(model.card["featurizer"]["name"]),
        judged=at_1,
        judged_5=at_5,
        expected=_expected(model.card, op),
        weight=float(joint.get("weight", 0.5)),
        joins=joins,
        joint_guard=float(joint["guard"]) if "guard" in joint else None,
        joint_width=float(joint.get("width", 1.0)),
        note="" if at_1 else f"{note}: it does not rank",
        # Judgements with hidden configurations allow an answer that never ran.
        unrun_first=_of_op(model.card, "hidden", op).get("unrun_first") is True,
        plain=model.plain,
    )


def _joined_share(query: Query, machines: Collection[str], at_1: Mapping[str, float]) -> float:
    """Expected share of the optimum of answers by vote and model, which were judged on left-out
    machines only: on one of the model's `machines` the vote's own share, on another the smaller of
    the two."""
    voted = query.vote.quality.of_optimum
    card = at_1.get("transfer+rank", at_1["rank"])
    if query.vote.quality.judged_by != "here" or not math.isfinite(voted):
        return card
    return voted if query.platform.id in machines else min(voted, card)


def _expected(card: Mapping[str, Any], op: Op) -> float:
    """Expected share of the optimum of first answers in the card of a model that a query learned;
    nan in all others."""
    figures = _of_op(card, "expected", op)
    return float(figures["of_optimum@1"]) if _sensible(figures) else math.nan


def _of_op(card: Mapping[str, Any], part: str, op: Op) -> Mapping[str, Any]:
    """The figures for an op in a part of a card; empty if there are none or they are malformed."""
    by_op = card.get(part)
    figures = by_op.get(str(op)) if isinstance(by_op, dict) else None
    return figures if isinstance(figures, dict) else {}


def judged(
    card: Mapping[str, Any], op: Op, *, near: bool = False
) -> Mapping[str, Mapping[str, float]]:
    """Held-out figures by method in a model's card for an op, or with `near` for the nearest judged
    width; empty if there are none or they are malformed."""
    card_figures = card.get("held_out")
    by_op = dict(_figures(card_figures)) if isinstance(card_figures, dict) else {}
    if op in by_op or not near:
        return by_op.get(op, {})
    widths = nearest_widths(by_op, op)
    return by_op[widths[0]] if widths else {}


def _figures(by_op: Mapping[str, Any]) -> Iterator[tuple[Op, Mapping[str, Mapping[str, float]]]]:
    """The readable parts of a card's figures, which may come from another party."""
    for name, methods in by_op.items():
        with suppress(UsageError):
            op = Op.parse(name)
            if isinstance(methods, dict) and methods and all(map(_sensible, methods.values())):
                yield op, methods


def _sensible(figures: Any) -> bool:
    if not isinstance(figures, dict) or "of_optimum@1" not in figures:
        return False
    optional = [figures[name] for name in ("of_optimum@5", "weight") if name in figures]
    shares = [figures["of_optimum@1"], *optional]
    others = [figures.get(name, 0.0) for name in ("guard", "width")]
    compared = [figures.get(name, 0.0) for name in ("ahead", "ahead_error")]
    numeric = all(type(v) in (int, float) for v in (*shares, *others, *compared))
    return numeric and all(0 <= v <= 1 for v in shares) and all(0 <= v <= MOST_LOG for v in others)


#: Largest accepted log gain and spread; exp of a few times it does not overflow.
MOST_LOG = 100.0


def sensible(
    gain: NDArray[np.float64], spread: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return log gains and spreads that are in range; a spread may be nan.

    Raises: ModelError for others.
    """
    if not (np.abs(gain) <= MOST_LOG).all() or (np.abs(spread) > MOST_LOG).any():
        raise ModelError(
            "it predicts numbers that are not finite or too large", hint="train it again"
        )
    return gain, spread


def tempered(
    gain: NDArray[np.float64], spread: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Later predictions of a model whose first ones were `sensible`, clipped to the same range; nan
    becomes the smallest gain."""
    bounded = np.clip(np.where(np.isnan(gain), -MOST_LOG, gain), -MOST_LOG, MOST_LOG)
    return bounded, np.minimum(spread, MOST_LOG)
