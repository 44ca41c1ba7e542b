"""Files of a database folder: opened with the right options, refused where that is unsafe."""

from __future__ import annotations

import errno
import mmap
import os
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import lt
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import lmdb
import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import StoreCorrupt, StoreError
from embeddb.core.files.safe_write import open_own, own_size
from embeddb.store.engine import TABLES
from embeddb.store.failures import is_full

DATA_FILE = "data.mdb"
LOCK_FILE = "lock.mdb"
WRITER_FILE = "writer.lock"
_READERS = 512
#: Smallest lock file, by LMDB's layout: a header and the table of readers without its last line.
_LOCK_BYTES = 192 + 64 * (_READERS - 1)
#: Size of a file with two meta pages and no table.
_BEGUN_BYTES = 2 * mmap.PAGESIZE
_FIRST_MAP = 1 << 26
_MOUNTS = Path("/proc/self/mounts")
#: Types of network file systems, and the escapes of a blank, a tab, a newline, a backslash or a
#: hash in the path of a mount.
_NETWORK = {
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "fuse.sshfs", "ceph", "fuse.ceph"),
    *("lustre", "gpfs", "beegfs", "fuse.glusterfs", "orangefs", "pvfs2", "panfs", "wekafs"),
}
_ESCAPE = re.compile(r"\\([0-7]{3})")


def opened(folder: Path, *, readonly: bool, create: bool = False) -> Any:
    """The LMDB environment of a folder; with `create`, an interrupted creation is completed.
    Raises: StoreError, OSError, lmdb.Error."""
    data = folder / DATA_FILE
    _refuse_network(folder)
    size = own_size(data, hard=readonly)
    if readonly and size is None:
        raise StoreError(f"{folder}: no database there")
    if create and size is not None and size < _BEGUN_BYTES:
        open_own(data, "wb").close()  # left by a creation that was killed or ran out of space
    elif size == 0:
        raise StoreCorrupt(
            f"{data}: empty", hint="restore the folder from a copy, or remove it to start anew"
        )
    locking = os.access(folder, os.W_OK) and has_lock(folder)
    if not (locking or readonly):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
    env = lmdb.open(
        os.fsencode(folder),  # a name need not be text
        map_size=max(_FIRST_MAP, size or 0),
        max_dbs=len(TABLES) + 2,
        max_readers=_READERS,
        readonly=readonly,
        lock=locking,
        create=not readonly,
        readahead=False,
    )
    env.reader_check()
    return env


def has_lock(folder: Path) -> bool:
    """Return true if there is a table of readers that this user may write, or space for one. LMDB
    writes to a map of it: on a full disk, where a sparse file may have fewer blocks than its size,
    that would end the process. Raises: OSError where a link or another file type is in its
    place."""
    size = own_size(folder / LOCK_FILE)
    if size is not None and not os.access(folder / LOCK_FILE, os.W_OK):
        return False
    with open_own(folder / LOCK_FILE, "ab") as lock:
        if _room(lock, _LOCK_BYTES):
            return True
        return bool(size) and _room(lock, mmap.PAGESIZE)  # for the first sixty readers


def _room(file: BinaryIO, size: int) -> bool:
    try:
        os.posix_fallocate(file.fileno(), 0, size)
    except OSError as e:
        return not is_full(e)  # or not supported on this file system
    return True


def is_begun(folder: Path) -> bool:
    """Return true if a folder is empty, or has only the files of a creation that was killed before
    there was a table. Raises: OSError."""
    names = {one.name for one in folder.iterdir()}
    if not names <= {DATA_FILE, LOCK_FILE, WRITER_FILE}:
        return False
    sizes = {name: own_size(folder / name) for name in names}
    if (sizes.get(DATA_FILE) or 0) <= _BEGUN_BYTES:
        return True
    # The pages of an uncommitted first transaction may be there. LMDB is not used here: another
    # thread may be opening the folder.
    with open_own(folder / DATA_FILE, "rb") as data:
        return has_no_table(data)


def may_write(folder: Path) -> bool:
    """Return true if this user may write in the folder, on the mount as it is, and in its files: in
    a folder of a group they may be another user's. It opens none."""
    files = (folder / name for name in (DATA_FILE, LOCK_FILE, WRITER_FILE))
    return os.access(folder, os.W_OK) and all(os.access(f, os.W_OK) for f in files if f.exists())


def writable(folder: Path) -> bool:
    """Return true if this user may write in the folder and its files, and may lock it. Raises:
    OSError where a link or another file type is in the place of a file of ours."""
    return may_write(folder) and (own_size(folder / DATA_FILE) is None or has_lock(folder))


