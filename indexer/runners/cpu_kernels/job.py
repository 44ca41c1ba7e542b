"""The matrix of a worker: its random values, dense operands, forms and expected result."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.kernels.forms import (
    PADDING,
    Converter,
    Form,
    FormSpec,
    Refusal,
    aligned,
    as_scipy,
)

#: Values computed or compared together: they stay in the cache.
_CHUNK = 1 << 15
#: Rounding grows as the square root of a sum's length; the bound does beyond the square of this.
_LONG = 32.0


class Loaded:
    """One pattern with random values, all operands of its kernel, and the expected result.

    `csr` has `ptr` int64[m+1], `idx` int32[nnz], `val` dtype[nnz]. `b` is dtype[n+64,width], `c`
    dtype[m+64,width] for SDDMM and else None; rows beyond the matrix are zero. `d` is room for the
    result: dtype[m+64,width], for SDDMM dtype[nnz]. SpMV is SpMM of width 1.
    """

    def __init__(self, request: dict[str, Any], payload: bytes) -> None:
        self.kernel: str = request["kernel"]
        self.m, self.n = request["shape"]
        self.width: int = request["width"]
        self.dtype: Any = {"f32": np.float32, "f64": np.float64}[request["dtype"]]
        self.tolerance: float = request["tolerance"]
        ptr = np.frombuffer(payload, dtype=np.int64, count=self.m + 1)
        idx = np.frombuffer(payload, dtype=np.int32, offset=ptr.nbytes)
        rng = np.random.default_rng(request["seed"])
        val = self._random(rng, (idx.size,))
        self.csr = Form((self.m, self.n), ptr, idx, val)
        self.b = self._random(rng, (self.n, self.width), PADDING)
        self.c: NDArray[Any] | None = None
        if self.kernel == "sddmm":
            self.c = self._random(rng, (self.m, self.width), PADDING)
            self.d = aligned((idx.size,), self.dtype)
        else:
            self.d = aligned((self.m + PADDING, self.width), self.dtype)
        self._forms: dict[FormSpec, Form | Refusal] = {}
        self._left: int = request["left_bytes"]
        self.expected: NDArray[Any] | None = None
        if request["check"]:
            self._expect()

    def _random(
        self, rng: np.random.Generator, shape: tuple[int, ...], padding: int = 0
    ) -> NDArray[Any]:
        """Uniform in [-0.5, 0.5), followed by rows of zeros."""
        values = aligned((shape[0] + padding, *shape[1:]), self.dtype)
        rng.random(out=values[: shape[0]], dtype=self.dtype)
        values[: shape[0]] -= self.dtype(0.5)
        return values

    def result(self) -> NDArray[Any]:
        """The part of `d` that a kernel must write."""
        return self.d if self.kernel == "sddmm" else self.d[: self.m]

    def _expect(self) -> None:
        """Compute `expected` and the largest difference that rounding explains. The scale is a
        bound of the sum of the magnitudes added up: rounding grows with it."""
        b = self.b[: self.n]
        if self.c is None:
            a = as_scipy(self.csr)
            self.expected = np.asarray(a @ b)
            # A bound that grew as long as the row would not see a lost term in a very long one.
            lengths = np.maximum(np.diff(self.csr.ptr), 1)
            largest = np.maximum(b.max(axis=1), -b.min(axis=1))
            bound = np.asarray(abs(a) @ largest) * self.tolerance
            self._bound = bound * np.minimum(1.0, _LONG / np.sqrt(lengths))
            return
        self.expected = np.empty(self.csr.idx.size, dtype=self.dtype)
        self._bound = np.empty(self.csr.idx.size, dtype=self.dtype)
        sizes = [np.sqrt(np.einsum("ij,ij->i", x, x)) for x in (self.c, self.b)]
        step = max(1, _CHUNK // self.width)
        for low in range(0, self.csr.idx.size, step):
            part = slice(low, min(low + step, self.csr.idx.size))
            at = np.arange(part.start, part.stop)
            i, j = np.searchsorted(self.csr.ptr, at, side="right") - 1, self.csr.idx[part]
            a = self.csr.val[part]
            self.expected[part] = a * np.einsum("ij,ij->i", self.c[i], b[j])
            self._bound[part] = self.tolerance * np.abs(a) * sizes[0][i] * sizes[1][j]

    def wrong(self, result: NDArray[Any], order: NDArray[np.int64] | None = None) -> str:
        """Empty if |result - expected| is everywhere within rounding, else the first violation.

        `result` is dtype[m,width] (dtype[m] will do for SpMV), and for SDDMM dtype[nnz] in CSR
        order, or dtype[stored] in the `order` of a form, whose fill must be zero.
        """
        if self.expected is None:
            return ""
        rows = self.c is None
        step = max(1, _CHUNK // self.width) if rows else _CHUNK
        places = result.reshape(self.m, self.width) if rows else result
        for low in range(0, len(places), step):
            values = places[low : low + step]
            part: Any = slice(low, low + step)
            if order is not None:
                part = order[part]
                if (values[part < 0] != 0).any():
                    return "a value that only fills a block is not zero"
                values, part = values[part >= 0], part[part >= 0]
            error = np.abs(values - self.expected[part])
            error = error.max(axis=1) if rows else error
            bad = ~(error <= self._bound[part])
            if bad.any():
                at = int(bad.argmax())
                where = int(part[at]) if order is not None else low + at
                place = f"{'row' if rows else 'non-zero'} {where}"
                return f"{place} is off by {error[at]:.3g}, more than rounding explains"
        return ""

    def form(self, spec: FormSpec, converter: Converter) -> Form | Refusal:
        """The matrix in that form, cached while memory lasts."""
        if spec == FormSpec("csr"):
            return self.csr
        form = self._forms.pop(spec, None)
        if form is None:
            form = self._convert(spec, converter)
            if isinstance(form, Refusal) and 0 < form.need_bytes <= self._left:
                self.make_room(form.need_bytes)
                form = self._convert(spec, converter)
        self._forms[spec] = form  # last: the least recently used goes first
        return form

    def _convert(self, spec: FormSpec, converter: Converter) -> Form | Refusal:
        ordered = self.kernel == "sddmm" and self.expected is not None
        return converter.convert(self.csr, spec, max_bytes=self._free(), ordered=ordered)

    def _free(self) -> int:
        return self._left - sum(f.nbytes for f in self._forms.values() if isinstance(f, Form))

    def make_room(self, need: int, *, keep: FormSpec | None = None) -> bool:
        """Drop forms, but not `keep`, until `need` bytes are free; True if they are."""
        for spec, form in list(self._forms.items()):
            if self._free() >= need:
                break
            if isinstance(form, Form) and spec != keep:
                del self._forms[spec]
        return self._free() >= need
