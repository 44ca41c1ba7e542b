"""What tuning a matrix found, as text and as a document."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from embeddb.core.wording import factor, plural
from embeddb.ui.cli.output import say, table
from embeddb.ui.cli.tune_text.seconds import measured

if TYPE_CHECKING:
    from embeddb.core.config import Config
    from tuners.search import Tuned
    from tuners.tune_matrix import MatrixTuned, MatrixTuneRequest, Ranking

__all__ = ["matrix_document", "show_matrix"]

#: Of the ranking, so many are told.
_MOST_TOLD = 10


def matrix_document(found: MatrixTuned, asked: MatrixTuneRequest) -> dict[str, Any]:
    """Seconds; null for what did not run or failed."""
    done = found.tuned
    m, n, nnz = done.subject.sizes
    return {
        "matrix": {"id": done.subject.id, "name": done.subject.name, "m": m, "n": n, "nnz": nnz},
        "platform": found.platform,
        "op": str(found.op),
        "time_unit": found.time_unit,
        "by": done.by,
        "model": done.model or None,
        "seed": asked.seed,
        "model_seconds": {"asked": asked.model_s, "spent": done.model_s},
        "hardware_seconds": {"asked": asked.hardware_s, "spent": done.hardware_s},
        "rounds_seconds": done.rounds_s,
        "ranked": done.ranked,
        "first": [dict(config) for config in found.ranking.configs[:_MOST_TOLD]],
        "tried": len(done.tried),
        "fresh": done.fresh,
        "failed": {str(config): error for config, error in done.failed.items()},
        "rows": [
            {
                "what": "default" if config == done.default else "fastest",
                "config": dict(config),
                "seconds": done.tried.get(config),
                "rounds_s": done.rounds.get(config, []),
                "median_s": _finite(done.again_s(config)),
            }
            for config in _shown(done)
        ],
        "default": dict(done.default),
        "default_s": _finite(done.again_s(done.default)),
        "best": dict(done.best),
        "best_s": _finite(done.again_s(done.best)),
        "gain": done.gain,
        "warning": done.warning,
    }


def show_matrix(found: MatrixTuned, asked: MatrixTuneRequest) -> None:
    """The default and the fastest, what was spent, and what the gain is."""
    done = found.tuned
    m, n, nnz = done.subject.sizes
    say(f"{done.subject.name}: {m:,} x {n:,}, {nnz:,} nonzeros; {found.op} on {found.platform}")
    model = f", in {done.model_s:.0f} s" if done.model_s else ""
    many = plural(done.ranked, "configuration")
    say(f"ranked by: {done.by}" + (f" ({many}{model})" if done.ranked else " (nobody knows any)"))
    if not asked.hardware_s:
        table(["rank", "configuration"], [[str(n), str(c)] for n, c in _first(found.ranking)])
        return
    failed = f", {plural(len(done.failed), 'failure')}" if done.failed else ""
    say(
        f"hardware: {plural(len(done.tried), 'configuration')} in {done.hardware_s:.1f} of "
        f"{asked.hardware_s:g} s{failed}; {plural(done.fresh, 'run')} now"
    )
    say()
    base = done.again_s(done.default)
    rows = []
    for config in _shown(done):
        again = done.again_s(config)
        what = "default" if config == done.default else "fastest"
        gain = factor(base / again if math.isfinite(again) else None)
        times = [measured(done.tried.get(config), found.time_unit)]
        if not done.exact:
            times.append(measured(again, found.time_unit))
        rows.append([what, *times, gain, str(config)])
    table(["", "measured", *([] if done.exact else ["rounds"]), "gain", "configuration"], rows)
    say()
    say(_matrix_verdict(done))
    if done.warning:
        say(f"warning: {done.warning}")


def _matrix_verdict(done: Tuned) -> str:
    gain = done.gain
    if gain is None:
        return "nothing can be told: the default, or all that was tried, did not run"
    if done.best == done.default:
        return "nothing is faster than the default"
    if done.exact:
        return f"{factor(gain)} over the default: simulated, so nothing was repeated"
    counted = plural(min(map(len, done.rounds.values()), default=0), "round")
    sure = "" if done.apart else "; its rounds and the default's overlap, so it may be chance"
    return f"{factor(gain)} over the default in {counted}{sure}"


def _shown(done: Tuned) -> list[Config]:
    fastest = sorted(done.finalists, key=done.again_s)
    return list(dict.fromkeys([done.default, *fastest]))


def _first(ranked: Ranking) -> list[tuple[int, Config]]:
    return list(enumerate(ranked.configs[:_MOST_TOLD], 1))


def _finite(seconds: float) -> float | None:
    return seconds if math.isfinite(seconds) else None