def refuse_truncated(env: Any, data: Path) -> None:
    """Check the length of the data file. A sound file may end before its last page if that one is
    free, so only then are pages checked."""
    needed = (int(env.info()["last_pgno"]) + 1) * int(env.stat()["psize"])
    size = data.stat().st_size
    if size < needed and broken_pages(data.parent):
        raise StoreCorrupt(
            f"{data}: {size} bytes where {needed} are recorded: truncated",
            hint="restore the folder from a copy or import it again from an export",
        )


def refuse_broken(folder: Path) -> None:
    """Check the pages quickly, before an operation that reads or writes all of them. No page may be
    reused meanwhile. Raises: StoreCorrupt, OSError."""
    with open_own(folder / DATA_FILE, "rb") as data:
        fault = page_faults(data)
    if fault:
        raise StoreCorrupt(
            f"{folder / DATA_FILE}: damaged: {fault}",
            hint="`embeddb db check` lists the damage; restore the folder from a copy",
        )


def broken_pages(folder: Path) -> list[str]:
    """Faults of the pages of the data file, read as plain bytes. `lmdb.verify` has neither a bound
    on memory nor one on tables in tables, so it only sees what `page_faults` found sound."""
    from lmdb.verify import VerifyError, verify

    with open_own(folder / DATA_FILE, "rb") as data:
        if fault := page_faults(data):
            return [fault]
    walk: Callable[[str], list[str]] = verify
    try:
        return walk(str(folder))
    except VerifyError as e:
        return [str(e)]


def _refuse_network(folder: Path) -> None:
    """Refuse a network file system, on which LMDB's memory map is not coherent."""
    best, kind = "", ""
    try:
        mounts = os.fsdecode(_MOUNTS.read_bytes())  # paths need not be text
    except OSError:
        return
    inside = f"{folder.resolve()}/"
    for line in mounts.split("\n"):
        fields = line.split(" ")
        if len(fields) > 2:
            path = _ESCAPE.sub(lambda code: chr(int(code[1], 8)), fields[1])
            if len(path) >= len(best) and inside.startswith(path.rstrip("/") + "/"):
                best, kind = path, fields[2]
    if kind in _NETWORK:
        raise StoreError(
            f"{folder}: on a network file system ({kind}), where LMDB loses data",
            hint="put the database on a local disk",
        )


# Check of the pages of a data file as plain bytes, before LMDB reads them.
#
# LMDB trusts its file: a damaged page ends the process or hides the pages below it. All fields that
# it relies on are compared here, one level of a tree at a time: half a second for a hundred
# megabytes. `lmdb.verify`, which `db check` uses besides, takes five times as long. It compares
# more counters, but neither a branch's keys with the entries below them nor a table's flags, where
# a flipped bit would hide rows.
#
# Layout (LMDB 0.9, 64 bits): a page begins with number u64, pad u16, flags u16, lower u16 and upper
# u16 (of a large value's first page: their number u32); then u16 offsets of nodes up to `lower`. A
# node is low u16, high u16, flags u16, key length u16, key; a branch's number of its child is in
# the first three, a leaf's value follows its key, or the number of the page where a large one
# begins.

_MAGIC, _VERSION, _NONE = 0xBEEFC0DE, 1, (1 << 64) - 1
_HEAD, _NODE, _METAS = 16, 8, 2
_BRANCH, _LEAF, _LARGE = 1, 2, 4
_BIG_VALUE, _TABLE = 1, 2
_DEEPEST, _BY_NUMBER = 32, 8
_TREE = struct.Struct("<IHHQQQQQ")
_META = struct.Struct(f"<16xII8xQ{2 * _TREE.size}sQQ")
#: Number of leaves processed together, which bounds memory.
_AT_ONCE = 4096

_Numbers = NDArray[np.int64]


class _Broken(Exception):
    """A fault, in a few words."""


class _Tree(NamedTuple):
    """Record of a tree; that of free pages contains the page size."""

    page_bytes: int
    flags: int
    depth: int
    branches: int
    leaves: int
    large: int
    entries: int
    root: int


class _Nodes(NamedTuple):
    """The nodes of several pages of one level, in order: the page's place, their own in it."""

    page: _Numbers
    at: _Numbers
    low: _Numbers
    high: _Numbers
    flags: _Numbers
    key_bytes: _Numbers


@dataclass(slots=True)
class _Leaves:
    """State of a walk over the leaves of a tree."""

    entries: int = 0
    first: list[bytes] = field(default_factory=list)
    last: list[bytes] = field(default_factory=list)
    large: int = 0
    #: Records of tables by key; for the tree of free pages every value.
    records: dict[bytes, bytes] = field(default_factory=dict)


def page_faults(data: BinaryIO) -> str:
    """First fault of the pages that the last commit can reach; empty if there is none. No page may
    be reused meanwhile: call it inside a read transaction, or under the writer lock."""
    try:
        _Walk(data).run()
    except (_Broken, struct.error, IndexError, ValueError) as e:
        return " ".join(str(e).split())
    return ""


