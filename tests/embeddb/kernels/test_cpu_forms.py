"""Every form holds the matrix it was made from, and what would be too large is never made."""

from __future__ import annotations

import itertools
import tracemalloc
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from embeddb.core.pattern import Pattern
from embeddb.kernels import build as cpu_build
from embeddb.kernels.codegen import conversions
from embeddb.kernels.forms import Converter, Form, FormSpec, Refusal

ROOM = 1 << 30
SHAPES = [(0, 0), (0, 5), (5, 0), (6, 7), (1, 200), (200, 1), (90, 90), (123, 217), (217, 40)]
SPECS = [
    FormSpec("csr"),
    FormSpec("csr", reorder="length"),
    FormSpec("csr", reorder="rcm"),
    FormSpec("csc"),
    FormSpec("dcsr", panel=1),
    FormSpec("dcsr", panel=16),
    FormSpec("dcsr", panel=1 << 31),
]
SLICES = [
    FormSpec("sell", slice=1),
    FormSpec("sell", slice=8, sigma=1),
    FormSpec("sell", slice=4, sigma=32),
    FormSpec("sell", slice=64, sigma=1 << 31),
    FormSpec("ell", slice=8),
    FormSpec("sell16", slice=8, sigma=32),
    FormSpec("sell16", slice=4, sigma=1),
]
BLOCKS = [(1, 1), (2, 2), (3, 3), (8, 8), (1, 8), (8, 1), (5, 16)]
gcc = [
    pytest.mark.gcc,
    pytest.mark.skipif(cpu_build.compiler() is None, reason="needs gcc"),
]
EVERY = [
    *SPECS,
    *(pytest.param(spec, marks=gcc) for spec in SLICES),
    *(pytest.param(FormSpec("bcsr", block), marks=gcc) for block in BLOCKS),
]


def name(value: Any) -> str:
    if not isinstance(value, FormSpec):
        return ""
    numbers = "x".join(str(x) for x in (*value.block, value.panel, value.slice, value.sigma))
    return f"{value.format}-{numbers}-{value.reorder}"


def matrix(shape: tuple[int, int], density: float = 0.3, dtype: Any = np.float32) -> Form:
    """Random values, none of them zero; one long row and a few empty ones where there is room."""
    rng = np.random.default_rng(7)
    dense = rng.random(shape) < density
    if min(shape) > 20:
        dense[7], dense[[0, 3, 12, 13]] = True, False
    pattern = Pattern.from_coo(shape, *np.nonzero(dense))
    values = (rng.random(pattern.nnz) + 0.5).astype(dtype)
    return Form(shape, pattern.indptr, pattern.indices, values)


def diagonal(size: int, step: int = 1) -> Form:
    at = np.arange(0, size, step)
    pattern = Pattern.from_coo((size, size), at, at)
    return Form((size, size), pattern.indptr, pattern.indices, np.ones(at.size, dtype=np.float32))


@pytest.fixture(scope="module")
def converter(tmp_path_factory: pytest.TempPathFactory) -> Converter:
    if cpu_build.compiler() is None:
        return Converter("")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        return Converter(str(cpu_build.build(conversions()).path))


def made(converter: Converter, csr: Form, spec: FormSpec, **more: Any) -> Form:
    form = converter.convert(csr, spec, **{"max_bytes": ROOM, **more})
    assert isinstance(form, Form), form
    return form


def places(form: Form, spec: FormSpec) -> tuple[NDArray[Any], NDArray[Any]]:
    """Row and column of each stored value, as the kernels understand the arrays."""
    counts = np.diff(form.ptr)
    segment = np.repeat(np.arange(counts.size), counts)
    idx = form.idx.astype(np.int64)
    if spec.format == "csc":
        return idx, segment
    if spec.format == "bcsr":
        (r, c), at = spec.block, np.arange(form.val.size)
        block, inside = at // (r * c), at % (r * c)
        return segment[block] * r + inside // c, idx[block] * c + inside % c
    if spec.index_bytes == 2 and form.panel is not None:
        idx += form.panel[segment]
    if spec.slice:
        assert form.row is not None
        lane = (np.arange(idx.size) - form.ptr[segment]) % spec.slice
        return form.row[segment * spec.slice + lane].astype(np.int64), idx
    return (segment if form.row is None else form.row[segment].astype(np.int64)), idx


def dense(form: Form, spec: FormSpec) -> NDArray[Any]:
    """The matrix with a margin, where only fill may be."""
    m, n = form.shape
    full = np.zeros((m + 16, n + 16), dtype=form.val.dtype)
    np.add.at(full, places(form, spec), form.val)
    assert not full[m:].any() and not full[:, n:].any()
    return full[:m, :n]


