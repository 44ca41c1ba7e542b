"""`serve`: a page over a database, on this machine or behind a token."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from embeddb.core.errors import UsageError
from embeddb.core.extras import needing
from embeddb.store import open_store
from embeddb.ui.cli.arguments import Number, open_database
from embeddb.ui.cli.output import emit, json_option, note, say

if TYPE_CHECKING:
    import socket

    from embeddb.ui.serve.access import Address


@click.command("serve")
@click.argument("db")
@click.option(
    "--port",
    default=8321,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="0: any that is free.",
)
@click.option("--write", is_flag=True, help="Store the answers; else they end with the server.")
@click.option(
    "--max-upload",
    default=64.0,
    show_default=True,
    type=Number(0.001, 100_000),
    help="Megabytes of one file.",
)
@click.option(
    "--workers",
    default=1,
    show_default=True,
    type=click.IntRange(1, 64),
    help="Processes that answer.",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="Where to listen; elsewhere than on this machine with a token.",
)
@click.option(
    "--token-file",
    default="",
    metavar="FILE",
    help="What others have to give; else EMBEDDB_TOKEN.",
)
@click.option(
    "--public-url", default="", metavar="URL", help="Where others see it: a reverse proxy's."
)
@json_option
def serve_verb(db: str, as_json: bool, **asked: Any) -> int:
    """Look around in DB with a browser; Ctrl-C ends it.

    Answers to 127.0.0.1 only, reads DB only unless told to --write, loads nothing from elsewhere.
    Who listens elsewhere, or behind a proxy, needs a token, which a browser is asked for once.
    --json says where, in one document, before it serves.

    \b
    Example:
      embeddb serve starter
      embeddb serve runs.db --port 0 --write
      embeddb serve runs.db --workers 4 --token-file token --public-url https://tuning.example.org
    """
    with needing("the page"):
        from embeddb.ui.serve.access import Address, read_token
        from embeddb.ui.serve.running import listening
    address = Address(asked["host"], asked["public_url"])
    asked["token"] = read_token(asked["token_file"])
    if address.others_see_it and not asked["token"]:
        raise UsageError(
            "others can reach this address: they need a token",
            hint="give --token-file FILE, or set EMBEDDB_TOKEN; see docs/howto/serve.md",
        )
    if not (address.ip.is_loopback or address.secure):
        note("what is sent can be read on the way, the token too: see docs/howto/serve.md for TLS")
    with listening(asked["port"], address.host) as place:
        serve_on = _serve_alone if asked["workers"] == 1 else _serve_together
        serve_on(db, address, place, asked, as_json)
    return 0


def _serve_alone(
    db: str, address: Address, place: socket.socket, asked: dict[str, Any], as_json: bool
) -> None:
    """In this process."""
    from embeddb.ui.serve.app import build_app
    from embeddb.ui.serve.running import serve

    write = asked["write"]
    with open_database(db, readonly=not write) as opened:
        app = build_app(
            opened,
            writable=write,
            max_upload=_bytes(asked),
            address=address,
            token=asked["token"],
        )
        _say_where(db, address, place, asked, write and not opened.store.readonly, as_json)
        serve(app, place, behind_proxy=bool(address.public))


def _serve_together(
    db: str, address: Address, place: socket.socket, asked: dict[str, Any], as_json: bool
) -> None:
    """In several processes, which this one looks after."""
    from embeddb.ui.serve.workers import Orders, Supervisor

    with open_database(db, readonly=not asked["write"]) as opened:
        writable = asked["write"] and not opened.store.readonly
    with tempfile.TemporaryDirectory(prefix="embeddb-serve-") as folder:
        scratch = Path(folder) / "answers"
        open_store(scratch, create=True).close()
        orders = Orders(
            place=db,
            scratch=str(scratch),
            writable=asked["write"],
            max_upload=_bytes(asked),
            address=address,
            token=asked["token"],
        )
        with Supervisor(orders, place, asked["workers"], note) as workers:
            _say_where(db, address, place, asked, writable, as_json)
            workers.run()


def _bytes(asked: dict[str, Any]) -> int:
    return int(asked["max_upload"] * 1e6)


def _say_where(
    db: str,
    address: Address,
    place: socket.socket,
    asked: dict[str, Any],
    writable: bool,
    as_json: bool,
) -> None:
    url = address.url(place.getsockname()[1])
    workers, token = asked["workers"], bool(asked["token"])
    if as_json:
        emit(
            {
                "url": url,
                "database": db,
                "writable": writable,
                "workers": workers,
                "token": token,
            }
        )
        return
    how = "answers are stored" if writable else "read-only"
    how += f", {workers} workers" if workers > 1 else ""
    how += ", with a token" if token else ""
    say(f"{url} shows {db} ({how}); Ctrl-C ends it")
