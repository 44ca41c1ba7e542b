"""Sums into elements found through an array, two turns of which may be the same one."""

from __future__ import annotations

from embeddb.kernels.nests.generate import c_function
from embeddb.nests.check import Legality
from embeddb.nests.examples import nest_of
from embeddb.nests.schedule import Schedule


def test_jammed_turns_in_parallel_have_copies_of_what_they_sum_into() -> None:
    bins = {"plus": [0], "of": [2, [0, 1]]}
    arrays = [["f32", [8], "zero"], ["f32", [64, 64]], ["i32", [64], "below:8"]]
    body = [["+=", [0, bins], ["read", 1, [0, 1], [0, 0, 1]], None]]
    nest = nest_of([64, 64], arrays, body, names=(["i", "k"], ["S", "A", "at"]))
    schedule = Schedule((0, 1), (0, 0), "second", inner="jam4")
    assert Legality(nest).reason(schedule) is None
    text = c_function(nest, schedule, "f")
    loops = [line for line in text.splitlines() if "omp parallel for" in line]
    assert loops and all("reduction(+ : S[:8])" in line for line in loops), text
