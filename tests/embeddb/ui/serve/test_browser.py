"""The page in a real browser: what a person does, by mouse, by keyboard and on a narrow screen."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import band

pytest.importorskip("playwright", reason="needs playwright (pip install -e '.[dev]')")
pytest.importorskip("uvicorn", reason="needs the extra serve")
pytest.importorskip("httpx", reason="needs httpx")

import serve_site
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

from embeddb.database import Database
from embeddb.index.projection import Projection
from embeddb.ui.serve.access import Address

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or "/usr/bin/chromium"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path(CHROMIUM).exists(), reason="needs chromium (apt-get install it)"),
]
FIRST = serve_site.first_id()
PAGES = {
    "home": "/",
    "search": "/search?q=m",
    "pattern": f"/patterns/{FIRST}",
    "answer": f"/ask?pattern={FIRST}&platform=tiny&op=spmm:16",
    "platform": "/platforms/other",
    "campaigns": "/campaigns",
    "campaign": "/campaigns/plain",
    "runs": "/runs",
    "runs of one": f"/runs?pattern={FIRST}&platform=tiny&op=spmm:32",
    "map": "/map?platform=tiny&op=spmm:32&color=winner.variant",
    "compare": f"/compare?pattern={FIRST}&op=spmm:32",
    "nothing": "/patterns/nothing",
}


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    folder = serve_site.make(tmp_path_factory.mktemp("browsed") / "runs.db")
    with Database.open(folder, readonly=True) as opened:
        yield opened


@pytest.fixture
def site(db: Database) -> Iterator[str]:
    """The address of a server over a small database."""
    with serve_site.served(db) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if os.environ.get("PYTEST_XDIST_WORKER"):
        pytest.skip("one browser at a time")
    with sync_playwright() as p:
        found = p.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield found
        found.close()


TOKEN = "k3J9-vQx7_tYb2LmZp8RsWdF4hN6cGaE"


def test_a_browser_is_asked_for_the_token_once(db: Database, browser: Browser) -> None:
    """The form is sent with an origin of its own, which the guard wants to see."""
    with serve_site.served(db, token=TOKEN) as port:
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{port}/runs?platform=tiny")
        assert Axe().run(page).violations_count == 0
        page.get_by_label("Token").fill("wrong")
        page.get_by_role("button", name="Go on").click()
        expect(page.get_by_text("wrong token")).to_be_visible()
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Go on").click()
        expect(page).to_have_url(f"http://127.0.0.1:{port}/runs?platform=tiny")
        page.goto(f"http://127.0.0.1:{port}/map")
        expect(page.locator("[data-drawn]")).to_be_visible()
        assert TOKEN not in page.evaluate("document.cookie") and not page.evaluate(
            "document.cookie"
        )
        page.close()


def test_a_page_behind_a_path_leads_nowhere_else(
    db: Database, browser: Browser, tmp_path: Path
) -> None:
    """Scripts, pictures and the upload know what comes before every path."""
    address = Address(public="http://localhost/team/page")
    with serve_site.served(db, token=TOKEN, address=address) as port:
        page, asked = browser.new_page(), list[str]()
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"http://127.0.0.1:{port}/team/page/map?platform=tiny&op=spmm:32")
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Go on").click()
        page.wait_for_selector(".map[data-drawn]")
        page.locator("canvas").focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Enter")
        page.wait_for_url("**/team/page/patterns/*")
        page.get_by_role("link", name="embeddb").first.click()
        page.set_input_files("#ask-file", matrix(tmp_path))
        page.fill("#ask-op", "spmm:32")
        page.select_option("#ask-platform", "tiny")
        page.click("text=Ask >> nth=-1")
        page.wait_for_url("**/team/page/answers/r*")
        assert {url for url in asked if f":{port}/team/page/" not in url} == set()
        page.close()


class Watched:
    """A page whose console and requests are kept."""

    def __init__(self, page: Page, site: str) -> None:
        self.page, self.site = page, site
        self.errors: list[str] = []
        self.addresses: list[str] = []
        page.on("console", lambda m: m.type in ("error", "warning") and self.errors.append(m.text))
        page.on("pageerror", lambda e: self.errors.append(str(e)))
        page.on("request", lambda r: self.addresses.append(r.url))

    def open(self, address: str) -> Page:
        self.page.goto(self.site + address)
        self.page.wait_for_load_state("networkidle")
        return self.page

    def map(self, address: str = PAGES["map"]) -> Page:
        page = self.open(address)
        page.wait_for_selector(".map[data-drawn]")
        return page


@pytest.fixture
def seen(browser: Browser, site: str, request: pytest.FixtureRequest) -> Iterator[Watched]:
    """A page of its own; afterwards nothing was complained about and nothing left the machine."""
    options: dict[str, Any] = getattr(request, "param", {})
    context = browser.new_context(**options)
    watched = Watched(context.new_page(), site)
    yield watched
    context.close()
    # A browser reports every answer that is not 200 as an error of the page.
    wrong = [e for e in watched.errors if "Failed to load resource" not in e]
    assert wrong == []
    assert watched.addresses
    assert {a for a in watched.addresses if not a.startswith(site + "/")} == set()


@pytest.mark.parametrize(
    "seen",
    [
        {"viewport": {"width": 1200, "height": 900}},
        {"viewport": {"width": 1200, "height": 900}, "color_scheme": "dark"},
        {"viewport": {"width": 320, "height": 640}, "has_touch": True},
    ],
    ids=["light", "dark", "narrow"],
    indirect=True,
)
def test_every_page_is_accessible_and_fits(seen: Watched) -> None:
    for name, address in PAGES.items():
        page = seen.open(address)
        expect(page.locator("h1")).to_have_count(1)
        width = page.viewport_size["width"] if page.viewport_size else 0
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        found = Axe().run(page).response["violations"]
        bad = [
            (v["id"], v["nodes"][0]["html"][:200])
            for v in found
            if v["impact"] in ("serious", "critical")
        ]
        assert bad == [], name


@pytest.mark.parametrize("seen", [{}, {"color_scheme": "dark"}], indirect=True)
def test_dark_is_dark_and_light_is_light(seen: Watched) -> None:
    dark = seen.page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    page = seen.open(PAGES["answer"])
    paper, ink = (
        page.evaluate(f"getComputedStyle(document.body).{what}")
        for what in ("backgroundColor", "color")
    )
    light = [sum(int(v) for v in c[4:-1].split(",")) / 3 for c in (paper, ink)]
    assert (light[0] < 60 < 180 < light[1]) if dark else (light[1] < 60 < 180 < light[0])


def test_searching_by_keyboard_alone(seen: Watched) -> None:
    page = seen.open("/")
    page.keyboard.press("Tab")
    expect(page.locator(":focus")).to_have_text("Skip to the content")
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "find":
            break
    page.keyboard.type("m1b")
    page.keyboard.press("Enter")
    page.wait_for_url("**/search?q=m1b")
    page.get_by_role("link", name="m1b").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/patterns/*")
    expect(page.locator("h1")).to_have_text("m1b")


def matrix(tmp_path: Path) -> Path:
    p = band(200, 14)
    rows = "".join(
        f"{r + 1} {c + 1}\n" for r in range(200) for c in p.indices[p.indptr[r] : p.indptr[r + 1]]
    )
    out = tmp_path / "mine <b>.mtx"
    out.write_text(f"%%MatrixMarket matrix coordinate pattern general\n200 200 {p.nnz}\n{rows}")
    return out


def test_a_chosen_file_is_answered(seen: Watched, tmp_path: Path) -> None:
    page = seen.open("/")
    page.set_input_files("#ask-file", matrix(tmp_path))
    page.fill("#ask-op", "spmm:32")
    page.select_option("#ask-platform", "tiny")
    page.click("text=Ask >> nth=-1")
    page.wait_for_url("**/answers/r*")
    expect(page.locator("h1")).to_contain_text("mine <b>")
    expect(page.locator("main")).to_contain_text("until the server ends")
    page.get_by_role("link", name="m1c").first.click()  # a neighbour
    page.wait_for_url("**/patterns/*")


def test_a_dropped_file_that_is_no_matrix_is_told(seen: Watched) -> None:
    page = seen.open("/")
    data = page.evaluate_handle(
        """() => { const d = new DataTransfer();
        d.items.add(new File(["no matrix"], "<i>bad.mtx")); return d; }"""
    )
    page.dispatch_event(".drop", "drop", {"dataTransfer": data})
    state = page.locator(".ask-state.bad")
    expect(state).to_contain_text("<i>bad")
    assert page.url.rstrip("/") == seen.site


def test_the_map_is_hovered_zoomed_and_clicked(seen: Watched) -> None:
    page = seen.map()
    canvas = page.locator("canvas")
    canvas.scroll_into_view_if_needed()
    page.keyboard.press("Tab")
    canvas.focus()
    page.keyboard.press("ArrowRight")
    tip = page.locator(".map-tip")
    expect(tip).to_be_visible()
    name = tip.locator("strong").inner_text()
    assert name in page.locator(".map-state").inner_text()
    place = page.evaluate(_PLACE)
    page.keyboard.press("Escape")
    expect(tip).to_be_hidden()
    box = canvas.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + place[0] + 1, box["y"] + place[1] + 1)
    expect(tip.locator("strong")).to_have_text(name)
    expect(tip.locator("img")).to_have_js_property("complete", True)
    assert tip.locator("img").evaluate("i => i.naturalWidth") > 0
    page.mouse.wheel(0, -600)
    page.wait_for_function("Number(document.querySelector('.map').dataset.zoom) > 1.5")
    page.click("[data-do=out]")
    page.click("[data-do=all]")
    assert page.locator(".map").get_attribute("data-zoom") == "1.000"
    page.mouse.move(box["x"] + place[0] + 1, box["y"] + place[1] + 1)
    expect(tip.locator("strong")).to_have_text(name)
    page.mouse.down()
    page.mouse.up()
    page.wait_for_url("**/patterns/*")
    expect(page.locator("h1")).to_have_text(name)


#: Where the tip of a mark points to, in pixels of the canvas: the ring's middle, read off it.
_PLACE = """() => {
  const c = document.querySelector('canvas'), s = devicePixelRatio;
  const ink = getComputedStyle(document.body).color.match(/\\d+/g).map(Number);
  const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
  let n = 0, x = 0, y = 0;
  for (let i = 0; i < d.length; i += 4)
    if (d[i + 3] > 200 && Math.abs(d[i] - ink[0]) + Math.abs(d[i + 1] - ink[1])
        + Math.abs(d[i + 2] - ink[2]) < 30) {
      n++; x += (i / 4) % c.width; y += Math.floor(i / 4 / c.width);
    }
  return [x / n / s, y / n / s];
}"""


def test_the_map_by_keyboard_alone(seen: Watched) -> None:
    page = seen.map()
    page.locator("canvas").focus()
    names = set()
    for key in ("ArrowLeft", "ArrowUp", "ArrowRight", "ArrowRight", "ArrowDown", "ArrowDown"):
        page.keyboard.press(key)
        names.add(page.locator(".map-tip strong").inner_text())
    assert len(names) > 2
    page.keyboard.press("+")
    page.keyboard.press("Shift+ArrowLeft")
    assert float(page.locator(".map").get_attribute("data-zoom") or 0) > 1
    name = page.locator(".map-tip strong").inner_text()
    page.keyboard.press("Enter")
    page.wait_for_url("**/patterns/*")
    expect(page.locator("h1")).to_have_text(name)


def test_the_legend_shows_one_kind_alone_and_the_colour_has_an_address(seen: Watched) -> None:
    page = seen.map()
    first = page.locator(".legend button").first
    first.click()
    expect(first).to_have_attribute("aria-pressed", "true")
    first.click()
    expect(first).to_have_attribute("aria-pressed", "false")
    page.select_option("#color", "group")
    page.wait_for_url("**color=group*")
    page.wait_for_selector(".map[data-drawn]")
    expect(page.locator("#color")).to_have_value("group")
    rows = page.locator("main table tbody tr")
    expect(rows).to_have_count(int(page.locator(".map").get_attribute("data-drawn") or 0))


def test_hostile_names_run_nothing(seen: Watched) -> None:
    asked: list[str] = []
    seen.page.on("dialog", lambda d: (asked.append(d.message), d.dismiss()))
    for address in ("/search?q=script", "/map?color=group", "/campaigns", "/runs"):
        page = seen.map(address) if "map" in address else seen.open(address)
        expect(page.locator("main")).to_contain_text("<script>alert(1)</script>")
    page = seen.map()
    page.locator("canvas").focus()
    for _ in range(12):
        page.keyboard.press("ArrowUp")
        page.keyboard.press("ArrowLeft")
    assert asked == []


def test_ten_thousand_marks_are_seen_at_once(
    seen: Watched, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Generous on a shared machine; docs/howto/serve.md has the measured time."""
    rng = np.random.default_rng(0)
    count = 10_000
    winners = [f'{{"variant":"{v}"}}' for v in rng.integers(0, 12, count)]
    atlas = Projection(
        op="spmm:32",
        scope="tiny",
        featurizer="stats",
        generation=0,
        ids=[f"{i:032x}" for i in range(count)],
        x=rng.random(count).tolist(),
        y=rng.random(count).tolist(),
        winners=winners,
        names=[f"matrix-{i}" for i in range(count)],
        groups=[""] * count,
    )
    monkeypatch.setattr(db, "atlas", lambda *_: atlas)
    page = seen.map("/map?platform=tiny&op=spmm:32&color=winner&page=2")
    shown = page.locator(".map")
    assert shown.get_attribute("data-drawn") == str(count)
    took = float(shown.get_attribute("data-ms") or "inf")
    print(f"first view of {count} marks: {took:.0f} ms")  # noqa: T201  # `-s` shows it
    assert took < 3000
