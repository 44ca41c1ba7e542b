"""Platform files: parsed, then every space asked for at three sizes as a question does."""

from __future__ import annotations

import json
import random
import re
import tomllib
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attack.case import Case
from attack.mutate import mutated, mutated_tree

ROOT = Path(__file__).parents[3]
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_RULE = re.compile(rb'"[^"\n]*(?:<=|==|>=| in |\*|//|min|max)[^"\n]*"')
_TOKENS = (
    "NNZ", "NUM_MATRIX_COLS", "WIDTH", "9" * 330, "1.5", "0", "max()", "min('')", 'min(1,"a")',
    "-'a'", "(1,2)", "'a'*9", "1e308*10", "position(order,'i')", "order", "a if b else c",
    "lambda:1", "[x for x in y]", "1//0", "1%0.0", "-1//2",
)  # fmt: skip
_SIGNS = ("*", "//", "%", "-", " in ", " not in ", "**", " is ", " and ", "<", "+")


def seeds() -> list[Case]:
    from builders import SIZED_TOML, tiny

    files = [*(ROOT / "embeddb" / "platforms").glob("*.toml"), *(ROOT / "examples").glob("*.toml")]
    texts = [path.read_bytes() for path in sorted(files)]
    texts += [SIZED_TOML.encode(), tiny().text.encode(), *_known(SIZED_TOML)]
    return [Case("", text) for text in texts]


def _known(sized: str) -> list[bytes]:
    rule = '"rows <= NUM_MATRIX_ROWS or rows == 1"'
    rules = (
        f'"rows * {"9" * 320} * 1.5 > 2"',
        "\"min('') < rows\"",
        '"rows == 1 and rows <= NUM_MATRIX_ROWS"',
        "\"max(1, 'a') > rows\"",
    )
    return [
        *(sized.replace(rule, one).encode() for one in rules),
        sized.replace("[1, 16, 256]", f"[1, {'1' * 5000}]").encode(),
        sized.replace('version = "1"', 'version = "1\\n2"').encode(),
    ]


def mutate(rng: random.Random, case: Case, seeds: Sequence[Case]) -> Case:
    act = rng.random()
    if act < 0.35:
        return Case("", _rule(rng, case.data))
    if act < 0.65:
        try:
            return Case(
                "", "".join(_toml(mutated_tree(rng, tomllib.loads(case.data.decode())))).encode()
            )
        except (ValueError, RecursionError, TypeError):
            pass
    return Case("", mutated(rng, case.data, [one.data for one in rng.sample(seeds, 2)]))


def _rule(rng: random.Random, data: bytes) -> bytes:
    """One condition with other words and signs in it."""
    spans = [found.span() for found in _RULE.finditer(data)]
    if not spans:
        return mutated(rng, data)
    start, end = rng.choice(spans)
    text = data[start + 1 : end - 1].decode("utf-8", "replace")
    for _ in range(rng.choice((1, 1, 2, 3))):
        words = list(re.finditer(r"\w+", text))
        if words:
            at = rng.choice(words)
            text = text[: at.start()] + rng.choice(_TOKENS) + text[at.end() :]
        signs = list(re.finditer(r"<=|==|>=|//|\*|\+|-| and | or ", text))
        if signs and rng.random() < 0.3:
            at = rng.choice(signs)
            text = text[: at.start()] + rng.choice(_SIGNS) + text[at.end() :]
    return data[: start + 1] + text.replace('"', "'").encode() + data[end - 1 :]


def _toml(tree: Any, above: str = "") -> Iterator[str]:
    """Tables as sections, what they hold as inline values; sound TOML unless the tree cannot be."""
    sections = {}
    for key, value in tree.items():
        if isinstance(value, dict) or (_tables(value) and not above.count(".") > 3):
            sections[key] = value
        else:
            yield f"{_key(key)} = {_value(value)}\n"
    for key, value in sections.items():
        path = f"{above}.{_key(key)}" if above else _key(key)
        for part in value if isinstance(value, list) else [value]:
            yield f"[[{path}]]\n" if isinstance(value, list) else f"[{path}]\n"
            yield from _toml(part, path)


def _tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, dict) for v in value)


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _value(key)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if value is None:
        return '""'
    return json.dumps(value).replace("NaN", "nan").replace("Infinity", "inf")


def prepare(scratch: Path) -> Any:
    return None


def feed(case: Case, scratch: Path, state: Any) -> None:
    from embeddb.platforms.platform import load_platform

    path = scratch / "p.toml"
    path.write_bytes(case.data)
    try:
        platform = load_platform(path)
    finally:
        path.unlink()
    use(platform, whole=zlib.crc32(case.data) % 8 == 0)


def use(platform: Any, *, whole: bool) -> None:
    """As a question, a sample and a cost model use it; `whole` counts and checks spaces too."""
    from embeddb.core.config import Op
    from embeddb.core.errors import SpaceError
    from embeddb.core.sizes import UNKNOWN, Sizes
    from embeddb.platforms.check import check_platform

    assert platform.id and platform.digest
    rng = np.random.default_rng(0)
    for kernel in platform.ops:
        op = Op(kernel, 1 if kernel == "spmv" else 64)
        largest = 2**31 - 1
        for sizes in (UNKNOWN, Sizes(100, 80, 500), Sizes(largest, largest, largest)):
            try:
                space = platform.space(op, sizes)
                default = platform.default(op, sizes)
                space.reason(default)
                if whole:
                    space.size()
                    space.neighbours(default)
                space.sample(3, rng=rng)
            except SpaceError:
                continue
        sizes = Sizes(100, 80, 500)
        platform.loopnest(op, platform.default(op, sizes), sizes)
    for line in check_platform(platform, samples=4) if whole else []:
        assert "\n" not in line
