"""`platform list|show|draft|check|nearest`: platforms, and the files that describe them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import click

from embeddb.core.config import Config, Op
from embeddb.core.errors import InputError, PlatformError, RunnerUnavailable, SpaceError, UsageError
from embeddb.core.files.safe_write import check_place, whole_file
from embeddb.core.kinds import operation_of
from embeddb.core.sizes import UNKNOWN, Sizes
from embeddb.core.wording import clean, plural
from embeddb.core.workload import matrices_only
from embeddb.platforms.machines import described
from embeddb.platforms.platform import (
    Platform,
    builtin_platforms,
    load_platform,
    platform_here,
    runner_for,
)
from embeddb.platforms.space.space import ConfigSpace
from embeddb.ui.cli import option
from embeddb.ui.cli.arguments import open_database
from embeddb.ui.cli.logs import read_options
from embeddb.ui.cli.output import emit, note, result, say, table
from indexer.resolve import is_file
from indexer.starter import STARTER


@option.verb("list")
@option.text("--db", help="List those of a database instead of the built-in ones.")
def list_verb(db: str, as_json: bool) -> None:
    """List built-in platforms, or those of a database.

    \b
    Example:
      embeddb platform list --db runs.db
    """
    if db:
        with open_database(db, readonly=True) as opened:
            platforms = [opened.platform(name) for name in opened.store.platforms()]
    else:
        platforms = [load_platform(name) for name in builtin_platforms()]
    if as_json:
        emit([head(platform) for platform in platforms])
        return
    rows = [
        (p.id, " ".join(p.ops), "yes" if p.runner else "no", kind(p), p.what) for p in platforms
    ]
    table(("platform", "operations", "runs here", "times", "what it is"), rows)


def kind(platform: Platform) -> str:
    return "simulated" if platform.simulated else "real"


def head(platform: Platform) -> dict[str, Any]:
    """Fields of a platform in every list of platforms."""
    names = ("id", "name", "instance", "version", "title", "ops", "simulated", "portable")
    return {name: getattr(platform, name) for name in (*names, "runner", "cost_per_sample")}


#: Values of a parameter shown in the table.
_SHOWN_VALUES = 8


@option.verb("show")
@click.argument("platform")
@option.text("--db", help="Look it up in this database.")
def show_verb(platform: str, db: str, as_json: bool) -> None:
    """Show parameters, values, defaults and mapping of a PLATFORM (a name or a TOML file), and the
    facts of its machines: this one, or those in a database.

    \b
    Example:
      embeddb platform show cpu
      embeddb platform show cpu --db runs.db
    """
    if db:
        with open_database(db, readonly=True) as opened:
            described_platform = opened.platform(platform)
            stored = (opened.store.sound_platform(i) for i in opened.store.platforms())
            same = (p for p in stored if p is not None and p.name == described_platform.name)
            instances = [] if described_platform.instance else [p for p in same if p.instance]
    else:
        described_platform = load_platform(platform)
        instances = _local_instance(described_platform)
    kernels = [_kernel(described_platform, kernel) for kernel in described_platform.ops]
    if as_json:
        facts = {n: getattr(described_platform, n) for n in ("digest", "traits", "environment")}
        body = {"instances": {p.id: p.environment for p in instances}, "kernels": kernels}
        emit({**head(described_platform), **facts, **body, "meaning": described_platform.meaning})
        return
    p = described_platform
    say(f"{p.id}: {p.title} (version {p.version})")
    runner = (
        f"measured by the runner `{p.runner}`" if p.runner else "no runner: runs are read from logs"
    )
    shared = "other instances count as evidence" if p.portable else "instances are separate"
    say(f"{kind(p)} times; {runner}; {shared}; cost per sample {p.cost_per_sample:g}")
    for name, value in p.traits.items():
        say(f"  {name} = {value}")
    _show_facts(p)
    for instance in instances:
        say(f"{instance.id}:" if db else f"this machine is {instance.id}:")
        _show_facts(instance)
    for kernel in kernels:
        _show_kernel(kernel)
    quantities = {one["name"] for kernel in kernels for one in kernel["derived"]}
    values = sorted(
        (n, line) for n, line in described_platform.meaning.items() if n not in quantities
    )
    if values:
        say()
        table(("value", "means"), values, indent="  ")


def _local_instance(platform: Platform) -> list[Platform]:
    """This machine, if the runner has facts of it; nothing is measured or started."""
    if platform.instance or not platform.runner:
        return []
    with suppress(RunnerUnavailable):
        runner = runner_for(platform)
        return [platform_here(runner, facts=False)] if hasattr(runner, "facts") else []
    return []


def _show_facts(platform: Platform) -> None:
    for words, value in described(platform.environment):
        say(f"  {words}: {value}")


def _kernel(platform: Platform, kernel: str) -> dict[str, Any]:
    part, meaning = platform.kernel(kernel), platform.meaning
    space = _space(platform, kernel)
    return {
        "kernel": kernel,
        "parameters": [
            {
                "name": param.name,
                "type": param.kind,
                "values": list(param.values),
                "when": param.when,
                "aliases": dict(param.aliases),
                "open": param.open,
            }
            for param in space.params
        ],
        "constraints": list(space.constraints),
        "derived": [
            {"name": one.name, "expression": one.text, "meaning": meaning.get(one.name, "")}
            for one in platform.quantities(Op(kernel)).quantities
        ],
        "varying": None if part.varying is None else list(part.varying),
        "inexact": None if part.inexact is None else list(part.inexact),
        "default": dict(part.default),
        "size": None if space.shaped_by else space.size(),
        "shaped_by": list(space.shaped_by),
        "homogeneous": list(part.homogeneous),
        "heterogeneous": list(part.heterogeneous),
    }


def _show_kernel(kernel: dict[str, Any]) -> None:
    size = "over 100,000" if kernel["size"] is None else f"{kernel['size']:,}"
    legal = f"{size} legal configurations"
    if kernel["shaped_by"]:
        by = ", ".join(kernel["shaped_by"])
        legal = f"which configurations are legal depends on {by} and sizes"
    say()
    say(f"{kernel['kernel']}: {legal}")
    rows = []
    for param in kernel["parameters"]:
        name = param["name"]
        role = [w for w in ("homogeneous", "heterogeneous") if name in kernel[w]]
        part = {"homogeneous": "loop nest", "heterogeneous": "own"}
        values = [clean(v) for v in param["values"]]
        more = f" ... ({len(values)})" if len(values) > _SHOWN_VALUES else ""
        more += " and new ones" if param["open"] else ""
        rows.append(
            (
                name,
                param["type"],
                kernel["default"].get(name),
                " + ".join(part[w] for w in role),
                param["when"],
                " ".join(values[:_SHOWN_VALUES]) + more,
            )
        )
    table(("parameter", "type", "default", "part of", "only when", "values"), rows, indent="  ")
    if kernel["derived"]:
        quantities = [(q["name"], q["meaning"], q["expression"]) for q in kernel["derived"]]
        table(("derived quantity", "meaning", "expression"), quantities, indent="  ")
    for constraint in kernel["constraints"]:
        say(f"  constraint: {constraint}")
    for condition in kernel["varying"] or ():
        say(f"  summation order varies: {condition}")
    for condition in kernel["inexact"] or ():
        say(f"  rounds its operands: {condition}")


@option.verb("draft")
@click.argument("log")
@option.text("-o", "--out", "file", metavar="FILE", help="[default: print it]")
@option.text("--name", help="Name of the platform.  [default: from FILE, else from LOG]")
@option.text("--op", help="Operation, if the log does not say: spmm:128.")
@option.text("--unit", help="Of times without one: s, ms, us, ns or cycles.")
@option.several("--map", "columns", metavar="ROLE=COLUMN", help="A role's column.")
@option.text("--matrix", help="Matrix name, if the log lacks it.")
@option.text("--format", "reader", help="Reader; recognised if left out.")
def draft_verb(log: str, file: str, name: str, reader: str, as_json: bool, **options: Any) -> None:
    """Write a platform file from a LOG of runs, in any format that is read.

    Columns without a role (matrix, time, status, ...) become parameters with the values in the log;
    a parameter that is empty in some rows gets the condition that selects them. Facts that are not
    in the log, such as the default, are guessed and marked GUESS in the file. The operation and the
    unit of times are never guessed: give --op and --unit.

    \b
    Example:
      embeddb platform draft runs.csv --op spmm:32 -o my.toml
      embeddb platform check my.toml
      embeddb index my.db runs.csv --platform my.toml --matrices matrices/
    """
    from indexer.drafting.draft import draft_platform

    if file:
        check_place(Path(file))
        if Path(file).exists():  # it may have been edited
            raise InputError("already exists", where=file, hint="name another file")
    read = read_options({**options, "features": "", "instance": ""})
    draft = draft_platform(Path(log), read, reader=reader, name=name or (file or log))
    if file:
        with whole_file(Path(file)) as out:
            out.write(draft.text.encode())
    if as_json:
        body = {"platform": draft.name, "file": file or None, "text": draft.text}
        counts = {"rows": draft.rows, "rejected": draft.rejected, "reason": draft.reason}
        emit({**body, **counts, "guesses": draft.guesses, "left_out": draft.left_out})
        return
    if not file:
        for line in draft.text.splitlines():
            say(line)
    for guess in draft.guesses:
        note(f"guess: {guess}")
    for column, reason in draft.left_out.items():
        note(f"no parameter: {column} ({reason})")
    if draft.rejected:
        note(f"{plural(draft.rejected, 'row')} rejected, the first at {draft.reason}")
    if file:
        say(f"wrote {file}; next: embeddb platform check {shlex.quote(file)}")


@option.verb("check")
@click.argument("file")
def check_verb(file: str, as_json: bool) -> int:
    """Check a platform FILE; each problem is a line. Ends with code 1 if there are any.

    \b
    Example:
      embeddb platform check my_platform.toml
    """
    from embeddb.platforms.check import check_platform, check_programs

    platform: Platform | None = None
    try:
        platform = load_platform(file)
    except PlatformError as error:
        if not is_file(file):
            raise
        problems = list(error.problems)
    if platform is not None:
        problems = check_platform(platform) + check_programs(platform)
    name, digest = (None, None) if platform is None else (platform.id, platform.digest)
    if as_json:
        emit({"platform": name, "digest": digest, "problems": problems})
        return 1 if problems else 0
    for line in problems:
        say(line)
    if problems or platform is None:
        say(f"{name or file}: {plural(len(problems), 'problem')}")
        return 1
    counts = ", ".join(map(partial(_count, platform), platform.ops))
    say(f"{name}: no problems; legal configurations: {counts}")
    for kind in dict.fromkeys(operation_of(kernel)[1] for kernel in platform.ops):
        if text := kind.transfer_note(platform):
            say(f"{kind.many}: {text}")
    return 0


def _space(platform: Platform, kernel: str) -> ConfigSpace:
    """The space of a kernel, for any number of dense columns if it has them, else for one."""
    part = platform.kernel(kernel)
    return part.space if operation_of(kernel)[0].wide else part.bind({"WIDTH": 1})


def _count(platform: Platform, kernel: str) -> str:
    """Number of legal configurations; for nests, whose depth sets the parameters, of an example."""
    space, of = _space(platform, kernel), ""
    workload, text = operation_of(kernel)[1].example()
    if workload is not None:
        space, of = space.bind(workload.sizes.symbols), f" ({text})"
    if space.shaped_by:
        return f"{kernel} depends on {', '.join(space.shaped_by)}"
    size = space.size()
    return f"{kernel} {size:,}{of}" if size else f"{kernel} over 100,000{of}"


# -- nearest ---------------------------------------------------------------------------------------

#: Exit code if the platforms have no loop nest in common.
_NO_EVIDENCE = 3
_TOO_LARGE = 1 << 62


@option.verb("nearest")
@click.argument("source")
@click.argument("target")
@option.op
@option.several(
    "--config", "configurations", metavar="JSON", help="Of SOURCE.  [default: its default]"
)
@option.text("--matrix", help="The matrix: a file, or a name or id in DB.")
@option.text("--sizes", metavar="M,N,NNZ", help="Rows, columns, non-zeros, instead of --matrix.")
@option.text("--db", help="Database of platforms and --matrix.  [default: starter]")
@option.number("-k", default=1, least=1, most=100, help="Loop nests.")
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
    from embeddb.cost_model.encoders.nearest import correspondence

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
    result(document, partial(_show, ends=ends), as_json)
    return 0 if document["common"] else _NO_EVIDENCE


def _platform(text: str, db: str) -> Platform:
    if not db:
        return load_platform(text)
    with open_database(db, readonly=True) as opened:
        return opened.platform(text)


def _sizes(matrix: str, text: str, db: str) -> Sizes:
    """Rows, columns and non-zeros, each -1 if unknown. Raises: UsageError if both options are used,
    and for sizes that no matrix has."""
    if matrix and text:
        raise UsageError("--matrix and --sizes exclude each other", hint="give one of them")
    if text:
        numbers = text.replace(" ", "").split(",")
        if len(numbers) != 3 or not all(n.isascii() and n.isdigit() for n in numbers):
            raise UsageError(f"--sizes {text!r} is not M,N,NNZ", hint="write 50000,20000,1000000")
        m, n, nnz = (int(number[:20]) for number in numbers)
        if not (0 < m < _TOO_LARGE and 0 < n < _TOO_LARGE and nnz < _TOO_LARGE):
            what = "no matrix has that many rows, columns or non-zeros"
            raise UsageError(f"--sizes {text!r}: {what}")
        return Sizes(m, n, nnz)
    if not matrix:
        return UNKNOWN
    if Path(matrix).exists():
        from embeddb.matrix_files import read_pattern

        return read_pattern(matrix).sizes
    with open_database(db or STARTER, readonly=True) as opened:
        return opened.find(matrix).sizes


def _configs(source: Platform, op: Op, texts: Sequence[str], sizes: Sizes) -> list[Config]:
    """Configurations of texts. Raises: UsageError for a malformed one, SpaceError if not legal."""
    if not texts:
        return [source.default(op, sizes)]
    space = source.space(op, sizes)
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
        kernel = document["op"].partition(":")[0]
        without = [p.id for p in ends if p.kernel(kernel).mapping is None]
        verb = "declares" if len(without) == 1 else "declare"
        say(f"no loop nest in common: {' and '.join(without)} {verb} none for {kernel}")
        default = Config(document["configs"][0]["nearest"][0]["config"])
        say(f"the only candidate is the default of {target.id}: {default}")
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


@click.group("platform", commands=[list_verb, show_verb, draft_verb, check_verb, nearest_verb])
def platform_verb() -> None:
    """Platforms: operations, parameters and constraints, described in one TOML file each.

    \b
    Example:
      embeddb platform list
      embeddb platform show spade
      embeddb platform draft runs.csv --op spmm:32 -o my_platform.toml
      embeddb platform check my_platform.toml
      embeddb platform nearest spade cpu --op spmm:128 --sizes 50000,20000,1000000
    """
