"""TpuGraphs' tile collection: one `.npz` per kernel, with all tiles of it that were timed on a TPU.

`node_feat` [n,140], `node_opcode` [n], `edge_index` [e,2] are the kernel; `config_feat` [c,24] the
tiles: six sizes, their sum and product, of the filter, the result and the input; `config_runtime`
[c] nanoseconds, and `config_runtime_normalizers` [c] those of the compiler's own tile in the same
session, since machines differ. A folder is read as all such files below it.

The compiler's own tile is the default configuration, all sizes 0: its time is the median of the
normalizers, and a tile's is that median times runtime / normalizer, so that gains over the default
are those measured side by side. Both values in nanoseconds are stored in the context. `line` counts
the rows of one file, the default first. The group is the file's name without the number at its end.
The layout collection is rejected: a configuration there is a layout of each of a program's arrays.

A kernel is 140 numbers, an opcode and the edges of each operation. The columns are those of the
dataset's description ("Node Features"): lists are cut after six entries and filled up with 0, then
follow their sum and product. So the kernel is incomplete:

- Operands are a set in the order of the operations. The filter of a convolution and the array that
  is reduced, sliced or padded are inferred from the shapes; of an operation with itself, one is
  left.
- A `dot` has no dimension numbers: those that fit the shapes are taken, if any do.
- Slices and pads are given for the first two dimensions only, so they are left out of larger
  arrays.
- Comparisons, constants and bodies of reductions have no columns; a body whose root is an operand
  names the combining operation.
- An operation whose result is a tuple has no shape and is left out.
- Sizes are 32-bit floats: above 16,777,216 they are rounded.
"""

from __future__ import annotations

import io
import math
import re
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Op
from embeddb.core.errors import ReaderError, TensorError
from embeddb.core.files.safe_read import refusing
from embeddb.core.records import Measurement
from embeddb.matrix_files.scipy_npz import NpzArchive
from embeddb.matrix_files.source import Source, plain_text
from embeddb.tensors.check import computation
from embeddb.tensors.tensor_graph import Attribute, Operation, Shape, TensorGraph
from indexer.readers.base.lines import files_below, head_of, refuse_other, whole_bytes, wrong_file
from indexer.readers.base.row import MatrixRef, ReadOptions, Reject, RunRow, integer, seconds

COLUMNS = 140
#: Entries of a list in the dataset.
MOST = 6
#: Element types of columns 2 to 20; tuples, opaque values and tokens have none.
_TYPES = (
    *("", "pred", "s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64"),
    *("f16", "f32", "f64", "bf16", "c64", "c128", "token", "token", "token"),
)
#: First column and number of entries of each list.
_LISTS = {
    "shape": (21, 6),
    "dimensions": (31, 6),
    "size": (37, 6),
    "stride": (45, 6),
    "low": (53, 6),
    "high": (61, 6),
    "rhs_dilate": (69, 6),
    "lhs_dilate": (77, 6),
    "reversal": (85, 6),
    "input_ends": (93, 2),
    "input_spatial": (95, 4),
    "kernel_ends": (99, 2),
    "kernel_spatial": (101, 4),
    "output_ends": (105, 2),
    "groups": (107, 2),
    "slice_start": (109, 2),
    "slice_stride": (113, 2),
    "slice_limit": (117, 2),
    "pad_low": (125, 2),
    "pad_high": (129, 2),
    "layout": (134, 6),
}
_SHAPE_SUM = 27


class Row:
    """One operation. Raises: TensorError if an integer column is not whole."""

    def __init__(self, at: int, line: Sequence[float]) -> None:
        self.at, self._line = at, line

    @property
    def is_root(self) -> bool:
        return self._line[0] == 1

    def numbers(self, name: str, count: int) -> tuple[int, ...]:
        """The first entries of a list, 0 for missing ones."""
        start, length = _LISTS[name]
        return tuple(self._whole(start + at) for at in range(min(count, length)))

    def leading(self, name: str) -> int:
        """Number of leading entries of a list that are not 0."""
        start, length = _LISTS[name]
        places = range(start, start + length)
        return next((at - start for at in places if not self._line[at]), length)

    def shape(self) -> Shape | None:
        """Shape of the result; None for tuples and other types without elements."""
        types = [at for at in range(len(_TYPES)) if self._line[2 + at] == 1]
        if len(types) != 1 or not _TYPES[types[0]]:
            raise TensorError(f"operation {self.at}: has no type of elements")
        dtype = _TYPES[types[0]]
        if dtype == "token":
            return None
        rank = self.leading("shape")
        dims = self.numbers("shape", rank)
        if min(dims, default=1) < 1 or abs(self._line[_SHAPE_SUM] - sum(dims)) > 1e-3 * sum(dims):
            raise TensorError(f"operation {self.at}: {dims} are no sizes, or not all of them")
        layout = self.numbers("layout", rank)
        return Shape(dtype, dims, layout if any(layout) else ())

    def _whole(self, column: int) -> int:
        number = self._line[column]
        if not number.is_integer() or abs(number) > 2**53:  # also of nan and infinities
            raise TensorError(f"operation {self.at}: column {column} is {number}, not an integer")
        return int(number)


