"""Contract tests of readers, as a base class.

    from embeddb.testing.readers import ReaderContract

    class TestMine(ReaderContract):
        def make(self):
            return Mine()

        def example(self, folder):
            path = folder / "runs.log"
            path.write_text("...")
            return path, ReadOptions(), 3      # file, options, rows in it (no rejects)

pytest then runs every test below on it. The example is damaged in many ways: a reader may reject
rows or refuse the file with a `ReaderError`, but must never raise anything else, nor yield an
invalid run.
"""

from __future__ import annotations

import gzip
import math
from pathlib import Path

from embeddb.core.config import Config
from embeddb.core.errors import ReaderError
from embeddb.core.records import SOURCES
from embeddb.core.sizes import UNKNOWN
from embeddb.platforms.platform import load_platform
from embeddb.testing.common import has_own_name, leaves_all_alone
from indexer.readers.base import Reader, ReadOptions, Reject, RunRow
from indexer.readers.base.row import checked_row


class ReaderContract:
    """Contract of a reader: inherit, name the class `Test...`, and define `make` and `example`."""

    def make(self) -> Reader:
        """A new reader."""
        raise NotImplementedError

    def example(self, folder: Path) -> tuple[Path, ReadOptions, int]:
        """A file written below `folder`, the options to read it with, and its number of rows."""
        raise NotImplementedError

    def read(self, path: Path, options: ReadOptions) -> list[RunRow | Reject]:
        """All rows; an empty list if the reader refuses the file."""
        try:
            rows = list(self.make().rows(path, options=options))
        except ReaderError as error:
            assert "\n" not in str(error)
            return []
        for row in rows:
            self.check(row)
        return rows

    def check(self, row: RunRow | Reject) -> None:
        """Assert that a row is a reject with a reason, or a run that can be stored."""
        assert row.line >= 1
        if isinstance(row, Reject):
            assert row.reason
            assert len(row.text) <= 200
            return
        checked_row(row)
        assert row.measurement.source in SOURCES
        bad = [time for time in row.measurement.times_s if not 0 < time < math.inf]
        assert not bad, f"line {row.line}: a time of {bad[0]} s"
        assert row.matrix.name
        assert min(row.matrix.m, row.matrix.n, row.matrix.nnz) >= -1
        assert row.op.workload.sparse or row.matrix.sizes == UNKNOWN, "sizes of a matrix"
        assert row.matrix.content is None or row.matrix.content.kind == row.op.kind
        assert all(math.isfinite(value) for value in row.matrix.features.values())
        Config(row.config)

    def test_reads_its_example(self, tmp_path: Path) -> None:
        path, options, count = self.example(tmp_path)
        with leaves_all_alone():
            rows = self.read(path, options)
        assert len(rows) == count
        runs = [row for row in rows if isinstance(row, RunRow)]
        assert runs == rows, "no row is a reject"
        numbers = [row.line for row in runs]
        assert numbers == sorted(numbers), "rows are in file order"
        other = [row.op for row in runs if options.op not in (None, row.op)]
        assert not other, f"rows of {other[0]}, where the options say {options.op}"

    def test_the_protocol_is_complete(self) -> None:
        reader = self.make()
        has_own_name("reader", reader)
        assert isinstance(reader.generic, bool)
        assert not reader.platform or load_platform(reader.platform)

    def test_reading_twice_gives_the_same(self, tmp_path: Path) -> None:
        """And rows stay as they were returned."""
        path, options, count = self.example(tmp_path)
        reader = self.make()
        first = list(reader.rows(path, options=options))
        assert len(first) == count, "an earlier reader left a trace"
        again = [repr(row) for row in reader.rows(path, options=options)]
        assert [repr(row) for row in first] == again

    def test_recognises_its_example_only(self, tmp_path: Path) -> None:
        path, _, _ = self.example(tmp_path)
        reader = self.make()
        with leaves_all_alone():
            assert reader.sniff(path, path.read_bytes()[:4096])
        assert not reader.sniff(path, b"")
        assert not reader.sniff(path, b"\x89PNG\r\n\x1a\n\0\0")
        assert not reader.sniff(path, b"A line of prose\nand another one\n")

    def test_a_row_cut_short_is_no_row_less(self, tmp_path: Path) -> None:
        """It is a reject, or the file is refused: a row that is dropped is never missed."""
        path, options, count = self.example(tmp_path)
        lines = path.read_bytes().splitlines(keepends=True)
        for at in {row.line - 1 for row in self.read(path, options)}:
            cut = lines[at][: max(len(lines[at]) // 4, 1)] + b"\n"
            path.write_bytes(b"".join([*lines[:at], cut, *lines[at + 1 :]]))
            assert len(self.read(path, options)) in (0, count)

    def test_compressed_is_the_same(self, tmp_path: Path) -> None:
        path, options, _ = self.example(tmp_path)
        plain = self.read(path, options)
        path.write_bytes(gzip.compress(path.read_bytes(), mtime=0))
        assert self.read(path, options) == plain

    def test_a_file_cut_off_anywhere(self, tmp_path: Path) -> None:
        path, options, count = self.example(tmp_path)
        data = path.read_bytes()
        for size in range(0, len(data), max(1, len(data) // 40)):
            path.write_bytes(data[:size])
            runs = [r for r in self.read(path, options) if not isinstance(r, Reject)]
            assert len(runs) <= count

    def test_damaged_compressed_data(self, tmp_path: Path) -> None:
        path, options, _ = self.example(tmp_path)
        packed = bytearray(gzip.compress(path.read_bytes(), mtime=0))
        path.write_bytes(packed[: len(packed) // 2])
        self.read(path, options)
        packed[len(packed) // 2] ^= 0xFF
        path.write_bytes(packed)
        self.read(path, options)

    def test_bytes_that_are_not_text(self, tmp_path: Path) -> None:
        path, options, count = self.example(tmp_path)
        data = path.read_bytes()
        for bad in (b"\0", b"\xff\xfe", b"\r", b'"', b"\n\n", b"nan", b"1e400", b"-1", b"[" * 5000):
            for at in range(0, len(data), max(1, len(data) // 8)):
                path.write_bytes(data[:at] + bad + data[at:])
                assert len(self.read(path, options)) <= count + 3

    def test_a_line_without_end(self, tmp_path: Path) -> None:
        path, options, _ = self.example(tmp_path)
        path.write_bytes(path.read_bytes().rstrip() + b"x" * (3 << 20))
        self.read(path, options)

    def test_a_missing_file(self, tmp_path: Path) -> None:
        path, options, _ = self.example(tmp_path)
        path.unlink()
        assert self.read(path, options) == []
