"""Kernels that are made up: the same everywhere, of every kind, and legal."""

from __future__ import annotations

import hashlib
from collections import Counter

import pytest

from embeddb.tensors.analysis import FREE, work_of
from embeddb.tensors.tensor_graph import TensorGraph, is_probe
from indexer.frontends.hlo.printer import hlo_text
from indexer.programs.tensors import probes, programs
from indexer.programs.tensors.cutting import distinct_kernels
from tools.tensor_programs.probes import generate_probes


@pytest.fixture(scope="module")
def made() -> list[TensorGraph]:
    return probes()


def test_they_are_the_same_on_every_machine(made: list[TensorGraph]) -> None:
    digest = hashlib.blake2b("\n".join(one.id for one in made).encode(), digest_size=8).hexdigest()
    assert (len(made), digest) == (13907, "a5aada49768091e5")
    assert len({one.id for one in made}) == len({one.name for one in made}) == len(made)


@pytest.mark.slow
def test_the_generator_writes_the_file_that_ships(made: list[TensorGraph]) -> None:
    assert generate_probes() == made


def test_no_figure_is_about_them(made: list[TensorGraph]) -> None:
    assert all(is_probe(one.group) for one in made)
    assert not any(is_probe(one.group) for one in distinct_kernels(programs())[:50])
    assert min(Counter(one.group for one in made).values()) >= 15


def test_xla_takes_their_text_and_none_is_large(made: list[TensorGraph]) -> None:
    for one in made:
        assert "ENTRY" in hlo_text(one)
        work = work_of(one)
        assert work.flops < 3e8 and work.bytes < 1e8, one.name


def test_every_operation_of_our_programs_is_among_them(made: list[TensorGraph]) -> None:
    there = {op.opcode for one in made for op in one.operations}
    wanted = {op.opcode for one in distinct_kernels(programs()) for op in one.operations}
    assert wanted - there - FREE - {"clamp", "and", "or", "not"} == set()
