"""`serve`: web interface to a database, local or with a token."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from embeddb.core.errors import UsageError
from embeddb.core.extras import needing
from embeddb.store import open_store
from embeddb.ui.cli import option
from embeddb.ui.cli.arguments import open_database
from embeddb.ui.cli.output import emit, note, say

if TYPE_CHECKING:
    import socket

    from embeddb.ui.serve.running import Orders


@option.verb("serve")
@click.argument("db")
@option.number("--port", default=8321, least=0, most=65535, help="0: any free port.")
@option.flag("--write", help="Store answers in DB; otherwise they are discarded at exit.")
@option.decimal(
    "--max-upload",
    within=option.Number(0.001, 100_000),
    default=64.0,
    help="Largest uploaded file, in megabytes.",
)
@option.number("--workers", default=1, least=1, most=64, help="Number of worker processes.")
@option.text(
    "--host",
    default="127.0.0.1",
    metavar="ADDRESS",
    help="Address to listen on; one that other machines reach needs a token.",
)
@option.text(
    "--token-file", metavar="FILE", help="File with the access token.  [default: EMBEDDB_TOKEN]"
)
@option.text("--public-url", metavar="URL", help="Public URL, behind a reverse proxy.")
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
        from embeddb.ui.serve.running import Orders, Supervisor, listening, serve
    address = Address(options["host"], options["public_url"])
    options["token"] = read_token(options["token_file"])
    if address.others_see_it and not options["token"]:
        raise UsageError(
            "other machines can reach this address, so it needs a token",
            hint="give --token-file FILE, or set EMBEDDB_TOKEN; see docs/howto/serve.md",
        )
    if not (address.ip.is_loopback or address.secure):
        note("traffic is not encrypted, nor is the token: see docs/howto/serve.md for TLS")
    orders = Orders(
        place=db,
        scratch="",
        writable=options["write"],
        max_upload=int(options["max_upload"] * 1e6),
        address=address,
        token=options["token"],
        workers=options["workers"],
    )
    with listening(options["port"], address.host) as place:
        with open_database(db, readonly=not orders.writable) as opened:
            opened.store.refuse_damage()
            writable = orders.writable and not opened.store.readonly
            if orders.writable and not writable:
                note(f"warning: {db} can only be read: answers are not stored, despite --write")
            if orders.workers == 1:
                app = orders.app(opened)
                _say_where(orders, place, as_json, writable)
                serve(app, place, behind_proxy=bool(address.public))
                return 0
        with tempfile.TemporaryDirectory(prefix="embeddb-serve-") as folder:
            scratch = Path(folder) / "answers"
            open_store(scratch, create=True).close()
            orders = orders._replace(scratch=str(scratch))
            with Supervisor(orders, place, note) as workers:
                _say_where(orders, place, as_json, writable)
                workers.run()
    return 0


def _say_where(orders: Orders, place: socket.socket, as_json: bool, writable: bool) -> None:
    url, workers = orders.address.url(place.getsockname()[1]), orders.workers
    if as_json:
        counts = {"writable": writable, "workers": workers, "token": bool(orders.token)}
        emit({"url": url, "database": orders.place, **counts})
        return
    how = "answers are stored" if writable else "read-only"
    how += f", {workers} workers" if workers > 1 else ""
    how += ", with a token" if orders.token else ""
    say(f"{url} shows {orders.place} ({how}); Ctrl-C stops it")
