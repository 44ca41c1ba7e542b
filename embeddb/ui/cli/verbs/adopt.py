"""`adopt`: from a platform file and a folder of matrices to a database that answers for it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from embeddb.core.config import Op
from embeddb.core.errors import UsageError
from embeddb.core.kinds import operation_of
from embeddb.core.server_url import is_server_url
from embeddb.core.wording import factor, plural
from embeddb.ui.cli.arguments import database_to_fill, families, runner_here
from embeddb.ui.cli.output import Progress, emit, json_option, note, say, table

if TYPE_CHECKING:
    from embeddb.platforms.platform import Platform
    from indexer.adopt import AdoptedOp

#: Dense columns of an operation that is not named.
_WIDTH = 32


@click.command("adopt")
@click.argument("db")
@click.option("--platform", required=True, help="A TOML file (or name) with a runner.")
@click.option("--matrices", required=True, help="Folder of matrix files.")
@click.option(
    "--op",
    "ops",
    multiple=True,
    help=f"Such as spmm:128; repeatable.  [default: every kernel, {_WIDTH} dense columns]",
)
@click.option(
    "--samples", default=500, show_default=True, type=click.IntRange(1), help="Of each operation."
)
@click.option("--manifest", default="", help="CSV with columns name and family: the groups.")
@click.option("--max-nnz", default=0, type=click.IntRange(0), help="0: no limit.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0))
@click.option(
    "--campaign", default="", metavar="DIR", help="Folder of the measurements.  [default: DB.adopt]"
)
@json_option
def adopt_verb(db: str, as_json: bool, **options: Any) -> None:
    """Measure a new platform, learn from it, and report what to expect of answers for it.

    Measures --samples of each operation through the platform's runner: 10 configurations on each of
    as many matrices as that allows, the default first. They are stored in DB (created if missing),
    and `embeddb query` ranks by the model that is learned from them. The figures are shares of the
    best configuration that ran on a matrix whose group was held out.

    After Ctrl-C or a failure the same command continues; with more --samples it measures the
    difference.

    \b
    Example:
      embeddb adopt sim.db --platform examples/my_simulator.toml --matrices matrices/
      embeddb adopt sim.db --platform examples/my_simulator.toml --matrices matrices/ --samples 1000
    """
    from indexer.adopt import Adoption, AdoptRequest
    from indexer.campaign.run import planned_matrices

    if not options["campaign"] and is_server_url(db):
        raise UsageError("a database on a server needs a folder for measurements: --campaign DIR")
    with database_to_fill(db) as opened, Progress() as progress:
        platform = opened.platform(options["platform"])
        ops = tuple(map(Op.parse, options["ops"])) or _every_op(platform)
        request = AdoptRequest(
            platform=platform,
            ops=tuple(dict.fromkeys(ops)),
            samples=options["samples"],
            seed=options["seed"],
        )
        runner, here = runner_here(platform, 0)
        pool = planned_matrices(
            options["matrices"],
            groups=families(options["manifest"]),
            nnz=(1, options["max_nnz"]),
            told=progress,
            note=note,
        )
        folder = Path(options["campaign"] or f"{db.rstrip('/')}.adopt")
        adopted = Adoption(opened.index, runner, request, pool, folder, told=progress).run()
    if as_json:
        documents = [one.document() for one in adopted]
        emit({"platform": here.id, "campaign": str(folder), "ops": documents})
        return
    say(f"{here.id}: measurements in {folder}")
    for one in adopted:
        _show(one)


def _every_op(platform: Platform) -> tuple[Op, ...]:
    every = (Op(k, _WIDTH if operation_of(k)[0].wide else 1) for k in platform.kernels)
    return tuple(op for op in every if op.workload.sparse)


def _show(adopted: AdoptedOp) -> None:
    document = adopted.document()
    failed = f", {document['failed']:,} of which failed" if document["failed"] else ""
    say()
    say(
        f"{adopted.op}: {plural(document['samples'], 'sample')}{failed}, on "
        f"{plural(adopted.matrices, 'matrix', 'matrices')}"
    )
    say(f"share of the best of {adopted.configurations} configurations (median), groups held out:")
    head = ("method", "of optimum@1", "standard error", "@5")
    names = ("of_optimum@1", "error@1", "of_optimum@5")
    rows = [(m, *(f"{f[name]:.3f}" for name in names)) for m, f in adopted.methods.items()]
    table(head, rows, indent="  ")
    say(f"expected gain of the first choice over the default: {factor(adopted.gain)}")
    steps = ", ".join(f"{p.share:.3f} from {p.samples:,}" for p in adopted.curve)
    say(f"learning curve (at 1): {steps} samples")
    say(_outlook(adopted))


def _outlook(adopted: AdoptedOp) -> str:
    """One sentence on further samples."""
    further = adopted.document()["further"]
    more = f"{further['samples']} more samples"
    if further["at_most"] is None:
        return (
            f"{more}: no gain can be shown, the last doubling gave less than its standard error "
            f"({adopted.difference:+.3f} +- {adopted.error:.3f})"
        )
    return (
        f"{more}: at most about +{further['at_most']:.3f} at 1, if a doubling gives no more than "
        f"the last ({adopted.difference:+.3f} +- {adopted.error:.3f})"
    )
