"""`platform list|show|draft|check|nearest`: platforms, and the files that describe them."""

from __future__ import annotations

import click

from embeddb.ui.cli.verbs.platform.check import check_verb
from embeddb.ui.cli.verbs.platform.draft import draft_verb
from embeddb.ui.cli.verbs.platform.list import list_verb
from embeddb.ui.cli.verbs.platform.nearest import nearest_verb
from embeddb.ui.cli.verbs.platform.show import show_verb

__all__ = ["platform_verb"]


@click.group("platform")
def platform_verb() -> None:
    """Platforms: operations, parameters and constraints, described in one TOML file each.

    \b
    Example:
      embeddb platform list
      embeddb platform show spade
      embeddb platform draft runs.csv --op spmm:32 -o my_platform.toml
      embeddb platform check my_platform.toml
      embeddb platform nearest spade cpu --op spmm:128 --sizes 50000,20000,1000000
    """


for _verb in (list_verb, show_verb, draft_verb, check_verb, nearest_verb):
    platform_verb.add_command(_verb)
