"""`embeddb emit`: an answer, or a configuration, as a library in C."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from embeddb.core.config import Config, Op
from embeddb.core.errors import UsageError
from embeddb.core.files.own_files import OwnFolder
from embeddb.emit.library import Library, RuleText, filled
from embeddb.emit.tile import TileLibrary
from embeddb.index.lookup import Lookup
from embeddb.ranking.recommendation import Recommendation
from embeddb.tensors.computation import Computation
from embeddb.tensors.edges import CUT
from embeddb.tensors.partition import Partition
from indexer.frontends.hlo.printer import fused_text, hlo_text
from tuners.rule.learn import learn_rule

#: What tells a folder of ours, and its largest size.
MANIFEST, _MAX_BYTES = "embeddb.json", 1 << 16
_FORMAT = "embeddb-library-1"
_ENDINGS = (".c", ".h", ".hlo")


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a folder holds: configurations (as text) of an operation, names beginning with `prefix`;
    `answer` is the id of the answer they come from, empty if none, `files` what was written."""

    op: str
    configs: list[str]
    prefix: str
    answer: str = ""
    files: list[str] = []
    format: str = _FORMAT


def write_library(place: str | Path, contents: Mapping[str, str], manifest: Manifest) -> None:
    """Write files by name into a folder, which is made if it is not there. What an earlier library
    left there goes.

    Raises: UsageError for a folder that holds something else; OSError.
    """
    path = Path(place)
    before = _earlier(path)
    path.mkdir(exist_ok=True)
    folder = OwnFolder(path)
    # First the manifest: a folder that a kill left half is known as ours then.
    folder.write(MANIFEST, msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")
    for name in sorted(set(before) - set(contents)):
        if name.endswith(_ENDINGS):
            folder.remove(name)
    for name, text in contents.items():
        folder.write(name, text.encode())


def _earlier(path: Path) -> list[str]:
    """Files of a library that lies there. Raises: UsageError for something else."""
    if path.is_symlink() or not path.exists():
        if not path.is_symlink() and path.absolute().parent.is_dir():
            return []
        raise UsageError(f"{path}: there is no folder to make it in")
    if not path.is_dir():
        raise UsageError(f"{path}: a file, not a folder to write to")
    if not any(path.iterdir()):
        return []
    try:
        data = OwnFolder(path).read(MANIFEST, _MAX_BYTES)
        found = msgspec.json.decode(data, type=Manifest)
    except (OSError, ValueError, msgspec.MsgspecError):
        found = None
    if found is None or found.format != _FORMAT:
        raise UsageError(
            f"{path} holds something else than an emitted library", hint="give another folder"
        )
    return found.files


def fusion_files(program: Computation, config: Config, made_from: str = "") -> dict[str, str]:
    """The program, the program with a fusion for each kernel of the plan, and each kernel as a
    module, in order; `made_from`, for the README: what the plan comes from.

    Raises: TensorError for a plan of another program, and for operations that cannot be written.
    """
    partition = Partition.of(program, str(config[CUT]))
    kernels = {
        f"kernel_{number:03}.hlo": hlo_text(placed.kernel)
        for number, placed in enumerate(partition.kernels)
    }
    marks = {
        "FROM": f" from {made_from}" if made_from else "",
        "NAME": program.name or program.id,
        "KERNELS": str(len(kernels)),
        "CONFIG": str(config),
    }
    return {
        "program.hlo": hlo_text(program),
        "fused.hlo": fused_text(partition),
        **kernels,
        "README.md": filled("fusion_README.md", marks),
    }


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


#: More kernels than this are not put into one library.
MOST = 12


def emit_pack(
    db: Lookup,
    op: Op,
    place: str | Path,
    *,
    platform: str = _PLATFORM,
    most: int = MOST,
    prefix: str = "",
) -> Manifest:
    """At most `most` configurations of the CPU platform, chosen among by a rule that is learned
    from what `db` measured on one of its instances, or on all together, as C in a folder.

    Raises: UsageError for an impossible number and another platform; as `learn_rule`, `Library` and
    `write_library`.
    """
    if not 1 <= most <= MOST:
        raise UsageError(f"a pack of {most} kernels", hint=f"1 to {MOST}")
    if platform.partition("@")[0] != _PLATFORM:
        raise UsageError(f"there is code for {_PLATFORM} alone, not for {platform}")
    rule = learn_rule(db, platform, op, most)
    text = RuleText(rule.header(), f"{rule.symbol}_wide")
    library = Library(op, rule.configs, prefix=prefix, rule=text)
    counted = f"{rule.patterns} matrices in {rule.groups} groups"
    source = f"a rule learned from {counted} on {rule.platform}"
    contents = library.files(source)
    manifest = Manifest(
        op=str(op),
        configs=[str(config) for config in rule.configs],
        prefix=library.prefix,
        files=list(contents),
    )
    write_library(place, contents, manifest)
    return manifest
