"""`emit`: an answer as C that needs nothing of ours."""

from __future__ import annotations

import click
import msgspec

from embeddb.core.config import Config, Op
from embeddb.core.errors import UsageError
from embeddb.ui.cli import output
from embeddb.ui.cli.arguments import open_database
from embeddb.ui.cli.output import json_option, note, say

__all__ = ["emit_verb"]


@click.command("emit")
@click.argument("db")
@click.argument("answer", default="")
@click.option("-o", "--out", "place", required=True, metavar="DIR", help="The folder to write.")
@click.option("--config", default="", metavar="TEXT", help="A configuration, not an answer.")
@click.option("--op", default="", metavar="OP", help="Of that, as spmm:64 or spmv:f64.")
@click.option("--prefix", default="", metavar="NAME", help="What names in C begin with.")
@json_option
def emit_verb(
    db: str, answer: str, place: str, config: str, op: str, prefix: str, as_json: bool
) -> None:
    """The configuration of an answer for platform `cpu` as a library in C that needs nothing of
    embeddb. ANSWER: its id, `last`, or a file, name or id.

    DIR is new, empty, or a library written before. It gets the kernel, conversion from CSR to its
    format, a header, a test program, a Makefile, a README and a licence to do anything with it.
    With --config and --op in place of ANSWER, DB is not read.

    \b
    Example:
      embeddb emit starter last -o spmm
      embeddb emit runs.db r1f0c9e2ab34d -o fast --prefix fast && make -C fast check
      embeddb emit starter --config order=ij,format=csr,lanes=8,unroll=4,threads=one --op spmv -o y
    """
    from embeddb.emit.emit import emit_answer, emit_config
    from indexer.subjects import known_answer

    if bool(answer) == bool(config) or bool(config) != bool(op):
        raise UsageError("give either ANSWER, or --config with --op", hint="embeddb emit --help")
    if config:
        made = emit_config(Config.parse(config), Op.parse(op), place, prefix=prefix)
    else:
        with open_database(db, readonly=True) as opened:
            asked = known_answer(opened, answer, told=lambda line: note(f"warning: {line}"))
        made = emit_answer(asked, place, prefix=prefix)
    if as_json:
        output.emit(msgspec.to_builtins(made) | {"folder": place})
        return
    for one in made.configs:
        say(f"{place}: {made.op} as {one}")
    say(f"build and test it: make -C {place} check")
