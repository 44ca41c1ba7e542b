"""`query` and `explain`: which configuration to run, how sure that is, and why."""

from __future__ import annotations

import math
import shlex
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from embeddb.cli.output import (
    Progress,
    clean,
    duration,
    emit,
    factor,
    json_option,
    note,
    say,
    table,
)
from embeddb.cli.places import known_pattern, open_database, runner_here
from embeddb.config import Config, Op
from embeddb.errors import NothingFound, RunnerUnavailable
from embeddb.explain import Explanation, explain, near_ties
from embeddb.query import Candidate, Recommendation

if TYPE_CHECKING:
    from embeddb.db import Database
    from embeddb.pattern import Pattern
    from embeddb.platform import Platform
    from embeddb.records import PatternInfo

__all__ = ["explain_verb", "query_verb"]

#: Exit code of an answer that is only the platform's default.
_NO_EVIDENCE = 3
_LINKS = {
    "measured": "measured on this very matrix",
    "other-width": "measured on this very matrix, at another width",
    "neighbours": "measured on similar matrices",
    "model": "predicted by the cost model",
    "static-best": "the platform's best fixed choice",
    "default": "the platform's default, for want of evidence",
}
#: Rounds of `--measure`: each visits the configurations in an order of its own.
_ROUNDS = 2


@click.command()
@click.argument("db")
@click.argument("matrix")
@click.option("--platform", required=True, help="Name, name@instance or TOML file.")
@click.option("--op", required=True, help="KERNEL:WIDTH, as spmm:64 or spmv.")
@click.option("-k", "count", default=5, show_default=True, type=click.IntRange(1, 1000))
@click.option("--measure", is_flag=True, help="Run the default and the answers on this machine.")
@click.option("--calls", type=click.FloatRange(1), help="Expected calls: preparation then counts.")
@click.option("--threads", default=0, type=click.IntRange(0, 1024), help="0: all there are.")
@json_option
def query_verb(db: str, matrix: str, measure: bool, as_json: bool, **asked: Any) -> int:
    """Rank configurations for MATRIX: a file, or name or id of a pattern in DB.

    Ends with code 3 if nothing but the platform's default can be said.

    \b
    Example:
      embeddb query starter A.mtx --platform cpu --op spmm:64
      embeddb query runs.db A.mtx --platform cpu --op spmm:64 -k 5 --measure --json
    """
    with open_database(db) as opened, Progress() as progress:
        op = Op.parse(asked["op"])
        platform = _here(opened, asked["platform"], asked["threads"], must_run=measure)
        started = time.perf_counter()
        pattern = known_pattern(opened, matrix)
        read_s = time.perf_counter() - started
        made = opened.query(
            pattern,
            platform=platform,
            op=op,
            count=asked["count"],
            calls=asked["calls"] or math.inf,
        )
        if measure:
            made = _measured(
                opened,
                made,
                pattern=pattern,
                platform=platform,
                threads=asked["threads"],
                progress=progress,
            )
        if made.link == "default":
            have = ", ".join(f"{what} on {scope}" for what, scope in opened.scopes()[:8])
            note(f"no evidence; there are runs of: {have or 'nothing'}")
    made = msgspec.structs.replace(made, stages_s={"read": read_s, **made.stages_s})
    if as_json:
        emit(made.document())
    else:
        _show_answer(made, pattern, db)
    return _NO_EVIDENCE if made.link == "default" else 0


def _here(db: Database, text: str, threads: int, *, must_run: bool) -> Platform:
    """The platform asked about; as this machine is, if it is to be measured or with `threads`.

    Raises: RunnerUnavailable if it must run here and cannot.
    """
    from embeddb.platform import runner_for

    platform = db.platform(text)
    if must_run:
        return runner_here(platform, threads)[1]
    if threads and platform.runner and not platform.instance:
        with suppress(RunnerUnavailable):
            found: Platform = runner_for(platform).platform(threads=threads)
            return found
    return platform


