"""Our own programs compute what they are named for: tiny sizes, against formulas of numpy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from scipy.special import ndtr

from indexer.programs import nests_of, program_names, sizes_of
from indexer.runners.nest_code.fill import filled
from indexer.runners.nest_code.reference import evaluate

Ints = NDArray[np.int64]
V = Mapping[str, Any]
Results = dict[str, NDArray[Any]]


class Case(NamedTuple):
    """Sizes, and the results by name of array from what the arrays held before."""

    sizes: dict[str, int]
    results: Callable[[V], Results]
    rtol: float = 2e-6
    atol: float = 1e-9


def run_program(program: str, sizes: Mapping[str, int]) -> tuple[V, V]:
    """What the program's arrays held before, and what they hold after all its nests."""
    nests = nests_of(program, sizes)
    before: dict[str, NDArray[Any]] = {}
    for nest in nests:
        for name, array in zip(nest.array_names, nest.arrays, strict=True):
            if name not in before:
                made = filled(array, len(before)).reshape(array.shape)
                before[name] = made.astype(np.float64) if made.dtype.kind == "f" else made
    after = {name: array.copy() for name, array in before.items()}
    for nest in nests:
        names = nest.array_names
        found = evaluate(nest, {at: after[name].ravel() for at, name in enumerate(names)})
        after |= {names[at]: flat.reshape(after[names[at]].shape) for at, flat in found.items()}
    return before, after


# -- formulas --------------------------------------------------------------------------------------


def dense(v: V, columns: int) -> NDArray[Any]:
    """A matrix in compressed rows as a dense one; entries that meet add up."""
    made = np.zeros((v["row"].size - 1, columns))
    np.add.at(made, (rows_of(v), v["col"]), v["a"])
    return made


def rows_of(v: V) -> Ints:
    """int64[Z], the row of every entry."""
    return np.repeat(np.arange(v["row"].size - 1), np.diff(v["row"]))


def windows(x: NDArray[Any], *shape: int) -> NDArray[Any]:
    """[..., places, window] over the last dimensions."""
    return sliding_window_view(x, shape, tuple(range(-len(shape), 0)))


def softmax(x: NDArray[Any]) -> NDArray[Any]:
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def daubechies(v: V) -> Results:
    root = np.sqrt(3)
    h = np.array([1 + root, 3 + root, 3 - root, 1 - root]) / (4 * np.sqrt(2))
    pairs = windows(v["image"], 4)[..., ::2, :]
    return {"low": pairs @ h, "high": pairs @ (h[::-1] * [1, -1, 1, -1])}


def harris(v: V) -> Results:
    grey = np.tensordot([0.299, 0.587, 0.114], v["image"], 1)
    sobel = np.outer([1, 2, 1], [-1, 0, 1])
    dx = (windows(grey, 3, 3) * sobel).sum((-1, -2))
    dy = (windows(grey, 3, 3) * sobel.T).sum((-1, -2))
    xx, xy, yy = (windows(p, 3, 3).sum((-1, -2)) for p in (dx * dx, dx * dy, dy * dy))
    return {"response": xx * yy - xy * xy - 0.04 * (xx + yy) ** 2}


def histogram(v: V) -> Results:
    image, levels = v["image"], v["count"].shape[1]
    count = np.array([np.bincount(channel.ravel(), minlength=levels) for channel in image])
    share = count.cumsum(1) / image[0].size
    return {"equalised": np.take_along_axis(share, image.reshape(3, -1), 1).reshape(image.shape)}


def horizontal_diffusion(v: V) -> Results:
    u = v["u"]
    laplacian = 4 * u[:, 1:-1, 1:-1] - u[:, :-2, 1:-1] - u[:, 2:, 1:-1] - u[:, 1:-1, :-2]
    laplacian -= u[:, 1:-1, 2:]
    flows = []
    for axis in (1, 2):
        flux = np.diff(laplacian, axis=axis)
        rise = np.diff(u[:, 1:-1, 1:-1], axis=axis)
        flux = np.where(flux * rise > 0, 0, flux)
        inner = [slice(None), slice(1, -1), slice(1, -1)]
        inner[axis] = slice(None)
        flows.append(np.diff(flux[tuple(inner)], axis=axis))
    return {"v": u[:, 2:-2, 2:-2] - v["weight"] * (flows[0] + flows[1])}


