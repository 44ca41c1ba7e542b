"""A campaign to run, for those modules that run one."""

from __future__ import annotations

from pathlib import Path

import pytest
from campaign_board import plan

from indexer.campaign.folder import Campaign


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a campaign of which nothing was measured yet."""
    Campaign.create(tmp_path / "camp", plan())
    return tmp_path / "camp"
