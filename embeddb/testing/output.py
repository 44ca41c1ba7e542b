"""A check that all contract suites share: a plug-in leaves standard output alone."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout


@contextmanager
def prints_nothing() -> Iterator[None]:
    """Assert that nothing is printed: standard output belongs to the answer of a verb, with
    `--json` one document."""
    out = io.StringIO()
    with redirect_stdout(out):
        yield
    assert not out.getvalue(), f"prints on standard output: {out.getvalue()[:80]!r}"
