"""`nest ...`: loop nests of programs: into a database, and shown."""

from __future__ import annotations

import click

from embeddb.ui.cli.verbs.nest.import_ import import_verb
from embeddb.ui.cli.verbs.nest.show import show_verb

__all__ = ["nest_verb"]


@click.group("nest")
def nest_verb() -> None:
    """Loop nests of programs: import, show.

    \b
    Example:
      embeddb nest import nests.db gemm.c -D N=512
      embeddb nest show nests.db gemm
    """


for _verb in (import_verb, show_verb):
    nest_verb.add_command(_verb)
