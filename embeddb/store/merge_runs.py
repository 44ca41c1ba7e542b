"""How runs and whole imports come to the rows that are there: they add and change nothing."""

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
    complete_info,
    look_ahead,
    merge_info,
    resolved,
)
from embeddb.store.sources import Pushing
from embeddb.store.withdrawn import renamed_marks


class Word(NamedTuple):
    """Whose word a run is: our own, or `told` by an import, or by the `source` of that number."""

    told: bool = False
    source: int = 0


OWN = Word()
#: A run, its id, and whose word it is.
Keyed = tuple[Run, bytes, Word]


@dataclass(frozen=True, slots=True)
class AppendResult:
    """Runs that were stored, and runs that were there already."""

    added: int = 0
    duplicates: int = 0


def add_runs(
    txn: Txn, keyed: Iterable[Keyed], against: list[Contradiction] | None = None
) -> AppendResult:
    """Add what is not there yet. Told runs are only taken of patterns that are known, retire no
    run, whatever they say that they replace, and stand back for what was run here; `against`
    collects all three."""
    placed = list(_placed(txn, keyed, against))
    stored = txn.get_many("run", (key for key, _, _ in placed))
    rows = [codec.RunRow.of(run, told=w.told, source=w.source) for _, run, w in placed]
    configs = txn.get_many("config", dict.fromkeys(row.config_id for row in rows))
    added = 0
    own: dict[bytes, set[bytes]] = {}
    touched: set[bytes] = set()
    for (key, run, _), row in zip(placed, rows, strict=True):
        head, told = key[:-16], row.told
        if (raw := stored.get(key)) is not None:
            if told or not codec.decode_row(raw).told:
                continue
            touched.add(head)  # now it is our word
        else:
            if told and against is not None:
                if head not in own:
                    own[head] = _run_here(txn, head)
                _object_told(txn, run, row, head, own[head], against)
            if row.config_id not in configs:
                configs[row.config_id] = run.config.json.encode()
                txn.put("config", row.config_id, configs[row.config_id])
            touched.add(head)
            added += 1
        stored[key] = codec.encode_row(row)
        txn.put("run", key, stored[key])
    if touched:
        raise_generation(txn, touched)
    return AppendResult(added, len(placed) - added)


def _placed(
    txn: Txn, keyed: Iterable[Keyed], against: list[Contradiction] | None
) -> Iterator[tuple[bytes, Run, Word]]:
    """Each run with its key and whose word it is, on the pattern that its own was adopted by;
    without those that are refused."""
    runs = list(keyed)
    _look_ahead(txn, runs)
    heads: dict[tuple[str, Op, str], tuple[bytes, str]] = {}
    for run, run_id, word in runs:
        place = run.pattern_id, run.op, run.platform
        head, pattern_id = heads.get(place) or heads.setdefault(place, _head(txn, run, word))
        if not pattern_id:
            _object(against, run, f"pattern {run.pattern_id} was not taken", refused=True)
            continue
        if pattern_id != run.pattern_id:
            run = dataclasses.replace(run, pattern_id=pattern_id)
            run_id = bytes.fromhex(run.id)
        yield head + run_id, run, word


def _look_ahead(txn: Txn, runs: Iterable[Keyed]) -> None:
    """Ask at once for what `_head` will ask of each pattern."""
    patterns = dict.fromkeys(codec.pattern_key(run.pattern_id) for run, _, _ in runs)
    txn.get_many("alias", patterns)
    txn.get_many("partition", {f"{run.op}\0{run.platform}".encode() for run, _, _ in runs})
    if any(word.told for _, _, word in runs):
        txn.get_many("pattern", patterns)


def _object_told(
    txn: Txn,
    run: Run,
    row: codec.RunRow,
    head: bytes,
    own: set[bytes],
    against: list[Contradiction],
) -> None:
    """What a told run says against what is known; it is kept all the same."""
    if run.replaces and txn.get("run", head + _bytes(run.replaces)) is not None:
        _object(against, run, f"would replace run {run.replaces}, which is known and stays")
    elif row.config_id in own:
        _object(against, run, "its configuration was run here, which counts")


def _run_here(txn: Txn, head: bytes) -> set[bytes]:
    """Ids of the configurations that were run here, of one partition and pattern."""
    rows = (codec.decode_row(raw) for _, raw in txn.scan("run", head))
    return {row.config_id for row in rows if not row.told}


def counting(rows: Mapping[bytes, codec.RunRow]) -> dict[bytes, codec.RunRow]:
    """The runs of one partition and pattern that count, by their keys, which end in their ids: none
    that another one replaced, and of a configuration that was run here none that was only told."""
    gone = {row.replaces for row in rows.values() if not row.told}
    told = any(row.told for row in rows.values())
    own = {row.config_id for row in rows.values() if not row.told} if told else set()
    if gone <= {""} and not own:
        return dict(rows)
    return {
        key: row
        for key, row in rows.items()
        if key[20:].hex() not in gone and not (row.told and row.config_id in own)
    }


