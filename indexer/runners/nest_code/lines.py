"""Lines of generated C."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Lines", "signature", "step"]

_WIDTH = 100


@dataclass
class Lines:
    """C, a line at a time."""

    told: list[str]
    depth: int = 1

    def add(self, *lines: str) -> None:
        self.told += [
            line if line.startswith("#") else "    " * self.depth + line for line in lines
        ]

    def open(self, line: str) -> None:
        self.add(line + " {")
        self.depth += 1

    def block(self) -> None:
        """Names inside are its own."""
        self.add("{")
        self.depth += 1

    def close(self) -> None:
        self.depth -= 1
        self.add("}")


def signature(head: str, parameters: list[str]) -> list[str]:
    """The head of a function, in lines that can be read."""
    line = f"{head}({', '.join(parameters)})"
    if len(line) <= _WIDTH:
        return [line]
    rest = [f"    {one}," for one in parameters[:-1]]
    return [f"{head}(", *rest, f"    {parameters[-1]})"]


def step(variable: str, by: int) -> str:
    return f"{variable}++" if by == 1 else f"{variable} += {by}"
