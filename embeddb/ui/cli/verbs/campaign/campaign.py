"""`campaign plan|run|resume|work|collect|status`: many measurements, resumable after any stop."""

from __future__ import annotations

import click

from embeddb.ui.cli.verbs.campaign.collect import collect_verb
from embeddb.ui.cli.verbs.campaign.plan import plan_verb
from embeddb.ui.cli.verbs.campaign.run import resume_verb, run_verb
from embeddb.ui.cli.verbs.campaign.status import status_verb
from embeddb.ui.cli.verbs.campaign.work import work_verb

__all__ = ["campaign_verb"]


@click.group("campaign")
def campaign_verb() -> None:
    """Measure many matrices and configurations in shuffled rounds, resumable.

    A campaign is a folder DIR: plan it, run it, stop it at any time, run it again.

    \b
    Example:
      embeddb campaign plan runs.db camp --platform cpu --op spmm:32 --op spmm:128 \\
          --matrices matrices/ --configs 60 --rounds 2
      embeddb campaign run runs.db camp
      embeddb campaign status runs.db camp
    """


for _verb in (plan_verb, run_verb, resume_verb, work_verb, collect_verb, status_verb):
    campaign_verb.add_command(_verb)