_OPCODES = """
    abs add add-dependency after-all all-reduce all-to-all atan2 batch-norm-grad
    batch-norm-inference batch-norm-training bitcast bitcast-convert broadcast call ceil cholesky
    clamp collective-permute count-leading-zeros compare complex concatenate conditional constant
    convert convolution copy copy-done copy-start cosine custom-call divide domain dot dynamic-slice
    dynamic-update-slice exponential exponential-minus-one fft floor fusion gather
    get-dimension-size set-dimension-size get-tuple-element imag infeed iota is-finite log
    log-plus-one and not or xor map maximum minimum multiply negate outfeed pad parameter
    partition-id popcnt power real recv recv-done reduce reduce-precision reduce-window remainder
    replica-id reshape reverse rng rng-get-and-update-state rng-bit-generator round-nearest-afz
    rsqrt scatter select select-and-scatter send send-done shift-left shift-right-arithmetic
    shift-right-logical sign sine slice sort sqrt subtract tanh trace transpose triangular-solve
    tuple tuple-select while cbrt all-gather collective-permute-start collective-permute-done
    logistic dynamic-reshape all-reduce-start all-reduce-done reduce-scatter all-gather-start
    all-gather-done opt-barrier async-start async-update async-done round-nearest-even
    stochastic-convert tan
""".split()  # noqa: SIM905 - a table of words


def opcode_of(number: int) -> str:
    """HLO's opcode; `unknown-7` for an undefined number (0 is an opcode unknown to the dataset)."""
    defined = 1 <= number <= len(_OPCODES)
    return _OPCODES[number - 1] if defined else f"unknown-{max(number, 0)}"


#: Operations that take elements from their largest operand, which comes first in HLO.
_LARGEST_FIRST = frozenset(
    ("reduce", "reduce-window", "select-and-scatter", "pad", "dynamic-slice", "gather")
) | {"dynamic-update-slice"}
_COMBINERS = frozenset(("add", "multiply", "minimum", "maximum", "and", "or"))
_WINDOW = ("size", "stride", "low", "high", "lhs_dilate", "rhs_dilate")
Attributes = dict[str, Attribute]


def in_order(opcode: str, row: Row, shapes: Sequence[Shape], result: Shape) -> list[int]:
    """Places among the operands, in HLO's order."""
    order = list(range(len(shapes)))
    if opcode in ("convolution", "dot") and len(order) == 1:
        return [0, 0]
    if opcode in ("convolution", "dot") and len(order) == 2:
        first, second = shapes
        pairs = ((first, second), (second, first))
        if opcode == "convolution":
            fits, turned = (_is_filtered(row, *pair, result) for pair in pairs)
        else:
            fits, turned = (bool(_contraction(*pair, result)) for pair in pairs)
        return [1, 0] if turned and not fits else order
    if opcode in _LARGEST_FIRST:
        return sorted(order, key=lambda at: -shapes[at].elements)
    if opcode == "select":
        return sorted(order, key=lambda at: shapes[at].dtype != "pred")
    return order


