"""Tests of handles run as if the machine were idle."""

from __future__ import annotations

import os

import pytest

from embeddb.handle import autotune


@pytest.fixture(autouse=True)
def _idle_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    monkeypatch.setattr(autotune, "_busy", autotune._busy.__wrapped__)
