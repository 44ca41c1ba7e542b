"""Configuration encoders: the mapper, raw layouts, latent encoders, vectors across platforms."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embeddb.core.config import Config, Op
from embeddb.core.errors import MissingDependency, ModelError, SpaceError, UsageError
from embeddb.core.kinds import operation_of
from embeddb.core.sizes import Sizes
from embeddb.cost_model.encoders import nearest as vectors
from embeddb.cost_model.encoders.latent import (
    KINDS,
    LATENT_DIM,
    LatentEncoder,
    forward,
    from_tensors,
    space_rows,
)
from embeddb.cost_model.encoders.loop_nest import HOMOGENEOUS_DIM, homogeneous
from embeddb.cost_model.encoders.nearest import Nearest, nearest_configs, nest_distances
from embeddb.cost_model.encoders.own_parameters import Layout
from embeddb.platforms.loopnest import LOOPS
from embeddb.platforms.platform import Platform, builtin_platforms, load_platform, parse_platform
from indexer.training.cost_model.latent_fit import fit

SIZES = (50_000, 20_000, 1_000_000)

#: Everything a user may declare at once: symbols, conditions, permutations in and out of the
#: loop nest, negative and constant values, and two kernels with nothing of their own to choose.
MINE = """
name = "mine"
version = "1"
title = "A user's platform"

[[space]]
kernels = ["spmm"]
constraints = ["tile <= NUM_MATRIX_COLS or tile == 16"]
heterogeneous = ["walk", "depth", "cores", "share", "pin", "mode", "gain"]

[space.params]
tile = { type = "int", values = [16, 256, "NUM_MATRIX_COLS"] }
nest = { type = "permutation", values = ["r", "c", "d"] }
walk = { type = "permutation", values = ["north", "east", "up"] }
depth = { type = "int", values = [1, 4, "NUM_MATRIX_ROWS"] }
cores = { type = "int", values = [48] }
share = { type = "bool" }
pin = { type = "int", values = [2, 8, 32], when = "share == 1" }
mode = { type = "choice", values = ["one"] }
gain = { type = "int", values = [-3, 0, 3] }

[space.default]
tile = 16
nest = ["r", "c", "d"]
walk = ["north", "east", "up"]
depth = 1
cores = 48
share = 0
mode = "one"
gain = 0

[space.loopnest]
J = "tile"
order = "nest"
[space.loopnest.loops]
r = "i2"
c = "j2"
d = "k2"

[[space]]
kernels = ["spmv"]
heterogeneous = []
[space.params]
rows = { type = "int", values = [8] }
[space.default]
rows = 8
[space.loopnest]
I = "rows"
order = ["i2", "j2", "i1"]

