"""`build_app`: routes, uploads, error responses, and limits of concurrency.

All database access runs in a thread. Pages are cached until the database changes. Few queries run
at a time, and few files are received at a time; further ones wait.
"""

from __future__ import annotations

import logging
import re
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeVar

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
from embeddb.core.errors import EmbeddbError, MatrixError, NothingFound, StoreError, UsageError
from embeddb.core.pattern import Pattern
from embeddb.database import Database
from embeddb.platforms.platform import Platform
from embeddb.store import Store
from embeddb.ui.serve import facts, measured, reading
from embeddb.ui.serve.access import HEADERS, Address, Gate, Guard, Token
from embeddb.ui.serve.app_state import AppState, PageCache, answer, answer_twin, ask
from embeddb.ui.serve.reading import Limits, read_apart
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

if TYPE_CHECKING:
    from starlette.requests import Request


#: Largest numbers at a time: rendered pages, running queries, and files being received.
_PAGES, _ASKS, _BODIES = 6, 2, 8
#: Seconds that a query waits for its turn.
WAIT_S = 20.0
#: Cached pages, of up to a megabyte each.
_MOST_PAGES = 64
_log = logging.getLogger("embeddb.ui.serve")

T = TypeVar("T")
Facts = Callable[[AppState, facts.PageQuery], dict[str, Any]]
Drawn = Callable[[dict[str, Any]], dict[str, Any]]
Endpoint = Callable[[Request], Awaitable[Response]]


class _Pages:
    def __init__(self, state: AppState) -> None:
        self._state = state
        self._cache = PageCache(state.version_token, _MOST_PAGES)
        self._listings = PageCache(state.answers_token, _MOST_PAGES)
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
        """Endpoint of a page and its JSON twin, cached while the database does not change; `drawn`
        adds contents of the page only, `plain` converts for the twin."""
        place = self._listings if lists_answers else self._cache

        def make(request: Request, query: dict[str, str]) -> bytes:
            document = read(self._state, query)
            if _is_twin(request):
                return msgspec.json.encode(plain(document))
            return _page(self._state, request, template, drawn(document))

        async def endpoint(request: Request) -> Response:
            query = _query_of(request)
            key = _address(request), tuple(sorted(query.items()))
            body = await self._threaded(place.get, key, lambda: make(request, query))
            kind = "application/json" if _is_twin(request) else "text/html; charset=utf-8"
            return Response(body, media_type=kind)

        return endpoint

    async def thumb(self, request: Request) -> Response:
        info = await self._threaded(self._state.pattern, request.path_params["id"])
        return _sent(request, thumb(info))

    async def static(self, request: Request) -> Response:
        static_files = await self._threaded(files)
        if request.path_params["name"] not in static_files:
            raise HTTPException(404)
        return _sent(request, static_files[request.path_params["name"]])

    # -- asking ----------------------------------------------------------------------------

    async def ask(self, request: Request) -> Response:
        """Query. GET: a pattern of the database; POST: the file in the body."""
        query = _query_of(request)
        if request.method == "POST":
            answer_id, status = await self._upload(request, query), 201
        else:
            async with _turn(self._asks):
                answer_id, status = await self._work(self._stored_pattern, query), 200
        url = self._state.address.root + path_to(f"/answers/{answer_id}")
        if request.method == "POST" or _is_twin(request):
            return JSONResponse({"id": answer_id, "url": url}, status, headers={"location": url})
        return RedirectResponse(url, 303)

    async def _upload(self, request: Request, query: dict[str, str]) -> str:
        name, most = _plain_name(query.get("name", "")), self._state.max_upload
        bodies, asks = _turn(self._bodies), _turn(self._asks)
        async with bodies, _received(request, name, most) as path, asks:
            where, op = await self._work(self._question, query)
            pattern, picture = await _read_upload(path, name, most)
            return await self._work(ask, self._state, pattern, where, op, picture)

    def _stored_pattern(self, query: facts.PageQuery) -> str:
        where, op = self._question(query)
        return ask(self._state, self._state.pattern(query.get("pattern", "")), where, op)

    def _question(self, query: facts.PageQuery) -> tuple[Platform, Op]:
        for name, example in (("platform", "cpu"), ("op", "spmm:64")):
            if not query.get(name):
                raise UsageError(f"the address has no {name}", hint=f"add {name}={example}")
        return self._state.platform(query["platform"]), facts.op_of(query["op"])

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
    """The application over an open database, which the caller closes. `max_upload` is in bytes.

    Answers are stored if `writable`; with a read-only database they live as long as the app, or as
    `scratch`, a store that several apps share. With a `token`, requests need it.

    Raises: UsageError for a database open for writing without `writable`, and for an address that
    other machines reach without a token.
    """
    address = address or Address()
    if not (writable or db.store.readonly):
        raise UsageError(
            "the database is open for writing", hint="open it read-only, or pass writable=True"
        )
    if address.others_see_it and not token:
        raise UsageError("other machines can reach this address, so it needs a token")
    state = AppState(db, writable=writable, max_upload=max_upload, address=address, scratch=scratch)
    gate = [Middleware(Gate, token=Token(token), address=address)] if token else []
    failed = partial(_failed, state)
    app = Starlette(
        routes=_routes(state),
        middleware=[Middleware(Guard, address=address), *gate],
        exception_handlers={
            HTTPException: failed,
            EmbeddbError: failed,
            ClientDisconnect: lambda *_: Response(status_code=400),
            Exception: failed,
        },
    )
    app.router.redirect_slashes = False
    return app


