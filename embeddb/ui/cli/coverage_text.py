"""Coverage of a database as text: scopes that can be answered, and what is missing."""

from __future__ import annotations

from typing import Any

from embeddb.core.config import Op
from embeddb.core.wording import many_of, share
from embeddb.index.lookup import Lookup
from embeddb.index.scopes import scope_of
from embeddb.platforms.platform import Platform
from embeddb.ui.cli.output import note, say, table


def show_states(states: list[dict[str, Any]]) -> None:
    """Table of `indexer.coverage.scope_states`; column "held out": share of the optimum in
    leave-one-group-out cross-validation."""
    if not states:
        say("nothing can be answered yet: there are no runs; `embeddb index DB LOG --platform P`")
        say("reads some, `embeddb measure DB MATRIX --platform cpu --op spmv` makes some")
        return
    head = ("op", "platform", "patterns", "groups", "configs", "runs", "features")
    rows = []
    for s in states:
        quality = (share(s.get("of_optimum_held_out")), share(s.get("static_best_held_out")))
        rows.append(
            (
                *(s["op"], s["platform"], s["patterns"], s["groups"], s.get("configs")),
                *(s["runs"], s["featurizer"], *quality, "simulated" if s["simulated"] else ""),
            )
        )
    table((*head, "held out", "static best", "note"), rows)
    say("held out: share of the best measured configuration reached without the pattern's own")
    say("group, geometric mean, as in `embeddb eval`; static best: by one fixed configuration")
    for s in states:
        for line in [*_model_lines(s["cost_model"]), *s["missing"]]:
            say(f"  {s['op']} on {s['platform']}: {line}")


def show_available(db: Lookup, platform: Platform, op: Op) -> None:
    """After a query without evidence: the scopes that have runs, and how runs of another instance
    could be used."""
    scopes = db.scopes()
    makes = "`embeddb index` reads some, `embeddb measure` makes some"
    makes += f", {op.workload.measures} those of many" if op.workload.measures else ""
    if not op.workload.embedded:
        searched = f"`embeddb tune DB PROGRAM --op {op}` searches for a fusion plan"
        note(f"programs are not compared with each other: {searched}")
    elif (op, scope := scope_of(platform)) in scopes:
        note(
            f"there are runs of {op} on {scope}, of too few {many_of(op.kind)} that can be "
            f"compared with this one; {makes}"
        )
    elif scopes:
        have = ", ".join(f"{what} on {scope}" for what, scope in scopes[:8])
        note(f"no evidence for {op} on {platform.id}; there are runs of: {have}; {makes}")
    else:
        note(f"no evidence: there are no runs; {makes}")
    kin = {scope for _, scope in scopes if scope.partition("@")[0] == platform.name}
    if kin - {platform.id, platform.name if platform.portable else platform.id}:
        note(
            f"instances of {platform.name} are separate: read the log with `--instance this` if "
            "this machine wrote it, or set `portable = true` in the platform file"
        )


def _model_lines(model: dict[str, Any] | None) -> list[str]:
    if model is None:
        return []
    named = f"cost model {model['version']}"
    if "mape" in model:
        return [f"{named} predicts seconds: MAPE {model['mape']:.1f} % in cross-validation"]
    shares = [f"{method} {share(v)}" for method, v in model["of_optimum_held_out"].items()]
    figures = ", ".join(shares) or "never evaluated, so it does not rank"
    reads = model.get("featurizer", "operations")
    return [f"{named} on {reads}, held out: {figures}"]
