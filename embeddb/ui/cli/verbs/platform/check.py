"""`platform check`: whether a platform file is right."""

from __future__ import annotations

from functools import partial

import click

from embeddb.core.errors import PlatformError
from embeddb.core.wording import plural
from embeddb.nests.examples import sample_nests
from embeddb.platforms.of_subject import carried
from embeddb.platforms.platform import Platform, load_platform
from embeddb.ui.cli.output import emit, json_option, say
from indexer.resolve import is_file

__all__ = ["check_verb"]


@click.command("check")
@click.argument("file")
@json_option
def check_verb(file: str, as_json: bool) -> int:
    """Check a platform FILE; every problem is a line. Ends with code 1 if there is one.

    \b
    Example:
      embeddb platform check my_platform.toml
    """
    from embeddb.platforms.check import check_platform

    try:
        platform = load_platform(file)
    except PlatformError as error:
        if not is_file(file):
            raise
        if as_json:
            emit({"platform": None, "digest": None, "problems": list(error.problems)})
        for line in () if as_json else error.problems:
            say(line)
        if not as_json:
            say(f"{file}: {plural(len(error.problems), 'problem')}")
        return 1
    problems = check_platform(platform)
    if as_json:
        emit({"platform": platform.id, "digest": platform.digest, "problems": problems})
    else:
        for line in problems:
            say(line)
        if not problems:
            said = ", ".join(map(partial(_count, platform), platform.ops))
            say(f"{platform.id}: no problems; legal configurations: {said}")
            if "nest" in platform.ops:
                say(f"nests: {carried(platform)}")
        else:
            say(f"{platform.id}: {plural(len(problems), 'problem')}")
    return 1 if problems else 0


def _count(platform: Platform, kernel: str) -> str:
    """Of a nest, whose depth decides what parameters there are, an example's."""
    space, of = platform.kernel(kernel).space, ""
    if kernel == "nest":
        nest = sample_nests(64)["matmul"]
        space, of = space.bind(nest.sizes.symbols), " (three loops of 64 turns, any order legal)"
    if space.shaped_by:
        return f"{kernel} depends on {', '.join(space.shaped_by)}"
    size = space.size()
    return f"{kernel} {size:,}{of}" if size else f"{kernel} over a million{of}"
