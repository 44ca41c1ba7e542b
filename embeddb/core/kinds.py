"""Kinds of workload behind one interface: sparse matrices, loop nests, ….

A kind is a plug-in (`embeddb.core.plugins`): one object with static facts, and methods that the
rooms of the package call for workloads of that kind. Rooms use `kind_of(name)`, `Op.workload` or
`WorkloadInfo.workload`, and compare no names. Those that ship are in `embeddb/workloads/`; others
are loaded from a folder in `EMBEDDB_PLUGINS` or an entry point `embeddb.workload`, or passed to
`register`.
"""

from __future__ import annotations

import importlib
import math
import threading
import warnings
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from embeddb.core import plugins
from embeddb.core.errors import EmbeddbError, PluginWarning, StoreCorrupt, UsageError
from embeddb.core.files.safe_read import reason_of
from embeddb.core.row_lengths import RowLengths

#: Size in bytes of the longest file form that is read back.
_MAX_BYTES = 1 << 26


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation on workloads of one kind. `wide`: it has a number of dense columns; `typed`: its
    value type is a choice, not a property of the workload; `minimum`: repeats are summarised by
    their minimum instead of their median; `tunable`: there is something to choose."""

    name: str
    wide: bool = False
    typed: bool = False
    minimum: bool = False
    tunable: bool = True

    def example(self, width: int | str = 128) -> str:
        """The operation as a text, with this many dense columns where it has any."""
        return f"{self.name}:{width}" if self.wide else self.name


class Limit(NamedTuple):
    """At most a `share` of the answers may take more than `times` the default's time."""

    share: float
    times: float

    @property
    def fewest(self) -> int:
        """Judged answers from which on none that is slower shows that the limit holds."""
        return math.ceil(1.0 / self.share) - 1