def _routes(state: AppState) -> list[Route]:
    pages = _Pages(state)
    campaigns = measured.Campaigns()

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
        Route("/map.json", pages.page("", measured.map_points)),
        Route("/map", pages.page("map.html", measured.map_page)),
        *both("/ask", pages.ask, methods=["GET", "POST"]),
        Route("/thumbs/{id}.svg", pages.thumb),
        Route("/static/{name}", pages.static),
    ]


def _query_of(request: Request) -> dict[str, str]:
    return {**request.query_params, **request.path_params}


def _is_twin(request: Request) -> bool:
    return str(request.scope["path"]).endswith(".json")


def _address(request: Request) -> str:
    """Path and query of a request, unchanged."""
    raw: bytes = request.scope.get("raw_path", b"")
    path = raw.partition(b"?")[0].decode("ascii", "replace")
    return path + (f"?{request.url.query}" if request.url.query else "")


def _page(state: AppState, request: Request, template: str, document: dict[str, Any]) -> bytes:
    here = _address(request)
    return render(template, root=state.address.root, state=state, here=here, f=document).encode()


def _sent(request: Request, file: File) -> Response:
    headers = {"etag": file.tag, "cache-control": "no-cache"}
    if file.policy:
        headers["content-security-policy"] = file.policy
    if request.headers.get("if-none-match") == file.tag:
        return Response(status_code=304, headers=headers)
    return Response(file.body, media_type=file.kind, headers=headers)


@asynccontextmanager
async def _turn(places: anyio.Semaphore) -> AsyncIterator[None]:
    """Wait for a free place. Raises: HTTPException 503 after a time limit."""
    try:
        with anyio.fail_after(WAIT_S):
            await places.acquire()
    except TimeoutError:
        text = "too many queries at once: try again in a moment"
        raise HTTPException(503, text, headers={"Retry-After": "2"}) from None
    try:
        yield
    finally:
        places.release()


def _failed(state: AppState, request: Request, error: Exception) -> Response:
    """An error as a page, or as JSON if requested: one line and a hint."""
    status, text, hint = _error_line(error)
    more = dict(getattr(error, "headers", None) or {})
    headers = {**HEADERS, **more}
    if _is_twin(request) or request.method == "POST":
        return JSONResponse({"error": text, "hint": hint}, status, headers=headers)
    document = {"status": status, "error": text, "hint": hint}
    try:
        body = _page(state, request, "error.html", document)
    except EmbeddbError:  # the frame itself reads the database
        body = text.encode()
    return Response(body, status, media_type="text/html; charset=utf-8", headers=headers)


