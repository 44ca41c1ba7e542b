"""The shipped file: the packed tables of a store, and their unpacking into a store.

It has the results of an import of the runs and of `embed`, so that nothing is read, checked or
computed a second time: this program creates it from checked exports (`indexer.shipped.__main__`).
"""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import StoreCorrupt, UsageError
from embeddb.core.files.safe_read import read_bounded, refusing
from embeddb.core.files.safe_write import whole_file
from embeddb.core.records import Measurement, id_parts
from embeddb.store import codec
from embeddb.store.codec import RunRow
from embeddb.store.engine import SCHEMA, TABLES, Engine, Txn

Row = tuple[bytes, bytes]

_TIMES = ("first", "second", "third")
#: The numbers of a measurement, and the base from which each one's difference is stored.
FROM = {
    "first": "",
    "second": "first",
    "third": "second",
    "busiest": "second",
    "all": "busiest",
    "conversion": "",
    "when": "",
}
#: The number of rows of a head; the numbers of a row's configuration and form.
COLUMNS = ("rows", "config", "form")
#: Unit of stored time stamps.
WHEN_S = 60.0
#: Bytes of a partition's number and a pattern's id, with which a run's key begins.
HEAD = 20


class PackedRuns(msgspec.Struct, frozen=True):
    """`count` packed rows, and `plain` ones besides. `forms` are rows with 1.0 for every number and
    no configuration, `heads` the beginnings of keys (deflated), `columns` planes of bytes by
    name."""

    count: int
    forms: list[RunRow]
    heads: bytes
    columns: dict[str, list[bytes]]
    plain: list[Row]


def fits(m: Measurement) -> bool:
    """True if there is a column for each of its numbers."""
    return max(len(m.times_s) - 2, len(m.cpu_max_s), len(m.cpu_sum_s)) <= 1


def numbers_of(m: Measurement) -> dict[str, float]:
    """Numbers of a measurement by column."""
    numbers = dict(zip(_TIMES, m.times_s, strict=False))
    numbers |= zip(("busiest",), m.cpu_max_s, strict=False)
    numbers |= zip(("all",), m.cpu_sum_s, strict=False)
    if m.conversion_s is not None:
        numbers["conversion"] = m.conversion_s
    return {**numbers, "when": m.when}


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


Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

#: Code of a time with more than four digits.
NO_CODE = -1
#: Powers of ten with codes; up to 10**22 a float64 holds each of them exactly.
_LEAST, _MOST = -19, 22
_TENS = np.array([float(f"1e{n}") for n in range(_MOST + 1)])
_STEPS = 9000  # numbers of four digits in a power of ten


def code_of(seconds: Floats) -> Ints:
    """Rank of each time among all numbers of four digits, in ascending order, 0 for 0.0, or
    `NO_CODE`: times that are close have codes that are close. Shapes: float64[n] to int64[n]."""
    with np.errstate(all="ignore"):
        power = np.floor(np.log10(seconds))
        power = np.where(np.isfinite(power), np.clip(power, _LEAST, _MOST), 0.0)
        digits = np.rint(seconds / 10.0 ** (power - 3))
    digits = np.where((digits >= 1000) & (digits <= 10_000), digits, 1000)
    code = ((power - _LEAST) * _STEPS + digits - 999).astype(np.int64)
    code[seconds == 0] = 0
    code[(code > (_MOST - _LEAST + 1) * _STEPS) | np.signbit(seconds)] = NO_CODE
    return np.where(seconds_of(code) == seconds, code, NO_CODE)


def seconds_of(code: Ints) -> Floats:
    """The times of codes: a division or product of exact numbers rounds like parsing the decimal.
    Shapes: int64[n] to float64[n]. Raises: StoreCorrupt for an invalid code."""
    if code.size and not NO_CODE <= code.min() <= code.max() <= (_MOST - _LEAST + 1) * _STEPS:
        raise StoreCorrupt("invalid codes of times")
    power, digit = np.divmod(np.maximum(code - 1, 0), _STEPS)
    power += _LEAST - 3
    digits = (digit + 1000).astype(np.float64)
    down, up = _TENS[np.clip(-power, 0, _MOST)], _TENS[np.clip(power, 0, _MOST)]
    seconds: Floats = np.where(power < 0, digits / down, digits * up)
    return np.where(code > 0, seconds, np.where(code == 0, 0.0, np.nan))


