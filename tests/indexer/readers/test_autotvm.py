"""AutoTVM's logs: kernels made from tasks, knobs as parameters, rows that are no runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from tensors import dot_add

from embeddb.core.config import Op
from embeddb.core.errors import ReaderError
from embeddb.database import Database
from embeddb.platforms.platform import load_platform
from embeddb.tensors.analysis import work_of
from embeddb.tensors.tensor_text import tensor_text
from indexer.ingest import IngestReport, _Job, ingest
from indexer.library import Library
from indexer.readers.base.lines import guess
from indexer.readers.base.row import ReadOptions, Reject, RunRow
from indexer.readers.tvm import AutoTvmReader, kernel_of_task

GOLDEN = Path(__file__).parents[2] / "golden" / "readers" / "autotvm.log"
DENSE = [["TENSOR", [8, 32], "float32"], ["TENSOR", [16, 32], "float32"], None, "float32"]


def read(path: Path) -> list[RunRow | Reject]:
    return list(AutoTvmReader().rows(path, options=ReadOptions()))


def image(*dims: int, dtype: str = "float32") -> list[Any]:
    return ["TENSOR", list(dims), dtype]


def conv(data: list[Any], weight: list[Any], *rest: Any, padding: Any = 1) -> list[Any]:
    return [data, weight, [1, 1], padding, [1, 1], *rest]


def test_rows() -> None:
    nopack, pack, conv2d = rows = [r for r in read(GOLDEN) if isinstance(r, RunRow)]
    assert {row.op for row in rows} == {Op("tile")}
    assert dict(nopack.config) == {
        "template": "dense_nopack.x86",
        **{"tile_y_1": 2, "tile_x_1": 4, "tile_k_1": 8},
    }
    assert nopack.measurement.times_s == (2e-6, 4e-6)
    assert (nopack.instance, nopack.facts) == ("toy-8", {"backend": "cpu"})
    assert (pack.measurement.status, pack.measurement.times_s) == ("timeout", ())
    assert pack.matrix.content == nopack.matrix.content, "two templates, one kernel"
    assert conv2d.config["template"] == "conv2d_NCHWc.x86:1x1" and conv2d.config["tile_oh"] == 2
    assert guess(GOLDEN) == ["autotvm"]


def test_version_0_1(tmp_path: Path) -> None:
    arguments = conv(image(1, 8, 14, 14), image(16, 8, 3, 3), "NCHW", "float32")
    knobs = [["tile_f", "sp", [1, 2, 8, 1]], ["unroll_explicit", "ot", 1]]
    config = {"i": 4, "t": "direct", "c": None, "e": knobs}
    task = ["cuda -model=unknown", "topi_nn_conv2d", arguments, {}, ["conv2d"], config]
    path = tmp_path / "a.log"
    path.write_text(json.dumps({"i": task, "r": [[5e-05], 0, 2.0, 1.5e9], "v": 0.1}))
    assert guess(path)[0] == "autotvm"
    (row,) = read(path)
    assert isinstance(row, RunRow)
    assert dict(row.config) == {
        "template": "topi_nn_conv2d",
        **{"tile_f_1": 2, "tile_f_2": 8, "tile_f_3": 1, "unroll_explicit": 1},
    }
    assert (row.instance, row.facts) == ("cuda", {"backend": "cuda"})
    assert row.matrix.name == "conv2d_1x8x14x14_16x8x3x3_s1x1_p1x1x1x1_d1x1_g1"


def test_version_0_1_of_2018(tmp_path: Path) -> None:
    arguments = conv(image(1, 8, 14, 14), image(16, 8, 3, 3), "NCHW", "float32")
    del arguments[4]
    config = {"e": [["tile_oh", "sp", [7, 2]], ["tile_co", "sp", [2, 8]]], "t": "winograd"}
    task = ["llvm -device=arm_cpu -model=pynq", "topi_nn_conv2d", arguments, {}, None, config]
    path = tmp_path / "a.log"
    path.write_text(json.dumps({"r": [[5e-05], 0, 2.0, 1.5e9], "v": 0.1, "i": task}))
    assert guess(path)[0] == "autotvm"
    (row,) = read(path)
    assert isinstance(row, RunRow)
    knobs = {"tile_oh_1": 2, "tile_co_1": 8}
    assert dict(row.config) == {"template": "topi_nn_conv2d.winograd", **knobs}
    assert row.matrix.name == "conv2d_1x8x14x14_16x8x3x3_s1x1_p1x1x1x1_d1x1_g1"
    arguments[2:4] = [16, [3, 3], [1, 1], [1, 1]]
    path.write_text(json.dumps({"i": task, "r": [[5e-05], 0, 2.0, 1.5e9], "v": 0.1}))
    (reject,) = read(path)
    assert isinstance(reject, Reject) and "strides, padding and dilation" in reject.reason


@pytest.mark.parametrize(
    ("task", "arguments", "dims", "flops"),
    [
        ("dense_pack.x86", DENSE, (8, 16), 2 * 8 * 16 * 32),
        ("dense_pack.x86", [image(8, 32), image(2, 32, 8), None, "float32"], (8, 16), 8192),
        ("dense_nopack.x86", [*DENSE[:2], image(16), "float32"], (8, 16), 8192 + 128),
        ("batch_matmul.cuda", [image(3, 8, 32), image(3, 16, 32), [3, 8, 16]], (3, 8, 16), 24576),
        (
            "batch_matmul.x86",
            [image(3, 32, 8), image(3, 32, 16), None, "float32", True, False],
            (3, 8, 16),
            24576,
        ),
        # Padding is not multiplied: of 3 x 3 windows on 14 x 14, 40 x 40 pairs meet.
        (
            "conv2d_nchw_winograd.cuda",
            conv(image(1, 8, 14, 14), image(16, 8, 3, 3), "float32"),
            (1, 16, 14, 14),
            2 * 8 * 16 * 40 * 40,
        ),
        (
            "conv2d_NCHWc.x86",
            conv(image(1, 2, 14, 14, 4), image(2, 2, 3, 3, 4, 8), "NCHW4c", "NCHW8c", "float32"),
            (1, 16, 14, 14),
            2 * 8 * 16 * 40 * 40,
        ),
        (
            "depthwise_conv2d_NCHWc.x86",
            conv(
                image(1, 8, 14, 14), image(8, 2, 3, 3), "NCHW", "NCHW", "float32", padding="VALID"
            ),
            (1, 16, 12, 12),
            2 * 16 * 36 * 36,
        ),
        (
            "group_conv2d_nchw.cuda",
            conv(image(1, 8, 14, 14), image(16, 2, 3, 3), 4, "float32", padding=[0, 0]),
            (1, 16, 12, 12),
            2 * 16 * 2 * 36 * 36,
        ),
    ],
)
def test_kernels(task: str, arguments: list[Any], dims: tuple[int, ...], flops: int) -> None:
    kernel = kernel_of_task(task, arguments)
    assert kernel.root.dims == dims and kernel.kind == "kernel"
    assert work_of(kernel).flops == flops


def test_names_tell_kernels_apart() -> None:
    one = kernel_of_task("dense_nopack.x86", DENSE)
    assert one.name == "dense_8x32_16x32"
    half = [image(8, 32, dtype="float16"), image(16, 32, dtype="float16"), None, "float32"]
    assert kernel_of_task("dense.cuda", half).name == "dense_8x32_16x32_f16_f16_f32"
    biased = kernel_of_task("dense_nopack.x86", [*DENSE[:2], image(16), "float32"])
    assert biased.name == "dense_8x32_16x32_bias" and biased != one
    strided = conv(image(1, 8, 14, 14), image(16, 8, 3, 3), "float32")
    assert kernel_of_task("conv2d_nchw.cuda", strided).name == (
        "conv2d_1x8x14x14_16x8x3x3_s1x1_p1x1x1x1_d1x1_g1"
    )


@pytest.mark.parametrize(
    ("task", "arguments", "reason"),
    [
        ("sort.gpu", DENSE, "the template 'sort.gpu' is not supported"),
        ("dense", [image(8, 32), image(16, 31)], "have no product"),
        ("dense", [image(8, 32)], "unsuitable arguments of dense"),
        ("dense", [image(8, 0), image(8, 0)], "an array of sizes"),
        ("dense", [image(8, -1), image(8, -1)], "an array of sizes"),
        ("dense", [image(1 << 40, 32), image(1 << 40, 32)], "too large"),
        ("dense", [image(8, 32, dtype="posit8"), image(8, 32)], "no array of a known type"),
        ("dense", [["TENSOR", "8x32", "float32"], image(8, 32)], "no array of a known type"),
        ("batch_matmul", [image(3, 8, 32), image(4, 16, 32)], "no products one by one"),
        ("conv2d_nchw", conv(image(1, 8, 2, 2), image(4, 8, 5, 5)), "does not fit into"),
        ("conv2d_nchw", conv(image(1, 8, 9, 9), image(4, 7, 3, 3)), "is no filter of"),
        ("conv2d_nchw", conv(image(1, 8, 9, 9), image(4, 8, 3, 3), "NHWC"), "the layout 'NHWC'"),
        ("conv2d_nchw", conv(image(1, 8, 9, 9), image(4, 8, 3, 3), padding="SAME"), "integer"),
        ("conv2d_nchw", conv(image(1, 8, 9), image(4, 8, 3, 3)), "is no array of images"),
        ("conv2d_nchw", conv(image(1, 8, 9, 9), image(4, 8, 3, 3), 0), "is no filter of"),
    ],
)
def test_tasks_that_are_none(task: str, arguments: list[Any], reason: str) -> None:
    with pytest.raises(ReaderError, match=reason):
        kernel_of_task(task, arguments)


@pytest.mark.parametrize(
    ("part", "value", "reason"),
    [
        ("result", [[float("1e400")], 0, 1.0, 1.0], "not a finite number|JSON|number"),
        ("result", [[-1.0], 0, 1.0, 1.0], "is not positive"),
        ("result", [[], 0, 1.0, 1.0], "no cost and no error"),
        ("result", [[1.0], 0], "unpack"),
        ("result", None, "unpack"),
        ("config", {}, "fields are missing"),
        ("config", {"entity": [["tile_x", "sp", [1.5, 2]]]}, "not an integer"),
        ("config", {"entity": [["tile_x", "zz", [1, 2]]]}, "is of the kind 'zz'"),
        ("config", {"entity": [["tile_x", "ot", None]]}, "cannot be a parameter's value"),
        ("config", {"entity": "tile"}, "must be texts"),
        ("input", ["llvm"], "fields are missing"),
        ("input", [1, "dense", DENSE], "must be texts"),
    ],
)
def test_bad_rows(tmp_path: Path, part: str, value: Any, reason: str) -> None:
    record = json.loads(GOLDEN.read_text().splitlines()[1])
    path = tmp_path / "a.log"
    path.write_text(GOLDEN.read_text() + json.dumps({**record, part: value}) + "\n")
    rows = read(path)
    assert [type(row) for row in rows] == [RunRow] * 3 + [Reject]
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(rows[-1].reason)  # type: ignore[union-attr]


def test_orders_and_annotations_are_words(tmp_path: Path) -> None:
    record = json.loads(GOLDEN.read_text().splitlines()[1])
    record["config"]["entity"] = [["order", "re", [0, 2, 1]], ["ann", "an", ["none", "vec"]]]
    path = tmp_path / "a.log"
    path.write_text(json.dumps(record))
    (row,) = read(path)
    assert isinstance(row, RunRow)
    assert (row.config["order"], row.config["ann"]) == ("0/2/1", "none/vec")


def test_kernels_come_with_the_log(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(GOLDEN.read_bytes())
    with Database.in_memory() as db:
        report = ingest(db.store, log)
        told = (report.added, report.rejected, report.patterns, report.stubs)
        assert told == (3, 0, 2, 0)
        assert set(report.new_values) >= {"tile_x_1", "tile_k_1"}
        name = "dense_8x32_16x32"
        (info,) = db.store.find(name)
        assert (info.kind, info.stub, info.named["DIM_2"]) == ("kernel", False, 16)
        kernel = db.store.tensor(info.id)
        assert kernel is not None and kernel.reduced == 32
        assert ingest(db.store, log).added == 0


def test_knobs_of_a_template_that_is_not_listed(tmp_path: Path) -> None:
    record = json.loads(GOLDEN.read_text().splitlines()[1])
    record["input"][1] = "dense.mine"
    log = tmp_path / "a.log"
    log.write_text(json.dumps(record))
    with Database.in_memory() as db:
        report = ingest(db.store, log)
        assert (report.added, report.rejected) == (0, 1)
        (told,) = map(json.loads, Path(report.rejects_file).read_text().splitlines())
        assert "may only be given when template in" in told["reason"]


def test_a_file_of_that_name_goes_first(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("".join(GOLDEN.read_text().splitlines(keepends=True)[:2]))
    mine = replace(dot_add(), name="dense_8x32_16x32")
    (tmp_path / "dump").mkdir()
    (tmp_path / "dump" / "mine.json").write_bytes(tensor_text(mine))
    with Database.in_memory() as db:
        ingest(db.store, log, library=Library(tmp_path / "dump"))
        (info,) = db.store.find(mine.name)
        assert info.id == mine.id


def test_content_of_another_kind_is_refused() -> None:
    class Wrong(AutoTvmReader):
        def rows(self, path: Path, *, options: ReadOptions) -> Iterator[RunRow | Reject]:
            for row in super().rows(path, options=options):
                assert isinstance(row, RunRow)
                yield structs.replace(row, op=Op("fusion"))

    with Database.in_memory() as db:
        board, report = load_platform("xla-cpu"), IngestReport("", "")
        job = _Job(db.store, GOLDEN, board, Library(None), report)
        rows = list(Wrong().rows(GOLDEN, options=ReadOptions()))
        _, rejects, _ = job._split(rows)
        assert {r.reason.partition(": ")[2] for r in rejects} == {"a kernel is no program"}


def test_the_platform_is_sound() -> None:
    platform = load_platform("autotvm")
    space = platform.space(Op("tile"))
    default = platform.default(Op("tile"))
    assert space.reason(default) is None
    assert space.reason(default.replace(tile_x_1=768)) is None, "open"
    assert space.reason(default.replace(template="dense_small_batch.cuda")) is not None
