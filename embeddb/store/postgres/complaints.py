"""What PostgreSQL and its client complain of, said in the words of `embeddb.core.errors`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import errors

from embeddb.core.errors import (
    EmbeddbError,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreLocked,
    StoreReadOnly,
)
from embeddb.core.server_url import redacted

__all__ = ["REFUSED", "is_lost", "speaking"]

#: Where a user may not write.
REFUSED = "the database's owner grants writing, see docs/team.md"
#: The server ends, or is only just there again.
_GOING = ("57P01", "57P02", "57P03")


@contextmanager
def speaking(place: str) -> Iterator[None]:
    """Raises: StoreError in place of whatever the client library raises. It is not chained: what
    the library says of an address may hold a password."""
    try:
        yield
    except psycopg.Error as e:
        raise _said(e, place) from None


def is_lost(e: BaseException, connection: psycopg.Connection | None) -> bool:
    """Whether an error is of the way to the server, and not of what was asked."""
    if not isinstance(e, (psycopg.OperationalError, psycopg.InterfaceError)):
        return False
    return e.sqlstate in _GOING or connection is None or connection.closed


def _said(e: psycopg.Error, place: str) -> EmbeddbError:
    text = redacted(" ".join(str(e).split()))[:300]
    if isinstance(e, errors.ReadOnlySqlTransaction):
        return StoreReadOnly(f"{place}: the server only lets read", hint=REFUSED)
    if isinstance(e, errors.InsufficientPrivilege):
        return StoreReadOnly(f"{place}: this user may not do that ({text})", hint=REFUSED)
    if isinstance(e, errors.LockNotAvailable):
        return StoreLocked(f"{place}: another session keeps a table locked", hint="try again")
    if isinstance(e, (errors.DiskFull, errors.InsufficientResources)):
        return StoreFull(f"{place}: the server has no space left; the batch was not written")
    if isinstance(e, (errors.DataCorrupted, errors.IndexCorrupted)):
        return StoreCorrupt(f"{place}: {text}", hint="restore the server's backup")
    if isinstance(e, (errors.UndefinedTable, errors.InvalidSchemaName)):
        return StoreError(f"{place}: no database there any more ({text})")
    if isinstance(e, psycopg.OperationalError):
        return StoreError(
            f"{place}: {text}", hint="is the server up, and PGPASSFILE or PGSERVICE set?"
        )
    return StoreError(f"{place}: {text}")