def unsharp(v: V) -> Results:
    taps = np.array([1, 4, 6, 4, 1]) / 16
    blurred = np.einsum("cyxrs,r,s->cyx", windows(v["image"], 5, 5), taps, taps)
    return {"sharp": np.clip(3.5 * v["image"][:, 2:-2, 2:-2] - 2.5 * blurred, 0, 1)}


def heat_3d(v: V) -> Results:
    u, after = v["u"], v["v"].copy()
    inner = (slice(1, -1),) * 3
    around = sum(np.roll(u, s, axis)[inner] for axis in range(3) for s in (1, -1))
    after[inner] = u[inner] + 0.1 * (around - 6 * u[inner])
    return {"v": after}


def elimination(v: V) -> Results:
    a, n = v["A"].copy(), len(v["A"])
    for k in range(n - 1):
        a[k + 1 :, k + 1 :] -= np.outer(a[k + 1 :, k], a[k, k + 1 :]) / (n + v["p"][k])
    return {"A": a}


def floyd_warshall(v: V) -> Results:
    paths = v["D"].copy()
    for k in range(len(paths)):
        paths = np.minimum(paths, paths[:, k, None] + paths[k])
    return {"D": paths}


def trsm(v: V) -> Results:
    n = len(v["X"])
    return {"X": np.linalg.solve(np.eye(n) + np.tril(v["L"], -1) / n, v["X"])}


def symmetric(lower: NDArray[Any]) -> NDArray[Any]:
    return np.tril(lower, -1) + np.tril(lower, -1).T


def attention(v: V) -> Results:
    return {"Y": softmax(v["Q"] @ v["K"].T / 8) @ v["V"]}


def layer_norm(v: V) -> Results:
    x = v["X"] - v["X"].mean(1, keepdims=True)
    return {"Y": x / np.sqrt(x.var(1, keepdims=True) + 1e-5)}


def conv2d(v: V) -> Results:
    return {"Y": np.einsum("ocrs,cyxrs->oyx", v["F"], windows(v["X"], 3, 3))}


def residual_block(v: V) -> Results:
    mixed = v["X"][::2, ::2] @ v["F"]
    return {"Y": np.maximum(v["scale"] * mixed + v["shift"] + v["cut"], 0)}


def max_pool(v: V) -> Results:
    channels, height, width = v["Y"].shape
    return {"Y": v["X"].reshape(channels, height, 2, width, 2).max((2, 4))}


def sddmm(v: V) -> Results:
    return {"s": v["a"] * (v["U"] @ v["V"].T)[rows_of(v), v["col"]]}


def bellman_ford(v: V) -> Results:
    after = v["after"].copy()
    np.minimum.at(after, rows_of(v), v["before"][v["col"]] + v["length"])
    return {"after": after}


def page_rank(v: V) -> Results:
    links = dense({**v, "a": 0.85 / (1 + v["degree"][v["col"]])}, v["before"].size)
    return {"after": links @ v["before"]}


def arc_distance(v: V) -> Results:
    half_lat, half_lon = (v["to_lat"] - v["lat"]) / 2, (v["to_lon"] - v["lon"]) / 2
    h = np.sin(half_lat) ** 2 + np.cos(v["lat"]) * np.cos(v["to_lat"]) * np.sin(half_lon) ** 2
    return {"arc": 2 * np.arcsin(np.sqrt(h))}


def azimuthal_histogram(v: V) -> Results:
    place, bins = v["bin"].ravel(), v["sum"].size
    count = np.bincount(place, minlength=bins)
    return {"count": count, "sum": np.bincount(place, v["image"].ravel(), bins)}


