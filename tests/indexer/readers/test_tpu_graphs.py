"""TpuGraphs' tiles: kernels made from arrays, times over those of the compiler's own tile, files
that are none."""

from __future__ import annotations

import io
import zipfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensors import conv, dot_add, op, row_sum, softmax
from tpu_graph_files import Arrays, arrays_of, npz_of, write_npz

from embeddb.core.config import Op
from embeddb.core.errors import ReaderError
from embeddb.database import Database
from embeddb.tensors.analysis import work_of
from embeddb.tensors.check import computation
from embeddb.tensors.tensor_graph import TensorGraph
from indexer.ingest import ingest
from indexer.readers.base.lines import guess
from indexer.readers.base.row import ReadOptions, Reject, RunRow
from indexer.readers.tpu_graphs import TpuGraphsReader, kernel_of_graph, notes_on, opcode_of

GOLDEN = Path(__file__).parents[2] / "golden" / "readers" / "tpu_graphs.npz"
STEM = "alexnet_train_batch_32_-1bae27a41d70f4dc"


def read(path: Path) -> list[RunRow | Reject]:
    return list(TpuGraphsReader().rows(path, options=ReadOptions()))


def again(kernel: TensorGraph) -> TensorGraph:
    a = arrays_of(kernel)
    return kernel_of_graph(a["node_feat"], a["node_opcode"], a["edge_index"], name="k", group="g")


def swapped() -> TensorGraph:
    """A convolution whose filter comes before what it goes over."""
    given = conv()
    first, second, last = given.operations
    operations = [second, first, replace(last, operands=(1, 0))]
    return computation(operations, [2], name="swapped")


@pytest.mark.parametrize(
    "kernel",
    [dot_add(), row_sum(), conv(), softmax(), swapped()],
    ids=lambda kernel: kernel.name,
)
def test_kernels_come_back(kernel: TensorGraph) -> None:
    found = again(kernel)
    assert work_of(found) == work_of(kernel)
    assert found.root == kernel.root and found.reduced == kernel.reduced
    mine = Counter((o.opcode, o.results) for o in found.operations)
    assert mine == Counter((o.opcode, o.results) for o in kernel.operations)


def test_a_layout_is_kept() -> None:
    kernel = row_sum()
    first = replace(kernel.operations[0].shape, layout=(0, 1))
    operations = [replace(kernel.operations[0], results=(first,)), *kernel.operations[1:]]
    assert again(computation(operations, [3])).operations[0].shape == first


def test_batched_and_turned_products() -> None:
    def product(lhs: tuple[int, ...], rhs: tuple[int, ...], out: tuple[int, ...]) -> Any:
        operations = [op("parameter", lhs), op("parameter", rhs), op("dot", out, 0, 1)]
        return dict(again(computation(operations, [2])).operations[2].attributes)

    contracted = {"lhs_contracting": (2,), "rhs_contracting": (1,)}
    batched = {"lhs_batch": (0,), "rhs_batch": (0,)}
    assert product((3, 8, 32), (3, 32, 16), (3, 8, 16)) == contracted | batched
    assert product((8, 32), (16, 32), (8, 16)) == {"lhs_contracting": (1,), "rhs_contracting": (1,)}
    assert product((8, 32), (33, 16), (8, 16)) == {}, "nothing fits"


def test_a_body_names_what_is_combined() -> None:
    """Edges lead into called computations: the root of an adder is an operand of the reduction."""
    a = arrays_of(row_sum())
    scalar = np.zeros((3, 140), np.float32)
    scalar[:, 13] = 1
    scalar[2, 0] = 1  # the body's root
    a["node_feat"] = np.vstack([a["node_feat"], scalar])
    a["node_opcode"] = np.append(a["node_opcode"], [63, 63, 2])
    a["edge_index"] = np.vstack([a["edge_index"], [[6, 4], [6, 5], [3, 6]]])
    found = kernel_of_graph(a["node_feat"], a["node_opcode"], a["edge_index"], name="", group="")
    assert found.operations[-1].attributes["combine"] == "add"
    assert len(found.parameters) == 1 and work_of(found) == work_of(row_sum())


