"""What every request passes first: a host that is this machine, no other site's hand in what
changes something, and headers that forbid a page to load or run anything from elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["HEADERS", "HOSTS", "POLICY", "Guard"]

#: Names of this machine; another one in the Host header is a foreign site whose name was made to
#: point here (DNS rebinding).
HOSTS = ("127.0.0.1", "localhost")
POLICY = (
    "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
#: Longest address (path and question together) that is looked at.
_MOST_ADDRESS = 4096


class Guard:
    """Wraps the application. A header that a response sets itself is kept."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refused = _refused(scope)
        if refused is None:
            await self._app(scope, receive, guarded)
        else:
            status, text = refused
            await PlainTextResponse(text + "\n", status)(scope, receive, guarded)


def _refused(scope: Scope) -> tuple[int, str] | None:
    """Status and reason, or None for what may pass."""
    headers = Headers(scope=scope)
    host = headers.get("host", "")
    if host.partition(":")[0].lower() not in HOSTS:
        return 400, "this page answers to localhost and 127.0.0.1 only"
    if len(scope.get("raw_path", b"")) + len(scope.get("query_string", b"")) > _MOST_ADDRESS:
        return 414, "this address is too long"
    if scope["method"] not in ("GET", "HEAD", "POST"):
        return 405, "GET, HEAD and POST only"
    # Asking keeps an answer, also by GET: a foreign page must not do that with a picture's address.
    if scope["method"] != "POST" and not scope["path"].startswith("/ask"):
        return None
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return 403, "another site asked for this; open the page itself"
    if headers.get("origin", f"http://{host}").lower() != f"http://{host}".lower():
        return 403, "another site asked for this; open the page itself"
    return None
