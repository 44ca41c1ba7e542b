"""Older import paths: plug-ins written for them go on working."""

from __future__ import annotations

import subprocess
import sys

import pytest

from embeddb.core.moved import MOVED


@pytest.mark.parametrize("old", sorted(MOVED))
def test_an_older_name_is_the_same_module(old: str) -> None:
    code = (
        f"import embeddb, importlib as i; old = i.import_module({old!r});"
        f"new = i.import_module({MOVED[old]!r});"
        f"assert old is new and new.__spec__.name == {MOVED[old]!r}, new.__spec__"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_the_pages_told_to_import_is_there() -> None:
    code = """
import embeddb
from embeddb.config import Config, Op
from embeddb.errors import ReaderError
from embeddb.platform import load_platform
from embeddb.query import Candidate
from embeddb.records import Measurement
from embeddb.testing.platforms import check_platform
from embeddb.testing.readers import ReaderContract
from indexer.readers.lines import numbered
from indexer.readers.row import MatrixRef, RunRow, integer, need_op, seconds, wrong_file
from indexer.runners.base import RunOptions
from tuners.ranking import RankedTuner, by_score, default_candidate
import embeddb.core.config
assert Config is embeddb.core.config.Config
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_another_name_is_still_unknown() -> None:
    with pytest.raises(ModuleNotFoundError):
        __import__("embeddb.nothing")