def _object(
    against: list[Contradiction] | None, run: Run, reason: str, *, refused: bool = False
) -> None:
    if against is not None:
        against.append(Contradiction(f"run {run.id}", reason, refused))


def _bytes(run_id: str) -> bytes:
    try:
        return bytes.fromhex(run_id)
    except ValueError:
        return b""


def _head(txn: Txn, run: Run, word: Word) -> tuple[bytes, str]:
    """The key prefix for the runs of a partition and pattern, and the pattern's own id; that is
    empty where runs that are only told have no pattern, or one of another kind."""
    pattern = resolved(txn, codec.pattern_key(run.pattern_id))
    if word.told:
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
    """The same runs on another pattern, by their old ids, with references to each other kept.

    A run's id depends on the id of the one it replaces, so those come first.
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
    """Move every run of a stub, whoever's word it is, to the real pattern; the number of them.
    `runs_of` gives all runs of a pattern by their keys. Raises: NothingFound, UsageError."""
    key = codec.pattern_key(stub)
    raw = txn.get("pattern", key)
    known = None if raw is None else codec.decode_info(raw)
    if known is None or not known.stub:
        raise NothingFound(f"no stub {stub}")
    target = resolved(txn, codec.pattern_key(info.id))
    if target == key:
        raise UsageError(f"stub {stub} cannot be adopted by itself")
    merge_info(txn, adopted_info(info, known))
    moved = runs_of(txn, stub)
    raws = txn.get_many("run", moved)
    words = {run_key[20:].hex(): _word(row) for run_key, row in raws.items()}
    for run_key in moved:
        txn.delete("run", run_key)
        txn.delete("member", run_key[:20])
    txn.put("alias", key, target)
    txn.delete("pattern", key)
    for name in [name for name, _ in txn.scan("name") if name.endswith(key)]:
        txn.delete("name", name)
        txn.put("name", name[:-16] + target, b"")
    rekeyed = renamed(list(moved.values()), target.hex())
    add_runs(txn, [(r, bytes.fromhex(r.id), words[old]) for old, r in rekeyed.items()])
    new = {old: bytes.fromhex(run.id) for old, run in rekeyed.items()}
    renamed_marks(txn, ((k, k[:4] + target + new[k[20:].hex()]) for k in moved))
    raise_generation(txn)
    return len(moved)


def _word(raw: bytes) -> Word:
    row = codec.decode_row(raw)
    return Word(row.told, row.source)


@dataclass(frozen=True, slots=True)
class Told:
    """What can be stored of it; `unfit` says why the rest cannot."""

    infos: tuple[WorkloadInfo, ...]
    coded: tuple[Workload, ...]
    runs: tuple[tuple[Run, bytes], ...]
    unfit: tuple[Contradiction, ...]

    @classmethod
    def of(
        cls, runs: Iterable[Run], patterns: Iterable[WorkloadInfo], coded: Iterable[Workload]
    ) -> Told:
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
        return cls(tuple(infos), tuple(coded), tuple(keyed), tuple(unfit))

    def add(
        self, txn: Txn, pushing: Pushing | None = None
    ) -> tuple[AppendResult, tuple[Contradiction, ...]]:
        """What became of the runs, and what is against what is known, all of `unfit` too; with
        `pushing`, who told it is kept with each."""
        look_ahead(txn, self.infos)
        found = [complete_info(txn, info) for info in self.infos]
        found += [_complete_code(txn, one) for one in self.coded]
        against = [*self.unfit, *(c for c in found if c is not None)]
        word = Word(True, 0 if pushing is None else pushing.number(txn))
        done = add_runs(txn, ((*run, word) for run in self.runs), against)
        if pushing is not None:
            pushing.note(txn, done.added, done.duplicates, len(against))
        return done, tuple(against)


def _complete_code(txn: Txn, given: Workload) -> Contradiction | None:
    """The code of what facts are known of: it fits its id, so that it can only be missing."""
    key = codec.pattern_key(given.id)
    raw = txn.get("pattern", key)
    if raw is None:
        return Contradiction(f"{given.kind} {given.id}", "its pattern is not known", refused=True)
    known = codec.decode_info(raw)
    if (known.kind, known.named) != (given.kind, dict(given.sizes.named)):
        says = f"is {given.sizes}, and known as {known.kind} of {known.sizes}"
        return Contradiction(f"{given.kind} {given.id}", says, refused=True)
    kind = kind_of(given.kind)
    if txn.get(kind.table, key) is None:
        txn.put(kind.table, key, kind.encode(given))
    return None
