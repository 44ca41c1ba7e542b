"""Kinds of workload, behind one interface: what is tuned is a sparse matrix, a loop nest, ….

A kind is a plug-in (`embeddb.core.plugins`): one object with static facts, and methods for what
the rooms of the package do with workloads of that kind. Rooms ask `kind_of(name)`, `Op.workload` or
`PatternInfo.workload`, and compare no names. Those that ship are in `embeddb/workloads/`; others
are found in a folder of `EMBEDDB_PLUGINS`, by an entry point `embeddb.workload`, or given to
`register`.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from embeddb.core import plugins
from embeddb.core.errors import StoreCorrupt, UsageError
from embeddb.core.files.gate import reason_of
from embeddb.core.row_lengths import RowLengths

#: Bytes of the longest file form that is read back.
_MAX_BYTES = 1 << 26


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation on workloads of one kind. `wide`: it has a number of dense columns; `typed`: its
    value type is chosen, not the workload's own; `minimum`: the least of all repeats counts, not
    the median; `tunable`: there is something to choose."""

    name: str
    wide: bool = False
    typed: bool = False
    minimum: bool = False
    tunable: bool = True

    def example(self, width: int | str = 128) -> str:
        """The operation as a text, with this many dense columns where it has any."""
        return f"{self.name}:{width}" if self.wide else self.name


class Limit(NamedTuple):
    """At most a `share` of the answers may take more than `times` what the default takes."""

    share: float
    times: float


