"""`query`: ranked configurations with confidence."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from embeddb.core.config import Config, Op
from embeddb.core.errors import RunnerUnavailable, UsageError
from embeddb.core.wording import duration, factor, many_of
from embeddb.explain.explain import near_ties, novelty
from embeddb.explain.explanation import link_words, preparation
from embeddb.index.lookup import Lookup
from embeddb.index.scopes import scope_of
from embeddb.platforms.platform import Platform, platform_here, runner_for
from embeddb.ranking.order_reason import rank_notes
from embeddb.ranking.recommendation import Recommendation
from embeddb.ui.cli import option
from embeddb.ui.cli.arguments import (
    count_nests,
    defined,
    open_database,
    read_matrices,
    resolve_workloads,
    runner_here,
)
from embeddb.ui.cli.explain_text import ranked_by, show_choice
from embeddb.ui.cli.output import Progress, emit, note, say, table
from embeddb.ui.cli.workload_text import (
    NO_PLAN_FOR_XLA,
    emit_program,
    emit_schedules,
    fused_seconds,
    show_fused_seconds,
    show_occluded,
)
from embeddb.ui.views import Ranking, subject_line
from indexer.resolve import is_file

if TYPE_CHECKING:
    from embeddb.core.records import WorkloadInfo
    from embeddb.core.workload import Workload
    from embeddb.database import Database

#: Exit code if the only answer is the platform's default.
_NO_EVIDENCE = 3


@option.verb()
@click.argument("db")
@click.argument("matrix")
@option.text("--platform", help="Name, name@instance or TOML file.  [required]")
@option.op
@option.number("-k", "count", default=5, least=1, most=1000)
@option.flag("--measure", help="Also run the default and the ranked configurations here.")
@option.flag("--count", "counted", help="First count hardware events of a nest on this machine.")
@option.text("--tuner", help="Use this tuner plug-in instead of the database.")
@option.featurizer
@option.flag("--why", "deep", help="Also compute deep diagnostics, such as counterfactuals.")
@option.decimal(
    "--calls",
    within=option.Number(1),
    help="Expected calls, over which the conversion is amortised.",
)
@option.flag("--reproducible", help="Exclude configurations whose summation order varies.")
@option.flag("--exact", help="Exclude configurations with lower-precision operands.")
@option.threads
@option.programs()
@option.text("--emit", "emit_to", metavar="FILE.c", help="Write the answers of nests as C.")
def query_verb(db: str, matrix: str, measure: bool, as_json: bool, **options: Any) -> int:
    """Rank configurations for MATRIX: a file, or the name or id of a pattern in DB.

    With --op nest it is a program (.c with #pragma scop, .sdfg, .json) or the name of a nest; each
    nest of a program gets its own answer. --emit writes the C program with its scops scheduled; a
    nest from another source becomes a program that times it. --count first counts the hardware
    events of a nest, so that neighbours can be searched by counters too.

    Ends with code 3 if the only answer is the platform's default. --why takes seconds; its
    diagnostics are stored with the answer, for `embeddb explain`.

    \b
    Example:
      embeddb query starter A.mtx --platform cpu --op spmm:64
      embeddb query runs.db A.mtx --platform cpu --op spmm:64 -k 5 --measure --json
      embeddb query starter A.mtx --platform cpu --op spmm:64 --why
      embeddb query starter A.mtx --platform cpu --op spmv --calls 100 --reproducible
      embeddb query runs.db A.mtx --platform cpu --op spmm:64 --tuner mine --measure
      embeddb query starter A.mtx --platform cpu --op spmm:64 --featurizer scnn
      embeddb query nests.db gemm.c --platform nest-cpu --op nest -D N=512 --emit schedule.c
      embeddb query tensors.db perceptron.small/0 --platform tile-cpu --op tile -k 10
    """
    if options["tuner"] and options["deep"]:
        raise UsageError("--why does not go with --tuner: it explains answers of the database")
    with open_database(db) as opened, Progress() as progress:
        if options["featurizer"]:
            opened = opened.by_featurizer(options["featurizer"])
        op = Op.parse(options["op"])
        runs = measure or options["counted"]
        platform = _platform(opened, options, must_run=runs)
        started = time.perf_counter()
        subjects = resolve_workloads(
            opened, matrix, op, options["defines"], options["index_matrix"]
        )
        read_s = (time.perf_counter() - started) / len(subjects)
        if options["counted"]:
            count_nests(opened, subjects, platform, options["threads"], progress)
        answers = []
        for subject in subjects:
            answer = _answered(opened, subject, platform, op, measure, options, progress)
            stages_s = {"read": read_s, **answer.stages_s}
            answers.append(msgspec.structs.replace(answer, stages_s=stages_s))
        if any(answer.link == "default" for answer in answers):
            _show_available(opened.index, platform, op)
        took = [fused_seconds(opened, subject, op) for subject in subjects]
        stored = {a.id for a in answers if opened.store.recommendations.get(a.id) is not None}
        if (out := options["emit_to"]) and Path(matrix).suffix.lower() == ".c" and is_file(matrix):
            with_index = [options["index_matrix"]] if options["index_matrix"] else []
            pattern, defines = read_matrices(with_index)[0], defined(options["defines"])
            emit_program(matrix, answers, out, defines=defines, matrix=pattern)
        elif out:
            emit_schedules(opened, subjects, answers, out)
    if as_json:
        documents = [
            answer.document() | ({"seconds": [asdict(one) for one in seconds]} if seconds else {})
            for answer, seconds in zip(answers, took, strict=True)
        ]
        emit(documents if len(documents) > 1 else documents[0])
    else:
        for answer, subject, timings in zip(answers, subjects, took, strict=True):
            _show_answer(answer, subject, db if answer.id in stored else "")
            show_fused_seconds(timings)
        if measure and any(answer.simulated for answer in answers):
            say("simulated: configurations measured before did not run again")
    return _NO_EVIDENCE if all(answer.link == "default" for answer in answers) else 0


def _platform(db: Database, options: Mapping[str, Any], *, must_run: bool) -> Platform:
    """The queried platform; with `must_run` or --threads, as this machine instantiates it. Raises:
    UsageError, naming those with runs, if none is given; RunnerUnavailable if it must run here and
    cannot."""
    if not options["platform"]:
        have = ", ".join(dict.fromkeys(scope for _, scope in db.index.scopes())) or "none"
        raise UsageError("--platform is missing", hint=f"platforms with runs here: {have}")
    platform, threads = db.platform(options["platform"]), options["threads"]
    if must_run:
        return runner_here(platform, threads)[1]
    if threads and platform.runner and not platform.instance:
        with suppress(RunnerUnavailable):
            return platform_here(runner_for(platform), threads=threads, facts=False)
    return platform


def _answered(
    db: Database,
    subject: Workload | WorkloadInfo,
    platform: Platform,
    op: Op,
    measure: bool,
    options: Mapping[str, Any],
    progress: Progress,
) -> Recommendation:
    common: dict[str, Any] = {"platform": platform, "k": options["count"], "progress": progress}
    answer = db.query(
        subject,
        op=op,
        calls=options["calls"] or math.inf,
        reproducible=options["reproducible"],
        exact=options["exact"],
        tuner=options["tuner"],
        why=options["deep"] and not measure,
        **common,
    )
    if not measure:
        return answer
    from indexer.runners.base import RunOptions

    run_options = RunOptions(threads=options["threads"])
    return db.measure(answer, subject, options=run_options, why=options["deep"], **common)


def _show_answer(
    recommendation: Recommendation, pattern: Workload | WorkloadInfo, place: str
) -> None:
    """Print an answer that is stored in the database `place`; empty if it is not stored."""
    say(
        f"{subject_line(pattern.name, pattern.sizes)}; "
        f"{recommendation.op} on {recommendation.platform}"
    )
    measured = any(c.status for c in recommendation.candidates)
    link = link_words(recommendation.link, pattern.kind, then_measured=measured)
    before = " before that" if measured and recommendation.link != "measured" else ""
    sure = f"{recommendation.confidence}{before}"
    say(f"answer {recommendation.id}: {link} (link: {recommendation.link}); sure: {sure}")
    say(f"ranked by: {ranked_by(recommendation)}")
    if recommendation.counters_words:
        say(f"counters: {recommendation.counters_words}")
    say(f"novelty: {novelty(recommendation)}")
    if recommendation.simulated:
        say("SIMULATED or modelled: no time here is of real hardware")
    say()
    _show_ranking(recommendation)
    _show_remarks(recommendation)
    if recommendation.candidates:
        show_choice(recommendation, recommendation.candidates[0].config, pattern.kind)
        show_occluded(recommendation.insight, recommendation.kernel)
    if recommendation.op == "fusion":
        say(NO_PLAN_FOR_XLA)
    say()
    stored = f"embeddb explain {shlex.quote(place)} {recommendation.id}"
    say(f"why: {stored if place else 'the same query with --why, since the answer is not stored'}")


def _show_ranking(recommendation: Recommendation) -> None:
    ranking = Ranking.of(recommendation)
    head = ["rank", "gain", "10..90 %", "rests on"]
    head += ["fails"] if ranking.fails else []
    head += ["pays off"] if ranking.pays_off else []
    head += ["measured", "real gain"] if ranking.measured else []
    rows = []
    for row in ranking.every:
        has_interval = row.low is not None and row.high is not None
        between = f"{factor(row.low)}..{factor(row.high)}" if has_interval else "-"
        cells: list[object] = [row.rank, factor(row.gain), between, row.rests_on]
        cells += [row.fails] if ranking.fails else []
        cells += [row.pays_off] if ranking.pays_off else []
        if ranking.measured:
            unit = recommendation.time_unit
            took = row.status if row.seconds is None else duration(row.seconds, unit)
            cells += [took, factor(row.measured_gain)]
        rows.append((*cells, str(Config(row.config))))
    table([*head, "configuration"], rows)


def _show_remarks(recommendation: Recommendation) -> None:
    measured = any(c.seconds is not None for c in recommendation.candidates)
    say(preparation(recommendation.calls, measured=measured, kind=Op.parse(recommendation.op).kind))
    for line in rank_notes(recommendation.candidates):
        say(line)
    if any(c.break_even_calls for c in recommendation.candidates):
        say("pays off: calls needed to amortise the conversion")
    if recommendation.reproducible:
        say("configurations with a varying summation order are excluded")
    if recommendation.exact:
        say("configurations with lower-precision operands are excluded")
    ties = near_ties(recommendation)
    if ties:
        noisy = recommendation.noise > 0
        why = "within the measured noise" if noisy else "no evidence of a difference"
        if recommendation.simulated and recommendation.candidates[0].seconds is not None:
            why = "exactly the same time"
        ranked = enumerate(recommendation.candidates, 1)
        ranks = ", ".join(str(rank) for rank, c in ranked if c.config in ties)
        say(f"ranks 1 and {ranks} are tied: {why}")
    elif (
        recommendation.noise == 0
        and len(recommendation.candidates) > 1
        and not recommendation.simulated
    ):
        say("noise unknown here: close ranks may be ties")
    for line in recommendation.warnings:
        say(f"warning: {line}")


def _show_available(db: Lookup, platform: Platform, op: Op) -> None:
    """After a query without evidence: the scopes that have runs, and how runs of another instance
    could be used."""
    scopes = db.scopes()
    makes = "`embeddb index` reads some, `embeddb measure` makes some"
    makes += f", {op.workload.measures} those of many" if op.workload.measures else ""
    if not op.workload.embedded:
        searched = f"`embeddb tune DB PROGRAM --op {op}` searches for a fusion plan"
        note(f"programs are not compared with each other: {searched}")
    elif (op, scope := scope_of(platform)) in scopes:
        note(
            f"there are runs of {op} on {scope}, of too few {many_of(op.kind)} that can be "
            f"compared with this one; {makes}"
        )
    elif scopes:
        have = ", ".join(f"{what} on {scope}" for what, scope in scopes[:8])
        note(f"no evidence for {op} on {platform.id}; there are runs of: {have}; {makes}")
    else:
        note(f"no evidence: there are no runs; {makes}")
    kin = {scope for _, scope in scopes if scope.partition("@")[0] == platform.name}
    if kin - {platform.id, platform.name if platform.portable else platform.id}:
        note(
            f"instances of {platform.name} are separate: read the log with `--instance this` if "
            "this machine wrote it, or set `portable = true` in the platform file"
        )
