"""Views of DaCe: names for a part of an array, with dimensions of one element put in or left away.

A view that counts the same elements otherwise (a reshape, a transpose) stays refused: indices of it
are not affine in those of its array, so that nobody could say whether two accesses meet.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from embeddb.core.errors import NestError
from indexer.frontends.dace.data import View
from indexer.frontends.dace.graph import Edge, parts_of
from indexer.frontends.dace.place import Place
from indexer.frontends.dace.symbolic import index_of, number_of
from indexer.frontends.indices import constant

#: Connector of the view's node on the edge to the array that it is a view of.
CONNECTOR = "views"


def is_view(edge: Edge) -> bool:
    """Whether an edge says what a view is a view of, and carries nothing."""
    return CONNECTOR in (edge.source_connector, edge.target_connector)


def view_of(edge: Edge, array: str, told: Mapping[str, Any], place: Place) -> View:
    """The part of `array` that a view is which is declared as `told`.

    Raises: NestError where it is more than a part.
    """
    subset = edge.memlet.get("subset" if edge.data == array else "other_subset")
    base = place.view(array)
    parts = parts_of(subset, place) if base.at else []
    part = base.part(parts)
    shape = [index_of(size, place) for size in told.get("shape") or []]
    kept = [at for at, size in enumerate(shape) if constant(size) != 1]
    if [shape[at] for at in kept] != [one.size for one in parts if not one.single]:
        raise NestError("a view counts the elements of its array otherwise")
    own = place.registry.arrays[base.array].strides
    strides = told.get("strides") or []
    if len(strides) != len(shape):
        raise NestError("a view has no strides")
    for dimension, (_, of) in enumerate(part.at):
        if of is not None and number_of(strides[kept[of]], place) != own[dimension]:
            raise NestError("a view counts the elements of its array otherwise")
    at = tuple((start, None if of is None else kept[of]) for start, of in part.at)
    return View(base.array, at, len(shape))
