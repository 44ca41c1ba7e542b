"""The cost models of one database: files below its folder, opened when they are asked for."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from embeddb.core.config import Op
from embeddb.core.errors import EmbeddbError, ModelError, StoreCorrupt
from embeddb.core.files.safe_read import refusing
from embeddb.core.files.safe_write import OwnFolder
from embeddb.platforms.platform import Platform
from embeddb.store import Store
from embeddb.store.models import ModelEntry

if TYPE_CHECKING:
    from embeddb.cost_model.graph_model import GraphModel
    from embeddb.cost_model.model import CostModel
    from embeddb.cost_model.towers import ConfigTower, ConfigTowers

    Model = TypeVar("Model", CostModel, GraphModel, ConfigTowers)


#: The folder of a database in which queries keep what they learned.
LEARNED = "learned"


class CostModelFiles:
    """The cost models of one database, below its folder. None ships for all: a model trained on
    one machine says less than neighbours that ran on the user's.

    A file is read when it is first asked for, and again when it was replaced.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = None if folder is None else folder / "models"
        self._read: dict[Path, tuple[tuple[int, int], Any]] = {}

    def find(
        self, platform: Platform, op: Op, version_of: Callable[[str], str]
    ) -> tuple[CostModel | None, str]:
        """The model for an op on a platform, or one line on why it cannot be used.
        `version_of` gives a featurizer's version, or raises EmbeddbError."""
        return self._first(
            "costmodel", _cost_model, platform, op, partial(_mismatch, version_of=version_of)
        )

    def learned(self, platform: Platform, op: Op) -> CostModel | None:
        """The model that a query learned from an instance's runs of an op, if one is kept."""
        path = self._place(platform, op)
        with suppress(OSError):
            stat = path.stat()
            stamp = (stat.st_mtime_ns, stat.st_size)
            model = self._open(path, stamp, _cost_model)
            return None if isinstance(model, str) else model
        kept = self._read.get(path)
        return None if kept is None or isinstance(kept[1], str) else cast("CostModel", kept[1])

    def keep(self, platform: Platform, op: Op, model: CostModel) -> None:
        """Keep a model that a query has learned: in a file, and where none can be written in
        memory."""
        path = self._place(platform, op)
        stamp = (0, 0)
        if self._folder is not None:
            # A database that cannot be written answers all the same.
            with suppress(OSError, EmbeddbError):
                OwnFolder(self._folder.parent, LEARNED).make()
                model.save(path)
                stat = path.stat()
                stamp = (stat.st_mtime_ns, stat.st_size)
        model.version = model.version or str(model.card["stamp"])
        self._read[path] = (stamp, model)

    def _place(self, platform: Platform, op: Op) -> Path:
        folder = Path() if self._folder is None else self._folder.parent
        return folder / LEARNED / f"{platform.id}-{str(op).replace(':', '-')}.safetensors"

    def find_graph_model(self, platform: Platform, op: Op) -> tuple[GraphModel | None, str]:
        """The model of tensor kernels for an op on a platform, or one line on why it cannot be
        used."""
        return self._first("kernels", _graph_model, platform, op, _graph_mismatch)

    def tower(self, platform: Platform, op: Op) -> ConfigTower | None:
        """The configuration tower for an op on a platform instance; None where there is none.

        Raises: ModelError for a file that cannot be used.
        """
        if self._folder is None or not (path := self._folder / "towers.safetensors").is_file():
            return None
        stat = path.stat()
        found = self._open(path, (stat.st_mtime_ns, stat.st_size), _config_towers)
        if isinstance(found, str):
            raise ModelError(found)
        return found.of(platform, op)

    def _first(
        self,
        kind: str,
        load: Callable[[Path], Model],
        platform: Platform,
        op: Op,
        mismatch: Callable[[Model, Platform, Op], str],
    ) -> tuple[Model | None, str]:
        """The instance's own, else that of all its kind; or one line on why there is none."""
        if self._folder is None:
            return None, ""
        why = ""
        for name in dict.fromkeys((platform.id, platform.name)):
            path = self._folder / f"{kind}-{name}-{op.name}.safetensors"
            try:
                stat = path.stat()
            except OSError:
                continue
            found = self._open(path, (stat.st_mtime_ns, stat.st_size), load)
            reason = found if isinstance(found, str) else mismatch(found, platform, op)
            if not isinstance(found, str) and not reason:
                return found, ""
            why = why or f"cost model {path.name} is not used: {reason}"
        return None, why

    def register(self, version: str, store: Store) -> None:
        """Keep the card of the model that an answer rests on, unless the store has it."""
        for path, (_, found) in list(self._read.items()):
            if version and getattr(found, "version", "") == version:
                # No card, or one too large to keep, is no reason to withhold the answer.
                with suppress(ModelError, StoreCorrupt):
                    if store.models.get(version) is None:
                        own = path.name if path.parent == self._folder else ""
                        store.models.register([ModelEntry(version, found.card, own)])

    def _open(
        self, path: Path, stamp: tuple[int, int], load: Callable[[Path], Model]
    ) -> Model | str:
        """The model, or what is wrong with its file."""
        known = self._read.get(path)
        if known is not None and known[0] == stamp:
            # Kind and name of a file go together: what was read there is what is asked for.
            return cast("Model | str", known[1])
        found: Model | str
        try:
            found = load(path)
        except EmbeddbError as e:
            found = f"{e}: {e.hint}" if e.hint else str(e)
            # What is not installed now may be later.
            if not isinstance(e, ModelError):
                return found
        self._read[path] = (stamp, found)
        return found


def _cost_model(path: Path) -> CostModel:
    """Whoever has no model waits for none of this to be imported."""
    from embeddb.cost_model.model import CostModel

    return CostModel.load(path)


def _config_towers(path: Path) -> ConfigTowers:
    from embeddb.cost_model.towers import ConfigTowers

    return ConfigTowers.load(path)


def _graph_model(path: Path) -> GraphModel:
    from embeddb.cost_model.graph_model import GraphModel

    return GraphModel.load(path)


def _graph_mismatch(model: GraphModel, platform: Platform, op: Op) -> str:
    return model.mismatch(platform, op)


def _mismatch(
    model: CostModel, platform: Platform, op: Op, version_of: Callable[[str], str]
) -> str:
    try:
        with refusing(ModelError):
            name = str(model.card["featurizer"]["name"])
            return model.mismatch(platform, op, name, version_of(name))
    except EmbeddbError as e:
        return str(e)
