"""What a campaign measures: the same every time, legal on every matrix, fair to every value."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from builders import CONFIGS, DEFAULT, OP, fill, patterns, sized, tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from embeddb.core.config import Config, Op
from embeddb.core.errors import InputError, UsageError
from embeddb.core.records import Measurement, Run
from embeddb.core.sizes import Sizes
from embeddb.database import Database
from embeddb.platforms.platform import Platform, load_platform
from indexer.campaign.folder import Campaign
from indexer.campaign.plan import (
    PLAN_VERSION,
    Matrix,
    Plan,
    PlanOptions,
    choose_configs,
    make_plan,
    read_plan,
    static_top,
    write_plan,
)

OPS = (OP, Op("spmm", 64))


def matrix(name: str, nnz: int, group: str = "", m: int = 1000) -> Matrix:
    return Matrix(f"{name}.mtx", name, group or name, m, m, nnz)


MATRICES = [matrix(f"m{at}", 1000 * (at + 1), f"g{at % 3}") for at in range(9)]


def planned(
    platform: Platform, *, matrices: list[Matrix] = MATRICES, top: Any = None, **options: Any
) -> Plan:
    return make_plan(platform, OPS, matrices, PlanOptions(**options), top=top)


def chosen(plan: Plan, at: int, op: Op = OP) -> list[Config]:
    table = plan.configs[str(op)]
    return [Config(table[i]) for i in plan.choices[str(op)][at].configs]


# -- choosing ----------------------------------------------------------------------------------


def test_a_plan_is_the_same_every_time() -> None:
    cpu = load_platform("waco-cpu")
    plan = planned(cpu, configs=20, shared=5, seed=3)
    assert plan == planned(cpu, configs=20, shared=5, seed=3)
    others = [planned(cpu, configs=20, shared=5, seed=4), planned(cpu, configs=20, seed=3)]
    assert len({plan.id, *(p.id for p in others)}) == 3
    default = cpu.default(OP, Sizes(m=1000, n=1000))
    assert all(chosen(plan, at)[0] == default for at in range(len(MATRICES)))


def test_a_plan_needs_something_to_measure() -> None:
    with pytest.raises(UsageError, match="no matrix"):
        planned(tiny(), matrices=[], configs=4)
    with pytest.raises(UsageError, match="no matrix"):
        planned(tiny(), configs=4, max_work=10)
    for changes in ({"rounds": 0}, {"configs": 1}):
        with pytest.raises(UsageError, match="at least"):
            PlanOptions(**changes)
    for share in (0.0, -1.0, 1.1, float("nan")):
        with pytest.raises(UsageError, match="share"):
            PlanOptions(repeat_share=share)
    with pytest.raises(UsageError, match="no sddmm"):
        make_plan(tiny(), [Op("sddmm", 8)], MATRICES, PlanOptions(configs=4))


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 60), st.integers(0, 99), st.sampled_from(["spade", "waco-cpu"]))
def test_chosen_configurations(count: int, seed: int, name: str) -> None:
    platform = load_platform(name)
    space, default = platform.space(OP), platform.default(OP)
    found = choose_configs(space, default, count, rng=np.random.default_rng(seed))
    assert found[0] == default and len(found) == len(set(found)) == count
    assert all(space.reason(config) is None for config in found)
    assert found == choose_configs(space, default, count, rng=np.random.default_rng(seed))


def test_a_small_space_is_chosen_whole() -> None:
    rng = np.random.default_rng(0)
    found = choose_configs(sized().space(OP), sized().default(OP), 50, rng=rng)
    assert len(found) == 9


def test_every_matrix_has_a_sample_of_its_own() -> None:
    platform = load_platform("waco-cpu")
    plan = planned(platform, configs=30)
    samples = [frozenset(chosen(plan, at)) for at in range(len(MATRICES))]
    assert all(len(sample) == 30 for sample in samples) and len(set(samples)) == len(samples)
    assert len(plan.configs[str(OP)]) > 150
    for at, m in enumerate(MATRICES):
        space = platform.space(OP, m.sizes)
        assert all(space.reason(c) is None and space.canonical(c) == c for c in samples[at])
    # it does not change with the company a matrix is in
    alone = planned(platform, matrices=MATRICES[4:5], configs=30)
    assert chosen(alone, 0) == chosen(plan, 4)


def test_every_value_has_a_fair_chance() -> None:
    platform = load_platform("spade")
    many = [matrix(f"x{at}", 500) for at in range(30)]
    plan = planned(platform, matrices=many, configs=20)
    drawn = [c for at in range(30) for c in chosen(plan, at)[1:]]
    for param in platform.space(OP).params:
        seen = Counter(c[param.name] for c in drawn if param.name in c)
        fair = sum(seen.values()) / len(seen)
        assert len(seen) == len(platform.space(OP, Sizes(m=1000, n=1000)).domain(param))
        assert all(0.4 * fair < count < 2.5 * fair for count in seen.values()), param.name


def test_shared_configurations_are_on_every_matrix() -> None:
    plan = planned(load_platform("waco-cpu"), configs=30, shared=10)
    common = set.intersection(*(set(chosen(plan, at)) for at in range(len(MATRICES))))
    assert 10 <= len(common) <= 12
    plan = planned(load_platform("spade"), configs=30, shared=30, sampled=False)
    assert len({tuple(c.configs) for c in plan.choices[str(OP)]}) == 1
    assert len(plan.configs[str(OP)]) == 30


def test_what_is_not_legal_on_a_matrix_is_not_planned_there() -> None:
    tops = {str(OP): [Config({"rows": 256, "cols": 8}), Config({"rows": 16, "cols": 64})]}
    few, small, large = (matrix(n, 100, m=m) for n, m in (("few", 10), ("small", 64), ("l", 999)))
    plan = planned(sized(), matrices=[few, small, large], configs=50, shared=9, top=tops)
    assert [c.pinned for c in plan.choices[str(OP)]] == [1, 2, 3]
    assert [c.pinned for c in plan.choices["spmm:64"]] == [1, 1, 1]
    # at 64 columns the symbol and the number are one choice, and so one configuration
    assert [len(chosen(plan, at)) for at in range(3)] == [3, 4, 9]


# -- the static top ----------------------------------------------------------------------------


def test_the_static_top_is_what_serves_most_patterns() -> None:
    db = fill(Database.in_memory(), tiny(), patterns(2), indexed=False)
    top = static_top(db.index, tiny(), OP, 2)
    assert len(top) == 2 and set(top) < set(CONFIGS)
    assert set(static_top(db.index, tiny(), OP, 10)) == set(CONFIGS)
    assert (
        static_top(db.index, tiny(), OP, 0) == static_top(db.index, tiny(), Op("spmm", 64), 3) == []
    )
    plan = planned(tiny(), configs=3, top={str(OP): top})
    assert chosen(plan, 0)[: plan.choices[str(OP)][0].pinned] == list(
        dict.fromkeys([DEFAULT, *top])
    )


def test_what_is_no_longer_in_the_space_is_not_on_top() -> None:
    db = fill(Database.in_memory(), tiny(), patterns(2), indexed=False)
    pattern = patterns(1)[0]
    old = Config({"variant": "gone"})
    db.store.append([Run(pattern.id, OP, "tiny", old, Measurement(times_s=(1e-12,)))])
    assert old not in static_top(db.index, tiny(), OP, 10)


# -- grid and limits ---------------------------------------------------------------------------


def test_the_grid_is_every_legal_configuration() -> None:
    plan = planned(sized(), configs=3, grid=4, grid_op=str(OP))
    assert len(plan.grid) == 4 and plan.grid_op == str(OP)
    for at, m in enumerate(MATRICES):
        whole = set(sized().space(OP, m.sizes).enumerate())
        assert (set(chosen(plan, at)) == whole) == (at in plan.grid)
        assert len(chosen(plan, at, OPS[1])) == 3


def test_the_grid_is_spread_over_families_and_sizes() -> None:
    few = set()
    for seed in range(10):
        plan = planned(tiny(), configs=2, grid=6, grid_op=str(OP), seed=seed)
        groups = Counter(MATRICES[at].group for at in plan.grid)
        assert set(groups.values()) == {2}
        sizes = [MATRICES[at].nnz for at in plan.grid]
        assert max(sizes) / min(sizes) >= 4
        few.add(tuple(planned(tiny(), configs=2, grid=2, grid_op=str(OP), seed=seed).grid))
    assert len(few) > 1
    whole = planned(tiny(), configs=2, grid=99, grid_op=str(OP))
    assert whole.grid == list(range(len(MATRICES)))


def test_a_grid_must_be_possible() -> None:
    with pytest.raises(UsageError, match="planned operations"):
        planned(tiny(), configs=2, grid=1, grid_op="spmv")
    with pytest.raises(UsageError, match="a grid may have"):
        planned(load_platform("waco-cpu"), configs=2, grid=1, grid_op=str(OP))


def test_pairs_with_too_much_work_are_left_out(tmp_path: Path) -> None:
    plan = planned(tiny(), configs=2, max_work=32 * 4000, grid=9, grid_op=str(OP))
    assert plan.left_out() == [(f"m{at}", str(OP)) for at in range(4, 9)] + [
        (f"m{at}", "spmm:64") for at in range(2, 9)
    ]
    assert plan.grid == [0, 1, 2, 3]
    campaign = Campaign.create(tmp_path / "camp", plan)
    assert {(t.matrix, t.op) for t in campaign.tasks()} == {
        *((at, str(OP)) for at in range(4)),
        *((at, "spmm:64") for at in range(2)),
    }


# -- the file ----------------------------------------------------------------------------------


def test_the_file_is_small_and_reads_back(tmp_path: Path) -> None:
    plan = planned(load_platform("waco-cpu"), configs=30, shared=5, grid_op="")
    file = tmp_path / "plan.json"
    file.write_bytes(write_plan(plan))
    assert read_plan(file) == plan and read_plan(file).id == plan.id
    text = file.read_text()
    assert json.loads(text)["version"] == PLAN_VERSION
    rows = len(plan.matrices) + 2 * len(plan.matrices) + sum(map(len, plan.configs.values()))
    assert rows < len(text.splitlines()) < rows + 40
    again = planned(load_platform("waco-cpu"), configs=2, matrices=MATRICES[:1])
    assert read_back(tmp_path, write_plan(again)) == again


def read_back(tmp_path: Path, raw: bytes) -> Plan:
    (tmp_path / "plan.json").write_bytes(raw)
    return read_plan(tmp_path / "plan.json")


def test_no_campaign_and_another_version(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no campaign there"):
        Campaign(tmp_path)
    for raw in (b'{"platform": 3}', b'{"version": 1}', b'{"version": 99, "new": 1}'):
        with pytest.raises(InputError, match="a plan of version") as e:
            read_back(tmp_path, raw)
        assert "plan the campaign anew" in e.value.hint and "\n" not in str(e.value)
    for raw in (b"", b"[]", b'{"version": "x"}', b'{"version": 2, "platform": 3}'):
        with pytest.raises(InputError, match="not a plan"):
            read_back(tmp_path, raw)


@pytest.mark.parametrize(
    "change",
    [
        {"ops": ["spmm:32", "../../x"]},
        {"ops": ["SPMM:32"]},
        {"ops": ["spmm:32", "spmm:32"]},
        {"ops": ["spmm:128"]},
        {"rounds": 0},
        {"rounds": 10**9},
        {"repeat_share": 0.0},
        {"seed": -1},
        {"configs": {"spmm:32": [{"a b": 1}]}},
        {"configs": {}},
        {"choices": {}},
        {"choices": {"spmm:32": [[1, [0]]]}},
        {"choices": {"spmm:32": [[1, [99]]] * 9, "spmm:64": [[1, [0]]] * 9}},
        {"choices": {"spmm:32": [[1, [-1]]] * 9, "spmm:64": [[1, [0]]] * 9}},
        {"choices": {"spmm:32": [[1, [0, 0]]] * 9, "spmm:64": [[1, [0]]] * 9}},
        {"choices": {"spmm:32": [[3, [0]]] * 9, "spmm:64": [[1, [0]]] * 9}},
    ],
    ids=str,
)
def test_a_plan_that_does_not_fit_together(tmp_path: Path, change: dict[str, Any]) -> None:
    body = msgspec.to_builtins(planned(tiny(), configs=3)) | change
    with pytest.raises(InputError, match="not a plan"):
        read_back(tmp_path, msgspec.json.encode(body))


def test_planning_hundreds_of_matrices_is_quick() -> None:
    """No figure, only that nothing is quadratic: the samples of equal spaces share their work."""
    many = [matrix(f"x{at}", 500 + at, f"g{at % 40}", m=500 + at) for at in range(260)]
    plan = planned(load_platform("spade"), matrices=many, configs=60, grid=20, grid_op=str(OP))
    assert len(write_plan(plan)) < 300_000
