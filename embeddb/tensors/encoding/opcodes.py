"""Opcodes as numbers: places in a table, in which a network has an embedding for each."""

from __future__ import annotations

__all__ = ["OPCODES", "opcode_number"]

#: Those of HLO that a kernel may have; place 0 stands for all others.
OPCODES: tuple[str, ...] = (
    "",
    *"""
    abs acos acosh add all-gather all-reduce all-to-all and asin asinh atan2 atanh
    batch-norm-grad batch-norm-inference batch-norm-training bitcast bitcast-convert broadcast
    call cbrt ceil cholesky clamp collective-permute compare complex concatenate conditional
    constant convert convolution copy cosine cosh count-leading-zeros custom-call divide dot
    dynamic-reshape dynamic-slice dynamic-update-slice erf exponential exponential-minus-one fft
    floor fusion gather get-dimension-size get-tuple-element imag iota is-finite log log-plus-one
    logistic map maximum minimum multiply negate not or pad parameter partition-id popcnt power
    ragged-dot real reduce reduce-precision reduce-scatter reduce-window remainder replica-id
    reshape reverse rng rng-bit-generator rng-get-and-update-state round-nearest-afz
    round-nearest-even rsqrt scatter select select-and-scatter set-dimension-size shift-left
    shift-right-arithmetic shift-right-logical sign sine sinh slice sort sqrt
    stochastic-convert subtract tan tanh topk transpose triangular-solve tuple while xor
    """.split(),  # noqa: SIM905 - a table of words
)

_NUMBERS = {opcode: number for number, opcode in enumerate(OPCODES)}


def opcode_number(opcode: str) -> int:
    """Its place in `OPCODES`, 0 where it has none."""
    return _NUMBERS.get(opcode, 0)
