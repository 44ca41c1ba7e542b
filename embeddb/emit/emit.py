"""`embeddb emit`: an answer, or a configuration, as a library in C or CUDA C++."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from embeddb.core.config import Config, Op
from embeddb.core.errors import UsageError
from embeddb.core.files.safe_write import OwnFolder
from embeddb.core.reports import Progress
from embeddb.emit.cuda import CudaLibrary
from embeddb.emit.library import Library, RuleText, filled
from embeddb.emit.tile import TileLibrary
from embeddb.index.lookup import Lookup
from embeddb.kernels.cuda.plan import fit
from embeddb.ranking.recommendation import Recommendation
from embeddb.tensors.edges import CUT
from embeddb.tensors.partition import Partition
from embeddb.tensors.tensor_graph import TensorGraph
from indexer.frontends.hlo.printer import fused_text, hlo_text
from tuners.rule.learn import learn_rule

#: File that identifies an emitted folder, and its largest size.
MANIFEST, _MAX_BYTES = "embeddb.json", 1 << 16
_FORMAT = "embeddb-library-1"
_ENDINGS = (".c", ".cu", ".h", ".hlo")


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of an emitted folder: configurations (as text) of an operation, names with `prefix`;
    `answer` is the id of the answer they come from, empty if none, `files` the written files."""

    op: str
    configs: list[str]
    prefix: str
    answer: str = ""
    files: list[str] = []
    format: str = _FORMAT