class WorkloadKind:
    """One kind of workload. Subclass it, set the facts, override what differs from the default.

    A workload is any object with `embeddb.core.subject.Subject`'s five attributes. Arguments are
    untyped here because this module is below those of their types, which each method names.
    """

    #: In keys, columns and JSON.
    name: ClassVar[str]
    #: In messages: one, and several.
    one: ClassVar[str]
    many: ClassVar[str]
    operations: ClassVar[tuple[Operation, ...]]
    #: Sizes of a workload by name, as a platform's file writes them, in order.
    symbols: ClassVar[tuple[str, ...]]
    #: Those on which it depends which parameters there are.
    structural: ClassVar[frozenset[str]] = frozenset()
    #: It is an `embeddb.core.pattern.Pattern`, so there are formats, whose preparation costs.
    sparse: ClassVar[bool] = False

    # -- core ----------------------------------------------------------------------------------

    def sizes_text(self, named: Mapping[str, int]) -> str:
        """Sizes as text, structural ones left out: `7 x 5`."""
        return " x ".join(f"{s:,}" for name, s in named.items() if name not in self.structural)

    def brief(self, info: Any) -> str:
        """Kind and sizes of a `PatternInfo`, for its repr."""
        return f"{self.name}, {info.sizes}"

    # -- platforms -----------------------------------------------------------------------------

    def sample_sizes(self) -> Sequence[Any]:
        """`Sizes` that a platform's spaces are tried with, the degenerate and the huge included."""
        return ()

    def samples(self) -> Iterable[Any]:
        """Small workloads that a platform's spaces are tried with, where workloads judge too."""
        return ()

    def judge(self, op: Any, workload: Any, given: frozenset[str], runner: str) -> Any:
        """A `Judge` of which configurations of the parameters `given` this workload forbids on a
        platform that this runner measures; None if it has no rules."""
        return None

    def natural(self, workload: Any) -> Any:
        """The `Config` that leaves a workload as it was written, which completes a platform's
        default; None where that is complete."""
        return None

    def sized(self, sizes: Any) -> str:
        """A workload of these `Sizes`, in a message: `a nest of 3 x 4 turns`."""
        return f"a {self.one} of {sizes}"

    # -- store ---------------------------------------------------------------------------------

    #: Table of the store that keeps these workloads, and the word for one in an export.
    table: ClassVar[str] = "tensor"

    def row_lengths(self, workload: Any) -> RowLengths | None:
        """The `RowLengths` of a sparse workload; None for others."""
        return None

    def write(self, workload: Any) -> bytes:
        """The file form, a JSON object, of a workload that is a dataclass."""
        raise NotImplementedError

    def read(self, raw: bytes) -> Any:
        """The workload of a file form. Raises: InputError."""
        raise NotImplementedError

    def encode(self, workload: Any) -> bytes:
        """The file form without name and group, which are among the stored facts, deflated."""
        return zlib.compress(self.write(nameless(workload)), 6)

    def decode(self, raw: bytes, *, pattern_id: str, name: str, group: str) -> Any:
        """Raises: StoreCorrupt if the bytes do not give the workload of that id."""
        return _decoded(self, raw, pattern_id, name, group)

    def complete(self, workload: Any, structure: Any) -> Any:
        """A stored workload with the matrices it refers to; `structure` gives one by its id."""
        return workload

    # -- index, ranking, explain ---------------------------------------------------------------

    #: How much slower than the default answers may be, held out; None: no limit.
    max_slower: ClassVar[Limit | None] = None
    #: Hardware counters of a workload may be part of its vector.
    counted: ClassVar[bool] = False
    #: Queries learn a model of an instance's runs where none was trained.
    learned: ClassVar[bool] = False
    #: A workload can be a neighbour once two of its configurations ran: there are runs of the
    #: default alone, made to count.
    two_runs: ClassVar[bool] = False
    #: Configurations of neighbours are transferred, so the answer cannot be tried at other vectors.
    transfers: ClassVar[bool] = False
    #: A neighbour's configuration means the same on another workload unless it is transferred.
    copies: ClassVar[bool] = True
    #: Keys that only documents of answers about this kind have.
    answer_keys: ClassVar[frozenset[str]] = frozenset()

    def facts(self, workload: Any) -> dict[str, Any]:
        """Fields of the `PatternInfo` that only the whole workload gives."""
        return {}

    def parts(self, workload: Any) -> Iterable[Any]:
        """Other workloads that are stored beside this one."""
        return ()

    def model(self, lookup: Any, platform: Any, op: Any) -> Any:
        """The model in `lookup` that learned from runs of an op on a platform; or None."""
        return lookup.cost_model(platform, op)

    def check_default(self, info: Any, op: Any, space: Any, default: Any) -> None:
        """Raises: InputError for a workload that no configuration can run."""

    def transferred(self, query: Any, partition: Any, workload: Any, known: Any) -> Any:
        """The `Query` with the best configurations of its neighbours, transferred to the workload,
        as votes; None where they are copied or the workload is known by name only (`PatternInfo`).
        `known` gives a neighbour by its id."""
        return None

    def predicted(self, query: Any, lookup: Any, workload: Any) -> Any:
        """The `Query` with the predictions of a model of this kind's own; None: there is none, and
        the cost model's count."""
        return None

    def answer(self, workload: Any) -> dict[str, Any]:
        """Fields of the `Recommendation` that show the workload where it is not at hand."""
        return {}

    def occluded(self, ranker: Any, lookup: Any, workload: Any, progress: Any) -> dict[str, Any]:
        """Fields of `Diagnostics` that say which parts of the workload the answer rests on."""
        return {}

    def view(self, recommendation: Any, store: Any) -> dict[str, Any]:
        """Fields of the `PatternView` that an explanation shows."""
        return {}

    # -- indexer, tuners -----------------------------------------------------------------------

    #: Featurizers read these workloads, so that they have neighbours.
    embedded: ClassVar[bool] = True
    #: The kind whose files hold workloads of this one too.
    files_of: ClassVar[str] = ""
    #: Hints where no workload has a vector, and where some are known by name only.
    unreadable: ClassVar[str] = "its workloads are known by name only"
    adds: ClassVar[str] = "adding the workloads themselves helps"

    def files(self, folder: Path) -> Iterable[Path]:
        """The files below a folder that may hold workloads of this kind."""
        return ()

    #: The kind of file that holds a workload, in messages.
    file: ClassVar[str] = "file"
    #: Endings that no file of another kind has.
    endings: ClassVar[tuple[str, ...]] = ()

    def read_file(self, path: Path, *, alone: bool = False) -> Sequence[Any]:
        """The workloads in a file, `alone` those of this kind, which it is taken to hold. Raises:
        InputError."""
        raise NotImplementedError

    def recognises(self, path: Path) -> bool:
        """Return true if the content of a file shows that it may hold workloads of this kind."""
        return False

    def description(self, info: Any, store: Any) -> str:
        """Text that distinguishes a stored workload from another of its name and kind."""
        return str(info.sizes)

    def other_kind_hint(self, name: str, wanted: str, store: Any) -> str:
        """Hint for an error: a workload of this name was used as one of another kind."""
        return f"ask for an operation on a {self.name}"

    def holds_more(self, workload: Any, stored: Any) -> bool:
        """Return true if a workload has parts that the stored one with its id lacks."""
        return False

    def model_facts(self, op: Any, card: Mapping[str, Any]) -> dict[str, Any]:
        """Of the card of a model, what the coverage of an operation reports."""
        return {"featurizer": card["featurizer"]["name"]}

    def program(self, info: Any) -> str:
        """The program that a workload was cut out of; empty where there is none."""
        return ""

    def judged(self, db: Any, instance: str, **options: Any) -> list[Any] | None:
        """Rows of the evaluation on one platform instance, of a kind that has no neighbours to hold
        out; None where it is judged like matrices."""
        return None

    # -- ui ------------------------------------------------------------------------------------

    #: Column heading for the size of a workload.
    extent: ClassVar[str] = "size"
    #: In commands: a workload, and a file of many ("": there is none).
    placeholder: ClassVar[str] = "PROGRAM"
    many_file: ClassVar[str] = ""
    #: The verb that measures many workloads of this kind.
    measures: ClassVar[str] = ""

    def page(self, info: Any, store: Any) -> dict[str, Any]:
        """Keys of the page about a stored workload that show its content, as JSON."""
        return {}

    def transfer_note(self, platform: Any) -> str:
        """One line that says how a neighbour's configuration is transferred to another workload."""
        return ""

    def example(self) -> tuple[Any, str]:
        """A workload for which legal configurations are counted, and what it is; (None, "") where
        their number does not depend on the workload."""
        return None, ""


