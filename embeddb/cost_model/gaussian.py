"""A Gaussian process over configurations and matrices: the best model for few samples.

The log gain y of configuration c on matrix x, with derived quantities q(x, c), has the covariance

    k = a0 kc(c, c') + a1 kc(c, c') kx(x, x') + a2 kd(c, c') kq(q, q')
        + the level of a matrix + noise,

where kc, kd and kq are squared exponentials with a length of their own for each column and kx one
with a single length: a configuration's main effect, its interaction with the matrix, and the effect
of the derived quantities. Amplitudes, lengths and noise maximise the marginal likelihood, with a
normal prior on their logarithms. Source: Rasmussen and Williams, "Gaussian Processes for Machine
Learning" (MIT Press 2006), Sections 2.2, 5.1 and 5.4; the sum of products is ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from embeddb.core.blas import one_thread
from embeddb.core.errors import ModelError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[Any]]
    Floats = NDArray[np.float64]

F = TypeVar("F", bound="np.floating[Any]")

#: Variance of the level of a matrix, in units of the gains' variance: large, since only
#: differences within a matrix are of interest.
_LEVEL = 25.0
#: Keeps the covariance positive definite in floating point.
_JITTER = 1e-6
#: Rows of a block of the Cholesky factor.
_BLOCK = 128
#: Samples by which amplitudes and lengths are fitted; predictions use all.
_MOST_TO_FIT = 600
_STEPS = 60
#: Logarithms that a line search may try: squares of larger numbers overflow.
_MOST_LOG = 300.0
#: Prior mean and deviation of the logarithms of a0, a1, a2 and the noise's standard deviation.
_AMPLITUDES = (-1.0, -1.0, -1.0, -2.0)
_AMPLITUDE_SPREAD = 2.0
_MOST_SAMPLES, _MOST_COLUMNS = 20_000, 4_096
#: Bound of standardised inputs: one strange matrix is not extrapolated.
_CLIP = 4.0
#: Standard deviations below a matrix's mean gain at which gains are cut for the likelihood.
_CUT = 1.2


class Inputs(NamedTuple):
    """n samples, raw: `config` float64[n,a], `matrix` float64[n,b] and `derived` float64[n,q]."""

    config: Floats
    matrix: Floats
    derived: Floats

    def take(self, at: NDArray[Any]) -> Inputs:
        """The samples at some positions, or of a mask."""
        return Inputs(self.config[at], self.matrix[at], self.derived[at])


class Measured(NamedTuple):
    """n samples: `inputs`, log gains `gain` float64[n] and `row` int64[n], numbers of the
    matrices."""

    inputs: Inputs
    gain: Floats
    row: NDArray[np.int64]

    @property
    def off(self) -> Floats:
        """float64[n]: gains less the mean of their matrix."""
        level = np.bincount(self.row, self.gain) / np.maximum(np.bincount(self.row), 1)
        return np.asarray(self.gain - level[self.row])

    def cut(self) -> Measured:
        """The samples with gains cut 1.2 standard deviations below the mean of their matrix: by how
        much a configuration is slow says little about which is the fastest."""
        off = self.off
        return self._replace(gain=self.gain - off + np.maximum(off, -_CUT * off.std()))


class _Lengths(NamedTuple):
    """Hyper-parameters as the kernel uses them: `amplitude` float64[3], the `noise` variance and
    inverse lengths: of kx, kc float64[a], kd float64[a], kq float64[q]."""

    amplitude: Floats
    noise: float
    matrix: float
    config: Floats
    of_derived: Floats
    derived: Floats

    @classmethod
    def of(cls, logs: Floats, columns: int) -> _Lengths:
        exp, a = np.exp(logs), 5 + columns
        return cls(exp[:3], float(exp[3] ** 2), float(exp[4]), exp[5:a], exp[a : a + columns],
                   exp[a + columns :])  # fmt: skip

    def by_derived(self, one: Inputs, other: Inputs) -> Floats:
        """float64[m,n]: kd kq."""
        first, second = (
            np.hstack([side.config * self.of_derived, side.derived * self.derived])
            for side in (one, other)
        )
        return _likeness(first, second)


class GaussianProcess:
    """A fitted process, stored as `tensors`: `logs` float64[5+2a+q] hyper-parameters;
    `config`, `matrix`, `derived` float32 inputs of n samples, standardised, with `center.NAME` and
    `scale.NAME`; `target` float64[n], gains less the mean of their matrix, and `row` int64[n], the
    matrix of each sample; `unit`, the log gain that a target of 1 stands for."""

    def __init__(self, tensors: Arrays) -> None:
        """Raises: ModelError for tensors that do not fit together, KeyError for a missing one."""
        # One memory layout: it decides the order of sums, and a model read from a file must predict
        # exactly as the one that was saved.
        self.tensors = {name: np.ascontiguousarray(a) for name, a in tensors.items()}
        tensors = self.tensors
        self._inputs = Inputs(*(_matrix(tensors, name) for name in Inputs._fields))
        n, a = self._inputs.config.shape
        wanted = {"logs": (5 + 2 * a + self._inputs.derived.shape[1],), "target": (n,)}
        wanted |= {"row": (n,), "unit": (1,)}
        for name, part in self._inputs._asdict().items():
            wanted |= {f"center.{name}": part.shape[1:], f"scale.{name}": part.shape[1:]}
        for name, shape in wanted.items():
            if tensors[name].shape != shape:
                raise ModelError(f"tensor {name!r} has shape {tensors[name].shape}, not {shape}")
        self._lengths = _Lengths.of(np.clip(tensors["logs"].astype(np.float64), -20, 20), a)
        self._row = tensors["row"].astype(np.int64)

    @classmethod
    def fit(cls, measured: Measured, *, seed: int = 0) -> GaussianProcess:
        """Learn from samples.

        Amplitudes and lengths are those of gains cut 1.2 standard deviations below the mean of
        their matrix: by how much a configuration is slow says little about which is the fastest.
        """
        unit = max(float(measured.off.std()), 1e-6)
        tensors = {**_scales(measured.inputs), "unit": np.array([unit])}
        for name, part in measured.inputs._asdict().items():
            tensors[name] = _standard(part, tensors, name).astype(np.float32)
        tensors["target"] = measured.off / unit
        tensors["row"] = measured.row.astype(np.int64)
        tensors["logs"] = _fitted(tensors, seed)
        return cls(tensors)

    def on(self, at: Inputs) -> OnMatrix:
        """The predictions of configurations on one matrix that was not measured."""
        return OnMatrix(self, self._scaled(at))

    def mean(self, scaled: Inputs) -> Floats:
        """float64[c]: targets predicted for standardised inputs of one matrix."""
        of, weight = self._lengths, self._factored[1]
        configs, place = self._distinct
        near = _likeness(scaled.matrix[:1] * of.matrix, self._inputs.matrix * of.matrix)[0]
        each = np.bincount(place, weight * (of.amplitude[0] + of.amplitude[1] * near), len(configs))
        mean = _likeness(scaled.config * of.config, configs * of.config) @ each
        if scaled.derived.shape[1]:
            mean += of.amplitude[2] * (of.by_derived(scaled, self._inputs) @ weight)
        return np.asarray(mean)

    def draws(self, at: Inputs, row: int, count: int, seed: int) -> Floats:
        """Draws float64[count,c] from the posterior of the log gains of configurations on matrix
        `row`, numbered as in `Measured`, up to a constant. Raises: ModelError for a covariance that
        is none."""
        scaled = self._scaled(at)
        cross = _covariance(scaled, self._inputs, self._lengths) + _LEVEL * (self._row == row)
        explained = self._explained(cross)
        whole = _covariance(scaled, scaled, self._lengths) + _LEVEL - explained.T @ explained
        noise = np.random.default_rng(seed).standard_normal((count, len(whole)))
        gain = cross @ self._factored[1] + noise @ _root(whole).T
        return float(self.tensors["unit"][0]) * np.asarray(gain)

    def covariance(self, scaled: Inputs, *, to_samples: bool = False) -> Floats:
        """Prior covariances float64[m,m] of standardised inputs of one matrix, or float64[m,n] with
        the samples."""
        return _covariance(scaled, self._inputs if to_samples else scaled, self._lengths)

    @property
    def noise(self) -> float:
        """Variance of the noise of a target."""
        return self._lengths.noise

    @property
    def level(self) -> float:
        """Variance of the level of a matrix, in squared log gains."""
        return _LEVEL * float(self.tensors["unit"][0]) ** 2

    def covariances(
        self, at: Inputs, row: NDArray[np.int64], values: Inputs
    ) -> tuple[Floats, Floats]:
        """Posterior covariances of measurements of `at` on matrices `row` int64[m], numbered as in
        `Measured`: float64[m,n] with the log gains of `values`, and float64[m,m] with each other.
        """
        first, other = self._scaled(at), self._scaled(values)
        cross = _covariance(first, self._inputs, self._lengths)
        cross += _LEVEL * (row[:, None] == self._row)
        to_values = _covariance(other, self._inputs, self._lengths)
        left, right = self._explained(cross), self._explained(to_values)
        mutual = _covariance(first, first, self._lengths) + _LEVEL * (row[:, None] == row)
        mutual[np.diag_indices(len(mutual))] += self._lengths.noise + _JITTER
        unit = float(self.tensors["unit"][0]) ** 2
        between: Floats = _covariance(first, other, self._lengths) - left.T @ right
        among: Floats = mutual - left.T @ left
        return unit * between, unit * among

    def _explained(self, cross: Floats) -> Floats:
        """float64[n,m] from covariances float64[m,n] with the samples: inner products of its
        columns are the covariances that the samples explain."""
        return solved(*self._blocks, cross.T)

    @cached_property
    def _blocks(self) -> tuple[Floats, list[NDArray[Any]]]:
        """The Cholesky factor, and the inverses of its diagonal blocks."""
        lower = self._factored[0]
        starts = range(0, len(lower), _BLOCK)
        return lower, [np.linalg.inv(lower[at : at + _BLOCK, at : at + _BLOCK]) for at in starts]

    @cached_property
    def single(self) -> tuple[NDArray[np.float32], list[NDArray[np.float32]]]:
        """`_blocks` in single precision, exact enough for standard deviations."""
        lower, inverses = self._blocks
        return lower.astype(np.float32), [one.astype(np.float32) for one in inverses]

    @cached_property
    def _distinct(self) -> tuple[Floats, NDArray[np.int64]]:
        """The configurations of the samples, and the place of each sample's among them."""
        configs, place = np.unique(self._inputs.config, axis=0, return_inverse=True)
        return configs, place.reshape(-1)

    def _scaled(self, at: Inputs) -> Inputs:
        return Inputs(*(_standard(part, self.tensors, n) for n, part in at._asdict().items()))

    def without(self, out: NDArray[np.bool_]) -> GaussianProcess:
        """The process of the samples that are not `out` bool[n], hyper-parameters as they are."""
        by_sample = (*Inputs._fields, "target", "row")
        return GaussianProcess(
            {name: a[~out] if name in by_sample else a for name, a in self.tensors.items()}
        )

    @cached_property
    def _factored(self) -> tuple[Floats, Floats]:
        """The Cholesky factor float64[n,n] of the samples' covariance, and weights float64[n]."""
        from scipy.linalg import cho_solve

        whole = _covariance(self._inputs, self._inputs, self._lengths)
        whole += _LEVEL * (self._row[:, None] == self._row)
        whole[np.diag_indices(len(whole))] += self._lengths.noise + _JITTER
        lower = np.linalg.cholesky(whole).astype(np.float64)
        target = self.tensors["target"].astype(np.float64)
        with one_thread():  # also of the library that the import brings
            return lower, cho_solve((lower, True), target)


