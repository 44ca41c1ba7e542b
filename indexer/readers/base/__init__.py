"""Building blocks of readers: the protocol `Reader`, its rows, and the conversion of text to
numbers, seconds and lines."""

from indexer.readers.base.lines import (
    files_below,
    guess,
    head_of,
    json_lines,
    numbered,
    open_bytes,
    read_rows,
    refuse_other,
    whole,
    whole_bytes,
    wrong_file,
)
from indexer.readers.base.row import (
    MatrixRef,
    Reader,
    ReadOptions,
    Reject,
    RunRow,
    config_of,
    cost,
    count,
    integer,
    label,
    need_op,
    seconds,
    value,
)
from indexer.readers.base.statuses import status_of
from indexer.readers.base.table import Table
from indexer.readers.base.units import UNITS, divisor, number

__all__ = [
    "UNITS",
    "MatrixRef",
    "ReadOptions",
    "Reader",
    "Reject",
    "RunRow",
    "Table",
    "config_of",
    "cost",
    "count",
    "divisor",
    "files_below",
    "guess",
    "head_of",
    "integer",
    "json_lines",
    "label",
    "need_op",
    "number",
    "numbered",
    "open_bytes",
    "read_rows",
    "refuse_other",
    "seconds",
    "status_of",
    "value",
    "whole",
    "whole_bytes",
    "wrong_file",
]
