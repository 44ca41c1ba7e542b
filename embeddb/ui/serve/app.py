"""`build_app`: the routes, how errors read, and what runs where.

Whatever touches the database runs in a thread. Pages are made whole and kept until the database
changes. Few questions run at a time, and few files are received at a time; more are told to wait.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from embeddb.core.config import Op
from embeddb.core.errors import EmbeddbError, NothingFound, StoreError, UsageError
from embeddb.database import Database
from embeddb.platforms.platform import Platform
from embeddb.store import Store
from embeddb.ui.serve import facts, mapping, measured
from embeddb.ui.serve.access import HEADERS, Address, Gate, Guard, Token
from embeddb.ui.serve.answers import PageCache
from embeddb.ui.serve.app_state import AnswerCache, AppState, answer, answer_twin
from embeddb.ui.serve.rendering import (
    File,
    answer_page,
    compare_page,
    files,
    path_to,
    pattern_page,
    render,
    thumb,
)
from embeddb.ui.serve.upload import plain_name, read_upload, received

#: Pages being made at a time, matrices being read and answered, and files being received.
_PAGES, _ASKS, _BODIES = 6, 2, 8
#: Seconds a question waits for its turn.
WAIT_S = 20.0
#: Pages kept, of up to a megabyte each.
_MOST_PAGES = 64
_log = logging.getLogger("embeddb.ui.serve")

T = TypeVar("T")
Facts = Callable[[AppState, facts.Asked], dict[str, Any]]
Drawn = Callable[[dict[str, Any]], dict[str, Any]]
Endpoint = Callable[[Request], Awaitable[Response]]


class _Pages:
    """The endpoints over one database."""

    def __init__(self, state: AppState) -> None:
        self._state = state
        self._kept = PageCache(state.version_token, _MOST_PAGES)
        self._told = PageCache(state.answers_token, _MOST_PAGES)
        self._answers = AnswerCache(state)
        self._pages = anyio.CapacityLimiter(_PAGES)
        self._working = anyio.CapacityLimiter(_ASKS)
        self._asks = anyio.Semaphore(_ASKS)
        self._bodies = anyio.Semaphore(_BODIES)

    # -- reading ---------------------------------------------------------------------------

    def page(
        self,
        template: str,
        read: Facts,
        drawn: Drawn = dict,
        *,
        plain: Drawn = dict,
        lists_answers: bool = False,
    ) -> Endpoint:
        """For a page and its twin; `drawn` adds what only the page shows, `plain` is what only the
        twin says."""

        def body(request: Request, asked: dict[str, str]) -> bytes:
            found = read(self._state, asked)
            if _is_twin(request):
                return msgspec.json.encode(plain(found))
            return _page(self._state, request, template, drawn(found))

        return self.kept(body, self._told if lists_answers else self._kept)

    def kept(self, make: Callable[[Request, dict[str, str]], bytes], place: PageCache) -> Endpoint:
        """For a body that stays the same while the database does."""

        async def endpoint(request: Request) -> Response:
            asked = _asked(request)
            key = _address(request), tuple(sorted(asked.items()))
            body = await self._threaded(place.get, key, lambda: make(request, asked))
            kind = "application/json" if _is_twin(request) else "text/html; charset=utf-8"
            return Response(body, media_type=kind)

        return endpoint

    def points(self) -> Endpoint:
        """For the marks of the map: what its page has a table of, whole."""

        def body(_: Request, asked: dict[str, str]) -> bytes:
            return msgspec.json.encode(mapping.map_points(self._state, asked))

        return self.kept(body, self._kept)

    async def thumb(self, request: Request) -> Response:
        info = await self._threaded(self._state.pattern, request.path_params["id"])
        return _sent(request, thumb(info))

    async def static(self, request: Request) -> Response:
        held = await self._threaded(files)
        if request.path_params["name"] not in held:
            raise HTTPException(404)
        return _sent(request, held[request.path_params["name"]])

    # -- asking ----------------------------------------------------------------------------

    async def ask(self, request: Request) -> Response:
        """GET: about a pattern of the database. POST: about the file that is the body."""
        asked = _asked(request)
        if request.method == "POST":
            return self._given(await self._upload(request, asked), 201)
        async with _turn(self._asks):
            made = await self._work(self._known, asked)
        if _is_twin(request):
            return self._given(made, 200)
        return RedirectResponse(self._answer_at(made), 303)

    def _answer_at(self, made: str) -> str:
        return self._state.root + path_to(f"/answers/{made}")

    def _given(self, made: str, status: int) -> Response:
        url = self._answer_at(made)
        return JSONResponse({"id": made, "url": url}, status, headers={"location": url})

    async def _upload(self, request: Request, asked: dict[str, str]) -> str:
        name, most = plain_name(asked.get("name", "")), self._state.max_upload
        bodies, asks = _turn(self._bodies), _turn(self._asks)
        async with bodies, received(request, name, most) as path, asks:
            where, op = await self._work(self._question, asked)
            pattern, picture = await read_upload(path, name, most)
            return await self._work(self._answers.ask, pattern, where, op, picture)

    def _known(self, asked: facts.Asked) -> str:
        where, op = self._question(asked)
        return self._answers.ask(self._state.pattern(asked.get("pattern", "")), where, op)

    def _question(self, asked: facts.Asked) -> tuple[Platform, Op]:
        for name, example in (("platform", "cpu"), ("op", "spmm:64")):
            if not asked.get(name):
                raise UsageError(f"the address lacks {name}", hint=f"add {name}={example}")
        return self._state.platform(asked["platform"]), facts.op_of(asked["op"])

    async def _work(self, work: Callable[..., T], *args: Any) -> T:
        return await anyio.to_thread.run_sync(partial(work, *args), limiter=self._working)

    async def _threaded(self, work: Callable[..., T], *args: Any) -> T:
        return await anyio.to_thread.run_sync(partial(work, *args), limiter=self._pages)


def build_app(
    db: Database,
    *,
    writable: bool = False,
    max_upload: int = 64_000_000,
    address: Address | None = None,
    token: str = "",
    scratch: Store | None = None,
) -> Starlette:
    """The application over an open database, which stays the caller's. `max_upload` is in bytes.

    Answers are stored if `writable`; of a database opened read-only they live as long as the app,
    or as `scratch`, a store that several apps share. With a `token` only those see anything who
    give it.

    Raises: UsageError for a database open for writing where that is not `writable`, and for an
    address that others reach without a token.
    """
    address = address or Address()
    if not (writable or db.store.readonly):
        raise UsageError("answers would be stored", hint="open it read-only, or say writable=True")
    if address.others_see_it and not token:
        raise UsageError("others can reach this address: it needs a token")
    state = AppState(db, writable=writable, max_upload=max_upload, address=address, scratch=scratch)
    gate = [Middleware(Gate, token=Token(token), address=address)] if token else []
    failed = partial(_failed, state)
    app = Starlette(
        routes=_routes(state),
        middleware=[Middleware(Guard, address=address), *gate],
        exception_handlers={
            HTTPException: failed,
            EmbeddbError: failed,
            ClientDisconnect: _gone,
            Exception: failed,
        },
    )
    app.router.redirect_slashes = False
    return app


def _routes(state: AppState) -> list[Route]:
    pages = _Pages(state)
    campaigns = measured.Campaigns(state)

    def both(path: str, endpoint: Endpoint, **options: Any) -> list[Route]:
        return [Route(path + ".json", endpoint, **options), Route(path, endpoint, **options)]

    comparing = pages.page("compare.html", measured.compare, compare_page, lists_answers=True)
    one_pattern = pages.page("pattern.html", facts.pattern, pattern_page, lists_answers=True)
    home = pages.page("home.html", facts.home, lists_answers=True)
    every_campaign = pages.page("campaigns.html", campaigns.listed)
    return [
        Route("/", home),
        Route("/index.json", home),
        *both("/search", pages.page("search.html", facts.search, lists_answers=True)),
        *both("/patterns/{id}", one_pattern),
        *both("/answers/{id}", pages.page("answer.html", answer, answer_page, plain=answer_twin)),
        *both("/platforms/{id}", pages.page("platform.html", facts.platform)),
        *both("/campaigns", every_campaign),
        *both("/campaigns/{name:path}", pages.page("campaigns.html", campaigns.one)),
        *both("/runs", pages.page("runs.html", measured.runs)),
        *both("/compare", comparing),
        Route("/map.json", pages.points()),
        Route("/map", pages.page("map.html", mapping.map_page)),
        *both("/ask", pages.ask, methods=["GET", "POST"]),
        Route("/thumbs/{id}.svg", pages.thumb),
        Route("/static/{name}", pages.static),
    ]


def _asked(request: Request) -> dict[str, str]:
    return {**request.query_params, **request.path_params}


def _is_twin(request: Request) -> bool:
    return str(request.scope["path"]).endswith(".json")


def _address(request: Request) -> str:
    """Path and question as they were asked."""
    raw: bytes = request.scope.get("raw_path", b"")
    path = raw.partition(b"?")[0].decode("ascii", "replace")
    return path + (f"?{request.url.query}" if request.url.query else "")


def _page(state: AppState, request: Request, template: str, found: dict[str, Any]) -> bytes:
    here = _address(request)
    return render(template, root=state.root, state=state, here=here, f=found).encode()


def _sent(request: Request, file: File) -> Response:
    headers = {"etag": file.tag, "cache-control": "no-cache"}
    if file.policy:
        headers["content-security-policy"] = file.policy
    if request.headers.get("if-none-match") == file.tag:
        return Response(status_code=304, headers=headers)
    return Response(file.body, media_type=file.kind, headers=headers)


@asynccontextmanager
async def _turn(places: anyio.Semaphore) -> AsyncIterator[None]:
    """One of the places, waited for. Raises: HTTPException 503 where none becomes free."""
    try:
        with anyio.fail_after(WAIT_S):
            await places.acquire()
    except TimeoutError:
        text = "too many questions at once: try again in a moment"
        raise HTTPException(503, text, headers={"Retry-After": "2"}) from None
    try:
        yield
    finally:
        places.release()


async def _gone(_: Request, error: Exception) -> Response:
    """Whoever sent this file has left; nobody reads an answer."""
    return Response(status_code=400)


def _failed(state: AppState, request: Request, error: Exception) -> Response:
    """The error as a page, or as JSON where that was asked for; one line and a hint."""
    status, text, hint = _told(error)
    more = dict(getattr(error, "headers", None) or {})
    headers = {**HEADERS, **more}
    if _is_twin(request) or request.method == "POST":
        return JSONResponse({"error": text, "hint": hint}, status, headers=headers)
    found = {"status": status, "error": text, "hint": hint}
    try:
        body = _page(state, request, "error.html", found)
    except EmbeddbError:  # the frame itself asks the database
        body = text.encode()
    return Response(body, status, media_type="text/html; charset=utf-8", headers=headers)


def _told(error: Exception) -> tuple[int, str, str]:
    """Status, one line and a hint."""
    if isinstance(error, HTTPException):
        return error.status_code, error.detail, ""
    if not isinstance(error, EmbeddbError):
        _log.error("%s: %s", type(error).__name__, error)
        return 500, "this should not have happened; the server's terminal says more", ""
    if isinstance(error, NothingFound):
        return 404, str(error), error.hint
    if isinstance(error, StoreError):
        return 500, str(error), error.hint
    return (400 if isinstance(error, UsageError) else 422), str(error), error.hint
