"""SLURM of one node: the contract, and what goes wrong on a cluster."""

from __future__ import annotations

import pytest
from slurm_node import SlurmNode

from embeddb.testing.executors import ExecutorContract
from indexer.executors.slurm import SlurmExecutor


class TestSlurm(ExecutorContract):
    @pytest.fixture
    def executor(self, node: SlurmNode) -> SlurmExecutor:
        return SlurmExecutor()
