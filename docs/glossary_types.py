"""The section "Types, by room" of glossary.md, from the docstrings of all public classes.

    python docs/glossary_types.py --write

A class is public if its module's `__all__` names it. tests/test_house.py compares the page with
what this makes.
"""

from __future__ import annotations

import ast
import re
import sys
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "glossary.md"
HEADING = "## Types, by room"
INTRODUCTION = """\
Every public class, with the first sentence of its docstring; written by
`python docs/glossary_types.py --write`."""

#: Folder, class, module and sentence.
Row = tuple[str, str, str, str]


def rows() -> list[Row]:
    """One per public class, by folder, then by name."""
    return sorted(
        (path.parent.relative_to(ROOT).as_posix(), node.name, path.stem, sentence(node))
        for package in ("embeddb", "indexer", "tuners")
        for path in (ROOT / package).rglob("*.py")
        for node in public_classes(ast.parse(path.read_text(encoding="utf-8")))
    )


def public_classes(module: ast.Module) -> list[ast.ClassDef]:
    listed: set[object] = set()
    for node in module.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            listed |= set(ast.literal_eval(node.value))
    return [node for node in module.body if isinstance(node, ast.ClassDef) and node.name in listed]


def sentence(node: ast.ClassDef) -> str:
    """The first of the docstring, on one line; a name in it stays code."""
    text = " ".join((ast.get_docstring(node) or "").partition("\n\n")[0].split())
    return re.split(r"(?<=[.])\s+(?=[A-Z`\"])", text)[0]


def section() -> str:
    """Markdown: a heading and a table per folder."""
    parts = [HEADING, "", INTRODUCTION]
    for folder, of_folder in groupby(rows(), key=lambda row: row[0]):
        parts += ["", f"### {folder}", "", "| type | module | |", "|---|---|---|"]
        for _, name, module, told in of_folder:
            where = folder.rpartition("/")[2] if module == "__init__" else module
            parts.append(f"| `{name}` | `{where}` | {told.replace('|', chr(92) + '|')} |")
    return "\n".join(parts) + "\n"


def page() -> str:
    """The glossary as it should be: what people wrote, then the section."""
    return PAGE.read_text(encoding="utf-8").partition(HEADING)[0].rstrip() + "\n\n" + section()


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    PAGE.write_text(page(), encoding="utf-8")
