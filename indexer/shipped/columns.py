"""The runs of a store as columns: a tenth of their size, and quicker to read than any text.

Rows are told by their form, which is all but numbers, by the number of their configuration, and by
columns of times. Ids are not kept: they follow from the content, and so do keys and their order.
Rows that do not fit (times of more than four digits, other counts of repeats than an export with
`--brief` leaves) are kept as they are stored.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from embeddb.core.records import Measurement
from embeddb.store.codec import RunRow

__all__ = ["COLUMNS", "FROM", "HEAD", "WHEN_S", "PackedRuns", "Row", "fits", "numbers_of", "with_"]

Row = tuple[bytes, bytes]

_TIMES = ("first", "second", "third")
#: The numbers of a measurement, and what each is told from.
FROM = {
    "first": "",
    "second": "first",
    "third": "second",
    "busiest": "second",
    "all": "busiest",
    "conversion": "",
    "when": "",
}
#: Of a head: how many rows it has; of a row: the numbers of its configuration and its form.
COLUMNS = ("rows", "config", "form")
#: Moments are told in minutes.
WHEN_S = 60.0
#: Bytes of a partition's number and a pattern's id, with which a run's key begins.
HEAD = 20


class PackedRuns(msgspec.Struct, frozen=True):
    """`count` rows, and the `plain` ones besides. `forms` are rows with 1.0 for every number and no
    configuration, `heads` the beginnings of keys (deflated), `columns` planes of bytes by name."""

    count: int
    forms: list[RunRow]
    heads: bytes
    columns: dict[str, list[bytes]]
    plain: list[Row]


def fits(m: Measurement) -> bool:
    """Whether there is a column for each of its numbers."""
    return max(len(m.times_s) - 2, len(m.cpu_max_s), len(m.cpu_sum_s)) <= 1


def numbers_of(m: Measurement) -> dict[str, float]:
    """The numbers that a measurement has, of those that there are columns for."""
    found = dict(zip(_TIMES, m.times_s, strict=False))
    found |= zip(("busiest",), m.cpu_max_s, strict=False)
    found |= zip(("all",), m.cpu_sum_s, strict=False)
    if m.conversion_s is not None:
        found["conversion"] = m.conversion_s
    return {**found, "when": m.when}


def with_(m: Measurement, numbers: Mapping[str, float]) -> Measurement:
    """A measurement that fits, with other numbers in place of those that it has."""
    return msgspec.structs.replace(
        m,
        times_s=tuple(numbers[name] for name in _TIMES[: len(m.times_s)]),
        cpu_max_s=tuple(numbers["busiest"] for _ in m.cpu_max_s),
        cpu_sum_s=tuple(numbers["all"] for _ in m.cpu_sum_s),
        conversion_s=None if m.conversion_s is None else numbers["conversion"],
        when=numbers["when"],
    )