[[space]]
kernels = ["sddmm"]
[space.params]
mode = { type = "choice", values = ["only"] }
[space.default]
mode = "only"
"""
MY_PLATFORM = parse_platform(MINE)


def nearest_legal(*of: Any, **sizes: Any) -> list[Nearest]:
    """Of each configuration the nearest alone."""
    return [ranked[0] for ranked in nearest_configs(*of, **sizes)]


def op_of(kernel: str) -> Op:
    return Op.parse(operation_of(kernel)[0].example())


#: Every kernel on matrices of every platform; the user's comes first.
CASES = [
    (platform, op_of(kernel))
    for platform in (MY_PLATFORM, *map(load_platform, builtin_platforms()))
    for kernel in platform.ops
    if op_of(kernel).kind == "matrix"
]
EACH = pytest.mark.parametrize(("platform", "op"), CASES, ids=[f"{p.name}-{op}" for p, op in CASES])


def drawn(platform: Platform, op: Op, count: int = 60, seed: int = 0) -> list[Config]:
    m, n, nnz = SIZES
    space = platform.space(op, Sizes(m, n, nnz))
    return space.sample(count, rng=np.random.default_rng(seed))


def rows_of(platform: Platform, op: Op) -> np.ndarray:
    return space_rows(platform, op, rng=np.random.default_rng(0))


# --- mapper --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("barrier", "order"), [(0, (6, 7, 2, 4, 1, 3, 5)), (1, (6, 7, 4, 2, 1, 3, 5))]
)
def test_worked_example_of_cognate_appendix_e(barrier: int, order: tuple[int, ...]) -> None:
    """row_panels, column_panels, split, barrier, bypass, reorder = 4, 1024, 1, 0, 0, 0 becomes
    i_split, j_split, k_split = 4, 1024, 32 and loops 6, 7, 2, 4, 1, 3, 5."""
    spade, op = load_platform("spade"), Op("spmm", 32)
    row = {"row_panels": 4, "column_panels": 1024, "split": 1}
    row |= {"barrier": barrier, "bypass": 0, "reorder": 0}
    found = homogeneous(spade, op, [spade.space(op).canonical(row)])
    assert found.shape == (1, HOMOGENEOUS_DIM)
    assert found.dtype == np.float32
    expected = np.zeros(HOMOGENEOUS_DIM)
    expected[:4] = 2, 10, 5, 0  # log2 of 4, 1024, 32, and no second split of k
    for position, loop in enumerate(order):
        expected[4 + 7 * position + loop - 1] = 1
    assert found[0].tolist() == expected.tolist()


@EACH
def test_the_mapper_gives_what_one_nest_at_a_time_gives(platform: Platform, op: Op) -> None:
    configs = drawn(platform, op)
    found = homogeneous(platform, op, configs, sizes=SIZES)
    for row, config in zip(found, configs, strict=True):
        nest = platform.loopnest(op, config, Sizes(*SIZES))
        expected = np.zeros(HOMOGENEOUS_DIM) if nest is None else nest.vector()
        assert row.tolist() == expected.tolist()


def test_a_symbol_is_resolved_for_each_matrix() -> None:
    spade, op = load_platform("spade"), Op("spmm", 128)
    default = spade.default(op)
    other = default.replace(column_panels=1024)
    wide = homogeneous(spade, op, [default, other], sizes=(10, 1 << 20, 5))
    narrow = homogeneous(spade, op, [default, other], sizes=(10, 1 << 12, 5))
    assert (wide[:, 1].tolist(), narrow[:, 1].tolist()) == ([20, 10], [12, 10])
    with pytest.raises(SpaceError, match="column_panels"):
        homogeneous(spade, op, [default])
    assert homogeneous(spade, op, [other])[0, 1] == 10


def test_the_mapper_is_fast() -> None:
    cpu, op = load_platform("cpu"), Op("spmm", 128)
    configs = drawn(cpu, op, 500)
    homogeneous(cpu, op, configs, sizes=SIZES)
    times = []
    for n in range(1000, 1010):
        start = time.perf_counter()
        homogeneous(cpu, op, configs, sizes=(n, n, n))
        times.append(time.perf_counter() - start)
    assert len(configs) == 500
    assert min(times) < 10e-3  # 0.5 ms on an idle core


def test_what_the_mapper_gives_may_be_changed_without_harm() -> None:
    spade, op = load_platform("spade"), Op("spmm", 128)
    config = spade.default(op).replace(column_panels=1024)
    first = homogeneous(spade, op, [config])
    first[:] = 7
    assert homogeneous(spade, op, [config])[0, 1] == 10
    assert homogeneous(spade, op, []).shape == (0, HOMOGENEOUS_DIM)


# --- layout --------------------------------------------------------------------------------


@EACH
def test_raw_rows_tell_own_parameters_apart_and_nothing_else(platform: Platform, op: Op) -> None:
    layout = Layout(platform.kernel(op))
    configs = drawn(platform, op, 200)
    raw = layout.raw(configs)
    assert raw.shape == (len(configs), layout.width)
    assert raw.dtype == np.float32
    assert len(set(layout.names)) == layout.width
    assert raw.size == 0 or (raw.min() >= 0 and raw.max() <= 1)
    own = [tuple(c.get(name) for name in platform.kernel(op).heterogeneous) for c in configs]
    rows: dict[bytes, tuple[object, ...]] = {}
    for row, values in zip(raw, own, strict=True):
        assert rows.setdefault(row.tobytes(), values) == values
    assert len(rows) == len(set(own))


def test_the_columns_of_each_kind_of_parameter() -> None:
    op = Op("spmm", 128)
    layout = Layout(MY_PLATFORM.kernel(op))
    walk = [f"walk[{i}]={item}" for i in range(3) for item in ("north", "east", "up")]
    own = ["depth", "depth=NUM_MATRIX_ROWS", "share=0", "share=1", "pin?", "pin", "gain"]
    assert list(layout.names) == walk + own
    start = MY_PLATFORM.default(op)
    config = start.replace(walk=("up", "north", "east"), depth="NUM_MATRIX_ROWS", gain=3)
    first, second = layout.raw([start, config.replace(share=1, pin=32)])
    assert first.tolist() == [1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0.5]
    assert second.tolist() == [0, 0, 1, 1, 0, 0, 0, 1, 0, 1, 1, 0, 1, 1, 1, 1]
    pins = layout.raw([config.replace(share=1, pin=v) for v in (2, 8, 32)])[:, -2]
    assert np.allclose(pins, (np.log2([3, 9, 33]) - np.log2(3)) / np.log2(11))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"share": 2}, "'share': 2 is not one of 0, 1"),
        ({"walk": ("up", "down", "east")}, "'walk': .* is not one of"),
        ({"gain": "much"}, "'gain': much is not one of"),
    ],
)
def test_a_value_that_cannot_be_is_named(change: dict[str, object], match: str) -> None:
    op = Op("spmm", 128)
    config = MY_PLATFORM.default(op).replace(**change)
    with pytest.raises(SpaceError, match=match):
        Layout(MY_PLATFORM.kernel(op)).raw([config])
    with pytest.raises(SpaceError, match="'walk' is missing"):
        Layout(MY_PLATFORM.kernel(op)).raw([Config({})])


def test_nothing_of_its_own_is_no_column() -> None:
    for kernel in ("spmv", "sddmm"):
        op = op_of(kernel)
        layout = Layout(MY_PLATFORM.kernel(op))
        assert (layout.names, layout.raw([MY_PLATFORM.default(op)]).shape) == ((), (1, 0))
        assert rows_of(MY_PLATFORM, op).shape == (1, 0)


# --- latent encoders -----------------------------------------------------------------------


def lost(encoder: LatentEncoder, rows: np.ndarray) -> float:
    """Mean squared error of rows that are rebuilt from their latents by a linear map."""
    z = np.column_stack([encoder.encode(rows), np.ones(len(rows))]).astype(np.float64)
    rebuilt = z @ np.linalg.lstsq(z, rows.astype(np.float64))[0]
    return float(((rebuilt - rows) ** 2).mean()) if rows.size else 0.0


@EACH
def test_every_platform_has_a_latent_encoder_without_loss(platform: Platform, op: Op) -> None:
    """All spaces here have at most 64 columns, so distances are kept up to one factor."""
    kind, rows = "pca", rows_of(platform, op)
    encoder = fit(kind, rows, seed=0)
    z = encoder.encode(rows)
    assert (z.shape, z.dtype) == ((len(rows), LATENT_DIM), np.float32)
    assert np.isfinite(z).all()
    assert lost(encoder, rows) < 1e-10
    raw_apart = np.linalg.norm(rows[:40, None] - rows[None, :40], axis=2)
    apart = np.linalg.norm(z[:40, None] - z[None, :40], axis=2)
    factor = apart.max() / raw_apart.max() if raw_apart.max() else 1.0
    assert np.allclose(apart, factor * raw_apart, atol=1e-3 * factor)
    if len(rows) > 1:
        assert np.allclose([z.mean(), np.sqrt((z**2).mean())], [0, 1], atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kernel", ["spmm", "spmv"])
def test_tensors_give_the_same_encoder(
    kernel: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of SPADE's 8 rows, and of a platform with nothing of its own (no torch needed)."""
    platform = load_platform("spade") if kernel == "spmm" else MY_PLATFORM
    if kind in ("ae", "vae") and kernel == "spmm":
        pytest.importorskip("torch")
        monkeypatch.setattr("indexer.training.cost_model.latent_autoencoder.EPOCHS", 5)
    rows = rows_of(platform, op_of(kernel))
    encoder = fit(kind, rows, seed=0)
    again = from_tensors(kind, encoder.to_tensors())
    assert again.dim == LATENT_DIM
    assert again.encode(rows).tobytes() == encoder.encode(rows).tobytes()


