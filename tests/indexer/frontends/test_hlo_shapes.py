"""Shapes that do not follow from each other are refused, with the line."""

from __future__ import annotations

import gzip
import random
import re
from pathlib import Path

import pytest
from hlo_texts import FOLDER, NAMES, entry

import indexer.programs.tensors
from embeddb.core.errors import TensorError
from indexer.frontends.hlo.files import read_tensors
from indexer.frontends.hlo.graph import kernels_of
from indexer.frontends.hlo.module import read_module

GIVEN = (
    "x = f32[4,8] parameter(0)",
    "y = f32[8,6] parameter(1)",
    "z = f32[] parameter(2)",
    "i = s32[5,1] parameter(3)",
    "n = s32[] parameter(4)",
    "q = f32[3,6,6] parameter(5)",
    "im = f32[1,9,9,4] parameter(6)",
    "w = f32[3,3,2,6] parameter(7)",
    "v = f32[8] parameter(8)",
    "c = c64[4,5] parameter(9)",
)
ADD = "add {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] add(a, b)\n}"
_DOT = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
_CONV = (
    "window={size=3x3 stride=2x1 pad=1_1x2_0}, dim_labels=b01f_01io->b01f, feature_group_count=2"
)
_GATHER = "offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1"
_SCATTER = (
    "update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, "
    "index_vector_dim=1, to_apply=add"
)
_WINDOW = "window={size=2x3 stride=2x1}, to_apply=add"

#: Instructions that are legal, and shapes of theirs that are not.
CASES = [
    ("f32[4,8]", "tanh(x)", "f32[8,4] f32[4] s32[4,8]"),
    ("f32[4,8]", "add(x, x)", "f32[4,9]"),
    ("f32[4,8]", "clamp(z, x, z)", "f32[]"),
    ("f32[8,4]", "transpose(x), dimensions={1,0}", "f32[4,8]"),
    ("f32[2,16]", "reshape(x)", "f32[31] f32[4096,512]"),
    ("f32[32]", "bitcast(x)", "f32[33]"),
    ("s32[4,8]", "bitcast-convert(x)", "s32[8,4]"),
    ("s16[4,8,2]", "bitcast-convert(x)", "s16[4,8] s16[4,8,4]"),
    ("f32[3,8,4]", "broadcast(x), dimensions={2,1}", "f32[3,4,8] f32[4,8]"),
    ("f32[4,16]", "concatenate(x, x), dimensions={1}", "f32[8,8] f32[4,8]"),
    ("f32[2,5]", "slice(x), slice={[0:4:2], [3:8]}", "f32[2,6] f32[4,5]"),
    ("f32[7,12]", "pad(x, z), padding=1_2x0_-3_1", "f32[7,8]"),
    ("f32[2,8]", "dynamic-slice(x, n, n), dynamic_slice_sizes={2,8}", "f32[4,8]"),
    ("f32[4,8]", "dynamic-update-slice(x, x, n, n)", "f32[8,4]"),
    ("f32[4,6]", f"dot(x, y), {_DOT}", "f32[6,4] f32[4,8] f32[]"),
    (
        "f32[3,6,6]",
        "dot(q, q), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, "
        "rhs_contracting_dims={1}",
        "f32[6,6,3] f32[6,6]",
    ),
    ("f32[1,5,9,6]", f"convolution(im, w), {_CONV}", "f32[1,9,9,6] f32[1,5,9,4] f32[2,5,9,6]"),
    ("f32[4]", "reduce(x, z), dimensions={1}, to_apply=add", "f32[8] f32[4,8]"),
    ("f32[2,6]", f"reduce-window(x, z), {_WINDOW}", "f32[4,6] f32[2,8]"),
    ("f32[5,8]", f"gather(x, i), {_GATHER}, slice_sizes={{1,8}}", "f32[5,1,8] f32[4,8]"),
    ("f32[8,6]", f"scatter(y, i, s), {_SCATTER}", "f32[6,8]"),
    ("c64[4,5]", "fft(x), fft_type=RFFT, fft_length={8}", "c64[4,8]"),
    ("f32[4,8]", "fft(c), fft_type=IRFFT, fft_length={8}", "f32[4,5]"),
    ("f32[3,6,6]", "cholesky(q), lower=true", "f32[6,6]"),
    ("f32[3,6,6]", "triangular-solve(q, q), left_side=true", "f32[3,6]"),
    ("f32[4,8]", "sort(x), dimensions={1}, to_apply=add", "f32[8,4]"),
    ("f32[4,8]", "map(x, x), dimensions={0,1}, to_apply=add", "f32[4]"),
    ("(f32[4,2], s32[4,2])", "topk(x), k=2, largest=true", "(f32[4,8], s32[4,8])"),
    (
        "(f32[4,8], f32[8], f32[8])",
        "batch-norm-training(x, v, v), epsilon=0.1, feature_index=1",
        "(f32[4,8], f32[4], f32[4])",
    ),
    ("f32[12,8]", "all-gather(x), dimensions={0}", "f32[13,8] f32[4,16]"),
    ("f32[2,8]", "reduce-scatter(x), dimensions={0}, to_apply=add", "f32[3,8]"),
    ("(f32[4,8], f32[])", "tuple(x, z)", "(f32[4,8], f32[8])"),
    ("f32[2,2]", "constant({ { 1, 2 }, { 3, 4 } })", "f32[2,3]"),
    ("f32[4,8]", "opt-barrier(x)", "f32[8,4]"),
]