def nbody(v: V) -> Results:
    places = np.stack([v["x"], v["y"], v["z"]])
    apart = places[:, None, :] - places[:, :, None]
    pull = v["mass"] * apart / ((apart**2).sum(0) + 0.01) ** 1.5
    return dict(zip(("fx", "fy", "fz"), pull.sum(2), strict=True))


def mandelbrot_step(v: V) -> Results:
    z = v["zx"] + 1j * v["zy"]
    after = z * z + v["cx"] + 1j * v["cy"][:, None]
    return {"nx": after.real, "ny": after.imag, "steps": v["steps"] + (abs(z) ** 2 < 0.8)}


def cloud_physics(v: V) -> Results:
    held_by_air = 0.6 * np.exp(17.3 * (v["warmth"] - 0.5) / (v["warmth"] + 23))
    excess = v["vapour"] - held_by_air
    dry = np.maximum(v["cloud"] + 0.1 * excess, 0)
    return {"cloud": np.where(excess > 0, v["cloud"] + 0.5 * excess, dry)}


def scatter(v: V) -> Results:
    table = v["table"].copy()
    np.add.at(table, v["index"], v["rows"])
    return {"table": table}


def lstm_cell(v: V) -> Results:
    i, f, o = (1 / (1 + np.exp(-v[gate])) for gate in "IFO")
    c = f * v["c"] + i * np.tanh(v["G"])
    return {"c": c, "h": o * np.tanh(c)}


def edit_distance(v: V) -> Results:
    a, b = v["a"], v["b"]
    table = np.zeros((a.size + 1, b.size + 1))
    for i, j in np.ndindex(a.size, b.size):
        kept = table[i, j] + (a[i] != b[j])
        table[i + 1, j + 1] = min(table[i, j + 1] + 1, table[i + 1, j] + 1, kept)
    return {"D": table}


def fft_stage(v: V) -> Results:
    z, w = v["re"] + 1j * v["im"], v["wr"] + 1j * v["wi"]
    one, other = np.split(z, 2, axis=1)
    stage = np.hstack([one + other, w * (one - other)])
    return {"sr": stage.real, "si": stage.imag}


def game_of_life(v: V) -> Results:
    near = windows(v["before"], 3, 3).sum((-1, -2))
    lives = v["before"][1:-1, 1:-1]
    return {"after": (near == 3) | ((near == 4) & (lives == 1))}


def seidel_2d(v: V) -> Results:
    a = v["A"].copy()
    for i, j in np.ndindex(len(a) - 2, len(a) - 2):
        a[i + 1, j + 1] = a[i : i + 3, j : j + 3].mean()
    return {"A": a}


def fdtd_2d(v: V) -> Results:
    ex, ey, hz = v["ex"].copy(), v["ey"].copy(), v["hz"].copy()
    ey[1:] -= 0.5 * np.diff(hz, axis=0)
    ex[:, 1:] -= 0.5 * np.diff(hz, axis=1)
    hz[:-1, :-1] -= 0.7 * (np.diff(ex[:-1], axis=1) + np.diff(ey[:, :-1], axis=0))
    return {"ex": ex, "ey": ey, "hz": hz}


def gemver(v: V) -> Results:
    a = v["A"] + np.outer(v["u"], v["v"]) + np.outer(v["p"], v["q"])
    x = v["x"] + 1.2 * a.T @ v["y"]
    return {"A": a, "x": x, "w": 1.5 * a @ x}


def kmeans(v: V) -> Results:
    far = ((v["X"][:, None] - v["M"]) ** 2).sum(2)
    return {"far": far, "least": np.minimum(v["least"], far.min(1))}


def jacobi_1d(v: V) -> Results:
    after = v["b"].copy()
    after[1:-1] = 0.33333 * windows(v["a"], 3).sum(1)
    return {"b": after}


