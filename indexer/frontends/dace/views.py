"""Views of DaCe: names for a part of an array, with dimensions of one element inserted or dropped.

A view in another order of elements (a reshape, a transpose) is refused: its indices are not affine
in those of its array, so dependences could not be tested.
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

#: Connector of a view's node on the edge to its array.
CONNECTOR = "views"


def is_view(edge: Edge) -> bool:
    """True if an edge only binds a view to its array, and carries no data."""
    return CONNECTOR in (edge.source_connector, edge.target_connector)


def view_of(edge: Edge, array: str, attributes: Mapping[str, Any], place: Place) -> View:
    """The part of `array` named by a view with these declared attributes.

    Raises: NestError unless it is only a part.
    """
    subset = edge.memlet.get("subset" if edge.data == array else "other_subset")
    base = place.view(array)
    parts = parts_of(subset, place) if base.at else []
    part = base.part(parts)
    shape = [index_of(size, place) for size in attributes.get("shape") or []]
    long_dimensions = [at for at, size in enumerate(shape) if constant(size) != 1]
    if [shape[at] for at in long_dimensions] != [one.size for one in parts if not one.single]:
        raise NestError("a view has another order of elements than its array")
    own = place.registry.arrays[base.array].strides
    strides = attributes.get("strides") or []
    if len(strides) != len(shape):
        raise NestError("a view has no strides")
    for dimension, (_, of) in enumerate(part.at):
        if of is not None and number_of(strides[long_dimensions[of]], place) != own[dimension]:
            raise NestError("a view has another order of elements than its array")
    at = tuple((start, None if of is None else long_dimensions[of]) for start, of in part.at)
    return View(base.array, at, len(shape))
