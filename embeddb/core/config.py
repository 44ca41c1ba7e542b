"""Operations (`Op`) and configurations (`Config`): two parts of every key, beside the workload."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import ItemsView, Iterator, KeysView, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from operator import index
from typing import Any

from embeddb.core.arguments import require
from embeddb.core.errors import UsageError
from embeddb.core.kinds import Operation, WorkloadKind, operation_of

#: A parameter's value. Permutations are tuples of names.
Value = int | float | str | bool | tuple[str, ...]

_MOST_COLUMNS = 1 << 20
#: Value types, and their names in logs and other libraries.
_DTYPES = {
    "f32": ("float32", "fp32", "float", "single"),
    "f64": ("float64", "fp64", "double"),
    "f16": ("float16", "fp16", "half"),
    "bf16": ("bfloat16",),
    "tf32": ("tensorfloat32",),
    "c64": ("complex64",),
    "c128": ("complex128",),
}
_DTYPE_OF = {name: dtype for dtype, names in _DTYPES.items() for name in (dtype, *names)}


@dataclass(frozen=True, slots=True, order=True, repr=False)
class Op:
    """An operation, its number of dense columns and its value type; `Op.parse("spmm:128")`.

    `width` is 1 for SpMV and for operations whose workload has its own arrays. The text form is
    `NAME:WIDTH` with `:DTYPE` appended unless f32.
    """

    name: str
    width: int = 1
    dtype: str = "f32"
    _text: str = field(init=False, compare=False)

    def __post_init__(self) -> None:
        kernel, width, dtype = self.name, _whole(self.width), self.dtype
        require("name", kernel, str, "the name of an operation")
        require("dtype", dtype, str, "the name of a value type")
        traits, _ = operation_of(kernel)
        if dtype not in _DTYPES:
            raise UsageError(
                f"no value type {dtype!r}: one of {', '.join(_DTYPES)}",
                hint=f"read too: {', '.join(name for name in _DTYPE_OF if name not in _DTYPES)}",
            )
        if not 1 <= width <= _MOST_COLUMNS or (width != 1 and not traits.wide):
            hint = f"1 to {_MOST_COLUMNS}" if traits.wide else ""
            raise UsageError(f"{kernel} cannot have {width} dense columns", hint=hint)
        if dtype != "f32" and not traits.typed:
            raise UsageError(f"{kernel} has no value type: its arrays have their own")
        head = f"{kernel}:{width}" if traits.wide else kernel
        object.__setattr__(self, "name", traits.name)  # a plain string, as keys and files need
        object.__setattr__(self, "width", width)
        object.__setattr__(self, "_text", head if dtype == "f32" else f"{head}:{dtype}")

    @classmethod
    def parse(cls, text: str | Op) -> Op:
        """Read `spmv`, `spmm:128`, `sddmm:64:f64`, ...; an operation is returned as it is. Raises:
        UsageError for any other text or object."""
        if isinstance(text, Op):
            return text
        require("op", text, str, "a string", hint="write it as spmm:128")
        match = re.fullmatch(r"(\w+)(?::(\d\w*))?(?::(\w+))?", text.strip().lower())
        if not match:
            raise UsageError(f"{text!r} is not an operation", hint="write it as spmm:128")
        kernel, width, dtype = match.groups()
        hint = f"write {kernel}:128"
        if width is None and operation_of(kernel)[0].wide:
            raise UsageError(f"{text!r} lacks the number of dense columns", hint=hint)
        if width is not None and not re.fullmatch("0|[1-9][0-9]*", width):
            raise UsageError(f"{width!r} is no number of dense columns", hint=hint)
        if width is not None and len(width) > len(str(_MOST_COLUMNS)):
            reason = f"{kernel} cannot have {width[:20]} dense columns"
            raise UsageError(reason, hint=f"1 to {_MOST_COLUMNS}")
        return cls(kernel, int(width or 1), _DTYPE_OF.get(dtype, dtype) if dtype else "f32")

    @property
    def kind(self) -> str:
        """The name of the kind of workload it runs on."""
        return operation_of(self.name)[1].name

    @property
    def workload(self) -> WorkloadKind:
        """The kind of workload it runs on."""
        return operation_of(self.name)[1]

    @property
    def traits(self) -> Operation:
        """Properties shared by all operations of this name."""
        return operation_of(self.name)[0]

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"Op({self._text!r})"


def _whole(width: Any) -> int:
    """A number of dense columns as one of Python. Raises: UsageError for no whole number."""
    try:
        return index(width)
    except TypeError:
        raise UsageError(f"width is {width!r:.40}: a whole number is needed") from None


#: Its output decides ids.
_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)


class Config(Mapping[str, Value]):
    """One configuration: parameter names to values, immutable, compared by content.

    A whole float is the same value as the integer. `json` is canonical (sorted keys, no spaces),
    `id` the blake2b-128 hex digest of it, and `str()` a command-line form `name=value,name=value`
    that `Config.parse` reads back: values that are not plain numbers, true/false or bare words
    are quoted as JSON.

    Raises: UsageError for a name or a value that no configuration can have.
    """

    __slots__ = ("_id", "_text", "_values", "json")

    def __init__(self, values: Mapping[str, Any]) -> None:
        if type(values) is not dict:  # a query creates thousands of dicts
            require("values", values, Mapping, "a mapping", hint="Config.parse reads a text")
        self._set({_name(k): _plain(k, values[k]) for k in sorted(values, key=str)})

    def _set(self, values: dict[str, Value]) -> Config:
        self._values, self.json = values, _ENCODER.encode(values)
        self._id = self._text = ""
        return self

    @property
    def id(self) -> str:
        if not self._id:
            self._id = hashlib.blake2b(self.json.encode(), digest_size=16).hexdigest()
        return self._id

    @classmethod
    def from_json(cls, text: str | bytes) -> Config:
        """Read a JSON object of values. Raises: UsageError for anything else."""
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as e:
            raise UsageError(f"not a configuration: {e}") from None
        if not isinstance(values, dict):
            raise UsageError("not a configuration: the JSON is not an object")
        return cls(values)

    @classmethod
    def parse(cls, text: str) -> Config:
        """Read the command-line form. Raises: UsageError naming a part that is not `name=value`."""
        require("text", text, str, "a text such as a=1,b=word")
        values: dict[str, Any] = {}
        for part in _split(text):
            name, sep, raw = part.partition("=")
            if not sep or not name.strip():
                raise UsageError(f"{part!r} is not name=value", hint="write a=1,b=word")
            values[name.strip()] = _read(raw.strip())
        return cls(values)

    def replace(self, /, **changes: Any) -> Config:
        """The configuration with other values of its parameters, or further parameters."""
        if not changes.keys() <= self._values.keys():
            return Config({**self._values, **changes})
        changed = {name: _plain(name, value) for name, value in changes.items()}
        return Config.__new__(Config)._set({**self._values, **changed})

    def __getitem__(self, name: str) -> Value:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    # Faster by ten times than the methods of `Mapping`: a query reads thousands of configurations.

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def get(self, name: str, default: Any = None) -> Any:
        return self._values.get(name, default)

    def keys(self) -> KeysView[str]:
        return self._values.keys()

    def items(self) -> ItemsView[str, Value]:
        return self._values.items()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and self.json == other.json

    def __hash__(self) -> int:
        return hash(self.json)

    def __str__(self) -> str:
        if not self._text:
            self._text = ",".join(f"{k}={_write(v)}" for k, v in self._values.items())
        return self._text

    def __repr__(self) -> str:
        return f"Config({str(self)!r})"


@lru_cache(maxsize=4096)
def _name(name: Any) -> str:
    """Return a valid parameter name, checked once. Raises: UsageError."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or not _is_text(name):
        raise UsageError(f"{name!r} cannot name a parameter", hint="no spaces and none of = , [ ]")
    return name


