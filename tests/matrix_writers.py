"""Writers of the formats scipy does not write, for the tests of `embeddb.matrixio`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np


def cards(numbers: Any, per_line: int, width: int) -> list[str]:
    """Whole numbers in fixed columns, without spaces between them where they fill the width."""
    text = [f"{int(v):{width}d}" for v in numbers]
    return ["".join(text[i : i + per_line]) for i in range(0, len(text), per_line)]


def write_hb(path: Path, matrix: Any, *, kind: str = "RUA", rhs: bool = False) -> None:
    """Harwell-Boeing (five counts in line 2) or, for `.rb`, Rutherford-Boeing (four)."""
    csc = matrix.tocsc()
    m, n = csc.shape
    width = len(str(max(csc.nnz, m, 9) + 1))  # as narrow as possible: no spaces between
    per_line = 80 // width
    pointers = cards(csc.indptr + 1, per_line, width)
    indices = cards(csc.indices + 1, per_line, width)
    count = {"P": 0, "C": 2}.get(kind[0], 1) * csc.nnz
    values = ["  1.50000000E+00" * min(5, count - i) for i in range(0, count, 5)]
    extra = ["  1.00000000E+00"] if rhs else []
    total = len(pointers) + len(indices) + len(values)
    counts = [total, len(pointers), len(indices), len(values)]
    if path.suffix != ".rb":
        counts.append(len(extra))
    form = f"({per_line}I{width})"
    lines = [
        f"{'A title, 72 wide':<72}{'KEY':<8}",
        "".join(f"{c:14d}" for c in counts),
        f"{kind:<14}{m:14d}{n:14d}{csc.nnz:14d}{0:14d}",
        f"{form:<16}{form:<16}{'(5E16.8)':<20}{'(5E16.8)' if rhs else '':<20}",
        *([f"{'F':<14}{1:14d}{0:14d}"] if rhs else []),
        *pointers,
        *indices,
        *values,
        *extra,
    ]
    path.write_text("\n".join(lines) + "\n")


def write_smtx(path: Path, matrix: Any) -> None:
    m, n = matrix.shape
    lines = [f"{m}, {n}, {matrix.nnz}"]
    lines += [" ".join(str(v) for v in part) for part in (matrix.indptr, matrix.indices)]
    path.write_text("\n".join(lines) + "\n")


def write_waco(path: Path, matrix: Any) -> None:
    sizes = [*matrix.shape, matrix.nnz]
    path.write_bytes(np.concatenate([sizes, matrix.indptr, matrix.indices]).astype("<i4").tobytes())


def write_array(path: Path, dense: Any) -> None:
    """Matrix Market `array`; scipy's writer may hang on an empty one."""
    sizes = f"{dense.shape[0]} {dense.shape[1]}"
    values = [f"{v.real} {v.imag}" for v in dense.T.ravel()]
    lines = ["%%MatrixMarket matrix array complex general", sizes, *values]
    path.write_text("\n".join(lines))


def write_edges(
    path: Path, matrix: Any, *, first: int = 0, mark: str = "#", sep: str = "\t"
) -> None:
    pairs = zip(*matrix.nonzero(), strict=True)
    head = f"{mark} made by a test\n{mark} FromNodeId ToNodeId\n"
    path.write_text(head + "".join(f"{r + first}{sep}{c + first}\n" for r, c in pairs))
