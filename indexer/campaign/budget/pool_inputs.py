"""Statistics and row lengths of the matrices of a campaign's pool, kept beside its plan."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property

import msgspec
import numpy as np

from embeddb.core.config import Config, Op
from embeddb.core.files.safe_write import OwnFolder
from embeddb.core.reports import Progress
from embeddb.core.row_lengths import from_vector
from embeddb.cost_model import Problem
from embeddb.cost_model.encoders.inputs import ConfigColumns
from embeddb.cost_model.gaussian import Inputs
from embeddb.featurizers.row_lengths import RowHistograms
from embeddb.featurizers.stats import Stats
from embeddb.platforms.platform import parse_platform
from indexer.campaign.folder import Campaign
from indexer.campaign.plan import planned_pattern

#: The file, and a size that none has.
_FILE, _MOST_BYTES = "pool.json", 256 << 20


class _Vectors(msgspec.Struct, frozen=True, array_like=True):
    """Numbers of one matrix: `stats` of a version, and the histogram of its row lengths."""

    version: str
    stats: list[float]
    lengths: list[float]


class PoolInputs:
    """Configurations on the matrices of a campaign's pool, as a process reads them. The matrices
    are read once, for their vectors, and only if these are used."""

    def __init__(self, campaign: Campaign, pool: int, progress: Progress) -> None:
        plan, self._progress = campaign.plan, progress
        self._campaign, self._matrices = campaign, plan.matrices[:pool]
        self._platform, self._op = parse_platform(plan.platform), Op.parse(plan.ops[0])

    def __call__(self, at: int, configs: Sequence[Config]) -> Inputs:
        """Raises: InputError, MatrixError for a matrix that is not what was planned."""
        vectors, sizes = self._vectors[at], self._matrices[at].sizes
        lengths = from_vector(np.array(vectors.lengths, np.float32), sizes.m, sizes.nnz)
        stats = np.array(vectors.stats, dtype=np.float32)
        problem = Problem(stats, self._platform, self._op, sizes, lengths)
        return ConfigColumns(self._platform, self._op, configs).on(problem)

    @cached_property
    def _vectors(self) -> list[_Vectors]:
        folder, stats = OwnFolder(self._campaign.folder), Stats()
        with suppress(OSError, msgspec.DecodeError):
            stored = msgspec.json.decode(folder.read(_FILE, _MOST_BYTES), type=list[_Vectors])
            if len(stored) == len(self._matrices) and all(
                one.version == str(stats.version) and len(one.stats) == stats.dim for one in stored
            ):
                return stored
        vectors = []
        for at, matrix in enumerate(self._matrices):
            self._progress("statistics of matrices", at, len(self._matrices))
            pattern = planned_pattern(matrix)
            histogram = RowHistograms().embed(pattern)
            vectors.append(
                _Vectors(str(stats.version), stats.embed(pattern).tolist(), histogram.tolist())
            )
        folder.write(_FILE, msgspec.json.encode(vectors))
        return vectors
