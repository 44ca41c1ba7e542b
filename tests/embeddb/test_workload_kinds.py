"""The kinds of workload that ship keep their contract."""

from __future__ import annotations

import pytest
from builders import band
from tensors import dot_add, sample_tensors

from embeddb.core.workload import Workload
from embeddb.nests.examples import sample_nests
from embeddb.testing.workloads import WorkloadKindContract


class TestMatrix(WorkloadKindContract):
    kind = "matrix"

    @pytest.fixture
    def workloads(self) -> list[Workload]:
        return [band(30, 2, name="a"), band(40, 3, name="b")]


class TestNest(WorkloadKindContract):
    kind = "nest"

    @pytest.fixture
    def workloads(self) -> list[Workload]:
        return list(sample_nests(8).values())


class TestKernel(WorkloadKindContract):
    kind = "kernel"

    @pytest.fixture
    def workloads(self) -> list[Workload]:
        return [one for one in sample_tensors().values() if one.kind == "kernel"]


class TestProgram(WorkloadKindContract):
    kind = "program"

    @pytest.fixture
    def workloads(self) -> list[Workload]:
        return [dot_add(m, 5, 3, kind="program") for m in (7, 8)]