def _plain(name: str, value: Any) -> Value:
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) < _TOO_LARGE:
        return value
    if isinstance(value, str) and (value.isascii() or _is_text(value)):
        return value
    if isinstance(value, (list, tuple)) and all(isinstance(v, str) and _is_text(v) for v in value):
        return tuple(value)
    if isinstance(value, float) and abs(value) < _TOO_LARGE:
        return int(value) if value.is_integer() else value
    raise UsageError(f"parameter {name!r} cannot have the value {str(value)[:80]!r}")


def _is_text(value: str) -> bool:
    """Return true if a string can be encoded as UTF-8; text from undecodable bytes cannot."""
    return not any("\ud800" <= c <= "\udfff" for c in value)


_NAME = re.compile(r'[^\s=,"\[\]]+')
_TOO_LARGE = 10**100
_BARE = re.compile(r"[^\W\d][\w.+\-]*|\d+x\d+")
_QUOTED = r'"(?:[^"\\]|\\.)*"'
_PART = re.compile(rf'(?:[^,"\[]|{_QUOTED}|\[(?:[^\]"]|{_QUOTED})*\])*')


def _write(value: Value) -> str:
    if isinstance(value, str) and _BARE.fullmatch(value) and value not in ("true", "false"):
        return value
    return json.dumps(value, separators=(",", ":"))


def _read(raw: str) -> Any:
    if _BARE.fullmatch(raw) and raw not in ("true", "false"):
        return raw
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        raise UsageError(f"{raw!r} is not a value", hint="quote text as JSON") from None


def _split(text: str) -> Iterator[str]:
    """Split at commas that are outside quotes and brackets."""
    at = 0
    while at < len(text):
        part = _PART.match(text, at)
        end = part.end() if part else at
        if end < len(text) and text[end] != ",":
            raise UsageError(f"{text[at:]!r} has a quote or bracket that is never closed")
        yield text[at:end]
        at = end + 1
