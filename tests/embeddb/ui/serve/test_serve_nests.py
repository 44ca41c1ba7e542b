"""The page over a database of nests, and over one that has matrices as well."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="needs the extra serve")
pytest.importorskip("httpx", reason="needs httpx")

import measured_nests as law
from builders import OP, fill, patterns, tiny
from html5lib import HTMLParser
from nest_shapes import product
from serve_site import BASE, TestClient, matrix

from embeddb.core.config import Op
from embeddb.database import Database
from embeddb.ui.serve.app import build_app

FIRST = product(n=64).id
BAD = law.hostile().id


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return law.make(tmp_path_factory.mktemp("served") / "nests.db", law.hostile())


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = law.make(tmp_path_factory.mktemp("served") / "mixed.db")
    with pytest.MonkeyPatch.context() as patch, Database.open(folder) as db:
        patch.setattr("embeddb.featurizers.scnn.SHIPPED", folder / "none")
        fill(db, tiny(), patterns(3))
    return folder


def visitor(folder: Path) -> Iterator[TestClient]:
    with Database.open(folder, readonly=True) as db:
        yield TestClient(build_app(db), base_url=BASE, follow_redirects=False)


@pytest.fixture
def client(folder: Path) -> Iterator[TestClient]:
    yield from visitor(folder)


@pytest.fixture
def both(mixed: Path) -> Iterator[TestClient]:
    yield from visitor(mixed)


PLACES = (
    "/",
    "/search",
    "/search?q=prod",
    f"/patterns/{FIRST}",
    f"/patterns/{BAD}",
    "/platforms/nest-cpu@somewhere",
    "/campaigns",
    "/runs",
    f"/runs?pattern={FIRST}",
    "/map",
    "/map?color=winner.inner",
    "/compare",
    f"/compare?pattern={FIRST}",
)


@pytest.mark.parametrize("address", PLACES)
def test_every_page_is_valid_html_and_speaks_of_nests_only(
    client: TestClient, address: str
) -> None:
    page = client.get(address)
    assert page.status_code == 200, page.text
    HTMLParser(strict=True).parse(page.text)
    lower = page.text.lower()
    assert "matri" not in lower and "non-zeros" not in lower
    assert law.HOSTILE not in page.text and "/thumbs/" not in page.text


def test_a_nest_has_its_code_and_its_twin_says_the_same(client: TestClient) -> None:
    page = client.get(f"/patterns/{FIRST}").text
    assert "<svg" in page and "C[i][j] += A[i][k] * B[k][j]" in page
    found = client.get(f"/patterns/{FIRST}.json").json()
    assert found["kind"] == "nest"
    assert found["sizes"] == {"DEPTH": 3, "TRIP_1": 64, "TRIP_2": 64, "TRIP_3": 64}
    assert found["code"] == {
        "loops": [f"for {at} from 0 to before 64" for at in "ijk"],
        "body": ["C[i][j] += A[i][k] * B[k][j]"],
    }
    assert "boxes" not in found and found["nnz"] == -1
    assert client.get(f"/thumbs/{FIRST}.svg").status_code == 404


def test_a_nest_is_asked_about_by_name(client: TestClient) -> None:
    asked = f"/ask?pattern={FIRST}&platform=nest-cpu@somewhere&op=nest"
    answer = client.get(asked)
    assert answer.status_code == 303
    page = client.get(answer.headers["location"]).text
    assert "How new this nest is" in page and ">the nest</a>" in page
    wrong = client.get(asked.replace("op=nest", "op=spmv"))
    assert wrong.status_code == 400 and "runs on a matrix" in wrong.text


def test_files_are_matrices(client: TestClient, both: TestClient) -> None:
    assert 'id="ask-file"' not in client.get("/").text
    assert 'id="ask-file"' in both.get("/").text
    where = {"platform": "nest-cpu@somewhere", "op": "nest", "name": "A.mtx"}
    sent = both.post("/ask", params=where, content=matrix())
    assert sent.status_code == 400 and "is a matrix" in sent.json()["error"]


def test_of_both_kinds_each_page_has_its_own_words(both: TestClient) -> None:
    home = both.get("/").text
    assert "Search matrices and nests" in home and "your kernel?" in home
    nests, others = (both.get(f"/runs?op={op}").text for op in (law.OP, OP))
    assert "nests ran it" in nests and "non-zeros" not in nests
    assert "matrices ran it" in others and "non-zeros" in others
    table = both.get("/search").text
    assert "matrix or nest" in table and "64 x 64 x 64 turns" in table and "non-zeros" in table


def test_the_map_has_pictures_of_matrices_only(both: TestClient) -> None:
    nests, others = (both.get(f"/map?op={op}").text for op in (law.OP, OP))
    assert 'data-many="nests"' in nests and "data-pictures" not in nests
    assert 'data-many="matrices"' in others and "data-pictures" in others


def test_only_what_runs_on_it_is_offered_for_a_pattern(both: TestClient) -> None:
    nest = both.get(f"/patterns/{FIRST}").text
    of_matrix = both.get(f"/patterns/{patterns()[0].id}").text
    assert '<option value="nest">' in nest and "spmm" not in nest.partition("</form>")[0]
    assert '<option value="nest">' not in of_matrix and f'value="{OP}"' in of_matrix


def test_twins_of_matrices_are_as_they_were(both: TestClient) -> None:
    found = both.get(f"/patterns/{patterns()[0].id}.json").json()
    assert not {"kind", "sizes", "code"} & set(found)
    assert Op.parse(found["measured"][0]["op"]) == OP
