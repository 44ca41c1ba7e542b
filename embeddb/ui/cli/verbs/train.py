"""`train costmodel|towers`: what is learned from runs of sparse kernels; the group `train`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from embeddb.core.config import Op
from embeddb.core.errors import UsageError
from embeddb.core.extras import needing
from embeddb.core.files.safe_write import OwnFolder, check_place
from embeddb.core.wording import plural, share
from embeddb.core.workload import matrices_only
from embeddb.featurizers.tower import OWN
from embeddb.store.model_files import MODELS
from embeddb.ui.cli import option
from embeddb.ui.cli.arguments import open_database, session
from embeddb.ui.cli.output import Progress, note, result, say, table
from embeddb.ui.cli.verbs.train_networks import featurizer_verb, kernels_verb, nests_verb
from indexer.starter import source_model
from tuners.evaluation.choose_predictor import Training, TrainingRequest
from tuners.evaluation.whole_training import WholeRequest

if TYPE_CHECKING:
    from embeddb.cost_model.model import CostModel
    from embeddb.database import Database
    from embeddb.learning.samples import Samples
    from embeddb.platforms.platform import Platform
    from embeddb.store import Store

    #: A model, its file and the folder of its checkpoints, and its training data.
    _Trained = tuple[CostModel, tuple[Path, Path], Samples]

_PREDICTORS = ("auto", "gp", "mlp", "trees")


@option.verb("costmodel")
@click.argument("db")
@click.option("--platform", required=True, help="Platform of the runs: name, id or TOML file.")
@option.several("--op", "ops", required=True, help="Repeatable, for several widths.")
@option.trained
@option.text("--preset", help="COGNATE with its sparse network: cognate, cognate-tiles.")
@option.text("--matrices", metavar="DIR", help="Folder with structures that DB lacks.")
@option.number("--sites", default=64, least=1, most=2048)
@option.text("--featurizer", default="stats", help="Featurizer of the matrix.")
@option.text("--from", "source", metavar="MODEL", help="Start from this model, or `starter`.")
@option.limit("--samples", help="Use about this many runs of each op.")
@option.choice("--predictor", among=_PREDICTORS)
@option.limit("--members", most=64, help="0: 3 networks, 2 forests.")
@option.number("--epochs", default=60, least=1, most=100_000)
@option.lr
@option.flag("--every-machine", help="Learn from all machines' runs, with their facts.")
@option.number("--seed", default=0, least=0, most=2**31 - 1)
@option.number("--threads", "count", default=1, least=0, most=1024, help="0: torch's.")
@option.flag("--no-judge", help="Skip cross-validation; queries then do not rank by the model.")
@option.resume
def costmodel_verb(db: str, as_json: bool, **options: Any) -> None:
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
    id of one machine as --platform, that model learns again for it from all its widths, its own
    runs counting more, as at the end of `calibrate`; options of training do not apply.

    --preset trains COGNATE with its published settings: the sparse network reads the patterns'
    coordinates (in at most --sites squared cells) and is trained end to end on run times; an MLP
    between it and the predictor is ours. --epochs and --lr change the preset; --from may also be a
    file of `train featurizer --network cognate`, from whose weights the network is trained on. The
    network also becomes a featurizer. One more training validates it. This takes hours, other
    models minutes. Models of other papers are in reproductions/.

    Checkpoints and curves are kept in a folder that ends in .training beside the model; Ctrl-C
    keeps finished epochs. `campaign plan --strategy` measures training data within a budget.

    \b
    Example:
      embeddb train costmodel runs.db --platform cpu --op spmm:32 --op spmm:128
      embeddb train costmodel spade.db --platform spade --op spmm:128 -o spade.safetensors \\
          --from starter --samples 500
      embeddb train costmodel cpu.db --platform cpu --op spmm:128 --preset cognate --threads 2
    """
    from indexer.training.cost_model.model_place import save_model
    from indexer.training.cost_model.train import curves, forget

    ops = [Op.parse(op) for op in options["ops"]]
    matrices_only(ops, "a cost model")
    options["source"] = source_model(options["source"], ops[0])
    if options["every_machine"] and (options["preset"] or options["source"]):
        raise UsageError(
            "--every-machine trains trees from the runs alone", hint="leave out --preset and --from"
        )
    train = _whole if options["preset"] else _alone
    if options["every_machine"]:
        train = _for_machines
    with session(options["count"]) as progress:
        with open_database(db, readonly=True) as opened:
            opened.store.refuse_damage()
            where, home = opened.platform(options["platform"]), opened.store.path
            model, (file, folder), samples = train(opened, where, ops, options, progress)
        version, problems = save_model(model, file, home, lambda: open_database(db).index)
        for line in problems:
            note(f"warning: {file} is saved and in use but not registered: {line}")
            note(f"the next answer that uses it, or `embeddb db rebuild {db}`, registers it")
        forget(folder)
    drawn = [] if model.card["settings"]["predictor"] in ("gp", "trees") else curves(folder)
    card = {**model.card, "version": version, "curves": [str(c) for c in drawn]}
    document = {"file": str(file), **card, "left_out": dict(samples.left_out)}
    result(document, partial(show_trained, db=db), as_json)


