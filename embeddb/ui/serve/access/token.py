"""The token that whoever asks from another machine has to give, and what a browser keeps of it."""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
from pathlib import Path

from itsdangerous import BadSignature, TimestampSigner

from embeddb.core.errors import UsageError

__all__ = ["FEWEST", "SESSION_S", "VARIABLE", "Token", "read_token"]

VARIABLE = "EMBEDDB_TOKEN"
#: Characters that a token has to have, and how many of them have to differ.
FEWEST, _FEWEST_KINDS, _MOST = 24, 10, 512
#: Seconds for which a browser need not give it again.
SESSION_S = 30 * 24 * 3600
_MAKE = "make one: python3 -c 'import secrets; print(secrets.token_urlsafe(32))' > FILE"


def read_token(file: str) -> str:
    """The token in a file that others may not read, else in `EMBEDDB_TOKEN`; empty if nobody gave
    one.

    Raises: UsageError for one that can be guessed, or that others can read.
    """
    if not file:
        where, text = VARIABLE, os.environ.get(VARIABLE, "")
        return _sound(text.strip(), where) if text else ""
    try:
        with Path(file).open("rb") as told:
            about = os.fstat(told.fileno())
            raw = told.read(_MOST + 100) if stat.S_ISREG(about.st_mode) else None
    except OSError as e:
        raise UsageError(f"{file}: {(e.strerror or str(e)).lower()}", hint=_MAKE) from None
    if raw is None:
        raise UsageError(f"{file}: not a file", hint=_MAKE)
    if about.st_mode & (stat.S_IROTH | stat.S_IWOTH):
        raise UsageError(f"{file}: everybody here can read it", hint=f"chmod 600 {file}")
    return _sound(raw.decode("ascii", "replace").strip(), file)


def _sound(text: str, where: str) -> str:
    if len(text) < FEWEST or len(set(text)) < _FEWEST_KINDS:
        raise UsageError(f"{where}: a token needs {FEWEST} random characters or more", hint=_MAKE)
    if len(text) > _MOST or not text.isascii() or not text.isprintable() or " " in text:
        raise UsageError(f"{where}: a token is a word of at most {_MOST} letters and digits")
    return text


class Token:
    """Compared in a time that tells nothing. A browser keeps a session instead of it: a date,
    signed by the token, so that every worker knows it and another token ends it."""

    def __init__(self, text: str) -> None:
        self._digest = hashlib.sha256(text.encode()).digest()
        key = hashlib.sha256(b"embeddb session\0" + text.encode()).digest()
        self._signer = TimestampSigner(key, digest_method=hashlib.sha256)
        #: Of the cookie: two servers of one machine share a browser's cookies.
        self.cookie = f"embeddb-{hashlib.sha256(key).hexdigest()[:12]}"

    def is_it(self, given: str) -> bool:
        digest = hashlib.sha256(given.encode("utf-8", "replace")).digest()
        return hmac.compare_digest(digest, self._digest)

    def session(self) -> str:
        """What a browser keeps."""
        return self._signer.sign("session").decode("ascii")

    def is_session(self, given: str) -> bool:
        try:
            return self._signer.unsign(given, max_age=SESSION_S) == b"session"
        except (BadSignature, UnicodeError):
            return False
