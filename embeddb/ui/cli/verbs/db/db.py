"""`db ...`: the database as a thing: figures, damage, export, import, size."""

from __future__ import annotations

import click

from embeddb.ui.cli.verbs.db.check import check_verb
from embeddb.ui.cli.verbs.db.compact import compact_verb
from embeddb.ui.cli.verbs.db.copy import copy_verb
from embeddb.ui.cli.verbs.db.export import export_verb
from embeddb.ui.cli.verbs.db.import_ import import_verb
from embeddb.ui.cli.verbs.db.models import models_verb
from embeddb.ui.cli.verbs.db.push import push_verb
from embeddb.ui.cli.verbs.db.rebuild import rebuild_verb
from embeddb.ui.cli.verbs.db.sources import sources_verb
from embeddb.ui.cli.verbs.db.stat import stat_verb
from embeddb.ui.cli.verbs.db.upgrade import upgrade_verb
from embeddb.ui.cli.verbs.db.withdraw import withdraw_verb

__all__ = ["db_verb"]


@click.group("db")
def db_verb() -> None:
    """Look after a database: stat, models, check, rebuild, export, import, copy,
    push, sources, withdraw, upgrade, compact.

    \b
    Example:
      embeddb db stat runs.db
      embeddb db models runs.db
      embeddb db export runs.db runs.jsonl.gz
    """


for _verb in (
    models_verb,
    stat_verb,
    check_verb,
    rebuild_verb,
    export_verb,
    import_verb,
    copy_verb,
    push_verb,
    sources_verb,
    withdraw_verb,
    upgrade_verb,
    compact_verb,
):
    db_verb.add_command(_verb)
