"""`completion`: shell completion of verbs, options and their values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from itertools import islice

import click
from click.shell_completion import CompletionItem, get_completion_class
from click.types import StringParamType

from embeddb.core.errors import EmbeddbError, UsageError
from embeddb.core.kinds import operations
from embeddb.platforms.platform import builtin_platforms
from embeddb.store import Store, open_store
from embeddb.ui.cli import option
from embeddb.ui.cli.output import COMPLETING, emit
from indexer.starter import STARTER, starter_place

_INSTALL = {
    "bash": "embeddb completion bash > ~/.local/share/bash-completion/completions/embeddb",
    "zsh": 'embeddb completion zsh > "${fpath[1]}/_embeddb"',
    "fish": "embeddb completion fish > ~/.config/fish/completions/embeddb.fish",
}
#: Not click's own: that drops the words where files may stand too, and does not know that bash cuts
#: words at the : and @ of operations and platforms.
_BASH = r"""
_embeddb_completion() {
    local IFS=$'\n' rest=${COMP_LINE:0:COMP_POINT} words=() files=() word line cur kept
    # What no space divides is one word.
    for word in "${COMP_WORDS[@]:0:COMP_CWORD+1}"; do
        if ((${#words[@]})) && [[ $rest != [[:space:]]* ]]; then
            words[-1]+=$word
        else
            words+=("$word")
        fi
        rest=${rest#"${rest%%[![:space:]]*}"}
        rest=${rest#"$word"}
    done
    cur=${words[-1]}
    COMPREPLY=()
    for line in $(COMP_WORDS="${words[*]}" COMP_CWORD=$((${#words[@]} - 1)) \
        _EMBEDDB_COMPLETE=bash_complete "$1"); do
        case ${line%%,*} in
            dir) files=($(compgen -d -- "$cur")) ;;
            file) files=($(compgen -f -- "$cur")) ;;
            *) COMPREPLY+=("${line#*,}") ;;
        esac
    done
    if ((${#files[@]})); then
        compopt -o filenames 2>/dev/null
        COMPREPLY+=("${files[@]}")
    fi
    # Bash replaces only what follows the last : or begins with the last @.
    kept=${cur##*:}
    [[ $kept != *@* ]] || kept=@${kept##*@}
    kept=${cur%"$kept"}
    if [[ $COMP_WORDBREAKS == *[:@]* ]]; then
        COMPREPLY=("${COMPREPLY[@]#"$kept"}")
    fi
}
complete -o nosort -F _embeddb_completion embeddb
""".strip()
#: Pattern names offered, and those examined.
_MOST_OFFERED, _MOST_SEEN = 100, 20_000
#: One plain shell word: names come from untrusted files and end up on a command line.
_PLAIN = re.compile(r"[A-Za-z0-9_.@:+][A-Za-z0-9_.@:+-]*")


@option.verb("completion")
@click.argument("shell", metavar="SHELL", type=click.Choice(list(_INSTALL)))
def completion_verb(shell: str, as_json: bool) -> None:
    """Print the script that lets SHELL complete verbs, options, platforms, operations and names.

    \b
    Example:
      embeddb completion bash > ~/.local/share/bash-completion/completions/embeddb
      eval "$(embeddb completion bash)"
    """
    kind = get_completion_class(shell)
    assert kind is not None  # click knows all three
    root = click.get_current_context().find_root().command
    script = _BASH if shell == "bash" else kind(root, {}, "embeddb", COMPLETING).source().strip()
    if as_json:
        emit({"shell": shell, "script": script, "install": _INSTALL[shell]})
    else:
        click.echo(f"{script}\n\n# To have it in every new shell:\n#   {_INSTALL[shell]}")


def add_completions(command: click.Command) -> None:
    """Add completions to the parameters of a verb, by their names."""
    for each in command.commands.values() if isinstance(command, click.Group) else (command,):
        for param in each.params:
            offer, files = _OFFERS.get(param.name or ""), _files(param)
            if (offer or files) and isinstance(param.type, StringParamType):
                param.type = _Words(offer, files)


def _files(param: click.Parameter) -> str:
    """`dir` or `file`, which click passes to the shell, or empty."""
    argument = isinstance(param, click.Argument)
    if param.name in _FOLDERS and not (argument and param.name == "matrices"):
        return "dir"
    return "file" if argument or param.name in _FILES else ""


Offer = Callable[[click.Context, str], Iterable[str]]


class _Words(StringParamType):
    """Text completed with words, and with files or folders."""

    def __init__(self, offer: Offer | None, files: str) -> None:
        self._offer, self._files = offer, files

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        words: Iterable[str] = ()
        if self._offer is not None:
            with suppress(EmbeddbError, OSError):  # a database that cannot be read offers nothing
                words = [w for w in self._offer(ctx, incomplete) if _PLAIN.fullmatch(w)]
        items = [CompletionItem(w) for w in dict.fromkeys(words) if w.startswith(incomplete)]
        return items + ([CompletionItem(incomplete, type=self._files)] if self._files else [])


def _platforms(ctx: click.Context, incomplete: str) -> list[str]:
    stored: list[str] = []
    with suppress(EmbeddbError, OSError), closing(_store(ctx)) as store:
        stored = store.platforms()
    return sorted({*builtin_platforms(), *stored, *(p.partition("@")[0] for p in stored)})


def _ops(ctx: click.Context, incomplete: str) -> list[str]:
    with suppress(EmbeddbError, OSError), closing(_store(ctx)) as store:
        measured = sorted({str(p.op) for p in store.partitions()})
        if measured:
            return measured
    wide = [op.example(width) for op in operations() if op.wide for width in (32, 128)]
    return wide + [op.name for op in operations() if not op.wide]


def _patterns(ctx: click.Context, incomplete: str) -> list[str]:
    with closing(_store(ctx)) as store:
        seen = islice(store.patterns(), _MOST_SEEN)
        return sorted(i.name for i in seen if i.name.startswith(incomplete))[:_MOST_OFFERED]


def _store(ctx: click.Context) -> Store:
    """Store of the database named earlier on the line; the starter is not imported for this."""
    # If an option still lacks its value, click leaves the arguments unread.
    place = str(ctx.params.get("db") or next(iter(ctx.args), ""))
    if not place:
        raise UsageError("no database is named yet")
    return open_store(starter_place() if place == STARTER else place, readonly=True)


_OFFERS: dict[str, Offer] = {
    "db": lambda *_: [STARTER],
    "platform": _platforms,
    "op": _ops,
    "ops": _ops,
    "matrix": _patterns,
    "answer": lambda ctx, incomplete: ["last", *_patterns(ctx, incomplete)],
}
#: Folders, and options of files; any argument may be a file.
_FOLDERS = frozenset({"db", "folder", "matrices"})
_FILES = frozenset(
    {"matrix", "index_matrix", "platform", "features", "weights", "manifest", "source", "html"}
    | {"out", "file", "eval_file", "dace", "emit_to", "script", "token_file", "tests", "place"}
)