def text(shape: str, instruction: str) -> str:
    """A module with the operands above, whose root is the instruction."""
    head, _, body = entry(
        *GIVEN, "s = f32[5,6] constant({...})", f"ROOT r = {shape} {instruction}"
    ).partition("ENTRY")
    return f"{head}{ADD}\n\nENTRY{body}"


@pytest.mark.parametrize(("shape", "instruction", "others"), CASES)
def test_one_shape_follows(shape: str, instruction: str, others: str) -> None:
    read_module(text(shape, instruction))
    for other in [others] if others.startswith("(") else others.split():
        with pytest.raises(TensorError) as raised:
            read_module(text(other, instruction))
        assert raised.value.line == 9 + len(GIVEN) + 2 and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("shape", "instruction"),
    [
        ("f32[4,6]", f"dot(x, x), {_DOT}"),
        ("f32[4,8]", "add(x, y)"),
        ("f32[4,8]", "add(x, z)"),
        ("f32[4,8]", "add(x)"),
        ("f32[4,8]", "transpose(x), dimensions={0,0}"),
        ("f32[4,8]", "transpose(x)"),
        ("f32[4,8]", "broadcast(x), dimensions={0,2}"),
        ("f32[4,14]", "concatenate(x, y), dimensions={1}"),
        ("f32[2,6]", "slice(x), slice={[0:4:2], [3:9]}"),
        ("f32[2]", "slice(x), slice={[0:4:2]}"),
        ("f32[4,8]", "pad(x, v), padding=0_0x0_0"),
        ("f32[4]", "reduce(x, z), dimensions={2}, to_apply=add"),
        ("f32[4]", "reduce(x, v), dimensions={1}, to_apply=add"),
        ("f32[5,8]", f"gather(x, i), {_GATHER}, slice_sizes={{2,8}}"),
        ("f32[5,9]", f"gather(x, i), {_GATHER}, slice_sizes={{1,9}}"),
        ("f32[4,8]", f"scatter(x, i, y), {_SCATTER}"),
        ("f32[1,5,9,6]", f"convolution(im, w), {_CONV.replace('=2x1', '=1x1')}"),
        ("f32[1,5,9,6]", f"convolution(im, w), {_CONV.replace('count=2', 'count=1')}"),
        ("f32[1,5,9,6]", f"convolution(im, w), {_CONV.replace('size=3x3', 'size=3x2')}"),
        ("f32[5,8]", "dynamic-slice(x, n, n), dynamic_slice_sizes={5,8}"),
        ("f32[4,8]", "dynamic-slice(x, n), dynamic_slice_sizes={4,8}"),
        ("f32[4,8]", "dynamic-update-slice(x, y, n, n)"),
        ("f32[4,8]", "cholesky(x)"),
        ("f32[4,8]", "get-tuple-element(x), index=0"),
        ("f32[4,8]", "tanh(f32[8,4]{1,0} %x)"),
        ("f32[4,8]", "compare(x, x), direction=LT"),
        ("f32[4,8]", "select(x, x, x)"),
        ("s32[2,8]", "dynamic-slice(x, n, n), dynamic_slice_sizes={2,8}"),
    ],
)
def test_operands_that_do_not_fit(shape: str, instruction: str) -> None:
    with pytest.raises(TensorError) as raised:
        read_module(text(shape, instruction))
    assert raised.value.line == 9 + len(GIVEN) + 2


BODY = "f {\n  p = f32[4,8] parameter(0)\n  ROOT t = f32[8,4] transpose(p), dimensions={1,0}\n}"