class WorkloadKind:
    """One kind of workload. Subclass it, set the facts, override methods whose default does not
    fit.

    A workload is any object with the five attributes of `embeddb.core.workload.Workload`. Arguments
    are untyped here because this module is below the modules of their types, which each method
    names.
    """

    #: Name in keys, columns and JSON.
    name: ClassVar[str]
    #: Singular and plural in messages.
    one: ClassVar[str]
    many: ClassVar[str]
    operations: ClassVar[tuple[Operation, ...]]
    #: Names of the sizes of a workload in a platform file, in order.
    symbols: ClassVar[tuple[str, ...]]
    #: Sizes that decide which parameters exist.
    structural: ClassVar[frozenset[str]] = frozenset()
    #: Workloads are an `embeddb.core.pattern.Pattern`, so there are formats with a conversion cost.
    sparse: ClassVar[bool] = False

    # -- core ----------------------------------------------------------------------------------

    def sizes_text(self, named: Mapping[str, int]) -> str:
        """Sizes as text, structural ones left out: `7 x 5`."""
        return " x ".join(f"{s:,}" for name, s in named.items() if name not in self.structural)

    def brief(self, info: Any) -> str:
        """Kind and sizes of a `WorkloadInfo`, for its repr."""
        return f"{self.name}, {info.sizes}"

    # -- platforms -----------------------------------------------------------------------------

    def sample_sizes(self) -> Sequence[Any]:
        """`Sizes` with which a platform's spaces are checked, also degenerate and huge ones."""
        return ()

    def samples(self) -> Iterable[Any]:
        """Small workloads that restrict a platform's spaces, with which these are checked."""
        return ()

    def judge(self, op: Any, workload: Any, parameters: frozenset[str], runner: str) -> Any:
        """A `Judge` of the configurations of `parameters` that this workload forbids on a platform
        measured by this runner; None if it has no rules."""
        return None

    def natural(self, workload: Any) -> Any:
        """The `Config` that leaves a workload as written, which completes a platform's default;
        None where the default is complete."""
        return None

    def sized(self, sizes: Any) -> str:
        """A workload of these `Sizes`, in a message: `a nest of 3 x 4 turns`."""
        return f"a {self.one} of {sizes}"

    # -- store ---------------------------------------------------------------------------------

    #: Table of these workloads in the store, and their record type in an export.
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
        """Restore a workload. Raises: StoreCorrupt unless the bytes give that of this id."""
        return _decoded(self, raw, pattern_id, name, group)

    def complete(self, workload: Any, structure: Any) -> Any:
        """A stored workload with the matrices it refers to; `structure` gives one by its id."""
        return workload

    # -- index, ranking, explain ---------------------------------------------------------------

    #: Limit on answers slower than the default in cross-validation; None: no limit.
    max_slower: ClassVar[Limit | None] = None
    #: Hardware counters of a workload may be part of its vector.
    counted: ClassVar[bool] = False
    #: Queries train a model of an instance's runs where none was trained.
    learned: ClassVar[bool] = False
    #: A workload can be a neighbour only once two of its configurations ran: some were run with
    #: the default alone, to count events.
    two_runs: ClassVar[bool] = False
    #: Configurations of neighbours are transferred, so answers at other vectors are not available.
    transfers: ClassVar[bool] = False
    #: A neighbour's configuration means the same on another workload unless it is transferred.
    copies: ClassVar[bool] = True
    #: Keys of JSON answers that only this kind has.
    answer_keys: ClassVar[frozenset[str]] = frozenset()

    def facts(self, workload: Any) -> dict[str, Any]:
        """Fields of the `WorkloadInfo` that need the whole workload."""
        return {}

    def parts(self, workload: Any) -> Iterable[Any]:
        """Other workloads that are stored beside this one."""
        return ()

    def model(self, lookup: Any, platform: Any, op: Any) -> Any:
        """The model in `lookup` that learned from runs of an op on a platform; or None."""
        return lookup.cost_model(platform, op)

    def check_default(self, info: Any, op: Any, space: Any, default: Any) -> None:
        """Raises: InputError for a workload that no configuration can run."""

    def transferred(self, query: Any, partition: Any, workload: Any, workload_of: Any) -> Any:
        """The `Query` with the best configurations of its neighbours, transferred to the workload,
        as votes; None where they are copied or only the name of the workload is known
        (`WorkloadInfo`). `workload_of` returns a neighbour by its id."""
        return None

    def predicted(self, query: Any, lookup: Any, workload: Any) -> Any:
        """The `Query` with the predictions of this kind's own model; None if there is no such model
        and the cost model is used."""
        return None

    def answer(self, workload: Any) -> dict[str, Any]:
        """Fields of the `Recommendation` that describe the workload where it is not available."""
        return {}

    def occluded(self, ranker: Any, lookup: Any, workload: Any, progress: Any) -> dict[str, Any]:
        """Fields of `Diagnostics` that show which parts of the workload the answer depends on."""
        return {}

    def view(self, recommendation: Any, store: Any) -> dict[str, Any]:
        """Fields of the `PatternView` that an explanation shows."""
        return {}

    # -- indexer, tuners -----------------------------------------------------------------------

    #: Featurizers embed these workloads, so they have neighbours.
    embedded: ClassVar[bool] = True
    #: Kind whose files contain workloads of this kind too.
    files_of: ClassVar[str] = ""
    #: Hints: no workload has a vector; of some only the name is known.
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
        """The workloads in a file; with `alone`, those of this kind, which the file must contain.
        Raises: InputError."""
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
        """Facts of a model's card that the coverage of an operation reports."""
        return {"featurizer": card["featurizer"]["name"]}

    def program(self, info: Any) -> str:
        """The program that a workload was cut out of; empty where there is none."""
        return ""

    def judged(self, db: Any, instance: str, **options: Any) -> list[Any] | None:
        """Rows of the evaluation on one platform instance, for a kind without neighbours to hold
        out; None where it is evaluated like matrices."""
        return None

    # -- ui ------------------------------------------------------------------------------------

    #: Column heading for the size of a workload.
    extent: ClassVar[str] = "size"
    #: Placeholders in commands: a workload, and a file of many ("": there is none).
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
        """A workload for which legal configurations are counted, and its description; (None, "")
        where their number does not depend on the workload."""
        return None, ""


