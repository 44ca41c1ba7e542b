"""Files with tensor kernels and programs: HLO text, dumps of XLA, embeddb's own JSON."""

from __future__ import annotations

import codecs
import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from embeddb.core.errors import TensorError
from embeddb.core.files.safe_read import open_regular, read_bounded, refusing
from embeddb.tensors.tensor_graph import KINDS, TensorGraph
from embeddb.tensors.tensor_text import tensor_from_text
from indexer.frontends.hlo.graph import kernels_of, program_of
from indexer.frontends.hlo.module import MOST_TEXT, read_module

_SUFFIXES = (".txt", ".hlo", ".json", ".gz")
_MOST_LIST = 100_000
_HEAD = 4096
#: XLA may dump a file after every pass: these are before the first and after the last.
_BEFORE = "before_optimizations.txt"
_DUMPED = (_BEFORE, "after_optimizations.txt")


@dataclass(frozen=True, slots=True)
class TensorFile:
    """Contents of a file, and one line for each part that was left out or interpreted."""

    tensors: tuple[TensorGraph, ...]
    notes: tuple[str, ...] = ()


def read_tensors(
    path: str | Path, *, kind: str = "", name: str = "", group: str = ""
) -> TensorFile:
    """The computations of a file: HLO text (`.txt`, `.hlo`) or JSON, gzipped or not.

    An optimised module yields its kernels, any other one program, unless `kind` is `program` (calls
    and fusions inlined) or `kernel` (a module that is not optimised is then one kernel). `name` and
    `group` replace the module's.

    Raises: TensorError, one line with file and line.
    """
    path = Path(path)
    with refusing(TensorError, where=str(path)):
        if kind not in ("", *KINDS):
            raise TensorError(f"{kind!r} is neither a kernel nor a program")
        data = _content(path).removeprefix(codecs.BOM_UTF8)
        if data.lstrip()[:1] in (b"{", b"["):
            return _of_json(data, kind)
        if b"\0" in data[:_HEAD]:
            raise TensorError("is binary, not HLO text", hint="--xla_dump_hlo_as_text makes text")
        module = read_module(_text(data))
        if kind == "program" or not module.optimised:
            program = program_of(module, name=name, group=group)
            return TensorFile((replace(program, kind=kind or "program"),), tuple(module.notes))
        kernels = kernels_of(module, name=name, group=group)
        return TensorFile(tuple(kernels), tuple(module.notes))


def _text(data: bytes) -> str:
    """Raises: TensorError, with the line, for bytes that are no UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        reason = f"byte {data[error.start]:#04x} is no UTF-8"
        raise TensorError(reason, line=line, hint="save the file as UTF-8") from None


def tensor_files(folder: Path, *, kind: str = "") -> list[Path]:
    """The files with tensors below a folder, sorted. In a dump these are the modules before and
    after all passes; for kind `program` the former alone if both are there. Hidden files and
    folders are left out."""
    files = [path for path in visible_files(folder) if holds_tensors(path)]
    dumped = [path for path in files if _plain(path).endswith(_DUMPED)]
    return sorted((_programs(dumped) if kind == "program" else dumped) or files)


def _programs(dumped: list[Path]) -> list[Path]:
    """The dumps without modules after all passes that are there before them as well: of the head
    `module_0001.f.` both `module_0001.f.before…` and `module_0001.f.sm_8.0_gpu_after…`."""
    names = {path: _plain(path) for path in dumped}
    heads = {(p.parent, n.removesuffix(_BEFORE)) for p, n in names.items() if n.endswith(_BEFORE)}

    def unfused_too(path: Path, name: str) -> bool:
        dots = [at + 1 for at, letter in enumerate(name) if letter == "."]
        return any((path.parent, name[:at]) in heads for at in (0, *dots))

    return [p for p, n in names.items() if n.endswith(_BEFORE) or not unfused_too(p, n)]


def _plain(path: Path) -> str:
    return path.name.removesuffix(".gz")


def holds_tensors(path: Path) -> bool:
    """True if a file begins like HLO text or like embeddb's tensor files."""
    if path.suffix.lower() not in _SUFFIXES:
        return False
    try:
        with open_regular(path) as file:
            head = file.read(_HEAD)
        head = _unpacked(head, _HEAD, whole=False) if head[:2] == b"\x1f\x8b" else head
    except (OSError, zlib.error):
        return False
    head = head.removeprefix(codecs.BOM_UTF8).lstrip()
    if _plain(path).endswith(_DUMPED):
        return True  # a dump that was cut off is told of, not passed over
    return head.startswith(b"HloModule") or (head[:1] in b"{[" and b'"tensors"' in head)


def visible_files(folder: Path) -> Iterator[Path]:
    """The files below a folder, without hidden ones and those in hidden folders."""
    for place, below, names in os.walk(folder):
        below[:] = [name for name in below if not name.startswith(".")]
        yield from (Path(place, name) for name in names if not name.startswith("."))


def _content(path: Path) -> bytes:
    data = read_bounded(path, MOST_TEXT)
    return _unpacked(data, MOST_TEXT) if data[:2] == b"\x1f\x8b" else data


def _unpacked(data: bytes, most: int, *, whole: bool = True) -> bytes:
    """Decompress. Raises: TensorError if it is larger or, with `whole`, cut off; zlib.error."""
    stream = zlib.decompressobj(wbits=31)
    content = stream.decompress(data, most)
    if whole and stream.unconsumed_tail:
        raise TensorError(f"unpacked larger than {most:,} bytes")
    if whole and not stream.eof:
        raise TensorError("the gzip stream ends early: the file was cut off")
    return content


def _of_json(data: bytes, kind: str) -> TensorFile:
    documents = json.loads(data)
    documents = documents if isinstance(documents, list) else [documents]
    if len(documents) > _MOST_LIST:
        raise TensorError(f"{len(documents):,} computations, at most {_MOST_LIST:,} are read")
    computations = [tensor_from_text(json.dumps(one)) for one in documents]
    fits = tuple(one for one in computations if kind in ("", one.kind))
    if computations and not fits:
        raise TensorError(f"has no {kind}, only the other kind")
    return TensorFile(fits)
