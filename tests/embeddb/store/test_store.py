"""What the store means, over both engines."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
import tracemalloc
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from embeddb.core.config import Config, Op
from embeddb.core.errors import NothingFound, StoreCorrupt, StoreError, UsageError
from embeddb.core.pattern import Pattern, stub_id
from embeddb.core.records import Measurement, Run, WorkloadInfo
from embeddb.platforms.platform import Platform, load_platform, parse_platform
from embeddb.store import AppendResult, Store, codec, memory_store, open_store
from embeddb.store.withdrawn import RunSelection

SPMM, SPMV = Op("spmm", 32), Op("spmv")
IDS = [f"{i:032x}" for i in (1, 2, 0xFF << 120)]
STUBS = [stub_id(name, -1, -1, -1) for name in ("s0", "s1")]


def make_run(pattern: int | str = 0, value: int = 0, **fields: object) -> Run:
    given = {
        "pattern_id": IDS[pattern] if isinstance(pattern, int) else pattern,
        "op": SPMM,
        "platform": "cpu",
        "config": Config({"a": value % 3}),
        "measurement": Measurement(times_s=(0.5 + value, 1.5)),
    }
    return Run(**{**given, **fields})  # type: ignore[arg-type]  # fields of a Run


@pytest.fixture(params=["memory", "lmdb"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    store = (
        memory_store() if request.param == "memory" else open_store(tmp_path / "db", create=True)
    )
    yield store
    store.close()


def all_runs(store: Store) -> dict[str, list[Run]]:
    return {str(p): list(store.runs(p.platform, p.op)) for p in store.partitions()}


# -- runs ----------------------------------------------------------------------------------


def test_append_is_idempotent_and_counts(store: Store) -> None:
    runs = [make_run(p, v) for p in (0, 1) for v in range(5)]
    assert store.append(runs) == AppendResult(10, 0)
    generation = store.generation
    assert store.append(runs) == AppendResult(0, 10)
    assert store.generation == generation
    assert store.append([runs[0], make_run(2, 9), make_run(2, 9)]) == AppendResult(1, 2)
    assert store.generation > generation
    assert store.append([]) == AppendResult(0, 0)
    assert sorted(r.id for r in store.runs("cpu", SPMM)) == sorted(
        r.id for r in [*runs, make_run(2, 9)]
    )
    assert store.count_runs() == 11


def test_runs_come_back_as_they_were(store: Store) -> None:
    run = make_run(
        op=SPMV,
        platform="gpu@V100",
        config=Config({"order": ("i", "k"), "b": True, "t": "x y"}),
        measurement=Measurement(
            "timeout",
            (0.1, 0.2),
            "simulator",
            conversion_s=0.3,
            compile_s=0.4,
            tolerance=1e-5,
            when=1.7e9,
            error="killed ü",
            cpu_max_s=(0.1,),
            cpu_sum_s=(0.2,),
            context={"load": 0.5, "host": "a"},
        ),
        campaign="c1",
    )
    store.append([run])
    assert list(store.runs("gpu@V100", SPMV)) == [run]
    assert list(store.runs("gpu@V100", SPMV, IDS[0])) == [run]
    assert list(store.runs("gpu@V100", SPMV, IDS[1])) == []
    assert list(store.runs("gpu", SPMV)) == list(store.runs("gpu@V100", SPMM)) == []


def test_partitions_and_members(store: Store) -> None:
    store.append([make_run(0), make_run(0, op=SPMV), make_run(1, platform="gpu")])
    first = store.generation
    store.append([make_run(1, 1)])
    found = store.partitions()
    assert [(p.platform, str(p.op)) for p in found] == [
        ("cpu", "spmm:32"), ("cpu", "spmv"), ("gpu", "spmm:32"),
    ]  # fmt: skip
    assert len({p.number for p in found}) == 3
    assert store.members(found[0]) == {IDS[0]: first, IDS[1]: store.generation}
    assert store.members(found[2]) == {IDS[1]: first}
    assert store.partition("cpu", SPMV) == found[1]
    assert store.partition("cpu", Op("spmm", 64)) is None
    assert [store.count_runs(p) for p in found] == [2, 1, 1]


def test_a_replaced_run_is_kept_but_not_shown(store: Store) -> None:
    first = make_run(0, 1)
    second = make_run(0, 2, replaces=first.id)
    third = make_run(0, 3, replaces=second.id)
    other = make_run(1, 1, replaces="not an id")
    store.append([second, first])
    assert list(store.runs("cpu", SPMM)) == [second]
    store.append([third, other])
    assert list(store.runs("cpu", SPMM)) == [third, other]
    assert store.count_runs() == 4
    assert store.append([first]) == AppendResult(0, 1)


def test_a_run_has_one_id_however_it_is_written(store: Store) -> None:
    as_floats = make_run(measurement=Measurement(times_s=(1.0, 2.0), context={"a": 1.0, "b": "x"}))
    as_ints = make_run(measurement=Measurement(times_s=(1, 2), context={"b": "x", "a": 1}))
    assert as_floats.id == as_ints.id
    store.append([as_ints])
    assert [run.id for run in store.runs("cpu", SPMM)] == [as_ints.id]
    assert make_run(campaign="b", replaces="a").id != make_run(campaign="", replaces="ab").id


@pytest.mark.parametrize(
    "measurement",
    [Measurement(error=None), Measurement(times_s=(None,)), Measurement(times_s=("1",)),
     Measurement(error="\udc80"), Measurement(context={"a": object()})],
)  # fmt: skip
def test_what_could_not_be_read_back_is_refused(store: Store, measurement: Measurement) -> None:
    with pytest.raises(UsageError, match="cannot be stored"):
        store.append([make_run(0), make_run(1, measurement=measurement)])
    assert store.count_runs() == 0


@pytest.mark.parametrize("bad", ["", "ab", "z" * 32, "AB" * 16, "ab " * 11, "ab" * 17])
def test_what_is_no_pattern_id(store: Store, bad: str) -> None:
    store.append([make_run(0)])
    for ask in (
        lambda: store.append([make_run(bad)]),
        lambda: store.pattern(bad),
        lambda: store.structure(bad),
        lambda: list(store.runs("cpu", SPMM, bad)) if bad else store.pattern(bad),
        lambda: store.put_patterns([WorkloadInfo(id=bad)]),
        lambda: store.vectors.put("stats", "1", {bad: np.zeros(2, np.float32)}),
    ):
        with pytest.raises(UsageError, match="pattern id"):
            ask()


def test_the_journal_moves_with_the_runs(store: Store) -> None:
    store.append([make_run(0)], patterns=[WorkloadInfo(id=IDS[0])], journal={"file": b"100"})
    assert store.journal.get("file") == b"100"
    with pytest.raises(StoreError):
        store.append([make_run(1)], journal={"file": b"200", "x" * 600: b""})
    assert store.journal.get("file") == b"100"
    assert store.count_runs() == 1
    assert store.problems() == []


def test_a_walk_over_runs_holds_nothing_open(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embeddb.store.store._PIECE", 2)
    runs = [make_run(p, v) for p in range(3) for v in range(4)]
    store.append(runs)
    walk = store.runs("cpu", SPMM)
    seen = [next(walk)]
    store.append([make_run(0, 50), make_run(2, 51)])  # within the walk, in the same thread
    store.compact()
    seen += walk
    assert [r.pattern_id for r in seen] == sorted(r.pattern_id for r in seen)
    assert {r.id for r in runs} <= {r.id for r in seen} <= {r.id for r in all_runs(store)[
        str(store.partitions()[0])
    ]}  # fmt: skip
    unfinished = store.runs("cpu", SPMM)
    next(unfinished)
    assert len(list(store.patterns())) == 0
    store.append([make_run(0, 52)])


# -- patterns ------------------------------------------------------------------------------


def test_put_patterns_completes_and_never_empties(store: Store) -> None:
    full = WorkloadInfo(
        id=IDS[0], m=3, n=4, nnz=5, name="a", group="g", thumbnail=b"t",
        features={"x": 1.0, "y": 2.0}, about={"from": "here"},
    )  # fmt: skip
    store.put_patterns([WorkloadInfo(id=IDS[0], name="first", stub=True)])
    store.put_patterns([full])
    store.put_patterns([WorkloadInfo(id=IDS[0], features={"y": 3.0}, stub=True)])
    found = store.pattern(IDS[0])
    assert found is not None
    assert (found.m, found.n, found.nnz, found.name, found.group) == (3, 4, 5, "first", "g")
    assert not found.stub
    assert found.thumbnail == b"t"
    assert found.features == {"x": 1.0, "y": 3.0}
    assert found.about == {"from": "here"}
    assert store.find("a") == store.find("first") == [found]
    assert store.pattern(IDS[1]) is None


@pytest.mark.parametrize("imported", [False, True])
def test_the_name_of_a_file_is_no_group_that_others_must_keep(store: Store, imported: bool) -> None:
    def group_after(*facts: str) -> str:
        """Facts are names, each with the group that follows it, as rows of logs or as imports."""
        infos = [WorkloadInfo(id=IDS[0], name=n, group=g) for n, g in map(str.split, facts)]
        done = [store.take([], [info]) for info in infos] if imported else []
        if not imported:
            store.put_patterns(infos)
        assert not [c for one in done for c in one.against if "group" in c.reason]
        found = store.pattern(IDS[0])
        assert found is not None
        return found.group

    assert group_after("a a", "b b") == "a"
    assert group_after("b G") == "G"
    assert group_after("a a", "c c") == "G"


def test_find_is_exact(store: Store) -> None:
    names = ["a", "a\0b", "a\0", "ab", "x" * 500, "x" * 499 + "y", "ü" * 300]
    for at, name in enumerate(names):
        store.put_patterns([WorkloadInfo(id=f"{at:032x}", name=name)])
    store.put_patterns([WorkloadInfo(id=f"{99:032x}", name="a", stub=True)])
    for at, name in enumerate(names[1:], 1):
        assert [info.id for info in store.find(name)] == [f"{at:032x}"]
    assert [info.id for info in store.find("a")] == [f"{0:032x}", f"{99:032x}"]
    assert store.find("b") == store.find("") == []


@st.composite
def patterns(draw: st.DrawFn) -> Pattern:
    m, n = draw(st.sampled_from([(0, 0), (0, 5), (5, 0), (1, 7), (7, 1), (9, 9), (3, 2**31 - 1)]))
    count = draw(st.integers(0, 40)) if m and n else 0
    rows = draw(st.lists(st.integers(0, max(m - 1, 0)), min_size=count, max_size=count))
    cols = draw(st.lists(st.integers(0, max(n - 1, 0)), min_size=count, max_size=count))
    return Pattern.from_coo((m, n), np.array(rows, int), np.array(cols, int), name="p")


@given(patterns())
def test_a_structure_survives(pattern: Pattern) -> None:
    store = memory_store()
    store.put_structure(pattern, WorkloadInfo(id=pattern.id, name="p", group="g"))
    found = store.structure(pattern.id)
    assert found == pattern
    assert found is not None
    assert (found.name, found.group, found.shape) == ("p", "g", pattern.shape)
    np.testing.assert_array_equal(found.indptr, pattern.indptr)
    np.testing.assert_array_equal(found.indices, pattern.indices)


@given(patterns(), st.data())
def test_a_damaged_structure_is_found(pattern: Pattern, data: st.DataObject) -> None:
    raw = bytearray(codec.encode_structure(pattern))
    at = data.draw(st.integers(0, len(raw) - 1))
    how = data.draw(st.sampled_from(["flip", "cut", "insert"]))
    if how == "flip":
        raw[at] ^= 1 << data.draw(st.integers(0, 7))
    elif how == "cut":
        del raw[at:]
    else:
        raw[at:at] = b"\x7f" * 9
    try:
        found = codec.decode_structure(bytes(raw), pattern_id=pattern.id, name="", group="")
    except StoreCorrupt:
        return
    assert found == pattern  # such as a bit that deflate does not look at
    np.testing.assert_array_equal(found.indices, pattern.indices)


@pytest.mark.parametrize(
    "sizes",
    [(2**31 - 1, 5, 0), (5, 5, 2**40), (5, 5, 2**62), (-1, 5, 0), (5, 5, -5), (2**31, 5, 0)],
)
def test_a_structure_that_lies_about_its_size_costs_no_memory(sizes: tuple[int, ...]) -> None:
    bomb = np.array(sizes, dtype="<i8").tobytes() + zlib.compress(bytes(50_000_000), 9)
    tracemalloc.start()
    with pytest.raises(StoreCorrupt):
        codec.decode_structure(bomb, pattern_id=IDS[0], name="", group="")
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()


def test_a_structure_needs_its_own_facts(store: Store) -> None:
    pattern = Pattern.from_coo((2, 2), [0], [1])
    with pytest.raises(UsageError, match="not"):
        store.put_structure(pattern, WorkloadInfo(id=IDS[0]))
    assert store.structure(pattern.id) is None


# -- stubs ---------------------------------------------------------------------------------


def stub_info(at: int = 0, **fields: object) -> WorkloadInfo:
    given: dict[str, object] = {"id": STUBS[at], "name": f"s{at}", "group": f"g{at}", "stub": True}
    return WorkloadInfo(**{**given, **fields})  # type: ignore[arg-type]  # fields of a WorkloadInfo


def test_adopting_moves_the_runs(store: Store) -> None:
    first = make_run(STUBS[0], 1)
    second = make_run(STUBS[0], 2, replaces=first.id)
    third = make_run(STUBS[0], 3, replaces=second.id)
    runs = [third, second, first, make_run(STUBS[0], 4, op=SPMV), make_run(STUBS[0], platform="g")]
    store.append(
        [*runs, make_run(1)],
        patterns=[stub_info(features={"x": 1.0}), WorkloadInfo(id=IDS[1])],
    )
    store.put_patterns([stub_info(name="alias")])
    shown = [r.measurement for r in store.runs("cpu", SPMM, STUBS[0])]
    before = store.generation
    moved = store.adopt(
        STUBS[0], WorkloadInfo(id=IDS[0], m=2, n=2, nnz=1, name="real", group="own")
    )
    assert moved == 5
    assert store.generation > before
    assert store.pattern(STUBS[0]) is None
    assert store.resolve(STUBS[0]) == IDS[0]
    assert store.resolve(IDS[1]) == IDS[1]
    real = store.pattern(IDS[0])
    assert real is not None
    assert (real.group, real.stub, real.features) == ("g0", False, {"x": 1.0})
    for name in ("s0", "alias", "real"):
        assert store.find(name) == [real]
    assert [r.measurement for r in store.runs("cpu", SPMM, IDS[0])] == shown
    assert shown == [third.measurement]
    assert list(store.runs("cpu", SPMM, STUBS[0])) == []
    assert store.count_runs() == 6
    for partition in store.partitions():
        assert STUBS[0] not in store.members(partition)
        assert store.members(partition)[IDS[0]] > before
    assert store.problems() == []


def test_later_runs_of_an_adopted_stub_follow(store: Store) -> None:
    runs = [make_run(STUBS[0], v) for v in range(4)]
    store.append(runs, patterns=[stub_info(m=7)])
    store.adopt(STUBS[0], WorkloadInfo(id=IDS[0], m=2, name="real"))
    assert store.append(runs, patterns=[stub_info(m=7)]) == AppendResult(0, 4)
    resolved = [make_run(store.resolve(STUBS[0]), v) for v in range(4)]
    assert store.append(resolved) == AppendResult(0, 4)
    assert store.append([make_run(STUBS[0], 9)]) == AppendResult(1, 0)
    assert len(list(store.runs("cpu", SPMM, IDS[0]))) == 5
    assert [info.m for info in store.patterns()] == [2]
    assert store.problems() == []


def test_a_stub_that_is_already_there_in_full(store: Store) -> None:
    """The same runs under the stub and under the real pattern become one."""
    store.append(
        [make_run(0, v) for v in range(3)], patterns=[WorkloadInfo(id=IDS[0], group="own")]
    )
    store.append([make_run(STUBS[0], v) for v in range(3)], patterns=[stub_info()])
    before = store.generation
    assert store.adopt(STUBS[0], WorkloadInfo(id=IDS[0])) == 3
    assert store.count_runs() == 3
    assert store.generation > before
    found = store.pattern(IDS[0])
    assert found is not None
    assert found.group == "own"


def test_a_chain_of_stubs(store: Store) -> None:
    store.append([make_run(STUBS[0]), make_run(STUBS[1], 1)], patterns=[stub_info(0), stub_info(1)])
    store.adopt(STUBS[0], stub_info(1))
    with pytest.raises(UsageError):
        store.adopt(STUBS[1], stub_info(0))
    store.adopt(STUBS[1], WorkloadInfo(id=IDS[0]))
    assert store.resolve(STUBS[0]) == store.resolve(STUBS[1]) == IDS[0]
    assert len(list(store.runs("cpu", SPMM, IDS[0]))) == 2
    assert store.problems() == []


def test_only_stubs_are_adopted(store: Store) -> None:
    store.put_patterns([WorkloadInfo(id=IDS[0])])
    for pattern_id in IDS[:2]:
        with pytest.raises(NothingFound):
            store.adopt(pattern_id, WorkloadInfo(id=IDS[2]))
    assert store.generation == 0


# -- derived data and platforms ------------------------------------------------------------


def test_vectors(store: Store) -> None:
    store.append([make_run(0)])
    before = store.generation
    vectors = {IDS[0]: np.array([1.5, -2.0], np.float32), IDS[1]: np.zeros(0, np.float32)}
    store.vectors.put("stats", "1", vectors)
    assert store.generation > before
    assert store.members(store.partitions()[0]) == {IDS[0]: store.generation}
    found = store.vectors.get("stats", "1", [*IDS])
    assert set(found) == set(IDS[:2])
    np.testing.assert_array_equal(found[IDS[0]], vectors[IDS[0]])
    assert found[IDS[0]].dtype == np.float32
    found[IDS[0]][0] = 9  # the caller's own
    assert store.vectors.get("stats", "2", IDS) == store.vectors.get("stat", "s\x001", IDS) == {}
    before = store.generation
    store.vectors.exchange({}, ())
    assert store.vectors.get("stats", "1", IDS) == {}
    assert store.generation > before


def test_a_damaged_vector_is_named_by_key_and_in_a_scan(store: Store) -> None:
    store.vectors.put("stats", "1", {IDS[0]: np.zeros(2, np.float32)})

    def cut(txn: Any) -> None:
        ((key, raw),) = txn.scan("vector")
        txn.put("vector", key, raw[:-1])

    store.engine.write(cut)
    for read in (lambda: store.vectors.get("stats", "1", IDS[:1]),
                 lambda: store.vectors.every("stats", "1")):  # fmt: skip
        with pytest.raises(StoreCorrupt, match=f"stats vector of pattern {IDS[0]}"):
            read()


def test_documents(store: Store) -> None:
    store.notes.put("a/1", b"x")
    store.notes.put("a/2", b"")
    store.notes.put("b", b"z" * 10_000)
    store.recommendations.put("a/1", b"other table")
    assert store.notes.items("a/") == {"a/1": b"x", "a/2": b""}
    store.notes.delete(["a/1", "missing"])
    assert store.notes.get("a/1") is None
    assert store.recommendations.get("a/1") == b"other table"
    assert store.counts()["recommendation"] == 1


def test_platforms(store: Store) -> None:
    platform = load_platform("spade")
    machine = load_platform("cpu").at("", {"compiler": "gcc 13", "cpu": "x"})
    store.put_platform(platform)
    store.put_platform(machine)
    store.put_platform(machine)
    assert store.platforms() == sorted([platform.id, machine.id])
    found = store.platform(machine.id)
    assert found is not None
    assert (found.id, found.digest, dict(found.environment)) == (
        machine.id, machine.digest, dict(machine.environment),
    )  # fmt: skip
    assert store.platform("nowhere") is None


def test_what_is_known_of_a_machine_grows_and_is_never_lost(store: Store) -> None:
    """Each fact as it was told last; a writer that knows fewer takes none away."""
    told = [
        {"cpu": "x", "threads": "2"},
        {"cpu": "x", "threads": "2", "l2_bytes": "1048576", "wake_us": "7"},
        {"cpu": "x", "threads": "2"},
        {"cpu": "x", "threads": "2", "wake_us": "9"},
    ]
    for facts in told:
        store.put_platform(load_platform("cpu").at("here", facts))
    found = store.platform("cpu@here")
    assert found is not None
    assert found.environment == {**told[0], "l2_bytes": "1048576", "wake_us": "9"}


def test_a_sample_is_of_many_patterns_and_few_runs_of_each(store: Store) -> None:
    runs = [make_run(f"{p:032x}", v) for p in range(10) for v in range(4)]
    store.append(runs)
    (partition,) = {(r.platform, r.op) for r in runs}
    there = store.partition(*partition)
    assert there is not None
    found = store.sample(there, patterns=5, runs=2)
    assert len(found) == 10 and len({r.pattern_id for r in found}) == 5
    assert {r.id for r in found} <= {r.id for r in runs}
    assert {r.id for r in store.sample(there, patterns=99, runs=99)} == {r.id for r in runs}


def test_a_platform_whose_parameters_are_reordered_is_the_stored_one(store: Store) -> None:
    params = [
        'tile = { type = "int", values = [8, 16] }',
        'lanes = { type = "int", values = [1, 2] }',
    ]
    head = 'name = "toy"\nversion = "1"\ntitle = "t"\n[[space]]\nkernels = ["spmm"]\n'
    texts = [
        "\n".join([head, "[space.params]", *order, "[space.default]", *chosen])
        for order in (params, params[::-1])
        for chosen in (["tile = 8", "lanes = 1"], ["lanes = 1", "tile = 8"])
    ]
    one, same, other, _ = map(parse_platform, texts)
    assert one.digest == same.digest and not one.is_reordered(same)
    assert one.is_reordered(other) and not one.is_reordered(load_platform("cpu"))
    store.put_platform(one)
    store.put_platform(same)
    store.put_platform(other)
    kept = store.platform("toy")
    assert kept is not None and kept.digest == one.digest and kept.text == same.text


def test_a_platform_whose_space_changed_is_refused(store: Store) -> None:
    platform = load_platform("gpu-kernels")
    store.put_platform(platform)
    op = Op(platform.ops[0], 1)
    value = next(iter(platform.default(op).values()))
    changed = platform.text.replace(str(value), "another_kernel")
    with pytest.raises(StoreError, match="differs"):
        store.put_platform(parse_platform(changed))
    commented = parse_platform(platform.text + "\n# a comment changes nothing\n")
    store.put_platform(commented)


def grown(version: str, tiles: list[int], *, extends: str = "", more: str = "") -> Platform:
    """A platform whose space grows from version to version."""
    return parse_platform(
        "\n".join(
            [
                f'name = "toy"\nversion = "{version}"\ntitle = "t"\n{extends}',
                f'[[space]]\nkernels = ["spmm"]\n{more}\n[space.params]',
                f'tile = {{ type = "int", values = {tiles} }}\n[space.default]\ntile = {tiles[0]}',
            ]
        )
    )


def test_a_version_that_extends_the_stored_one_replaces_it(store: Store) -> None:
    first, second = grown("1", [8, 16]), grown("2", [8, 16, 32], extends='extends = ["1"]')
    store.put_platform(first)
    ran = make_run(platform="toy", config=Config({"tile": 16}))
    store.append([ran])
    with pytest.raises(StoreError, match="differs") as refused:
        store.put_platform(grown("2", [8, 16, 32]))
    assert 'extends = ["1"]' in str(refused.value.hint)
    generation = store.generation
    assert store.put_platform(second) == [] and store.platform("toy") == second
    assert store.generation > generation and [r.id for r in store.runs("toy", SPMM)] == [ran.id]
    # Who still has the earlier file may go on with it; the later one stays.
    assert store.put_platform(first) == [] and store.platform("toy") == second
    assert store.take_platform(first) is None and store.platform("toy") == second


def test_a_later_version_that_forbids_a_stored_run_is_refused(store: Store) -> None:
    store.put_platform(grown("1", [8, 16]))
    store.append([make_run(platform="toy", config=Config({"tile": 16}))])
    for tiles, more in (([8, 32], ""), ([8, 16, 32], 'constraints = ["tile != 16"]')):
        later = grown("2", tiles, extends='extends = ["1"]', more=more)
        with pytest.raises(StoreError, match="toy: version 2 forbids tile=16 of spmm:32: "):
            store.put_platform(later)
    assert store.platform("toy") == grown("1", [8, 16])


def test_a_later_version_that_forbids_a_withdrawn_run_is_refused(store: Store) -> None:
    store.put_platform(grown("1", [8, 16]))
    store.append([make_run(platform="toy", config=Config({"tile": 16}))])
    store.withdrawn.withdraw(RunSelection(platform="toy"))
    assert store.partitions() == []
    with pytest.raises(StoreError, match="version 2 forbids tile=16"):
        store.put_platform(grown("2", [8, 32], extends='extends = ["1"]'))


def test_a_later_version_without_a_kernel_that_ran_is_refused(store: Store) -> None:
    store.put_platform(grown("1", [8, 16]))
    store.append([make_run(platform="toy", config=Config({"tile": 16}))])
    text = grown("2", [8, 16], extends='extends = ["1"]').text.replace('"spmm"', '"sddmm"')
    with pytest.raises(StoreError, match="version 2 has no spmm"):
        store.put_platform(parse_platform(text))


def test_a_version_cannot_extend_itself(store: Store) -> None:
    store.put_platform(grown("1", [8, 16]))
    with pytest.raises(StoreError, match="differs"):
        store.put_platform(grown("1", [8, 16, 32], extends='extends = ["1"]'))


def test_an_import_replaces_an_earlier_version_of_a_built_in_file_alone(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = grown("1", [8, 16]), grown("2", [8, 16, 32], extends='extends = ["1"]')
    store.put_platform(first)
    against = store.take_platform(second)
    assert against is not None and against.refused and "its file first" in against.reason
    assert store.platform("toy") == first
    monkeypatch.setattr("embeddb.store.store.is_builtin", second.__eq__)
    assert store.take_platform(second) is None and store.platform("toy") == second


# -- the whole -----------------------------------------------------------------------------


def test_reopening_keeps_everything(tmp_path: Path) -> None:
    store = open_store(tmp_path / "db", create=True)
    store.append([make_run(p, v) for p in range(3) for v in range(3)])
    before = all_runs(store), store.generation, store.partitions()
    store.close()
    for readonly in (True, False):
        again = open_store(tmp_path / "db", readonly=readonly)
        assert (all_runs(again), again.generation, again.partitions()) == before
        again.close()


@pytest.mark.slow
def test_threads_read_while_another_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a map that grows under the readers."""
    monkeypatch.setattr("embeddb.store.lmdb_files._FIRST_MAP", 1 << 17)
    store = open_store(tmp_path / "db", create=True)
    store.append([make_run(0)])
    failures: list[BaseException] = []
    done = threading.Event()

    def read() -> None:
        try:
            while not done.wait(0.002):  # the writer has its turns on a busy machine, too
                assert sum(1 for _ in store.runs("cpu", SPMM)) % 200 == 1
        except (AssertionError, StoreError) as e:  # reported by the test's own thread
            failures.append(e)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for batch in range(10):
        store.append([make_run(batch % 3, 1000 * batch + v + 1) for v in range(200)])
        time.sleep(0.01)
    done.set()
    for reader in readers:
        reader.join(30)
    assert failures == []
    assert store.count_runs() == 2001
    assert store.size_bytes() > 1 << 18
    store.close()


