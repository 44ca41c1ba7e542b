"""Which role a column of a log has by its name."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence

from embeddb.core.errors import ReaderError
from indexer.readers.base.units import UNIT_WORDS, unit_of

#: Roles a column can have, with the column names that take them when no map is given, the role's
#: own name first. A role `time` may carry its unit (`time_ms`), and `config.NAME` is the parameter
#: NAME.
ROLES: Mapping[str, tuple[str, ...]] = {
    "matrix": ("matrix", "matrix_name", "name"),
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
    "unit": ("unit", "time_unit"),
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
#: Words in the name of a column that may hold matrices.
MATRIX_WORDS = frozenset(
    ("matrix", "mtx", "file", "filename", "path", "input", "dataset", "graph", "workload")
)
_BASES = (*DURATIONS, "runtime")
_UNIT = "|".join(sorted(UNIT_WORDS, key=len, reverse=True))
_SUFFIX = re.compile(rf"({'|'.join(_BASES)})_({_UNIT})")
_ROLE_OF = {name: (role, rank) for role, names in ROLES.items() for rank, name in enumerate(names)}
#: Names that are too short, or mean too much, to be known in capitals.
_EXACT = frozenset(("m", "n", "name", "op"))


def folded(name: str) -> str:
    """A column's name in small letters, with `_` for spaces and brackets and u for µ."""
    text = unicodedata.normalize("NFKC", name).casefold().replace("μ", "u")
    return re.sub(r"[\s\[\](){}<>,:;=_-]+", "_", text).strip("_")


def words_of(column: str) -> list[str]:
    """The words that a name is made of, in lower case."""
    text = unicodedata.normalize("NFKC", column).replace("μ", "u").replace("Μ", "u")
    return [w.lower() for w in re.findall(r"[A-Z]?[a-z]+|[A-Z]+|\d+", text)]


def timed(name: str) -> tuple[str, str]:
    """A role or column name without its unit, and the unit; only durations have one."""
    suffix = _SUFFIX.fullmatch(folded(name))
    return (suffix[1], unit_of(suffix[2])) if suffix else (name, "")


def by_name(name: str, params: Sequence[str]) -> tuple[str, str, int]:
    """The role (or `config.NAME`) and unit a column has by its name alone, "" if none, and how far
    the name is from the role's own, which is 0.

    A parameter of the platform wins over a role of the same name: on a platform with a parameter
    `kernel`, a column `kernel` is that parameter.
    """
    if name in params:
        return f"config.{name}", "", 0
    if name.startswith("config.") and len(name) > 7:
        return name, "", 0
    base, unit = timed(name)
    other = int(base == name and base not in _ROLE_OF)
    if other:
        base = folded(base)
    role, rank = _ROLE_OF.get(base, ("", 0))
    if other and base in _EXACT:
        return "", "", 0
    return role, unit, 10 * (name != folded(name)) + rank


def chosen(role: str, columns: Mapping[str, int], names: Sequence[str]) -> str:
    """The column that has a role, of those that have it by name (with their ranks): the one nearest
    to the role's own name; among `names` none may rival it.

    Raises: ReaderError naming the columns where it could be two of them.
    """
    best = min(columns, key=lambda column: columns[column])
    rivals = [c for c, rank in columns.items() if c != best and rank == columns[best]]
    if role == "time":
        rivals = [c for c in columns if c != best]
    if role == "matrix" and folded(best) == "name":
        rivals = [c for c in names if c != best and MATRIX_WORDS & set(words_of(c))]
    if rivals:
        both = " and ".join(map(repr, (best, *rivals)))
        raise ReaderError(
            f"columns {both} may be the {role}", hint=f"--map {role}={best}, or the other"
        )
    return best