def jacobi_2d(v: V) -> Results:
    after = v["B"].copy()
    star = [[0, 0.2, 0], [0.2, 0.2, 0.2], [0, 0.2, 0]]
    after[1:-1, 1:-1] = (windows(v["A"], 3, 3) * star).sum((-1, -2))
    return {"B": after}


def wave_3d(v: V) -> Results:
    """With the weights of a second difference of eighth order."""
    u, near = v["u"], slice(4, -4)
    weights = np.array(
        [-1 / 560, 8 / 315, -1 / 5, 8 / 5, -205 / 72, 8 / 5, -1 / 5, 8 / 315, -1 / 560]
    )
    along = windows(u[:, near, near].T, 9).T, windows(u[near, :, near].swapaxes(1, 2), 9)
    rows = windows(u[near, near], 9) @ weights
    columns = (along[1] @ weights).swapaxes(1, 2)
    depths = np.tensordot(weights, along[0], 1)
    bend = depths + columns + rows
    return {"after": 2 * u[near, near, near] - v["before"] + v["speed"] * bend}


def upwind_3d(v: V) -> Results:
    c, wind = v["c"][:, 1:-1, 1:-1], v["wind"]
    steps = np.diff(c, axis=0)
    return {"after": c[1:-1] - (wind - 0.5) * np.where(wind > 0.5, steps[:-1], steps[1:])}


def recursive_filter(v: V) -> Results:
    y, z = v["y"].copy(), v["z"].copy()
    for i in range(1, len(y)):
        y[i] = 0.25 * v["x"][i] + 0.75 * y[i - 1]
    for j in range(1, len(z.T)):
        z[:, j] = 0.25 * y[:, j] + 0.75 * z[:, j - 1]
    return {"y": y, "z": z}


def adi_sweep(v: V) -> Results:
    """Eliminated so, rows of -0.4, 2, -0.4 become x[j] = p[j] x[j + 1] + q[j]."""
    p, q = v["p"].copy(), v["q"].copy()
    for j in range(1, len(p)):
        pivot = 2 - 0.4 * p[:, j - 1]
        p[:, j] = 0.4 / pivot
        q[:, j] = (v["u"][j] + 0.4 * q[:, j - 1]) / pivot
    return {"p": p, "q": q}


def lu_step(v: V) -> Results:
    a = v["A"].copy()
    a[3:, 3:] -= np.outer(a[3:, 2], a[2, 3:]) / 4
    return {"A": a}


def gram_schmidt_step(v: V) -> Results:
    products = v["q"] @ v["A"]
    return {"r": products, "A": v["A"] - np.outer(v["q"], products) / len(v["q"])}


def neighbour_forces(v: V) -> Results:
    dx, dy = (v[axis][v["list"]] - v[axis][:, None] for axis in "xy")
    return {"f": np.maximum(0.25 - dx**2 - dy**2, 0).sum(1)}


def boolean_mask(v: V) -> Results:
    through = v["mask"] == 1
    sums = np.where(through, v["X"], 0).sum(1)
    return {"sum": sums, "X": np.where(through, v["X"], 2 * v["X"])}


def black_scholes(v: V) -> Results:
    """Shifted away from 0; the tanh is within 4e-4 of the normal distribution."""
    price, strike, years = v["price"] + 0.5, v["strike"] + 0.5, v["years"] + 0.1
    spread = 0.3 * np.sqrt(years)
    d = (np.log(price / strike) + (0.02 + 0.3**2 / 2) * years) / spread
    return {"call": price * ndtr(d) - strike * np.exp(-0.02 * years) * ndtr(d - spread)}


