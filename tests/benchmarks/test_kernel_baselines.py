"""What the network of kernels is compared with, and the figures, worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from tiled_kernels import fused_samples, tiled_samples

from benchmarks.kernel_baselines import BASELINES, SECONDS
from embeddb.core.config import Config
from embeddb.tensors.encoding.features import STATISTICS, TILED, flat_rows, statistics
from embeddb.tensors.roofline.analysis import Analysis
from indexer.training.tensors.figures import (
    fused_figures,
    kendall,
    summary,
    tile_figures,
)
from indexer.training.tensors.fitting import drawn_batches
from indexer.training.tensors.grown_trees import grown, tree_predictions
from indexer.training.tensors.samples import KernelSample, split

ANALYSIS = Analysis({})
SAMPLES = tiled_samples(4, ANALYSIS)


def of_optimum(samples: Sequence[KernelSample], scores: Sequence[np.ndarray]) -> float:
    """The geometric mean over kernels of the share of the best time that the first reaches."""
    firsts = [s.seconds[int(np.argmin(score))] for s, score in zip(samples, scores, strict=True)]
    best = [sample.seconds.min() for sample in samples]
    return float(np.exp(np.mean(np.log(np.array(best) / np.array(firsts)))))


def timed(name: str, *seconds: float) -> KernelSample:
    """A sample with these seconds."""
    made = SAMPLES[0]
    count = len(seconds)
    return replace(
        made,
        name=name,
        configs=tuple(Config({"t1": at}) for at in range(count)),
        tiles=np.repeat(made.tiles[:1], count, axis=0),
        seconds=np.array(seconds),
        default=0,
    )


def test_a_program_loses_what_its_kernels_lose_by_equation_2() -> None:
    samples = [timed("a/1", 2.0, 1.0, 4.0), timed("a/2", 3.0, 5.0), timed("b/1", 1.0, 2.0)]
    scores = [np.array([0.0, 1.0, 2.0]), np.array([1.0, 0.0]), np.array([0.0, 1.0])]
    found = tile_figures(samples, scores)
    assert found["a"]["ape"] == pytest.approx(100 * (1 + 2) / (1 + 3))
    assert found["b"] == {"ape": 0.0, "tau": 1.0}
    assert found["a"]["tau"] == pytest.approx((1 / 3 - 1) / 2)
    assert tile_figures(samples, scores, 2)["a"]["ape"] == 0.0
    assert of_optimum(samples, scores) == pytest.approx((1 / 2 * 3 / 5) ** (1 / 3))
    assert summary(found)["ape_median"] == pytest.approx(37.5)


def test_seconds_are_judged_where_kernels_are_long() -> None:
    samples = [timed("a/1", 1e-3), timed("a/2", 2e-3), timed("a/3", 1e-6), timed("b/1", 1e-6)]
    found = fused_figures(samples, [1.1e-3, 1.0e-3, 9.0, 9.0])
    assert found == {"a": {"mape": pytest.approx(30.0), "tau": -1.0}}


def test_every_baseline_learns_something_of_other_families() -> None:
    pytest.importorskip("lightgbm")
    train, held = split(SAMPLES, "family", 0)
    found = {}
    for name, fit in BASELINES.items():
        ranking = fit(train, 0)
        said = [ranking(sample) for sample in held]
        assert all(len(s) == len(k.seconds) for s, k in zip(said, held, strict=True))
        found[name] = of_optimum(held, said)
    assert found["untiled"] < found["nearest"] and found["untiled"] < found["trees"]
    # One tile for all is as good as can be without looking at the kernel.
    assert found["untiled"] < found["static best"] <= 1


def told(said: np.ndarray) -> np.ndarray:
    return np.stack([said, said - said[0]], axis=1)


def test_trees_mend_what_a_rough_model_misses_of_other_families() -> None:
    pytest.importorskip("lightgbm")
    train, held = split(SAMPLES, "family", 0)
    noise = np.random.default_rng(0)

    def rough(sample: KernelSample) -> KernelSample:
        said = 0.3 * sample.logs + noise.normal(0, sample.logs.std(), len(sample.logs))
        return replace(sample, analysed=told(said))

    def mean_tau(parts: Sequence[KernelSample], scores: Sequence[np.ndarray]) -> float:
        pairs = zip(parts, scores, strict=True)
        found = [kendall(score, sample.seconds) for sample, score in pairs]
        return float(np.mean([one for one in found if one is not None]))

    rough_train, rough_held = ([rough(s) for s in part] for part in (train, held))
    trees = grown(rough_train, 0, ANALYSIS)
    mended = [tree_predictions(trees, sample, analysed=True) for sample in rough_held]
    alone = mean_tau(rough_held, [s.analysed_logs for s in rough_held])
    assert mean_tau(rough_held, mended) > alone + 0.1
    exact = [replace(sample, analysed=told(sample.logs)) for sample in SAMPLES]
    trees = grown(exact[: len(train)], 0, ANALYSIS)
    said = [tree_predictions(trees, sample, analysed=True) for sample in exact]
    assert mean_tau(exact, said) == pytest.approx(1.0)


def test_flat_features_tell_kernels_and_tiles_apart() -> None:
    rows = flat_rows(SAMPLES[0].graph, SAMPLES[0].tiles)
    assert rows.shape[1] == TILED and len(statistics(SAMPLES[0].graph)) == STATISTICS
    assert len(np.unique(rows, axis=0)) == len(rows) == len(SAMPLES[0].seconds)
    assert not np.array_equal(statistics(SAMPLES[0].graph), statistics(SAMPLES[9].graph))
    # Untiled: one tile along each dimension.
    assert np.all(rows[SAMPLES[0].default, -6:] == 0)


def test_families_are_drawn_evenly_and_kernels_of_one_in_turn() -> None:
    many = [replace(s, group="many") for s in SAMPLES[:24]]
    few = [replace(s, group="few") for s in SAMPLES[24:26]]
    batches = drawn_batches(
        [*many, *few], kernels=8, tiles=5, steps=6, rng=np.random.default_rng(0)
    )
    drawn = [one for batch in batches for one in batch]
    places = [place for place, _ in drawn]
    assert sum(place >= 24 for place in places) == 24 and len(set(places)) == 26
    assert {len(tiles) for _, tiles in drawn} == {5}
    assert all(len(set(tiles.tolist())) == 5 for _, tiles in drawn)


def test_kernels_of_a_partition_are_of_the_program_that_was_cut() -> None:
    made = SAMPLES[0]
    for name, program in (
        ("vae.train/12", "vae.train"),
        (f"vae.train.o12.{made.id[:8]}", "vae.train"),
        (f"jit_step.add.5.{made.id[:8]}", "jit_step"),
        (f"step.{made.id[:8]}", "step"),
        ("alone", "alone"),
    ):
        assert replace(made, name=name).program == program


def test_seconds_are_told_by_what_is_near_or_usual() -> None:
    pytest.importorskip("lightgbm")
    samples = [
        replace(sample, seconds=np.array([1e-3 * 2.0 ** (at % 4)]))
        for at, sample in enumerate(fused_samples(6))
    ]
    usual = SECONDS["constant"](samples, 0)(samples[0])
    assert usual == pytest.approx(np.exp(np.median([np.log(s.seconds[0]) for s in samples])))
    for name in SECONDS:
        told = SECONDS[name](samples, 0)
        assert all(0.5e-3 <= told(sample) <= 16e-3 for sample in samples), name
