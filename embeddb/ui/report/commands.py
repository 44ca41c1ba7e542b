"""Commands of a report for copying: to measure an answer or a gap. `place` is the name of the
database in them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from embeddb.core.config import Config, Op
from embeddb.core.kinds import kind_of, kinds
from embeddb.core.wording import line, quoted, shown
from embeddb.platforms.platform import Platform, builtin_platforms

if TYPE_CHECKING:
    from embeddb.explain.explanation import Explanation

#: Configurations in the command that measures the next ones.
_MOST_MEASURED = 3
_DB = "DB"
#: Words of commands that stand for what the reader has or chooses.
FILE, _CAMPAIGN, _MATRICES = "FILE", "camp", "matrices/"


def measure(place: str, names: Sequence[str], platform: str, op: str, configs: int) -> str:
    named = " ".join(shlex.quote(name) for name in names)
    return f"embeddb measure {place} {named} {_where(platform, op)} --configs {configs}"


def the_default(place: str, platform: Platform, scope: str, op: str) -> str:
    """Command that measures the platform's default; for workloads with their own loops or
    dimensions the default depends on these, and is always measured."""
    operation = Op.parse(op)
    if not operation.workload.sparse:
        return f"embeddb measure {place} {operation.workload.placeholder} {_where(scope, op)}"
    default = shlex.quote(line(Config(platform.default(operation))))
    return f"embeddb measure {place} MATRIX {_where(scope, op)} --config {default}"


def again_all(place: str, scope: str, op: str, more: str = "") -> str:
    """Command that measures more workloads: a campaign over matrix files, or a program's file."""
    file = Op.parse(op).workload.many_file
    if file:
        return f"embeddb measure {place} {file} {_where(scope, op)}"
    to_plan = f"{place} {_CAMPAIGN} {_where(scope, op)} --matrices {_MATRICES}"
    return f"embeddb campaign plan {to_plan}{more}"


def try_it(e: Explanation, place: str) -> str:
    """Command that runs answer and default on the reader's machine."""
    configs = dict.fromkeys([line(e.answer), line(e.recommendation.default)])
    options = " ".join(f"--config {shlex.quote(config)}" for config in configs)
    return f"{_measured(e, place)} {options}"


def measure_next(e: Explanation, place: str) -> list[str]:
    """Command that measures the most promising candidates, by line; empty without a runner."""
    candidates = e.recommendation.insight.next
    if not (candidates and e.runnable):
        return []
    parts = [f"--config {shlex.quote(line(n.config))}" for n in candidates[:_MOST_MEASURED]]
    return [f"{part} \\" for part in [_measured(e, place), *parts[:-1]]] + parts[-1:]


def placeholders(e: Explanation, place: str) -> str:
    """Meaning of the placeholders in `try_it` and `measure_next`, as a sentence."""
    word = kind_of(e.pattern.kind).placeholder
    parts = [f"{_DB} is the folder of the database"] if place == _DB else []
    parts.append(_a_workload(word))
    if (platform := _platform_word(e.recommendation.platform)).endswith(".toml"):
        parts.append(_a_platform(platform))
    return "; ".join(parts)


def stand_ins(commands: Sequence[str]) -> str:
    """Meaning of the words in the commands of gaps that stand for what the reader has or chooses,
    as a sentence; empty without such words."""
    words = dict.fromkeys(word for one in commands for word in shlex.split(one)[3:])
    meanings = {
        _CAMPAIGN: f"{_CAMPAIGN} is a new folder",
        _MATRICES: f"{_MATRICES} is a folder of matrix files",
        FILE: f"{FILE} is the file of the workload",
    }
    for kind in kinds():
        meanings[kind.placeholder] = _a_workload(kind.placeholder)
        if kind.many_file:
            meanings.setdefault(kind.many_file, f"{kind.many_file} is a file of {kind.many}")
    meanings |= {word: _a_platform(word) for word in words if word.endswith(".toml")}
    return "; ".join(meanings[word] for word in words if word in meanings)


def _a_workload(word: str) -> str:
    return f"{word} is the file of the {word.lower()}, or its name where the database has it"


def _a_platform(word: str) -> str:
    return f"{shown(word)} is the file that describes the platform"


def _measured(e: Explanation, place: str) -> str:
    recommendation, word = e.recommendation, kind_of(e.pattern.kind).placeholder
    where = _where(recommendation.platform, recommendation.op)
    return f"embeddb measure {quoted(place)} {word} {where}"


def _where(platform: str, op: str) -> str:
    return f"--platform {quoted(_platform_word(platform))} --op {quoted(op)}"


def _platform_word(platform: str) -> str:
    """Name of a shipped platform, else of its file: a command to run is never taken from a
    database."""
    bare = platform.partition("@")[0]
    return bare if bare in builtin_platforms() else f"{bare}.toml"
