"""The 24 models of "A Learned Performance Model for Tensor Processing Units" (Tables 6, 7): none,
GraphSAGE or GAT, by four reductions, for tiles and for fused kernels, trained on the runs of a
database and judged on families (or programs) held out.

    python -m reproductions.tpu_paper DB --task tile --model sage-lstm --hidden 128
    python -m reproductions.tpu_paper DB --task tile --model all --hidden 128 --json rows.json

Table 5 holds for all of them: opcode embeddings of 256, three graph layers, three final layers, no
biases, column-wise mean and max, four heads of attention, sums over the Transformer. The rates were
tuned with the hidden width of the table: with another one they are a start, no result. The paper
clips by norm without a number: 1 here.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch.nn import functional

from embeddb.core.config import Op
from embeddb.core.errors import UsageError
from embeddb.database import Database
from indexer.training.folder import folder_of, forget
from indexer.training.tensors.figures import figures_of
from indexer.training.tensors.fitting import (
    KernelTraining,
    Recipe,
    fitted_network,
    predictions_of,
    recipe,
    wrong_orders,
)
from indexer.training.tensors.samples import KernelSample, runs_of, split
from reproductions.tpu_networks import GNNS, PLACES, REDUCTIONS, PaperNetwork, PaperSpec

_CLIP = 1.0
#: Hidden, L2 norm, module layers, transformer layers, GAT heads, rate, decay, clip, dropout, loss.
_Row = tuple[int, bool, int, int, int, float, float, bool, float, str]
_TILE: dict[tuple[str, str], _Row] = {
    ("none", "per-node"): (512, False, 3, 0, 0, 0.000802, 1.0, False, 0.1, "hinge"),
    ("none", "column-wise"): (1024, False, 3, 0, 0, 0.000642, 1.0, False, 0.1, "hinge"),
    ("none", "lstm"): (512, False, 0, 0, 0, 0.000434, 0.99, True, 0.1, "hinge"),
    ("none", "transformer"): (1024, False, 0, 3, 0, 0.000424, 0.99, True, 0.1, "hinge"),
    ("sage", "per-node"): (512, False, 0, 0, 0, 0.001526, 1.0, False, 0.1, "hinge"),
    ("sage", "column-wise"): (1024, False, 0, 0, 0, 0.000642, 1.0, False, 0.1, "logistic"),
    ("sage", "lstm"): (1024, False, 0, 0, 0, 0.000386, 0.98, True, 0.1, "hinge"),
    ("sage", "transformer"): (1024, False, 0, 1, 0, 0.000466, 1.0, True, 0.1, "hinge"),
    ("gat", "per-node"): (512, False, 0, 0, 2, 0.00001, 1.0, True, 0.1, "hinge"),
    ("gat", "column-wise"): (512, False, 0, 0, 4, 0.00001, 1.0, True, 0.1, "hinge"),
    ("gat", "lstm"): (512, False, 0, 0, 4, 0.00001, 0.99, True, 0.1, "hinge"),
    ("gat", "transformer"): (512, False, 0, 2, 4, 0.00001, 1.0, True, 0.1, "hinge"),
}
_FUSED: dict[tuple[str, str], _Row] = {
    ("none", "per-node"): (512, False, 3, 0, 0, 0.000214, 0.95, False, 0.2, "squared"),
    ("none", "column-wise"): (512, False, 3, 0, 0, 0.000102, 1.0, False, 0.25, "squared"),
    ("none", "lstm"): (512, False, 0, 0, 0, 0.000144, 1.0, False, 0.25, "squared"),
    ("none", "transformer"): (512, True, 0, 1, 0, 0.000862, 1.0, True, 0.25, "squared"),
    ("sage", "per-node"): (512, False, 0, 0, 0, 0.000664, 0.9, False, 0.2, "squared"),
    ("sage", "column-wise"): (1024, False, 0, 0, 0, 0.000469, 0.9, False, 0.2, "squared"),
    ("sage", "lstm"): (1024, False, 0, 0, 0, 0.000962, 0.9, False, 0.2, "squared"),
    ("sage", "transformer"): (512, True, 0, 2, 0, 0.000768, 1.0, False, 0.2, "squared"),
    ("gat", "per-node"): (1024, False, 0, 0, 2, 0.000002, 0.9, False, 0.25, "squared"),
    ("gat", "column-wise"): (1024, False, 0, 0, 2, 0.000004, 0.95, False, 0.2, "squared"),
    ("gat", "lstm"): (1024, False, 0, 0, 2, 0.000006, 0.95, False, 0.25, "squared"),
    ("gat", "transformer"): (1024, False, 0, 2, 2, 0.000001, 1.0, True, 0.2, "squared"),
}


def model_names() -> list[str]:
    """`sage-lstm` and the like."""
    return [f"{gnn}-{reduction}" for gnn in GNNS for reduction in REDUCTIONS]


def paper_recipe(task: str, name: str, hidden: int = 0, **spec: Any) -> Recipe:
    """A row of Table 6 (`tile`) or 7 (`fused`), with `hidden` numbers of a node where that is not
    0, and other parts of the network by name.

    Raises: UsageError for another name.
    """
    if name not in model_names():
        raise UsageError(f"no model {name!r}", hint=", ".join(model_names()))
    gnn, _, reduction = name.partition("-")
    rows = {"tile": _TILE, "fused": _FUSED}[task]
    width, norm, module, attention, heads, lr, decay, clip, dropout, loss = rows[gnn, reduction]
    parts = {
        "tile": "nodes" if task == "tile" else "none",
        "norm": norm,
        "module": module,
        "attention": attention or 1,
        "gat_heads": heads or 4,
    }
    network = PaperSpec(task, hidden or width, gnn=gnn, reduction=reduction, **{**parts, **spec})
    losses = {loss: recipe(task).loss, "logistic": wrong_orders(lambda d: functional.softplus(-d))}
    return replace(
        recipe(task, lr=lr),
        name=name,
        spec=network,
        loss=losses[loss],
        loss_name=loss,
        decay=decay,
        clip=_CLIP if clip else 0.0,
        dropout=dropout,
        network=PaperNetwork,
    )


def judged(samples: list[KernelSample], how: KernelTraining, folder: Path) -> dict[str, Any]:
    """Train one model in a folder, where a stopped training goes on; its figures on what was held
    out. Of the rest another part ends the training early, as in the paper's three sets."""
    rest, tests = split(samples, how.by, how.seed)
    train, valid = split(rest, how.by, how.seed)
    out = folder / f"{how.task}-{how.recipe.name}-{how.seed}.safetensors"
    network, fitted = fitted_network(train, valid, how, out, progress=lambda *_: None)
    forget(folder_of(out))
    return {
        "model": how.recipe.name,
        "task": how.task,
        "hidden": how.recipe.spec.hidden,
        "seed": how.seed,
        "epochs": fitted.epochs,
        "parameters": sum(p.numel() for p in network.parameters()),
        **figures_of(how.task, tests, predictions_of(network, tests)),
    }


