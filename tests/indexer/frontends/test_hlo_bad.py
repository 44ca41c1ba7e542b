"""HLO text that is none, or only half of one: one line that says where."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hlo_texts import FOLDER, NAMES, PLAIN, entry

from embeddb.core.errors import TensorError
from embeddb.tensors.tensor_graph import Operation, Shape, TensorGraph
from indexer.frontends.hlo.files import read_tensors
from indexer.frontends.hlo.graph import kernels_of, program_of
from indexer.frontends.hlo.module import read_module
from indexer.frontends.hlo.printer import hlo_text

X = "x = f32[4,8]{1,0} parameter(0)"


def read(text: str) -> TensorGraph:
    module = read_module(text)
    kernels_of(module)
    return program_of(module)


@pytest.mark.parametrize(
    ("lines", "reason", "line"),
    [
        ([X, "ROOT y = f32[?,8] tanh(x)"], "dimension cannot be '?'", 5),
        ([X, "ROOT y = f32[4,8]{2,0} tanh(x)"], r"layout \(2, 0\) does not fit", 5),
        ([X, "ROOT y = f32[4,8]{0} tanh(x)"], "does not fit the shape", 5),
        ([X, "ROOT y = f31[4,8] tanh(x)"], "no type 'f31'", 5),
        ([X, "a = f32[4] tanh(b)", "b = f32[4] tanh(a)", "ROOT y = f32[4] tanh(a)"], "cycle", 6),
        ([X, "ROOT y = f32[4,8] tanh(z)"], "takes 'z', which is undefined", 5),
        ([X, "x = f32[4,8] tanh(x)"], "is there twice", 5),
        ([X, "ROOT y = f32[4,8] call(x), to_apply=gone"], "no computation 'gone'", 5),
        ([X, "ROOT y = f32[4,8] call(x)"], "names no computation", 5),
        ([X, "ROOT y = f32[4,8] get-tuple-element(x), index=1"], "operand is no tuple", 5),
        ([X, "t = (f32[4,8]) tuple(x)", "ROOT y = f32[4,8] get-tuple-element(t), index=1"], "1", 6),
        ([X, "ROOT y = f32[4,8] tanh(x) nothing"], "in place of `, key=value`", 5),
        ([X, "ROOT y = f32[4,8] slice(x), slice={0}"], "slice is written", 5),
        ([X, "ROOT y = f32[4,8] iota(), iota_dimension="], "iota_dimension has no value", 5),
        (
            [X, "t = (f32[4,8]) tuple(x)", "ROOT y = f32[4,8] get-tuple-element(t), index="],
            "index has no value",
            6,
        ),
        (
            [X, "ROOT y = f32[4,8] reduce-window(x, x), window={size=2x2 pad=1_1}"],
            "number of dimensions",
            5,
        ),
        ([X, "ROOT y = f32[4,8] transpose(x), dimensions={1,zero}"], "no whole number", 5),
        ([X, "ROOT y"], "is no instruction|cut off", 5),
        ([X, "ROOT y = f32[4,8] tanh(x))"], "closing bracket has no opening", 5),
        ([X, "ROOT y = f32[4,8] tanh"], "cut off|no bracket", 5),
        (["ROOT x = f32[0,8] parameter(0)"], "has no element", 4),
        ([X, "ROOT y = f32[8,4] tanh(x)"], "no tanh of .* gives f32.8,4", 5),
        (
            [X, "z = f32[8] parameter(1)", "ROOT y = f32[4,8] add(x, z)"],
            "operation y: no add of .* and f32.8..0. gives",
            6,
        ),
        (["ROOT x = f32[4,8] parameter(one)"], "no whole number", 4),
        ([X, "y = f32[4,8] parameter(0)", "ROOT z = f32[4,8] add(x, y)"], "both parameter 0", 5),
        (["x = f32[4] parameter(1)", "ROOT y = f32[4] tanh(x)"], "main has no parameter 0", 4),
        (["ROOT x = f32[] constant(abc)"], "'abc' is no number of type f32", 4),
        (["ROOT x = f32[2] constant({1, 1e39})"], "'1e39' is no number of type f32", 4),
        (["ROOT x = s8[] constant(300)"], "'300' is no number of type s8", 4),
        (["ROOT x = u4[2] constant({1, -1})"], "'-1' is no number of type u4", 4),
    ],
)
def test_what_is_wrong_is_told_with_its_line(lines: list[str], reason: str, line: int) -> None:
    with pytest.raises(TensorError, match=reason) as raised:
        program_of(read_module(entry(*lines)))
    assert raised.value.line == line
    assert "\n" not in str(raised.value)


def test_a_region_of_a_stranger_with_a_bitcast_of_nothing_is_refused() -> None:
    """A region is a text, which is parsed at printing."""
    region = "parameter.f32()0 parameter.f32()1 bitcast.f32() => 2"
    array, number = Shape("f32", (4, 8), (1, 0)), Shape("f32")
    operations = (
        Operation("parameter", (array,), (), {"number": 0}),
        Operation("constant", (number,), (), {"value": "0"}),
        Operation("reduce", (number,), (0, 1), {"dimensions": (0, 1), "region": region}),
    )
    with pytest.raises(TensorError, match="operation 2: a bitcast of nothing"):
        hlo_text(TensorGraph(operations, (2,)))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no HLO text"),
        ("module @jit_f attributes {} {\n}", "no HLO text"),
        ("name,value\n1,2\n", "no HLO text"),
        ("HloModule m\n", "no ENTRY"),
        ("HloModule m\n\nmain {\n x = f32[] parameter(0)\n}\n", "no ENTRY"),
        ("HloModule m\nENTRY main {\n}\n", "is empty"),
        (
            "HloModule m\nENTRY main { x = f32[4] parameter(0)\n ROOT y = f32[4] add(x, x) }\n",
            "on the line that opens a computation",
        ),
        (
            "HloModule m\nENTRY main { ROOT x = f32[] constant(1) }\n",
            "on the line that opens a computation",
        ),
        ("HloModule m\nENTRY main {\n x = f32[] parameter(0)\n", "ends inside of main"),
        ("HloModule m\nENTRY main {\n x = f32[] constant({1,\n", "ends inside of brackets"),
        (entry(X) + "ENTRY main {\n", "is there twice"),
        (
            "HloModule m\nENTRY main {\n x = f32[]) parameter(0)\n}\n",
            "closing bracket has no opening",
        ),
        (entry("x = " + "(" * 50 + ")" * 50 + " parameter(0)"), "nested too deeply"),
    ],
)
def test_what_is_no_module(text: str, reason: str) -> None:
    with pytest.raises(TensorError, match=reason):
        read(text)


def test_mlir_and_binary_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(TensorError) as raised:
        read_module("module @jit_f {\n}")
    assert "as_hlo_text" in raised.value.hint
    binary = tmp_path / "m.hlo"
    binary.write_bytes(b"\x0a\x05jit_f\x00\x12")
    with pytest.raises(TensorError, match=r"m\.hlo: is binary, not HLO text"):
        read_tensors(binary)


def test_bytes_that_are_no_utf8_are_named_with_their_line(tmp_path: Path) -> None:
    file = tmp_path / "m.hlo"
    file.write_bytes(PLAIN.lstrip().encode() + b"\n// \xff\n")
    with pytest.raises(TensorError, match="byte 0xff is no UTF-8") as raised:
        read_tensors(file)
    assert raised.value.line == PLAIN.lstrip().count("\n") + 2 and raised.value.hint


def test_unknown_opcodes_are_kept_with_a_note() -> None:
    text = entry(X, "ROOT y = f32[4,8] new-thing(x), depth={1,2}, way=fast")
    module = read_module(text)
    made = program_of(module)
    assert module.notes == ["opcode new-thing is unknown: kept unchanged"]
    assert made.operations[1].opcode == "new-thing"
    assert made.operations[1].attributes == {"raw": "depth={1,2}, way=fast"}
    assert program_of(read_module(hlo_text(made))) == made


def test_bounded_dimensions_count_as_their_bound() -> None:
    module = read_module(entry("ROOT x = f32[<=10,8]{1,0} parameter(0)"))
    assert program_of(module).operations[0].shape.dims == (10, 8)
    assert module.notes == ["a dimension of at most 10 counts as 10"]


def test_loops_and_custom_calls_are_noted_and_not_written() -> None:
    made = read_tensors(FOLDER / "scan.before.txt")
    assert made.notes == ("while is kept as one operation, without its body",)
    with pytest.raises(TensorError, match="while cannot be written as HLO"):
        hlo_text(made.tensors[0])


def test_kernels_of_empty_arrays_are_left_out() -> None:
    module = read_module(
        entry(X, "e = f32[0] constant({})", "y = f32[4,8] tanh(x)", "z = f32[0] tanh(e)").replace(
            "\n}\n", "\n  ROOT t = (f32[4,8], f32[0]) tuple(y, z)\n}\n"
        )
    )
    assert [one.name for one in kernels_of(module)] == ["m.y"]
    assert len(module.notes) == 1 and module.notes[0].startswith("z is left out")


@pytest.mark.parametrize("name", NAMES)
def test_modules_cut_anywhere_are_refused_in_one_line(name: str) -> None:
    for when in ("before", "after"):
        text = (FOLDER / f"{name}.{when}.txt").read_text()
        whole = len(text.rstrip())
        for at in range(1, whole, max(whole // 40, 1)):
            with pytest.raises(TensorError) as raised:
                read(text[:at])
            assert "\n" not in str(raised.value)


def test_calls_that_multiply_are_stopped() -> None:
    bodies = [
        f"f{at} {{\n p = f32[] parameter(0)\n a = f32[] call(p), to_apply=f{at + 1}\n"
        f" ROOT b = f32[] call(a), to_apply=f{at + 1}\n}}"
        for at in range(40)
    ]
    last = "f40 {\n ROOT p = f32[] parameter(0)\n}"
    main = "ENTRY main {\n p = f32[] parameter(0)\n ROOT r = f32[] call(p), to_apply=f0\n}"
    with pytest.raises(TensorError, match="calls inlined"):
        program_of(read_module("\n\n".join(["HloModule m", *bodies, last, main])))


def test_a_body_that_calls_itself_is_refused() -> None:
    body = "f {\n p = f32[] parameter(0)\n ROOT r = f32[] call(p), to_apply=f\n}"
    main = "ENTRY main {\n p = f32[] parameter(0)\n ROOT r = f32[] call(p), to_apply=f\n}"
    with pytest.raises(TensorError, match="deep"):
        program_of(read_module(f"HloModule m\n\n{body}\n\n{main}\n"))


def chain(count: int) -> str:
    lines = [X.replace("x =", "%y.0 =")]
    lines += [
        f"%y.{at + 1} = f32[4,8]{{1,0}} add(f32[4,8]{{1,0}} %y.{at}, f32[4,8]{{1,0}} %y.0), "
        f'metadata={{op_name="jit(f)/add[{at}]" source_line=1}}'
        for at in range(count)
    ]
    return entry(*lines)


def test_the_time_is_linear_in_the_operations() -> None:
    def seconds(count: int) -> float:
        text = chain(count)
        start = time.process_time()
        assert len(read(text).operations) == count + 1
        return time.process_time() - start

    seconds(500)
    assert seconds(20_000) < 30 * max(seconds(2_000), 0.01)


@pytest.mark.slow
def test_a_hundred_thousand_operations() -> None:
    start = time.process_time()
    made = program_of(read_module(chain(100_000)))
    assert len(made.operations) == 100_001 and made.id
    assert time.process_time() - start < 60


@pytest.mark.parametrize("piece", ['"', "/*", '"\\', "(", "{[", "a-", "->", "%", "x=", "\n{"])
def test_no_text_makes_the_reader_go_back(piece: str) -> None:
    start = time.process_time()
    with pytest.raises(TensorError):
        read(PLAIN[:-3] + piece * 100_000)
    assert time.process_time() - start < 20
