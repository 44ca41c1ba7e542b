"""`nest ...`: loop nests of programs: into a database, shown, measured, counted."""

from __future__ import annotations

import click

from embeddb.ui.cli.verbs.nest.count import count_verb
from embeddb.ui.cli.verbs.nest.import_ import import_verb
from embeddb.ui.cli.verbs.nest.measure import measure_verb
from embeddb.ui.cli.verbs.nest.show import show_verb

__all__ = ["nest_verb"]


@click.group("nest")
def nest_verb() -> None:
    """Loop nests of programs: import, show, measure, count.

    \b
    Example:
      embeddb nest import nests.db gemm.c -D N=512
      embeddb nest show nests.db gemm
      embeddb nest measure nests.db
      embeddb nest count training.db --synthetic 8500
    """


for _verb in (import_verb, show_verb):
    nest_verb.add_command(_verb)
nest_verb.add_command(measure_verb)
nest_verb.add_command(count_verb)
