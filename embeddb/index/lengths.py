"""The row lengths of a matrix, from the best that is known of it."""

from __future__ import annotations

from contextlib import suppress

from embeddb.core.errors import StoreCorrupt
from embeddb.core.kinds import kind_of
from embeddb.core.records import PatternInfo
from embeddb.core.row_lengths import RowLengths
from embeddb.core.subject import Subject
from embeddb.featurizers import Featurizers
from embeddb.featurizers.row_lengths import ROW_LENGTHS, estimate
from embeddb.store import Store


def lengths_of(
    store: Store, featurizers: Featurizers, pattern: Subject | PatternInfo
) -> RowLengths | None:
    """Counted where the structure is given or stored, else as stored or as they came with runs,
    else estimated from statistics or sizes; None for what has no rows, or no known size."""
    kind = kind_of(pattern.kind)
    if not kind.sparse:
        return None
    if not isinstance(pattern, PatternInfo):
        return kind.row_lengths(pattern)
    with suppress(StoreCorrupt):
        stored = store.vectors.get(ROW_LENGTHS.name, ROW_LENGTHS.version, [pattern.id])
        vector = stored.get(pattern.id, ROW_LENGTHS.from_info(pattern))
        lengths = None if vector is None else ROW_LENGTHS.lengths(vector, pattern)
        structure = store.subject(pattern.id) if lengths is None else None
        if lengths is not None or structure is not None:
            return lengths or kind.row_lengths(structure)
    plug = featurizers.named("stats")
    statistics = store.vectors.get(plug.name, plug.version, [pattern.id], dim=plug.dim)
    return estimate(pattern, statistics.get(pattern.id, plug.from_info(pattern)))