@pytest.mark.parametrize(("kind", "most"), [("ae", 1e-3), ("vae", 2e-2)])
def test_autoencoders_rebuild_rows_and_depend_on_the_seed_only(
    kind: str, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    from indexer.training.cost_model.latent_autoencoder import train

    monkeypatch.setattr("indexer.training.cost_model.latent_autoencoder.EPOCHS", 250)
    rows = rows_of(load_platform("spade"), Op("spmm", 128))
    state, threads = torch.random.get_rng_state(), torch.get_num_threads()
    first, second = fit(kind, rows, seed=1), fit(kind, np.vstack([rows[::-1], rows]), seed=1)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    both = train(rows, LATENT_DIM, seed=1, variational=kind == "vae")
    assert np.mean((forward(both[1], forward(both[0], rows)) - rows) ** 2) < most
    assert first.encode(rows).tobytes() == second.encode(rows).tobytes()
    assert first.encode(rows).tobytes() != fit(kind, rows, seed=2).encode(rows).tobytes()
    z = first.encode(rows)
    assert np.allclose([z.mean(), np.sqrt((z**2).mean())], [0, 1], atol=1e-3)
    apart = np.linalg.norm(z[:, None] - z[None], axis=2) + 100 * np.eye(len(z))
    assert apart.min() > 0.1  # no two configurations share a latent


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["spmm", "sddmm", "spmv"])
def test_an_autoencoder_of_the_cpu(kernel: str) -> None:
    pytest.importorskip("torch")
    rows = rows_of(load_platform("cpu"), op_of(kernel))
    assert lost(fit("ae", rows, seed=0), rows) < 5e-3


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 80).flatmap(
        lambda h: st.lists(
            st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=h, max_size=h),
            min_size=1,
            max_size=9,
        )
    )
)
def test_any_table_of_rows_has_principal_components(table: list[list[float]]) -> None:
    rows = np.array(table, dtype=np.float32)
    encoder = fit("pca", rows, seed=0)
    z = encoder.encode(rows)
    assert z.shape == (len(rows), LATENT_DIM)
    assert np.isfinite(z).all()
    assert lost(encoder, rows) < 1e-8  # fewer than 64 rows: nothing is lost
    assert np.abs(z[:, len(np.unique(rows, axis=0)) :]).max(initial=0) < 1e-2


