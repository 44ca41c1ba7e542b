"""A contributor's runs into a team's database: once each, by whom, and taken back by source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import builders
import pytest

from embeddb.core.errors import NothingFound, UsageError
from embeddb.core.pattern import stub_id
from embeddb.core.records import WorkloadInfo
from embeddb.database import Database
from embeddb.index.lookup import Lookup
from embeddb.store.withdrawn import RunSelection
from indexer.exchange import exchange
from indexer.exchange.exchange import export_file, import_file, own_source, push

PLATFORM = builders.tiny()


def contributor(first: int = 0, *, chance: int = 0) -> Database:
    """Five groups of patterns, measured by somebody."""
    db = Database.in_memory()
    patterns = builders.patterns(5, first=first)
    times = builders.by_chance(chance) if chance else builders.by_law
    return builders.fill(db, PLATFORM, patterns, times=times, indexed=False)


def runs(db: Database) -> set[str]:
    return {run.id for p in db.store.partitions() for run in db.store.runs(p.platform, p.op)}


def test_a_push_adds_once_and_is_noted() -> None:
    own, team = contributor(), Database.in_memory()
    done = push(own.index, team.index, source="ann@here")
    assert (done.added, done.duplicates, done.rejected, done.contradicting) == (
        len(runs(own)),
        0,
        0,
        0,
    )
    assert runs(team) == runs(own) and team.store.problems() == []
    again = push(own.index, team.index, source="ann@here")
    assert (again.added, again.duplicates) == (0, done.added)
    (source,) = team.store.sources.entries()
    assert (source.name, source.number) == ("ann@here", 1)
    assert [(p.added, p.duplicates) for p in source.pushes] == [(done.added, 0), (0, done.added)]
    assert source.pushes[0].platforms == tuple(done.platforms)


def test_workloads_that_are_stored_during_a_push_are_pushed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own, team = contributor(), Database.in_memory()
    late = builders.patterns(1, first=50)[0]
    described = exchange.with_features

    def meanwhile(db: Lookup, infos: list[WorkloadInfo], **few: bool) -> Iterator[WorkloadInfo]:
        yield from described(db, infos, **few)
        if not own.store.find(late.name):
            own.index.record(builders.runs_of(late, PLATFORM), late, PLATFORM)

    monkeypatch.setattr(exchange, "with_features", meanwhile)
    done = push(own.index, team.index, source="ann")
    assert done.rejected == 0 and runs(team) == runs(own)


def test_two_contributors_stand_beside_each_other() -> None:
    """Of the same runs the first told counts; of other runs of the same configuration both."""
    team, ann, bob = Database.in_memory(), contributor(), contributor(chance=4)
    push(ann.index, team.index, source="ann")
    assert push(bob.index, team.index, source="bob").added == len(runs(bob))
    assert runs(team) == runs(ann) | runs(bob)
    done = push(ann.index, team.index, source="carl")
    assert (done.added, done.duplicates) == (0, len(runs(ann)))
    assert [source.name for source in team.store.sources.entries()] == ["ann", "bob", "carl"]


def test_a_source_is_withdrawn_and_brought_back() -> None:
    team, ann, bob = Database.in_memory(), contributor(), contributor(chance=4)
    push(ann.index, team.index, source="ann")
    push(bob.index, team.index, source="bob")
    team.store.withdrawn.withdraw(RunSelection(source="bob"))
    assert runs(team) == runs(ann)
    assert team.store.sources.withdrawn() == {2: len(runs(bob))}
    again = push(bob.index, team.index, source="bob")
    assert again.duplicates == again.withdrawn == len(runs(bob))
    assert push(ann.index, team.index, source="ann").withdrawn == 0
    assert runs(team) == runs(ann), "what is withdrawn stays so when it is pushed again"
    team.store.withdrawn.restore(RunSelection(source="bob"))
    assert runs(team) == runs(ann) | runs(bob)
    assert team.store.problems() == []
    for name in ("eve", "\udcff"):
        with pytest.raises(UsageError, match="no source '"):
            team.store.withdrawn.withdraw(RunSelection(source=name))
    with pytest.raises(UsageError, match="is not a valid name of a source"):
        push(ann.index, team.index, source="\udcff")


def test_what_others_told_is_not_pushed_on(tmp_path: Path) -> None:
    own, team = contributor(), Database.in_memory()
    export_file(contributor(first=20).index, tmp_path / "other.jsonl")
    import_file(own.index, tmp_path / "other.jsonl")
    mine = runs(contributor())
    assert len(runs(own)) == 2 * len(mine)
    assert push(own.index, team.index, source="ann").added == len(mine)
    assert runs(team) == mine
    with pytest.raises(NothingFound, match="no runs measured or read here"):
        push(team.index, Database.in_memory().index)
    with pytest.raises(NothingFound, match="on cpu"):
        push(own.index, team.index, platform="cpu")


def test_a_team_s_own_runs_count_before_those_that_were_pushed() -> None:
    team, ann = contributor(chance=7), contributor()
    before = runs(team)
    done = push(ann.index, team.index, source="ann")
    assert done.contradicting == done.added == len(runs(ann))
    assert "its configuration was measured here" in done.reasons[0]
    assert runs(team) == before


def test_adoption_keeps_whose_run_it_is() -> None:
    own, team = contributor(), Database.in_memory()
    (pattern, *_) = builders.patterns(1, first=50)
    m, n, nnz = pattern.sizes
    stub = WorkloadInfo(id=stub_id("later", m, n, nnz), m=m, n=n, nnz=nnz, name="later", stub=True)
    told = [replace(r, pattern_id=stub.id) for r in builders.runs_of(pattern, PLATFORM)]
    own.store.append(told, patterns=[stub])
    push(own.index, team.index, source="ann")
    team.store.adopt(stub.id, WorkloadInfo.of(pattern))
    before = runs(team)
    team.store.withdrawn.withdraw(RunSelection(source="ann"))
    assert before and not runs(team)


def test_a_name_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="not a valid name of a source"):
        push(contributor().index, Database.in_memory().index, source="a\nb")
    monkeypatch.setenv("EMBEDDB_SOURCE", "the-lab")
    assert own_source() == "the-lab"
    monkeypatch.delenv("EMBEDDB_SOURCE")
    assert "@" in own_source()
