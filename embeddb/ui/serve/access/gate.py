"""Who may see anything: whoever gives the token, as a header of every request, or once on a page
after which the browser has a session."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import parse_qs

import anyio
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from embeddb.ui.serve.access.address import Address
from embeddb.ui.serve.access.failures import Failures
from embeddb.ui.serve.access.token import SESSION_S, Token
from embeddb.ui.serve.rendering import render

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["LOGIN", "Gate"]

LOGIN = "/login"
#: Bytes of the form, and seconds in which it must have come.
_MOST_FORM, _FORM_S = 8192, 10.0
#: A form that is sent without a referrer says that it comes from nowhere, and is refused.
_POLICY = {"referrer-policy": "same-origin"}
_LACKING = "this server asks for a token"
_HINT = "send it as the header `Authorization: Bearer TOKEN`, or open the page in a browser"


class Gate:
    """Wraps the application, within the guard. Files of the program itself are nobody's secret."""

    def __init__(self, app: ASGIApp, token: Token, address: Address) -> None:
        self._app, self._token, self._address = app, token, address
        self._failures = Failures()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith("/static/"):
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        if scope["path"] == LOGIN:
            reply: Response | None = await self._login(request)
        elif self._has_session(request):
            reply = None
        else:
            reply = self._by_header(request)
        await (self._app if reply is None else reply)(scope, receive, send)

    def _has_session(self, request: Request) -> bool:
        """Somebody else may have given the browser one of that name, too: any will do."""
        found = (
            part.strip().partition("=") for part in request.headers.get("cookie", "").split(";")
        )
        given = [value for name, _, value in found if name == self._token.cookie]
        return any(map(self._token.is_session, given[:4]))

    def _by_header(self, request: Request) -> Response | None:
        """None where the header has the token."""
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return self._asking(request)
        return self._tried(request, given.strip())

    def _tried(self, request: Request, given: str) -> Response | None:
        """None for the token; a wrong one counts, and after some nobody looks any more."""
        who = "" if request.client is None else request.client.host
        wait_s = self._failures.wait_s(who)
        if wait_s:
            more = {"Retry-After": str(int(wait_s) + 1)}
            return self._asking(request, 429, "too many wrong tokens: try again later", more)
        if self._token.is_it(given):
            return None
        self._failures.add(who)
        return self._asking(request, 401, "that is not the token")

    def _asking(
        self,
        request: Request,
        status: int = 401,
        wrong: str = "",
        more: dict[str, str] | None = None,
    ) -> Response:
        """For the token: a page for who asked for one, and else a document."""
        path = request.scope["path"]
        page = request.method == "GET" and not path.endswith(".json")
        if not (page or path == LOGIN) or "authorization" in request.headers:
            headers = {"www-authenticate": "Bearer", **(more or {})}
            told = {"error": wrong or _LACKING, "hint": _HINT}
            return JSONResponse(told, status, headers=headers)
        after = path + (f"?{request.url.query}" if request.url.query else "")
        if path == LOGIN:
            after = getattr(request.state, "after", "/")
        return self._page(status, wrong, after, more or {})

    def _page(self, status: int, wrong: str, after: str, more: dict[str, str]) -> Response:
        found = {"wrong": wrong, "after": after, "action": self._address.root + LOGIN}
        body = render("login.html", root=self._address.root, f=found)
        return HTMLResponse(body, status, headers={**_POLICY, **more})

    async def _login(self, request: Request) -> Response:
        if request.method != "POST":
            return self._page(200, "", "/", {})
        form = await _form(request)
        if form is None:
            return self._asking(request, 400, "that is no form with a token")
        request.state.after = _inner(form.get("after", ""))
        refused = self._tried(request, form.get("token", ""))
        if refused is not None:
            return refused
        reply = RedirectResponse(self._address.root + request.state.after, 303)
        reply.set_cookie(
            self._token.cookie,
            self._token.session(),
            max_age=SESSION_S,
            path=self._address.root or "/",
            secure=self._address.secure,
            httponly=True,
            samesite="strict",
        )
        return reply


async def _form(request: Request) -> dict[str, str] | None:
    """The fields of a small form; None for what is none."""
    body = b""
    try:
        with anyio.fail_after(_FORM_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > _MOST_FORM:
                    return None
        fields = parse_qs(body.decode("utf-8"), keep_blank_values=True, max_num_fields=8)
    except (TimeoutError, ClientDisconnect, ValueError):
        return None
    return {name: values[0].strip() for name, values in fields.items()}


def _inner(path: str) -> str:
    """A path of ours: what leads elsewhere, or is none, is the first page."""
    sound = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return path if sound and path.isascii() and len(path) < 2000 else "/"
