"""The opcodes of HLO, by what the front end does with them."""

from __future__ import annotations

#: Kept as one operation: what they do inside is not told.
OPAQUE = frozenset(("while", "conditional", "custom-call"))
#: They bring bodies along that an optimised module's kernels lie in.
ENTERED = frozenset(("while", "conditional", "call"))
#: They move and compute nothing: never a kernel of their own.
IDLE = frozenset(
    """
    parameter constant bitcast tuple get-tuple-element after-all opt-barrier add-dependency
    partition-id replica-id domain get-dimension-size copy-done async-update async-done
    all-reduce-done all-gather-done collective-permute-done send-done recv-done
    """.split()  # noqa: SIM905 - a table of words
)
OPCODES = (
    OPAQUE
    | ENTERED
    | IDLE
    | frozenset(
        """
        abs acos acosh add all-gather all-gather-start all-reduce all-reduce-start all-to-all and
        asin asinh async-start atan2 atanh batch-norm-grad batch-norm-inference batch-norm-training
        bitcast-convert broadcast cbrt ceil cholesky clamp collective-broadcast collective-permute
        collective-permute-start compare complex concatenate convert convolution copy copy-start cos
        cosh cosine count-leading-zeros divide dot dynamic-reshape dynamic-slice
        dynamic-update-slice erf exponential exponential-minus-one fft floor fusion gather imag
        infeed iota is-finite log log-plus-one logistic map maximum minimum multiply negate not or
        outfeed pad popcnt power ragged-all-to-all ragged-dot real recv reduce reduce-precision
        reduce-scatter reduce-window remainder reshape reverse rng rng-bit-generator
        rng-get-and-update-state round-nearest-afz round-nearest-even rsqrt scaled-dot scan scatter
        select select-and-scatter send set-dimension-size shift-left shift-right-arithmetic
        shift-right-logical sign sine sinh slice sort sqrt stochastic-convert subtract tan tanh topk
        transpose triangular-solve xor
        """.split()  # noqa: SIM905 - a table of words
    )
)
