"""The learned featurizer: a sparse convolutional network over the reduced pattern.

The weights are a model file (`embeddb.core.files.model_file`): the database's own if it has one,
else those that ship with the package. The version is the digest of that file, and it is part of
every vector's name, so vectors of different weights are never mixed.

torch is needed only to embed: name, version and dimension come from the file's card, vectors from
the store or from features imported with the runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import EmbeddbError, InputError, MissingDependency, ModelError
from embeddb.core.extras import install_hint
from embeddb.core.files.model_file import fill, load, read, version_of
from embeddb.core.pattern import Pattern
from embeddb.core.records import WorkloadInfo
from embeddb.featurizers.base import Exported, Travelling, adopt, finite, own_weights
from embeddb.featurizers.stats import Stats

SHIPPED = Path(__file__).parent.parent / "data" / "scnn.safetensors"
#: Path of a database's own weights below its folder.
OWN = Path("models", "scnn.safetensors")
#: Prefix of the names of encoders trained within a cost model; the rest is the name of that model,
#: whose folder has the weights.
TRAINED = "scnn@"
#: Method in the cards of such encoders.
RUN_TIMES = "run times"
_HINT = install_hint("learn")
_TRAIN = "train weights anew with `embeddb train featurizer`"
#: Default length of an embedding (COGNATE, Table 6), and the largest.
_DIM, _MOST_FEATURES = 128, 1 << 12


class Scnn(Exported):
    """The network's output as a raw vector, float32[d]; standardise before comparing.

    One pattern is one batch: a vector depends only on the pattern and the weights, bit for bit on
    one machine. Kernel maps live as long as the call. Thread-safe; the number of threads of torch
    itself is the caller's choice.

    `learned_from` are the groups whose run times it was trained on, none for an autoencoder:
    evaluation on them is biased.
    """

    def __init__(self, weights: Path | None = None, *, name: str = "scnn") -> None:
        """Read the card of the weights (None: those of the package). Raises: ModelError if they are
        missing or the card cannot be read, or does not name the groups that it learned from."""
        self.name = name
        self.weights = SHIPPED if weights is None else weights
        _, card, self.version = read(self.weights, kind="featurizer")
        learned = groups_of(card)
        if learned is None and not name.startswith(TRAINED):
            raise ModelError(
                "it learned run times of groups that its card does not name",
                where=str(self.weights),
                hint="train it again with `embeddb train costmodel --preset`",
            )
        # Its cost model still reads an earlier one: no group has this name.
        self.learned_from = frozenset((name,)) if learned is None else learned
        self.dim = card["network"].get("dim", _DIM)
        if type(self.dim) is not int or not 1 <= self.dim <= _MOST_FEATURES:
            raise ModelError(f"its network has dim {self.dim!r}", where=str(self.weights))
        self.names = tuple(f"{self.version[:8]}.{i}" for i in range(self.dim))
        self._lock = Lock()
        self._ready: tuple[Any, Any, int] | None = None
        self._failure = ""

    @classmethod
    def for_database(cls, folder: Path | None) -> Scnn | None:
        """Featurizer with the database's own weights, else the package's; None where there are
        neither. Raises: ModelError if their card cannot be read."""
        weights = own_weights(folder, OWN, SHIPPED)
        return None if weights is None else cls(weights)

    @classmethod
    def trained(cls, name: str, folder: Path | None) -> Scnn | None:
        """Encoder of one of a database's cost models by its name, `scnn@...`; None where there is
        none. Raises: ModelError if its card cannot be read."""
        if folder is None or Path(name).name != name:
            return None
        path = folder / OWN.parent / f"{name}.safetensors"
        return cls(path, name=name) if path.is_file() else None

    def missing(self) -> str:
        """Dependency that it lacks on this machine, one line; empty if none."""
        gone = "" if self._ready is not None else _gone()
        return f"{gone} ({_HINT})" if gone else self._failure

    def embed(self, pattern: Pattern) -> NDArray[np.float32]:
        """float32[d] of the structure; the name and group of the pattern do not enter. Raises:
        MissingDependency without torch; ModelError if the weights do not fit, or the result is not
        finite."""
        network, reduction, channels = self._network()
        import torch

        from embeddb.featurizers.network.networks import collate
        from embeddb.featurizers.network.reduction import reduce

        with torch.inference_mode():
            out = network(*collate([reduce(pattern, reduction, channels)]))
        return finite(np.array(out[0].numpy(), dtype=np.float32), self.weights, hint=_TRAIN)

    def _network(self) -> tuple[Any, Any, int]:
        """Network, reduction and channels, read once; a failure is cached for `missing`."""
        with self._lock:
            if self._ready is None:
                try:
                    self._ready = _read(self.weights, self.version)
                except EmbeddbError as e:
                    # A missing package is checked each time.
                    self._failure = "" if _gone() else f"{e} ({e.hint})"
                    raise
                self._failure = ""
            return self._ready


PLUGIN: type[Travelling] = Scnn


def install(weights: Path, folder: Path) -> str:
    """Make weights the database's own; returns their version.

    They are checked first, and then replace the old ones whole.

    Raises: ModelError if they are invalid; MissingDependency without torch.
    """
    tried = Scnn(weights)
    tried.embed(Pattern.from_coo((1, 1), np.zeros(1, np.int64), np.zeros(1, np.int64)))
    adopt(weights, folder, OWN, version=tried.version)
    return tried.version


def groups_of(card: Mapping[str, Any]) -> frozenset[str] | None:
    """Groups whose run times the network of a card learned; none for an autoencoder. None where it
    learned run times and the card, of an earlier version, does not name them."""
    settings, listed = card.get("settings"), card.get("learned_from")
    if isinstance(listed, list):
        return frozenset(group for group in listed if isinstance(group, str))
    run_times = isinstance(settings, dict) and settings.get("method") == RUN_TIMES
    return None if run_times else frozenset()


def _gone() -> str:
    """The package to install before anything can be embedded; it is not imported."""
    return "" if find_spec("torch") else "torch not installed"


def _read(weights: Path, version: str) -> tuple[Any, Any, int]:
    """The network, reduction and channels of a model file, ready to embed with. Raises: ModelError
    if they do not fit together, or the file is no longer of that version; MissingDependency without
    torch."""
    gone = _gone()
    if gone:
        raise MissingDependency(f"scnn: {gone}", hint=_HINT)
    try:
        from embeddb.featurizers.network.networks import build
        from embeddb.featurizers.network.reduction import CHANNELS, Reduction
    except ImportError as e:
        raise MissingDependency(f"scnn: {e}", hint=_HINT) from e
    tensors, card = load(weights, kind="featurizer")
    channels = card["network"].get("in_channels")
    if channels not in (1, CHANNELS):
        raise ModelError(
            f"its network does not read 1 or {CHANNELS} features per site",
            where=str(weights),
            hint=_TRAIN,
        )
    try:
        network = build(card["network"])
        reduction = Reduction.from_json(card["reduction"])
    except InputError as e:
        raise ModelError(str(e), where=str(weights), hint=_TRAIN) from e
    fill(network, tensors, where=str(weights))
    if version_of(weights) != version:
        raise ModelError(
            "the weights were replaced after they were opened",
            where=str(weights),
            hint="open the database again",
        )
    return network.eval(), reduction, channels


# -- Statistics and the learned vector concatenated, evaluated like any other featurizer ----------


class StatsScnn:
    """`stats` followed by `scnn`, float32[d]; `parts` are the two.

    A stub has this vector if it has both parts. Only the parts are exported.
    """

    name = "stats-scnn"

    def __init__(self, weights: Path | None = None) -> None:
        """Read the weights. Raises: ModelError as `Scnn` does."""
        self._scnn = Scnn(weights)
        self.parts = (Stats(), self._scnn)
        self.learned_from = self._scnn.learned_from
        self.version = "+".join(part.version for part in self.parts)
        self.names = (*Stats.names, *(f"scnn.{name}" for name in self._scnn.names))
        self.dim = len(self.names)

    @classmethod
    def for_database(cls, folder: Path | None) -> StatsScnn | None:
        """See `Scnn.for_database`. Raises: ModelError."""
        scnn = Scnn.for_database(folder)
        return None if scnn is None else cls(scnn.weights)

    def missing(self) -> str:
        """See `Scnn.missing`."""
        return self._scnn.missing()

    def embed(self, pattern: Pattern) -> NDArray[np.float32]:
        """float32[d] of the structure. Raises: as `Scnn.embed`."""
        return self.join([part.embed(pattern) for part in self.parts])

    def join(self, vectors: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
        """float32[d] from one vector of each part."""
        return np.concatenate(vectors)

    def from_info(self, info: WorkloadInfo) -> NDArray[np.float32] | None:
        """From the features of both parts; None unless both are whole."""
        vectors = [v for part in self.parts if (v := part.from_info(info)) is not None]
        return self.join(vectors) if len(vectors) == len(self.parts) else None
