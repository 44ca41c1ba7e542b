"""What becomes of a platform that is told again."""

from __future__ import annotations

from embeddb.core.errors import StoreError
from embeddb.platforms.platform import Platform
from embeddb.store.merge.contradiction import Contradiction, differing, kept

__all__ = ["changed_meaning", "refuse_other_space", "told_otherwise"]

_OTHER_SPACE = "its configuration space differs from the stored one"
_OTHER_UNIT = "its times are in cycles in one of the two and in seconds in the other"
#: Of its file: what can be named. Anything else is its text.
_DECLARED = (
    "title", "version", "simulated", "portable", "runner", "cost_per_sample", "open_choices",
)  # fmt: skip
#: What the runs stored before are taken for.
_MEANING = ("simulated", "portable")


def refuse_other_space(known: Platform | None, platform: Platform) -> None:
    """Raises: StoreError if the stored runs would mean something else."""
    reason = "" if known is None else _incompatible(known, platform)
    if reason:
        raise StoreError(
            f"platform {platform.id}: {reason}",
            hint="give the changed platform another name, or keep it in another database",
        )


def _incompatible(known: Platform, platform: Platform) -> str:
    """Why runs of the two cannot lie under one name; empty if they can. The order of parameters
    does not matter: that of the stored file stays, in which models read them."""
    if known.digest != platform.digest and not known.is_reordered(platform):
        return _OTHER_SPACE
    return _OTHER_UNIT if known.counts_cycles != platform.counts_cycles else ""


def changed_meaning(known: Platform | None, platform: Platform) -> list[str]:
    """A line for each word of an edited file that gives the runs stored before another meaning."""
    return [
        f"platform {platform.id}: {name} was {_word(known, name)}, is now {_word(platform, name)}"
        for name in (_MEANING if known is not None else ())
        if getattr(known, name) != getattr(platform, name)
    ]


def _word(platform: Platform | None, name: str) -> str:
    return str(getattr(platform, name)).lower()


def told_otherwise(known: Platform, told: Platform) -> Contradiction | None:
    """What an import says of a stored platform that is not so here."""
    what = f"platform {told.id}"
    if reason := _incompatible(known, told):
        return Contradiction(what, reason, refused=True)
    names = [name for name in _DECLARED if getattr(known, name) != getattr(told, name)]
    if known.text != told.text and not names:
        names = ["text"]
    facts = differing(known.environment, told.environment)
    return kept(what, [*names, *(f"environment.{name}" for name in facts)])
