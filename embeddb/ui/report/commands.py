"""The commands of a report, to be copied: what measures an answer or what is missing. `place` is
how they name the database."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from embeddb.core.config import Config, Op
from embeddb.core.kinds import kind_of
from embeddb.core.wording import line, quoted, shown
from embeddb.platforms.platform import Platform, builtin_platforms

if TYPE_CHECKING:
    from embeddb.explain.explanation import Explanation

#: Configurations in the command that measures the next ones.
_MOST_MEASURED = 3
_DB = "DB"


def measure(place: str, names: Sequence[str], platform: str, op: str, configs: int) -> str:
    """So many configurations of what is named; `place` is how commands name the database."""
    named = " ".join(shlex.quote(name) for name in names)
    return f"embeddb measure {place} {named} {_where(platform, op)} --configs {configs}"


def the_default(place: str, platform: Platform, scope: str, op: str) -> str:
    """The platform's default; of what has loops or dimensions of its own it depends on these, and
    is always measured."""
    asked = Op.parse(op)
    if not asked.workload.sparse:
        return f"embeddb measure {place} {asked.kind.upper()} {_where(scope, op)}"
    given = shlex.quote(line(Config(platform.default(asked))))
    return f"embeddb measure {place} MATRIX {_where(scope, op)} --config {given}"


def again_all(place: str, scope: str, op: str, more: str = "") -> str:
    """A campaign, which is over matrix files; of nests a program's, of kernels those of HLO."""
    file = Op.parse(op).workload.many_file
    if file:
        return f"embeddb measure {place} {file} {_where(scope, op)}"
    return f"embeddb campaign plan {place} camp {_where(scope, op)} --matrices matrices/{more}"


def try_it(e: Explanation, place: str) -> str:
    """Runs answer and default on the reader's machine."""
    configs = dict.fromkeys([line(e.answer), line(e.recommendation.default)])
    told = " ".join(f"--config {shlex.quote(config)}" for config in configs)
    return f"{_measured(e, place)} {told}"


def measure_next(e: Explanation, place: str) -> list[str]:
    """Measures what is worth it, line by line; none where nothing can run it."""
    found = e.recommendation.insight.next
    if not (found and e.runnable):
        return []
    parts = [f"--config {shlex.quote(line(n.config))}" for n in found[:_MOST_MEASURED]]
    return [f"{part} \\" for part in [_measured(e, place), *parts[:-1]]] + parts[-1:]


def again(answer: str, place: str) -> str:
    return f"embeddb explain {quoted(place)} {quoted(answer)}"


def placeholders(e: Explanation, place: str) -> str:
    """What the words in capitals of `try_it` and `measure_next` stand for, as a sentence."""
    word = kind_of(e.pattern.kind).placeholder
    told = [f"{_DB} is the folder of the database"] if place == _DB else []
    told.append(f"{word} is the file of the {word.lower()}, or its name where the database has it")
    if (platform := _platform_word(e.recommendation.platform)).endswith(".toml"):
        told.append(f"{shown(platform)} is the file that describes the platform")
    return "; ".join(told)


def _measured(e: Explanation, place: str) -> str:
    made, word = e.recommendation, kind_of(e.pattern.kind).placeholder
    return f"embeddb measure {quoted(place)} {word} {_where(made.platform, made.op)}"


def _where(platform: str, op: str) -> str:
    return f"--platform {quoted(_platform_word(platform))} --op {quoted(op)}"


def _platform_word(platform: str) -> str:
    """What does not ship runs only as a file that is named: what it starts is never taken from a
    database."""
    bare = platform.partition("@")[0]
    return bare if bare in builtin_platforms() else f"{bare}.toml"
