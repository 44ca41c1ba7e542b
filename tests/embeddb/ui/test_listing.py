"""A nest as text: what its loops and arrays are called, and what its turns are to each other."""

from __future__ import annotations

from embeddb.nests.examples import nest_of, sample_nests
from embeddb.nests.schedule import Schedule
from embeddb.ui.cli.workload_text import array_rows, dependence_lines, listing, loop_words

NESTS = sample_nests()


def test_loops_stand_one_inside_the_other() -> None:
    lines = listing(NESTS["triangular"]).splitlines()
    assert [len(line) - len(line.lstrip()) for line in lines] == [0, 2, 4]
    assert "i1 + 1" in lines[1] and lines[2].strip() == "a0[i1] += a1[i1][i2] * a2[i2]"


def test_a_schedule_is_listed_by_its_generated_loops() -> None:
    lines = listing(NESTS["transpose"], Schedule((1, 0), (8, 0), parallel="outer")).splitlines()
    assert len(lines) == 4 and "blocks of 8" in lines[0] and "in parallel" in lines[0]


def test_loops_are_independent_reductions_or_in_order() -> None:
    found = {name: loop_words(nest) for name, nest in NESTS.items()}
    assert found["matmul"] == ["independent", "independent", "a reduction"]
    assert found["masked_max"] == ["a reduction"]
    element = ["read", 0, [0, 1]]
    chain = nest_of([8], [["f32", [9]]], [["=", [0, [1, 1]], ["+", element, 1], None]])
    assert loop_words(chain) == ["in order"]
    assert dependence_lines(chain) == ["a0: distance (1)"]
    assert dependence_lines(NESTS["matmul"]) == ["a0: direction (0, 0, +), a reduction"]
    assert dependence_lines(NESTS["stencil"]) == []


def test_arrays_say_what_they_hold_and_how_they_are_used() -> None:
    assert array_rows(NESTS["spmv"]) == [
        ("a0", "f32", "16", "zero", "written"),
        ("a1", "f32", "64", "uniform", "read, pack read1"),
        ("a2", "i32", "64", "below:16", "read"),
        ("a3", "f32", "16", "uniform", "read"),
        ("a4", "i32", "17", "offsets:64", "read"),
    ]
