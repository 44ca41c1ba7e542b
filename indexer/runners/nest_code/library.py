"""Shared objects with several schedules of one nest each, and the one that is the reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from embeddb.core.errors import NestError
from embeddb.kernels.nests.generate import FLAGS, PRELUDE, c_function
from embeddb.nests.nest import Nest
from embeddb.nests.schedule import Schedule
from indexer.runners.harness import building
from indexer.runners.harness.building import Built

__all__ = ["build_all", "build_reference"]

_EXACT = ("-O2", "-ffp-contract=off")


def build_all(
    nest: Nest, schedules: Sequence[Schedule], folder: Path, *, more: Sequence[str] = ()
) -> dict[Schedule, Built]:
    """All of them, several a file, on all processors; the compiler is called with `more` beside
    its own flags.

    Raises: RunnerUnavailable if the machine could not compile.
    """
    plain, given = _plain(nest), _given(nest)
    return building.build_all(
        schedules,
        lambda schedule, name: (c_function(plain, schedule, name), given),
        folder,
        prelude=PRELUDE,
        compiler=building.command(*FLAGS, "-fopenmp", *more),
        openmp=True,
    )


def build_reference(nest: Nest, folder: Path) -> Path:
    """The nest in the order of its text, without any reordering of sums.

    Raises: RunnerUnavailable, NestError if it does not compile.
    """
    schedule = Schedule(tuple(range(nest.depth)), (0,) * nest.depth)
    path = folder / "reference.so"
    function = c_function(_plain(nest), schedule, "v0"), _given(nest)
    text = building.one_file(PRELUDE, [function], openmp=True)
    exact = building.command(*_EXACT, "-fopenmp")
    if problem := building.build_one(path, text, exact):
        raise NestError(f"its reference does not compile: {problem}")
    return path


def _plain(nest: Nest) -> Nest:
    """Without names: a stranger's may be macros somewhere."""
    return replace(nest, loop_names=(), array_names=())


def _given(nest: Nest) -> str:
    return ", ".join(f"a[{at}]" for at in range(len(nest.arrays)))
