"""What of the models goes with an export, and models that come as files beside one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from embeddb.core.files.own_files import OwnFolder
from embeddb.index.lookup import Lookup
from embeddb.store import Partition, Store
from embeddb.store.model_files import MODELS, register_files
from embeddb.store.models import facts_of
from indexer.readers.embeddb import ModelDoc

__all__ = ["adopt_models", "model_docs"]

#: Files of models that rank, as a database names them.
_ADOPTED = ("costmodel-*.safetensors", "kernels-*.safetensors")


def model_docs(store: Store, chosen: list[Partition] | None) -> Iterator[ModelDoc]:
    """What the registered models learned from, by version; of a selection only cost models for
    it. The models themselves stay behind."""
    wanted = {(p.platform.partition("@")[0], p.op.kernel) for p in chosen or ()}
    for entry in store.models.entries():
        facts = facts_of(entry)
        if chosen is None or (facts.platform, facts.kernel) in wanted:
            yield ModelDoc(entry.version, entry.registered, dict(entry.card))


def adopt_models(db: Lookup, folder: Path) -> int:
    """Copy the cost models in `folder`, and those of tensor kernels, into a database on disk and
    register them; how many there were.

    Those of the starter lie beside its file: an export holds runs, not what was learned from them.
    """
    assert db.store.path is not None
    home = OwnFolder(db.store.path, MODELS)
    found = sorted(path for names in _ADOPTED for path in folder.glob(names))
    for model in found:
        home.write(model.name, model.read_bytes())
    register_files(db.store)
    return len(found)
