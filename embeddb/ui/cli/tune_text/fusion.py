"""What tuning the fusion of a program found, as text and as a document."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from embeddb.core.wording import factor, plural
from embeddb.tensors.edges import edges_of
from embeddb.ui.cli.output import note, say, table
from embeddb.ui.cli.tune_text.seconds import measured

if TYPE_CHECKING:
    from tuners.fusion_cuts import FusionTuned, Tried
    from tuners.tune_fusion import TuneRequest

__all__ = ["NO_PLAN_FOR_XLA", "fusion_document", "show_fusion"]

#: What a plan is good for.
NO_PLAN_FOR_XLA = (
    "XLA takes no fusion plan: this is a prediction until you compile the kernels one by one, as "
    "HLO that `embeddb emit` writes of a query's answer"
)
#: Failures that are named.
_MOST_NOTES = 10
#: What a cut must promise where nothing runs: of held-out programs, those that promised less were
#: more often slower than the default than faster (docs/results.md).
_WORTH = 1.2


def fusion_document(done: FusionTuned, asked: TuneRequest) -> dict[str, Any]:
    """Seconds; null for what did not run or failed."""
    return {
        "program": {
            "id": done.program.id,
            "name": done.program.name,
            "operations": len(done.program.operations),
            "edges": len(edges_of(done.program).pairs),
        },
        "platform": done.platform,
        "op": "fusion",
        "start": asked.start,
        "seed": asked.seed,
        "model": done.model or None,
        "model_seconds": {"asked": asked.model_s, "spent": done.model_s},
        "hardware_seconds": {"asked": asked.hardware_s, "spent": done.hardware_s},
        "reference_seconds": done.reference_s,
        "again": [one.cut.text for one in done.again],
        "rounds_seconds": done.rounds_s,
        "predicted": {"cuts": done.predicted_cuts, "kernels": done.predicted_kernels},
        "tried": len(done.tried),
        "fresh": done.fresh,
        "kernels": done.kernels,
        "failed": {one.cut.text: one.error for one in done.failed},
        "rows": [_row(what, one, done) for what, one in _rows(done)],
        "gain": done.gain,
    }


def show_fusion(done: FusionTuned, asked: TuneRequest) -> None:
    """The table, what was spent, and what the gain is."""
    program = done.program
    say(
        f"{program.name}: {plural(len(program.operations), 'operation')}, "
        f"{plural(len(edges_of(program).pairs), 'edge')}; fusion on {done.platform}"
    )
    if done.model:
        say(
            f"model {done.model[:8]}: {plural(done.predicted_cuts, 'cut')} priced in "
            f"{done.model_s:.0f} of {asked.model_s:g} s"
        )
    failed = f", {plural(len(done.failed), 'failure')}" if done.failed else ""
    say(
        f"hardware: {plural(len(done.tried), 'cut')} in {done.hardware_s:.1f} of "
        f"{asked.hardware_s:g} s{failed}; {plural(done.fresh, 'cut')}, "
        f"{plural(done.kernels, 'kernel')} measured now"
    )
    if len(done.again) > 1:
        plans = plural(len(done.again), "plan")
        say(f"the fastest single timing did not repeat: {plans} were measured again")
    rerun = f"{done.rounds_s:.1f} s for running again and the rounds"
    say(f"beside: {done.reference_s:.1f} s for the defaults, {rerun}")
    say()
    head = ["", "predicted", "measured", "rounds", "in a row", "gain", "kernels", "cut"]
    table(head, [_cells(_row(what, one, done)) for what, one in _rows(done)])
    for one in done.failed[:_MOST_NOTES]:
        note(f"failed: {one.error}")
    say()
    say(_verdict(done))
    say(NO_PLAN_FOR_XLA)


def _verdict(done: FusionTuned) -> str:
    best, gain = done.best, done.gain
    if best is None:
        return f"nothing ran: the cut that is best predicted is no more than that{_promised(done)}"
    if gain is None:
        return "not run again: the gain of one timing is partly luck"
    default = "XLA's own choice" if done.default == done.defaults[0] else "the compiler's cut"
    if best.cut == done.default.cut:
        return f"nothing is faster than {default}"
    counted = plural(min(map(len, done.rounds.values())), "round")
    if gain <= 1:
        return f"no gain: {factor(gain)} over {default} in {counted}"
    faster = f"{factor(gain)} faster than {default} in {counted.replace(' ', ' alternating ', 1)}"
    least = min(done.in_a_row_s(one.cut) for one in done.defaults)
    own = done.in_a_row_s(best.cut)
    if math.isfinite(own) and own >= least:
        slower = f"{100 * (own / least - 1):.0f} % slower when called back to back"
        return f"{faster}, {slower}: treat as no gain"
    slowest = max(one.seconds for one in done.rounds[best.cut])
    apart = slowest < min(one.seconds for one in done.rounds[done.default.cut])
    return faster if apart else f"{faster}; its rounds and the default's overlap: may be chance"


def _promised(done: FusionTuned) -> str:
    """Whether a cut that did not run is worth taking."""
    said = [one.said_s for one in done.defaults if one.said_s is not None]
    first = done.best_predicted
    if not said or first is None or not first.said_s:
        return ""
    promised = min(said) / first.said_s
    kept = "" if promised >= _WORTH else f", below {factor(_WORTH)}: keep the default"
    return f"; it promises {factor(promised)}{kept}"


def _rows(done: FusionTuned) -> list[tuple[str, Tried]]:
    names = ("whole (XLA's own)", "compiler's cut")
    rows = list(zip(names, done.defaults, strict=False))
    told = (("best predicted", done.best_predicted), ("best measured", done.best))
    return rows + [(what, one) for what, one in told if one is not None]


def _row(what: str, one: Tried, done: FusionTuned) -> dict[str, Any]:
    again, default = done.again_s(one.cut), done.again_s(done.default.cut)
    row = done.in_a_row_s(one.cut)
    return {
        "what": what,
        "cut": one.cut.text,
        "predicted_s": one.said_s,
        "seconds": one.seconds,
        "rounds_s": [held.seconds for held in done.rounds.get(one.cut, ())],
        "median_s": again,
        "in_a_row_s": row if math.isfinite(row) else None,
        "gain": default / again if math.isfinite(again) and math.isfinite(default) else None,
        "kernels": one.kernels or None,
        "error": one.error or None,
    }


def _cells(row: Mapping[str, Any]) -> list[str]:
    times = ("predicted_s", "seconds", "median_s", "in_a_row_s")
    told = [measured(row[name]) for name in times]
    kernels = "-" if row["kernels"] is None else str(row["kernels"])
    return [row["what"], *told, factor(row["gain"]), kernels, row["cut"]]
