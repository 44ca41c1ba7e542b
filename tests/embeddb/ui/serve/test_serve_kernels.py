"""The page over a database of tensor kernels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

pytest.importorskip("starlette", reason="needs the extra serve")
pytest.importorskip("httpx", reason="needs httpx")

import measured_kernels as law
from serve_site import BASE, TestClient
from tensors import dot_add

from embeddb.database import Database
from embeddb.ui.serve.app import build_app

BAD = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    bad = replace(dot_add(80, 96, 64), name=BAD, group=BAD)
    folder = tmp_path_factory.mktemp("served") / "kernels.db"
    law.make(folder, kernels=[*law.measured(), bad])
    with (
        Database.open(folder, readonly=True) as db,
        TestClient(build_app(db), base_url=BASE) as found,
    ):
        yield found


def test_a_kernel_has_its_operations_drawn(client: TestClient) -> None:
    kernel = law.measured()[0]
    page = client.get(f"/patterns/{kernel.id}")
    assert page.status_code == 200
    assert page.text.count('class="draw-axis draw-box') == len(kernel.operations)
    assert "thick frame" in page.text and "Its code" not in page.text
    for word in ("non-zeros", "matri", "nest"):
        assert word not in page.text.partition("<main")[2].partition("</main")[0], word
    told = client.get(f"/patterns/{kernel.id}.json").json()
    assert told["kernel"]["count"] == len(kernel.operations)
    assert told["kernel"]["flops"] > 0 and told["kernel"]["operations"][0]["opcode"] == "parameter"


def test_the_first_page_asks_about_kernels(client: TestClient) -> None:
    shown = client.get("/").text.partition("<main")[2].partition("</main")[0]
    assert "Ask about a tensor kernel" in shown and "--op tile" in shown
    assert "nest" not in shown and "matri" not in shown


def test_names_of_strangers_are_escaped(client: TestClient) -> None:
    page = client.get(f"/patterns/{dot_add(80, 96, 64).id}")
    assert page.status_code == 200 and "<script>alert" not in page.text
