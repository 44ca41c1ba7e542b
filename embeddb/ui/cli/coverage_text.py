"""What a database can answer, and what is missing, for people."""

from __future__ import annotations

from typing import Any

from embeddb.core.wording import share
from embeddb.ui.cli.output import say, table

__all__ = ["show_states"]


def show_states(states: list[dict[str, Any]]) -> None:
    """The documents of `indexer.coverage.scope_states`; held out: of the optimum, each matrix asked
    without its group."""
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
    for s in states:
        for line in [*_model_lines(s["cost_model"]), *s["missing"]]:
            say(f"  {s['op']} on {s['platform']}: {line}")


def _model_lines(model: dict[str, Any] | None) -> list[str]:
    if model is None:
        return []
    held = [f"{method} {share(v)}" for method, v in model["of_optimum_held_out"].items()]
    figures = ", ".join(held) or "never judged, so it does not rank"
    return [f"cost model {model['version']} on {model['featurizer']}, held out: {figures}"]
