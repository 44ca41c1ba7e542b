"""Neighbours' answers without the runs of whole families, for benchmarks that run them."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from embeddb.core.config import Op
from embeddb.core.pattern import Pattern
from embeddb.core.records import PatternInfo
from embeddb.database import Database
from embeddb.index.answer_index import AnswerIndex
from embeddb.platforms.of_subject import default_of, space_of
from embeddb.platforms.platform import Platform
from embeddb.ranking.build import with_evidence
from embeddb.ranking.query import Query

__all__ = ["HeldOut"]


class HeldOut:
    """What is known of `ops` on `here`, the platform `cpu` as a machine is, without `families`."""

    def __init__(
        self, db: Database, here: Platform, families: Collection[str], ops: Collection[Op]
    ) -> None:
        self.db, self.here, self.parts = db, here, dict[Op, AnswerIndex]()
        for op in ops:
            evidence, vectors = db.index.evidence(op, "cpu")
            held = [(db.store.pattern(row.pattern_id), row) for row in evidence.rows]
            kept = [at for at, (info, _) in enumerate(held) if info and info.group not in families]
            known = evidence.take(np.array(kept, dtype=np.int64)).pruned()
            facts = {row.platform: db.platform(row.platform).environment for row in known.rows}
            self.parts[op] = AnswerIndex.build(known, vectors, scope="cpu", facts=facts)

    def query(self, pattern: Pattern, op: Op) -> Query:
        """The question, without a cost model."""
        info, part = PatternInfo.of(pattern), self.parts[op]
        space = space_of(self.here, op, pattern)
        bare = Query(info, self.here, op, space, default_of(self.here, op, pattern))
        return with_evidence(bare, part, self.db.index.vector(pattern, part.featurizer))