def main(arguments: list[str]) -> None:
    asked = _parser().parse_args(arguments)
    names = model_names() if asked.model == "all" else [asked.model]
    changed = {n: getattr(asked, n) for n in ("tile", "static") if getattr(asked, n)}
    if asked.undirected:
        changed["directed"] = False
    with Database.open(asked.db, readonly=True) as db:
        samples = runs_of(db.store, Op(asked.task), asked.platform).samples
    rows = []
    for name in names:
        own = paper_recipe(asked.task, name, asked.hidden, **changed)
        if asked.squared:
            own = replace(own, loss=recipe("fused").loss, loss_name="squared")
        how = KernelTraining(own, asked.epochs, asked.patience, by=asked.by, seed=asked.seed)
        rows.append(judged(samples, how, Path(asked.folder)))
        print(json.dumps(rows[-1]), flush=True)
    if asked.json:
        Path(asked.json).write_text(json.dumps(rows, indent=1) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m reproductions.tpu_paper",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("db", help="database with runs of tiles or fused kernels")
    parser.add_argument("--task", choices=["tile", "fused"], default="tile")
    parser.add_argument("--model", choices=[*model_names(), "all"], default="all")
    parser.add_argument("--platform", default="", help="the instance whose runs are taken")
    parser.add_argument("--hidden", type=int, default=0, help="0: as in the table")
    parser.add_argument("--tile-features", dest="tile", choices=PLACES, help="else as in the table")
    parser.add_argument("--static-features", dest="static", choices=PLACES)
    parser.add_argument("--undirected", action="store_true", help="one set of weights for edges")
    parser.add_argument("--squared", action="store_true", help="squared error in place of ranks")
    parser.add_argument("--by", choices=["family", "program"], default="family")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--patience", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", default="tpu_paper", help="checkpoints and curves")
    parser.add_argument("--json", default="", help="file to write")
    return parser


if __name__ == "__main__":
    main(sys.argv[1:])
