"""Discovery of plug-ins: one Python file each, no list to edit.

A plug-in of kind `reader`, `featurizer`, `runner`, `tuner`, `executor` or `workload` is a module
whose file name is the plug-in's name (`_` reads as `-`) and which defines `PLUGIN`, the class,
function or object that the kind's contract requires. Three places are searched, first match wins:

1. the package that ships with embeddb (`indexer/readers`, `embeddb/featurizers`, ...), which may
   list plug-ins that share a file in `PLUGINS`, by name as `module:attribute`,
2. every folder listed in the environment variable `EMBEDDB_PLUGINS` (`<folder>/readers/mine.py`),
3. installed distributions with an entry point in the group `embeddb.<kind>`.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pkgutil
import sys
import traceback
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from embeddb.core.arguments import require
from embeddb.core.errors import (
    EmbeddbError,
    MissingDependency,
    PluginError,
    RunnerUnavailable,
    UsageError,
)
from embeddb.core.files.safe_read import reason_of

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_HOMES = {
    "reader": "indexer.readers",
    "featurizer": "embeddb.featurizers",
    "runner": "indexer.runners",
    "tuner": "tuners",
    "executor": "indexer.executors",
    "workload": "embeddb.workloads",
}


#: What is a fault of a plug-in where it raises it: `sys.exit` in one ends no verb. Handlers of
#: signals raise other classes.
FAULTS = (Exception, SystemExit)


#: Plug-ins that do not ship, by the module that defines them.
_MODULES: dict[str, str] = {}


def available(kind: str) -> list[str]:
    """Names of all plug-ins of a kind, sorted."""
    return sorted(_locate(kind, os.environ.get("EMBEDDB_PLUGINS", "")))


def load(kind: str, name: str) -> Any:
    """The `PLUGIN` object of one plug-in. Raises: UsageError if there is none of that name (the
    message lists the available ones) or if its file is no plug-in; MissingDependency if an import
    of it is not installed; PluginError for anything else that its import raises."""
    require(kind, name, str, "the name of a plug-in")
    plugins = shipped(kind, name) or _locate(kind, os.environ.get("EMBEDDB_PLUGINS", ""))
    if name not in plugins:
        names = ", ".join(sorted(plugins)) or "none"
        hint = f"{kind}s there are: {names}{_missing_folders()}"
        raise UsageError(f"no {kind} named {name!r}", hint=hint)
    target = plugins[name]
    where = target if isinstance(target, str | Path) else target.value
    try:
        if isinstance(target, Path):
            return _load_file(kind, name, target)
        if not isinstance(target, str):
            _MODULES[target.module] = f"{kind} {name}"
            return target.load()
        module, _, attribute = target.partition(":")
        return getattr(importlib.import_module(module), attribute or "PLUGIN")
    except (SyntaxError, AttributeError) as e:
        raise UsageError(
            f"{kind} {name} ({where}): {e}", hint="see docs/howto/new-reader.md"
        ) from e
    except ImportError as e:
        raise MissingDependency(f"{kind} {name} ({where}): {e}") from e
    except EmbeddbError:
        raise
    except FAULTS as e:
        raise PluginError(f"{kind} {name} ({where}): {reason_of(e)}") from e


def created(kind: str, name: str, *args: Any) -> Any:
    """Create an object of one plug-in, a class, with these arguments. Raises: as `load`;
    PluginError if one that does not ship raises anything unexpected."""
    plugin = load(kind, name)
    try:
        return plugin(*args)
    except EmbeddbError:
        raise
    except FAULTS as e:
        if shipped(kind, name):
            raise
        raise PluginError(f"{kind} {name} cannot be created: {reason_of(e)}") from e


def result_of(plug: object, method: str, returns: Any, **options: Any) -> Any:
    """The result of a method of a runner. Raises: as the method; RunnerUnavailable if that of a
    plug-in raises anything unexpected, or if the result is not of the type `returns`."""
    what = f"runner {getattr(plug, 'name', '') or type(plug).__name__}: {method}"
    try:
        result = getattr(plug, method)(**options)
    except (EmbeddbError, MemoryError):
        raise
    except FAULTS as e:
        if ships(plug):
            raise
        raise RunnerUnavailable(f"{what} raised {raised(e)}") from e
    if not isinstance(result, returns):
        raise RunnerUnavailable(f"{what} returned {result!r:.80}")
    return result


def raised(error: BaseException) -> str:
    """Describe an exception of a plug-in: `ValueError: no rows (mine.py, line 12)`."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    text = " ".join(str(error).split())[:200]
    what = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return f"{what} ({Path(last.filename).name}, line {last.lineno})"


