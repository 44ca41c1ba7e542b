"""Content of a database for interactive use: workloads or runs, lazily or as columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib.util import find_spec
from itertools import islice
from typing import Any, Generic, TypeVar

from embeddb.core.arguments import require
from embeddb.core.config import Op, Value
from embeddb.core.errors import MissingDependency, NothingFound, UsageError
from embeddb.core.records import Run, WorkloadInfo
from embeddb.core.repr_html import html_of
from embeddb.store import RunTable, Store

T = TypeVar("T")
#: Number of rows in a notebook, and libraries of data frames.
_SHOWN = 20
_FRAMES = ("pandas", "polars")

Columns = dict[str, list[Any]]


class Rows(Generic[T]):
    """Workloads or runs, read from the database anew on each iteration."""

    def __init__(
        self, read: Callable[[], Iterator[T]], to_columns: Callable[[Iterable[T]], Columns]
    ):
        self._read = read
        self._to_columns = to_columns

    def __iter__(self) -> Iterator[T]:
        return self._read()

    def columns(self, most: int | None = None) -> Columns:
        """Lists of one length by name, of the first `most` rows or of all; None for a missing
        value. Runs have columns for their names, status, `seconds` (median of the repeats), and a
        column `config.NAME` for each parameter."""
        return self._to_columns(islice(self._read(), most))

    def frame(self, library: str = "") -> Any:
        """The columns as a data frame of `pandas` or `polars`, the named or an installed one.
        Raises: MissingDependency if it is not installed; UsageError for another library."""
        if library not in ("", *_FRAMES):
            raise UsageError(f"no data frames of {library!r}", hint=f"one of {', '.join(_FRAMES)}")
        wanted = (library,) if library else _FRAMES
        there = next((name for name in wanted if find_spec(name) is not None), "")
        if there == "pandas":
            import pandas

            return pandas.DataFrame(self.columns())
        if there == "polars":
            import polars

            return polars.DataFrame(self.columns(), strict=False)
        what = f"a data frame needs {' or '.join(wanted)}"
        raise MissingDependency(what, hint=f"pip install {wanted[0]}, or take .columns()")

    def _repr_html_(self) -> str:
        return html_of(self)

    def head(self) -> Columns:
        """The first rows, as a notebook shows them."""
        return self.columns(_SHOWN)


def pattern_rows(store: Store, kind: str = "") -> Rows[WorkloadInfo]:
    """Facts about each workload; with `kind`, of matrices, nests, kernels or programs alone."""
    return Rows(
        lambda: (info for info in store.patterns() if kind in ("", info.kind)), _pattern_columns
    )


def run_rows(store: Store, *, platform: str, op: Op | None, pattern_id: str) -> Rows[Run]:
    """Valid runs of the named op and workload; `platform` is an id, or a name for all its
    instances. Raises: NothingFound if there are no runs of that platform and op."""
    require("platform", platform, str, "the id or name of one, as a text,")
    there = store.partitions()
    named = [p for p in there if platform in ("", p.platform, p.platform.partition("@")[0])]
    chosen = [p for p in named if op in (None, p.op)]
    if not chosen and (platform or op):
        what = " ".join(x for x in (str(op or ""), f"on {platform}" if platform else "") if x)
        have = ", ".join(f"{p.op} on {p.platform}" for p in there[:8])
        raise NothingFound(f"no runs of {what}", hint=f"there are: {have or 'none'}")
    return Rows(partial(_runs, store, chosen, pattern_id), partial(_run_columns, store))


def _runs(store: Store, partitions: Iterable[RunTable], pattern_id: str) -> Iterator[Run]:
    for p in partitions:
        yield from store.runs(p.platform, p.op, pattern_id or None)


def _pattern_columns(infos: Iterable[WorkloadInfo]) -> Columns:
    rows = [
        {
            "name": info.name,
            "id": info.id,
            "kind": info.kind,
            "rows": info.m if info.m >= 0 else None,
            "columns": info.n if info.n >= 0 else None,
            "nonzeros": info.nnz if info.nnz >= 0 else None,
            "group": info.group,
            "stub": info.stub,
        }
        for info in infos
    ]
    return _columns(rows)


def _run_columns(store: Store, runs: Iterable[Run]) -> Columns:
    names: dict[str, str] = {}
    rows = []
    for run in runs:
        if run.pattern_id not in names:
            info = store.pattern(run.pattern_id)
            names[run.pattern_id] = "" if info is None else info.name
        m = run.measurement
        rows.append(
            {
                "pattern": names[run.pattern_id],
                "pattern_id": run.pattern_id,
                "op": str(run.op),
                "platform": run.platform,
                "status": m.status,
                "seconds": m.seconds if m.ok and m.times_s else None,
                "repeats": len(m.times_s),
                "conversion_s": m.conversion_s,
                "source": m.source,
                "when": m.when,
                "campaign": run.campaign,
                **{f"config.{name}": _plain(value) for name, value in run.config.items()},
            }
        )
    return _columns(rows)


def _plain(value: Value) -> int | float | str | bool:
    """Text of a permutation, since data frames have no tuples; other values unchanged."""
    return ",".join(value) if isinstance(value, tuple) else value


def _columns(rows: list[dict[str, Any]]) -> Columns:
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}
