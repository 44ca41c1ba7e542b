"""The cost models of one database: files below its folder, opened on first use."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
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


#: Folder of a database for models that queries learned.
LEARNED = "learned"


class CostModelFiles:
    """The cost models of one database, below its folder. None is shipped: a model trained on one
    machine predicts another worse than neighbours that ran there.

    A file is read on first use, and again after it was replaced.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = None if folder is None else folder / "models"
        self._read: dict[Path, tuple[tuple[int, int], Any]] = {}

    def find(
        self, platform: Platform, op: Op, version_of: Callable[[str], str]
    ) -> tuple[CostModel | None, str]:
        """The model for an op on a platform, or one line on why it cannot be used.
        `version_of` gives a featurizer's version, or raises EmbeddbError."""

        def mismatch(model: CostModel) -> str:
            try:
                with refusing(ModelError):
                    name = str(model.card["featurizer"]["name"])
                    return model.mismatch(platform, op, name, version_of(name))
            except EmbeddbError as e:
                return str(e)

        return self._first("costmodel", _cost_model, platform, op, mismatch)

    def find_graph_model(self, platform: Platform, op: Op) -> tuple[GraphModel | None, str]:
        """The model of tensor kernels for an op on a platform, or one line on why it cannot be
        used."""
        return self._first(
            "kernels", _graph_model, platform, op, lambda model: model.mismatch(platform, op)
        )

    def tower(self, platform: Platform, op: Op) -> ConfigTower | None:
        """The configuration tower for an op on a platform instance; None where there is none.

        Raises: ModelError for a file that cannot be used.
        """
        if self._folder is None or not (path := self._folder / "towers.safetensors").is_file():
            return None
        towers = self._open(path, _config_towers)
        if isinstance(towers, str):
            raise ModelError(towers)
        return None if towers is None else towers.of(platform, op)

    def learned(self, platform: Platform, op: Op) -> CostModel | None:
        """The stored model that a query learned from an instance's runs of an op, if any."""
        path = self._place(platform, op)
        model = None if self._folder is None else self._open(path, _cost_model)
        if model is None and path in self._read:  # no file could be written
            model = cast("CostModel | str", self._read[path][1])
        return None if isinstance(model, str) else model

    def keep(self, platform: Platform, op: Op, model: CostModel) -> None:
        """Store a model that a query has learned: in a file, else in memory."""
        path = self._place(platform, op)
        stamp = (0, 0)
        if self._folder is not None:
            # A database that cannot be written answers all the same.
            with suppress(OSError, EmbeddbError):
                OwnFolder(self._folder.parent, LEARNED).make()
                model.save(path)
            with suppress(OSError):  # an earlier file may be there, which this one replaces here
                stamp = _stamp(path)
        model.version = model.version or str(model.card["stamp"])
        self._read[path] = (stamp, model)

    def register(self, version: str, store: Store) -> None:
        """Store the card of the model that an answer rests on, unless the store has it."""
        for path, (_, model) in list(self._read.items()):
            if version and getattr(model, "version", "") == version:
                # A card that is missing or too large must not prevent the answer.
                with suppress(ModelError, StoreCorrupt):
                    if store.models.get(version) is None:
                        own = path.name if path.parent == self._folder else ""
                        store.models.register([ModelEntry(version, model.card, own)])

    def _place(self, platform: Platform, op: Op) -> Path:
        folder = Path() if self._folder is None else self._folder.parent
        return folder / LEARNED / f"{platform.id}-{str(op).replace(':', '-')}.safetensors"

    def _first(
        self,
        kind: str,
        load: Callable[[Path], Model],
        platform: Platform,
        op: Op,
        mismatch: Callable[[Model], str],
    ) -> tuple[Model | None, str]:
        """The model of the platform instance, else of the platform; or one line on why there is
        none."""
        if self._folder is None:
            return None, ""
        why = ""
        for name in dict.fromkeys((platform.id, platform.name)):
            path = self._folder / f"{kind}-{name}-{op.name}.safetensors"
            model = self._open(path, load)
            if model is None:
                continue
            reason = model if isinstance(model, str) else mismatch(model)
            if not isinstance(model, str) and not reason:
                return model, ""
            why = why or f"cost model {path.name} is not used: {reason}"
        return None, why

    def _open(self, path: Path, load: Callable[[Path], Model]) -> Model | str | None:
        """The model; the reason where the file cannot be used; None where there is no file."""
        try:
            stamp = _stamp(path)
        except OSError:
            return None
        cached = self._read.get(path)
        if cached is not None and cached[0] == stamp:
            # The name of a file determines the type of its model.
            return cast("Model | str", cached[1])
        model: Model | str
        try:
            model = load(path)
        except EmbeddbError as e:
            model = f"{e}: {e.hint}" if e.hint else str(e)
            # A package that is missing now may be installed later.
            if not isinstance(e, ModelError):
                return model
        self._read[path] = (stamp, model)
        return model


def _stamp(path: Path) -> tuple[int, int]:
    """Changes when the file is replaced. Raises: OSError without a file."""
    stat = path.stat()
    return stat.st_mtime_ns, stat.st_size


def _cost_model(path: Path) -> CostModel:
    from embeddb.cost_model.model import CostModel  # on first use: a database may have no model

    return CostModel.load(path)


def _config_towers(path: Path) -> ConfigTowers:
    from embeddb.cost_model.towers import ConfigTowers

    return ConfigTowers.load(path)


def _graph_model(path: Path) -> GraphModel:
    from embeddb.cost_model.graph_model import GraphModel

    return GraphModel.load(path)
