"""A pack: the configurations of a learned rule as one library, which chooses for each matrix."""

from __future__ import annotations

from pathlib import Path

from embeddb.core.config import Op
from embeddb.core.errors import UsageError
from embeddb.emit.folder import Manifest, write_library
from embeddb.emit.library import Library, RuleText
from embeddb.index.lookup import Lookup
from tuners.rule.learn import learn_rule

__all__ = ["MOST", "emit_pack"]

#: More kernels than this are not put into one library.
MOST = 12
_PLATFORM = "cpu"


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
