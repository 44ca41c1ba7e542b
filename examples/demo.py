"""What `make demo` runs: ask the starter database about four matrices, calibrate it to this machine
for 45 seconds, ask again, and check both answers by measuring.

python examples/demo.py [MATRIX]

Everything is written below `demo-out/`, anew each time: a copy of the starter database with the
runs made here, the four generated matrices, and the explanation of every answer, with `index.html`
over them.
"""

from __future__ import annotations

import argparse
import math
import shutil
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import numpy as np
from patterns import write_examples

from embeddb import Database, EmbeddbError, Op, Pattern, Platform, Run, load_platform, read_pattern
from embeddb.core.config import Config
from embeddb.core.errors import InputError
from embeddb.core.timing import summarise_runs
from embeddb.explain.explanation import machine_words
from embeddb.ranking import answers
from embeddb.ranking.answer import Request, recommend
from embeddb.ranking.build import build_query
from embeddb.ranking.measure import ranked_by_time
from embeddb.ranking.recommendation import Candidate, Recommendation
from embeddb.ui.cli.main import cli
from embeddb.ui.report import answers_html, explanation_html
from indexer.calibrate import Calibration, CalibrationRequest
from indexer.embed import embed
from indexer.exchange.exchange import import_file
from indexer.exchange.export_records import adopt_models
from indexer.runners.base import RunOptions
from indexer.starter import copy_starter
from tuners.ranking import StaticBestTuner

OPS = (Op.parse("spmm:32"), Op.parse("spmm:128"))
#: Every round visits all matrices again, in another order, so that drift does not become rank.
ROUNDS = 5
#: Seconds of measuring other, generated matrices between the first question and the second.
CALIBRATE_S = 45.0
#: No new round is begun after this many seconds of measuring; the first is always finished.
ENOUGH_S = 8.0
OPTIONS = RunOptions(repeats=5, max_repeats=25, min_time_s=0.03, timeout_s=10.0)


