"""Status columns of a log: which column may hold the status of a run, and the meaning of its
words."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from indexer.readers.base.column_values import MOSTLY, Column, is_duration
from indexer.readers.base.columns import words_of
from indexer.readers.base.statuses import status_meant

#: Words in a name: of a state, of flags that are true for a good run, and for a failed one.
_STATES = {"status", "result", "state", "outcome", "verdict"}
_GOOD = {"success", "successful", "succeeded", "ok", "valid", "passed", "pass", "correct",
         "verified", "completed", "done"}  # fmt: skip
_RIGHT = {"correct", "verified"}
_BAD = {"failed", "fail", "failure", "crashed", "timeout", "timedout", "oom", "invalid", "error",
        "errors", "occurred", "wrong", "timed", "killed"}  # fmt: skip
_CODES = {"exit", "exitcode", "exitstatus", "return", "returncode", "retcode", "retval", "rc",
          "ret", "errno"}  # fmt: skip
_TRUE, _FALSE = {"1", "true", "yes", "y", "t", "1.0"}, {"0", "false", "no", "n", "f", "0.0"}
#: Exit codes of a shell, of `timeout` and of a process that was killed.
_ENDED = {124: "timeout", 137: "oom", -9: "oom"}
_MOST_WORDS = 40


def is_flag(name: str, column: Column) -> bool:
    """True if a column is true or false, and its name has a word for success or failure."""
    meanings = (_GOOD | _BAD) & set(words_of(name))
    return bool(meanings) and all(text.lower() in _TRUE | _FALSE for text in column.values)


def is_status_column(name: str, column: Column) -> bool:
    """True if a column may hold the status of each run."""
    words = set(words_of(name))
    if not column.values or len(column.values) > _MOST_WORDS:
        return False
    codes = all(re.fullmatch(r"-?\d{1,3}(?:\.0)?", text) for text in column.values)
    texts = column.part(lambda text: not is_duration(text)) > MOSTLY
    if is_flag(name, column) or (words & _CODES and codes):
        return True
    return bool((words & _STATES and (texts or codes)) or (words & _GOOD and texts))


def statuses_meant(
    words: Iterable[str], name: str, cells: Sequence[tuple[Any, Any]]
) -> dict[str, str]:
    """Our status for each word of a column; empty where it could be any. `cells` are the status and
    the time of each row: a number is interpreted by the name of its column, or by which rows have
    times."""
    return {
        word: _number(word, name, cells) or _flag(word, name) or status_meant(word)
        for word in words
    }


def _flag(word: str, name: str) -> str:
    low, words = word.strip().lower(), set(words_of(name))
    if low not in _TRUE | _FALSE or not words & (_GOOD | _BAD):
        return ""
    if words & _BAD and not words & _GOOD:
        kind = status_meant(" ".join(words_of(name)))
        return "ok" if low in _FALSE else kind if kind not in ("", "ok") else "crash"
    return "ok" if low in _TRUE else "wrong" if words & _RIGHT else "crash"


def _number(word: str, name: str, cells: Sequence[tuple[Any, Any]]) -> str:
    words = set(words_of(name))
    if not re.fullmatch(r"-?\d+(?:\.0)?", word.strip()) or words & (_GOOD | _BAD):
        return ""
    number = int(float(word))
    good = 0
    if not words & _CODES:
        timed: dict[str, bool] = {}
        for status, time in cells:
            text = status.strip() if isinstance(status, str) else json.dumps(status)
            timed[text] = timed.get(text, False) or _has_time(time)
        ok = [text for text, has in timed.items() if has]
        if len(ok) != 1:
            return ""
        good = int(float(ok[0])) if re.fullmatch(r"-?\d+(?:\.0)?", ok[0]) else 0
    return "ok" if number == good else _ENDED.get(number, "crash")


def _has_time(cell: Any) -> bool:
    text = cell.strip() if isinstance(cell, str) else json.dumps(cell)
    return text.lower() not in ("nan", "infinity") and is_duration(text)
