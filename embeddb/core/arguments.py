"""Checks of the arguments of the Python interface, whose errors are one line with their name."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from os import PathLike
from types import UnionType
from typing import Any

import numpy as np

from embeddb.core.errors import UsageError


def require(name: str, argument: object, kind: type | UnionType, needed: str, **hint: str) -> None:
    """Raises: UsageError for an argument of another type; `needed` says what it may be."""
    if not isinstance(argument, kind):
        raise UsageError(f"{name} is {argument!r:.40}: {needed} is needed", **hint)


def require_flags(**flags: object) -> None:
    """Raises: UsageError for the first that is neither True nor False: texts are all true."""
    for name, flag in flags.items():
        require(name, flag, bool | np.bool_, "True or False")


def require_list(name: str, arguments: object) -> None:
    """Raises: UsageError for what is no sequence, and for a text, which is one of letters."""
    if isinstance(arguments, str | PathLike) or not isinstance(arguments, Iterable):
        raise UsageError(f"{name} is {arguments!r:.40}: a list is needed", hint=f"{name}=[...]")


def number_of(name: str, number: Any) -> float:
    """A number of at least 0, of Python or numpy, as one of Python. Raises: UsageError."""
    if isinstance(number, int | float | np.integer | np.floating) and not isinstance(number, bool):
        with suppress(OverflowError):
            if (plain := float(number)) >= 0:
                return number if type(number) is int else plain
    raise UsageError(f"{name} is {number!r:.40}: a number of at least 0 is needed")
