"""The layout keeps: imports point down, no module is huge, the map in the docs is the tree.

docs/explanation/architecture.md describes the layout. What may be loaded by name is listed below.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.house import (
    Arrow,
    against,
    arrows_of,
    by_name,
    circles,
    layers_of,
    modules_of,
)
from embeddb.core.kinds import kinds, operations

ROOT = Path(__file__).resolve().parents[1]
MODULES = modules_of(ROOT)
ARROWS = arrows_of(MODULES)

MOST_LINES = 500
#: Of a function, without its docstring; parameters without `self`.
MOST_FUNCTION_LINES, MOST_PARAMETERS = 50, 7
#: Have more parameters: all of them are what a user may say in one call.
MANY_PARAMETERS = {
    "embeddb.query",
    "embeddb.database.query",
    "embeddb.database.measure",
    "embeddb.handle.compile.compile",
}

#: May load own modules by name, and why.
BY_NAME = {
    "embeddb": "the public face loads its names on first use",
    "embeddb.core.kinds": "the kinds of workload that ship, plug-ins in order",
    "embeddb.core.plugins": "the plug-in loader",
    "embeddb.matrix_files": "the table of formats",
    "embeddb.ranking": "names of the room are loaded on first use",
    "embeddb.ui.cli.main": "verbs are loaded one at a time",
}


def loads_by_name(path: Path) -> bool:
    """Whether a module loads own modules by a string, or by one that cannot be read here."""
    calls = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
    texts = [text for call in calls if (text := by_name(call)) is not None]
    return any(
        not text or text.partition(".")[0] in ("embeddb", "indexer", "tuners") for text in texts
    )


def test_modules_are_imported_and_not_named() -> None:
    found = {name for name, path in MODULES.items() if loads_by_name(path)}
    assert not found - set(BY_NAME), f"import it, by no string: {sorted(found - set(BY_NAME))}"
    assert found == set(BY_NAME), f"strike: {sorted(set(BY_NAME) - found)}"


def test_no_arrow_runs_up_not_even_for_an_annotation() -> None:
    layers = layers_of(ROOT)
    up = [a for a in ARROWS if a.kind != "name" and against(a, layers)]
    lines = [f"{a.source}:{a.line} -> {a.target}" for a in up]
    assert not lines, f"against the layers of pyproject.toml: {lines}"


def test_no_two_modules_import_each_other() -> None:
    found = circles((a.source, a.target) for a in ARROWS if a.kind != "name")
    assert not found, f"a circle of imports: {found[0]}"


def test_modules_hold_one_subject() -> None:
    lines = {name: len(path.read_text().splitlines()) for name, path in MODULES.items()}
    huge = {name: n for name, n in lines.items() if n > MOST_LINES}
    assert not huge, f"more than {MOST_LINES} lines: {huge}"


def test_functions_fit_a_screen() -> None:
    long, many = {}, {}
    for module, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            name = f"{module}.{node.name}"
            if (lines := _lines_of(node)) > MOST_FUNCTION_LINES:
                long[name] = lines
            if (count := _parameters_of(node)) > MOST_PARAMETERS:
                many[name] = count
    assert not long, f"more than {MOST_FUNCTION_LINES} lines: {long}"
    assert set(many) == MANY_PARAMETERS, f"more than {MOST_PARAMETERS} parameters: {many}"


def _lines_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    first, last = node.body[0], node.body[-1]
    documented = ast.get_docstring(node) is not None
    text = (first.end_lineno or 0) - first.lineno + 1 if documented else 0
    return (last.end_lineno or 0) - node.lineno + 1 - text


def _parameters_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    own = node.args
    names = [arg.arg for arg in (*own.posonlyargs, *own.args, *own.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def test_the_map_is_the_tree() -> None:
    page = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
    drawn = set(_folders_drawn(page))
    count = {p.parent.relative_to(ROOT).as_posix() for p in MODULES.values()}
    assert drawn == count, f"docs/explanation/architecture.md: folders {sorted(drawn ^ count)}"
    named = set(re.findall(r"`((?:embeddb|indexer|tuners)/[\w/]+\.py)`", page))
    lost = {name for name in named if not (ROOT / name).is_file()}
    assert not lost, f"docs/explanation/architecture.md: no module {sorted(lost)}"


def _folders_drawn(page: str) -> Iterator[str]:
    """Paths of the folders in the page's drawing, where two spaces are a step down."""
    block = re.search(r"^```\n(embeddb/.*?)^```", page, re.M | re.S)
    assert block is not None
    above: list[str] = []
    for line in block[1].splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        names = re.match(r"(?:\w+/ ?)+", line.lstrip())
        assert names is not None, line
        for name in names[0].split():
            above[depth:] = [name.rstrip("/")]
            yield "/".join(above)


# -- kinds of workload -------------------------------------------------------------------------