def _alone(
    db: Database, where: Platform, ops: list[Op], options: dict[str, Any], progress: Progress
) -> _Trained:
    from embeddb.cost_model.model import CostModel
    from embeddb.learning.samples import samples_of

    request = _request(options)
    start = CostModel.load(options["source"]) if options["source"] else None
    all_samples = samples_of(db.index, where, ops, featurizer=request.featurizer)
    samples = request.limited(all_samples)
    at = _place(db.store, samples, options)
    training = Training(db.index, all_samples, request, start, at[1], note)
    with needing("training"):
        return training.model(progress), at, samples


def _for_machines(
    db: Database, where: Platform, ops: list[Op], options: dict[str, Any], progress: Progress
) -> _Trained:
    with needing("training"):
        from embeddb.learning.samples import samples_of_machines
        from indexer.training.cost_model.local import samples_for, source_of, trained_for
        from indexer.training.cost_model.machines import train_for_machines
        from tuners.evaluation.learned import judge_machines
    request = _request({**options, "predictor": "trees"})
    if where.instance:
        if len({op.name for op in ops}) > 1:
            raise UsageError("one cost model is for one kernel", hint="train one for each")
        source = source_of(db.index, where, ops[0])
        samples = samples_for(db.index, where, source)
        at = _place(db.store, samples, options)
        model = trained_for(where, source, samples)
        model.card["held_out"] = model.card["held_out"] if request.judged else {}
    else:
        samples = samples_of_machines(db.index, where, ops, featurizer=request.featurizer)
        at = _place(db.store, samples, options)
        model, parts = train_for_machines(samples, request.settings("trees"), progress=progress)
        if request.judged:
            model.card["held_out"] = judge_machines(db.index, where, parts, progress)
    return model, at, samples


def _whole(
    db: Database, where: Platform, ops: list[Op], options: dict[str, Any], progress: Progress
) -> _Trained:
    with needing("training"):
        from indexer.training.cost_model.whole import encoder_file
        from tuners.evaluation.whole_training import prepared
    request = _whole_request(options)
    training = prepared(db.index, where, ops, request, note=note, progress=progress)
    file, folder = _place(db.store, training.samples, options)
    encoder_file(file)  # fail on an invalid name before hours of training
    whole = training.whole(folder, progress)
    whole.save_encoder(file)
    return whole.model, (file, folder), training.samples


