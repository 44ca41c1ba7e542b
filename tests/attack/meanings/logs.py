"""Run logs: the same runs written in every way that people write them."""

from __future__ import annotations

import gzip
import io
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from attack.meaning import Change

Record = Mapping[str, Any]
#: Powers of ten from microseconds.
_UNITS = {"s": -6, "ms": -3, "us": 0, "ns": 3}
_SPELLED = {
    "us": ("time_μs", "time [µs]", "time (usec)", "Time_us", "elapsed (µsec)", "runtime_us"),
    "ms": ("time [ms]", "Time (msec)", "latency_ms", "runtime_ms"),
    "ns": ("time_ns", "exec_time_ns", "time [nsec]", "TIME_NS"),
    "s": ("time_s", "time (seconds)", "time [s]", "wall_time_sec"),
}
_WORDS = {
    "ok": ("ok", "OK", "success", "passed", "valid", "Done", "complete", "PASS"),
    "timeout": ("timeout", "TIMEOUT", "TLE", "timed out", "time limit exceeded"),
    "crash": ("crash", "failed", "FAIL", "error", "Segfault", "runtime error", "not ok"),
    "oom": ("oom", "OOM", "out of memory"),
    "build": ("build", "compile error", "compilation failed"),
    "invalid": ("invalid", "INVALID", "unsupported", "illegal"),
}
_NO_TIME = ("", "inf", "nan", "NaN", "-1", "0", "None", "-", "N/A", "null", "-inf", "1e30", "-1.0")
_BETWEEN = (";", " ", "; ", " ; ", "|", "  ")


@dataclass(frozen=True)
class Log:
    """Runs and how they are written. A record has `matrix`, `op`, `status`, `times` (Decimal, in
    microseconds), `m`, `n`, `nnz` and the parameters; `labels` are the headers of the columns, in
    their order, by what they hold."""

    platform: str
    records: tuple[Record, ...]
    labels: Mapping[str, str]
    unit: str = "us"
    unit_in: str = "header"  # or: column, cell
    words: Mapping[str, tuple[str, ...]] = field(
        default_factory=lambda: {status: (status,) for status in _WORDS}
    )
    no_time: tuple[str, ...] = ("",)
    between: str = ""  # of repeats in one cell; empty: a row for each
    size: Callable[[int], Any] = int
    extra: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    decimal: str = "."
    separator: str = ","
    pad: str = ""
    lines: str = ""  # "json": an object a line
    before: tuple[str, ...] = ()
    encoding: str = "utf-8"
    newline: str = "\n"
    packed: bool = False
    parts: int = 1
    #: Row before which the header comes again, and its columns there.
    again: tuple[int, tuple[str, ...]] | None = None
    twice: str = ""  # "same": read twice; "grown": half of it first
    forbidden: bool = False
    seed: int = 0

    @property
    def params(self) -> tuple[str, ...]:
        fixed = {"matrix", "op", "status", "times", "m", "n", "nnz", "unit"}
        return tuple(name for name in self.labels if name not in fixed | set(self.extra))


# -- a true log ----------------------------------------------------------------------------------


