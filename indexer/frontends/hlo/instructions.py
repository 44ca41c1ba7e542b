"""The parts of a module of HLO text: computations of instructions, as the text has them."""

from __future__ import annotations

from dataclasses import dataclass, field

from indexer.frontends.hlo.shapes import ShapeTree


@dataclass(frozen=True, slots=True)
class Instruction:
    """`ROOT name = shape opcode(operands), key=value, ...`. `operands` are names, `operand_shapes`
    the shapes that some versions write before them (else None); of a parameter and a constant,
    whose brackets hold something else, `literal` is that."""

    name: str
    opcode: str
    shape: ShapeTree
    operands: tuple[str, ...]
    attributes: dict[str, list[str]]
    literal: str
    line: int
    operand_shapes: tuple[ShapeTree | None, ...] = ()


@dataclass(slots=True)
class Body:
    """The instructions of one computation by name, and the name of its root. `signatures` are the
    shapes of its parameters and of its result, as its head and the module's have them."""

    name: str
    line: int
    instructions: dict[str, Instruction] = field(default_factory=dict)
    root: str = ""
    signatures: list[tuple[tuple[ShapeTree, ...], ShapeTree]] = field(default_factory=list)


@dataclass(slots=True)
class Module:
    """Computations by name; `notes` are one line each, for people."""

    name: str
    entry: str
    scheduled: bool
    bodies: dict[str, Body]
    notes: list[str]

    @property
    def optimised(self) -> bool:
        """Whether a compiler has already decided what is fused."""
        return self.scheduled or any(
            one.opcode == "fusion"
            for body in self.bodies.values()
            for one in body.instructions.values()
        )