def _place(store: Store, samples: Samples, options: dict[str, Any]) -> tuple[Path, Path]:
    """The model's file and the folder of its checkpoints; prints the training data. Raises:
    UsageError for too few samples, or an unfinished training in that folder."""
    from indexer.training.cost_model.model_place import own_file
    from indexer.training.cost_model.train import unfinished
    from indexer.training.folder import folder_of

    samples.check()
    file = own_file(store, "costmodel", samples.platform, samples.ops[0], options["out"])
    folder = folder_of(file)
    if not options["resume"] and unfinished(folder):
        raise UsageError(
            f"{folder}: has an unfinished training",
            hint="add --resume to continue it, or remove that folder to start again",
        )
    for reason, count in samples.left_out.items():
        note(f"warning: {plural(count, 'matrix', 'matrices')} left out: {reason}")
    note(
        f"{len(samples.gain):,} runs of {plural(len(samples.rows), 'matrix', 'matrices')} in "
        f"{plural(len(set(samples.groups)), 'group')}"
    )
    return file, folder


def _request(options: dict[str, Any]) -> TrainingRequest:
    names = ("predictor", "featurizer", "samples", "members", "epochs", "lr", "seed")
    own = {name: options[name] for name in names}
    return TrainingRequest(**own, judged=not options["no_judge"])


#: Options that override a preset.
_CHANGES = ("predictor", "epochs", "lr", "sites")


def _whole_request(options: dict[str, Any]) -> WholeRequest:
    """A request from the options of the current command, by name. Raises: UsageError for an unknown
    preset or setting."""
    with needing("training"):
        from indexer.training.cost_model.settings import preset
    source = click.get_current_context().get_parameter_source
    overrides = {n: options[n] for n in _CHANGES if source(n) is ParameterSource.COMMANDLINE}
    if "epochs" in overrides:
        overrides |= {"few_epochs": overrides["epochs"], "patience": overrides["epochs"]}
    if overrides.get("predictor") in ("auto", "gp", "trees"):
        raise UsageError("a preset's predictor is a network", hint="leave --predictor out")
    start, matrices = (
        Path(options[name]) if options[name] else None for name in ("source", "matrices")
    )
    return WholeRequest(
        settings=preset(options["preset"], seed=options["seed"], **overrides),
        samples=options["samples"],
        judged=not options["no_judge"],
        start=start,
        matrices=matrices,
    )


#: Rankers by their name in a card; of equals the first is taken.
_BY = {"transfer": "neighbours", "rank": "the model", "transfer+rank": "both together"}
#: With fewer held-out groups, differences between rankers are mostly chance.
_FEWEST_GROUPS = 10
_FIGURES = {
    "valid_opa": "ordered pairs",
    "valid_tau": "tau",
    "coverage_80": "covered by the 80 % interval",
}


def show_trained(document: Mapping[str, Any], db: str) -> None:
    """Print the document of `train costmodel`; `db` is the database on the command line."""
    figures = [f"{_FIGURES[n]} {v:.3f}" for n, v in document["metrics"].items() if n in _FIGURES]
    judged = ", ".join(figures) or "too few groups for cross-validation"
    say(
        f"{document['file']}: version {document['version']}, {', '.join(document['ops'])} on "
        f"{document['platform']['name']}, {plural(document['settings']['members'], 'member')}; "
        f"held-out groups: {judged}"
    )
    error = document.get("squared_error")
    if error:
        used = "used" if "source" in document else "not used"
        say(
            f"the source is {used}: squared error of gains on held-out rows "
            f"{error['with_source']:.4f} with it, {error['alone']:.4f} without"
        )
    for op in document["ops"]:
        say(_ranking(document, op, db))


def _ranking(document: Mapping[str, Any], op: str, db: str) -> str:
    """One line: the ranker that queries of an op will use, and why."""
    figures = document["held_out"].get(op, {})
    if not figures:
        return f"{op}: queries do not rank by it: it was not cross-validated"
    able = [method for method in _BY if method in figures]

    def judged(method: str) -> tuple[float, float]:
        return figures[method]["of_optimum@1"], figures[method].get("of_optimum@5", 0.0)

    joins = bool(document.get("machines")) and "transfer+rank" in able
    best = "transfer+rank" if joins else max(able, key=judged)
    shares = ", ".join(f"{_BY[m]} {share(figures[m]['of_optimum@1'])}" for m in able)
    how = "with machines left out" if document.get("machines") else "cross-validated by group"
    before = ", before it learned from this machine" if "own_rows" in document else ""
    of = f"of the fastest configuration on each matrix, {how}{before}"
    if Path(document["file"]).parent.name != MODELS:
        return f"{op}: queries of {db} do not rank by it: its file is elsewhere; {shares} {of}"
    how = "rank as without it" if best == "transfer" else f"rank by {_BY[best]}"
    alone = "" if best == "rank" else "; `embeddb query --tuner rank` uses the model alone"
    groups, few = int(figures[best].get("groups", _FEWEST_GROUPS)), ""
    if groups < _FEWEST_GROUPS:
        few = f"evaluated on only {plural(groups, 'group')}, too few for a significant difference: "
    return f"{op}: queries {how}: {few}{shares} {of}{alone}"