def nameless(workload: Any) -> Any:
    """The workload without name and group, which its id and its file form leave out."""
    return replace(workload, name="", group="")


@lru_cache(maxsize=512)
def _decoded(kind: WorkloadKind, raw: bytes, pattern_id: str, name: str, group: str) -> Any:
    """Cached: queries read their neighbours over and over, and a nest takes milliseconds."""
    try:
        text = zlib.decompressobj().decompress(raw, _MAX_BYTES + 1)
        workload = replace(kind.read(text), name=name, group=group)
    except Exception as e:
        raise StoreCorrupt(f"{kind.table} {pattern_id} is damaged: {reason_of(e)}") from e
    if workload.id != pattern_id:
        raise StoreCorrupt(f"the {kind.table} stored for pattern {pattern_id} is another one")
    return workload


_KINDS: dict[str, WorkloadKind] = {}
_OPERATIONS: dict[str, tuple[Operation, WorkloadKind]] = {}


def register(kind: WorkloadKind) -> None:
    """Make a kind known to this process. Raises: UsageError if another has its name, or the name
    of one of its operations."""
    names = [kind.name, *(op.name for op in kind.operations)]
    taken = [n for n in names if n in _KINDS or n in _OPERATIONS]
    if taken:
        raise UsageError(f"no second kind of workload or operation can be named {taken[0]!r}")
    _KINDS[kind.name] = kind
    _OPERATIONS.update({op.name: (op, kind) for op in kind.operations})


def kinds() -> tuple[WorkloadKind, ...]:
    """Those that ship, in order, and others as they became known."""
    if not _KINDS:
        for kind in importlib.import_module("embeddb.workloads").KINDS:
            register(kind)
    return tuple(_KINDS.values())


def kinds_among(names: Iterable[str]) -> list[WorkloadKind]:
    """The kinds of these names, in the order of `kinds`; without any, the first kind."""
    wanted = set(names)
    if not wanted <= {kind.name for kind in kinds()}:
        _load_all()
    return [kind for kind in kinds() if kind.name in wanted] or [kinds()[0]]


def kind_with(symbols: Iterable[str]) -> WorkloadKind | None:
    """The kind whose workloads have sizes of these names; None if no kind has."""
    wanted = set(symbols)
    return next((kind for kind in kinds() if wanted <= set(kind.symbols)), None)


def kind_of(name: str) -> WorkloadKind:
    """Raises: UsageError if no kind has this name."""
    if not kind_exists(name):
        raise UsageError(f"no kind of workload {name!r}", hint=f"kinds: {', '.join(_KINDS)}")
    return _KINDS[name]


def kind_exists(name: str) -> bool:
    if name not in _KINDS:
        _load_all()
    return name in _KINDS


def operation_of(name: str) -> tuple[Operation, WorkloadKind]:
    """An operation and the kind it runs on. Raises: UsageError if there is none of this name."""
    found = _OPERATIONS.get(name)
    if found is None:
        _load_all()
        found = _OPERATIONS.get(name)
    if found is None:
        raise UsageError(f"no kernel {name!r}", hint=f"kernels: {', '.join(_OPERATIONS)}")
    return found


def operations() -> tuple[Operation, ...]:
    """Operations of `kinds`."""
    return tuple(op for kind in kinds() for op in kind.operations)


def _load_all() -> None:
    """Plug-ins are looked for once a name is not among those that ship."""
    kinds()
    for name in plugins.available("workload"):
        if name not in _KINDS:
            register(plugins.load("workload", name))
