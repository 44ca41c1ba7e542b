"""Detection of the format of a matrix file, by its ending or its first bytes; and its name."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from embeddb.core.errors import MatrixError
from embeddb.core.files.safe_read import refusing
from embeddb.matrix_files.edge_list import HEADINGS, MOST_HEADING
from embeddb.matrix_files.matrix_market import is_right_hand_side
from embeddb.matrix_files.source import head_bytes, plain_text, without_mark

#: Format name -> the module of this package, and its function (default: `read`) of a source.
FORMATS = {
    "csr": "smtx:read_waco",
    "dimacs": "edge_list:read_dimacs",
    "edges": "edge_list",
    "hb": "harwell_boeing",
    "hmetis": "metis:read_hypergraph",
    "mat": "matlab",
    "metis": "metis",
    "mtx": "matrix_market",
    "npz": "scipy_npz",
    "smtx": "smtx",
}

_BY_SUFFIX = {
    ".csr": "csr",
    ".edgelist": "edges",
    ".edges": "edges",
    ".el": "edges",
    ".gr": "dimacs",
    ".graph": "metis",
    ".hb": "hb",
    ".hgr": "hmetis",
    ".mat": "mat",
    ".mm": "mtx",
    ".mtx": "mtx",
    ".npz": "npz",
    ".rb": "hb",
    ".smtx": "smtx",
}
#: Suffixes that do not identify a format.
_PLAIN_TEXT = {".csv", ".dat", ".tsv", ".txt"}
_HB_SUFFIX = re.compile(r"\.[rcpi][ushzr][ae]")  # .rua, .psa, .rse …: the type code as suffix
#: KONECT's files of edges: `out.moreno_crime`.
_KONECT_NAME = "out."

_HB_TYPE_LINE = re.compile(rb"[RCPIQ][USHZR][AE]\s+\d+\s+\d+\s+\d+", re.IGNORECASE)
_SMTX_SIZES = re.compile(rb"\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*")
_EDGE = re.compile(rb"\s*\d+(\s*[,;]\s*|\s+)\d+([\s,;].*)?")
_DIMACS = re.compile(rb"p\s+\w+\s+\d+\s+\d+\s*")
#: First bytes of unsupported formats, their description, and a hint.
_NOT_READ = (
    (re.compile(rb"\x93NUMPY"), "a dense array", "save scipy.sparse.csr_array(it) with save_npz"),
    (re.compile(rb"BZh|\xfd7zXZ|\x28\xb5\x2f\xfd"), "compressed", "unpack it, or use gzip"),
    (re.compile(rb"[^\s]{1,100}\0"), "an archive or binary", "unpack the matrix file in it"),
)
#: First rows of unsupported text formats, their description, and a hint.
_ROWS_NOT_READ = (
    (
        re.compile(rb"[+-]?[\d.]+([eE][+-]?\d+)?(\s+\d+:\S+)+\s*"),
        "libsvm rows, which do not state the number of columns",
        "save them as Matrix Market or with scipy.sparse.save_npz",
    ),
    (
        re.compile(rb"\s*\d+\s*"),
        "one number, where an edge has two",
        "a number of vertices: write it as '# Nodes: N'",
    ),
)


def format_of(path: Path) -> str:
    """The format of a file, one of `FORMATS`. Raises: MatrixError if neither ending nor content
    identifies it; OSError."""
    suffix = _suffix(path)
    by_name = "hb" if _HB_SUFFIX.fullmatch(suffix) else _BY_SUFFIX.get(suffix, "")
    if by_name and by_name != "edges":
        return by_name
    head, size = head_bytes(path)
    detected = _by_content(head, size) or by_name
    if not detected:
        raise _unknown(head, where=plain_text(path))
    return detected


def has_ending(path: Path) -> bool:
    """Return true if the name of a file marks it as a matrix."""
    suffix = _suffix(path)
    return suffix in _BY_SUFFIX or _HB_SUFFIX.fullmatch(suffix) is not None


def plain_name(text: str) -> str:
    """A matrix's name as commonly written (`HB/bcspwr10.mtx.gz`, with a slash or a backslash),
    without folders and the endings of matrix files."""
    return stem(Path(text.replace("\\", "/"))) or text


def matrix_name(file: Path) -> str:
    """Name of a matrix file without its endings; bytes that are not UTF-8 are escaped."""
    return stem(Path(plain_text(file.name)))


def stem(path: Path) -> str:
    """Name of a file without the endings of matrix files."""
    name = path.name
    if name.lower().endswith(".gz"):
        name = name[:-3]
    suffix = Path(name).suffix
    low = suffix.lower()
    if low in _BY_SUFFIX or low in _PLAIN_TEXT or _HB_SUFFIX.fullmatch(low):
        name = name[: -len(suffix)]
    return name


def format_hint() -> str:
    named = "the ending of a file, or format= in Python, names one"
    return f"known formats: {', '.join(sorted(FORMATS))}; {named}"


def _suffix(path: Path) -> str:
    name = path.name.lower()
    return Path(name.removesuffix(".gz")).suffix


def _by_content(head: bytes, size: int) -> str:
    """Format by content. `head`: the first bytes, unpacked; `size`: of the file on disk."""
    text = without_mark(head)
    if text.lstrip(b"%")[:12].lower() == b"matrixmarket":
        return "mtx"
    if head.startswith(b"PK\x03\x04"):
        return "npz"
    if head.startswith((b"MATLAB 5.0", b"MATLAB 7.3", b"\x89HDF")):
        return "mat"
    if len(head) >= 12:
        m, _, nnz = (int.from_bytes(head[i : i + 4], "little", signed=True) for i in (0, 4, 8))
        if m >= 0 and nnz >= 0 and size == 4 * (4 + m + nnz):
            return "csr"
    return _by_lines(text.splitlines())


def _by_lines(lines: list[bytes]) -> str:
    if any(_HB_TYPE_LINE.match(line) for line in lines[2:3]):
        return "hb"
    sizes = _SMTX_SIZES.fullmatch(lines[0]) if lines else None
    if sizes and len(lines) > 1 and b"," not in lines[1] and lines[1].split()[:1] == [b"0"]:
        return "smtx"
    rows = [line for line in lines if line.strip() and line.split()[0] != b"c"]
    if rows and _DIMACS.fullmatch(rows[0]):
        return "dimacs"
    first = _first_row(lines)[1][:MOST_HEADING]
    return "edges" if _EDGE.fullmatch(first) or HEADINGS.fullmatch(first) else ""


def _first_row(lines: list[bytes]) -> tuple[int, bytes]:
    """Number (from 1) and text of the first line without comments; (0, b"") without any."""
    rows = ((at, line) for at, line in enumerate(lines, 1) if line.strip())
    return next(((at, line) for at, line in rows if line.lstrip()[:1] not in b"#%"), (0, b""))


def _unknown(head: bytes, *, where: str) -> MatrixError:
    """Error for a file of an unknown format, with a hint."""
    for mark, what, hint in _NOT_READ:
        if mark.match(head):
            return MatrixError(f"{what}, not a matrix of a known format", where=where, hint=hint)
    line, row = _first_row(without_mark(head).splitlines())
    for form, what, hint in _ROWS_NOT_READ:
        if form.fullmatch(row):
            return MatrixError(what, where=where, line=line, hint=hint)
    shown = row[:60].decode("latin-1").strip()
    reason = f": {shown!r} is no edge" if line else ""
    return MatrixError(
        f"not a matrix file of a known format{reason}",
        where=where,
        line=line or None,
        hint=format_hint(),
    )


#: Files left out that are named.
_MOST_NAMED, _MOST_BESIDE = 3, 100
#: Generic file names, used for many matrices in a folder each.
_GENERIC = ("matrix", "graph", "data")


def matrix_files(folder: str | Path, *, note: Callable[[str], None] = lambda _: None) -> list[Path]:
    """All matrix files below a folder, sorted; hidden ones and other files are skipped.

    Text (`.txt`, KONECT's `out.NAME`) counts only if its content is a matrix. Companions of
    `NAME.mtx` in SuiteSparse's archives are skipped: in a folder `NAME` every `NAME_*` and all
    text, elsewhere text `NAME_*` and files of that name with one or some dense columns; `note` gets
    a line about those. Folders that are links are not entered, and a link to a file counts as that
    file.

    Raises: MatrixError if it is not a folder or cannot be read.
    """
    root = Path(folder)
    with refusing(MatrixError, where=plain_text(folder)):
        if not root.is_dir():
            raise MatrixError("not a folder")
        files, beside = list[Path](), list[Path]()
        for path, goes_along in _below(root):
            (beside if goes_along else files).append(path)
    if beside:
        names = ", ".join(plain_text(path.name) for path in sorted(beside)[:_MOST_NAMED])
        more = ", …" if len(beside) > _MOST_NAMED else ""
        note(
            f"{plain_text(folder)}: not taken as matrices: {len(beside)} files that go with the "
            f"matrix whose name they begin with ({names}{more})"
        )
    return sorted(files)


def matrix_names(files: Iterable[Path], root: Path) -> dict[Path, str]:
    """A name for each matrix file below `root`: without folders and endings, or, where files of
    several folders would share it (`s1/matrix.mtx`, `s2/matrix.mtx`), with the folders below `root`
    (`s1/matrix`). Bytes that are not UTF-8 are escaped."""
    bare = {file: matrix_name(file) for file in files}
    folders: dict[str, set[Path]] = {}
    for file, name in bare.items():
        folders.setdefault(name, set()).add(file.parent)
    return {
        file: name
        if len(folders[name]) == 1
        else "/".join([*map(plain_text, file.relative_to(root).parts[:-1]), name])
        for file, name in bare.items()
    }


def name_beside(file: Path) -> str:
    """Name of one matrix file: with its folder (`s1/matrix`) where the file name is generic and a
    sibling folder has a file of that name, as in `matrix_names`."""
    name, own = matrix_name(file), file.absolute().parent
    if name.lower() not in _GENERIC:
        return name
    with suppress(OSError), os.scandir(own.parent) as beside:
        for folder in islice(beside, _MOST_BESIDE):
            if folder.name != own.name and Path(folder.path, file.name).is_file():
                return f"{plain_text(own.name)}/{name}"
    return name


def _below(root: Path) -> Iterator[tuple[Path, bool]]:
    """Each file that may be a matrix, and true if it is only a companion of another one."""
    for folder, below, names in os.walk(root):
        below[:] = [name for name in below if not name.startswith(".")]
        named = [Path(folder, name) for name in names if not name.startswith(".")]
        main = {stem(path) for path in named if has_ending(path)}
        for path in named:
            # Not `exists`: reading a pipe would block, a device never ends.
            if path.is_file() and (has_ending(path) or _is_matrix(path)):
                yield path, _goes_along(path, main)


def _goes_along(path: Path, main: set[str]) -> bool:
    """Return true if a file is a companion of another one; `main` has the names of the files of the
    same folder that are matrices by their ending."""
    own, folder = stem(path), path.parent.name
    text = not has_ending(path)
    if folder in main and (text or own.startswith(f"{folder}_")):
        return True
    parts = own.split("_")
    if not any("_".join(parts[:count]) in main for count in range(1, len(parts))):
        return False
    return text or is_right_hand_side(path)


def _is_matrix(path: Path) -> bool:
    """Return true if a file is text by its name (`.txt`, KONECT's `out.NAME`) and a matrix by its
    content, which begins with a comment in KONECT's."""
    konect = path.name.startswith(_KONECT_NAME)
    try:
        with refusing(MatrixError):
            if _suffix(path) != ".txt" and not (konect and head_bytes(path)[0].startswith(b"%")):
                return False
            return bool(format_of(path))
    except MatrixError:
        return False
