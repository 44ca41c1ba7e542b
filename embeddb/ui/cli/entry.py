"""Entry of the command line, which imports nothing before it is ready for Ctrl-C."""

from __future__ import annotations

import sys


def run() -> None:
    """Run the command line; Ctrl-C ends in one line, also while modules are being imported."""
    try:
        from embeddb.ui.cli.main import run as run_command

        run_command()
    except KeyboardInterrupt:
        sys.stderr.write("embeddb: interrupted\n")
        sys.exit(130)
