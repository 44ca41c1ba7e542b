"""`query`: which configuration to run, and how sure that is."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from embeddb.core.config import Config, Op
from embeddb.core.errors import UsageError
from embeddb.core.wording import duration, factor
from embeddb.explain.explain import near_ties, novelty
from embeddb.explain.explanation import link_words, preparation
from embeddb.ranking.order_reason import order_notes
from embeddb.ranking.recommendation import Recommendation
from embeddb.ui.cli.arguments import (
    Number,
    count_first,
    defined,
    known_subjects,
    matrices_held,
    op_option,
    open_database,
    platform_asked,
    platform_option,
    program_options,
    threads_option,
)
from embeddb.ui.cli.coverage_text import show_what_there_is
from embeddb.ui.cli.explain_text import ranked_by, show_choice
from embeddb.ui.cli.kernel_text import fused_seconds, show_fused_seconds, show_occluded
from embeddb.ui.cli.nest_text import emit_program, emit_schedules
from embeddb.ui.cli.output import Progress, emit, json_option, say, table
from embeddb.ui.cli.tune_text import NO_PLAN_FOR_XLA
from embeddb.ui.views import Ranking, subject_line
from indexer.resolve import is_file

if TYPE_CHECKING:
    from embeddb.core.records import WorkloadInfo
    from embeddb.core.workload import Workload
    from embeddb.database import Database
    from embeddb.platforms.platform import Platform

#: Exit code of an answer that is only the platform's default.
_NO_EVIDENCE = 3


@click.command()
@click.argument("db")
@click.argument("matrix")
@platform_option
@op_option
@click.option("-k", "count", default=5, show_default=True, type=click.IntRange(1, 1000))
@click.option("--measure", is_flag=True, help="Run the default and the answers on this machine.")
@click.option("--count", "counted", is_flag=True, help="Count a nest first, on this machine.")
@click.option("--tuner", default="", help="Ask this tuner plug-in in place of the database.")
@click.option("--why", "deep", is_flag=True, help="Also find out what would change the answer.")
@click.option("--calls", type=Number(1), help="Expected calls: preparation then counts.")
@click.option("--reproducible", is_flag=True, help="No sums whose order varies between runs.")
@click.option("--exact", is_flag=True, help="No operands rounded to a shorter type.")
@threads_option
@program_options()
@click.option("--emit", "emit_to", default="", metavar="FILE.c", help="Write nests' answers as C.")
@json_option
def query_verb(db: str, matrix: str, measure: bool, as_json: bool, **asked: Any) -> int:
    """Rank configurations for MATRIX: a file, or name or id of a pattern in DB.

    With --op nest it is a program (.c with #pragma scop, .sdfg, .json) or the name of a nest; each
    nest of a program is answered by itself. --emit writes a C program again, with its scops so
    scheduled; a nest from elsewhere becomes a program that times it. --count counts first what a
    nest does, so that neighbours can be found by that too.

    Ends with code 3 if nothing but the platform's default can be said. --why takes seconds; what
    it finds stays with the answer, for `embeddb explain`.

    \b
    Example:
      embeddb query starter A.mtx --platform cpu --op spmm:64
      embeddb query runs.db A.mtx --platform cpu --op spmm:64 -k 5 --measure --json
      embeddb query starter A.mtx --platform cpu --op spmm:64 --why
      embeddb query starter A.mtx --platform cpu --op spmv --calls 100 --reproducible
      embeddb query runs.db A.mtx --platform cpu --op spmm:64 --tuner mine --measure
      embeddb query nests.db gemm.c --platform nest-cpu --op nest -D N=512 --emit schedule.c
      embeddb query tensors.db mlp/0 --platform tile-cpu --op tile -k 10
    """
    if asked["tuner"] and asked["deep"]:
        raise UsageError("--why is about the database's own answers, not those of a --tuner")
    with open_database(db) as opened, Progress() as progress:
        op = Op.parse(asked["op"])
        runs = measure or asked["counted"]
        platform = platform_asked(opened, asked["platform"], asked["threads"], must_run=runs)
        started = time.perf_counter()
        subjects = known_subjects(opened, matrix, op, asked["defines"], asked["held"])
        read_s = (time.perf_counter() - started) / len(subjects)
        if asked["counted"]:
            count_first(opened, subjects, platform, asked["threads"], progress)
        answers = []
        for subject in subjects:
            made = _answered(opened, subject, platform, op, measure, asked, progress)
            answers.append(
                msgspec.structs.replace(made, stages_s={"read": read_s, **made.stages_s})
            )
        if any(made.link == "default" for made in answers):
            show_what_there_is(opened.index, platform, op)
        took = [fused_seconds(opened, subject, op) for subject in subjects]
        if asked["emit_to"]:
            _emit(opened, matrix, subjects, answers, asked)
    if as_json:
        documents = [
            made.document() | ({"seconds": [asdict(one) for one in known]} if known else {})
            for made, known in zip(answers, took, strict=True)
        ]
        emit(documents if len(documents) > 1 else documents[0])
    else:
        for made, subject, known in zip(answers, subjects, took, strict=True):
            _show_answer(made, subject, db)
            show_fused_seconds(known)
    return _NO_EVIDENCE if all(made.link == "default" for made in answers) else 0


def _emit(
    db: Database,
    text: str,
    subjects: Sequence[Workload | WorkloadInfo],
    answers: Sequence[Recommendation],
    asked: Mapping[str, Any],
) -> None:
    """A C file with its nests in place, any other nests each as a program of its own."""
    if Path(text).suffix.lower() == ".c" and is_file(text):
        (matrix,) = matrices_held([asked["held"]] if asked["held"] else [])
        defines = defined(asked["defines"])
        emit_program(text, answers, asked["emit_to"], defines=defines, matrix=matrix)
    else:
        emit_schedules(db, subjects, answers, asked["emit_to"])


def _answered(
    db: Database,
    subject: Workload | WorkloadInfo,
    platform: Platform,
    op: Op,
    measure: bool,
    asked: Mapping[str, Any],
    progress: Progress,
) -> Recommendation:
    made = db.query(
        subject,
        platform=platform,
        op=op,
        k=asked["count"],
        calls=asked["calls"] or math.inf,
        reproducible=asked["reproducible"],
        exact=asked["exact"],
        tuner=asked["tuner"],
        why=asked["deep"] and not measure,
        progress=progress,
    )
    return _measured(db, made, subject, platform, asked, progress) if measure else made


def _measured(
    db: Database,
    made: Recommendation,
    pattern: Workload | WorkloadInfo,
    platform: Platform,
    asked: Mapping[str, Any],
    progress: Progress,
) -> Recommendation:
    from indexer.runners.base import RunOptions

    options = RunOptions(threads=asked["threads"])
    return db.measure(
        made,
        pattern,
        platform=platform,
        options=options,
        k=asked["count"],
        why=asked["deep"],
        progress=progress,
    )


def _show_answer(made: Recommendation, pattern: Workload | WorkloadInfo, place: str) -> None:
    say(f"{subject_line(pattern.name, pattern.sizes)}; {made.op} on {made.platform}")
    measured = any(c.status for c in made.candidates)
    link = link_words(made.link, pattern.kind, then_measured=measured)
    sure = f"{made.confidence}{' before that' if measured and made.link != 'measured' else ''}"
    say(f"answer {made.id}: {link} (link: {made.link}); sure: {sure}")
    say(f"ranked by: {ranked_by(made)}")
    if made.counters_words:
        say(f"counters: {made.counters_words}")
    say(f"novelty: {novelty(made)}")
    if made.simulated:
        say("SIMULATED or modelled: no time here is of real hardware")
    say()
    _show_ranking(made)
    _show_remarks(made)
    if made.candidates:
        near = min((n.distance for n in made.neighbours), default=None)
        answer, kind = made.candidates[0].config, pattern.kind
        show_choice(made.insight, answer, link=made.link, nearest=near, kind=kind)
        show_occluded(made.insight, made.kernel)
    if made.op == "fusion":
        say(NO_PLAN_FOR_XLA)
    say()
    say(f"why: embeddb explain {shlex.quote(place)} {made.id}")


def _show_ranking(made: Recommendation) -> None:
    ranking = Ranking.of(made)
    head = ["rank", "gain", "10..90 %", "rests on"]
    head += ["fails"] if ranking.fails else []
    head += ["pays off"] if ranking.pays_off else []
    head += ["measured", "real gain"] if ranking.measured else []
    rows = []
    for row in (*ranking.rows, *ranking.last):
        known = row.low is not None and row.high is not None
        between = f"{factor(row.low)}..{factor(row.high)}" if known else "-"
        cells: list[object] = [row.rank, factor(row.gain), between, row.rests_on]
        cells += [row.fails] if ranking.fails else []
        cells += [row.pays_off] if ranking.pays_off else []
        if ranking.measured:
            took = row.status if row.seconds is None else duration(row.seconds, made.time_unit)
            cells += [took, factor(row.measured_gain)]
        rows.append((*cells, str(Config(row.config))))
    table([*head, "configuration"], rows)


def _show_remarks(made: Recommendation) -> None:
    measured = any(c.seconds is not None for c in made.candidates)
    say(preparation(made.calls, measured=measured, kind=Op.parse(made.op).kind))
    for note in order_notes(made.candidates):
        say(note)
    if any(c.break_even_calls for c in made.candidates):
        say("pays off: the number of calls after which preparing it has been made up for")
    if made.reproducible:
        say("configurations whose sums run in varying order are left out")
    if made.exact:
        say("configurations that round operands to a shorter type are left out")
    ties = near_ties(made)
    if ties:
        why = "within the measured noise" if made.noise > 0 else "no difference is known"
        if made.simulated and made.candidates[0].seconds is not None:
            why = "exactly the same time"
        say(f"ranks 1 and {_ranks(made, ties)} cannot be told apart: {why}")
    elif made.noise == 0 and len(made.candidates) > 1 and not made.simulated:
        say("noise is not known here: close ranks may be ties")
    for line in made.warnings:
        say(f"warning: {line}")


def _ranks(made: Recommendation, configs: list[dict[str, Any]]) -> str:
    return ", ".join(str(n) for n, c in enumerate(made.candidates, 1) if c.config in configs)
