"""Many configurations judged at once, against one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from measured_nests import OP, here
from ruled_nests import gauss_seidel, skewed, transpose_in_place

from embeddb.core.config import Config
from embeddb.nests.check import NestJudge
from embeddb.nests.dependence.legality import Legality
from embeddb.nests.examples import sample_nests
from embeddb.nests.nest import Nest
from embeddb.nests.schedule import Schedule
from embeddb.platforms.platform import space_of
from embeddb.platforms.space import quantity
from embeddb.platforms.space.quantity import EncodedConfigs
from embeddb.platforms.space.rules import Param
from embeddb.platforms.space.screen import screened
from embeddb.platforms.space.space import ConfigSpace

#: Every kind of parameter, with conditions on sizes, on parameters, and on what comes out of both.
PARAMS = (
    Param("rows", "int", (1, 4, 16, "NUM_MATRIX_ROWS")),
    Param("form", "choice", ("csr", "ell"), aliases=(("CSR", "csr"),), open=True),
    Param("fast", "bool", (0, 1)),
    Param("order", "permutation", ("i", "j"), when="fast == 1"),
    Param("width", "int", (2, 8), when="form == 'ell'"),
)
CONSTRAINTS = (
    "rows <= NUM_MATRIX_COLS or fast == 0",
    "width * 2 <= NNZ",
    "form != 'ell' or rows != 16",
)
#: The parameters of a nest: which there are depends on its depth.
NESTED = (
    Param("tile_1", "int", (0, 8)),
    Param("tile_2", "int", (0, 8), when="DEPTH >= 2"),
    Param("deep", "choice", ("a", "b"), when="tile_2 == 8"),
)

VALUES: dict[str, Sequence[Any]] = {
    "rows": (1, 4, 16, 9, 100, "NUM_MATRIX_ROWS", True, "x"),
    "form": ("csr", "ell", "CSR", "coo", "Ell", 7),
    "fast": (0, 1, True, False, 2),
    "order": (("i", "j"), ("j", "i"), ("i",), "i"),
    "width": (2, 8, 2.5, 16),
    "tile_1": (0, 8, 4),
    "tile_2": (0, 8),
    "deep": ("a", "b", "c"),
    "strange": (1,),
}


#: A legal configuration of each; what is drawn differs from it by little.
PLAIN = Config({"rows": 4, "form": "csr", "fast": 0})
SHALLOW = Config({"tile_1": 8, "tile_2": 8, "deep": "a"})


def configs(base: Config, names: Sequence[str]) -> st.SearchStrategy[list[Config]]:
    changed = st.one_of(
        *(st.tuples(st.just(name), st.sampled_from([None, *VALUES[name]])) for name in names)
    )
    one = st.lists(changed, max_size=3).map(
        lambda changes: Config(
            {name: value for name, value in {**base, **dict(changes)}.items() if value is not None}
        )
    )
    return st.lists(one, max_size=12)


def shaped(space: ConfigSpace, config: Config) -> bool:
    """Whether it has the parameters that the structural sizes call for."""
    return space.needed <= config.keys() and space.barred.isdisjoint(config)


def check(space: ConfigSpace, told: Sequence[Config]) -> None:
    rows, refused = screened(space, EncodedConfigs(told))
    assert rows.tolist() == [at for at, config in enumerate(told) if shaped(space, config)]
    one_by_one = {at: space.reason(told[at]) for at in rows.tolist()}
    assert refused == {at: why for at, why in one_by_one.items() if why is not None}


@given(
    configs(PLAIN, ["rows", "form", "fast", "order", "width", "strange"]),
    st.dictionaries(
        st.sampled_from(["NUM_MATRIX_ROWS", "NUM_MATRIX_COLS", "NNZ"]), st.sampled_from([4, 9, 20])
    ),
    st.booleans(),
)
def test_what_is_said_of_many_is_said_of_each(
    told: list[Config], sizes: dict[str, int], less: bool
) -> None:
    space = ConfigSpace(PARAMS, CONSTRAINTS).bind(sizes)
    check(space.without(["rows == 4 and fast == 1"], "it varies") if less else space, told)


@given(configs(SHALLOW, ["tile_1", "tile_2", "deep", "strange"]), st.sampled_from([{}, 1, 2]))
def test_the_shape_depends_on_structural_sizes(told: list[Config], depth: Any) -> None:
    space = ConfigSpace(NESTED, ["tile_1 <= TRIP_1"], kind="nest")
    check(space.bind({"DEPTH": depth, "TRIP_1": 4} if depth else {}), told)


@given(configs(PLAIN, ["rows", "form", "fast"]))
def test_combinations_that_are_too_many_to_number_are_numbered_anew(told: list[Config]) -> None:
    space = ConfigSpace(PARAMS[:3], ["rows + 8 * fast < 12 or form == 'ell'"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantity, "_MOST_KEYS", 8)
        check(space, told)


def schedules(nest: Nest, count: int) -> list[Config]:
    """By chance, near the nest as it stands; the last is of another depth."""
    rng = np.random.default_rng(count)

    def drawn(depth: int) -> Config:
        order = rng.permutation(depth) if rng.random() < 0.5 else np.arange(depth)
        return Schedule(
            tuple(order.tolist()),
            tuple(rng.choice([0, 0, 0, 4, 8], size=depth).tolist()),
            str(rng.choice(["none", "outer", "second"])),
            inner=str(rng.choice(["plain", "simd", "unroll4", "jam4"])),
            pack=str(rng.choice(["none", "none", "read1", "read2"])),
        ).config

    return [drawn(nest.depth) for _ in range(count)] + [drawn(1 + nest.depth % 6)]


NESTS = [*sample_nests(32).values(), gauss_seidel(32), skewed(32), transpose_in_place(32)]


@pytest.mark.parametrize("nest", NESTS, ids=repr)
def test_a_nest_judges_many_as_each(nest: Nest) -> None:
    told = schedules(nest, 150)
    space = space_of(here(), OP, nest)
    check(space, told)
    judge = NestJudge(nest)
    for config in (c for c in told if shaped(space, c)):
        # Without anything remembered of the schedules before.
        assert judge.reason(config) == (
            Legality(nest).reason(Schedule.of(config, nest.depth)) or ""
        )
