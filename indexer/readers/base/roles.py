"""Which role a column of a log has by its name."""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["DURATIONS", "ROLES", "by_name", "timed"]

#: Roles a column can have, with the column names that take them when no map is given. A role
#: `time` may carry its unit (`time_ms`), and `config.NAME` is the parameter NAME.
ROLES: Mapping[str, tuple[str, ...]] = {
    "matrix": ("matrix", "name", "matrix_name"),
    "m": ("m", "rows", "num_rows"),
    "n": ("n", "cols", "num_cols"),
    "nnz": ("nnz",),
    "group": ("group",),
    "op": ("op",),
    "kernel": ("kernel",),
    "width": ("width",),
    "dtype": ("dtype",),
    "times": ("times",),
    "time": ("time", "runtime"),
    "status": ("status",),
    "error": ("error",),
    "source": ("source",),
    "conversion": ("conversion",),
    "compile": ("compile",),
    "tolerance": ("tolerance",),
    "when": ("when",),
    "instance": ("instance", "device"),
    "campaign": ("campaign",),
    "platform": ("platform",),
}
DURATIONS = ("times", "time", "conversion", "compile")
_SUFFIX = re.compile(r"(.+)_(s|ms|us|ns|cycles)")


def timed(name: str) -> tuple[str, str]:
    """A role or column name without its unit, and the unit; only durations have one."""
    found = _SUFFIX.fullmatch(name)
    if found and found[1] in (*DURATIONS, "runtime"):
        return found[1], found[2]
    return name, ""


def by_name(name: str, params: tuple[str, ...]) -> tuple[str, str]:
    """The role (or `config.NAME`) and unit a column has by its name alone; "" if none.

    A parameter of the platform wins over a role of the same name: on a platform with a parameter
    `kernel`, a column `kernel` is that parameter.
    """
    if name in params:
        return f"config.{name}", ""
    if name.startswith("config.") and len(name) > 7:
        return name, ""
    base, unit = timed(name)
    return next((role for role, names in ROLES.items() if base in names), ""), unit
