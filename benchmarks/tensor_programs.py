"""Our own tensor programs and their kernels by area and family, as docs/tensors.md has them:

PYTHONPATH=. python benchmarks/tensor_programs.py
"""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from statistics import median

from embeddb.tensors.computation import Computation
from indexer.programs.tensors import families, kernels, programs
from indexer.programs.tensors.cutting import pieces_of

MODELS = Path(__file__).resolve().parents[1] / "indexer" / "programs" / "tensors" / "models"
HEAVY = ("dot", "convolution", "reduce-window", "reduce")


def area_of() -> dict[str, str]:
    """The module of each family's model, found in its text: nothing here needs JAX."""
    texts = {path.stem: path.read_text() for path in MODELS.glob("*.py")}
    return {f: area for f in families() for area, t in texts.items() if f'\n    "{f}": {{' in t}


def heaviest(kernel: Computation) -> str:
    opcodes = {operation.opcode for operation in kernel.operations}
    return next((opcode for opcode in HEAVY if opcode in opcodes), "none of these")


def main() -> None:
    made, found = programs(), kernels()
    count = Counter(program.group for program in made)
    own = Counter(kernel.group for kernel in found)
    areas: dict[str, list[str]] = defaultdict(list)
    for family, area in area_of().items():
        areas[area].append(f"{family} {count[family]}·{own[family]}")
    print("| area | family, programs · kernels |\n|---|---|")
    for area, listed in sorted(areas.items()):
        print(f"| {area} | {', '.join(listed)} |")
    sizes = [len(kernel.operations) for kernel in found]
    operations = sum(len(program.operations) for program in made)
    pieces = sum(len(pieces_of(program)) for program in made)
    print(f"\n{len(made)} programs, {len(count)} families, {operations:,} operations")
    print(f"{pieces:,} kernels, {len(found):,} different, median size {median(sizes)}")
    print(Counter(map(heaviest, found)))
    print(f"{sum(kernel.root.elements >= 1024 for kernel in found):,} give 1,024 elements or more")


if __name__ == "__main__":
    main()
