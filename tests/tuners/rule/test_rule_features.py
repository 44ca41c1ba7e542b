"""Features of a rule: Python and C find the same doubles, and those of `stats`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rule_programs import degenerate_patterns, features_in_c

from embeddb.core.pattern import Pattern
from embeddb.core.records import WorkloadInfo
from embeddb.featurizers.sizes import statistics
from embeddb.featurizers.stats import Stats
from tuners.rule.features import NAMES, features_of, recorded_features

PATTERNS = list(degenerate_patterns(np.random.default_rng(3)))


@pytest.mark.gcc
@pytest.mark.parametrize("flags", [(), ("-fsanitize=address,undefined", "-fno-sanitize-recover")])
def test_c_finds_the_same_to_the_last_bit(tmp_path: Path, flags: tuple[str, ...]) -> None:
    found = features_in_c(tmp_path, PATTERNS, *flags)
    for pattern, (narrow, wide) in zip(PATTERNS, found, strict=True):
        here = dict(zip(NAMES, features_of(pattern).tolist(), strict=True))
        assert dict(zip(NAMES, narrow.tolist(), strict=True)) == here, pattern
        assert dict(zip(NAMES, wide.tolist(), strict=True)) == here, pattern


def test_exact_features_are_those_of_stats() -> None:
    sampled = {"row_span", "run_length", "near_share", "fill_4x4", "fill_8x8", "reuse_512"}
    stats = Stats()
    for pattern in PATTERNS:
        m, n = pattern.shape
        if not pattern.nnz or m > 131_072:
            continue
        told = WorkloadInfo(
            id=pattern.id,
            m=m,
            n=n,
            nnz=pattern.nnz,
            features=stats.as_features(stats.embed(pattern)),
        )
        names, own, other = NAMES, features_of(pattern), recorded_features(told)
        assert np.isfinite(other).all()
        for name, a, b in zip(names, own.tolist(), other.tolist(), strict=True):
            assert name in sampled or a == pytest.approx(b, rel=1e-4, abs=1e-6), (name, pattern)


def test_sampled_features_are_near_those_of_stats() -> None:
    rng = np.random.default_rng(5)
    rows = np.repeat(np.arange(20_000), 8)
    band = Pattern.from_coo((20_000, 20_000), rows, np.minimum(rows + rows % 5, 19_999))
    at = rng.integers(0, 2_000, (2, 6_000))
    inner = np.arange(16)
    blocks = (at[:, :, None] * 4 + np.stack([inner // 4, inner % 4])[:, None, :]).reshape(2, -1)
    near = [
        band,
        Pattern.from_coo((8_000, 8_000), *blocks),
        Pattern.from_coo((30_000, 30_000), *rng.integers(0, 30_000, (2, 300_000))),
        Pattern.from_coo((30_000, 900), rng.integers(0, 30_000, 90_000), rows[:90_000] % 900),
    ]
    stats = Stats()
    for pattern in near:
        m, n = pattern.shape
        features = stats.as_features(stats.embed(pattern))
        info = WorkloadInfo(id=pattern.id, m=m, n=n, nnz=pattern.nnz, features=features)
        own, other = features_of(pattern), recorded_features(info)
        for name in ("row_span", "run_length", "near_share", "fill_4x4", "fill_8x8", "reuse_512"):
            place = NAMES.index(name)
            assert own[place] == pytest.approx(other[place], rel=0.15, abs=0.02), (name, pattern)


def test_what_came_with_runs_of_others_is_enough_for_some() -> None:
    pattern = PATTERNS[-1]
    m, n = pattern.shape
    info = WorkloadInfo(id=pattern.id, m=m, n=n, nnz=pattern.nnz, features=statistics(pattern))
    told = recorded_features(info)
    known = {name for name, value in zip(NAMES, told, strict=True) if np.isfinite(value)}
    assert known == {*NAMES[:6], "row_square", "row_max"}
    own = features_of(pattern)
    for name in known:
        at = NAMES.index(name)
        assert own[at] == pytest.approx(told[at], rel=1e-9), name
    assert not np.isfinite(recorded_features(WorkloadInfo(id="x"))).any()
