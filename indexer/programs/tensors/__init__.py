"""Our own tensor programs of many model families, the kernels of their default fusion, and probes.

Each program is HLO text in `texts`, FAMILY.SIZE.hlo.gz, as JAX passes it to XLA before
optimisation. `tools.tensor_programs` in the repository regenerates programs (`lower`, which needs
JAX) and probes.
"""

from __future__ import annotations

from pathlib import Path

from embeddb.core.errors import UsageError
from embeddb.tensors.tensor_graph import TensorGraph
from indexer.frontends.hlo.files import read_tensors

SUFFIX = ".hlo.gz"
_FOLDER = Path(__file__).parent / "texts"
PROBES = Path(__file__).parent / "probes.json.gz"


def program_names() -> list[str]:
    """All programs, FAMILY.SIZE each, sorted."""
    return sorted(path.name.removesuffix(SUFFIX) for path in _FOLDER.glob(f"*{SUFFIX}"))


def families() -> list[str]:
    return sorted({name.partition(".")[0] for name in program_names()})


def program(name: str) -> TensorGraph:
    """A program called FAMILY.SIZE, of the group FAMILY. Raises: UsageError for an unknown one."""
    if name not in program_names():
        raise UsageError(f"there is no program {name[:80]!r}", hint=", ".join(families()))
    path, group = _FOLDER / f"{name}{SUFFIX}", name.partition(".")[0]
    return read_tensors(path, kind="program", name=name, group=group).tensors[0]


def programs() -> list[TensorGraph]:
    """All of them, by name: some five seconds of reading."""
    return [program(name) for name in program_names()]


def probes() -> list[TensorGraph]:
    """Some fourteen thousand synthetic kernels for training, of groups `probe.KIND.CASE`."""
    return list(read_tensors(PROBES).tensors)
