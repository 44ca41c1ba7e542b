"""`train featurizer|towers`: networks that embed matrices."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from embeddb.core.errors import UsageError
from embeddb.core.extras import needing
from embeddb.core.files.safe_write import OwnFolder, check_place
from embeddb.core.wording import plural
from embeddb.featurizers.tower import OWN
from embeddb.ui.cli.arguments import families, manifest_option, number_option, open_database
from embeddb.ui.cli.output import Progress, emit, json_option, note, say, table
from embeddb.ui.cli.verbs.train_session import (
    lr_option,
    model_file_option,
    resume_option,
    session,
    torch_threads_option,
    trained_option,
)

if TYPE_CHECKING:
    from indexer.training.featurizer.dataset import Dataset, Recipe

#: Problems shown; the document of `--json` has all.
_NAMED = 10


@click.command("featurizer")
@click.argument("matrices")
@model_file_option
@manifest_option
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
@number_option(
    "--size", default=128, least=1, most=2048, help="Side of the grid, or number of sites."
)
@click.option("--no-shape", is_flag=True, help="Do not feed the matrix size to the last layer.")
@number_option("--epochs", default=100, least=1, most=100_000)
@number_option(
    "--patience", default=15, least=1, help="Epochs without improvement before early stopping."
)
@number_option("--copies", default=4, least=0, most=1000)
@number_option("--batch", default=32, least=1, most=4096)
@lr_option
@number_option("--seed", default=0, least=0, most=2**63 - 1)
@torch_threads_option
@resume_option
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


# -- towers ----------------------------------------------------------------------------------------


@click.command("towers")
@click.argument("db")
@trained_option
@number_option("--seed", default=0, least=0, most=2**31 - 1)
@number_option("--threads", default=1, least=0, most=1024, help="0: torch's.")
@resume_option
@json_option
def towers_verb(db: str, out: str, as_json: bool, **asked: Any) -> None:
    """Learn vectors of matrices and of configurations from all runs of sparse kernels in DB.

    A small network maps the 48 statistics of a matrix to 16 numbers, another one the parameters of
    a configuration; their inner product ranks. Without -o queries find neighbours by the matrix's
    vectors wherever held-out answers are as good as by statistics, and configurations by the inner
    product. Five more trainings without a fifth of the families each give the held-out figures.

    \b
    Example:
      embeddb train towers runs.db
      embeddb train towers runs.db -o towers.safetensors
      embeddb embed other.db --weights towers.safetensors
    """
    with session(asked["threads"]) as progress:
        document = _train_towers(db, out, asked, progress)
        if not out:
            document |= _in_use(db, document["file"], progress)
    if as_json:
        emit(document)
        return
    _show_towers(document)


def _train_towers(db: str, out: str, asked: dict[str, Any], progress: Progress) -> dict[str, Any]:
    with needing("training"):
        from indexer.training.towers import tower_data, train_towers, unfinished
    with open_database(db, readonly=True) as opened:
        file = _place(opened.store.path, out)
        if unfinished(file) and not asked["resume"]:
            raise UsageError(
                f"{file}: a training is unfinished there",
                hint="add --resume to go on with it, or remove its .training folder",
            )
        data = tower_data(opened.index, progress=progress)
    note(
        f"{data.runs:,} runs of {plural(len(data.ids), 'matrix', 'matrices')}, "
        f"{plural(len(data.units), 'operation')} on {plural(len(data.trunks), 'space')}"
    )
    return {"file": str(file), **train_towers(data, file, seed=asked["seed"], progress=progress)}


def _place(home: str | Path | None, out: str) -> Path:
    """The file to write; its folder is there. Raises: UsageError if there can be none."""
    if out:
        check_place(Path(out))
        return Path(out)
    if home is None:
        raise UsageError("a database in memory has no folder for weights", hint="give -o FILE")
    try:
        OwnFolder(Path(home), OWN.parent.name).make()
    except OSError as e:
        fault = f"{home}: no weights can be written there ({e.strerror})"
        raise UsageError(fault, hint="give -o FILE") from None
    return Path(home) / OWN


def _in_use(db: str, file: str, progress: Progress) -> dict[str, Any]:
    """Register the weights in DB and refresh vectors and indexes."""
    from indexer.embed import embed

    with open_database(db) as opened:
        opened.index.use_weights(file)
        report = embed(opened.index, progress=progress)
    return {"indexes": report.partitions, "problems": report.problems}


def _show_towers(document: dict[str, Any]) -> None:
    say(f"{document['file']}: version {document['version']}; with families held out:")
    rows = [
        (unit["op"], unit["platform"], unit["matrices"], *_figures(unit["held_out"]))
        for unit in document["units"]
    ]
    head = ("operation", "platform", "matrices", "of optimum@1", "@5", "recall@10", "@50")
    table(head, rows)
    for one in document.get("indexes", ()):
        if one["op"] in {unit["op"] for unit in document["units"]}:
            say(f"{one['op']} on {one['scope']}: neighbours by {one['featurizer']}")


def _figures(held_out: dict[str, float]) -> list[str]:
    return [f"{held_out[name]:.3f}" for name in held_out]
