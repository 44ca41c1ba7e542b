"""The executor of this machine keeps the contract."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from embeddb.core.errors import UsageError
from embeddb.testing.executors import ExecutorContract
from indexer.executors.base import ExecutorOptions
from indexer.executors.local import LocalExecutor


@pytest.mark.slow
class TestLocal(ExecutorContract):
    @pytest.fixture
    def executor(self) -> Iterator[LocalExecutor]:
        made = LocalExecutor()
        yield made
        made.close()


def test_it_has_no_options() -> None:
    with pytest.raises(UsageError, match="neither --address nor --script"):
        LocalExecutor(ExecutorOptions(address="tcp://somewhere"))