def packed(numbers: Ints) -> list[bytes]:
    """Numbers of at most 32 bits as planes of bytes, lowest first, each deflated: the high bytes
    are nearly all equal. Raises: OverflowError for larger ones."""
    if numbers.size and not -(1 << 31) <= numbers.min() <= numbers.max() < 1 << 31:
        raise OverflowError("numbers of more than 32 bits")
    small = numbers.astype("<i4")
    folded = ((small << 1) ^ (small >> 31)).astype("<u4").view(np.uint8).reshape(-1, 4)
    planes = [folded[:, at].tobytes() for at in range(4)]
    while planes and not any(planes[-1]):
        planes.pop()
    return [zlib.compress(plane, 9) for plane in planes]


def unpacked(planes: list[bytes], count: int) -> Ints:
    """`count` numbers, int64[count]. Raises: StoreCorrupt if the bytes have another number."""
    folded = np.zeros((count, 4), dtype=np.uint8)
    for at, plane in enumerate(planes):
        raw = inflated(plane, count)
        if at > 3 or len(raw) != count:
            raise StoreCorrupt("a column has a wrong length")
        folded[:, at] = np.frombuffer(raw, dtype=np.uint8)
    whole = folded.view("<u4").reshape(-1).astype(np.int64)
    return (whole >> 1) ^ -(whole & 1)


def inflated(raw: bytes, most: int) -> bytes:
    """At most `most` inflated bytes. Raises: StoreCorrupt for more, and for other data."""
    inflate = zlib.decompressobj()
    try:
        content = inflate.decompress(raw, most + 1)
    except zlib.error as error:
        raise StoreCorrupt(f"cannot be inflated: {error}") from None
    if len(content) > most or not (inflate.eof or len(content) == most):
        raise StoreCorrupt("a packed part has a wrong length")
    return content


_ONES = dict.fromkeys(FROM, 1.0)


def pack_runs(stored: Iterable[Row], config_numbers: Mapping[bytes, int]) -> PackedRuns:
    """The rows of table `run`, in the order of their keys; configurations by their ids. They are
    sorted by head, configuration and form, so that neighbouring rows are similar."""
    rows = list(stored)
    decoded = [codec.decode_row(raw) for _, raw in rows]
    codes, packable = _codes([row.measurement for row in decoded])
    forms: dict[bytes, tuple[int, codec.RunRow]] = {}
    sortable = []
    for at in np.flatnonzero(packable).tolist():
        form = _form(decoded[at])
        number, _ = forms.setdefault(msgspec.msgpack.encode(form), (len(forms), form))
        sortable.append((rows[at][0][:HEAD], config_numbers[decoded[at].config_id], number, at))
    sortable.sort()
    heads = [(head, len(list(same))) for head, same in groupby(sortable, key=itemgetter(0))]
    order = np.array([at for *_, at in sortable], dtype=np.int64)
    columns = {
        "rows": np.array([count for _, count in heads], dtype=np.int64),
        "config": np.array([config for _, config, _, _ in sortable], dtype=np.int64),
        "form": np.array([form for _, _, form, _ in sortable], dtype=np.int64),
        **{n: (codes[n] - codes[base] if base else codes[n])[order] for n, base in FROM.items()},
    }
    return PackedRuns(
        len(sortable),
        [form for _, form in forms.values()],
        zlib.compress(b"".join(head for head, _ in heads), 9),
        {name: packed(numbers) for name, numbers in columns.items()},
        [row for row, fit in zip(rows, packable, strict=True) if not fit],
    )


def _form(row: codec.RunRow) -> codec.RunRow:
    return msgspec.structs.replace(row, config_id=b"", measurement=with_(row.measurement, _ONES))


def _codes(
    measured: Sequence[Measurement],
) -> tuple[dict[str, NDArray[np.int64]], NDArray[np.bool_]]:
    """Codes of all rows by name, with the base's code for a missing number; and which rows can be
    packed."""
    have = [numbers_of(m) for m in measured]
    packable = np.array([fits(m) for m in measured], dtype=bool)
    codes: dict[str, NDArray[np.int64]] = {}
    for name, base in FROM.items():
        numbers = np.array([one.get(name, 0.0) for one in have], dtype=np.float64)
        code = _minutes(numbers) if name == "when" else code_of(numbers)
        lacks = np.array([name not in one for one in have], dtype=bool)
        packable &= lacks | (code != NO_CODE)
        codes[name] = np.where(lacks, codes[base] if base else 0, code)
    return codes, packable


def _minutes(when: NDArray[np.float64]) -> NDArray[np.int64]:
    """Whole minutes since 1970, `NO_CODE` for other values. Shapes: float64[n] to int64[n]."""
    minutes = np.where((when >= 0) & (when < (1 << 31) * WHEN_S), when, -WHEN_S) / WHEN_S
    whole = (minutes == np.rint(minutes)) & ~np.signbit(when)
    return np.where(whole, minutes, NO_CODE).astype(np.int64)


