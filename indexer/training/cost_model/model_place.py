"""Where a cost model's file goes, and its entry in the database that it belongs to."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from embeddb.core.errors import EmbeddbError, ModelError, UsageError
from embeddb.core.files.own_files import OwnFolder, check_place
from embeddb.store import Store
from embeddb.store.models.files import MODELS, entry_of, register_files

if TYPE_CHECKING:
    from embeddb.cost_model.model import CostModel
    from embeddb.index.lookup import Lookup
    from indexer.training.cost_model.samples import Samples

__all__ = ["model_file", "save_model"]


def model_file(store: Store, samples: Samples, out: str = "") -> Path:
    """The file to write: `out`, else the database's own; its folder is there.

    Raises: UsageError as `check_place`, and if no folder can be made.
    """
    if out:
        file = Path(out)
        check_place(file)
        return file
    if store.path is None:
        raise UsageError("a database in memory has no folder for models", hint="give -o FILE")
    home = Path(store.path)
    name = f"costmodel-{_owner(store, samples)}-{samples.ops[0].kernel}.safetensors"
    try:
        OwnFolder(home, MODELS).make()
    except OSError as e:
        raise UsageError(
            f"{home}: no model can be written there ({e.strerror})", hint="give -o FILE"
        ) from None
    return home / MODELS / name


def _owner(store: Store, samples: Samples) -> str:
    """Whose model it is: of the machine, where the database knows several of its kind."""
    platform = samples.platform
    kin = {p.platform for p in store.partitions()}
    kin = {name for name in kin if name.partition("@")[0] == platform.name}
    return platform.id if len(kin) > 1 else platform.name


def save_model(
    model: CostModel,
    file: Path,
    home: str | Path | None,
    reopen: Callable[[], AbstractContextManager[Lookup]],
) -> tuple[str, list[str]]:
    """Write a model and, where `file` is the own one of the database at `home`, register it there:
    the file first, so that a database that is busy cannot cost a training. `reopen` opens the
    database for writing, for no longer than that.

    Returns its version, and why it is not registered if it could not be.
    """
    own = home is not None and file.parent.resolve() == (Path(home) / MODELS).resolve()
    before = []
    with suppress(ModelError):  # there is none, or nothing can be told of it
        before.append(entry_of(file))
    version = model.save(file)
    if not own:
        return version, []
    try:
        with reopen() as db:
            return version, register_files(db.store, before)
    except EmbeddbError as e:
        return version, [str(e)]