def test_more_columns_than_latents_lose_the_least() -> None:
    rows = (np.random.default_rng(0).random((300, 100)) < 0.5).astype(np.float32)
    error = lost(fit("pca", rows, seed=0), rows)
    assert 0 < error < rows.var() * 36 / 100


def test_bad_input_to_a_fit_is_one_line() -> None:
    rows = np.zeros((3, 2), dtype=np.float32)
    for kind, bad, match in (
        ("gan", rows, "no latent encoder 'gan'"),
        ("pca", rows[:0], "at least one configuration"),
        ("pca", rows + np.nan, "not finite"),
    ):
        with pytest.raises(UsageError, match=match):
            fit(kind, bad, seed=0)
    with pytest.raises(UsageError, match="reads 2 numbers per configuration"):
        fit("pca", rows, seed=0).encode(np.zeros((3, 5), dtype=np.float32))


def test_tensors_that_are_no_encoder_are_refused() -> None:
    rows = np.eye(4, dtype=np.float32)
    good = fit("pca", rows, seed=0).to_tensors()
    short = {k: v[:-1] if k == "encoder.0.bias" else v for k, v in good.items()}
    nan = {k: v * np.nan if k == "encoder.0.weight" else v for k, v in good.items()}
    wide = {k: np.pad(v, [(0, 0)] * (v.ndim - 1) + [(0, 1)]) for k, v in good.items()}
    for kind, tensors, match in (
        ("gan", good, "kinds are"),
        ("pca", {}, "encoder.0.weight is missing"),
        ("pca", {**good, "extra": rows}, "belong to no layer"),
        ("pca", {k: v.astype(np.float64) for k, v in good.items()}, "not finite float32"),
        ("pca", short, "not a weight with its bias"),
        ("pca", nan, "not finite"),
        ("pca", wide, "gives 65 numbers, not 64"),
    ):
        with pytest.raises(ModelError, match=match):
            from_tensors(kind, tensors)