def attributes_of(opcode: str, row: Row, taken: Sequence[Shape], result: Shape) -> Attributes:
    """`taken`: shapes of the operands, in order. Raises: TensorError."""
    first = taken[0] if taken else result
    match opcode:
        case "parameter":
            return {"number": 0}
        case "broadcast":
            return {"dimensions": row.numbers("dimensions", first.rank)}
        case "transpose":
            return {"dimensions": row.numbers("dimensions", result.rank)}
        case "reduce":
            return {"dimensions": row.numbers("dimensions", max(first.rank - result.rank, 0))}
        case "concatenate" | "iota":
            return {"dimension": row.numbers("dimensions", 1)[0]}
        case "dynamic-slice":
            return {"sizes": result.dims}
        case "slice" if result.rank <= 2:
            return {n: row.numbers(f"slice_{n}", result.rank) for n in ("start", "limit", "stride")}
        case "pad" if result.rank <= 2:
            return {n: row.numbers(f"pad_{n}", result.rank) for n in ("low", "high")}
        case "dot" if len(taken) > 1:
            return _contraction(taken[0], taken[1], result)
        case "reduce-window" | "select-and-scatter":
            return _window(row, row.leading("size"))
        case "convolution":
            return _convolution(row, result)
    return {}


def _window(row: Row, rank: int) -> Attributes:
    return {name: row.numbers(name, rank) for name in _WINDOW}


def _convolution(row: Row, result: Shape) -> Attributes:
    spatial = row.leading("size")
    if spatial + 2 != result.rank or spatial > 4:
        raise TensorError(f"operation {row.at}: a window over {spatial} dimensions of {result}")
    ends = row.numbers("output_ends", 2)
    between = tuple(at for at in range(result.rank) if at not in ends)
    labels = (
        _labels("bf", row.numbers("input_ends", 2), row.numbers("input_spatial", spatial))
        + "_"
        + _labels("io", row.numbers("kernel_ends", 2), row.numbers("kernel_spatial", spatial))
        + "->"
        + _labels("bf", ends, between)
    )
    if "?" in labels:
        raise TensorError(f"operation {row.at}: a convolution with the dimensions {labels}")
    features, batches = (max(n, 1) for n in row.numbers("groups", 2))
    attributes: Attributes = {"labels": labels, "feature_groups": features, "batch_groups": batches}
    reversal = row.numbers("reversal", spatial)
    return _window(row, spatial) | attributes | ({"reversal": reversal} if any(reversal) else {})


def _labels(words: str, ends: Sequence[int], spatial: Sequence[int]) -> str:
    """`b01f` for batch in 0, features in 3, the window over 1 and 2; `?` for a missing
    dimension."""
    named = {**dict(zip(ends, words, strict=True)), **{d: str(n) for n, d in enumerate(spatial)}}
    return "".join(named.get(at, "?") for at in range(len(ends) + len(spatial)))


def _is_filtered(row: Row, image: Shape, weights: Shape, result: Shape) -> bool:
    """True if these can be the input and the filter of the convolution."""
    spatial = row.leading("size")
    if not weights.rank == image.rank == result.rank == spatial + 2:
        return False
    terms, features = row.numbers("kernel_ends", 2)
    places = (terms, features, *row.numbers("kernel_spatial", spatial))
    taken, filters = row.numbers("input_ends", 2)[1], row.numbers("output_ends", 2)[1]
    if not all(0 <= at < result.rank for at in (*places, taken, filters)):
        return False
    groups = max(row.numbers("groups", 1)[0], 1)
    window = tuple(weights.dims[at] for at in places[2:])
    return (
        weights.dims[terms] * groups == image.dims[taken]
        and weights.dims[features] == result.dims[filters]
        and window == row.numbers("size", spatial)
    )


def _contraction(lhs: Shape, rhs: Shape, result: Shape) -> Attributes:
    """The contracted dimension of both operands, below the largest number of leading batch
    dimensions; {} where none fits. The last of the left and the first of the right take precedence,
    as in x @ w."""
    most = min(lhs.rank, rhs.rank, result.rank + 1) - 1
    for batch in reversed(range(max(most, 0) + 1)):
        if not lhs.dims[:batch] == rhs.dims[:batch] == result.dims[:batch]:
            continue
        for left in reversed(range(batch, lhs.rank)):
            for right in range(batch, rhs.rank):
                rest = lhs.dims[batch:left] + lhs.dims[left + 1 :]
                rest += rhs.dims[batch:right] + rhs.dims[right + 1 :]
                if lhs.dims[left] == rhs.dims[right] and rest == result.dims[batch:]:
                    lead = tuple(range(batch))
                    pair: Attributes = {
                        "lhs_contracting": (left,),
                        "rhs_contracting": (right,),
                    }
                    return pair | ({"lhs_batch": lead, "rhs_batch": lead} if batch else {})
    return {}


