"""Facts of the map: where every matrix lies, and what it is coloured by."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from embeddb.core.errors import NothingFound, UsageError
from embeddb.core.wording import value_text
from embeddb.index.projection import Projection
from embeddb.index.scopes import Scope
from embeddb.ui.serve.app_state import AppState
from embeddb.ui.serve.facts import Asked, page_of, scope_for

#: Kinds with a colour and a shape of their own; the rest is one more.
_MOST_KINDS = 8
_OTHER = "other"
_NONE = "none"
_PAGE = 100
#: Colouring by one parameter of the winner is `winner.NAME`.
_PART = "winner."


def _atlas(state: AppState, scope: Scope) -> Projection:
    found = state.cache.get(
        ("atlas", scope.op, scope.name), lambda: state.db.atlas(scope.op, scope.platform)
    )
    if found is None:
        raise NothingFound(
            f"no map of {scope.op} on {scope.name}",
            hint="programs have no places: each is tuned by itself"
            if not scope.op.workload.embedded
            else "its patterns have no vectors: run `embeddb embed`",
        )
    return found


def map_points(state: AppState, asked: Asked) -> dict[str, Any]:
    """Every point: `x` and `y` in the unit square, `kind` a position in `kinds`, which are sorted
    by how many points they have, the rest last.

    Raises: NothingFound without runs or vectors; UsageError for an unknown colour.
    """
    scope = scope_for(state, asked.get("platform", ""), asked.get("op", ""))
    atlas = _atlas(state, scope)
    colors = _colors(atlas)
    color = asked.get("color") or ("winner" if any(atlas.winners) else "group")
    if color not in colors:
        raise UsageError(f"no colour by {color[:40]!r}", hint=f"by: {', '.join(colors)}")
    labels = _labels(state, atlas, scope, color)
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
        "featurizer": atlas.featurizer,
        "color": color,
        "colors": colors,
        "kinds": kinds,
        "ids": atlas.ids,
        "names": [name[:80] for name in atlas.names],
        "x": [round(x, 4) for x in atlas.x],
        "y": [round(y, 4) for y in atlas.y],
        "kind": [place.get(label, len(named)) for label in labels],
    }


def map_page(state: AppState, asked: Asked) -> dict[str, Any]:
    """The same without the points but for one page of a table."""
    found = map_points(state, asked)
    ids, names, kind = found.pop("ids"), found.pop("names"), found.pop("kind")
    xs, ys = found.pop("x"), found.pop("y")
    page, last = page_of(asked, len(ids), _PAGE)
    order = sorted(range(len(ids)), key=lambda at: (kind[at], names[at].lower(), ids[at]))
    rows = [
        {
            "id": ids[at],
            "name": names[at],
            "kind": found["kinds"][kind[at]]["label"],
            "x": xs[at],
            "y": ys[at],
        }
        for at in order[(page - 1) * _PAGE : page * _PAGE]
    ]
    scopes = [{"platform": s.name, "op": str(s.op)} for s in state.scopes()]
    return {**found, "total": len(ids), "page": page, "pages": last, "rows": rows, "scopes": scopes}


def _colors(atlas: Projection) -> list[str]:
    """What the points can be coloured by: a parameter that all winners agree on tells nothing."""
    values: dict[str, set[str]] = {}
    for winner in set(atlas.winners):
        for name, value in _config(winner).items():
            values.setdefault(name, set()).add(value_text(value))
    parts = [_PART + name for name, seen in sorted(values.items()) if len(seen) > 1]
    return ["winner", *parts, "platform", "group"]


def _config(text: str) -> dict[str, Any]:
    found = json.loads(text) if text else {}
    return found if isinstance(found, dict) else {}


def _labels(state: AppState, atlas: Projection, scope: Scope, color: str) -> list[str]:
    if color == "group":
        return [group or _NONE for group in atlas.groups]
    if color == "platform":
        return _platforms(state, atlas, scope)
    texts = {winner: _label(winner, color.removeprefix(_PART), color) for winner in atlas.winners}
    return [texts[winner] for winner in atlas.winners]


def _label(winner: str, part: str, color: str) -> str:
    config = _config(winner)
    if not config:
        return _NONE
    if color.startswith(_PART):
        return value_text(config.get(part))
    return ", ".join(f"{k}={value_text(v)}" for k, v in config.items())


def _platforms(state: AppState, atlas: Projection, scope: Scope) -> list[str]:
    """On which platforms a matrix ran the operation."""
    ran: dict[str, set[str]] = {}
    for other in state.scopes():
        if other.op == scope.op:
            for name in other.instances:
                for pattern_id in state.members().get((name, other.op), ()):
                    ran.setdefault(pattern_id, set()).add(other.name)
    return [" + ".join(sorted(ran.get(i, ()))) or _NONE for i in atlas.ids]