@pytest.mark.parametrize("spec", EVERY, ids=name)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_form_holds_the_matrix(converter: Converter, spec: FormSpec, dtype: Any) -> None:
    for shape in SHAPES:
        csr = matrix(shape, dtype=dtype)
        form = made(converter, csr, spec)
        assert form.ptr[0] == 0 and form.ptr[-1] == form.idx.size
        assert form.idx.dtype == (np.uint16 if spec.index_bytes == 2 else np.int32)
        assert form.ptr.dtype == np.int64
        assert form.val.dtype == dtype and form.order is None
        assert all(a.flags.c_contiguous for a in (form.ptr, form.idx, form.val))
        assert np.count_nonzero(form.val) == csr.idx.size
        assert np.array_equal(dense(form, spec), dense(csr, FormSpec())), shape


@pytest.mark.parametrize("spec", EVERY, ids=name)
def test_the_order_leads_back_to_csr(converter: Converter, spec: FormSpec) -> None:
    for shape in SHAPES:
        csr = matrix(shape)
        form = made(converter, csr, spec, ordered=True)
        if spec == FormSpec():
            assert form is csr
            continue
        assert form.order is not None and form.order.dtype == np.int64
        kept = form.order >= 0
        assert np.array_equal(form.val[kept], csr.val[form.order[kept]])
        assert not form.val[~kept].any()
        assert np.array_equal(np.sort(form.order[kept]), np.arange(csr.idx.size))


SHORT = [pytest.param(FormSpec("sell16", slice=rows, sigma=32), marks=gcc) for rows in (4, 8, 16)]


@pytest.mark.parametrize("spec", SHORT, ids=name)
@pytest.mark.parametrize("columns", [65_535, 65_536, 65_537, 200_000])
def test_columns_of_16_bits_count_from_the_first_of_their_segment(
    converter: Converter, spec: FormSpec, columns: int
) -> None:
    rng = np.random.default_rng(columns)
    rows = rng.integers(0, 64, 500)
    cols = columns - 1 - rng.integers(0, 65_000, 500)
    pattern = Pattern.from_coo((64, columns), rows, cols)
    csr = Form(pattern.shape, pattern.indptr, pattern.indices, rng.random(pattern.nnz) + 0.5)
    form = made(converter, csr, spec)
    assert (form.panel is not None) == (columns > 65_536)
    at, expected = places(form, spec), places(csr, FormSpec())
    real = form.val != 0
    order = np.lexsort((at[1][real], at[0][real]))
    assert np.array_equal(at[0][real][order], expected[0])
    assert np.array_equal(at[1][real][order], expected[1])
    assert np.array_equal(form.val[real][order], csr.val)


@pytest.mark.parametrize("spec", SHORT, ids=name)
def test_a_segment_too_wide_for_16_bits_is_refused(converter: Converter, spec: FormSpec) -> None:
    for last, refused in ((65_535, False), (65_536, True)):
        pattern = Pattern.from_coo((3, 70_000), np.array([1, 1]), np.array([0, last]))
        csr = Form(pattern.shape, pattern.indptr, pattern.indices, np.ones(2, np.float32))
        form = converter.convert(csr, spec, max_bytes=ROOM)
        assert isinstance(form, Refusal) is refused
        if isinstance(form, Refusal):
            assert "16 bits" in form.reason and not form.need_bytes