@dataclass(slots=True)
class Case:
    """One question: its answer, the one given after calibrating (None: not calibrated), the fixed
    schedule to compare with, and what was measured."""

    pattern: Pattern
    op: Op
    made: Recommendation
    static: Config | None
    after: Recommendation | None = None
    runs: list[Run] = field(default_factory=list)
    others: dict[str, list[float]] = field(default_factory=dict)

    @property
    def configs(self) -> list[Config]:
        """Everything to measure, once each."""
        asked = [Config(self.made.default), *(config_of(c) for c in self.made.candidates)]
        if self.after is not None:
            asked += [config_of(c) for c in self.after.candidates]
        return list(dict.fromkeys([*asked, *([self.static] if self.static else [])]))


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the result: milliseconds, and factors by which ours is faster (None: no figure).

    `first` and `best` are the first answer and the best of all of them, over the default, and
    `after` and `after_best` the same of the answer after calibrating; the rest is the best of all
    over others. `noise` is half the relative range of the default's times between rounds, if there
    were two or more.
    """

    matrix: str
    op: str
    default_ms: float | None
    best_ms: float | None
    first: float | None
    best: float | None
    static: float | None
    scipy: float | None
    torch: float | None
    expected: float | None
    noise: float | None
    after: float | None = None
    after_best: float | None = None


def main(argv: Sequence[str] | None = None) -> int:
    """The whole demo. Returns the exit code."""
    parser = argparse.ArgumentParser(description="Ask the starter database, then measure.")
    parser.add_argument("matrix", nargs="?", type=Path, help="a matrix file of your own")
    parser.add_argument("--out", type=Path, default=Path("demo-out"), help="where to write")
    args = parser.parse_args(argv)
    try:
        return demo(args.out, [args.matrix] if args.matrix else [])
    except EmbeddbError as e:
        print(f"demo: {e}" + (f" ({e.hint})" if e.hint else ""), file=sys.stderr)
        return e.exit_code


def demo(
    out: Path,
    matrices: Sequence[Path],
    *,
    starter: Path | None = None,
    runner: Any = None,
    calibrate_s: float = CALIBRATE_S,
) -> int:
    """Import, ask, calibrate, ask again, measure, explain. Tests give a runner and starter of
    their own."""
    started = time.monotonic()
    folder = out / "demo.db"
    asked = [read_pattern(path) for path in matrices]  # a wrong name is said before anything long
    with fresh_database(folder, starter) as db:
        say(f"starter database ready after {time.monotonic() - started:.1f} s")
        paths = list(matrices) or write_examples(out / "matrices")
        runner = runner or cpu_runner()
        platform = load_platform("cpu") if runner is None else runner.platform()
        patterns = asked or [read_pattern(path) for path in paths]
        cases = [ask(db, pattern, platform, op) for pattern in patterns for op in OPS]
        show(answers_table(cases), "What the starter database answers, nothing measured yet:")
        elsewhere = other_machines(db, cases, platform)
        if elsewhere:
            print(elsewhere)
        if runner is not None:
            if calibrate_s > 0:
                calibrate(db, runner, calibrate_s)
                for case in cases:
                    case.after = recommend(db.index, Request(case.pattern, platform, case.op))
            measure(cases, runner, platform)
            keep(db, cases, platform)
            rows = [row_of(case) for case in cases]
            show(results_table(rows), "What was measured on this machine:")
            print(legend(rows))
        write_json(db, cases, out)
        write_pages(db, cases, out, elsewhere)
    write_texts(folder, cases, out)
    print(next_steps(folder, paths[0], cases[0]))
    say(f"{time.monotonic() - started:.0f} s in total; everything is below {out}/")
    print(f"The page to begin with: {out / 'index.html'}")
    return 0


def say(text: str) -> None:
    """Progress, apart from the result."""
    print(text, file=sys.stderr, flush=True)


# -- the database and the questions --------------------------------------------------------------


def fresh_database(folder: Path, starter: Path | None = None) -> Database:
    """What ships, in `folder`, ready to answer; what an earlier demo left is removed. It is copied
    from the database that `starter` means, unpacked where it was not yet; or imported from the
    export `starter`.

    Raises: EmbeddbError if the data are missing or damaged.
    """
    if folder.exists():
        shutil.rmtree(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    if starter is None:
        copy_starter(folder, note=say)
        return Database.open(folder)
    with Database.create(folder) as db:
        report = import_file(db.index, starter, rejects=False)
        if report.rejected:
            raise InputError(f"{report.rejected} damaged lines", where=str(starter))
        embed(db.index)
        adopt_models(db.index, starter.parent)
    return Database.open(folder)


def other_machines(db: Database, cases: Iterable[Case], platform: Platform) -> str:
    """One sentence where the answers rest on runs of other machines alone; else nothing."""
    shares = [share for case in cases for share in db.explain(case.made).machines]
    if not shares or any(share.platform == platform.id for share in shares):
        return ""
    told = ", ".join(dict.fromkeys(share.words or share.platform for share in shares))
    here = machine_words(platform.environment) or platform.id
    return (
        f"All of this was measured elsewhere: {told}. This is {here}. Which configuration is "
        "faster usually carries over, by how much does not: calibrating and measuring tell."
    )


def cpu_runner() -> Any:
    """The runner of this machine, or None after saying why there is none."""
    from indexer.runners.cpu import CpuRunner

    runner = CpuRunner()
    reason = runner.available()
    if reason is not None:
        say(reason)
        return None
    return runner


def ask(db: Database, pattern: Pattern, platform: Platform, op: Op) -> Case:
    """The answer for one pattern, and the one schedule that is best on average."""
    made = recommend(db.index, Request(pattern, platform, op))
    query = build_query(db.index, pattern, platform, op)
    fixed = StaticBestTuner(query, rng=np.random.default_rng(0)).ask(1)
    return Case(pattern, op, made, Config(fixed[0].config) if fixed else None)


# -- calibrating -------------------------------------------------------------------------------


def calibrate(db: Database, runner: Any, seconds: float) -> None:
    """What `embeddb calibrate` does, on generated matrices that are not those asked about."""
    say(f"calibrating to this machine for {seconds:.0f} s, on generated matrices")
    made = Calibration(db.index, runner, CalibrationRequest(OPS, seconds)).run()
    for op in made.ops:
        before, after = (f"{v:.3f}" if v is not None else "-" for v in (op.before, op.after))
        say(f"  {op.op}: share of the best measured {before} before, {after} after")


# -- measuring -----------------------------------------------------------------------------------


def measure(cases: Sequence[Case], runner: Any, platform: Platform) -> None:
    """Run every configuration and the other libraries, in rounds over all cases."""
    started = time.monotonic()
    for at in range(ROUNDS):
        say(f"measuring on {platform.id}, round {at + 1} of {ROUNDS}")
        for case in cases:
            measure_case(case, runner, platform, seed=at)
        if time.monotonic() - started > ENOUGH_S:
            break


def measure_case(case: Case, runner: Any, platform: Platform, *, seed: int) -> None:
    order = np.random.default_rng(seed).permutation(len(case.configs))
    configs = [case.configs[i] for i in order]
    for config, m in runner.run(case.pattern, case.op, configs, options=OPTIONS):
        case.runs.append(Run(case.pattern.id, case.op, platform.id, config, m, "demo"))
    for name, m in runner.baselines(case.pattern, case.op, options=OPTIONS).items():
        if m.ok:
            case.others.setdefault(name, []).append(m.seconds)


def keep(db: Database, cases: Iterable[Case], platform: Platform) -> None:
    """Write the runs back, and into each stored answer what its candidates took."""
    for case in cases:
        db.index.record(case.runs, case.pattern, platform)
        answers.keep(db.index, ranked_by_time(case.made, summarise_runs(case.runs)))


# -- the tables ----------------------------------------------------------------------------------


def row_of(case: Case) -> Row:
    """What was measured for one case, as one line."""
    curves = summarise_runs(case.runs)
    default = curves[Config(case.made.default)]
    ours = [curves[config_of(c)].seconds for c in case.made.candidates]
    best = min(ours)
    others = {name: statistics.median(times) for name, times in case.others.items()}
    rounds = sum(run.config == Config(case.made.default) for run in case.runs)
    told = case.after.candidates if case.after else []
    after = [curves[config_of(c)].seconds for c in told]
    static = curves[case.static].seconds if case.static else math.inf
    return Row(
        matrix=case.pattern.name,
        op=str(case.op),
        default_ms=finite(1e3 * default.seconds),
        best_ms=finite(1e3 * best),
        first=factor(default.seconds, ours[0]),
        best=factor(default.seconds, best),
        static=factor(static, best),
        scipy=factor(others.get("scipy-csr", math.inf), best),
        torch=factor(others.get("torch-csr", math.inf), best),
        expected=case.made.candidates[0].expected_gain,
        noise=finite(default.spread) if math.isfinite(default.seconds) and rounds > 1 else None,
        after=factor(default.seconds, after[0]) if after else None,
        after_best=factor(default.seconds, min(after)) if after else None,
    )


def factor(theirs: float, ours: float) -> float | None:
    """How many times faster ours is; None unless both ran."""
    return theirs / ours if math.isfinite(theirs) and math.isfinite(ours) else None


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def geomean(values: Iterable[float | None]) -> float | None:
    """Over those that are there; None if none is."""
    logs = [math.log(v) for v in values if v is not None]
    return math.exp(statistics.fmean(logs)) if logs else None


def answers_table(cases: Iterable[Case]) -> str:
    """One line per question: where the answer comes from, how sure it is, and what it is."""
    head = ("matrix", "entries", "op", "answer from", "confidence", "expected", "configuration")
    return table_text(head, [answer_of(case) for case in cases], left=(0, 2, 3, 4, 6))


def answer_of(case: Case) -> list[str]:
    made, first = case.made, case.made.candidates[0]
    question = [case.pattern.name, f"{case.pattern.nnz:,}", str(case.op)]
    return [
        *question,
        made.link,
        made.confidence,
        times(first.expected_gain),
        str(config_of(first)),
    ]


def config_of(candidate: Candidate) -> Config:
    return Config(candidate.config)


RESULT_HEAD = (
    "matrix", "op", "default ms", "best ms", "expected", "first", "best of 5",
    "calibrated", "best of 5", "/ static best", "/ scipy", "/ torch",
)  # fmt: skip


def results_table(rows: Sequence[Row]) -> str:
    """Aligned text; the torch column only where torch is installed."""
    body = [
        [r.matrix, r.op, ms(r.default_ms), ms(r.best_ms), *map(times, factors(r))] for r in rows
    ]
    means = [geomean(column) for column in zip(*map(factors, rows), strict=True)]
    body.append(["geometric mean", "", "", "", *map(times, means)])
    width = len(RESULT_HEAD) - (0 if any(r.torch for r in rows) else 1)
    return table_text(RESULT_HEAD[:width], [line[:width] for line in body], left=(0, 1))


def factors(r: Row) -> list[float | None]:
    """In the order of the table's last columns."""
    return [r.expected, r.first, r.best, r.after, r.after_best, r.static, r.scipy, r.torch]


