"""The featurizers that one database can use, by name and in order of preference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from pathlib import Path
from typing import Any

from embeddb.core import plugins
from embeddb.core.errors import ModelError, UsageError
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
)

__all__ = [
    "COSTLY",
    "FEATURIZERS",
    "ON_REQUEST",
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

#: What takes torch or a simulation and tens of milliseconds, or was learned from few runs, must be
#: worth it (`AnswerIndex.build`).
COSTLY = frozenset({"scnn", "stats-scnn", "dynamics", "kernel-embedding"})

#: Used in the databases that were asked to (`embed --featurizer`): what they cost on every matrix
#: is not paid for unseen.
ON_REQUEST = frozenset({"dynamics"})

#: `embeddb.featurizers.scnn.TRAINED`, which a query without a network does not load.
_TRAINED = "scnn@"


class Featurizers(Mapping[str, Featurizer]):
    """Featurizers by name, of those that have what they need to be known at all.

    A query needs one of them, so none is imported before it is asked for. Those that read counters
    are found by their names everywhere, and listed by `counting` alone; so are those of
    `ON_REQUEST`, listed where `asked_for` says so. Encoders that were trained within a cost model
    are found by their names and listed nowhere: having learned the run times of all matrices, they
    would look better among them than they are.
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
        self._loaded: dict[str, Featurizer | ModelError | None] = {}

    def counting(self, platform: str) -> Featurizers:
        """These, and after them those that read what was counted on a platform instance."""
        found = copy(self)
        found._platform = platform
        return found

    def counted(self, platform: str) -> list[WithCounters]:
        """Only those that read what was counted there."""
        return [f for f in self.counting(platform).values() if isinstance(f, WithCounters)]

    def named(self, name: str) -> Featurizer:
        """The featurizer a user means.

        Raises: UsageError if there is none of that name or it has no weights; ModelError if these
        cannot be read.
        """
        found = self._get(name)
        if isinstance(found, ModelError):
            raise found
        if found is None:
            raise UsageError(
                f"no weights for the featurizer {name!r}: neither the package nor the database "
                "has any",
                hint="train some, then `embeddb embed DB --weights FILE`",
            )
        return found

    def problems(self) -> list[str]:
        """One line for every featurizer whose weights are there and cannot be read."""
        return [
            f"{name}: {found}"
            for name in self._names()
            if isinstance(found := self._get(name), ModelError)
        ]

    def __getitem__(self, name: str) -> Featurizer:
        try:
            found = self._get(name)
        except UsageError:
            if name in plugins.available("featurizer"):
                raise
            raise KeyError(name) from None
        if found is None or isinstance(found, ModelError):
            raise KeyError(name)
        return found

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

    def _get(self, name: str) -> Featurizer | ModelError | None:
        """A featurizer, None for one without weights, or what is wrong with these."""
        parts = counted_parts(name)
        if parts is not None:
            return self._with_counters(*parts)
        if name not in self._loaded and name.startswith(_TRAINED):
            from embeddb.featurizers.scnn import Scnn

            try:
                self._loaded[name] = Scnn.trained(name, self._folder)
            except ModelError as e:
                self._loaded[name] = e
        if name not in self._loaded:
            plugin: FromWeights | Callable[[], Featurizer] = plugins.load("featurizer", name)
            try:
                if isinstance(plugin, FromWeights):
                    self._loaded[name] = plugin.for_database(self._folder)
                else:
                    self._loaded[name] = plugin()
            except ModelError as e:
                self._loaded[name] = e
        return self._loaded[name]

    def _with_counters(self, name: str, platform: str) -> WithCounters | ModelError | None:
        plain = self._get(name)
        if isinstance(plain, Counting) and self._counters_of is not None:
            return plain.with_counters(platform, self._counters_of)
        return plain if isinstance(plain, ModelError) else None


def reads(featurizer: Any, kind: str) -> bool:
    """Whether it can embed subjects of a kind (`Subject.kind`)."""
    return kind in getattr(featurizer, "kinds", ("matrix",))


def missing(featurizer: Any) -> str:
    """What a featurizer lacks to embed on this machine, one line; empty if nothing."""
    return str(featurizer.missing()) if isinstance(featurizer, MayLack) else ""


def learned_from(featurizer: Featurizer) -> frozenset[str]:
    """The groups whose runs a featurizer was trained on; most were on none."""
    return featurizer.learned_from if isinstance(featurizer, FromRuns) else frozenset()
