"""`train nests`: a network that embeds loop nests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from embeddb.core.errors import NothingFound, UsageError
from embeddb.core.extras import needing
from embeddb.core.files.safe_write import check_place
from embeddb.core.reports import Progress
from embeddb.core.wording import plural
from embeddb.nests.counters import SOURCES
from embeddb.store.counters import counting_platforms
from embeddb.ui.cli.arguments import Number, open_database
from embeddb.ui.cli.output import emit, json_option, note, say
from embeddb.ui.cli.verbs.train_session import session

if TYPE_CHECKING:
    from indexer.training.nests.samples import NestSample


@click.command("nests")
@click.argument("db")
@click.option("-o", "out", required=True, metavar="FILE", help="Model file to write.")
@click.option("--platform", default="", help="Instance of the counters.")
@click.option("--tests", default="", metavar="DB", help="Database of test nests.")
@click.option("--source", default="model", show_default=True, type=click.Choice(SOURCES))
@click.option(
    "--inputs", default="both", show_default=True, type=click.Choice(["both", "static", "dynamic"])
)
@click.option("--epochs", default=20, show_default=True, type=click.IntRange(1, 100_000))
@click.option("--patience", default=5, show_default=True, type=click.IntRange(1))
@click.option("--lr", default=1e-3, show_default=True, type=Number(0, 1, min_open=True))
@click.option("--batch", default=32, show_default=True, type=click.IntRange(1, 4096))
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0, 2**63 - 1))
@click.option("--threads", default=0, type=click.IntRange(0, 1024), help="0: torch's own number.")
@click.option("--resume", is_flag=True, help="Continue an interrupted training.")
@json_option
def nests_verb(db: str, out: str, as_json: bool, **options: Any) -> None:
    """Train the network of nests on the counters in DB (`nest count`).

    It predicts metrics of the canonical schedule (Performance Embeddings, Section 3.3) from the
    nest alone and from its counters; `embed DB --weights FILE` uses it in a database. Groups are
    held out for early stopping. Ctrl-C keeps finished epochs.

    \b
    Example:
      embeddb train nests training.db -o nests.safetensors --tests nests.db
      embeddb train nests training.db -o nests.safetensors --resume
    """
    file = Path(out)
    check_place(file)
    with session(options["threads"]) as progress:
        document = _train(db, file, options, progress)
    if as_json:
        emit(document)
        return
    _show(document)


def _train(db: str, out: Path, options: dict[str, Any], progress: Progress) -> dict[str, Any]:
    with needing("training", extra="graphs"):
        from indexer.training.nests.train import NestTraining, train_nests
        from indexer.training.trainer import Settings, folder_of
    if not options["resume"] and (out.exists() or folder_of(out).exists()):
        raise UsageError(f"{out} already exists", hint="add --resume, or name another file")
    samples = _samples(db, options["platform"], options["source"])
    tests = (
        _samples(options["tests"], options["platform"], options["source"])
        if options["tests"]
        else []
    )
    note(f"{plural(len(samples), 'nest')} of {plural(len({s.group for s in samples}), 'group')}")
    how = NestTraining(
        Settings(
            epochs=options["epochs"],
            lr=options["lr"],
            patience=options["patience"],
            seed=options["seed"],
        ),
        inputs=options["inputs"],
        batch=options["batch"],
        source=options["source"],
    )
    return {"file": str(out), **train_nests(samples, how, out, tests=tests, progress=progress)}


def _samples(db: str, platform: str, source: str) -> list[NestSample]:
    """Samples from the counters of one instance: the only one, or the named one.

    Raises: NothingFound without counters; UsageError if several instances have counters.
    """
    from indexer.nest_runs import counted
    from indexer.training.nests.samples import sample_of

    with open_database(db, readonly=True) as opened:
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


def _show(document: dict[str, Any]) -> None:
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
