"""A nest on its way to a worker, with the matrices that its arrays hold."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from embeddb.core.pattern import Pattern
from embeddb.nests.nest import Nest
from embeddb.nests.nest_text import nest_from_text, nest_text

__all__ = ["parts_of", "received"]


def parts_of(nest: Nest) -> list[Any]:
    """What is sent: a line with the nest, one with rows, columns and entries of each matrix, then
    the row offsets and columns of each, int64 and int32."""
    sizes = json.dumps([[*matrix.shape, matrix.nnz] for matrix in nest.matrices]).encode()
    arrays = [part for matrix in nest.matrices for part in (matrix.indptr, matrix.indices)]
    return [nest_text(nest) + b"\n" + sizes + b"\n", *arrays]


def received(payload: bytes) -> Nest:
    """The nest again.

    Raises: NestError, MatrixError.
    """
    text, sizes, rest = payload.split(b"\n", 2)
    matrices, at = [], 0
    for rows, columns, entries in json.loads(sizes):
        ptr = np.frombuffer(rest, np.int64, rows + 1, at)
        idx = np.frombuffer(rest, np.int32, entries, at + ptr.nbytes)
        matrices.append(Pattern.from_csr((rows, columns), ptr, idx))
        at += ptr.nbytes + idx.nbytes
    return nest_from_text(text).holding(matrices)
