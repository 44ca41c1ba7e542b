"""Where a model's file goes, and its entry in the database that it belongs to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from embeddb.core.config import Op
from embeddb.core.errors import EmbeddbError, ModelError, UsageError
from embeddb.core.files.safe_write import OwnFolder, check_place
from embeddb.platforms.platform import Platform
from embeddb.store import Store
from embeddb.store.model_files import MODELS, entry_of, register_files
from embeddb.store.models import ModelEntry

if TYPE_CHECKING:
    from embeddb.cost_model.model import CostModel
    from embeddb.index.lookup import Lookup
    from embeddb.learning.samples import Samples


def model_file(store: Store, samples: Samples, out: str = "") -> Path:
    """The file of a cost model: `out`, else the database's own; its folder is there.

    Raises: UsageError as `own_file`.
    """
    return own_file(store, "costmodel", samples.platform, samples.ops[0], out)


def own_file(store: Store, kind: str, platform: Platform, op: Op, out: str = "") -> Path:
    """`out`, else where the database looks for its model of that kind; its folder is there.

    Raises: UsageError as `check_place`, and if no folder can be made.
    """
    if out:
        file = Path(out)
        check_place(file)
        return file
    if store.path is None:
        raise UsageError("a database in memory has no folder for models", hint="give -o FILE")
    home = Path(store.path)
    try:
        OwnFolder(home, MODELS).make()
    except OSError as e:
        raise UsageError(
            f"{home}: no model can be written there ({e.strerror})", hint="give -o FILE"
        ) from None
    return home / MODELS / f"{kind}-{_owner(store, platform)}-{op.name}.safetensors"


def _owner(store: Store, platform: Platform) -> str:
    """Whose model it is: of the machine, where the database knows several of its kind."""
    kin = {p.platform for p in store.partitions()}
    kin = {name for name in kin if name.partition("@")[0] == platform.name}
    return platform.id if len(kin) > 1 else platform.name


def save_model(
    model: CostModel,
    file: Path,
    home: str | Path | None,
    reopen: Callable[[], AbstractContextManager[Lookup]],
) -> tuple[str, list[str]]:
    """Write a model and register it as `written` does: the file first, so that a database that is
    busy cannot cost a training.

    Returns its version, and why it is not registered if it could not be.
    """
    before = replaced_by(file)
    return model.save(file), written(file, before, home, reopen)


def replaced_by(file: Path) -> list[ModelEntry]:
    """The entry of the model that is there now, if there is one of which something can be told."""
    with suppress(ModelError):
        return [entry_of(file)]
    return []


def written(
    file: Path,
    before: Sequence[ModelEntry],
    home: str | Path | None,
    reopen: Callable[[], AbstractContextManager[Lookup]],
) -> list[str]:
    """Register a model file that was written, where it is the own one of the database at `home`;
    `before` is what `replaced_by` gave. `reopen` opens the database for writing, for no longer than
    that. Returns why it is not registered if it could not be."""
    if home is None or file.parent.resolve() != (Path(home) / MODELS).resolve():
        return []
    try:
        with reopen() as db:
            return register_files(db.store, before)
    except EmbeddbError as e:
        return [str(e)]
