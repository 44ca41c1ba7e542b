"""The row lengths of a matrix, from the best source that a database has."""

from __future__ import annotations

from contextlib import suppress

from embeddb.core.errors import StoreCorrupt
from embeddb.core.records import PatternInfo
from embeddb.core.row_lengths import RowLengths
from embeddb.core.subject import Subject
from embeddb.featurizers import Featurizer, reads
from embeddb.featurizers.row_lengths import ROW_LENGTHS, estimate, histogram
from embeddb.store import Store


def lengths_of(
    store: Store, workload: Subject | PatternInfo, statistics: Featurizer
) -> RowLengths | None:
    """Counted where the structure is given or stored, else those that were stored or came with the
    runs, else estimated from `statistics` (`stats`) or sizes; None of what is no matrix, or has no
    known size."""
    if not reads(ROW_LENGTHS, workload.kind):
        return None
    if not isinstance(workload, PatternInfo):
        return histogram(workload)
    with suppress(StoreCorrupt):
        stored = store.vectors.get(ROW_LENGTHS.name, ROW_LENGTHS.version, [workload.id])
        vector = stored.get(workload.id)
        vector = ROW_LENGTHS.from_info(workload) if vector is None else vector
        lengths = None if vector is None else ROW_LENGTHS.lengths(vector, workload)
        if lengths is not None:
            return lengths
        structure = store.subject(workload.id)
        if structure is not None:
            return histogram(structure)
    name, version, dim = statistics.name, statistics.version, statistics.dim
    found = store.vectors.get(name, version, [workload.id], dim=dim)
    return estimate(workload, found.get(workload.id, statistics.from_info(workload)))
