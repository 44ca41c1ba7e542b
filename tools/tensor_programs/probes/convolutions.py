"""Convolutions: first layers, pointwise, depthwise, with holes, and their gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tools.tensor_programs.probes.draft import Case, Dims, Draft
from tools.tensor_programs.probes.loops import followed

#: Most multiplications.
_MOST = 8e7


class _Window(NamedTuple):
    """Movement of a window: stride, padding below and above, dilation of input and window
    (`holes`), feature groups and batch groups; the same in each spatial dimension."""

    stride: int = 1
    low: int = 0
    high: int = 0
    holes: tuple[int, int] = (1, 1)
    groups: int = 1
    batch_groups: int = 1


def _convolved(
    draft: Draft, image: Dims, weights: Dims, out: Dims, labels: str, window: _Window
) -> int:
    """Add a convolution of `image` with `weights`; returns its place in the draft."""
    at = labels.partition("_")[2].partition("->")[0]
    size = tuple(weights[at.index(c)] for c in "0123" if c in at)
    rank = len(size)
    return draft.add(
        "convolution",
        out,
        draft.given(*image),
        draft.given(*weights),
        size=size,
        stride=(window.stride,) * rank,
        low=(window.low,) * rank,
        high=(window.high,) * rank,
        lhs_dilate=(window.holes[0],) * rank,
        rhs_dilate=(window.holes[1],) * rank,
        labels=labels,
        feature_groups=window.groups,
        batch_groups=window.batch_groups,
    )


def _side(batch: int, window: int, channels: int, features: int, rank: int, most: int) -> int:
    """Positions along a dimension, so that it does not take too long."""
    each = batch * window**rank * channels * features
    return max(2, min(most, int((_MOST / each) ** (1 / rank))))


def _square(
    draft: Draft, window: int, channels: int, features: int, stride: int = 1, turned: bool = False
) -> int:
    batch = draft.one(1, 1, 2, 4, 8)
    out = draft.size(2, _side(batch, window, channels, features, 2, 112))
    side, low = out * stride, window // 2
    high = (out - 1) * stride + window - side - low
    if high < 0:
        side, high = side + high, 0
    weights = (window, window, *((features, channels) if turned else (channels, features)))
    labels = f"b01f_01{'oi' if turned else 'io'}->b01f"
    shape = (batch, side, side, channels)
    goal = (batch, out, out, features)
    moves = _Window(stride, low, max(high, 0))
    return followed(draft, _convolved(draft, shape, weights, goal, labels, moves))


def _plain(draft: Draft) -> int:
    return _square(
        draft, draft.one(2, 3, 3, 3, 5), draft.size(8, 256), draft.size(8, 256), draft.one(1, 1, 2)
    )


def _first(draft: Draft) -> int:
    """Convolution from or to pictures: one to four channels."""
    few, many = draft.one(1, 1, 2, 3, 3, 4), draft.size(4, 128)
    channels, features = draft.one((few, many), (few, many), (many, few))
    window = draft.one(3, 3, 4, 5, 7, 9, 11)
    return _square(draft, window, channels, features, draft.one(1, 1, 2, 2, 4))


def _narrow(draft: Draft) -> int:
    """Few channels and few features: how they fill vectors decides."""
    window, stride = draft.one(1, 3, 3, 3, 5), draft.one(1, 1, 1, 2)
    return _square(draft, window, draft.size(1, 48), draft.size(1, 48), stride)


def _of_pictures(draft: Draft) -> int:
    """Three colours in or out, the other side as wide as first and last layers are."""
    window, stride = draft.one(1, 3, 3, 4, 5, 7, 9), draft.one(1, 1, 2, 2, 4)
    wide = draft.size(8, 96)
    if draft.chance(0.3):
        return _square(draft, window, wide, 3)
    return _square(draft, window, 3, wide, stride)


def _in_patches(draft: Draft) -> int:
    """Windows that do not overlap: patches of a picture, or downsampling."""
    window, batch = draft.one(2, 2, 4, 4, 8, 8, 14, 16, 16, 32), draft.one(1, 1, 2, 4)
    features = draft.size(8, 512)
    channels = 3 if window > 8 or draft.chance(0.4) else draft.size(1, 256 / window)
    out = draft.size(2, _side(batch, window, channels, features, 2, 400 // window))
    shape, goal = (
        (batch, *(2 * (side,)), last) for side, last in ((out * window, channels), (out, features))
    )
    weights, labels = (window, window, channels, features), "b01f_01io->b01f"
    convolved = _convolved(draft, shape, weights, goal, labels, _Window(window))
    return followed(draft, convolved)


def _pointwise(draft: Draft) -> int:
    return _square(draft, 1, draft.size(8, 512), draft.size(8, 512), draft.one(1, 1, 1, 2))


def _backward(draft: Draft) -> int:
    """The gradient of the input: transposed weights."""
    channels, features = draft.size(4, 128), draft.size(1, 128)
    return _square(draft, draft.one(2, 3, 3, 4, 5), channels, features, draft.one(1, 1, 2), True)


def _grouped(draft: Draft) -> int:
    """Depthwise convolution, or in a few groups."""
    batch, window, stride = draft.one(1, 1, 2, 4), draft.one(1, 3, 3, 5, 7), draft.one(1, 1, 1, 2)
    channels, groups = draft.size(8, 256), 0
    if draft.chance(0.4):
        groups = draft.one(2, 4, 8)
        channels = max(channels // groups, 1) * groups
    groups = groups or channels
    inside = channels // groups
    out = draft.size(2, _side(batch, window, inside, 2 * channels, 2, 80))
    side = out * stride
    low = window // 2
    high = max((out - 1) * stride + window - side - low, 0)
    if (side + low + high - window) // stride + 1 != out:
        side = (out - 1) * stride + window - low - high
    shape, goal = (batch, side, side, channels), (batch, out, out, channels)
    weights = (window, window, inside, channels)
    moves = _Window(stride, low, high, groups=groups)
    convolved = _convolved(draft, shape, weights, goal, "b01f_01io->b01f", moves)
    return followed(draft, convolved)


def _of_weights_apart(draft: Draft) -> int:
    """The gradient of depthwise weights: a sum for each feature."""
    batch, window, features = draft.one(1, 2, 4), draft.one(3, 3, 5, 7), draft.size(8, 192)
    side = draft.size(4, _side(batch, window, 1, 8 * features, 2, 48))
    low, shape = window // 2, (batch, side, side, features)
    return _convolved(
        draft,
        shape,
        shape,
        (window, window, 1, features),
        "f01b_i01o->01bf",
        _Window(low=low, high=low, batch_groups=features),
    )


def _enlarged(draft: Draft) -> int:
    """Transposed convolution of a generator, with holes between the inputs."""
    batch, window = draft.one(1, 2, 4), draft.one(2, 3, 4, 4)
    channels, features = draft.size(8, 192), draft.one(1, 3, draft.size(8, 192))
    side = draft.size(4, _side(batch, window, channels, features, 2, 64) // 2 + 2)
    turned = draft.chance(0.3)
    out, low = 2 * side, window // 2
    high = out + window - 1 - (2 * side - 1) - low
    weights = (window, window, *((features, channels) if turned else (channels, features)))
    labels = f"b01f_01{'oi' if turned else 'io'}->b01f"
    shape, goal = (batch, side, side, channels), (batch, out, out, features)
    moves = _Window(low=low, high=high, holes=(2, 1))
    convolved = _convolved(draft, shape, weights, goal, labels, moves)
    return followed(draft, convolved)


def _of_weights(draft: Draft) -> int:
    """The gradient of weights: the window is as large as the output."""
    batch, window = draft.one(1, 2, 4, 8), draft.one(1, 2, 3, 3, 4)
    channels, features = draft.one(1, 3, draft.size(8, 128)), draft.size(8, 128)
    stride = draft.one(1, 1, 2)
    spread = window * window * channels * features * batch
    side = draft.size(3, max(3, min(96, (_MOST / spread) ** 0.5)))
    input_side = (side - 1) * stride + window
    low = window // 2 if input_side > 2 * (window // 2) + 1 else 0
    shape = (batch, input_side - 2 * low, input_side - 2 * low, channels)
    return _convolved(
        draft,
        shape,
        (batch, side, side, features),
        (window, window, channels, features),
        "f01b_i01o->01bf",
        _Window(low=low, high=low, holes=(1, stride)),
    )


def _in_time(draft: Draft) -> int:
    """Convolution along one dimension, sometimes with a dilated window."""
    batch, window = draft.one(1, 2, 8), draft.one(1, 2, 2, 3, 3, 5, 11)
    channels, features = draft.size(4, 256), draft.size(4, 256)
    hole = draft.one(1, 1, 2, 4, 8) if window > 1 else 1
    length = draft.size(8, _side(batch, window, channels, features, 1, 4096))
    low = (window - 1) * hole
    shape, goal = (batch, length, channels), (batch, length, features)
    weights, moves = (window, channels, features), _Window(low=low, holes=(1, hole))
    convolved = _convolved(draft, shape, weights, goal, "b0f_0io->b0f", moves)
    return followed(draft, convolved)


CASES: Mapping[str, tuple[int, Case]] = {
    "plain": (400, _plain),
    "first": (600, _first),
    "narrow": (400, _narrow),
    "pictures": (350, _of_pictures),
    "patches": (150, _in_patches),
    "pointwise": (200, _pointwise),
    "backward": (250, _backward),
    "grouped": (400, _grouped),
    "enlarged": (180, _enlarged),
    "weights": (350, _of_weights),
    "weights_apart": (80, _of_weights_apart),
    "time": (250, _in_time),
}
