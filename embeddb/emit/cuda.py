"""CUDA C++ libraries for configurations of the platform `cuda`.

Kernels are those of `embeddb/kernels/cuda`; around them the library has in C++ what Python does
elsewhere: checks, formats (`forms.py`), launches (`product.py`), and codes in place of exceptions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from embeddb.core.config import Config, Op
from embeddb.core.errors import UsageError
from embeddb.emit.library import PACK, TITLES, RuleText, checked_prefix, filled
from embeddb.kernels.cuda.nvrtc import source
from embeddb.kernels.cuda.plan import BLOCK_COLUMNS, SIZES, TYPES, Plan, plan

#: Names of layouts in the C++ enumeration, if not the upper-case name.
_LAYOUTS = {"csr": "PLAIN"}
#: C type and description of a value in the header.
_VALUES = {
    "f32": ("float", "float"),
    "f64": ("double", "double"),
    "f16": ("uint16_t", "IEEE half, as its bits: the address of a __half may be cast"),
    "bf16": ("uint16_t", "bfloat16, as its bits: the address of a __nv_bfloat16 may be cast"),
}
_OPERANDS = {
    "spmm": "b has n rows, the result m",
    "spmv": "x has n values, the result m",
    "sddmm": "c has m rows, b has n; the result has a value for each of the matrix",
}
_EXAMPLE = """\
int multiply(int64_t m, int64_t n, int64_t nnz, const int32_t *ptr, const int32_t *col,
    const @p@_value *val, {dense}, cudaStream_t stream)
{{
    @p@_matrix *a;
    int code = @p@_create(&a, m, n, nnz, ptr, col, val);
    if (code == @P@_OK)
        code = @p@_run(a, {arguments}, stream);
    cudaStreamSynchronize(stream); /* before the matrix goes */
    @p@_destroy(a);
    return code; /* @p@_message(code) is what it means */
}}"""
_DENSE = {
    "spmm": ("const @p@_value *b, @p@_value *d", "b, d"),
    "spmv": ("const @p@_value *x, @p@_value *y", "x, y"),
    "sddmm": ("const @p@_value *c, const @p@_value *b, @p@_value *values", "c, b, values"),
}
_SUMS = """ Sums are added up in memory of
  the matrix: it may run in one stream at a time."""
_FILLED = """ In windows, a NaN or infinity in a
  row of B reaches every row of a window that has its column, also one without an entry there."""


class CudaLibrary:
    """CUDA C++ library of configurations of one operation: a single one, or those that `rule`
    chooses among, the first of which replaces formats that would be mostly fill. Public names have
    the prefix `prefix`, or the operation's. `architecture`: nvcc's name of the GPU, `sm_90`.

    Raises: SpaceError for a configuration without a kernel; UsageError for an operation without
    code, for cuSPARSE, and for an invalid prefix.
    """

    def __init__(
        self,
        op: Op,
        configs: Sequence[Config],
        *,
        prefix: str = "",
        rule: RuleText | None = None,
        architecture: str = "",
    ) -> None:
        if op.name not in TITLES or op.dtype not in TYPES:
            hint = "spmm, sddmm and spmv, in f32, f64, f16 and bf16: sddmm:64:f64"
            raise UsageError(f"no GPU code for {op}", hint=hint)
        self.op, self.rule = op, rule
        self.prefix = checked_prefix(prefix or f"embeddb_{op.name}_{op.dtype}_cuda")
        self.architecture = architecture or "native"
        self.configs = list(configs)
        self.plans = [plan(config, op) for config in configs]
        if any(one.algorithm for one in self.plans):
            hint = "call cusparseSpMM or cusparseSpMV, or give a configuration with another work"
            raise UsageError("work=cusparse is NVIDIA's library and cannot be emitted", hint=hint)

    def files(self, made_from: str = "") -> dict[str, str]:
        """Contents by file name. `made_from`, for the README: the origin of the configurations."""
        p, kernel = self.prefix, self.op.name
        types = self.op.dtype if self.op.dtype in ("f16", "bf16") else "plain"
        test = {
            "TYPES": filled(f"cuda_{types}_types.cu", {}),
            "CHECKING": filled(f"cuda_check_{kernel}.cu", {}),
            # The subnormal numbers of half precision are 6e-8 apart.
            "LEAST": "1e-7" if self.op.dtype == "f16" else "1e-300",
        }
        written = {
            f"{p}.h": self._filled("cuda_header.h", {"RUN": filled(f"cuda_{kernel}.h", {})}),
            f"{p}.cu": self._filled("cuda_matrix.cu", self._matrix_parts()),
            "test.cu": self._filled("cuda_test.cu", test),
            "Makefile": self._filled("cuda_Makefile", {}),
            "README.md": self._filled("cuda_README.md", self._readme_parts(made_from)),
            "LICENSE": filled("LICENSE", {}),
        }
        if self.rule is not None:
            written[f"{p}_rule.h"] = self.rule.header
        return written

    def _filled(self, name: str, parts: Mapping[str, str]) -> str:
        """A template with its marks replaced: first by `parts`, which may have marks themselves."""
        value, description = _VALUES[self.op.dtype]
        columns = f"{self.op.width} dense columns"
        marks = {
            **parts,
            "TITLE": f"{TITLES[self.op.name]}, in {description.partition(',')[0]}",
            "VALUE": f"/* Values: {description}. */\ntypedef {value} @p@_value;",
            "TYPE": description,
            "WIDTH": "one dense column" if self.op.name == "spmv" else columns,
            "TOLERANCE": repr(max(one.tolerance for one in self.plans)),
            "SAMPLED": "true" if self.op.name == "sddmm" else "false",
            "K": str(self.op.width),
            "ARCH": self.architecture,
            "p": self.prefix,
            "P": self.prefix.upper(),
        }
        return filled(name, marks)

    def _matrix_parts(self) -> dict[str, str]:
        spmm, sddmm = self.op.name == "spmm", self.op.name == "sddmm"
        stored, rule = TYPES[self.op.dtype], self.rule
        rounds = any(one.wide for one in self.plans)
        launched = "launch((const void *)@p@_round, blocks_for(results), 256, 0, args, stream)"
        return {
            "SOURCE": source(),
            "INSTANCES": "\n".join(self._instances(stored, rounds)),
            "FORMATS": filled("cuda_formats.cu", {}),
            "SPECS": "\n".join(map(self._spec, range(len(self.plans)))),
            "COLUMN_BLOCKS": "(@P@_WIDTH + of.tile - 1) / of.tile" if spmm else "1",
            "INCLUDE": "" if rule is None else '#include "@p@_rule.h"',
            "CHOOSING": "" if rule is None else filled("cuda_chosen.cu", {}),
            "CHOICE": "prepare(made, specs[0], csr, val)"
            if rule is None
            else "chosen(made, csr, val)",
            "RULE": "" if rule is None else rule.function,
            "ALIGNED_OUT": "nullptr" if sddmm else "out",
            "ROUND": launched if rounds else "@P@_OK",
            "RUNNING": filled(f"cuda_{self.op.name}.cu", {}),
        }

    def _kernels(self) -> dict[str, int]:
        """Numbers of kernel instances; configurations that differ only in the launch share one."""
        return {
            template: n for n, template in enumerate(dict.fromkeys(p.template for p in self.plans))
        }

    def _instances(self, stored: str, rounds: bool) -> list[str]:
        lines = [f"KERNEL(@p@_kernel_{n}, {one})" for one, n in self._kernels().items()]
        places = dict.fromkeys(place for one in self.plans if (place := _place_type(one)))
        lines += [f"KERNEL(@p@_place_{place}, placed<{stored}, {place}>)" for place in places]
        return [*lines, *([f"KERNEL(@p@_round, rounded<{stored}>)"] if rounds else [])]

    def _spec(self, at: int) -> str:
        """A row of the table of configurations."""
        one, form = self.plans[at], self.plans[at].form
        place = _place_type(one)
        sizes = {TYPES[name]: size for name, size in SIZES.items()}
        values = {
            "configuration": f'"{self.configs[at]}"',
            "kernel": f"(const void *)@p@_kernel_{self._kernels()[one.template]}",
            "place": f"(const void *)@p@_place_{place}" if place else "nullptr",
            "value_bytes": sizes[place] if place else SIZES[self.op.dtype],
            "layout": _LAYOUTS.get(form.layout, form.layout.upper()),
            "reorder": form.reorder.upper(),
            "piece": form.piece,
            "sigma": form.sigma,
            "window": form.window,
            "wide": BLOCK_COLUMNS.get(form.math, 0),
            "sampled": str(form.sampled).lower(),
            "block": one.block,
            "per_block": one.per_block,
            "tile": one.tile,
            "alignment": min(16, one.vec * SIZES[self.op.dtype]),
            "shared_bytes": one.shared_bytes,
            "columns_fast": str(one.columns_fast).lower(),
            "rounds": str(one.wide).lower(),
        }
        lines = "\n".join(f"        {value}, /* {name} */" for name, value in values.items())
        return f"    {{\n{lines}\n    }},"

    def _readme_parts(self, made_from: str) -> dict[str, str]:
        dense, arguments = _DENSE[self.op.name]
        sampled = self.op.name == "sddmm"
        adds = any(one.form.layout == "entries" or one.form.piece for one in self.plans)
        steps = (min(16, one.vec * SIZES[self.op.dtype]) for one in self.plans)
        inexact = any(not one.form.exact for one in self.plans) and not sampled
        return {
            "FROM": f" from {made_from}" if made_from else "",
            "EXAMPLE": _EXAMPLE.format(dense=dense, arguments=arguments),
            "OPERANDS": _OPERANDS[self.op.name],
            "STEP": str(max(steps)),
            "SUMS": _SUMS if any(one.wide for one in self.plans) else "",
            "FILLED": _FILLED if inexact else "",
            "ORDER": "it varies where rows are shared, and with it the last bits"
            if adds and not sampled
            else "the same in every call, and so are the bits",
            "PACK": PACK if self.rule is not None else "",
            "CONFIGS": "\n".join(f"    {config}" for config in self.configs),
        }


def _place_type(one: Plan) -> str:
    """C++ type of the values that a format stores in its own order; empty if in that of CSR."""
    if one.form.layout == "slices" or (one.form.layout == "windows" and not one.form.sampled):
        return one.form.math if one.form.math in ("bf16", "f16") else TYPES[one.op.dtype]
    return ""