@pytest.mark.parametrize(
    ("lines", "good"),
    [
        (["ROOT r = f32[8,4] fusion(x), kind=kLoop, calls=f"], True),
        (["ROOT r = f32[4,8] fusion(x), kind=kLoop, calls=f"], False),
        (["ROOT r = f32[8,4] fusion(y), kind=kLoop, calls=f"], False),
        (["ROOT r = f32[8,4] fusion(x, y), kind=kLoop, calls=f"], False),
        (["ROOT r = f32[8,4] call(x), to_apply=f"], True),
        (["ROOT r = f32[8,4] call(y), to_apply=f"], False),
        (
            [
                "s = ((f32[4,8]), f32[8,4], s32[]) async-start(x), calls=f",
                "ROOT d = f32[8,4] async-done(s)",
            ],
            True,
        ),
        (
            [
                "s = ((f32[4,8]), f32[8,4], s32[]) async-start(x), calls=f",
                "ROOT d = f32[4,8] async-done(s)",
            ],
            False,
        ),
        (
            [
                "s = ((f32[4,8]), f32[8,4]) transpose-start(x), dimensions={1,0}",
                "ROOT d = f32[8,4] transpose-done(s)",
            ],
            True,
        ),
        (
            [
                "s = ((f32[4,8]), f32[4,8]) transpose-start(x), dimensions={1,0}",
                "ROOT d = f32[4,8] transpose-done(s)",
            ],
            False,
        ),
        (["ROOT r = f32[4,8] while(x), condition=f, body=f"], False),
        (["unused = f32[9] tanh(x)", "ROOT r = f32[4,8] tanh(x)"], False),
    ],
)
def test_calls_pairs_and_what_nothing_takes(lines: list[str], *, good: bool) -> None:
    head, _, body = entry(*GIVEN[:2], *lines).partition("ENTRY")
    module = f"{head}{BODY}\n\nENTRY{body}"
    if good:
        assert kernels_of(read_module(module))
        return
    with pytest.raises(TensorError) as raised:
        read_module(module)
    assert raised.value.line is not None and raised.value.line > 9


@pytest.mark.parametrize(
    "head",
    [
        "HloModule m, entry_computation_layout={(f32[4,8]{1,0})->f32[8,4]{1,0}}\n\nENTRY main {",
        "HloModule m, entry_computation_layout={(f32[8,4]{1,0})->f32[4,8]{1,0}}\n\nENTRY main {",
        "HloModule m\n\nENTRY %main (x: f32[4,8]) -> f32[8,4] {",
        "HloModule m\n\nENTRY %main (x: f32[4,9]) -> f32[4,8] {",
        "HloModule m\n\nENTRY %main () -> f32[4,8] {",
    ],
)
def test_signatures_are_those_of_the_instructions(head: str) -> None:
    module = f"{head}\n  x = f32[4,8] parameter(0)\n  ROOT r = f32[4,8] tanh(x)\n}}\n"
    with pytest.raises(TensorError, match="signature"):
        read_module(module)


def test_a_bad_module_of_a_folder_does_not_end_the_rest(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from embeddb.ui.cli.main import cli

    good = entry("x = f32[4,8] parameter(0)", "ROOT r = f32[4,8] tanh(x)")
    (tmp_path / "a.txt").write_text(good.replace("f32[4,8] tanh", "f32[8,4] tanh"))
    (tmp_path / "b.txt").write_text(good)
    run = CliRunner().invoke(cli, ["kernel", "import", str(tmp_path / "t.db"), str(tmp_path)])
    assert run.exit_code == 0 and "1 tensor program added" in run.stdout
    assert "a.txt:5: " in run.stderr
    with pytest.raises(TensorError, match=r"a\.txt:5: "):
        read_tensors(tmp_path / "a.txt")


_SHAPE = re.compile(r"\b[a-z]+\d+\[([\d,]+)\]")
#: Their results are not given by their operands: what takes them must refuse.
_FREE = re.compile(r"\} (iota|constant|broadcast|custom-call|rng)\(")
SHIPPED = Path(indexer.programs.tensors.__file__).parent / "texts"
TEXTS = [FOLDER / f"{name}.{when}.txt" for name in NAMES for when in ("before", "after")]
TEXTS += sorted(SHIPPED.glob("*.small.hlo.gz"))[::12]


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_one_changed_dimension_is_refused_or_legal(path: Path) -> None:
    data = path.read_bytes()
    whole = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    read_module(whole)
    draw = random.Random(path.name)
    places = [found for found in _SHAPE.finditer(whole) if "metadata" not in found[0]]
    for found in draw.sample(places, min(len(places), 12)):
        dims = found[1].split(",")
        at = draw.randrange(len(dims))
        dims[at] = str(int(dims[at]) + draw.choice([1, 2, 3]))
        changed = whole[: found.start(1)] + ",".join(dims) + whole[found.end(1) :]
        line = whole[whole.rfind("\n", 0, found.start()) + 1 : whole.find("\n", found.end())]
        try:
            read_module(changed)
        except TensorError as error:
            assert error.line is not None and "\n" not in str(error)
        else:
            assert _FREE.search(line), line