def culprit(error: BaseException) -> str:
    """The plug-in whose code an exception comes from, and what it raised; empty if none."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    modules = (frame.f_globals.get("__name__", "") for frame in reversed(frames))
    plug = next((_MODULES[module] for module in modules if module in _MODULES), "")
    return f"{plug} raised {raised(error)}" if plug else ""


def ships(plug: object) -> bool:
    """Return true if the class of a plug-in is part of this program: its faults are our own."""
    return type(plug).__module__.partition(".")[0] in ("embeddb", "indexer", "tuners")


def code_of(plug: object) -> bytes:
    """The file that defines the class of a plug-in; empty if it ships or has no file."""
    file = getattr(sys.modules.get(type(plug).__module__), "__file__", None)
    try:
        return b"" if file is None or ships(plug) else Path(file).read_bytes()
    except OSError:  # removed since it was imported
        return b""


def shipped(kind: str, name: str) -> dict[str, str]:
    """The plug-in of that name in the package itself, if there is one, found without a scan of
    installed distributions, which takes longer than a query's search and vote together."""
    if kind not in _HOMES:
        return {}
    stem = name.replace("-", "_")
    home = _home(kind)
    if target := getattr(home, "PLUGINS", {}).get(name):
        return {name: target}
    if stem.startswith("_") or not stem.isidentifier() or not _defines_plugin(home.__path__, stem):
        return {}
    return {name: f"{_HOMES[kind]}.{stem}"}


@cache
def _locate(kind: str, extra: str) -> dict[str, str | Path | EntryPoint]:
    """A file, `module:attribute`, or what a distribution states, by the name of each plug-in."""
    if kind not in _HOMES:
        raise UsageError(f"no plug-ins of kind {kind!r}", hint=f"kinds: {', '.join(_HOMES)}")
    from importlib.metadata import entry_points

    plugins: dict[str, str | Path | EntryPoint] = {}
    for point in entry_points(group=f"embeddb.{kind}"):
        plugins[point.name] = point  # read when it is loaded: its text may be damaged
    for folder in reversed(_folders(extra)):
        for file in sorted(Path(folder, f"{kind}s").glob("[!_]*.py")):
            plugins[_public(file.stem)] = file
    home = _home(kind)
    for info in pkgutil.iter_modules(home.__path__):
        if not info.name.startswith("_") and _defines_plugin(home.__path__, info.name):
            plugins[_public(info.name)] = f"{_HOMES[kind]}.{info.name}"
    return plugins | getattr(home, "PLUGINS", {})


def _home(kind: str) -> ModuleType:
    """The package of the plug-ins that ship. It is beside `embeddb`: an import of `tuners` may find
    a user's folder of that name on PYTHONPATH, without an `__init__.py`."""
    name = _HOMES[kind]
    home = importlib.import_module(name)
    folder = Path(__file__).resolve().parents[2].joinpath(*name.split("."))
    if home.__file__ is None and (file := folder / "__init__.py").is_file():
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None and spec.loader is not None
        home = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(home)
    return home


def _folders(extra: str) -> list[str]:
    return [folder for folder in extra.split(os.pathsep) if folder]


def _missing_folders() -> str:
    """Hint about folders of EMBEDDB_PLUGINS that do not exist: a relative path starts at the
    current folder, which users overlook."""
    named = _folders(os.environ.get("EMBEDDB_PLUGINS", ""))
    missing = [folder for folder in named if not Path(folder).is_dir()]
    return f"; EMBEDDB_PLUGINS names no folder: {', '.join(missing)}" if missing else ""


def _public(stem: str) -> str:
    return stem.replace("_", "-")


def _defines_plugin(paths: Any, stem: str) -> bool:
    """Return true if a module sets `PLUGIN`, read from its text so that listing imports nothing."""
    for path in paths:
        for file in (Path(path, f"{stem}.py"), Path(path, stem, "__init__.py")):
            if file.is_file():
                return "\nPLUGIN" in file.read_text(encoding="utf-8")
    return False


@cache
def _load_file(kind: str, name: str, path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"embeddb_plugin_{kind}_{name}", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    _MODULES[spec.name] = f"{kind} {name}"
    try:
        spec.loader.exec_module(module)
        return module.PLUGIN
    except BaseException:
        del sys.modules[spec.name]
        raise
