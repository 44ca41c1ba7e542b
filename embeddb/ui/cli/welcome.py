"""Output of `embeddb` without a verb: the ways in, databases here, and what to type next."""

from __future__ import annotations

import re
import shlex
import shutil
from importlib import metadata
from itertools import islice
from pathlib import Path

from embeddb.core import __version__
from embeddb.core.errors import InputError
from embeddb.core.extras import install_command
from embeddb.core.wording import plural, size
from embeddb.ui.cli.output import say, table
from indexer.starter import STARTER, is_shipped, starter_place

#: A pattern of the starter database, so that a first query needs no file.
EXAMPLE = "nasa4704"
#: Entries of the working folder that are examined, and those that are shown.
_MOST_SEEN, _MOST_SHOWN = 1000, 5
_MATRICES = (".mtx", ".mtx.gz", ".smtx")
_WAYS = (
    ("index a platform's runs", "embeddb index runs.db LOG --platform my.toml"),
    ("rank configurations", "embeddb query starter A.mtx --platform cpu --op spmv"),
    ("see the evidence, offline", "embeddb explain starter last"),
)
#: Purpose of each extra.
_FOR = {
    "learn": "cost models and networks: `train`, features `scnn`",
    "graphs": "networks of tensor kernels and loop nests: `train kernels`, `train nests`",
    "serve": "the local page: `serve`",
    "postgres": "a team's database on a PostgreSQL server",
    "plot": "pictures as PNG: `plot`",
    "dask": "campaigns over Dask: `campaign run --executor dask`",
    "dynamics": "faster counting: `dynamics`",
    "cuda": "measuring on an NVIDIA GPU: platform `cuda`, `compile` of a tensor there",
    "jax": "measuring by XLA: `kernel measure --op fused`, `tune --op fusion`",
    "baselines": "more libraries to compare with: `measure --baselines`",
}


def welcome() -> None:
    """Print the welcome text; opens no database and imports nothing heavy."""
    try:
        here = sorted(islice(Path().iterdir(), _MOST_SEEN))
    except OSError:
        here = []
    say(f"embeddb {__version__}: which configuration should run this sparse kernel,")
    say("how sure is that, and why.")
    say()
    say("three ways in")
    for what, command in _WAYS:
        say(f"  {what:<26}{command}")
    say()
    say("databases")
    say(f"  {_starter()}")
    databases = [path for path in here if (path / "data.mdb").is_file()]
    for path in databases[:_MOST_SHOWN]:
        say(f"  {path}: {size((path / 'data.mdb').stat().st_size)}")
    if len(databases) > _MOST_SHOWN:
        say(f"  and {plural(len(databases) - _MOST_SHOWN, 'more folder')} here")
    if not databases:
        say("  none in this folder; `embeddb init runs.db` creates one")
    say()
    say("extras")
    table(("extra", "here", "for"), _extras(), indent="  ")
    say()
    say(f"next: {_next(here)}")
    say("all verbs: embeddb --help; one verb: embeddb VERB --help")


def _starter() -> str:
    try:
        place = starter_place()
    except InputError as e:
        return f"{STARTER}: {e.reason}"
    file = place / "data.mdb"
    if file.is_file():
        return f"{STARTER}: {place}, {size(file.stat().st_size)}"
    return f"{STARTER}: ships with embeddb, imported on first use (half a minute) to {place}"


def _extras() -> list[tuple[str, str, str]]:
    """Name, state and purpose of each extra in the package's metadata."""
    try:
        wanted = metadata.requires("embeddb") or []
    except metadata.PackageNotFoundError:
        wanted = []
    needs: dict[str, list[str]] = {}
    for line in wanted:
        requirement = re.match(r"([\w.-]+).*;.*\bextra == [\"']([\w-]+)[\"']", line)
        if requirement and requirement[2] in _FOR:
            needs.setdefault(requirement[2], []).append(requirement[1])
    rows = []
    for extra, names in sorted(needs.items(), key=lambda x: list(_FOR).index(x[0])):
        lacks = [name for name in names if not any(metadata.distributions(name=name))]
        here = "yes" if not lacks else f"no: {install_command(extra)}"
        rows.append((extra, here, _FOR[extra]))
    compiler = "yes" if shutil.which("gcc") else "no: install gcc"
    return [*rows, ("compiler", compiler, "measuring on this CPU: `measure`, `query --measure`")]


def _next(here: list[Path]) -> str:
    if not is_shipped():
        return "embeddb index runs.db LOG --platform my.toml"
    matrices = (path.name for path in here if path.name.endswith(_MATRICES) and path.is_file())
    what = next((name for name in matrices if name.isprintable()), EXAMPLE)
    what = what if not what.startswith("-") else f"./{what}"
    return f"embeddb query {STARTER} {shlex.quote(what)} --platform cpu --op spmm:32"