#: Op and platform id by the number that a run's key begins with.
Places = Mapping[bytes, tuple[str, str]]

#: Where a stored run holds its configuration's id (after two tokens) and its measurement.
_CONFIG, _MEASURED = 3, 19
#: Approximate number of rows unpacked at once; most rows of a file.
_PIECE = 1 << 15
_MOST_ROWS = 1 << 23
#: Numbers whose bytes occur in no text, and not among zeros.
_MARKS: dict[str, float] = {
    name: struct.unpack(">d", b"\xc1" + b"\xfe" * 6 + bytes([at]))[0]
    for at, name in enumerate(FROM)
}


@dataclass(frozen=True, slots=True)
class _Mould:
    """A form's row as bytes: `slots` are the places of its numbers, `ends` the part of a run's id
    after its configuration, `tail` the end of its measurement."""

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
        raise StoreCorrupt(f"an impossible number of runs: {runs.count}")
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
    """The heads in order, and the number of rows up to the end of each."""
    raw = inflated(runs.heads, HEAD * runs.count)
    heads = [raw[i : i + HEAD] for i in range(0, len(raw), HEAD)]
    rows = unpacked(runs.columns["rows"], len(heads))
    if (rows < 1).any() or rows.sum() != runs.count:
        raise StoreCorrupt("runs of an unknown partition")
    return heads, np.cumsum(rows).tolist()


@dataclass(frozen=True, slots=True)
class _Casting:
    """Inputs of the rows. Shapes: runs in `config`, `form` and each of `codes`."""

    configs: list[bytes]
    ids: NDArray[np.uint8]
    moulds: list[_Mould]
    config: NDArray[np.int64]
    form: NDArray[np.int64]
    codes: dict[str, NDArray[np.int64]]

    @classmethod
    def of(cls, runs: PackedRuns, configs: list[bytes]) -> _Casting:
        indices = {name: unpacked(runs.columns[name], runs.count) for name in ("config", "form")}
        for name, limit in (("config", len(configs)), ("form", len(runs.forms))):
            if runs.count and not 0 <= indices[name].min() <= indices[name].max() < limit:
                raise StoreCorrupt(f"runs of an unknown {name}")
        codes: dict[str, NDArray[np.int64]] = {}
        for name, base in FROM.items():
            codes[name] = unpacked(runs.columns[name], runs.count)
            if base:
                codes[name] += codes[base]
        ids = np.frombuffer(b"".join(map(config_id, configs)), dtype=np.uint8).reshape(-1, 16)
        moulds = [_Mould.of(form) for form in runs.forms]
        return cls(configs, ids, moulds, indices["config"], indices["form"], codes)

    def values(self, first: int, last: int) -> list[bytes]:
        """The stored rows of runs `first` to `last`."""
        span = slice(first, last)
        numbers = {n: code[span] for n, code in self.codes.items()}
        seconds = {
            n: code * WHEN_S if n == "when" else seconds_of(code) for n, code in numbers.items()
        }
        ids, forms = self.ids[self.config[span]], self.form[span]
        stored = [b""] * (last - first)
        order = np.argsort(forms, kind="stable")
        cuts = np.flatnonzero(np.diff(forms[order])) + 1
        for same in np.split(order, cuts):
            mould = self.moulds[forms[same[0]]]
            cast_rows = mould.cast(ids[same], {n: seconds[n][same] for _, n in mould.slots})
            for at, value in zip(same.tolist(), cast_rows, strict=True):
                stored[at] = value
        return stored

    def keyed(self, head: bytes, before: bytes, values: list[bytes], first: int) -> list[Row]:
        """Some rows of one head from run `first` on, with their keys, which end in their ids."""
        span = slice(first, first + len(values))
        configs, moulds = self.configs, self.moulds
        rows = []
        for value, config, form in zip(
            values, self.config[span].tolist(), self.form[span].tolist(), strict=True
        ):
            mould = moulds[form]
            run_bytes = before + configs[config] + mould.ends + value[_MEASURED : mould.tail]
            rows.append((head + blake2b(run_bytes, digest_size=16).digest(), value))
        return rows


def config_id(stored: bytes) -> bytes:
    """Id of a stored configuration, as `Config.id`."""
    return blake2b(stored, digest_size=16).digest()


