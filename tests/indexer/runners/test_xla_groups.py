"""The fusions of an optimised module, read as a cut; no jax is needed."""

from __future__ import annotations

from tensors import softmax

from embeddb.tensors.edges import Cut, edges_of
from embeddb.tensors.partition import Partition
from indexer.runners.xla_code.measuring import cut_of

OPTIMISED = """HloModule jit_softmax, is_scheduled=true

%fused_computation (param_0: f32[8,16]) -> f32[8] {
  %param_0 = f32[8,16]{1,0} parameter(0)
  %exp.1 = f32[8,16]{1,0} exponential(%param_0), metadata={op_name="o1"}
  %constant.0 = f32[] constant(0), metadata={op_name="o2"}
  ROOT %reduce = f32[8]{0} reduce(%exp.1, %constant.0), metadata={op_name="jit(f)/o3"}
}

%fused_computation.1 (param_0.1: f32[8,16], param_1: f32[8]) -> f32[8,16] {
  %exp.2 = f32[8,16]{1,0} exponential(%param_0.1), metadata={op_name="o1"}
  %broadcast = f32[8,16]{1,0} broadcast(%param_1), dimensions={0}, metadata={op_name="o4"}
  ROOT %divide = f32[8,16]{1,0} divide(%exp.2, %broadcast), metadata={op_name="o5"}
}

ENTRY %main (p: f32[8,16]) -> f32[8,16] {
  %p = f32[8,16]{1,0} parameter(0), metadata={op_name="o0"}
  %a = f32[8]{0} fusion(%p), kind=kLoop, calls=%fused_computation, metadata={op_name="o3"}
  ROOT %b = f32[8,16]{1,0} fusion(%p, %a), kind=kLoop, calls=%fused_computation.1
}
"""


def test_what_is_computed_in_two_fusions_goes_with_the_first() -> None:
    program = softmax()
    partition = Partition.of(program, cut_of(program, OPTIMISED))
    assert [[program.names[at] for at in members] for members in partition.members] == [
        ["exp", "sum"],
        ["wide", "div"],
    ]


def test_what_no_fusion_names_goes_with_its_operand() -> None:
    program = softmax()
    told = OPTIMISED.replace('metadata={op_name="o4"}', "")
    partition = Partition.of(program, cut_of(program, told))
    assert [program.names[at] for at in partition.members[0]] == ["exp", "sum", "wide"]


def test_a_module_that_names_nothing_leaves_each_by_itself() -> None:
    program = softmax()
    assert cut_of(program, "HloModule empty\n") == edges_of(program).single
    assert cut_of(program, OPTIMISED.replace("o", "x")) == Cut((True,) * 4)
