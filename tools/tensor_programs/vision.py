"""Networks that classify images."""

from __future__ import annotations

import jax.numpy as jnp

from tools.tensor_programs.given import Array, Given, Models, forward, training
from tools.tensor_programs.layers import (
    batch_norm,
    conv,
    dense,
    gelu,
    global_pool,
    layer_norm,
    mlp,
    pool,
    relu,
    sigmoid,
    swish,
)

__all__ = ["MODELS"]


def _conv_norm(
    given: Given, x: Array, features: int, size: int = 3, stride: int = 1, groups: int = 1
) -> Array:
    return batch_norm(given, conv(given, x, features, size, stride, groups=groups))


def resnet_v1(given: Given, batch: int, side: int, width: int, blocks: tuple[int, ...]) -> Array:
    """He et al. 2015: bottlenecks, relu after the sum."""
    x = relu(_conv_norm(given, given.data(batch, side, side, 3), width, 7, 2))
    x = pool(x, 3)
    for stage, count in enumerate(blocks):
        inner = width << stage
        for block in range(count):
            stride = 2 if stage and not block else 1
            y = relu(_conv_norm(given, x, inner, 1, stride))
            y = relu(_conv_norm(given, y, inner))
            y = _conv_norm(given, y, 4 * inner, 1)
            x = relu(y + (x if block else _conv_norm(given, x, 4 * inner, 1, stride)))
    return dense(given, global_pool(x), 1000)


def resnet_v2(given: Given, batch: int, side: int, width: int, blocks: tuple[int, ...]) -> Array:
    """He et al. 2016: norm and relu before each of two convolutions."""
    x = conv(given, given.data(batch, side, side, 3), width, 3)
    for stage, count in enumerate(blocks):
        features = width << stage
        for block in range(count):
            stride = 2 if stage and not block else 1
            y = relu(batch_norm(given, x))
            short = x if block else conv(given, y, features, 1, stride)
            y = conv(given, y, features, 3, stride)
            y = conv(given, relu(batch_norm(given, y)), features, 3)
            x = short + y
    return dense(given, global_pool(relu(batch_norm(given, x))), 10)


def vgg(given: Given, batch: int, side: int, width: int) -> Array:
    """Simonyan and Zisserman 2014, with eleven layers (A)."""
    x = given.data(batch, side, side, 3)
    for features, count in ((1, 1), (2, 1), (4, 2), (8, 2), (8, 2)):
        for _ in range(count):
            x = relu(conv(given, x, features * width))
        x = pool(x)
    return mlp(given, x.reshape(batch, -1), (16 * width, 16 * width, 1000))


def alexnet(given: Given, batch: int, side: int, width: int) -> Array:
    """Krizhevsky et al. 2012, in two groups."""
    x = relu(conv(given, given.data(batch, side, side, 3), 3 * width, 11, 4))
    x = pool(x, 3)
    x = pool(relu(conv(given, x, 8 * width, 5, groups=2)), 3)
    x = relu(conv(given, x, 12 * width))
    x = relu(conv(given, x, 12 * width, groups=2))
    x = pool(relu(conv(given, x, 8 * width, groups=2)), 3)
    return mlp(given, x.reshape(batch, -1), (32 * width, 32 * width, 1000))


def inception(given: Given, batch: int, side: int, width: int, modules: int) -> Array:
    """Szegedy et al. 2014 and 2015: four branches, 7 x 7 as 1 x 7 and 7 x 1."""
    x = pool(relu(conv(given, given.data(batch, side, side, 3), 4 * width, 7, 2)), 3)
    for at in range(modules):
        wide = width << at
        one = relu(conv(given, x, 2 * wide, 1))
        three = relu(conv(given, relu(conv(given, x, wide, 1)), 3 * wide))
        seven = relu(conv(given, x, wide, 1))
        seven = relu(conv(given, relu(conv(given, seven, wide, (1, 7))), 2 * wide, (7, 1)))
        pooled = relu(conv(given, pool(x, 3, 1, mean=True), wide, 1))
        x = pool(jnp.concatenate([one, three, seven, pooled], -1), 3)
    return dense(given, global_pool(x), 1000)


