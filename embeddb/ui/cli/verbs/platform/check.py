"""`platform check`: whether a platform file is right."""

from __future__ import annotations

import click

from embeddb.core.wording import plural
from embeddb.platforms.platform import load_platform
from embeddb.ui.cli.output import emit, json_option, say

__all__ = ["check_verb"]


@click.command("check")
@click.argument("file")
@json_option
def check_verb(file: str, as_json: bool) -> int:
    """Whether a platform FILE is right; every problem is a line. Ends with code 1 if there is one.

    \b
    Example:
      embeddb platform check my_platform.toml
    """
    from embeddb.platforms.check import check_platform

    platform = load_platform(file)
    problems = check_platform(platform)
    if as_json:
        emit({"platform": platform.id, "digest": platform.digest, "problems": problems})
    else:
        for line in problems:
            say(line)
        sizes = {k: platform.kernel(k).space.size() for k in platform.ops}
        said = ", ".join(f"{k} {n:,}" if n else f"{k} over a million" for k, n in sizes.items())
        if not problems:
            say(f"{platform.id}: no problems; legal configurations: {said}")
        else:
            say(f"{platform.id}: {plural(len(problems), 'problem')}")
    return 1 if problems else 0