_PLACES = st.sampled_from([*IDS, *STUBS])
_RUNS = st.lists(
    st.builds(
        make_run, _PLACES, st.integers(0, 5), op=st.sampled_from([SPMM, SPMV]),
        platform=st.sampled_from(["cpu", "gpu@a"]), campaign=st.sampled_from(["", "c"]),
    ),
    max_size=8,
)  # fmt: skip


Kept = tuple[str, Op, str, Config, tuple[float, ...], str]


class SameAnswers(RuleBasedStateMachine):
    """Any sequence of calls gives the same answers from both engines, and loses no run."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="embeddb-store-"))
        self.stores = [memory_store(), open_store(self.folder / "db", create=True)]
        self.told: set[Kept] = set()
        self.aliases: dict[str, str] = {}

    def both(self, call: object) -> object:
        answers = []
        for store in self.stores:
            try:
                answers.append(call(store))  # type: ignore[operator]  # a function of a store
            except (NothingFound, UsageError) as e:
                answers.append(type(e))
        assert answers[0] == answers[1]
        return answers[0]

    @rule(runs=_RUNS)
    def append(self, runs: list[Run]) -> None:
        infos = [WorkloadInfo(id=r.pattern_id, stub=r.pattern_id in STUBS) for r in runs]
        before = len(self.told)
        self.told |= {self._as_kept(run) for run in runs}
        result = self.both(lambda store: store.append(runs, patterns=infos))
        assert result == AppendResult(len(self.told) - before, len(runs) - len(self.told) + before)

    def _as_kept(self, run: Run) -> Kept:
        place = self.aliases.get(run.pattern_id, run.pattern_id)
        return place, run.op, run.platform, run.config, run.measurement.times_s, run.campaign

    @rule(stub=st.sampled_from(STUBS), real=st.sampled_from(IDS))
    def adopt(self, stub: str, real: str) -> None:
        moved = self.both(lambda store: store.adopt(stub, WorkloadInfo(id=real, name="real")))
        if isinstance(moved, int):
            self.aliases[stub] = real
            self.told = {(self.aliases.get(t[0], t[0]), *t[1:]) for t in self.told}

    @rule(place=_PLACES, name=st.sampled_from(["", "n", "m"]))
    def describe(self, place: str, name: str) -> None:
        self.both(lambda store: store.put_patterns([WorkloadInfo(id=place, name=name)]))
        self.both(lambda store: [info.id for info in store.find("n")])

    @rule(place=_PLACES)
    def embed(self, place: str) -> None:
        self.both(lambda s: s.vectors.put("f", "1", {place: np.ones(3, np.float32)}))

    @rule()
    def reopen(self) -> None:
        self.stores[1].close()
        self.stores[1] = open_store(self.folder / "db")

    @invariant()
    def same(self) -> None:
        found = self.both(all_runs)
        assert isinstance(found, dict)
        kept = [self._as_kept(run) for runs in found.values() for run in runs]
        assert len(kept) == len(self.told)
        assert set(kept) == self.told
        self.both(lambda store: (store.generation, store.partitions(), store.counts()))
        self.both(lambda store: [store.members(p) for p in store.partitions()])
        self.both(lambda store: list(store.patterns()))
        self.both(lambda store: list(store.vectors.get("f", "1", [*IDS, *STUBS])))

    def teardown(self) -> None:
        for store in self.stores:
            assert store.problems() == []
            store.close()
        shutil.rmtree(self.folder)


TestSameAnswers = SameAnswers.TestCase
TestSameAnswers.settings = settings(
    max_examples=6,
    stateful_step_count=12,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
