"""An explanation as text: the answer and how sure, novelty, evidence, what simpler methods say,
where the choice is open, what to measure next, what was rejected."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Mapping
from typing import Any

from embeddb.core.config import Config
from embeddb.core.kinds import kind_of, kind_with
from embeddb.core.wording import clean, duration, factor, one_of, plural, share, when
from embeddb.explain.explanation import (
    Explanation,
    NeighbourEvidence,
    OwnRuns,
)
from embeddb.ranking.recommendation import Counterfactual, Diagnostics, Recommendation
from embeddb.ui.cli.kernel_text import show_occluded
from embeddb.ui.cli.nest_text import show_transfers
from embeddb.ui.cli.output import say, table
from embeddb.ui.feature_words import feature_value, feature_words
from embeddb.ui.views import differing, each_source, subject_line, whose_runs

_WIDTH = 98
#: Characters of a name, and of a configuration, that a table shows: both come from strangers.
_MOST_NAME, _MOST_CONFIG, _MOST_LINE = 22, 400, 2000
#: Values of a parameter, and reasons of rejection, that are told.
_MOST_VALUES, _MOST_REASONS = 4, 5
#: From nothing to most, by how far a part of the pattern moves it.
_SHADES = " .:-=+*#%@"


def show_explanation(e: Explanation) -> None:
    _show_answer(e)
    show_transfers(e)
    _show_quantities(e)
    _show_neighbours(e)
    _show_differences(e)
    _show_simpler(e)
    _show_agreement(e)
    near = min((n.distance for n in e.neighbours), default=None)
    made = e.recommendation
    show_choice(made.insight, e.answer, link=made.link, nearest=near, kind=e.pattern.kind)
    show_occluded(made.insight, e.pattern.kernel)
    _show_next(e)
    _show_rejected(made)


def _show_quantities(e: Explanation) -> None:
    """The derived quantities that differ between the answer and the default."""
    rows = [
        (_cut(q.name, _MOST_NAME), q.answer_text, q.default_text, _cut(q.meaning, _MOST_LINE))
        for q in e.quantities
        if q.answer != q.default
    ]
    if rows:
        say("derived quantities in which the answer differs from the default:")
        table(("quantity", "answer", "default", "meaning"), rows, indent="  ")


# -- the answer and how sure -------------------------------------------------------------------


def _show_answer(e: Explanation) -> None:
    made, answer = e.recommendation, e.answer
    say(f"answer {made.id}: {made.op} on {_cut(made.platform, 60)}")
    if e.machine:
        _line("machine", e.machine)
    if made.simulated:
        _note("SIMULATED or modelled: no time here is of real hardware")
    _line("why", e.why)
    say(f"  {_cut(Config(answer), _MOST_LINE)}")
    _line(e.pattern.kind, subject_line(_cut(made.subject, 40), e.pattern.sizes))
    for name, line in e.meaning.items():
        say(f"    {_cut(name, _MOST_NAME)}: {_cut(line, _MOST_LINE)}")
    _line("default", Config(made.default))
    _line("gain", _gain(e))
    for own in e.own:
        what = "default" if Config(own.config) == Config(made.default) else "answer"
        _line("ran", f"{what}: {_ran(own, made.time_unit)}")
    if e.sessions:
        _line("apart", e.sessions)
    _line("counted", e.preparation)
    if made.first is not None and made.first.failure is not None:
        seen = f", it failed on {made.first.failed_on} of {made.first.tried_on} measured patterns"
        chance = f"with a chance of {100 * made.first.failure:.0f} %"
        _line("fails", chance + (seen if made.first.tried_on else ""))
    if made.first is not None and made.first.break_even_calls is not None:
        _line("pays", _paid_off(made.first.break_even_calls))
    before = " before it was measured" if e.then_measured else ""
    _line("sure", f"{made.confidence}{before}; {e.link_words} (link: {made.link})")
    for text in made.warnings:
        _line("warning", text)
    _line("novelty", e.novelty or "not known")
    _note(f"ranked by: {ranked_by(made)}")
    if made.counters_words:
        _note(f"counters: {made.counters_words}")
    if made.model:
        _line(
            "learned",
            e.learned.training_summary if e.learned else "not known: it was not registered",
        )
    _line("asked", f"{when(made.created)}; the database was at generation {made.generation}")
    if len(e.near_ties):
        many = [change(config, answer) for config in e.near_ties]
        _line("as good", f"{e.as_good}, with {'; or '.join(many[:3])}")


def _paid_off(calls: float) -> str:
    if calls == 0:
        return "off at once: there is nothing to prepare"
    return f"off after {plural(math.ceil(calls), 'call')}: then preparing it has been made up for"


def _ran(own: OwnRuns, unit: str) -> str:
    """How fast, how evenly, how often, when: `41 us, 40 us to 42 us; 3 runs, 15 repeats in all`."""
    told = duration(own.seconds, unit)
    if own.times > 1:
        told += f", {duration(own.fastest, unit)} to {duration(own.slowest, unit)}"
    told += f"; {plural(own.runs, 'run')}, {plural(own.times, 'repeat')} in all"
    if own.last > 0.0:
        days = sorted({when(own.first)[:10], when(own.last)[:10]})
        told += f", {' to '.join(days)}"
    return "; ".join([told, ", ".join(own.sources), *each_source(own.provenance)])


def _line(head: str, text: object) -> None:
    """Wrapped behind its heading; a configuration stays whole, to be copied."""
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
            said = f"not known: the default fails on this {one}"
            return said if e.expected_gain is None else f"{said}; by its neighbours {expected}"
        if e.expected_gain is None:
            return "not known: what the default takes was never measured"
        return f"{expected} over the default, expected; not measured on this {one}"
    took = first.seconds if first else None
    said = f"{factor(e.measured_gain)} over the default, measured on this {one}: "
    made = e.recommendation
    said += (
        f"{duration(took, made.time_unit)} against {duration(made.default_seconds, made.time_unit)}"
    )
    if e.within_interval is None:
        return said
    return (
        f"{said}; expected {expected}: {'inside' if e.within_interval else 'OUTSIDE'} the interval"
    )


def ranked_by(made: Recommendation) -> str:
    """Which tuner ranked, and the features and model behind it."""
    parts = [made.tuner]
    if made.found_by:
        parts.append(f"neighbours by {made.found_by}")
    if made.model:
        parts.append(f"cost model {made.model} on {made.model_featurizer}")
    return "; ".join(parts)


# -- evidence ----------------------------------------------------------------------------------


def _show_neighbours(e: Explanation) -> None:
    made = e.recommendation
    rests = e.rests or "measured patterns near it"
    _head(rests if e.voted or not e.neighbours else f"{rests}; {e.beside}")
    if not e.neighbours:
        _note("none: no neighbours were looked up")
        return
    total, pushed = sum(n.weight for n in e.neighbours), any(n.provenance for n in e.neighbours)
    rows = [
        (
            _cut(n.name or n.pattern_id, _MOST_NAME),
            _extent(n),
            "0 (same)" if n.pattern_id == made.pattern_id else f"{n.distance:.3g}",
            "-" if n.percentile is None else share(n.percentile),
            *([share(n.weight / total) if total else "-"] if e.voted else []),
            n.measured,
            sum(n.failed.values()),
            factor(n.answer_gain),
            factor(n.best_gain),
            _behind(n),
            *([_cut(whose_runs(n.provenance), 40)] if pushed else []),
        )
        for n in e.neighbours
    ]
    head = [
        "pattern",
        kind_of(e.pattern.kind).extent,
        "distance",
        "nearer",
        *(["vote"] if e.voted else []),
    ]
    by = ["whose runs"] if pushed else []
    table((*head, "configs", "failed", "answer", "best", "behind", *by), rows, indent="  ")
    for line in each_source(p for n in e.neighbours for p in n.provenance):
        _note(line)
    for machine in e.machines if len(e.machines) > 1 or not all(m.own for m in e.machines) else ():
        whose = " (this one)" if machine.own else ""
        _note(f"{share(machine.share)} of it from {machine.platform}{whose}: {machine.words}")
    counts = ", ".join(f"{n:,} {s}" for s, n in e.evidence.items()) or "none is left"
    _note(f"runs behind it, of {' and '.join(e.evidence_ops)}: {counts}")
    _note(
        "answer, best: gain there over that pattern's own default, on the machine whose runs count "
        "most there; behind: how much slower the answer is than the best there. nearer: share of "
        "measured patterns with a nearer neighbour"
    )


def _extent(n: NeighbourEvidence) -> str:
    if n.named:
        kind = kind_with(n.named)
        structural = kind.structural if kind else ()
        return " x ".join(str(size) for name, size in n.named.items() if name not in structural)
    return "-" if n.nnz < 0 else f"{n.nnz:,}"


def _behind(n: NeighbourEvidence) -> str:
    """How much slower the answer is there than the best."""
    if n.answer_at is None:
        return "not run"
    return f"{100 * (n.ratios[n.answer_at] - 1):.0f} %"


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
    _head(f"what simpler methods would have said (gain by the same evidence: {by}expected)")
    rows = [("this answer", factor(e.compared_gain), "-")]
    rows += [
        (
            s.method + (f" (ran {factor(s.gain_there)} there)" if s.gain_there else ""),
            factor(s.expected_gain),
            "the same" if Config(s.config) == Config(answer) else change(s.config, answer),
        )
        for s in simpler
    ]
    table(("method", "gain", "what differs from the answer"), rows, indent="  ")


def change(config: Mapping[str, Any], answer: Mapping[str, Any]) -> str:
    """What of a configuration is not as in the answer: `format=csr, no block`."""
    changes = differing(config, answer)
    if not changes:
        return "the answer"
    said = [str(Config({name: value})) for name, value in changes if value is not None]
    said += [f"no {name}" for name, value in changes if value is None]
    return _cut(", ".join(said), _MOST_CONFIG)


def _show_agreement(e: Explanation) -> None:
    if not e.agreement or not e.neighbours:
        return
    _head("where the choice is open: how the neighbours' best configurations vote")
    settled = [a for a in e.agreement if not (a.open or a.against)]
    rows = [
        (
            _cut(a.parameter, _MOST_NAME),
            _cut(a.answer, 24),
            "open" if a.open else "against",
            _votes(a.votes),
        )
        for a in e.agreement
        if a not in settled
    ]
    if rows:
        table(("parameter", "answer", "vote is", "votes"), rows, indent="  ")
    if settled:
        said = [f"{a.parameter} {a.answer} {share(a.votes[a.answer])}" for a in settled]
        _line("settled", ", ".join(said))


def _votes(votes: Mapping[str, float]) -> str:
    ranked = list(votes.items())
    shown = [f"{_cut(v, 24)} {share(w)}" for v, w in ranked[:_MOST_VALUES]]
    return ", ".join(shown) + (", ..." if len(ranked) > _MOST_VALUES else "")


def show_choice(
    insight: Diagnostics,
    answer: Mapping[str, Any],
    *,
    link: str,
    nearest: float | None,
    kind: str = "matrix",
) -> None:
    """What was found out by looking deeper: effects, and of a matrix moves and attention. `nearest`
    is how far the nearest neighbour is."""
    if not insight.deep:
        return
    _show_effects(insight)
    if not kind_of(kind).transfers:
        _show_moves(insight, answer, link, neighbours=nearest is not None)
        _show_attention(insight, nearest)


def _show_effects(insight: Diagnostics) -> None:
    if not insight.effects:
        return
    _head("what each parameter is worth here: best gain with this value, all others free")
    by_name: dict[str, list[str]] = {}
    for effect in insight.effects:
        told = f"{_cut(effect.value, 24)} {factor(effect.best_gain)}"
        by_name.setdefault(_cut(effect.parameter, _MOST_NAME), []).append(told)
    rows = [(n, ", ".join(v[:5]) + (", ..." if len(v) > 5 else "")) for n, v in by_name.items()]
    table(("parameter", "best gain by value"), rows, indent="  ")


def _show_moves(
    insight: Diagnostics, answer: Mapping[str, Any], link: str, *, neighbours: bool
) -> None:
    _head("what would change the answer: one statistic moved, all others kept")
    if link in ("measured", "other-width"):
        _note("as neighbours and cost model alone would say: its own measurements are left aside")
    if not insight.moves:
        tried = "changing one statistic by up to 3 standard deviations never changed the answer"
        _note(tried if neighbours else "not known: there are no neighbours to compare with")
        return
    by_winner: dict[str, list[Counterfactual]] = {}
    for move in insight.moves:
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


def _show_attention(insight: Diagnostics, nearest: float | None) -> None:
    side, cells = insight.attention_side, insight.attention
    if not side or len(cells) != side * side or not max(cells) > 0.0:
        _head("which part of the pattern counts: not known")
        _note("its structure is not at hand, or it is too large to be looked at piece by piece")
        return
    most = max(cells)
    _head("which part of the pattern counts: how far it moves when that part is left out")
    for row in range(side):
        part = cells[row * side : (row + 1) * side]
        shades = (_SHADES[round(c / most * (len(_SHADES) - 1))] for c in part)
        say("    |" + "".join(2 * s for s in shades) + "|")
    beside = "" if nearest is None else f"; the nearest neighbour is {nearest:.3g} away"
    _note(f"'{_SHADES[-1]}' moves it by {most:.3g}{beside}")


# -- next, rejected ----------------------------------------------------------------------------


def _show_next(e: Explanation) -> None:
    made, answer = e.recommendation, e.answer
    one = one_of(e.pattern.kind)
    _head(f"what to measure next on this {one}, and what it could gain over the answer")
    if e.runnable and e.measured_gain is None and made.link != "measured":
        _note("first the answer and the default themselves: `embeddb query ... --measure`")
    if not made.insight.next:
        told = made.link != "default" or bool(e.neighbours)
        nothing = "nothing is known of any other: `embeddb measure` or `embeddb tune` runs some"
        _note("nothing else that is known of is expected to be faster" if told else nothing)
        return
    rows = [
        (
            f"+{100 * n.worth:.1f} %",
            share(n.chance) if n.chance > 0 else "-",
            f"+{100 * n.faster_by:.1f} %" if n.chance > 0 else "-",
            change(n.config, answer),
        )
        for n in made.insight.next
    ]
    head = ("worth", "faster in", "then by", "what differs from the answer")
    table(head, rows, indent="  ")
    _note(
        "worth: what measuring it and then taking the faster of the two gains on average: how "
        "often it is the faster, times by how much. The best of many guesses: rather less than more"
    )


def _show_rejected(made: Recommendation) -> None:
    if not made.rejected:
        return
    _head(f"rejected: {len(made.rejected)} configurations measured elsewhere are not legal here")
    reasons = Counter(made.rejected.values()).most_common()
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
