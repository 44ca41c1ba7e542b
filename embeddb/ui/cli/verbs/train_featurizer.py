"""`train featurizer`: a network that embeds sparsity patterns."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from embeddb.core.extras import needing
from embeddb.core.files.safe_write import check_place
from embeddb.core.reports import Progress
from embeddb.core.wording import plural
from embeddb.ui.cli.arguments import Number, families
from embeddb.ui.cli.output import emit, json_option, note, say
from embeddb.ui.cli.verbs.train_session import session

if TYPE_CHECKING:
    from indexer.training.featurizer.dataset import Dataset, Recipe

#: Problems shown; the document of `--json` has all.
_NAMED = 10


@click.command("featurizer")
@click.argument("matrices")
@click.option("-o", "out", required=True, metavar="FILE", help="Model file to write.")
@click.option("--manifest", default="", help="CSV with columns name and family: the groups.")
@click.option(
    "--network", default="cognate", show_default=True, type=click.Choice(["cognate", "waco"])
)
@click.option(
    "--reduction",
    default="grid",
    show_default=True,
    type=click.Choice(["grid", "sites"]),
    help="Reduction of a pattern that the network reads.",
)
@click.option(
    "--size",
    default=128,
    show_default=True,
    type=click.IntRange(1, 2048),
    help="Side of the grid, or number of sites.",
)
@click.option("--no-shape", is_flag=True, help="Do not feed the matrix size to the last layer.")
@click.option("--epochs", default=100, show_default=True, type=click.IntRange(1, 100_000))
@click.option(
    "--patience",
    default=15,
    show_default=True,
    type=click.IntRange(1),
    help="Epochs without improvement before early stopping.",
)
@click.option("--copies", default=4, show_default=True, type=click.IntRange(0, 1000))
@click.option("--batch", default=32, show_default=True, type=click.IntRange(1, 4096))
@click.option("--lr", default=1e-3, show_default=True, type=Number(0, 1, min_open=True))
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0, 2**63 - 1))
@click.option("--threads", default=0, type=click.IntRange(0, 1024), help="0: torch's own number.")
@click.option("--resume", is_flag=True, help="Continue an interrupted training.")
@json_option
def featurizer_verb(matrices: str, out: str, as_json: bool, **options: Any) -> None:
    """Train a featurizer on the patterns below the folder MATRICES; no run times are needed.

    An autoencoder learns to reconstruct shape and picture of a pattern from its embedding.
    Checkpoint and curve are kept beside FILE, in a folder that ends in .training; Ctrl-C keeps
    finished epochs.

    \b
    Example:
      embeddb train featurizer matrices/ -o scnn.safetensors --manifest MANIFEST.csv --copies 8
      embeddb train featurizer matrices/ -o scnn.safetensors --manifest MANIFEST.csv --copies 8 \\
          --resume
    """
    file = Path(out)
    check_place(file)
    with session(options["threads"]) as progress:
        document = _train(matrices, file, options, progress)
    if as_json:
        emit(document)
        return
    _show(document)


def _train(matrices: str, out: Path, options: dict[str, Any], progress: Progress) -> dict[str, Any]:
    from indexer.training.featurizer.dataset import read_dataset

    with needing("training"):
        from indexer.training.featurizer.pretrain import Pretraining, check_free, pretrain
        from indexer.training.trainer import Settings
    if not options["resume"]:
        check_free(out)
    recipe = _recipe(options)
    data = read_dataset(
        Path(matrices), recipe, groups=families(options["manifest"]), progress=progress
    )
    _warn(data)
    settings = Settings(
        epochs=options["epochs"],
        lr=options["lr"],
        patience=options["patience"],
        seed=options["seed"],
    )
    how = Pretraining(
        options["network"],
        recipe,
        settings,
        batch=options["batch"],
        no_shape=options["no_shape"],
    )
    document = pretrain(data, how, out, progress=progress)
    return {"file": str(out), **document, "problems": list(data.problems)}


def _recipe(options: dict[str, Any]) -> Recipe:
    from embeddb.featurizers.network.reduction import Reduction
    from indexer.training.featurizer.dataset import Recipe

    return Recipe(
        Reduction(options["reduction"], options["size"]),
        copies=options["copies"],
        seed=options["seed"],
    )


def _warn(data: Dataset) -> None:
    for problem in data.problems[:_NAMED]:
        note(f"warning: left out: {problem}")
    if data.problems[_NAMED:]:
        note(f"warning: and {plural(len(data.problems) - _NAMED, 'more file')} left out")
    note(
        f"{plural(data.patterns, 'pattern')} of {plural(data.groups, 'group')}: "
        f"{len(data.train):,} training samples, {len(data.valid):,} validation samples"
    )


def _show(document: dict[str, Any]) -> None:
    figures = ", ".join(
        f"{name.replace('_', ' ')} {value:.4g}" for name, value in document["metrics"].items()
    )
    say(
        f"{document['file']}: version {document['version']}, {figures} (epoch "
        f"{document['best_epoch']} of {document['epochs']}); predicting the mean gives "
        f"{document['mean_metrics']['valid_loss']:.4g}"
    )
