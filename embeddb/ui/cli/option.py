"""Verbs and their options: a function for each kind of value, and options of several verbs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def verb(name: str | None = None) -> Callable[[Callable[..., Any]], click.Command]:
    """A verb of the command line, with the `--json` that all have; it arrives as `as_json`."""

    def decorate(body: Callable[..., Any]) -> click.Command:
        command = click.command(name)(body)
        flag = ["--json", "as_json"]
        command.params.append(click.Option(flag, is_flag=True, help="One JSON document on stdout."))
        return command

    return decorate


class Number(click.FloatRange):
    """A number within bounds; click's own type lets "nan" pass every bound."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number


def number(
    *words: str,
    least: int,
    default: int | None = None,
    most: int | None = None,
    help: str | None = None,
) -> Callable[[Any], Any]:
    """An option whose value is a whole number from `least` to `most`; help shows the default."""
    bounds = click.IntRange(least, most)
    return click.option(*words, default=default, show_default=True, type=bounds, help=help)


def decimal(
    *words: str, within: Number, default: float | None = None, help: str | None = None
) -> Callable[[Any], Any]:
    """An option whose value is a number; help shows the default."""
    return click.option(*words, default=default, show_default=True, type=within, help=help)


def limit(*words: str, help: str, most: int | None = None) -> Callable[[Any], Any]:
    """An option whose value is a whole number; 0, the default, stands for no limit or a choice of
    embeddb, which `help` describes."""
    return click.option(*words, default=0, type=click.IntRange(0, most), help=help)


def text(
    *words: str, default: str = "", metavar: str | None = None, help: str | None = None
) -> Callable[[Any], Any]:
    """An option whose value is a text; help shows the default, unless it is empty."""
    shown = bool(default)
    return click.option(*words, default=default, show_default=shown, metavar=metavar, help=help)


def several(
    *words: str, help: str, metavar: str | None = None, required: bool = False
) -> Callable[[Any], Any]:
    """An option that may be repeated; its value is a tuple of texts."""
    return click.option(*words, multiple=True, metavar=metavar, required=required, help=help)


def choice(*words: str, among: Sequence[str], help: str | None = None) -> Callable[[Any], Any]:
    """An option whose value is one of a few texts, the first by default; help shows it unless it is
    empty."""
    kind, shown = click.Choice(among), bool(among[0])
    return click.option(*words, default=among[0], show_default=shown, type=kind, help=help)


def flag(*words: str, help: str) -> Callable[[Any], Any]:
    """An option without a value."""
    return click.option(*words, is_flag=True, help=help)


#: Options of several verbs.
threads = limit("--threads", most=1024, help="0: all there are.")
platform = click.option("--platform", required=True, help="Name, name@instance or TOML file.")
op = click.option("--op", required=True, help="KERNEL:WIDTH, as spmm:64 or spmv.")
runner = click.option("--platform", required=True, help="A platform with a runner: cpu, cuda.")
only_platform = text("--platform", help="Only this platform (a bare name: all instances).")
manifest = text("--manifest", help="CSV with columns name and family: the groups.")
max_nnz = limit("--max-nnz", help="0: no limit.")
featurizer = text("--featurizer", help="Find neighbours by this one only.  [default: the best]")
only_op = text("--op", help="Only this operation.")


def together(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Several options as one decorator, in the order of `--help`."""

    def add(verb: F) -> F:
        for option in reversed(options):
            verb = option(verb)
        return verb

    return add


def programs(*, several: bool = False) -> Callable[[Any], Any]:
    """Options of a verb that reads programs with loop nests: `-D N=64` as `defines`, and
    `--matrix A.mtx` as `index_matrix`, a text, or with `several` a tuple of texts."""
    words, absent = ("-D", "--define", "defines"), () if several else ""
    return together(
        click.option(*words, multiple=True, metavar="N=64", help="Value of a name in the program."),
        click.option(
            "--matrix",
            "index_matrix",
            multiple=several,
            default=absent,
            metavar="A.mtx",
            help="Matrix file that fills the program's index arrays.",
        ),
    )


#: Options of trainings.
lr = decimal("--lr", within=Number(0, 1, min_open=True), default=1e-3)
resume = flag("--resume", help="Continue an interrupted training.")
#: Of models that a database has a place for.
trained = text("-o", "out", metavar="FILE", help="[default: into the database, in use]")
