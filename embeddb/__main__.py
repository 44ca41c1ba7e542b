"""`python -m embeddb`: the command line, where its script is not on the path."""

from __future__ import annotations

from embeddb.ui.cli.main import run

if __name__ == "__main__":
    run()
