"""A rule, a choice among a few configurations for a matrix without a database, and its C header."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.pattern import Pattern
from indexer.exchange.export_formats import c_comment, c_fields, c_literal, c_symbol, c_text
from tuners.rule.features import NAMES, PARTS, features_of
from tuners.rule.trees import Forest


@dataclass(frozen=True, slots=True)
class HeldOutRow:
    """Figures of a method on held-out groups: the share of the best that ran (`of_optimum`) and the
    gain over the default (`speedup`), geometric means, and the share of patterns that ran slower
    than the default."""

    method: str
    of_optimum: float
    slower: float
    speedup: float

    def document(self) -> dict[str, Any]:
        """The released JSON form."""
        return {
            "method": self.method,
            "of_optimum@1": self.of_optimum,
            "slower_than_default": self.slower,
            "speedup@1": self.speedup,
        }


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """A rule for one operation on one platform.

    `configs`, the default first, the deciding `forest`, the features `used`, `held_out` figures on
    `judged` patterns, the number of training patterns and groups, the number of patterns `left_out`
    for missing features, and the `environment` of the runs. The chosen configuration may be illegal
    on a platform for some sizes; the default never is.
    """

    platform: str
    op: Op
    configs: tuple[Config, ...]
    forest: Forest
    used: tuple[str, ...]
    patterns: int
    groups: int
    left_out: int
    environment: Mapping[str, str]
    simulated: bool = False
    held_out: tuple[HeldOutRow, ...] = ()
    judged: int = 0

    def index(self, pattern: Pattern) -> int:
        """The position in `configs`; 0, the default, without a non-zero."""
        if not pattern.nnz:
            return 0
        return int(self.forest.choose(features_of(pattern)[None, :])[0])

    def choose(self, pattern: Pattern) -> Config:
        """The configuration to run on a pattern."""
        return self.configs[self.index(pattern)]

    @property
    def symbol(self) -> str:
        """The function's name in C and the prefix of all names of a rule,
        `embeddb_rule_<platform>_<op>`; an instance is not part of it."""
        return c_symbol(f"embeddb_rule_{self.platform.partition('@')[0]}_{self.op}", taken=())

    def header(self) -> str:
        """The rule as a C header, C11 and C++11. Names and numbers of the database are escaped;
        several rules may be included beside each other."""
        symbol = self.symbol
        guard = f"{symbol.upper()}_H"
        lines = _summary_lines(self)
        comment = "".join(f" * {c_comment(line)}".rstrip() + "\n" for line in lines)
        shared = resources.files("tuners.rule").joinpath("rule_features.h.in").read_text("utf-8")
        parts = [
            f"/* Written by embeddb: which configuration to run.\n *\n{comment} */",
            f"#ifndef {guard}\n#define {guard}",
            "#include <limits.h>\n#include <math.h>\n#include <stddef.h>",
            _precondition(symbol, self.platform, self.op, len(self.configs)),
            shared.rstrip(),
            _table(symbol, self.configs),
            _functions(symbol, self.forest, len(self.configs)),
            "#endif\n",
        ]
        return "\n\n".join(parts)

    @property
    def warning(self) -> str:
        """A line if the rule is slower than the default on held-out groups; else empty."""
        speedup = next((row.speedup for row in self.held_out if row.method == "rule"), 1.0)
        if not speedup < 0.995:  # it would read 1.00x
            return ""
        return f"slower than the default on held-out groups ({speedup:.2f}x): keep the default"

    def document(self) -> dict[str, Any]:
        """The released JSON form, without the trees."""
        return {
            "platform": self.platform,
            "op": str(self.op),
            "patterns": self.patterns,
            "groups": self.groups,
            "left_out": self.left_out,
            "simulated": self.simulated,
            "judged": self.judged,
            "held_out": [row.document() for row in self.held_out],
            "features": list(self.used),
            "trees": len(self.forest.root),
            "configs": [dict(config) for config in self.configs],
        }


def _summary_lines(rule: Rule) -> list[str]:
    """Lines about the scope and the accuracy of a rule."""
    op, simulated = str(rule.op), " (simulated)" if rule.simulated else ""
    lines = [f"{op} on {rule.platform}{simulated}, learned from {rule.patterns} matrices in"]
    lines[-1] += f" {rule.groups} groups."
    if rule.left_out:
        lines.append(f"{rule.left_out} more were left out: too little is known of them.")
    lines += ["", f"On {rule.judged} matrices, each with its whole group held out:", ""]
    lines.append(f"{'':26}{'of the best that ran':>22}{'slower than default':>22}{'speed-up':>10}")
    for row in rule.held_out:
        lines.append(
            f"{row.method:26}{row.of_optimum:22.3f}{100 * row.slower:20.1f} %{row.speedup:10.2f}"
        )
    if rule.warning:
        lines += ["", f"Warning: this rule is {rule.warning}."]
    if rule.environment:
        lines += ["", "It holds for this, and says nothing of other machines:"]
        lines += [f"  {key}: {value}" for key, value in sorted(rule.environment.items())]
    return lines


#: Least contribution of a configuration, in mean log gain, to be worth its code.
_LEAST = 1e-3


def greedy_portfolio(gains: NDArray[np.float64], default: int, most: int) -> list[int]:
    """At most `most` positions of configurations, the default first: each next one is that which
    raises the geometric mean of the best of them the most. `gains` float64[r,c] are log gains over
    the default; nan, where a configuration was not run, counts as no gain.

    Greedy submodular maximisation (Nemhauser, Wolsey, Fisher 1978), as for algorithm portfolios.
    """
    filled = np.nan_to_num(gains, nan=0.0)
    chosen, best = [default], filled[:, default].copy()
    while len(chosen) < most:
        means = np.maximum(best[:, None], filled).mean(axis=0)
        at = int(means.argmax())
        if means[at] < best.mean() + _LEAST:
            break
        chosen.append(at)
        best = np.maximum(best, filled[:, at])
    return chosen


_CALLS = {
    "sizes": "embeddb_rule_sizes(m, n, nnz, {at});",
    "rows": "embeddb_rule_rows(m, nnz, rows, wide, {at});",
    "stripes": "embeddb_rule_stripes(m, n, nnz, rows, wide, columns, {at});",
    "reuse": "embeddb_rule_reuse(nnz, columns, {at});",
}
#: All trees go down together: a leaf leads to itself, so no branch has to be guessed. Rows of
#: values are whole vectors.
_TREES = """\
    static const short root[] = {{{root}}};
    static const unsigned char feature[] = {{{feature}}};
    static const double threshold[] = {{{threshold}}};
    static const short child[][2] = {{{child}}};
    static const short value[][{padded}] = {{
        {value}}};
    int at[{trees}], sum[{padded}] = {{0}};
    int best = 0, level, tree, c;
    for (tree = 0; tree < {trees}; ++tree)
        at[tree] = root[tree];
    for (level = 0; level < {depth}; ++level)
        for (tree = 0; tree < {trees}; ++tree)
            at[tree] = child[at[tree]][f[feature[at[tree]]] > threshold[at[tree]]];
    for (tree = 0; tree < {trees}; ++tree)
        for (c = 0; c < {padded}; ++c)
            sum[c] += value[at[tree] - {nodes}][c];
    for (c = 1; c < {configs}; ++c)
        if (sum[c] > sum[best])
            best = c;
    return best;"""
_FUNCTIONS = """\
/* What {symbol}_decide looks at; features that it has no use for stay 0. */
EMBEDDB_RULE_INLINE void {symbol}_features(
    int64_t m, int64_t n, const void *rows, int wide, const int32_t *columns, double *f)
{{
    const int64_t nnz = embeddb_rule_at(rows, wide, m);
    (void)nnz;
    (void)columns;
    memset(f, 0, {features} * sizeof *f);
    {calls}
}}

