"""Install commands for optional packages: an extra of the checkout, or of the wheel."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from embeddb.core import __version__
from embeddb.core.errors import MissingDependency

#: Optional packages by the name they are imported by, and the smallest extra that brings each.
EXTRA_OF = {
    "cuda": "cuda",
    "dask": "dask",
    "distributed": "dask",
    "itsdangerous": "serve",
    "jax": "jax",
    "jaxlib": "jax",
    "numba": "dynamics",
    "psycopg": "postgres",
    "resvg_py": "plot",
    "sparse_dot_mkl": "baselines",
    "starlette": "serve",
    "torch": "learn",
    "torch_geometric": "graphs",
    "uvicorn": "serve",
}


def install_command(extra: str) -> str:
    """The command that installs an extra of `pyproject.toml` where this package came from: the
    checkout it lies in, else the wheel of this release, as a file."""
    checkout = (Path(__file__).parents[2] / "pyproject.toml").is_file()
    what = "." if checkout else f"embeddb-{__version__}-py3-none-any.whl"
    return f"pip install '{what}[{extra}]'"


def install_hint(extra: str) -> str:
    """Hint of an error that a missing extra caused."""
    return f"install the extra `{extra}`: {install_command(extra)}"


def missing_extra(
    error: ModuleNotFoundError, what: str, *, extra: str = ""
) -> MissingDependency | None:
    """Error that names the optional package `what` needs; None if the missing module belongs to no
    extra, or its package is installed (and broken). `extra` brings everything `what` needs; by
    default that of the package."""
    package = (error.name or "").partition(".")[0]
    if package not in EXTRA_OF or find_spec(package) is not None:
        return None
    hint = install_hint(extra or EXTRA_OF[package])
    return MissingDependency(f"{what} needs {package}", hint=hint)


@contextmanager
def needing(what: str, *, extra: str = "") -> Iterator[None]:
    """Context in which optional packages are imported. Raises: MissingDependency, which says which
    package `what` needs and names the extra to install."""
    try:
        yield
    except ModuleNotFoundError as e:
        if (missing := missing_extra(e, what, extra=extra)) is None:
            raise
        raise missing from None
