"""Partial pooling: shifts between machines, what they leave, and rows pooled by precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from builders import CONFIGS, OP
from hypothesis import given, settings
from hypothesis import strategies as st

from embeddb.core.config import Config, Op
from embeddb.index.pooling import Belief, Gap, Gaps, Layer, Source, beliefs_of, pooled, shift_of
from embeddb.index.run_matrix import FAILED_GAIN

HERE, THERE, THIRD = (Source(f"pair@{name}", OP) for name in ("here", "there", "third"))
#: Twelve configurations of two parameters; the first is the default.
MANY = [Config({"a": a, "b": b}) for a in (1, 2, 3) for b in (1, 2, 3, 4)]
NOBODY = np.zeros((60, 0), dtype=np.int64)


def layer(source: Source, gains: np.ndarray, rows: np.ndarray | None = None) -> Layer:
    return Layer(source, np.arange(len(gains)) if rows is None else rows, gains)


def world(seed: int = 0, patterns: int = 40, noise: float = 0.05) -> tuple[np.ndarray, np.ndarray]:
    """Gains float64[p,12] at home, and a shift float64[12] that depends on parameter a."""
    rng = np.random.default_rng(seed)
    gains = rng.normal(0.3, 0.3, (patterns, len(MANY)))
    gains[:, 0] = 0.0
    shift = np.array([0.0 if c == MANY[0] else {1: 0.2, 2: -0.4, 3: 0.0}[c["a"]] for c in MANY])
    return gains, shift


def away(gains: np.ndarray, shift: np.ndarray, seed: int = 1, noise: float = 0.05) -> np.ndarray:
    told = gains + shift + np.random.default_rng(seed).normal(0.0, noise, gains.shape)
    told[:, 0] = 0.0
    return told


@pytest.mark.parametrize("local", [1, 3, 10, 40])
def test_a_shift_is_found_the_better_the_more_patterns_tell(local: int) -> None:
    home, shift = world()
    own = layer(THERE, away(home, shift)[:local])
    found = beliefs_of(THERE, [layer(HERE, home), own], MANY, {}, NOBODY, apart=0.1, gaps=Gaps())
    belief = next(b for b in found if b.source == HERE)
    assert belief.shift[0] == 0.0  # the default's gain is 0 on every machine
    before = float((shift**2).mean())
    left = float(((belief.shift - shift) ** 2).mean())
    assert left < {1: 0.95, 3: 0.5, 10: 0.15, 40: 0.03}[local] * before
    assert belief.patterns == local


def test_a_parameter_tells_of_configurations_that_did_not_run_here() -> None:
    """Partial pooling over parameters: half of the configurations with a=2 ran, all are shifted."""
    home, shift = world()
    told = away(home, shift)[:20]
    told[:, [6, 7]] = np.nan  # a=2, b=3 and 4
    found = beliefs_of(
        THERE, [layer(HERE, home), layer(THERE, told)], MANY, {}, NOBODY, apart=0.1, gaps=Gaps()
    )
    belief = next(b for b in found if b.source == HERE)
    assert (belief.shift[[6, 7]] < -0.1).all()


def test_without_runs_here_nothing_is_shifted_but_levels() -> None:
    """A machine whose default is slow gains on everything: that is no reason to prefer what only
    it ran."""
    home, _ = world()
    slow = home + 0.5
    slow[:, 0] = 0.0
    found = beliefs_of(
        Source("pair@new", OP),
        [layer(HERE, home), layer(THERE, slow)],
        MANY,
        {},
        NOBODY,
        apart=0.1,
        gaps=Gaps(),
    )
    one, other = (b.shift for b in found)
    assert one[0] == other[0] == 0.0
    assert np.allclose(one[1:] - other[1:], 0.5, atol=0.05)
    assert [b.patterns for b in found] == [0, 0]


def test_machines_that_differ_are_trusted_less() -> None:
    home, shift = world()
    rough = away(home, shift, noise=0.5)
    layers = [layer(HERE, home), layer(THIRD, rough), layer(THERE, away(home, shift)[:20])]
    found = {
        b.source: b for b in beliefs_of(THERE, layers, MANY, {}, NOBODY, apart=0.1, gaps=Gaps())
    }
    assert found[THIRD].variance > 3 * found[HERE].variance > 0.0
    assert found[THERE].variance == 0.0


def test_what_is_unlike_is_expected_to_differ_more() -> None:
    home, shift = world()
    facts = {
        "pair@here": {"threads": "2"},
        "pair@there": {"threads": "2"},
        "pair@third": {"threads": "8"},
        "pair@new": {"threads": "8"},
    }
    layers = [
        layer(HERE, home),
        layer(THERE, away(home, 0 * shift)),
        layer(THIRD, away(home, 2 * shift)),
    ]
    new = Source("pair@new", OP)
    found = {
        b.source: b for b in beliefs_of(new, layers, MANY, facts, NOBODY, apart=0.1, gaps=Gaps())
    }
    assert found[THIRD].variance < found[HERE].variance


def test_another_width_is_expected_to_differ_more_the_farther_it_is() -> None:
    home, _ = world()
    near, far = (Source("pair@here", Op("spmm", w)) for w in (64, 512))
    layers = [layer(near, home), layer(far, home, np.arange(40, 80))]
    asked = Source("pair@here", OP)
    found = {
        b.source: b.variance
        for b in beliefs_of(asked, layers, MANY, {}, NOBODY, apart=0.1, gaps=Gaps())
    }
    assert 0.0 < found[near] < found[far]


def test_own_patterns_that_nobody_else_ran_are_compared_with_their_neighbours() -> None:
    home, shift = world(patterns=20)
    told = away(home, shift)
    places = np.arange(20, 40)  # the same laws, but other matrices
    near = np.full((40, 1), -1)
    near[20:, 0] = np.arange(20)
    layers = [layer(HERE, home), layer(THERE, told, places)]
    found = beliefs_of(THERE, layers, MANY, {}, near, apart=0.01, gaps=Gaps())
    belief = next(b for b in found if b.source == HERE)
    assert belief.patterns == 20
    assert float(((belief.shift - shift) ** 2).mean()) < 0.2 * float((shift**2).mean())


def test_rows_are_pooled_by_precision_and_own_runs_count_fully() -> None:
    gains = np.array([[0.0, 1.0, np.nan, 0.5]])
    other = np.array([[0.0, 0.0, 2.0, np.nan]])
    beliefs = [
        Belief(HERE, np.zeros(4), 0.0, 1),
        Belief(THERE, np.array([0.0, 0.0, -1.0, 0.0]), 0.04, 1),
    ]
    found = pooled([layer(HERE, gains), layer(THERE, other)], beliefs, 2, 0.06)
    assert found.gains[0, 0] == 0.0 and 0.9 < found.gains[0, 1] < 1.0
    assert found.gains[0, 2] == 1.0  # shifted, for nobody ran it here
    assert found.trust[0, 1] == pytest.approx(1.0)
    assert 0.3 < found.trust[0, 2] < 0.8
    assert np.isnan(found.gains[1]).all() and (found.trust[1] == 0.0).all()
    assert found.shares[0].sum() == pytest.approx(1.0) and found.shares[0, 0] > 0.8


def test_failures_are_counted_and_stay_failures() -> None:
    gains = np.array([[0.0, FAILED_GAIN, 0.3, np.nan]])
    beliefs = [Belief(HERE, np.zeros(4), 0.0, 1)]
    found = pooled([layer(HERE, gains)], beliefs, 1, 0.06)
    assert found.failing.tolist() == [[0.0, 1.0, 0.0, 0.0]]


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 6), st.integers(1, 8))
def test_any_holes_give_finite_shifts(seed: int, rows: int, columns: int) -> None:
    rng = np.random.default_rng(seed)
    gap = rng.normal(0.0, 1.0, (rows, columns))
    gap[rng.random(gap.shape) < 0.6] = np.nan
    shift, left = shift_of(gap, np.eye(columns), 0.05)
    assert np.isfinite(shift).all() and left > 0.0
    assert np.abs(shift).max(initial=0.0) <= np.abs(np.nan_to_num(gap)).max(initial=0.0) + 1e-9


def test_one_row_says_less_of_a_shift_than_two() -> None:
    """A shift and the peculiarities of one matrix cannot be told apart by a single row."""
    gap = np.array([[0.9, -0.6, 0.0, 0.3]])
    alone, _ = shift_of(gap, np.eye(4), 0.05)
    assert np.allclose(alone, gap[0] / 2)
    both, _ = shift_of(np.vstack([gap, gap]), np.eye(4), 0.05)
    assert np.abs(both).max() > 0.9 * np.abs(gap).max()


def test_four_variants_of_one_machine_alone_need_no_belief() -> None:
    assert len(CONFIGS) == 4
    only = [layer(HERE, np.array([[0.0, 0.1, 0.2, 0.3]]))]
    found = beliefs_of(HERE, only, CONFIGS, {}, NOBODY, apart=0.1, gaps=Gaps())
    assert [b.variance for b in found] == [0.0]


def test_each_pair_of_lasting_layers_is_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine is left out of all others in turn: by pairs compared anew, the work would grow by
    the third power of the number of machines."""
    home, shift = world()
    sources = [Source(f"pair@{n}", OP) for n in range(6)]
    layers = [layer(source, away(home, shift)) for source in sources]
    compared, compare = list[tuple[Source, Source]](), Gap.of

    def counted(one: Layer, other: Layer, moving: Any) -> Gap:
        compared.append((one.source, other.source))
        return compare(one, other, moving)

    monkeypatch.setattr(Gap, "of", counted)
    gaps = Gaps(layers)
    for out in sources:
        rest = [one for one in layers if one.source != out]
        beliefs = beliefs_of(out, rest, MANY, {}, NOBODY, apart=0.1, gaps=gaps)
        anew = beliefs_of(out, rest, MANY, {}, NOBODY, apart=0.1, gaps=Gaps(layers))
        for one, other in zip(beliefs, anew, strict=True):
            assert one.variance == other.variance
            assert (one.shift == other.shift).all()
    by_gaps = 6 * 5 // 2
    assert len(compared) == by_gaps + 6 * 5 * 4 // 2
    passing = [*layers[:5], layer(sources[5], home)]
    for _ in range(2):
        beliefs_of(sources[0], passing, MANY, {}, NOBODY, apart=0.1, gaps=gaps)
    assert compared.count((sources[0], sources[5])) == 1 + 4 + 2