/* From features to the position in {symbol}_configs. */
static inline int {symbol}_decide(const double *f)
{{
{decide}
}}

EMBEDDB_RULE_INLINE int {symbol}_of(
    int64_t m, int64_t n, const void *rows, int wide, const int32_t *columns)
{{
    double f[{features}];
    if (m < 1 || n < 1 || m > 2147483647 || n > 2147483647 || embeddb_rule_at(rows, wide, m) < 1)
        return 0;
    {symbol}_features(m, n, rows, wide, columns, f);
    return {symbol}_decide(f);
}}

/* The position in {symbol}_configs of what to run on an m x n matrix in CSR: rows[m + 1] from 0,
 * columns[rows[m]] ascending within a row. */
static inline int {symbol}(
    int64_t m, int64_t n, const int32_t *rows, const int32_t *columns)
{{
    return {symbol}_of(m, n, rows, 0, columns);
}}

/* The same with row pointers of 64 bits. */
static inline int {symbol}_wide(
    int64_t m, int64_t n, const int64_t *rows, const int32_t *columns)
{{
    return {symbol}_of(m, n, rows, 1, columns);
}}
"""


def _precondition(symbol: str, platform: str, op: Op, count: int) -> str:
    """The platform as text and as a number that a program can check at compile time."""
    upper = symbol.upper()
    digest = hashlib.blake2b(platform.encode(), digest_size=4).hexdigest()
    return f"""\