def _error_line(error: Exception) -> tuple[int, str, str]:
    if isinstance(error, HTTPException):
        return error.status_code, error.detail, ""
    if not isinstance(error, EmbeddbError):
        _log.error("%s: %s", type(error).__name__, error)
        return 500, "internal error; see the server's log", ""
    if isinstance(error, NothingFound):
        return 404, str(error), error.hint
    if isinstance(error, StoreError):
        return 500, str(error), error.hint
    return (400 if isinstance(error, UsageError) else 422), str(error), error.hint


# -- uploads ---------------------------------------------------------------------------------------

#: Time limits of a body, and of a pause within it, in seconds.
BODY_S, PAUSE_S = 60.0, 5.0
_MOST_NAME = 200
_SUFFIX = re.compile(r"(\.[a-z][a-z0-9]{0,9})?(\.gz)?$")


def _plain_name(text: str) -> str:
    """A file name without folders and of bounded length; `upload` if nothing is left."""
    name = PurePosixPath(text.replace("\\", "/")).name[-_MOST_NAME:]
    name = "".join(c for c in name if c.isprintable() and not "\ud800" <= c <= "\udfff")
    return name.strip(" .") or "upload"


@asynccontextmanager
async def _received(request: Request, name: str, most: int) -> AsyncIterator[Path]:
    """The body as a temporary file of at most `most` bytes. Raises: HTTPException 411, 413, 415 or
    408 for a body that is empty, too large, encoded or slow."""
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise HTTPException(415, "send the file as it is, without a content encoding")
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and (len(declared) > 18 or int(declared) > most):
        raise _too_large(most)
    suffix = _SUFFIX.search(name.lower())
    with tempfile.TemporaryDirectory(prefix="embeddb-ask-") as folder:
        path = Path(folder) / f"matrix{suffix[0] if suffix else ''}"
        size = 0
        try:
            with anyio.fail_after(BODY_S):
                async with await anyio.open_file(path, "wb") as out:
                    async for chunk in _parts(request):
                        size += len(chunk)
                        if size > most:
                            raise _too_large(most)
                        await out.write(chunk)
        except TimeoutError:
            why = f"within {BODY_S:g} s, or nothing came for {PAUSE_S:g} s"
            raise HTTPException(408, f"the file was not received {why}") from None
        if not size:
            raise HTTPException(400, "the body is empty: send the matrix file itself")
        yield path


async def _parts(request: Request) -> AsyncIterator[bytes]:
    """Parts of a body: stalled ones must not keep others from being received. Raises: TimeoutError
    after a pause."""
    stream = request.stream()
    while True:
        with anyio.fail_after(PAUSE_S):
            part = await anext(stream, None)
        if part is None:
            return
        yield part


def _too_large(most: int) -> HTTPException:
    text = f"the file is larger than {most / 1e6:g} MB: start the server with --max-upload"
    return HTTPException(413, text)


async def _read_upload(path: Path, name: str, most: int) -> tuple[Pattern, bytes]:
    """Read an uploaded file. Raises: MatrixError with the uploaded name in place of the path;
    HTTPException 504 after the time limit."""
    stem = name[:-3] if name.lower().endswith(".gz") else name
    try:
        limits = Limits.of_upload(most, path.stat().st_size)
        return await read_apart(path, PurePosixPath(stem).stem or name, limits)
    except TimeoutError:
        raise HTTPException(504, f"{name} was not read within {reading.READ_S:g} s") from None
    except MatrixError as e:
        hint = "" if "format=" in e.hint else e.hint
        raise MatrixError(e.reason, where=name, line=e.line, hint=hint) from None
