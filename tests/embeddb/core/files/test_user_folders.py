from __future__ import annotations

from pathlib import Path

import pytest

from embeddb.core.files.user_folders import user_folder


@pytest.mark.parametrize(
    ("named", "expected"), [("/data", "/data"), ("rel", "/home/u/.cache"), ("", "/home/u/.cache")]
)
def test_a_folder_that_is_not_absolute_is_ignored(
    monkeypatch: pytest.MonkeyPatch, named: str, expected: str
) -> None:
    monkeypatch.setenv("HOME", "/home/u")
    monkeypatch.setenv("XDG_CACHE_HOME", named)
    assert user_folder("XDG_CACHE_HOME", ".cache") == Path(expected) / "embeddb"
