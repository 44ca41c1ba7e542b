"""What XLA fuses by itself, as a cut: which of our operations share one of its fusions."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from embeddb.core.errors import TensorError
from embeddb.tensors.computation import Computation
from embeddb.tensors.edges import Cut, edges_of
from indexer.frontends.hlo.printer import hlo_text

if TYPE_CHECKING:
    from indexer.runners.harness.session import Session

__all__ = ["compiler_cut", "cut_of"]

_LIMIT_S = 300.0
#: The instruction that one of the optimised module was made of: the printer calls them o0, o1, ...
_MADE_OF = re.compile(r'op_name="(?:[^"]*/)?o(\d+)(?:\.[a-z]+)?"')
_BODY = re.compile(r"^(ENTRY )?%?([\w.-]+) ")
_CALLED = re.compile(r"fusion\(.*calls=%?([\w.-]+)")


def compiler_cut(program: Computation, session: Session) -> Cut:
    """Raises: TensorError for a program that XLA does not compile; RunnerUnavailable."""
    text = hlo_text(program)
    reply = session.request({"do": "optimised"}, [text.encode()], timeout_s=_LIMIT_S)
    if reply["status"] != "ok":
        raise TensorError(f"XLA does not compile the program: {reply['error']}")
    return cut_of(program, reply["text"])


def cut_of(program: Computation, optimised: str) -> Cut:
    """By the text of the optimised module, in which each instruction names the one that it was made
    of. What lies in several fusions, since XLA computes it in each, goes with the first of them;
    what none of them names, for it was simplified away, with its first operand, else its user.
    """
    edges = edges_of(program)
    group: dict[int, int] = {}
    for number, places in enumerate(_fusions(optimised)):
        for place in places:
            if place < len(program.operations):
                group.setdefault(place, number)
    labels = [group.get(place, -1) for place in range(len(program.operations))]
    for maker, user in edges.pairs:
        if labels[user] < 0:
            labels[user] = labels[maker]
    for maker, user in reversed(edges.pairs):
        if labels[maker] < 0:
            labels[maker] = labels[user]
    # Of what is left, each by itself.
    apart = [label if label >= 0 else -2 - place for place, label in enumerate(labels)]
    return edges.mended(edges.between(apart))


def _fusions(text: str) -> list[list[int]]:
    """Places of our operations by fusion, and, one by one, those of the entry that are in none."""
    bodies: dict[str, list[str]] = {}
    entry, inside = "", ""
    for line in text.splitlines():
        if line.endswith("{") and not line.startswith((" ", "HloModule")):
            found = _BODY.match(line)
            if found is None:
                continue
            inside = found[2]
            entry = inside if found[1] else entry
            bodies[inside] = []
        elif inside:
            bodies[inside].append(line)
    fusions: list[list[int]] = []
    for line in bodies.get(entry, ()):
        called = _CALLED.search(line)
        lines = bodies.get(called[1], []) if called else [line]
        found_here = [int(number) for one in lines for number in _MADE_OF.findall(one)]
        if found_here:
            fusions.append(found_here)
    return fusions