def has_no_table(data: BinaryIO) -> bool:
    """Return true if the last commit has no table; false for any other file than LMDB's."""
    try:
        return _last_meta(data)[1].entries == 0
    except (_Broken, struct.error):
        return False


def _last_meta(data: BinaryIO) -> tuple[_Tree, _Tree, int]:
    """The trees of free pages and of tables, and the number of the last page."""
    first, metas = os.pread(data.fileno(), 1 << 16, 0), []
    size = int.from_bytes(first[40:44], "little")
    if size not in (1 << bits for bits in range(9, 16)):
        raise _Broken("its first page gives no size of a page")
    for at in (0, size):
        magic, version, _, trees, last, commit = _META.unpack_from(first, at)
        if magic != _MAGIC or version != _VERSION:
            raise _Broken("not a data file of LMDB 0.9")
        metas.append((commit, last, trees))
    _, last, trees = max(metas)
    free, main = _TREE.iter_unpack(trees)
    return _Tree(*free), _Tree(*main), last


class _Walk:
    """One pass over a data file; raises `_Broken` at the first fault."""

    def __init__(self, data: BinaryIO) -> None:
        self._free, self._main, self._last = _last_meta(data)
        self._size = self._free.page_bytes
        there = os.fstat(data.fileno()).st_size // self._size
        # Free pages at the end may be missing, but not so many that the arrays exceed memory.
        if not _METAS <= self._last + 1 <= 2 * there + (1 << 20):
            raise _Broken(f"{self._last + 1} pages are recorded, the file has {there}")
        self._map = mmap.mmap(data.fileno(), there * self._size, access=mmap.ACCESS_READ)
        self._pages = np.frombuffer(self._map, np.uint8).reshape(there, self._size)
        #: Use of each page: 0 none, 1 reached, 2 free.
        self._use = np.zeros(self._last + 1, np.uint8)

    def run(self) -> None:
        free = self._tree("free pages", self._free, free=True)
        for raw in free.records.values():
            numbers = np.frombuffer(raw, "<u8")
            if not len(numbers) or numbers[0] != len(numbers) - 1:
                raise _Broken("a list of free pages differs from its stated length")
            self._used("free pages", numbers[1:], 2)
        for key, raw in self._tree("tables", self._main).records.items():
            name = f"table {key.decode('ascii', 'replace')!r}"
            if self._tree(name, _Tree(*_TREE.unpack(raw))).records:
                raise _Broken(f"{name}: a table in a table")
        if not self._use[_METAS:].all():
            raise _Broken("a page is neither reached nor free")

    def _used(self, what: str, numbers: NDArray[Any], use: int = 1) -> _Numbers:
        """Mark pages as used; each is used once."""
        if len(numbers) and not _METAS <= int(numbers.min()) <= int(numbers.max()) <= self._last:
            raise _Broken(f"{what}: a page that is none")
        pages: _Numbers = numbers.astype(np.int64)
        if self._use[pages].any() or len(np.unique(pages)) != len(pages):
            raise _Broken(f"{what}: a page that is used elsewhere")
        self._use[pages] = use
        if use == 1 and len(pages) and int(pages.max()) >= len(self._pages):
            raise _Broken(f"{what}: a page behind the end of the file")
        return pages

    def _tree(self, what: str, tree: _Tree, *, free: bool = False) -> _Leaves:
        """Check a tree and return its leaves."""
        met, branches = _Leaves(), 0
        if tree.root == _NONE:
            if tree.entries or tree.depth:
                raise _Broken(f"{what}: entries without a page")
            return met
        if not 1 <= tree.depth <= _DEEPEST or tree.flags != (_BY_NUMBER if free else 0):
            raise _Broken(f"{what}: not a tree of ours")
        level = self._used(what, np.array([tree.root], np.uint64))
        #: By level, the count of pages under each branch and the keys that lead there.
        bounds: list[tuple[_Numbers, list[bytes]]] = []
        for _ in range(tree.depth - 1):
            branches += len(level)
            nodes = self._nodes(what, level, _BRANCH)
            children = nodes.low | nodes.high << 16 | nodes.flags << 32
            bounds.append((np.bincount(nodes.page, minlength=len(level)), self._keys(level, nodes)))
            level = self._used(what, children.astype(np.uint64))
        for at in range(0, len(level), _AT_ONCE):
            self._leaves(what, level[at : at + _AT_ONCE], met, free=free)
        if not free:  # their keys are numbers, only read in sequence
            self._order(what, bounds, met)
        recorded = (tree.branches, tree.leaves, tree.large, tree.entries)
        if recorded != (branches, len(level), met.large, met.entries):
            raise _Broken(f"{what}: counts differ from the recorded ones")
        return met

    def _nodes(self, what: str, level: _Numbers, kind: int) -> _Nodes:
        """Nodes of pages of one kind, all of them within their page."""
        content = self._pages[level]
        numbers, heads = content[:, :8].view("<u8")[:, 0], content[:, 8:_HEAD].view("<u2")
        if (numbers.astype(np.int64) != level).any() or (heads[:, 1] != kind).any():
            raise _Broken(f"{what}: a page differs from the reference to it")
        lower, upper = heads[:, 2].astype(np.int64), heads[:, 3].astype(np.int64)
        fits = (lower >= _HEAD + 2) & (lower <= upper) & (upper <= self._size) & (lower % 2 == 0)
        if not fits.all():
            raise _Broken(f"{what}: page {level[~fits][0]} has no valid offsets of its entries")
        counts = (lower - _HEAD) // 2
        page = np.repeat(np.arange(len(level)), counts)
        nth = np.arange(len(page)) - np.repeat(np.cumsum(counts) - counts, counts)
        at = content.view("<u2")[page, _HEAD // 2 + nth].astype(np.int64)
        if (at % 2).any() or (at < upper[page]).any() or (at > self._size - _NODE).any():
            raise _Broken(f"{what}: an entry outside its page")
        words = (content.view("<u2")[page, at // 2 + i].astype(np.int64) for i in range(4))
        nodes = _Nodes(page, at, *words)
        if (at + _NODE + nodes.key_bytes > self._size).any():
            raise _Broken(f"{what}: a key that runs out of its page")
        return nodes

    def _keys(self, level: _Numbers, nodes: _Nodes) -> list[bytes]:
        starts = (level[nodes.page] * self._size + nodes.at + _NODE).tolist()
        ends = zip(starts, nodes.key_bytes.tolist(), strict=True)
        return [self._map[at : at + length] for at, length in ends]

    def _leaves(self, what: str, level: _Numbers, met: _Leaves, *, free: bool) -> None:
        nodes = self._nodes(what, level, _LEAF)
        if (nodes.flags > _TABLE).any() or (free and (nodes.flags == _TABLE).any()):
            raise _Broken(f"{what}: an entry of a kind that is not written here")
        lengths = nodes.low | nodes.high << 16
        begins = nodes.at + _NODE + nodes.key_bytes
        if (begins + np.where(nodes.flags == _BIG_VALUE, 8, lengths) > self._size).any():
            raise _Broken(f"{what}: a value that runs out of its page")
        keys = self._keys(level, nodes)
        # The keys of free pages are numbers, only read in sequence.
        if not free and not all(map(lt, [*met.last[-1:], *keys], keys[not met.last :])):
            raise _Broken(f"{what}: keys out of order")
        new = np.flatnonzero(np.diff(nodes.page)) + 1
        met.entries += len(keys)
        met.first += [keys[at] for at in (0, *new)]
        met.last += [keys[at - 1] for at in (*new, len(keys))]
        begins += level[nodes.page] * self._size
        for i in (np.arange(len(keys)) if free else np.flatnonzero(nodes.flags)).tolist():
            at, length, value = int(begins[i]), int(lengths[i]), nodes.flags[i] != _TABLE
            if nodes.flags[i] == _BIG_VALUE:
                at = self._large(what, int.from_bytes(self._map[at : at + 8], "little"), length)
                met.large += (_HEAD - 1 + length) // self._size + 1
            if not value and length != _TREE.size:
                raise _Broken(f"{what}: a table without its record")
            if free or not value:
                met.records[keys[i]] = self._map[at : at + length]

    def _large(self, what: str, page: int, length: int) -> int:
        """Offset in the file at which a large value begins."""
        count = (_HEAD - 1 + length) // self._size + 1
        if page + count > self._last + 1:
            raise _Broken(f"{what}: a large value behind the last page")
        self._used(what, np.arange(page, page + count))
        number, _, flags, pages = struct.unpack_from("<QHHI", self._map, page * self._size)
        if (number, flags, pages) != (page, _LARGE, count):
            raise _Broken(f"{what}: page {page} does not begin a large value")
        return page * self._size + _HEAD

    def _order(self, what: str, bounds: list[tuple[_Numbers, list[bytes]]], met: _Leaves) -> None:
        """Check that every key in a branch separates the entries before it from those after it."""
        first, last = met.first, met.last
        #: Leftmost leaf under each page of the level below; of the leaves, themselves.
        leftmost = np.arange(len(first))
        for counts, keys in reversed(bounds):
            starts = np.cumsum(counts) - counts
            for i in np.setdiff1d(np.arange(len(keys)), starts).tolist():
                leaf = leftmost[i]
                if not last[leaf - 1] < keys[i] <= first[leaf]:
                    raise _Broken(f"{what}: a page is not where its keys are looked for")
            leftmost = leftmost[starts]
