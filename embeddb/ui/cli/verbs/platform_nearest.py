"""`platform nearest`: corresponding configurations of two platforms."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from embeddb.core.config import Config, Op
from embeddb.core.errors import SpaceError, UsageError
from embeddb.core.sizes import UNKNOWN, Sizes
from embeddb.core.wording import plural
from embeddb.core.workload import matrices_only
from embeddb.platforms.platform import Platform, load_platform
from embeddb.ui.cli.arguments import number_option, op_option, open_database
from embeddb.ui.cli.output import emit, json_option, note, say
from indexer.starter import STARTER

#: Exit code if the platforms have no loop nest in common.
_NO_EVIDENCE = 3
_TOO_LARGE = 1 << 62


@click.command("nearest")
@click.argument("source")
@click.argument("target")
@op_option
@click.option(
    "--config",
    "configurations",
    multiple=True,
    metavar="JSON",
    help="Of SOURCE.  [default: its default]",
)
@click.option("--matrix", default="", help="The matrix: a file, or a name or id in DB.")
@click.option(
    "--sizes", default="", metavar="M,N,NNZ", help="Rows, columns, non-zeros, instead of --matrix."
)
@click.option("--db", default="", help="Database of platforms and --matrix.  [default: starter]")
@number_option("-k", default=1, least=1, most=100, help="Loop nests.")
@json_option
def nearest_verb(source: str, target: str, as_json: bool, **options: Any) -> int:
    """Find the legal configurations of TARGET whose loop nest is nearest to that of one of SOURCE.

    SOURCE and TARGET are names or TOML files. A --config (repeatable) is JSON, or
    name=value,name=value. The sizes of the matrix define "not split" and the legal values.
    Ends with code 3 if the two have no loop nest in common.

    \b
    Example:
      embeddb platform nearest spade cpu --op spmm:128 --sizes 50000,20000,1000000 -k 3
      embeddb platform nearest cpu spade --op spmm:128 --matrix airfoil1 \\
        --config '{"order": "ijk", "format": "csr", "threads": "one"}'
    """
    from embeddb.cost_model.encoders.correspondence import correspondence

    op, db = Op.parse(options["op"]), options["db"]
    matrices_only([op], "the common loop nest of platforms")
    ends = (_platform(source, db), _platform(target, db))
    sizes = _sizes(options["matrix"], options["sizes"], db)
    for platform in ends:
        platform.kernel(op)  # fail on a missing kernel first
    configs = _configs(ends[0], op, options["configurations"], sizes)
    try:
        document = correspondence(*ends, op, configs, k=options["k"], sizes=sizes)
    except SpaceError as error:
        if sizes != UNKNOWN:
            raise
        raise UsageError(str(error), hint="give --matrix or --sizes M,N,NNZ") from None
    if as_json:
        emit(document)
    else:
        _show(document, ends)
    return 0 if document["common"] else _NO_EVIDENCE


def _platform(text: str, db: str) -> Platform:
    if not db:
        return load_platform(text)
    with open_database(db, readonly=True) as opened:
        return opened.platform(text)


def _sizes(matrix: str, text: str, db: str) -> Sizes:
    """Rows, columns and non-zeros, each -1 if unknown.

    Raises: UsageError if both options are used.
    """
    if matrix and text:
        raise UsageError("--matrix and --sizes exclude each other", hint="give one of them")
    if text:
        return _three(text)
    if not matrix:
        return UNKNOWN
    if Path(matrix).exists():
        from embeddb.matrix_files import read_pattern

        return read_pattern(matrix).sizes
    with open_database(db or STARTER, readonly=True) as opened:
        return opened.find(matrix).sizes


def _three(text: str) -> Sizes:
    """Sizes from a text M,N,NNZ. Raises: UsageError for sizes that no matrix has."""
    numbers = text.replace(" ", "").split(",")
    if len(numbers) != 3 or not all(n.isascii() and n.isdigit() for n in numbers):
        raise UsageError(f"--sizes {text!r} is not M,N,NNZ", hint="write 50000,20000,1000000")
    m, n, nnz = (int(number[:20]) for number in numbers)
    if not (0 < m < _TOO_LARGE and 0 < n < _TOO_LARGE and nnz < _TOO_LARGE):
        raise UsageError(f"--sizes {text!r}: no matrix has that many rows, columns or non-zeros")
    return Sizes(m, n, nnz)


def _configs(source: Platform, op: Op, texts: Sequence[str], sizes: Sizes) -> list[Config]:
    """Configurations of texts. Raises: UsageError for a malformed one, SpaceError if not legal."""
    m, n, nnz = sizes
    if not texts:
        return [source.default(op, Sizes(m, n, nnz))]
    space = source.space(op, Sizes(m, n, nnz))
    configs = []
    for number, text in enumerate(texts, 1):
        read = Config.from_json if text.lstrip()[:1] in ("{", "[") else Config.parse
        try:
            config = space.canonical(read(text))
        except UsageError as error:
            raise UsageError(f"--config {number}: {error}", hint=error.hint) from None
        reason = space.reason(config)
        if reason is not None:
            raise SpaceError(
                f"not legal on {source.id}: {reason}",
                where=f"--config {number}",
                hint=f"embeddb platform show {source.name}",
            )
        configs.append(config)
    return configs


def _show(document: dict[str, Any], ends: tuple[Platform, Platform]) -> None:
    source, target = ends
    sizes = document["sizes"]
    about = "a matrix of unknown sizes"
    if sizes["m"] is not None:
        about = f"{sizes['m']:,} x {sizes['n']:,}, {plural(sizes['nnz'], 'non-zero')}"
    say(f"{document['op']} from {source.id} to {target.id}, on {about}")
    if not document["common"]:
        _show_strangers(document, source, target)
        return
    for entry in document["configs"]:
        say()
        say(f"{source.id}: {Config(entry['config'])}")
        _show_nest(entry["nest"])
        for near in entry["nearest"]:
            say(f"  {target.id}, distance {near['distance']:.3f}: {Config(near['config'])}")
            _show_nest(near["nest"], "  ")
    say()
    if document["own"]:
        own = ", ".join(document["own"])
        say(f"not part of the loop nest, so taken from the default if legal: {own}")
    note("distance 0 is the same loop nest; 1 is a split off by 2^16, or all loops reversed")


def _show_nest(nest: dict[str, Any] | None, indent: str = "") -> None:
    if nest is not None:
        say(f"{indent}  loops, outermost first: {nest['words']} ({' '.join(nest['order'])})")


def _show_strangers(document: dict[str, Any], source: Platform, target: Platform) -> None:
    kernel = document["op"].partition(":")[0]
    without = [p.id for p in (source, target) if p.kernel(kernel).mapping is None]
    verb = "declares" if len(without) == 1 else "declare"
    say(f"no loop nest in common: {' and '.join(without)} {verb} none for {kernel}")
    default = Config(document["configs"][0]["nearest"][0]["config"])
    say(f"the only candidate is the default of {target.id}: {default}")