# -- towers ----------------------------------------------------------------------------------------


@option.verb("towers")
@click.argument("db")
@option.trained
@option.number("--seed", default=0, least=0, most=2**31 - 1)
@option.number("--threads", default=1, least=0, most=1024, help="0: torch's.")
@option.resume
def towers_verb(db: str, out: str, as_json: bool, **options: Any) -> None:
    """Learn vectors of matrices and of configurations from all runs of sparse kernels in DB.

    A small network maps the 48 statistics of a matrix to 16 numbers, another one the parameters of
    a configuration; their inner product ranks. Without -o queries find neighbours by statistics and
    these vectors wherever held-out answers are as good as by statistics alone, and configurations
    by the inner product. Five more trainings without a fifth of the families each give the held-out
    figures.

    \b
    Example:
      embeddb train towers runs.db
      embeddb train towers runs.db -o towers.safetensors
      embeddb embed other.db --weights towers.safetensors
    """
    with session(options["threads"]) as progress:
        document = _train_towers(db, out, options, progress)
        if not out:
            from indexer.embed import embed

            with open_database(db) as opened:
                opened.index.use_weights(document["file"])
                report = embed(opened.index, progress=progress)
            document |= {"indexes": report.partitions, "problems": report.problems}
    result(document, _show_towers, as_json)


def _train_towers(db: str, out: str, options: dict[str, Any], progress: Progress) -> dict[str, Any]:
    with needing("training"):
        from indexer.training.towers import tower_data, train_towers, unfinished
    with open_database(db, readonly=True) as opened:
        opened.store.refuse_damage()
        home, file = opened.store.path, Path(out)
        if out:
            check_place(file)
        elif home is None:
            raise UsageError("a database in memory has no folder for weights", hint="give -o FILE")
        else:
            file = Path(home) / OWN
            try:
                OwnFolder(Path(home), OWN.parent.name).make()
            except OSError as e:
                fault = f"{home}: no weights can be written there ({e.strerror})"
                raise UsageError(fault, hint="give -o FILE") from None
        if unfinished(file) and not options["resume"]:
            raise UsageError(
                f"{file}: a training is unfinished there",
                hint="add --resume to go on with it, or remove its .training folder",
            )
        data = tower_data(opened.index, progress=progress)
    note(
        f"{data.runs:,} runs of {plural(len(data.ids), 'matrix', 'matrices')}, "
        f"{plural(len(data.units), 'operation')} on {plural(len(data.trunks), 'space')}"
    )
    return {"file": str(file), **train_towers(data, file, seed=options["seed"], progress=progress)}


def _show_towers(document: dict[str, Any]) -> None:
    say(f"{document['file']}: version {document['version']}; with families held out:")
    rows = []
    for unit in document["units"]:
        figures = map("{:.3f}".format, unit["held_out"].values())
        rows.append((unit["op"], unit["platform"], unit["matrices"], *figures))
    head = ("operation", "platform", "matrices", "of optimum@1", "@5", "recall@10", "@50")
    table(head, rows)
    for one in document.get("indexes", ()):
        if one["op"] in {unit["op"] for unit in document["units"]}:
            say(f"{one['op']} on {one['scope']}: neighbours by {one['featurizer']}")


@click.group(
    "train", commands=[featurizer_verb, towers_verb, costmodel_verb, nests_verb, kernels_verb]
)
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
