"""Any JSONL file or JSON list, one object per run, read through the same column map as CSV."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from embeddb.core.errors import ReaderError
from indexer.readers.base.columns import SAMPLE, Plan
from indexer.readers.base.lines import json_list, json_records
from indexer.readers.base.recognise import wrong_file
from indexer.readers.base.row import ReadOptions, Reject, RunRow


class JsonlReader:
    """An object's keys are its columns; a nested object `config` holds the configuration. Lines
    may have different keys; a list of numbers as time keeps every repeat."""

    name = "jsonl"
    platform = ""
    generic = True

    def sniff(self, path: Path, head: bytes) -> bool:
        first = head.split(b"\n", 1)[0].strip()
        return (first.startswith(b"{") and first.endswith(b"}")) or json_list(head)

    def rows(self, path: Path, *, options: ReadOptions) -> Iterator[RunRow | Reject]:
        plans: dict[tuple[str, ...], Plan] = {}
        sample = self._sample(path)
        good = False
        for line, record in json_records(path):
            if isinstance(record, Reject):
                yield record
                continue
            try:
                if not isinstance(record, dict):
                    raise ReaderError("not a JSON object")
                yield self._plan(record, plans, options, sample).row(record, line)
                good = True
            except ReaderError as error:
                if not good and isinstance(record, dict) and not plans:
                    # The first object fits no plan: it is the map or the file that is wrong.
                    other = wrong_file(path, self.name, error.reason)
                    raise ReaderError(
                        error.reason, where=str(path), line=line, hint=other.hint or error.hint
                    ) from None
                text = json.dumps(record)
                yield Reject(line, error.reason, text[:200])

    def _sample(self, path: Path) -> list[dict[str, Any]]:
        """The first records; fewer where the file is damaged."""
        records: list[dict[str, Any]] = []
        try:
            for _, record in islice(json_records(path), SAMPLE):
                records += [record] if isinstance(record, dict) else []
        except ReaderError:  # damage is met again when its line is reached
            pass
        return records

    def _plan(
        self,
        record: dict[str, Any],
        plans: dict[tuple[str, ...], Plan],
        options: ReadOptions,
        sample: list[dict[str, Any]],
    ) -> Plan:
        keys = tuple(record)
        if keys not in plans:
            if len(plans) >= 1000:
                plans.clear()
            plans[keys] = Plan.of(keys, options, sample)
        return plans[keys]


PLUGIN = JsonlReader
