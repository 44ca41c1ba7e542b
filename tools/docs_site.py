"""Hook of mkdocs.yml: the generated parts of the reference, and links that leave docs/."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import click
import msgspec

import embeddb
from embeddb.explain.explanation import Explanation
from embeddb.ranking.recommendation import Recommendation
from embeddb.ui.cli.main import cli

_OUTSIDE = re.compile(
    r"\[[^\]]*\]\((?:\.\./)+((?:benchmarks|reproductions|tools|examples)/[^)#]*)[^)]*\)"
)


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """The text of a page: reference pages with what is generated from the code."""
    made = {"reference/cli.md": _cli, "reference/api.md": _api, "reference/json.md": _schemas}
    more = made.get(page.file.src_uri)
    text = _OUTSIDE.sub(r"`\1`", markdown)
    return f"{text}\n{more()}\n" if more else text


def _cli() -> str:
    """The help of every verb, as `embeddb VERB --help` prints it."""
    lines = ["## Verbs"]
    for name, command in _leaves(cli, "embeddb"):
        context = click.Context(command, info_name=name, max_content_width=90)
        lines += ["", f"### {name}", "", "```", command.get_help(context), "```"]
    return "\n".join(lines)


def _leaves(group: click.Group, prefix: str) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from _leaves(command, f"{prefix} {name}")
        elif command is not None:
            yield f"{prefix} {name}", command


def _api() -> str:
    """The names that `embeddb` lists, from their docstrings."""
    lines = []
    for name in embeddb.__all__:
        home = getattr(getattr(embeddb, name), "__module__", "embeddb")
        if not name.startswith("__"):
            lines.append(f"::: {home}.{name}\n")
    return "\n".join(lines)


def _schemas() -> str:
    """JSON schemas of recommendations and explanations, as stored."""
    (_, shared) = msgspec.json.schema_components([Recommendation, Explanation])
    lines = ["## Schemas", "", "As stored; `--json` adds ranks and folds the default."]
    for name, schema in shared.items():
        text = json.dumps(schema, indent=1)
        lines += ["", f"### {name}", "", str(schema.get("description", "")).split("\n\n")[0], ""]
        lines += ["```json", text, "```"]
    return "\n".join(lines)
