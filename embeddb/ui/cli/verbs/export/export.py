"""`export rule`: what a database knows, as code that needs no database."""

from __future__ import annotations

import click

from embeddb.ui.cli.verbs.export.rule import rule_verb

__all__ = ["export_verb"]


@click.group("export")
def export_verb() -> None:
    """What a database knows, as code that needs none. (`db export` writes its runs.)

    \b
    Example:
      embeddb export rule starter -o rule.h --platform cpu --op spmv
    """


export_verb.add_command(rule_verb)
