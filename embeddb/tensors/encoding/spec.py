"""The network of tensor kernels, and the shapes of its weights.

    opcode embedding, node features, kernel features  ->  f1  ->  GraphSAGE layers
        ->  final layers  ->  column-wise mean and max  ->  one number

"A Learned Performance Model for Tensor Processing Units", Section 3.2 and Table 5: of its 24 models
the one with GraphSAGE and the column-wise reduction (`reproductions.tpu_paper` trains the others).
No layer has a bias. Ours, because the paper does not state it: every layer but the last ends in
ReLU; a graph layer has weights for what comes from operands, others for what comes from users, and
its last layer joins both with the node itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from embeddb.core.errors import ModelError
from embeddb.tensors.encoding.features import NODE, STATIC, TILE, encoding_version
from embeddb.tensors.encoding.operation_rows import OPCODES

TASKS = ("tile", "fused")
#: Numbers of an opcode's embedding, graph layers, and layers after them (Table 5).
OPCODE, LAYERS, FINAL = 256, 3, 3
#: From where a node is reached.
WAYS = ("operands", "users")

#: What to do about a model that cannot be read.
TRAIN_AGAIN = "train it again with `embeddb train kernels`"
_HIDDEN = (4, 4096)
#: Keys of a card that tell this network from the paper's other ones.
_FIXED = {
    "gnn": "sage",
    "reduction": "column-wise",
    "static": "nodes",
    "directed": True,
    "norm": False,
    "opcode": OPCODE,
    "layers": LAYERS,
    "module": 0,
    "final": FINAL,
    "attention": 1,
    "heads": 4,
    "gat_heads": 4,
}


@dataclass(frozen=True, slots=True)
class NetworkSpec:
    """`task` is one of `TASKS`, `hidden` the numbers of a node."""

    task: str = "tile"
    hidden: int = 128

    def __post_init__(self) -> None:
        """Raises: ModelError for another task or a width out of bounds."""
        if self.task not in TASKS:
            raise ModelError(f"its network has task {self.task!r}", hint=f"one of {TASKS}")
        least, most = _HIDDEN
        if type(self.hidden) is not int or not least <= self.hidden <= most:
            raise ModelError(
                f"its network has hidden {self.hidden!r}", hint=f"a number from {least} to {most}"
            )

    @classmethod
    def of(cls, card: Mapping[str, Any]) -> Self:
        """A card's `network`.

        Raises: ModelError for another of the paper's networks or another encoding.
        """
        found = cls(card.get("task", ""), card.get("hidden", 0))
        own = found.card
        if card.get("encoding") != own["encoding"]:
            reason = "its network reads kernels that are encoded otherwise"
            raise ModelError(reason, hint=TRAIN_AGAIN)
        for name in sorted(own.keys() | card.keys()):
            if type(card.get(name)) is not type(own.get(name)) or card[name] != own[name]:
                raise ModelError(
                    f"its network has {name} {card.get(name)!r}, which queries do not read",
                    hint="`python -m reproductions.tpu_paper` trains and judges it; else "
                    + TRAIN_AGAIN,
                )
        return found

    @property
    def card(self) -> dict[str, Any]:
        """As `of` reads it."""
        tile = "nodes" if self.task == "tile" else "none"
        own = {"task": self.task, "hidden": self.hidden, "tile": tile}
        return {**_FIXED, **own, "encoding": encoding_version()}

    @property
    def in_nodes(self) -> int:
        """Kernel features that every node has."""
        return len(TILE) * (self.task == "tile") + len(STATIC)

    @property
    def embedding(self) -> int:
        """Numbers of a kernel's embedding."""
        return 2 * self.hidden


def shapes_of(spec: NetworkSpec) -> dict[str, tuple[int, ...]]:
    """Shape of every weight by name. `scale.X` are the least and the largest in the training set of
    `X`; `scale.target` mean and deviation of what is learned (0, 1 where only orders are)."""
    h = spec.hidden
    found: dict[str, tuple[int, ...]] = {
        "opcode.weight": (len(OPCODES), OPCODE),
        "first.opcode.weight": (h, OPCODE),
        "first.node.weight": (h, len(NODE)),
        "first.kernel.weight": (h, spec.in_nodes),
        "scale.node": (2, len(NODE)),
        "scale.tile": (2, len(TILE)),
        "scale.static": (2, len(STATIC)),
        "scale.target": (2,),
        "head.weight": (1, spec.embedding),
    }
    for at in range(LAYERS):
        found |= {f"graph.{at}.{way}.weight": (h, h) for way in WAYS}
        found[f"graph.{at}.join.weight"] = (h, h * (1 + len(WAYS)))
    return found | {f"final.{at}.weight": (h, h) for at in range(FINAL)}
