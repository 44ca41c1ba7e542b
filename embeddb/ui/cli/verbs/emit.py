"""`emit`: an answer as C or CUDA C++ that needs nothing of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from embeddb.core.config import Config, Op
from embeddb.core.errors import NothingFound, UsageError
from embeddb.tensors.tensor_graph import KINDS, TensorGraph
from embeddb.ui.cli import output
from embeddb.ui.cli.arguments import open_database
from embeddb.ui.cli.output import json_option, note, say

if TYPE_CHECKING:
    from embeddb.database import Database
    from embeddb.emit.emit import Manifest


@click.command("emit")
@click.argument("db")
@click.argument("answer", default="")
@click.option("-o", "--out", "place", required=True, metavar="DIR", help="The folder to write.")
@click.option("--config", default="", metavar="TEXT", help="A configuration, not an answer.")
@click.option("--pack", type=click.IntRange(1, 12), metavar="N", help="N kernels and a rule.")
@click.option("--op", default="", metavar="OP", help="Of these, as spmm:64 or spmv:f64.")
@click.option(
    "--platform", default="", metavar="P", help="Of --pack and --config: cuda, cpu@INSTANCE."
)
@click.option("--prefix", default="", metavar="NAME", help="What names in C begin with.")
@json_option
def emit_verb(
    db: str, answer: str, place: str, *, prefix: str, as_json: bool, **asked: Any
) -> None:
    """The configuration of an answer as a library in C that needs nothing of embeddb. ANSWER: its
    id, `last`, or a file, name or id.

    DIR is new, empty, or written before. Of an answer for platform `cpu` or `cuda` it gets the
    kernel and conversion from CSR to its format, for `tile-cpu` the tensor kernel with its tile; a
    header, a test program, a Makefile, a README and a licence to do anything with it. Of a fusion
    plan for `xla-cpu` it gets the program as HLO with that fusion, and each kernel as a module.
    In place of ANSWER, --pack N and --op give at most N configurations and a rule learned from what
    DB measured on all machines of `cpu`, or of --platform, which chooses for each matrix; --config
    and --op give that, of `cpu` or with --platform of `cuda`, and DB is not read.

    \b
    Example:
      embeddb emit starter last -o spmm
      embeddb emit tensors.db mlp/0 -o tiled && make -C tiled check
      embeddb emit tensors.db unet.small -o fused
      embeddb emit runs.db r1f0c9e2ab34d -o fast --prefix fast && make -C fast check
      embeddb emit starter --pack 8 --op spmm:128 -o pack
      embeddb emit starter --pack 8 --op spmm:128 --platform cpu@70882216 -o pack
      embeddb emit starter --pack 8 --op spmm:128 --platform cuda -o pack && make -C pack check
      embeddb emit starter --config order=ij,format=csr,lanes=8,unroll=4,threads=one --op spmv -o y
    """
    config, pack, op = asked["config"], asked["pack"], asked["op"]
    if sum(map(bool, (answer, config, pack))) != 1 or bool(answer) == bool(op):
        reason = "give either ANSWER, or --pack or --config with --op"
        raise UsageError(reason, hint="embeddb emit --help")
    platform = asked["platform"] or "cpu"
    if asked["platform"] and answer:
        raise UsageError("--platform is for --pack and --config: an answer has its own")
    if config:
        from embeddb.emit.emit import emit_config

        kind = Op.parse(op)
        made = emit_config(Config.parse(config), kind, place, platform=platform, prefix=prefix)
    elif pack:
        from embeddb.emit.emit import emit_pack

        with open_database(db, readonly=True) as opened:
            made = emit_pack(
                opened.index, Op.parse(op), place, platform=platform, most=pack, prefix=prefix
            )
    else:
        with open_database(db, readonly=True) as opened:
            made = _of_answer(opened, answer, place, prefix)
    if as_json:
        output.emit(msgspec.to_builtins(made) | {"folder": place})
        return
    for one in made.configs:
        say(f"{place}: {made.op} as {one}")
    if made.op == "fusion":
        say(f"XLA takes no fusion plan; what the HLO is good for: {place}/README.md")
    else:
        say(f"build and test it: make -C {place} check")


def _of_answer(db: Database, answer: str, place: str, prefix: str) -> Manifest:
    """Raises: NothingFound for a kernel or program that is known by its name only."""
    from embeddb.emit.emit import emit_answer, emit_tensor

    asked = db.recommendation(answer, note=lambda line: note(f"warning: {line}"))
    if Op.parse(asked.op).kind not in KINDS:
        on_gpu = asked.platform.startswith("cuda@")
        facts = db.index.platform(asked.platform).environment if on_gpu else {}
        capability = facts.get("capability", "")
        made = emit_answer(asked, place, prefix=prefix, capability=capability)
        if asked.best.get("work") == "cusparse":
            first = f"cuSPARSE ({Config(asked.best)}) is the first choice"
            note(f"{first}: the best of our own kernels is written")
        return made
    subject = db.store.tensor(asked.pattern_id) or _in_file(answer, asked.pattern_id)
    if subject is None:
        reason = f"what answer {asked.id} is about is not in the database"
        hint = "name its file in place of the answer, or keep it by `embeddb kernel import`"
        raise NothingFound(reason, hint=hint)
    return emit_tensor(subject, asked, place, prefix=prefix)


def _in_file(text: str, id: str) -> TensorGraph | None:
    """The kernel or program of that id, where an answer was given by its file."""
    from indexer.library import every_content
    from indexer.resolve import is_file

    held = every_content(text) if is_file(text) else []
    return next((one for one in held if isinstance(one, TensorGraph) and one.id == id), None)