def test_roots_of_tuples_are_their_parts() -> None:
    a = arrays_of(row_sum())
    line = np.zeros((1, 140), np.float32)
    line[0, [0, 18]] = 1
    a["node_feat"][:, 0] = 0
    a["node_feat"] = np.vstack([a["node_feat"], line])
    a["node_opcode"] = np.append(a["node_opcode"], 100)
    a["edge_index"] = np.vstack([a["edge_index"], [[4, 1], [4, 3]]])
    found = kernel_of_graph(a["node_feat"], a["node_opcode"], a["edge_index"], name="", group="")
    assert [found.operations[at].opcode for at in found.outputs] == ["exponential", "reduce"]


def test_opcodes() -> None:
    assert [opcode_of(n) for n in (1, 26, 63, 96, 98, 120)] == [
        *("abs", "convolution", "parameter", "tanh", "transpose", "tan")
    ]
    assert [opcode_of(n) for n in (0, 121, -3)] == ["unknown-0", "unknown-121", "unknown-0"]


def test_unknown_opcodes_are_kept_with_a_note(tmp_path: Path) -> None:
    a = arrays_of(row_sum())
    a["node_opcode"][1] = 200
    row = read(write_npz(tmp_path / "k.npz", a))[0]
    assert isinstance(row, RunRow) and isinstance(row.matrix.content, TensorGraph)
    assert row.matrix.about == {"unknown_opcodes": "unknown-200 (1)"}
    assert "unknown-200" in {o.opcode for o in row.matrix.content.operations}
    assert notes_on(row_sum()) == {}


def test_rows(tmp_path: Path) -> None:
    path = write_npz(tmp_path / f"{STEM}.npz", arrays_of(dot_add()))
    default, *tiles = rows = [row for row in read(path) if isinstance(row, RunRow)]
    assert guess(path) == ["tpu-graphs"]
    assert len(rows) == 4 and {row.op for row in rows} == {Op("tile")}
    assert (rows[0].matrix.name, rows[0].matrix.group) == (STEM, "alexnet_train_batch_32")
    assert set(default.config.values()) == {0} and len(default.config) == 18
    assert default.measurement.times_s == (4.001e-6,)
    # 2500, 2000 and 2500 ns beside 4000, 4001 and 4002 ns of the compiler's tile.
    gains = [default.measurement.times_s[0] / row.measurement.times_s[0] for row in tiles]
    assert gains == pytest.approx([4000 / 2500, 4001 / 2000, 4002 / 2500])
    assert tiles[0].measurement.context == {"runtime_ns": 2500.0, "normalizer_ns": 4000.0}
    assert tiles[1].config["output_0"] == 16 and tiles[1].config["output_1"] == 128


def test_a_folder_and_what_is_no_file_of_it(tmp_path: Path) -> None:
    folder = tmp_path / "npz"
    write_npz(folder / "train" / "a_1f.npz", arrays_of(dot_add()))
    write_npz(folder / "valid" / "b_2f.npz", arrays_of(conv()))
    (folder / "valid" / "c_3f.npz").write_bytes(b"PK\x03\x04 nothing")
    assert guess(folder) == ["tpu-graphs"]
    rows = read(folder)
    assert [row.where for row in rows] == ["train/a_1f.npz"] * 4 + ["valid/b_2f.npz"] * 4 + [
        "valid/c_3f.npz"
    ]
    assert isinstance(rows[-1], Reject)
    with Database.in_memory() as db:
        report = ingest(db.store, folder)
        told = (report.added, report.rejected, report.patterns, report.stubs)
        assert told == (8, 1, 2, 0)
        (info,) = db.store.find("b_2f")
        assert (info.kind, info.group) == ("kernel", "b")


def change(**changed: Any) -> Arrays:
    return {**arrays_of(row_sum()), **changed}


def features(at: tuple[int, int], value: float) -> Arrays:
    made = arrays_of(row_sum())
    made["node_feat"][at] = value
    return made


