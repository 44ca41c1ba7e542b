"""The matrix a worker holds on the device: random values, dense operands, expected result."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from embeddb.core.config import Op
from embeddb.kernels.cuda.forms import Csr

_DTYPES = {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16}
#: Dense columns of the reference that are computed together, and values that are compared together.
_COLUMNS, _CHUNK = 64, 1 << 25
#: Smallest difference that counts in half precision: its subnormal numbers are this far apart.
_HALF_STEP = 1e-7


class Loaded:
    """One pattern with random values and everything that its products work on, on one device.

    `b` dtype[n,k], for SDDMM `x` dtype[m,k] (else None), `out` dtype[m,k] or dtype[nnz]; vectors
    for SpMV. Random values are uniform in [-0.5, 0.5). The reference is computed in float64 by
    torch and kept, with the sum of magnitudes of each value, if `check`.
    """

    def __init__(self, request: dict[str, Any], payload: bytes, place: str) -> None:
        self.op, self.place = Op.parse(request["op"]), place
        m, n = request["shape"]
        ptr = np.frombuffer(payload, np.int64, m + 1)
        idx = np.frombuffer(payload, np.int32, offset=ptr.nbytes)
        self._random = torch.Generator(device=place).manual_seed(request["seed"])
        width = () if self.op.name == "spmv" else (self.op.width,)
        sampled = self.op.name == "sddmm"
        self._csr = Csr(
            (m, n),
            torch.from_numpy(ptr.astype(np.int32)).to(place),
            torch.from_numpy(idx.copy()).to(place),
            self._drawn((len(idx),)),
        )
        self.b = self._drawn((n, *width))
        self.x = self._drawn((m, *width)) if sampled else None
        self.out = torch.empty((len(idx),) if sampled else (m, *width), **self._kind)
        self.left_bytes: int = request["left_bytes"]
        #: Seconds of the fastest product so far.
        self.best_s = math.inf
        self._expected = self._reference() if request["check"] else None

    @property
    def _kind(self) -> dict[str, Any]:
        return {"dtype": _DTYPES[self.op.dtype], "device": self.place}

    def csr(self) -> Csr:
        """The matrix, without the rows of its entries, so that each conversion pays for them."""
        return Csr(self._csr.shape, self._csr.ptr, self._csr.idx, self._csr.values)

    def wrong(self, tolerance: float) -> str:
        """Empty if `out` is off by at most `tolerance` of the sum of magnitudes, everywhere."""
        if self._expected is None:
            return ""
        result = self.out.view(-1)
        step = _HALF_STEP if self.op.dtype == "f16" else 0.0
        exact, size = self._expected
        for low in range(0, len(result), _CHUNK):
            part = slice(low, low + _CHUNK)
            off = (result[part].double() - exact[part]).abs_()
            bad = ~(off <= size[part] * tolerance + step)
            if bool(bad.any()):
                at = int(bad.int().argmax())
                where = self._place(low + at)
                return f"{where} is off by {float(off[at]):.3g}, more than rounding explains"
        return ""

    def _place(self, at: int) -> str:
        if self.op.name == "sddmm":
            return f"non-zero {at}"
        return f"row {at // max(self.op.width, 1)}"

    def _drawn(self, shape: tuple[int, ...]) -> torch.Tensor:
        wide = torch.float64 if self.op.dtype == "f64" else torch.float32
        values = torch.rand(shape, generator=self._random, device=self.place, dtype=wide)
        return values.sub_(0.5).to(_DTYPES[self.op.dtype])

    def _reference(self) -> tuple[torch.Tensor, torch.Tensor]:
        """float64[values of out] expected, and float32 of the same shape: the sum of the magnitudes
        of its terms and its own."""
        exact = torch.zeros(self.out.numel(), dtype=torch.float64, device=self.place)
        size = torch.zeros(self.out.numel(), dtype=torch.float32, device=self.place)
        if self._csr.nnz and self.out.numel():
            fill = self._sampled_products if self.op.name == "sddmm" else self._products
            fill(exact, size)
        return exact, size.add_(exact.abs())

    def _products(self, exact: torch.Tensor, size: torch.Tensor) -> None:
        csr, rows = self._csr, self._csr.shape[0]
        places = torch.stack([csr.rows.long(), csr.idx.long()])
        about: dict[str, Any] = {"check_invariants": False, "is_coalesced": True}
        values = csr.values.double()
        a = torch.sparse_coo_tensor(places, values, csr.shape, **about)
        absolute = torch.sparse_coo_tensor(places, values.abs(), csr.shape, **about)
        b = self.b.view(csr.shape[1], -1)
        columns = b.shape[1]
        for low in range(0, columns, _COLUMNS):
            part = slice(low, low + _COLUMNS)
            dense = b[:, part].double()
            exact.view(rows, columns)[:, part] = torch.sparse.mm(a, dense)
            size.view(rows, columns)[:, part] = torch.sparse.mm(absolute, dense.abs()).float()

    def _sampled_products(self, exact: torch.Tensor, size: torch.Tensor) -> None:
        csr, x = self._csr, self.x
        assert x is not None
        step = max(1, _CHUNK // max(self.op.width, 1))
        for low in range(0, csr.nnz, step):
            part = slice(low, low + step)
            terms = x[csr.rows[part]].double() * self.b[csr.idx[part]].double()
            values = csr.values[part].double()
            exact[part] = terms.sum(1) * values
            size[part] = (terms.abs_().sum(1) * values.abs()).float()
