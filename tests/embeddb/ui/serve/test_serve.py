"""The page over HTTP: every address and its twin, and names that strangers gave."""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from builders import OP, band, fill, patterns, tiny

pytest.importorskip("starlette", reason="needs the extra serve")
pytest.importorskip("httpx", reason="needs httpx")

import serve_site
from html5lib import HTMLParser
from serve_site import BASE, TestClient, ask, matrix

from embeddb.core.errors import StoreFull, UsageError
from embeddb.database import Database
from embeddb.platforms.platform import parse_platform
from embeddb.ui.serve import app_state
from embeddb.ui.serve.app import build_app

FIRST = serve_site.first_id()


def pages(client: TestClient) -> list[str]:
    answer = ask(client, matrix()).json()["url"]
    return [
        "/",
        "/search?q=m0",
        "/search?q=" + "x" * 150,
        f"/patterns/{FIRST}",
        answer,
        "/platforms/tiny",
        "/platforms/other",
        "/campaigns",
        "/campaigns/plain",
        "/runs",
        "/runs?platform=tiny&op=spmm:32&page=1",
        f"/runs?pattern={FIRST}&platform=tiny&op=spmm:32",
        "/map",
        "/map?platform=tiny&op=spmm:32&color=winner.variant",
        "/map?color=platform",
        "/map?color=group",
        "/compare",
        f"/compare?pattern={FIRST}&op=spmm:32&left=tiny&right=other",
    ]


def twin(address: str) -> str:
    path, mark, asked = address.partition("?")
    return ("/index" if path == "/" else path) + ".json" + mark + asked


def test_every_page_is_valid_html_within_policy_and_has_a_twin(client: TestClient) -> None:
    for address in pages(client):
        page = client.get(address)
        assert page.status_code == 200, (address, page.text[:500])
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        policy = page.headers["content-security-policy"]
        assert "default-src 'self'" in policy and "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert page.headers["x-content-type-options"] == "nosniff"
        assert page.headers["referrer-policy"] == "no-referrer"
        HTMLParser(strict=True).parse(page.text)
        assert re.search(r"<h1>\s*\S", page.text)
        assert not re.search(r"<script(?! src=\"/static/)|<style|\son\w+=|\sstyle=", page.text), (
            address
        )
        assert not re.search(r"(?:src|href|action)=\"(?!/|#)", page.text), address
        other = client.get(twin(address))
        assert other.status_code == 200 and other.headers["content-type"] == "application/json"
        assert isinstance(other.json(), dict)
        assert "NaN" not in other.text and "Infinity" not in other.text


def test_the_page_links_to_its_twin(client: TestClient) -> None:
    for address in pages(client):
        found = re.search(r'rel="alternate"[^>]*href="([^"]*)"', client.get(address).text)
        assert found is not None
        assert (
            client.get(found[1].replace("&amp;", "&")).headers["content-type"] == "application/json"
        )


def test_page_and_twin_say_the_same(client: TestClient) -> None:
    facts = client.get("/index.json").json()
    page = client.get("/").text
    assert facts["counts"]["pattern"] == 16 and ">16<" in page
    assert {s["op"] for s in facts["scopes"]} == {"spmm:32", "spmv"}
    runs = client.get(f"/runs.json?pattern={FIRST}&platform=tiny&op=spmm:32").json()
    seconds = [r["seconds"] for r in runs["rows"] if r["seconds"] is not None]
    assert len(seconds) == 4 and seconds == sorted(seconds)
    assert [r["status"] for r in runs["rows"]].count("crash") == 1
    sides = client.get(f"/compare.json?pattern={FIRST}").json()["sides"]
    assert [s["platform"] for s in sides] == ["other", "tiny"]
    assert sides[0]["simulated"] and not sides[1]["simulated"]
    assert "simulated" in client.get(f"/compare?pattern={FIRST}").text
    assert sides[1]["best"] == {"variant": "a"} and sides[1]["ratios"][0] == 1.0


def test_every_inner_link_leads_somewhere(client: TestClient) -> None:
    seen: set[str] = set()
    waiting = [*pages(client)[:4], "/campaigns", "/map", "/compare", f"/compare?pattern={FIRST}"]
    for address in waiting:
        text = client.get(address).text
        seen |= {x.replace("&amp;", "&") for x in re.findall(r'(?:href|src)="(/[^"#]*)', text)}
    assert len(seen) > 40
    for address in sorted(seen):
        status = client.get(address).status_code
        assert status in (200, 303) or (status == 404 and "/thumbs/" in address), address


