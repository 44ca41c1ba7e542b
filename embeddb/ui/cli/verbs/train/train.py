"""`train featurizer|costmodel`: what is learned, resumable after any stop."""

from __future__ import annotations

import click

from embeddb.ui.cli.verbs.train.costmodel import costmodel_verb
from embeddb.ui.cli.verbs.train.featurizer import featurizer_verb

__all__ = ["train_verb"]


@click.group("train")
def train_verb() -> None:
    """Train what is learned: the featurizer that turns a pattern into a vector, and the cost model
    that ranks configurations.

    \b
    Example:
      embeddb train featurizer matrices/ -o scnn.safetensors --manifest MANIFEST.csv
      embeddb train costmodel runs.db --platform cpu --op spmm:128
    """


train_verb.add_command(featurizer_verb)
train_verb.add_command(costmodel_verb)