def _measured(
    db: Database,
    made: Recommendation,
    *,
    pattern: Pattern | PatternInfo,
    platform: Platform,
    threads: int,
    progress: Progress,
) -> Recommendation:
    from embeddb.pattern import Pattern
    from indexer.runners.base import RunOptions
    from tuners.loop import measure_answer

    structure = pattern if isinstance(pattern, Pattern) else db.store.structure(pattern.id)
    if structure is None:
        raise NothingFound(
            f"{pattern.name}: its structure is not in the database, so it cannot be measured",
            hint="give the matrix file",
        )
    total = _ROUNDS * len({str(Config(c)) for c in (made.default, *_configs(made))})
    done = 0

    def told(_: str) -> None:
        nonlocal done
        done += 1
        progress("measure", done, total)

    options = RunOptions(threads=threads)
    return measure_answer(
        db, made, structure, options=options, rounds=_ROUNDS, platform=platform, progress=told
    )


def _configs(made: Recommendation) -> list[dict[str, Any]]:
    return [c.config for c in made.candidates]


def _show_answer(made: Recommendation, pattern: Pattern | PatternInfo, place: str) -> None:
    say(f"{_named(pattern)}; {made.op} on {made.platform}")
    say(f"answer {made.id}: {_LINKS[made.link]} (link: {made.link}); sure: {made.confidence}")
    say(_ranked_by(made))
    say()
    measured = any(c.status for c in made.candidates)
    head = ["rank", "gain", "10..90 %", "rests on"]
    rows = [[str(n), *_row(c, made)] for n, c in enumerate(made.candidates, 1)]
    configs = _configs(made)
    if made.default not in configs:
        rows.append(["-", "1.00x", "-", "default"])
        configs.append(made.default)
    if measured:
        head += ["measured", "real gain"]
        for row, c in zip(rows, made.candidates, strict=False):
            row += _times(c, made.default_seconds)
        for row in rows[len(made.candidates) :]:
            row += [duration(made.default_seconds), factor(made.default_seconds and 1.0)]
    for row, config in zip(rows, configs, strict=True):
        row.append(str(Config(config)))
    table([*head, "configuration"], rows)
    _show_remarks(made)
    say()
    say(f"why: embeddb explain {shlex.quote(place)} {made.id}")


def _named(pattern: Pattern | PatternInfo) -> str:
    shape = getattr(pattern, "shape", None) or (pattern.m, pattern.n)  # type: ignore[union-attr]  # PatternInfo has m, n
    if min(*shape, pattern.nnz) < 0:
        return f"{pattern.name} (sizes unknown)"
    return f"{pattern.name}: {shape[0]:,} x {shape[1]:,}, {pattern.nnz:,} nonzeros"


def _ranked_by(made: Recommendation | Explanation) -> str:
    """Which tuner ranked, and the features and model behind it."""
    parts = [f"ranked by: {made.tuner}"]
    if made.featurizer and made.neighbours:
        parts.append(f"neighbours by {made.featurizer}")
    if made.model:
        parts.append(f"cost model {made.model} on {made.model_featurizer}")
    return "; ".join(parts)


def _row(c: Candidate, made: Recommendation) -> list[str]:
    known = c.gain_low is not None and c.gain_high is not None
    between = f"{factor(c.gain_low)}..{factor(c.gain_high)}" if known else "-"
    origin = "default" if c.config == made.default else c.origin
    return [factor(c.expected_gain), between, origin]


def _times(c: Candidate, default_s: float | None) -> list[str]:
    if c.seconds is None:
        return [c.status or "-", "-"]
    return [duration(c.seconds), factor(default_s / c.seconds if default_s else None)]


def _show_remarks(made: Recommendation) -> None:
    ties = near_ties(made)
    if ties:
        say(f"ranks 1 and {_ranks(made, ties)} cannot be told apart: within the measured noise")
    elif made.noise == 0 and len(made.candidates) > 1:
        say("noise is not known here (nothing was run twice): close ranks may be ties")
    for line in made.warnings:
        say(f"warning: {line}")


def _ranks(made: Recommendation, configs: list[dict[str, Any]]) -> str:
    return ", ".join(str(n) for n, c in enumerate(made.candidates, 1) if c.config in configs)


