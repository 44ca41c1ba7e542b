"""Vectors of featurizers, checked: a fault of a plug-in is reported with its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import EmbeddbError, PluginError
from embeddb.core.plugins import raised, ships
from embeddb.core.records import WorkloadInfo
from embeddb.core.workload import Workload

#: A vector, or None.
V = TypeVar("V", NDArray[np.float32], NDArray[np.float32] | None)
_HINT = (
    "its contract is a test class, embeddb.testing.featurizers.FeaturizerContract: "
    "docs/howto/new-featurizer.md"
)


def checked(plug: Any, workload: Workload | WorkloadInfo, compute: Callable[[], V]) -> V:
    """The vector of a workload that `compute` has from a featurizer.

    Raises: as `compute`; PluginError if a plug-in raises anything unexpected, or the vector breaks
    the contract of featurizers.
    """
    what = f"featurizer {plug.name}, on {workload.name or workload.id}"
    try:
        vector = compute()
        fault = "" if vector is None else _fault(plug, vector)
    except (EmbeddbError, MemoryError):
        raise
    except Exception as e:
        if ships(plug):
            raise
        raise PluginError(f"{what}: it raised {raised(e)}", hint=_HINT) from e
    if fault:
        raise PluginError(f"{what}: {fault}", hint=_HINT)
    return vector


def _fault(plug: Any, vector: NDArray[np.float32]) -> str:
    """The violation of the contract of featurizers by a vector; empty if there is none."""
    dtype, shape = getattr(vector, "dtype", type(vector).__name__), np.shape(vector)
    due = shape if plug.dim is None else (plug.dim,)
    if (dtype, shape) != (np.float32, due):
        size = ", ".join(map(str, shape))
        return f"its vector is {dtype}[{size}], not float32[{plug.dim}]"
    return "" if np.isfinite(vector).all() else "its vector is not finite"
