"""`kernel ...`: tensor kernels and programs: measured."""

from __future__ import annotations

import click

from embeddb.ui.cli.verbs.kernel.measure import measure_verb

__all__ = ["kernel_verb"]


@click.group("kernel")
def kernel_verb() -> None:
    """Tensor kernels and programs: measure.

    \b
    Example:
      embeddb kernel measure tensors.db
    """


kernel_verb.add_command(measure_verb)
