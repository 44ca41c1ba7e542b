"""Names, texts and configurations as C: whatever a database holds, the C stays C."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from embeddb.core.config import Config, Value

__all__ = ["c_comment", "c_fields", "c_literal", "c_symbol", "c_text"]

#: Keywords of C and C++ and the fields every row has; a parameter of such a name gets the prefix
#: `p_`.
_RESERVED = re.compile(
    "auto|break|case|char|const|continue|default|do|double|else|enum|extern|float|for|goto|if|"
    "inline|int|long|register|restrict|return|short|signed|sizeof|static|struct|switch|typedef|"
    "union|unsigned|void|volatile|while|alignas|alignof|and|and_eq|asm|bitand|bitor|bool|catch|"
    "char8_t|char16_t|char32_t|class|co_await|co_return|co_yield|compl|concept|consteval|"
    "constexpr|constinit|const_cast|decltype|delete|dynamic_cast|explicit|export|false|friend|"
    "mutable|namespace|new|noexcept|not|not_eq|nullptr|operator|or|or_eq|private|protected|public|"
    "reinterpret_cast|requires|static_assert|static_cast|template|this|thread_local|throw|true|"
    "try|typeid|typename|typeof|using|virtual|wchar_t|xor|xor_eq|"
    "linux|unix|i386|errno|assert|NULL|NAN|INFINITY|LLONG_M..|INT_M..|SIZE_MAX|"
    "pattern|name|m|n|nnz|op|seconds|config"
)
_PLAIN = frozenset(
    {*map(ord, " !#$%&'()*+,-./:;<=>@[]^_`{|}~"), *range(48, 58), *range(65, 91), *range(97, 123)}
)


def c_symbol(text: str, *, taken: Iterable[str]) -> str:
    """A C identifier near the text that is no keyword, no fixed field and not taken."""
    base = re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_") or "p"
    if _RESERVED.fullmatch(base) or base[0].isdigit():
        base = f"p_{base}"
    used, name, count = set(taken), base, 2
    while name in used:
        name, count = f"{base}_{count}", count + 1
    return name


def c_text(text: str) -> str:
    """A string literal in plain ASCII: anything else, and trigraphs, as octal of its UTF-8."""
    data = text.encode("utf-8", "surrogatepass")
    return '"' + "".join(chr(b) if b in _PLAIN else f"\\{b:03o}" for b in data) + '"'


def c_comment(text: str) -> str:
    """What may stand within a comment: plain ASCII on one line that neither ends it, opens another
    nor continues on the next."""
    plain = "".join(c if ord(c) in _PLAIN or c == '"' else "." for c in text)
    return plain.replace("*/", "* /").replace("/*", "/ *")


def c_fields(configs: Sequence[Config]) -> dict[str, tuple[str, str]]:
    """The field and the C type of every parameter, by its name: `long long ` (true is 1), `double `
    or `const char *` (lists joined by spaces)."""
    fields: dict[str, tuple[str, str]] = {}
    for param in sorted({name for config in configs for name in config}):
        symbol = c_symbol(param, taken=[field for field, _ in fields.values()])
        fields[param] = symbol, _kind([c[param] for c in configs if param in c])
    return fields


def c_literal(value: Value | None, kind: str) -> str:
    """A value of a field; one that a configuration does not have is LLONG_MIN, NAN or NULL."""
    if kind == "long long ":
        return "LLONG_MIN" if value is None else f"{int(value)}LL"  # type: ignore[arg-type]
    if kind == "double ":
        return "NAN" if value is None else repr(float(value))  # type: ignore[arg-type]
    if value is None:
        return "NULL"
    return c_text(" ".join(value) if isinstance(value, tuple) else str(value))


def _kind(values: list[Value]) -> str:
    if all(isinstance(v, int) and abs(v) < 2**63 for v in values):
        return "long long "
    if all(isinstance(v, (int, float)) for v in values):
        return "double "
    return "const char *"
