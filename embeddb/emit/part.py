"""A configuration of the CPU platform as a part of a library in C."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from embeddb.core.config import Config, Op
from embeddb.kernels.codegen import SCHEDULES, Launch, plan
from embeddb.kernels.variant import Variant

__all__ = ["Part", "parts_of"]

_CONVERSIONS = {"csc": "columns", "dcsr": "panels", "bcsr": "blocks"}


@dataclass(frozen=True, slots=True)
class Part:
    """A configuration, with the number of its kernel: configurations that differ only in how they
    are launched share one."""

    config: Config
    variant: Variant
    launch: Launch
    kernel: int

    @property
    def conversion(self) -> str:
        """The name of what brings CSR into its form: that of a text, and of its function."""
        form = self.launch.form
        if form.format == "csr":
            return "plain" if form.reorder == "none" else form.reorder
        return _CONVERSIONS.get(form.format, "slices")

    @property
    def fills(self) -> bool:
        """Whether values that only fill its form take part in sums."""
        return self.variant.form in ("bcsr", "sell", "ell") and self.variant.kernel != "sddmm"

    def row(self, prefix: str) -> str:
        """Its row in the table of the library."""
        launch, form = self.launch, self.launch.form
        values = {
            "configuration": f'"{self.config}"',
            "kernel": f"{prefix}_kernel_{self.kernel}",
            "convert": f"to_{self.conversion}",
            "block_rows": form.block[0],
            "block_columns": form.block[1],
            "panel": form.panel,
            "slice": form.slice,
            "sigma": form.sigma,
            "equal": int(form.format == "ell"),
            "one": int(launch.threads == "one"),
            "schedule": SCHEDULES[launch.schedule],
            "chunk": launch.chunk,
            "strip": max(1, launch.strip // form.rows),
            "pieces": launch.pieces,
        }
        lines = "\n".join(f"        .{name} = {value}," for name, value in values.items())
        return f"    {{\n{lines}\n    }},"


def parts_of(configs: Sequence[Config], op: Op, vector_bytes: int) -> list[Part]:
    """In the same order. Raises: SpaceError for a configuration that is none."""
    kernels: dict[Variant, int] = {}
    made = []
    for config in configs:
        variant, launch = plan(config, op, vector_bytes=vector_bytes)
        number = kernels.setdefault(variant, len(kernels))
        made.append(Part(config, variant, launch, number))
    return made
