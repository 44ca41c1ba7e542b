"""The nests of a C file compute what the file computes when gcc compiles it."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from nest_evaluation import run

from indexer.frontends import extract

HEAD = """
#include <math.h>
#define N 9
#define M (N + 2)
#define NNZ 20
#pragma embeddb fill col below:N
#pragma embeddb fill row offsets:NNZ:1
double A[M][M], B[M][M], C[M][M], x[M], y[M];
int row[N + 1], col[NNZ];
double val[NNZ];
void kernel(void) {
#pragma scop
%s
#pragma endscop
}
"""

PROGRAMS = {
    "gemm": """
  for (int i = 0; i < N; i++)
    for (int j = 0; j < M; j++) {
      double s = 0;
      for (int k = 0; k < N; k++) s += A[i][k] * B[k][j];
      C[i][j] = 1.5 * s + 0.5 * C[i][j];
    }""",
    "rows": """
  for (int i = N - 1; i >= 0; i--) {
    y[i] = 0;
    for (int k = row[i]; k < row[i + 1]; k++) { int c = col[k]; y[i] = y[i] + val[k] * x[c]; }
  }""",
    "scatter": """
  for (int i = 0; i < N; i++)
    for (int k = row[i]; k < row[i + 1]; ++k) y[col[k]] += val[k] * x[i];""",
    "branches": """
  for (int i = 1; i <= N; i++)
    for (int j = 1; j <= N; j++) {
      double t = A[i - 1][j] + A[i + 1][j], u = t * 0.5;
      if (u > 0.5 && i != j) B[i][j] = u; else B[i][j] = -u;
      if (!(t < 1)) C[i][j] -= t;
      if (A[i][j] < x[i]) x[i] = A[i][j];
      y[j] = fmax(y[j], i > 3 ? B[i][j] : (double)j / 3);
    }""",
    "swap": """
  for (int i = 0; i < N; i++)
    for (int j = i; j < N; j += 2) { double t = A[i][j]; A[i][j] = B[i][j]; B[i][j] = t; }""",
    "triangle": """
  for (int i = 0; i < N; i++) {
    for (int j = 0; j <= i; j++) C[i][j] *= 0.5;
    for (int k = 0; k < N; k++)
      for (int j = 0; j <= i; j++) C[i][j] += A[j][k] * B[i][k] + B[j][k] * A[i][k];
  }""",
    "centred": """
  for (int j = 0; j < M; j++) {
    y[j] = 0.0;
    for (int i = 0; i < N; i++) y[j] += A[i][j];
    y[j] /= N;
  }
  for (int i = 0; i < N; i++) for (int j = 0; j < M; j++) A[i][j] -= y[j];
  for (int i = 0; i < M; i++)
    for (int j = i; j < M; j++) {
      C[i][j] = 0;
      for (int k = 0; k < N; k++) C[i][j] += A[k][i] * A[k][j];
      C[i][j] /= N - 1.0;
      C[j][i] = C[i][j];
    }""",
    "shifted": """
  double w;
  for (int i = 0; i < N; i++) {
    w = x[i] * 2;
    for (int j = 0; j < N; j++) B[i][j] = w + j;
    y[i] = w - sqrt(x[i]);
    w = tanh(w) + exp(-w) + log(1 + w) + fabs(w - 1);
    C[i][0] = w;
  }""",
    "behind": """
  for (int i = 1; i < N; i++) {
    y[i] = x[i - 1];
    for (int j = 0; j < N; j++) A[i][j] = y[i] + y[i - 1] + j;
  }""",
    "odd_and_even": """
  for (int i = 0; i < 4; i++) {
    for (int j = 0; j < N; j++) A[2 * i + 1][j] = B[i][j];
    for (int j = 0; j < N; j++) C[i][j] = A[2 * i][j];
  }""",
    "carried_sum": """
  double s = 0;
  for (int i = 0; i < N; i++) { s += x[i]; y[i] = s; }
  for (int i = 0; i < N; i++) for (int j = 0; j < N; j++) s = s + A[i][j] - B[i][j];
  for (int i = 0; i < N; i++) x[i] = s;""",
}


@pytest.mark.gcc
@pytest.mark.parametrize("name", PROGRAMS)
def test_nests_compute_what_gcc_computes(name: str, tmp_path: Path) -> None:
    source = tmp_path / f"{name}.c"
    source.write_text(HEAD % PROGRAMS[name])
    library = tmp_path / "program.so"
    command = ["gcc", "-O0", "-shared", "-fPIC", "-w", str(source), "-o", str(library), "-lm"]
    subprocess.run(command, check=True, capture_output=True)
    found = extract(source)
    assert not [note for note in found.notes if "cut off" in note or "never" in note]

    compiled = ctypes.CDLL(str(library))
    rng = np.random.default_rng(1)
    views, held = {}, {}
    for array, kind, shape in _declared():
        data = _data(array, shape, rng)
        size = int(np.prod(shape))
        view = ((ctypes.c_int if kind == "int" else ctypes.c_double) * size).in_dll(compiled, array)
        view[:] = data.ravel().tolist()
        views[array], held[array] = view, data.astype(np.float64)
    compiled.kernel()
    run(found.nests, held)
    for array, view in views.items():
        np.testing.assert_allclose(held[array].ravel(), list(view), rtol=1e-12, err_msg=array)


def _declared() -> list[tuple[str, str, tuple[int, ...]]]:
    sizes = {"N": 9, "M": 11, "NNZ": 20, "N + 1": 10}
    found = []
    for kind, names in re.findall(r"^(double|int) (.*);", HEAD, re.M):
        for name, dims in re.findall(r"(\w+)((?:\[[^]]*\])+)", names):
            found.append((name, kind, tuple(sizes[d] for d in re.findall(r"\[([^]]*)\]", dims))))
    return found


def _data(array: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    if array == "row":
        return np.sort(np.r_[0, rng.integers(0, 20, shape[0] - 2), 20])
    if array == "col":
        return rng.integers(0, 9, shape)
    return rng.random(shape)
