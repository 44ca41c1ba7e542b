"""What every training verb needs: a number of threads, and the command line that goes on."""

from __future__ import annotations

import shlex
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["command_again", "threads"]


@contextmanager
def threads(count: int) -> Iterator[None]:
    """torch computes with so many threads inside; 0 leaves it alone."""
    if not count:
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def command_again(ctx: click.Context) -> str:
    """The command line that goes on: what was given, and --resume."""
    words = []
    for param in ctx.command.params:
        value = ctx.params.get(param.name or "")
        if param.name == "resume" or value in (None, False) or value == param.default:
            continue
        if isinstance(param, click.Argument):
            words.append(str(value))
        elif value is True:
            words.append(param.opts[-1])
        else:
            for one in value if isinstance(value, tuple) else (value,):
                words += [param.opts[-1], str(one)]
    return shlex.join(["embeddb", "train", str(ctx.command.name), *words, "--resume"])
