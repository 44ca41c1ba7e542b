"""A C header with the best measured configuration per matrix and operation, for use in programs
that choose a kernel at run time without a database."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TextIO

from embeddb.core.records import PatternInfo, Run
from indexer.exchange.writers.c_words import c_fields, c_literal, c_symbol, c_text

__all__ = ["write_c_header"]

_FIXED = """\
    const char *pattern, *name, *op, *config;
    long long m, n, nnz;
    double seconds;"""


def write_c_header(out: TextIO, runs: Iterable[Run], patterns: Iterable[PatternInfo]) -> None:
    """One table `embeddb_<platform>` per platform with its length `embeddb_<platform>_count`, valid
    C11. Rows are sorted by pattern id, then op. Parameters are fields by name: `long long` (true
    is 1), `double` or `const char *` (lists joined by spaces); one that a configuration does not
    have is LLONG_MIN, NAN or NULL. Only runs with status ok count."""
    known = {info.id: info for info in patterns}
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
        _write_table(out, symbol, [table[key] for key in sorted(table)], known)
    out.write("\n#endif\n")


def _rank(run: Run) -> tuple[float, str]:
    return run.seconds, run.config.json


def _write_table(
    out: TextIO, symbol: str, runs: list[Run], known: Mapping[str, PatternInfo]
) -> None:
    fields = c_fields([run.config for run in runs])
    out.write(f"\nstruct {symbol}_row {{\n{_FIXED}\n")
    for field, kind in fields.values():
        out.write(f"    {kind}{field};\n")
    out.write(f"}};\n\nstatic const struct {symbol}_row {symbol}[] = {{\n")
    for run in runs:
        info = known.get(run.pattern_id) or PatternInfo(id=run.pattern_id)
        cells = [
            *map(c_text, (run.pattern_id, info.name, str(run.op), str(run.config))),
            *(f"{size}LL" for size in info.sizes),
            repr(float(run.seconds)),
            *(c_literal(run.config.get(param), kind) for param, (_, kind) in fields.items()),
        ]
        out.write(f"    {{{', '.join(cells)}}},\n")
    out.write("};\n")
    out.write(f"static const size_t {symbol}_count = sizeof {symbol} / sizeof {symbol}[0];\n")