_MAGIC = b"embeddb rows 1\n"
_DIGEST = 16
_HINT = "reinstall embeddb"
#: Most bytes of a file, and of a table except that of the runs.
_MOST_BYTES = 1 << 28
#: Tables that are packed differently, and that of models, which ship as files.
_APART = ("run", "config", "model")

T = TypeVar("T")


class _Packed(msgspec.Struct, frozen=True):
    """`tables` are rows by table, `configs` the stored configurations, in the order of their
    numbers: each packed by msgpack and deflated."""

    schema: int
    tables: dict[str, bytes]
    configs: bytes
    runs: PackedRuns


def pack(engine: Engine, to: Path) -> None:
    """Write the tables of a store to a file. The same tables give the same bytes.

    Raises: UsageError if they would not be restored identically.
    """
    with engine.read() as txn:
        tables = {name: list(txn.scan(name)) for name in TABLES if name not in _APART}
        configs = sorted(txn.scan("config"), key=lambda row: row[1])
        rows = list(txn.scan("run"))
    tables["meta"] = [row for row in tables["meta"] if row[0] != b"schema"]
    numbers = {key: at for at, (key, _) in enumerate(configs)}
    packed = _Packed(
        SCHEMA,
        {name: _deflated(rows_of_table) for name, rows_of_table in tables.items() if rows_of_table},
        _deflated([raw for _, raw in configs]),
        pack_runs(rows, numbers),
    )
    if not _same(packed, rows, configs):
        raise UsageError(f"{engine.place}: a run or configuration would come back as another")
    body = msgspec.msgpack.encode(packed)
    with whole_file(to) as out:
        out.write(_MAGIC + blake2b(body, digest_size=_DIGEST).digest() + body)


def _same(packed: _Packed, rows: list[Row], configs: list[Row]) -> bool:
    unpacked_rows = [row for piece in _runs(packed) for row in piece]
    return sorted(unpacked_rows + packed.runs.plain) == rows and _configs(packed) == sorted(configs)


def unpack(file: Path, engine: Engine) -> Iterator[int]:
    """Write the tables of a file into a store that has none of these rows; yields the number of
    runs after each transaction.

    Raises: StoreCorrupt if the file is damaged or of another program; as every write does.
    """
    packed = _read(file)
    with refusing(StoreCorrupt, where=str(file), hint=_HINT):
        tables = {name: _inflated(raw, list[Row]) for name, raw in packed.tables.items()}
        engine.write(partial(_put, tables={**tables, "config": _configs(packed)}))
        done = 0
        for piece in _runs(packed):
            engine.write(partial(_add_runs, rows=piece))
            done += len(piece)
            yield done
        engine.write(partial(_put, tables={"run": packed.runs.plain}))


def _put(txn: Txn, tables: Mapping[str, list[Row]]) -> None:
    for name, rows in tables.items():
        for key, value in rows:
            txn.put(name, key, value)


def _add_runs(txn: Txn, rows: list[Row]) -> None:
    txn.put_sorted("run", rows)


def _runs(packed: _Packed) -> Iterator[list[Row]]:
    numbers_by_key = dict(_inflated(packed.tables.get("partition", _NONE), list[Row]))
    places = {
        number: (str(op), platform)
        for key, number in numbers_by_key.items()
        for op, platform in [codec.decode_partition(key, number)]
    }
    return run_rows(packed.runs, _inflated(packed.configs, list[bytes]), places)


def _configs(packed: _Packed) -> list[Row]:
    return sorted((config_id(raw), raw) for raw in _inflated(packed.configs, list[bytes]))


def _read(file: Path) -> _Packed:
    with refusing(StoreCorrupt, where=str(file), hint=_HINT):
        raw = read_bounded(file, _MOST_BYTES)
        body = raw[len(_MAGIC) + _DIGEST :]
        sound = _MAGIC + blake2b(body, digest_size=_DIGEST).digest()
        if not raw.startswith(sound):
            raise StoreCorrupt(f"{file}: damaged, or of another program", hint=_HINT)
        packed = msgspec.msgpack.decode(body, type=_Packed)
        if packed.schema != SCHEMA or not packed.tables.keys() <= set(TABLES).difference(_APART):
            raise StoreCorrupt(
                f"{file}: of schema {packed.schema}; this program reads {SCHEMA}", hint=_HINT
            )
        return packed


def _deflated(rows: list[Row] | list[bytes]) -> bytes:
    return zlib.compress(msgspec.msgpack.encode(rows), 9)


#: No rows.
_NONE = _deflated(list[bytes]())


def _inflated(raw: bytes, kind: type[T]) -> T:
    return msgspec.msgpack.decode(inflated(raw, _MOST_BYTES), type=kind)