_NOTHING = Shape("token")
#: Their operands may have the root of a body among them.
_WITH_BODY = frozenset(
    ("reduce", "reduce-window", "select-and-scatter", "scatter", "sort", "map", "all-reduce")
)


def kernel_of_graph(
    features: NDArray[Any], opcodes: NDArray[Any], edges: NDArray[Any], *, name: str, group: str
) -> TensorGraph:
    """Build a kernel. `features`: float[n,140], `opcodes`: int[n], `edges`: int[e,2], each from an
    operation to one of its operands.

    Raises: TensorError for edges out of range, a cycle, invalid sizes, and layouts that do not fit.
    """
    if not len(features):
        raise TensorError("a kernel that has no operations")
    rows = [Row(at, line) for at, line in enumerate(features.tolist())]
    words = [opcode_of(int(number)) for number in opcodes.tolist()]
    shapes = [row.shape() or _NOTHING for row in rows]
    operands = _operands(edges, len(rows))
    taken = {at for own in operands for at in own}
    bodies = {at for at in taken if rows[at].is_root}
    operations = [
        _operation(row, words, shapes, operands[at], bodies) for at, row in enumerate(rows)
    ]
    outputs = _outputs(rows, words, operands, taken)
    return computation(operations, outputs, name=name, group=group)


def _operands(edges: NDArray[Any], count: int) -> list[list[int]]:
    operands: list[list[int]] = [[] for _ in range(count)]
    for taker, giver in edges.tolist():
        if not (0 <= taker < count and 0 <= giver < count):
            raise TensorError(f"an edge from {taker} to {giver}: there are {count} operations")
        operands[taker].append(giver)
    return operands


def _operation(
    row: Row, words: Sequence[str], shapes: Sequence[Shape], operands: list[int], bodies: set[int]
) -> Operation:
    opcode, attributes = words[row.at], dict[str, Attribute]()
    if opcode in _WITH_BODY:
        body = [at for at in operands if at in bodies and math.prod(shapes[at].dims) == 1]
        if body and len(body) < len(operands):
            root = words[body[0]]
            attributes = {"combine": root if root in _COMBINERS else "other"}
            operands = [at for at in operands if at not in body]
    places = in_order(opcode, row, [shapes[at] for at in operands], shapes[row.at])
    ordered = tuple(operands[place] for place in places)
    taken = [shapes[at] for at in ordered]
    attributes |= attributes_of(opcode, row, taken, shapes[row.at])
    return Operation(opcode, (shapes[row.at],), ordered, attributes)


def _outputs(
    rows: Sequence[Row], words: Sequence[str], operands: Sequence[list[int]], taken: set[int]
) -> list[int]:
    """The root, if unused, or the elements of its tuple; without a root the unused operations."""
    unused = [row.at for row in rows if row.at not in taken]
    roots = [at for at in unused if rows[at].is_root] or unused
    if not roots:
        raise TensorError("every operation is an operand of another: the graph has a cycle")
    outputs = [one for at in roots for one in (operands[at] if words[at] == "tuple" else [at])]
    return list(dict.fromkeys(outputs)) or roots


def notes_on(kernel: TensorGraph) -> dict[str, str]:
    """Note about a kernel with unknown opcodes, with their counts."""
    counts = Counter(op.opcode for op in kernel.operations if op.opcode.startswith("unknown-"))
    opcodes = ", ".join(f"{word} ({count})" for word, count in sorted(counts.items()))
    return {"unknown_opcodes": opcodes} if opcodes else {}


_TILE = Op("tile")
_MOST_BYTES = 1 << 28
_MOST_NODES, _MOST_EDGES, _MOST_TILES = 100_000, 1_000_000, 1_000_000
_SIZES = 6
#: One parameter per size; after each six sizes come their sum and product.
_PARAMS = [
    (f"{of}_{at}", at + 8 * n)
    for n, of in enumerate(("kernel", "output", "input"))
    for at in range(_SIZES)
]
_FIRST = re.compile(rb"PK\x03\x04.{26}(node_|edge_index|config_)", re.DOTALL)
Arrays = dict[str, NDArray[Any]]


