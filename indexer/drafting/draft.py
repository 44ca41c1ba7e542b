"""`draft_platform`: a platform file from a run log, with guesses marked as such."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from embeddb.core.config import Config, Op, Value
from embeddb.core.errors import UsageError
from embeddb.core.wording import plural
from embeddb.platforms.platform import builtin_platforms, parse_platform
from indexer.drafting.parameters import (
    Drafted,
    LogRows,
    configs_of,
    drafted_parameters,
    operations,
    rare_values,
    read_log_rows,
    suggested_constraints,
    unseen_values,
)
from indexer.readers.base.row import ReadOptions, RunRow
from indexer.readers.base.statuses import no_value

#: Prefix of every guess in the file.
GUESS = "# GUESS:"


@dataclass(frozen=True, slots=True)
class Draft:
    """The `text` of a platform file, its guesses, and columns that are no parameters with the
    reason. It is drafted from `rows`; others were `rejected`, the first for a `reason`."""

    text: str
    name: str
    op: Op
    guesses: tuple[str, ...]
    left_out: Mapping[str, str]
    rows: int
    rejected: int
    reason: str


def draft_platform(path: Path, options: ReadOptions, *, reader: str = "", name: str = "") -> Draft:
    """Draft a platform file from a log; `name` is that of the platform, else the log's.

    Raises: ReaderError for a log that cannot be read; UsageError if it has no parameters, or if the
    operation, the unit or a required column cannot be inferred.
    """
    log = read_log_rows(path, options, reader=reader)
    ops = operations(log.rows)
    kernels = list(dict.fromkeys(op.name for op in ops if op.kind == ops[0].kind))
    mapped = {role[7:] for role in options.columns if role.startswith("config.")}
    params, left_out = drafted_parameters(log.rows, log.columns, mapped, log.nested)
    if not params:
        why = "; ".join(f"{column}: {reason}" for column, reason in left_out.items())
        raise UsageError(f"{path}: no column is a parameter", hint=why or "it has no other columns")
    rows = [row for row in log.rows if row.op == ops[0]]
    default, how = _default(rows, params)
    how += f", at {ops[0]}" if len(ops) > 1 else ""
    job = _Text(path.name, log, params, left_out)
    text = job.file(_name(name or path.name), kernels, ops, (default, how))
    parse_platform(text, where="the draft")
    return Draft(
        text,
        _name(name or path.name),
        ops[0],
        tuple(job.guesses),
        left_out,
        len(log.rows),
        log.rejected,
        log.reason,
    )


def _name(text: str) -> str:
    """A legal platform name: `my.runs.csv` becomes `my`."""
    stem = Path(text).name.lower().partition(".")[0]
    stem = re.sub(r"[^a-z0-9]+", "-", stem)[:40].strip("-") or "platform"
    stem = stem if stem[0].isalpha() else f"p-{stem}"
    return f"my-{stem}" if stem in builtin_platforms() else stem


def _default(rows: Sequence[RunRow], params: Sequence[Drafted]) -> tuple[Config, str]:
    """A configuration that ran, and the reason for it: of those that ran on most devices, the best
    on all matrices where some ran on all of them, else the one with the most frequent values. Times
    of different devices are not compared."""
    names = [p.name for p in params]
    whole = {p.name for p in params if not p.when}
    fastest: dict[tuple[str, str], dict[Config, float]] = {}
    devices: dict[Config, set[str]] = {}
    for row, config in zip(rows, configs_of(rows, names), strict=True):
        if row.measurement.ok and whole <= config.keys():
            times = fastest.setdefault((row.instance, row.matrix.name), {})
            times[config] = min(row.measurement.seconds, times.get(config, math.inf))
            devices.setdefault(config, set()).add(row.instance)
    if not fastest:
        raise UsageError("no row is ok and has a value of every parameter")
    everywhere = max(map(len, devices.values()))
    wide = {config for config, ran in devices.items() if len(ran) == everywhere}
    spread = Counter(config for times in fastest.values() for config in times if config in wide)
    most = max(spread.values())
    if most > everywhere or len(fastest) == everywhere:
        common = [config for config, count in spread.items() if count == most]
        where = [times for times in fastest.values() if all(c in times for c in common)]
        where = where or list(fastest.values())
        best = min(common, key=lambda c: _mean_log(c, where))
        ran = {name for (_, name), times in fastest.items() if best in times}
        many = plural(len(ran), "matrix", "matrices")
        on = f" and {plural(everywhere, 'device')}" if everywhere > 1 else ""
        ratio = math.exp(_mean_log(best, where))
        behind = f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.2f}"
        return best, (
            f"least geometric mean time of the configurations that ran on {many}{on}, "
            f"{behind} times the fastest of each"
        )
    frequent = Counter(item for config in spread for item in config.items())
    best = max(spread, key=lambda c: (sum(frequent[item] for item in c.items()), c.json))
    return best, "the most frequent values, since no configuration ran on two matrices"


def _mean_log(config: Config, times_by_matrix: Sequence[Mapping[Config, float]]) -> float:
    ratios = [
        math.log(times[config] / min(times.values()))
        for times in times_by_matrix
        if config in times
    ]
    return statistics.fmean(ratios) if ratios else math.inf


class _Text:
    """The text of a draft; `guesses` are collected on the way."""

    def __init__(
        self, source: str, log: LogRows, params: Sequence[Drafted], left_out: Mapping[str, str]
    ) -> None:
        self.source, self.log, self.params, self.left_out = _shown(source), log, params, left_out
        self.guesses: list[str] = []

    def file(
        self, name: str, kernels: Sequence[str], ops: Sequence[Op], default: tuple[Config, str]
    ) -> str:
        cycles = self.log.log.counts_cycles
        suggested = suggested_constraints(self.params, self.log.rows)
        constraints = [
            "# In every run of this log these hold; uncomment what must hold on the machine:",
            f"# constraints = {_toml(suggested)}",
        ]
        parts = [
            f"# Drafted from {self.source} by `embeddb platform draft`.",
            "# Check every value below the word GUESS.",
            f"name = {json.dumps(name)}",
            'version = "1"',
            f"title = {json.dumps(f'{name}, drafted from {self.source}')}",
            *self._simulated(cycles=cycles),
            '# runner = "command"  # with the [command] at the end of this file',
            "",
            *(self._clock() if cycles else ()),
            *self._log_table(ops),
            "",
            "[[space]]",
            f"kernels = {_toml(list(kernels))}",
            *(constraints if suggested else ()),
            "",
            "[space.params]",
            *map(_line, self.params),
            *self._remarks(),
            "",
            "[space.default]",
            *self._default(*default),
            "",
            *self._command(cycles=cycles),
        ]
        return "\n".join(parts) + "\n"

    def _guess(self, text: str) -> str:
        self.guesses.append(text)
        return f"{GUESS} {text}"

    def _simulated(self, *, cycles: bool) -> list[str]:
        if not cycles:
            return ["simulated = false  # true: times come from a simulator, which is exact"]
        return [
            self._guess("cycles come from a simulator, which is exact: no repeats"),
            "simulated = true",
            self._guess("its gains are the same on every machine, and in every build of it"),
            "portable = true",
        ]

    def _clock(self) -> list[str]:
        return [
            "# Times are counted in cycles. With a clock they become seconds: set it before the",
            "# first `embeddb index`, since one database holds cycles or seconds of a platform.",
            "# [traits]",
            "# clock_ghz = 1.0",
            "",
        ]

    def _log_table(self, ops: Sequence[Op]) -> list[str]:
        table, columns = self.log.log, dict(self.log.log.columns)
        for name, column in self.log.columns.items():
            if name != column and name not in self.left_out:
                columns[f"config.{name}"] = column
        op = ops[0] if len(ops) == 1 else None
        # With a column of widths the name alone.
        name = ops[0].name if op is None and len({one.name for one in ops}) == 1 else ""
        stated = name if "op" not in columns and "kernel" not in columns else ""
        head, *rest = replace(table, columns=columns, op=op, op_name=stated).toml.splitlines()
        one = '# instance = "this"  # with the [command] below: log and command are one source'
        return [head, one, *rest]

    def _remarks(self) -> list[str]:
        lines = [
            f"# {p.name} is empty in some rows, for no simple reason: such rows "
            'are rejected until it has a `when = "..."`, or they have a value'
            for p in self.params
            if p.sometimes
        ]
        lines += [
            f"# {one}: a typing error? Then take it out of the values, and `index` rejects the row"
            for one in rare_values(self.params, self.log.rows)
        ]
        lines += [f"# {line}" for line in unseen_values(self.params, self.log.rows)]
        lines += [
            f"# {p.name}: {word!r} among numbers: no value? That is an empty cell, NaN or NA"
            for p in self.params
            for word in p.values
            if no_value(word) and any(isinstance(v, (int, float)) for v in p.values)
        ]
        self.guesses += [line.removeprefix("# ") for line in lines]
        if self.left_out:
            lines.append("# Columns that are no parameters here:")
            lines += [
                f"#   {_shown(self.log.columns[name])}: {reason}"
                for name, reason in self.left_out.items()
            ]
        return lines

    def _default(self, default: Config, how: str) -> list[str]:
        text = "the default, which gains are relative to; put your own here"
        lines = [self._guess(f"{text} ({how})")]
        set_here = [p for p in self.params if p.name in default]
        return [
            *lines,
            *(f"{p.name} = {_toml(_stored(default[p.name], p.kind))}" for p in set_here),
        ]

    def _command(self, *, cycles: bool) -> list[str]:
        words = ["python3", "simulator.py", "{matrix}", "--width", "{op.width}"]
        for p in self.params:
            absent = ":-0" if p.when else ""
            words += [f"--{p.name.replace('_', '-')}", f"{{config.{p.name}{absent}}}"]
        unit, regex = ("cycles", r"cycles: (\d+)") if cycles else ("ms", r"time: (\S+) ms")
        return [
            "# The program that measures, for `embeddb measure` and campaigns. Uncomment it with",
            "# `runner` at the top and `instance` under [log], before the first `embeddb index`;",
            "# {matrix} is written in the form that `matrix` names: mtx, npz (scipy) or smtx:",
            "# [command]",
            '# matrix = "mtx"',
            f"# run = {_toml(words)}",
            f"# time = {{ regex = '{regex}', unit = \"{unit}\" }}",
        ]


def _stored(value: Value, kind: str) -> Any:
    if kind == "bool" or isinstance(value, bool):
        return int(value)  # type: ignore[arg-type]
    if isinstance(value, tuple):
        return list(value) if kind == "permutation" else " ".join(value)
    return value


def _line(param: Drafted) -> str:
    values = "" if param.kind == "bool" else f", values = {_toml(list(param.values))}"
    when = f", when = {json.dumps(param.when)}" if param.when else ""
    return f'{param.name} = {{ type = "{param.kind}"{values}{when} }}'


def _toml(value: Any) -> str:
    """A number, a text or a list of these as TOML, whose texts are those of JSON."""
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=True) if isinstance(value, str) else repr(value)


def _shown(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)[:80]
