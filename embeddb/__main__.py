"""`python -m embeddb`: the command line without the installed script."""

from __future__ import annotations

from embeddb.ui.cli.entry import run

if __name__ == "__main__":
    run()
