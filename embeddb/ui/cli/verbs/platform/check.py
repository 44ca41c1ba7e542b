"""`platform check`: whether a platform file is right."""

from __future__ import annotations

from functools import partial

import click

from embeddb.core.errors import PlatformError
from embeddb.core.kinds import operation_of
from embeddb.core.wording import plural
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
            for kind in dict.fromkeys(operation_of(name)[1] for name in platform.ops):
                if text := kind.transfer_note(platform):
                    say(f"{kind.many}: {text}")
        else:
            say(f"{platform.id}: {plural(len(problems), 'problem')}")
    return 1 if problems else 0


def _count(platform: Platform, kernel: str) -> str:
    """Of a nest, whose depth decides what parameters there are, an example's."""
    space, of = platform.kernel(kernel).space, ""
    workload, text = operation_of(kernel)[1].example()
    if workload is not None:
        space, of = space.bind(workload.sizes.symbols), f" ({text})"
    if space.shaped_by:
        return f"{kernel} depends on {', '.join(space.shaped_by)}"
    size = space.size()
    return f"{kernel} {size:,}{of}" if size else f"{kernel} over a million{of}"