class OnMatrix:
    """The posterior of c configurations on one matrix that was not measured: `gain` float64[c], log
    gains up to a constant."""

    def __init__(self, process: GaussianProcess, scaled: Inputs) -> None:
        """From standardised inputs."""
        self._process, self._scaled = process, scaled
        self._unit = float(process.tensors["unit"][0])
        self.gain = self._unit * process.mean(scaled)
        self._columns: dict[int, NDArray[np.float32]] = {}

    def spread(self, detailed: int) -> Floats:
        """Standard deviations float64[c] of the gains: of the `detailed` best, and the largest of
        these for the others."""
        near = np.argsort(-self.gain, kind="stable")[:detailed]
        own = self._process.covariance(self._scaled.take(near[:1]))[0, 0]
        explained = (self._explained(near) ** 2).sum(axis=1, dtype=np.float64)
        variance = np.maximum(own - explained, self._process.noise)
        spread = np.full(len(self.gain), variance.max(initial=self._process.noise))
        spread[near] = variance
        return np.asarray(self._unit * np.sqrt(spread))

    def correlation(self, at: NDArray[np.int64]) -> Floats:
        """Correlations float64[k,k] of the gains of the configurations at some positions."""
        explained = self._explained(at)
        whole = self._process.covariance(self._scaled.take(at)) - explained @ explained.T
        deviation = np.sqrt(np.maximum(np.diag(whole), _JITTER))
        correlation = whole / deviation[:, None] / deviation
        correlation[np.diag_indices(len(whole))] = 1.0
        return np.asarray(correlation)

    def _explained(self, at: NDArray[np.int64]) -> NDArray[np.float32]:
        """float32[k,n]: rows of which inner products are the covariances that the samples explain.
        They are kept: most configurations with correlations have had their spreads computed."""
        new = [one for one in at.tolist() if one not in self._columns]
        if new:
            cross = self._process.covariance(self._scaled.take(np.array(new)), to_samples=True)
            columns = solved(*self._process.single, cross.T.astype(np.float32))
            self._columns.update(zip(new, np.ascontiguousarray(columns.T), strict=True))
        return np.array([self._columns[one] for one in at.tolist()])


