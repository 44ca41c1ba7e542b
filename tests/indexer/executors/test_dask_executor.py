"""Dask on this machine: the contract, killed workers and a task that kills them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from embeddb.testing.executors import ExecutorContract

pytest.importorskip("distributed")

from indexer.executors.dask import DaskExecutor


@pytest.fixture(scope="module")
def cluster() -> Iterator[DaskExecutor]:
    """One cluster of one worker."""
    made = DaskExecutor()
    yield made
    made.close()


class TestDask(ExecutorContract):
    @pytest.fixture
    def executor(self, cluster: DaskExecutor) -> DaskExecutor:
        return cluster
