"""Cost models of matrices that do not ship: WACO's, DASH, and the ablations of COGNATE, trained on
the runs of a database and judged on matrix families held out.

    python -m reproductions.cost_models DB --platform cpu --op spmm:128 --model waco-fm --whole
    python -m reproductions.cost_models DB --platform cpu --op spmm:128 --model lstm

With `--whole` the matrix side is the paper's sparse network, trained by run times together with the
rest (hours; structures that DB does not keep are read from `--matrices`); else it is the vector of
a featurizer. Settings are COGNATE's (Table 3) but for what the model changes. The card of each
model, with its held-out figures, is printed as JSON; nothing that queries read is written.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from embeddb.core.config import Op
from embeddb.database import Database
from embeddb.index.lookup import Lookup
from embeddb.learning.samples import samples_of
from indexer.training.cost_model.settings import CostSettings, paper, preset
from reproductions import cost_networks
from tuners.evaluation.choose_predictor import Training, TrainingRequest
from tuners.evaluation.whole_training import WholeRequest, prepared

_ALL = ("featurizer", "mapper", "latent")
_WACO = {"latent": "fa", "fusion": "concat"}
#: By model, what it changes of COGNATE's settings. DASH is the earlier form of COGNATE: parts and
#: tables are the same.
MODELS: dict[str, dict[str, Any]] = {
    "dash": {},
    "waco-fa": {**_WACO, "predictor": "every", "parts": ("featurizer", "latent")},
    "waco-fm": _WACO,
    **{kind: {"predictor": kind} for kind in ("lstm", "gru", "transformer")},
    **{kind: {"latent": kind} for kind in ("vae", "pca")},
    "fa": _WACO,
    "logistic": {"loss": "logistic"},
    "listwise": {"loss": "listwise"},
    "concat": {"fusion": "concat"},
    **{f"without-{part}": {"parts": tuple(p for p in _ALL if p != part)} for part in _ALL},
}


def settings_of(model: str, *, whole: bool = False, **changes: Any) -> CostSettings:
    """The settings of one of `MODELS`. WACO whole has its own network of matrices, and its program
    embedder in the place of mapper and latent."""
    own = MODELS[model]
    if not whole:
        return paper(**{**own, **changes})
    if model.startswith("waco"):
        own = {**own, "predictor": model, "encoder": "waco"}
    return preset("cognate", **{**own, **changes})


def main(arguments: list[str]) -> None:
    asked = _parser().parse_args(arguments)
    changes = {name: getattr(asked, name) for name in ("epochs", "lr") if getattr(asked, name)}
    if asked.epochs:
        changes |= {"few_epochs": asked.epochs, "patience": asked.epochs}
    if asked.whole:
        changes |= {"sites": asked.sites, "binary": asked.binary}
    settings = settings_of(asked.model, whole=asked.whole, seed=asked.seed, **changes)
    with Database.open(asked.db, readonly=True) as db:
        train = _whole if asked.whole else _plain
        card = train(db.index, settings, asked)
    text = json.dumps({"model": asked.model, **card}, indent=1)
    print(text)
    if asked.json:
        Path(asked.json).write_text(text + "\n")


def _plain(db: Lookup, settings: CostSettings, asked: argparse.Namespace) -> dict[str, Any]:
    request = TrainingRequest(
        predictor=settings.predictor,
        featurizer=asked.featurizer,
        samples=asked.samples,
        network=settings,
        members=settings.members,
        epochs=settings.epochs,
        lr=settings.lr,
        seed=settings.seed,
    )
    known = samples_of(
        db,
        db.platform(asked.platform),
        [Op.parse(op) for op in asked.op],
        featurizer=asked.featurizer,
    )
    return Training(db, known, request, None, Path(asked.folder), _note).model(_quiet).card


def _whole(db: Lookup, settings: CostSettings, asked: argparse.Namespace) -> dict[str, Any]:
    request = WholeRequest(
        settings=settings,
        samples=asked.samples,
        matrices=Path(asked.matrices) if asked.matrices else None,
    )
    ops = [Op.parse(op) for op in asked.op]
    training = prepared(db, db.platform(asked.platform), ops, request, note=_note, progress=_quiet)
    return training.whole(Path(asked.folder), _quiet).model.card


def _note(line: str) -> None:
    print(line, file=sys.stderr)


def _quiet(what: str, done: int, of: int) -> None:
    pass


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m reproductions.cost_models",
        description=f"{__doc__}\n{cost_networks.__doc__}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("db", help="database with runs of matrices")
    parser.add_argument("--platform", required=True)
    parser.add_argument("--op", required=True, action="append", help="again for more widths")
    parser.add_argument("--model", required=True, choices=sorted(MODELS))
    parser.add_argument("--whole", action="store_true", help="with the paper's sparse network")
    parser.add_argument("--matrices", default="", help="structures that DB does not keep")
    parser.add_argument("--featurizer", default="stats", help="of the matrix, without --whole")
    parser.add_argument("--samples", type=int, default=0, help="runs of each op; 0: all")
    parser.add_argument("--sites", type=int, default=64, help="cells a side, with --whole")
    parser.add_argument("--binary", action="store_true", help="only where nonzeros are")
    parser.add_argument("--epochs", type=int, default=0, help="0: as in the paper")
    parser.add_argument("--lr", type=float, default=0.0, help="0: as in the paper")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", default="cost_models", help="checkpoints and curves")
    parser.add_argument("--json", default="", help="file to write")
    return parser


if __name__ == "__main__":
    main(sys.argv[1:])
