"""`kernel ...`: tensor kernels and programs: into a database, measured, shown."""

from __future__ import annotations

import click

from embeddb.ui.cli.verbs.kernel.import_ import import_verb
from embeddb.ui.cli.verbs.kernel.measure import measure_verb
from embeddb.ui.cli.verbs.kernel.show import show_verb

__all__ = ["kernel_verb"]


@click.group("kernel")
def kernel_verb() -> None:
    """Tensor kernels and programs: import, measure, show.

    \b
    Example:
      embeddb kernel import tensors.db dump/
      embeddb kernel measure tensors.db
      embeddb kernel show tensors.db mlp
    """


kernel_verb.add_command(import_verb)
kernel_verb.add_command(measure_verb)
kernel_verb.add_command(show_verb)
