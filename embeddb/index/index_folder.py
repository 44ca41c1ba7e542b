"""The files of `index/` in a database folder: written whole, and checked when read.

The folder may come from an untrusted archive: it is never reached through a link, and only files
whose names have our form are removed.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from embeddb.core.config import Op
from embeddb.core.errors import StoreCorrupt, StoreError
from embeddb.core.files.safe_read import reason_of
from embeddb.core.files.safe_write import OwnFolder
from embeddb.core.kinds import is_foreign
from embeddb.index.evidence import FIT_VERSION
from embeddb.index.inverted_lists import InvertedLists
from embeddb.store import Store
from embeddb.store.tables import decoded, reading

if TYPE_CHECKING:
    from embeddb.index.answer_index import AnswerIndex

#: Digest of key and versions, process that wrote it, generation. Older programs wrote `.faiss` too.
_STEM = r"[0-9a-f]{16}-\d{1,10}-\d{1,19}"
_FILE = re.compile(rf"({_STEM})\.(npz|lists|faiss)")
#: Files whose writing was interrupted, by this program or an older one.
_PART = re.compile(rf"\.?({_STEM})\.(npz|lists|faiss)\.([0-9a-f]{{8}}\.part|(\d+\.)?tmp)")
#: Raised where saved partitions may lack a change that older code did not mark: each is built
#: again, by its noted fit where that is of the same input. Counted anew with each `FIT_VERSION`.
SAVED_VERSION = f"{FIT_VERSION}.1"
#: Largest size of a partition's file, beside four times that of the store.
_MOST_BYTES = 64 << 20


class PartitionNote(msgspec.Struct, frozen=True):
    """Stored facts about a saved partition: `stem` of its files, `npz` the blake2b-128 of one,
    `rows` vectors, `chosen_among` the versions of all featurizers that its own was chosen among,
    `lists` the blake2b-128 of the head of the lists of very many patterns (empty: none), `fit` the
    version of fit and marks."""

    stem: str
    generation: int
    rows: int
    chosen_among: dict[str, str]
    npz: str
    lists: str = ""
    fit: str = ""

    def __post_init__(self) -> None:
        if self.fit != SAVED_VERSION:
            raise ValueError("votes were fitted in another way, or to other families")
        if not re.fullmatch(_STEM, self.stem):
            raise ValueError("its files have a name that is none of ours")

    @classmethod
    def of(cls, raw: bytes) -> PartitionNote:
        """Parse a note. Raises: StoreCorrupt."""
        return decoded(raw, cls, "its note was written by another version of embeddb, or by nobody")

    @classmethod
    def described(cls, raw: bytes) -> dict[str, Any]:
        """A note as a dictionary; {} for one that this program cannot read."""
        try:
            return dict(msgspec.to_builtins(cls.of(raw)))
        except StoreCorrupt:
            return {}


class PartitionKey(NamedTuple):
    """The key of a partition: operation, scope, and the platform instance whose counters its
    featurizers read (empty: none)."""

    op: Op
    scope: str
    counters: str = ""

    @classmethod
    def of(cls, partition: AnswerIndex) -> PartitionKey:
        return cls(partition.op, partition.scope, partition.counters)

    @classmethod
    def parse(cls, note: str) -> PartitionKey:
        """Parse the name of a note. Raises: StoreCorrupt."""
        op, _, rest = note.removeprefix("partition/").partition("/")
        scope, _, counters = rest.partition("/")
        with reading("the name of its note"):
            return cls(Op.parse(op), scope, counters)

    @staticmethod
    def problem(note: str, error: StoreCorrupt) -> list[str]:
        """One line about a partition; none if its operation is of a plug-in that is not here."""
        op, _, rest = note.removeprefix("partition/").partition("/")
        return [] if is_foreign(op) else [f"{op} on {rest}: rebuilt by the next query ({error})"]

    @property
    def note(self) -> str:
        """The name of its `PartitionNote`."""
        return f"partition/{self.op}/{self.scope}" + (f"/{self.counters}" if self.counters else "")

    @property
    def fit(self) -> str:
        """The name of its `FitNote`."""
        return f"fit{self.note.removeprefix('partition')}"

    def __str__(self) -> str:
        by = f" by counters of {self.counters}" if self.counters else ""
        return f"{self.op} on {self.scope}{by}"


class IndexFolder:
    """`index/` of a database in the folder `root`."""

    def __init__(self, store: Store, root: Path) -> None:
        self._store = store
        self._own = OwnFolder(root, "index")
        self.path = self._own.path

    def read(self, note: PartitionNote) -> bytes:
        """The file that a note names. Raises: OSError, StoreCorrupt."""
        name = f"{note.stem}.npz"
        data = self._own.read(name, _MOST_BYTES + 4 * self._store.size_bytes())
        if _digest(data) != note.npz:
            raise StoreCorrupt(f"{self.path / name}: checksum differs")
        return data

    def lists(self, note: PartitionNote) -> InvertedLists:
        """The lists that a note names, which are read on demand. Raises: OSError, StoreCorrupt."""
        name = f"{note.stem}.lists"
        with self._own.open(name, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if not size:
                raise StoreCorrupt(f"{self.path / name}: empty")
            mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        lists, head = InvertedLists.read(lambda at, count: mapped[at : at + count], size)
        if _digest(head) != note.lists:
            raise StoreCorrupt(f"{self.path / name}: checksum differs")
        return lists

    def write(self, stem: str, data: bytes) -> str:
        """Save a file atomically and return its checksum. Raises: StoreError."""
        self._write(f"{stem}.npz", data)
        return _digest(data)

    def write_lists(self, stem: str, lists: InvertedLists) -> str:
        """Save lists and return the checksum of their head. Raises: StoreError."""
        head = lists.head()
        self._write(f"{stem}.lists", head + lists.body())
        return _digest(head)

    def _write(self, name: str, data: bytes) -> None:
        try:
            self._own.write(name, data)
        except OSError as e:
            raise StoreError(
                f"{self.path}: no index can be saved there ({reason_of(e)})", hint=self._cure()
            ) from e

    def problems(self) -> list[str]:
        """One line if the folder is a link or a file, where nothing is read or saved."""
        odd = self.path.is_symlink() or (self.path.exists() and not self.path.is_dir())
        line = f"{self.path}: a link or file where a folder of ours would be"
        return [f"{line}: {self._cure()}"] if odd else []

    def _cure(self) -> str:
        if self.path.is_symlink() or not self.path.is_dir():
            return "remove it: what it held is made anew from the store"
        return "free space or give write permission, and run the same command again"

    def collect(self, live: Collection[str]) -> None:
        """Remove our files that are of no `live` stem: old versions and interrupted writes. Raises:
        StoreError if they cannot be removed."""
        try:
            for name in self._own.files():
                match = _FILE.fullmatch(name)
                stale = match[1] not in live if match else _PART.fullmatch(name) is not None
                if stale and not _in_use(name):
                    self._own.remove(name)
        except OSError as e:
            raise StoreError(f"{self.path}: old files stay ({reason_of(e)})") from e


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _in_use(name: str) -> bool:
    """Return true if another live process wrote this file and may not have noted it yet."""
    process = int(name.split("-")[1])
    return process != os.getpid() and Path(f"/proc/{process}").exists()
