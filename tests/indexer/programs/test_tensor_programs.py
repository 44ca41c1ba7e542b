"""Our own tensor programs load, are the ones they were, and are what their models lower to.

`tests/fixtures/tensor_program_ids.json` is made anew, after the texts, by
`PYTHONPATH=. python tests/indexer/programs/test_tensor_programs.py`."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from embeddb.core.errors import UsageError
from embeddb.tensors.analysis import work_of
from indexer.programs.tensors import families, program, program_names, programs
from indexer.programs.tensors.cutting import distinct_kernels

IDS = Path(__file__).parents[2] / "fixtures" / "tensor_program_ids.json"
TEXTS = Path(__file__).parents[3] / "indexer" / "programs" / "tensors" / "texts"
SMALL = ("resnet.v2", "lstm.small", "transformer.small", "dlrm.train", "stencil.heat", "gcn.train")


def test_a_hundred_programs_of_forty_families() -> None:
    assert len(program_names()) >= 100
    assert len(families()) >= 40
    assert program_names() == sorted(json.loads(IDS.read_text()))


@pytest.mark.parametrize("name", SMALL)
def test_a_program_is_the_one_it_was(name: str) -> None:
    made = program(name)
    assert made.id == json.loads(IDS.read_text())[name]
    assert (made.kind, made.name, made.group) == ("program", name, name.partition(".")[0])


def test_what_ships_is_small() -> None:
    assert sum(path.stat().st_size for path in TEXTS.iterdir()) < 1_500_000


def test_texts_name_no_machine_and_no_source() -> None:
    for name in program_names():
        text = gzip.decompress((TEXTS / f"{name}.hlo.gz").read_bytes()).decode()
        assert text.startswith(f"HloModule {name}, ")
        assert "metadata" not in text
        assert "/" not in text


def test_a_program_there_is_not_is_refused() -> None:
    for name in ("resnet", "resnet.v9", "../lower", ""):
        with pytest.raises(UsageError, match="there is no program"):
            program(name)


@pytest.mark.slow
def test_all_are_the_ones_they_were() -> None:
    made = {one.name: one for one in programs()}
    assert {name: one.id for name, one in made.items()} == json.loads(IDS.read_text())
    assert len({one.id for one in made.values()}) == len(made)
    for one in made.values():
        # What is kept as one operation or in a table would not be counted, cut or tiled.
        opcodes = {op.opcode for op in one.operations}
        assert not opcodes & {"while", "conditional", "custom-call", "sort"}, one.name
        assert all("value" in op.attributes for op in one.operations if op.opcode == "constant")
        assert work_of(one).flops > 1e6, one.name


@pytest.mark.slow
def test_kernels_are_many_and_each_is_there_once() -> None:
    found = distinct_kernels(programs())
    assert len(found) >= 1200
    assert len({one.id for one in found}) == len({one.name for one in found}) == len(found)
    assert {one.group for one in found} == set(families())


@pytest.mark.parametrize("name", SMALL)
def test_the_text_is_what_the_model_lowers_to(name: str) -> None:
    pytest.importorskip("jax", reason="the extra jax makes programs anew")
    from tools.tensor_programs.lower import lowered, models, packed

    family, size = name.split(".")
    (model,) = (m for f, s, m in models() if (f, s) == (family, size))
    made = lowered(model, family, size)
    assert made.id == program(name).id
    assert packed(made) == (TEXTS / f"{name}.hlo.gz").read_bytes()


if __name__ == "__main__":
    IDS.write_text(json.dumps({one.name: one.id for one in programs()}, indent=0) + "\n")