def legend(rows: Sequence[Row]) -> str:
    """What the columns mean, and how far times can be trusted."""
    noise = [r.noise for r in rows if r.noise is not None]
    varied = (
        f"The default's own time varied by +-{100 * statistics.median(noise):.0f} % between rounds "
        "(median)."
        if noise
        else "There was time for one round: how much times vary was not measured."
    )
    return (
        "expected, first, best of 5: factors over the default; expected is what neighbours or\n"
        "cost model predict, first is the top answer, best of 5 the fastest of the five;\n"
        f"calibrated: the same after {CALIBRATE_S:.0f} s of measuring generated matrices here.\n"
        "The last columns compare the first best of 5 with the one schedule that is best on\n"
        "average, and with scipy (one thread) and torch (CSR) where they are installed.\n"
        f"{varied}"
    )


def table_text(head: Sequence[str], body: Sequence[Sequence[str]], *, left: Sequence[int]) -> str:
    """Columns padded to their widest cell; those in `left` are set flush left."""
    lines = [list(head), *map(list, body)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join("  ".join(_cells(line, widths, left)).rstrip() for line in lines)


def _cells(line: Sequence[str], widths: Sequence[int], left: Sequence[int]) -> Iterator[str]:
    for at, (cell, width) in enumerate(zip(line, widths, strict=True)):
        yield cell.ljust(width) if at in left else cell.rjust(width)


def times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"


def ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def show(table: str, title: str) -> None:
    print(f"\n{title}\n\n{table}\n")


# -- what is left behind -------------------------------------------------------------------------


def stem_of(case: Case) -> str:
    return f"{case.pattern.name}-{str(case.op).replace(':', '_')}"


def write_json(db: Database, cases: Iterable[Case], out: Path) -> None:
    """`explain-MATRIX-OP.json` for every answer."""
    for case in cases:
        body = msgspec.json.format(msgspec.json.encode(db.explain(case.made.id).document()))
        (out / f"explain-{stem_of(case)}.json").write_bytes(body)


def write_pages(db: Database, cases: Sequence[Case], out: Path, elsewhere: str) -> None:
    """`explain-MATRIX-OP.html` for every answer, and `index.html` over them."""
    pages = []
    for case in cases:
        name = f"explain-{stem_of(case)}.html"
        found = db.explain(case.made.id)
        (out / name).write_text(explanation_html(found), encoding="utf-8")
        pages.append((quote(name), found))
    notes = [elsewhere] if elsewhere else []
    title = "Which configuration, how sure, and why"
    text = answers_html(pages, title=title, notes=notes)
    (out / "index.html").write_text(text, encoding="utf-8")


def write_texts(folder: Path, cases: Iterable[Case], out: Path) -> None:
    """`explain-MATRIX-OP.txt` for every answer: what `embeddb explain` prints.

    The database must be closed: a process opens it once at a time.
    """
    for case in cases:
        text = StringIO()
        with redirect_stdout(text):
            cli.main(args=["explain", str(folder), case.made.id], standalone_mode=False)
        (out / f"explain-{stem_of(case)}.txt").write_text(text.getvalue(), encoding="utf-8")


def next_steps(folder: Path, matrix: Path, case: Case) -> str:
    bin_folder = Path(sys.executable).parent
    if bin_folder.is_relative_to(Path.cwd()):
        bin_folder = bin_folder.relative_to(Path.cwd())
    return (
        "\nTry next:\n"
        f"  {bin_folder}/embeddb explain {folder} {case.made.id}\n"
        f"  {bin_folder}/embeddb query {folder} {matrix} --platform cpu --op {case.op} --calls 10\n"
        f"  {bin_folder}/embeddb eval {folder}\n"
    )


if __name__ == "__main__":
    sys.exit(main())
