"""What every training verb needs: a number of threads, and the command line that goes on."""

from __future__ import annotations

import shlex
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from embeddb.core.extras import needing
from embeddb.ui.cli.output import Progress, note

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["command_again", "session", "threads"]


@contextmanager
def threads(count: int) -> Iterator[None]:
    """torch computes with so many threads inside; 0 leaves it alone."""
    if not count:
        yield
        return
    with needing("training"):
        import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def session(count: int) -> Iterator[Progress]:
    """What training happens in: its progress, its threads, and on Ctrl-C how to go on."""
    try:
        with Progress() as progress, threads(count):
            yield progress
    except KeyboardInterrupt:
        note("")
        note(f"stopped; go on with: {command_again(click.get_current_context())}")
        raise


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
