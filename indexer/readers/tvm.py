"""Logs of TVM: records of auto_scheduler, and of AutoTVM, one JSON record per line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import msgspec

from embeddb.core.config import Op
from embeddb.core.errors import ReaderError, TensorError, UsageError
from embeddb.core.files.safe_read import refusing
from embeddb.core.records import Measurement
from embeddb.tensors.check import computation
from embeddb.tensors.tensor_graph import Attribute, Operation, Shape, TensorGraph
from indexer.readers.base.lines import json_lines, refuse_other, wrong_file
from indexer.readers.base.row import (
    MatrixRef,
    Reader,
    ReadOptions,
    Reject,
    RunRow,
    config_of,
    integer,
    seconds,
)
from indexer.readers.base.units import number

#: `MeasureErrorNo` of auto_scheduler and of AutoTVM: our status and a description by error number.
_ERRORS = {
    1: ("invalid", "instantiation error"),
    2: ("build", "host compilation error"),
    3: ("build", "device compilation error"),
    4: ("crash", "run time error on the device"),
    5: ("wrong", "wrong answer"),
    6: ("timeout", "build timeout"),
    7: ("timeout", "run timeout"),
    8: ("crash", "unknown error"),
}
_FLOATS = {"float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16"}
_WHOLES = {"int8": "s8", "uint8": "u8", "int16": "s16", "int32": "s32", "int64": "s64"}
_DTYPES = _FLOATS | _WHOLES


def _begins(head: bytes, pattern: bytes) -> bool:
    """True if the first line that is neither blank nor a comment begins so."""
    lines = (line for line in head.split(b"\n") if line.strip() and line[:1] != b"#")
    return re.match(pattern, next(lines, b"")) is not None


def _rows(
    reader: Reader,
    path: Path,
    parts_of: Callable[[Any], Any],
    row_of: Callable[[Any, int], RunRow],
    why_other: Callable[[Any], str],
) -> Iterator[RunRow | Reject]:
    """Rows by two steps, which raise ReaderError: the parts of a record, and the row of these and
    its line. Until a record has parts, `why_other` may say that one shows another format."""
    refuse_other(reader, path)
    good = False
    for line, record in json_lines(path):
        if isinstance(record, Reject):
            yield record
            continue
        try:
            with refusing(ReaderError):
                parts = parts_of(record)
                good = True
                row = row_of(parts, line)
        except ReaderError as error:
            if not good and (why := why_other(record)):
                raise wrong_file(path, reader.name, why) from None
            yield Reject(line, error.reason, msgspec.json.encode(record).decode()[:200])
            continue
        yield row


class TvmReader:
    """auto_scheduler's records (`i`, `r`, `v`) of `sparse_dense` workloads; others are rejected by
    name.

    `sparse_dense(M, N, K, data, indices, indptr, dtype)` multiplies a dense M x K matrix with the
    transpose of a sparse N x K one in BSR form: an SpMM with M dense columns on an N x K matrix
    that stores `data` entries (zeros inside blocks count). The workload names shapes, not the
    matrix, so the name comes from the record's input tensors if it has any, else from the shapes.

    The configuration is the schedule's transform steps as one canonical JSON text in the parameter
    `steps` (equal steps are equal configurations). The target's string is in the measurement's
    context. Costs are seconds per repeat.
    """

    name = "tvm"
    platform = ""
    generic = False

    def sniff(self, path: Path, head: bytes) -> bool:
        return _begins(head, rb'\{\s*"i"\s*:\s*\[\s*\[')

    def rows(self, path: Path, *, options: ReadOptions) -> Iterator[RunRow | Reject]:
        def row(parts: Any, line: int) -> RunRow:
            matrix, op, config, measurement = parts
            return RunRow(matrix, op, config, measurement, line, options.instance)

        def why_other(record: Any) -> str:
            ours = isinstance(record, dict) and {"i", "input"} & set(record)
            return "" if ours else 'a line without "i" and "r"'

        yield from _rows(self, path, _run, row, why_other)


def _run(record: Any) -> tuple[MatrixRef, Op, dict[str, Any], Measurement]:
    try:
        matrix, op = _workload(record)
        steps = json.dumps(record["i"][1][1], separators=(",", ":"))
        return matrix, op, {"steps": steps}, measured(record["r"], str(record["i"][0][1]))
    except (LookupError, TypeError) as error:
        raise ReaderError(f"fields are missing ({error})") from None


def _workload(record: Any) -> tuple[MatrixRef, Op]:
    if "input" in record:
        raise ReaderError("an AutoTVM record, not one of auto_scheduler: --format autotvm")
    task = record["i"][0]
    try:
        workload = json.loads(task[0])
    except (ValueError, RecursionError):
        raise ReaderError("the workload is not JSON") from None
    if workload[0] != "sparse_dense":
        raise ReaderError(f"workload {str(workload[0])[:60]!r}; only sparse_dense is read")
    width, m, n = (integer(size) for size in workload[1:4])
    data = [integer(size) for size in workload[4]]
    nnz = prod(data)
    dtype = str(workload[7])
    if min(m, n, nnz) < 0 or dtype not in _FLOATS:
        raise ReaderError(f"a negative size, or the value type {dtype!r}")
    block = "x".join(map(str, data[1:]))
    name = _tensor_name(task) or f"sparse_dense_{m}x{n}_{nnz}_{block}"
    try:
        return MatrixRef(name, m, n, nnz, name), Op("spmm", width, _FLOATS[dtype])
    except UsageError as error:
        raise ReaderError(str(error)) from None


def _tensor_name(task: list[Any]) -> str:
    """The common name of the inputs `X_W_data`, `X_W_indices`, `X_W_indptr`."""
    inputs = task[5] if len(task) > 5 else []
    names = [str(name).removesuffix("_data") for name in inputs if str(name).endswith("_data")]
    return names[0].removesuffix("_W") if names else ""


def measured(result: Any, target: str) -> Measurement:
    """Measurement of TVM's `MeasureResult`: seconds, number of the error, seconds of the whole
    measurement, time stamp. The target's string is stored as context.

    Raises: ReaderError, and TypeError, ValueError where it is no list of four.
    """
    costs, error, _, stamp = result
    context: dict[str, float | str] = {"target": target}
    when = number(stamp)
    if error:
        status, why = _ERRORS.get(error, ("crash", f"error {error}"))
        return Measurement(status, (), "imported", when=when, error=why, context=context)
    if not isinstance(costs, list) or not costs:
        raise ReaderError("no cost and no error")
    times = tuple(seconds(one) for one in costs)
    return Measurement("ok", times, "imported", when=when, context=context)


_PLAIN_LAYOUT = re.compile(r"(NC|OI)HW(\d*[a-z])*")
Pair = tuple[int, int]


def kernel_of_task(task: str, arguments: Sequence[Any]) -> TensorGraph:
    """The kernel of a task, named by operator and sizes, so that equal names are equal kernels.

    Raises: ReaderError (reason only) for an unknown operator or unsuitable arguments.
    """
    operator = re.sub(r"^topi_(nn|x86)_", "", task).partition(".")[0]
    for pattern, build in _OPERATORS.items():
        if re.fullmatch(pattern, operator):
            try:
                return build(arguments)
            except TensorError as error:
                raise ReaderError(error.reason) from None
            except (LookupError, TypeError, ValueError) as error:
                raise ReaderError(f"unsuitable arguments of {task[:60]} ({error})") from None
    raise ReaderError(f"the template {task[:60]!r} is not supported")


def _dense(arguments: Sequence[Any]) -> TensorGraph:
    """data [m, k], weight [n, k] (or packed: [n / c, k, c]), bias or null, type of the result."""
    data, weight = _tensor(arguments[0]), _tensor(arguments[1])
    if weight.rank == 3:
        outer, terms, inner = weight.dims
        weight = Shape(weight.dtype, (outer * inner, terms))
    if (data.rank, weight.rank) != (2, 2) or data.dims[1] != weight.dims[1]:
        raise ReaderError(f"{data} and {weight} have no product")
    result = Shape(_result(arguments[2:], data), (data.dims[0], weight.dims[0]))
    contracted = {"lhs_contracting": (1,), "rhs_contracting": (1,)}
    operations = [*_inputs(data, weight), Operation("dot", (result,), (0, 1), contracted)]
    biased = len(arguments) > 2 and isinstance(arguments[2], list)
    if biased:
        bias = Shape(_tensor(arguments[2]).dtype, (result.dims[1],))
        wide = Shape(bias.dtype, result.dims)
        operations += [
            Operation("parameter", (bias,), (), {"number": 2}),
            Operation("broadcast", (wide,), (3,), {"dimensions": (1,)}),
            Operation("add", (result,), (2, 4)),
        ]
    return _named("dense", operations, ["bias"] if biased else [])


def _batch_matmul(arguments: Sequence[Any]) -> TensorGraph:
    """x [b, m, k], y [b, n, k], sizes of the result, its type, then a flag each for x and y:
    transposed (no, yes)."""
    x, y = _tensor(arguments[0]), _tensor(arguments[1])
    turned = [flag for flag in arguments[2:] if isinstance(flag, bool)] or [False, True]
    if (x.rank, y.rank, len(turned)) != (3, 3, 2):
        raise ReaderError(f"{x} and {y} are no batches of matrices")
    k_of_x, k_of_y = (1 if turned[0] else 2), (2 if turned[1] else 1)
    if x.dims[0] != y.dims[0] or x.dims[k_of_x] != y.dims[k_of_y]:
        raise ReaderError(f"{x} and {y} have no products one by one")
    result = Shape(_result(arguments[2:], x), (x.dims[0], x.dims[3 - k_of_x], y.dims[3 - k_of_y]))
    attributes: dict[str, Attribute] = {
        "lhs_batch": (0,),
        "rhs_batch": (0,),
        "lhs_contracting": (k_of_x,),
        "rhs_contracting": (k_of_y,),
    }
    operations = [*_inputs(x, y), Operation("dot", (result,), (0, 1), attributes)]
    return _named("batch_matmul", operations, ["xt"] * turned[0] + ["y"] * (not turned[1]))


def _convolution(arguments: Sequence[Any]) -> TensorGraph:
    """data [n, c, h, w], weight [o, i, h, w] (or packed), strides, padding, dilation, perhaps the
    number of groups, layouts, and the type of the result."""
    weight = _unpacked(_tensor(arguments[1]), 2)
    return _convolved("conv2d", arguments, weight, _groups(arguments[5:]))


def _depthwise(arguments: Sequence[Any]) -> TensorGraph:
    """Kernel as by `_convolution` with one group per channel; weight [c, results per channel, h,
    w]."""
    weight = _unpacked(_tensor(arguments[1]), 2)
    channels, each = weight.dims[:2]
    turned = Shape(weight.dtype, (channels * each, 1, *weight.dims[2:]))
    return _convolved("depthwise_conv2d", arguments, turned, channels)


def _convolved(name: str, arguments: Sequence[Any], weight: Shape, groups: int) -> TensorGraph:
    data = _unpacked(_tensor(arguments[0]), 1)
    if any(isinstance(one, list) for one in arguments[5:]):
        raise ReaderError("arguments other than strides, padding and dilation are not read")
    if isinstance(arguments[4], str):  # logs of 2018 have no dilation
        arguments = [*arguments[:4], [1, 1], *arguments[4:]]
    for layout in arguments[5:]:
        if (
            isinstance(layout, str)
            and layout not in _DTYPES
            and not _PLAIN_LAYOUT.fullmatch(layout)
        ):
            raise ReaderError(f"the layout {layout[:20]!r} is not supported")
    stride, dilation = _pair(arguments[2]), _pair(arguments[4])
    low, high = _padding(arguments[3])
    if data.dims[1] != weight.dims[1] * groups or weight.dims[0] % groups:
        raise ReaderError(f"{weight} in {groups} groups is no filter of {data}")
    spans = [(weight.dims[2 + at] - 1) * dilation[at] + 1 for at in (0, 1)]
    padded = [data.dims[2 + at] + low[at] + high[at] for at in (0, 1)]
    if min(*stride, *dilation) < 1 or any(p < s for p, s in zip(padded, spans, strict=True)):
        raise ReaderError(f"the window {spans} does not fit into {padded}")
    sides = tuple((padded[at] - spans[at]) // stride[at] + 1 for at in (0, 1))
    result = Shape(_result(arguments[5:], data), (data.dims[0], weight.dims[0], *sides))
    attributes: dict[str, Attribute] = {
        "size": weight.dims[2:],
        "stride": stride,
        "low": low,
        "high": high,
        "lhs_dilate": (1, 1),
        "rhs_dilate": dilation,
        "labels": "bf01_oi01->bf01",
        "feature_groups": groups,
        "batch_groups": 1,
    }
    operations = [*_inputs(data, weight), Operation("convolution", (result,), (0, 1), attributes)]
    settings = [f"s{_times(stride)}", f"p{_times((*low, *high))}", f"d{_times(dilation)}"]
    return _named(name, operations, [*settings, f"g{groups}"])


#: Builders by a pattern of the operator's name.
_OPERATORS: dict[str, Callable[[Sequence[Any]], TensorGraph]] = {
    "dense(_(pack|nopack|small_batch|large_batch|tensorcore|int8|cblas|mkl|dnnl|cublas))?": _dense,
    "batch_matmul(_(tensorcore|int8|cblas|mkl|cublas))?": _batch_matmul,
    "depthwise_conv2d_(nchw|NCHWc)(_spatial_pack)?": _depthwise,
    "(group_)?conv2d(_(nchw|NCHWc))?(_(winograd|spatial_pack|cudnn|dnnl))?": _convolution,
}


def _tensor(raw: Any) -> Shape:
    tag, dims, dtype = raw
    if tag != "TENSOR" or dtype not in _DTYPES or not isinstance(dims, list):
        raise ReaderError(f"{str(raw)[:60]} is no array of a known type")
    sizes = tuple(integer(dim) for dim in dims)
    if min(sizes, default=0) < 1:
        raise ReaderError(f"an array of sizes {str(dims)[:60]}")
    return Shape(_DTYPES[dtype], sizes)


def _unpacked(shape: Shape, packed: int) -> Shape:
    """The shape in four dimensions; its `packed` leading channels may be split once more, with the
    inner parts last: [n, c, h, w, c'] and [o, i, h, w, i', o']."""
    if shape.rank == 4:
        return shape
    if shape.rank != 4 + packed:
        raise ReaderError(f"{shape} is no array of images or of filters")
    inner = shape.dims[4:]
    if packed == 1:
        n, c, *sides = shape.dims[:4]
        return Shape(shape.dtype, (n, c * inner[0], *sides))
    o, i, *sides = shape.dims[:4]
    return Shape(shape.dtype, (o * inner[1], i * inner[0], *sides))


def _groups(rest: Sequence[Any]) -> int:
    return next((n for n in rest if isinstance(n, int) and not isinstance(n, bool)), 1)


def _pair(raw: Any) -> Pair:
    both = raw if isinstance(raw, list) else [raw, raw]
    first, second = both
    return integer(first), integer(second)


def _padding(raw: Any) -> tuple[Pair, Pair]:
    """Before and after: one number, one a dimension, or [top, left, bottom, right]."""
    if raw == "VALID":
        return (0, 0), (0, 0)
    if isinstance(raw, list) and len(raw) == 4:
        return _pair(raw[:2]), _pair(raw[2:])
    return _pair(raw), _pair(raw)


def _result(rest: Sequence[Any], data: Shape) -> str:
    """Type named among the last arguments; else that of the data."""
    named = [word for word in rest if isinstance(word, str) and word in _DTYPES]
    return _DTYPES[named[-1]] if named else data.dtype


def _inputs(*shapes: Shape) -> list[Operation]:
    return [Operation("parameter", (s,), (), {"number": at}) for at, s in enumerate(shapes)]


def _named(operator: str, operations: list[Operation], settings: Sequence[str]) -> TensorGraph:
    """`dense_128x768_768x768`, `conv2d_1x3x224x224_64x3x7x7_s2x2_...`; types where not all are
    f32."""
    arrays = [op.shape for op in operations[:2]] + [operations[-1].shape]
    types = [shape.dtype for shape in arrays]
    types = [] if set(types) == {"f32"} else types
    parts = [operator, *(_times(shape.dims) for shape in arrays[:2]), *settings, *types]
    return computation(operations, [len(operations) - 1], name="_".join(parts))


def _times(sizes: Sequence[int]) -> str:
    return "x".join(map(str, sizes))


_TILE = Op("tile")
#: Knobs that a template has for some sizes or versions only, and the suffix of its name then.
_VARIANTS = {("tile_oh", "ot"): "1x1", ("tile_inner", "sp"): "inner"}
_BACKENDS = {"llvm": "cpu", "c": "cpu"}


class AutoTvmReader:
    """AutoTVM's logs (versions 0.2 and 0.1), one run of one template's knobs per line; unsupported
    tasks are rejected with the template's name.

        {"input": [target, task, arguments, {}], "config": {"entity": [[knob, kind, value], ...]},
         "result": [costs, error number, seconds of the whole measurement, when], "version": 0.2}

    Version 0.1 has `"i"` (target, task, arguments, {}, workload, config) and `"r"` instead; a way
    other than `direct` (`"t"`) is part of the template's name: `topi_nn_conv2d.winograd`.

    The kernel is built from the task, so that it has features and needs no file. In a
    configuration, `template` is the task's name, and each knob is a parameter. A split (`sp`) gives
    one parameter per part, `tile_x_1` and so on, without the outermost: TVM ignores it
    (`SplitEntity.apply`), and mostly logs it as -1. An order (`re`) and annotations (`an`) are
    their words joined by `/`. Two knobs that a template has for some sizes or versions only are
    part of its name: `conv2d_NCHWc.x86:1x1`. The instance is the target's `-model`, else `-mcpu`,
    else its kind; costs are seconds.

    A task is the function of an operator of TVM's library (TOPI): the name of a template
    (`conv2d_NCHWc.x86`, `topi_nn_dense` in logs of version 0.1) with the operator's arguments:
    arrays as `["TENSOR", [1, 64, 56, 56], "float32"]`, then strides, paddings and the like. The
    template is one way to compute the operator, so tasks of several templates are one kernel.
    Arrays whose channels a template has packed (`NCHWc`) are unpacked.
    """

    name = "autotvm"
    platform = "autotvm"
    generic = False

    def sniff(self, path: Path, head: bytes) -> bool:
        return _begins(head, rb'\{\s*("(r|result|v|version)"\s*:.*)?"(input|i)"\s*:\s*\[\s*"')

    def rows(self, path: Path, *, options: ReadOptions) -> Iterator[RunRow | Reject]:
        kernels: dict[bytes, MatrixRef] = {}

        def row(parts: Any, line: int) -> RunRow:
            target, task, arguments, entity, result = parts
            # One object for all rows of a kernel, so that its facts are looked up once.
            key = msgspec.json.encode([task, arguments])
            if key not in kernels:
                kernel = kernel_of_task(task, arguments)
                kernels[key] = MatrixRef(kernel.name, group=kernel.name, content=kernel)
            config, measurement = config_of(_knobs(task, entity)), measured(result, target)
            kind = target.split(None, 1)[0][:60] if target.strip() else ""
            facts = {"backend": _BACKENDS.get(kind, kind)} if kind else {}
            instance = options.instance or _machine(target) or kind
            return RunRow(kernels[key], _TILE, config, measurement, line, instance, facts=facts)

        def why_other(record: Any) -> str:
            return "" if isinstance(record, dict) else "a line that is no object"

        yield from _rows(self, path, _parts, row, why_other)


def _parts(record: Any) -> tuple[str, str, list[Any], list[Any], Any]:
    """Target, task, its arguments, the knobs, the result. Raises: ReaderError."""
    try:
        if "input" in record:
            target, task, arguments, *_ = record["input"]
            entity, result = record["config"]["entity"], record["result"]
        else:
            target, task, arguments, _, _, config = record["i"]
            entity, result, way = config["e"], record["r"], config.get("t", "direct")
            task = task if way in ("", "direct") else f"{task}.{way}"
    except (LookupError, TypeError, ValueError) as error:
        raise ReaderError(f"fields are missing ({error})") from None
    texts = isinstance(target, str) and isinstance(task, str)
    if not texts or not isinstance(arguments, list) or not isinstance(entity, list):
        raise ReaderError("target and task must be texts, arguments and knobs lists")
    return target, task, arguments, entity, result


def _machine(target: str) -> str:
    """The machine that a target names; empty if it names none."""
    for option in ("model", "mcpu"):
        named = re.search(rf"-{option}=(\S+)", target)
        if named and named[1] != "unknown":
            return named[1][:60]
    return ""


def _knobs(task: str, entity: Sequence[Any]) -> Mapping[str, Any]:
    config: dict[str, Any] = {}
    variant = ""
    for knob in entity:
        name, kind, raw = knob
        variant = variant or _VARIANTS.get((name, kind), "")
        if kind == "sp":
            parts = [integer(part) for part in raw]
            config |= {f"{name}_{at}": part for at, part in enumerate(parts) if at}
        elif kind in ("re", "an"):
            config[name] = "/".join(map(str, raw))
        elif kind == "ot":
            config[name] = raw
        else:
            raise ReaderError(f"knob {str(name)[:40]} is of the kind {str(kind)[:20]!r}")
    return {**config, "template": f"{task}:{variant}" if variant else task}


PLUGIN = TvmReader
