"""`embeddb emit` of answers about tensor kernels and programs: tiles as C, fusion plans as HLO."""

from __future__ import annotations

import ctypes
import json
import random
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import run_verb
from hlo_texts import PERMUTED
from tensors import conv, dot_add, row_sum
from tile_kernels import silu, softmax

from embeddb.core.config import Config
from embeddb.core.errors import TensorError, UsageError
from embeddb.emit.emit import fusion_files
from embeddb.emit.tile import TileLibrary
from embeddb.kernels.build import compiler, exact_division
from embeddb.kernels.tiles.generate import flags
from embeddb.tensors.edges import Cut, edges_of
from embeddb.tensors.partition import Partition
from embeddb.tensors.tensor_graph import TensorGraph
from embeddb.tensors.tensor_text import tensor_text
from indexer.frontends.hlo.graph import program_of
from indexer.frontends.hlo.module import read_module
from indexer.programs.tensors import programs
from indexer.runners.tile_code.reference import evaluate, physical

needs_gcc = pytest.mark.skipif(compiler() is None, reason="needs gcc")
KERNELS = [
    (dot_add(100, 120, 64), "t1=16,t2=32,tr=32"),
    (row_sum(), "t1=8,tr=0"),
    (conv(), "t1=1,t2=4,t3=0,t4=0,tr=0"),
    (softmax(64, 128), "t1=8,t2=0,tr=0"),
]


def written(folder: Path, kernel: TensorGraph, config: str) -> TileLibrary:
    made = TileLibrary(kernel, Config.parse(config), prefix="k")
    folder.mkdir(exist_ok=True)
    for name, text in made.files().items():
        (folder / name).write_text(text)
    return made


def run_c(folder: Path, kernel: TensorGraph, arrays: list[Any]) -> list[Any]:
    """The outputs (flat, as they lie in memory) of the library that is written in a folder."""
    out = folder / "k.so"
    command = ["gcc", "-std=gnu11", "-w", *flags(), "-fPIC", "-shared", "-nostartfiles"]
    subprocess.run([*command, str(folder / "k.c"), "-lm", "-o", str(out)], check=True)
    library = ctypes.CDLL(str(out))
    library.k_scratch.restype = ctypes.c_size_t
    scratch = np.zeros(library.k_scratch() + 64, np.uint8)
    start = scratch.ctypes.data
    results = [np.zeros(kernel.operations[at].shape.elements, np.float32) for at in kernel.outputs]
    pointers = [ctypes.c_void_p(a.ctypes.data) for a in (*arrays, *results)]
    library.k_run(*pointers, ctypes.c_void_p(start + -start % 64))
    return results


@pytest.mark.gcc
@needs_gcc
@pytest.mark.parametrize(("kernel", "config"), KERNELS, ids=lambda v: getattr(v, "name", ""))
def test_a_tile_as_c_computes_the_kernel(kernel: TensorGraph, config: str, tmp_path: Path) -> None:
    written(tmp_path, kernel, config)
    rng = np.random.default_rng(3)
    shapes = [kernel.operations[at].shape for at in kernel.parameters]
    arrays = [rng.random(shape.elements, dtype=np.float32) for shape in shapes]
    for found, right, at in zip(
        run_c(tmp_path, kernel, arrays), evaluate(kernel, arrays), kernel.outputs, strict=True
    ):
        expected = physical(right.value, kernel.operations[at].shape)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.gcc