#define {upper}_PLATFORM {c_text(platform)}
#define {upper}_OP {c_text(str(op))}
#define {upper}_COUNT {count}
/* With EMBEDDB_PLATFORM_ID defined as the platform built for, rules of others are refused. */
#define {upper}_PLATFORM_ID 0x{digest}u
#if defined(EMBEDDB_PLATFORM_ID) && EMBEDDB_PLATFORM_ID != {upper}_PLATFORM_ID
#error "{symbol} is a rule of another platform"
#endif"""


def _table(symbol: str, configs: Sequence[Config]) -> str:
    fields = c_fields(configs)
    lines = [f"struct {symbol}_config {{", "    const char *config;"]
    lines += [f"    {kind}{field};" for field, kind in fields.values()]
    lines += ["};", "", "/* The first is the default of the platform. */"]
    lines.append(f"static const struct {symbol}_config {symbol}_configs[] = {{")
    for config in configs:
        cells = [c_text(str(config))]
        cells += [c_literal(config.get(param), kind) for param, (_, kind) in fields.items()]
        lines.append(f"    {{{', '.join(cells)}}},")
    return "\n".join([*lines, "};"])


def _functions(symbol: str, forest: Forest, some: int) -> str:
    used = {NAMES[at] for at in forest.feature.tolist()}
    calls, at = [], 0
    for part, names in PARTS.items():
        if used & set(names):
            calls.append(_CALLS[part].format(at=f"f + {at}" if at else "f"))
        at += len(names)
    decide = "    (void)f;\n    return 0;"
    if some > 1 and forest.feature.size:
        decide = _trees(forest, some)
    elif some > 1:
        decide = f"    (void)f;\n    return {int(forest.choose(np.zeros((1, len(NAMES))))[0])};"
    return _FUNCTIONS.format(
        symbol=symbol,
        features=len(NAMES),
        calls="\n    ".join(calls) or "(void)m;\n    (void)n;",
        decide=decide,
    )


def _trees(forest: Forest, some: int) -> str:
    """C tables of the trees; leaves are numbered after the nodes."""
    nodes, leaves = forest.feature.size, len(forest.value)
    same = range(nodes, nodes + leaves)

    def place(of: NDArray[np.int64]) -> list[Any]:
        positions: list[Any] = np.where(of < 0, nodes - 1 - of, of).tolist()
        return positions

    return _TREES.format(
        root=_row(place(forest.root)),
        feature=_row([*forest.feature.tolist(), *([0] * leaves)]),
        threshold=_row([*map(repr, forest.threshold.tolist()), *(["0"] * leaves)]),
        child=_row(f"{{{a}, {b}}}" for a, b in [*place(forest.child), *((s, s) for s in same)]),
        value=",\n        ".join(f"{{{_row(row)}}}" for row in forest.value.tolist()),
        configs=some,
        padded=-(-some // 8) * 8,
        trees=len(forest.root),
        depth=forest.depth,
        nodes=nodes,
    )


def _row(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))
