"""Exports: functions that write runs to a text stream."""

from __future__ import annotations

from indexer.exchange.writers.c_header import write_c_header
from indexer.exchange.writers.flat import write_csv
from indexer.exchange.writers.jsonl import write_jsonl
from indexer.exchange.writers.t4 import write_t4

__all__ = ["write_c_header", "write_csv", "write_jsonl", "write_t4"]