def solved(lower: NDArray[F], inverses: Sequence[NDArray[F]], right: NDArray[F]) -> NDArray[F]:
    """The solution [n,m] of lower x = right [n,m] from a triangular matrix and the inverses of its
    diagonal blocks, in their precision."""
    # By numpy alone: scipy's BLAS has threads of its own, which wait for processors on which
    # those of numpy's spin: on two processors this took two to five times as long.
    out = np.empty_like(right, order="C")
    for at, inverse in zip(range(0, len(lower), _BLOCK), inverses, strict=True):
        rest = right[at : at + _BLOCK] - lower[at : at + _BLOCK, :at] @ out[:at]
        out[at : at + _BLOCK] = inverse @ rest
    return out


def _scales(inputs: Inputs) -> dict[str, NDArray[Any]]:
    scales: dict[str, NDArray[Any]] = {}
    for name, part in inputs._asdict().items():
        once = np.unique(part, axis=0) if part is inputs.matrix else part
        spread = once.std(axis=0)
        # A column that hardly varies among the samples is not blown up.
        floor = 0.1 * float(np.median(spread[spread > 0])) if (spread > 0).any() else 1.0
        scales[f"center.{name}"] = once.mean(axis=0).astype(np.float32)
        scales[f"scale.{name}"] = np.maximum(spread, max(floor, 1e-6)).astype(np.float32)
    return scales


