"""`plot map|curve|spy|winners|training|speedups`: drawings as files, .svg or .png."""

from __future__ import annotations

import click

from embeddb.ui.cli.verbs.plot.curve import curve_verb
from embeddb.ui.cli.verbs.plot.map import map_verb
from embeddb.ui.cli.verbs.plot.speedups import speedups_verb
from embeddb.ui.cli.verbs.plot.spy import spy_verb
from embeddb.ui.cli.verbs.plot.training import training_verb
from embeddb.ui.cli.verbs.plot.winners import winners_verb

__all__ = ["plot_verb"]


@click.group("plot")
def plot_verb() -> None:
    """Draw what a database knows, as .svg (light and dark) or .png (needs the extra `plot`).

    \b
    Example:
      embeddb plot map starter --platform cpu --op spmm:128 -o map.svg
      embeddb plot curve starter raefsky3 --platform cpu --op spmm:128 -o curve.svg
      embeddb plot spy A.mtx -o spy.png
    """


for _verb in (map_verb, curve_verb, spy_verb, winners_verb, training_verb, speedups_verb):
    plot_verb.add_command(_verb)
