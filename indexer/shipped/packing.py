"""Stored runs to columns."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter

import msgspec
import numpy as np
from numpy.typing import NDArray

from embeddb.core.records import Measurement
from embeddb.store import codec
from indexer.shipped.columns import FROM, HEAD, WHEN_S, PackedRuns, Row, fits, numbers_of, with_
from indexer.shipped.numbers import NO_CODE, code_of, packed

__all__ = ["pack_runs"]

_ONES = dict.fromkeys(FROM, 1.0)


def pack_runs(stored: Iterable[Row], config_numbers: Mapping[bytes, int]) -> PackedRuns:
    """The rows of table `run`, in the order of their keys; configurations by their ids. They come
    by head, configuration and form, of which neighbours are alike."""
    rows = list(stored)
    found = [codec.decode_row(raw) for _, raw in rows]
    codes, told = _codes([row.measurement for row in found])
    forms: dict[bytes, tuple[int, codec.RunRow]] = {}
    kept = []
    for at in np.flatnonzero(told).tolist():
        form = _form(found[at])
        number, _ = forms.setdefault(msgspec.msgpack.encode(form), (len(forms), form))
        kept.append((rows[at][0][:HEAD], config_numbers[found[at].config_id], number, at))
    kept.sort()
    heads = [(head, len(list(same))) for head, same in groupby(kept, key=itemgetter(0))]
    order = np.array([at for *_, at in kept], dtype=np.int64)
    columns = {
        "rows": np.array([count for _, count in heads], dtype=np.int64),
        "config": np.array([config for _, config, _, _ in kept], dtype=np.int64),
        "form": np.array([form for _, _, form, _ in kept], dtype=np.int64),
        **{n: (codes[n] - codes[base] if base else codes[n])[order] for n, base in FROM.items()},
    }
    return PackedRuns(
        len(kept),
        [form for _, form in forms.values()],
        zlib.compress(b"".join(head for head, _ in heads), 9),
        {name: packed(numbers) for name, numbers in columns.items()},
        [row for row, fit in zip(rows, told, strict=True) if not fit],
    )


def _form(row: codec.RunRow) -> codec.RunRow:
    return msgspec.structs.replace(row, config_id=b"", measurement=with_(row.measurement, _ONES))


def _codes(
    measured: Sequence[Measurement],
) -> tuple[dict[str, NDArray[np.int64]], NDArray[np.bool_]]:
    """The numbers of all rows by name, those that a row lacks as what they are told from; and which
    rows can be told so."""
    have = [numbers_of(m) for m in measured]
    told = np.array([fits(m) for m in measured], dtype=bool)
    codes: dict[str, NDArray[np.int64]] = {}
    for name, base in FROM.items():
        numbers = np.array([one.get(name, 0.0) for one in have], dtype=np.float64)
        code = _minutes(numbers) if name == "when" else code_of(numbers)
        lacks = np.array([name not in one for one in have], dtype=bool)
        told &= lacks | (code != NO_CODE)
        codes[name] = np.where(lacks, codes[base] if base else 0, code)
    return codes, told


def _minutes(when: NDArray[np.float64]) -> NDArray[np.int64]:
    """Shapes: float64[n] to int64[n], `NO_CODE` for what is no whole minute since 1970."""
    minutes = np.where((when >= 0) & (when < (1 << 31) * WHEN_S), when, -WHEN_S) / WHEN_S
    whole = (minutes == np.rint(minutes)) & ~np.signbit(when)
    return np.where(whole, minutes, NO_CODE).astype(np.int64)
