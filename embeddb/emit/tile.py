"""C libraries for a tile of a tensor kernel.

The kernel is that of `embeddb/kernels/tiles`, as measured; beside it is the untiled one, which the
test program compares with and also times.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from embeddb.core.config import Config, Op
from embeddb.core.errors import TensorError, UsageError
from embeddb.emit.library import checked_prefix, filled
from embeddb.kernels.accuracy import LARGE, kernel_error, may_jump, needs_positive, takes_large
from embeddb.kernels.emitter import INCLUDES, TOOLS, signature, timed
from embeddb.kernels.tiles.expressions import C_TYPES
from embeddb.kernels.tiles.generate import PRELUDE, arguments, c_function, flags
from embeddb.platforms.platform import load_platform, space_of
from embeddb.tensors.tensor_graph import TensorGraph
from embeddb.tensors.tiles import Tile, untiled, why_not
from embeddb.tensors.tiling.plan import plan_of

#: Factor on the rounding error allowed relative to the largest element; and the inverse share of
#: elements that may differ if rounding changes a decision.
_MARGIN, _TURNED = 4.0, 1000


class TileLibrary:
    """C library of a kernel with one tile. Public names have the prefix `prefix`, or the kernel's.

    Raises: TensorError for a kernel without tiles; UsageError for an illegal tile or prefix.
    """

    def __init__(self, kernel: TensorGraph, config: Config, *, prefix: str = "") -> None:
        if reason := why_not(kernel):
            raise TensorError(f"{kernel.name or kernel.id[:12]} has no tiles: {reason}")
        plain = re.sub(r"\W+", "_", f"embeddb_{kernel.name or kernel.id[:12]}", flags=re.A)
        self.prefix = checked_prefix(prefix or plain[:40])
        space = space_of(load_platform("tile-cpu"), Op("tile"), kernel)
        if (illegal := space.reason(config)) is not None:
            raise UsageError(f"{config} is no tile of {kernel.name}: {illegal}")
        self.kernel, self.config = kernel, config
        self.tile = Tile.of(config, len(untiled(kernel).sizes))

    def files(self, made_from: str = "") -> dict[str, str]:
        """Contents by file name; `made_from`, for the README: the origin of the tile."""
        p = self.prefix
        arrays = [f"   {line}" for line in self._arrays()]
        marks = {
            "FROM": f" from {made_from}" if made_from else "",
            "NAME": _comment(self.kernel.name or self.kernel.id),
            "CONFIG": str(self.config),
            "ARRAYS": "\n".join(arrays),
            "RUN": self._run(p),
            "NAMES": ", ".join(name for name, _ in self._named()),
            "FAST": " ".join(flags()),
            "p": p,
            "P": p.upper(),
        }
        return {
            f"{p}.h": filled("tile.h", marks),
            f"{p}.c": self._source(p, self.tile),
            "untiled.c": self._source(f"{p}_untiled", untiled(self.kernel)),
            "test.c": filled("tile_test.c", {**self._test(), **marks}),
            "Makefile": filled("tile_Makefile", marks),
            "README.md": filled("tile_README.md", marks),
            "LICENSE": filled("LICENSE", {}),
        }

    def _named(self) -> list[tuple[str, int]]:
        """C names of parameters and outputs, with their positions in the kernel."""
        parameters = [(f"p{n}", at) for n, at in enumerate(self.kernel.parameters)]
        return parameters + [(f"o{n}", at) for n, at in enumerate(self.kernel.outputs)]

    def _arrays(self) -> Iterator[str]:
        for name, at in self._named():
            word = self.kernel.names[at] if self.kernel.names else f"operation {at}"
            shape = self.kernel.operations[at].shape
            order = " x ".join(str(shape.dims[d]) for d in reversed(shape.layout)) or "1"
            yield f"{name}: {_comment(word)}, {shape}: {C_TYPES[shape.dtype]}, {order} in memory"

    def _run(self, function: str) -> str:
        parts = []
        for name, at in self._named():
            const = "const " if name.startswith("p") else ""
            parts.append(f"{const}{C_TYPES[self.kernel.operations[at].shape.dtype]} *{name}")
        return "\n".join(signature(f"void {function}_run", [*parts, "void *scratch"]))

    def _source(self, function: str, tile: Tile) -> str:
        plan = plan_of(self.kernel)
        sizes = plan.whole(tile.sizes)
        marks = {
            "KERNEL": c_function(self.kernel, tile, f"{function}_kernel"),
            "RUN": self._run(function),
            "SCRATCH": str(sum(plan.bytes(stage, sizes) for stage in plan.stages)),
            "POINTERS": ", ".join(f"(void *){name}" for name, _ in self._named()),
            "ARGUMENTS": arguments(self.kernel, tile),
            "NAME": _comment(self.kernel.name or self.kernel.id),
            "CONFIG": str(tile.config),
            "PRELUDE": PRELUDE,
            "FUNCTION": function,
        }
        return filled("tile.c", marks)

    # -- the test program --------------------------------------------------------------------------

    def _test(self) -> dict[str, str]:
        return {
            "TOOLS": "\n".join([*(f"#include <{name}>" for name in INCLUDES[1:]), "", TOOLS]),
            "UNTILED": self._run(f"{self.prefix}_untiled"),
            "EXACT": self._run(f"{self.prefix}_exact"),
            "TOLERANCE": repr(_MARGIN * kernel_error(self.kernel)),
            "BODY": "\n".join(f"    {line}" if line else "" for line in self._main()),
        }

    def _main(self) -> Iterator[str]:
        p, kernel = self.prefix, self.kernel
        for name, at in self._named():
            shape = kernel.operations[at].shape
            c = C_TYPES[shape.dtype]
            yield f"{c} *{name} = room({shape.bytes});"
            if name.startswith("o"):
                yield f"{c} *plain_{name} = room({shape.bytes});"
                continue
            yield f"for (uint64_t x = 0; x < {shape.elements}; x++)"
            yield f"    {name}[x] = ({c})({self._number(shape.dtype, name[1:])});"
            if takes_large(kernel, shape):
                yield f"{name}[0] = -{LARGE}, {name}[{shape.elements - 1}] = {LARGE};"
        tests = [(name, at) for name, at in self._named() if name.startswith("o")]
        inputs = [name for name, _ in self._named() if name.startswith("p")]
        calls = {}
        for function, outputs in (
            (f"{p}_untiled", [f"plain_{name}" for name, _ in tests]),
            (p, [name for name, _ in tests]),
        ):
            yield f"void *{function}_room = room({function}_scratch() + 1);"
            calls[function] = f"{function}_run({', '.join([*inputs, *outputs])}, {function}_room);"
            yield calls[function]
        yield calls[f"{p}_untiled"].replace(f"{p}_untiled_run", f"{p}_exact_run")
        yield "int failed = 0;"
        for name, at in tests:
            yield from _compared(name, kernel.operations[at].shape.elements, may_jump(kernel))
        for function, call in calls.items():
            yield "{"
            yield from (f"    {line}" for line in timed(call))
            word = "untiled" if function != p else "tiled"
            text = f'"{word}: %.9f s, median of %d calls, %.9f to %.9f s\\n"'
            yield f"    printf({text}, taken[calls / 2], calls, taken[0], taken[calls - 1]);"
            yield "}"
            yield f"free({function}_room);"
        for name in (*inputs, *(n for n, _ in tests), *(f"plain_{n}" for n, _ in tests)):
            yield f"free({name});"
        yield 'puts(failed ? "failed" : "passed");'
        yield "return failed;"

    def _number(self, dtype: str, number: str) -> str:
        if dtype == "pred":
            return f"hash(x, {number}) % 2"
        if not dtype.startswith("f"):
            return f"hash(x, {number}) % 8"
        real = f"real(hash(x, {number}))"
        return f"{real} + 0.25" if needs_positive(self.kernel) else f"2 * {real} - 1"


def _compared(name: str, elements: int, jumps: bool) -> Iterator[str]:
    yield "{"
    yield "    double largest = 0;"
    yield "    int64_t wrong = 0;"
    yield f"    for (uint64_t x = 0; x < {elements}; x++)"
    yield f"        if (isfinite((double)plain_{name}[x]))"
    yield f"            largest = fmax(largest, fabs((double)plain_{name}[x]));"
    yield f"    for (uint64_t x = 0; x < {elements}; x++)"
    yield f"        wrong += apart((double){name}[x], (double)plain_{name}[x], largest);"
    yield f"    failed |= wrong > {elements // _TURNED + 1 if jumps else 0};"
    yield f'    printf("{name}: %lld of {elements} elements differ\\n", (long long)wrong);'
    yield "}"


def _comment(text: str) -> str:
    """Untrusted text without characters that end a comment."""
    return re.sub(r"[^\w .,:/()<>=+-]", "_", text).replace("*/", "__").replace("/*", "__")
