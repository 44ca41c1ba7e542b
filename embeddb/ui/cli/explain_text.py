"""An explanation as text: the answer and its confidence, novelty, evidence, answers of simpler
methods, undecided parameters, what to measure next, rejected configurations."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Mapping
from typing import Any

from embeddb.core.config import Config
from embeddb.core.kinds import kind_of, kind_with
from embeddb.core.wording import clean, duration, factor, one_of, plural, share, when
from embeddb.explain.explanation import Explanation, NeighbourDetail, OwnRuns
from embeddb.explain.why import corrected
from embeddb.ranking.recommendation import Counterfactual, Diagnostics, Recommendation
from embeddb.ui.cli.output import say, table
from embeddb.ui.cli.workload_text import show_occluded, show_transfers
from embeddb.ui.feature_words import feature_value, feature_words
from embeddb.ui.views import differing, each_source, subject_line, whose_runs

_WIDTH = 98
#: Characters of a name, and of a configuration, that a table shows: both come from strangers.
_MOST_NAME, _MOST_CONFIG, _MOST_LINE = 22, 400, 2000
#: Values of a parameter, and reasons of rejection, that are shown.
_MOST_VALUES, _MOST_REASONS = 4, 5
#: Machines with a smaller share of the vote, which rounds to 0 %, are counted together.
_LEAST_SHARE = 0.005
#: Shades from no effect to the largest.
_SHADES = " .:-=+*#%@"


def show_explanation(e: Explanation) -> None:
    _show_answer(e)
    show_transfers(e)
    _show_quantities(e)
    _show_neighbours(e)
    _show_differences(e)
    _show_simpler(e)
    _show_agreement(e)
    show_choice(e.recommendation, e.answer, e.pattern.kind)
    show_occluded(e.recommendation.insight, e.pattern.kernel)
    _show_next(e)
    _show_rejected(e.recommendation)


def _show_quantities(e: Explanation) -> None:
    rows = [
        (_cut(q.name, _MOST_NAME), q.answer_text, q.default_text, _cut(q.meaning, _MOST_LINE))
        for q in e.changed_quantities
    ]
    if rows:
        say("derived quantities in which the answer differs from the default:")
        table(("quantity", "answer", "default", "meaning"), rows, indent="  ")


# -- the answer and how sure -------------------------------------------------------------------


def _show_answer(e: Explanation) -> None:
    recommendation, answer = e.recommendation, e.answer
    say(f"answer {recommendation.id}: {recommendation.op} on {_cut(recommendation.platform, 60)}")
    if e.machine:
        _line("machine", e.machine)
    if recommendation.simulated:
        _note("SIMULATED or modelled: no time here is of real hardware")
    _line("why", e.why)
    say(f"  {_cut(Config(answer), _MOST_LINE)}")
    _line(e.pattern.kind, subject_line(_cut(recommendation.subject, 40), e.pattern.sizes))
    for name, line in e.meaning.items():
        say(f"    {_cut(name, _MOST_NAME)}: {_cut(line, _MOST_LINE)}")
    _line("default", Config(recommendation.default))
    _line("gain", _gain(e))
    if e.computed:
        _line("as", e.computed)
    for own in e.own:
        what = "default" if Config(own.config) == Config(recommendation.default) else "answer"
        _line("ran", f"{what}: {_ran(own, recommendation.time_unit)}")
    if e.sessions:
        _line("apart", e.sessions)
    _line("counted", e.preparation)
    first = recommendation.first
    if first is not None and first.failure is not None:
        seen = f", it failed on {first.failed_on} of {first.tried_on} measured patterns"
        chance = f"with a chance of {100 * first.failure:.0f} %"
        _line("fails", chance + seen * bool(first.tried_on))
    if first is not None and first.break_even_calls is not None:
        _line("pays", _paid_off(first.break_even_calls))
    before = " before it was measured" if e.then_measured else ""
    _line(
        "sure", f"{recommendation.confidence}{before}; {e.link_words} (link: {recommendation.link})"
    )
    for text in recommendation.warnings:
        _line("warning", text)
    _line("novelty", e.novelty or "not known")
    _note(f"ranked by: {ranked_by(recommendation)}")
    if recommendation.counters_words:
        _note(f"counters: {recommendation.counters_words}")
    if recommendation.model:
        _line(
            "learned",
            e.learned.training_summary if e.learned else "not known: the model is not registered",
        )
    _line(
        "asked",
        f"{when(recommendation.created)}; database generation {recommendation.generation}",
    )
    if many := [change(config, answer) for config in e.near_ties]:
        _line("as good", f"{e.as_good}, with {'; or '.join(many[:3])}")


def _paid_off(calls: float) -> str:
    if calls == 0:
        return "off at once: nothing to convert"
    return f"off after {plural(math.ceil(calls), 'call')}, which amortise the conversion"


def _ran(own: OwnRuns, unit: str) -> str:
    """Time, range, count and dates of runs: `41 us, 40 us to 42 us; 3 runs, 15 repeats in all`."""
    text = duration(own.seconds, unit)
    if own.times > 1:
        text += f", {duration(own.fastest, unit)} to {duration(own.slowest, unit)}"
    text += f"; {plural(own.runs, 'run')}, {plural(own.times, 'repeat')} in all"
    if own.last > 0.0:
        days = sorted({when(own.first)[:10], when(own.last)[:10]})
        text += f", {' to '.join(days)}"
    return "; ".join([text, ", ".join(own.sources), *each_source(own.provenance)])


def _line(head: str, text: object) -> None:
    """Print text wrapped behind its heading; a configuration stays whole, so it can be copied."""
    shown = _cut(text, _MOST_LINE)
    lines = [shown] if isinstance(text, Config) else textwrap.wrap(shown, _WIDTH - 10) or [""]
    for at, part in enumerate(lines):
        say(f"  {head if not at else '':<8}{part}")


def _note(text: str) -> None:
    for part in textwrap.wrap(_cut(text, _MOST_LINE), _WIDTH - 2):
        say(f"  {part}")


def _gain(e: Explanation) -> str:
    first, one = e.recommendation.first, one_of(e.pattern.kind)
    low, high = (first.gain_low, first.gain_high) if first else (None, None)
    expected = factor(e.expected_gain) if e.expected_gain is not None else "not known"
    if low is not None and high is not None:
        expected += f" (8 times of 10 between {factor(low)} and {factor(high)})"
    if e.measured_gain is None:
        if e.default_failed:
            text = f"not known: the default fails on this {one}"
            return text if e.expected_gain is None else f"{text}; by its neighbours {expected}"
        if e.expected_gain is None:
            return "not known: the default was never measured"
        return f"{expected} over the default, expected; not measured on this {one}"
    took = first.seconds if first else None
    text = f"{factor(e.measured_gain)} over the default, measured on this {one}: "
    recommendation = e.recommendation
    unit = recommendation.time_unit
    text += f"{duration(took, unit)} against {duration(recommendation.default_seconds, unit)}"
    if e.within_interval is None:
        return text
    return (
        f"{text}; expected {expected}: {'inside' if e.within_interval else 'OUTSIDE'} the interval"
    )


def ranked_by(recommendation: Recommendation) -> str:
    """The tuner that ranked, with its features and model."""
    parts = [recommendation.tuner]
    if recommendation.found_by:
        parts.append(f"neighbours by {recommendation.found_by}")
    if recommendation.model:
        parts.append(f"cost model {recommendation.model} on {recommendation.model_featurizer}")
    if recommendation.own_model:
        parts[-1] += f", combined with {recommendation.own_model} of the runs of this machine"
    return "; ".join(parts)


# -- evidence ----------------------------------------------------------------------------------


def _show_neighbours(e: Explanation) -> None:
    recommendation = e.recommendation
    rests = e.rests or "measured patterns near it"
    _head(rests if e.voted or not e.neighbours else f"{rests}; {e.beside}")
    if not e.neighbours:
        _note("none: no neighbours were searched")
        return
    pushed, here = any(n.provenance for n in e.neighbours), corrected(e)
    rows = [
        (
            _cut(n.name or n.pattern_id, _MOST_NAME),
            _extent(n),
            "0 (same)" if n.pattern_id == recommendation.pattern_id else f"{n.distance:.3g}",
            "-" if n.percentile is None else share(n.percentile),
            *([share(n.share)] if e.voted else []),
            n.measured,
            sum(n.failed.values()),
            factor(n.answer_gain),
            *([factor(n.voted)] if here else []),
            factor(n.best_gain),
            "not run" if n.answer_at is None else f"{100 * (n.ratios[n.answer_at] - 1):.0f} %",
            *([_cut(whose_runs(n.provenance), 40)] if pushed else []),
        )
        for n in e.neighbours
    ]
    head = ["pattern", kind_of(e.pattern.kind).extent, "distance", "nearer"]
    head += ["vote"] if e.voted else []
    head += ["configs", "failed", "answer", *(["here"] if here else []), "best", "behind"]
    head += ["whose runs"] if pushed else []
    table(head, rows, indent="  ")
    for line in each_source(p for n in e.neighbours for p in n.provenance):
        _note(line)
    _show_machines(e)
    counts = ", ".join(f"{n:,} {s}" for s, n in e.evidence.items()) or "none is left"
    _note(f"runs behind it, of {' and '.join(e.evidence_ops)}: {counts}")
    _note(_legend(e, here=here))


def _legend(e: Explanation, *, here: bool) -> str:
    several = ", on the machine whose runs count most there" if len(e.machines) > 1 else ""
    average = 1.0 - sum(n.share for n in e.neighbours)
    parts = [
        f"vote: share of the vote on the answer, {share(average)} is the platform average's"
        if e.voted and average > _LEAST_SHARE
        else "",
        f"answer, best: gain measured there over that pattern's own default{several}",
        "here: the answer's gain corrected for this machine, by which it votes" if here else "",
        "behind: how much slower the answer is than the best there",
        "nearer: share of measured patterns that are nearer to their own nearest neighbour",
    ]
    return "; ".join(part for part in parts if part)


def _show_machines(e: Explanation) -> None:
    """Whose runs vote, unless all are of the queried machine."""
    if len(e.machines) == 1 and e.machines[0].own:
        return
    small = [m for m in e.machines if m.share < _LEAST_SHARE and not m.own]
    for machine in (m for m in e.machines if m not in small):
        whose = " (this one)" if machine.own else ""
        _note(f"{share(machine.share)} of the vote from {machine.platform}{whose}: {machine.words}")
    if small:
        _note(f"less than 1 % each from {plural(len(small), 'other machine')}")


def _extent(n: NeighbourDetail) -> str:
    if n.named:
        kind = kind_with(n.named)
        structural = kind.structural if kind else ()
        return " x ".join(str(size) for name, size in n.named.items() if name not in structural)
    return "-" if n.nnz < 0 else f"{n.nnz:,}"


def _show_differences(e: Explanation) -> None:
    if not e.differences:
        return
    _head(
        f"where this {one_of(e.pattern.kind)} differs from its neighbours (in standard deviations)"
    )
    rows = [
        (
            _cut(feature_words(d.feature), 40),
            f"{d.deviations:+.1f}",
            feature_value(d.feature, d.query),
            feature_value(d.feature, d.neighbours),
        )
        for d in e.differences
    ]
    table(("statistic", "by", "here", "neighbours"), rows, indent="  ")


# -- simpler methods, open choices -------------------------------------------------------------


def _show_simpler(e: Explanation) -> None:
    simpler, answer = e.recommendation.insight.simpler, e.answer
    if not simpler:
        return
    by = "measured here where they ran, else " if e.measured_gain is not None else ""
    _head(f"answers of simpler methods (gain by {e.compared_by}: {by}expected)")
    rows = [("this answer", factor(e.compared_gain), "-")]
    rows += [
        (
            s.method + (f" ({factor(s.gain_there)} there)" if s.gain_there else ""),
            factor(s.expected_gain),
            "the same" if Config(s.config) == Config(answer) else change(s.config, answer),
        )
        for s in simpler
    ]
    table(("method", "gain", "what differs from the answer"), rows, indent="  ")


def change(config: Mapping[str, Any], answer: Mapping[str, Any]) -> str:
    """Parameters of a configuration that differ from the answer: `format=csr, no block`."""
    changes = differing(config, answer)
    if not changes:
        return "the answer"
    parts = [str(Config({name: value})) for name, value in changes if value is not None]
    parts += [f"no {name}" for name, value in changes if value is None]
    return _cut(", ".join(parts), _MOST_CONFIG)


def _show_agreement(e: Explanation) -> None:
    if not e.agreement or not e.neighbours:
        return
    _head("parameters that the neighbours' best configurations leave open or vote against")
    settled = [a for a in e.agreement if not (a.open or a.against)]
    rows = []
    for a in e.agreement:
        if a.open or a.against:
            votes = [f"{_cut(v, 24)} {share(w)}" for v, w in list(a.votes.items())[:_MOST_VALUES]]
            more = ", ..." if len(a.votes) > _MOST_VALUES else ""
            vote_is = "open" if a.open else "against"
            names = (_cut(a.parameter, _MOST_NAME), _cut(a.answer, 24), vote_is)
            rows.append((*names, ", ".join(votes) + more))
    if rows:
        table(("parameter", "answer", "vote is", "votes"), rows, indent="  ")
    if settled:
        shares = [f"{a.parameter} {a.answer} {share(a.votes[a.answer])}" for a in settled]
        _line("settled", ", ".join(shares))


def show_choice(recommendation: Recommendation, answer: Mapping[str, Any], kind: str) -> None:
    """Deep diagnostics: parameter effects, and for a matrix counterfactuals and the occlusion map.
    `kind` is that of the workload."""
    if not recommendation.insight.deep:
        return
    _show_effects(recommendation.insight)
    if not kind_of(kind).transfers:
        _show_moves(recommendation, answer)
        _show_attention(recommendation)


def _show_effects(insight: Diagnostics) -> None:
    if not insight.effects:
        return
    _head("effect of each parameter: best gain with this value, all others free")
    by_name: dict[str, list[str]] = {}
    for effect in insight.effects:
        cell = f"{_cut(effect.value, 24)} {factor(effect.best_gain)}"
        by_name.setdefault(_cut(effect.parameter, _MOST_NAME), []).append(cell)
    rows = [(n, ", ".join(v[:5]) + (", ..." if len(v) > 5 else "")) for n, v in by_name.items()]
    table(("parameter", "best gain by value"), rows, indent="  ")


def _show_moves(recommendation: Recommendation, answer: Mapping[str, Any]) -> None:
    _head("counterfactuals: change of one statistic that changes the answer, all others fixed")
    if recommendation.link in ("measured", "other-width"):
        _note("by neighbours and cost model alone: its own measurements are ignored")
    if not recommendation.insight.moves:
        tried = "changing one statistic by up to 3 standard deviations never changed the answer"
        unknown = "not known: there are no neighbours to compare with"
        _note(tried if recommendation.neighbours else unknown)
        return
    by_winner: dict[str, list[Counterfactual]] = {}
    for move in recommendation.insight.moves:
        by_winner.setdefault(change(move.winner, answer), []).append(move)
    for winner, moved in by_winner.items():
        _note(f"to {winner}")
        rows = [
            (
                _cut(feature_words(m.feature), 36),
                f"{feature_value(m.feature, m.start)} -> {feature_value(m.feature, m.end)}",
                f"{m.deviations:+.1f}",
            )
            for m in moved
        ]
        table(("statistic", "from -> to", "deviations"), rows, indent="    ")


def _show_attention(recommendation: Recommendation) -> None:
    side, cells = recommendation.insight.attention_side, recommendation.insight.attention
    if not side or len(cells) != side * side or not max(cells) > 0.0:
        _head("occlusion map: not known")
        _note("the structure is not stored, or too large to be occluded part by part")
        return
    most = max(cells)
    _head("occlusion map: how far the embedding moves when a part is left out")
    for row in range(side):
        part = cells[row * side : (row + 1) * side]
        shades = (_SHADES[round(c / most * (len(_SHADES) - 1))] for c in part)
        say("    |" + "".join(2 * s for s in shades) + "|")
    near = min((n.distance for n in recommendation.neighbours), default=None)
    beside = "" if near is None else f"; the nearest neighbour is {near:.3g} away"
    _note(f"'{_SHADES[-1]}' moves it by {most:.3g}{beside}")


# -- next, rejected ----------------------------------------------------------------------------


def _show_next(e: Explanation) -> None:
    recommendation, answer = e.recommendation, e.answer
    one = one_of(e.pattern.kind)
    _head(f"what to measure next on this {one}, and its expected gain over the answer")
    if e.runnable and e.measured_gain is None and recommendation.link != "measured":
        _note("first the answer and the default themselves: `embeddb query ... --measure`")
    if not recommendation.insight.next:
        has_evidence = recommendation.link != "default" or bool(e.neighbours)
        nothing = "no evidence on any other: `embeddb measure` or `embeddb tune` runs some"
        _note("no other configuration is expected to be faster" if has_evidence else nothing)
        return
    rows = [
        (
            f"+{100 * n.worth:.1f} %",
            share(n.chance) if n.chance > 0 else "-",
            f"+{100 * n.faster_by:.1f} %" if n.chance > 0 else "-",
            change(n.config, answer),
        )
        for n in recommendation.insight.next
    ]
    head = ("worth", "faster in", "then by", "what differs from the answer")
    table(head, rows, indent="  ")
    _note(
        "worth: expected gain of measuring it and taking the faster of the two: how often it is "
        "faster, times by how much. A maximum over many predictions, so biased upwards"
    )


def _show_rejected(recommendation: Recommendation) -> None:
    if not recommendation.rejected:
        return
    _head(
        f"rejected: {len(recommendation.rejected)} configurations from elsewhere are not legal here"
    )
    reasons = Counter(recommendation.rejected.values()).most_common()
    for reason, count in reasons[:_MOST_REASONS]:
        _line(f"{count:>5}", reason)
    if len(reasons) > _MOST_REASONS:
        _note(f"and {len(reasons) - _MOST_REASONS} more reasons; --json has all")


def _head(text: str) -> None:
    say()
    say(text)


def _cut(text: object, most: int) -> str:
    shown = clean(text)
    return shown if len(shown) <= most else shown[: most - 3] + "..."
