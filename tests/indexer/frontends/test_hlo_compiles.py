"""What is written as HLO, compiled by XLA: the results are those of the module it was read from.

Skipped where jax is not installed (it is no dependency, and needs none of ours).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hlo_texts import FOLDER, NAMES, OPAQUE

from embeddb.tensors.tensor_graph import TensorGraph
from indexer.frontends.hlo.files import read_tensors
from indexer.frontends.hlo.module import read_module
from indexer.frontends.hlo.printer import hlo_text

jax = pytest.importorskip("jax")

RUN = [name for name in NAMES if name not in OPAQUE]


def built(text: str) -> Any:
    from jaxlib import _hlo, _jax, xla_client

    module = _hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()
    device = jax.devices("cpu")[0]
    return device.client.compile_and_load(
        _jax.mlir.hlo_to_stablehlo(module),
        _jax.DeviceList((device,)),
        xla_client.CompileOptions(),
    )


def ran(text: str, given: list[Any]) -> list[np.ndarray[Any, Any]]:
    arrays = [jax.numpy.asarray(one) for one in given]
    shards = built(text).execute_sharded(arrays).disassemble_into_single_device_arrays()
    return [np.asarray(one[0]) for one in shards]


def random_input(made: TensorGraph, at: int, rng: np.random.Generator) -> Any:
    shape = made.operations[at].shape
    if shape.dtype == "s32":
        return rng.integers(0, 4, shape.dims, dtype=np.int32)
    return rng.standard_normal(shape.dims).astype(np.float32)


@pytest.mark.parametrize("name", RUN)
def test_programs_give_what_their_module_gives(name: str) -> None:
    text = (FOLDER / f"{name}.before.txt").read_text()
    (made,) = read_tensors(FOLDER / f"{name}.before.txt").tensors
    module = read_module(text)
    entry = module.bodies[module.entry].instructions.values()
    numbers = {one.name: int(one.literal) for one in entry if one.opcode == "parameter"}
    rng = np.random.default_rng(0)
    given = {made.names[at]: random_input(made, at, rng) for at in made.parameters}
    wanted = ran(text, [given[one] for one in sorted(numbers, key=numbers.__getitem__)])
    found = ran(hlo_text(made), [given[one] for one in sorted(numbers, key=numbers.__getitem__)])
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", RUN)
def test_kernels_compile(name: str) -> None:
    for kernel in read_tensors(FOLDER / f"{name}.after.txt").tensors:
        built(hlo_text(kernel))
