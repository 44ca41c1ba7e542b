"""`serve`: a small local page over a database."""

from __future__ import annotations

import click

from embeddb.core.errors import MissingDependency
from embeddb.core.extras import install_hint
from embeddb.ui.cli.arguments import open_database
from embeddb.ui.cli.numbers import Number
from embeddb.ui.cli.output import emit, json_option, say

__all__ = ["serve_verb"]


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
@json_option
def serve_verb(db: str, port: int, write: bool, max_upload: float, as_json: bool) -> int:
    """Look around in DB with a browser on this machine; Ctrl-C ends it.

    Answers to 127.0.0.1 only, reads DB only unless told to --write, loads nothing from elsewhere.
    --json says where, in one document, before it serves.

    \b
    Example:
      embeddb serve starter
      embeddb serve runs.db --port 0 --write
    """
    try:
        from embeddb.ui.serve.app import build_app
        from embeddb.ui.serve.running import listening, serve
    except ModuleNotFoundError as e:
        raise MissingDependency(
            f"the page needs the package {e.name}",
            hint=install_hint("serve"),
        ) from None
    with open_database(db, readonly=not write) as opened, listening(port) as place:
        app = build_app(opened, writable=write, max_upload=int(max_upload * 1e6))
        url = f"http://127.0.0.1:{place.getsockname()[1]}/"
        writable = write and not opened.store.readonly
        if as_json:
            emit({"url": url, "database": db, "writable": writable})
        else:
            how = "answers are stored" if writable else "read-only"
            say(f"{url} shows {db} ({how}); Ctrl-C ends it")
        serve(app, place)
    return 0
