"""The page over the database of `serve_site`; imported late, for it needs the extra serve."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from embeddb.database import Database

if TYPE_CHECKING:
    from starlette.testclient import TestClient


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import serve_site

    return serve_site.make(tmp_path_factory.mktemp("served") / "runs.db")


@pytest.fixture
def db(folder: Path) -> Iterator[Database]:
    with Database.open(folder, readonly=True) as opened:
        yield opened


@pytest.fixture
def client(db: Database) -> TestClient:
    import serve_site

    from embeddb.ui.serve.app import build_app

    app = build_app(db, max_upload=100_000)
    return serve_site.TestClient(app, base_url=serve_site.BASE, follow_redirects=False)
