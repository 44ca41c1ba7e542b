"""`train featurizer|kernels|nests`: networks of matrices, tensor kernels and loop nests."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from embeddb.core.config import Op
from embeddb.core.errors import NothingFound, UsageError
from embeddb.core.extras import needing
from embeddb.core.files.safe_write import check_place
from embeddb.core.wording import plural
from embeddb.nests.counters import SOURCES
from embeddb.store.counters import counting_platforms
from embeddb.tensors.tensor_graph import is_probe
from embeddb.ui.cli import option
from embeddb.ui.cli.arguments import families, open_database, session
from embeddb.ui.cli.output import note, result, say

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embeddb.platforms.platform import Platform
    from embeddb.tensors.roofline.analysis import Analysis
    from indexer.training.nests.samples import NestSample
    from indexer.training.tensors.samples import KernelRuns

_training_options = option.together(
    option.number("--seed", default=0, least=0, most=2**63 - 1),
    option.limit("--threads", most=1024, help="0: torch's own number."),
    option.resume,
)
_file_option = click.option("-o", "out", required=True, metavar="FILE", help="Model file to write.")
#: Fields of `indexer.training.trainer.Settings` that are options.
_SETTINGS = ("epochs", "lr", "patience", "seed")
#: Problems shown; the document of `--json` has all.
_NAMED = 10


@option.verb("featurizer")
@click.argument("matrices")
@_file_option
@option.manifest
@option.choice("--network", among=["cognate", "waco"])
@option.choice(
    "--reduction", among=["grid", "sites"], help="Reduction of a pattern that the network reads."
)
@option.number(
    "--size", default=128, least=1, most=2048, help="Side of the grid; sites: root of the most."
)
@option.number("--epochs", default=100, least=1, most=100_000)
@option.number(
    "--patience", default=15, least=1, help="Epochs without improvement before early stopping."
)
@option.number("--copies", default=4, least=0, most=1000)
@option.number("--batch", default=32, least=1, most=4096)
@option.lr
@_training_options
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
    from embeddb.featurizers.network.reduction import Reduction
    from indexer.training.featurizer.dataset import Recipe, read_dataset

    with needing("training"):
        from indexer.training.featurizer.pretrain import Pretraining, check_free, pretrain
        from indexer.training.trainer import Settings
    if not options["resume"]:
        check_free(file)
    with session(options["threads"]) as progress:
        reduction = Reduction(options["reduction"], options["size"])
        recipe = Recipe(reduction, copies=options["copies"], seed=options["seed"])
        groups = families(options["manifest"])
        data = read_dataset(Path(matrices), recipe, groups=groups, progress=progress)
        for problem in data.problems[:_NAMED]:
            note(f"warning: left out: {problem}")
        if data.problems[_NAMED:]:
            note(f"warning: and {plural(len(data.problems) - _NAMED, 'more file')} left out")
        note(
            f"{plural(data.patterns, 'pattern')} of {plural(data.groups, 'group')}: "
            f"{len(data.train):,} training samples, {len(data.valid):,} validation samples"
        )
        settings = Settings(**{name: options[name] for name in _SETTINGS})
        how = Pretraining(options["network"], recipe, settings, batch=options["batch"])
        trained = pretrain(data, how, file, progress=progress)
    document = {"file": str(file), **trained, "problems": list(data.problems)}
    result(document, _show_featurizer, as_json)


def _show_featurizer(document: dict[str, Any]) -> None:
    figures = ", ".join(
        f"{name.replace('_', ' ')} {value:.4g}" for name, value in document["metrics"].items()
    )
    say(
        f"{document['file']}: version {document['version']}, {figures} (epoch "
        f"{document['best_epoch']} of {document['epochs']}); predicting the mean gives "
        f"{document['mean_metrics']['valid_loss']:.4g}"
    )


# -- tensor kernels --------------------------------------------------------------------------------

#: Names of the card's methods in text.
_METHODS = {"transfer": "neighbours", "rank": "model", "transfer+rank": "both"}


@option.verb("kernels")
@click.argument("db")
@click.option(
    "--task", required=True, type=click.Choice(["tile", "fused"]), help="What to predict."
)
@option.trained
@option.text("--platform", help="Instance of the runs.")
@option.text("--tests", metavar="DB", help="Database of test kernels.")
@option.choice("--predictor", among=["auto", "network", "trees", "operations"])
@option.number("--hidden", default=128, least=4, most=4096, help="Width of the network.")
@option.lr
@option.number("--epochs", default=60, least=1, most=100_000)
@_training_options
def kernels_verb(db: str, as_json: bool, **options: Any) -> None:
    """Train the model of tensor kernels on the runs in DB.

    --task tile ranks the tiles of a kernel, --task fused predicts its seconds (A Learned
    Performance Model for Tensor Processing Units). --predictor auto: a graph network, in the form
    of the paper's GraphSAGE but narrower (--hidden; there 1024), or trees, whichever is better on
    held-out families. For tiles, that is boosted trees on the residual of the analytical model
    where it applies; for fused kernels, the sum of each operation's seconds as predicted by trees
    and a network (`operations`; `trees`: without the network), which is better if probes were
    measured (`kernel import --probes`).
    Batches are sampled evenly from the model families; whole families are held out for early
    stopping and that choice. Ctrl-C keeps finished epochs.
    The paper's other networks are in reproductions/.

    \b
    Example:
      embeddb train kernels kernels.db --task tile
      embeddb train kernels kernels.db --task fused --hidden 64 -o a.safetensors
    """
    with needing("training", extra="graphs"):
        from indexer.training.cost_model.model_place import own_file, replaced_by, written
        from indexer.training.folder import folder_of
        from indexer.training.tensors.fitting import KernelTraining, recipe
        from indexer.training.tensors.samples import about
        from indexer.training.tensors.train import KernelData, train_kernels
    with session(options["threads"]) as progress:
        how = KernelTraining(
            recipe(options["task"], options["hidden"], options["lr"]),
            **{name: options[name] for name in ("epochs", "seed", "predictor")},
        )
        runs = _runs(db, options)
        tests = _runs(options["tests"], options, runs.analysis).samples if options["tests"] else []
        with open_database(db, readonly=True) as opened:
            file = own_file(opened.store, "kernels", runs.platform, runs.op, options["out"])
            home = opened.store.path
        begun = folder_of(file).exists() and any(folder_of(file).glob("**/checkpoint*"))
        if not options["resume"] and (begun or (options["out"] and file.exists())):
            raise UsageError(f"{file} already exists", hint="add --resume, or name another file")
        before = replaced_by(file)
        judge = partial(_judged, db, runs.platform)
        data = KernelData(runs.samples, tests, about(runs), runs.analysis, judge)
        card = train_kernels(data, how, file, progress=progress)
        for line in written(file, before, home, lambda: open_database(db).index):
            note(f"warning: {file} is saved and in use but not registered: {line}")
    document = {"file": str(file), **card, "left_out": dict(runs.left_out)}
    result(document, _show, as_json)


def _judged(
    db: str,
    where: Platform,
    card: dict[str, Any],
    weights: dict[str, NDArray[Any]],
    families: Sequence[str],
) -> dict[str, Any]:
    """Entries of the card that compare the model with neighbours on held-out families."""
    from embeddb.cost_model.graph_model import GraphModel, predictor_from
    from tuners.evaluation.kernel_models import judged_tiles

    model = GraphModel(predictor_from(card, weights))
    with open_database(db, readonly=True) as opened:
        quality = judged_tiles(opened.index, model, where, families)
    if not quality:
        note(
            "warning: no held-out family to compare it with neighbours: queries will not rank by it"
        )
        return {}
    calibration = {**card["calibration"], "guard": quality["guard"]}
    judged = {name: {"tile": quality[name]} for name in ("held_out", "hidden")}
    return {**judged, "calibration": calibration, "judged_kernels": quality["kernels"]}


def _runs(db: str, options: dict[str, Any], analysis: Analysis | None = None) -> KernelRuns:
    from indexer.training.tensors.samples import runs_of

    with open_database(db, readonly=True) as opened:
        opened.store.refuse_damage()
        runs = runs_of(opened.store, Op(options["task"]), options["platform"], analysis)
    for reason, count in runs.left_out.items():
        note(f"warning: {plural(count, 'kernel')} of {db} left out: {reason}")
    real = [sample for sample in runs.samples if not is_probe(sample.group)]
    families, probes = len({sample.group for sample in real}), len(runs.samples) - len(real)
    note(
        f"{plural(sum(len(s.seconds) for s in runs.samples), 'run')} of "
        f"{plural(len(real), 'kernel')} in {plural(families, 'family', 'families')}"
        + (f" and of {plural(probes, 'probe')}" if probes else "")
    )
    return runs


def _show(document: dict[str, Any]) -> None:
    how = document["settings"]["predictor"]
    if "epochs" in document:
        how += f", epoch {document['best_epoch']} of {document['epochs']}"
    say(
        f"{document['file']}: version {document['version']}, {document['parameters']:,} parameters "
        f"from {document['parts']['train']['kernels']:,} kernels ({how})"
    )
    formats = {"ape": "loses {:.1f} % of the time", "mape": "errs by {:.1f} %", "tau": "tau {:.2f}"}
    for name, figures in document["figures"].items():
        others = {n: other[name] for n, other in document.get("others", {}).items()}
        for which, values in {"": figures, **others}.items():
            errors = [text.format(values[at]) for at, text in formats.items() if at in values]
            kernels = plural(document["parts"][name]["kernels"], "kernel")
            beside = f" (not chosen: {which})" if which else ""
            say(f"  {name}, {kernels}: {', '.join(errors) or 'no measurements'}{beside}")
    for method, shares in document.get("held_out", {}).get("tile", {}).items():
        at = f"{shares['of_optimum@1']:.3f} / {shares['of_optimum@5']:.3f}"
        say(f"  of the optimum at 1 / 5 on held-out families, {_METHODS[method]}: {at}")


# -- nests -----------------------------------------------------------------------------------------


@option.verb("nests")
@click.argument("db")
@_file_option
@option.text("--platform", help="Instance of the counters.")
@click.option("--source", default="model", show_default=True, type=click.Choice(SOURCES))
@option.number("--epochs", default=20, least=1, most=100_000)
@option.lr
@_training_options
def nests_verb(db: str, out: str, as_json: bool, **options: Any) -> None:
    """Train the network of nests on the counters in DB (`nest count`).

    It predicts metrics of the canonical schedule (Performance Embeddings, Section 3.3) from the
    nest alone and from its counters; `embed DB --weights FILE` uses it in a database. Groups are
    held out for early stopping. Ctrl-C keeps finished epochs.

    \b
    Example:
      embeddb train nests training.db -o nests.safetensors
      embeddb train nests training.db -o nests.safetensors --resume
    """
    file = Path(out)
    check_place(file)
    with needing("training", extra="graphs"):
        from indexer.training.folder import folder_of
        from indexer.training.nests.train import NestTraining, train_nests
        from indexer.training.trainer import Settings
    if not options["resume"] and (file.exists() or folder_of(file).exists()):
        raise UsageError(f"{file} already exists", hint="add --resume, or name another file")
    with session(options["threads"]) as progress:
        samples = _samples(db, options["platform"], options["source"])
        groups = plural(len({s.group for s in samples}), "group")
        note(f"{plural(len(samples), 'nest')} of {groups}")
        settings = Settings(options["epochs"], options["lr"], patience=5, seed=options["seed"])
        how = NestTraining(settings, source=options["source"])
        document = {"file": str(file), **train_nests(samples, how, file, progress=progress)}
    result(document, _show_nests, as_json)


def _samples(db: str, platform: str, source: str) -> list[NestSample]:
    """Samples from the counters of one instance: the only one, or the named one. Raises:
    NothingFound without counters; UsageError if several instances have counters."""
    from indexer.nest_runs import counted
    from indexer.training.nests.samples import sample_of

    with open_database(db, readonly=True) as opened:
        opened.store.refuse_damage()
        instances = counting_platforms(opened.store)
        places = [place for place in instances if platform in ("", place)]
        if not places:
            raise NothingFound(f"{db}: no nest has counters", hint=f"embeddb nest count {db}")
        if len(places) > 1:
            names = ", ".join(places)
            raise UsageError(
                f"{db}: has counters of several machines", hint=f"--platform, one of {names}"
            )
        counts = [c for c in counted(opened.store, places[0]) if c.counters.source == source]
    if not counts:
        raise NothingFound(f"{db}: no nest has counters of {source}", hint="another --source")
    return [sample_of(one.nest, one.counters, one.seconds) for one in counts]


def _show_nests(document: dict[str, Any]) -> None:
    epochs = f"epoch {document['best_epoch']} of {document['epochs']}"
    say(
        f"{document['file']}: version {document['version']}, {document['parameters']:,} parameters "
        f"from {document['samples']['train']:,} nests ({epochs})"
    )
    for name, figures in document["pearson"].items():
        for inputs, rows in figures.items():
            correlations = sorted(value for value in rows.values() if value is not None)
            if correlations:
                good = sum(value >= 0.8 for value in correlations)
                say(
                    f"  {name}, {inputs}: correlation {correlations[0]:.2f} to "
                    f"{correlations[-1]:.2f}, at least "
                    f"0.80 for {good} of {len(correlations)} metrics"
                )
