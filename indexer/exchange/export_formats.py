"""The formats of an export: CSV, embeddb's own JSONL, FAIR T4, and a C header with the best
measured configuration per matrix and operation, for programs that choose a kernel at run time
without a database."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain
from typing import Any, TextIO

import msgspec

from embeddb.core.config import Config, Value
from embeddb.core.kinds import kind_of, nameless
from embeddb.core.records import Measurement, Run, WorkloadInfo
from embeddb.core.workload import Workload
from indexer.readers.embeddb import VERSION, ModelDoc, PlatformDoc
from indexer.readers.mapped import quoted

_COLUMNS = (
    *("matrix", "m", "n", "nnz", "group", "op", "platform", "instance"),
    *("status", "time_s", "times_s", "conversion_s", "compile_s", "tolerance", "source", "when"),
    *("error", "campaign"),
)


def write_csv(out: TextIO, runs: Iterable[Run], patterns: Iterable[WorkloadInfo]) -> None:
    """Write a row per run.

    `time_s` is the run's time (`Run.seconds`), `times_s` every repeat separated by `;`, a parameter
    P the column `config.P`. A text that a spreadsheet would compute (it begins with `=`, `+`, `-`
    or `@`) gets a leading quote, which the `csv` reader removes. Left out: contexts, CPU times,
    `replaces` and facts of the pattern's record alone; the JSONL export has everything.
    """
    runs = list(runs)
    info_by_id = {info.id: info for info in patterns}
    params = sorted({name for run in runs for name in run.config})
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow([*_COLUMNS, *(f"config.{name}" for name in params)])
    for run in runs:
        info = info_by_id.get(run.pattern_id) or WorkloadInfo(id=run.pattern_id)
        platform, _, instance = run.platform.partition("@")
        rows.writerow(
            [
                *(_flat(info.name or info.id), info.m, info.n, info.nnz, _flat(info.group)),
                *(str(run.op), platform, instance, *_measured(run)),
                _flat(run.campaign),
                *(_cell(run.config[name]) if name in run.config else "" for name in params),
            ]
        )


def _measured(run: Run) -> list[str | float | None]:
    measurement = run.measurement
    return [
        measurement.status,
        run.seconds if measurement.ok else None,
        ";".join(repr(float(time)) for time in measurement.times_s),
        measurement.conversion_s,
        measurement.compile_s,
        measurement.tolerance,
        measurement.source,
        measurement.when,
        _flat(measurement.error),
    ]


def _cell(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return json.dumps(value)
    return _flat(value) if isinstance(value, str) else repr(value)


def _flat(text: str) -> str:
    """On one line, since a row of the file is a run, and without formulas of a spreadsheet."""
    return quoted(" ".join(text.replace("\0", " ").splitlines()))


_UNMEASURED = list(msgspec.to_builtins(Measurement()))
_UNKNOWN = [getattr(WorkloadInfo(id=""), name) for name in WorkloadInfo.__struct_fields__]


def write_jsonl(
    out: TextIO,
    runs: Iterable[Run | WorkloadInfo | Workload],
    patterns: Iterable[WorkloadInfo],
    platforms: Iterable[PlatformDoc] = (),
    models: Iterable[ModelDoc] = (),
    coded: Iterable[Workload] = (),
) -> int:
    """Write a complete export: loss-free, and the same bytes for the same records in the same
    order. Patterns and platforms that only runs mention are written with their id alone. Returns
    the number of workloads that came among the runs."""
    lines = _Lines(out)
    lines.put({"format": "embeddb", "version": VERSION})
    for platform in platforms:
        lines.number("platform", platform.id, [platform.id, platform.text, platform.environment])
    for described in chain(patterns, coded):
        lines.describe(described)
    written = later = 0
    for run in runs:
        if not isinstance(run, Run):
            lines.describe(run)
            later += isinstance(run, WorkloadInfo)
            continue
        written += 1
        ends = _trimmed([run.campaign, run.replaces], ["", ""])
        measured = _trimmed(list(msgspec.structs.astuple(run.measurement)), _UNMEASURED)
        numbers = [
            lines.number("pattern", run.pattern_id, [run.pattern_id]),
            lines.number("op", run.op, [str(run.op)]),
            lines.number("platform", run.platform, [run.platform]),
            lines.number("config", run.config, [dict(run.config)]),
        ]
        lines.put(["run", *numbers, measured, *ends])
    for model in models:
        lines.put(["model", model.version, model.registered, model.card])
    lines.put(["end", lines.count("platform"), lines.count("pattern"), written])
    return later


class _Lines:
    """Writes lines and numbers the records that they define."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._encode = msgspec.json.Encoder().encode
        self._numbers: dict[str, dict[Hashable, int]] = {}

    def put(self, record: Any) -> None:
        self._out.write(self._encode(_spelled(record)).decode() + "\n")

    def describe(self, one: WorkloadInfo | Workload) -> None:
        """Write the facts of a workload, or its content."""
        if isinstance(one, WorkloadInfo):
            fields = [getattr(one, name) for name in WorkloadInfo.__struct_fields__]
            self.number("pattern", one.id, _trimmed(fields, _UNKNOWN))
        else:
            kind, number = kind_of(one.kind), self.number("pattern", one.id, [one.id])
            self.put([kind.table, number, json.loads(kind.write(nameless(one)))])

    def number(self, kind: str, key: Hashable, fields: list[Any]) -> int:
        """The number of `key` among its kind, writing its line when it is new."""
        numbers = self._numbers.setdefault(kind, {})
        if key not in numbers:
            numbers[key] = len(numbers)
            self.put([kind, numbers[key], *fields])
        return numbers[key]

    def count(self, kind: str) -> int:
        return len(self._numbers.get(kind, ()))


