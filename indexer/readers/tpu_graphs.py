"""TpuGraphs' tile collection: one `.npz` per kernel, with all tiles of it that were timed on a TPU.

`node_feat` [n,140], `node_opcode` [n], `edge_index` [e,2] are the kernel
(`indexer.readers.tensors.tpu_graph`); `config_feat` [c,24] the tiles: six sizes, their sum and
product, of the filter, the result and the input; `config_runtime` [c] nanoseconds, and
`config_runtime_normalizers` [c] those of the compiler's own tile in the same session, since
machines differ. A folder is read as all such files below it.

The compiler's own tile is the default configuration, all sizes 0: its time is the median of the
normalizers, and a tile's is that median times runtime / normalizer, so that gains over the default
are those measured side by side. Both values in nanoseconds are stored in the context. `line` counts
the rows of one file, the default first. The group is the file's name without the number at its end.
The layout collection is rejected: a configuration there is a layout of each of a program's arrays.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Op
from embeddb.core.errors import ReaderError
from embeddb.core.files.safe_read import refusing
from embeddb.core.records import Measurement
from embeddb.matrix_files.scipy_npz import NpzArchive
from embeddb.matrix_files.source import Source, plain_text
from indexer.readers.base.lines import head_of, whole_bytes
from indexer.readers.base.reading import files_below
from indexer.readers.base.recognise import refuse_other, wrong_file
from indexer.readers.base.row import MatrixRef, ReadOptions, Reject, RunRow, integer, seconds
from indexer.readers.tensors.tpu_graph import COLUMNS, kernel_of_graph, notes_on

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
    source = Source(path, "", "", max_nnz=0, size=len(data), gzipped=False)
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
