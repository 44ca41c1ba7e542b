"""Script for an interpreter with DaCe, never imported: the programs of one file as `.sdfg` files.

    python driver.py PROGRAM.py FOLDER

Writes `FOLDER/NAME.sdfg` for every `@dace.program`, with loops converted to maps where DaCe can and
library nodes expanded, and one line of JSON for each: {"program": NAME, "error": "" or the reason}.
"""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path


def main(path: str, folder: str) -> None:
    from dace.frontend.python.parser import DaceProgram  # type: ignore[import-not-found] # as below

    sys.path.insert(0, str(Path(path).parent))
    variables = runpy.run_path(path, run_name="embeddb_program")
    programs = {id(v): v for v in variables.values() if isinstance(v, DaceProgram)}
    for program in programs.values():
        name = program.f.__name__
        try:
            write(program, str(Path(folder) / f"{name}.sdfg"))
            error = ""
        except Exception as raised:  # noqa: BLE001 - any failure of DaCe is reported
            error = f"{type(raised).__name__}: {raised}"[:500]
        sys.stdout.write(json.dumps({"program": name, "error": error}) + "\n")
        sys.stdout.flush()


def write(program: object, path: str) -> None:
    """Write one program as a file."""
    from dace import nodes  # type: ignore[import-not-found] # of the other interpreter
    from dace.transformation.interstate import LoopToMap  # type: ignore[import-not-found]

    sdfg = program.to_sdfg(simplify=True)  # type: ignore[attr-defined] # a DaceProgram
    sdfg.apply_transformations_repeated([LoopToMap])
    sdfg.simplify()
    for node, _ in sdfg.all_nodes_recursive():
        if isinstance(node, nodes.LibraryNode) and "pure" in node.implementations:
            node.implementation = "pure"
    sdfg.expand_library_nodes()
    sdfg.simplify()
    sdfg.save(path)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
