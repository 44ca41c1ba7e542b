"""`embeddb emit`: an answer, or a configuration, as a library in C."""

from __future__ import annotations

from pathlib import Path

from embeddb.core.config import Config, Op
from embeddb.core.errors import UsageError
from embeddb.emit.folder import Manifest, write_library
from embeddb.emit.fusion import fusion_files
from embeddb.emit.library import Library
from embeddb.emit.tile import TileLibrary
from embeddb.ranking.recommendation import Recommendation
from embeddb.tensors.computation import Computation

__all__ = ["emit_answer", "emit_config", "emit_tensor"]

_PLATFORM = "cpu"


def emit_answer(made: Recommendation, place: str | Path, *, prefix: str = "") -> Manifest:
    """The best configuration of an answer for `cpu` as C, in a folder.

    Raises: UsageError for an answer for another platform, and as `emit_config`.
    """
    platform = made.platform.partition("@")[0]
    if platform != _PLATFORM:
        known = f"{_PLATFORM}, tile-cpu and xla-cpu"
        raise UsageError(
            f"answer {made.id} is for {platform}: there is code for {known} alone",
            hint="`embeddb query ... --emit FILE.c` writes those of loop nests"
            if platform == "nest-cpu"
            else "`embeddb explain` shows its configuration",
        )
    config, op = Config(made.best), Op.parse(made.op)
    return emit_config(config, op, place, prefix=prefix, answer=made.id)


def emit_tensor(
    subject: Computation, made: Recommendation, place: str | Path, *, prefix: str = ""
) -> Manifest:
    """The best configuration of an answer about a tensor kernel or program, in a folder: of a tile
    its C, of a fusion plan the program's HLO.

    Raises: UsageError for another operation, and a prefix for HLO; as `TileLibrary`,
    `fusion_files` and `write_library`.
    """
    config, source = Config(made.best), f"answer {made.id}"
    if made.op == "tile":
        library = TileLibrary(subject, config, prefix=prefix)
        prefix, contents = library.prefix, library.files(source)
    elif made.op != "fusion":
        hint = "`embeddb explain` shows what is predicted"
        raise UsageError(f"answer {made.id} about {made.op} has nothing to write", hint=hint)
    elif prefix:
        raise UsageError("--prefix is for names in C: a fusion plan is written as HLO")
    else:
        contents = fusion_files(subject, config, source)
    manifest = Manifest(
        op=made.op, configs=[str(config)], prefix=prefix, answer=made.id, files=list(contents)
    )
    write_library(place, contents, manifest)
    return manifest


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
