"""The tree in figures: rooms, arrows, arrows against the layers, circles, largest modules.

    python benchmarks/house.py [ROOT]                   this tree, or the one at ROOT, as JSON
    python benchmarks/house.py --start ROOT [ROOT …]    what a start costs, trees interleaved

tests/test_house.py reads the same arrows and refuses what the layout forbids.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import resource
import subprocess
import sys
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PACKAGES = ("embeddb", "indexer", "tuners")
#: Loads a module whose name is a string.
_BY_NAME = ("import_module", "__import__")


@dataclass(frozen=True)
class Arrow:
    """One module that names another; `kind` is "import", "type" (below `if TYPE_CHECKING`) or
    "name" (by a string)."""

    source: str
    target: str
    line: int
    kind: str


def modules_of(root: Path) -> dict[str, Path]:
    """Dotted name to file, of the three packages."""
    found = {}
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            name = ".".join(path.relative_to(root).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


def arrows_of(modules: dict[str, Path]) -> list[Arrow]:
    """Every import between own modules, inside functions too, and every module named in a call of
    `import_module`; one that is computed cannot be followed."""
    return [
        Arrow(source, target, line, kind)
        for source, path in modules.items()
        for name, line, kind in named(ast.parse(path.read_text(encoding="utf-8")))
        if (target := _module(name, modules)) is not None and target != source
    ]


def named(tree: ast.AST, *, typing: bool = False) -> Iterator[tuple[str, int, str]]:
    """Dotted name, line and kind of everything that a syntax tree imports, ours or not."""
    kind = "type" if typing else "import"
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno, kind) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((f"{node.module}.{a.name}", node.lineno, kind) for a in node.names)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from named(ast.Module(node.body, []), typing=True)
            yield from named(ast.Module(node.orelse, []), typing=typing)
        else:
            if isinstance(node, ast.Call) and (text := by_name(node)):
                yield text, node.lineno, "name"
            yield from named(node, typing=typing)


def by_name(call: ast.Call) -> str | None:
    """The start of the name that a call of `import_module` gives as text; "" where it is computed,
    None for other calls."""
    called = call.func
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    if name not in _BY_NAME or not call.args:
        return None
    first: ast.AST = call.args[0]
    if isinstance(first, ast.JoinedStr) and first.values:
        first = first.values[0]
    return str(first.value) if isinstance(first, ast.Constant) else ""


def _module(name: str, modules: dict[str, Path]) -> str | None:
    """The module that holds a dotted name, or None if it is not ours."""
    name = name.rstrip(".")
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name or None


# -- layers and circles ------------------------------------------------------------------------


def layers_of(root: Path) -> dict[str, int]:
    """Every package or module of the import contract, with its floor: 0 is the ground."""
    table = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    lines = table["tool"]["importlinter"]["contracts"][0]["layers"]
    return {
        name.strip(): floor
        for floor, line in enumerate(reversed(lines))
        for name in re.split(r"[|:]", line)
    }


def against(arrow: Arrow, layers: dict[str, int]) -> bool:
    """Whether an arrow runs up, or sideways between two rooms of one floor. What lies on no floor
    is not judged."""
    source, target = (_layer(name, layers) for name in (arrow.source, arrow.target))
    if source is None or target is None or source == target:
        return False
    return layers[source] <= layers[target]


def _layer(module: str, layers: dict[str, int]) -> str | None:
    while module and module not in layers:
        module = module.rpartition(".")[0]
    return module or None


def circles(pairs: Iterable[tuple[str, str]]) -> list[list[str]]:
    """Names that reach one another, each circle sorted, the largest first (Tarjan 1972)."""
    after: dict[str, set[str]] = defaultdict(set)
    for source, target in pairs:
        after[source].add(target)
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    open_: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        number[name] = lowest[name] = len(number)
        open_.append(name)
        for other in sorted(after.get(name, ())):
            if other not in number:
                visit(other)
            if other in open_:
                lowest[name] = min(lowest[name], lowest[other])
        if lowest[name] == number[name]:
            at = open_.index(name)
            part = open_[at:]
            del open_[at:]
            if len(part) > 1:
                found.append(sorted(part))

    for name in sorted(after):
        if name not in number:
            visit(name)
    return sorted(found, key=lambda part: (-len(part), part))


# -- the figures -------------------------------------------------------------------------------


def room_of(module: str) -> str:
    """What a module lies in, as a reader of `embeddb/` sees it: a folder or a file there; indexer
    and tuners are one room each."""
    parts = module.split(".")
    return parts[0] if parts[0] != "embeddb" else ".".join(parts[:2])


def figures(root: Path) -> dict[str, Any]:
    modules = modules_of(root)
    arrows = arrows_of(modules)
    layers = layers_of(root)
    lines = {name: len(path.read_text().splitlines()) for name, path in modules.items()}
    files = {n: path for n, path in modules.items() if path.name != "__init__.py"}
    folders = Counter(path.parent.relative_to(root).as_posix() for path in files.values())
    # The public face hands names on and is no room: its own arrows, and those to it, are not drawn.
    drawn = [a for a in arrows if "embeddb" not in (a.source, a.target)]
    between = {(room_of(a.source), room_of(a.target)) for a in drawn}
    imported = {(room_of(a.source), room_of(a.target)) for a in drawn if a.kind != "name"}
    up = [arrow for arrow in arrows if against(arrow, layers)]
    loops = circles((a.source, a.target) for a in arrows if a.kind != "name")
    with_names = circles((a.source, a.target) for a in arrows)
    return {
        "modules": len(files),
        "lines": sum(lines.values()),
        "rooms": len({room_of(name) for name in files}),
        "arrows_between_rooms": sum(a != b for a, b in between),
        "circles_of_rooms": [len(part) for part in circles(imported)],
        "circles_of_rooms_with_names": [len(part) for part in circles(between)],
        "folders": len(folders),
        "largest_folders": dict(folders.most_common(3)),
        "arrows_between_modules": len({(a.source, a.target) for a in arrows}),
        "up": {
            kind: len({(a.source, a.target) for a in up if a.kind == kind})
            for kind in ("import", "type", "name")
        },
        "circles": [len(part) for part in loops],
        "circles_with_names": [len(part) for part in with_names],
        "largest_modules": dict(sorted(lines.items(), key=lambda x: -x[1])[:5]),
        "modules_over_250_lines": sum(count > 250 for count in lines.values()),
    }


# -- what a start costs ------------------------------------------------------------------------

STARTS = {
    "import embeddb": ["-c", "import embeddb"],
    "embeddb --version": ["-m", "embeddb.cli.main", "--version"],
    "embeddb query --help": ["-m", "embeddb.cli.main", "query", "--help"],
}


def starts(roots: list[Path], rounds: int) -> dict[str, Any]:
    """Wall and processor seconds of a fresh Python, the trees taking turns so that a busy machine
    slows all alike."""
    taken: dict[str, dict[str, list[tuple[float, float]]]]
    taken = {name: {root.name: [] for root in roots} for name in STARTS}
    for at in range(rounds + 1):
        for name, words in STARTS.items():
            for root in roots:
                seconds = _seconds(root, words)
                if at:  # The first round fills the caches of files and bytecode.
                    taken[name][root.name].append(seconds)
    return {
        "rounds": rounds,
        **{name: {r: _told(values) for r, values in of.items()} for name, of in taken.items()},
        "loaded by import embeddb": {root.name: _loaded(root) for root in roots},
    }


def _told(values: list[tuple[float, float]]) -> dict[str, Any]:
    return {
        name: {key: round(value, 4) for key, value in spread(seconds).items()}
        for name, seconds in zip(("wall_s", "cpu_s"), zip(*values, strict=True), strict=True)
    }


def _seconds(root: Path, words: list[str]) -> tuple[float, float]:
    main = "embeddb.ui.cli.main" if (root / "embeddb" / "ui").is_dir() else "embeddb.cli.main"
    words = [main if word == "embeddb.cli.main" else word for word in words]
    wall, used = time.perf_counter(), _used()
    _python(root, words)
    return time.perf_counter() - wall, _used() - used


def _used() -> float:
    of_children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return of_children.ru_utime + of_children.ru_stime


def _loaded(root: Path) -> dict[str, int]:
    """Modules, and the microseconds that `-X importtime` tells of `import embeddb`."""
    told = _python(root, ["-X", "importtime", "-c", "import embeddb"]).stderr.splitlines()
    own = [int(m[1]) for line in told if (m := re.match(r"import time:\s+\d+ \|\s+(\d+) \|", line))]
    return {"modules": len(own), "us": own[-1]}


def _python(root: Path, words: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(root)}
    command = [sys.executable, *words]
    return subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, check=True
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("roots", nargs="*", type=Path, default=[Path()])
    parser.add_argument("--start", action="store_true", help="time a start instead")
    parser.add_argument("--rounds", type=int, default=15)
    asked = parser.parse_args()
    roots = [root.resolve() for root in asked.roots]
    told = starts(roots, asked.rounds) if asked.start else {r.name: figures(r) for r in roots}
    print(json.dumps({"about": about(), **told}, indent=1))


if __name__ == "__main__":
    from machine import about, spread

    main()
