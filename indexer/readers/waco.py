"""WACO's collected schedules: one text file per matrix, one TACO super-schedule per line.

    SpMM   isplit ksplit jsplit  o1..o6  i1f i0f k1f k0f  paridx parnum parchunk = ms
    SDDMM  isplit jsplit ksplit  o1..o6  i1f i0f j1f j0f  paridx parnum parchunk = ms
    SpMV   isplit ksplit         o1..o4  i1f i0f k1f k0f  paridx parnum parchunk = ms

The operation follows from the name of a folder above the file (`SpMM/CollectedData/x.txt`) or from
`options.op`. A folder is read as all files below its `CollectedData` folders, or all its `.txt`
files. The matrix is the file's name; its group is that name without WACO's resize (`_4x16_1`).
SpMM has 256 dense columns, SDDMM an inner dimension of 256 (Won et al., ASPLOS 2023).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from embeddb.core.config import Op
from embeddb.core.errors import ReaderError
from embeddb.core.records import Measurement
from indexer.readers.base.lines import files_below, numbered, refuse_other, wrong_file
from indexer.readers.base.row import (
    MatrixRef,
    ReadOptions,
    Reject,
    RunRow,
    integer,
    need_op,
    seconds,
)

_SPLITS = {
    "spmm": ("isplit", "ksplit", "jsplit"),
    "sddmm": ("isplit", "jsplit", "ksplit"),
    "spmv": ("isplit", "ksplit"),
}
_FLAGS = {
    "spmm": ("i1f", "i0f", "k1f", "k0f"),
    "sddmm": ("i1f", "i0f", "j1f", "j0f"),
    "spmv": ("i1f", "i0f", "k1f", "k0f"),
}
_LOOPS = {
    "spmm": {"i1", "i0", "j1", "j0", "k1", "k0"},
    "sddmm": {"i1", "i0", "j1", "j0", "k1", "k0"},
    "spmv": {"i1", "i0", "k1", "k0"},
}
_OPS = {"spmm": Op("spmm", 256), "sddmm": Op("sddmm", 256), "spmv": Op("spmv")}
_LINE = re.compile(rb"\d+ \d+( \d+)?( [ijk][01]){4,6}( [01]){4} [ijk][01] \d+ \d+ = \S+\s*")


class WacoReader:
    """Reader of `CollectedData/MATRIX.txt` or of a folder of them; times are milliseconds."""

    name = "waco"
    platform = "waco-cpu"
    generic = False

    def sniff(self, path: Path, head: bytes) -> bool:
        if path.is_dir():
            return bool(_collected(path))
        return _LINE.fullmatch(head.split(b"\n", 1)[0]) is not None

    def rows(self, path: Path, *, options: ReadOptions) -> Iterator[RunRow | Reject]:
        if not path.is_dir():
            refuse_other(self, path)
            yield from self._file(path, options, "")
            return
        files = _collected(path) or [f for f in files_below(path, ".txt") if f.parent == path]
        if not files:
            why = "no .txt file in the folder (links in it are not followed)"
            raise wrong_file(path, self.name, why)
        for file in files:
            yield from self._file(file, options, str(file.relative_to(path)))

    def _file(self, path: Path, options: ReadOptions, where: str) -> Iterator[RunRow | Reject]:
        folders = map(str.lower, reversed(path.absolute().parts[:-1]))
        op = options.ran or next(filter(None, map(_OPS.get, folders)), None)
        op = op or need_op(options, path)
        name = options.matrix or path.stem
        matrix = MatrixRef(name, group=re.sub(r"_\d+x\d+_\d+$", "", name))
        bad: dict[int, Reject] = {}
        good = False
        for line, text in enumerate(numbered(path, bad), 1):
            if line in bad:
                yield Reject(line, bad[line].reason, bad.pop(line).text, where)
            if not text.strip():
                continue
            try:
                config, taken = _parsed(text, op.name)
            except ReaderError as error:
                if not good and line == 1 and "=" not in text:
                    raise wrong_file(path, self.name, error.reason) from None
                yield Reject(line, error.reason, text[:200], where)
                continue
            good = True
            measurement = Measurement("ok", (taken,), "imported")
            yield RunRow(matrix, op, config, measurement, line, options.instance, where=where)


def _collected(folder: Path) -> list[Path]:
    return [f for f in files_below(folder, ".txt") if f.parent.name == "CollectedData"]


def _parsed(text: str, kernel: str) -> tuple[dict[str, Any], float]:
    left, sep, right = text.partition("=")
    words = left.split()
    splits, loops, flags = _SPLITS[kernel], _LOOPS[kernel], _FLAGS[kernel]
    wanted = len(splits) + len(loops) + len(flags) + 3
    if not sep or len(words) != wanted:
        raise ReaderError(f"{len(words)} words before '='; {kernel} has {wanted}")
    config: dict[str, Any] = {p: integer(w) for p, w in zip(splits, words, strict=False)}
    rest = words[len(splits) :]
    order = tuple(rest[: len(loops)])
    if set(order) != loops:
        raise ReaderError(f"the loop order {' '.join(order)} is illegal for {kernel}")
    config["order"] = order
    rest = rest[len(loops) :]
    config |= {p: integer(w) for p, w in zip(flags, rest, strict=False)}
    config["paridx"] = rest[-3]
    config["parnum"], config["parchunk"] = integer(rest[-2]), integer(rest[-1])
    return config, seconds(right.strip(), 1e3)


PLUGIN = WacoReader
