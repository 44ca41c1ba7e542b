"""Measured seconds, as a cell of a table."""

from __future__ import annotations

import math

from embeddb.core.wording import duration

__all__ = ["measured"]


def measured(seconds: float | None, unit: str = "s") -> str:
    """A dash for what did not run or failed."""
    return "-" if seconds is None or not math.isfinite(seconds) else duration(seconds, unit)
