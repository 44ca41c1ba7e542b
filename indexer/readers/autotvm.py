"""AutoTVM's logs (versions 0.2 and 0.1): one JSON record per line, one run of one template's knobs.

    {"input": [target, task, arguments, {}], "config": {"entity": [[knob, kind, value], ...]},
     "result": [costs, error number, seconds of the whole measurement, when], "version": 0.2}

Version 0.1 has `"i"` (target, task, arguments, {}, workload, config), `"r"` and `"e"` instead.

The kernel is built from the task (`indexer.readers.tensors.tvm_tasks`), so that it has features and
needs no file. In a configuration, `template` is the task's name, and each knob is a parameter. A
split (`sp`) gives one parameter per part, `tile_x_1` and so on, without the outermost: TVM ignores
it (`SplitEntity.apply`), and mostly logs it as -1. An order (`re`) and annotations (`an`) are their
words joined by `/`. Two knobs that a template has for some sizes or versions only are part of its
name: `conv2d_NCHWc.x86:1x1`. The instance is the target's `-model`, else `-mcpu`, else its kind;
costs are seconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from embeddb.core.config import Op
from embeddb.core.errors import ReaderError
from embeddb.core.files.safe_read import refusing
from indexer.readers.base.lines import json_lines
from indexer.readers.base.recognise import refuse_other, wrong_file
from indexer.readers.base.row import MatrixRef, ReadOptions, Reject, RunRow, config_of, integer
from indexer.readers.tensors.tvm_tasks import kernel_of_task
from indexer.readers.tvm import measured

_TILE = Op("tile")
_FIRST = re.compile(rb'\{\s*"(input|i)"\s*:\s*\[\s*"')
#: Knobs that a template has for some sizes or versions only, and the suffix of its name then.
_VARIANTS = {"tile_oh": "1x1", "tile_inner": "inner"}
_BACKENDS = {"llvm": "cpu", "c": "cpu"}


class AutoTvmReader:
    """Reader of AutoTVM's logs; unsupported tasks are rejected with the template's name."""

    name = "autotvm"
    platform = "autotvm"
    generic = False

    def sniff(self, path: Path, head: bytes) -> bool:
        lines = [line for line in head.split(b"\n") if line.strip() and line[:1] != b"#"]
        return bool(lines) and _FIRST.match(lines[0]) is not None

    def rows(self, path: Path, *, options: ReadOptions) -> Iterator[RunRow | Reject]:
        refuse_other(self, path)
        kernels: dict[bytes, MatrixRef] = {}
        facts: dict[str, dict[str, str]] = {}
        good = False
        for line, record in json_lines(path):
            if isinstance(record, Reject):
                yield record
                continue
            try:
                with refusing(ReaderError):
                    target, task, arguments, entity, result = _parts(record)
                    good = True
                    kernel = _kernel(task, arguments, kernels)
                    config = config_of(_knobs(task, entity))
                    measurement = measured(result, target)
            except ReaderError as error:
                if not good and not isinstance(record, dict):
                    raise wrong_file(path, self.name, "a line that is no object") from None
                yield Reject(line, error.reason, msgspec.json.encode(record).decode()[:200])
                continue
            device_facts = facts.setdefault(target, _facts(target))
            instance = options.instance or _instance(target)
            yield RunRow(kernel, _TILE, config, measurement, line, instance, facts=device_facts)


def _parts(record: Any) -> tuple[str, str, list[Any], list[Any], Any]:
    """Target, task, its arguments, the knobs, the result. Raises: ReaderError."""
    try:
        if "input" in record:
            target, task, arguments, *_ = record["input"]
            entity, result = record["config"]["entity"], record["result"]
        else:
            target, task, arguments, _, _, config = record["i"]
            entity, result = config["e"], record["r"]
    except (LookupError, TypeError, ValueError) as error:
        raise ReaderError(f"fields are missing ({error})") from None
    texts = isinstance(target, str) and isinstance(task, str)
    if not texts or not isinstance(arguments, list) or not isinstance(entity, list):
        raise ReaderError("target and task must be texts, arguments and knobs lists")
    return target, task, arguments, entity, result


def _kernel(task: str, arguments: list[Any], kernels: dict[bytes, MatrixRef]) -> MatrixRef:
    """The kernel of a task, one object for all its rows, so that its facts are looked up once."""
    key = msgspec.json.encode([task, arguments])
    reference = kernels.get(key)
    if reference is None:
        kernel = kernel_of_task(task, arguments)
        reference = kernels[key] = MatrixRef(kernel.name, group=kernel.name, content=kernel)
    return reference


def _knobs(task: str, entity: Sequence[Any]) -> Mapping[str, Any]:
    config: dict[str, Any] = {}
    variant = ""
    for knob in entity:
        name, kind, raw = knob
        variant = variant or _VARIANTS.get(name, "")
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


def _instance(target: str) -> str:
    for option in ("model", "mcpu"):
        option_value = re.search(rf"-{option}=(\S+)", target)
        if option_value and option_value[1] != "unknown":
            return option_value[1][:60]
    return _kind(target)


def _facts(target: str) -> dict[str, str]:
    kind = _kind(target)
    return {"backend": _BACKENDS.get(kind, kind)} if kind else {}


def _kind(target: str) -> str:
    return target.split(None, 1)[0][:60] if target.strip() else ""


PLUGIN = AutoTvmReader
