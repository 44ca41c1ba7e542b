"""State of a database by operation and platform: answers, their accuracy, and missing data.
Shown by `db stat`, `index`, reports and the served pages."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from embeddb.core.config import Op
from embeddb.core.kinds import kind_of
from embeddb.core.records import WorkloadInfo
from embeddb.core.wording import clean, many_of, plural, share
from embeddb.index.guards import GOOD
from embeddb.index.lookup import Lookup
from embeddb.index.scopes import Scope, members_of, scope_partitions, scopes
from embeddb.ranking.prediction import judged

if TYPE_CHECKING:
    from embeddb.cost_model.graph_model import GraphModel
    from embeddb.cost_model.model import CostModel

#: A difference in the share of the optimum between all groups and half of them from which more
#: groups are advised.
_LEARNS = 0.01
#: The least lead of the best fixed choice that is said.
_WORSE = 0.01
#: So many workloads are hardly all unrelated.
_MANY = 20


@dataclass(frozen=True)
class Question:
    """An example of a query: a matrix (file, name or id) or the name or id of another workload, a
    platform and an operation."""

    matrix: str
    platform: str
    op: Op

    def command(self, place: str) -> str:
        """The command line for the database at `place`."""
        words = ["embeddb", "query", place, self.matrix]
        words += ["--platform", self.platform, "--op", str(self.op)]
        return " ".join(shlex.quote(clean(w)) for w in words)


@dataclass(frozen=True)
class Coverage:
    """Patterns, answer index and cost model of an operation on a platform, or on all instances of a
    portable one. `ids` are the patterns with runs."""

    db: Lookup
    scope: Scope
    ids: Set[str]

    @classmethod
    def of(cls, db: Lookup, scope: Scope) -> Coverage:
        return cls(db, scope, members_of(db.store, scope.op, scope.name))

    @property
    def head(self) -> dict[str, Any]:
        op, name, platform, instances = self.scope
        return {
            "op": str(op),
            "platform": name,
            "instances": list(instances),
            "simulated": platform.simulated,
            "patterns": len(self.ids),
        }

    @cached_property
    def figures(self) -> Mapping[str, Any]:
        """Description of the answer index; empty where no pattern can be compared."""
        index = self.db.partition(self.scope.op, self.scope.platform)
        return {} if index is None else index.describe()

    @cached_property
    def model(self) -> CostModel | GraphModel | None:
        return self.db.model(self.scope.platform, self.scope.op)

    @property
    def model_held_out(self) -> dict[str, float]:
        """Share of the optimum that answers by the model reach with groups held out, by method."""
        figures = {} if self.model is None else judged(self.model.card, self.scope.op)
        return {method: f["of_optimum@1"] for method, f in figures.items()}

    def state(self) -> dict[str, Any]:
        """All figures, and `missing`, a line for each shortcoming."""
        (op, name, platform, _), store = self.scope, self.db.store
        infos = [info for info in map(store.pattern, sorted(self.ids)) if info is not None]
        state: dict[str, Any] = {
            "op": str(op),
            "kind": op.kind,
            **self.head,
            "groups": len({info.family for info in infos}),
            "runs": sum(store.count_runs(p) for p in scope_partitions(store, op, name)),
            "stubs": sum(info.stub for info in infos),
            "unsized": sum(not readable(info) for info in infos),
            "unembedded": 0 if self.figures else sum(map(readable, infos)),
            "default": str(platform.default(op)),
            "featurizer": None,
        }
        state |= {k: v for k, v in self.figures.items() if k not in ("op", "scope", "patterns")}
        state["cost_model"] = self._cost_model()
        state["missing"] = _missing(state)
        return state

    def _cost_model(self) -> dict[str, Any] | None:
        """The model that ranks here; of one that predicts seconds (op `fused`) its error on
        held-out kernels in percent, `mape`."""
        if self.model is None:
            return None
        card, op = self.model.card, self.scope.op
        body: dict[str, Any] = {"version": self.model.version}
        body["of_optimum_held_out"] = self.model_held_out
        return {**body, **op.workload.model_facts(op, card)}


def scope_states(db: Lookup) -> list[dict[str, Any]]:
    """The state of every operation and platform with runs."""
    return [Coverage.of(db, scope).state() for scope in scopes(db.store)]


def embedded(db: Lookup, op: Op, scope: str) -> bool:
    """True if a workload of a scope has a vector."""
    return any(db.evidence(op, scope)[1].values())


def unembedded(db: Lookup, op: Op, scope: str) -> bool:
    """True if a scope lacks an index only because `embeddb embed` has not run."""
    if embedded(db, op, scope):
        return False
    infos = map(db.store.pattern, members_of(db.store, op, scope))
    return any(info is not None and readable(info) for info in infos)


def readable(info: WorkloadInfo) -> bool:
    """True if a featurizer could read the workload: its structure or code is stored, or its size
    known."""
    return not info.stub or min(info.sizes) > 0


def _missing(state: dict[str, Any]) -> list[str]:
    kind, lines = kind_of(state["kind"]), list[str]()
    if state["featurizer"] is None and state["unembedded"] and kind.embedded:
        return [f"{plural(state['unembedded'], 'pattern')} without vectors: run `embeddb embed`"]
    if state["featurizer"] is None:
        return [kind.unreadable]
    if state["without_default"] and "winner_hits_held_out" not in state:
        several = len(state["instances"]) > 1  # a pattern has a default run on each machine
        what = plural(state["without_default"], "pair" if several else "pattern")
        what += " of pattern and machine" if several else ""
        lines.append(
            f"{what} without an ok run of the default "
            f"({state['default']}): they rank, but the gain of a configuration is unknown"
        )
    lines += _incomplete(state)
    judged = state.get("groups_held_out") or 0
    if 0 < 2 * judged < min(state["groups"], state["indexed"]) and "fitted_on" not in state:
        lines.append(
            f"held-out figures are of {plural(judged, 'group')} of {kind.many} alone: others did "
            "not run the default and another configuration"
        )
    if state["disagreeing"]:
        twice = min(state["runs"], 2 * state["measured"])  # as if none had more than two runs
        joint = "least" if Op.parse(state["op"]).traits.minimum else "median"
        lines.append(
            f"{plural(state['disagreeing'], 'configuration')} of one {kind.name} with a time "
            f"uncertain by more than 20 %: the {joint} of its runs counts"
            + (_TWO_MACHINES if 4 * state["disagreeing"] > twice else "")
        )
    if state["implausible"]:
        (config, often), *others = state["implausible"].items()
        lines.append(
            f"{config} takes less than a thirtieth of the time of any other on "
            f"{often:,} {many_of(kind.name)}{' (not it alone)' if others else ''}: failed launches "
            "that the log calls ok? Correct their status, and index again"
        )
    if "fitted_on" in state:
        lines.append(
            f"very many {kind.many}: figures rest on {state['fitted_on']:,} of them, "
            f"neighbours are found among all ({share(state['recall'])} of the nearest)"
        )
    if state["groups"] == state["patterns"] >= _MANY:
        lines.append(
            f"each of {state['groups']:,} {kind.many} is a group of its own: if some are related, "
            "held-out figures are too high (`group` in logs and files names families)"
        )
    lines += _quality(state)
    return lines


def _incomplete(state: dict[str, Any]) -> Iterator[str]:
    """Workloads without a structure, and those without neighbours."""
    kind, gone = kind_of(state["kind"]), state["patterns"] - state["indexed"]
    all_of_them = plural(state["patterns"], "pattern")
    if state["unsized"]:
        how = kind.adds + (", columns m, n, nnz the sizes" if kind.sparse else "")
        yield f"{state['unsized']:,} of {all_of_them} known by name only: {how}"
    if sized := state["stubs"] - state["unsized"]:
        by = "" if gone else f", compared by `{state['featurizer']}`"
        yield f"{sized:,} of {all_of_them} known by name and size only{by}: {kind.adds}"
    if gone:
        yield (
            f"{plural(gone, 'pattern')} without the input of `{state['featurizer']}`: no "
            f"neighbours; held-out figures are of the other {state['indexed']:,}"
        )


#: The usual reason why most of what ran twice disagrees.
_TWO_MACHINES = "; runs of two machines? `index --instance NAME` keeps them apart"


def _quality(state: dict[str, Any]) -> list[str]:
    hits = state.get("winner_hits_held_out")
    several = many_of(state["kind"])
    if hits is not None:
        often = share(state["static_best_hits_held_out"])
        return [
            f"only winners are recorded: the first proposal is the winner of {share(hits)} of "
            f"held-out {several} (one fixed choice: {often}); its gain is unknown"
        ]
    if not state["default"]:
        return ["one configuration only: its seconds are training data of a model"]
    if state["configs"] == 1:
        return ["a single configuration ran: there is nothing to choose from"]
    if state["of_optimum_held_out"] is None:
        if state["measured"] == state["indexed"]:
            return [f"each of its {several} ran one configuration: there is nothing to judge"]
        few = f"{plural(state['groups'], 'group')} of {several}"
        if state["runs"] < 2 * state["patterns"]:
            few = f"few of {state['patterns']:,} {several} ran the default and another choice"
        return [f"{few}: too few to estimate the accuracy"]
    limit = kind_of(state["kind"]).max_slower
    if limit is not None and state["indexed"] < limit.fewest:
        few = f"fewer than {limit.fewest} {several} to judge answers by"
        return [f"{few}: the default answers where no model ranks"]
    if state["shrink"] is None:
        return ["neighbours do not beat the best fixed choice: that answers where no model ranks"]
    lines, reached = list[str](), state["of_optimum_held_out"]
    if (fixed := state["static_best_held_out"] or 0.0) - reached >= _WORSE:
        lines.append(
            f"held-out answers by neighbours reach {share(reached)} of the optimum, by the best "
            f"fixed choice {share(fixed)}: `query --tuner static-best` answers by that"
        )
    return [*lines, _far_from_optimum(state)] if reached < GOOD else lines


def _far_from_optimum(state: dict[str, Any]) -> str:
    """Advice on more data, from the accuracy with half of the groups held out."""
    several, reached = many_of(state["kind"]), state["of_optimum_held_out"]
    line, half = (
        f"held-out answers reach {share(reached)} of the optimum",
        state["of_optimum_of_half"],
    )
    if half is None:
        return line
    if reached - half >= _LEARNS:
        return f"{line}, {share(half)} with half of the {several}: more {several} would help"
    return (
        f"{line}, {share(half)} with half of the {several}: more runs of each, or a model "
        f"(`embeddb train`), rather than more {several}"
    )


def example(db: Lookup, states: list[dict[str, Any]], *, matrix: str = "") -> Question | None:
    """A query that can be answered now, of the scope with most data: about `matrix` if given and of
    a sparse operation, else about a workload of the database. None if there is none."""
    able = [s for s in states if s["featurizer"] is not None]
    if not able:
        return None
    best = max(able, key=lambda s: (s["of_optimum_held_out"] is not None, s["patterns"]))
    op = Op.parse(best["op"])
    file = matrix if op.workload.sparse else ""
    workload = file or _askable(db, op, best["platform"])
    return Question(workload, best["platform"], op)


def _askable(db: Lookup, op: Op, scope: str) -> str:
    for partition in scope_partitions(db.store, op, scope):
        for pattern_id in sorted(db.store.members(partition)):
            info = db.store.pattern(pattern_id)
            if info is None:
                continue
            plain = info.name.isprintable() and not info.name.startswith("-")
            unique = bool(info.name) and len(db.store.find(info.name)) == 1
            return info.name if plain and unique else info.id
    return "A.mtx"
