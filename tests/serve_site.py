"""A database worth looking at, for the tests of the page: two platforms, campaigns, and names that
come from people who mean harm."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from builders import CONFIGS, OP, band, fill, patterns, runs_of, tiny

from embeddb.config import Op
from embeddb.db import Database
from embeddb.records import Measurement, Run
from embeddb.serve import running
from embeddb.serve.app import build_app
from indexer.embed import embed
from indexer.library import info_of

SCRIPT = "<script>alert(1)</script>"
REVERSED = "gnp\u202exrtm\u2066"
LONG = "n" * 10_000
#: Campaigns whose names a path cannot carry as they are.
CAMPAIGNS = ("plain", "a/b?c=d&e", "../../etc", "x.json", SCRIPT, "é ü")


def make(folder: Path) -> Path:
    """12 matrices on `tiny`, 6 of them on `other` (simulated), and hostile ones."""
    with pytest.MonkeyPatch.context() as patch, Database.create(folder) as db:
        # Learned features would take most of the time, and no page is about them.
        patch.setattr("embeddb.featurizers.scnn.SHIPPED", folder / "none")
        among = patterns(3)
        fill(db, tiny(), among, indexed=False)
        fill(db, tiny("other", simulated=True), among[:6], indexed=False)
        hostile = [
            band(90 + at, 3 + at, name=name, group=SCRIPT)
            for at, name in enumerate((SCRIPT, REVERSED, LONG))
        ]
        fill(db, tiny(), hostile, indexed=False)
        for at, name in enumerate(CAMPAIGNS):
            again = runs_of(among[at], tiny(), op=Op("spmv"))
            db.store.append(replace(run, campaign=name) for run in again)
        failed = Measurement(status="crash", error=f"{SCRIPT} at \u202eline 1")
        db.store.append([Run(among[0].id, OP, "tiny", CONFIGS[3], failed)])
        db.store.put_patterns([info_of(band(333, 5, name="never-ran"))])
        embed(db)
    return folder


@contextmanager
def served(db: Database, **options: Any) -> Iterator[int]:
    """A server on a free port, in a thread; the port."""
    with running.listening(0) as place:
        config = running.config(build_app(db, **options))
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [place]})
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield place.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


def first_id() -> str:
    return patterns()[0].id
