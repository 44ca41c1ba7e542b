"""The commands that measure what is missing, to be copied from a report."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from embeddb.core.config import Config, Op
from embeddb.platforms.platform import Platform
from embeddb.ui.wording import line, shown

__all__ = ["again_all", "measure", "the_default"]

#: What holds the others, by kind.
_FILES = {"nest": "PROGRAM.c", "kernel": "HLO.txt", "program": "HLO.txt"}


def measure(place: str, names: Sequence[str], platform: str, op: str, configs: int) -> str:
    """So many configurations of what is named; `place` is how commands name the database."""
    named = " ".join(shlex.quote(name) for name in names)
    return f"embeddb measure {place} {named} {_where(platform, op)} --configs {configs}"


def the_default(place: str, platform: Platform, scope: str, op: str) -> str:
    """The platform's default; of what has loops or dimensions of its own it depends on these, and
    is always measured."""
    asked = Op.parse(op)
    if asked.kind != "matrix":
        return f"embeddb measure {place} {asked.kind.upper()} {_where(scope, op)}"
    given = shlex.quote(line(Config(platform.default(asked))))
    return f"embeddb measure {place} MATRIX {_where(scope, op)} --config {given}"


def again_all(place: str, scope: str, op: str, more: str = "") -> str:
    """A campaign, which is over matrix files; of nests a program's, of kernels those of HLO."""
    file = _FILES.get(Op.parse(op).kind)
    if file:
        return f"embeddb measure {place} {file} {_where(scope, op)}"
    return f"embeddb campaign plan {place} camp {_where(scope, op)} --matrices matrices/{more}"


def _where(platform: str, op: str) -> str:
    bare = shlex.quote(shown(platform.partition("@")[0]))
    return f"--platform {bare} --op {shlex.quote(shown(op))}"