CASES = {
    "adi_sweep": Case({"N": 6}, adi_sweep),
    "arc_distance": Case({"N": 9}, arc_distance, rtol=1e-3),
    "atax": Case({"N": 7, "M": 9}, lambda v: {"y": v["A"].T @ (v["A"] @ v["x"])}),
    "attention": Case({"N": 6, "D": 5}, attention),
    "azimuthal_histogram": Case({"H": 9, "W": 8, "B": 5}, azimuthal_histogram),
    "bellman_ford": Case({"N": 9, "Z": 30}, bellman_ford),
    "bicg": Case(
        {"N": 7, "M": 9}, lambda v: {"s": v["A"].T @ v["r"], "q": v["A"] @ v["p"]}
    ),
    "black_scholes": Case({"N": 9}, black_scholes, atol=1e-3),
    "blur": Case({"H": 5, "W": 6}, lambda v: {"blurred": windows(v["image"], 3, 3).mean((-1, -2))}),
    "boolean_mask": Case({"N": 5, "M": 6}, boolean_mask),
    "cloud_physics": Case({"L": 4, "N": 12}, cloud_physics),
    "conv2d": Case({"O": 3, "C": 4, "H": 5, "W": 6}, conv2d),
    "correlation": Case(
        {"N": 30, "M": 5}, lambda v: {"corr": np.triu(np.corrcoef(v["X"].T), 1)}
    ),
    "covariance": Case({"N": 8, "M": 5}, lambda v: {"cov": np.triu(np.cov(v["X"].T))}),
    "daubechies": Case({"H": 3, "W": 5}, daubechies),
    "doitgen": Case({"R": 3, "Q": 4, "P": 5}, lambda v: {"S": v["A"] @ v["B"]}),
    "edit_distance": Case({"N": 8, "M": 9}, edit_distance),
    "elimination": Case({"N": 9}, elimination),
    "fdtd_2d": Case({"N": 6, "M": 7}, fdtd_2d),
    "fft_stage": Case({"N": 3, "M": 4}, fft_stage),
    "floyd_warshall": Case({"N": 9}, floyd_warshall),
    "game_of_life": Case({"N": 12}, game_of_life),
    "gather": Case({"N": 6, "T": 9, "D": 4}, lambda v: {"rows": v["table"][v["index"]]}),
    "gemm": Case(
        {"N": 5, "M": 6, "K": 7}, lambda v: {"C": 0.5 * v["C"] + 1.5 * v["A"] @ v["B"]}
    ),
    "gemver": Case({"N": 7}, gemver),
    "gesummv": Case({"N": 7}, lambda v: {"y": (1.5 * v["A"] + 1.2 * v["B"]) @ v["x"]}),
    "go_fast": Case({"N": 7}, lambda v: {"B": v["A"] + np.tanh(v["A"].diagonal()).sum()}),
    "gram_schmidt_step": Case({"N": 5, "M": 6}, gram_schmidt_step),
    "haar": Case({"H": 3, "W": 5}, lambda v: {
        "low": (v["image"][..., ::2] + v["image"][..., 1::2]) / np.sqrt(2),
        "high": (v["image"][..., ::2] - v["image"][..., 1::2]) / np.sqrt(2),
    }),
    "harris": Case({"H": 5, "W": 6}, harris),
    "heat_3d": Case({"N": 4}, heat_3d),
    "histogram": Case({"H": 5, "W": 6, "L": 8}, histogram),
    "horizontal_diffusion": Case({"K": 2, "I": 5, "J": 6}, horizontal_diffusion),
    "jacobi_1d": Case({"N": 9}, jacobi_1d),
    "jacobi_2d": Case({"N": 6}, jacobi_2d),
    "kmeans": Case({"N": 9, "C": 4, "D": 3}, kmeans),
    "layer_norm": Case({"N": 4, "M": 7}, layer_norm),
    "lstm_cell": Case({"B": 3, "N": 5}, lstm_cell),
    "lu_step": Case({"N": 7, "P": 2}, lu_step),
    "mandelbrot_step": Case({"H": 5, "W": 6}, mandelbrot_step),
    "matmul": Case({"N": 5, "M": 6, "K": 7}, lambda v: {"C": v["A"] @ v["B"]}),
    "max_pool": Case({"C": 2, "H": 3, "W": 4}, max_pool),
    "minplus": Case({"N": 5, "M": 6, "K": 7}, lambda v: {
        "D": np.minimum(v["D"], (v["A"][:, :, None] + v["B"]).min(1)),
    }),
    "mlp": Case({"B": 3, "N": 5, "M": 6, "K": 4}, lambda v: {
        "Y": np.maximum(v["X"] @ v["V"] + v["b"], 0) @ v["W"],
    }),
    "mttkrp": Case({"I": 4, "J": 5, "K": 3, "R": 2}, lambda v: {
        "M": np.einsum("ijk,jr,kr->ir", v["X"], v["U"], v["V"]),
    }),
    "mvt": Case({"N": 6}, lambda v: {
        "x": v["x"] + v["A"] @ v["y"], "u": v["u"] + v["A"].T @ v["v"],
    }),
    "nbody": Case({"N": 7}, nbody),
    "neighbour_forces": Case({"N": 6, "K": 4}, neighbour_forces),
    "page_rank": Case({"N": 9, "Z": 30}, page_rank),
    "permute": Case({"N": 9}, lambda v: {"y": v["x"][v["place"]]}),
    "recursive_filter": Case({"N": 5, "M": 6}, recursive_filter),
    "residual_block": Case({"H": 3, "W": 2, "C": 4, "O": 5}, residual_block),
    "scatter": Case({"N": 9, "T": 5, "D": 3}, scatter),
    "sddmm": Case({"N": 6, "M": 7, "Z": 15, "K": 4}, sddmm),
    "seidel_2d": Case({"N": 7}, seidel_2d),
    "softmax": Case({"N": 4, "M": 6}, lambda v: {"Y": softmax(v["X"])}),
    "spmm": Case({"N": 6, "M": 7, "Z": 15, "K": 4}, lambda v: {"C": dense(v, 7) @ v["B"]}),
    "spmv": Case({"N": 6, "M": 7, "Z": 15}, lambda v: {"y": dense(v, 7) @ v["x"]}),
    "symm": Case({"N": 6, "M": 5}, lambda v: {"C": symmetric(v["A"]) @ v["B"]}),
    "syr2k": Case({"N": 6, "K": 5}, lambda v: {
        "C": v["C"] + np.tril(v["A"] @ v["B"].T + v["B"] @ v["A"].T),
    }),
    "syrk": Case({"N": 6, "K": 5}, lambda v: {"C": v["C"] + 1.5 * np.tril(v["A"] @ v["A"].T)}),
    "three_mm": Case({"N": 5}, lambda v: {"G": v["A"].T @ v["B"] @ v["C"] @ v["D"].T}),
    "transpose": Case({"N": 5, "M": 6}, lambda v: {"B": v["A"].T}),
    "trmm": Case({"N": 6, "M": 5}, lambda v: {"B": v["B"] + np.tril(v["A"], -1).T @ v["B"]}),
    "trmv": Case({"N": 7}, lambda v: {"y": np.tril(v["L"]) @ v["x"]}),
    "trsm": Case({"N": 6, "M": 5}, trsm),
    "two_mm": Case({"N": 4, "M": 5, "K": 6, "L": 3}, lambda v: {"D": v["A"] @ v["B"] @ v["C"]}),
    "unsharp": Case({"H": 4, "W": 5}, unsharp),
    "upwind_3d": Case({"N": 4}, upwind_3d),
    "wave_3d": Case({"N": 3}, wave_3d),
}  # fmt: skip


@pytest.mark.parametrize("program", program_names())
def test_a_program_equals_its_formula(program: str) -> None:
    case = CASES[program]
    assert set(case.sizes) == set(sizes_of(program)["medium"])
    before, after = run_program(program, case.sizes)
    results = case.results(before)
    assert results
    for name, expected in results.items():
        assert np.any(after[name] != before[name]), f"{name} has not changed"
        found, (rtol, atol) = after[name], case[2:]
        np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol, err_msg=name)
