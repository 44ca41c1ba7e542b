"""URLs that name a database on a server; passwords in them are never shown."""

from __future__ import annotations

import re

_URL = re.compile(r"postgres(?:ql)?://", re.I)
#: Up to the last @ of the word: a password may contain one.
_PASSWORD = re.compile(r"(postgres(?:ql)?://[^\s:/@]*):\S*@", re.I)
_PARAMETER = re.compile(r"([?&](?:ssl)?password=)[^&\s'\"]*", re.I)


def is_server_url(place: object) -> bool:
    """Return true if a place is a database on a server, not a folder."""
    return isinstance(place, str) and _URL.match(place) is not None


def redacted(text: str) -> str:
    """Replace every password of a server's URL in a text with `***`."""
    if "://" not in text:
        return text
    return _PARAMETER.sub(r"\1***", _PASSWORD.sub(r"\1:***@", text))