def _write(
    place: str | Path,
    contents: Mapping[str, str],
    *,
    op: str,
    configs: Sequence[Config],
    prefix: str,
    answer: str = "",
) -> Manifest:
    """Write files by name and their manifest into a folder, created if missing; files of an earlier
    library are removed.

    Raises: UsageError for a folder with other contents; OSError.
    """
    names = [str(config) for config in configs]
    manifest = Manifest(op=op, configs=names, prefix=prefix, answer=answer, files=list(contents))
    path = Path(place)
    before = _earlier(path)
    path.mkdir(exist_ok=True)
    folder = OwnFolder(path)
    # The manifest first: it identifies a folder that was interrupted.
    folder.write(MANIFEST, msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")
    for name in sorted(set(before) - set(contents)):
        if name.endswith(_ENDINGS):
            folder.remove(name)
    for name, text in contents.items():
        folder.write(name, text.encode())
    return manifest


def _earlier(path: Path) -> list[str]:
    """Files of an earlier library in a folder. Raises: UsageError for other contents."""
    if path.is_symlink() or not path.exists():
        if not path.is_symlink() and path.absolute().parent.is_dir():
            return []
        raise UsageError(f"{path}: the parent folder does not exist")
    if not path.is_dir():
        raise UsageError(f"{path}: a file, not a folder to write to")
    if not any(path.iterdir()):
        return []
    try:
        data = OwnFolder(path).read(MANIFEST, _MAX_BYTES)
        manifest = msgspec.json.decode(data, type=Manifest)
    except (OSError, ValueError, msgspec.MsgspecError):
        manifest = None
    if manifest is None or manifest.format != _FORMAT:
        raise UsageError(
            f"{path} has other contents than an emitted library", hint="name another folder"
        )
    return manifest.files


def fusion_files(program: TensorGraph, config: Config, made_from: str = "") -> dict[str, str]:
    """HLO of the program, of the program as calls of the plan's kernels, and of each kernel, in
    order; `made_from`, for the README: the origin of the plan.

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


#: Platforms with code for matrices.
_PLATFORMS = ("cpu", "cuda")


def emit_answer(
    answer: Recommendation, place: str | Path, *, prefix: str = "", capability: str = ""
) -> Manifest:
    """Emit the best configuration of an answer for `cpu` or `cuda` to a folder; for cuSPARSE, the
    best of the others instead. `capability` is that of the answer's GPU, 90.

    Raises: UsageError for an answer for another platform, and as `emit_config`.
    """
    platform = answer.platform.partition("@")[0]
    if platform not in _PLATFORMS:
        supported = f"{', '.join(_PLATFORMS)}, tile-cpu and xla-cpu"
        raise UsageError(
            f"answer {answer.id} is for {platform}: code is available for {supported} only",
            hint="`embeddb query ... --emit FILE.c` writes those of loop nests"
            if platform == "nest-cpu"
            else "`embeddb explain` shows its configuration",
        )
    op, best = Op.parse(answer.op), Config(answer.best)
    source = f"answer {answer.id}"
    if _is_library(best):
        source += f", which ranks cuSPARSE ({best}) first and this as the best of the others"
    if platform == "cuda":
        ranked = (Config(one.config) for one in answer.candidates)
        own = (
            config for config in (best, *ranked, Config(answer.default)) if not _is_library(config)
        )
        best = fit(next(own), op)
    library = _library(platform, op, [best], prefix=prefix, capability=capability)
    contents, prefix = library.files(source), library.prefix
    return _write(place, contents, op=str(op), configs=[best], prefix=prefix, answer=answer.id)


def _is_library(config: Config) -> bool:
    """True if the configuration calls NVIDIA's library, which has no source."""
    return bool(config.get("work") == "cusparse")


def emit_tensor(
    subject: TensorGraph, answer: Recommendation, place: str | Path, *, prefix: str = ""
) -> Manifest:
    """Emit the best configuration of an answer about a tensor kernel or program to a folder: a tile
    as C, a fusion plan as HLO.

    Raises: UsageError for another operation, and a prefix for HLO; as `TileLibrary`,
    `fusion_files`; for a folder with other contents; OSError.
    """
    config, source = Config(answer.best), f"answer {answer.id}"
    if answer.op == "tile":
        library = TileLibrary(subject, config, prefix=prefix)
        prefix, contents = library.prefix, library.files(source)
    elif answer.op != "fusion":
        hint = "`embeddb explain` shows what is predicted"
        raise UsageError(f"answer {answer.id} about {answer.op} has no code", hint=hint)
    elif prefix:
        raise UsageError("--prefix is for C names: a fusion plan is emitted as HLO")
    else:
        contents = fusion_files(subject, config, source)
    return _write(place, contents, op=answer.op, configs=[config], prefix=prefix, answer=answer.id)


def emit_config(
    config: Config, op: Op, place: str | Path, *, platform: str = "cpu", prefix: str = ""
) -> Manifest:
    """Emit a configuration of a platform to a folder.

    Raises: UsageError for another platform; as `Library` and `CudaLibrary`; for a
    folder with other contents; OSError.
    """
    library = _library(platform, op, [config], prefix=prefix)
    contents = library.files("a configuration")
    return _write(place, contents, op=str(op), configs=[config], prefix=library.prefix)


def _library(
    platform: str,
    op: Op,
    configs: Sequence[Config],
    *,
    prefix: str,
    rule: RuleText | None = None,
    capability: str = "",
) -> Library | CudaLibrary:
    """The library of a platform. Raises: UsageError for one without code; as the libraries."""
    name = platform.partition("@")[0]
    if name not in _PLATFORMS:
        raise UsageError(
            f"code is available for {' and '.join(_PLATFORMS)} only, not for {platform}"
        )
    if name == "cpu":
        return Library(op, configs, prefix=prefix, rule=rule)
    architecture = f"sm_{capability}" if capability.isdecimal() else ""
    return CudaLibrary(op, configs, prefix=prefix, rule=rule, architecture=architecture)


#: Largest number of kernels in a library.
MOST = 12


def emit_pack(
    db: Lookup,
    op: Op,
    place: str | Path,
    *,
    platform: str = "cpu",
    most: int = MOST,
    prefix: str = "",
    progress: Progress | None = None,
) -> Manifest:
    """Emit at most `most` configurations of a platform, and a rule that chooses among them, learned
    from the runs in `db` on one of its instances or on all, to a folder. For `cuda`, candidates are
    exact in their type and not cuSPARSE. Learning reports `progress`.

    Raises: UsageError for an impossible number and another platform; as `learn_rule`, `Library`
    and `CudaLibrary`; for a folder with other contents; OSError.
    """
    if not 1 <= most <= MOST:
        raise UsageError(f"a pack of {most} kernels is not possible", hint=f"1 to {MOST}")
    if platform.partition("@")[0] not in _PLATFORMS:
        raise UsageError(
            f"code is available for {' and '.join(_PLATFORMS)} only, not for {platform}"
        )
    where = db.platform(platform)
    kernel = where.kernel(op)
    # Learning takes minutes: a wrong operation, prefix or folder is refused before.
    _library(platform, op, [], prefix=prefix)
    _earlier(Path(place))

    def allowed(config: Config) -> bool:
        return not _is_library(config) and kernel.is_exact(config)

    rule = learn_rule(db, platform, op, most, allowed=allowed, progress=progress)
    function = rule.symbol if where.name == "cuda" else f"{rule.symbol}_wide"
    text = RuleText(rule.header(), function)
    capability = rule.environment.get("capability", "")
    library = _library(platform, op, rule.configs, prefix=prefix, rule=text, capability=capability)
    counted = f"{rule.patterns} matrices in {rule.groups} groups"
    source = f"a rule learned from {counted} on {rule.platform}"
    contents, prefix = library.files(source), library.prefix
    return _write(place, contents, op=str(op), configs=rule.configs, prefix=prefix)