EMPTY = np.zeros((0, 2), int)
BAD: dict[str, tuple[Arrays, str]] = {
    "layouts": (change(node_config_feat=np.zeros((1, 1, 18))), "of the layout collection"),
    "columns": (change(node_feat=np.zeros((4, 139), np.float32)), r"has the shape \(4, 139\)"),
    "dimensions": (change(config_feat=np.zeros(24, np.float32)), "has the shape"),
    "lengths": (change(node_opcode=np.zeros(3, np.uint8)), "differ in length"),
    "times": (change(config_runtime=np.ones(2, np.int64)), "differ in length"),
    "texts": (change(node_opcode=np.array(["a"] * 4)), "has <U1 elements, not whole numbers"),
    "floats": (change(edge_index=np.zeros((1, 2))), "has float64 elements, not whole numbers"),
    "objects": (change(config_runtime=np.array([{}] * 3)), "not numbers"),
    "nowhere": (change(edge_index=np.array([[3, 9]])), "an edge from 3 to 9"),
    "before": (change(edge_index=np.array([[3, -1]])), "an edge from 3 to -1"),
    "circle": (change(edge_index=np.array([[3, 1], [1, 0], [0, 1]])), "the graph has a cycle"),
    "itself": (change(edge_index=np.array([[3, 3], [2, 2], [1, 1], [0, 0]])), "cycle"),
    "no-nodes": (
        change(node_feat=np.zeros((0, 140)), node_opcode=EMPTY[:, 0], edge_index=EMPTY),
        "has no operations",
    ),
    "no-type": (features((0, 13), 0.0), "operation 0: has no type of elements"),
    "nan": (features((0, 21), float("nan")), "operation 0: column 21 is nan"),
    "infinite": (features((0, 21), float("inf")), "operation 0: column 21 is inf"),
    "half": (features((0, 21), 1.5), "operation 0: column 21 is 1.5"),
    "negative": (features((0, 21), -48.0), "are no sizes"),
    "more-dimensions": (features((0, 27), 2000.0), "are no sizes, or not all of them"),
    "layout": (features((0, 134), 5.0), "layout"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files(tmp_path: Path, name: str) -> None:
    arrays, reason = BAD[name]
    path = tmp_path / "k.npz"
    if name == "objects":
        np.savez(path, allow_pickle=True, **arrays)  # type: ignore[arg-type]
    else:
        write_npz(path, arrays)
    with pytest.raises(ReaderError, match=reason) as caught:
        read(path)
    assert str(path) in str(caught.value)


def test_bad_rows(tmp_path: Path) -> None:
    times = np.array([float("nan"), 2000.0, 2500.0])
    tiles = arrays_of(row_sum())["config_feat"]
    tiles[1, 8] = 1.5
    normal = np.array([4000, 4000, 0])
    made = change(config_runtime=times, config_feat=tiles, config_runtime_normalizers=normal)
    rows = read(write_npz(tmp_path / "k.npz", made))
    assert [type(row) for row in rows] == [RunRow, Reject, Reject, Reject]
    assert [row.reason for row in rows if isinstance(row, Reject)] == [
        "'nan' is not a finite number",
        "'1.5' is not an integer",
        "time '0' is not positive",
    ]
    gone = change(config_runtime_normalizers=np.zeros(3, int))
    assert {type(row) for row in read(write_npz(tmp_path / "l.npz", gone))} == {Reject}


def test_a_member_that_promises_more_than_there_is(tmp_path: Path) -> None:
    """Of 10^5 operations nothing is allocated before the archive is seen to hold them."""
    head = io.BytesIO()
    shape = {"descr": "<f4", "fortran_order": False, "shape": (100_000, 140)}
    np.lib.format.write_array_header_1_0(head, shape)
    path = tmp_path / "k.npz"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("node_feat.npy", head.getvalue())
    with pytest.raises(ReaderError, match="states 56000128 bytes, the archive has 128"):
        read(path)


def test_a_file_without_its_second_half(tmp_path: Path) -> None:
    path = tmp_path / "k.npz"
    data = npz_of(arrays_of(conv()))
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(ReaderError, match="not a zip file"):
        read(path)


def test_the_golden_file_is_what_its_script_makes() -> None:
    made = npz_of(arrays_of(dot_add()))
    with zipfile.ZipFile(io.BytesIO(made)) as mine, zipfile.ZipFile(GOLDEN) as kept:
        names = mine.namelist()
        assert names == kept.namelist()
        assert [mine.read(name) for name in names] == [kept.read(name) for name in names]
