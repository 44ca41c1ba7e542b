"""The example programs, whole, on real matrices and on the inputs that they make themselves.

    python benchmarks/programs.py MATRICES > benchmarks/results/programs.json

Each is run as a user would run it (`python examples/programs/NAME.py [MATRIX]`): a round that is
not counted, then medians of interleaved rounds, everything counted but building kernels.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from machine import about

PROGRAMS = Path(__file__).parents[1] / "examples" / "programs"
#: None: the input that the program makes.
INPUTS: dict[str, tuple[str | None, ...]] = {
    "gcn": (None, "musae_git", "fb100_Cornell5"),
    "svd": (None, "gowalla_user_item_adj", "dblp_paper_term"),
    "label_propagation": (None, "soc-slashdot0902", "ego-twitter"),
    "conjugate_gradients": (None, "elmer_dftwater_P2", "nefertiti_P2"),
}
_ROW = re.compile(r"^ +(\w+) +([\d.]+) s +([\d.]+) times embeddb's +results differ by (\S+)$")


def run(program: str, given: list[str]) -> dict[str, Any]:
    command = [sys.executable, str(PROGRAMS / f"{program}.py"), *given]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = [found.groups() for line in done.stdout.splitlines() if (found := _ROW.match(line))]
    return {
        name: {"seconds": float(s), "over_ours": float(over), "apart": float(apart)}
        for name, s, over, apart in rows
    }


def main(folder: Path) -> None:
    found: dict[str, Any] = {}
    for program, inputs in INPUTS.items():
        for name in inputs:
            given = [] if name is None else [str(folder / f"{name}.npz")]
            found[f"{program} {name or 'own input'}"] = run(program, given)
            print(program, name, found[f"{program} {name or 'own input'}"], file=sys.stderr)
    print(json.dumps({"about": about(), "programs": found}, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