@needs_gcc
@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_its_makefile_and_test_pass_and_notice_what_is_wrong(tmp_path: Path) -> None:
    written(tmp_path, dot_add(40, 30, 24), "t1=8,t2=16,tr=0")
    done = subprocess.run(
        ["make", "-C", tmp_path, "check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and "warning" not in done.stderr, done.stderr
    words = [line.split()[0] for line in done.stdout.splitlines() if " s, median of " in line]
    assert words == ["untiled:", "tiled:"] and "0 of 960 elements differ" in done.stdout
    source = tmp_path / "k.c"
    source.write_text(source.read_text().replace("b0 += 8", "b0 += 16"))
    assert subprocess.run(["make", "-C", tmp_path, "check"], capture_output=True).returncode != 0


@pytest.mark.gcc
@needs_gcc
@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_its_test_compares_with_exact_arithmetic(tmp_path: Path) -> None:
    written(tmp_path, silu(), "t1=8,t2=0,tr=0")
    done = subprocess.run(["make", "-C", tmp_path, "check"], capture_output=True, text=True)
    assert done.returncode == 0 and "0 of 960 elements differ" in done.stdout, done.stdout
    makefile = tmp_path / "Makefile"
    if exact_division(compiler()[0]):  # type: ignore[index]
        makefile.write_text(makefile.read_text().replace("$(CFLAGS) $(EXACT)", "$(CFLAGS)"))
        subprocess.run(["make", "-C", tmp_path, "clean"], capture_output=True, check=True)
        assert subprocess.run(["make", "-C", tmp_path, "check"], capture_output=True).returncode


def test_what_is_no_tile_of_it_is_refused() -> None:
    with pytest.raises(UsageError, match="no tile of"):
        TileLibrary(dot_add(), Config.parse("t1=5,t2=0,tr=0"))
    with pytest.raises(UsageError, match="prefix"):
        TileLibrary(dot_add(), Config.parse("t1=8,t2=0,tr=0"), prefix="untiled")
    with pytest.raises(TensorError, match="no tiles"):
        TileLibrary(dot_add(kind="program"), Config.parse("t1=8,t2=0,tr=0"))


def test_the_verb_takes_an_answer_about_a_kernel(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db, file, place = str(tmp_path / "t.db"), tmp_path / "k.json", tmp_path / "c"
    file.write_bytes(tensor_text(dot_add()))
    run_verb(["kernel", "import", db, str(file)])
    run_verb(["query", db, str(file), "--platform", "tile-cpu", "--op", "tile"])
    capsys.readouterr()
    for answer in ("last", str(file)):
        assert run_verb(["emit", db, answer, "-o", str(place), "--prefix", "fast", "--json"]) == 0
        made = json.loads(capsys.readouterr().out)
        assert made["op"] == "tile" and made["prefix"] == "fast"
        assert {one.name for one in place.iterdir()} == {*made["files"], "embeddb.json"}
    texts = "".join(one.read_text() for one in place.iterdir())
    assert "@" not in texts.replace("$@", "")
    run_verb(["query", db, str(file), "--platform", "xla-cpu", "--op", "fused"])
    assert run_verb(["emit", db, "last", "-o", str(place)]) == 2


# -- fusion plans ----------------------------------------------------------------------------------


def plans(program: TensorGraph) -> list[Cut]:
    edges, draw = edges_of(program), random.Random(program.id)
    some = edges.mended(Cut(tuple(draw.random() < 0.4 for _ in edges.pairs)))
    return [edges.whole, edges.single, some]


PROGRAMS = [one for one in programs() if one.name.endswith(".small")][::25]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.name)
def test_a_plan_as_hlo_calls_its_kernels(program: TensorGraph) -> None:
    for cut in plans(program):
        files = fusion_files(program, Config({"cut": cut.text}))
        partition = Partition.of(program, cut)
        fused = read_module(files["fused.hlo"])
        assert not fused.optimised  # XLA refuses most fusions that it has not made itself
        called = [name for name in fused.bodies if name[:6] == "kernel"]
        alone = [program_of(read_module(files[name])) for name in files if name[:6] == "kernel"]
        ids = [program_of_kernel(placed.kernel).id for placed in partition.kernels]
        assert [one.id for one in alone] == ids
        assert [program_of(replace(fused, entry=name)).id for name in called] == ids
        assert program_of(read_module(files["program.hlo"])).id == program.id


def program_of_kernel(kernel: TensorGraph) -> TensorGraph:
    from indexer.frontends.hlo.printer import hlo_text

    return program_of(read_module(hlo_text(kernel)))


def test_a_plan_as_hlo_computes_the_program() -> None:
    program = dot_add(24, 16, 8, kind="program")
    rng = np.random.default_rng(1)
    arrays = {
        str(program.operations[at].shape.dims): rng.random(
            program.operations[at].shape.elements, dtype=np.float32
        )
        for at in program.parameters
    }

    def value(made: TensorGraph) -> Any:
        shapes = [made.operations[at].shape for at in made.parameters]
        return evaluate(made, [arrays[str(shape.dims)] for shape in shapes])[0].value

    expected = value(program)
    for cut in plans(program):
        files = fusion_files(program, Config({"cut": cut.text}))
        np.testing.assert_allclose(value(program_of(read_module(files["fused.hlo"]))), expected)


def test_a_plan_as_hlo_has_the_parameters_of_the_program() -> None:
    program = program_of(read_module(PERMUTED))
    for cut in plans(program):
        files = fusion_files(program, Config({"cut": cut.text}))
        for name in ("program.hlo", "fused.hlo"):
            again = program_of(read_module(files[name]))
            assert (again.id, again.signature) == (program.id, program.signature), name


def test_the_verb_takes_an_answer_about_a_program(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db, file, place = str(tmp_path / "t.db"), tmp_path / "p.json", tmp_path / "hlo"
    file.write_bytes(tensor_text(dot_add(kind="program")))
    run_verb(["kernel", "import", db, str(file)])
    run_verb(["query", db, "dot_add_64", "--platform", "xla-cpu", "--op", "fusion"])
    capsys.readouterr()
    assert run_verb(["emit", db, "last", "-o", str(place)]) == 0
    assert "XLA takes no fusion plan" in capsys.readouterr().out
    assert {"fused.hlo", "program.hlo", "kernel_000.hlo"} <= {p.name for p in place.iterdir()}
    assert run_verb(["emit", db, "last", "-o", str(place), "--prefix", "x"]) == 2
    with pytest.raises(TensorError, match="of another program"):
        fusion_files(dot_add(kind="program"), Config({"cut": "9:000"}))
