"""What a database can answer now, how well, and what is missing: per operation and platform."""

from __future__ import annotations

import shlex
from typing import Any

from embeddb.core.config import Op
from embeddb.database import Database
from embeddb.index.scopes import scope_of
from embeddb.platforms.platform import Platform
from embeddb.query.build import judged
from embeddb.query.confidence import GOOD
from embeddb.ui.cli.output import clean, plural, say, share, table

__all__ = ["example_query", "scope_states", "show_states"]


def scope_states(db: Database) -> list[dict[str, Any]]:
    """One document per (op, scope): its figures, and `missing`, a line for each shortcoming."""
    return [_state(db, op, scope) for op, scope in db.scopes()]


def _state(db: Database, op: Op, scope: str) -> dict[str, Any]:
    members = {p.platform: (p, set(db.store.members(p))) for p in _partitions(db, op, scope)}
    ids = set().union(*(held for _, held in members.values()))
    infos = [info for info in map(db.store.pattern, sorted(ids)) if info is not None]
    platform = db.store.platform(next(iter(members)))
    assert platform is not None  # a scope is made of platforms that are there
    partition = db.partition(op, platform)
    state: dict[str, Any] = {
        "op": str(op),
        "platform": scope,
        "instances": sorted(members),
        "simulated": platform.simulated,
        "patterns": len(ids),
        "groups": len({info.group or info.name or info.id for info in infos}),
        "runs": sum(db.store.count_runs(p) for p, _ in members.values()),
        "stubs": sum(info.stub for info in infos),
        "default": str(platform.default(op)),
        "featurizer": None,
    }
    if partition is not None:
        told = partition.describe()
        state |= {k: v for k, v in told.items() if k not in ("op", "scope", "patterns")}
    state["cost_model"] = _cost_model(db, platform, op)
    state["missing"] = _missing(state)
    return state


def _cost_model(db: Database, platform: Platform, op: Op) -> dict[str, Any] | None:
    """The model that ranks here, and what its answers reached with groups held out, by method."""
    model = db.cost_model(platform, op)
    if model is None:
        return None
    figures = judged(model.card, op)
    held = {method: f["of_optimum@1"] for method, f in figures.items()}
    features = model.card["featurizer"]["name"]
    return {"version": model.version, "featurizer": features, "of_optimum_held_out": held}


def _partitions(db: Database, op: Op, scope: str) -> list[Any]:
    found = []
    for p in db.store.partitions():
        platform = db.store.platform(p.platform)
        if p.op == op and platform is not None and scope_of(platform) == scope:
            found.append(p)
    return found


def _missing(state: dict[str, Any]) -> list[str]:
    lines = []
    if state["featurizer"] is None:
        return [
            "the sizes of its matrices are not known: give --matrices DIR, or columns m, n, nnz"
        ]
    if state["without_default"] and "winner_hits_held_out" not in state:
        lines.append(
            f"{plural(state['without_default'], 'pattern')} without an ok run of the default "
            f"({state['default']}): they rank, but what a configuration gains is not known"
        )
    if state["stubs"]:
        lines.append(
            f"{state['stubs']:,} of {plural(state['patterns'], 'pattern')} known by name and size "
            f"only, compared by `{state['featurizer']}`: --matrices DIR adds the structures"
        )
    if state["indexed"] < state["patterns"]:
        gone = state["patterns"] - state["indexed"]
        lines.append(f"{plural(gone, 'pattern')} lack what `{state['featurizer']}` needs: no votes")
    if state["disagreeing"]:
        lines.append(
            f"{plural(state['disagreeing'], 'configuration')} of one matrix with runs that differ "
            "by more than 20 %: the median counts"
        )
    lines += _quality(state)
    return lines


def _quality(state: dict[str, Any]) -> list[str]:
    hits = state.get("winner_hits_held_out")
    if hits is not None:
        often = share(state["static_best_hits_held_out"])
        return [
            f"only winners are recorded: the first proposal is the winner of {share(hits)} of "
            f"held-out matrices (one fixed choice: {often}); what it gains is not known"
        ]
    if state["of_optimum_held_out"] is None:
        return [f"{plural(state['groups'], 'group')} of matrices: too few to know how good it is"]
    if state["shrink"] is None:
        return ["neighbours do not beat the platform's best fixed choice: that is the answer"]
    if state["of_optimum_held_out"] < GOOD:
        return ["held-out answers are far from the optimum: more matrices would help"]
    return []


def show_states(states: list[dict[str, Any]]) -> None:
    """The same for people; held out: of the optimum, each matrix asked without its group."""
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


def example_query(db: Database, place: str, states: list[dict[str, Any]], matrix: str) -> str:
    """A command that can be typed now; `matrix` is used if given, else a pattern's name."""
    able = [s for s in states if s["featurizer"] is not None]
    if not able:
        return ""
    best = max(able, key=lambda s: (s["of_optimum_held_out"] is not None, s["patterns"]))
    what = matrix or _askable(db, Op.parse(best["op"]), best["instances"])
    words = ["embeddb", "query", place, what, "--platform", best["platform"], "--op", best["op"]]
    return " ".join(shlex.quote(clean(w)) for w in words)


def _askable(db: Database, op: Op, platforms: list[str]) -> str:
    for p in db.store.partitions():
        if p.op == op and p.platform in platforms:
            for pattern_id in sorted(db.store.members(p)):
                info = db.store.pattern(pattern_id)
                if info is None:
                    continue
                plain = info.name.isprintable() and not info.name.startswith("-")
                unique = bool(info.name) and len(db.store.find(info.name)) == 1
                return info.name if plain and unique else info.id
    return "A.mtx"