def test_names_of_strangers_are_text(client: TestClient) -> None:
    held = client.get("/search.json?q=").json()["patterns"]
    hostile = [
        r for r in held if r["name"] in (serve_site.SCRIPT, serve_site.REVERSED, serve_site.LONG)
    ]
    assert len(hostile) == 3
    places = [
        "/search",
        "/runs",
        "/map",
        "/map?color=group",
        "/campaigns",
        f"/search?q={serve_site.SCRIPT}",
    ]
    places += [f"/patterns/{r['id']}" for r in hostile]
    places += [f"/runs?pattern={r['id']}" for r in hostile]
    places += [
        client.get(f"/ask?pattern={r['id']}&platform=tiny&op=spmm:32").headers["location"]
        for r in hostile
    ]
    places += [f"/runs?pattern={FIRST}&platform=tiny&op=spmm:32"]
    for address in places:
        page = client.get(address)
        assert page.status_code == 200, address
        assert "<script>" not in page.text, address
        assert "\u202e" not in page.text and "\u2066" not in page.text, address
        assert len(page.text) < 400_000, address
    assert "n" * 3000 not in client.get("/search").text


def test_every_campaign_can_be_reached_whatever_its_name(client: TestClient) -> None:
    rows = client.get("/campaigns.json").json()["rows"]
    assert {r["name"] for r in rows} == {"", *serve_site.CAMPAIGNS}
    page = client.get("/campaigns").text
    links = re.findall(r'<th scope="row"><a href="(/campaigns[^"]*)"', page)
    assert len(links) == len(rows)
    for address, row in zip(links, rows, strict=True):
        found = client.get(twin(address.replace("&amp;", "&"))).json()
        assert (found["name"], found["runs"]) == (row["name"], row["runs"])


def test_an_upload_is_answered_and_its_address_works(client: TestClient, db: Database) -> None:
    reply = ask(client, matrix(), "dir/../../B é.mtx")
    assert reply.status_code == 201 and reply.headers["location"] == reply.json()["url"]
    found = client.get(reply.json()["url"] + ".json").json()
    e = found["explanation"]
    assert e["pattern_name"] == "B é" and e["op"] == "spmm:32" and not found["stored"]
    assert e["answer"] == {"variant": "b"} and len(e["pattern"]["thumbnail"]) > 1000
    assert not any("read-only" in w for w in e["warnings"])
    page = client.get(reply.json()["url"]).text
    assert "until the server ends" in page
    assert db.store.counts()["recommendation"] == 0
    assert reply.json()["id"] in client.get("/").text
    # The same question again is the same answer, and packed bytes are the same matrix.
    assert ask(client, matrix(), "B.mtx").json() == reply.json()
    assert ask(client, gzip.compress(matrix()), "B.mtx.gz").json() == reply.json()


def test_known_matrices_are_asked_about_by_name_or_id(client: TestClient) -> None:
    asked = {"pattern": "never-ran", "platform": "tiny", "op": "spmm:32"}
    reply = client.get("/ask", params={**asked, "pattern": FIRST})
    assert reply.status_code == 303 and reply.headers["location"].startswith("/answers/r")
    assert client.get(reply.headers["location"]).status_code == 200
    again = client.get("/ask.json", params={**asked, "pattern": "m0a"})
    assert again.json()["url"] == reply.headers["location"]
    assert client.get("/ask", params={**asked, "pattern": "nobody"}).status_code == 404


def test_thumbnails_carry_their_own_policy(client: TestClient) -> None:
    reply = client.get(f"/thumbs/{FIRST}.svg")
    assert reply.headers["content-type"].startswith("image/svg+xml")
    policy = reply.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-") and "unsafe" not in policy
    tag = reply.headers["etag"]
    assert client.get(f"/thumbs/{FIRST}.svg", headers={"if-none-match": tag}).status_code == 304
    for name in ("page.css", "report.css", "page.js", "map.js", "icon.svg"):
        assert client.get(f"/static/{name}").status_code == 200


def test_a_bare_name_of_a_platform_is_read_alike_everywhere(tmp_path: Path) -> None:
    with Database.create(tmp_path / "one.db") as db:
        fill(db, tiny().at("a1"), patterns(2))
    with Database.open(tmp_path / "one.db", readonly=True) as db:
        client = TestClient(build_app(db), base_url=BASE)
        for name in ("tiny", "tiny@a1"):
            for page in ("runs", "map"):
                found = client.get(f"/{page}.json?platform={name}&op=spmm:32")
                assert found.status_code == 200, found.text
        missing = client.get("/map.json?platform=small&op=spmm:32")
        assert missing.status_code == 404 and "tiny@a1" in missing.text


def test_the_map_holds_every_point(client: TestClient) -> None:
    found = client.get("/map.json?platform=tiny&op=spmm:32&color=winner.variant").json()
    assert len(found["ids"]) == 15 == len(found["x"]) == len(found["kind"])
    assert {k["label"] for k in found["kinds"]} == {"a", "b", "c", "d"}
    assert sum(k["count"] for k in found["kinds"]) == 15
    assert all(0 <= v <= 1 for v in (*found["x"], *found["y"]))
    page = client.get("/map.json?platform=tiny&op=spmm:32&color=platform").json()
    assert {k["label"] for k in page["kinds"]} == {"tiny", "other + tiny"}


def test_the_first_page_says_whose_share_is_held_out(client: TestClient) -> None:
    page = client.get("/").text
    assert "by neighbours alone" in page and '<th scope="col" class="number">measured</th>' in page


