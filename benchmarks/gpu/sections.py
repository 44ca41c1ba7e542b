"""A section of `check.py`: a module with a function of `Options` that ends with `run(section)`.

The function returns a dictionary for the JSON file: `ok`, `error` where it could not begin, and
`table`, lines of text that are printed only.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from embeddb.core.errors import EmbeddbError


@dataclass(frozen=True)
class Options:
    """`seconds` from now on are left for the section; `matrices`: a folder of matrix files; `out`:
    the file of the result; `emulate`: a little of everything, on the CPU."""

    seconds: float
    matrices: Path
    out: Path
    emulate: bool
    _begun: float = field(default_factory=time.monotonic)

    @property
    def left_s(self) -> float:
        return self.seconds - (time.monotonic() - self._begun)

    def keep(self, result: dict[str, Any]) -> None:
        """Write the result so far, which counts if the section is killed later."""
        self.out.write_text(json.dumps(result))


def run(section: Callable[[Options], dict[str, Any]]) -> None:
    """Run a section as `check.py` asks by the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--matrices", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--emulate", action="store_true")
    asked = parser.parse_args()
    options = Options(asked.seconds, asked.matrices, asked.out, asked.emulate)
    try:
        result = section(options)
    except EmbeddbError as error:
        result = {"ok": False, "error": str(error)}
    options.keep(result)