def test_a_decoder_in_an_earlier_versions_file_is_not_read() -> None:
    rows = np.eye(4, dtype=np.float32)
    encoder = fit("pca", rows, seed=0)
    decoder = {"decoder.0.weight": rows, "decoder.0.bias": rows[0]}
    again = from_tensors("pca", {**encoder.to_tensors(), **decoder})
    assert again.encode(rows).tobytes() == encoder.encode(rows).tobytes()
    assert again.to_tensors().keys() == encoder.to_tensors().keys()


def test_torch_is_needed_only_to_train(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.eye(3, dtype=np.float32)
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(
        sys.modules, "indexer.training.cost_model.latent_autoencoder", raising=False
    )
    monkeypatch.delattr("indexer.training.cost_model.latent_autoencoder", raising=False)
    with pytest.raises(MissingDependency, match="torch") as caught:
        fit("ae", rows, seed=0)
    assert "pca" in str(caught.value)
    assert fit("ae", rows[:1], seed=0).encode(rows[:1]).shape == (1, LATENT_DIM)
    code = (
        "import sys; import embeddb.cost_model.encoders.nearest; "
        "import embeddb.cost_model.encoders.latent; "
        "sys.exit(bool({'torch', 'numba', 'scipy', 'faiss'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def nest_row(splits: tuple[int, ...], names: str) -> np.ndarray:
    row = np.zeros(HOMOGENEOUS_DIM, dtype=np.float32)
    row[:4] = np.log2(splits)
    for position, name in enumerate(names.split()):
        row[4 + 7 * position + LOOPS.index(name)] = 1
    return row


def test_distances_of_nests_by_hand() -> None:
    base = nest_row((1, 1, 1, 1), "i2 i1 j2 j1 k2 k3 k1")
    moved = nest_row((1, 1, 1, 1), "k1 i2 i1 j2 j1 k2 k3")
    split = nest_row((1, 1 << 12, 1, 4), "i2 i1 j2 j1 k2 k3 k1")
    table = np.stack([base, moved, split])
    assert np.allclose(nest_distances(table, table)[0], [0, 6 / 21, 14 / 16])
    # 2^12 of 2^13 columns is one step from not split at all; larger is not split.
    assert np.allclose(nest_distances(table, table, (9, 1 << 13, 9))[0], [0, 6 / 21, 3 / 16])
    assert np.allclose(nest_distances(table, table, (9, 100, 9))[0], [0, 6 / 21, 2 / 16])


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([-1, 0, 1, 5, 1000, 10**6]))
def test_distances_of_nests_are_distances(seed: int, extent: int) -> None:
    rng = np.random.default_rng(seed)
    table = np.stack(
        [
            nest_row(tuple(2 ** rng.integers(0, 17, 4)), " ".join(rng.permutation(LOOPS)))
            for _ in range(6)
        ]
    )
    d = nest_distances(table, table, (extent, extent, extent))
    assert (d >= 0).all()
    assert np.allclose(d, d.T)
    assert np.allclose(np.diag(d), 0)
    assert (d[:, :, None] + d[None] >= d[:, None] - 1e-9).all()


@pytest.mark.parametrize("kernel", ["spmm", "sddmm", "spmv"])
def test_nearest_across_all_pairs_of_platforms_is_legal(kernel: str) -> None:
    op = op_of(kernel)
    m, n, nnz = SIZES
    platforms = [p for p, o in CASES if o == op]
    for source in platforms:
        configs = drawn(source, op, 3)
        for target in platforms:
            space = target.space(op, Sizes(m, n, nnz))
            for found in nearest_legal(target, source, op, configs, sizes=SIZES):
                assert space.reason(found.config) is None
                if target.kernel(op).mapping is None and source.name != target.name:
                    assert found.distance is None
                    assert found.config == target.default(op, Sizes(m, n, nnz))
            if source.name == target.name:
                same = nearest_legal(target, source, op, configs, sizes=SIZES)
                assert [f.config for f in same] == configs
                assert {f.distance for f in same} == {0.0}


def test_nearest_is_the_least_of_all_and_ties_go_to_the_default() -> None:
    cpu, spade, op = load_platform("cpu"), load_platform("spade"), Op("spmm", 128)
    m, n, nnz = SIZES
    configs = drawn(cpu, op, 40)
    legal = [*spade.space(op, Sizes(m, n, nnz)).enumerate()]
    nests = homogeneous(spade, op, legal, sizes=SIZES)
    apart = nest_distances(homogeneous(cpu, op, configs, sizes=SIZES), nests, (m, n, op.width))
    for row, found in zip(apart, nearest_legal(spade, cpu, op, configs, sizes=SIZES), strict=True):
        assert found.distance == row.min()
        assert (found.config["bypass"], found.config["reorder"]) == (0, 0)


def test_what_is_not_split_on_the_cpu_is_not_split_on_spade() -> None:
    cpu, spade, op = load_platform("cpu"), load_platform("spade"), Op("spmm", 128)
    tiled = Config.parse("order=i1k1i0jk0,format=csr,ktile=32,itile=256,unroll=1,threads=one")
    panels = Config.parse("order=j1ik1j0k0,format=dcsr,ktile=32,jtile=4096,threads=one")
    assert cpu.space(op, Sizes(m=SIZES[0], n=SIZES[1])).reason(tiled) is None
    assert cpu.space(op, Sizes(m=SIZES[0], n=SIZES[1])).reason(panels) is None
    first, second = nearest_legal(spade, cpu, op, [tiled, panels], sizes=(10**6, 10**6, 10**7))
    expected = {"row_panels": 256, "column_panels": "NUM_MATRIX_COLS", "split": 32, "barrier": 0}
    assert expected.items() <= first.config.items()
    # Column panels outermost is what the barrier does.
    assert second.config["barrier"] == 1
    assert second.config["column_panels"] in (1024, 16384)


@pytest.mark.parametrize(
    ("target", "share"), [("spade", 1.0), ("gpu-sparsetir", 1.0), ("cpu", 0.9)]
)
def test_search_of_a_large_space_finds_what_listing_finds(
    target: str, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One parameter at a time; where those of the nest exclude one another (cpu), not always."""
    source, goal, op = load_platform("waco-cpu"), load_platform(target), Op("spmm", 128)
    configs = drawn(source, op, 20)
    listed = nearest_legal(goal, source, op, configs, sizes=SIZES)
    monkeypatch.setattr(vectors, "_ENUMERATED", 0)
    searched = nearest_legal(goal, source, op, configs, sizes=SIZES)
    gaps = [(b.distance or 0) - (a.distance or 0) for a, b in zip(listed, searched, strict=True)]
    assert min(gaps) > -1e-6
    assert np.mean(np.array(gaps) < 1e-6) >= share
    assert np.mean(gaps) < 0.05


@pytest.mark.parametrize(("target", "source"), [("spade", "cpu"), ("waco-cpu", "spade")])
def test_parts_replaced_one_at_a_time_find_what_listing_finds(
    target: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    goal, other, op = load_platform(target), load_platform(source), Op("sddmm", 16)
    sizes = (300, 40, 900)
    m, n, nnz = sizes
    configs = drawn(other, op, 8)
    monkeypatch.setattr(vectors, "_ENUMERATED", 1 << 20)
    listed = nearest_configs(goal, other, op, configs, k=6, sizes=sizes)
    # Each independent part still fits, the product of them does not.
    monkeypatch.setattr(vectors, "_ENUMERATED", 40)
    searched = nearest_configs(goal, other, op, configs, k=6, sizes=sizes)
    space = goal.space(op, Sizes(m, n, nnz))
    for a, b in zip(listed, searched, strict=True):
        assert np.allclose([x.distance for x in a], [x.distance for x in b], atol=1e-6)
        assert all(space.reason(x.config) is None for x in b)
        assert a[0] == b[0] or a[0].distance == a[1].distance


def test_the_k_nearest_are_the_first_of_all_loop_nests() -> None:
    cpu, spade, op = load_platform("cpu"), load_platform("spade"), Op("spmm", 64)
    m, n, nnz = SIZES
    configs = drawn(cpu, op, 20)
    legal = [*spade.space(op, Sizes(m, n, nnz)).enumerate()]
    nests, extents = homogeneous(spade, op, legal, sizes=SIZES), (m, n, op.width)
    apart = nest_distances(homogeneous(cpu, op, configs, sizes=SIZES), nests, extents)
    within = nest_distances(nests, nests, extents) < 1e-6
    # One configuration for each nest that is another on this matrix: 65536 columns are all of it.
    first = np.array([row.argmax() == i for i, row in enumerate(within)])
    assert first.sum() == 4 * 3 * 2 * 2
    found = nearest_configs(spade, cpu, op, configs, k=7, sizes=SIZES)
    assert [f[:1] for f in found] == [
        [f] for f in nearest_legal(spade, cpu, op, configs, sizes=SIZES)
    ]
    for row, ranked in zip(apart, found, strict=True):
        distances = [near.distance for near in ranked]
        assert np.allclose(distances, np.sort(row[first])[:7])
        assert {(near.config["bypass"], near.config["reorder"]) for near in ranked} == {(0, 0)}
    every = nearest_configs(spade, cpu, op, configs[:1], k=1000, sizes=SIZES)
    assert len(every[0]) == first.sum()


@EACH
def test_among_its_own_a_configuration_comes_first(platform: Platform, op: Op) -> None:
    configs = drawn(platform, op, 3)
    for config, ranked in zip(
        configs, nearest_configs(platform, platform, op, configs, k=4, sizes=SIZES), strict=True
    ):
        assert (ranked[0].config, ranked[0].distance) == (config, 0.0)
        assert len({near.config for near in ranked}) == len(ranked)
        distances = [near.distance or 0.0 for near in ranked]
        assert distances == sorted(distances)
        if platform.kernel(op).mapping is None:
            assert len(ranked) == 1
        assert all(d > 0 for d in distances[1:])


def test_a_matrix_on_which_nothing_is_legal_is_said() -> None:
    text = MINE.replace("tile <= NUM_MATRIX_COLS or tile == 16", "tile < NUM_MATRIX_COLS")
    strict, cpu, op = parse_platform(text), load_platform("cpu"), Op("spmm", 8)
    with pytest.raises(SpaceError, match="no configuration of mine is legal"):
        nearest_legal(strict, cpu, op, [cpu.default(op)], sizes=(9, 5, 5))


def test_one_legal_configuration_is_always_nearest() -> None:
    op = Op("spmv")
    cpu = load_platform("cpu")
    found = nearest_legal(MY_PLATFORM, cpu, op, drawn(cpu, op, 5), sizes=SIZES)
    assert {f.config for f in found} == {Config({"rows": 8})}
    assert all(f.distance is not None for f in found)
    assert nearest_legal(MY_PLATFORM, cpu, op, [], sizes=SIZES) == []


@pytest.mark.parametrize("sizes", [(1, 1, 1), (7, 3000, 10), (2_000_000_000, 2, 5)])
def test_nearest_on_matrices_of_odd_sizes(sizes: tuple[int, int, int]) -> None:
    m, n, nnz = sizes
    op = Op("spmm", 8)
    names = ("cpu", "spade", "waco-cpu", "gpu-sparsetir")
    platforms = [MY_PLATFORM, *map(load_platform, names)]
    for source in platforms:
        configs = source.space(op, Sizes(m, n, nnz)).sample(2, rng=np.random.default_rng(1))
        for target in platforms:
            space = target.space(op, Sizes(m, n, nnz))
            for found in nearest_legal(target, source, op, configs, sizes=sizes):
                assert space.reason(found.config) is None