def nameless(workload: Any) -> Any:
    """The workload without name and group, which its id and its file form leave out."""
    return replace(workload, name="", group="")


@lru_cache(maxsize=512)
def _decoded(kind: WorkloadKind, raw: bytes, pattern_id: str, name: str, group: str) -> Any:
    """Decode a workload, cached: queries read their neighbours over and over."""
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
_REGISTERING = threading.RLock()


def register(kind: WorkloadKind) -> None:
    """Register a kind in this process. Raises: UsageError if its name, or the name of one of its
    operations, is taken."""
    kinds()
    with _REGISTERING:
        names = [kind.name, *(op.name for op in kind.operations)]
        taken = [n for n in names if n in _KINDS or n in _OPERATIONS]
        if taken:
            raise UsageError(
                f"{taken[0]!r} is already the name of a kind of workload or of an operation"
            )
        _add(kind)


def _add(*added: WorkloadKind) -> None:
    """In one step, operations first: other threads find all of these kinds, or none."""
    _OPERATIONS.update({op.name: (op, kind) for kind in added for op in kind.operations})
    _KINDS.update({kind.name: kind for kind in added})


def kinds() -> tuple[WorkloadKind, ...]:
    """All kinds: those that ship, in order, then others in the order of their registration."""
    if not _KINDS:  # several threads may do this: each adds the same
        _add(*importlib.import_module("embeddb.workloads").KINDS)
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
    if not any(wanted <= set(kind.symbols) for kind in kinds()):
        _load_all()
    return next((kind for kind in kinds() if wanted <= set(kind.symbols)), None)


def kind_of(name: str) -> WorkloadKind:
    """The kind of this name. Raises: UsageError if there is none."""
    if not kind_exists(name):
        raise UsageError(f"no kind of workload {name!r}", hint=f"kinds: {', '.join(_KINDS)}")
    return _KINDS[name]


def kind_exists(name: str) -> bool:
    if name not in _KINDS:
        _load_all()
    return name in _KINDS


def operation_exists(name: str) -> bool:
    if name not in _OPERATIONS:
        _load_all()
    return name in _OPERATIONS


def is_foreign(op: str) -> bool:
    """Return true if a stored operation, `gemm` or `gemm:128`, is one of a kind of workload whose
    plug-in is not here."""
    name = op.partition(":")[0]
    return name.isidentifier() and not operation_exists(name)


def operation_of(name: str) -> tuple[Operation, WorkloadKind]:
    """An operation and the kind it runs on. Raises: UsageError if there is none of this name."""
    # One look-up for one that exists: the traits of an operation are read for every run.
    if name not in _OPERATIONS and not operation_exists(name):
        raise UsageError(f"no kernel {name!r}", hint=f"kernels: {', '.join(_OPERATIONS)}")
    return _OPERATIONS[name]


def operations() -> tuple[Operation, ...]:
    """All operations, in the order of `kinds`."""
    return tuple(op for kind in kinds() for op in kind.operations)


def _load_all() -> None:
    """Load plug-ins of kinds; done only for a name that is not among those that ship. One that
    cannot be used is left out with a `PluginWarning`."""
    kinds()
    for name in plugins.available("workload"):
        if name not in _KINDS:
            try:
                # Not under the lock: an import takes others.
                _register_plugin(name, plugins.load("workload", name))
            except plugins.FAULTS as e:
                why = str(e) if isinstance(e, EmbeddbError) else reason_of(e)
                what = f"the kind of workload {name} is left out: {why}"
                warnings.warn(what, PluginWarning, stacklevel=3)


def _register_plugin(name: str, kind: object) -> None:
    if not isinstance(kind, WorkloadKind):
        raise UsageError("its PLUGIN is no object of a subclass of WorkloadKind")
    if kind.name != name:
        raise UsageError(f"its name is {kind.name!r:.80}")
    with _REGISTERING:
        if name not in _KINDS:
            register(kind)