@click.command("explain")
@click.argument("db")
@click.argument("answer")
@json_option
def explain_verb(db: str, answer: str, as_json: bool) -> None:
    """Why an answer is what it is. ANSWER: its id, `last`, or a matrix file, name or id.

    Computed from DB alone: no model, no runner, no matrix file needed.

    \b
    Example:
      embeddb explain starter last
      embeddb explain runs.db r1f0c9e2ab34d --json
    """
    with open_database(db, readonly=True) as opened:
        made = _recommendation(opened, answer)
        found = explain(made, opened.store)
    if as_json:
        emit(found)
    else:
        _show_explanation(found)


def _recommendation(db: Database, text: str) -> Recommendation:
    """Raises: NothingFound if there is no such answer."""
    if db.store.recommendations.get(text) is not None:
        return db.recommendation(text)
    made = sorted(db.recommendations(), key=lambda r: r.created)
    if text != "last":
        named = db.store.find(text)
        if not (Path(text).exists() or named or any(r.pattern_id == text for r in made)):
            return db.recommendation(text)  # raises, and names those there are
        ids = {i.id for i in named} | {text}
        if Path(text).exists():
            ids = {known_pattern(db, text).id}
        made = [r for r in made if r.pattern_id in ids]
    if not made:
        what = (
            "no answer was ever given here" if text == "last" else f"{text} was never asked about"
        )
        raise NothingFound(what, hint="run `embeddb query` first")
    return made[-1]


def _show_explanation(e: Explanation) -> None:
    simulated = " (simulated: no time is of real hardware)" if e.simulated else ""
    say(f"answer {e.id}: {e.op} on {e.platform}{simulated} for {e.pattern_name or e.pattern_id}")
    say(f"  {Config(e.answer)}")
    say(f"  {_LINKS[e.link]} (link: {e.link}); sure: {e.confidence}")
    say(f"  {_ranked_by(e)}")
    gains = [("expected", e.expected_gain), ("measured", e.measured_gain)]
    said = [f"{what} {factor(gain)}" for what, gain in gains if gain is not None]
    if said:
        say(f"  gain over the default: {', '.join(said)}")
    for line in e.warnings:
        say(f"  warning: {line}")
    _show_neighbours(e)
    if e.differences:
        say()
        say("where this matrix differs from its neighbours (in standard deviations)")
        differing = [
            (d.feature, f"{d.deviations:+.1f}", f"{d.query:.4g}", f"{d.neighbours:.4g}")
            for d in e.differences
        ]
        table(("feature", "by", "here", "neighbours"), differing, indent="  ")
    if e.agreement and e.neighbours:
        say()
        say("what the neighbours' best configurations agree on")
        rows = [(a.parameter, a.answer, _votes(a.votes)) for a in e.agreement]
        table(("parameter", "answer", "votes"), rows, indent="  ")
    for config in e.near_ties:
        say(f"as good within the noise: {Config(config)}")
    _show_rejected(e)


def _show_neighbours(e: Explanation) -> None:
    if not e.neighbours:
        return
    total = sum(n.weight for n in e.neighbours)
    say()
    say("rests on")
    rows = [
        (
            n.name or n.pattern_id,
            f"{n.distance:.3g}",
            "-" if n.percentile is None else f"{100 * n.percentile:.0f}",
            f"{100 * n.weight / total:.0f} %" if total else "-",
            n.measured,
            sum(n.failed.values()),
            factor(n.answer_gain),
            factor(n.best_gain),
        )
        for n in e.neighbours
    ]
    head = ("neighbour", "distance", "percentile", "vote", "configs", "failed")
    table((*head, "the answer there", "best there"), rows, indent="  ")
    say("  runs behind it: " + ", ".join(f"{n:,} {s}" for s, n in e.evidence.items()))


def _votes(votes: dict[str, float], most: int = 3) -> str:
    shown = [f"{clean(v)} {100 * w:.0f} %" for v, w in list(votes.items())[:most]]
    return ", ".join(shown) + (", ..." if len(votes) > most else "")


def _show_rejected(e: Explanation, most: int = 5) -> None:
    if not e.rejected:
        return
    say()
    say(f"not legal for this matrix, though measured elsewhere: {len(e.rejected)}")
    for config, reason in list(e.rejected.items())[:most]:
        say(f"  {config}: {reason}")
