"""Modules that plug-ins and notebooks import by an older name: the object behind both is one."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.abc import Loader as _Loader
else:
    _Loader = object  # Importing importlib.abc would be a tenth of `import embeddb`.

__all__ = ["MOVED", "install"]

#: What docs/plugins.md and its siblings ever told people to import, or plug-ins that ship did, and
#: where it is now.
MOVED = {
    "embeddb.config": "embeddb.core.config",
    "embeddb.core.gate": "embeddb.core.files.gate",
    "embeddb.core.model_file": "embeddb.core.files.model_file",
    "embeddb.db": "embeddb.database",
    "embeddb.draw": "embeddb.ui.draw",
    "embeddb.errors": "embeddb.core.errors",
    "embeddb.matrixio": "embeddb.matrix_files",
    "embeddb.pattern": "embeddb.core.pattern",
    "embeddb.platform": "embeddb.platforms.platform",
    "embeddb.plugins": "embeddb.core.plugins",
    "embeddb.records": "embeddb.core.records",
    "embeddb.testing.nests": "embeddb.nests.examples",
    "embeddb.testing.platforms": "embeddb.platforms.check",
    "indexer.readers.columns": "indexer.readers.base.columns",
    "indexer.readers.lines": "indexer.readers.base.lines",
    "indexer.readers.row": "indexer.readers.base",
}


class _Finder(_Loader):
    """Asked last, so that it costs an import of anything else nothing."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in MOVED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(MOVED[spec.name])
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """It ran under its own name; that name is what its spec goes on telling."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


def install() -> None:
    """Make the older names importable; once is enough."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
