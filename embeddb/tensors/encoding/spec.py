"""What a network of kernels is made of, and the shapes of its weights.

    opcode embedding, node features, kernel features  ->  f1  ->  graph layers  ->  final layers
        ->  reduction  ->  (kernel features)  ->  one number

"A Learned Performance Model for Tensor Processing Units", Section 3.2 and Table 5. No layer has a
bias. Ours, because the paper does not state it: every layer but the last ends in ReLU; with the
edges in both directions a graph layer has weights for what comes from operands, others for what
comes from users, and its last layer joins both with the node itself; GAT adds up one attention of
each direction; kernel features at the end ("option 2") pass a layer with ReLU together with what
they are put to, else they could not change an order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from embeddb.core.errors import ModelError
from embeddb.tensors.encoding.features import NODE, STATIC, TILE, encoding_version
from embeddb.tensors.encoding.operation_rows import OPCODES

__all__ = ["GNNS", "PLACES", "REDUCTIONS", "TASKS", "NetworkSpec", "shapes_of"]

TASKS = ("tile", "fused")
GNNS = ("none", "sage", "gat")
REDUCTIONS = ("per-node", "column-wise", "lstm", "transformer")
#: Where kernel features go: nowhere, into every node ("option 1"), to the kernel ("option 2").
PLACES = ("none", "nodes", "kernel")

_TRAIN = "train weights anew with `embeddb train kernels`"
_WORDS = {"task": TASKS, "gnn": GNNS, "reduction": REDUCTIONS, "tile": PLACES, "static": PLACES}
_COUNTS = {
    "hidden": (4, 4096),
    "opcode": (1, 1024),
    "layers": (1, 16),
    "module": (0, 16),
    "final": (0, 16),
    "attention": (1, 16),
    "heads": (1, 64),
    "gat_heads": (1, 64),
}


@dataclass(frozen=True, slots=True)
class NetworkSpec:
    """The parts of a network.

    `hidden`: numbers of a node; `opcode`: of an opcode's embedding; `layers`: of the graph network;
    `module`: feedforward layers without neighbours before it; `final`: those after it; `norm`:
    whether nodes have length 1 after each; `attention` and `heads`: layers and heads of the
    transformer; `gat_heads`: heads of GAT; `directed`: whether edges have directions.
    """

    task: str = "tile"
    gnn: str = "sage"
    reduction: str = "column-wise"
    hidden: int = 128
    tile: str = "nodes"
    static: str = "nodes"
    directed: bool = True
    norm: bool = False
    opcode: int = 256
    layers: int = 3
    module: int = 0
    final: int = 3
    attention: int = 1
    heads: int = 4
    gat_heads: int = 4

    def __post_init__(self) -> None:
        """Raises: ModelError naming what cannot be."""
        for name, words in _WORDS.items():
            if getattr(self, name) not in words:
                said = f"its network has {name} {getattr(self, name)!r}"
                raise ModelError(said, hint=f"one of {', '.join(words)}")
        for name, (least, most) in _COUNTS.items():
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= most:
                said = f"its network has {name} {value!r}"
                raise ModelError(said, hint=f"a number from {least} to {most}")
        for name in ("heads", "gat_heads"):
            if self.hidden % getattr(self, name):
                said = f"{getattr(self, name)} {name} do not divide {self.hidden}"
                raise ModelError(f"its network cannot be: {said}")
        if type(self.directed) is not bool or type(self.norm) is not bool:
            raise ModelError("its network has a switch that is neither true nor false")
        if self.task == "fused" and self.tile != "none":
            raise ModelError("its network reads tiles of fused kernels, which have none")

    @classmethod
    def of(cls, card: Mapping[str, Any]) -> Self:
        """A card's `network`. Raises: ModelError for one that no version of ours can have made, or
        that reads another encoding."""
        names = {field.name for field in fields(cls)}
        if set(card) != names | {"encoding"}:
            raise ModelError("its network is not described as ours are", hint=_TRAIN)
        if card["encoding"] != encoding_version():
            raise ModelError("its network reads kernels that are encoded otherwise", hint=_TRAIN)
        return cls(**{name: card[name] for name in names})

    @property
    def card(self) -> dict[str, Any]:
        """As `of` reads it."""
        return {**asdict(self), "encoding": encoding_version()}

    @property
    def directions(self) -> tuple[str, ...]:
        return ("operands", "users") if self.directed else ("both",)

    @property
    def in_nodes(self) -> int:
        """Kernel features that every node has."""
        return self._features("nodes")

    @property
    def at_end(self) -> int:
        """Kernel features that join the kernel's embedding."""
        return self._features("kernel")

    def _features(self, place: str) -> int:
        return len(TILE) * (self.tile == place) + len(STATIC) * (self.static == place)

    @property
    def embedding(self) -> int:
        """Numbers of a kernel's embedding."""
        return self.hidden * (2 if self.reduction == "column-wise" else 1)


def shapes_of(spec: NetworkSpec) -> dict[str, tuple[int, ...]]:
    """Shape of every weight by name. `scale.X` are the least and the largest in the training set of
    `X`; `scale.target` mean and deviation of what is learned (0, 1 where only orders are)."""
    h, ways = spec.hidden, spec.directions
    found: dict[str, tuple[int, ...]] = {
        "opcode.weight": (len(OPCODES), spec.opcode),
        "first.opcode.weight": (h, spec.opcode),
        "first.node.weight": (h, len(NODE)),
        "scale.node": (2, len(NODE)),
        "scale.tile": (2, len(TILE)),
        "scale.static": (2, len(STATIC)),
        "scale.target": (2,),
    }
    if spec.in_nodes:
        found["first.kernel.weight"] = (h, spec.in_nodes)
    found |= {f"module.{at}.weight": (h, h) for at in range(spec.module)}
    for at in range(spec.layers if spec.gnn != "none" else 0):
        for way in ways:
            found |= _passed(f"graph.{at}.{way}", spec)
        if spec.gnn == "sage":
            found[f"graph.{at}.join.weight"] = (h, h * (1 + len(ways)))
    found |= {f"final.{at}.weight": (h, h) for at in range(spec.final)}
    if spec.reduction == "lstm":
        found |= {f"lstm.weight_{part}_l0": (4 * h, h) for part in ("ih", "hh")}
    for at in range(spec.attention if spec.reduction == "transformer" else 0):
        found |= _attention(f"transformer.layers.{at}", h)
    reduced = h if spec.reduction == "per-node" else spec.embedding
    if spec.at_end:
        found["end.weight"] = (reduced, reduced + spec.at_end)
    found["head.weight"] = (1, reduced)
    return found


def _passed(name: str, spec: NetworkSpec) -> dict[str, tuple[int, ...]]:
    h, heads = spec.hidden, spec.gat_heads
    if spec.gnn == "sage":
        return {f"{name}.weight": (h, h)}
    each = {f"{name}.att_{part}": (1, heads, h // heads) for part in ("src", "dst")}
    return {f"{name}.lin.weight": (h, h), **each}


def _attention(name: str, h: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{name}.self_attn.in_proj_weight": (3 * h, h),
        f"{name}.self_attn.out_proj.weight": (h, h),
        f"{name}.linear1.weight": (h, h),
        f"{name}.linear2.weight": (h, h),
        f"{name}.norm1.weight": (h,),
        f"{name}.norm2.weight": (h,),
    }