def _trimmed(fields: list[Any], defaults: list[Any]) -> list[Any]:
    """Without the trailing fields that have their default."""
    while fields and _same(fields[-1], defaults[len(fields) - 1]):
        fields.pop()
    return fields


def _same(value: Any, default: Any) -> bool:
    return bool(value == default) or (value == () and default == [])


def _spelled(value: Any) -> Any:
    """JSON value without NaN and infinity, which become `{"$float": "nan"}`."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": str(float(value))}
    if isinstance(value, dict):
        return {key: _spelled(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_spelled(v) for v in value]
    return value


_INVALIDITY = {
    "ok": "correct",
    "invalid": "constraints",
    "build": "compile",
    "crash": "runtime",
    "oom": "runtime",
    "timeout": "timeout",
    "wrong": "correctness",
}


def write_t4(out: TextIO, runs: Iterable[Run], patterns: Iterable[WorkloadInfo]) -> None:
    """Times in milliseconds, as Kernel Tuner writes them. The schema has one problem per file; the
    matrix, operation and platform of a result are added to it as the object `embeddb`."""
    info_by_id = {info.id: info for info in patterns}
    encode = msgspec.json.Encoder().encode
    head = {"schema_version": "1.0.0", "metadata": {"timeunit": "milliseconds"}}
    out.write(encode(head).decode()[:-1] + ',"results":[')
    for place, run in enumerate(runs):
        info = info_by_id.get(run.pattern_id) or WorkloadInfo(id=run.pattern_id)
        out.write(("," if place else "") + "\n" + encode(_result(run, info)).decode())
    out.write("\n]}\n")


def _result(run: Run, info: WorkloadInfo) -> dict[str, Any]:
    measurement = run.measurement
    times: dict[str, Any] = {"runtimes": [time * 1e3 for time in measurement.times_s]}
    if measurement.compile_s is not None:
        times["compilation_time"] = measurement.compile_s * 1e3
    result: dict[str, Any] = {
        "configuration": dict(run.config),
        "objectives": ["time"],
        "times": times,
        "invalidity": _INVALIDITY[measurement.status],
        "correctness": 0 if measurement.status == "wrong" else 1,
        "measurements": [],
        "embeddb": {
            "matrix": info.name or info.id,
            "pattern": run.pattern_id,
            "group": info.group,
            "m": info.m,
            "n": info.n,
            "nnz": info.nnz,
            "op": str(run.op),
            "platform": run.platform,
            "campaign": run.campaign,
        },
    }
    if measurement.ok:
        measured = {"name": "time", "value": measurement.seconds * 1e3, "unit": "ms"}
        result["measurements"] = [measured]
    if measurement.when:
        result["timestamp"] = datetime.fromtimestamp(measurement.when, UTC).isoformat()
    return result


#: Keywords of C and C++ and the fields every row has; a parameter of such a name gets the prefix
#: `p_`.
_RESERVED = re.compile(
    "auto|break|case|char|const|continue|default|do|double|else|enum|extern|float|for|goto|if|"
    "inline|int|long|register|restrict|return|short|signed|sizeof|static|struct|switch|typedef|"
    "union|unsigned|void|volatile|while|alignas|alignof|and|and_eq|asm|bitand|bitor|bool|catch|"
    "char8_t|char16_t|char32_t|class|co_await|co_return|co_yield|compl|concept|consteval|"
    "constexpr|constinit|const_cast|decltype|delete|dynamic_cast|explicit|export|false|friend|"
    "mutable|namespace|new|noexcept|not|not_eq|nullptr|operator|or|or_eq|private|protected|public|"
    "reinterpret_cast|requires|static_assert|static_cast|template|this|thread_local|throw|true|"
    "try|typeid|typename|typeof|using|virtual|wchar_t|xor|xor_eq|"
    "linux|unix|i386|errno|assert|NULL|NAN|INFINITY|LLONG_M..|INT_M..|SIZE_MAX|"
    "pattern|name|m|n|nnz|op|seconds|config"
)
_PLAIN = frozenset(
    {*map(ord, " !#$%&'()*+,-./:;<=>@[]^_`{|}~"), *range(48, 58), *range(65, 91), *range(97, 123)}
)


def c_symbol(text: str, *, taken: Iterable[str]) -> str:
    """A C identifier near the text that is no keyword, no fixed field and not taken."""
    base = re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_") or "p"
    if _RESERVED.fullmatch(base) or base[0].isdigit():
        base = f"p_{base}"
    used, name, count = set(taken), base, 2
    while name in used:
        name, count = f"{base}_{count}", count + 1
    return name


def c_text(text: str) -> str:
    """A string literal in plain ASCII: anything else, and trigraphs, as octal of its UTF-8."""
    data = text.encode("utf-8", "surrogatepass")
    return '"' + "".join(chr(b) if b in _PLAIN else f"\\{b:03o}" for b in data) + '"'


def c_comment(text: str) -> str:
    """Text that is safe in a comment: plain ASCII on one line that neither ends it, opens another
    nor continues on the next."""
    plain = "".join(c if ord(c) in _PLAIN or c == '"' else "." for c in text)
    return plain.replace("*/", "* /").replace("/*", "/ *")


def c_fields(configs: Sequence[Config]) -> dict[str, tuple[str, str]]:
    """The field and the C type of every parameter, by its name: `long long ` (true is 1), `double `
    or `const char *` (lists joined by spaces)."""
    fields: dict[str, tuple[str, str]] = {}
    for param in sorted({name for config in configs for name in config}):
        symbol = c_symbol(param, taken=[field for field, _ in fields.values()])
        fields[param] = symbol, _kind([c[param] for c in configs if param in c])
    return fields


def c_literal(value: Value | None, kind: str) -> str:
    """A value of a field; one that a configuration does not have is LLONG_MIN, NAN or NULL."""
    if kind == "long long ":
        return "LLONG_MIN" if value is None else f"{int(value)}LL"  # type: ignore[arg-type]
    if kind == "double ":
        return "NAN" if value is None else repr(float(value))  # type: ignore[arg-type]
    if value is None:
        return "NULL"
    return c_text(" ".join(value) if isinstance(value, tuple) else str(value))


def _kind(values: list[Value]) -> str:
    if all(isinstance(v, int) and abs(v) < 2**63 for v in values):
        return "long long "
    if all(isinstance(v, (int, float)) for v in values):
        return "double "
    return "const char *"


_FIXED = """\
    const char *pattern, *name, *op, *config;
    long long m, n, nnz;
    double seconds;"""


def write_c_header(out: TextIO, runs: Iterable[Run], patterns: Iterable[WorkloadInfo]) -> None:
    """One table `embeddb_<platform>` per platform with its length `embeddb_<platform>_count`, valid
    C11. Rows are sorted by pattern id, then op. Parameters are fields by name: `long long` (true
    is 1), `double` or `const char *` (lists joined by spaces); one that a configuration does not
    have is LLONG_MIN, NAN or NULL. Only runs with status ok count."""
    info_by_id = {info.id: info for info in patterns}
    best: dict[str, dict[tuple[str, str], Run]] = {}
    for run in runs:
        if not run.measurement.ok:
            continue
        table = best.setdefault(run.platform, {})
        key = (run.pattern_id, str(run.op))
        if key not in table or _rank(run) < _rank(table[key]):
            table[key] = run
    out.write("/* Written by embeddb: the fastest measured configuration per matrix. */\n")
    out.write("#ifndef EMBEDDB_BEST_H\n#define EMBEDDB_BEST_H\n\n")
    out.write("#include <limits.h>\n#include <math.h>\n#include <stddef.h>\n")
    names: dict[str, str] = {}
    for platform in sorted(best):
        symbol = names[platform] = c_symbol(f"embeddb_{platform}", taken=names.values())
        table = best[platform]
        _write_table(out, symbol, [table[key] for key in sorted(table)], info_by_id)
    out.write("\n#endif\n")


def _rank(run: Run) -> tuple[float, str]:
    return run.seconds, run.config.json


def _write_table(
    out: TextIO, symbol: str, runs: list[Run], info_by_id: Mapping[str, WorkloadInfo]
) -> None:
    fields = c_fields([run.config for run in runs])
    out.write(f"\nstruct {symbol}_row {{\n{_FIXED}\n")
    for field, kind in fields.values():
        out.write(f"    {kind}{field};\n")
    out.write(f"}};\n\nstatic const struct {symbol}_row {symbol}[] = {{\n")
    for run in runs:
        info = info_by_id.get(run.pattern_id) or WorkloadInfo(id=run.pattern_id)
        cells = [
            *map(c_text, (run.pattern_id, info.name, str(run.op), str(run.config))),
            *(f"{size}LL" for size in info.sizes),
            repr(float(run.seconds)),
            *(c_literal(run.config.get(param), kind) for param, (_, kind) in fields.items()),
        ]
        out.write(f"    {{{', '.join(cells)}}},\n")
    out.write("};\n")
    out.write(f"static const size_t {symbol}_count = sizeof {symbol} / sizeof {symbol}[0];\n")
