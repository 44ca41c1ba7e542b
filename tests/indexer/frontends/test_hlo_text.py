"""HLO text as tensor kernels and programs."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import pytest
from hlo_texts import FOLDER, NAMES, OPAQUE, PERMUTED, PLAIN, TILED, TYPED, entry
from tensors import dot_add

from embeddb.core.errors import TensorError
from embeddb.tensors.tensor_graph import Operation, Shape, TensorGraph
from embeddb.tensors.tensor_text import tensor_from_text, tensor_text
from indexer.frontends.hlo.files import read_tensors, tensor_files
from indexer.frontends.hlo.graph import kernels_of, program_of
from indexer.frontends.hlo.module import read_module
from indexer.frontends.hlo.printer import hlo_text


def program(text: str) -> TensorGraph:
    return program_of(read_module(text))


def of(made: TensorGraph, opcode: str) -> Operation:
    return next(op for op in made.operations if op.opcode == opcode)


def only(*lines: str) -> Operation:
    """The operation that the last of these instructions is."""
    made = program(entry(*lines))
    return made.operations[made.outputs[0]]


@pytest.mark.parametrize("text", [TYPED, TILED])
def test_versions_of_the_text_say_the_same(text: str) -> None:
    made = program(text)
    assert made == program(PLAIN)
    assert (made.name.partition(".")[0], made.names) == ("dense", ("x.1", "w.1", "dot.3", "tanh.1"))
    assert of(made, "dot").attributes == {"lhs_contracting": (1,), "rhs_contracting": (0,)}


@pytest.mark.parametrize("name", NAMES)
def test_modules_before_and_after_optimisation(name: str) -> None:
    before, after = (read_tensors(FOLDER / f"{name}.{when}.txt") for when in ("before", "after"))
    (whole,) = before.tensors
    assert (whole.kind, whole.name, whole.group) == ("program", name, name)
    assert {one.kind for one in after.tensors} == {"kernel"}
    assert all(one.name.startswith(f"{name}.") for one in after.tensors)
    assert bool(before.notes) == (name in OPAQUE)
    given = {op.shape.dims for op in whole.operations if op.opcode == "parameter"}
    taken = {k.operations[at].shape.dims for k in after.tensors for at in k.parameters}
    assert given <= taken or name in OPAQUE
    for one in (*before.tensors, *after.tensors):
        assert tensor_from_text(tensor_text(one)) == one


@pytest.mark.parametrize("name", [name for name in NAMES if name not in OPAQUE])
def test_what_is_written_is_read_as_the_same(name: str) -> None:
    (whole,) = read_tensors(FOLDER / f"{name}.before.txt").tensors
    assert program(hlo_text(whole)) == whole
    for kernel in read_tensors(FOLDER / f"{name}.after.txt").tensors:
        again = replace(program(hlo_text(kernel)), kind="kernel")
        # A bitcast, also of a comparator, is written as what it stands for.
        if b"bitcast" not in tensor_text(replace(kernel, names=())):
            assert again == kernel
        assert [again.operations[at].shape for at in again.outputs] == [
            kernel.operations[at].shape for at in kernel.outputs
        ]


def test_calls_are_inlined_and_the_root_tuple_is_dropped() -> None:
    (lstm,) = read_tensors(FOLDER / "lstm.before.txt").tensors
    opcodes = {op.opcode for op in lstm.operations}
    assert not opcodes & {"call", "tuple", "get-tuple-element", "fusion"}
    assert len(lstm.outputs) == 2
    assert [lstm.operations[at].shape.dims for at in lstm.outputs] == [(16, 64), (16, 64)]


def test_a_text_of_the_fixture_has_the_id_of_its_computation() -> None:
    assert program(hlo_text(dot_add(kind="program"))) == dot_add(kind="program")


def test_parameters_and_outputs_are_written_as_they_were_read() -> None:
    made = program(PERMUTED)
    in_order = program(
        entry(
            "x = f32[4,8] parameter(0)",
            "w = f32[8,2] parameter(1)",
            "dot = f32[4,2] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
            "b = f32[4,2] parameter(2)",
            "y = f32[4,2] add(dot, b)",
            "ROOT t = (f32[4,2], f32[4,2]) tuple(y, dot)",
        )
    )
    assert made.id == in_order.id and in_order.signature is None
    assert made.signature is not None
    x, w, b = made.parameters
    number = Shape("f32")
    assert made.signature.parameters == (w, Shape("s4", (3,)), number, x, b)
    assert made.signature.outputs == (made.outputs[0], made.outputs[1], made.outputs[0])
    text = hlo_text(tensor_from_text(tensor_text(made)))
    assert "(f32[8,2]{1,0}, s4[3]{0}, f32[], f32[4,8]{1,0}, f32[4,2]{1,0})->" in text
    assert "//" not in text
    again = program(text)
    assert (again.id, again.signature) == (made.id, made.signature)


def test_parameters_of_an_unknown_order_are_named_in_a_comment() -> None:
    text = hlo_text(replace(program(PERMUTED), signature=None))
    assert [line for line in text.splitlines() if line.startswith("//")] == [
        "// parameter 0 = x",
        "// parameter 1 = w",
        "// parameter 2 = b",
    ]
    assert program(text) == program(PERMUTED)


def test_a_kernel_has_the_operands_of_its_fusion() -> None:
    lines = ("a = f32[4] parameter(0)", "b = f32[4] parameter(1)")
    text = entry(*lines, "ROOT y = f32[4] fusion(b, a), kind=kLoop, calls=f")
    text += "f {\n p = f32[4] parameter(0)\n q = f32[4] parameter(1)\n"
    (made,) = kernels_of(read_module(text + " ROOT d = f32[4] subtract(q, p)\n}\n"))
    assert made.names == ("a", "b", "d")
    assert made.signature is not None and made.signature.parameters == (1, 0)


def reduced_by(*lines: str, dtype: str = "f32") -> Operation:
    body = "\n".join(lines)
    given = f"a = {dtype}[] parameter(0)\nb = {dtype}[] parameter(1)"
    whole = (
        f"x = {dtype}[4,8] parameter(0)",
        f"z = {dtype}[] constant(0)",
        f"ROOT r = {dtype}[4] reduce(x, z), dimensions={{1}}, to_apply=f",
    )
    return of(program(entry(*whole) + f"f {{\n{given}\n{body}\n}}\n"), "reduce")


def converted(dtype: str, back: str) -> tuple[str, ...]:
    return (
        f"c = {dtype}[] convert(a)",
        f"d = {dtype}[] convert(b)",
        f"e = {dtype}[] add(c, d)",
        f"ROOT g = {back}[] convert(e)",
    )


def test_a_reduction_in_a_narrower_type_is_another() -> None:
    for wide, narrow in (("s32", "s8"), ("f32", "bf16"), ("f32", "s32"), ("u8", "s8")):
        assert reduced_by(*converted(narrow, wide), dtype=wide).attributes["combine"] == "other"
    for narrow, wide in (("s8", "s32"), ("bf16", "f32"), ("u8", "s16"), ("pred", "s32")):
        assert reduced_by(*converted(wide, narrow), dtype=narrow).attributes["combine"] == "add"
    rounded = ("c = f32[] add(a, b)", "d = bf16[] convert(c)", "ROOT e = f32[] convert(d)")
    assert reduced_by(*rounded).attributes["combine"] == "other"


def test_a_region_is_written_with_the_parameters_that_it_does_not_read() -> None:
    text = entry(
        "x = f32[4,8] parameter(0)",
        "i = s32[4,8] iota(), iota_dimension=1",
        "ROOT s = (f32[4,8], s32[4,8]) sort(x, i), dimensions={1}, to_apply=less",
    )
    body = "\n".join(
        [
            *(f"p{at} = {'fs'[at // 2]}32[] parameter({at})" for at in range(4)),
            "ROOT c = pred[] compare(p0, p1), direction=LT, type=TOTALORDER",
        ]
    )
    made = program(f"{text}less {{\n{body}\n}}\n")
    written = hlo_text(made)
    for number, dtype in enumerate(("f32", "f32", "s32", "s32")):
        assert f" = {dtype}[] parameter({number})" in written.partition("ENTRY")[0]
    assert "direction=LT, type=TOTALORDER" in written
    assert program(written) == made


def test_requests_to_the_compiler_are_kept_where_they_are_not_the_default() -> None:
    given = ("x = f32[4,4] parameter(0)", "y = f32[4,4] parameter(1)")
    product = "f32[4,4] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    plain = only(*given, f"ROOT r = {product}")
    default = "operand_precision={default,default}, algorithm=dot_unset"
    assert only(*given, f"ROOT r = {product}, {default}").attributes == plain.attributes
    hints = "operand_precision={highest,default}, algorithm=dot_bf16_bf16_f32_x3"
    text = entry(*given, f"ROOT r = {product}, {hints}")
    assert of(program(text), "dot").attributes == {
        **plain.attributes,
        "precision": "{highest,default}",
        "algorithm": "dot_bf16_bf16_f32_x3",
    }
    assert hints in hlo_text(program(text))
    order = entry(*given, "ROOT r = pred[4,4] compare(x, y), direction=GE, type=TOTALORDER")
    assert of(program(order), "compare").attributes == {"direction": "GE.TOTALORDER"}
    assert "direction=GE, type=TOTALORDER" in hlo_text(program(order))


def test_constants_whose_numbers_are_lost_are_noted() -> None:
    numbers = ",".join(map(str, range(400)))
    for literal, note in (
        ("...", "constant c: its numbers are not in the text: as_hlo_text(True) writes them"),
        (numbers, "constant c: its numbers are left out, over 1,000 characters: make it a"),
    ):
        lines = ("x = f32[400] parameter(0)", f"c = f32[400] constant({{{literal}}})")
        module = read_module(entry(*lines, "ROOT r = f32[400] multiply(x, c)"))
        made = program_of(module)
        assert len(module.notes) == 1 and module.notes[0].startswith(note)
        text = hlo_text(made)
        assert "constant({...})  // its numbers are left out: XLA reads zeros\n" in text
        assert program(text) == made
    few = entry("ROOT c = f32[3] constant({1, 2, 3})")
    assert "//" not in hlo_text(program(few))


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    marked = tmp_path / "m.hlo"
    marked.write_bytes(b"\xef\xbb\xbf" + PLAIN.lstrip().encode())
    assert read_tensors(marked).tensors == (program(PLAIN),)
    assert tensor_files(tmp_path) == [marked]


def test_a_module_is_not_named_like_a_type() -> None:
    """XLA takes such a name for a type."""
    assert hlo_text(replace(program(PLAIN), name="bf16")).startswith("HloModule _bf16, ")


def test_constants_of_one_element_come_into_the_kernel() -> None:
    made = kernels_of(
        read_module(
            entry(
                "x = f32[4,8] parameter(0)",
                "zero = f32[] constant(0)",
                "ROOT r = f32[4] reduce(x, zero), dimensions={1}, to_apply=sum",
            )
            + "\nsum {\n a = f32[] parameter(0)\n b = f32[] parameter(1)\n"
            " ROOT c = f32[] add(b, a)\n}\n"
        )
    )
    assert [op.opcode for op in made[0].operations] == ["parameter", "constant", "reduce"]
    assert of(made[0], "reduce").attributes == {"combine": "add", "dimensions": (1,)}
    assert made[0].name == "m.r"


def test_a_parameter_may_have_any_name() -> None:
    made = program(
        "HloModule m\n\nENTRY %main (parameter: f32[4]) -> f32[4] {\n"
        "  %parameter = f32[4] parameter(0)\n  ROOT %y = f32[4] tanh(%parameter)\n}\n"
    )
    assert [operation.opcode for operation in made.operations] == ["parameter", "tanh"]


def test_windows_labels_and_groups() -> None:
    found = only(
        "x = f32[1,9,9,4] parameter(0)",
        "w = f32[3,3,2,6] parameter(1)",
        "ROOT c = f32[1,5,9,6] convolution(x, w), window={size=3x3 stride=2x1 pad=1_1x2_0 "
        "rhs_reversal=1x1}, dim_labels=b01f_01io->b01f, feature_group_count=2",
    )
    assert found.attributes == {
        "size": (3, 3),
        "stride": (2, 1),
        "low": (1, 2),
        "high": (1, 0),
        "lhs_dilate": (1, 1),
        "rhs_dilate": (1, 1),
        "reversal": (1, 1),
        "labels": "b01f_01io->b01f",
        "feature_groups": 2,
        "batch_groups": 1,
    }


@pytest.mark.parametrize(
    ("line", "attributes"),
    [
        (
            "f32[2,5] slice(x), slice={[0:4:2], [3:8]}",
            {"start": (0, 3), "limit": (4, 8), "stride": (2, 1)},
        ),
        (
            "f32[7,12] pad(x, z), padding=1_2x0_-3_1",
            {"low": (1, 0), "high": (2, -3), "interior": (0, 1)},
        ),
        ("f32[8,4] transpose(x), dimensions={1,0}", {"dimensions": (1, 0)}),
        ("f32[4,8] broadcast(z), dimensions={}", {}),
        ("pred[4,8] compare(x, x), direction=LT, type=FLOAT", {"direction": "LT"}),
        ("f32[4,8] iota(), iota_dimension=1", {"dimension": 1}),
        ("f32[4,16] concatenate(x, x), dimensions={1}", {"dimension": 1}),
        ('f32[4,8] custom-call(x), custom_call_target="a$b"', {"target": "a$b"}),
        (
            "c64[4,5] fft(x), fft_type=RFFT, fft_length={8}",
            {"raw": "fft_length={8}, fft_type=RFFT"},
        ),
        ("f32[2,2] constant({ { 1, 1 }, { 1, 1 } })", {"value": "1"}),
        ("f32[2,2] constant({ { 1, 2 }, { 3, 4 } })", {"raw": "{{1,2},{3,4}}"}),
        ("f32[4,8] constant({...})", {}),
        ("f32[] constant(-1.5e-06)", {"value": "-1.5e-06"}),
        ("c64[] constant((1, -2))", {"raw": "(1,-2)"}),
    ],
)
def test_attributes_in_their_canonical_form(line: str, attributes: dict[str, object]) -> None:
    given = ("x = f32[4,8] parameter(0)", "z = f32[] parameter(1)")
    assert only(*given, f"ROOT y = {line}").attributes == attributes


def test_bodies_that_are_no_single_operation_are_kept_as_text() -> None:
    (made,) = read_tensors(FOLDER / "order.before.txt").tensors
    largest = of(made, "reduce")
    assert largest.attributes["combine"] == "other" and "=> " in str(largest.attributes["region"])
    assert str(of(made, "sort").attributes["raw"]).startswith("dimensions={1}")


def test_several_results_are_taken_apart() -> None:
    (made,) = read_tensors(FOLDER / "order.before.txt").tensors
    assert [made.operations[at].opcode for at in made.outputs] == ["sort", "get-tuple-element"]


def test_one_file_in_three_ways(tmp_path: Path) -> None:
    plain = FOLDER / "mlp.after.txt"
    kernels = read_tensors(plain)
    assert read_tensors(plain, kind="kernel") == kernels and len(kernels.tensors) == 7
    (whole,) = read_tensors(plain, kind="program", name="mine", group="family").tensors
    assert (whole.kind, whole.name, whole.group) == ("program", "mine", "family")
    (one,) = read_tensors(FOLDER / "mlp.before.txt", kind="kernel").tensors
    assert one.kind == "kernel"
    packed = tmp_path / "mlp.txt.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read_tensors(packed) == kernels
    packed.write_bytes(packed.read_bytes()[:-400])
    with pytest.raises(TensorError, match="cut off"):
        read_tensors(packed)


def test_a_dump_is_its_first_and_last_modules(tmp_path: Path) -> None:
    text = (FOLDER / "mlp.before.txt").read_text()
    for name in ("before_optimizations", "cpu_after_optimizations", "0001.after_fusion"):
        (tmp_path / f"module_0002.jit_mlp.{name}.txt").write_text(text)
    (tmp_path / "module_0002.jit_mlp.debug_options").write_text("x")
    (tmp_path / "readme.txt").write_text("not HLO")
    found = [path.name.split(".")[-2] for path in tensor_files(tmp_path)]
    assert sorted(found) == ["before_optimizations", "cpu_after_optimizations"]
    (first,) = tensor_files(tmp_path, kind="program")
    assert first.name == "module_0002.jit_mlp.before_optimizations.txt"
    assert len(tensor_files(tmp_path, kind="kernel")) == 2
    (tmp_path / "module_0002.jit_mlp.before_optimizations.txt").unlink()
    (tmp_path / "module_0002.jit_mlp.cpu_after_optimizations.txt").unlink()
    assert [path.name for path in tensor_files(tmp_path)] == [
        "module_0002.jit_mlp.0001.after_fusion.txt"
    ]


def test_programs_of_a_dump_are_its_modules_after_all_passes_where_none_is_before(
    tmp_path: Path,
) -> None:
    text = gzip.compress((FOLDER / "mlp.before.txt").read_bytes())
    for name in (
        "module_0001.jit_f.before_optimizations",
        "module_0001.jit_f.sm_8.0_gpu_after_optimizations",
        "module_0002.jit_f.sm_8.0_gpu_after_optimizations",
        "other/module_0001.jit_f.cpu_after_optimizations",
    ):
        place = tmp_path / f"{name}.txt.gz"
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(text)
    found = [
        path.relative_to(tmp_path).as_posix() for path in tensor_files(tmp_path, kind="program")
    ]
    assert found == [
        "module_0001.jit_f.before_optimizations.txt.gz",
        "module_0002.jit_f.sm_8.0_gpu_after_optimizations.txt.gz",
        "other/module_0001.jit_f.cpu_after_optimizations.txt.gz",
    ]
