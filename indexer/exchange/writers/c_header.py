"""A C header with the best measured configuration per matrix and operation, for use in programs
that choose a kernel at run time without a database."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TextIO

from embeddb.core.config import Value
from embeddb.core.records import PatternInfo, Run

__all__ = ["write_c_header"]

#: C's keywords and the fields every row has; a parameter of such a name gets the prefix `p_`.
_RESERVED = re.compile(
    "auto|break|case|char|const|continue|default|do|double|else|enum|extern|float|for|goto|if|"
    "inline|int|long|register|restrict|return|short|signed|sizeof|static|struct|switch|typedef|"
    "union|unsigned|void|volatile|while|pattern|name|m|n|nnz|op|seconds|config"
)
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
        symbol = names[platform] = _symbol(f"embeddb_{platform}", taken=names.values())
        table = best[platform]
        _write_table(out, symbol, [table[key] for key in sorted(table)], known)
    out.write("\n#endif\n")


def _rank(run: Run) -> tuple[float, str]:
    return run.measurement.seconds, run.config.json


def _write_table(
    out: TextIO, symbol: str, runs: list[Run], known: Mapping[str, PatternInfo]
) -> None:
    fields: dict[str, str] = {}
    kinds: dict[str, str] = {}
    for param in sorted({name for run in runs for name in run.config}):
        fields[param] = _symbol(param, taken=fields.values())
        kinds[param] = _kind([run.config[param] for run in runs if param in run.config])
    out.write(f"\nstruct {symbol}_row {{\n{_FIXED}\n")
    for param, field in fields.items():
        out.write(f"    {kinds[param]}{field};\n")
    out.write(f"}};\n\nstatic const struct {symbol}_row {symbol}[] = {{\n")
    for run in runs:
        info = known.get(run.pattern_id) or PatternInfo(id=run.pattern_id)
        cells = [
            *map(_text, (run.pattern_id, info.name, str(run.op), str(run.config))),
            *(f"{size}LL" for size in info.sizes),
            repr(float(run.measurement.seconds)),
            *(_literal(run.config.get(param), kinds[param]) for param in fields),
        ]
        out.write(f"    {{{', '.join(cells)}}},\n")
    out.write("};\n")
    out.write(f"static const size_t {symbol}_count = sizeof {symbol} / sizeof {symbol}[0];\n")


def _kind(values: list[Value]) -> str:
    if all(isinstance(v, int) and abs(v) < 2**63 for v in values):
        return "long long "
    if all(isinstance(v, (int, float)) for v in values):
        return "double "
    return "const char *"


def _literal(value: Value | None, kind: str) -> str:
    if kind == "long long ":
        return "LLONG_MIN" if value is None else f"{int(value)}LL"  # type: ignore[arg-type]
    if kind == "double ":
        return "NAN" if value is None else repr(float(value))  # type: ignore[arg-type]
    if value is None:
        return "NULL"
    return _text(" ".join(value) if isinstance(value, tuple) else str(value))


def _symbol(text: str, *, taken: Iterable[str]) -> str:
    """A C identifier near the text that is no keyword, no fixed field and not taken."""
    base = re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_") or "p"
    if _RESERVED.fullmatch(base) or base[0].isdigit():
        base = f"p_{base}"
    used, name, count = set(taken), base, 2
    while name in used:
        name, count = f"{base}_{count}", count + 1
    return name


def _text(text: str) -> str:
    """A string literal in plain ASCII: anything else, and trigraphs, as octal of its UTF-8."""
    plain = set(map(ord, " !#$%&'()*+,-./:;<=>@[]^_`{|}~")) | set(range(48, 58))
    plain |= set(range(65, 91)) | set(range(97, 123))
    data = text.encode("utf-8", "surrogatepass")
    return '"' + "".join(chr(b) if b in plain else f"\\{b:03o}" for b in data) + '"'
