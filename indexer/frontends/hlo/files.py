"""Files with tensor kernels and programs: HLO text, dumps of XLA, embeddb's own JSON."""

from __future__ import annotations

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
from indexer.frontends.hlo.module import MOST_TEXT, read_module
from indexer.frontends.hlo.subjects import kernels_of, program_of

_SUFFIXES = (".txt", ".hlo", ".json", ".gz")
_MOST_LIST = 100_000
_HEAD = 4096
#: XLA writes a file after every pass if it is asked to: those before the first and after the last.
_BEFORE = "before_optimizations.txt"
_DUMPED = (_BEFORE, "after_optimizations.txt")


@dataclass(frozen=True, slots=True)
class TensorFile:
    """What a file holds, and what was left out or taken for something else, one line each."""

    tensors: tuple[TensorGraph, ...]
    notes: tuple[str, ...] = ()


def read_tensors(
    path: str | Path, *, kind: str = "", name: str = "", group: str = ""
) -> TensorFile:
    """The computations of a file: HLO text (`.txt`, `.hlo`) or JSON, gzipped or not.

    An optimised module is its kernels, any other one program, unless `kind` says `program`
    (calls and fusions inlined) or `kernel` (a module that is not optimised is then one kernel).
    `name` and `group` replace the module's. Raises: TensorError, one line with file and line.
    """
    path = Path(path)
    with refusing(TensorError, where=str(path)):
        if kind not in ("", *KINDS):
            raise TensorError(f"{kind!r} is neither a kernel nor a program")
        data = _content(path)
        if data.lstrip()[:1] in (b"{", b"["):
            return _of_json(data, kind)
        if b"\0" in data[:_HEAD]:
            raise TensorError("is no HLO text but binary", hint="--xla_dump_hlo_as_text makes text")
        module = read_module(data.decode())
        if kind == "program" or not module.optimised:
            made = program_of(module, name=name, group=group)
            return TensorFile((replace(made, kind=kind or "program"),), tuple(module.notes))
        kernels = kernels_of(module, name=name, group=group)
        return TensorFile(tuple(kernels), tuple(module.notes))


def tensor_files(folder: Path, *, kind: str = "") -> list[Path]:
    """The files below a folder that hold tensors, in order. Of a dump that is the modules before
    and after all passes; where a `program` is asked for, the former alone if both are there. Hidden
    files and folders are left out."""
    found = [path for path in _below(folder) if holds_tensors(path)]
    dumped = [path for path in found if _plain(path).endswith(_DUMPED)]
    return sorted((_programs(dumped) if kind == "program" else dumped) or found)


def _programs(dumped: list[Path]) -> list[Path]:
    """Without the modules after all passes that are there before them as well: of the head
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
    """Whether a file begins like HLO text or like computations as embeddb writes them."""
    if path.suffix.lower() not in _SUFFIXES:
        return False
    try:
        with open_regular(path) as file:
            head = file.read(_HEAD)
        head = _unpacked(head, _HEAD, whole=False) if head[:2] == b"\x1f\x8b" else head
    except (OSError, zlib.error):
        return False
    head = head.lstrip()
    if _plain(path).endswith(_DUMPED):
        return True  # a dump that was cut off is told of, not passed over
    return head.startswith(b"HloModule") or (head[:1] in b"{[" and b'"tensors"' in head)


def _below(folder: Path) -> Iterator[Path]:
    for place, below, names in os.walk(folder):
        below[:] = [name for name in below if not name.startswith(".")]
        yield from (Path(place, name) for name in names if not name.startswith("."))


def _content(path: Path) -> bytes:
    data = read_bounded(path, MOST_TEXT)
    return _unpacked(data, MOST_TEXT) if data[:2] == b"\x1f\x8b" else data


def _unpacked(data: bytes, most: int, *, whole: bool = True) -> bytes:
    """Raises: TensorError for what is larger or, with `whole`, cut off; zlib.error."""
    stream = zlib.decompressobj(wbits=31)
    found = stream.decompress(data, most)
    if whole and stream.unconsumed_tail:
        raise TensorError(f"unpacked larger than {most:,} bytes")
    if whole and not stream.eof:
        raise TensorError("the gzip stream ends early: the file was cut off")
    return found


def _of_json(data: bytes, kind: str) -> TensorFile:
    told = json.loads(data)
    told = told if isinstance(told, list) else [told]
    if len(told) > _MOST_LIST:
        raise TensorError(f"{len(told):,} computations, at most {_MOST_LIST:,} are read")
    made = [tensor_from_text(json.dumps(one)) for one in told]
    fits = tuple(one for one in made if kind in ("", one.kind))
    if made and not fits:
        raise TensorError(f"has no {kind}: all in it is of the other kind")
    return TensorFile(fits)
