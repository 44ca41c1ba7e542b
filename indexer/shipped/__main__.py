"""`python -m indexer.shipped EXPORT… FILE` creates the shipped file from exports. The exports of
the current one are written by `embeddb db export starter runs.jsonl.gz`, one per platform with
`--platform`. The towers beside FILE (`embeddb train towers`) are among its featurizers; networks
beside it that rank configurations (`embeddb train costmodel`) are stored in half precision.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from embeddb.core.errors import EmbeddbError, InputError
from embeddb.core.files import model_file
from embeddb.index.lookup import Lookup
from indexer.embed import embed
from indexer.exchange.exchange import import_file
from indexer.exchange.export_records import adopt_models
from indexer.shipped.file import pack


def import_all(db: Lookup, exports: Sequence[Path]) -> None:
    """Import exports, one after the other, into an empty database, and compute its vectors.

    Raises: InputError for a damaged line.
    """
    for file in exports:
        report = import_file(db, file, rejects=False)
        if report.rejected:
            raise InputError(f"{report.rejected} damaged lines", where=str(file))
    # All vectors in one write, however slow the machine: writes are counted, and the count ships.
    embed(db, build=False, again=True)


def fit_all(db: Lookup) -> None:
    """Note how the votes of every partition are fitted; the partitions themselves do not ship."""
    for op, scope in db.scopes():
        db.refresh(op, scope)
    db.forget_partitions()


def halve(folder: Path) -> None:
    """Store the weights of networks among the cost models in half precision, which changes their
    log gains by less than 0.001. Trees stay: their thresholds decide exactly."""
    for file in sorted(folder.glob("costmodel-*.safetensors")):
        tensors, card, _ = model_file.read(file, kind="costmodel")
        if any(".mapper." in name for name in tensors):
            half = {
                n: a.astype(np.float16) if a.dtype == np.float32 else a for n, a in tensors.items()
            }
            model_file.save(file, half, card)


def ship(exports: Sequence[Path], to: Path) -> None:
    """Write the shipped file. The same exports and featurizers give the same bytes.

    Raises: InputError for a damaged export; UsageError as `pack`; OSError.
    """
    with tempfile.TemporaryDirectory() as folder, Lookup.create(Path(folder) / "db") as db:
        halve(to.parent)
        adopt_models(db, to.parent)
        import_all(db, exports)
        fit_all(db)
        pack(db.store.engine, to)


def main(args: list[str]) -> int:
    if len(args) < 2:
        sys.stderr.write("python -m indexer.shipped EXPORT… FILE\n")
        return 2
    *exports, to = map(Path, args)
    try:
        ship(exports, to)
    except (EmbeddbError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