class TpuGraphsReader:
    """Reader of one file or a folder of them."""

    name = "tpu-graphs"
    platform = "tpu-graphs"
    generic = False

    def sniff(self, path: Path, head: bytes) -> bool:
        if path.is_dir():
            return any(_FIRST.match(head_of(file)) for file in files_below(path, ".npz")[:1])
        return _FIRST.match(head) is not None

    def rows(self, path: Path, *, options: ReadOptions) -> Iterator[RunRow | Reject]:
        if not path.is_dir():
            refuse_other(self, path)
            with refusing(ReaderError, where=plain_text(path)):
                kernel, arrays = _read(path)
            yield from _runs(kernel, arrays, options, "")
            return
        files = files_below(path, ".npz")
        if not files:
            raise wrong_file(path, self.name, "no .npz file in the folder (links are not followed)")
        for file in files:
            where = plain_text(file.relative_to(path))
            try:
                with refusing(ReaderError):
                    kernel, arrays = _read(file)
            except ReaderError as error:
                yield Reject(1, error.reason, "", where)
                continue
            yield from _runs(kernel, arrays, options, where)


def _read(path: Path) -> tuple[MatrixRef, Arrays]:
    """Raises: ReaderError, TensorError, and what zipfile and numpy raise for a damaged file."""
    data = whole_bytes(path, _MOST_BYTES)
    source = Source(path, max_nnz=0, size=len(data), gzipped=False)
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        archive = NpzArchive(source, file, "TpuGraphs' tiles")
        if "node_config_feat.npy" in file.namelist():
            raise ReaderError("a file of the layout collection: only tiles are read")
        nodes = _array(archive, "node_feat", (_MOST_NODES, COLUMNS))
        opcodes = _array(archive, "node_opcode", (_MOST_NODES,), whole=True)
        edges = _array(archive, "edge_index", (_MOST_EDGES, 2), whole=True)
        tiles = _array(archive, "config_feat", (_MOST_TILES, 8 * 3))
        times = {
            name: _array(archive, name, (_MOST_TILES,))
            for name in ("config_runtime", "config_runtime_normalizers")
        }
    if len(nodes) != len(opcodes) or any(len(one) != len(tiles) for one in times.values()):
        raise ReaderError("the arrays differ in length")
    name = path.name.removesuffix(".gz").removesuffix(".npz")
    group = re.sub(r"_-?[0-9a-f]+$", "", name)
    kernel = kernel_of_graph(nodes, opcodes, edges, name=name, group=group)
    matrix = MatrixRef(name, group=group, about=notes_on(kernel), content=kernel)
    return matrix, {"tiles": tiles, **times}


def _array(
    archive: NpzArchive, name: str, most: tuple[int, ...], *, whole: bool = False
) -> NDArray[Any]:
    """An array of at most so many rows and exactly so many columns; its shape is checked before it
    is decompressed."""
    member = archive.member(name)
    shape = member.shape
    if len(shape) != len(most) or shape[0] > most[0] or shape[1:] != most[1:]:
        raise ReaderError(f"'{name}' has the shape {shape}: at most {most} is read")
    if member.dtype.kind not in ("iu" if whole else "iuf"):
        raise ReaderError(f"'{name}' has {member.dtype} elements, not {'whole ' * whole}numbers")
    return archive.array(member)


def _runs(
    kernel: MatrixRef, arrays: Arrays, options: ReadOptions, where: str
) -> Iterator[RunRow | Reject]:
    taken, normal = arrays["config_runtime"], arrays["config_runtime_normalizers"]
    sound = normal[np.isfinite(normal) & (normal > 0)]
    usual = float(np.median(sound)) if len(sound) else float("nan")
    if len(sound):
        own = Measurement("ok", (seconds(usual, 1e9),), "imported")
        config = dict.fromkeys((name for name, _ in _PARAMS), 0)
        yield RunRow(kernel, _TILE, config, own, 1, options.instance, where=where)
    rows = zip(arrays["tiles"].tolist(), taken.tolist(), normal.tolist(), strict=True)
    for line, (tile, runtime, normalizer) in enumerate(rows, 2):
        try:
            time = seconds(runtime, 1e9) / seconds(normalizer, 1e9) * usual / 1e9
            context: dict[str, float | str] = {
                "runtime_ns": float(runtime),
                "normalizer_ns": float(normalizer),
            }
            measured = Measurement("ok", (seconds(time),), "imported", context=context)
            config = {name: integer(tile[column]) for name, column in _PARAMS}
        except ReaderError as error:
            yield Reject(line, error.reason, f"{runtime} {normalizer} {tile}"[:200], where)
            continue
        yield RunRow(kernel, _TILE, config, measured, line, options.instance, where=where)


PLUGIN = TpuGraphsReader
