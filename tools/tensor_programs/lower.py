"""Makes the HLO text of all programs anew (needs the extra `jax`):

    python -m tools.tensor_programs.lower OUT [NAME ...]   (in the repository)

OUT is emptied of programs that there are no more; `indexer/programs/tensors/texts` is what ships.
"""

from __future__ import annotations

import gzip
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import jax

from embeddb.tensors.tensor_graph import TensorGraph
from indexer.frontends.hlo.graph import program_of
from indexer.frontends.hlo.module import read_module
from indexer.frontends.hlo.printer import hlo_text
from indexer.programs.tensors import SUFFIX
from tools.tensor_programs import (
    generative,
    graphs,
    images,
    recommenders,
    recurrent,
    science,
    sequences,
    transformers,
    vision,
)
from tools.tensor_programs.given import Model

__all__ = ["lowered", "main", "models", "packed"]

_AREAS = (
    vision,
    images,
    recurrent,
    sequences,
    transformers,
    recommenders,
    generative,
    graphs,
    science,
)


def models() -> Iterator[tuple[str, str, Model]]:
    """Family, size and model of each."""
    for area in _AREAS:
        for family, sizes in area.MODELS.items():
            for size, model in sizes.items():
                yield family, size, model


def lowered(model: Model, family: str, size: str) -> TensorGraph:
    """As JAX hands it to XLA, before any optimisation; calls inlined."""
    text = jax.jit(model.__call__).lower(*model.shapes().shapes).compiler_ir("hlo").as_hlo_text()
    return program_of(read_module(text), name=f"{family}.{size}", group=family)


def packed(program: TensorGraph) -> bytes:
    """The same bytes for the same program, whoever makes them."""
    return gzip.compress(hlo_text(replace(program, signature=None, names=())).encode(), 9, mtime=0)


def main(out: Path, only: frozenset[str] = frozenset()) -> None:
    out.mkdir(parents=True, exist_ok=True)
    made = set[str]()
    for family, size, model in models():
        name = f"{family}.{size}"
        made.add(f"{name}{SUFFIX}")
        if only and name not in only and family not in only:
            continue
        program = lowered(model, family, size)
        data = packed(program)
        (out / f"{name}{SUFFIX}").write_bytes(data)
        sys.stdout.write(f"{name}: {len(program.operations)} operations, {len(data)} bytes\n")
    for path in out.glob(f"*{SUFFIX}"):
        if path.name not in made:
            path.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]), frozenset(sys.argv[2:]))
