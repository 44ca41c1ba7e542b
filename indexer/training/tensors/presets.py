"""The hyper-parameters of the paper's best models ("A Learned Performance Model for Tensor
Processing Units", Appendix B, Tables 5 to 7).

Table 5 holds for all of them: opcode embeddings of 256, three graph layers, three final layers, no
biases, column-wise mean and max, four heads of attention, sums over the Transformer. The rates were
tuned with the hidden width of the table: with another (`hidden`) they are a start, no result. The
paper clips by norm without a number: 1 here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from embeddb.core.errors import UsageError
from embeddb.tensors.encoding.spec import GNNS, REDUCTIONS, NetworkSpec

__all__ = ["DEFAULT", "Preset", "preset", "preset_names"]

_CLIP = 1.0
#: Hidden, L2 norm, module layers, transformer layers, GAT heads, rate, decay, clip, dropout, loss.
_Row = tuple[int, bool, int, int, int, float, float, bool, float, str]
_TILE: dict[tuple[str, str], _Row] = {
    ("none", "per-node"): (512, False, 3, 0, 0, 0.000802, 1.0, False, 0.1, "hinge"),
    ("none", "column-wise"): (1024, False, 3, 0, 0, 0.000642, 1.0, False, 0.1, "hinge"),
    ("none", "lstm"): (512, False, 0, 0, 0, 0.000434, 0.99, True, 0.1, "hinge"),
    ("none", "transformer"): (1024, False, 0, 3, 0, 0.000424, 0.99, True, 0.1, "hinge"),
    ("sage", "per-node"): (512, False, 0, 0, 0, 0.001526, 1.0, False, 0.1, "hinge"),
    ("sage", "column-wise"): (1024, False, 0, 0, 0, 0.000642, 1.0, False, 0.1, "logistic"),
    ("sage", "lstm"): (1024, False, 0, 0, 0, 0.000386, 0.98, True, 0.1, "hinge"),
    ("sage", "transformer"): (1024, False, 0, 1, 0, 0.000466, 1.0, True, 0.1, "hinge"),
    ("gat", "per-node"): (512, False, 0, 0, 2, 0.00001, 1.0, True, 0.1, "hinge"),
    ("gat", "column-wise"): (512, False, 0, 0, 4, 0.00001, 1.0, True, 0.1, "hinge"),
    ("gat", "lstm"): (512, False, 0, 0, 4, 0.00001, 0.99, True, 0.1, "hinge"),
    ("gat", "transformer"): (512, False, 0, 2, 4, 0.00001, 1.0, True, 0.1, "hinge"),
}
_FUSED: dict[tuple[str, str], _Row] = {
    ("none", "per-node"): (512, False, 3, 0, 0, 0.000214, 0.95, False, 0.2, "squared"),
    ("none", "column-wise"): (512, False, 3, 0, 0, 0.000102, 1.0, False, 0.25, "squared"),
    ("none", "lstm"): (512, False, 0, 0, 0, 0.000144, 1.0, False, 0.25, "squared"),
    ("none", "transformer"): (512, True, 0, 1, 0, 0.000862, 1.0, True, 0.25, "squared"),
    ("sage", "per-node"): (512, False, 0, 0, 0, 0.000664, 0.9, False, 0.2, "squared"),
    ("sage", "column-wise"): (1024, False, 0, 0, 0, 0.000469, 0.9, False, 0.2, "squared"),
    ("sage", "lstm"): (1024, False, 0, 0, 0, 0.000962, 0.9, False, 0.2, "squared"),
    ("sage", "transformer"): (512, True, 0, 2, 0, 0.000768, 1.0, False, 0.2, "squared"),
    ("gat", "per-node"): (1024, False, 0, 0, 2, 0.000002, 0.9, False, 0.25, "squared"),
    ("gat", "column-wise"): (1024, False, 0, 0, 2, 0.000004, 0.95, False, 0.2, "squared"),
    ("gat", "lstm"): (1024, False, 0, 0, 2, 0.000006, 0.95, False, 0.25, "squared"),
    ("gat", "transformer"): (1024, False, 0, 2, 2, 0.000001, 1.0, True, 0.2, "squared"),
}


@dataclass(frozen=True, slots=True)
class Preset:
    """A network and how it is trained."""

    name: str
    spec: NetworkSpec
    lr: float
    decay: float
    clip: float
    dropout: float
    loss: str


def preset_names() -> list[str]:
    """`sage-lstm` and the like, and `default`."""
    return ["default", *(f"{gnn}-{reduction}" for gnn in GNNS for reduction in REDUCTIONS)]


def preset(task: str, name: str = "default", hidden: int = 0) -> Preset:
    """A row of Table 6 (`tile`) or 7 (`fused`), with `hidden` numbers of a node where that is not
    0; `default` is ours, for two cores and 2,000 predictions a second.

    Raises: UsageError for another name or task.
    """
    rows = {"tile": _TILE, "fused": _FUSED}
    if task not in rows or name not in preset_names():
        raise UsageError(f"no preset {name!r} of {task!r}", hint=", ".join(preset_names()))
    if name == "default":
        found = DEFAULT[task]
        return replace(found, spec=replace(found.spec, hidden=hidden or found.spec.hidden))
    gnn, _, reduction = name.partition("-")
    width, norm, module, attention, heads, lr, decay, clip, dropout, loss = rows[task][
        gnn, reduction
    ]
    spec = NetworkSpec(
        task=task,
        gnn=gnn,
        reduction=reduction,
        hidden=hidden or width,
        tile="nodes" if task == "tile" else "none",
        norm=norm,
        module=module,
        attention=attention or 1,
        gat_heads=heads or 4,
    )
    return Preset(name, spec, lr, decay, _CLIP if clip else 0.0, dropout, loss)


#: Ours. Small, so that it is trained and asked on two cores.
DEFAULT = {
    "tile": Preset("default", NetworkSpec(), 1e-3, 0.98, _CLIP, 0.1, "hinge"),
    "fused": Preset(
        "default", NetworkSpec(task="fused", tile="none"), 1e-3, 0.98, _CLIP, 0.1, "squared"
    ),
}