def _standard(part: NDArray[Any], tensors: Arrays, name: str) -> Floats:
    scaled = (np.asarray(part, np.float64) - tensors[f"center.{name}"]) / tensors[f"scale.{name}"]
    return np.clip(scaled, -_CLIP, _CLIP)


def _matrix(tensors: Arrays, name: str) -> Floats:
    array = tensors[name]
    if array.ndim != 2 or not 0 < len(array) <= _MOST_SAMPLES or array.shape[1] > _MOST_COLUMNS:
        raise ModelError(f"tensor {name!r} has shape {array.shape}, not that of samples")
    return array.astype(np.float64)


def _covariance(one: Inputs, other: Inputs, of: _Lengths) -> Floats:
    """float64[m,n] without levels and noise."""
    # Configurations on one matrix, by far the usual case, are as near to the others as the first.
    of_one = one.matrix[:1] if (one.matrix == one.matrix[:1]).all() else one.matrix
    near = _likeness(of_one * of.matrix, other.matrix * of.matrix)
    covariance = _likeness(one.config * of.config, other.config * of.config)
    covariance *= of.amplitude[0] + of.amplitude[1] * near
    if one.derived.shape[1]:
        by_derived = of.by_derived(one, other)
        by_derived *= of.amplitude[2]
        covariance += by_derived
    return covariance


def _root(covariance: Floats) -> NDArray[Any]:
    """The Cholesky factor float64[c,c], with more on the diagonal where rounding needs it."""
    for jitter in (_JITTER, 1e-4, 1e-2):
        with suppress(np.linalg.LinAlgError):
            root = np.linalg.cholesky(covariance + jitter * np.eye(len(covariance)))
            if np.isfinite(root).all():
                return root
    raise ModelError("the process has a covariance that is not positive definite")


def _likeness(one: Floats, other: Floats) -> Floats:
    """float64[m,n] squared exponentials of distances."""
    exponent = _exponents(one, other)
    return np.exp(exponent, out=exponent)


def _exponents(one: Floats, other: Floats) -> Floats:
    """float64[m,n]: minus half the squared distances, by a single product: passes over a result
    take longer than the product of so few columns."""
    left = np.column_stack([one, -0.5 * (one**2).sum(axis=1), np.ones(len(one))])
    right = np.column_stack([other, np.ones(len(other)), -0.5 * (other**2).sum(axis=1)])
    product: Floats = left @ right.T
    # For equal rows rounding leaves a remainder of either sign, which grows with the squares.
    return np.minimum(product, 0.0, out=product)


