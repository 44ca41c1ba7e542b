"""Weights as plain arrays: what a network needs to be asked without torch."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["arrays_of", "product"]

_TYPES = {"F64": "<f8", "F32": "<f4", "I64": "<i8", "I16": "<i2", "U8": "|u1"}
#: Multiplications of one product up to which OpenBLAS stays on one thread (its interface/gemm.c).
_ONE_THREAD = 4 * 65536


def arrays_of(data: bytes) -> dict[str, NDArray[Any]]:
    """Tensors by name of a safetensors file whose header `model_file.read_card` has checked.

    Raises: ValueError or KeyError if the bytes are not such a file after all.
    """
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    found = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        start, stop = entry["data_offsets"]
        raw = data[8 + length + start : 8 + length + stop]
        found[name] = np.frombuffer(raw, _TYPES[entry["dtype"]]).reshape(entry["shape"])
    return found


def product(rows: NDArray[np.float32], weight: NDArray[np.float32]) -> NDArray[np.float32]:
    """float32[r,out]: rows float32[r,in] by weight float32[out,in], in parts that OpenBLAS leaves
    to one thread: where the cores are busy its other threads are waited for, 20 ms instead of 1."""
    at_once = max(1, _ONE_THREAD // weight.size)
    found = np.empty((len(rows), len(weight)), dtype=np.float32)
    for start in range(0, len(rows), at_once):
        part = slice(start, start + at_once)
        np.matmul(rows[part], weight.T, out=found[part])
    return found
