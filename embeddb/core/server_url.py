"""Databases on a server are named by a URL; a password in one is shown nowhere."""

from __future__ import annotations

import re

_URL = re.compile(r"postgres(?:ql)?://", re.I)
#: Up to the last @ of the word: a password that holds one is hidden whole.
_PASSWORD = re.compile(r"(postgres(?:ql)?://[^\s:/@]*):\S*@", re.I)
_PARAMETER = re.compile(r"([?&](?:ssl)?password=)[^&\s'\"]*", re.I)


def is_server_url(place: object) -> bool:
    """Whether a place is a database on a server, and no folder."""
    return isinstance(place, str) and _URL.match(place) is not None


def redacted(text: str) -> str:
    """A text with `***` for every password of a server's URL in it."""
    if "://" not in text:
        return text
    return _PARAMETER.sub(r"\1***", _PASSWORD.sub(r"\1:***@", text))
