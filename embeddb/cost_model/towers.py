"""The configuration towers at query time: configurations as vectors whose inner product with a
matrix's vector ranks them (`indexer.training.towers`, `embeddb.featurizers.tower`).

The vectors do not depend on the matrix, so those of a whole space are computed once, and the best
of 10^5 configurations are one search of a FAISS index (inner product) away.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from embeddb.core.config import Config, Op
from embeddb.core.errors import ModelError
from embeddb.core.files.model_file import read
from embeddb.core.files.safe_read import refusing
from embeddb.core.nn_numpy import below, check_weights, dense, relu
from embeddb.core.sizes import Sizes
from embeddb.cost_model.encoders.inputs import SPLIT_SCALE
from embeddb.cost_model.encoders.loop_nest import HOMOGENEOUS_DIM, homogeneous
from embeddb.cost_model.encoders.own_parameters import Layout
from embeddb.cost_model.model import space_digest
from embeddb.platforms.platform import Platform
from embeddb.platforms.space.quantity import EncodedConfigs
from embeddb.platforms.space.screen import screened
from embeddb.platforms.space.space import ConfigSpace

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

#: Matrix sizes for loop nests that depend on them: vectors are independent of the matrix.
_NOMINAL = Sizes(1 << 14, 1 << 14, 1 << 17)
#: Configurations of a space that have a vector; of a larger one so many are drawn.
_MOST_CONFIGS = 1 << 18
#: Configurations searched for each requested one, since some are illegal on the matrix; four times
#: more, again and again, where that is too few.
_SPARE = 4
_AGAIN = "train it again with `embeddb train towers`"


def config_inputs(platform: Platform, op: Op, configs: Sequence[Config]) -> Floats:
    """float32[c,53+h]: the loop nests of configurations, and all parameters of the platform.

    Raises: SpaceError for an illegal configuration.
    """
    nests = homogeneous(platform, op, configs, sizes=_NOMINAL).copy()
    nests[:, :4] /= SPLIT_SCALE
    return np.hstack([nests, Layout(platform.kernel(op), whole=True).raw(configs)])


def unit_key(platform_id: str, op: Op) -> str:
    """Name of an operation on a platform instance in a model file."""
    return f"{op} {platform_id}"


class ConfigTower:
    """Configuration tower of one operation on one platform instance. The last number of a
    configuration's vector is its bias: the matrix's vector is extended by a 1."""

    def __init__(self, platform: Platform, op: Op, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Raises: ModelError for tensors that do not fit the platform's space."""
        hidden, own = tensors["first.bias"].size, Layout(platform.kernel(op), whole=True).width
        check_weights(
            tensors,
            {
                "first.weight": (hidden, HOMOGENEOUS_DIM + own),
                "first.bias": (hidden,),
                "second.weight": (hidden, hidden),
                "second.bias": (hidden,),
                "head.weight": (tensors["head.bias"].size, hidden),
                "head.bias": (tensors["head.bias"].size,),
            },
        )
        self.platform, self.op = platform, op
        self._tensors = tensors
        self._lock = Lock()
        self._whole: tuple[list[Config], Any] | None = None

    def vectors(self, configs: Sequence[Config]) -> Floats:
        """float32[c,r+1]. Raises: SpaceError for an illegal configuration."""
        x = config_inputs(self.platform, self.op, configs)
        for layer in ("first", "second"):
            x = relu(dense(x, self._tensors, layer))
        out: Floats = dense(x, self._tensors, "head")
        out[:, :-1] /= math.sqrt(out.shape[1] - 1)
        return out

    def best(self, matrix: Floats, space: ConfigSpace, count: int) -> list[Config]:
        """Up to `count` legal configurations of `space`, best first, by the inner product with a
        matrix's vector float32[r]. The first call computes the vectors of the whole space."""
        configs, index = self._indexed()
        # The 1 is for the configuration's bias.
        query = np.append(matrix, 1.0).astype(np.float32)[None]
        legal: dict[Config, None] = {}
        many = 0
        while len(legal) < count and many < len(configs):
            many = min(4 * many or _SPARE * count, len(configs))
            _, places = index.search(query, many)
            near = [configs[at] for at in places[0].tolist()]
            rows, refused = screened(space, EncodedConfigs(near))
            fitting = (near[at] for at in rows.tolist() if at not in refused)
            legal = dict.fromkeys(map(space.canonical, fitting))
        return list(islice(legal, count))

    def _indexed(self) -> tuple[list[Config], Any]:
        """The configurations of the space, and the FAISS index of their vectors."""
        with self._lock:
            if self._whole is None:
                import faiss

                space = self.platform.space(self.op)
                configs = list(islice(space.enumerate(), _MOST_CONFIGS + 1))
                if len(configs) > _MOST_CONFIGS:
                    configs = space.sample(_MOST_CONFIGS, rng=np.random.default_rng(0))
                vectors = self.vectors(configs)
                index = faiss.IndexFlatIP(vectors.shape[1])
                index.add(np.ascontiguousarray(vectors))
                self._whole = configs, index
            return self._whole


class ConfigTowers:
    """The towers of one model file."""

    def __init__(self, card: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> None:
        self.card = card
        self._tensors = tensors
        self._towers: dict[str, ConfigTower] = {}

    @classmethod
    def load(cls, path: Path) -> ConfigTowers:
        """Raises: ModelError naming the file."""
        with refusing(ModelError, where=str(path), hint=_AGAIN):
            file = read(path, kind="towers")
            return cls(file.card, file.tensors)

    def of(self, platform: Platform, op: Op) -> ConfigTower | None:
        """The tower of an operation on a platform instance; None where none was trained, or the
        space has changed since. Raises: ModelError for tensors that do not fit."""
        key = unit_key(platform.id, op)
        if key not in self._towers:
            own = self.card["units"]
            units = {unit_key(unit["platform"], Op.parse(unit["op"])): unit for unit in own}
            unit = units.get(key)
            if unit is None or unit["space"] != space_digest(platform, op):
                return None
            at = own.index(unit)
            tensors = below(self._tensors, f"trunks.{unit['trunk']}.")
            head = below(self._tensors, f"heads.{at}.")
            tensors |= {f"head.{name}": array for name, array in head.items()}
            self._towers[key] = ConfigTower(platform, op, tensors)
        return self._towers[key]
