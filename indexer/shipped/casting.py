"""Columns to stored runs, as bytes and by the thousand: no run is made an object on the way."""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b

import msgspec
import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import StoreCorrupt
from embeddb.core.records import id_parts
from embeddb.store import codec
from indexer.shipped.columns import COLUMNS, FROM, HEAD, WHEN_S, PackedRuns, Row, numbers_of, with_
from indexer.shipped.numbers import inflated, seconds_of, unpacked

__all__ = ["Places", "config_id", "run_rows"]

#: Op and platform id by the number that a run's key begins with.
Places = Mapping[bytes, tuple[str, str]]

#: Where a stored run holds its configuration's id (after two tokens) and its measurement.
_CONFIG, _MEASURED = 3, 19
#: Rows unpacked at once, about; and most that are believed to be there.
_PIECE = 1 << 15
_MOST_ROWS = 1 << 23
#: Numbers whose bytes are in no text, and not among zeros.
_MARKS: dict[str, float] = {
    name: struct.unpack(">d", b"\xc1" + b"\xfe" * 6 + bytes([at]))[0]
    for at, name in enumerate(FROM)
}


@dataclass(frozen=True, slots=True)
class _Mould:
    """A form's row as bytes: `slots` are the places of its numbers, `ends` what goes into a run's
    id behind its configuration, `tail` where its measurement ends."""

    row: NDArray[np.uint8]
    slots: tuple[tuple[int, str], ...]
    ends: bytes
    tail: int

    @classmethod
    def of(cls, form: codec.RunRow) -> _Mould:
        marked = with_(form.measurement, _MARKS)
        row = msgspec.structs.replace(form, config_id=bytes(16), measurement=marked)
        raw = codec.encode_row(row)
        slots = tuple(
            (raw.index(struct.pack(">d", mark)), name) for name, mark in numbers_of(marked).items()
        )
        tail = _MEASURED + len(msgspec.msgpack.encode(marked))
        _, ends = id_parts("", "", "", (form.replaces, form.campaign))
        return cls(np.frombuffer(raw, dtype=np.uint8), slots, ends, tail)

    def cast(
        self, configs: NDArray[np.uint8], numbers: Mapping[str, NDArray[np.float64]]
    ) -> list[bytes]:
        """The stored rows of some runs, whose configurations' ids are uint8[runs, 16]."""
        rows = np.tile(self.row, (len(configs), 1))
        rows[:, _CONFIG : _CONFIG + 16] = configs
        for place, name in self.slots:
            values = numbers[name].astype(">f8")
            rows[:, place : place + 8] = values.view(np.uint8).reshape(-1, 8)
        raw, size = rows.tobytes(), rows.shape[1]
        return [raw[i : i + size] for i in range(0, len(raw), size)]


def run_rows(runs: PackedRuns, configs: list[bytes], places: Places) -> Iterator[list[Row]]:
    """The rows of table `run` in the order of their keys, some at a time, without the plain ones.
    `configs` are the stored configurations by number. Raises: StoreCorrupt."""
    if not 0 <= runs.count <= _MOST_ROWS or runs.columns.keys() != {*COLUMNS, *FROM}:
        raise StoreCorrupt(f"{runs.count} runs are not believed")
    heads, ends = _heads(runs)
    casting = _Casting.of(runs, configs)
    piece: list[Row] = []
    at = done = 0
    while at < len(heads):
        upto = bisect_left(ends, min(done + _PIECE, runs.count), at) + 1
        values = casting.values(done, ends[upto - 1])
        begun = done
        for head, end in zip(heads[at:upto], ends[at:upto], strict=True):
            op, platform = places[head[:4]]
            before, _ = id_parts(head[4:].hex(), op, platform)
            piece += sorted(casting.keyed(head, before, values[done - begun : end - begun], done))
            done = end
        yield piece
        piece, at = [], upto


def _heads(runs: PackedRuns) -> tuple[list[bytes], list[int]]:
    """The heads in order, and how many rows there are up to the end of each."""
    raw = inflated(runs.heads, HEAD * runs.count)
    heads = [raw[i : i + HEAD] for i in range(0, len(raw), HEAD)]
    rows = unpacked(runs.columns["rows"], len(heads))
    if (rows < 1).any() or rows.sum() != runs.count:
        raise StoreCorrupt("runs of no partition")
    return heads, np.cumsum(rows).tolist()


@dataclass(frozen=True, slots=True)
class _Casting:
    """What the rows are made of. Shapes: runs in `config`, `form` and each of `codes`."""

    configs: list[bytes]
    ids: NDArray[np.uint8]
    moulds: list[_Mould]
    config: NDArray[np.int64]
    form: NDArray[np.int64]
    codes: dict[str, NDArray[np.int64]]

    @classmethod
    def of(cls, runs: PackedRuns, configs: list[bytes]) -> _Casting:
        told = {name: unpacked(runs.columns[name], runs.count) for name in ("config", "form")}
        for name, limit in (("config", len(configs)), ("form", len(runs.forms))):
            if runs.count and not 0 <= told[name].min() <= told[name].max() < limit:
                raise StoreCorrupt(f"runs of a {name} that is not there")
        codes: dict[str, NDArray[np.int64]] = {}
        for name, base in FROM.items():
            codes[name] = unpacked(runs.columns[name], runs.count)
            if base:
                codes[name] += codes[base]
        ids = np.frombuffer(b"".join(map(config_id, configs)), dtype=np.uint8).reshape(-1, 16)
        moulds = [_Mould.of(form) for form in runs.forms]
        return cls(configs, ids, moulds, told["config"], told["form"], codes)

    def values(self, first: int, last: int) -> list[bytes]:
        """The stored rows of runs `first` to `last`."""
        span = slice(first, last)
        numbers = {n: code[span] for n, code in self.codes.items()}
        seconds = {
            n: code * WHEN_S if n == "when" else seconds_of(code) for n, code in numbers.items()
        }
        ids, forms = self.ids[self.config[span]], self.form[span]
        found = [b""] * (last - first)
        order = np.argsort(forms, kind="stable")
        cuts = np.flatnonzero(np.diff(forms[order])) + 1
        for same in np.split(order, cuts):
            mould = self.moulds[forms[same[0]]]
            made = mould.cast(ids[same], {n: seconds[n][same] for _, n in mould.slots})
            for at, value in zip(same.tolist(), made, strict=True):
                found[at] = value
        return found

    def keyed(self, head: bytes, before: bytes, values: list[bytes], first: int) -> list[Row]:
        """Some rows of one head from run `first` on, with their keys, which end in their ids."""
        span = slice(first, first + len(values))
        configs, moulds = self.configs, self.moulds
        rows = []
        for value, config, form in zip(
            values, self.config[span].tolist(), self.form[span].tolist(), strict=True
        ):
            mould = moulds[form]
            said = before + configs[config] + mould.ends + value[_MEASURED : mould.tail]
            rows.append((head + blake2b(said, digest_size=16).digest(), value))
        return rows


def config_id(stored: bytes) -> bytes:
    """As `Config.id` has it."""
    return blake2b(stored, digest_size=16).digest()
