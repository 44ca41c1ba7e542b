"""`serve`: web interface to a database, local or with a token."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from embeddb.core.errors import UsageError
from embeddb.core.extras import needing
from embeddb.store import open_store
from embeddb.ui.cli.arguments import Number, number_option, open_database
from embeddb.ui.cli.output import emit, json_option, note, say

if TYPE_CHECKING:
    import socket

    from embeddb.ui.serve.access import Address


@click.command("serve")
@click.argument("db")
@number_option("--port", default=8321, least=0, most=65535, help="0: any free port.")
@click.option(
    "--write", is_flag=True, help="Store answers in DB; otherwise they are discarded at exit."
)
@click.option(
    "--max-upload",
    default=64.0,
    show_default=True,
    type=Number(0.001, 100_000),
    help="Largest uploaded file, in megabytes.",
)
@number_option("--workers", default=1, least=1, most=64, help="Number of worker processes.")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="Address to listen on; one that other machines reach needs a token.",
)
@click.option(
    "--token-file",
    default="",
    metavar="FILE",
    help="File with the access token.  [default: EMBEDDB_TOKEN]",
)
@click.option("--public-url", default="", metavar="URL", help="Public URL, behind a reverse proxy.")
@json_option
def serve_verb(db: str, as_json: bool, **options: Any) -> int:
    """Browse DB in a web browser; Ctrl-C stops the server.

    Listens on 127.0.0.1 only, is read-only without --write, and loads no external resources.
    Another address, or a proxy, needs a token, which a browser asks for once. --json prints the
    address in one document before serving.

    \b
    Example:
      embeddb serve starter
      embeddb serve runs.db --port 0 --write
      embeddb serve runs.db --workers 4 --token-file token --public-url https://tuning.example.org
    """
    with needing("the page"):
        from embeddb.ui.serve.access import Address, read_token
        from embeddb.ui.serve.running import listening
    address = Address(options["host"], options["public_url"])
    options["token"] = read_token(options["token_file"])
    if address.others_see_it and not options["token"]:
        raise UsageError(
            "other machines can reach this address, so it needs a token",
            hint="give --token-file FILE, or set EMBEDDB_TOKEN; see docs/howto/serve.md",
        )
    if not (address.ip.is_loopback or address.secure):
        note("traffic is not encrypted, nor is the token: see docs/howto/serve.md for TLS")
    with listening(options["port"], address.host) as place:
        serve_on = _serve_alone if options["workers"] == 1 else _serve_together
        serve_on(db, address, place, options, as_json)
    return 0


def _serve_alone(
    db: str, address: Address, place: socket.socket, options: dict[str, Any], as_json: bool
) -> None:
    """Serve in this process."""
    from embeddb.ui.serve.app import build_app
    from embeddb.ui.serve.running import serve

    write = options["write"]
    with open_database(db, readonly=not write) as opened:
        app = build_app(
            opened,
            writable=write,
            max_upload=_bytes(options),
            address=address,
            token=options["token"],
        )
        _say_where(db, address, place, options, write and not opened.store.readonly, as_json)
        serve(app, place, behind_proxy=bool(address.public))


def _serve_together(
    db: str, address: Address, place: socket.socket, options: dict[str, Any], as_json: bool
) -> None:
    """Serve in several worker processes, supervised by this one."""
    from embeddb.ui.serve.running import Orders, Supervisor

    with open_database(db, readonly=not options["write"]) as opened:
        writable = options["write"] and not opened.store.readonly
    with tempfile.TemporaryDirectory(prefix="embeddb-serve-") as folder:
        scratch = Path(folder) / "answers"
        open_store(scratch, create=True).close()
        orders = Orders(
            place=db,
            scratch=str(scratch),
            writable=options["write"],
            max_upload=_bytes(options),
            address=address,
            token=options["token"],
        )
        with Supervisor(orders, place, options["workers"], note) as workers:
            _say_where(db, address, place, options, writable, as_json)
            workers.run()


def _bytes(options: dict[str, Any]) -> int:
    return int(options["max_upload"] * 1e6)


def _say_where(
    db: str,
    address: Address,
    place: socket.socket,
    options: dict[str, Any],
    writable: bool,
    as_json: bool,
) -> None:
    url = address.url(place.getsockname()[1])
    workers, token = options["workers"], bool(options["token"])
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
    say(f"{url} shows {db} ({how}); Ctrl-C stops it")
