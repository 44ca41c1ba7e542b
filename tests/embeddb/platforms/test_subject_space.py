"""Spaces and defaults of nests; sizes and conditions in platform files of nests."""

from __future__ import annotations

import itertools

import pytest
from measured_nests import OP, here
from nest_shapes import product, stencil, sweep

from embeddb.core.config import Config, Op
from embeddb.core.errors import PlatformError, UsageError
from embeddb.core.kinds import kind_of
from embeddb.core.records import WorkloadInfo
from embeddb.nests.examples import sample_nests
from embeddb.nests.nest import Nest
from embeddb.platforms.check import check_platform
from embeddb.platforms.platform import Platform, default_of, load_platform, parse_platform, space_of

#: A platform with only some of the parameters, and a default of its own.
OWN = """
name = "dsp"
version = "1"
title = "A processor with one way to split a loop"

[[space]]
kernels = ["nest"]
constraints = [{constraint}]

[space.params]
parallel = {{ type = "choice", values = ["none", "outer"] }}
tile_1 = {{ type = "int", values = [{values}], when = "DEPTH >= 1" }}
dma = {{ type = "int", values = [1, 2], when = "{when}" }}

[space.default]
parallel = "{parallel}"
"""


def own(
    *,
    constraint: str = "",
    values: str = "0, 8",
    when: str = "DEPTH >= 2",
    parallel: str = "outer",
) -> Platform:
    text = OWN.format(constraint=constraint, values=values, when=when, parallel=parallel)
    return parse_platform(text)


def test_the_dependences_of_a_nest_are_rules_of_its_space() -> None:
    space = space_of(here(), OP, sweep())
    assert default_of(here(), OP, sweep())["parallel"] == "none"
    told = space.reason(default_of(here(), OP, sweep()).replace(order_2=("2", "1")))
    assert told is not None and "A depends on its own element" in told
    free = space_of(here(), OP, stencil())
    assert free.reason(default_of(here(), OP, stencil()).replace(order_2=("2", "1"))) is None


def test_of_a_nest_known_by_name_only_its_sizes_decide() -> None:
    info = WorkloadInfo.of(sweep())
    space = space_of(here(), OP, info)
    swapped = default_of(here(), OP, sweep()).replace(order_2=("2", "1"))
    assert space.reason(swapped) is None
    assert "2 * tile_1 <= TRIP_1" in str(
        space_of(here(), OP, WorkloadInfo.of(stencil(12))).reason(swapped.replace(tile_1=8))
    )


def test_what_is_carried_over_is_told() -> None:
    assert kind_of("nest").transfer_note(here()).endswith("transferred loop by loop")
    assert (
        kind_of("nest").transfer_note(own()).endswith("voted on as a whole; not of a schedule: dma")
    )
    plain = OWN.replace("parallel", "mode").replace("tile_1", "rows")
    text = plain.format(constraint="", values="0, 8", when="rows == 8", mode="outer")
    assert (
        kind_of("nest")
        .transfer_note(parse_platform(text))
        .startswith("configurations are voted on as a whole")
    )


def test_a_platform_is_checked_on_nests() -> None:
    assert check_platform(own()) == []
    text = OWN.format(constraint="", values="0, 8", when="DEPTH >= 2", parallel="outer")
    jam = text.replace(
        "[space.params]",
        """[space.params]
inner = { type = "choice", values = ["jam4"] }""",
    )
    problems = check_platform(parse_platform(jam + 'inner = "jam4"\n'))
    assert any("for the nest masked_max_64" in line for line in problems), problems


@pytest.mark.parametrize("nest", sample_nests(32).values(), ids=repr)
def test_every_default_is_legal(nest: Nest) -> None:
    for platform in (here(), own(), own(parallel="none"), own(values="8, 16")):
        default = default_of(platform, OP, nest)
        assert space_of(platform, OP, nest).reason(default) is None, (platform.name, default)


def test_the_default_is_the_nest_as_it_stands_with_what_the_file_says() -> None:
    default = default_of(here(), OP, product())
    assert default == Config(
        {
            "order_3": ("1", "2", "3"),
            **{f"tile_{at}": 0 for at in (1, 2, 3)},
            **{"parallel": "outer", "schedule": "static", "inner": "plain", "pack": "none"},
        }
    )
    assert default_of(own(parallel="none"), OP, product()) == Config(
        {"parallel": "none", "tile_1": 0, "dma": 1}
    )


def test_a_default_that_a_nest_forbids_gives_way() -> None:
    assert default_of(own(), OP, product())["parallel"] == "outer"
    assert default_of(own(), OP, sweep())["parallel"] == "none"


def test_a_space_that_lacks_the_nest_as_it_stands_has_the_nearest() -> None:
    platform = own(values="8, 16")
    assert default_of(platform, OP, product())["tile_1"] == 8
    assert len(list(space_of(platform, OP, product()).enumerate())) == 2 * 2 * 2


def test_a_parameter_may_depend_on_the_depth() -> None:
    platform = own()
    assert "dma" in default_of(platform, OP, product())
    assert "dma" not in default_of(platform, OP, sample_nests()["masked_max"])


@pytest.mark.parametrize(
    ("said", "changes"),
    [
        ("a condition cannot use 'TRIP_1'", {"when": "TRIP_1 >= 2"}),
        ("NUM_MATRIX_ROWS", {"constraint": '"tile_1 <= NUM_MATRIX_ROWS"'}),
        ("WIDTH", {"when": "WIDTH == 1"}),
        ("TRIP_7", {"constraint": '"tile_1 <= TRIP_7"'}),
        ("NNZ", {"values": '0, "NNZ"'}),
    ],
)
def test_sizes_of_the_wrong_kind_are_refused(said: str, changes: dict[str, str]) -> None:
    with pytest.raises(PlatformError, match=said) as caught:
        own(**changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("size", ["DEPTH", "TRIP_1"])
def test_a_matrix_has_no_sizes_of_a_nest(size: str) -> None:
    text = OWN.replace('"nest"', '"spmv"').replace(', when = "DEPTH >= 1"', "")
    with pytest.raises(PlatformError, match=size):
        parse_platform(
            text.format(
                constraint=f'"tile_1 <= {size}"',
                values="0, 8",
                when="tile_1 == 8",
                parallel="outer",
            )
        )


def test_the_shipped_file_has_a_legal_schedule_of_every_depth() -> None:
    for depth in range(1, 7):
        sizes = {"DEPTH": depth, **{f"TRIP_{at}": 64 for at in range(1, depth + 1)}}
        info = WorkloadInfo(id="0" * 32, kind="nest", named=sizes)
        space = space_of(here(), OP, info)
        names = {name for config in itertools.islice(space.enumerate(), 50) for name in config}
        assert {f"tile_{at}" for at in range(1, depth + 1)} <= names
        assert (f"order_{depth}" in names) == (depth > 1) and "tile_7" not in names


def test_nest_is_an_operation_of_its_own() -> None:
    op = Op("nest")
    assert (str(op), op.width, op.kind, Op.parse("nest")) == ("nest", 1, "nest", op)
    for wrong in ("nest:4", "nest:1:f64"):
        with pytest.raises(UsageError):
            Op.parse(wrong)
    assert here().ops == ("nest",)
    with pytest.raises(UsageError):
        load_platform("nest-cpu").space(Op("spmv"))