def draw(rng: random.Random) -> Log:
    values = {
        rng.choice(("tile", "block_rows", "bm")): rng.sample((4, 8, 16, 32, 64, 128), 3),
        rng.choice(("order", "schedule")): rng.sample(("row", "col", "zig", "hilbert"), 2),
    }
    if rng.random() < 0.3:
        values["cols_per_tile"] = rng.sample((4, 8, 16, 32), 2)
    configs = [{}]
    for name, options in values.items():
        configs = [{**config, name: option} for config in configs for option in options]
    ops = ["spmm:32"] if rng.random() < 0.7 else ["spmm:32", "spmm:64"]
    records = []
    for at in range(rng.randint(2, 4)):
        sizes = {"m": 100 + 7 * at, "n": 120 + 5 * at, "nnz": 1000 * (at + 1)}
        for config in configs:
            status = rng.choice(("ok", "ok", "ok", rng.choice(sorted(_WORDS))))
            count = rng.choice((1, 1, 2, 4)) if status == "ok" else 1
            coarse = rng.choice((1, 1, 100))
            times = [Decimal(rng.randint(100, 9999) // coarse * coarse) / 10 for _ in range(count)]
            ok = tuple(max(time, Decimal(10)) for time in times) if status == "ok" else ()
            record = {"matrix": f"net{at}", "op": rng.choice(ops), "status": status, "times": ok}
            records.append({**record, **sizes, **config})
    columns = ["matrix", *values, "times", "status"]
    columns += ["op"] if len(ops) > 1 or rng.random() < 0.5 else []
    columns += ["m", "n", "nnz"] if rng.random() < 0.6 else []
    labels = {name: "time_us" if name == "times" else name for name in columns}
    seed = rng.randrange(1 << 30)
    return Log(_platform(values), tuple(records), labels, seed=seed)


def _platform(values: Mapping[str, list[Any]]) -> str:
    kinds = {name: "int" if isinstance(v[0], int) else "choice" for name, v in values.items()}
    params = [
        f'{name} = {{ type = "{kinds[name]}", values = {json.dumps(sorted(options))} }}'
        for name, options in values.items()
    ]
    defaults = [f"{name} = {json.dumps(options[0])}" for name, options in values.items()]
    head = ['name = "attacked"', 'version = "1"', 'title = "Drawn"', "simulated = false"]
    space = ["[[space]]", 'kernels = ["spmm"]', "[space.params]", *params, "[space.default]"]
    return "\n".join([*head, "portable = true", *space, *defaults, ""])


def expected(log: Log) -> dict[Any, Any] | None:
    if log.forbidden:
        return None
    content: dict[Any, list[str]] = {}
    for record in log.records:
        op = record["op"] if "op" in log.labels else "spmm:32"
        config = json.dumps({name: record[name] for name in sorted(log.params)})
        key = (_name(record["matrix"]), op, config.replace(" ", ""), record["status"])
        seconds = [f"{float(time) / 1e6:.9g}" for time in record["times"]]
        content.setdefault(key, []).extend(seconds)
    return {key: sorted(times) for key, times in content.items()}


def _name(text: str) -> str:
    return text.rpartition("/")[2].removesuffix(".mtx")


# -- written -------------------------------------------------------------------------------------


def _rows(log: Log) -> list[dict[str, Any]]:
    """Cells by what they hold, a row for each repeat or for all of them."""
    rng = random.Random(log.seed)
    rows = []
    for record in log.records:
        times = [_number(time, log) for time in record["times"]]
        cells = [log.between.join(times)] if log.between else times
        for cell in cells if record["status"] == "ok" else [rng.choice(log.no_time)]:
            row = dict(record)
            row["times"] = cell
            if log.unit_in == "cell" and record["status"] == "ok":
                row["times"] = f"{cell} {log.unit}"
            row["unit"] = log.unit
            row["status"] = rng.choice(log.words[record["status"]])
            row.update({name: log.size(record[name]) for name in ("m", "n", "nnz")})
            row.update({name: rng.choice(values) for name, values in log.extra.items()})
            rows.append(row)
    return rows


def _number(time: Decimal, log: Log) -> str:
    scaled = time.scaleb(_UNITS[log.unit])
    return format(scaled, "f").replace(".", log.decimal)


def _text(log: Log, rows: list[dict[str, Any]], first: int) -> str:
    """One file: `first` is the number of its first row in the whole log."""
    columns = tuple(log.labels)
    if log.lines:
        return "".join(f"{_object(log, row)}{log.newline}" for row in rows)
    lines = [_line(log, [log.labels[name] for name in columns])]
    for at, row in enumerate(rows, first):
        if log.again is not None and at == log.again[0]:
            columns = log.again[1]
            lines.append(_line(log, [log.labels[name] for name in columns]))
        lines.append(_line(log, [str(row[name]) for name in columns]))
    return "".join(f"{line}{log.newline}" for line in (*log.before, *lines))


def _object(log: Log, row: Mapping[str, Any]) -> str:
    shown = {name: row[name] for name in log.labels}
    cell = shown["times"]
    numbers = {"nan": float("nan"), "NaN": float("nan"), "inf": float("inf"), "": None}
    try:
        shown["times"] = numbers[cell] if cell in numbers else float(cell)
    except ValueError:
        shown["times"] = cell
    if cell == "null":
        del shown["times"]
    # Two columns may have one label: both are written.
    cells = (f"{json.dumps(log.labels[name])}: {json.dumps(v)}" for name, v in shown.items())
    return f"{{{', '.join(cells)}}}"


def _line(log: Log, cells: list[str]) -> str:
    out = io.StringIO()
    for at, cell in enumerate(cells):
        needs = log.separator in cell or '"' in cell
        text = '"' + cell.replace('"', '""') + '"' if needs else f"{log.pad}{cell}{log.pad}"
        out.write(f"{log.separator if at else ''}{text}")
    return out.getvalue()


def _files(log: Log, folder: Path) -> list[tuple[Path, bytes]]:
    rows = _rows(log)
    each = -(-len(rows) // log.parts)
    files = []
    for part in range(log.parts):
        text = _text(log, rows[part * each : (part + 1) * each], part * each)
        # Latin-1 has the micro sign and no Greek letter.
        data = (text.replace("μ", "µ") if log.encoding == "latin-1" else text).encode(log.encoding)
        name = f"part{part}" if part % 2 else "runs"
        place = folder / f"dir{part}" if part > 1 else folder
        ending = "jsonl" if log.lines else "csv"
        path = place / f"{name}.{ending}{'.gz' if log.packed else ''}"
        files.append((path, gzip.compress(data, mtime=0) if log.packed else data))
    return files


# -- read ----------------------------------------------------------------------------------------


def read(log: Log, folder: Path) -> dict[Any, Any]:
    from embeddb.store import memory_store

    store = memory_store()
    try:
        _ingest(log, folder, store)
        return _content(store)
    finally:
        store.close()


def answers(log: Log, folder: Path) -> dict[str, list[Any]]:
    """Configurations that a query names for each matrix, the best first, with their gains."""
    from embeddb.database import Database

    with Database.in_memory() as db:
        _ingest(log, folder, db.store)
        names = {_name(info.name): info.id for info in db.store.patterns()}
        asked = {
            name: db.query(pattern, platform="attacked", op=str(log.records[0]["op"]))
            for name, pattern in sorted(names.items())
        }
    return {
        name: [(sorted(c.config.items()), f"{c.score:.6g}", c.failed_on) for c in made.candidates]
        for name, made in asked.items()
    }


def _ingest(log: Log, folder: Path, store: Any) -> None:
    from embeddb.core.config import Op
    from embeddb.platforms.platform import load_platform
    from embeddb.ui.cli.logs import accepted, refuse_empty
    from indexer.ingest import ingest
    from indexer.readers.base.row import ReadOptions

    board = folder / "board.toml"
    board.write_text(log.platform)
    platform = load_platform(board)
    for path, data in _files(log, folder):
        path.parent.mkdir(exist_ok=True)
        for content in _readings(log, data):
            path.write_bytes(content)
            plain = ReadOptions(op=Op.parse("spmm:32"))
            options = accepted([path], platform, plain, yes=True)
            refuse_empty([ingest(store, path, platform=platform, options=options)])


def _readings(log: Log, data: bytes) -> list[bytes]:
    """What stands in the file each time that it is read."""
    if log.twice == "grown":
        half = data.find(log.newline.encode(log.encoding.removesuffix("-sig")), len(data) // 2)
        whole = log.packed or half < 0 or log.encoding.startswith("utf-16")
        return [data] if whole else [data[: half + len(log.newline)], data, data]
    return [data, data] if log.twice else [data]


def _content(store: Any) -> dict[Any, Any]:
    names = {info.id: info.name for info in store.patterns()}
    content: dict[Any, list[str]] = {}
    for partition in store.partitions():
        for run in store.runs(partition.platform, partition.op):
            made = run.measurement
            key = (_name(names[run.pattern_id]), str(run.op), run.config.json, made.status)
            times = [f"{time:.9g}" for time in made.times_s] if made.ok else []
            content.setdefault(key, []).extend(times)
    return {key: sorted(times) for key, times in content.items()}


# -- changes that keep the meaning ---------------------------------------------------------------


def _columns_shuffled(rng: random.Random, log: Log) -> Log:
    names = list(log.labels)
    rng.shuffle(names)
    return replace(log, labels={name: log.labels[name] for name in names}, again=None)


def _rows_shuffled(rng: random.Random, log: Log) -> Log:
    if log.forbidden:
        return log
    records = list(log.records)
    rng.shuffle(records)
    return replace(log, records=tuple(records))


def _header_again(rng: random.Random, log: Log) -> Log:
    return replace(log, again=(rng.randint(1, len(log.records)), tuple(log.labels)))


def _header_moved(rng: random.Random, log: Log) -> Log:
    """The header comes again, its columns in another order."""
    names = list(log.labels)
    rng.shuffle(names)
    return replace(log, again=(rng.randint(1, len(log.records)), tuple(names)))


def _split(rng: random.Random, log: Log) -> Log:
    if log.forbidden:
        return log
    return replace(log, parts=rng.randint(2, 4), again=None)


def _unit(rng: random.Random, log: Log) -> Log:
    if log.forbidden:
        return log
    unit = rng.choice(sorted(_UNITS))
    label = rng.choice(_SPELLED[unit]) if log.unit_in == "header" else log.labels["times"]
    return replace(log, unit=unit, labels={**log.labels, "times": label})


def _unit_column(rng: random.Random, log: Log) -> Log:
    if log.unit_in != "header" or log.forbidden:
        return log
    labels = {**log.labels, "times": "time", "unit": rng.choice(("unit", "time_unit", "Unit"))}
    return replace(log, unit_in="column", labels=labels, again=None)


def _unit_cells(rng: random.Random, log: Log) -> Log:
    if log.unit_in != "header" or log.forbidden:
        return log
    return replace(log, unit_in="cell", labels={**log.labels, "times": "time"})


def _failed_time(rng: random.Random, log: Log) -> Log:
    if "status" not in log.labels:
        return log
    return replace(log, no_time=tuple(rng.sample(_NO_TIME, rng.randint(1, 3))))


def _statuses_spelled(rng: random.Random, log: Log) -> Log:
    return replace(log, words={s: tuple(rng.sample(w, 2)) for s, w in _WORDS.items()})


def _repeats_in_cell(rng: random.Random, log: Log) -> Log:
    return replace(log, between=rng.choice(_BETWEEN))


def _sizes_floats(rng: random.Random, log: Log) -> Log:
    size: Callable[[int], Any] = rng.choice((float, lambda n: f"{n:.3e}"))
    return replace(log, size=size)


def _unused(rng: random.Random, log: Log) -> Log:
    name = rng.choice(("gflops", "host", "notes", "GB/s", "speedup"))
    values = rng.choice(((float("nan"), 1.5), ("", "x"), (float("inf"), 2.5)))
    labels = {**log.labels, name: name}
    return replace(log, labels=labels, extra={**log.extra, name: values}, again=None)


def _folders(rng: random.Random, log: Log) -> Log:
    before, behind = rng.choice((("HB/", ""), ("", ".mtx"), ("/data/suite/", ".mtx")))
    rows = ({**r, "matrix": f"{before}{r['matrix']}{behind}"} for r in log.records)
    return replace(log, records=tuple(rows))


def _capitals(rng: random.Random, log: Log) -> Log:
    change = rng.choice((str.title, str.upper, lambda text: f" {text} "))
    skipped = ("m", "n", "nnz", "op", "unit")
    return replace(log, labels={k: v if k in skipped else change(v) for k, v in log.labels.items()})


def _json(rng: random.Random, log: Log) -> Log:
    if log.decimal != "." or log.separator != "," or "second" in log.labels:
        return log
    return replace(log, lines="json", again=None, before=(), pad="")


def _separated(rng: random.Random, log: Log) -> Log:
    if log.lines:
        return log
    return replace(log, separator=rng.choice("\t;"))


def _decimal_comma(rng: random.Random, log: Log) -> Log:
    if log.lines:
        return log
    return replace(log, separator=";", decimal=",", between=log.between.replace(";", " "))


def _encoded(rng: random.Random, log: Log) -> Log:
    encodings = ["utf-8-sig", "utf-16"]
    if "μ" not in "".join(log.labels.values()):
        encodings.append("latin-1")
    return replace(log, encoding=rng.choice(encodings))


def _line_ends(rng: random.Random, log: Log) -> Log:
    return replace(log, newline=rng.choice(("\r\n", "\r")))


def _preamble(rng: random.Random, log: Log) -> Log:
    lines = ["# host: node, date: today", "# compiler: gcc", ""]
    return log if log.lines else replace(log, before=tuple(rng.sample(lines, 2)))


def _padded(rng: random.Random, log: Log) -> Log:
    return log if log.lines or log.separator == "\t" else replace(log, pad=" ")


def _packed(rng: random.Random, log: Log) -> Log:
    return replace(log, packed=True)


def _read_twice(rng: random.Random, log: Log) -> Log:
    return replace(log, twice=rng.choice(("same", "grown")))


KEEPS: Mapping[str, Change[Log]] = {
    "columns in another order": _columns_shuffled,
    "rows in another order": _rows_shuffled,
    "the header again": _header_again,
    "the header again, moved": _header_moved,
    "in several files": _split,
    "another unit": _unit,
    "a column for the unit": _unit_column,
    "the unit in each cell": _unit_cells,
    "times of failed runs": _failed_time,
    "other words for a status": _statuses_spelled,
    "repeats in one cell": _repeats_in_cell,
    "sizes as floats": _sizes_floats,
    "a column that is not used": _unused,
    "names with folders": _folders,
    "names in capitals": _capitals,
    "JSON lines": _json,
    "another separator": _separated,
    "a decimal comma": _decimal_comma,
    "another encoding": _encoded,
    "other line ends": _line_ends,
    "lines before the header": _preamble,
    "cells with spaces": _padded,
    "compressed": _packed,
    "read twice": _read_twice,
}


# -- changes that alter it -----------------------------------------------------------------------


def _slower(rng: random.Random, log: Log) -> Log:
    """The numbers stay, the unit is another one."""
    rows = tuple({**r, "times": tuple(t * 1000 for t in r["times"])} for r in log.records)
    return replace(log, records=rows, unit="ms", labels={**log.labels, "times": "time_ms"})


def _two_times(rng: random.Random, log: Log) -> Log:
    name = rng.choice(("runtime_s", "time_ms", "time_ns", "Time_us", "runtime"))
    return replace(log, labels={**log.labels, name: name}, extra={name: (3.5, 4.5)}, forbidden=True)


def _column_twice(rng: random.Random, log: Log) -> Log:
    name = rng.choice([*log.params, "times", "status"])
    labels = {**log.labels, "second": log.labels[name]}
    return replace(log, labels=labels, extra={"second": (7, 11)}, forbidden=True)


def _rate(rng: random.Random, log: Log) -> Log:
    label = rng.choice(("GB/s", "gflop_per_s", "runs_per_sec", "it/s", "throughput", "speedup"))
    return replace(log, labels={**log.labels, "times": label}, unit="s", forbidden=True)


def _clock(rng: random.Random, log: Log) -> Log:
    """Seconds since the start in place of the time of a run."""
    total, records = Decimal(0), []
    for record in log.records:
        times = record["times"][:1] or (Decimal(0),)
        total += times[0] + 1000
        records.append({**record, "times": (total,), "status": "ok"})
    label = rng.choice(("elapsed_s", "wall_clock_s", "timestamp_s", "since_start_s"))
    labels = {**log.labels, "times": label}
    return replace(log, records=tuple(records), unit="s", labels=labels, forbidden=True)


def _status_lost(rng: random.Random, log: Log) -> Log:
    """Without its column a run that failed is one that failed somehow."""
    rows = tuple({**r, "status": r["status"] if r["times"] else "crash"} for r in log.records)
    labels = {name: label for name, label in log.labels.items() if name != "status"}
    return replace(log, records=rows, labels=labels, no_time=("inf", "nan", "-1"))


ALTERS: Mapping[str, Change[Log]] = {
    "another unit for the same numbers": _slower,
    "two times": _two_times,
    "a column twice": _column_twice,
    "a rate for the time": _rate,
    "a clock for the time": _clock,
    "the status lost": _status_lost,
}