def mobilenet(given: Given, batch: int, side: int, width: int, blocks: int) -> Array:
    """Sandler et al. 2018: inverted residuals, depthwise convolutions, relu6."""

    def relu6(x: Array) -> Array:
        return jnp.clip(x, 0.0, 6.0)

    x = relu6(_conv_norm(given, given.data(batch, side, side, 3), width, 3, 2))
    for at in range(blocks):
        inner, out = 6 * x.shape[-1], width * (1 + at // 2)
        stride = 2 if at % 2 else 1
        y = relu6(_conv_norm(given, x, inner, 1))
        y = relu6(_conv_norm(given, y, inner, 3, stride, inner))
        y = _conv_norm(given, y, out, 1)
        x = x + y if y.shape == x.shape else y
    return dense(given, global_pool(relu6(_conv_norm(given, x, 16 * width, 1))), 1000)


def efficientnet(given: Given, batch: int, side: int, width: int, blocks: int) -> Array:
    """Tan and Le 2019: MBConv with squeeze and excitation (Hu et al. 2017)."""
    x = swish(_conv_norm(given, given.data(batch, side, side, 3), width, 3, 2))
    for at in range(blocks):
        inner, out = 4 * x.shape[-1], width * (1 + at)
        y = swish(_conv_norm(given, x, inner, 1))
        y = swish(_conv_norm(given, y, inner, 5, 2 if at else 1, inner))
        squeezed = swish(dense(given, global_pool(y), max(inner // 16, 4)))
        y = y * sigmoid(dense(given, squeezed, inner))[:, None, None, :]
        x = _conv_norm(given, y, out, 1)
    return dense(given, global_pool(x), 100)


def squeezenet(given: Given, batch: int, side: int, width: int, modules: int) -> Array:
    """Iandola et al. 2016: fire modules."""
    x = pool(relu(conv(given, given.data(batch, side, side, 3), 4 * width, 3, 2)), 3)
    for at in range(modules):
        squeezed = relu(conv(given, x, width * (1 + at // 2), 1))
        wide = 4 * squeezed.shape[-1]
        parts = [relu(conv(given, squeezed, wide, size)) for size in (1, 3)]
        x = jnp.concatenate(parts, -1)
        x = pool(x, 3) if at % 2 else x
    return global_pool(relu(conv(given, x, 1000, 1)))


def densenet(given: Given, batch: int, side: int, growth: int, blocks: tuple[int, ...]) -> Array:
    """Huang et al. 2016: each layer reads all before it in its block."""
    x = pool(conv(given, given.data(batch, side, side, 3), 2 * growth, 7, 2), 3)
    for count in blocks:
        for _ in range(count):
            y = conv(given, relu(batch_norm(given, x)), 4 * growth, 1)
            y = conv(given, relu(batch_norm(given, y)), growth)
            x = jnp.concatenate([x, y], -1)
        x = pool(conv(given, relu(batch_norm(given, x)), x.shape[-1] // 2, 1), mean=True)
    return dense(given, global_pool(x), 100)


def convnext(given: Given, batch: int, side: int, width: int, stages: int) -> Array:
    """Liu et al. 2022: 7 x 7 depthwise, layer norm, an inverted bottleneck."""
    x = layer_norm(given, conv(given, given.data(batch, side, side, 3), width, 4, 4))
    for stage in range(stages):
        if stage:
            x = conv(given, layer_norm(given, x), 2 * x.shape[-1], 2, 2)
        features = x.shape[-1]
        y = layer_norm(given, conv(given, x, features, 7, groups=features))
        y = dense(given, gelu(dense(given, y, 4 * features)), features)
        x = x + given.weights(features) * y
    return dense(given, layer_norm(given, global_pool(x)), 100)


def shufflenet(given: Given, batch: int, side: int, width: int, blocks: int) -> Array:
    """Zhang et al. 2017: grouped 1 x 1 convolutions, channels shuffled between them."""
    x = pool(relu(conv(given, given.data(batch, side, side, 3), width, 3, 2)), 3)
    for _ in range(blocks):
        y = relu(_conv_norm(given, x, width, 1, groups=4))
        y = y.reshape(*y.shape[:3], 4, width // 4).swapaxes(3, 4).reshape(y.shape)
        y = _conv_norm(given, y, width, 3, groups=width)
        x = relu(x + _conv_norm(given, y, width, 1, groups=4))
    return dense(given, global_pool(x), 100)


MODELS: Models = {
    "resnet": {
        "v1": forward(resnet_v1, batch=1, side=128, width=32, blocks=(2, 2, 2, 2)),
        "v1_batch": forward(resnet_v1, batch=4, side=96, width=24, blocks=(1, 2, 2, 1)),
        "v2": forward(resnet_v2, batch=4, side=32, width=32, blocks=(2, 2, 2)),
        "train": training(resnet_v2, batch=4, side=32, width=16, blocks=(1, 1, 1)),
    },
    "vgg": {
        "small": forward(vgg, batch=1, side=64, width=24),
        "large": forward(vgg, batch=2, side=96, width=32),
        "train": training(vgg, batch=4, side=32, width=16),
    },
    "alexnet": {
        "small": forward(alexnet, batch=1, side=128, width=16),
        "large": forward(alexnet, batch=1, side=160, width=24),
    },
    "inception": {
        "small": forward(inception, batch=1, side=128, width=16, modules=2),
        "large": forward(inception, batch=2, side=160, width=16, modules=3),
    },
    "mobilenet": {
        "small": forward(mobilenet, batch=1, side=96, width=16, blocks=5),
        "large": forward(mobilenet, batch=1, side=112, width=24, blocks=6),
    },
    "efficientnet": {
        "small": forward(efficientnet, batch=1, side=96, width=16, blocks=4),
        "large": forward(efficientnet, batch=2, side=128, width=24, blocks=4),
    },
    "squeezenet": {
        "small": forward(squeezenet, batch=1, side=112, width=16, modules=4),
        "large": forward(squeezenet, batch=2, side=160, width=16, modules=6),
    },
    "densenet": {
        "small": forward(densenet, batch=1, side=96, growth=16, blocks=(2, 3, 2)),
        "large": forward(densenet, batch=2, side=128, growth=24, blocks=(3, 3, 3)),
    },
    "convnext": {
        "small": forward(convnext, batch=1, side=128, width=32, stages=3),
        "large": forward(convnext, batch=2, side=160, width=48, stages=3),
        "train": training(convnext, batch=2, side=64, width=24, stages=2),
    },
    "shufflenet": {
        "small": forward(shufflenet, batch=1, side=112, width=96, blocks=3),
        "large": forward(shufflenet, batch=4, side=112, width=144, blocks=3),
    },
}
