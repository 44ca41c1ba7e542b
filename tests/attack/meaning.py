"""Metamorphic tests: an input is changed so that its meaning stays, or so that it does not.

A module of `meanings/` draws a true input (`draw`), knows its content (`expected`) and reads it the
way a user would (`read`). Its `KEEPS` change the form and must change nothing else; one of its
`ALTERS` changes the meaning and must be refused, asked about, or read as altered. A change is one
function `(rng, form) -> form`; `check` draws, composes and compares them from a seed alone.

`python -m attack.meaning logs 17` (with `tests` and `tests/fixtures` on the path) shows one input.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, TypeVar

F = TypeVar("F")
#: Takes a form, which it leaves as it is, to another one.
Change = Callable[[random.Random, F], F]
#: Modules of `meanings/`.
MEANINGS = ("logs", "matrices", "platforms")
_MOST_CHANGES = 5
_ALTERED = 0.3


class Difference(AssertionError):
    """An input whose content is not what it means."""


class Meaning(Protocol[F]):
    """A module of `meanings/`. Contents are compared by `==`."""

    KEEPS: Mapping[str, Change[F]]
    ALTERS: Mapping[str, Change[F]]

    def draw(self, rng: random.Random) -> F:
        """A true input in its plainest form."""
        ...

    def expected(self, form: F) -> Any:
        """Content that the form means; None where it must not be read at all."""
        ...

    def read(self, form: F, folder: Path) -> Any:
        """Content that is read from the form, written into an empty folder.

        Raises: EmbeddbError where it is refused or asked about.
        """
        ...


def module_of(name: str) -> Any:
    return import_module(f"attack.meanings.{name}")


def sampled(meaning: Any, seed: int) -> tuple[Any, list[str], bool]:
    """A form drawn and changed from a seed, the names of its changes, and whether one of them
    altered its meaning."""
    rng = random.Random(f"{meaning.__name__}:{seed}")
    form = meaning.draw(rng)
    altered = bool(meaning.ALTERS) and rng.random() < _ALTERED
    names = rng.sample(
        sorted(meaning.KEEPS), rng.randint(0, min(_MOST_CHANGES, len(meaning.KEEPS)))
    )
    if altered:
        names.insert(0, rng.choice(sorted(meaning.ALTERS)))
    for name in names:
        form = (meaning.KEEPS.get(name) or meaning.ALTERS[name])(rng, form)
    return form, names, altered


def check(meaning: Any, seed: int, folder: Path) -> None:
    """Draw, change and read one input.

    Raises: Difference if it was not read as it means; one that kept its meaning may not be refused.
    """
    from embeddb.core.errors import EmbeddbError

    form, names, altered = sampled(meaning, seed)
    wanted = meaning.expected(form)
    try:
        content = meaning.read(form, folder)
    except EmbeddbError as error:
        if altered or wanted is None:
            return
        raise Difference(f"{names} (seed {seed}) is refused: {error} | {error.hint}") from None
    if wanted is None:
        raise Difference(f"{names} (seed {seed}) is read, and should be refused")
    if content != wanted:
        raise Difference(f"{names} (seed {seed}): {_difference(content, wanted)}")


def _difference(content: Any, wanted: Any) -> str:
    if isinstance(content, Mapping) and isinstance(wanted, Mapping):
        keys = [k for k in {**content, **wanted} if content.get(k) != wanted.get(k)]
        shown = [f"{k}: {content.get(k)} instead of {wanted.get(k)}" for k in keys[:3]]
        return f"{len(keys)} of {len(wanted)} entries differ: {'; '.join(shown)}"
    return f"{str(content)[:300]} instead of {str(wanted)[:300]}"


def main(name: str, seed: int) -> int:
    meaning = module_of(name)
    _, names, altered = sampled(meaning, seed)
    sys.stdout.write(f"{'altered' if altered else 'kept'}: {names}\n")
    with tempfile.TemporaryDirectory() as folder:
        try:
            check(meaning, seed, Path(folder))
        except Difference as difference:
            sys.stdout.write(f"{difference}\n")
            for path in sorted(Path(folder).rglob("*")):
                if path.is_file() and path.stat().st_size < 1 << 16:
                    sys.stdout.write(f"--- {path.name}\n{path.read_bytes()[:600]!r}\n")
            return 1
    sys.stdout.write("as it should be\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
