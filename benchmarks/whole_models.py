"""The papers' table with their models whole: the sparse network learns run times with the rest.

    python benchmarks/spade_runs.py MATRICES SPADE_DATABASE --per-bin 1000 --most 600000
    python benchmarks/whole_models.py CPU_DATABASE SPADE_DATABASE CELLS --matrices MATRICES \\
        > benchmarks/results/whole_models.json

Families, samples and figures are those of `transfer_spade.py`, beside whose rows ("statistics +
MLP" there is COGNATE's settings on statistics) these stand; rows are named as in COGNATE's Table 2
and Figure 4. `took_s` is what a cell took with its source model, if that was not there yet.
`--only REGEX` makes the cells whose name it finds, `--weights FILE` starts from an autoencoder
(`embeddb train featurizer MATRICES -o FILE --network cognate --reduction sites --size 64
--no-shape`). `--epochs`, `--sites`, `--from` (matrices of the source) and `--most` (non-zeros) make
all rows smaller alike, where a machine has no day for the table; the result says so. SPADE's times
come from a timing model, no hardware.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import about
from numpy.typing import NDArray
from transfer_spade import ALL, Cell, Table, digest, fill, summary

from embeddb.core.config import Op
from embeddb.cost_model.model import CostModel
from embeddb.database import Database
from embeddb.index.run_matrix import RunMatrix
from embeddb.index.scopes import scope_of
from embeddb.platforms.platform import Platform
from indexer.training.cost_model.encoder import Encoder, StructureReader, Structures
from indexer.training.cost_model.samples import Reads, Samples, samples_of
from indexer.training.cost_model.settings import CostSettings, forest, preset
from indexer.training.cost_model.train import retarget
from indexer.training.cost_model.whole import Whole, first_encoder, load_whole, train_whole

_OPS = ("spmm:128", "sddmm:128")


def cells(changes: dict[str, int], source: int) -> Iterator[Cell]:
    """Figure 4, Table 2 and Figures 10 to 12; the last counts are all there is here. `source`
    matrices of 100 samples teach first where a name says nothing else."""
    cognate = preset("cognate", **changes)
    yield Cell("COGNATE, NT 5", 0, 5, cognate)
    yield Cell("COGNATE", source, 5, cognate)
    yield Cell("COGNATE, zero-shot", source, 0, cognate)
    yield from _parts(cognate, source)
    yield from _tuned(preset("cognate-tiles", **changes), source)
    yield Cell("WACO+FA", source, 5, preset("waco-fa", **changes))
    yield Cell("WACO+FM", source, 5, preset("waco-fm", **changes))
    for count in (5, 20, ALL):
        yield Cell(f"COGNATE, CPU {_told(count)}", count, 5, cognate)
    for count in (3, 7, 100, ALL):
        yield Cell(f"COGNATE, TL {_told(count)}", source, count, cognate)
    for count in (100, ALL):
        yield Cell(f"COGNATE, NT {_told(count)}", 0, count, cognate)
    yield Cell("COGNATE, 20 x 25", source, 20, cognate, per=25)
    for kind in ("static", "neighbours", "trees"):
        for count in (3, 7, 100, ALL):
            yield Cell(f"{kind}, NT {_told(count)}", 0, count, forest(), kind=kind)
        yield Cell(f"{kind}, 20 x 25", 0, 20, forest(), kind=kind, per=25)
    yield Cell("COGNATE, binary sites", source, 5, replace(cognate, binary=True))


def _parts(cognate: CostSettings, source: int) -> Iterator[Cell]:
    """What the sparse network is worth. Beside it: no model, trees, and the rest of the model on
    what its first weights give or on statistics in its place; nothing else differs there."""
    rest = replace(cognate, encoder="")
    for kind in ("random", "static", "neighbours"):
        yield Cell(f"{kind}, 5 x 100", 0, 5, kind=kind)
    yield Cell("trees, 5 x 100", 0, 5, forest(), kind="trees")
    for kind in ("frozen", "statistics"):
        yield Cell(f"{kind}, NT 5", 0, 5, rest, kind=kind)
        yield Cell(kind, source, 5, rest, kind=kind)
        yield Cell(f"{kind}, zero-shot", source, 0, rest, kind=kind)


def _tuned(whole: CostSettings, source: int) -> Iterator[Cell]:
    """Beyond the papers: told what tiles come to on the matrix, at ten times the rate. Chosen by
    statistics without a source, of four ways, on seeds 3 to 5."""
    for name, settings in (("COGNATE", whole), ("statistics", replace(whole, encoder=""))):
        kind = "statistics" if name == "statistics" else "model"
        yield Cell(f"{name} tuned, NT 5", 0, 5, settings, kind=kind)
        yield Cell(f"{name} tuned", source, 5, settings, kind=kind)
        yield Cell(f"{name} tuned, zero-shot", source, 0, settings, kind=kind)
        yield Cell(f"{name} tuned, NT 100", 0, 100, settings, kind=kind)


def _told(count: int) -> str:
    return "all" if count == ALL else str(count)


class WholeTable(Table):
    """All cells of one op and seed; what a model reads of a matrix is its own encoder's."""

    def __init__(
        self,
        source: Samples,
        target: Samples,
        evidence: RunMatrix,
        folder: Path,
        seed: int,
        structures: Structures,
        weights: Path | None,
    ) -> None:
        super().__init__(source, target, evidence, folder, seed)
        self.structures, self.weights = structures, weights
        self.beside: dict[str, Callable[[], Table]] = {}

    def make(self, cell: Cell) -> None:
        """As `Table.make`; what reads other vectors of the same matrices is made beside."""
        if cell.kind in self.beside:
            self.beside[cell.kind]().make(replace(cell, kind="model"))
        elif cell.kind != "model":
            self.beside["statistics"]().make(cell)
        else:
            super().make(cell)

    def _model(
        self, source: Samples | None, target: Samples | None, settings: CostSettings
    ) -> CostModel:
        start = None if source is None else self._of_source(source, settings)
        if target is not None:
            encoder = first_encoder(settings, self.weights) if start is None else start.encoder
            model = None if start is None else start.model
            made = train_whole(target, settings, encoder, self.structures, start=model)
        else:
            assert start is not None
            made = Whole(retarget(start.model, self.platform, (self.op,)), start.encoder)
        vectors = made.vectors(self.structures, self.test)
        own = [vectors[row.pattern_id] for row in self.test.rows]
        self.test = replace(self.test, vectors=np.array(own))
        return made.model

    def _of_source(self, source: Samples, settings: CostSettings) -> Whole:
        """The source's model, trained once for all cells that start from it."""
        name = f"{self.op.kernel}_{self.seed}_{source.hash}_{digest(settings)}.safetensors"
        file = self.folder / name
        if not file.exists():
            encoder = first_encoder(settings, self.weights)
            started = time.perf_counter()
            place = file.with_suffix("")
            made = train_whole(source, settings, encoder, self.structures, folder=place)
            print(f"{name}: {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
            made.save_encoder(file)
            made.model.save(file)
        return load_whole(file)


@dataclass(frozen=True)
class _Read:
    """What both databases hold of one op, as the sparse network reads it."""

    op: Op
    source: Samples
    target: Samples
    evidence: RunMatrix
    structures: Structures
    statistics: dict[str, NDArray[np.float32]]


def _read(asked: argparse.Namespace, op: str, encoder: Encoder) -> _Read:
    what, structures = Op.parse(op), Structures({})
    statistics: dict[str, NDArray[np.float32]] = {}
    found = []
    for place, platform in ((asked.cpu, asked.source), (asked.spade, asked.target)):
        with Database.open(place, readonly=True) as db:
            reader = StructureReader(db.index, encoder, asked.matrices, structures=structures)
            read = small(db, reader, asked.most)
            found.append(samples_of(db.index, db.platform(platform), [what], read=read))
            statistics |= db.index.evidence(what, scope_of(db.platform(platform)))[1]["stats"]
            evidence = _of_instance(db, what, found[-1].platform)
    source, target = found
    return _Read(what, source, target, evidence, structures, statistics)


def _of_instance(db: Database, op: Op, platform: Platform) -> RunMatrix:
    """What ran on it, of a scope that other machines may share."""
    evidence, _ = db.index.evidence(op, scope_of(platform))
    return evidence.take([i for i, row in enumerate(evidence.rows) if row.platform == platform.id])


def small(db: Database, reader: StructureReader, most: int) -> Reads:
    """Reads the matrices of at most so many non-zeros."""

    def read(ids: Collection[str]) -> Mapping[str, NDArray[np.float32]]:
        found = {i: db.store.pattern(i) for i in ids}
        return reader([i for i, info in found.items() if info is not None and info.nnz <= most])

    return read


def table(asked: argparse.Namespace, op: str, seed: int, binary: bool) -> WholeTable:
    encoder = first_encoder(
        preset("cognate", binary=binary, seed=seed, sites=asked.sites), asked.weights
    )
    read = _read(asked, op, encoder)
    made = WholeTable(
        read.source, read.target, read.evidence, asked.cells, seed, read.structures, asked.weights
    )

    def beside(kind: str, vectors: Mapping[str, NDArray[np.float32]]) -> Table:
        folder = asked.cells / kind
        folder.mkdir(exist_ok=True)
        seen = [_seen(samples, vectors, kind) for samples in (read.source, read.target)]
        other = Table(seen[0], seen[1], read.evidence, folder, seed)
        other.file = made.file
        return other

    def frozen() -> Table:
        ids = sorted({r.pattern_id for s in (read.source, read.target) for r in s.rows})
        vectors = dict(zip(ids, encoder.vectors(read.structures, ids), strict=True))
        return beside("frozen", vectors)

    made.beside["frozen"] = cache(frozen)
    made.beside["statistics"] = cache(lambda: beside("statistics", read.statistics))
    return made


def _seen(samples: Samples, vectors: Mapping[str, NDArray[np.float32]], name: str) -> Samples:
    """The samples with other vectors of their matrices."""
    own = np.array([vectors[row.pattern_id] for row in samples.rows], dtype=np.float32)
    return replace(samples, vectors=own, featurizer=name, featurizer_version="1")


def _told_source(rows: Sequence[Mapping[str, Any]]) -> str:
    simulated = {row["made_by"] for row in rows} != {"measured"}
    return "timing model, no hardware" if simulated else "measured"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("cpu", type=Path)
    parser.add_argument("spade", type=Path)
    parser.add_argument("cells", type=Path)
    parser.add_argument("--matrices", type=Path)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--source", default="cpu", help="platform or instance")
    parser.add_argument("--target", default="spade", help="platform or instance")
    parser.add_argument("--op", action="append")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=0)
    parser.add_argument("--most", type=int, default=10**9, help="non-zeros of a matrix")
    parser.add_argument("--sites", type=int, default=64)
    parser.add_argument("--from", type=int, default=100, dest="matrices_of_source")
    parser.add_argument("--only", default="")
    parser.add_argument("--threads", type=int, default=2)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    asked.cells.mkdir(parents=True, exist_ok=True)
    changes = {"sites": asked.sites}
    if asked.epochs:
        changes |= {"epochs": asked.epochs, "few_epochs": asked.epochs}
    every = cells(changes, asked.matrices_of_source)
    wanted = [cell for cell in every if re.search(asked.only, cell.method)]
    for seed in range(asked.first_seed, asked.first_seed + asked.seeds):
        for op in asked.op or _OPS:
            for binary in (False, True):
                own = [cell for cell in wanted if cell.settings.binary == binary]
                if own:
                    made = table(asked, op, seed, binary)
                    fill(made, own)
    rows = summary(asked.cells)
    result = {
        "about": about(),
        "source_of_times": _told_source(rows),
        "weights": "autoencoder" if asked.weights else "random",
        "epochs": asked.epochs or 100,
        "sites": asked.sites**2,
        "most_nonzeros": asked.most,
        "source_matrices": asked.matrices_of_source,
        "rows": rows,
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