def _fitted(tensors: Arrays, seed: int) -> Floats:
    """Hyper-parameters float64[5+2a+q] that maximise the posterior of some of the samples."""
    from scipy.optimize import minimize

    n = len(tensors["row"])
    at = np.sort(np.random.default_rng(seed).permutation(n)[:_MOST_TO_FIT])
    inputs = Inputs(*(tensors[name][at].astype(np.float64) for name in Inputs._fields))
    row = tensors["row"][at]
    target = np.maximum(tensors["target"][at], -_CUT)
    loss = _Likelihood(inputs, target, (row[:, None] == row) * _LEVEL)
    with one_thread():  # also of the library that the import brings
        best = minimize(loss, loss.mean, jac=True, method="L-BFGS-B", options={"maxiter": _STEPS})
    return np.asarray(np.clip(best.x, -20.0, 20.0))


class _Likelihood:
    """The negative log posterior of hyper-parameters, and its gradient."""

    def __init__(self, inputs: Inputs, target: Floats, level: Floats) -> None:
        self._inputs, self._target, self._level = inputs, target, level
        a, q = inputs.config.shape[1], inputs.derived.shape[1]
        matrix = -0.5 * np.log(max(inputs.matrix.shape[1], 1))
        config, derived = -0.5 * np.log(max(a, 1)), -0.5 * np.log(max(q, 1))
        self.mean: Floats = np.array(
            [*_AMPLITUDES, matrix, *[config + 0.3] * a, *[config - 0.5] * a, *[derived + 0.3] * q]
        )
        self.spread = np.ones(len(self.mean))
        self.spread[: len(_AMPLITUDES)] = _AMPLITUDE_SPREAD
        self._near = _exponents(inputs.matrix, inputs.matrix)

    def __call__(self, logs: Floats) -> tuple[float, Floats]:
        from scipy.linalg.lapack import dpotri

        inputs, a = self._inputs, self._inputs.config.shape[1]
        if np.abs(logs).max() > _MOST_LOG:
            return 1e10, np.zeros_like(logs)
        of = _Lengths.of(logs, a)
        like = _likeness(inputs.config * of.config, inputs.config * of.config)
        near = self._near * of.matrix**2
        terms = [of.amplitude[0] * like, of.amplitude[1] * like * np.exp(near)]
        if inputs.derived.shape[1]:
            both = np.hstack([inputs.config * of.of_derived, inputs.derived * of.derived])
            terms.append(of.amplitude[2] * _likeness(both, both))
        whole: Floats = sum(terms) + self._level
        whole[np.diag_indices(len(whole))] += of.noise + _JITTER
        try:
            lower = np.linalg.cholesky(whole)
        except np.linalg.LinAlgError:
            return 1e10, np.zeros_like(logs)
        half = dpotri(lower, lower=1)[0]  # zero above the diagonal, as the factor
        inverse = half + np.tril(half, -1).T
        weight = inverse @ self._target
        loss = 0.5 * self._target @ weight + np.log(np.diag(lower)).sum()
        # The derivative is half the trace of this times the derivative of the covariance.
        slope = inverse - np.outer(weight, weight)
        rise = np.zeros_like(logs)
        rise[: len(terms)] = [0.5 * (slope * term).sum() for term in terms]
        rise[3] = of.noise * np.trace(slope)
        rise[4] = (slope * terms[1] * near).sum()
        rise[5 : 5 + a] = _length_slope(slope * (terms[0] + terms[1]), inputs.config, of.config)
        if len(terms) > 2:
            part = slope * terms[2]
            rise[5 + a : 5 + 2 * a] = _length_slope(part, inputs.config, of.of_derived)
            rise[5 + 2 * a :] = _length_slope(part, inputs.derived, of.derived)
        pull = (logs - self.mean) / self.spread**2
        return float(loss + 0.5 * (logs - self.mean) @ pull), rise + pull


def _length_slope(slope: Floats, columns: Floats, inverse_length: Floats) -> Floats:
    """Derivative float64[d] by the logarithm of the inverse length of each column."""
    sums = 2 * (columns**2).T @ slope.sum(axis=1)
    sums -= 2 * np.einsum("ij,ij->j", columns, slope @ columns)
    return np.asarray(-0.5 * inverse_length**2 * sums)


def joined(parts: Sequence[Inputs]) -> Inputs:
    """All samples of several matrices."""
    return Inputs(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
