"""Platform files: one content in every order and spelling that TOML has for it; the parameters of a
space keep theirs, which is that of encodings.

A form keeps the content as plain values and how it is written. Of a changed value the digest (of
the spaces, or of the command) or the field itself has to differ, or the file is refused.
"""

from __future__ import annotations

import copy
import random
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parents[3] / "embeddb" / "platforms"
#: Files that are small or have a part of their own; and a command, a log and units.
_SHIPPED = ("gpu-hyb", "gpu-sparsetir", "lcm-tiles", "morpheus-formats", "spade", "spmv-formats",
            "tile-cpu", "cpu", "nest-cpu", "tpu-graphs")  # fmt: skip
_OWN = """\
name = "board"
version = "2"
title = "A board: tiles, lanes and a 'mode'"
portable = true
runner = "command"
cost_per_sample = 12.5

[command]
run = ["python3", "sim.py", "{matrix}", "{config.tile}", "{config.lanes}", "{config.mode}"]
matrix = "npz"
time = { json = "stats.cycles", unit = "cycles" }
timeout_s = 1200

[command.exit]
3 = "oom"
4 = "timeout"

[log]
unit = "us"
op = "spmm:64"

[log.columns]
matrix = "graph"
time = "us"
"config.tile" = "rows of a tile"

[log.status]
FULL = "oom"

[traits]
clock_ghz = 1.25
cores = 4096

[[space]]
kernels = ["spmm", "spmv"]
constraints = ["tile * lanes <= 4096"]

[space.params]
tile = { type = "int", values = [1, 16, 1024, 2048] }
lanes = { type = "int", values = [1, 2, 4], when = "tile > 1" }
mode = { type = "choice", values = ["a b", "c-d"] }

[space.default]
tile = 16
lanes = 1
mode = "a b"
"""


@dataclass(frozen=True)
class Form:
    """`content` is what the file says, `origin` what it said before it was altered; choices that
    are left to the writer follow from `seed`."""

    content: dict[str, Any]
    origin: dict[str, Any]
    shuffled: bool = False
    inline: bool = False
    dotted: bool = False
    quotes: bool = False
    numbers: bool = False
    comments: bool = False
    spread: bool = False
    crlf: bool = False
    mark: bool = False
    name: str = "p.toml"
    seed: int = 0


@cache
def _contents() -> tuple[dict[str, Any], ...]:
    """Those that are read as they are: a part that this version has not is no matter here."""
    texts = [(_FOLDER / f"{name}.toml").read_text() for name in _SHIPPED]
    return tuple(tomllib.loads(text) for text in (*texts, _OWN))


def draw(rng: random.Random) -> Form:
    content = rng.choice(_contents())
    return Form(content, content, seed=rng.randrange(1 << 32))


def expected(form: Form) -> Any:
    """Of the plain spelling; only the comparison with the origin is not the product's."""
    from embeddb.core.errors import PlatformError
    from embeddb.platforms.platform import parse_platform

    try:
        platform = parse_platform(_text(Form(form.content, form.origin), random.Random(0)))
    except PlatformError:
        return None
    return {**_described(platform, form), "same": form.content == form.origin}


def read(form: Form, folder: Path) -> Any:
    from embeddb.platforms.platform import load_platform, parse_platform

    path = folder / form.name
    path.write_bytes(
        _text(form, random.Random(form.seed)).encode("utf-8-sig" if form.mark else "utf-8")
    )
    content = _described(load_platform(path), form)
    was = _described(parse_platform(_text(Form(form.origin, form.origin), random.Random(0))), form)
    return {**content, "same": content == was}


def _described(platform: Any, form: Form) -> dict[str, Any]:
    """Everything that a file says; `repr` tells 1 from 1.0 and True."""
    log, spaces = platform.log, {op: part.space for op, part in platform.kernels.items()}
    return {
        "id": platform.id, "digest": platform.digest, "version": platform.version,
        "title": platform.title, "ops": sorted(platform.ops), "simulated": platform.simulated,
        "portable": platform.portable, "runner": platform.runner,
        "cost_per_sample": platform.cost_per_sample, "traits": dict(platform.traits),
        "meaning": dict(platform.meaning), "open": sorted(platform.open_choices),
        "command": repr(platform.command and (platform.command.digest, platform.command.timeout_s)),
        "log": {name: getattr(log, name) for name in log.__dataclass_fields__},
        "params": {op: [_param(p) for p in space.params] for op, space in spaces.items()},
        "varying": {op: platform.kernels[op].varying for op in platform.ops},
    }  # fmt: skip


def _param(param: Any) -> tuple[Any, ...]:
    values = (param.name, param.kind, param.values, param.when, param.open, param.longest)
    return (*values, frozenset(param.aliases))


# -- writing ------------------------------------------------------------------------------------


def _text(form: Form, rng: random.Random) -> str:
    lines = list(_table(form, rng, form.content, ()))
    text = "\n".join(lines) + "\n"
    return text.replace("\n", "\r\n") if form.crlf else text


def _items(form: Form, rng: random.Random, table: dict[str, Any]) -> list[tuple[str, Any]]:
    items = list(table.items())
    if form.shuffled and not _ordered(table):
        rng.shuffle(items)
    return items


def _ordered(table: dict[str, Any]) -> bool:
    """Whether it has the parameters of a space."""
    return bool(table) and all(isinstance(v, dict) and "type" in v for v in table.values())


