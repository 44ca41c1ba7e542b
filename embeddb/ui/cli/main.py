"""The command line: `embeddb VERB DB ...`; a module for each group of verbs."""

from __future__ import annotations

import os
import platform
import sys
import warnings
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import click

from embeddb.core import __version__
from embeddb.core.errors import EmbeddbError, PluginWarning, UsageError
from embeddb.core.extras import missing_extra
from embeddb.core.server_url import redacted
from embeddb.core.wording import clean
from embeddb.ui.cli.output import COMPLETING, note

#: Modules of `verbs` by verb, in the order of `--help`.
VERBS = {
    "init": "index",
    "index": "index",
    "ingest": "index",
    "embed": "index",
    "clusters": "index",
    "query": "query",
    "explain": "report",
    "emit": "emit",
    "measure": "measure",
    "adopt": "measure",
    "campaign": "campaign",
    "calibrate": "measure",
    "tune": "tune",
    "train": "train",
    "dynamics": "dynamics",
    "eval": "eval",
    "export": "emit",
    "plot": "plot",
    "report": "report",
    "serve": "serve",
    "platform": "platform",
    "nest": "nest",
    "kernel": "kernel",
    "db": "db",
    "completion": "completion",
}

#: If set, an unexpected exception ends with its traceback, instead of a line and a file.
DEBUG = "EMBEDDB_DEBUG"
#: Ended by Ctrl-C, with the state saved.
INTERRUPTED = 130
_BUG = "a bug in embeddb; "


class _Verbs(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in VERBS:
            return None
        # Loaded on use, so that `embeddb query` imports only what querying needs.
        module = import_module(f"embeddb.ui.cli.verbs.{VERBS[name]}")
        command: click.Command = getattr(module, f"{name}_verb")
        if COMPLETING in os.environ:
            from embeddb.ui.cli.verbs.completion import add_completions

            add_completions(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in VERBS and not name.startswith("-") and not ctx.resilient_parsing:
            close = get_close_matches(name, VERBS, 1)
            hint = f"did you mean `embeddb {close[0]}`?" if close else "all verbs: embeddb --help"
            raise UsageError(f"No such command {name!r}.", hint=hint)
        return super().resolve_command(ctx, args)


def _versions(ctx: click.Context, _: click.Parameter, requested: bool) -> None:
    """`--version`: of the program, its store schema, its export format and the shipped data."""
    if not requested or ctx.resilient_parsing:
        return
    from embeddb.store import SCHEMA
    from indexer.readers.embeddb import VERSION
    from indexer.starter import is_shipped, starter_version

    shipped = starter_version() if is_shipped() else "not part of this installation"
    click.echo(f"embeddb {__version__}; store schema {SCHEMA}; export version {VERSION}")
    click.echo(f"starter {shipped}; Python {platform.python_version()}")
    ctx.exit()


@click.command(
    cls=_Verbs,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_versions)
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Recommend configurations of sparse kernels, with confidence and evidence.

    \b
    Three ways in:
      embeddb index runs.db LOG --platform my.toml    a platform's runs to a database that answers
      embeddb query starter A.mtx --platform cpu --op spmm:64    ranked configurations
      embeddb explain starter ID                      the evidence behind an answer, offline

    DB is a folder, `starter` for the database that ships with embeddb, or one on a server:
    `postgresql://host/name`.
    """
    if ctx.invoked_subcommand is None:
        from embeddb.ui.cli.welcome import welcome

        welcome()


def run(args: list[str] | None = None) -> None:
    """Entry point: exit code 0 answered, 1 error, 2 usage, 3 no evidence, 130 interrupted."""
    show_others, shown = warnings.showwarning, set[str]()

    def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        """Print our own warnings once, in one line, without the place in the source."""
        if not issubclass(category, PluginWarning):
            show_others(message, category, *place, **more)
        elif str(message) not in shown:
            shown.add(str(message))
            note(f"warning: {message}")

    with warnings.catch_warnings():
        warnings.simplefilter("always", PluginWarning)
        warnings.showwarning = show
        sys.exit(_run(args))


def _run(args: list[str] | None) -> int:
    try:
        result: Any = cli.main(args=args, prog_name="embeddb", standalone_mode=False)
    except EmbeddbError as e:
        return _fail(str(e), e.hint, e.exit_code)
    except click.exceptions.Abort:
        return _fail("interrupted; finished work is saved", "", INTERRUPTED)
    except click.exceptions.NoArgsIsHelpError as e:
        click.echo(e.format_message())
        return 2
    except click.ClickException as e:
        command = e.ctx.command_path if isinstance(e, click.UsageError) and e.ctx else "embeddb"
        return _fail(e.format_message(), f"{command} --help", 2)
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except OSError as e:
        where = f"{e.filename}: " if e.filename else ""
        return _fail(_culprit(e) or f"{where}{e.strerror or e}", "", 1)
    except (Exception, SystemExit) as e:
        if os.environ.get(DEBUG):
            raise
        if plug := _culprit(e):
            return _fail(plug, _save_traceback(e).replace(_BUG, ""), 1)
        if isinstance(e, SystemExit):
            raise
        missing = missing_extra(e, "this") if isinstance(e, ModuleNotFoundError) else None
        if missing is not None:
            return _fail(str(missing), missing.hint, missing.exit_code)
        return _fail(f"{type(e).__name__}: {e}"[:300], _save_traceback(e), 1)
    return result if isinstance(result, int) else 0


def _culprit(error: BaseException) -> str:
    from embeddb.core.plugins import culprit

    return culprit(error)


def _save_traceback(error: BaseException) -> str:
    """Write the traceback of an exception, with the command and the versions, to a new file that
    only this user can read; return a hint that names the file."""
    import tempfile
    import traceback

    lines = [
        f"embeddb {__version__}, Python {platform.python_version()}, "
        f"{platform.system()} {platform.release()} {platform.machine()}",
        f"command: {sys.argv!r}",
        "",
        *traceback.format_exception(error),
    ]
    try:
        at, name = tempfile.mkstemp(prefix="embeddb-", suffix=".txt")
        with os.fdopen(at, "w", encoding="utf-8", errors="backslashreplace") as out:
            out.write(redacted("\n".join(lines)))
    except OSError:
        return f"{_BUG}EMBEDDB_DEBUG=1 shows the traceback"
    return f"{_BUG}traceback in {name}"


def _fail(message: str, hint: str, code: int) -> int:
    line = clean(" ".join(f"{message} ({hint})".split() if hint else message.split()))
    click.echo(f"embeddb: {line}", err=True)
    return code


if __name__ == "__main__":
    run()
