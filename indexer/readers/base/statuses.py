"""Status words of other programs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from embeddb.core.errors import ReaderError

#: Status words of other programs.
_WORDS = {
    "": "ok",
    "constraints": "invalid",
    "compile": "build",
    "runtime": "crash",
    "correctness": "wrong",
    "invalidconfig": "invalid",
    "compilationfailedconfig": "build",
    "runtimefailedconfig": "crash",
    "errorconfig": "crash",
    **dict.fromkeys(
        ("true", "correct", "success", "successful", "succeeded", "pass", "passed", "valid", "done",
         "finished", "complete", "completed", "good"), "ok"
    ),
    **dict.fromkeys(
        ("false", "fail", "failed", "failure", "error", "runtime error", "crashed", "segfault",
         "segmentation fault", "aborted", "not ok"), "crash"
    ),
    **dict.fromkeys(
        ("timed out", "timedout", "time out", "time limit exceeded", "tle", "deadline exceeded"),
        "timeout",
    ),
    **dict.fromkeys(("out of memory", "outofmemory", "memory limit exceeded", "mle"), "oom"),
    **dict.fromkeys(
        ("compile error", "compilation error", "compile failed", "compilation failed",
         "build error", "build failed"), "build"
    ),
    **dict.fromkeys(("unsupported", "illegal", "infeasible"), "invalid"),
    **dict.fromkeys(("mismatch", "incorrect", "wrong answer", "wrong result"), "wrong"),
}  # fmt: skip
#: Words of other languages, whole or as beginnings.
_ABROAD = (
    ("timeout", r"zeit(?:ü|ue)berschreitung|zeitlimit|d(?:é|e)lai|tiempo|tempo (?:limite|esgotado)"
     r"|超时|超時|タイムアウト"),
    ("oom", r"speicher|m(?:é|e)moire|memoria|mem(?:ó|o)ria|内存|メモリ"),
    ("build", r"(?:ü|ue)bersetz"),
    ("invalid", r"ung(?:ü|ue)ltig|inv(?:á|a)lid|无效"),
    ("crash", r"fehl|abgebrochen|abgest(?:ü|ue)rzt|gescheitert|(?:é|e)chec|(?:é|e)chou|erreur"
     r"|fall(?:ido|ó|ito)|falh|erro|失败|失敗|错误|エラー|ошибка"),
    ("ok", r"erfolg(?:reich)?$|fertig|bestanden|r(?:é|e)ussi|succ(?:è|e)s|correct[oa]|(?:é|e)xito"
     r"|sucesso|riuscit|成功|完成|успе"),
)  # fmt: skip
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?")
#: Our status and the pattern of failure words; the first match counts.
_MEANS = (
    ("timeout", r"time.?out|timed.?out|time.?limit|deadline|hang|\btle\b|\bdnf\b"),
    ("oom", r"oom|out.?of.?mem|memory|overflow|capacity|too.?large|exceed|\bmle\b"),
    ("build", r"compil|build|synth|link"),
    ("wrong", r"wrong|mismatch|incorrect|inaccura|\bnan\b|not.correct"),
    ("invalid", r"invalid|illegal|unsupported|infeasible|skip|n/?a\b"),
    ("timeout", r"killed|interrupted"),
    (
        "crash",
        r"crash|fail|err|abort|segv|segm|\bsig[a-z]+|fault|exception|deadlock|unsuccess|broken",
    ),
    ("crash", r"\b(?:not|no|non|never|un|in)[ _-]?(?:ok|pass|done|success|finish|complete|good)"),
)
_GOOD = re.compile(
    r"(?:all|is|was|run|status|exit|ended|test|tests)?[ _-]*"
    r"(?:oks?|okay|pass(?:ed)?|done|success(?:ful(?:ly)?)?|succeeded|finished|completed?|valid"
    r"|good|normal|converged)[ _-]*(?:run|exit|ok)?"
)
_NOTHING = {"", "-", "--", "none", "nan", "null", "na", "n/a", "no error", "ok", "0", "false",
            "nil"}  # fmt: skip


def status_of(
    word: str, legal: tuple[str, ...], own: Mapping[str, str] = MappingProxyType({})
) -> str:
    """One of `legal` for another program's word; `own` are words of the log, in lower case, which
    take precedence. Raises: ReaderError listing the legal words."""
    low = word.strip().lower()
    status = own.get(low) or (low if low in legal else _WORDS.get(low.replace("_", " ")))
    if status is None:
        raise ReaderError(
            f"unknown status {word[:40]!r}",
            hint=f"one of {', '.join(legal)}; [log.status] maps others",
        )
    return status


def status_meant(word: str) -> str:
    """Probable status of a word; empty if it could be any."""
    low = word.strip().lower()
    failed = next((ours for ours, text in _MEANS if re.search(text, low)), "")
    abroad = next((ours for ours, text in _ABROAD if re.match(text, low)), "")
    return failed or abroad or ("ok" if _GOOD.fullmatch(low) else "")


def no_value(cell: Any) -> bool:
    """True if a cell means no value, as `nan`, `None` and `-` do."""
    return isinstance(cell, str | float) and str(cell).strip().lower() in _NOTHING


def is_nothing(text: str) -> bool:
    """True if the cell of an error column means no error: a number is a rounding error."""
    return text.strip().lower() in _NOTHING or is_number(text)


def is_number(text: str) -> bool:
    """True if a cell is one number, written with a point."""
    return _NUMBER.fullmatch(text.strip().lower()) is not None