def _table(
    form: Form, rng: random.Random, table: dict[str, Any], path: tuple[str, ...]
) -> Iterator[str]:
    """The lines of a table: its values, then the tables below it."""
    below = []
    sections = not form.inline if _ordered(table) else None
    for key, value in _items(form, rng, table):
        tables = isinstance(value, list) and bool(value) and isinstance(value[0], dict)
        apart = isinstance(value, dict) and value and not (_ordered(value) or _ordered(table))
        if apart and form.dotted and rng.random() < 0.5:
            for inner, held in _items(form, rng, value):
                name = f"{_key(form, rng, key)}.{_key(form, rng, inner)}"
                yield from _line(form, rng, name, held)
        elif (isinstance(value, dict) or tables) and (
            sections if sections is not None else not (form.inline and rng.random() < 0.5)
        ):
            below.append((key, value))
        else:
            yield from _line(form, rng, _key(form, rng, key), value)
    for key, value in below:
        here = (*path, key)
        name = ".".join(_key(form, rng, part) for part in here)
        many = isinstance(value, list)
        for part in value if many else [value]:
            yield from _comment(form, rng)
            yield f"[[{name}]]" if many else f"[{name}]"
            yield from _table(form, rng, part, here)


def _line(form: Form, rng: random.Random, key: str, value: Any) -> Iterator[str]:
    yield from _comment(form, rng)
    equals = rng.choice((" = ", "=", "  =\t")) if form.spread else " = "
    end = rng.choice(("", "  # a comment = 1")) if form.comments else ""
    yield f"{key}{equals}{_value(form, rng, value)}{end}"


def _comment(form: Form, rng: random.Random) -> Iterator[str]:
    if form.comments and rng.random() < 0.3:
        yield rng.choice(("", "# [space]", "  # a = 1", "# größe"))


def _key(form: Form, rng: random.Random, key: str) -> str:
    bare = key.replace("_", "").replace("-", "").isalnum() and key.isascii()
    return key if bare and not (form.quotes and rng.random() < 0.5) else _string(form, rng, key)


def _string(form: Form, rng: random.Random, text: str) -> str:
    if form.quotes and "'" not in text and rng.random() < 0.5:
        return f"'{text}'"
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    if form.quotes and escaped and rng.random() < 0.5:
        at = rng.randrange(len(text))
        escaped = "".join(
            f"\\u{ord(c):04x}" if i == at else c.replace("\\", "\\\\").replace('"', '\\"')
            for i, c in enumerate(text)
        )
    return f'"{escaped}"'


def _value(form: Form, rng: random.Random, value: Any) -> str:
    if isinstance(value, dict):
        items = _items(form, rng, value)
        parts = (f"{_key(form, rng, k)} = {_value(form, rng, v)}" for k, v in items)
        return "{ " + ", ".join(parts) + " }"
    if isinstance(value, list):
        parts = [_value(form, rng, one) for one in value]
        if form.spread and rng.random() < 0.5 and not any(isinstance(v, dict) for v in value):
            return "[\n  " + ",\n  ".join(parts) + rng.choice((",\n]", "\n]")) if parts else "[ ]"
        return "[" + ", ".join(parts) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _string(form, rng, value)
    return _number(form, rng, value)


def _number(form: Form, rng: random.Random, value: int | float) -> str:
    if not form.numbers:
        return repr(value)
    if isinstance(value, float):
        return rng.choice(
            (
                f"{value!r}",
                f"{value:.17e}",
                f"{value!r}0" if "e" not in repr(value) else repr(value),
            )
        )
    forms = [f"{value}", f"{value:_}"]
    forms += [f"+{value}", f"0x{value:x}", f"0o{value:o}", f"0b{value:b}"] if value >= 0 else []
    return rng.choice(forms)


#: Keys that some files write although they say what holds without them.
_DEFAULTED = ("cost_per_sample", "heterogeneous")

# -- changes ------------------------------------------------------------------------------------

Made = Callable[[random.Random, Form], Form]


def _set(**fields: Any) -> Made:
    return lambda rng, form: replace(form, seed=rng.randrange(1 << 32), **fields)


KEEPS: dict[str, Made] = {
    "order of tables and keys": _set(shuffled=True),
    "inline tables": _set(inline=True),
    "dotted keys": _set(dotted=True),
    "quotes": _set(quotes=True),
    "numbers": _set(numbers=True),
    "comments": _set(comments=True),
    "blanks and lines": _set(spread=True),
    "line ends": _set(crlf=True),
    "byte-order mark": _set(mark=True),
    "file name": _set(name="a b.größe.toml"),
}


def _places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The place of every value that is no table."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _places(value, (*path, key))
    elif isinstance(tree, list) and tree and isinstance(tree[0], dict):
        for at, value in enumerate(tree):
            yield from _places(value, (*path, at))
    elif path:
        yield path


def _at(tree: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def _altered(how: Callable[[random.Random, Any], Any]) -> Made:
    def change(rng: random.Random, form: Form) -> Form:
        content = copy.deepcopy(form.content)
        *above, last = rng.choice(list(_places(content)))
        table = _at(content, tuple(above))
        value = how(rng, table[last])
        if value is None and last in _DEFAULTED:
            return form
        if value is None:
            del table[last]
        else:
            table[last] = value
        return replace(form, content=content)

    return change


def _other(rng: random.Random, value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, list):
        return value[1:] if rng.random() < 0.5 else [*value, _other(rng, value[0])] if value else []
    if isinstance(value, str):
        return rng.choice((value + "x", value[1:], value.replace("<=", "<").replace("1", "2")))
    return value + rng.choice((1, -1, 7))


ALTERS: dict[str, Made] = {
    "value changed": _altered(_other),
    "key lost": _altered(lambda rng, value: None),
    "value of another type": _altered(lambda rng, value: rng.choice(("x", [1], 2.5, True))),
}
