"""`emit`: an answer as C or CUDA C++ without dependencies on embeddb; `export rule`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from embeddb.core.config import Config, Op
from embeddb.core.errors import InputError, NothingFound, UsageError
from embeddb.core.wording import factor, plural
from embeddb.tensors.tensor_graph import KINDS, TensorGraph
from embeddb.ui.cli import option, output
from embeddb.ui.cli.arguments import open_database
from embeddb.ui.cli.output import Progress, emit, note, say, table

if TYPE_CHECKING:
    from embeddb.database import Database
    from embeddb.emit.emit import Manifest


@option.verb("emit")
@click.argument("db")
@click.argument("answer", default="")
@click.option("-o", "--out", "place", required=True, metavar="DIR", help="Folder to write.")
@option.text("--config", metavar="TEXT", help="Emit this configuration instead of an answer.")
@click.option(
    "--pack", type=click.IntRange(1, 12), metavar="N", help="Emit up to N kernels and a rule."
)
@option.text("--op", metavar="OP", help="Of --config and --pack, such as spmm:64 or spmv:f64.")
@option.text("--platform", metavar="P", help="Of --config and --pack: cuda, cpu@INSTANCE.")
@click.option("--prefix", metavar="NAME", help="Prefix of C names.")
def emit_verb(
    db: str, answer: str, place: str, *, prefix: str | None, as_json: bool, **options: Any
) -> None:
    """Write the configuration of an answer as a C library that does not need embeddb. ANSWER: its
    id, `last`, or the file, name or id of its workload.

    DIR is new, empty, or an earlier output. For platforms `cpu` and `cuda` it gets the kernel and
    the conversion from CSR to its format, for `tile-cpu` the tensor kernel with its tile; a header,
    a test program, a Makefile, a README and a permissive licence. For a fusion plan of `xla-cpu` it
    gets the program as HLO with that fusion, and each kernel as a module.
    Instead of ANSWER, --pack N with --op writes at most N configurations and a rule that selects
    one for each matrix, learned from the runs in DB of all machines of `cpu` or of --platform;
    --config with --op writes that configuration of `cpu` or of --platform, and DB is not read.

    \b
    Example:
      embeddb emit starter last -o spmm
      embeddb emit tensors.db perceptron.small/0 -o tiled && make -C tiled check
      embeddb emit tensors.db unet.small -o fused
      embeddb emit runs.db r1f0c9e2ab34d -o fast --prefix fast && make -C fast check
      embeddb emit starter --pack 8 --op spmm:128 -o pack
      embeddb emit starter --pack 8 --op spmm:128 --platform cpu@70882216 -o pack
      embeddb emit starter --pack 8 --op spmm:128 --platform cuda -o pack && make -C pack check
      embeddb emit starter --config order=ij,format=csr,lanes=8,unroll=4,threads=one --op spmv -o y
    """
    config, pack, op = options["config"], options["pack"], options["op"]
    if sum(map(bool, (answer, config, pack))) != 1 or bool(answer) == bool(op):
        reason = "give either ANSWER, or --pack or --config with --op"
        raise UsageError(reason, hint="embeddb emit --help")
    if options["platform"] and answer:
        raise UsageError("--platform is for --pack and --config: an answer has its own platform")
    if prefix == "":
        raise UsageError("--prefix is empty", hint="leave it out for that of the operation")
    if answer:
        with open_database(db, readonly=True) as opened:
            manifest = _of_answer(opened, answer, place, prefix or "")
    else:
        manifest = _of_op(db, place, prefix or "", options)
    if as_json:
        output.emit(msgspec.to_builtins(manifest) | {"folder": place})
        return
    for one in manifest.configs:
        say(f"{place}: {manifest.op} as {one}")
    if manifest.op == "fusion":
        say(f"XLA takes no fusion plan; {place}/README.md says how to use the HLO")
    else:
        say(f"build and test it: make -C {place} check")


def _of_op(db: str, place: str, prefix: str, options: Mapping[str, Any]) -> Manifest:
    from embeddb.emit.emit import emit_config, emit_pack

    op, how = Op.parse(options["op"]), {"platform": options["platform"] or "cpu", "prefix": prefix}
    if options["config"]:
        return emit_config(Config.parse(options["config"]), op, place, **how)
    with open_database(db, readonly=True) as opened, Progress() as progress:
        return emit_pack(opened.index, op, place, most=options["pack"], progress=progress, **how)


def _of_answer(db: Database, answer: str, place: str, prefix: str) -> Manifest:
    """Emit a stored answer. Raises: NothingFound for a workload that is known by name only."""
    from embeddb.emit.emit import emit_answer, emit_tensor
    from indexer.library import every_content
    from indexer.resolve import is_file

    recommendation = db.recommendation(answer, note=lambda line: note(f"warning: {line}"))
    if Op.parse(recommendation.op).kind not in KINDS:
        on_gpu = recommendation.platform.startswith("cuda@")
        facts = db.index.platform(recommendation.platform).environment if on_gpu else {}
        capability = facts.get("capability", "")
        manifest = emit_answer(recommendation, place, prefix=prefix, capability=capability)
        if recommendation.best.get("work") == "cusparse":
            first = f"cuSPARSE ({Config(recommendation.best)}) is ranked first"
            note(f"{first}: the best of our own kernels is written")
        return manifest
    subject = db.store.tensor(recommendation.pattern_id)
    in_file = every_content(answer) if subject is None and is_file(answer) else []
    for one in in_file:
        if isinstance(one, TensorGraph) and one.id == recommendation.pattern_id:
            subject = one
    if subject is None:
        reason = f"the workload of answer {recommendation.id} is not in the database"
        hint = "name its file instead of the answer, or add it with `embeddb kernel import`"
        raise NothingFound(reason, hint=hint)
    return emit_tensor(subject, recommendation, place, prefix=prefix)


# -- export ----------------------------------------------------------------------------------------


@option.verb("rule")
@click.argument("db")
@click.option("-o", "--out", required=True, metavar="FILE", help="Header to write.")
@click.option(
    "--platform", required=True, help="One instance, or all machines of a portable platform."
)
@option.op
@option.number("--configs", default=12, least=1, most=64, help="Most to use.")
def rule_verb(db: str, out: str, platform: str, op: str, configs: int, as_json: bool) -> None:
    """Write a C header that chooses among a few configurations, learned from the runs in DB.

    A small forest of decision trees over sizes, row pointers and a bounded sample of the columns
    gives the position in a table of at most --configs configurations, the platform's default first;
    unless another one is significantly better, it gives the default. The header has its
    cross-validated quality. C11 and C++11; no allocation, nothing to link.

    \b
    Example:
      embeddb export rule starter -o spmv.h --platform cpu@70882216 --op spmv
      embeddb export rule runs.db -o spmm.h --platform cpu --op spmm:128 --configs 4
    """
    from embeddb.core.files.safe_write import whole_file
    from tuners.rule.learn import learn_rule

    operation = Op.parse(op)
    with open_database(db, readonly=True) as opened, Progress() as progress:
        rule = learn_rule(opened.index, platform, operation, configs, progress=progress)
    try:
        with whole_file(Path(out)) as file:
            file.write(rule.header().encode())
    except OSError as e:
        raise InputError(f"cannot be written: {e.strerror}", where=out) from None
    if rule.warning:
        note(f"warning: this rule is {rule.warning}")
    if as_json:
        emit({"file": out, **rule.document()})
        return
    many = plural(rule.patterns, "matrix", "matrices")
    say(f"{rule.op} on {rule.platform}: {plural(len(rule.configs), 'configuration')}, learned from")
    say(f"{many} in {plural(rule.groups, 'group')}, written to {out}")
    say()
    say(f"on {plural(rule.judged, 'matrix', 'matrices')} of groups held out:")
    rows = [
        (row.method, f"{row.of_optimum:.3f}", f"{100 * row.slower:.1f} %", factor(row.speedup))
        for row in rule.held_out
    ]
    table(("", "of the best that ran", "slower than default", "speed-up"), rows, indent="  ")
    if rule.left_out:
        note(f"{plural(rule.left_out, 'matrix', 'matrices')} left out: too few measurements")
    if rule.simulated:
        note(f"{rule.platform} is simulated: no time is of real hardware")


@click.group("export", commands=[rule_verb])
def export_verb() -> None:
    """Export decision rules of a database as code. (`db export` writes its runs.)

    \b
    Example:
      embeddb export rule starter -o rule.h --platform cpu --op spmv
    """
