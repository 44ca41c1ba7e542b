"""The Gaussian process by itself: gradient, interpolation, order, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.linalg import solve_triangular
from scipy.optimize import check_grad

from embeddb.core.errors import ModelError
from embeddb.cost_model.gaussian import GaussianProcess, Inputs, Measured, _Likelihood, _root


def _samples(matrices: int, each: int, seed: int = 0) -> tuple[Inputs, Any, Any]:
    """Gains that depend on configuration, matrix and one derived quantity, with a level each."""
    rng = np.random.default_rng(seed)
    row = np.repeat(np.arange(matrices), each)
    config = rng.integers(0, 4, size=(matrices * each, 3)).astype(float)
    matrix = rng.normal(size=(matrices, 4))[row]
    derived = (config[:, :1] - matrix[:, :1]) ** 2
    gain = config[:, 1] * 0.1 - derived[:, 0] * 0.3 + config[:, 2] * matrix[:, 1] * 0.1
    return Inputs(config, matrix, derived), gain + rng.normal(size=matrices)[row], row


def test_the_gradient_is_that_of_the_likelihood() -> None:
    inputs, gain, row = _samples(4, 6)
    loss = _Likelihood(inputs, gain - gain.mean(), (row[:, None] == row) * 25.0)
    point = loss.mean + np.random.default_rng(1).normal(size=len(loss.mean)) * 0.1
    slope = loss(point)[1]
    error = check_grad(lambda at: loss(at)[0], lambda at: loss(at)[1], point)
    assert error < 1e-4 * max(1.0, float(np.abs(slope).max()))


def test_a_step_of_the_search_that_is_far_too_long_is_no_fault() -> None:
    inputs, gain, row = _samples(4, 6)
    loss = _Likelihood(inputs, gain - gain.mean(), (row[:, None] == row) * 25.0)
    for at in range(len(loss.mean)):
        point = loss.mean.copy()
        for point[at] in (299.0, 500.0, -500.0):
            value, slope = loss(point)
            assert value > loss(loss.mean)[0] and np.isfinite([value, *slope]).all()


def test_lengths_that_leave_only_rounding_of_distances_are_no_fault() -> None:
    inputs, gain, row = _samples(4, 6)
    inputs = Inputs(inputs.config + 0.3, inputs.matrix, inputs.derived + 0.7)
    loss = _Likelihood(inputs, gain - gain.mean(), (row[:, None] == row) * 25.0)
    for log in (10.0, 22.0, 47.0, 299.0):
        for lengths in (slice(4, 5), slice(5, 8), slice(8, 11), slice(11, None), slice(4, None)):
            point = loss.mean.copy()
            point[lengths] = log
            value, slope = loss(point)
            assert np.isfinite([value, *slope]).all() and value > loss(loss.mean)[0]


def test_it_orders_configurations_of_matrices_that_it_never_saw() -> None:
    inputs, gain, row = _samples(20, 12)
    process = GaussianProcess.fit(Measured(inputs, gain, row))
    others, truth, of = _samples(10, 40, seed=5)
    right = []
    for matrix in range(10):
        own = of == matrix
        on = process.on(others.take(own))
        spread = on.spread(5)
        right.append(np.corrcoef(on.gain, truth[own])[0, 1])
        assert (spread > 0).all() and np.isfinite(spread).all()
    assert np.mean(right) > 0.95


def test_levels_of_matrices_change_nothing() -> None:
    inputs, gain, row = _samples(6, 10)
    moved = gain + 100.0 * row
    one, other = (GaussianProcess.fit(Measured(inputs, g, row)) for g in (gain, moved))
    score, again = (p.on(inputs.take(row == 2)).gain for p in (one, other))
    assert np.allclose(score - score.mean(), again - again.mean(), atol=1e-3)


def test_without_is_the_process_of_the_rest() -> None:
    inputs, gain, row = _samples(8, 10)
    process = GaussianProcess.fit(Measured(inputs, gain, row))
    rest = process.without(row == 3)
    assert len(rest.tensors["row"]) == len(process.tensors["row"]) - 10
    score = rest.on(inputs.take(row == 3)).gain
    assert np.corrcoef(score, gain[row == 3])[0, 1] > 0.8
    assert not np.allclose(score, process.on(inputs.take(row == 3)).gain)


def test_blocks_of_a_factor_explain_as_much_as_a_triangular_solution() -> None:
    inputs, gain, row = _samples(30, 10)
    process = GaussianProcess.fit(Measured(inputs, gain, row))
    cross = np.random.default_rng(2).normal(size=(7, 300))
    exact = solve_triangular(process._factored[0], cross.T, lower=True)
    assert np.allclose(process._explained(cross), exact, rtol=1e-9, atol=1e-9)


def test_draws_have_the_mean_and_the_covariance_of_the_posterior() -> None:
    inputs, gain, row = _samples(6, 10)
    process = GaussianProcess.fit(Measured(inputs, gain, row))
    (few, _, _), own = _samples(1, 5, seed=3), inputs.take(row == 2)
    at = Inputs(few.config, np.repeat(own.matrix[:1], 5, axis=0), few.derived)
    known = process.draws(own, 2, 400, 0)
    assert np.allclose(known.mean(axis=0) - known.mean(), gain[row == 2] - gain[row == 2].mean(),
                       atol=0.1)  # fmt: skip
    for matrix in (2, -1):  # measured, and another of the same structure
        drawn = process.draws(at, matrix, 4000, 1)
        apart = drawn - drawn.mean(axis=1, keepdims=True)
        among = process.covariances(at, np.full(5, matrix), at)[1]
        among -= among.mean(axis=0) + among.mean(axis=1)[:, None] - among.mean()
        noise = process._lengths.noise * process.tensors["unit"][0] ** 2
        exact = among - noise * (np.eye(5) - 0.2)
        assert np.allclose(np.cov(apart.T), exact, atol=0.1 * np.abs(exact).max())


def test_rounding_that_makes_a_covariance_indefinite_is_no_fault() -> None:
    indefinite = np.ones((6, 6)) - 1e-5 * np.eye(6)
    assert np.allclose(_root(indefinite) @ _root(indefinite).T, indefinite, atol=1e-3)
    with pytest.raises(ModelError):
        _root(np.full((3, 3), np.nan))


def test_what_does_not_vary_or_is_not_there_is_no_fault() -> None:
    inputs, gain, row = _samples(5, 8)
    plain = Inputs(inputs.config * 0, inputs.matrix, np.zeros((len(row), 0)))
    process = GaussianProcess.fit(Measured(plain, gain * 0, row))
    on = process.on(plain.take(row == 0))
    assert np.allclose(on.gain, on.gain[0]) and np.isfinite(on.spread(3)).all()


@pytest.mark.parametrize("name", ["logs", "target", "row", "unit", "center.matrix", "config"])
def test_a_tensor_that_does_not_fit_is_refused(name: str) -> None:
    inputs, gain, row = _samples(4, 5)
    tensors = dict(GaussianProcess.fit(Measured(inputs, gain, row)).tensors)
    tensors[name] = tensors[name][:-1]
    with pytest.raises(ModelError, match="shape"):
        GaussianProcess(tensors)
    del tensors[name]
    with pytest.raises(KeyError):
        GaussianProcess(tensors)


def test_covariances_say_how_a_measurement_narrows_others() -> None:
    inputs, gain, row = _samples(5, 7)
    process = GaussianProcess.fit(Measured(inputs, gain, row))
    others, *_ = _samples(3, 5, seed=5)
    last = np.arange(len(row)) == 20
    rest = process.without(last)
    before, after = (p.on(others).spread(15) ** 2 for p in (rest, process))
    between, among = rest.covariances(inputs.take(last), row[last], others)
    assert between.shape == (1, 15) and among.shape == (1, 1)
    expected = np.maximum(before - between[0] ** 2 / among[0, 0], after.min())
    assert np.allclose(after, expected, rtol=1e-3)
    # Of a matrix that was not measured, a single measurement shows the level and little more.
    new = rest.covariances(inputs.take(last), np.array([99]), others)[1]
    assert new[0, 0] > rest.level > among[0, 0]


def test_correlations_are_those_of_the_posterior() -> None:
    inputs, gain, row = _samples(5, 7)
    process = GaussianProcess.fit(Measured(inputs, gain, row))
    one, *_ = _samples(1, 9, seed=5)
    correlation = process.on(one).correlation(np.arange(9))
    between, _ = process.covariances(one, np.full(9, 99), one)
    deviation = np.sqrt(np.diag(between))
    assert np.allclose(correlation, between / deviation[:, None] / deviation, atol=1e-4)
    assert np.linalg.eigvalsh(correlation).min() > -1e-8
    # Twins err together.
    twins = process.on(one.take(np.array([0, 0, 1]))).correlation(np.arange(3))
    assert twins[0, 1] == pytest.approx(1.0, abs=1e-4) and twins[0, 2] < 0.999