def test_the_map_names_a_group_that_is_called_none() -> None:
    among = [*patterns(2), band(150, 14, name="x", group="none")]
    app = build_app(fill(Database.in_memory(), tiny(), among), writable=True)
    with TestClient(app, base_url=BASE) as client:
        found = client.get("/map.json?platform=tiny&op=spmm:32&color=group").json()
    assert {k["label"]: k["count"] for k in found["kinds"]} == {"g0": 4, "g1": 4, "none": 1}


_WRITER = """
import sys
from builders import band, runs_of, tiny
from embeddb.database import Database
with Database.open(sys.argv[1]) as db:
    late = band(150, 14, name="late", group="late")
    if sys.argv[2] == "runs":
        db.index.record(runs_of(late, tiny()), late, tiny())
    else:
        print(db.query(late, platform="tiny", op="spmm:32").id)
"""


def write(folder: Path, what: str) -> str:
    """Another process writes runs of a new matrix, or asks about it."""
    done = subprocess.run(
        [sys.executable, "-c", _WRITER, str(folder), what],
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[3],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    return done.stdout.strip()


def test_what_another_process_writes_is_shown(tmp_path: Path) -> None:
    copy = serve_site.make(tmp_path / "copy.db")
    with Database.open(copy, readonly=True) as db:
        client = TestClient(build_app(db), base_url=BASE)
        before = client.get("/index.json").json()["counts"]
        write(copy, "runs")
        after = client.get("/index.json").json()["counts"]
        assert (after["pattern"], after["run"]) == (before["pattern"] + 1, before["run"] + 4)
        found = client.get("/search.json?q=late").json()["patterns"]
        assert [row["name"] for row in found] == ["late"]
        points = client.get("/map.json?platform=tiny&op=spmm:32").json()
        assert found[0]["id"] in points["ids"]
        made = write(copy, "question")  # an answer does not raise the generation
        assert made in client.get("/").text
        assert client.get(f"/answers/{made}.json").json()["stored"]


def test_with_write_answers_are_stored(tmp_path: Path) -> None:
    copy = serve_site.make(tmp_path / "w.db")
    with Database.open(copy) as db:
        with pytest.raises(UsageError):
            build_app(db)  # it would store answers that nobody allowed
        client = TestClient(build_app(db, writable=True), base_url=BASE)
        made = ask(client, matrix(), "up.mtx").json()
        found = client.get(made["url"] + ".json").json()
        assert found["stored"] and len(found["explanation"]["pattern"]["thumbnail"]) > 1000
    with Database.open(copy, readonly=True) as db:
        assert db.recommendation(made["id"]).pattern_name == "up"


def test_other_evidence_gives_another_answer(tmp_path: Path) -> None:
    copy = serve_site.make(tmp_path / "w.db")
    with Database.open(copy) as db:
        state = app_state.AppState(db, writable=True, max_upload=1)
        pattern, platform, op = band(90, 3), db.platform("tiny"), OP
        first = app_state.ask(state, pattern, platform, op)
        assert app_state.ask(state, pattern, platform, op) == first
        model = copy / "models" / "costmodel-tiny-spmm.safetensors"
        model.parent.mkdir(exist_ok=True)
        model.write_bytes(b"damaged")
        second = app_state.ask(state, pattern, platform, op)
        assert any(model.name in warning for warning in db.recommendation(second).warnings)
        model.unlink()
        assert app_state.ask(state, pattern, platform, op) == first
        other = parse_platform(platform.text.replace("simulated = false", "simulated = true"))
        assert other.simulated and other.digest == platform.digest
        third = app_state.ask(state, pattern, other, op)
        assert db.recommendation(third).simulated


def test_an_answer_that_a_full_database_refuses_is_kept_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise StoreFull("no space left on the disk")

    with Database.open(serve_site.make(tmp_path / "w.db")) as db:
        client = TestClient(build_app(db, writable=True), base_url=BASE)
        monkeypatch.setattr(db.store.recommendations, "put", full)
        made = client.get(f"/ask.json?pattern={FIRST}&platform=tiny&op={OP}").json()
        found = client.get(f"/answers/{made['id']}.json").json()
        assert not found["stored"] and "no space" in found["explanation"]["warnings"][-1]


def test_an_empty_database_says_what_to_do(tmp_path: Path) -> None:
    Database.create(tmp_path / "e.db").close()
    with Database.open(tmp_path / "e.db", readonly=True) as db:
        client = TestClient(build_app(db), base_url=BASE)
        assert "embeddb index" in client.get("/").text
        for address in ("/search", "/compare", "/campaigns"):
            assert client.get(address).status_code == 200, address
        for address in ("/map", "/map.json", "/runs"):
            assert client.get(address).status_code == 404, address


def test_questions_of_known_names_reuse_their_answer(client: TestClient) -> None:
    names = [p.name for p in patterns()[:2]]
    urls = {
        client.get(f"/ask.json?pattern={n}&platform=tiny&op={OP}").json()["url"] for n in names * 3
    }
    assert len(urls) == 2
