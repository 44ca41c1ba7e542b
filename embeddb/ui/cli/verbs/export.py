"""`export rule`: a C file that chooses a configuration at run time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from embeddb.core.config import Op
from embeddb.core.errors import InputError
from embeddb.core.wording import factor, plural
from embeddb.ui.cli.arguments import open_database
from embeddb.ui.cli.output import Progress, emit, json_option, note, say, table

if TYPE_CHECKING:
    from tuners.rule.rule import Rule


@click.command("rule")
@click.argument("db")
@click.option("-o", "--out", required=True, metavar="FILE", help="Header to write.")
@click.option(
    "--platform", required=True, help="One instance, or all machines of a portable platform."
)
@click.option("--op", required=True, help="KERNEL:WIDTH, as spmm:128.")
@click.option(
    "--configs", default=12, show_default=True, type=click.IntRange(1, 64), help="Most to use."
)
@json_option
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
    if as_json:
        emit({"file": out, **rule.document()})
    else:
        _show(rule, out)


def _show(rule: Rule, out: str) -> None:
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


@click.group("export")
def export_verb() -> None:
    """Export decision rules of a database as code. (`db export` writes its runs.)

    \b
    Example:
      embeddb export rule starter -o rule.h --platform cpu --op spmv
    """


export_verb.add_command(rule_verb)
