"""`train costmodel`: a model that ranks configurations, from the runs of a database."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from embeddb.core.config import Op
from embeddb.core.errors import EmbeddbError, MissingDependency, ModelError, UsageError
from embeddb.store.model_files import MODELS, entry_of, register_files
from embeddb.ui.cli.arguments import open_database
from embeddb.ui.cli.output import emit, json_option, note, plural, say
from embeddb.ui.cli.verbs.train.session import session
from tuners.evaluation.choose_predictor import Judge, better, candidates, limited

if TYPE_CHECKING:
    from embeddb.cost_model.model import CostModel
    from embeddb.database import Database
    from indexer.training.cost_model.samples import Samples
    from indexer.training.cost_model.train import CostSettings

__all__ = ["costmodel_verb"]

_PREDICTORS = ("auto", "mlp", "lstm", "gru", "transformer", "trees")
_LATENTS = ("ae", "vae", "pca", "fa")


@click.command("costmodel")
@click.argument("db")
@click.option("--platform", required=True, help="Whose runs: name, id or TOML file.")
@click.option("--op", "ops", required=True, multiple=True, help="Again for more widths.")
@click.option("-o", "out", default="", metavar="FILE", help="Else into the database, in use.")
@click.option("--featurizer", default="stats", show_default=True, help="Of the matrix.")
@click.option("--from", "source", default="", metavar="MODEL", help="Begin with this model.")
@click.option("--samples", default=0, type=click.IntRange(0), help="So many runs of each op.")
@click.option("--predictor", default="auto", show_default=True, type=click.Choice(_PREDICTORS))
@click.option("--fusion", default="concat", show_default=True, type=click.Choice(["add", "concat"]))
@click.option("--latent", default="ae", show_default=True, type=click.Choice(_LATENTS))
@click.option(
    "--loss",
    default="listwise",
    show_default=True,
    type=click.Choice(["listwise", "margin", "logistic"]),
)
@click.option("--members", default=0, type=click.IntRange(0, 64), help="0: 3 networks, 5 trees.")
@click.option("--epochs", default=60, show_default=True, type=click.IntRange(1, 100_000))
@click.option("--lr", default=1e-3, show_default=True, type=click.FloatRange(0, 1, min_open=True))
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0, 2**31 - 1))
@click.option(
    "--threads",
    "count",
    default=1,
    show_default=True,
    type=click.IntRange(0, 1024),
    help="0: torch's.",
)
@click.option("--no-judge", is_flag=True, help="Do not judge it; queries then do not rank by it.")
@click.option("--resume", is_flag=True, help="Go on with the training that was interrupted.")
@json_option
def costmodel_verb(
    db: str, platform: str, ops: tuple[str, ...], out: str, as_json: bool, **asked: Any
) -> None:
    """Train a model on the runs in DB that ranks configurations on matrices nobody ran.

    Without -o the model is the database's own from then on, and `db models` lists what it learned
    from. It is also judged: trained five times more, each time without a fifth of the groups, and
    asked about these. Queries rank by it, by neighbours or by both, whichever was best there.

    --predictor auto: with fewer than 8 groups of matrices trees (where lightgbm is installed), with
    more a network or trees, whichever is better on groups it did not see.

    With --from, what another platform taught is kept: a network goes on from there, trees are told
    what that model says. --samples 500 takes 100 runs of each of 5 matrices that differ in size and
    density. Checkpoints and curves are kept in a folder that ends
    in .training beside the model; Ctrl-C keeps finished epochs.

    \b
    Example:
      embeddb train costmodel runs.db --platform cpu --op spmm:32 --op spmm:128
      embeddb train costmodel spade.db --platform spade --op spmm:128 -o spade.safetensors \\
          --from cpu.safetensors --samples 500
    """
    with session(asked["count"]) as progress:
        document = _train(db, platform, ops, out, asked, progress)
    if as_json:
        emit(document)
        return
    _show(document)


def _train(
    db: str,
    platform: str,
    ops: tuple[str, ...],
    out: str,
    asked: dict[str, Any],
    progress: Callable[[str, int, int], None],
) -> dict[str, Any]:
    from embeddb.cost_model.model import CostModel
    from embeddb.index.scopes import scope_of

    try:
        from indexer.training.cost_model.samples import samples_of
        from indexer.training.cost_model.train import curves, forget, unfinished
    except ModuleNotFoundError as e:
        raise MissingDependency(
            f"training needs {e.name}", hint="install the extra `learn`: pip install '.[learn]'"
        ) from None
    start = CostModel.load(asked["source"]) if asked["source"] else None
    with open_database(db, readonly=True) as opened:
        where = opened.platform(platform)
        wanted = [Op.parse(op) for op in ops]
        known = samples_of(opened, where, wanted, featurizer=asked["featurizer"])
        samples = limited(known, asked)
        samples.check()
        home = opened.store.path
        file = _target(out, None if home is None else Path(home), samples, _named(opened, samples))
        folder = file.with_name(f"{file.stem}.training")
        if not asked["resume"] and unfinished(folder):
            raise UsageError(
                f"{folder}: a training is unfinished there",
                hint="add --resume to go on with it, or remove that folder to begin anew",
            )
        _warn(samples)
        lesson = _Lesson(samples, known, start, asked, folder)
        model = lesson.learned(opened, scope_of(where), progress)
    version = _saved(model, file, db=db, home=home)
    forget(folder)
    drawn = [] if model.card["settings"]["predictor"] == "trees" else curves(folder)
    told = {**model.card, "version": version, "curves": [str(c) for c in drawn]}
    return {"file": str(file), **told, "left_out": dict(samples.left_out)}


@dataclass(frozen=True)
class _Lesson:
    """What is learned from, and how it was asked for; `known` is what `samples` were taken of."""

    samples: Samples
    known: Samples
    start: CostModel | None
    asked: dict[str, Any]
    folder: Path

    def learned(
        self, db: Database, scope: str, progress: Callable[[str, int, int], None]
    ) -> CostModel:
        """The model, of the predictor asked for or of the better one, with how it was judged."""
        from indexer.training.cost_model.train import train

        names, why = candidates(self.asked, self.samples, self.start)
        if why:
            note(f"predictor {why}")
        settings = {name: self._settings(name) for name in names}
        # The network first: it is what a stopped training goes on with.
        first = settings[names[0]]
        model = train(self.samples, first, start=self.start, folder=self.folder, progress=progress)
        if self.asked["no_judge"]:
            return model
        instance = self.known.platform.id
        judges = {
            name: Judge(db, scope, own, self.start, self.asked, instance)
            for name, own in settings.items()
        }
        held = {name: judge(self.known, progress) for name, judge in judges.items()}
        best, why = better(held)
        if len(names) > 1:
            note(f"predictor {why}")
        if best != names[0]:
            model = train(self.samples, settings[best], start=self.start, progress=progress)
        model.card["held_out"] = held.pop(best)
        model.card["hidden"] = judges[best].hidden(self.known, progress)
        for name, found in held.items():
            own = {op: methods["rank"] for op, methods in found.items()}
            model.card["others"] = {**model.card.get("others", {}), name: own}
        return model

    def _settings(self, predictor: str) -> CostSettings:
        from indexer.training.cost_model.train import CostSettings, forest

        members = {"members": self.asked["members"]} if self.asked["members"] else {}
        if predictor == "trees":
            return forest(seed=self.asked["seed"], **members)
        names = ("fusion", "latent", "loss", "epochs", "lr", "seed")
        few = min(CostSettings().few_epochs, self.asked["epochs"])
        own = {name: self.asked[name] for name in names}
        return CostSettings(predictor=predictor, few_epochs=few, **own, **members)


def _named(db: Database, samples: Samples) -> str:
    """Whose model it is: of the machine, where the database knows several of its kind."""
    platform = samples.platform
    kin = {p.platform for p in db.store.partitions()}
    kin = {name for name in kin if name.partition("@")[0] == platform.name}
    return platform.id if len(kin) > 1 else platform.name


def _target(out: str, home: Path | None, samples: Samples, whose: str) -> Path:
    """The file to write; its folder is there."""
    if out:
        file = Path(out)
        if not file.parent.is_dir():
            raise UsageError(f"{out}: there is no folder {file.parent}")
        return file
    if home is None:
        raise UsageError("a database in memory has no folder for models", hint="give -o FILE")
    name = f"costmodel-{whose}-{samples.ops[0].kernel}.safetensors"
    try:
        (home / MODELS).mkdir(exist_ok=True)
    except OSError as e:
        raise UsageError(
            f"{home}: no model can be written there ({e.strerror})", hint="give -o FILE"
        ) from None
    return home / MODELS / name


def _saved(model: CostModel, file: Path, *, db: str, home: Path | None) -> str:
    """Write the model and, where it is the database's own, register it: the file first, so that a
    database that is busy cannot cost a training. Returns its version."""
    own = home is not None and file.parent.resolve() == (Path(home) / MODELS).resolve()
    before = []
    with suppress(ModelError):  # there is none, or nothing can be told of it
        before.append(entry_of(file))
    version = model.save(file)
    if own:
        try:
            with open_database(db) as opened:
                problems = register_files(opened.store, before)
        except EmbeddbError as e:
            problems = [str(e)]
        for line in problems:
            note(f"warning: {file} is saved and in use but not registered: {line}")
            note(f"the next answer that rests on it, or `embeddb db rebuild {db}`, registers it")
    return version


def _warn(samples: Samples) -> None:
    for reason, count in samples.left_out.items():
        note(f"warning: {plural(count, 'matrix', 'matrices')} left out: {reason}")
    groups = len(set(samples.groups))
    note(
        f"{len(samples.gain):,} runs of {plural(len(samples.rows), 'matrix', 'matrices')} in "
        f"{plural(groups, 'group')}"
    )


def _show(document: dict[str, Any]) -> None:
    told = {
        "valid_opa": "ordered pairs",
        "valid_tau": "tau",
        "coverage_80": "covered by the 80 % interval",
    }
    figures = [f"{told[n]} {v:.3f}" for n, v in document["metrics"].items() if n in told]
    judged = ", ".join(figures) or "too few groups to hold any out, so not judged"
    say(
        f"{document['file']}: version {document['version']}, {', '.join(document['ops'])} on "
        f"{document['platform']['name']}, {plural(document['settings']['members'], 'member')}; "
        f"held-out groups: {judged}"
    )
