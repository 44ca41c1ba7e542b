"""Cuts annealed: legal, repeatable, and near the best there is where that is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from played_xla import CALL_S, EACH_S, PlayedModel, chain, crowded_s
from tensors import softmax

from embeddb.core.errors import ModelError
from embeddb.tensors.edges import CUT, Cut, edges_of
from embeddb.tensors.partition import CutJudge, Partition, random_cut
from embeddb.tensors.tensor_graph import TensorGraph
from tuners.fusion_cuts import CutPrices, CutSteps
from tuners.search import Annealer, anneal

#: Three kernels of four.
BEST_S = 3 * (CALL_S + 4 * EACH_S)


def walk(
    program: TensorGraph, start: Cut, prices: CutPrices, *, steps: int, seed: int = 0
) -> list[tuple[Cut, float]]:
    """What an annealer saw of a budget of so many new cuts."""
    annealer = Annealer(CutSteps(program), start, rng=np.random.default_rng(seed))
    found: list[tuple[Cut, float]] = []
    for cut, seconds in anneal(annealer, prices.seconds, lambda: float(len(found)), float(steps)):
        found.append((cut, seconds))
    return found


@pytest.mark.parametrize("start", ["whole", "single", "random"])
def test_the_best_of_a_chain_is_found_among_few_of_its_cuts(start: str) -> None:
    program = chain(12)
    edges = edges_of(program)
    begun = random_cut(program, np.random.default_rng(5)) if start == "random" else None
    told = walk(
        program,
        begun or getattr(edges, start),
        CutPrices(program, PlayedModel(crowded_s).seconds),
        steps=200,
    )
    assert len(told) <= 200 < 2 ** len(edges.pairs)
    assert min(seconds for _, seconds in told) == pytest.approx(BEST_S, rel=0.05)


def test_every_cut_is_legal_and_new_and_the_first_is_the_start() -> None:
    program = softmax()
    told = walk(
        program, edges_of(program).whole, CutPrices(program, PlayedModel().seconds), steps=50
    )
    cuts = [cut for cut, _ in told]
    assert cuts[0] == edges_of(program).whole and len(set(cuts)) == len(cuts) > 3
    assert {CutJudge(program).reason({CUT: cut.text}) for cut in cuts} == {""}


def test_the_same_seed_gives_the_same_cuts_and_another_others() -> None:
    program, start = chain(12), edges_of(chain(12)).single
    one, same, other = (
        walk(
            program, start, CutPrices(program, PlayedModel(crowded_s).seconds), steps=40, seed=seed
        )
        for seed in (0, 0, 1)
    )
    assert one == same != other


def test_it_ends_when_nothing_is_new() -> None:
    program = chain(3)
    told = walk(
        program, edges_of(program).whole, CutPrices(program, PlayedModel().seconds), steps=100
    )
    assert len(told) == 4


def test_what_fails_is_left_and_never_gone_to() -> None:
    program = chain(8)
    edges = edges_of(program)
    annealer = Annealer(CutSteps(program), edges.whole, rng=np.random.default_rng(0))
    assert annealer.ask() == edges.whole
    annealer.tell(edges.whole, math.inf, 0.0)
    other = annealer.ask()
    assert other != edges.whole
    annealer.tell(other, 1.0, 0.0)
    assert annealer.current == other
    for _ in range(50):
        annealer.tell(annealer.ask(), math.inf, 0.0)
    assert annealer.current == other


def test_it_cools() -> None:
    program = chain(12)
    worse = []
    for share in (0.0, 1.0):
        annealer = Annealer(
            CutSteps(program), edges_of(program).whole, rng=np.random.default_rng(0)
        )
        taken = 0
        for _ in range(200):
            annealer.current, annealer.seconds = edges_of(program).whole, 1.0
            annealer.tell(edges_of(program).single, 1.01, share)
            taken += annealer.current == edges_of(program).single
        worse.append(taken)
    assert worse[0] > 10 and worse[1] == 0


def test_a_price_is_the_sum_of_kernels_each_predicted_once() -> None:
    program, model = chain(12), PlayedModel(crowded_s)
    prices = CutPrices(program, model.seconds)
    rng = np.random.default_rng(0)
    for _ in range(20):
        cut = random_cut(program, rng)
        kernels = Partition.of(program, cut).kernels
        assert prices.seconds(cut) == pytest.approx(sum(crowded_s(p.kernel) for p in kernels))
    assert len(model.asked) == len(set(model.asked)) == prices.kernels


@pytest.mark.parametrize("said", [0.0, -1.0, math.nan, math.inf])
def test_what_a_model_cannot_say_is_never_best(said: float) -> None:
    program = chain(3)
    assert CutPrices(program, PlayedModel(lambda _: said).seconds).seconds(
        edges_of(program).whole
    ) == (math.inf)

    def refuses(_: TensorGraph) -> float:
        raise ModelError("predicts what is no number")

    assert (
        CutPrices(program, PlayedModel(refuses).seconds).seconds(edges_of(program).whole)
        == math.inf
    )