@pytest.mark.parametrize("panel", [1, 16, 100, 500])
def test_panels_keep_non_empty_rows_only(converter: Converter, panel: int) -> None:
    csr = matrix((123, 217), 0.05)
    form = made(converter, csr, FormSpec("dcsr", panel=panel))
    assert form.panel is not None and form.row is not None
    assert form.panel.size == -(-217 // min(panel, 217)) + 1
    assert form.panel[0] == 0 and form.panel[-1] == form.row.size == form.ptr.size - 1
    assert (np.diff(form.ptr) > 0).all()
    for at, (low, high) in enumerate(itertools.pairwise(form.panel)):
        assert (np.diff(form.row[low:high]) > 0).all()
        assert (form.idx[form.ptr[low] : form.ptr[high]] // panel == at).all()
    for low, high in itertools.pairwise(form.ptr):
        assert (np.diff(form.idx[low:high]) > 0).all()


@pytest.mark.gcc
@pytest.mark.skipif(cpu_build.compiler() is None, reason="needs gcc")
def test_slices_are_as_long_as_their_longest_row(converter: Converter) -> None:
    csr = matrix((90, 90), 0.1)
    lengths = np.diff(csr.ptr)
    form = made(converter, csr, FormSpec("sell", slice=8, sigma=16))
    assert form.row is not None and form.row.dtype == np.int32 and form.row.size == 96
    assert (form.row[90:] == 90).all()
    for low in range(0, 90, 16):
        window = form.row[low : min(low + 16, 90)]
        assert np.array_equal(np.sort(window), np.arange(low, min(low + 16, 90)))
        assert (np.diff(lengths[window]) <= 0).all()
    longest = [lengths[form.row[s : min(s + 8, 90)]].max() for s in range(0, 90, 8)]
    assert np.array_equal(np.diff(form.ptr), 8 * np.array(longest))
    ell = made(converter, csr, FormSpec("ell", slice=8))
    assert ell.row is not None and np.array_equal(ell.row[:90], np.arange(90))
    assert set(np.diff(ell.ptr)) == {8 * lengths.max()}


@pytest.mark.gcc
@pytest.mark.skipif(cpu_build.compiler() is None, reason="needs gcc")
def test_blocks_of_long_scrambled_rows(converter: Converter) -> None:
    """More blocks in a block row than the insertion sort takes."""
    form = made(converter, matrix((16, 4000), 0.05), FormSpec("bcsr", (8, 1)))
    assert form.ptr[1] > 48
    for low, high in itertools.pairwise(form.ptr):
        assert (np.diff(form.idx[low:high]) > 0).all()


def test_rows_by_falling_length_stay_stable(converter: Converter) -> None:
    csr = matrix((123, 217), 0.05)
    form = made(converter, csr, FormSpec(reorder="length"))
    assert form.row is not None and form.row.dtype == np.int32
    expected = np.lexsort((np.arange(123), -np.diff(csr.ptr)))
    assert np.array_equal(form.row, expected)
    assert form.conversion_s > 0


@pytest.mark.parametrize("columns", [300, 320])
def test_cuthill_mckee_finds_a_hidden_band(converter: Converter, columns: int) -> None:
    rng = np.random.default_rng(1)
    i, j = np.nonzero(abs(np.subtract.outer(np.arange(300), np.arange(columns))) <= 2)
    shuffle = rng.permutation(300)
    hidden = shuffle if columns == 300 else rng.permutation(columns)
    pattern = Pattern.from_coo((300, columns), shuffle[i], hidden[j])
    csr = Form(pattern.shape, pattern.indptr, pattern.indices, np.ones(i.size, dtype=np.float32))
    form = made(converter, csr, FormSpec(reorder="rcm"))
    assert form.row is not None
    # Neighbours in the band are neighbours in the order: they share columns again.
    place = np.argsort(shuffle)[form.row]
    assert np.median(abs(np.diff(place))) <= 2
    assert np.median(abs(np.diff(np.argsort(shuffle)))) > 50


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(FormSpec("ell", slice=8), marks=gcc),
        pytest.param(FormSpec("sell", slice=64, sigma=1), marks=gcc),
        pytest.param(FormSpec("bcsr", (8, 8)), marks=gcc),
    ],
    ids=name,
)
def test_too_much_fill_is_refused_before_it_is_allocated(
    converter: Converter, spec: FormSpec
) -> None:
    csr = diagonal(64_000, step=64)
    long_row = np.arange(0, 64_000, 2, dtype=np.int32)
    ptr = csr.ptr + long_row.size
    ptr[0] = 0
    idx = np.concatenate([long_row, csr.idx])
    if spec.format == "ell":
        csr = Form(csr.shape, ptr, idx, np.ones(idx.size, dtype=np.float32))
    tracemalloc.start()
    refused = converter.convert(csr, spec, max_bytes=1 << 40)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(refused, Refusal) and refused.status == "oom" and not refused.need_bytes
    assert "fill" in refused.reason and "\n" not in refused.reason
    assert peak < 8_000_000


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("spec", EVERY[1:], ids=name)
def test_bytes_are_counted_before_they_are_taken(
    converter: Converter, spec: FormSpec, ordered: bool
) -> None:
    csr = matrix((400, 400), 0.2)
    made(converter, csr, spec, ordered=ordered)  # scipy's modules are in memory now
    need, refusals = 0, 0
    while isinstance(refused := converter.convert(csr, spec, max_bytes=need), Refusal):
        assert refused.status == "oom" and refused.need_bytes > need
        need, refusals = refused.need_bytes, refusals + 1
    assert 1 <= refusals <= 3
    if ordered:
        while isinstance(
            refused := converter.convert(csr, spec, max_bytes=need, ordered=True), Refusal
        ):
            assert refused.need_bytes > need
            need = refused.need_bytes
    tracemalloc.start()
    form = made(converter, csr, spec, max_bytes=need, ordered=ordered)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert form.nbytes <= need
    assert peak <= need + 20_000


def test_a_row_that_cuthill_mckee_would_sort_for_hours_is_refused(converter: Converter) -> None:
    n = 200_000
    pattern = Pattern.from_csr((1, n), [0, n], np.arange(n, dtype=np.int32))
    csr = Form((1, n), pattern.indptr, pattern.indices, np.ones(n, dtype=np.float32))
    refused = converter.convert(csr, FormSpec(reorder="rcm"), max_bytes=ROOM)
    assert isinstance(refused, Refusal) and refused.status == "timeout"
    assert refused.reason.startswith("reverse Cuthill-McKee would sort long rows")
