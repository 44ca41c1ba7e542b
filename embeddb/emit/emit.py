"""`embeddb emit`: an answer, or a configuration, as a library in C."""

from __future__ import annotations

from pathlib import Path

from embeddb.core.config import Config, Op
from embeddb.core.errors import UsageError
from embeddb.emit.folder import Manifest, write_library
from embeddb.emit.library import Library
from embeddb.query.recommendation import Recommendation

__all__ = ["emit_answer", "emit_config"]

_PLATFORM = "cpu"


def emit_answer(made: Recommendation, place: str | Path, *, prefix: str = "") -> Manifest:
    """The best configuration of an answer as C, in a folder.

    Raises: UsageError for an answer of a platform that we have no kernels of, and as `emit_config`.
    """
    platform = made.platform.partition("@")[0]
    if platform != _PLATFORM:
        raise UsageError(
            f"answer {made.id} is for {platform}: there is code for {_PLATFORM} alone",
            hint="`embeddb query ... --emit FILE.c` writes those of loop nests"
            if platform == "nest-cpu"
            else "`embeddb explain` shows its configuration",
        )
    config, op = Config(made.best), Op.parse(made.op)
    return emit_config(config, op, place, prefix=prefix, answer=made.id)


def emit_config(
    config: Config, op: Op, place: str | Path, *, prefix: str = "", answer: str = ""
) -> Manifest:
    """A configuration of the CPU platform as C, in a folder; `answer` is where it comes from.

    Raises: as `Library` and `write_library`.
    """
    library = Library(op, [config], prefix=prefix)
    contents = library.files(f"answer {answer}" if answer else "a configuration")
    manifest = Manifest(
        op=str(op),
        configs=[str(config)],
        prefix=library.prefix,
        answer=answer,
        files=list(contents),
    )
    write_library(place, contents, manifest)
    return manifest
