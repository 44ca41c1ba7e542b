"""The file of a model, and its entry in its database."""

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


def own_file(store: Store, kind: str, platform: Platform, op: Op, out: str = "") -> Path:
    """`out`, else the database's own file of a model of that kind, in an existing folder.

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
    ids = {p.platform for p in store.partitions()}
    instances = [name for name in ids if name.partition("@")[0] == platform.name]
    owner = platform.id if len(instances) > 1 else platform.name
    return home / MODELS / f"{kind}-{owner}-{op.name}.safetensors"


def save_model(
    model: CostModel,
    file: Path,
    home: str | Path | None,
    reopen: Callable[[], AbstractContextManager[Lookup]],
) -> tuple[str, list[str]]:
    """Write a model, then register it by `written`, so that a busy database does not lose a
    training. Returns its version, and the reasons if it could not be registered."""
    before = replaced_by(file)
    return model.save(file), written(file, before, home, reopen)


def replaced_by(file: Path) -> list[ModelEntry]:
    """Entry of the existing model file; empty without a readable one."""
    with suppress(ModelError):
        return [entry_of(file)]
    return []


def written(
    file: Path,
    before: Sequence[ModelEntry],
    home: str | Path | None,
    reopen: Callable[[], AbstractContextManager[Lookup]],
) -> list[str]:
    """Register a written model file if it is in the folder of the database at `home`; `before` is
    the result of `replaced_by`, `reopen` opens the database for writing. Returns the reasons if it
    could not be registered."""
    if home is None or file.parent.resolve() != (Path(home) / MODELS).resolve():
        return []
    try:
        with reopen() as db:
            return register_files(db.store, before)
    except EmbeddbError as e:
        return [str(e)]
