"""What a database tells another: platforms, patterns with their vectors, runs in fewer numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import msgspec
import numpy as np

from embeddb.core.records import ARRAYS, REPEAT, PatternInfo, Run
from embeddb.featurizers.base import Travelling
from embeddb.index.lookup import Lookup
from embeddb.store import Store
from indexer.readers.embeddb import PlatformDoc

__all__ = ["abridged", "platform_docs", "with_features"]

#: The featurizers whose vectors travel with the patterns, so that they answer without structure.
_TRAVELS = ("stats", "scnn")


def abridged(run: Run) -> Run:
    """The run, its repeats told by minimum, median and maximum, its moment to the minute, and of
    its context what decides whether it counts, and what tells it from an equal one."""
    m = run.measurement
    short = msgspec.structs.replace(
        m,
        times_s=_quantiles(m.times_s, (0.0, 0.5, 1.0)),
        cpu_max_s=_quantiles(m.cpu_max_s, (0.5,)),
        cpu_sum_s=_quantiles(m.cpu_sum_s, (0.5,)),
        conversion_s=None if m.conversion_s is None else float(f"{m.conversion_s:.3g}"),
        compile_s=None,
        when=60.0 * round(m.when / 60),
        context={key: fact for key, fact in m.context.items() if key in (ARRAYS, REPEAT)},
    )
    return replace(run, measurement=short)


def _quantiles(times: tuple[float, ...], at: tuple[float, ...]) -> tuple[float, ...]:
    if len(times) <= len(at):
        return tuple(float(f"{t:.4g}") for t in times)
    return tuple(float(f"{t:.4g}") for t in np.quantile(times, at))


def platform_docs(store: Store) -> list[PlatformDoc]:
    """Every platform that can be read, as an export tells it."""
    docs = []
    for platform_id in store.platforms():
        platform = store.platform(platform_id)
        if platform is not None:
            docs.append(PlatformDoc(platform_id, platform.text, dict(platform.environment)))
    return docs


def with_features(db: Lookup, infos: list[PatternInfo]) -> Iterator[PatternInfo]:
    """Patterns with their vector among the features: that is what answers where it is read."""
    there = db.featurizers()
    readers = [(n, plug) for n in _TRAVELS if isinstance(plug := there.get(n), Travelling)]
    stored = [(r, db.store.vectors.every(name, r.version)) for name, r in readers]
    for info in infos:
        features = dict(info.features)
        for reader, vectors in stored:
            if info.id in vectors:
                features |= reader.as_features(vectors[info.id])
        yield msgspec.structs.replace(info, features=features)
