"""The legal cuts of a program: which are, drawn at random, and next to each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from embeddb.core.config import Value
from embeddb.core.errors import TensorError
from embeddb.tensors.computation import Computation
from embeddb.tensors.edges import CUT, MOST_EDGES, Cut, edges_of
from embeddb.tensors.partition import why_not

__all__ = ["MOST_AVERAGE", "CutJudge", "flipped", "near_cut", "random_cut"]

#: Operations that the kernels of a drawn cut have on average, at most: to compile larger ones takes
#: seconds.
MOST_AVERAGE = 20


class CutJudge:
    """The rules of a program as one more constraint (`embeddb.platforms.space.rules`): kernels must
    not need each other, and each partition has one text."""

    names = frozenset({CUT})

    def __init__(self, program: Computation) -> None:
        self.program = program
        self.text = f"the cuts of {program.name or program.id[:12]}"

    def holds(self, env: Mapping[str, Any]) -> bool | None:
        """Whether the cut is legal; None while none is given."""
        return None if CUT not in env else not self.reason(env)

    def seen(self, name: str, value: Value) -> Value:
        """All of it."""
        return value

    def reason(self, values: Mapping[str, Any]) -> str:
        """Why not, in one line; empty where it is legal."""
        text = str(values[CUT])
        try:
            edges = edges_of(self.program)
            if len(edges.pairs) > MOST_EDGES:
                return f"{len(edges.pairs):,} edges, at most {MOST_EDGES:,} are cut"
            cut = Cut.read(text, len(edges.pairs))
        except TensorError as error:
            return error.reason
        labels = edges.labels(cut)
        if reason := why_not(self.program, labels):
            return reason
        settled = edges.between(labels)
        if settled != cut:
            return f"an edge is cut inside a kernel: the same partition is written {settled.text}"
        return "" if text == cut.text else f"is written {cut.text}"


def random_cut(program: Computation, rng: np.random.Generator) -> Cut:
    """A legal cut, drawn in one of two ways: a share of edges that is itself drawn is cut, which
    makes many small kernels; or the whole program is parted again and again, into a number of
    kernels that is itself drawn, so that kernels of many operations are found too."""
    return _torn(program, rng) if rng.random() < 0.5 else _parted(program, rng)


def _torn(program: Computation, rng: np.random.Generator) -> Cut:
    """Where kernels need each other, half of the edges inside them are cut too, until none do."""
    edges = edges_of(program)
    makers = np.array([maker for maker, _ in edges.pairs], np.int64)
    bits = rng.random(len(edges.pairs)) < rng.random()
    while True:
        labels = edges.labels(Cut(tuple(bits.tolist())))
        strong = np.array(edges.strong(labels))
        kernels = np.unique(np.array(labels)[makers]) if makers.size else makers
        needing = np.bincount(strong[kernels], minlength=len(strong)) > 1
        torn = needing[strong[np.array(labels)[makers]]] & ~bits if makers.size else bits
        if not torn.any():
            return edges.between(labels)
        half = torn & (rng.random(len(bits)) < 0.5)
        bits |= half if half.any() else torn


def _parted(program: Computation, rng: np.random.Generator) -> Cut:
    edges = edges_of(program)
    most = max(len(edges.computing), 1)
    least = max(most / MOST_AVERAGE, 1)
    wanted = np.exp(rng.uniform(np.log(least), np.log(most)))
    cut = edges.whole
    while len(set(edges.labels(cut))) <= wanted and not all(cut.bits):
        inside = np.flatnonzero(~np.array(cut.bits, bool))
        cut = flipped(program, cut, int(rng.choice(inside)))
    return cut


def flipped(program: Computation, cut: Cut, edge: int) -> Cut:
    """The legal cut with one edge (a number) the other way, from a legal one. An edge that was cut
    joins two kernels, and those that lie between them; along one that was not, its user and what
    in the kernel depends on it go into a kernel of their own.

    Raises: TensorError for an edge or a cut of another program.
    """
    edges = edges_of(program)
    if not 0 <= edge < len(edges.pairs):
        raise TensorError(f"there is no edge {edge} among {len(edges.pairs)}")
    if cut.bits[edge : edge + 1] == (True,):
        bits = list(cut.bits)
        bits[edge] = False
        return edges.mended(Cut(tuple(bits)))
    labels = edges.labels(cut)
    kernel, gone = labels[edges.pairs[edge][1]], {edges.pairs[edge][1]}
    # Users come after their makers: one pass is enough. What is tied goes along.
    for place in edges.computing:
        operands = program.operations[place].operands
        if labels[place] == kernel and not gone.isdisjoint(operands):
            gone.add(place)
    apart = [-2 - label if place in gone else label for place, label in enumerate(labels)]
    return edges.between(edges.labels(edges.between(apart)))


def near_cut(program: Computation, cut: Cut, rng: np.random.Generator) -> Cut:
    """One edge flipped: where both can be, as often one that is cut as one that is not. The same
    cut where the program has no edges."""
    kinds = [np.flatnonzero(np.array(cut.bits, bool) == bit) for bit in (True, False)]
    able = [edges for edges in kinds if edges.size]
    if not able:
        return cut
    chosen = able[int(rng.integers(len(able)))]
    return flipped(program, cut, int(rng.choice(chosen)))
