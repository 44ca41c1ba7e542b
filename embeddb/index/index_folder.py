"""The files of `index/` in a database folder: whole, checked, and none of them anybody else's.

The folder may have been unpacked from an archive of a stranger: it is never reached through a link,
and only files whose names have our form are ever removed.
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
from embeddb.index.vectors.inverted_lists import InvertedLists
from embeddb.index.vote_fit import FIT_VERSION
from embeddb.store import Store
from embeddb.store.tables import decoded, reading

if TYPE_CHECKING:
    from embeddb.index.answer_index import AnswerIndex

#: Digest of what is saved, process that saved it, generation. Older programs wrote `.faiss` too.
_STEM = r"[0-9a-f]{16}-\d{1,10}-\d{1,19}"
_FILE = re.compile(rf"({_STEM})\.(npz|lists|faiss)")
#: What a kill left of a file that was being written, by this program and by older ones.
_PART = re.compile(rf"\.?({_STEM})\.(npz|lists|faiss)\.([0-9a-f]{{8}}\.part|(\d+\.)?tmp)")
#: A partition holds numbers out of the store, and of each vector its nearest neighbours.
_MOST_BYTES = 64 << 20


class PartitionNote(msgspec.Struct, frozen=True):
    """What the store keeps of a saved partition: `stem` of its files, `npz` the blake2b-128 of it,
    `rows` vectors, `chosen_among` the versions of all featurizers that its own was chosen among,
    `lists` the blake2b-128 of the head of the lists of very many patterns (empty: none), `fit` how
    votes were fitted."""

    stem: str
    generation: int
    rows: int
    chosen_among: dict[str, str]
    npz: str
    lists: str = ""
    fit: str = ""

    def __post_init__(self) -> None:
        if self.fit != FIT_VERSION:
            raise ValueError("votes were fitted in another way")
        if not re.fullmatch(_STEM, self.stem):
            raise ValueError("its files have a name that is none of ours")

    @classmethod
    def of(cls, raw: bytes) -> PartitionNote:
        """Raises: StoreCorrupt."""
        return decoded(raw, cls, "its note was written by another version of embeddb, or by nobody")

    @classmethod
    def described(cls, raw: bytes) -> dict[str, Any]:
        """The same for lists: {} for one that this program cannot read."""
        try:
            found: dict[str, Any] = msgspec.to_builtins(cls.of(raw))
        except StoreCorrupt:
            return {}
        return found


class Which(NamedTuple):
    """The key of a partition: operation, scope, and the platform instance whose counters its
    featurizers read (empty: none)."""

    op: Op
    scope: str
    counters: str = ""

    @classmethod
    def of(cls, partition: AnswerIndex) -> Which:
        return cls(partition.op, partition.scope, partition.counters)

    @classmethod
    def noted(cls, note: str) -> Which:
        """Parse the name of a note. Raises: StoreCorrupt."""
        op, _, rest = note.removeprefix("partition/").partition("/")
        scope, _, counters = rest.partition("/")
        with reading("the name of its note"):
            return cls(Op.parse(op), scope, counters)

    @property
    def note(self) -> str:
        """The name of what the store keeps of it."""
        return f"partition/{self.op}/{self.scope}" + (f"/{self.counters}" if self.counters else "")

    @property
    def fit(self) -> str:
        """The name of the note of how its votes are fitted."""
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
        """The lists that a note names, of which a question reads what it needs. Raises: OSError,
        StoreCorrupt."""
        name = f"{note.stem}.lists"
        with self._own.open(name, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if not size:
                raise StoreCorrupt(f"{self.path / name}: empty")
            held = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        found, head = InvertedLists.read(lambda at, count: held[at : at + count], size)
        if _digest(head) != note.lists:
            raise StoreCorrupt(f"{self.path / name}: checksum differs")
        return found

    def write(self, stem: str, data: bytes) -> str:
        """Save a file whole or not at all; its checksum. Raises: StoreError."""
        self._write(f"{stem}.npz", data)
        return _digest(data)

    def write_lists(self, stem: str, lists: InvertedLists) -> str:
        """The same of lists; the checksum of their head."""
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
        """One line if the folder is a link or a file: nothing is read or saved there."""
        odd = self.path.is_symlink() or (self.path.exists() and not self.path.is_dir())
        said = f"{self.path}: a link or file where a folder of ours would be"
        return [f"{said}: {self._cure()}"] if odd else []

    def _cure(self) -> str:
        if self.path.is_symlink() or not self.path.is_dir():
            return "remove it: what it held is made anew from the store"
        return "free space or give write permission, and run the same command again"

    def collect(self, live: Collection[str]) -> None:
        """Remove our files that are of no `live` stem: old versions, and what a kill left behind.

        Raises: StoreError if they cannot be removed.
        """
        try:
            for name in self._own.files():
                file, part = _FILE.fullmatch(name), _PART.fullmatch(name)
                kept = file is not None and file[1] in live
                if (file or part) and not kept and not _in_use(name):
                    self._own.remove(name)
        except OSError as e:
            raise StoreError(f"{self.path}: old files stay ({reason_of(e)})") from e


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _in_use(name: str) -> bool:
    """Return True if another live process wrote this file and may not have noted it yet."""
    process = int(name.split("-")[1])
    return process != os.getpid() and Path(f"/proc/{process}").exists()
