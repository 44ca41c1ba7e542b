"""Merge rules for runs and whole imports: they add rows and change none."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from embeddb.core.config import Op
from embeddb.core.errors import NothingFound, UsageError
from embeddb.core.kinds import kind_of
from embeddb.core.records import Run, WorkloadInfo
from embeddb.core.workload import Workload
from embeddb.store import codec
from embeddb.store.engine import Txn, raise_generation
from embeddb.store.merge_facts import (
    Contradiction,
    adopted_info,
    complete_infos,
    merge_infos,
    resolved,
)
from embeddb.store.sources import Pushing
from embeddb.store.withdrawn import among_withdrawn, renamed_marks


class RunOrigin(NamedTuple):
    """Origin of a run: measured here, or `imported`, or pushed by the `source` of that number."""

    imported: bool = False
    source: int = 0


LOCAL = RunOrigin()
#: A run, its id, and its origin.
Keyed = tuple[Run, bytes, RunOrigin]


@dataclass(frozen=True, slots=True)
class AppendResult:
    """Number of runs that were stored, and of runs that existed already; `withdrawn` ones among
    these stay withdrawn. `against` are the conflicts of an import with stored facts."""

    added: int = 0
    duplicates: int = 0
    withdrawn: int = 0
    against: tuple[Contradiction, ...] = ()


def add_runs(
    txn: Txn, keyed: Iterable[Keyed], against: list[Contradiction] | None = None
) -> AppendResult:
    """Add runs that do not exist yet. Imported runs are accepted only for stored workloads, replace
    no run, whatever they say, and yield to runs measured here; `against` collects the conflicts of
    all three kinds."""
    placed = list(_placed(txn, keyed, against))
    stored = txn.get_many("run", (key for key, _, _ in placed))
    withdrawn = among_withdrawn(txn, stored)
    rows = [codec.RunRow.of(run, imported=w.imported, source=w.source) for _, run, w in placed]
    configs = txn.get_many("config", dict.fromkeys(row.config_id for row in rows))
    added = 0
    own: dict[bytes, set[bytes]] = {}
    touched: set[bytes] = set()
    for (key, run, _), row in zip(placed, rows, strict=True):
        head, imported = key[:-16], row.imported
        if (raw := stored.get(key)) is not None:
            if imported or not codec.decode_row(raw).imported:
                continue
            if key not in withdrawn:
                touched.add(head)  # now it counts as measured here
        else:
            if imported and against is not None:
                if head not in own:
                    own[head] = _measured_here(txn, head)
                if reason := _conflict(txn, run, row, head, own[head]):
                    against.append(Contradiction(f"run {run.id}", reason))
            if row.config_id not in configs:
                configs[row.config_id] = run.config.json.encode()
                txn.put("config", row.config_id, configs[row.config_id])
            touched.add(head)
            added += 1
        stored[key] = codec.encode_row(row)
        txn.put("run", key, stored[key])
    if touched:
        raise_generation(txn, touched)
    return AppendResult(added, len(placed) - added, len(withdrawn), tuple(against or ()))


def _placed(
    txn: Txn, keyed: Iterable[Keyed], against: list[Contradiction] | None
) -> Iterator[tuple[bytes, Run, RunOrigin]]:
    """Runs that are not refused, with key and origin, on the workload that adopted theirs."""
    runs = list(keyed)
    _look_ahead(txn, runs)
    heads: dict[tuple[str, Op, str], tuple[bytes, str]] = {}
    for run, run_id, word in runs:
        place = run.pattern_id, run.op, run.platform
        head, pattern_id = heads.get(place) or heads.setdefault(place, _head(txn, run, word))
        if not pattern_id:
            if against is not None:
                reason = f"pattern {run.pattern_id} was not taken"
                against.append(Contradiction(f"run {run.id}", reason, refused=True))
            continue
        if pattern_id != run.pattern_id:
            run = dataclasses.replace(run, pattern_id=pattern_id)
            run_id = bytes.fromhex(run.id)
        yield head + run_id, run, word


def _look_ahead(txn: Txn, runs: Iterable[Keyed]) -> None:
    """Prefetch the rows that `_head` will read for each workload."""
    patterns = dict.fromkeys(codec.pattern_key(run.pattern_id) for run, _, _ in runs)
    txn.get_many("alias", patterns)
    txn.get_many("partition", {f"{run.op}\0{run.platform}".encode() for run, _, _ in runs})
    if any(origin.imported for _, _, origin in runs):
        txn.get_many("pattern", patterns)


def _conflict(txn: Txn, run: Run, row: codec.RunRow, head: bytes, own: set[bytes]) -> str:
    """Conflict of an imported run with stored ones, or ""; it is stored all the same."""
    if run.replaces and txn.get("run", head + _bytes(run.replaces)) is not None:
        return f"would replace the stored run {run.replaces}, which is kept"
    here = "its configuration was measured here; that run takes precedence"
    return here if row.config_id in own else ""


def _measured_here(txn: Txn, head: bytes) -> set[bytes]:
    """Ids of the configurations that were run here, for one table and workload."""
    rows = (codec.decode_row(raw) for _, raw in txn.scan("run", head))
    return {row.config_id for row in rows if not row.imported}


def counting(rows: Mapping[bytes, codec.RunRow]) -> dict[bytes, codec.RunRow]:
    """The valid runs of one table and workload, by their keys, which end in their ids: without
    those that another one replaced, and without imported runs of a configuration that was measured
    here."""
    gone = {row.replaces for row in rows.values() if not row.imported}
    imported = any(row.imported for row in rows.values())
    measured = {row.config_id for row in rows.values() if not row.imported} if imported else set()
    if gone <= {""} and not measured:
        return dict(rows)
    return {
        key: row
        for key, row in rows.items()
        if key[20:].hex() not in gone and not (row.imported and row.config_id in measured)
    }


def _bytes(run_id: str) -> bytes:
    try:
        return bytes.fromhex(run_id)
    except ValueError:
        return b""


def _head(txn: Txn, run: Run, origin: RunOrigin) -> tuple[bytes, str]:
    """Key prefix for the runs of a table and workload, and the workload's id; an empty id where
    imported runs have no workload, or one of another kind."""
    pattern = resolved(txn, codec.pattern_key(run.pattern_id))
    if origin.imported:
        raw = txn.get("pattern", pattern)
        if raw is None or codec.decode_info(raw).kind != run.op.kind:
            return b"-", ""
    key = f"{run.op}\0{run.platform}".encode()
    number = txn.get("partition", key)
    if number is None:
        number = (txn.count("partition") + 1).to_bytes(4, "big")
        txn.put("partition", key, number)
    return number + pattern, pattern.hex()


def renamed(runs: Sequence[Run], pattern_id: str) -> dict[str, Run]:
    """Move runs to another workload, by their old ids, with references to each other kept.

    A run's id depends on the id of the run it replaces, so those come first.
    """
    waiting = {run.id: run for run in runs}
    moved: dict[str, Run] = {}
    for first in list(waiting):
        chain = [first]
        while chain[-1] in waiting and waiting[chain[-1]].replaces in waiting:
            chain.append(waiting[chain[-1]].replaces)
        for old_id in reversed(chain):
            run = waiting.pop(old_id, None)
            if run is None:
                continue
            old = moved.get(run.replaces)
            replaces = run.replaces if old is None else old.id
            moved[old_id] = dataclasses.replace(run, pattern_id=pattern_id, replaces=replaces)
    return moved


def adopt(
    txn: Txn, stub: str, info: WorkloadInfo, runs_of: Callable[[Txn, str], Mapping[bytes, Run]]
) -> int:
    """Move every run of a stub, of any origin, to the real workload; return their number. `runs_of`
    returns all runs of a workload by their keys. Raises: NothingFound, UsageError."""
    key = codec.pattern_key(stub)
    raw = txn.get("pattern", key)
    stub_info = None if raw is None else codec.decode_info(raw)
    if stub_info is None or not stub_info.stub:
        raise NothingFound(f"no stub {stub}")
    target = resolved(txn, codec.pattern_key(info.id))
    if target == key:
        raise UsageError(f"stub {stub} cannot be adopted by itself")
    merge_infos(txn, [adopted_info(info, stub_info)])
    moved = runs_of(txn, stub)
    rows = {k[20:].hex(): codec.decode_row(raw) for k, raw in txn.get_many("run", moved).items()}
    origins = {old: RunOrigin(row.imported, row.source) for old, row in rows.items()}
    for run_key in moved:
        txn.delete("run", run_key)
        txn.delete("member", run_key[:20])
    txn.put("alias", key, target)
    txn.delete("pattern", key)
    for name in [name for name, _ in txn.scan("name") if name.endswith(key)]:
        txn.delete("name", name)
        txn.put("name", name[:-16] + target, b"")
    rekeyed = renamed(list(moved.values()), target.hex())
    add_runs(txn, [(r, bytes.fromhex(r.id), origins[old]) for old, r in rekeyed.items()])
    new = {old: bytes.fromhex(run.id) for old, run in rekeyed.items()}
    renamed_marks(txn, ((k, k[:4] + target + new[k[20:].hex()]) for k in moved))
    raise_generation(txn)
    return len(moved)


def importing(
    runs: Iterable[Run],
    patterns: Iterable[WorkloadInfo],
    coded: Iterable[Workload],
    pushing: Pushing | None,
) -> Callable[[Txn], AppendResult]:
    """The transaction that stores the part of an import that can be stored, and returns the counts
    of runs and all conflicts, those of the rest included; with `pushing`, each run is stored with
    its contributor."""
    unfit: list[Contradiction] = []
    infos: list[WorkloadInfo] = []
    keyed: list[tuple[Run, bytes]] = []
    for info in patterns:
        try:
            codec.pattern_key(info.id)
            codec.encode_info(info)
            infos.append(info)
        except UsageError as e:
            unfit.append(Contradiction(f"pattern {info.id[:40]}", str(e), refused=True))
    for run in runs:
        try:
            keyed.append((run, bytes.fromhex(run.id)))
        except UsageError as e:
            what = f"run of pattern {run.pattern_id[:40]}"
            unfit.append(Contradiction(what, str(e), refused=True))
    workloads = list(coded)

    def body(txn: Txn) -> AppendResult:
        against = [*unfit, *complete_infos(txn, infos)]
        coded = (_complete_code(txn, one) for one in workloads)
        against += [c for c in coded if c is not None]
        origin = RunOrigin(True, 0 if pushing is None else pushing.number(txn))
        done = add_runs(txn, ((*run, origin) for run in keyed), against)
        if pushing is not None:
            pushing.note(txn, done.added, done.duplicates, len(against))
        return done

    return body


def _complete_code(txn: Txn, workload: Workload) -> Contradiction | None:
    """Store the content of a workload with stored facts, if it is missing; it fits its id."""
    key = codec.pattern_key(workload.id)
    raw = txn.get("pattern", key)
    if raw is None:
        return Contradiction(
            f"{workload.kind} {workload.id}", "its pattern is not stored", refused=True
        )
    stored = codec.decode_info(raw)
    if (stored.kind, stored.named) != (workload.kind, dict(workload.sizes.named)):
        says = f"is {workload.sizes}, but stored as {stored.kind} of {stored.sizes}"
        return Contradiction(f"{workload.kind} {workload.id}", says, refused=True)
    kind = kind_of(workload.kind)
    if txn.get(kind.table, key) is None:
        txn.put(kind.table, key, kind.encode(workload))
    return None
