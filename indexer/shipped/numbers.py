"""Whole numbers and times of four digits as bytes that pack well, and back."""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import StoreCorrupt

__all__ = ["NO_CODE", "code_of", "inflated", "packed", "seconds_of", "unpacked"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

#: A time that four digits do not tell.
NO_CODE = -1
#: Powers of ten that are told; up to 10**22 a float64 holds each of them exactly.
_LEAST, _MOST = -19, 22
_TENS = np.array([float(f"1e{n}") for n in range(_MOST + 1)])
_STEPS = 9000  # numbers of four digits in a power of ten


def code_of(seconds: Floats) -> Ints:
    """The place of each time among all numbers of four digits, in ascending order, 0 for 0.0, or
    `NO_CODE`: times that are close have codes that are close. Shapes: float64[n] to int64[n]."""
    with np.errstate(all="ignore"):
        power = np.floor(np.log10(seconds))
        power = np.where(np.isfinite(power), np.clip(power, _LEAST, _MOST), 0.0)
        digits = np.rint(seconds / 10.0 ** (power - 3))
    digits = np.where((digits >= 1000) & (digits <= 10_000), digits, 1000)
    code = ((power - _LEAST) * _STEPS + digits - 999).astype(np.int64)
    code[seconds == 0] = 0
    code[(code > (_MOST - _LEAST + 1) * _STEPS) | np.signbit(seconds)] = NO_CODE
    return np.where(seconds_of(code) == seconds, code, NO_CODE)


def seconds_of(code: Ints) -> Floats:
    """The times of codes: a division or product of numbers that are exact rounds as reading the
    decimal does. Shapes: int64[n] to float64[n]. Raises: StoreCorrupt for what is no code."""
    if code.size and not NO_CODE <= code.min() <= code.max() <= (_MOST - _LEAST + 1) * _STEPS:
        raise StoreCorrupt("times that are none")
    power, digit = np.divmod(np.maximum(code - 1, 0), _STEPS)
    power += _LEAST - 3
    digits = (digit + 1000).astype(np.float64)
    down, up = _TENS[np.clip(-power, 0, _MOST)], _TENS[np.clip(power, 0, _MOST)]
    found: Floats = np.where(power < 0, digits / down, digits * up)
    return np.where(code > 0, found, np.where(code == 0, 0.0, np.nan))


def packed(numbers: Ints) -> list[bytes]:
    """Numbers of at most 32 bits as planes of bytes, lowest first, each deflated: the high bytes
    are nearly all alike. Raises: OverflowError for larger ones."""
    if numbers.size and not -(1 << 31) <= numbers.min() <= numbers.max() < 1 << 31:
        raise OverflowError("numbers of more than 32 bits")
    small = numbers.astype("<i4")
    folded = ((small << 1) ^ (small >> 31)).astype("<u4").view(np.uint8).reshape(-1, 4)
    planes = [folded[:, at].tobytes() for at in range(4)]
    while planes and not any(planes[-1]):
        planes.pop()
    return [zlib.compress(plane, 9) for plane in planes]


def unpacked(planes: list[bytes], count: int) -> Ints:
    """`count` numbers, int64[count]. Raises: StoreCorrupt if the bytes do not hold as many."""
    folded = np.zeros((count, 4), dtype=np.uint8)
    for at, plane in enumerate(planes):
        raw = inflated(plane, count)
        if at > 3 or len(raw) != count:
            raise StoreCorrupt("a column of other than its length")
        folded[:, at] = np.frombuffer(raw, dtype=np.uint8)
    whole = folded.view("<u4").reshape(-1).astype(np.int64)
    return (whole >> 1) ^ -(whole & 1)


def inflated(raw: bytes, most: int) -> bytes:
    """At most so many bytes. Raises: StoreCorrupt for more, and for what is not deflated."""
    inflate = zlib.decompressobj()
    try:
        found = inflate.decompress(raw, most + 1)
    except zlib.error as error:
        raise StoreCorrupt(f"cannot be inflated: {error}") from None
    if len(found) > most or not (inflate.eof or len(found) == most):
        raise StoreCorrupt("other than it says")
    return found
