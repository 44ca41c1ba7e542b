"""`train ...`: one verb for each kind of model."""

from __future__ import annotations

import click

from embeddb.ui.cli.verbs.train_costmodel import costmodel_verb
from embeddb.ui.cli.verbs.train_featurizer import featurizer_verb
from embeddb.ui.cli.verbs.train_kernels import kernels_verb
from embeddb.ui.cli.verbs.train_nests import nests_verb
from embeddb.ui.cli.verbs.train_towers import towers_verb


@click.group("train")
def train_verb() -> None:
    """Train models: vectors of matrices and configurations, the cost model that ranks
    configurations, and the networks of loop nests and of tensor kernels.

    \b
    Example:
      embeddb train featurizer matrices/ -o scnn.safetensors --manifest MANIFEST.csv
      embeddb train towers runs.db
      embeddb train costmodel runs.db --platform cpu --op spmm:128
      embeddb train nests training.db -o nests.safetensors
      embeddb train kernels kernels.db --task tile
    """


train_verb.add_command(featurizer_verb)
train_verb.add_command(towers_verb)
train_verb.add_command(costmodel_verb)
train_verb.add_command(nests_verb)
train_verb.add_command(kernels_verb)
