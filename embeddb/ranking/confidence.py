"""The confidence of an answer, and one line for everything that lowers it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from embeddb.core.config import Config
from embeddb.core.kinds import kind_of
from embeddb.core.timing import TimingSummary
from embeddb.core.wording import many_of, one_of, plural
from embeddb.index.guards import GOOD, NEVER
from embeddb.ranking.query import Query
from embeddb.ranking.rankers.base import Ranker
from embeddb.ranking.rankers.choose import FEWEST_NEIGHBOURS
from embeddb.ranking.rankers.order import chances
from embeddb.ranking.recommendation import DEFAULT_FAILS, LIKELY, Candidate

#: Largest share of answers below `GOOD` for high confidence.
_MOST_SHORT = 0.1
#: Fewest held-out groups for high confidence: with fewer, none below `GOOD` proves little.
_FEWEST_GROUPS = 22
#: Percentile of the nearest neighbour's distance above which a pattern is unlike all measured ones.
_STRANGE = 0.99
#: Percentile of the nearest neighbour's distance above which confidence is not high.
_FAR = 0.8
#: Relative error of a measured time above which its runs disagree, as in reports.
_DISAGREE = 0.2
#: Failure chance from which a configuration is doubted.
_FAILS = 0.1
#: Beginnings of doubts that a measurement of the answer here removes.
UNCHECKED = ("all runs behind this answer are from other machines", "this machine has measured")
#: Beginning of a doubt about the answer's chance to fail.
_CHANCE = "it fails with a chance of"
#: Those that no longer hold once the answer was measured.
SETTLED = (*UNCHECKED, _CHANCE)
#: Rankers in words; all others rank by the cost model.
_RANKED_BY = {"transfer": "neighbours", "transfer-rank": "neighbours and cost model"}
#: Smallest share of the vote from this machine for an answer without doubts about the machine.
_OWN_SHARE = 0.5


def confidence_of(ranker: Ranker, link: str, first: Config | None = None) -> tuple[str, list[str]]:
    """`high`, `medium` or `low`, and one line for everything that lowers it; `first` is the first
    candidate."""
    query, doubts = ranker.query, list[str]()
    if link in ("static-best", "default"):
        one = one_of(query.op.kind)
        doubts = [f"{_no_vote(query)}; the answer is the same for any {one}"]
        if link == "static-best" and not query.vote.origin.here:
            doubts += _doubts_of_machine(query)
        return "low", doubts
    if link == "measured":
        doubts = _doubts_of_measurement(query, first)
        often = first is not None and query.failing.get(first, 0.0) >= LIKELY
        return ("low" if often else "medium" if doubts else "high"), doubts
    if link == "other-width":
        doubts = [f"measured on this very pattern, but at {query.own.other_op}"]
        timings = {query.space.canonical(c): one for c, one in query.own.other_width.items()}
        own = None if first is None else timings.get(first)
        return "medium", [*doubts, *_failed_runs({"the answer": own}, "there")]
    doubts += _doubts_of_judgement(ranker)
    if not query.vote.knows_default:
        chance = float(chances(query, [query.default])[0])
        also = f" and fails with a chance of {100 * chance:.0f} %" if chance >= _FAILS else ""
        doubts.append(f"the default has no ok run here{also}: what others gain is not known")
    if not query.vote.neighbours:
        doubts.append("no measured pattern is comparable; the cost model alone ranks")
        return "medium", doubts
    doubts += _doubts_of_neighbours(query) + _doubts_of_machine(query)
    if ranker.name == "transfer" and math.isinf(query.vote.shrink):
        doubts.append(
            "neighbours have no weight here, where they did not beat the best fixed choice: the "
            f"order is by averages, the same for any {one_of(query.op.kind)}"
        )
    chance = 0.0 if first is None else float(chances(query, [first])[0])
    if chance >= _FAILS:
        where = "here" if first in query.failing else "on other patterns"
        doubts.append(f"{_CHANCE} {100 * chance:.0f} %, by runs {where}")
    return ("low" if chance >= LIKELY else _level(query, doubts)), doubts


def _no_vote(query: Query) -> str:
    """The reason why neighbours do not answer."""
    near = len(query.vote.neighbours)
    if not near:
        return "no measured pattern is comparable"
    if near < FEWEST_NEIGHBOURS:
        return f"{plural(near, 'measured pattern')} can be compared, too few to vote"
    return "what ran on the measured patterns near it says nothing of what is possible here"


def untried_doubt(untried: Sequence[Candidate], candidates: Sequence[Candidate]) -> str:
    """A warning if the answer to a measured pattern has, or would have with more `candidates`,
    `untried` ones (`RankedCandidates`); else empty."""
    if not untried:
        return ""
    shown = [one for one in untried if one in candidates] or untried[:1]
    best = max(shown, key=lambda one: one.expected_gain or 0.0)
    if best in candidates:
        subject, how = f"rank {candidates.index(best) + 1}", "--measure"
    else:
        subject, how = "a configuration", f"-k {len(candidates) + 1} --measure"
    return (
        f"{subject} never ran on this pattern and is expected to beat all that did, "
        f"{best.expected_gain:.2f}x: {how} runs it"
    )


def default_fails(status: str) -> str:
    """The warning that the default has no time on the queried pattern."""
    return f"{DEFAULT_FAILS} ({status}): gains over it are of other patterns"


def _doubts_of_measurement(query: Query, first: Config | None) -> list[str]:
    """Doubts about measurements of the answer and the default: failed, single, differing or
    overlapping runs."""
    if first is None:
        return []
    timings = {query.space.canonical(c): timing for c, timing in query.own.timings.items()}
    own, base = timings.get(first), timings.get(query.space.canonical(query.default))
    check = ": --measure repeats it" if query.platform.runner else ""
    both = {"the answer": own, "the default": base}
    if first == query.default:
        del both["the default"]
    doubts = _failed_runs(both, "here")
    if query.platform.simulated:
        return doubts
    if own is not None and own.spread > _DISAGREE:
        doubts.append(
            f"the runs of the answer differ: its time is uncertain by {100 * own.spread:.0f} %; "
            "of two machines? `index --instance` keeps their runs apart"
        )
    once = [name for name, timing in both.items() if timing is not None and timing.runs == 1]
    if once:
        return [*doubts, f"measured in a single run ({' and '.join(once)}){check}"]
    if own is None or base is None or first == query.default:
        return doubts
    if own.seconds * (1 + own.spread) >= base.seconds * (1 - base.spread):
        doubts.append("the runs of the answer and of the default overlap: the gain may be chance")
    return doubts


def _failed_runs(timings: Mapping[str, TimingSummary | None], where: str) -> list[str]:
    """Doubts about configurations of which some runs failed; by their names in the line."""
    return [
        f"{name} failed in {one.failed} of {plural(one.failed + one.runs, 'run')} {where}"
        for name, one in timings.items()
        if one is not None and one.failed and one.runs
    ]


def _doubts_of_judgement(ranker: Ranker) -> list[str]:
    """Doubts about the quality of such answers: the held-out share of the optimum, the number of
    held-out groups, how many may fall short, and the machine they were judged on."""
    query, doubts = ranker.query, list[str]()
    if query.vote.neighbours and query.vote.origin.op not in (None, query.op):
        ran = dict.fromkeys(near.op or query.op for near in query.vote.neighbours)
        at = sorted(map(str, ran), key=lambda op: op != str(query.vote.origin.op))
        doubts.append(f"hardly measured at {query.op}: this rests on {' and '.join(at)}")
    held_out, where = ranker.held_out, _judged_answers(ranker)
    if held_out < GOOD:
        reach = "reach" if held_out != query.prediction.expected else "are expected to reach"
        doubts.append(f"{where} {reach} only {100 * held_out:.0f} % of the optimum")
    elif query.vote.knows_default and math.isnan(held_out):
        many = many_of(query.op.kind)
        doubts.append(f"too few {many} were measured to know how good answers here are")
    elif query.vote.quality.groups < _FEWEST_GROUPS and query.vote.knows_default:
        judged = plural(query.vote.quality.groups, "group")
        doubts.append(f"{where} were judged on {judged} only: too few to be sure")
    elif query.vote.knows_default and not query.vote.quality.short <= _MOST_SHORT:
        them = "those by neighbours" if ranker.by_model else "them"
        doubts.append(
            f"{where} reach {100 * held_out:.0f} % of the optimum on average, but up to "
            f"{100 * query.vote.quality.short:.0f} % of {them} may be below {100 * GOOD:.0f} %"
        )
    limit = query.op.workload.max_slower
    if limit is not None and not ranker.by_model and query.vote.quality.guard >= NEVER:
        doubts.append(
            f"the default is kept whatever is predicted: at most {100 * limit.share:.0f} % of the "
            f"answers may be slower, which it takes {limit.fewest} judged "
            f"{many_of(query.op.kind)} to show"
        )
    elsewhere = not ranker.by_model and query.vote.quality.judged_by == "elsewhere"
    elsewhere = elsewhere and query.vote.origin.elsewhere  # not another width of this machine alone
    if elsewhere and (held_out >= GOOD or not query.vote.knows_default):
        doubts.insert(0, "the quality of answers was measured on another machine only")
    return doubts


def _judged_answers(ranker: Ranker) -> str:
    """The answers that were judged: with a model of every machine those of the vote on this
    machine, or of both on left-out machines."""
    query, name = ranker.query, _RANKED_BY.get(ranker.name, "the cost model")
    elsewhere = not ranker.by_model and query.vote.quality.judged_by == "machines"
    if query.prediction.joins and ranker.by_model:
        elsewhere = ranker.held_out != query.vote.quality.of_optimum
        name = name if elsewhere else _RANKED_BY["transfer"]
    return f"held-out answers by {name}" + (", on machines left out," if elsewhere else "")


def _doubts_of_neighbours(query: Query) -> list[str]:
    doubts: list[str] = []
    nearest = query.vote.neighbours[0]
    if nearest.percentile > _STRANGE:
        doubts.append("nothing like this pattern was ever measured here")
    elif nearest.percentile > 0.9:
        doubts.append("the nearest measured pattern is unusually far")
    elif nearest.percentile > _FAR:
        share = f"{100 * nearest.percentile:.0f} %"
        doubts.append(f"{share} of the measured patterns are nearer to their own neighbours")
    if len({n.group for n in query.vote.neighbours}) == 1:
        doubts.append(f"all neighbours come from one group of {many_of(query.op.kind)}")
    return doubts


def _doubts_of_machine(query: Query) -> list[str]:
    """Doubts about votes of other machines, and about few measurements on this one."""
    vote, platform, kind = query.vote, query.platform, query.op.kind
    own, at = vote.origin.machines.get(platform.id, 0.0), vote.origin.here_op or query.op
    if not vote.origin.elsewhere or own >= _OWN_SHARE:
        return []
    other, here = UNCHECKED
    check = ". To check: --measure" if platform.runner else ""
    if not vote.origin.here:
        if count := vote.origin.generated:
            measured = f"{count} generated {many_of(kind)} at {at}"
            return [f"{here} {measured}, which correct gains of other machines{check}"]
        if own > 0.0:
            return [f"{100 * (1 - own):.0f} % of the vote is of other machines{check}"]
        local = platform.runner and platform.instance  # else it cannot be measured here
        can = local and platform.portable and kind_of(kind).sparse
        how = f"; `embeddb calibrate DB --platform {platform.name}` corrects them" if can else ""
        return [f"{other}: the ranking usually holds, the gains may not{how}"]
    near = sum(neighbour.platform == platform.id for neighbour in vote.neighbours)
    measured = plural(vote.origin.here, one_of(kind), many_of(kind))
    return [
        f"{here} {measured} at {at}, which correct gains of other machines; "
        f"{near or 'none'} of the {len(vote.neighbours)} neighbours of this {one_of(kind)} "
        f"{'is' if near < 2 else 'are'} among these{check}"
    ]


def _level(query: Query, doubts: list[str]) -> str:
    unproven = (
        query.vote.quality.judged_by == "elsewhere"
        and query.vote.origin.elsewhere
        and not (query.vote.origin.here or query.vote.origin.generated)
    )
    if query.vote.neighbours[0].percentile > _STRANGE or unproven:
        return "low"
    return "medium" if doubts else "high"
