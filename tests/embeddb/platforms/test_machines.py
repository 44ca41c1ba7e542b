"""How unlike two machines are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embeddb.platforms.machines import described, display_name, fact_names, machine_words, unlike

ZEN = {"cpu": "AMD EPYC (25/17/1)", "threads": "2", "compiler": "gcc (Debian) 12", "l2_bytes": "1"}
_TEXTS = st.sampled_from(["", "1", "2", "64", "1e9", "nan", "inf", "-3", "gcc 12", "x\x00y"])
_FACTS = st.dictionaries(st.sampled_from([*fact_names(), "flags", "other"]), _TEXTS)


@given(_FACTS, _FACTS)
def test_it_is_a_symmetric_finite_number_for_any_facts(
    one: dict[str, str], other: dict[str, str]
) -> None:
    assert unlike(one, other) == unlike(other, one) >= 0.0
    assert unlike(one, other) < 1e6


def test_the_same_machine_is_like_itself_and_nothing_is_known_of_one_without_facts() -> None:
    assert unlike(ZEN, ZEN) == 0.0
    assert unlike(ZEN, {}) == unlike({}, {}) == 1.0


@pytest.mark.parametrize(
    ("change", "far"),
    [
        ({"threads": "4"}, 1.0),
        ({"threads": "1"}, 1.0),
        ({"compiler": "gcc (Debian) 13"}, 0.0),  # the instance says so; schedules hardly care
        ({"compiler": "Debian clang version 14"}, 0.25),
        ({"cpu": "another"}, 0.25),
        ({"vector_bytes": "32"}, 0.0),  # only one of them tells
    ],
)
def test_what_counts(change: dict[str, str], far: float) -> None:
    assert unlike(ZEN, {**ZEN, **change}) == far


def test_the_vector_width_is_read_from_the_flags_where_they_name_a_level() -> None:
    narrow = {**ZEN, "flags": "-O3 -march=x86-64-v3"}
    wide = {**ZEN, "flags": "-O3 -march=native", "vector_bytes": "64"}
    assert unlike(narrow, wide) == 1.0
    assert unlike(narrow, {**ZEN, "flags": "-march=x86-64-v2"}) == 1.0


@pytest.mark.parametrize(
    ("facts", "name"),
    [
        ({}, "cpu@1234"),
        ({"threads": "2"}, "cpu@1234"),
        ({"cpu": "AMD EPYC (26/2/1)", "threads": "2"}, "cpu: AMD Zen 5, 2 threads"),
        ({"cpu": "AMD EPYC (25/17/1)", "threads": "1"}, "cpu: AMD Zen 4, 1 thread"),
        ({"cpu": "AMD EPYC (25/1/1)"}, "cpu: AMD Zen 3"),
        ({"cpu": "AMD Ryzen 9 (99/1/1)"}, "cpu: AMD Ryzen 9"),
        ({"cpu": "Intel(R) Xeon(R) Processor @ 2.80GHz (6/106/6)"}, "cpu: Intel Ice Lake-SP"),
        ({"cpu": "Intel(R) Xeon(R) CPU @ 2.80GHz (6/1/6)"}, "cpu: Intel Xeon"),
        ({"cpu": "Zen"}, "cpu: Zen"),
        (
            {"cpu": "Zen", "compiler": "gcc (Debian 12.2.0-14+deb12u1) 12.2.0"},
            "cpu: Zen, gcc 12",
        ),
        ({"cpu": "Zen", "compiler": "Debian clang version 14.0.6"}, "cpu: Zen, clang 14"),
        ({"cpu": "Zen", "compiler": "tcc"}, "cpu: Zen, tcc"),
        ({"cpu": "Zen", "flags": "-O3 -march=x86-64-v2"}, "cpu: Zen, x86-64-v2"),
        ({"cpu": "Zen", "flags": "-O3 -march=native"}, "cpu: Zen"),
        ({"gpu": "NVIDIA H200", "toolkit": "13.0"}, "cpu: NVIDIA H200, CUDA 13.0"),
        ({"gpu": "NVIDIA H200"}, "cpu: NVIDIA H200"),
    ],
)
def test_a_name_for_people(facts: dict[str, str], name: str) -> None:
    assert display_name("cpu@1234", facts) == name


def test_facts_of_a_gpu_in_words() -> None:
    facts = {"gpu": "NVIDIA H200", "toolkit": "13.0", "l2_bytes": "62914560", "copy_gb_s": "4290"}
    assert machine_words(facts) == "NVIDIA H200, CUDA 13.0"
    assert ("second level cache", "60 MiB") in described(facts)
    assert ("copies 1 GiB, reads and writes", "4290 GB/s") in described(facts)
    assert unlike(facts, {**facts, "gpu": "NVIDIA A100", "copy_gb_s": "2145"}) == 0.35