#: Rooms that are about one kind of workload: what is in them may name kinds and operations.
SLICES = [
    "embeddb/workloads/",
    "embeddb/nests/",
    "embeddb/tensors/",
    "embeddb/matrix_files/",
    "embeddb/dynamics/",
    "embeddb/kernels/",
    "embeddb/handle/",
    "embeddb/emit/",
    "embeddb/core/pattern.py",
    "embeddb/ranking/kernel_",
    "embeddb/ranking/transferred",
    "embeddb/featurizers/nest_",
    "embeddb/featurizers/kernel_",
    "embeddb/featurizers/network",
    "embeddb/ui/cli/workload_text",
    "embeddb/ui/cli/verbs/nest",
    "embeddb/ui/cli/verbs/kernel",
    "embeddb/ui/cli/verbs/dynamics",
    "embeddb/ui/cli/verbs/emit",
    "embeddb/ui/cli/verbs/plot",
    "embeddb/ui/cli/verbs/train",
    "embeddb/ui/cli/verbs/tune",
    "indexer/nest_runs",
    "indexer/tensor_runs",
    "indexer/programs",
    "indexer/frontends",
    "indexer/runners/",
    "indexer/training/",
    "indexer/readers/waco",
    "indexer/exchange/export_records",
    "tuners/fusion_cuts",
    "tuners/rule",
    "tuners/tune",
    "tuners/evaluation/kernel_",
]
#: Comparisons of kinds and operations in all other rooms, and their files. They only fall.
MOST_COMPARISONS, MOST_COMPARING = 12, 7


def comparisons_of_kinds(source: str) -> Iterator[int]:
    """Lines that compare `.kind`, `.kernel`, `.op` or `.name` with a kind or operation, ask
    whether something is a `Pattern`, `Nest` or `TensorGraph`, or look a kind up in a table."""
    names = {kind.name for kind in kinds()} | {op.name for op in operations()}

    def of_kind(node: ast.AST) -> bool:
        name = getattr(node, "attr", getattr(node, "id", ""))
        return name in ("kind", "kernel", "op", "name")

    def named(node: ast.AST) -> bool:
        parts = getattr(node, "elts", [node])
        return any(isinstance(part, ast.Constant) and part.value in names for part in parts)

    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            sides = (node.left, *node.comparators)
            found = any(map(of_kind, sides)) and any(map(named, sides))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
            asked = {getattr(part, "id", "") for part in ast.walk(node.args[1])}
            found = bool(asked & {"Pattern", "Nest", "TensorGraph"})
        else:
            keys = node.keys if isinstance(node, ast.Dict) else []
            tabled = [key for key in keys if key is not None and named(key)]
            found = len(tabled) > 1 and len(tabled) == len(keys)
        if found:
            yield node.lineno


def test_rooms_ask_the_kind_of_workload() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in MODULES.values()
        if not path.relative_to(ROOT).as_posix().startswith(tuple(SLICES))
        for line in comparisons_of_kinds(path.read_text(encoding="utf-8"))
    ]
    files = {where.partition(":")[0] for where in found}
    assert len(found) <= MOST_COMPARISONS and len(files) <= MOST_COMPARING, found


def test_tiers_list_files_that_exist_once() -> None:
    tiers = (ROOT / "tests" / "tiers").glob("*.txt")
    listed = [line for tier in tiers for line in tier.read_text(encoding="utf-8").splitlines()]
    assert len(listed) > 100 and len(listed) == len(set(listed))
    assert not [line for line in listed if not (ROOT / line).is_file()]


# -- the guards themselves ---------------------------------------------------------------------

UP = """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from embeddb.ui import page
"""
NAMED = """
def show():
    return import_module("embeddb.ui.page").show()
"""
WITHIN = """
def late():
    import embeddb.core.low
    from embeddb.core.low import read
"""
CONTRACT = """
[[tool.importlinter.contracts]]
layers = ["embeddb.ui", "embeddb.core"]
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A package of two floors with every kind of arrow between them."""
    files = {
        "embeddb/core/low.py": UP,
        "embeddb/core/named.py": NAMED,
        "embeddb/ui/page.py": WITHIN,
        "pyproject.toml": CONTRACT,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_arrows_are_found_wherever_they_stand(tree: Path) -> None:
    arrows = arrows_of(modules_of(tree))
    low, named, page = "embeddb.core.low", "embeddb.core.named", "embeddb.ui.page"
    assert arrows == [
        Arrow(low, page, 4, "type"),
        Arrow(named, page, 3, "name"),
        Arrow(page, low, 3, "import"),
        Arrow(page, low, 4, "import"),
    ]
    layers = layers_of(tree)
    assert [against(arrow, layers) for arrow in arrows] == [True, True, False, False]
    assert circles((a.source, a.target) for a in arrows) == [[low, page]]
    assert loads_by_name(tree / "embeddb/core/named.py")
    assert not loads_by_name(tree / "embeddb/ui/page.py")


def test_rooms_of_one_floor_may_not_import_each_other() -> None:
    layers = {"a": 0, "b": 1, "c": 1}
    assert against(Arrow("b.x", "c.y", 1, "import"), layers)
    assert not against(Arrow("b.x", "b.y", 1, "import"), layers)
    assert not against(Arrow("c.x", "a.y", 1, "import"), layers)
    assert not against(Arrow("a", "other", 1, "import"), layers)


def test_circles_are_told_once_the_largest_first() -> None:
    pairs = [("a", "b"), ("b", "a"), ("c", "d"), ("d", "e"), ("e", "c"), ("a", "c"), ("f", "a")]
    assert circles(pairs) == [["c", "d", "e"], ["a", "b"]]
