"""A neighbourhood graph over vectors, to be walked with another measure than their distance."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from embeddb.index.vectors.faiss_index import _faiss

#: Links per node of the ground level are twice this (Malkov and Yashunin, HNSW).
_DEGREE = 16


def links(vectors: NDArray[np.float32]) -> NDArray[np.int64]:
    """int64[r,32]: the ground level of an HNSW graph over float32[r,d], -1 where a node has fewer
    links. The same vectors give the same graph: it is built on one thread."""
    faiss = _faiss()
    index = faiss.IndexHNSWFlat(int(vectors.shape[1]), _DEGREE)
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        index.add(np.ascontiguousarray(vectors, dtype=np.float32))
    finally:
        faiss.omp_set_num_threads(threads)
    offsets = faiss.vector_to_array(index.hnsw.offsets).astype(np.int64)[:-1]
    flat = faiss.vector_to_array(index.hnsw.neighbors).astype(np.int64)
    ground: NDArray[np.int64] = flat[offsets[:, None] + np.arange(2 * _DEGREE)]
    return ground
