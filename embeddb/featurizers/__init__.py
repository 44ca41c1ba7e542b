"""Featurizers of a database, by name and in order of preference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any

from embeddb.core import plugins
from embeddb.core.arguments import require
from embeddb.core.errors import EmbeddbError, ModelError, UsageError
from embeddb.featurizers.base import (
    CountersOf,
    Counting,
    Featurizer,
    FromRuns,
    FromWeights,
    MayLack,
    WithCounters,
    counted_name,
    counted_parts,
    created,
)

__all__ = [
    "COSTLY",
    "FEATURIZERS",
    "ON_REQUEST",
    "PLUGINS",
    "Featurizer",
    "Featurizers",
    "WithCounters",
    "learned_from",
    "missing",
    "reads",
]

#: In order of preference where answers are equally good. `tower` reads the statistics, `stats`
#: needs the structure (or features shipped with the runs), the last three ever less.
FEATURIZERS = ("tower", "stats", "scnn", "stats-scnn", "given", "rows", "sizes")

#: Featurizers that share a module with another one (`embeddb.core.plugins`).
PLUGINS = {
    "given": "embeddb.featurizers.sizes:Given",
    "nest-graph": "embeddb.featurizers.nest_stats:NestGraphFeatures",
    "rows": "embeddb.featurizers.sizes:Rows",
    "stats-scnn": "embeddb.featurizers.scnn:StatsScnn",
}

#: Featurizers that need torch or a simulation and tens of milliseconds, or were trained on few
#: runs: used only if they improve the answers (`AnswerIndex.build`).
COSTLY = frozenset({"scnn", "stats-scnn", "dynamics", "kernel-embedding"})

#: Used only in databases where the user requested them (`embed --featurizer`), since they are
#: costly for every matrix.
ON_REQUEST = frozenset({"dynamics"})

#: `embeddb.featurizers.scnn.TRAINED`, which a query without a network does not load.
_TRAINED = "scnn@"


class Featurizers(Mapping[str, Featurizer]):
    """Featurizers by name, of those that are available.

    A query needs one of them, so each is imported on first use. Those that read counters are found
    by name everywhere, and listed only by `counting`; those of `ON_REQUEST` are listed where
    `asked_for` returns true. Encoders that were trained within a cost model are found by name and
    never listed: they have seen the run times of all matrices, so their evaluation would be biased.
    """

    def __init__(
        self,
        folder: Path | None = None,
        counters_of: CountersOf | None = None,
        asked_for: Callable[[str], bool] | None = None,
    ) -> None:
        self._folder = folder
        self._counters_of = counters_of
        self._asked_for = asked_for or (lambda _: False)
        self._platform = ""
        self._loaded: dict[str, Featurizer | EmbeddbError | None] = {}

    def counting(self, platform: str) -> Featurizers:
        """These, followed by those that read the counters of a platform instance."""
        extended = copy(self)
        extended._platform = platform
        return extended

    def counted(self, platform: str) -> list[WithCounters]:
        """Only those that read the counters of a platform instance."""
        return [f for f in self.counting(platform).values() if isinstance(f, WithCounters)]

    def named(self, name: str) -> Featurizer:
        """The featurizer of a name given by the user. Raises: UsageError if there is none of that
        name or it has no weights; ModelError if the weights cannot be read; as `plugins.load` and
        `created` for a plug-in that cannot be used."""
        require("name", name, str, "the name of a featurizer")
        featurizer = self._get(name)
        if isinstance(featurizer, EmbeddbError):
            raise featurizer
        if featurizer is None:
            raise UsageError(
                f"no weights for the featurizer {name!r} in the package or the database",
                hint="train some, then `embeddb embed DB --weights FILE`",
            )
        return featurizer

    def problems(self) -> list[str]:
        """One line for every featurizer that cannot be used, as its weights cannot be read."""
        return [
            f"{name}: {error}"
            for name in self._names()
            if isinstance(error := self._get(name), EmbeddbError)
        ]

    def __getitem__(self, name: str) -> Featurizer:
        try:
            featurizer = self._get(name)
        except UsageError:
            raise KeyError(name) from None
        if featurizer is None or isinstance(featurizer, EmbeddbError):
            raise KeyError(name)
        return featurizer

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._names() if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _names(self) -> tuple[str, ...]:
        others = [n for n in plugins.available("featurizer") if n not in FEATURIZERS]
        plain = tuple(
            name
            for name in (*FEATURIZERS, *others)
            if name not in ON_REQUEST or self._asked_for(name)
        )
        if not self._platform:
            return plain
        return (*plain, *(counted_name(name, self._platform) for name in plain))

    def _get(self, name: str) -> Featurizer | EmbeddbError | None:
        """A featurizer, None for one without weights, or the error by which it cannot be used: the
        others are. Raises: UsageError if there is none of that name."""
        parts = counted_parts(name)
        if parts is not None:
            return self._with_counters(*parts)
        if name not in self._loaded:
            try:
                self._loaded[name] = self._load(name)
            except EmbeddbError as e:
                if not isinstance(e, ModelError) and name not in plugins.available("featurizer"):
                    raise
                self._loaded[name] = e
        return self._loaded[name]

    def _load(self, name: str) -> Featurizer | None:
        if name.startswith(_TRAINED):
            from embeddb.featurizers.scnn import Scnn

            return Scnn.trained(name, self._folder)
        plugin: FromWeights | Callable[[], Featurizer] = plugins.load("featurizer", name)
        if isinstance(plugin, FromWeights):
            return created(name, partial(plugin.for_database, self._folder))
        return created(name, plugin)

    def _with_counters(self, name: str, platform: str) -> WithCounters | EmbeddbError | None:
        plain = self._get(name)
        if isinstance(plain, Counting) and self._counters_of is not None:
            return plain.with_counters(platform, self._counters_of)
        return plain if isinstance(plain, EmbeddbError) else None


def reads(featurizer: Any, kind: str) -> bool:
    """Return true if it embeds workloads of a kind (`Workload.kind`)."""
    return kind in getattr(featurizer, "kinds", ("matrix",))


def missing(featurizer: Any) -> str:
    """Dependency that a featurizer lacks on this machine, one line; empty if none."""
    if not isinstance(featurizer, MayLack):
        return ""
    try:
        return str(featurizer.missing() or "")
    except plugins.FAULTS as e:
        return f"its `missing` raised {plugins.raised(e)}"


def learned_from(featurizer: Featurizer) -> frozenset[str]:
    """Groups whose runs a featurizer was trained on; empty for most."""
    return featurizer.learned_from if isinstance(featurizer, FromRuns) else frozenset()
