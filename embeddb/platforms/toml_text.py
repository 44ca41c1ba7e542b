"""A bounded parser of platform files: they may come from strangers, so the size of the text, the
length of a key and the size of a number are limited here.
"""

from __future__ import annotations

import re
import tomllib
from typing import Any

from embeddb.core.errors import PlatformError

#: Larger texts are refused before they are parsed.
MAX_BYTES = 1 << 20
#: Parts of a dotted key; parsing takes time that grows with their square.
_MOST_PARTS = 32
_PART = re.compile(r"""[ \t]*("[^"\n]*"|'[^'\n]*'|[\w-]+)[ \t]*""")
#: Whole numbers of TOML have 64 bits. Python can neither write nor compare much longer ones.
_LARGEST = 1 << 63


def read_toml(text: str, *, where: str = "") -> dict[str, Any]:
    """Raises: PlatformError naming the place or the key."""
    if len(text.encode()) > MAX_BYTES:
        raise PlatformError(f"the file is larger than {MAX_BYTES} bytes", where=where)
    if _longest_key(text) > _MOST_PARTS:
        raise PlatformError(f"a key has more than {_MOST_PARTS} parts", where=where)
    try:
        data = tomllib.loads(text.removeprefix("\ufeff"))
    except tomllib.TOMLDecodeError as error:
        raise PlatformError(f"not valid TOML: {error}", where=where) from None
    except RecursionError:
        raise PlatformError("not valid TOML: too deeply nested", where=where) from None
    except ValueError:  # a number of thousands of digits
        raise PlatformError("not valid TOML: a number has too many digits", where=where) from None
    _check_numbers(data, "", where)
    return data


def _longest_key(text: str) -> int:
    """Upper bound of the parts of the longest dotted key: the longest sequence of words joined by
    dots, in keys or anywhere else."""
    longest = run = 1
    for between in text.split(".")[1:-1] if text.count(".") > _MOST_PARTS else ():
        run = run + 1 if _PART.fullmatch(between) else 1
        longest = max(longest, run)
    return longest


def _check_numbers(data: Any, key: str, where: str) -> None:
    if isinstance(data, int) and not -_LARGEST <= data < _LARGEST:
        raise PlatformError(f"{key}: is too large a number", where=where)
    if isinstance(data, dict):
        for name, value in data.items():
            _check_numbers(value, f"{key}.{name}" if key else name, where)
    elif isinstance(data, list):
        for at, value in enumerate(data):
            _check_numbers(value, f"{key}[{at}]", where)
