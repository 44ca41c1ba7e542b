"""Facts of the map: places and colours of matrices."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from embeddb.core.errors import NothingFound, UsageError
from embeddb.core.wording import value_text
from embeddb.index.projection import Projection
from embeddb.index.scopes import Scope
from embeddb.ui.serve.app_state import AppState
from embeddb.ui.serve.facts import PageQuery, page_of, scope_for

#: Kinds with a colour and a shape of their own; all others share one.
_MOST_KINDS = 8
_OTHER = "other"
_NONE = "none"
#: Prefix of a colour by one parameter of the winner: `winner.NAME`.
_PART = "winner."


def _projection(state: AppState, scope: Scope) -> Projection:
    projection = state.cache.get(
        ("atlas", scope.op, scope.name), lambda: state.db.atlas(scope.op, scope.platform)
    )
    if projection is None:
        raise NothingFound(
            f"no map of {scope.op} on {scope.name}",
            hint="programs have no embedding: each is tuned on its own"
            if not scope.op.workload.embedded
            else "its patterns have no vectors: run `embeddb embed`",
        )
    return projection


def map_points(state: AppState, query: PageQuery) -> dict[str, Any]:
    """All points: `x` and `y` in the unit square, `kind` a position in `kinds`, which are sorted by
    number of points, `other` last.

    Raises: NothingFound without runs or vectors; UsageError for an unknown colour.
    """
    scope = scope_for(state, query.get("platform", ""), query.get("op", ""))
    projection = _projection(state, scope)
    colors = _colors(projection)
    color = query.get("color") or ("winner" if any(projection.winners) else "group")
    if color not in colors:
        raise UsageError(f"no colour by {color[:40]!r}", hint=f"by: {', '.join(colors)}")
    labels = _labels(state, projection, scope, color)
    counts = Counter(labels)
    named = [label for label, _ in counts.most_common() if label != _NONE][:_MOST_KINDS]
    kinds: list[dict[str, Any]] = [{"label": label, "count": counts[label]} for label in named]
    place = {label: at for at, label in enumerate(named)}
    rest = sum(counts.values()) - sum(k["count"] for k in kinds)
    if rest:
        kinds.append({"label": _OTHER, "count": rest})
    return {
        "op": str(scope.op),
        "platform": scope.name,
        "simulated": scope.platform.simulated,
        "featurizer": projection.featurizer,
        "color": color,
        "colors": colors,
        "kinds": kinds,
        "ids": projection.ids,
        "names": [name[:80] for name in projection.names],
        "x": [round(x, 4) for x in projection.x],
        "y": [round(y, 4) for y in projection.y],
        "kind": [place.get(label, len(named)) for label in labels],
    }


def map_page(state: AppState, query: PageQuery) -> dict[str, Any]:
    """The map with one page of the table of points instead of all."""
    document = map_points(state, query)
    ids, names, kind = document.pop("ids"), document.pop("names"), document.pop("kind")
    xs, ys = document.pop("x"), document.pop("y")
    order = sorted(range(len(ids)), key=lambda at: (kind[at], names[at].lower(), ids[at]))
    page, last, shown = page_of(query, order)
    rows = [
        {
            "id": ids[at],
            "name": names[at],
            "kind": document["kinds"][kind[at]]["label"],
            "x": xs[at],
            "y": ys[at],
        }
        for at in shown
    ]
    scopes = [{"platform": s.name, "op": str(s.op)} for s in state.scopes()]
    counts = {"total": len(ids), "page": page, "pages": last}
    return {**document, **counts, "rows": rows, "scopes": scopes}


def _colors(projection: Projection) -> list[str]:
    """Possible colours: parameters that differ between winners, platform and group."""
    values: dict[str, set[str]] = {}
    for winner in set(projection.winners):
        for name, value in _config(winner).items():
            values.setdefault(name, set()).add(value_text(value))
    parts = [_PART + name for name, seen in sorted(values.items()) if len(seen) > 1]
    return ["winner", *parts, "platform", "group"]


def _config(text: str) -> dict[str, Any]:
    parsed = json.loads(text) if text else {}
    return parsed if isinstance(parsed, dict) else {}


def _labels(state: AppState, projection: Projection, scope: Scope, color: str) -> list[str]:
    if color == "group":
        return [group or _NONE for group in projection.groups]
    if color == "platform":  # all on which a matrix ran the operation
        ran: dict[str, set[str]] = {}
        for other in state.scopes():
            for name in other.instances if other.op == scope.op else ():
                for pattern_id in state.members().get((name, other.op), ()):
                    ran.setdefault(pattern_id, set()).add(other.name)
        return [" + ".join(sorted(ran.get(i, ()))) or _NONE for i in projection.ids]
    labels = {winner: _label(_config(winner), color) for winner in set(projection.winners)}
    return [labels[winner] for winner in projection.winners]


def _label(config: dict[str, Any], color: str) -> str:
    if not config:
        return _NONE
    if color.startswith(_PART):
        return value_text(config.get(color.removeprefix(_PART)))
    return ", ".join(f"{k}={value_text(v)}" for k, v in config.items())
