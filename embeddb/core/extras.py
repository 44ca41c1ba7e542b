"""How what is optional gets installed: an extra of the checkout, or of the wheel."""

from __future__ import annotations

from pathlib import Path

from embeddb.core import __version__

__all__ = ["install_command", "install_hint"]


def install_command(extra: str) -> str:
    """The command that installs an extra of `pyproject.toml` where this package came from: the
    checkout it lies in, else the wheel of this release, as a file."""
    checkout = (Path(__file__).parents[2] / "pyproject.toml").is_file()
    what = "." if checkout else f"embeddb-{__version__}-py3-none-any.whl"
    return f"pip install '{what}[{extra}]'"


def install_hint(extra: str) -> str:
    """What an error says that a missing extra caused."""
    return f"install the extra `{extra}`: {install_command(extra)}"
