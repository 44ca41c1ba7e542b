"""`train costmodel`: a model that ranks configurations of sparse kernels; the group `train`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from embeddb.core.config import Op
from embeddb.core.errors import UsageError
from embeddb.core.extras import needing
from embeddb.core.workload import matrices_only
from embeddb.ui.cli.arguments import number_option, open_database
from embeddb.ui.cli.output import Progress, emit, json_option, note
from embeddb.ui.cli.verbs.train_graphs import kernels_verb, nests_verb
from embeddb.ui.cli.verbs.train_session import (
    lr_option,
    resume_option,
    session,
    show_samples,
    show_trained,
    trained_option,
)
from embeddb.ui.cli.verbs.train_vectors import featurizer_verb, towers_verb
from indexer.starter import source_model
from tuners.evaluation.choose_predictor import Training, TrainingRequest

if TYPE_CHECKING:
    from embeddb.cost_model.model import CostModel
    from embeddb.learning.samples import Samples
    from embeddb.store import Store

_PREDICTORS = ("auto", "gp", "mlp", "trees")


@click.command("costmodel")
@click.argument("db")
@click.option("--platform", required=True, help="Platform of the runs: name, id or TOML file.")
@click.option("--op", "ops", required=True, multiple=True, help="Repeatable, for several widths.")
@trained_option
@click.option("--preset", default="", help="The published COGNATE model: cognate, cognate-tiles.")
@click.option("--matrices", default="", metavar="DIR", help="Folder with structures that DB lacks.")
@click.option(
    "--encoder", default="", metavar="FILE", help="Initial weights of a preset's network."
)
@number_option("--sites", default=64, least=1, most=2048)
@click.option("--featurizer", default="stats", show_default=True, help="Featurizer of the matrix.")
@click.option(
    "--from", "source", default="", metavar="MODEL", help="Start from this model, or `starter`."
)
@click.option("--samples", default=0, type=click.IntRange(0), help="Use this many runs of each op.")
@click.option("--predictor", default="auto", show_default=True, type=click.Choice(_PREDICTORS))
@click.option("--members", default=0, type=click.IntRange(0, 64), help="0: 3 networks, 5 trees.")
@number_option("--epochs", default=60, least=1, most=100_000)
@lr_option
@click.option(
    "--every-machine", is_flag=True, help="Learn from all machines' runs, with their facts."
)
@number_option("--seed", default=0, least=0, most=2**31 - 1)
@number_option("--threads", "count", default=1, least=0, most=1024, help="0: torch's.")
@click.option(
    "--no-judge", is_flag=True, help="Skip cross-validation; queries then do not rank by the model."
)
@resume_option
@json_option
def costmodel_verb(
    db: str, platform: str, ops: tuple[str, ...], out: str, as_json: bool, **options: Any
) -> None:
    """Train a model on the runs in DB that ranks configurations on unmeasured matrices.

    Without -o the model is stored in DB and used from then on; `db models` lists its training data.
    It is cross-validated: five more trainings, each without a fifth of the groups, which then test
    it. Queries rank by the model, by neighbours or by both, whichever was best there; the last line
    says which, and by how much.

    --predictor auto: with fewer than 8 groups or 5,000 runs a Gaussian process (gp), which needs no
    extra; else a network, trees or gp, whichever is better on held-out groups.

    --from transfers from another platform's model: a network is fine-tuned from its weights, trees
    get its predictions as an input. `--from starter` is the model of CPUs that ships. --samples 500
    takes 20 runs of each of 25 matrices that differ in size and density.

    --every-machine makes one model for all machines of a portable platform, those without runs too:
    trees that also read a machine's facts (vector width, caches, bandwidths). It is judged with
    whole machines left out. Queries of any of them, and of others, join it with the vote. With the
    id of one machine as --platform, that model learns again for it, its own runs counting more, as
    `calibrate` does at its end.

    --preset trains COGNATE as published: its sparse network reads the patterns' coordinates (in at
    most --sites squared cells) and is trained end to end on run times, from random weights or those
    of --encoder. --epochs and --lr change the preset. The network also becomes a featurizer. One
    more training validates it. This takes hours, other models minutes. Models of other papers are
    in reproductions/.

    Checkpoints and curves are kept in a folder that ends in .training beside the model; Ctrl-C
    keeps finished epochs. `campaign plan --strategy` measures training data within a budget.

    \b
    Example:
      embeddb train costmodel runs.db --platform cpu --op spmm:32 --op spmm:128
      embeddb train costmodel spade.db --platform spade --op spmm:128 -o spade.safetensors \\
          --from starter --samples 500
      embeddb train costmodel cpu.db --platform cpu --op spmm:128 --preset cognate --threads 2
    """
    options["source"] = source_model(options["source"], _ops(ops)[0])
    if options["every_machine"] and (options["preset"] or options["source"]):
        raise UsageError("--every-machine trains trees from the runs alone",
                         hint="leave out --preset and --from")  # fmt: skip
    with session(options["count"]) as progress:
        train = _train_whole if options["preset"] else _train
        if options["every_machine"]:
            train = _train_for_machines
        document = train(db, platform, ops, out, options, progress)
    if as_json:
        emit(document)
        return
    show_trained(document, db)


def _train(
    db: str,
    platform: str,
    ops: tuple[str, ...],
    out: str,
    options: dict[str, Any],
    progress: Progress,
) -> dict[str, Any]:
    from embeddb.cost_model.model import CostModel

    with needing("training"):
        from embeddb.learning.samples import samples_of
        from indexer.training.cost_model.model_place import save_model
    request = _request(options)
    start = CostModel.load(options["source"]) if options["source"] else None
    with open_database(db, readonly=True) as opened:
        where, wanted = opened.platform(platform), _ops(ops)
        all_samples = samples_of(opened.index, where, wanted, featurizer=request.featurizer)
        samples = request.limited(all_samples)
        file, folder = _place(opened.store, samples, out, options["resume"])
        training = Training(opened.index, all_samples, request, start, folder, note)
        model = training.model(progress)
        home = opened.store.path
    version, problems = save_model(model, file, home, lambda: open_database(db).index)
    return _saved(db, model, (file, folder), (version, problems), samples)


def _train_for_machines(
    db: str,
    platform: str,
    ops: tuple[str, ...],
    out: str,
    options: dict[str, Any],
    progress: Progress,
) -> dict[str, Any]:
    with needing("training"):
        from embeddb.learning.samples import samples_of_machines
        from indexer.training.cost_model.local import samples_for, source_of, trained_for
        from indexer.training.cost_model.machines import train_for_machines
        from indexer.training.cost_model.model_place import save_model
        from tuners.evaluation.machines import judge_machines
    request = _request({**options, "predictor": "trees"})
    with open_database(db, readonly=True) as opened:
        where, wanted, home = opened.platform(platform), _ops(ops), opened.store.path
        if where.instance:
            source = source_of(opened.index, where, wanted[0])
            samples = samples_for(opened.index, where, source)
            file, folder = _place(opened.store, samples, out, options["resume"])
            model = trained_for(where, source, samples)
        else:
            name = request.featurizer
            samples = samples_of_machines(opened.index, where, wanted, featurizer=name)
            file, folder = _place(opened.store, samples, out, options["resume"])
            model, parts = train_for_machines(samples, request.settings("trees"), progress=progress)
            if request.judged:
                model.card["held_out"] = judge_machines(opened.index, where, parts, progress)
    version, problems = save_model(model, file, home, lambda: open_database(db).index)
    return _saved(db, model, (file, folder), (version, problems), samples)


def _train_whole(
    db: str,
    platform: str,
    ops: tuple[str, ...],
    out: str,
    options: dict[str, Any],
    progress: Progress,
) -> dict[str, Any]:
    with needing("training"):
        from embeddb.ui.cli.verbs.train_session import whole_request
        from indexer.training.cost_model.whole import encoder_file, save_whole
        from tuners.evaluation.whole_training import prepared
    request = whole_request(options)
    with open_database(db, readonly=True) as opened:
        where = opened.platform(platform)
        training = prepared(opened.index, where, _ops(ops), request, note=note, progress=progress)
        samples = training.samples
        file, folder = _place(opened.store, samples, out, options["resume"])
        encoder_file(file)  # fail on an invalid name before hours of training
        whole = training.whole(folder, progress)
        home = opened.store.path
    written = save_whole(whole, file, home, lambda: open_database(db).index)
    return _saved(db, whole.model, (file, folder), written, samples)


def _ops(texts: tuple[str, ...]) -> list[Op]:
    wanted = [Op.parse(op) for op in texts]
    matrices_only(wanted, "a cost model")
    return wanted


def _place(store: Store, samples: Samples, out: str, resume: bool) -> tuple[Path, Path]:
    """The model's file and the folder of its checkpoints; prints the training data.

    Raises: UsageError for too few samples, or an unfinished training in that folder."""
    from indexer.training.cost_model.model_place import model_file
    from indexer.training.cost_model.train import unfinished
    from indexer.training.trainer import folder_of

    samples.check()
    file = model_file(store, samples, out)
    folder = folder_of(file)
    if not resume and unfinished(folder):
        raise UsageError(
            f"{folder}: has an unfinished training",
            hint="add --resume to continue it, or remove that folder to start again",
        )
    show_samples(samples)
    return file, folder


def _saved(
    db: str,
    model: CostModel,
    at: tuple[Path, Path],
    written: tuple[str, list[str]],
    samples: Samples,
) -> dict[str, Any]:
    """The document of a saved model; its checkpoints are removed."""
    from indexer.training.cost_model.train import curves, forget

    (file, folder), (version, problems) = at, written
    for line in problems:
        note(f"warning: {file} is saved and in use but not registered: {line}")
        note(f"the next answer that uses it, or `embeddb db rebuild {db}`, registers it")
    forget(folder)
    drawn = [] if model.card["settings"]["predictor"] in ("gp", "trees") else curves(folder)
    card = {**model.card, "version": version, "curves": [str(c) for c in drawn]}
    return {"file": str(file), **card, "left_out": dict(samples.left_out)}


def _request(options: dict[str, Any]) -> TrainingRequest:
    names = ("predictor", "featurizer", "samples", "members", "epochs", "lr", "seed")
    own = {name: options[name] for name in names}
    return TrainingRequest(**own, judged=not options["no_judge"])


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
